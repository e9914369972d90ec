"""Progress of queues and groups: ends, lag, times, groups that consume a topic, offsets copied and reset.

Bodies with a row for each queue are written as text, since a topic may have thousands of queues and a client
may repeat its request. The text equals that of the bodies in rmq.protocol.bodies. A long response is made in
slices, so that other requests are served in between: a response that fits into a slice is sent at once, any
other waits in a queue, in which a connection has a few places.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rmq.broker.admin.unread import queue_end, unread
from rmq.broker.error_responses import error_response
from rmq.broker.tables.versioned import run_to_end
from rmq.errors import for_code
from rmq.message import MessageQueue
from rmq.protocol import bodies, json
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import MAX_FRAME, Command
from rmq.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetHeader,
    QueryTopicConsumeByWhoRequestHeader,
    ResetOffsetRequestHeader,
)
from rmq.server.deferred import Deferred, Row
from rmq.shares import HoldersOf, by_account_and_address

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.broker.config import Settings
    from rmq.broker.membership.members import Member
    from rmq.broker.state import Tables
    from rmq.broker.tables.versioned import Slices
    from rmq.protocol.bodies import TopicConfig
    from rmq.remoting.connection import Connection
    from rmq.store.store import Store
else:
    from rmq.lazy_attrs import frozen


_LONG_MAX = 2**63 - 1
ANSWER_SIZE: Final = MAX_FRAME // 2
"""Bytes of an answer with a row for each queue."""
SLICE_QUEUES: Final = 200
"""Queues, topics and groups of an answer that are looked at in one go: a ms or two."""
STATS_TEXTS_MAX: Final = 16
"""Topics whose stats are kept as text, for whoever asks again."""
_TO_THE_END = -1  # as a reset's timestamp

log = logging.getLogger("rmq.broker")


class QueueRows:
    """Rows of queues -> values, as they stand in an `offsetTable`."""

    def __init__(self, broker_name: str) -> None:
        self.size = 0
        """Bytes of the text."""
        self._broker = json.dumps(broker_name).decode()
        self._parts: list[bytes] = []

    def add(self, topic: str, values: Iterable[str], first: int = 0) -> None:
        """Add the queues of a topic from `first` on, each with its value as JSON."""
        head = f'{{"brokerName":{self._broker},"queueId":'
        tail = f',"topic":{json.dumps(topic).decode()}}}:'
        # One text for all of them: tens of thousands of small ones would leave holes in the process's memory.
        part = ",".join([f"{head}{queue_id}{tail}{value}" for queue_id, value in enumerate(values, first)])
        if part:
            self._parts.append(part.encode())
            self.size += len(self._parts[-1]) + 1

    def text(self) -> bytes:
        """The rows as one JSON object, with Java's bare keys."""
        return b"{%b}" % b",".join(self._parts)


def topic_offset(low: int, end: int, time_ms: int) -> str:
    """A TopicOffset."""
    return f'{{"lastUpdateTimestamp":{time_ms},"maxOffset":{end},"minOffset":{low}}}'


def offset_wrapper(end: int, offset: int, time_ms: int) -> str:
    """An OffsetWrapper."""
    return f'{{"brokerOffset":{end},"consumerOffset":{offset},"lastTimestamp":{time_ms}}}'


def topic_stats(rows: QueueRows) -> bytes:
    """A TopicStatsTable."""
    return b'{"offsetTable":%b}' % rows.text()


def consume_stats(rows: QueueRows, tps: float) -> bytes:
    """A ConsumeStats."""
    return b'{"consumeTps":%b,"offsetTable":%b}' % (json.dumps_java(tps), rows.text())


def consume_stats_list(groups: Iterable[tuple[str, list[bytes]]], address: str, total_diff: int) -> bytes:
    """A ConsumeStatsList of each group's ConsumeStats."""
    lists = b",".join(b"{%b:[%b]}" % (json.dumps(group), b",".join(stats)) for group, stats in groups)
    parts = json.dumps(address), lists, total_diff
    return b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d}' % parts


def time_spans(topic: str, broker_name: str, first: int, spans: Iterable[tuple[int, int, int, int]]) -> bytes:
    """Rows of a QueryConsumeTimeSpanBody, for the queues of a topic from `first` on: first, last and consumed
    time, delay."""
    head = f'"messageQueue":{{"brokerName":{json.dumps(broker_name).decode()},"queueId":'
    tail = f',"topic":{json.dumps(topic).decode()}}}'
    return ",".join(
        f'{{"consumeTimeStamp":{consumed},"delayTime":{delay},"maxTimeStamp":{last},'
        f'{head}{queue_id}{tail},"minTimeStamp":{first_ms}}}'
        for queue_id, (first_ms, last, consumed, delay) in enumerate(spans, first)
    ).encode()


