"""Slows down who guesses secrets: wrong signatures under one name from one address, a few at a time.

An account is not shut out by others: only its name together with the address counts, and a connection that
has shown a right signature goes on. Right ones that come among many wrong ones, as when a secret has changed
and some clients still have the old one, get through at the same pace as those.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from rmq.errors import AccessDenied

FREE: Final = 20
"""Wrong signatures of one name from one address that are looked at without a pause."""
PER_SECOND: Final = 2.0
"""How many more are looked at each second after that."""
ENTRIES_MAX: Final = 10_000
NAME_MAX: Final = 128


class LoginThrottle:
    """Wrong signatures by address and name; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # (address, name) -> when all is forgiven, in seconds; the one that was wrong longest ago first
        self._until: OrderedDict[tuple[str, str], float] = OrderedDict()

    def check(self, host: str, name: str) -> None:
        """Raises AccessDenied when there were too many wrong signatures; this one is not looked at then."""
        until = self._until.get((host, name[:NAME_MAX]))
        if until is None:
            return
        wait = until - self._clock() - (FREE - 1) / PER_SECOND
        if wait > 0:
            remark = (
                f"too many wrong signatures for accessKey={name[:NAME_MAX]} from {host}: "
                f"the next is looked at in {wait:.1f} s"
            )
            raise AccessDenied(remark=remark)

    def failed(self, host: str, name: str) -> None:
        """A signature was wrong, or there is no such account."""
        key, now = (host, name[:NAME_MAX]), self._clock()
        until = max(self._until.pop(key, now), now) + 1 / PER_SECOND
        if len(self._until) >= ENTRIES_MAX:
            self._until.popitem(last=False)
        self._until[key] = until
