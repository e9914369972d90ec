"""Machine: the state machine of the controllers' log, as Raft sees it, and the entry that it cannot read."""

from __future__ import annotations

from typing import Any, Protocol

from attrs import frozen

from rmq.errors import RmqError


class UnknownCommand(RmqError):
    """An entry of the log, or a snapshot, that this version cannot read; the text says which."""

    hint = "start this controller with the version of the one that leads, or a later one"


class StateMachine(Protocol):
    """The use of the log. The same entries in the same order must do the same everywhere."""

    def apply(self, data: bytes) -> Any:
        """Do what an entry says, and return its result. Raises UnknownCommand, and then nothing has changed;
        must raise nothing else."""
        ...

    def snapshot(self) -> bytes:
        """All of the state."""
        ...

    def restore(self, data: bytes) -> None:
        """Have the state of a snapshot; of b"" the first one. Raises as `apply`."""
        ...


@frozen
class Applied:
    """An entry that has been applied here: its place, and what the machine returned; of a change of members
    who they are from then on."""

    index: int
    term: int
    result: Any
