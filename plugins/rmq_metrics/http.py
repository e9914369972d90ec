"""GET /metrics and nothing else: one request a connection, read by h11."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import h11
import trio

from rmq_metrics.text import CONTENT_TYPE

READ_BYTES = 4096
SECONDS = 10.0
"""For a whole request and its answer."""
PEERS = 16
"""At a time; more are closed at once."""
PATHS = (b"/metrics", b"/")

log = logging.getLogger("rmq.metrics")

Page = Callable[[], Awaitable[bytes]]


async def serve(listeners: Sequence[trio.SocketListener], page: Page) -> None:
    """Answer until cancelled. What a peer does wrong ends its connection only."""
    peers = trio.CapacityLimiter(PEERS)

    async def answer(stream: trio.SocketStream) -> None:
        try:
            peers.acquire_nowait()
        except trio.WouldBlock:
            await trio.aclose_forcefully(stream)
            return
        try:
            with trio.move_on_after(SECONDS):
                await _converse(stream, page)
        except (trio.BrokenResourceError, h11.LocalProtocolError) as error:
            log.debug("a scrape broke off: %s", error)
        finally:
            peers.release()
            await trio.aclose_forcefully(stream)

    await trio.serve_listeners(answer, list(listeners))


async def _converse(stream: trio.SocketStream, page: Page) -> None:
    connection = h11.Connection(h11.SERVER)
    try:
        request = await _request(stream, connection)
    except h11.RemoteProtocolError as error:
        await _send(stream, connection, error.error_status_hint, b"this is no HTTP request\n")
        return
    if request is None:
        return
    if request.method != b"GET":
        await _send(stream, connection, 405, b"only GET\n")
    elif request.target.partition(b"?")[0] not in PATHS:
        await _send(stream, connection, 404, b"only /metrics\n")
    else:
        await _send(stream, connection, 200, await page())


async def _request(stream: trio.SocketStream, connection: h11.Connection) -> h11.Request | None:
    """The request; None when the peer leaves without one."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(READ_BYTES))
        elif isinstance(event, h11.Request):
            return event
        else:
            return None


async def _send(stream: trio.SocketStream, connection: h11.Connection, status: int, body: bytes) -> None:
    headers = [
        ("Content-Type", CONTENT_TYPE),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
    ]
    data = connection.send(h11.Response(status_code=status, headers=headers)) or b""
    await stream.send_all(data + (connection.send(h11.Data(data=body)) or b""))
