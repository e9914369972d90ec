"""Stream: the result of an operation that is sent in parts, and its answer over HTTP."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from attrs import frozen
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

EVENTS: Final = "text/event-stream"
EXPORTS: Final = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
"""Form of an export -> its media type."""


def _nothing() -> None:
    pass


@frozen
class Stream:
    """A result in parts: `lines`, or the `file` of a job. `name` is the name of the file for a browser, empty
    for events. `release` is called at the end, also if the caller is gone before the first part."""

    media: str
    lines: AsyncIterator[str] | pathlib.Path
    name: str = ""
    release: Callable[[], None] = _nothing


def answer_of(stream: Stream) -> Response:
    """The answer that sends a stream."""
    if isinstance(stream.lines, pathlib.Path):
        return FileResponse(stream.lines, media_type=stream.media, filename=stream.name)
    return _Parts(stream, stream.lines)


def file_name(group: str, form: str) -> str:
    """The name of an export for a browser."""
    plain = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in group)
    return f"dead-letters-{plain}.{form}"


class _Parts(StreamingResponse):
    """The stream as a response, which releases it even when its viewer is gone before it begins."""

    def __init__(self, stream: Stream, lines: AsyncIterator[str]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        if stream.name:
            headers["content-disposition"] = f'attachment; filename="{stream.name}"'
        super().__init__(lines, media_type=stream.media, headers=headers)
        self._release = stream.release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()
