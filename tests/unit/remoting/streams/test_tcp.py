from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rmq.errors import ConnectFailed, PortInUse
from rmq.remoting import Limits, TcpNetwork, open_stream
from rmq.remoting.address import split_address
from rmq.remoting.transports import tcp
from rmq.remoting.transports.stream import Outbox
from rmq.store.files.disk import SENDS_FILES, RealDisk


async def pair() -> tuple[tcp.TcpStream, tcp.TcpStream]:
    listener = await tcp.listen(split_address("127.0.0.1:0"))
    client = await tcp.dial(split_address(listener.address))
    server = await listener.accept()
    await listener.aclose()
    return client, server


async def test_names_of_both_ends_and_no_delay() -> None:
    client, server = await pair()
    assert (client.peer, client.local) == (server.local, server.peer)
    for stream in (client, server):
        assert stream._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await stream.aclose()


async def test_send_now_takes_several_buffers_and_says_how_much() -> None:
    client, server = await pair()
    assert client.send_now([b"abc", memoryview(b"defg"), bytearray(b"h")]) == 8
    assert await server.receive_some(100) == b"abcdefgh"
    many = [b"x"] * 3000  # more than one system call takes
    assert client.send_now(many) == tcp.IOV_MAX
    assert len(await server.receive_some(5000)) == tcp.IOV_MAX
    while client.send_now([b"x" * 100_000]):
        pass
    assert client.send_now([b"x"]) == 0
    await server.aclose()
    with pytest.raises(trio.BrokenResourceError, match=r"reset|Broken pipe"):
        await send_for_ever(client)
    await client.aclose()
    with pytest.raises(trio.ClosedResourceError):
        client.send_now([b"x"])


async def send_for_ever(stream: tcp.TcpStream) -> None:
    while True:
        await stream.send_all(b"x" * 100)


async def test_a_closed_listener_wakes_who_waits() -> None:
    listener = await tcp.listen(split_address("127.0.0.1:0"))

    async def accept() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await listener.accept()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        await trio.testing.wait_all_tasks_blocked()
        await listener.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await listener.accept()


async def test_literal_addresses_are_never_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = []
    real = socket.getaddrinfo

    def watched(*args: Any, **kwargs: Any) -> Any:
        flags.append(kwargs["flags"])
        return real(*args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", watched)
    await (await tcp.listen(split_address("127.0.0.1:0"))).aclose()
    assert flags
    assert all(flag & socket.AI_NUMERICHOST for flag in flags)


async def test_names_are_looked_up_and_each_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = await tcp.listen(split_address("127.0.0.1:0"))
    port = split_address(listener.address).port
    free = await tcp.listen(split_address("127.0.0.2:0"))  # an address of the name where nobody listens
    await free.aclose()

    async def resolve(*args: Any, **kwargs: Any) -> Any:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("127.0.0.2", port)), (*kind, ("127.0.0.1", port))]

    monkeypatch.setattr("anyio.getaddrinfo", resolve)
    client = await tcp.dial(split_address(f"broker-a:{port}"))
    assert client.peer == listener.address
    await client.aclose()
    await listener.aclose()


async def test_a_dial_says_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("anyio.getaddrinfo", fail)
    for address, words in (
        ("no-such-host:1", "cannot connect to no-such-host:1: looking up the name: .*not known"),
        ("127.0.0.1:1", "cannot connect to 127.0.0.1:1: connecting: .*refused"),
    ):
        with pytest.raises(ConnectFailed, match=words):
            async with open_stream(TcpNetwork(), address):
                pass


