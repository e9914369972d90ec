"""Offsets: the progress of each consumer group in each queue.

The table is `config/consumerOffset.json`, in RocketMQ's form: `{"offsetTable":{"topic@group":{0:5,1:7},…}}`.
A commit changes memory only; the table is saved every flushConsumerOffsetInterval and at the end. Progress
that is lost with the process is consumed again, never skipped.

An offset beyond the end of its queue has two causes. If the queue may have lost messages (`cut_at` of the
store), the offset stands for the former end of the queue: the messages that get the lost offsets next are
new. If the queue never reached the offset, the offset belongs to another queue: the topic was deleted and
created again, the store is another store, or this file was copied from elsewhere. Such a commit is refused,
and such a row begins at the start.

An offset inside its queue may belong to an earlier topic of that name, too: the file of topics is saved with
each change, this file later. So this file names the latest creation of a topic (`lastCreationMs`, which
RocketMQ ignores): rows of topics created later are not read.

Some hundred thousand offsets are usual with many groups: the general writer and reader of Java's JSON are ten
times slower than those of this module, and cannot pause. The text is made in slices, and shows the table at
the begin of the first slice: a topic's offsets of a group that change during the slices are copied before.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Final

from rmq.broker.tables.versioned import (
    Changes,
    OnReplicated,
    Quota,
    Slices,
    WhenReplicated,
    at_once,
    response_when,
    run_to_end,
)
from rmq.errors import ResponseError, for_code
from rmq.message import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANSACTION_GROUP
from rmq.protocol.bodies import ConsumerOffsetSerializeWrapper
from rmq.protocol.codes import RETENTION_GROUP, RequestCode, ResponseCode
from rmq.protocol.headers import (
    TOPIC_CREATED_MS,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmq.shares import NOBODY, Holders
from rmq.store.config import BrokerRole

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.role import Role
    from rmq.broker.tables.topics import Topics
    from rmq.protocol.bodies import TopicConfig
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection
    from rmq.store.store import Store


SLICE_OFFSETS: Final = 2_000
"""So many offsets are written or read in one slice, and one topic of one group more."""

_Table = dict[str, dict[int, int]]

_HEAD: Final = re.compile(r'\s*\{\s*"offsetTable"\s*:\s*\{')
_ENTRY: Final = re.compile(r'\s*"([^"\\]*)"\s*:\s*\{([-0-9:,"\s]*)\}\s*(,?)')
_TAIL: Final = re.compile(r'\s*\}\s*(?:,\s*"lastCreationMs"\s*:\s*\d+\s*)?\}\s*\Z')
_LAST_CREATION: Final = re.compile(rb'\}\s*,\s*"lastCreationMs"\s*:\s*(\d{1,18})\s*\}\s*\Z')
_LONG: Final = 1 << 63


def encode_offsets(
    table: Mapping[str, Mapping[int, int]], last_creation_ms: int | None = None
) -> Slices[bytes]:
    """The text of a table and of the latest creation. A value may be replaced meanwhile, if all keys stay."""
    pieces, rows, count = [b'{"offsetTable":{'], list[str](), 0
    separator = ""
    for key, queues in table.items():
        numbers = ",".join([f"{queue_id}:{offset}" for queue_id, offset in queues.items()])
        rows.append(f"{separator}{encode_basestring(key)}:{{{numbers}}}")
        separator = ","
        count += len(queues) + 1
        if count >= SLICE_OFFSETS:
            pieces.append("".join(rows).encode("utf-8", "replace"))
            rows, count = [], 0
            yield
    tail = "}" if last_creation_ms is None else f',"lastCreationMs":{last_creation_ms}}}'
    pieces.append(f"{''.join(rows)}}}{tail}".encode("utf-8", "replace"))
    return b"".join(pieces)


def decode_offsets(data: bytes) -> Slices[_Table]:
    """The table of a text. A text with more than offsets is read at once, by the general reader, which raises
    RemoteProtocolError."""
    text = data.decode("utf-8", "replace")
    head = _HEAD.match(text)
    at = -1 if head is None else head.end()
    table: _Table = {}
    count, more = 0, head is not None
    while more and (entry := _ENTRY.match(text, at)) is not None:
        key, numbers, comma = entry.groups()
        queues = _queues(numbers)
        if queues is None:
            break
        table[key] = queues
        at, more = entry.end(), bool(comma)
        count += len(queues) + 1
        if count >= SLICE_OFFSETS:
            count = 0
            yield
    if head is not None and (not more or at == head.end()) and _TAIL.match(text, at) is not None:
        return table
    return ConsumerOffsetSerializeWrapper.from_json(data).offset_table


def _queues(text: str) -> dict[int, int] | None:
    """Queue id -> offset of `0:5,"1":7`; None for any other text."""
    if not text or text.isspace():
        return {}
    queues = {}
    try:
        for pair in text.replace('"', "").split(","):
            queue_id, offset = pair.split(":")
            queues[int(queue_id)] = int(offset)
    except ValueError:
        return None
    return queues if all(-_LONG <= number < _LONG for number in queues.values()) else None


_OF_TRANSACTIONS: Final = frozenset(
    f"{topic}@{TRANSACTION_GROUP}" for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC)
)
"""Rows that say how far transactions are: the broker's own."""
FLOORS: Final = RETENTION_GROUP
"""See `admin.topic_retention`."""
OF_FLOORS: Final = f"@{FLOORS}"
NONE: Final = -1
COPY_FRESH: Final = 1_000
"""A table of more topics and groups than this is given to slaves as it was saved last, some seconds ago."""

