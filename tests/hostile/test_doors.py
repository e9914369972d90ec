"""Strangers at the gRPC and the AMQP door of a real broker: from three addresses, over many connections, with
calls, clients and links without end. A new honest client of either protocol gets in and works meanwhile.
"""

from __future__ import annotations

import importlib.util
import pathlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import trio

pytest.importorskip("h2")

from hpack import Encoder

from rmq.remoting.network import TcpNetwork
from tests.ports import free_ports
from tests.unit.grpc import channel, floods
from tests.unit.grpc import test_grpc as calls

from .attacks import BUSY, SOURCES, Attacker
from .campaign import GROWTH_MIB, Target, compat
from .places import crowd

CONNECTIONS: Final = 30
"""Of the strangers, who have three addresses."""
STREAMS: Final = 100
PIECES: Final = 64
SECONDS: Final = 300.0
"""For all that a newcomer does: a busy machine is no reason to give it up."""
Pieces = Callable[[int], Iterator[bytes]]
pytestmark = pytest.mark.campaign


def clients_without_end(number: int) -> Iterator[bytes]:
    """Each call is another client's, and stays open: 100 Telemetry calls of a connection."""
    return floods.members(f"stranger-{number}", STREAMS)


def polls_without_end(number: int) -> Iterator[bytes]:
    """Calls that wait for messages of a group of the stranger's own: 100 of a connection."""
    encoder = Encoder()
    asked = floods.schema.message("ReceiveMessageRequest")(batch_size=32)
    asked.group.name, asked.message_queue.topic.name = f"Polling-{number}", "Orders"
    asked.invisible_duration.seconds, asked.long_polling_timeout.seconds = 30, 20
    yield floods.hello()
    for _, stream_id in zip(range(STREAMS), floods.streams(), strict=False):
        yield floods.begin(encoder, stream_id, "ReceiveMessage") + floods.message(
            stream_id, asked, "END_STREAM"
        )


def calls_that_never_go_on(number: int) -> Iterator[bytes]:
    """Calls with a part of a message: 100 of a connection."""
    encoder = Encoder()
    yield floods.hello()
    for _, stream_id in zip(range(STREAMS), floods.streams(), strict=False):
        part = b"\0" + (1 << 20).to_bytes(4, "big") + bytes(4_000)
        yield floods.begin(encoder, stream_id, "SendMessage") + floods.frame(
            floods.DataFrame(stream_id, part)
        )


def keep(attacker: Attacker, address: str, pieces: Pieces) -> None:
    """Send the pieces over many connections, keep these, and read what comes; one that is cut comes again."""
    links: dict[socket.socket, list[Any]] = {}
    numbers = iter(range(1 << 30))
    while attacker.left:
        for link in crowd(attacker, min(10, CONNECTIONS - len(links)), address):
            link.setblocking(False)
            links[link] = [pieces(next(numbers)), b""]
        for link, state in list(links.items()):
            try:
                while link.recv(1 << 16):
                    pass
                raise ConnectionResetError("closed")
            except BUSY:
                pass
            except OSError:
                _cut(attacker, links, link)
                continue
            try:
                if not state[1]:
                    state[1] = b"".join(piece for _, piece in zip(range(PIECES), state[0], strict=False))
                if state[1]:
                    state[1] = state[1][link.send(state[1]) :]
            except BUSY:
                pass
            except OSError:
                _cut(attacker, links, link)
        time.sleep(0.02)
    for link in links:
        link.close()


def _cut(attacker: Attacker, links: dict[socket.socket, list[Any]], link: socket.socket) -> None:
    attacker.cut += 1
    del links[link]
    link.close()


@pytest.fixture
def door(tmp_path: pathlib.Path) -> Iterator[tuple[Target, str]]:
    """A broker, and the address of its gRPC door."""
    (port,) = free_ports(1)
    with compat(tmp_path, plugins="grpc", grpcPort=str(port)) as target:
        yield target, f"127.0.0.1:{port}"


