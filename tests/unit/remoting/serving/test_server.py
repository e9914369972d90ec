from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rmq.errors import ConfigError, ConnectFailed, PortInUse
from rmq.protocol.command import Command
from rmq.protocol.frames import encode
from rmq.remoting import (
    Connection,
    Limits,
    Network,
    TcpNetwork,
    TlsConfig,
    open_listeners,
    open_stream,
    serve,
    serve_listeners,
)
from rmq.remoting.transports.stream import PrefixedStream
from rmq.remoting.transports.tls import TlsContexts
from rmq.testing import MemoryNetwork
from tests.ports import free_ports
from tests.unit.remoting.serving.servers import echoes, served

from ..peers import Custom, Echo, RawPeer, request

# --- listening -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [TcpNetwork, MemoryNetwork])
async def test_several_addresses_and_free_ports(make: Callable[[], Network]) -> None:
    network = make()
    async with served(network, addresses=["127.0.0.1:0", "127.0.0.1:0"]) as addresses:
        assert len(set(addresses)) == 2
        assert not any(address.endswith(":0") for address in addresses)
        for address in addresses:
            assert await echoes(network, address)


async def test_ipv6() -> None:
    network = TcpNetwork()
    try:
        listener = await network.listen("[::1]:0")
    except OSError:
        pytest.skip("this machine has no IPv6")
    await listener.aclose()
    async with served(network, addresses=["[::1]:0", "127.0.0.1:0"]) as addresses:
        assert addresses[0].startswith("[::1]:")
        for address in addresses:
            assert await echoes(network, address)


@pytest.mark.parametrize("make", [TcpNetwork, MemoryNetwork])
async def test_a_port_in_use_says_so_and_leaves_nothing_open(make: Callable[[], Network]) -> None:
    network = make()
    async with served(network) as (taken,):
        free = f"127.0.0.1:{free_ports(1)[0]}"
        with pytest.raises(PortInUse, match=f"{taken}.*stop the other"):
            await open_listeners(network, [free, taken])
        await (await network.listen(free)).aclose()


