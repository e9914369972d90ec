"""Deleted topics: the record that distinguishes a deletion from a lost topics.json.

The records of a deleted topic stay in the log until their files expire. Recovery, which makes queues of the
log, and a slave that copies the log must know that the records belong to no topic any more. A trace is kept
in topics.json, saved by the same write that removes the topic's row, until the log has no record before the
deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from rmq.errors import RemoteProtocolError
from rmq.protocol.bodies import TopicDeletion

if TYPE_CHECKING:
    from rmq.protocol.bodies import TopicConfig

DELETIONS_KEPT: Final = 1_000
"""Deletions in the table. The queues of topics that were deleted before these may come back after a crash."""

log = logging.getLogger("rmq.broker")


class Deletions:
    """By the names of topics where the log ended when they were deleted. For a topic that was made again its
    creation counts, not the deletion, which stays for the case that the topic is deleted before it has a
    message. `log_start`: the physical offset at which the log begins.
    """

    def __init__(self, log_start: Callable[[], int]) -> None:
        self.latest_ms = 0
        """The latest creation of a deleted topic that was ever here."""
        self._table: dict[str, TopicDeletion] = {}
        self._log_start = log_start

    def note(self, topic: str, deletion: TopicDeletion) -> None:
        """A topic is deleted."""
        self._table.pop(topic, None)
        self._table[topic] = deletion
        self.latest_ms = max(self.latest_ms, deletion.time_ms)
        while len(self._table) > DELETIONS_KEPT:
            oldest = next(iter(self._table))
            del self._table[oldest]
            log.warning(
                "more than %d topics were deleted: the messages of %s may come back after a crash",
                *(DELETIONS_KEPT, oldest),
            )

    def take(self, deletions: Mapping[str, TopicDeletion]) -> bool:
        """Add the deletions of a file or of a master. Return True if that changes anything."""
        changed = {
            topic: deletion for topic, deletion in deletions.items() if self._table.get(topic) != deletion
        }
        for topic, deletion in changed.items():
            self.note(topic, deletion)
        return bool(changed)

    def forget(self, topics: Iterable[str]) -> None:
        """The deletion of these topics was taken back."""
        for topic in topics:
            self._table.pop(topic, None)

    def get(self, topic: str) -> TopicDeletion | None:
        """The last deletion of a topic of this name; None for never, or for one long ago."""
        return self._table.get(topic)

    def all(self) -> dict[str, TopicDeletion]:
        """All deletions except those without records in the log, which are dropped."""
        start = self._log_start()
        if any(deletion.log_offset <= start for deletion in self._table.values()):
            self._table = {name: one for name, one in self._table.items() if one.log_offset > start}
        return self._table

    def cut(self, end: int) -> list[str]:
        """The log ends there: records behind it are of no deleted topic. The names of the topics that were
        deleted later.
        """
        late = [topic for topic, deletion in self._table.items() if deletion.log_offset > end]
        for topic in late:
            self._table[topic] = attrs.evolve(self._table[topic], log_offset=end)
        return late


def deletion_of(topic: TopicConfig, log_end: int) -> TopicDeletion:
    """The trace of a topic that is deleted while the log ends there."""
    return TopicDeletion(log_end, 0 if topic.creation is None else topic.creation.time_ms)


def deletions_of(note: Any) -> dict[str, TopicDeletion]:
    """The deletions in a master's note. Raises RemoteProtocolError."""
    if not isinstance(note, dict):
        raise RemoteProtocolError("the master's note about deleted topics cannot be read")
    return {str(topic): TopicDeletion.from_value(row) for topic, row in note.items()}
