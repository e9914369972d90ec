"""Answers that take long to make: in slices, one after the other, so that others are served in between.

What fits into one slice is answered at once. The others wait in a line; a connection has a few places in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from attrs import frozen

from rmq.broker.refusals import error_response
from rmq.broker.tables import drain
from rmq.errors import for_code
from rmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from rmq.broker.tables import Slices
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection

LINE_MAX: Final = 64
"""Answers that wait to be made. Each keeps its first slice."""
LINE_OF_A_PEER: Final = 4


@frozen
class _Begun:
    """An answer whose first slice is made."""

    request: Command
    connection: Connection
    work: Slices[bytes]


class LongAnswers:
    """The line. `on_wanted()` is called when something comes into it, so that somebody takes the slices of
    `finish` beside other things; without it what comes is finished there and then.
    """

    def __init__(self, on_wanted: Callable[[], None] | None = None) -> None:
        self._on_wanted = on_wanted or (lambda: drain(self.finish()))
        self._line: deque[_Begun] = deque()

    def answer(self, request: Command, connection: Connection, work: Slices[bytes]) -> Command | None:
        """The answer with the body that `work` makes; None if that takes longer, and it is sent then.

        Raises ResponseError when too many wait, and what `work` raises in its first slice.
        """
        try:
            next(work)
        except StopIteration as done:
            return request.reply(body=done.value)
        same = sum(begun.connection is connection for begun in self._line)
        if len(self._line) >= LINE_MAX or same >= LINE_OF_A_PEER:
            remark = f"{same} long answers to this connection are being made, {len(self._line)} in all"
            raise for_code(ResponseCode.SYSTEM_BUSY, f"{remark}: ask again later")
        self._line.append(_Begun(request, connection, work))
        self._on_wanted()
        return None

    def finish(self) -> Slices[None]:
        """Make and send all that wait."""
        while self._line:
            begun = self._line[0]
            if begun.connection.is_closed:
                self._line.popleft()
                continue
            try:
                next(begun.work)
            except StopIteration as done:
                self._send(begun, begun.request.reply(body=done.value))
            except Exception as error:
                self._send(begun, error_response(begun.request, error))
            yield

    def _send(self, begun: _Begun, response: Command) -> None:
        self._line.popleft()
        if not begun.request.is_oneway:
            begun.connection.reply(response)
