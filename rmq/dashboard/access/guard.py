"""The guard before every request: Host, Origin, size of the body; and the headers of every answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rmq.dashboard.errors import Problem, ProblemBody
from rmq.dashboard.paths import with_whole_segments

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}
SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS")
BODY_MAX: Final = 6 << 20
"""Bytes of a request: a message of 4 MiB in a form fits, unless most of it needs escaping."""


class Guard:
    """Middleware: refuses requests for another host, and changes that come from another site.

    Programs that log in by a header of their own send no Origin; browsers do with each change."""

    def __init__(self, app: ASGIApp, is_host: Callable[[str], bool], *, is_secure: bool) -> None:
        self._app, self._is_host, self._is_secure = app, is_host, is_secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if text := self._refusal(scope, headers):
            await _refused("Forbidden", text, 403)(scope, receive, send)
            return
        if text := _excess(headers):
            await _refused("BadRequest", text, 413)(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answer[name] = value
                answer.setdefault("cache-control", "no-store")
                if self._is_secure:
                    answer["strict-transport-security"] = "max-age=31536000"
            await send(message)

        await self._app(with_whole_segments(scope), _Bounded(receive), send_guarded)

    def _refusal(self, scope: Scope, headers: Headers) -> str:
        host = headers.get("host", "")
        if not self._is_host(host):
            return "This dashboard is not served under this host name; see --allowed-host"
        if scope["method"] in SAFE_METHODS:
            return ""
        origin = headers.get("origin")
        if origin is None and "authorization" in headers and "cookie" not in headers:
            return ""
        if origin is None or urlsplit(origin).netloc.lower() != host.lower():
            return "Changes are taken from this dashboard's own pages only (Origin)"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "Changes are taken from this dashboard's own pages only (Sec-Fetch-Site)"
        return ""


def _excess(headers: Headers) -> str:
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length) <= BODY_MAX:
        return ""
    return f"The body of a request may have {BODY_MAX} bytes"


def _refused(name: str, text: str, status: int) -> Response:
    problem = ProblemBody(Problem(name, 0, text, "see docs/dashboard.md, Access"))
    return Response(msgspec.json.encode(problem), status, dict(HEADERS), "application/json")


class _Bounded:
    """A body without Content-Length ends, too, when it is too long."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._left = receive, BODY_MAX

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        return {"type": "http.disconnect"} if self._left < 0 else message