async def test_listeners_that_were_bound_before(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    listeners = await open_listeners(network, ["127.0.0.1:10911", "127.0.0.1:10909"])
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(partial(serve_listeners, listeners, Echo()))
        assert addresses == ["127.0.0.1:10911", "127.0.0.1:10909"]
        assert await echoes(network, "127.0.0.1:10909")
        nursery.cancel_scope.cancel()
    await open_listeners(network, ["127.0.0.1:10911"])  # they were closed


async def test_unusable_certificates_end_the_start(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    with pytest.raises(ConfigError, match="tlsCertPath"):
        await serve(network, ["127.0.0.1:1"], Echo(), tls=TlsConfig(tls_mode="enforcing"))
    await network.listen("127.0.0.1:1")


class ShortListener:
    """A listener on a machine that is out of descriptors, for a while."""

    def __init__(self, listener: Any, errors: list[OSError]) -> None:
        self._listener = listener
        self._errors = errors
        self.address = listener.address

    async def accept(self) -> Any:
        if self._errors:
            await trio.lowlevel.checkpoint()
            raise self._errors.pop(0)
        return await self._listener.accept()

    async def aclose(self) -> None:
        await self._listener.aclose()


async def test_out_of_descriptors_is_waited_out(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    network = MemoryNetwork()
    errors = [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), OSError(errno.ENOMEM, "no memory")]
    listener = ShortListener(await network.listen("127.0.0.1:1"), errors)
    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        await nursery.start(partial(serve_listeners, [listener], Echo()))
        assert await echoes(network, "127.0.0.1:1")
        assert trio.current_time() - began == pytest.approx(0.2)
        assert "Too many open files" in caplog.text
        nursery.cancel_scope.cancel()


async def test_other_errors_of_a_listener_end_the_service(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    listener = ShortListener(await network.listen("127.0.0.1:1"), [OSError(errno.EINVAL, "bad")])
    with pytest.raises(ExceptionGroup) as group:
        await serve_listeners([listener], Echo())
    assert group.group_contains(OSError, match="bad")


# --- serving -------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["opened", "handle", "closed"])
async def test_a_bug_in_the_endpoint_ends_one_connection(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    class Faulty(Echo):
        count = 0

        def _first(self, here: str) -> None:
            if here == where:
                self.count += 1
                if self.count == 1:
                    raise KeyError("a bug")

        def on_open(self, connection: Connection) -> None:
            self._first("opened")

        def handle(self, requests: list[Command], connection: Connection) -> None:
            self._first("handle")
            super().handle(requests, connection)

        def on_close(self, connection: Connection) -> None:
            self._first("closed")

    network = MemoryNetwork()
    async with served(network, Faulty()) as (address,):
        peer = RawPeer(await network.dial(address))
        await peer.send(request())
        if where == "closed":
            await peer.receive()
            await peer.stream.aclose()
        else:
            assert await peer.ended()
        await trio.sleep(1)
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert record.exc_info is not None
        assert await echoes(network, address)


async def test_peers_that_fail_end_only_themselves(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    network, echo = MemoryNetwork(), Echo()
    async with served(network, echo) as (address,):
        good = RawPeer(await network.dial(address))
        await good.send(request())
        await good.receive()
        bad = [await network.dial(address) for _ in range(5)]
        await bad[0].send_all(encode(request(b"half"))[:20])
        await bad[1].send_all(b"\x00\x00\x00\x00" * 3)  # nonsense
        await bad[2].send_all(b"hello")  # no protocol of ours
        await bad[3].aclose()  # not a word
        bad[4].break_off()
        await bad[0].aclose()
        await trio.sleep(1)
        await good.send(request(b"still here"))
        assert (await good.receive())[0].body == b"still here"
        assert len(caplog.records) == 2
        assert all(stream.local in caplog.text for stream in bad[1:3])
        assert len(echo.closed) == 2  # those that spoke frames


async def test_one_connection_too_many_is_refused(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    network = MemoryNetwork()
    async with served(network, limits=Limits(connections=2, connections_per_address=2)) as (address,):
        peers = [RawPeer(await network.dial(address)) for _ in range(2)]
        for peer in peers:
            await peer.send(request())
            await peer.receive()
        assert await RawPeer(await network.dial(address)).ended()
        assert "2 connections are open" in caplog.text
        await peers[0].stream.aclose()
        await trio.sleep(1)
        assert await echoes(network, address)


async def test_a_connection_without_a_whole_request_makes_room_for_another(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with served(network, limits=Limits(connections=2, connections_per_address=2)) as (address,):
        silent, half = [RawPeer(await network.dial(address)) for _ in range(2)]
        await half.stream.send_all(encode(request(b"half"))[:20])
        await trio.sleep(1)
        good = RawPeer(await network.dial(address))
        assert await silent.ended()
        await good.send(request(b"good"))
        assert (await good.receive())[0].body == b"good"
        another = RawPeer(await network.dial(address))
        assert await half.ended()
        await another.send(request())
        await another.receive()


async def test_idle_connections_are_closed_by_one_task(autojump_clock: MockClock) -> None:
    network, echo = MemoryNetwork(), Echo()
    async with served(network, echo, limits=Limits(idle_seconds=120)) as (address,):
        idle = [RawPeer(await network.dial(address)) for _ in range(3)]
        busy = RawPeer(await network.dial(address))
        for peer in (*idle, busy):
            await peer.send(request())
            await peer.receive()
        tasks = trio.lowlevel.current_statistics().tasks_living
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def keep_busy() -> None:
                while True:
                    await trio.sleep(30)
                    await busy.send(request())
                    await busy.receive()

            nursery.start_soon(keep_busy)
            for peer in idle:
                assert await peer.ended()
            assert 120 <= trio.current_time() - began <= 131
            nursery.cancel_scope.cancel()
        await trio.sleep(1)
        assert len(echo.closed) == 3
        assert trio.lowlevel.current_statistics().tasks_living == tasks - 3  # each was one task
        await busy.send(request())
        await busy.receive()


async def test_all_connections_are_looked_at_when_one_may_be_idle(autojump_clock: MockClock) -> None:
    """Each look costs with every connection, so the next is not before a twelfth of the time is over; those
    that hold bytes are looked at more often."""
    network = MemoryNetwork()
    async with served(network, Echo(), limits=Limits(idle_seconds=48)) as (address,):
        began, peers = trio.current_time(), []
        for _ in range(2):
            peers.append(RawPeer(await network.dial(address)))
            await peers[-1].send(request())
            await peers[-1].receive()
            await trio.sleep(1)
        ends = []
        for peer in peers:
            assert await peer.ended()
            ends.append(trio.current_time() - began)
        assert ends == [pytest.approx(48), pytest.approx(52)]


async def test_a_peer_may_say_nothing_for_as_long_as_others_may_be_idle(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    network = MemoryNetwork()
    async with served(network, limits=Limits(idle_seconds=120, handshake_seconds=10)) as (address,):
        patient = RawPeer(await network.dial(address))
        await trio.sleep(119)
        await patient.send(request(b"late"))
        assert (await patient.receive())[0].body == b"late"
        silent = RawPeer(await network.dial(address))
        began = trio.current_time()
        assert await silent.ended()
        assert trio.current_time() - began == pytest.approx(120)
        assert "sent nothing within 120 s" in caplog.text


@pytest.mark.parametrize(
    ("begun", "words"), [(b"\x16\x03\x01", "TLS handshake"), (b"GET / HTTP/1.1\r\n", "WebSocket handshake")]
)
async def test_a_handshake_that_has_begun_must_end(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    tls_config: TlsConfig,
    begun: bytes,
    words: str,
) -> None:
    network = MemoryNetwork()
    async with served(network, tls=tls_config, limits=Limits(handshake_seconds=10)) as (address,):
        peer = RawPeer(await network.dial(address))
        await trio.sleep(60)
        began = trio.current_time()
        await peer.stream.send_all(begun)
        assert await peer.ended()
        assert trio.current_time() - began == pytest.approx(10)
        assert f"did not finish its {words} within 10 s" in caplog.text


async def test_what_is_in_the_outboxes_is_sent_when_the_service_ends(autojump_clock: MockClock) -> None:
    late: list[tuple[Command, Connection]] = []
    network = MemoryNetwork(window=100)
    async with trio.open_nursery() as nursery:
        endpoint = Custom(lambda asked, connection: late.append((asked, connection)))
        async with served(network, endpoint) as (address,):
            peer = RawPeer(await network.dial(address))
            await peer.send(request())
            await wait_all_tasks_blocked()
            asked, connection = late[0]
            connection.reply(asked.reply(body=b"x" * 1000))
            answers: list[Command] = []

            async def receive() -> None:
                await trio.sleep(0.1)
                answers.extend(await peer.receive())

            nursery.start_soon(receive)
        assert endpoint.closed == [connection]
    assert [len(answer.body) for answer in answers] == [1000]


# --- one port, several transports ----------------------------------------------------------------


@pytest.mark.parametrize("make", [TcpNetwork, MemoryNetwork])
async def test_four_transports_on_one_port(
    make: Callable[[], Network], tls_config: TlsConfig, tls: TlsContexts
) -> None:
    network = make()
    async with served(network, tls=tls_config) as (address,):
        for scheme in ("tcp", "tls", "ws", "wss"):
            assert await echoes(network, f"{scheme}://{address}", tls), scheme


@pytest.mark.parametrize(
    ("mode", "scheme", "answered"),
    [
        ("disabled", "tcp", True),
        ("disabled", "tls", False),
        ("disabled", "wss", False),
        ("permissive", "tcp", True),
        ("permissive", "tls", True),
        ("enforcing", "tcp", False),
        ("enforcing", "ws", False),
        ("enforcing", "tls", True),
        ("enforcing", "wss", True),
    ],
)
async def test_tls_mode(
    autojump_clock: MockClock, mode: str, scheme: str, answered: bool, tls_config: TlsConfig, tls: TlsContexts
) -> None:
    from ..transports import evolve

    network = MemoryNetwork()
    async with served(network, tls=evolve(tls_config, tls_mode=mode)) as (address,):
        try:
            result = await echoes(network, f"{scheme}://{address}", tls)
        except (AssertionError, ConnectionError, trio.BrokenResourceError):
            result = False
        assert result == answered


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",  # HTTP, but no upgrade
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",  # no key
        b"\x16\x03\x01\x00\x05hello",
        b"\x16" * 100,
    ],
)
async def test_broken_handshakes_end_only_themselves(
    autojump_clock: MockClock, data: bytes, tls_config: TlsConfig
) -> None:
    network = MemoryNetwork()
    async with served(network, tls=tls_config) as (address,):
        stream = await network.dial(address)
        with trio.move_on_after(30) as scope:
            await stream.send_all(data)
            with contextlib.suppress(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass  # what the server says before it hangs up
        assert not scope.cancelled_caught
        assert await echoes(network, address)


@pytest.mark.parametrize("start", [b"\x16\x03\x01", b"GET / HT"])
async def test_a_peer_that_leaves_in_its_handshake_is_not_waited_for(
    autojump_clock: MockClock, start: bytes, tls_config: TlsConfig
) -> None:
    network = MemoryNetwork()
    async with served(network, tls=tls_config) as (address,):
        before = trio.lowlevel.current_statistics().tasks_living
        stream = await network.dial(address)
        await stream.send_all(start)
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living > before
        await stream.aclose()
        await trio.sleep(0.1)
        assert trio.lowlevel.current_statistics().tasks_living == before


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "the peer refused with HTTP status 403"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno", "the peer refused with HTTP status 503"),
        (b"", "hung up"),
        (b"\x00\x00\x00\x10" * 5, "not a WebSocket handshake"),
    ],
)
async def test_a_server_that_refuses_a_websocket(
    autojump_clock: MockClock, answer: bytes, reason: str
) -> None:
    network = MemoryNetwork()
    listener = await network.listen("127.0.0.1:1")

    async def refuse() -> None:
        stream = await listener.accept()
        await stream.receive_some()
        await stream.send_all(answer)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refuse)
        began = trio.current_time()
        with pytest.raises(ConnectFailed, match=f"WebSocket handshake: .*{reason}"):
            await echoes(network, "ws://127.0.0.1:1")
        assert trio.current_time() - began < 1


async def test_a_prefix_is_read_before_the_rest() -> None:
    client, server = MemoryNetwork().pair()
    await client.send_all(b"rest")
    stream = PrefixedStream(b"prefix", server)
    assert [await stream.receive_some(4) for _ in range(3)] == [b"pref", b"ix", b"rest"]
    assert (stream.peer, stream.local, stream.sends_now) == (server.peer, server.local, True)
    assert stream.send_now([b"a", b"b"]) == 2
    await stream.wait_send_all_might_not_block()
    await stream.send_all(b"c")
    assert [await client.receive_some(1) for _ in range(3)] == [b"a", b"b", b"c"]


async def test_a_handshake_that_never_ends(autojump_clock: MockClock, tls_config: TlsConfig) -> None:
    network = MemoryNetwork()
    async with served(network, tls=tls_config, limits=Limits(handshake_seconds=10)) as (address,):
        for start in (b"\x16\x03\x01", b"GET / HT"):
            peer = RawPeer(await network.dial(address))
            await peer.stream.send_all(start)
            with trio.fail_after(10.1):
                assert await peer.ended()


async def test_a_websocket_that_fails_later_ends_only_itself(
    autojump_clock: MockClock, tls: TlsContexts
) -> None:
    network = MemoryNetwork()
    async with served(network, echo := Echo()) as (address,):
        for nonsense in (b"\xff" * 50, b"\x81\x85\x00\x00\x00\x00hello"):  # no frame; a text message
            async with open_stream(network, f"ws://{address}") as stream:
                peer = RawPeer(stream)
                await peer.send(request())
                await peer.receive()
                await stream._stream.send_all(nonsense)  # type: ignore[attr-defined]
                assert await peer.ended()
        assert await echoes(network, address)
    assert len(echo.closed) == 3


async def test_a_real_socket_that_is_reset(caplog: pytest.LogCaptureFixture) -> None:
    network = TcpNetwork()
    async with served(network, echo := Echo()) as (address,):
        stream = await network.dial(address)
        peer = RawPeer(stream)
        await peer.send(request())
        await peer.receive()
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        stream._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await stream.aclose()
        with trio.fail_after(10):
            while not echo.closed:
                await trio.sleep(0.001)
        assert await echoes(network, address)


async def test_frames_that_come_with_the_first_read_are_not_lost(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with served(network) as (address,):
        peer = RawPeer(await network.dial(address))
        many = [request(str(n).encode()) for n in range(10)]
        await peer.stream.send_all(b"".join(map(encode, many)))
        assert [r.body for r in await peer.receive(10)] == [r.body for r in many]


def test_a_connection_lives_at_most_a_twelfth_longer() -> None:
    assert Limits().scan_seconds == 10
    assert math.isclose(Limits(idle_seconds=12).scan_seconds, 1)
