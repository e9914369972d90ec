"""Paths of requests: a name with a slash in it stays one segment of the path."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from starlette.requests import Request
from starlette.types import Scope

SLASH: Final = "\ue02f"
"""Character for private use, in place of a slash within a segment, from the guard to the handler."""


def with_whole_segments(scope: Scope) -> Scope:
    """The scope of a request, with the path split as the browser has split the path: not at `%2F`."""
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" not in raw.lower():
        return scope
    segments = raw.partition(b"?")[0].decode("ascii", "replace").split("/")
    return {**scope, "path": "/".join(unquote(one).replace("/", SLASH) for one in segments)}


def path_value(request: Request, name: str) -> str:
    """A part of the path by the name in the route."""
    return str(request.path_params[name]).replace(SLASH, "/")


def path_of(request: Request) -> str:
    """The path as text, for a message."""
    return request.url.path.replace(SLASH, "/")


def quoted_path(request: Request) -> str:
    """The path as the browser has sent it, for a link back."""
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    return raw.partition(b"?")[0].decode("ascii", "replace")
