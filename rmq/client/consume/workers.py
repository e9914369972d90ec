"""Workers: the tasks of a consumer that call its handler, and whether all of them still run. Pure.

A call of `run` begins with one worker. A worker that gets messages begins another one if no other worker
waits, up to `concurrency`: a hundred consumers begin with a hundred tasks, not with two thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attrs import define
else:
    from rmq.lazy_attrs import define


class Crew:
    """The workers of one call of `run`, at most `most`."""

    def __init__(self, workers: Workers, most: int) -> None:
        self._workers = workers
        self._start: Callable[[], object] | None = None
        self._context = copy_context()
        self._most = most
        self.count = 0
        """Number of workers that have begun."""

    def begin(self, start: Callable[[], object]) -> None:
        """Begin with one worker. `start` starts a task."""
        self._start = start
        self.got_messages(())

    def got_messages(self, waiting: Sized) -> None:
        """A worker has got messages: begin another if none is `waiting` and fewer than `most` have begun. The
        new worker has the context variables of the call of `run`."""
        if waiting or self.count >= self._most:
            return
        assert self._start is not None, "the crew has not begun"
        self.count += 1
        self._workers.began()
        self._context.copy().run(self._start)


@define(eq=False)
class Workers:
    """The workers of one consumer, over all its calls of `run`."""

    asked: int = 0
    """Number of workers in calls of `run` that have not ended."""
    running: int = 0
    ended: str = ""
    """The end of the last call of `run`, in words; empty before it."""

    def began(self) -> None:
        """Count a new worker."""
        self.asked += 1

    @contextmanager
    def requested(self, most: int) -> Iterator[Crew]:
        """Note, for the block, a call of `run` with at most `most` workers."""
        crew = Crew(self, most)
        ended = "it returned"
        try:
            yield crew
        except Exception as error:
            ended = f"{type(error).__name__}: {error}"
            raise
        except BaseException:
            ended = "it was cancelled"
            raise
        finally:
            self.asked -= crew.count
            self.ended = ended

    @contextmanager
    def one(self) -> Iterator[None]:
        """Note, for the block, a worker."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def problem(self) -> str:
        """The reason why an open consumer that does not drain consumes nothing; empty when all is well. A
        consumer that is iterated over, without a call of `run`, has no problem of this kind."""
        if self.running < self.asked:
            return f"consumes with {self.running} of the {self.asked} workers that it started with"
        if not self.asked and self.ended:
            return f"consumes nothing: its `run` has ended ({self.ended})"
        return ""
