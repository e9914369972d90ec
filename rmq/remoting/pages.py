"""Serving pages over HTTP: by GET, one request a connection, read by h11."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NoReturn

import anyio
import h11

from rmq.remoting.http import Answer, Asked, Page
from rmq.remoting.loop import broken_errors
from rmq.remoting.server import Acceptor
from rmq.remoting.stream import Listener, Stream

READ_BYTES: Final = 4096
SECONDS: Final = 10.0
"""For a whole request and its answer."""
PEERS: Final = 16
"""At a time, half of them of one address; more are closed at once."""
SHARE: Final = 0.03
"""How much of the descriptors that connections may have these may take."""

log = logging.getLogger("rmq.http")


async def serve(listener: Listener, pages: Mapping[str, Page]) -> NoReturn:
    """Answer until cancelled; closes the listener then. `pages`, by their paths, may come while it runs.

    What a peer does wrong ends its connection only; so does a page that fails, which is logged.
    """

    async def answer(stream: Stream) -> None:
        try:
            with anyio.move_on_after(SECONDS):
                await _converse(stream, pages)
        except broken_errors(h11.LocalProtocolError) as error:
            log.debug("a request broke off: %s", error)

    try:
        async with anyio.create_task_group() as nursery:
            await Acceptor(PEERS, share=SHARE).run(listener, answer, nursery)
    finally:
        with anyio.CancelScope(shield=True):
            await listener.aclose()
    raise AssertionError("the loop above does not end")


async def _converse(stream: Stream, pages: Mapping[str, Page]) -> None:
    connection = h11.Connection(h11.SERVER)
    try:
        request = await _request(stream, connection)
    except h11.RemoteProtocolError as error:
        await _send(stream, connection, Answer(b"this is no HTTP request\n", error.error_status_hint))
        return
    if request is not None:
        await _send(stream, connection, await _answer(request, pages))


async def _answer(request: h11.Request, pages: Mapping[str, Page]) -> Answer:
    if request.method != b"GET":
        return Answer(b"only GET\n", 405)
    path, _, query = request.target.partition(b"?")
    page = pages.get(path.decode("ascii", "replace"))
    if page is None:
        return Answer(f"only {', '.join(sorted(pages))}\n".encode(), 404)
    return await page(Asked(query, dict(request.headers)))


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


async def _send(stream: Stream, connection: h11.Connection, answer: Answer) -> None:
    headers = [
        *answer.more,
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("Connection", "close"),
    ]
    data = connection.send(h11.Response(status_code=answer.status, headers=headers)) or b""
    await stream.send_all(data + (connection.send(h11.Data(data=answer.body)) or b""))
