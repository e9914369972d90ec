"""Pairs of connected streams of every transport, for tests that must hold on all of them."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs
import trio
import trustme

from rmq.remoting import TlsConfig
from rmq.remoting.address import split_address
from rmq.remoting.transports import tcp
from rmq.remoting.transports.stream import Stream
from rmq.remoting.transports.tls import TlsContexts, tls_client, tls_server
from rmq.remoting.transports.websocket import accept_websocket, connect_websocket
from rmq.testing import MemoryNetwork

Pair = tuple[Stream, Stream]
Maker = Callable[[trio.Nursery, TlsContexts], Awaitable[Pair]]


def certificates(folder: Path) -> TlsConfig:
    """One configuration that serves both sides: a certificate for loopback and the authority to trust."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(
        folder / "server.pem"
    )
    return TlsConfig(
        tls_mode="permissive",
        tls_cert_path=str(folder / "server.pem"),
        tls_trust_path=str(folder / "authority.pem"),
    )


def evolve(config: TlsConfig, **changes: object) -> TlsConfig:
    return attrs.evolve(config, **changes)


async def both(first: Callable[[], Awaitable[Stream]], second: Callable[[], Awaitable[Stream]]) -> Pair:
    """The results of two handshakes that need each other."""
    results: dict[int, Stream] = {}

    async def keep(index: int, make: Callable[[], Awaitable[Stream]]) -> None:
        results[index] = await make()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, 0, first)
        nursery.start_soon(keep, 1, second)
    return results[0], results[1]


async def memory(nursery: trio.Nursery, tls: TlsContexts) -> Pair:
    return MemoryNetwork(seed=1).pair()


async def memory_clogged(nursery: trio.Nursery, tls: TlsContexts) -> Pair:
    client, server = MemoryNetwork(seed=1, window=10).pair()
    for stream in (client, server):
        assert stream.send_now([b"x" * 100]) == 10
    return client, server


async def over_tcp(nursery: trio.Nursery, tls: TlsContexts) -> Pair:
    listener = await tcp.listen(split_address("127.0.0.1:0"))
    pair = await both(lambda: tcp.dial(split_address(listener.address)), listener.accept)
    await listener.aclose()
    return pair


async def over_tcp_clogged(nursery: trio.Nursery, tls: TlsContexts) -> Pair:
    client, server = await over_tcp(nursery, tls)
    for stream in (client, server):
        stream._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # type: ignore[attr-defined]
        stream._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # type: ignore[attr-defined]
    for stream in (client, server):
        while stream.send_now([b"x" * 65536]):
            pass
    return client, server


async def over_tls(nursery: trio.Nursery, tls: TlsContexts) -> Pair:
    client, server = MemoryNetwork(seed=1).pair()
    return await both(lambda: tls_client(client, tls, "127.0.0.1"), lambda: tls_server(server, tls))


async def over_tls_clogged(nursery: trio.Nursery, tls: TlsContexts) -> Pair:
    network = MemoryNetwork(seed=1)
    raw = network.pair()
    client, server = await both(lambda: tls_client(raw[0], tls, "127.0.0.1"), lambda: tls_server(raw[1], tls))
    await server.send_all(b"x")
    assert await client.receive_some() == b"x"  # and with it the session tickets that came before
    for stream in (client, server):
        await stream.send_all(b"x")
    network.window = raw[0]._outgoing.size  # each direction holds one record and has room for no more
    assert raw[1]._outgoing.size == network.window
    return client, server


async def over_websocket(nursery: trio.Nursery, tls: TlsContexts) -> Pair:
    client, server = MemoryNetwork(seed=1).pair()
    return await both(
        lambda: connect_websocket(nursery, client, "127.0.0.1"), lambda: accept_websocket(nursery, server)
    )


async def over_websocket_in_tls(nursery: trio.Nursery, tls: TlsContexts) -> Pair:
    client, server = await over_tls(nursery, tls)
    return await both(
        lambda: connect_websocket(nursery, client, "127.0.0.1"), lambda: accept_websocket(nursery, server)
    )


TRANSPORTS: dict[str, Maker] = {
    "memory": memory,
    "tcp": over_tcp,
    "tls": over_tls,
    "websocket": over_websocket,
    "websocket-in-tls": over_websocket_in_tls,
}
CLOGGED: dict[str, Maker] = {"memory": memory_clogged, "tcp": over_tcp_clogged, "tls": over_tls_clogged}
