"""Paths of requests: a name with a slash, or of dots, is one segment of the path."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote, urlencode

from starlette.requests import Request
from starlette.types import Scope

SLASH: Final = "\ue02f"
"""Private character for a slash within a segment, from the guard to the handler."""
DOTS: Final = "\ue02e"
"""Private character before the names `.` and `..`, which browsers treat as folders."""


def segment(name: object) -> str:
    """A name as one segment of a path, quoted."""
    text = str(name)
    return quote(DOTS + text if text in (".", "..") else text, safe="")


def link(*segments: object, **query: object) -> str:
    """The path of a page: each segment and each value of the query is quoted; empty values are left out."""
    path = "/" + "/".join(map(segment, segments))
    given = {name: value for name, value in query.items() if value not in ("", None, False)}
    return f"{path}?{urlencode(given)}" if given else path


def with_whole_segments(scope: Scope) -> Scope:
    """The scope of a request, with the path split as the browser has split the path: not at `%2F`."""
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" not in raw.lower():
        return scope
    segments = raw.partition(b"?")[0].decode("ascii", "replace").split("/")
    return {**scope, "path": "/".join(unquote(one).replace("/", SLASH) for one in segments)}


def path_value(request: Request, name: str) -> str:
    """A part of the path by the name in the route."""
    return str(request.path_params[name]).replace(SLASH, "/").removeprefix(DOTS)


def path_of(request: Request) -> str:
    """The path as text, for a message."""
    return request.url.path.replace(SLASH, "/").replace(DOTS, "")


def quoted_path(request: Request) -> str:
    """The path as the browser has sent it, for a link back."""
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    return raw.partition(b"?")[0].decode("ascii", "replace")
