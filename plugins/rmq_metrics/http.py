"""GET /metrics and nothing else: one request a connection, read by h11."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

import h11
import trio

from rmq.remoting import Acceptor, Listener, Stream
from rmq_metrics.text import CONTENT_TYPE

READ_BYTES = 4096
SECONDS = 10.0
"""For a whole request and its answer."""
PEERS = 16
"""At a time, half of them of one address; more are closed at once."""
SHARE = 0.03
"""How much of the descriptors that connections may have scrapes may take."""
PATHS = (b"/metrics", b"/")

log = logging.getLogger("rmq.metrics")

Page = Callable[[], Awaitable[bytes]]


async def serve(listener: Listener, page: Page, token: bytes = b"") -> NoReturn:
    """Answer until cancelled; closes the listener then. What a peer does wrong ends its connection only.

    With a token only requests that bring it get the page: ``Authorization: Bearer TOKEN``.
    """

    async def answer(stream: Stream) -> None:
        try:
            with trio.move_on_after(SECONDS):
                await _converse(stream, page, token)
        except (trio.BrokenResourceError, h11.LocalProtocolError) as error:
            log.debug("a scrape broke off: %s", error)

    try:
        async with trio.open_nursery() as nursery:
            await Acceptor(PEERS, share=SHARE).run(listener, answer, nursery)
    finally:
        with trio.CancelScope(shield=True):
            await listener.aclose()
    raise AssertionError("the loop above does not end")


async def _converse(stream: Stream, page: Page, token: bytes) -> None:
    connection = h11.Connection(h11.SERVER)
    try:
        request = await _request(stream, connection)
    except h11.RemoteProtocolError as error:
        await _send(stream, connection, error.error_status_hint, b"this is no HTTP request\n")
        return
    if request is None:
        return
    if not _may(request, token):
        await _send(stream, connection, 401, b"a token is needed: Authorization: Bearer TOKEN\n")
    elif request.method != b"GET":
        await _send(stream, connection, 405, b"only GET\n")
    elif request.target.partition(b"?")[0] not in PATHS:
        await _send(stream, connection, 404, b"only /metrics\n")
    else:
        await _send(stream, connection, 200, await page())


def _may(request: h11.Request, token: bytes) -> bool:
    given = next((value for name, value in request.headers if name == b"authorization"), b"")
    kind, _, word = given.partition(b" ")
    return not token or (kind.lower() == b"bearer" and hmac.compare_digest(word.strip(), token))


async def _request(stream: Stream, connection: h11.Connection) -> h11.Request | None:
    """The request; None when the peer leaves without one."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(READ_BYTES)))
        elif isinstance(event, h11.Request):
            return event
        else:
            return None


async def _send(stream: Stream, connection: h11.Connection, status: int, body: bytes) -> None:
    headers = [
        *([("WWW-Authenticate", "Bearer")] if status == 401 else []),
        ("Content-Type", CONTENT_TYPE),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
    ]
    data = connection.send(h11.Response(status_code=status, headers=headers)) or b""
    await stream.send_all(data + (connection.send(h11.Data(data=body)) or b""))
