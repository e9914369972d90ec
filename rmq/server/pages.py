"""Pages over HTTP: by GET, one request a connection, read by h11."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NoReturn

import anyio
import h11

from rmq.plugin import Answer, Asked, Page
from rmq.remoting.loop import disconnect_errors
from rmq.remoting.serving.acceptor import Acceptor, Guest
from rmq.remoting.transports.stream import Listener, Stream
from rmq.remoting.transports.websocket_policy import WebSocketAccess
from rmq.server.http import PROBES

READ_BYTES: Final = 4096
SECONDS: Final = 10.0
"""Seconds for a whole request and its response."""
REQUEST_SECONDS: Final = 2.0
"""Seconds for the request alone."""
PEERS: Final = 16
"""Connections at a time. A new connection closes the oldest connection of its address that has sent no whole
request."""
PAGES: Final = PEERS // 2
"""Responses in progress for pages that are not probes; one more gets 503."""
SHARE: Final = 0.03
"""Share of the file descriptors for connections that these connections may take."""

log = logging.getLogger("rmq.http")


async def serve(
    listener: Listener, pages: Mapping[str, Page], hosts: WebSocketAccess | None = None
) -> NoReturn:
    """Answer requests until cancelled; cancellation closes the listener. A caller may add `pages`, by their
    paths, while the server runs; `hosts` checks the host names of browsers (DNS rebinding).

    An error of a peer ends its connection only; so does a page that fails, which is logged.
    """
    desk = _Desk(pages, hosts or WebSocketAccess())
    try:
        async with anyio.create_task_group() as nursery:
            await Acceptor(PEERS, share=SHARE).run(listener, desk.serve, nursery)
    finally:
        with anyio.CancelScope(shield=True):
            await listener.aclose()
    raise AssertionError("the loop above does not end")


class _Desk:
    """The pages, and the number of responses in progress for pages that are not probes."""

    def __init__(self, pages: Mapping[str, Page], hosts: WebSocketAccess) -> None:
        self._pages = pages
        self._hosts = hosts
        self._making = 0

    async def serve(self, stream: Stream, guest: Guest) -> None:
        """Answer a request of a peer."""
        try:
            with anyio.move_on_after(SECONDS):
                await self._converse(stream, guest)
        except disconnect_errors(h11.LocalProtocolError) as error:
            log.debug("a request broke off: %s", error)

    async def _converse(self, stream: Stream, guest: Guest) -> None:
        connection = h11.Connection(h11.SERVER)
        request = None
        try:
            with anyio.move_on_after(REQUEST_SECONDS):
                request = await _request(stream, connection)
        except h11.RemoteProtocolError as error:
            await _send(stream, connection, Answer(b"this is no HTTP request\n", error.error_status_hint))
            return
        if request is not None:
            guest.prove()
            await _send(stream, connection, await self._answer(request, stream.local))

    async def _answer(self, request: h11.Request, local: str) -> Answer:
        if request.method != b"GET":
            return Answer(b"only GET\n", 405)
        if refusal := self._refusal(request, local):
            return Answer(f"{refusal}\n".encode(), 421)
        target, _, query = request.target.partition(b"?")
        path = target.decode("ascii", "replace")
        page = self._pages.get(path)
        if page is None:
            return Answer(f"only {', '.join(sorted(self._pages))}\n".encode(), 404)
        asked = Asked(query, dict(request.headers))
        if path in PROBES:
            return await page(asked)
        if self._making >= PAGES:
            return Answer(b"too many pages are being made, try again\n", 503)
        self._making += 1
        try:
            return await page(asked)
        finally:
            self._making -= 1

    def _refusal(self, request: h11.Request, local: str) -> str:
        """The reason to refuse a browser: its name for this server may be any page's own (DNS rebinding);
        empty without one."""
        headers = dict(request.headers)
        is_browser = b"Mozilla" in headers.get(b"user-agent", b"") or b"sec-fetch-mode" in headers
        if not is_browser and b"origin" not in headers:
            return ""
        return self._hosts.page_refusal(headers.get(b"host", b"").decode("latin-1"))


async def _request(stream: Stream, connection: h11.Connection) -> h11.Request | None:
    """The request; None when the peer disconnects without one."""
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
