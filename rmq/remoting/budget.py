"""Budget: how many bytes the peers of a process may make it hold, unsent answers and unfinished frames.

Every connection has bounds of its own, but thousands of them together would still fill the memory. Past half
of the budget peers that hold much are hardly read from any more; past all of it the largest are cut off.
"""

from __future__ import annotations

from heapq import nlargest
from operator import itemgetter
from typing import Final, Protocol

MIB: Final = 1024 * 1024
DEFAULT_BYTES: Final = 256 * MIB
SMALL_BYTES: Final = 64 * 1024
"""Who holds less is read from as ever."""
LEFT: Final = 7 / 8
"""How much of the budget is left in use when somebody had to be cut off, so that it is not done for each."""


class Holder(Protocol):
    """Who holds bytes; counted by identity."""

    def cut(self, reason: str) -> None:
        """End at once, and forget what is held."""

    def expire(self, now: float) -> None:
        """End if it waits too long for its peer."""


class Budget:
    """The bytes that are held, by whom. Costs nothing for those who hold nothing."""

    def __init__(self, most: int = DEFAULT_BYTES) -> None:
        self.most = most
        self.held = 0
        self.cuts = 0
        """How many were cut off."""
        self._holders: dict[Holder, int] = {}

    @property
    def is_tight(self) -> bool:
        """Whether those who hold much should not be read from for now."""
        return self.held > self.most // 2

    def holders(self) -> list[Holder]:
        """Who holds something now."""
        return list(self._holders)

    def hold(self, holder: Holder, size: int) -> None:
        """Note what somebody holds now; may cut off the largest, also the holder itself."""
        self.held += size - self._holders.get(holder, 0)
        if size:
            self._holders[holder] = size
            if self.held > self.most:
                self._relieve()
        else:
            self._holders.pop(holder, None)

    def _relieve(self) -> None:
        target = int(self.most * LEFT)
        for holder, size in nlargest(len(self._holders), self._holders.items(), key=itemgetter(1)):
            if self.held <= target:
                break
            self.held -= size
            del self._holders[holder]
            self.cuts += 1
            holder.cut(f"it held {size} bytes, the most of all, and the budget of {self.most} is used up")
