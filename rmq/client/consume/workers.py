"""Workers: the tasks of a consumer that call its handler, and whether as many run as were asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attrs import define
else:
    from rmq.lazy_attrs import define


@define(eq=False)
class Workers:
    """The workers of one consumer, over all its calls of `run`."""

    asked: int = 0
    running: int = 0
    ended: str = ""
    """How the last call of `run` ended; empty while none has."""

    @contextmanager
    def wanted(self, count: int) -> Iterator[None]:
        """A call of `run` that asks for `count` workers lasts as long as the block."""
        self.asked += count
        ended = "it returned"
        try:
            yield
        except Exception as error:
            ended = f"{type(error).__name__}: {error}"
            raise
        except BaseException:
            ended = "it was cancelled"
            raise
        finally:
            self.asked -= count
            self.ended = ended

    @contextmanager
    def one(self) -> Iterator[None]:
        """A worker runs as long as the block."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def problem(self) -> str:
        """Why an open consumer that does not drain consumes nothing; empty when all is well. A consumer that
        is iterated over, without a call of `run`, has no problem of this kind."""
        if self.running < self.asked:
            return f"consumes with {self.running} of the {self.asked} workers that were asked for"
        if not self.asked and self.ended:
            return f"consumes nothing: its `run` has ended ({self.ended})"
        return ""
