"""Health of a server: whether it is ready, and its missing parts, for probes. Stop: the event that ends a
server."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol


class Stop(Protocol):
    """An event of either loop, which is set to end a server."""

    def set(self) -> object:
        """Wake the tasks in `wait`."""

    def wait(self) -> Awaitable[object]:
        """Wait until `set` is called. Cancelled: nothing changes."""


class Health:
    """Missing parts of a server: the part -> the reason, in words for an operator. The table begins with
    `lacking`, so that a probe before the server's first turn does not take the server for ready."""

    def __init__(self, **lacking: str) -> None:
        self.lacking: dict[str, str] = lacking

    def lacks(self, part: str, why: str) -> None:
        """Add a missing part, with the reason."""
        self.lacking[part] = why

    def has(self, part: str) -> None:
        """Remove a part that is no longer missing."""
        self.lacking.pop(part, None)

    @property
    def is_ready(self) -> bool:
        """True if no part is missing."""
        return not self.lacking

    def text(self) -> str:
        """The state in a line, and a further line for each missing part."""
        if self.is_ready:
            return "ready\n"
        return "not ready\n" + "".join(f"{part}: {why}\n" for part, why in self.lacking.items())
