"""How far each consumer group is in each queue.

The table is `config/consumerOffset.json`, in RocketMQ's form. A commit changes memory only; the table is
saved every flushConsumerOffsetInterval and at the end. Its text is made in slices, and is that of the moment
at which it was begun: a topic's offsets of a group that change meanwhile are copied before. What is lost with
the process is consumed again, never skipped: an offset above the end of its queue, as a broker that lost the
end of its log would find, is taken back to that end, since the messages that get those offsets next are new
ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from rmq.broker import offset_text
from rmq.broker.slices import Slices, drain
from rmq.errors import ResponseError, for_code
from rmq.plugin import account_of
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.headers import (
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

if TYPE_CHECKING:
    from rmq.broker.topics import Topics
    from rmq.protocol.command import Command
    from rmq.store.store import Store

NONE: Final = -1
COPY_FRESH: Final = 1_000
"""A table of more topics and groups than this is given to slaves as it was saved last, some seconds ago."""

log = logging.getLogger("rmq.broker")


class Offsets:
    """The table of offsets: `topic@group` -> queue id -> offset of the next message to consume.

    `slave`: what the master says is taken as it is. `group_exists(group, account)` says whether a group may
    commit.
    """

    def __init__(self, topics: Topics, store: Store, *, slave: bool = False) -> None:
        self.slave = slave
        self.dirty = False
        self.group_exists: Callable[[str, str], bool] = lambda group, account: True
        self._topics = topics
        self._store = store
        self._table: dict[str, dict[int, int]] = {}
        self._topics_of: dict[str, dict[str, None]] | None = None  # by group; made when somebody asks
        self._groups_of: dict[str, dict[str, None]] = {}  # by topic, the same
        self._kept: dict[str, dict[int, int]] = {}  # as the table was when its text was begun; else empty
        self._last_text = b""  # of a large table

    def handlers(self) -> dict[int, Callable[[Command, Any, int], Command | None]]:
        """What this part answers."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self._on_query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._on_update,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._on_get_all,
        }

    # --- the table ---

    def __len__(self) -> int:
        """Pairs of a topic and a group that has offsets in it."""
        return len(self._table)

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """Where the group goes on in a queue; -1 when it never said."""
        queues = self._table.get(f"{topic}@{group}")
        return NONE if queues is None else queues.get(queue_id, NONE)

    def commit(self, group: str, topic: str, queue_id: int, offset: int, client: str = "") -> None:
        """Keep where a group goes on. A negative offset is dropped, one above the end becomes the end.

        Raises ResponseError when it would be one pair of a topic and a group too many.
        """
        key = f"{topic}@{group}"
        queues = self._table.get(key)
        if queues is None:
            if offset < 0:
                return
            queues = self._added(topic, group)
        known = queues.get(queue_id, NONE)
        if offset == known:
            return
        if offset < 0 or offset < known:
            log.warning("%s takes %s queue %d from %d back to %d", client, key, queue_id, known, offset)
            if offset < 0:
                return
        elif not self.slave:
            offset = self._at_most_end(key, topic, queue_id, offset, client)
        if self._kept:
            self._keep(key, queues)
        queues[queue_id] = offset
        self.dirty = True

    def put(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Set the group's offsets in a topic: queue id -> offset."""
        key = f"{topic}@{group}"
        queues = self._table.get(key)
        if queues is None:
            queues = self._added(topic, group)
        self._keep(key, queues)
        queues.update(offsets)
        self.dirty = True

    def of(self, group: str, topic: str) -> dict[int, int]:
        """The group's offsets in a topic; empty when it has none."""
        return dict(self._table.get(f"{topic}@{group}", ()))

    def clone(self, group: str, to_group: str, topic: str) -> None:
        """Give another group the same offsets in a topic."""
        offsets = self._table.get(f"{topic}@{group}")
        if offsets is not None:
            if f"{topic}@{to_group}" not in self._table:
                self._added(topic, to_group)
            self._table[f"{topic}@{to_group}"] = dict(offsets)
            self.dirty = True

    def _added(self, topic: str, group: str) -> dict[int, int]:
        """A new pair. Raises ResponseError when there are too many."""
        if len(self._table) >= self._topics.config.max_consumer_offsets:
            raise for_code(
                ResponseCode.SYSTEM_ERROR,
                f"offsets of group {group} in topic {topic} are not kept: this broker has those of "
                f"{len(self._table)} pairs of a topic and a group, see maxConsumerOffsets",
            )
        if self._topics_of is not None:
            self._index(self._topics_of, topic, group)
        queues = self._table[f"{topic}@{group}"] = {}
        return queues

    def _index(self, topics_of: dict[str, dict[str, None]], topic: str, group: str) -> None:
        topics_of.setdefault(group, {})[topic] = None
        self._groups_of.setdefault(topic, {})[group] = None

    def _indexed(self) -> dict[str, dict[str, None]]:
        """Topics by group, after a look at the whole table the first time."""
        topics_of = self._topics_of
        if topics_of is None:
            topics_of, self._groups_of = {}, {}
            for topic, group in self._keys():
                self._index(topics_of, topic, group)
            self._topics_of = topics_of
        return topics_of

    def topics_of(self, group: str) -> set[str]:
        """The topics that the group has offsets in."""
        return set(self._indexed().get(group, ()))

    def groups_of(self, topic: str) -> set[str]:
        """The groups that have offsets in the topic."""
        self._indexed()
        return set(self._groups_of.get(topic, ()))

    def pairs(self) -> list[tuple[str, str]]:
        """All pairs of a topic and a group that has offsets in it."""
        return list(self._keys())

    def delete_topic(self, topic: str) -> None:
        """Forget the offsets of a topic."""
        self._forget([(topic, group) for group in self.groups_of(topic)])

    def delete_group(self, group: str) -> None:
        """Forget the offsets of a group."""
        self._forget([(topic, group) for topic in self.topics_of(group)])

    def _keys(self) -> Iterator[tuple[str, str]]:
        for key in self._table:
            topic, _, group = key.partition("@")
            yield topic, group

    def _forget(self, pairs: list[tuple[str, str]]) -> None:
        topics_of = self._indexed()
        for topic, group in pairs:
            del self._table[f"{topic}@{group}"]
            _remove(topics_of, group, topic)
            _remove(self._groups_of, topic, group)
            self.dirty = True

    def _at_most_end(self, key: str, topic: str, queue_id: int, offset: int, client: str) -> int:
        end = self._store.max_offset(topic, queue_id)
        if offset <= end:
            return offset
        log.warning("%s commits %d of %s queue %d, which ends at %d", client, offset, key, queue_id, end)
        return end

    # --- the file ---

    def text(self) -> Slices[bytes]:
        """The text of consumerOffset.json as the table is now; takes the mark `dirty` away. One at a time."""
        self.dirty = False
        self._kept = dict(self._table)
        try:
            text = yield from offset_text.encode(self._kept)
        finally:
            self._kept = {}
        self._last_text = text if len(self._table) > COPY_FRESH else b""
        return text

    def _keep(self, key: str, queues: dict[int, int]) -> None:
        """These are about to change: the text that is being made gets them as they are."""
        if self._kept.get(key) is queues:
            self._kept[key] = dict(queues)

    def to_json(self) -> bytes:
        """The text of consumerOffset.json, made at once."""
        return drain(offset_text.encode(self._table))

    def load(self, data: bytes | None) -> None:
        """Take a saved table, None when there is none, after the store's load. Raises RemoteProtocolError."""
        if data is None:
            return
        self._table, self._topics_of = drain(offset_text.decode(data)), None
        if not self.slave:
            self._check_ends()

    def copying(self, data: bytes) -> Slices[bool]:
        """Take the master's table; whether it differs. Raises RemoteProtocolError."""
        table = yield from offset_text.decode(data)
        changed = len(table) != len(self._table)
        for count, (key, queues) in enumerate(table.items()):
            if changed or self._table.get(key) != queues:
                changed = True
                break
            if count % offset_text.SLICE_OFFSETS == offset_text.SLICE_OFFSETS - 1:
                yield
        self._table, self._topics_of = table, None
        self.dirty |= changed
        return changed

    def _check_ends(self) -> None:
        for key, queues in self._table.items():
            topic = key.partition("@")[0]
            for queue_id, offset in queues.items():
                queues[queue_id] = self._at_most_end(key, topic, queue_id, offset, "the saved table")
                self.dirty |= queues[queue_id] != offset

    # --- requests ---

    def _on_query(self, request: Command, connection: Any, now: int) -> Command:
        header = request.read(QueryConsumerOffsetRequestHeader)
        offset = self.get(header.consumer_group, header.topic, header.queue_id)
        if offset < 0:
            if not self._is_young(header.topic, header.queue_id):
                raise for_code(
                    ResponseCode.QUERY_NOT_FOUND,
                    f"Not found: group {header.consumer_group} has no offset in queue {header.queue_id} "
                    f"of topic {header.topic}, maybe it consumes for the first time",
                )
            offset = 0
        return request.reply(header=QueryConsumerOffsetResponseHeader(offset))

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Whether a new group reads the queue from its start: nothing was removed, and it is in memory."""
        if self._store.min_offset(topic, queue_id) > 0:
            return False
        return not self._store.get(topic, queue_id, 0, 1).suggest_slave

    def _on_update(self, request: Command, connection: Any, now: int) -> Command:
        header = request.read(UpdateConsumerOffsetRequestHeader)
        config = self._topics.get(header.topic)
        if config is None:
            raise _refused(header, "this broker has no such topic")
        queues = max(config.read_queue_nums, config.write_queue_nums)
        if not 0 <= header.queue_id < queues:
            raise _refused(header, f"the topic has {queues} queues")
        if header.commit_offset < 0:
            raise _refused(header, "it is negative")
        if f"{header.topic}@{header.consumer_group}" not in self._table and not self.group_exists(
            header.consumer_group, account_of(connection)
        ):
            raise _refused(header, "this broker has no such group, and does not make it")
        self.commit(
            header.consumer_group,
            header.topic,
            header.queue_id,
            header.commit_offset,
            connection.peer_address,
        )
        return request.reply()

    def _on_get_all(self, request: Command, connection: Any, now: int) -> Command:
        return request.reply(body=self._last_text or self.to_json())


def _remove(table: dict[str, dict[str, None]], key: str, name: str) -> None:
    names = table[key]
    names.pop(name, None)
    if not names:
        del table[key]


def _refused(header: UpdateConsumerOffsetRequestHeader, reason: str) -> ResponseError:
    return for_code(
        ResponseCode.SYSTEM_ERROR,
        f"offset {header.commit_offset} of group {header.consumer_group} in queue {header.queue_id} "
        f"of topic {header.topic} is not kept: {reason}",
    )
