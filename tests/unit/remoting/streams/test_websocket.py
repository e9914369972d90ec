"""Input over a WebSocket besides frames: web pages, foreign names, fragments without content."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import Any, ClassVar

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from rmq.protocol.frames import Decoder, encode
from rmq.remoting import serve
from rmq.remoting.transports.stream import Stream
from rmq.remoting.transports.websocket import (
    SERVER_READ_BYTES,
    MeteredStream,
    WebSocketAccess,
    WebSocketStream,
    accept_websocket,
    connect_websocket,
)
from rmq.testing import MemoryNetwork

from ..peers import Echo, request
from ..transports import both

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: %b\r\n%bUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
PAGE = "https://console.example.com"
LOCAL, PUBLIC = "127.0.0.1:10911", "10.0.0.9:10911"


@asynccontextmanager
async def served(address: str = LOCAL, **options: Any) -> AsyncIterator[MemoryNetwork]:
    network = MemoryNetwork()
    host = network.host(address.partition(":")[0])
    async with trio.open_nursery() as nursery:
        start = partial(serve, host, [address], Echo(), access=WebSocketAccess(**options))
        await nursery.start(start)
        yield network
        nursery.cancel_scope.cancel()


async def upgraded(network: MemoryNetwork, address: str, host: str, origin: str = "") -> tuple[bytes, Stream]:
    """The head of the answer to an upgrade, and the stream."""
    stream = await network.host(address.partition(":")[0]).dial(address)
    line = f"Origin: {origin}\r\n".encode() if origin else b""
    await stream.send_all(UPGRADE % (host.encode(), line))
    answer = b""
    while b"\r\n\r\n" not in answer:
        data = await stream.receive_some()
        assert data, "the server hung up"
        answer += data
    return answer, stream


def fragment(payload: bytes, opcode: int, *, last: bool) -> bytes:
    """A frame of a client, masked with zeros."""
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + struct.pack(">H", len(payload))
    return bytes([opcode | (0x80 if last else 0)]) + size + bytes(4) + payload


@pytest.mark.parametrize(
    ("address", "host", "origin", "options", "taken"),
    [
        (LOCAL, "127.0.0.1:10911", "", {}, True),
        (LOCAL, "localhost:10911", "", {}, True),
        (LOCAL, "[::1]:10911", "", {}, True),
        (LOCAL, "127.0.0.1", "http://evil.example", {}, False),
        (LOCAL, "127.0.0.1", "null", {}, False),
        (LOCAL, "127.0.0.1", "http://127.0.0.1:10911", {}, False),  # a page may be served from there too
        (
            LOCAL,
            "127.0.0.1:10911",
            "http://127.0.0.1:10911",
            {},
            True,
        ),  # Netty's client: no page is at our port
        (LOCAL, "127.0.0.1:10911", "http://127.0.0.1:8080", {}, False),
        (LOCAL, "evil.example:10911", "http://evil.example:10911", {}, False),
        (PUBLIC, "evil.example:10911", "http://evil.example:10911", {}, False),
        (PUBLIC, "mq.example:10911", "https://mq.example:10911", {"hosts": ["mq.example"]}, True),
        (LOCAL, "127.0.0.1", PAGE, {"origins": [PAGE + "/"]}, True),
        (LOCAL, "127.0.0.1", PAGE.upper(), {"origins": [PAGE]}, True),
        (LOCAL, "127.0.0.1", PAGE + ".evil.example", {"origins": [PAGE]}, False),
        (LOCAL, "127.0.0.1", "http://evil.example", {"origins": ["*"]}, True),
        (LOCAL, "evil.example:10911", "", {}, False),  # a name that leads to loopback
        (LOCAL, "evil.example:10911", PAGE, {"origins": [PAGE]}, False),
        (LOCAL, "broker-a:10911", "", {"own": ["broker-a"]}, True),
        (LOCAL, "mq.example", "", {"hosts": ["MQ.example"]}, True),
        (PUBLIC, "mq.example:10911", "", {}, True),  # no page, no loopback
        (PUBLIC, "mq.example:10911", PAGE, {"origins": [PAGE]}, False),
        (PUBLIC, "mq.example:10911", PAGE, {"origins": [PAGE], "hosts": ["mq.example"]}, True),
        (PUBLIC, "other.example:10911", "", {"hosts": ["mq.example"]}, False),
        (PUBLIC, "10.0.0.9:10911", PAGE, {}, False),
    ],
)
async def test_who_may_upgrade(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    address: str,
    host: str,
    origin: str,
    options: dict[str, list[str]],
    taken: bool,
) -> None:
    async with served(address, **options) as network:
        answer, stream = await upgraded(network, address, host, origin)
        assert answer.startswith(b"HTTP/1.1 101 " if taken else b"HTTP/1.1 403 ")
        if taken:
            await stream.send_all(fragment(encode(request(b"hello")), 2, last=True))
            data = await stream.receive_some()
            assert Decoder().feed(data[2:] if data[1] < 126 else data[4:])[0].body == b"hello"
        else:
            with trio.fail_after(5):
                while await stream.receive_some():
                    pass
            await trio.sleep(1)
            assert "does not list" in caplog.text


@pytest.mark.parametrize(
    ("repeated", "begin", "cut"),
    [
        (fragment(b"", 0, last=False), fragment(b"", 2, last=False), 512),  # of a message that never ends
        (fragment(b"", 2, last=True), b"", 512),  # empty messages
        (fragment(b"", 9, last=True), b"", 512),  # pings
        (fragment(b"x" * 100, 10, last=True), b"", 512),  # pongs that nobody asked for
        (fragment(b"x", 0, last=False), fragment(b"", 2, last=False), 585),  # a byte at a time
    ],
)
async def test_a_flood_without_content_ends_its_sender(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    repeated: bytes,
    begin: bytes,
    cut: int,
) -> None:
    async with served() as network:
        _, stream = await upgraded(network, LOCAL, "127.0.0.1")
        sent = 0

        async def read() -> None:  # else the answers to pings would hold us up
            with suppress(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await stream.send_all(begin)
            piece = repeated * (cut // 2)
            with suppress(trio.BrokenResourceError):
                while sent < 10_000:
                    await stream.send_all(piece)
                    sent += cut // 2
        assert cut <= sent
        assert "more than 512 frames were pings or had no content" in caplog.text


@pytest.mark.parametrize(("code", "clean"), [(1000, True), (1001, True), (1002, False), (1011, False)])
async def test_an_end_with_an_error_is_no_clean_end(
    autojump_clock: MockClock, code: int, clean: bool
) -> None:
    ends = MemoryNetwork().pair()
    async with trio.open_nursery() as nursery:
        client, server = await both(
            lambda: connect_websocket(nursery, ends[0], "127.0.0.1"),
            lambda: accept_websocket(nursery, ends[1]),
        )
        await server.send_all(b"x")
        assert isinstance(server, WebSocketStream)
        nursery.start_soon(server._socket.aclose, code, "why")
        assert await client.receive_some() == b"x"
        if clean:
            assert await client.receive_some() == b""
        else:
            with pytest.raises(trio.BrokenResourceError, match="why"):
                await client.receive_some()
        nursery.cancel_scope.cancel()


class Counted(MeteredStream):
    reads: ClassVar[list[int]] = []

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        assert max_bytes is not None
        self.reads.append(max_bytes)
        return await super().receive_some(max_bytes)


async def test_a_server_reads_a_little_at_a_time(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.remoting.transports.websocket.MeteredStream", Counted)
    async with served() as network:
        await upgraded(network, LOCAL, "127.0.0.1")
        assert set(Counted.reads) == {SERVER_READ_BYTES}


async def test_honest_messages_never_reach_the_limit(autojump_clock: MockClock) -> None:
    """Messages of 10 bytes, each behind a header of 6, and pings for hours."""
    async with served() as network, trio.open_nursery() as nursery:
        _, stream = await upgraded(network, LOCAL, "127.0.0.1")
        answered = trio.Event()

        async def read() -> None:
            received = b""
            while b"hello" not in received:
                received = received[-4:] + await stream.receive_some()
            answered.set()

        nursery.start_soon(read)
        frame = encode(request(b"x", oneway=True))
        pieces = [frame[at : at + 10] for at in range(0, len(frame), 10)]
        message = b"".join(fragment(piece, 2, last=True) for piece in pieces)
        for _ in range(100_000 // len(message)):
            await stream.send_all(message)
        for _ in range(200):
            await trio.sleep(60)
            await stream.send_all(fragment(b"x" * 100, 9, last=True) + message)
        await stream.send_all(fragment(encode(request(b"hello")), 2, last=True))
        with trio.fail_after(5):
            await answered.wait()


@given(cuts=st.lists(st.integers(1, 400), max_size=60), seed=st.integers(0, 1 << 16))
def test_frames_are_counted_however_their_bytes_are_cut(cuts: list[int], seed: int) -> None:
    chance = Random(seed)
    sizes = [chance.choice((0, 1, 125, 126, 300, 65_535, 70_000)) for _ in range(20)]
    wire = UPGRADE % (b"h", b"") + b"".join(
        bytes([0x82, 0x80 | min(size, 126) if size < 65_536 else 0xFF])
        + (b"" if size < 126 else struct.pack(">H" if size < 65_536 else ">Q", size))
        + bytes(4 + size)
        for size in sizes
    )

    async def look() -> float:
        meter = MeteredStream(MemoryNetwork().pair()[0])
        rest = wire + bytes([0x89, 0x80, 0, 0, 0, 0]) * 7  # pings, which are what is left to count
        for cut in cuts:
            meter._look(rest[:cut])
            rest = rest[cut:]
        meter._look(rest)
        return meter._empty

    left = 0.0
    for size in sizes:
        left = max(0.0, left + 1 - size / 8)
    assert trio.run(look) == left + 7
