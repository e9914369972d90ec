"""Health: whether a server is ready, and which parts it lacks, for probes. Stop: the event that ends a
server."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol


class Stop(Protocol):
    """An event of either loop, set where a server shall end."""

    def set(self) -> object:
        """Wake the tasks in `wait`."""

    def wait(self) -> Awaitable[object]:
        """Wait until `set` is called."""


class Health:
    """Missing parts of a server: the part -> why, in words an operator can act on. It begins with `lacking`,
    so that a probe before the server's first turn does not take it for ready."""

    def __init__(self, **lacking: str) -> None:
        self.lacking: dict[str, str] = lacking

    def lacks(self, part: str, why: str) -> None:
        """The server is not ready, for this reason."""
        self.lacking[part] = why

    def has(self, part: str) -> None:
        """That part is well."""
        self.lacking.pop(part, None)

    @property
    def is_ready(self) -> bool:
        """Whether nothing lacks."""
        return not self.lacking

    def text(self) -> str:
        """A line, and a further line for each missing part."""
        if self.is_ready:
            return "ready\n"
        return "not ready\n" + "".join(f"{part}: {why}\n" for part, why in self.lacking.items())