async def test_a_cancelled_dial_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    real = socket.socket

    def watched(*args: Any, **kwargs: Any) -> socket.socket:
        made.append(real(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(tcp.socket, "socket", watched)
    with trio.CancelScope() as scope:
        scope.cancel()
        await tcp.dial(split_address("127.0.0.1:1"))
    assert all(sock.fileno() == -1 for sock in made)


async def test_connect_seconds_bound_a_dial(autojump_clock: trio.testing.MockClock) -> None:
    class Deaf(TcpNetwork):
        async def dial(self, address: str) -> Any:
            await trio.sleep_forever()

    with pytest.raises(ConnectFailed, match="connecting: no answer within 2 s"):
        async with open_stream(Deaf(), "127.0.0.1:1", limits=Limits(connect_seconds=2)):
            pass


@pytest.mark.parametrize("is_killed", [True, False])
async def test_a_peer_is_told_by_a_reset_that_a_process_was_killed_and_by_an_end_that_it_ended(
    is_killed: bool,
) -> None:
    client, server = await pair()
    server.reset_if_killed()
    data = b"x" * 1_000_000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.send_all, data)
        received = bytearray()
        while len(received) < len(data):
            received += await client.receive_some(100_000)
    if is_killed:
        server._socket.close()  # as the system does
        with pytest.raises(trio.BrokenResourceError, match="reset"):
            await client.receive_some(1)
    else:
        server.send_now([b"the last"])
        await server.aclose()
        assert await client.receive_some(100) == b"the last"
        assert await client.receive_some(1) == b""
    await client.aclose()


async def test_a_peer_sees_an_end_at_once_behind_what_was_sent_last() -> None:
    """If the peer sent before it has seen the end, the end would be a reset, which drops the last bytes."""
    client, server = await pair()
    server.send_now([b"the last"])
    server.end_sending()
    client.send_now([b"one more question"])
    assert await client.receive_some(100) == b"the last"
    assert await client.receive_some(1) == b""
    with pytest.raises(trio.BrokenResourceError):
        server.send_now([b"more"])
    await client.aclose()
    server.end_sending()  # whatever the peer has done
    await server.aclose()
    server.end_sending()


async def test_who_is_to_be_reset_is_so_when_it_is_closed_in_order_too() -> None:
    client, server = await pair()
    server.reset_if_killed()
    server.reset_on_close()
    await server.aclose()
    with pytest.raises(trio.BrokenResourceError, match="reset"):
        await client.receive_some(1)
    await client.aclose()


async def test_a_held_port_that_another_process_took_meanwhile_says_so() -> None:
    held = [await tcp.listen(split_address("127.0.0.1:0"), held=True)]
    held.append(await tcp.listen(split_address(held[0].address), held=True))  # both bound, none listens
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held[0].accept)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(PortInUse, match=held[0].address):
            await held[1].accept()
        nursery.cancel_scope.cancel()
    for listener in held:
        await listener.aclose()


NEEDS_FILE_MAPS = pytest.mark.skipif(not SENDS_FILES, reason="the compiled engine on Linux has it")


async def moved(outbox: Outbox, client: tcp.TcpStream, server: tcp.TcpStream) -> bytes:
    """Send all; return the bytes that came. A socket takes a part at a time."""
    size, got = outbox.size, bytearray()
    while len(got) < size:
        if outbox.size:
            outbox.consume(client.send_now(outbox.peek()))
        got += await server.receive_some(50_000)
    return bytes(got)


@NEEDS_FILE_MAPS
async def test_views_of_files_are_sent_by_the_system_between_other_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1 << 20
    content = bytes(number % 251 for number in range(size))
    segment = RealDisk().open(str(tmp_path / "log"), size)
    segment.write(0, content)
    calls: list[tuple[int, int]] = []

    def sendfile(to: int, source: int, at: int, count: int) -> int:
        calls.append((at, count))
        return os_sendfile(to, source, at, count)

    os_sendfile = os.sendfile
    monkeypatch.setattr(os, "sendfile", sendfile)
    client, server = await pair()
    outbox = Outbox()
    large, small = segment.read(1_000, 300_000), segment.read(500_000, 100)
    outbox.add([b"head", large, b"between", small, segment.read(600_000, 400_000), b"end"])
    wanted = (
        b"head" + content[1_000:301_000] + b"between" + content[500_000:500_100] + content[600_000:1_000_000]
    )
    wanted += b"end"
    assert await moved(outbox, client, server) == wanted
    assert {at for at, _ in calls} >= {1_000, 600_000}
    calls.clear()
    segment.close()  # the bytes of a view are there all the same
    outbox.add([b"a", large])
    assert await moved(outbox, client, server) == b"a" + content[1_000:301_000]
    assert not calls
    await server.aclose()
    await client.aclose()


@NEEDS_FILE_MAPS
async def test_a_file_that_the_system_cannot_send_is_sent_as_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sendfile(*_: object) -> int:
        raise OSError(errno.EINVAL, "not on this file system")

    monkeypatch.setattr(os, "sendfile", sendfile)
    segment = RealDisk().open(str(tmp_path / "log"), 1 << 16)
    segment.write(0, b"ab" * (1 << 15))
    client, server = await pair()
    outbox = Outbox()
    outbox.add([segment.read(0, 1 << 16), b"end"])
    assert await moved(outbox, client, server) == b"ab" * (1 << 15) + b"end"
    await server.aclose()
    await client.aclose()
    segment.close()