# --- answers that take long ---

LINE_MAX: Final = 64
"""Answers that wait to be made. Each keeps what its first slice made."""
LINE_OF_A_PEER: Final = 4


@frozen
class _Begun:
    """A response under construction, with its first slice."""

    request: Command
    connection: Connection
    work: Slices[bytes]


class SlicedAnswers:
    """The queue of responses that take longer than a slice. `on_pending()` is called when a response joins
    the queue, so that a task runs the slices of `finish` between other work; without `on_pending` a response
    is finished at once."""

    def __init__(
        self, on_pending: Callable[[], None] | None = None, holders_of: HoldersOf | None = None
    ) -> None:
        self._holders_of = holders_of or by_account_and_address()
        self._on_pending = on_pending or (lambda: run_to_end(self.finish()))
        self._line: Deferred[Connection, _Begun] = Deferred(LINE_MAX, "the long answers that are being made")

    def answer(self, request: Command, connection: Connection, work: Slices[bytes]) -> Command | None:
        """The response whose body `work` makes; None when the work takes more than a slice: the response is
        sent later.

        Raises ResponseError when too many responses wait, and the errors of `work` in its first slice.
        """
        try:
            next(work)
        except StopIteration as done:
            return request.reply(body=done.value)
        holders = self._holders_of(connection)
        if (same := self._line.count(connection)) >= LINE_OF_A_PEER:
            remark = f"{same} long answers to this connection are being made: ask again later"
            raise for_code(ResponseCode.SYSTEM_BUSY, remark)
        self._line.check(holders)
        self._line.add(connection, _Begun(request, connection, work), holders=holders)
        self._on_pending()
        return None

    def finish(self) -> Slices[None]:
        """Make and send all that wait."""
        while (row := self._line.oldest()) is not None:
            begun = row.value
            if begun.connection.is_closed:
                self._line.end(begun.connection)
                continue
            try:
                next(begun.work)
            except StopIteration as done:
                self._send(row, begun.request.reply(body=done.value))
            except Exception as error:
                self._send(row, error_response(begun.request, error))
            yield

    def _send(self, row: Row[Connection, _Begun], response: Command) -> None:
        self._line.take(row)
        if not row.value.request.is_oneway:
            row.value.connection.reply(response)


# --- the requests ---

_NO_ENDS: Final = topic_offset(0, 0, 0)


