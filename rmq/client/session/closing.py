"""The end of a client's producers and consumers: all are closed, also after a failure."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rmq.remoting.loop import AsyncResource

log = logging.getLogger("rmq.client.closing")


class Closing:
    """Objects that are closed one after another, each in a block of `of`; `finish` raises the first failure.
    `error` is the error of the block that ends, if any; its failures are logged."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error
        self._failure: BaseException | None = None

    @contextmanager
    def of(self, what: object) -> Iterator[None]:
        """Close `what` in the block. Errors, also a cancellation, are raised by `finish`."""
        try:
            yield
        except BaseException as raised:
            is_first = self._failure is None and self._error is None
            if isinstance(raised, Exception) and not is_first:
                log.error("%r failed while it was closed", what, exc_info=raised)
            else:
                self._failure = raised

    def finish(self) -> None:
        """Raises the first failure, or the last cancellation."""
        if self._failure is not None:
            raise self._failure


async def close_all(opened: Iterable[AsyncResource], error: BaseException | None) -> None:
    """Close objects; see `Closing`. Cancelled: all objects are closed nevertheless."""
    closing = Closing(error)
    for one in opened:
        with closing.of(one):
            await one.aclose()
    closing.finish()
