"""Throttle of guesses at secrets: few wrong signatures under the same name from the same address.

Other clients cannot lock an account out: only its name together with the address counts, and a connection
that has shown a right signature continues. Right signatures among many wrong ones, for example when a secret
has changed and some clients still have the old one, are checked at the same pace.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from rmq.errors import AccessDenied

FREE: Final = 20
"""Wrong signatures of one name from one address that are checked without a pause."""
PER_SECOND: Final = 2.0
"""Further signatures that are checked in a second."""
ENTRIES_MAX: Final = 10_000
NAME_MAX: Final = 128


class LoginThrottle:
    """Wrong signatures by address and name; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # (address, name) -> time in seconds when all is forgiven; the longest unchanged entry first
        self._until: OrderedDict[tuple[str, str], float] = OrderedDict()

    def check(self, host: str, name: str) -> None:
        """Raises AccessDenied after too many wrong signatures; this signature is not checked in that case."""
        until = self._until.get((host, name[:NAME_MAX]))
        if until is None:
            return
        wait = until - self._clock() - (FREE - 1) / PER_SECOND
        if wait > 0:
            remark = (
                f"too many wrong signatures for accessKey={name[:NAME_MAX]} from {host}: "
                f"the next is checked in {wait:.1f} s"
            )
            raise AccessDenied(remark=remark)

    def failed(self, host: str, name: str) -> None:
        """Note a wrong signature, or an unknown account."""
        key, now = (host, name[:NAME_MAX]), self._clock()
        until = max(self._until.pop(key, now), now) + 1 / PER_SECOND
        if len(self._until) >= ENTRIES_MAX:
            self._until.popitem(last=False)
        self._until[key] = until