async def works(address: str, name: str) -> None:
    """A new client gets in, says who it is, sends a message, receives it and acknowledges it."""
    with trio.fail_after(SECONDS):
        async with channel.channel(TcpNetwork(), address, name) as one:
            settings, _ = await calls.telemetry(one, **calls.consumer(group=name))
            assert settings is not None
            sent = await one.one("SendMessage", calls.sending(calls.message(name.encode())))
            assert calls.word(sent) == "OK", sent
            bodies: set[bytes] = set()
            while name.encode() not in bodies:
                status, some = await calls.received(one, calls.receiving(group=name, seconds=10))
                assert status in ("OK", "MESSAGE_NOT_FOUND"), status
                bodies |= {each.body for each in some}
                handles = [each.system_properties.receipt_handle for each in some]
                if handles:
                    acked = await one.one("AckMessage", calls.acking(*handles, group=name))
                    assert calls.word(acked) == "OK", acked


@pytest.mark.parametrize("pieces", [clients_without_end, polls_without_end, calls_that_never_go_on])
def test_strangers_keep_no_new_client_of_grpc_out(door: tuple[Target, str], pieces: Pieces) -> None:
    target, address = door
    before = target.resident_mib()
    attacker = Attacker(target.address, target.ha_address, 600.0)
    attacker.begin()
    thread = threading.Thread(target=keep, args=(attacker, address, pieces))
    thread.start()
    try:
        deadline = time.monotonic() + SECONDS
        while attacker.sent < CONNECTIONS and time.monotonic() < deadline:
            time.sleep(0.05)
        assert attacker.sent >= CONNECTIONS, "its connections stand"
        for number in range(3):
            trio.run(works, address, f"newcomer-{number}")
    finally:
        attacker.until = 0.1
        thread.join()
    assert target.resident_mib() - before < GROWTH_MIB


# ---- AMQP ----

needs_proton = pytest.mark.skipif(importlib.util.find_spec("proton") is None, reason="needs the extra amqp")
LINKS: Final = 150


@asynccontextmanager
async def joined(address: str, name: str, source: str = "127.0.0.1") -> AsyncIterator[Any]:
    """A connection of AMQP from an address of this machine."""
    from tests.unit.amqp.client import Client

    host, _, port = address.rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port), local_address=source)
    one = Client(stream)  # type: ignore[arg-type]
    try:
        await one.login("ANONYMOUS", "", "")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            await one.open(name)
            yield one
            nursery.cancel_scope.cancel()
    finally:
        await trio.aclose_forcefully(stream)


async def take_all(address: str, number: int, begun: list[int]) -> None:
    """Open links without end on a queue, with credit, and settle nothing; come again when cut off."""
    from tests.unit.amqp.client import Broken

    while True:
        try:
            async with joined(address, f"stranger-{number}", SOURCES[number % len(SOURCES)]) as one:
                session = await one.session()
                for place in range(LINKS):
                    await one.consumer(session, "Low", f"link-{place}", credit=1_000)
                    begun.append(number)
                await trio.sleep_forever()
        except* (Broken, OSError, trio.BrokenResourceError, AssertionError):
            await trio.sleep(0.2)


async def uses_a_queue(address: str, name: str) -> None:
    """A new client sends a message to a queue of its own and consumes it."""
    from tests.unit.amqp.client import ACCEPTED
    from tests.unit.amqp.messages import bodies, text

    with trio.fail_after(SECONDS):
        async with joined(address, name) as one:
            session = await one.session()
            sent = await (await one.producer(session, name)).send(text("mine"))
            assert sent.remote_state == ACCEPTED
            assert await bodies(await one.consumer(session, name), 1) == ["mine"]


@needs_proton
def test_strangers_keep_no_new_client_of_amqp_out(tmp_path: pathlib.Path) -> None:
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"

    async def main() -> None:
        begun: list[int] = []
        async with trio.open_nursery() as nursery:
            for number in range(CONNECTIONS):
                nursery.start_soon(take_all, address, number, begun)
            with trio.fail_after(SECONDS):
                while len(set(begun)) < CONNECTIONS // 2:
                    await trio.sleep(0.05)
            for number in range(3):
                await uses_a_queue(address, f"Mine-{number}")
            assert len(begun) > 10 * CONNECTIONS
            nursery.cancel_scope.cancel()

    with compat(tmp_path, plugins="amqp", amqpPort=str(port)) as target:
        before = target.resident_mib()
        trio.run(main)
        assert target.resident_mib() - before < GROWTH_MIB
