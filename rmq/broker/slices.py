"""Long work in slices: a generator that yields every ms or two, so that a loop can serve others in between.

What it returns is the result. `drain` is for who need not serve anybody meanwhile.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Slices = Generator[None, None, T]


def drain(work: Slices[T]) -> T:
    """Do all of it now."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
