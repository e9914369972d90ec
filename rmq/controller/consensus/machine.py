"""StateMachine: the interface of Raft to the state machine of the log, and the error of an unreadable
entry."""

from __future__ import annotations

from typing import Any, Protocol

from attrs import frozen

from rmq.errors import RmqError


class UnknownCommand(RmqError):
    """An entry of the log, or a snapshot, that this version cannot read; the text names it."""

    hint = "start this controller with the leader's version, or a later version"


class StateMachine(Protocol):
    """The user of the log. The same entries in the same order must give the same state everywhere."""

    def apply(self, data: bytes) -> Any:
        """Apply an entry and return its result. Raises UnknownCommand, with the state unchanged, and no other
        error."""
        ...

    def snapshot(self) -> bytes:
        """The whole state as bytes."""
        ...

    def restore(self, data: bytes) -> None:
        """Load the state of a snapshot; b"" is the initial state. Raises as `apply`."""
        ...


@frozen
class Applied:
    """An applied entry: its place, and the result of the state machine; for a change of members, the new
    members."""

    index: int
    term: int
    result: Any
