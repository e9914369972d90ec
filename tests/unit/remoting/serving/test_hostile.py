"""A service under peers that send mutated handshakes and frames: each ends itself, none the service."""

from __future__ import annotations

import random
import ssl

import pytest
import trio
from trio.testing import MockClock

from rmq.protocol.frames import encode
from rmq.remoting import TlsConfig
from rmq.remoting.transports.tls import TlsContexts
from rmq.testing import MemoryListener, MemoryNetwork
from tests.unit.remoting.serving.servers import echoes, served

from ..peers import Echo, request

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
MESSAGES = (
    b"\x82\x85\x00\x00\x00\x00hello",
    b"\x81\x82\x00\x00\x00\x00hi",
    b"\x89\x80\x00\x00\x00\x00",
    b"\x88\x82\x00\x00\x00\x00\x03\xe8",
    b"\x02\x83\x00\x00\x00\x00abc",
    b"\x80\x83\x00\x00\x00\x00def",
    b"\x82\xfe\x01\x00\x00\x00\x00\x00" + b"z" * 256,
)
SEEDS = 300


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def conversation(chance: random.Random, hello: bytes) -> list[bytes]:
    """The bytes of a peer: a good beginning of one of the three kinds, mutated or not."""
    kind = chance.choice(("frames", "websocket", "tls", "noise"))
    if kind == "frames":
        return [encode(request(chance.randbytes(20))) for _ in range(3)]
    if kind == "websocket":
        return [UPGRADE, *chance.choices(MESSAGES, k=4)]
    if kind == "tls":
        return [hello, chance.randbytes(100)]
    return [bytes([chance.choice((0, 0x16, 0x47))]) + chance.randbytes(chance.randrange(100))]


def mutated(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((0, 0, 1, 1, 2, 5))):
        at = chance.randrange(1, len(changed) + 1)
        kind = chance.randrange(3)
        if kind == 0 and at < len(changed):
            changed[at] = chance.randrange(256)
        elif kind == 1:
            changed[at:at] = chance.randbytes(chance.randrange(4))
        else:
            del changed[at : at + chance.randrange(8)]
    return bytes(changed)


async def attack(network: MemoryNetwork, address: str, seed: int, hello: bytes) -> None:
    chance = random.Random(seed)
    stream = await network.dial(address)
    try:
        for piece in conversation(chance, hello):
            await stream.send_all(mutated(chance, piece))
            await trio.sleep(chance.choice((0, 0.01)))
        if chance.random() < 0.5:
            with trio.move_on_after(1):
                while await stream.receive_some():
                    pass
    except trio.BrokenResourceError:
        pass  # the service hung up, as it should
    await stream.aclose()


async def test_no_bytes_end_the_service(
    autojump_clock: MockClock, tls_config: TlsConfig, tls: TlsContexts
) -> None:
    network, echo, hello = MemoryNetwork(seed=1, chop=True), Echo(), client_hello()
    async with served(network, echo, tls=tls_config) as (address,):
        before = trio.lowlevel.current_statistics().tasks_living
        for seed in range(SEEDS):
            try:
                await attack(network, address, seed, hello)
            except BaseException:
                print(f"seed {seed}")
                raise
        for scheme in ("tcp", "tls", "ws", "wss"):
            assert await echoes(network, f"{scheme}://{address}", tls)
        await trio.sleep(30)
        assert trio.lowlevel.current_statistics().tasks_living == before
        assert not network._streams


async def test_no_answer_ends_the_client(autojump_clock: MockClock) -> None:
    """A header that is not ASCII made the parsers below the WebSocket raise what they do not announce."""
    network = MemoryNetwork()
    for header in (b"Up\xffgrade: websocket", b"Upgrade: web\xffsocket", b"Connection: \xff"):
        listener = await network.listen("127.0.0.1:0")

        async def answer(header: bytes, listener: MemoryListener) -> None:
            stream = await listener.accept()
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 101 Switching\r\n" + header + b"\r\n\r\n")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, header, listener)
            with pytest.raises(ConnectionError, match="WebSocket handshake"):
                await echoes(network, f"ws://{listener.address}")
