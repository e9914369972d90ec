"""The entry ticket of a transport: trio's stream checks."""

from __future__ import annotations

import pytest
import trio
from trio.testing import check_two_way_stream

from rmq.remoting.loop import current_loop
from rmq.remoting.transports.tls import TlsContexts

from ..transports import CLOGGED, TRANSPORTS, Pair


@pytest.mark.parametrize("name", TRANSPORTS)
async def test_streams_keep_trios_contract(name: str, tls: TlsContexts, nursery: trio.Nursery) -> None:
    async def make() -> Pair:
        return await TRANSPORTS[name](nursery, tls)

    async def make_clogged() -> Pair:
        return await CLOGGED[name](nursery, tls)

    current_loop()  # tells trio that our streams are streams
    # The part for clogged streams needs something to wait on until a send would not block; trio-websocket
    # has nothing of the kind.
    await check_two_way_stream(make, make_clogged if name in CLOGGED else None)
    nursery.cancel_scope.cancel()