class ConsumeProgress:
    """Answers from the tables of groups, clients and offsets beside the store."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        tables: Tables,
        sliced_answers: SlicedAnswers,
    ) -> None:
        self._settings = settings
        self._sliced_answers = sliced_answers
        self._store = store
        self._topics = tables.topics
        self._groups = tables.groups
        self._clients = tables.clients
        self._offsets = tables.offsets
        self._stats = tables.stats
        self._stats_state = (-1, -1)
        self._stats_texts: dict[str, tuple[TopicConfig, bytes]] = {}

    def handlers(self) -> dict[int, Callable[[Command, Any, int], Command | None]]:
        """Request codes and their handlers."""
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self._on_topic_stats,
            RequestCode.GET_CONSUME_STATS: self._on_consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self._on_all_consume_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._on_consumed_by_who,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self._on_time_span,
            RequestCode.QUERY_CORRECTION_OFFSET: self._on_correction,
            RequestCode.CLONE_GROUP_OFFSET: self._on_clone,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._on_reset,
        }

    # --- ends of queues ---

    def _on_topic_stats(self, request: Command, connection: Connection, now: int) -> Command | None:
        name = request.read(GetTopicStatsInfoRequestHeader).topic
        topic = self._topics.get(name)
        if topic is None:
            raise for_code(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return self._sliced_answers.answer(request, connection, self._topic_stats(topic))

    def _topic_stats(self, topic: TopicConfig) -> Slices[bytes]:
        """A row for each queue. A repeated request before anything is stored gets the last text: any client
        may send it, and BenchmarkTest alone has 1,024 queues."""
        state = self._store.min_physical_offset, self._store.max_physical_offset
        if self._stats_state != state:
            self._stats_state, self._stats_texts = state, {}
        known = self._stats_texts.get(topic.topic_name)
        if known is not None and known[0] is topic:
            return known[1]
        rows = QueueRows(self._settings.broker.broker_name)
        end = queue_end(self._store, topic)
        for queues in _sliced(end):
            if queues.start:
                yield
            for part in _shown(queues, topic.write_queue_nums, partial(self._is_kept, topic.topic_name)):
                rows.add(topic.topic_name, map(partial(self._ends, topic.topic_name), part), part.start)
            _check_size(rows.size, f"the ends of the {end} queues of {topic.topic_name}")
        text = topic_stats(rows)
        if state == self._stats_state:
            if len(self._stats_texts) >= STATS_TEXTS_MAX:
                self._stats_texts.clear()
            self._stats_texts[topic.topic_name] = topic, text
        return text

    def _is_kept(self, topic: str, queue_id: int) -> bool:
        return unread(self._store, topic, queue_id, 0) > 0

    def _ends(self, topic: str, queue_id: int) -> str:
        end = self._store.max_offset(topic, queue_id)
        if end <= 0:
            return _NO_ENDS
        time_ms = max(0, self._store.message_time(topic, queue_id, end - 1))
        return topic_offset(self._store.min_offset(topic, queue_id), end, time_ms)

    # --- lag ---

    def _on_consume_stats(self, request: Command, connection: Connection, now: int) -> Command | None:
        header = request.read(GetConsumeStatsRequestHeader)
        return self._sliced_answers.answer(request, connection, self._consume_stats(header, now))

    def _on_all_consume_stats(self, request: Command, connection: Connection, now: int) -> Command | None:
        ordered = request.read(GetConsumeStatsInBrokerHeader).is_order
        work = self._all_consume_stats(connection.local_address, now, only_ordered=ordered)
        return self._sliced_answers.answer(request, connection, work)

    def _consume_stats(self, header: GetConsumeStatsRequestHeader, now: int) -> Slices[bytes]:
        group, done = header.consumer_group, 0
        names = {header.topic} if header.topic else self._offsets.topics_of(group)
        rows, tps = QueueRows(self._settings.broker.broker_name), 0.0
        for topic in self._consumed(group, names):
            tps += self._stats.consume_tps(group, topic.topic_name, now)
            for queues, _ in self._add_lags(rows, group, topic):
                _check_size(rows.size, f"the progress of group {group}: ask for one topic of it at a time")
                done += queues
                if done >= SLICE_QUEUES:
                    done = 0
                    yield
        return consume_stats(rows, tps)

    def _all_consume_stats(self, address: str, now: int, *, only_ordered: bool) -> Slices[bytes]:
        groups, total_diff, size, done = [], 0, 0, 0
        for group in list(self._groups.table):
            stats: list[bytes] = []
            groups.append((group, stats))
            done += 1
            for topic in self._consumed(group, self._offsets.topics_of(group)):
                done += 1
                if topic.order or not only_ordered:
                    rows = QueueRows(self._settings.broker.broker_name)
                    for queues, lag in self._add_lags(rows, group, topic):
                        total_diff += lag
                        _check_size(
                            size + rows.size, "the progress of all groups: ask for one group at a time"
                        )
                        done += queues
                        if done >= SLICE_QUEUES:
                            done = 0
                            yield
                    size += rows.size
                    stats.append(consume_stats(rows, self._stats.consume_tps(group, topic.topic_name, now)))
                if done >= SLICE_QUEUES:
                    done = 0
                    yield
            if done >= SLICE_QUEUES:
                done = 0
                yield
        return consume_stats_list(groups, address, total_diff)

    def _consumed(self, group: str, names: Iterable[str]) -> list[TopicConfig]:
        """The existing topics of these to which the group, if connected, still subscribes."""
        known = (self._topics.get(name) for name in sorted(names) if self._clients.is_subscribed(group, name))
        return [topic for topic in known if topic is not None]

    def _add_lags(self, rows: QueueRows, group: str, topic: TopicConfig) -> Iterator[tuple[int, int]]:
        """Add a row for each queue of the topic, some at a time. Yields the number of queues visited and the
        group's backlog in them."""
        name = topic.topic_name
        offsets = self._offsets.of(group, name)

        def is_left(queue_id: int) -> bool:
            return unread(self._store, name, queue_id, offsets.get(queue_id, 0)) > 0

        for queues in _sliced(queue_end(self._store, topic)):
            lag = 0
            for part in _shown(queues, topic.read_queue_nums, is_left):
                values = []
                for queue_id in part:
                    # Deleted messages do not count as backlog.
                    offset = max(0, offsets.get(queue_id, 0), self._store.min_offset(name, queue_id))
                    end = max(0, self._store.max_offset(name, queue_id))
                    time_ms = self._store.message_time(name, queue_id, offset - 1) if offset else 0
                    lag += end - offset
                    values.append(offset_wrapper(end, offset, max(0, time_ms)))
                rows.add(name, values, part.start)
            yield 1 + len(queues), lag

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._settings.broker.broker_name, queue_id)

    def _topic(self, name: str) -> TopicConfig:
        topic = self._topics.get(name)
        if topic is None:
            raise for_code(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return topic

    def _on_consumed_by_who(self, request: Command, connection: Any, now: int) -> Command:
        topic = request.read(QueryTopicConsumeByWhoRequestHeader).topic
        groups = self._clients.groups_of(topic) | self._offsets.groups_of(topic)
        return request.reply(body=bodies.GroupList(sorted(groups)).to_json())

    def _on_time_span(self, request: Command, connection: Connection, now: int) -> Command | None:
        header = request.read(QueryConsumeTimeSpanRequestHeader)
        work = self._time_spans(header.group, self._topic(header.topic), now)
        return self._sliced_answers.answer(request, connection, work)

    def _time_spans(self, group: str, topic: TopicConfig, now: int) -> Slices[bytes]:
        name, parts, size = topic.topic_name, [], 0
        for queues in _sliced(max(topic.write_queue_nums, topic.read_queue_nums)):
            if queues.start:
                yield
            spans = (self._time_span(group, name, queue_id, now) for queue_id in queues)
            parts.append(time_spans(name, self._settings.broker.broker_name, queues.start, spans))
            size += len(parts[-1])
            _check_size(size, f"the times of the {topic.write_queue_nums} queues of {name}")
        return b'{"consumeTimeSpanSet":[%b]}' % b",".join(parts)

    def _time_span(self, group: str, topic: str, queue_id: int, now: int) -> tuple[int, int, int, int]:
        """Store times of the first and the last message of a queue and of the message that the group consumed
        last, and the age of the next message. -1 for a value that does not exist."""
        end = self._store.max_offset(topic, queue_id)
        offset = self._offsets.get(group, topic, queue_id)
        if end <= 0:
            return -1, -1, -1, now + 1 if offset < end else 0  # the delay is what RocketMQ says then

        def time_of(queue_offset: int) -> int:
            return self._store.message_time(topic, queue_id, queue_offset)

        first = self._store.earliest_time(topic, queue_id)
        next_ms = time_of(max(offset, self._store.min_offset(topic, queue_id))) if offset < end else now
        consumed = time_of(offset - 1) if offset > 0 else first
        return first, time_of(end - 1), consumed, max(0, now - next_ms)

    # --- offsets of several groups ---

    def _on_correction(self, request: Command, connection: Any, now: int) -> Command:
        header = request.read(QueryCorrectionOffsetHeader)
        left_out = set((header.filter_groups or "").split(","))
        lowest: dict[int, int] = {}
        for group in sorted(self._offsets.groups_of(header.topic) - left_out):
            for queue_id, offset in self._offsets.of(group, header.topic).items():
                if offset >= self._store.min_offset(header.topic, queue_id):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, _LONG_MAX))
        for queue_id, offset in self._offsets.of(header.compare_group, header.topic).items():
            if lowest.get(queue_id, _LONG_MAX) > offset:
                lowest[queue_id] = _LONG_MAX
        return request.reply(body=bodies.QueryCorrectionOffsetBody(lowest).to_json())

    def _on_clone(self, request: Command, connection: Any, now: int) -> Command:
        header = request.read(CloneGroupOffsetRequestHeader)
        source = header.src_group
        for topic in [header.topic] if header.topic else sorted(self._offsets.topics_of(source)):
            if self._topics.get(topic) is None:
                log.warning("offsets of group %s in %s are not cloned: no such topic", source, topic)
            elif header.offline or self._clients.is_subscribed(source, topic):
                self._offsets.clone(source, header.dest_group, topic)
        return request.reply()

    def _on_reset(self, request: Command, connection: Any, now: int) -> Command:
        """Compute the offsets of a moment and send them to the members of the group, which commit them."""
        header = request.read(ResetOffsetRequestHeader)
        group = self._clients.consumer_group(header.group)
        offsets = self._reset_offsets(header)
        if self._offsets.is_watched(header.group, header.topic):  # members have no offsets of their own
            self._offsets.put(header.group, header.topic, offsets)
            log.info("group %s in %s is reset: %s", header.group, header.topic, offsets)
            table = {self._queue(header.topic, queue_id): offset for queue_id, offset in offsets.items()}
            return request.reply(body=bodies.ResetOffsetBody(table).to_json())
        if group is None:
            raise for_code(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
                f"Timestamp: {header.timestamp}",
            )
        table = {self._queue(header.topic, queue_id): offset for queue_id, offset in offsets.items()}
        for member in list(group.members.values()):
            member.connection.notify(_reset_notice(header, table, member))
            log.info(
                "group %s in %s is reset at %s: %s", header.group, header.topic, member.client_id, offsets
            )
        return request.reply(body=bodies.ResetOffsetBody(table).to_json())

    def topic_deleted(self, topic: str, queue_ids: Collection[int]) -> None:
        """Send the members of all groups that subscribe to a deleted topic to the start of its queues, as a
        reset does. Their positions belong to deleted messages, and would skip as many messages if the topic
        is created again."""
        table = {self._queue(topic, queue_id): 0 for queue_id in queue_ids}
        for name in sorted(self._clients.groups_of(topic)) if table else ():
            group = self._clients.consumer_group(name)
            header = ResetOffsetRequestHeader(topic, name, 0)
            for member in list(group.members.values()) if group is not None else ():
                member.connection.notify(_reset_notice(header, table, member))

    def _reset_offsets(self, header: ResetOffsetRequestHeader) -> dict[int, int]:
        topic = self._topics.get(header.topic)
        if topic is None:
            raise for_code(
                ResponseCode.SYSTEM_ERROR,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
            )
        known = self._offsets.of(header.group, header.topic)
        is_new = header.group in self._groups.table and self._clients.consumer_group(header.group) is None
        if not known and not is_new:  # a group that was made and has not consumed yet may begin anywhere
            raise for_code(ResponseCode.SYSTEM_ERROR, f"The consumer group <{header.group}> not exist")
        offsets = {}
        for queue_id in range(max(topic.write_queue_nums, topic.read_queue_nums)):
            target = self._offset_at(header.topic, queue_id, header.timestamp)
            offset = known.get(queue_id, target)
            offsets[queue_id] = target if header.is_force else min(target, offset)
        return offsets

    def _offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first message stored at that time or later. RocketMQ takes the nearest, or any of that ms, and
        so skips messages or repeats some."""
        if timestamp_ms == _TO_THE_END:
            return self._store.max_offset(topic, queue_id)
        offsets = range(self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id))
        found = bisect_left(
            offsets, timestamp_ms, key=lambda offset: self._store.message_time(topic, queue_id, offset)
        )
        return offsets.start + found


def _reset_notice(
    header: ResetOffsetRequestHeader, table: dict[MessageQueue, int], member: Member
) -> Command:
    notice = ResetOffsetRequestHeader(header.topic, header.group, header.timestamp)
    body = bodies.ResetOffsetBody(table).to_json()
    if member.language == "CPP":  # cannot read objects as keys
        rows = [
            {
                "brokerName": queue.broker_name,
                "offset": offset,
                "queueId": queue.queue_id,
                "topic": queue.topic,
            }
            for queue, offset in table.items()
        ]
        body = json.dumps({"offsetTable": rows})
    return Command.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, notice, body, oneway=True)


def _sliced(queues: int) -> Iterator[range]:
    """The queues from 0 on, in portions for a slice."""
    for begin in range(0, queues, SLICE_QUEUES):
        yield range(begin, min(begin + SLICE_QUEUES, queues))


def _shown(queues: range, counted: int, is_shown: Callable[[int], bool]) -> Iterator[range]:
    """The queues below `counted` in a single sum, and each further queue that `is_shown`."""
    if queues.start < counted:
        yield range(queues.start, min(queues.stop, counted))
    for queue_id in range(max(queues.start, counted), queues.stop):
        if is_shown(queue_id):
            yield range(queue_id, queue_id + 1)


def _check_size(size: int, what: str) -> None:
    if size > ANSWER_SIZE:
        raise for_code(ResponseCode.SYSTEM_ERROR, f"the response is too large: {what}")
