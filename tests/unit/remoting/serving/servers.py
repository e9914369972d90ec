"""Servers that echo."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from rmq.remoting import Network, open_stream, serve
from rmq.remoting.transports.tls import TlsContexts
from tests.unit.remoting.peers import Echo, RawPeer, request


@asynccontextmanager
async def served(
    network: Network,
    endpoint: Echo | None = None,
    addresses: Sequence[str] = ("127.0.0.1:0",),
    **options: Any,
) -> AsyncIterator[list[str]]:
    """A service until the end of the block; gives its addresses."""
    async with trio.open_nursery() as nursery:
        start = partial(serve, network, addresses, endpoint or Echo(), **options)
        yield await nursery.start(start)
        nursery.cancel_scope.cancel()


async def echoes(network: Network, address: str, tls: TlsContexts | None = None) -> bool:
    async with open_stream(network, address, tls=tls) as stream:
        peer = RawPeer(stream)
        await peer.send(request(b"hello"))
        (response,) = await peer.receive()
        return response.body == b"hello"
