"""Per-message delivery: the groups that take single messages, put together.

A group takes messages of a topic: each message belongs to its consumer for a time, whichever other groups
read the queue. The offset of the group in a queue is the offset of its oldest unfinished message, so that
lag, resets and RocketMQ's own brokers work with it; later finished messages are in the journal (`ledger`).

Pulls of a group from a topic of which it takes messages are refused, since they would read leased messages.
They are allowed again once no message is out and no take came during `IDLE_SECONDS`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from rmq.broker.consume.per_message.handles import Handle, check_count, parse_handle
from rmq.broker.consume.per_message.leases import Leases
from rmq.broker.consume.per_message.ledger import Change, Ledger, Recovered
from rmq.broker.consume.per_message.offset_set import OffsetSet
from rmq.broker.consume.per_message.polls import HeldTake, HeldTakes
from rmq.broker.consume.per_message.queue_delivery import QueueDelivery, TopicDelivery
from rmq.broker.consume.per_message.retry_policy import RetryPolicy, policy_of
from rmq.broker.consume.per_message.taking import Handed, Taker, Taking
from rmq.errors import ResponseError, for_code
from rmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.broker.config import Settings
    from rmq.broker.consume.long_polling import Reading
    from rmq.broker.consume.per_message.leases import OnHandled
    from rmq.broker.consume.per_message.ledger import OnWritten
    from rmq.broker.consume.read import Reader
    from rmq.broker.role import Role
    from rmq.broker.state import Tables
    from rmq.doors import TakeRequest
    from rmq.shares import Shares
    from rmq.store.store import Store
else:
    from rmq.lazy_attrs import frozen

IDLE_SECONDS: Final = 60.0
FORGET_SECONDS: Final = 3_600.0
"""Time after its last take until a group with no message out is forgotten; its offset stays."""

NAMED_LATE_MS: Final = 1_000
"""Time from the first take of a queue until the record that names the queue is stored; with a margin."""

log = logging.getLogger("rmq.broker")


@frozen
class DeliveryFigures:
    """Figures of a topic for a group. `oldest_ms` is the age of the oldest lease."""

    group: str
    topic: str
    leased: int
    waiting: int
    oldest_ms: int
    polls: int


class Deliveries:
    """The groups that take single messages.

    `put(topic, body, on_done)` takes a record of the journal into the pending batch, `give_up(group, message,
    attempts, reason)` a dead letter; both raise StoreError and ResponseError. `commit_soon()` has the batch
    written in the next round of the loop, if no other work writes it. `on_deadline(at)` is called with each
    new deadline of `clock`, in seconds, so that `step` is called by then.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        tables: Tables,
        reader: Reader,
        *,
        role: Role,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        on_deadline: Callable[[float], None],
        commit_soon: Callable[[], None],
        put: Callable[[str, bytes, OnWritten | None], None],
        give_up: Callable[[str, memoryview, int, str], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._offsets = tables.offsets
        self._groups = tables.groups
        self._topics = tables.topics
        self._stats = tables.stats
        self._reader = reader
        self._role = role
        self.clock = clock
        self._now_ms = now_ms
        self._dead_letter = give_up
        self._commit_soon = commit_soon
        self._table: dict[tuple[str, str], TopicDelivery] = {}
        self._unconfirmed: dict[str, None] = {}
        self._idle_at = 0.0
        self.ledger = Ledger(store, put=put, apply=self._apply, wall_ms=self._wall_ms)
        self.polls = HeldTakes(
            settings,
            clock,
            on_deadline,
            self._take_held,
            lambda held: self.has_messages(held.request, held.connection),
        )
        self._taker = Taker(store, self._beyond)
        self.leases = Leases(
            self.ledger,
            clock=clock,
            now_ms=now_ms,
            policy=self.policy,
            give_up=self._give_up,
            on_ready=lambda topic: self.polls.wake((topic.group, topic.topic)),
            on_base=self._on_base,
            on_deadline=on_deadline,
        )

    # ---- what the broker asks ----

    @property
    def out(self) -> int:
        """Messages of all groups that were taken and are not finished."""
        return self.leases.out

    @property
    def broker_name(self) -> str:
        """The broker's name, which is in the handles."""
        return self._settings.broker.broker_name

    @property
    def shares(self) -> Shares:
        """The places of the messages that are out."""
        return self.leases.shares(self._settings.broker.max_taken_messages)

    def _apply(self, changes: Sequence[Change], is_written: bool) -> None:
        self.leases.apply(changes, is_written)

    def _wall_ms(self, time: float) -> int:
        return self._now_ms() + round((time - self.clock()) * 1000)

    def policy(self, group: str) -> tuple[int, RetryPolicy]:
        """The attempts that a message of a group has, and the policy of its retries."""
        config = self._groups.table.get(group)
        if config is None:
            return 17, RetryPolicy()
        return max(1, config.retry_max_times + 1), policy_of(config.group_retry_policy)

    def is_ordered(self, group: str) -> bool:
        """True if a group takes messages by message group, one after the other."""
        config = self._groups.table.get(group)
        return config is not None and bool(config.consume_message_orderly)

    # ---- take ----

    def take(self, request: TakeRequest, reading: Reading) -> list[Handed]:
        """Take messages now, or none if none is ready. Raises ResponseError for a refusal."""
        if self._role.refuses_locks() or self._role.refusal():
            raise for_code(
                ResponseCode.SERVICE_NOT_AVAILABLE, "messages are taken at the master of this set, not here"
            )
        plan = self._reader.admit_take(request, reading)
        topic = self._begin(request)
        config = self._settings.broker
        limits, now_ms = self._settings.store, self._now_ms()
        most = 1 if reading.is_busy else limits.max_transfer_count_on_message_in_memory
        taking = Taking(
            min(request.max_msg_nums, most),
            max(0, self.room(topic, reading)),
            limits.max_transfer_bytes_on_message_in_memory,
            self.clock(),
            now_ms,
            max(now_ms, topic.taken_ms),
            request.invisible_ms,
            reading,
            plan,
            self.policy(topic.group)[0],
            self._role.high_watermark(),
            request.chooser,
            config.max_taken_messages_of_group // 2
            - topic.out,  # the rest is for messages that a chooser has left
        )
        in_order = self.is_ordered(topic.group) if request.in_order is None else request.in_order
        try:
            for queue_id in topic.turn_of(request.queue_id, self._topics.table[topic.topic].read_queue_nums):
                if taking.is_full:
                    break
                self._take_of(topic, queue_id, in_order, request, taking)
        finally:
            self._took(topic, taking)
        if handed := taking.handed:
            count, size = handed[0].count, handed[0].size
            for one in handed[1:]:
                count, size = count + one.count, size + one.size
            self._reader.handed_out(request, count, size, reading)
        return handed

    def room(self, topic: TopicDelivery, reading: Reading) -> int:
        """The number of further messages of a topic that a consumer may take."""
        config, holders = self._settings.broker, self._settings.holders_of(reading)
        left = self.leases.room(topic, holders, config.max_taken_messages)
        return min(config.max_taken_messages_of_group - topic.out, left)

    def _take_of(
        self, topic: TopicDelivery, queue_id: int, in_order: bool, request: TakeRequest, taking: Taking
    ) -> None:
        """Take messages of one queue."""
        queue = topic.queues.get(queue_id)
        if queue is None:
            queue = self._begin_queue(topic, queue_id, request)
        if not in_order and queue.has_new_only:
            if queue.cursor == self._store.max_offset(topic.topic, queue_id):
                return
        elif not self.leases.set_order(queue, in_order):
            return
        base = queue.base
        self._taker.take(queue, taking)
        if queue.base != base:
            self._on_base(queue)

    def _took(self, topic: TopicDelivery, taking: Taking) -> None:
        self.leases.took(topic, taking)
        topic.has_more = taking.has_more and not taking.leased
        topic.is_at_limit = taking.new >= taking.fresh
        if taking.is_cut:
            self._unconfirmed[topic.topic] = None

    def _begin(self, request: TakeRequest) -> TopicDelivery:
        """The state of a topic for a group, from its first take on. Raises ResponseError."""
        key = request.consumer_group, request.topic
        topic = self._table.get(key) or self._begin_topic(key)
        topic.used_at = self.clock()
        if not topic.is_refusing_pulls:
            self._reader.refuse_pulls(*key)
            topic.is_refusing_pulls = True
        return topic

    def _begin_topic(self, key: tuple[str, str]) -> TopicDelivery:
        topic = self._table[key] = TopicDelivery(*key, used_at=self.clock())
        self._offsets.watch(*key, partial(self._on_offsets, topic))
        return topic

    def _begin_queue(self, topic: TopicDelivery, queue_id: int, request: TakeRequest) -> QueueDelivery:
        """The state of a queue: from the group's offset on; of a new group, by RocketMQ's rules. Raises
        ResponseError.
        """
        group, name = topic.group, topic.topic
        base = self._offsets.get(group, name, queue_id)
        if base < 0:
            base = self._offsets.first(group, name, queue_id, from_first=request.from_first)
        queue = QueueDelivery(topic, queue_id, self.ledger.next_id(), OffsetSet(base), base)
        self._offsets.advance(group, name, queue_id, base)
        topic.queues[queue_id] = queue
        self.ledger.add(queue)
        self._commit_soon()
        return queue

    def _beyond(self, queue: QueueDelivery) -> int:
        """Correct a queue whose cursor lies outside of the stored range; return the offset at which the queue
        goes on."""
        name, queue_id = queue.topic.topic, queue.queue_id
        low, high = self._store.min_offset(name, queue_id), self._store.max_offset(name, queue_id)
        if queue.cursor < low:
            queue.finished.advance_to(low)
            return max(low, queue.cursor)
        at = self._offsets.resume_at(name, queue_id, queue.cursor)
        log.warning(
            "group %s takes messages of %s queue %d up to %d, which ends at %d: it goes on at %d",
            *(queue.topic.group, name, queue_id, queue.cursor, high, at),
        )
        self.leases.reset(queue, at)
        self.ledger.reset(queue)
        return at

    # ---- waiting for messages ----

    def hold(self, held: HeldTake) -> None:
        """Keep a take that found nothing until a message comes or its time is over. Raises ResponseError when
        too many takes wait."""
        self._stats.miss()
        self.polls.hold(held)
        self._look_on(held)

    def has_messages(self, request: TakeRequest, reading: Reading) -> bool:
        """True if a take may find a message, as far as known without a read. Raises ResponseError."""
        self._reader.admit_take(request, reading)
        topic = self._table.get((request.consumer_group, request.topic))
        count = self._topics.table[request.topic].read_queue_nums
        for queue_id in range(count) if request.queue_id < 0 else (request.queue_id,):
            queue = None if topic is None else topic.queues.get(queue_id)
            if queue is None:
                at = self._offsets.get(request.consumer_group, request.topic, queue_id)
                if at < 0:
                    at = self._offsets.first(request.consumer_group, request.topic, queue_id)
            elif queue.ready or (queue.groups and queue.groups.free):
                return True
            else:
                at = queue.finished.next_missing(queue.cursor)
            if at < self._store.max_offset(request.topic, queue_id):
                return True
        return False

    def _take_held(self, held: HeldTake) -> Sequence[Handed]:
        handed = self.take(held.request, held.connection)
        if not handed:
            self._look_on(held)
        return handed

    def _look_on(self, held: HeldTake) -> None:
        """Try again soon if the last take has not looked at all messages."""
        key = held.request.consumer_group, held.request.topic
        topic = self._table.get(key)
        if topic is not None and topic.has_more:
            self.polls.wake(key)

    def arrived(self, topic: str) -> None:
        """A topic has new messages."""
        self.polls.arrived(topic)

    def read_on(self) -> None:
        """Consumers may read further than before."""
        if self._unconfirmed:
            topics, self._unconfirmed = self._unconfirmed, {}
            for topic in topics:
                self.polls.arrived(topic)

    # ---- acknowledge, extend, give back ----

    def acknowledge(self, group: str, topic: str, handles: Sequence[str], on_done: OnHandled) -> None:
        """Acknowledge messages by `Leases.acknowledge`. Raises ResponseError."""
        self._check_keeps(handles)
        parsed = [_parsed(text) for text in handles]
        self.leases.acknowledge(self._table.get((group, topic)), parsed, on_done)
        self._write_soon()

    def acknowledge_batches(
        self, group: str, topic: str, batches: Sequence[tuple[int, int, int, int]], on_done: OnWritten
    ) -> bool:
        """Acknowledge leases or parts of leases, as (queue id, start, taken ms, mask). Return whether all of
        the messages have these leases; if not, nothing is changed. Raises ResponseError.
        """
        self._check_keeps(())
        known, changes = self._table.get((group, topic)), []
        for batch in batches:
            change = self.leases.acknowledge_batch(known, *batch)
            if change is None:
                return False
            changes.append(change)
        for change in changes:
            self.ledger.finish(change)
        self.ledger.call(on_done)
        self._commit_soon()
        return True

    def changes(self, group: str, topic: str, handles: Sequence[str]) -> list[Change]:
        """The changes of `Leases.changes`, for `Ledger.commit`."""
        self._check_keeps(())
        return self.leases.changes(self._table.get((group, topic)), list(map(parse_handle, handles)))

    def dead_letter(self, group: str, topic: str, handles: Sequence[str], on_done: OnHandled) -> None:
        """Make dead letters by `Leases.dead_letter`. Raises ResponseError, StoreError."""
        self._check_keeps(handles)
        parsed = [_parsed(text) for text in handles]
        self.leases.dead_letter(self._table.get((group, topic)), parsed, on_done)
        self._write_soon()

    def extend(self, group: str, topic: str, handle: str, invisible_ms: int, owner: Reading) -> str:
        """Extend a lease by `Leases.extend`. Raises ResponseError."""
        known = self._table.get((group, topic))
        return self.leases.extend(known, parse_handle(handle), invisible_ms, owner, self.broker_name)

    def nack(
        self, group: str, topic: str, handles: Sequence[str], after_ms: int | None, *, counts: bool = True
    ) -> list[ResponseError | None]:
        """End attempts by `Leases.nack`. Raises ResponseError."""
        self._check_keeps(handles)
        parsed = [_parsed(text) for text in handles]
        outcomes = self.leases.nack(self._table.get((group, topic)), parsed, after_ms, counts=counts)
        self._write_soon()
        return outcomes

    def _check_keeps(self, handles: Sequence[str]) -> None:
        if self._role.refuses_commits() or self._role.refusal():
            remark = "the message is not acknowledged: another master takes over, acknowledge it there"
            raise for_code(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
        check_count(len(handles))

    def _write_soon(self) -> None:
        if self.ledger.has_pending:
            self._commit_soon()

    def on_close(self, connection: Reading) -> None:
        """A connection has ended: forget its polls, and redeliver its messages."""
        self.polls.on_close(connection)
        self.leases.on_close(connection)

    def stop(self) -> None:
        """Prepare a graceful shutdown: the broker itself ends the attempts of the messages in flight, so
        these attempts do not count. The next write of the journal records this."""
        if self._role.refuses_commits() or self._role.refusal():
            return
        queues = (queue for topic in self._table.values() for queue in topic.queues.values())
        self.leases.stop(queues)

    def topic_of(self, group: str, topic: str) -> TopicDelivery | None:
        """The state of a topic for a group that takes its messages one by one."""
        return self._table.get((group, topic))

    def queue_of(self, group: str, topic: str, queue_id: int) -> QueueDelivery | None:
        """The state of a queue for a group that takes its messages one by one."""
        known = self._table.get((group, topic))
        return None if known is None else known.queues.get(queue_id)

    def _give_up(self, queue: QueueDelivery, offset: int, attempts: int, reason: str) -> None:
        record = self._taker.record(queue, offset)
        if record is None:
            log.warning("message %d of %s is no longer in the log", offset, queue.topic.topic)
        else:
            self._dead_letter(queue.topic.group, record, attempts, reason)

    def _on_base(self, queue: QueueDelivery) -> None:
        topic = queue.topic
        self._offsets.advance(topic.group, topic.topic, queue.queue_id, queue.base)

    def step(self, now: float) -> float:
        """Do the due work; return the next deadline, infinite without waiting work."""
        at = min(self.leases.step(now), self.polls.step(now))
        if self.ledger.step(self._now_ms()):
            at = now
        if now >= self._idle_at:
            self._idle_at = now + IDLE_SECONDS
            self._look_for_idle(now)
        return min(at, self._idle_at) if self._table else at

    def _look_for_idle(self, now: float) -> None:
        for key, topic in list(self._table.items()):
            idle = now - topic.used_at
            if topic.out or idle < IDLE_SECONDS or self.polls.waiting(key):
                continue
            if topic.is_refusing_pulls:
                self._reader.allow_pulls(*key)
                topic.is_refusing_pulls = False
            if idle >= FORGET_SECONDS and not any(
                queue.finished.above(queue.cursor) for queue in topic.queues.values()
            ):
                self._forget(topic)

    def _forget(self, topic: TopicDelivery) -> None:
        for queue in topic.queues.values():
            self.leases.reset(queue, queue.base)
            self.ledger.forget(queue)
        topic.queues.clear()
        key = topic.group, topic.topic
        self._offsets.unwatch(*key)
        if topic.is_refusing_pulls:
            self._reader.allow_pulls(*key)
        del self._table[key]

    # ---- offsets that others change ----

    def _on_offsets(self, topic: TopicDelivery, reset: Collection[int]) -> None:
        """Take over offsets of a group that were changed elsewhere: by a reset of some queues, a deletion, or
        a pulling consumer. A reset to the oldest unfinished message brings back the later messages."""
        offsets = self._offsets.of(topic.group, topic.topic)
        if not offsets:
            self._forget(topic)
            self._write_soon()
            return
        for queue_id, queue in list(topic.queues.items()):
            base = offsets.get(queue_id, -1)
            if base < 0 or (base == queue.base and (queue_id not in reset or queue.is_new)):
                continue
            fields = topic.group, topic.topic, queue_id, base, queue.base
            log.info("group %s goes on in %s queue %d at %d, not at %d", *fields)
            self.leases.reset(queue, base)
            self.ledger.reset(queue)
        self._write_soon()
        self.polls.wake((topic.group, topic.topic))

    def load(self) -> None:
        """Read the journal of the store, on a master, after its offsets."""
        for row_id, row in self.ledger.load(self._now_ms()):
            if self._topics.get(row.topic) is None:  # it was deleted; another one may get its name
                self.ledger.forget_row(row_id)
                continue
            end = self._store.max_offset(row.topic, row.queue_id)
            known = self._offsets.get(row.group, row.topic, row.queue_id)
            fit(row, known, self._store.min_offset(row.topic, row.queue_id), end)
            key = row.group, row.topic
            topic = self._table.get(key) or self._begin_topic(key)
            queue = recovered_queue(topic, row_id, row, end)
            topic.queues[row.queue_id] = queue
            self.ledger.keep(queue)
            self._on_base(queue)

    def _measured(self, topic: TopicDelivery) -> DeliveryFigures:
        return figures_of(topic, self._now_ms(), self.polls.waiting((topic.group, topic.topic)))

    def figures(self) -> list[DeliveryFigures]:
        """The figures of all groups and topics."""
        return [self._measured(topic) for topic in self._table.values()]

    def figures_of(self, group: str) -> list[DeliveryFigures]:
        """The figures of a group."""
        return [self._measured(topic) for key, topic in self._table.items() if key[0] == group]


def _parsed(text: str) -> Handle | ResponseError:
    try:
        return parse_handle(text)
    except ResponseError as error:
        return error


def fit(row: Recovered, known: int, low: int, end: int) -> None:
    """Adapt the finished messages of a queue, as read from the journal, to its offset and its bounds."""
    row.finished.cut(end)
    if not row.is_reset and known > row.finished.base:
        row.finished.advance_to(min(known, end))
    row.finished.advance_to(min(end, low))


def recovered_queue(topic: TopicDelivery, row_id: int, row: Recovered, end: int) -> QueueDelivery:
    """A queue as the journal describes it; the queue ends at `end`."""
    finished = row.finished
    queue = QueueDelivery(topic, row.queue_id, row_id, finished, finished.base)
    queue.recovered = min(end, max(row.end, row.frontier))
    queue.tried_before = min(end, row.frontier)
    queue.loaded = end, row.named_ms - NAMED_LATE_MS
    queue.notes = {
        at: fields for at, fields in row.notes.items() if finished.base <= at < end and at not in finished
    }
    return queue


def figures_of(topic: TopicDelivery, now_ms: int, polls: int) -> DeliveryFigures:
    """The figures of a topic for a group."""
    leased, oldest = 0, math.inf
    for queue in topic.queues.values():
        for batch in queue.leased.values():
            leased += batch.count
            oldest = min(oldest, batch.taken_ms)
    age = 0 if oldest == math.inf else max(0, now_ms - int(oldest))
    return DeliveryFigures(topic.group, topic.topic, leased, max(0, topic.out - leased), age, polls)