LOSSES_LOGGED: Final = 20
"""Groups and topics that are named in the log when files of messages go that they had not consumed."""

log = logging.getLogger("rmq.broker")


class Offsets:
    """The table of offsets: `topic@group` -> queue id -> offset of the next message to consume.

    On a slave, offsets of the master are taken unchecked. `group_exists(group, maker)` says whether a group
    may commit.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Topics,
        store: Store,
        *,
        group_exists: Callable[[str, Holders], bool],
        role: Role,
        when_replicated: WhenReplicated = at_once,
    ) -> None:
        self._settings = settings
        self.is_changed = False
        self._role = role
        self._when_replicated = when_replicated
        self.changes = Changes()
        self._group_exists = group_exists
        self._topics = topics
        self._store = store
        self._table: dict[str, dict[int, int]] = {}
        self._topics_of: dict[str, dict[str, None]] | None = None  # by group; made on demand
        self._groups_of: dict[str, dict[str, None]] = {}  # by topic, the same
        self._quota = Quota()
        self._kept: dict[str, dict[int, int]] = {}  # as the table was when its text was begun; else empty
        self._last_text = b""  # of a large table
        self._watched: dict[str, Callable[[Collection[int]], None]] = {}

    def handlers(self) -> dict[int, Callable[[Command, Any, int], Command | None]]:
        """The handlers of this part, by request code."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self._on_query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._on_update,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._on_get_all,
        }

    @property
    def _is_slave(self) -> bool:
        return self._settings.store.broker_role is BrokerRole.SLAVE

    # --- the table ---

    def __len__(self) -> int:
        """Pairs of a topic and a group that has offsets in it."""
        return len(self._table)

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """The committed offset of a group in a queue; -1 without one."""
        queues = self._table.get(f"{topic}@{group}")
        return NONE if queues is None else queues.get(queue_id, NONE)

    def commit(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        client: str = "",
        peer: Connection | None = None,
    ) -> None:
        """Keep a group's progress. A negative offset is dropped, and so is an offset that the queue never
        reached; an offset behind lost messages becomes the offset of the loss.

        Raises ResponseError when the limit of pairs of a topic and a group is reached.
        """
        key = f"{topic}@{group}"
        queues = self._table.get(key)
        if not self._is_slave and offset > self._store.max_offset(topic, queue_id):
            cut = self.cut_point(topic, queue_id, offset)
            reason = (
                "it is dropped: the queue never reached it" if cut is None else f"its log was cut at {cut}"
            )
            log.warning(
                "%s commits %d beyond the end of %s queue %d: %s", client, offset, key, queue_id, reason
            )
            if cut is None or (queues is not None and cut <= queues.get(queue_id, NONE)):
                return
            offset = cut
        if queues is None:
            if offset < 0:
                return
            queues = self._added(topic, group, NOBODY if peer is None else self._settings.holders_of(peer))
        known = queues.get(queue_id, NONE)
        if offset == known:
            return
        if offset < 0 or offset < known:
            log.warning("%s takes %s queue %d from %d back to %d", client, key, queue_id, known, offset)
            if offset < 0:
                return
        if self._kept:
            self._keep(key, queues)
        queues[queue_id] = offset
        self._changed((key,))

    def advance(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset that per-message delivery has reached, which watches this row. Raises ResponseError
        when the limit of pairs of a topic and a group is reached."""
        key = f"{topic}@{group}"
        queues = self._table.get(key)
        if queues is None:
            queues = self._added(topic, group)
        elif self._kept:
            self._keep(key, queues)
        queues[queue_id] = offset
        self.is_changed = True
        self.changes.add((key,))

    def watch(self, group: str, topic: str, on_change: Callable[[Collection[int]], None]) -> None:
        """Call `on_change` whenever the row of a group and a topic changes, except by `advance`, with the
        queues of a `put`. Until then, one-way commits of this row, of consumers that pull, are dropped."""
        self._watched[f"{topic}@{group}"] = on_change

    def is_watched(self, group: str, topic: str) -> bool:
        """True if the group takes messages of the topic one by one."""
        return f"{topic}@{group}" in self._watched

    def unwatch(self, group: str, topic: str) -> None:
        """End a watch."""
        self._watched.pop(f"{topic}@{group}", None)

    def first(self, group: str, topic: str, queue_id: int, *, from_first: bool = False) -> int:
        """The offset at which a group without one begins: the first message while the queue is young, or has
        come to a topic that the group knows; else the end.
        """
        is_first = from_first or self._is_young(topic, queue_id) or self._came_later(group, topic, queue_id)
        return (self._store.min_offset if is_first else self._store.max_offset)(topic, queue_id)

    def put(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Set a group's offsets in a topic: queue id -> offset. Raises ResponseError for the broker's own."""
        _check_owner(group)
        key = f"{topic}@{group}"
        queues = self._table.get(key)
        if queues is None:
            queues = self._added(topic, group)
        self._keep(key, queues)
        queues.update(offsets)
        self._changed((key,), offsets)

    def of(self, group: str, topic: str) -> dict[int, int]:
        """The group's offsets in a topic; empty when it has none."""
        return dict(self._table.get(f"{topic}@{group}", ()))

    def clone(self, group: str, to_group: str, topic: str) -> None:
        """Give a group another's offsets. Raises ResponseError for the broker's own, and at a set's slave."""
        _check_owner(to_group)
        if self._is_slave and self._role.is_in_set:
            raise _refused_by_slave(f"offsets of group {to_group} are")
        offsets = self._table.get(f"{topic}@{group}")
        if offsets is not None:
            if f"{topic}@{to_group}" not in self._table:
                self._added(topic, to_group)
            self._table[f"{topic}@{to_group}"] = dict(offsets)
            self._changed((f"{topic}@{to_group}",), offsets)

    def _added(self, topic: str, group: str, maker: Holders = NOBODY) -> dict[int, int]:
        """Add a pair. Raises ResponseError past the limit: only the broker's own pairs are added then."""
        is_own = f"{topic}@{group}" in _OF_TRANSACTIONS or group == FLOORS
        most, count = self._settings.broker.max_consumer_offsets, len(self._table)
        over = f"{count} are taken" if count >= most else self._quota.over_share(maker, most, count)
        if over and not is_own:
            raise for_code(
                ResponseCode.SYSTEM_ERROR,
                f"offsets of group {group} in topic {topic} are not kept: of the pairs of a topic and a "
                f"group {over}, see maxConsumerOffsets",
            )
        self._quota.made(f"{topic}@{group}", maker)
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
        return self._groups_of.get(topic, {}).keys() - {FLOORS}

    def pairs(self) -> list[tuple[str, str]]:
        """All pairs of a topic and a group that has offsets in it."""
        return [pair for pair in self._keys() if pair[1] != FLOORS]

    def delete_topic(self, topic: str) -> None:
        """Forget the offsets of a topic, and where its queues begin."""
        groups = [*sorted(self.groups_of(topic)), FLOORS]
        self._forget([(topic, group) for group in groups if f"{topic}@{group}" in self._table])

    def delete_group(self, group: str) -> None:
        """Forget the offsets of a group."""
        self._forget([(topic, group) for topic in sorted(self.topics_of(group))])

    def _keys(self) -> Iterator[tuple[str, str]]:
        for key in self._table:
            topic, _, group = key.partition("@")
            yield topic, group

    def _forget(self, pairs: list[tuple[str, str]]) -> None:
        topics_of = self._indexed()
        for topic, group in pairs:
            del self._table[f"{topic}@{group}"]
            self._quota.forget(f"{topic}@{group}")
            _remove(topics_of, group, topic)
            _remove(self._groups_of, topic, group)
            self._changed((f"{topic}@{group}",))

    # --- positions beyond the end of a queue ---

    def cut_point(self, topic: str, queue_id: int, position: int) -> int | None:
        """Offset at which the messages before a position beyond the end of a queue were lost; None when the
        queue, of this topic, never reached it."""
        config = self._topics.get(topic)
        if config is not None and config.creation is not None and position <= config.creation.earlier_end:
            return None  # an earlier topic of this name did
        return self._store.cut_at(topic, queue_id)

    def resume_at(self, topic: str, queue_id: int, position: int) -> int:
        """The offset at which a reader goes on whose position lies beyond the end of a queue: the offset of
        the loss, or the start of a queue that never reached the position."""
        low, cut = self._store.min_offset(topic, queue_id), self.cut_point(topic, queue_id, position)
        return low if cut is None else max(low, cut)

    # --- the file ---

    def text(self) -> Slices[bytes]:
        """The text of consumerOffset.json as the table is now; unsets `is_changed`. One at a time."""
        self.is_changed = False
        self._kept = dict(self._table)
        try:
            text = yield from encode_offsets(self._kept, self._topics.last_creation_ms)
        finally:
            self._kept = {}
        self._last_text = text if len(self._table) > COPY_FRESH else b""
        return text

    def _keep(self, key: str, queues: dict[int, int]) -> None:
        """These rows are about to change: copy them for the text that is being made."""
        if self._kept.get(key) is queues:
            self._kept[key] = dict(queues)

    def to_json(self) -> bytes:
        """The table as a text in RocketMQ's form, made at once."""
        return run_to_end(encode_offsets(self._table))

    def load(self, data: bytes | None) -> None:
        """Take a saved table, None for none, after store and topics. Raises RemoteProtocolError."""
        if data is None:
            return
        self._table, self._topics_of = run_to_end(decode_offsets(data)), None
        if (last := _LAST_CREATION.search(data)) is not None:
            self._drop_earlier(int(last[1]))

    def _drop_earlier(self, last_creation_ms: int) -> None:
        """Drop rows, saved when that was the latest creation, of topics that were made or deleted since."""
        for topic, group in list(self._keys()):
            if self._topics.is_later(topic, last_creation_ms):
                log.warning("the saved offsets of group %s are of an earlier topic %s: dropped", group, topic)
                self._forget([(topic, group)])

    def replace(self, data: bytes) -> Slices[bool]:
        """Take the master's table; whether it differs. Raises RemoteProtocolError."""
        table = yield from decode_offsets(data)
        changed = len(table) != len(self._table)
        for count, (key, queues) in enumerate(table.items()):
            if changed or self._table.get(key) != queues:
                changed = True
                break
            if count % SLICE_OFFSETS == SLICE_OFFSETS - 1:
                yield
        self.changes.add(self._table.keys() | table.keys())
        self._table, self._topics_of = table, None
        self.is_changed |= changed
        return changed

    # --- rows for slaves ---

    def _changed(self, keys: Collection[str], reset: Collection[int] = ()) -> None:
        self.is_changed = True
        self.changes.add(keys)
        if self._watched:
            for key in keys:
                if on_change := self._watched.get(key):
                    on_change(reset)

    def names(self) -> list[str]:
        """The names of all rows, `topic@group`."""
        return list(self._table)

    def text_of(self, names: Collection[str]) -> bytes:
        """Same as `to_json`, with the existing rows of these names."""
        return run_to_end(encode_offsets({name: self._table[name] for name in names if name in self._table}))

    def missing(self, names: Collection[str]) -> list[str]:
        """The names among these without a row."""
        return [name for name in names if name not in self._table]

    def rows_of(self, text: bytes) -> tuple[_Table, None]:
        """The rows of such a text; they have no version. Raises RemoteProtocolError."""
        return run_to_end(decode_offsets(text)), None

    def apply_delta(self, rows: _Table, version: None, deleted: Collection[str] | None) -> bool:
        """A slave's: apply the master's `rows` and delete `deleted` (None: all other rows). Return whether
        the table changed."""
        # The progress of transactions comes with the log: a row that came earlier would be ahead of the log.
        if deleted is None:
            deleted = self._table.keys() - rows.keys()
        removed = [name for name in deleted if name in self._table and name not in _OF_TRANSACTIONS]
        changed = {
            name: queues
            for name, queues in rows.items()
            if self._table.get(name) != queues and name not in _OF_TRANSACTIONS
        }
        for name in removed:
            del self._table[name]
            self._quota.forget(name)
        if removed or changed.keys() - self._table.keys():
            self._topics_of = None
        self._table.update(changed)
        if removed or changed:
            self._changed([*removed, *changed])
        return bool(removed or changed)

    def check_ends(self) -> None:
        """Correct the offsets beyond the ends of queues, the broker's own alike: on a master, once table and
        store are loaded."""
        for key, queues in self._table.items():
            topic = key.partition("@")[0]
            for queue_id, offset in queues.items():
                end = self._store.max_offset(topic, queue_id)
                if offset > end:
                    at = self.resume_at(topic, queue_id, offset)
                    log.warning(
                        "the saved offset of %s queue %d is %d, the queue ends at %d: it goes on at %d",
                        *(key, queue_id, offset, end, at),
                    )
                    queues[queue_id], self.is_changed = at, True

    # --- requests ---

    def _on_query(self, request: Command, connection: Any, now: int) -> Command:
        """Answer where a group is in a queue; a client that sends a creation gets the present topic's, 0 when
        there is no topic. Raises ResponseError."""
        header = request.read(QueryConsumerOffsetRequestHeader)
        created_ms = None
        if header.topic_created_ms is not None:
            topic = self._topics.get(header.topic)
            created_ms = 0 if topic is None else topic.created_ms
        offset = self.get(header.consumer_group, header.topic, header.queue_id)
        if offset < 0:
            is_young = self._is_young(header.topic, header.queue_id)
            if not is_young and not self._came_later(header.consumer_group, header.topic, header.queue_id):
                remark = (
                    f"Not found: group {header.consumer_group} has no offset in queue {header.queue_id} "
                    f"of topic {header.topic}, maybe it consumes for the first time"
                )
                ext = None if created_ms is None else {TOPIC_CREATED_MS: str(created_ms)}
                return request.reply(ResponseCode.QUERY_NOT_FOUND, remark, ext)
            offset = self._store.min_offset(header.topic, header.queue_id)
        return request.reply(header=QueryConsumerOffsetResponseHeader(offset, created_ms))

    def _came_later(self, group: str, topic: str, queue_id: int) -> bool:
        """True if all messages of the queue are newer than messages of the topic that the group has consumed:
        the group is not new, and the queue was added while no member was connected to begin with it.

        Offsets in other queues are not enough evidence: members of a new group that begin one after the other
        would read the queues from their start.
        """
        consumed = [(other, offset) for other, offset in self.of(group, topic).items() if offset > 0]
        times = [self._store.message_time(topic, other, offset - 1) for other, offset in consumed]
        return bool(times) and self._store.earliest_time(topic, queue_id) > max(times)

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """True if a new group reads the queue from its start: nothing was removed, and it is in memory."""
        if self._store.min_offset(topic, queue_id) > 0:
            return False
        return not self._store.get(topic, queue_id, 0, 1).suggests_slave

    def _on_update(self, request: Command, connection: Any, now: int) -> Command | None:
        header = request.read(UpdateConsumerOffsetRequestHeader)
        is_copy = self._is_slave and self._role.is_in_set
        if request.is_oneway and (is_copy or f"{header.topic}@{header.consumer_group}" in self._watched):
            return None
        if is_copy:
            raise _refused_by_slave(f"offset {header.commit_offset} is")
        if not request.is_oneway:
            _check_role(self._role, header)
        self._take(header, connection)
        return response_when(self._when_replicated, self.changes, request, connection, request.reply())

    def commit_for(self, peer: Any, header: UpdateConsumerOffsetRequestHeader, on_done: OnReplicated) -> bool:
        """Keep the offset that a peer commits, by the rules of a client's request. Returns whether `on_done`
        is called, later, when the replicas of a set have it; else it is kept as safely as it ever will be.

        Raises ResponseError, also at a slave: its offsets are its master's.
        """
        if self._is_slave:
            raise _refused_by_slave(f"offset {header.commit_offset} is")
        _check_role(self._role, header)
        self._take(header, peer)
        return self._when_replicated(self.changes, peer, on_done)

    def _take(self, header: UpdateConsumerOffsetRequestHeader, connection: Any) -> None:
        topic = self._topics.get(header.topic)
        _check_place(header, topic)
        if topic is not None and header.topic_created_ms not in (None, topic.created_ms):
            raise _refused(header, "it belongs to another topic of that name, which was deleted")
        end = self._store.max_offset(header.topic, header.queue_id)
        if header.commit_offset > end and not self._is_slave:
            place = header.topic, header.queue_id, header.commit_offset
            if self.cut_point(*place) is None:
                raise _refused(
                    header,
                    f"the queue ends at {end} and never reached it: the topic was deleted and made again, or "
                    "this is another store. Consumers begin at the start of the queue, by their next pull",
                )
        if f"{header.topic}@{header.consumer_group}" not in self._table and not self._group_exists(
            header.consumer_group, self._settings.holders_of(connection)
        ):
            raise _refused(header, "this broker has no such group, and does not make it")
        self.commit(
            header.consumer_group,
            header.topic,
            header.queue_id,
            header.commit_offset,
            connection.peer_address,
            connection,
        )

    def _on_get_all(self, request: Command, connection: Any, now: int) -> Command:
        return request.reply(body=self._last_text or self.to_json())


def log_losses(offsets: Offsets, store: Store) -> Slices[None]:
    """Log which groups have lost messages that they had not consumed, as files of the log went."""
    lost: dict[tuple[str, str], int] = {}
    for topic, queue_id, first, start in store.lost():
        for group in sorted(offsets.groups_of(topic)):
            offset = offsets.get(group, topic, queue_id)
            if 0 <= offset < start:
                lost[group, topic] = lost.get((group, topic), 0) + start - max(offset, first)
        yield
    for (group, topic), count in list(lost.items())[:LOSSES_LOGGED]:
        log.warning(
            "group %s has lost %d messages of topic %s unread: their file of the log is gone",
            group,
            count,
            topic,
        )
    if len(lost) > LOSSES_LOGGED:
        log.warning("and %d more groups and topics", len(lost) - LOSSES_LOGGED)


def _remove(table: dict[str, dict[str, None]], key: str, name: str) -> None:
    names = table[key]
    names.pop(name, None)
    if not names:
        del table[key]


def _refused_by_slave(what: str) -> ResponseError:
    """RocketMQ's slaves keep commits of clients, and so does a slave here without controllers. In a set the
    slave may be elected: a row that it alone has would be the group's progress then."""
    remark = f"{what} not kept: this broker is a slave, commit at its master"
    return for_code(ResponseCode.SERVICE_NOT_AVAILABLE, remark)


def _check_role(role: Role, header: UpdateConsumerOffsetRequestHeader) -> None:
    """Raises ResponseError while commits would be lost with this master."""
    if role.refuses_commits():
        remark = f"offset {header.commit_offset} is not kept: another master takes over, commit it there"
        raise for_code(ResponseCode.SERVICE_NOT_AVAILABLE, remark)


def _check_place(header: UpdateConsumerOffsetRequestHeader, config: TopicConfig | None) -> None:
    """Raises ResponseError for a queue that is not there, for an offset that no queue has, and for a group of
    the broker's own."""
    _check_owner(header.consumer_group)
    if config is None:
        raise _refused(header, "this broker has no such topic")
    queues = max(config.read_queue_nums, config.write_queue_nums)
    if not 0 <= header.queue_id < queues:
        raise _refused(header, f"the topic has {queues} queues")
    if header.commit_offset < 0:
        raise _refused(header, "it is negative")


def _check_owner(group: str) -> None:
    if group == FLOORS:
        raise for_code(ResponseCode.NO_PERMISSION, f"group {group} is the broker's own: it has no consumers")


def _refused(header: UpdateConsumerOffsetRequestHeader, reason: str) -> ResponseError:
    return for_code(
        ResponseCode.SYSTEM_ERROR,
        f"offset {header.commit_offset} of group {header.consumer_group} in queue {header.queue_id} "
        f"of topic {header.topic} is not kept: {reason}",
    )
