"""Files that are written beside the event loop, and what waits for that, answers mostly: a sync of the disk
may take a second, and nobody else waits for it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rmq.errors import RemoteProtocolError, ResponseError, SystemBusy
from rmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.plugin import Peer
    from rmq.protocol.command import Command
else:
    from rmq.late_attrs import frozen

T = TypeVar("T")

LINE_MAX: Final = 1_000
"""So many may wait."""


@frozen
class Waiting:
    """`write`, and what its result or its error is given to."""

    write: Callable[[], Any]
    then: Callable[[Any], None]
    fail: Callable[[Exception], None]


class SavedAnswers:
    """The queue of these, whose files are written one after the other. `respond` sends an answer, `refusal`
    makes the one of an error, and `on_wanted()` is called when one comes into it; without it a file is
    written at once.
    """

    def __init__(
        self,
        respond: Callable[[Command, Command, Any], None],
        refusal: Callable[[Command, Exception], Command],
        on_wanted: Callable[[], None] | None = None,
    ) -> None:
        self._respond = respond
        self._refusal = refusal
        self._on_wanted = on_wanted
        self._line: deque[Waiting] = deque()

    def answer(
        self, request: Command, peer: Peer, write: Callable[[], T], then: Callable[[T], Command]
    ) -> Command | None:
        """The answer to a request, None when it comes later: `write()` runs in a thread, and may raise what
        is answered then; `then`, which gets its result, runs in the loop and makes the answer. Raises what
        they raise where that is done at once, and SystemBusy when too many wait.
        """
        if self._on_wanted is None:
            return then(write())

        def fail(error: Exception) -> None:
            self._respond(request, self._refusal(request, error), peer)

        self._wait(Waiting(write, lambda result: self._respond(request, then(result), peer), fail))
        return None

    def save(
        self, write: Callable[[], T], then: Callable[[T], None], fail: Callable[[Exception], None]
    ) -> None:
        """As `answer`, without a request: `fail` is given the error of either. Raises SystemBusy."""
        one = Waiting(write, then, fail)
        if self._on_wanted is not None:
            self._wait(one)
            return
        try:
            result = write()
        except Exception as error:
            fail(error)
        else:
            self.written(one, result)

    def _wait(self, one: Waiting) -> None:
        assert self._on_wanted is not None
        if len(self._line) >= LINE_MAX:
            raise SystemBusy(None, f"{len(self._line)} changes wait to be saved: try again later")
        self._line.append(one)
        self._on_wanted()

    def next(self) -> Waiting | None:
        """The next whose `write` is to be run, followed by `written` or `failed`; None when none waits."""
        return self._line.popleft() if self._line else None

    def written(self, one: Waiting, result: Any) -> None:
        """Its `write` has returned this."""
        try:
            one.then(result)
        except Exception as error:
            one.fail(error)

    def failed(self, one: Waiting, error: Exception) -> None:
        """It could not be written."""
        one.fail(error)


def error_response(
    log: logging.Logger, request: Command, error: Exception, peer: Peer | None = None
) -> Command:
    """The answer to a request that failed, which the log of the server tells. An unexpected error is logged
    with its traceback."""
    address = peer.peer_address if peer is not None else "a peer"
    if isinstance(error, ResponseError):
        log.warning("refused request %d of %s: %s", request.code, address, error.remark)
        return request.reply(error.code, error.remark)
    if isinstance(error, RemoteProtocolError):
        log.warning("bad request %d of %s: %s", request.code, address, error)
        return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
    log.error("request %d of %s failed", request.code, address, exc_info=error)
    return request.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
