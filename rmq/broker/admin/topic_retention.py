"""Retention by topic: messages that are older than their topic's limit, or beyond its size, are given up.

The attributes `retention.ms` and `retention.bytes` of a topic are its limits on each broker. The first
offset that a queue keeps is a row of the offsets' table (`floor`), so it is saved, copied to slaves
and known to the next master: no message comes back with a restart or a failover. A master decides at each
look, and hides the messages at the look after it, when files and slaves have the rows. A slave hides them by
its master's rows. Files of the log are removed by `rmq.store.retention`, once no queue keeps a message in
them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Final

from rmq.broker.tables.offsets import FLOORS, OF_FLOORS
from rmq.broker.tables.topic_attributes import limits_of

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.role import Role
    from rmq.broker.tables.offsets import Offsets
    from rmq.broker.tables.topics import Topics
    from rmq.broker.tables.versioned import Slices
    from rmq.store.store import Store

SLICE_UNITS: Final = 2_000
"""Units that are counted in one slice: a fraction of a millisecond."""

log = logging.getLogger("rmq.broker")

Key = tuple[str, int]


class _Size:
    """Bytes of a queue's messages from `first` to before `end`, of the topic that was made then."""

    __slots__ = ("bytes", "created_ms", "end", "first")

    def __init__(self, first: int, created_ms: int) -> None:
        self.first = self.end = first
        self.created_ms = created_ms
        self.bytes = 0


class TopicRetention:
    """See the module. `is_slave` says whether a master decides for this broker."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        topics: Topics,
        offsets: Offsets,
        *,
        role: Role,
        is_slave: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._role = role
        self._is_slave = is_slave
        self._sizes: dict[Key, _Size] = {}
        self.given_up = 0
        """Messages that were given up since the start."""

    def floor(self, topic: str, queue_id: int) -> int:
        """The first offset of a queue that the topic's limits leave; -1 when they took nothing yet."""
        return self._offsets.get(FLOORS, topic, queue_id)

    def floors(self) -> list[tuple[str, dict[int, int]]]:
        """The topics with messages removed by limits, each with the first offsets of its queues."""
        topics = [name.removesuffix(OF_FLOORS) for name in self._offsets.names() if name.endswith(OF_FLOORS)]
        return [(topic, self._offsets.of(FLOORS, topic)) for topic in topics]

    def apply(self) -> bool:
        """Hide the messages before the rows of the offsets' table. Return whether there is such a row."""
        is_any = False
        for topic, floors in self.floors():
            for queue_id, first in floors.items():
                is_any = True
                self.given_up += self._store.give_up_before(topic, queue_id, first)
        return is_any

    def look(self, now_ms: int) -> Slices[bool]:
        """Hide the messages that the last look gave up, and give up those that are over a limit now. Return
        whether any topic has given up messages, so that files may be in no queue's use. While the wall clock
        is doubtful no message is given up by its age."""
        is_any = self.apply()
        if self._is_slave() or not self._role.has_lease():
            return is_any
        held = self._store.retention.held(now_ms)
        limited = {name: topic for name, topic in self._topics.table.items() if topic.attributes}
        limited = {name: topic for name, topic in limited.items() if any(limits_of(topic.attributes or {}))}
        for key in [key for key in self._sizes if key[0] not in limited]:
            del self._sizes[key]
        for name, topic in limited.items():
            age_ms, size = limits_of(topic.attributes or {})
            floors: dict[int, int] = {}
            if age_ms and not held:
                yield from self._older(name, now_ms - age_ms, floors)
            if size:
                yield from self._beyond(name, size, floors)
            if self._topics.table.get(name) is topic:  # else it was changed or deleted between two slices
                for queue_id, first in floors.items():
                    if first > self.floor(name, queue_id):
                        self._offsets.advance(FLOORS, name, queue_id, first)
            yield
        return is_any

    def _queues(self, topic: str) -> Iterator[tuple[int, int, int]]:
        """The queues of a topic: id, first offset, and the end of the messages that no failover takes."""
        store, reach = self._store, self._role.high_watermark()
        for queue_id in range(store.queue_end(topic)):
            first = max(store.min_offset(topic, queue_id), self.floor(topic, queue_id))
            if reach is None:
                end = store.max_offset(topic, queue_id)
            else:
                end = store.readable_end(topic, queue_id, reach)
            if first < end:
                yield queue_id, first, end

    def _older(self, topic: str, before_ms: int, floors: dict[int, int]) -> Slices[None]:
        """Give up the messages that were stored before a time. Store times grow with offsets, but for a clock
        that was set back: the first message that is young enough ends the search there."""
        for queue_id, first, end in list(self._queues(topic)):
            yield
            if not self._is_older(topic, queue_id, first, before_ms):
                continue
            low, high = first + 1, end
            while low < high:
                middle = (low + high) // 2
                if self._is_older(topic, queue_id, middle, before_ms):
                    low = middle + 1
                else:
                    high = middle
            floors[queue_id] = low

    def _is_older(self, topic: str, queue_id: int, offset: int, before_ms: int) -> bool:
        return 0 <= self._store.message_time(topic, queue_id, offset) < before_ms

    def _beyond(self, topic: str, limit: int, floors: dict[int, int]) -> Slices[None]:
        """Give up the oldest messages of all queues together until the rest has at most `limit` bytes."""
        total, heads = 0, list[tuple[int, int, int]]()
        queues = {
            queue_id: (max(first, floors.get(queue_id, 0)), end)
            for queue_id, first, end in self._queues(topic)
        }
        for queue_id, (first, end) in queues.items():
            size = yield from self._count(topic, queue_id, first, end)
            total += size.bytes
            if (unit := self._store.unit(topic, queue_id, first)) is not None:
                heads.append((unit[0], queue_id, first))
        heapify(heads)
        count = 0
        while total > limit and heads:
            _, queue_id, offset = heads[0]
            unit = self._store.unit(topic, queue_id, offset)
            if unit is None:  # the topic was deleted, or files of the log went
                heappop(heads)
                continue
            total -= unit[1]
            floors[queue_id] = offset + 1
            later = (
                self._store.unit(topic, queue_id, offset + 1) if offset + 1 < queues[queue_id][1] else None
            )
            if later is None:
                heappop(heads)
            else:
                heapreplace(heads, (later[0], queue_id, offset + 1))
            count += 1
            if count % SLICE_UNITS == 0:
                yield

    def _count(self, topic: str, queue_id: int, first: int, end: int) -> Slices[_Size]:
        """The bytes of a queue: those of messages that came or went since the last look are counted."""
        size, config = self._sizes.get((topic, queue_id)), self._topics.table.get(topic)
        created_ms = 0 if config is None else config.created_ms
        is_known = size is not None and size.created_ms == created_ms
        if size is None or not is_known or not size.first <= first <= size.end <= end:
            size = self._sizes[topic, queue_id] = _Size(first, created_ms)
        for low, high, sign in ((size.first, first, -1), (size.end, end, 1)):
            for at in range(low, high, SLICE_UNITS):
                counted = self._store.bytes_of(topic, queue_id, at, min(at + SLICE_UNITS, high))
                if counted < 0 and sign < 0:  # their files are gone: count the others again
                    del self._sizes[topic, queue_id]
                    return (yield from self._count(topic, queue_id, first, end))
                size.bytes += sign * max(counted, 0)
                yield
        size.first, size.end = first, end
        return size
