"""Acknowledgement: a send is answered when its message is as safe as the settings ask.

Conditions, in this order, before a producer gets success:

1. its chunk's batch is written to the log; after a failure all sends of the chunk are refused with the cause;
2. its topic is in topics.json, if a send has created the topic;
3. the log is synced up to the message, with flushDiskType=SYNC_FLUSH; after syncFlushTimeout the answer is
   FLUSH_DISK_TIMEOUT;
4. a slave has the log up to the message, with brokerRole=SYNC_MASTER; the answer is SLAVE_NOT_AVAILABLE when
   no slave is near enough to be waited for, FLUSH_SLAVE_TIMEOUT after slaveTimeout.

A send with WAIT=false, a message that a consumer sends back, and the end of a transaction need 1 and 2 only,
except in a set with controllers: any slave may become master, and must have every acknowledged message. An
unsuccessful answer of 3 or 4 still has the message's id: the message is stored, its safety is unknown.

A waiting send is a row in a line, without a task or a timer of its own: a sync or a slave's report answers
all rows that it covers, and `step` answers rows past their deadline. When the broker stops, rows that the
last sync does not answer get the same answer as at their deadline.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Union

from attrs import define, field

from rmq.broker.error_responses import topic_not_saved
from rmq.broker.produce.send_answers import Ack, Answers
from rmq.broker.replication.failover.table_acks import TableAcks
from rmq.broker.replication.links import Replicas
from rmq.errors import StoreError, for_code
from rmq.message import dlq_topic, offset_message_id, retry_topic
from rmq.plugin import Appended
from rmq.protocol.codes import ResponseCode
from rmq.protocol.headers import ConsumerSendMsgBackRequestHeader
from rmq.store.config import BrokerRole, FlushDiskType
from rmq.store.writer import Batch

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.role import Role
    from rmq.broker.tables.histograms import Histograms
    from rmq.broker.tables.topics import Topics
    from rmq.errors import ResponseError
    from rmq.metrics import Histogram
    from rmq.plugin import OnAppended
    from rmq.protocol._engine import SendRun
    from rmq.protocol.command import Command
    from rmq.protocol.record import Record
    from rmq.remoting.connection import Connection
    from rmq.store.store import Store


log = logging.getLogger("rmq.broker")


@define(eq=False)
class PlainAcks:
    """Requests, other than sends, that are answered without a header once the log is safe."""

    requests: list[Command]

    def __len__(self) -> int:
        return len(self.requests)


@define(eq=False)
class Call:
    """A message without a request, of a plug-in: `on_done` is called once with its outcome."""

    on_done: OnAppended
    topic: str
    queue_id: int
    record: Record

    def is_for(self, topics: Collection[str]) -> bool:
        """True if the message is sent to, or lies in, one of the topics."""
        return self.topic in topics or self.record.topic in topics

    def done(self, host: bytes, error: ResponseError | None) -> None:
        """Report that the message is stored; `error`: its safety is unknown."""
        record = self.record
        message_id = offset_message_id(host, record.physical_offset)
        self._report(Appended(self.topic, self.queue_id, record.queue_offset, message_id, error))

    def failed(self, error: ResponseError) -> None:
        """Report that the message is not known to be stored."""
        self._report(Appended(self.topic, self.queue_id, -1, "", error))

    def _report(self, outcome: Appended) -> None:
        try:
            self.on_done(outcome)
        except Exception as error:
            log.error("a plug-in failed with the outcome of a message: %s", error, exc_info=error)


@define(eq=False)
class Calls:
    """Messages of plug-ins, and records of the broker, that wait to be safe."""

    calls: Sequence[Call | OwnCall]

    def __len__(self) -> int:
        return len(self.calls)


@define(eq=False)
class OwnCall:
    """A record of the broker's own: `on_done` is called once, with None when the record is as safe as the
    settings ask."""

    on_done: Callable[[ResponseError | None], None]
    topic: str

    def is_for(self, topics: Collection[str]) -> bool:
        """True if the record lies in one of the topics."""
        return self.topic in topics

    def done(self, host: bytes, error: ResponseError | None) -> None:
        """Report that the record is stored; `error`: its safety is unknown."""
        self.failed(error)

    def failed(self, error: ResponseError | None) -> None:
        """Report the outcome."""
        try:
            self.on_done(error)
        except Exception as failure:
            log.error("the outcome of a record was not handled: %s", failure, exc_info=failure)


Acks = Union[list[Ack], PlainAcks, Calls, "SendRun"]


def _acks_of(run: SendRun) -> list[Ack]:
    """The single sends of a run."""
    placed = zip(run.commands(), run.placed(), strict=True)
    return [
        (request, queue_id, Batch(offset, [position], 0)) for request, (queue_id, position, offset) in placed
    ]


@define(eq=False)
class AckBatch:
    """Requests of one chunk that get an acknowledgement.

    `waiting`: sends that are acknowledged when the log is as safe as the settings ask. `ack_on_write`: sends
    with WAIT=false, acknowledged when the log is written. `send_backs`: messages that a consumer sent back,
    also acknowledged when the log is written. In a set with controllers all of them wait.
    """

    waiting: list[Ack] = field(factory=list)
    ack_on_write: list[Ack] = field(factory=list)
    send_backs: list[Command] = field(factory=list)
    run: SendRun | None = None
    """Sends that the compiled engine has put, the whole batch then, which could not be written."""

    def __len__(self) -> int:
        return len(self.waiting) + len(self.ack_on_write) + len(self.send_backs)

    def begin_run(self, run: SendRun) -> None:
        """Take a run, which is the whole batch."""
        self.run = run

    def refuse(self, connection: Connection, code: int, remark: str) -> None:
        """Refuse all requests: nothing is stored."""
        for request, _, _ in self.waiting + self.ack_on_write:
            connection.reply(request.reply(code, remark))
        for request in self.send_backs + (self.run.commands() if self.run else []):
            connection.reply(request.reply(code, remark))


class Acknowledgement:
    """Answers the sends of a broker.

    A handler of sends adds its requests to `pending`, for the batch that is being put. After the commit,
    `committed` answers them or lets them wait; `refused` and `forget` are for a failed commit.

    `clock` is in seconds. `on_deadline(at)` is called with each new deadline, so that `step` is called by
    that time; `on_sync_needed` when a sync is awaited, whose end the caller reports to `synced`.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        topics: Topics,
        role: Role,
        *,
        clock: Callable[[], float],
        histograms: Histograms,
        on_deadline: Callable[[float], None],
        on_sync_needed: Callable[[], None],
    ) -> None:
        self._store = store
        self._topics = topics
        self._clock = clock
        self._on_sync_needed = on_sync_needed
        self.unsure: Counter[str] = Counter()
        """Reason -> stored messages that were answered with this reason instead of SEND_OK."""
        self.pending = AckBatch()
        self.calls: list[Call | OwnCall] = []
        """Calls of the batch that is being put."""
        self._new_topics: list[tuple[Connection, AckBatch]] = []
        self._new_topic_calls: list[Call | OwnCall] = []
        self.disk = ParkedSends(clock, histograms.flush_wait, on_deadline, self._on_disk)
        self.slaves = ParkedSends(clock, histograms.replication_wait, on_deadline, self._on_slave)
        self._role = role
        self.replicas = Replicas(
            settings, role, self._advance, is_in_time=lambda session: self.rows.is_in_time(session)
        )
        self.rows = TableAcks(
            self.replicas, clock, on_deadline, lambda: self._slave_seconds, settings.holders_of
        )
        self._settings = settings
        settings.derive(self._settings_changed)

    def _settings_changed(self) -> None:
        config, store_config = self._settings.broker, self._settings.store
        self._answers = Answers(self._store.store_host, region=config.region_id, trace_on=config.trace_on)
        self._syncs = store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._replicates = store_config.broker_role is BrokerRole.SYNC_MASTER
        self._waits_for_more = self._syncs or self._replicates
        self._disk_seconds = store_config.sync_flush_timeout / 1000
        self._slave_seconds = store_config.slave_timeout / 1000

    # ---- the batch that is being put ----

    @property
    def takes_runs(self) -> bool:
        """True if sends of a run may be answered alike: no send waits for its topic to be saved."""
        return not self._topics.unsaved

    @property
    def waits_for_more(self) -> bool:
        """True if a message that is written is not answered yet: its disk or its replicas are awaited."""
        return self._waits_for_more or self._role.awaits_replicas

    def records(self) -> list[Record]:
        """The records of the pending batch with senders that get a response."""
        stored = [records for _, _, records in self.pending.waiting + self.pending.ack_on_write]
        return [record for records in stored if not isinstance(records, Batch) for record in records]

    def committed(self, connection: Connection) -> None:
        """The pending batch is written: answer its senders, or let them wait for the missing conditions."""
        senders = self.pending
        if self._waits_for_more or self._topics.unsaved or senders.ack_on_write or senders.send_backs:
            self.pending = AckBatch()
            self._answer(connection, senders)
        elif senders.waiting:  # nothing is missing, as for most: spare them another `AckBatch`
            acks, senders.waiting = senders.waiting, []
            connection.write(self._answers.stored(acks))
        connection.flush()  # the books that follow are ours

    def run_committed(self, connection: Connection, run: SendRun) -> None:
        """Same as `committed`, for a run; batches have runs only, or none."""
        if self._waits_for_more:
            self._park(connection, run)
        else:
            connection.answer(self._answers.of_run(run))

    def refused(self, connection: Connection, code: int, remark: str) -> None:
        """The pending batch could not be written: refuse all its requests."""
        senders, self.pending = self.pending, AckBatch()
        senders.refuse(connection, code, remark)

    def forget(self) -> None:
        """Drop the pending batch without answers: after a bug the written part is unknown."""
        self.pending = AckBatch()
        self.calls_refused(ResponseCode.SYSTEM_ERROR, "it is not known whether the message is written")

    def calls_committed(self) -> None:
        """The pending batch is written: report to plug-ins, or let their messages wait to be safe."""
        calls, self.calls = self.calls, []
        self._report(calls)

    def calls_refused(self, code: int, remark: str) -> None:
        """The pending batch is not written, as far as is known."""
        calls, self.calls = self.calls, []
        for call in calls:
            call.failed(for_code(code, remark))

    def _report(self, calls: Sequence[Call | OwnCall]) -> None:
        if unsaved := self._topics.unsaved:
            self._new_topic_calls += [call for call in calls if call.is_for(unsaved)]
            calls = [call for call in calls if not call.is_for(unsaved)]
        if calls and (self._waits_for_more or self._role.awaits_replicas):
            self._park(None, Calls(calls))
        else:
            for call in calls:
                call.done(self._store.store_host, None)

    def _answer(self, connection: Connection, senders: AckBatch) -> None:
        if self._topics.unsaved:
            senders = self._hold_for_topics(connection, senders)
        if self._role.awaits_replicas:
            self._park_all(connection, senders)
            return
        waiting, ack_on_write = senders.waiting, senders.ack_on_write
        if waiting and self._waits_for_more:
            self._park(connection, waiting)
        else:
            ack_on_write = waiting + ack_on_write if ack_on_write else waiting
        if ack_on_write:
            connection.write(self._answers.stored(ack_on_write))
        for request in senders.send_backs:
            connection.reply(request.reply())

    def _park_all(self, connection: Connection, senders: AckBatch) -> None:
        if acks := senders.waiting + senders.ack_on_write:
            self._park(connection, acks)
        if senders.send_backs:
            self._park(connection, PlainAcks(senders.send_backs))

    def answer(self, request: Command, connection: Connection) -> Command | None:
        """The response to a request whose effect is in the log; None if it comes later, as in a set with
        controllers, whose replicas must have the log up to that effect."""
        if not self._role.awaits_replicas:
            return request.reply()
        self._park(connection, PlainAcks([request]))
        return None

    # ---- topics that a send has made ----
    # Without the save a killed broker would keep acknowledged messages in topics that it does not know. A
    # save takes several syncs, so it is done beside the loop; sends to other topics do not wait.

    @property
    def waiting_for_topics(self) -> int:
        """Number of sends that wait until their topic is saved."""
        return sum(len(senders) for _, senders in self._new_topics) + len(self._new_topic_calls)

    def topics_saved(self) -> None:
        """Topics have been saved: go on with the sends that waited for this."""
        waited, self._new_topics = self._new_topics, []
        for connection, senders in waited:
            self._answer(connection, senders)
        calls, self._new_topic_calls = self._new_topic_calls, []
        self._report(calls)

    def topics_not_saved(self, error: StoreError) -> None:
        """Topics cannot be saved: answer the waiting sends with an error. Not with the code of a failed
        write, after which a client may repeat the send as if nothing were stored."""
        waited, self._new_topics = self._new_topics, []
        for connection, senders in waited:
            senders.refuse(connection, *topic_not_saved(error))
        calls, self._new_topic_calls = self._new_topic_calls, []
        for call in calls:
            call.done(self._store.store_host, for_code(*topic_not_saved(error)))

    def _hold_for_topics(self, connection: Connection, senders: AckBatch) -> AckBatch:
        """Keep the requests with unsaved topics; return the rest."""
        held, free = AckBatch(), AckBatch()
        for ack in senders.waiting:
            (held if self._is_to_new_topic(ack) else free).waiting.append(ack)
        for ack in senders.ack_on_write:
            (held if self._is_to_new_topic(ack) else free).ack_on_write.append(ack)
        for request in senders.send_backs:
            (held if self._is_send_back_to_new_topic(request) else free).send_backs.append(request)
        if held:
            self._new_topics.append((connection, held))
        return free

    def _is_to_new_topic(self, ack: Ack) -> bool:
        """True if a topic of a send is not saved: the topic of the send, or the topic in which the message
        lies."""
        request, _, records = ack
        unsaved = self._topics.unsaved
        if not isinstance(records, Batch) and any(record.topic in unsaved for record in records):
            return True
        named = getattr(request.header, "topic", None) or request.ext.get("topic") or request.ext.get("b")
        return named is None or named in unsaved

    def _is_send_back_to_new_topic(self, request: Command) -> bool:
        group = request.read(ConsumerSendMsgBackRequestHeader).group
        return retry_topic(group) in self._topics.unsaved or dlq_topic(group) in self._topics.unsaved

    # ---- disk and slaves ----

    def synced(self, position: int) -> None:
        """The log is synced up to the physical offset `position`: answer the sends that waited for the
        disk."""
        self.disk.advance(position)
        self._role.moved()

    def step(self, now: float) -> float:
        """Answer the sends past their deadline; return the next deadline, infinite without waiting sends."""
        self.disk.expire(now)
        self.slaves.expire(now)
        return min(self.disk.deadline, self.slaves.deadline, self.rows.step(now))

    def _advance(self, offset: int) -> None:
        self.slaves.advance(offset)
        self.rows.advance()

    def stop(self) -> None:
        """Answer all waiting sends: no further sync follows, and slaves are cut off."""
        self.disk.expire(math.inf)
        self.slaves.expire(math.inf)
        self.rows.step(math.inf)

    @property
    def waiting(self) -> int:
        """Number of sends that wait for anything."""
        waiting = self.disk.acks + self.slaves.acks
        return waiting + self.waiting_for_topics if self._new_topics or self._new_topic_calls else waiting

    def parked(self) -> Iterator[tuple[Connection, int]]:
        """The connections of waiting sends, with the number of each row."""
        for connection, senders in self._new_topics:
            yield connection, len(senders)
        for line in (self.disk, self.slaves):
            yield from line.rows()

    def _park(self, connection: Connection | None, acks: Acks) -> None:
        # The log's end: right after a commit that of this chunk. Who waited for a topic waits for more than
        # its own records, because positions in a line must not fall; the next sync covers all of them anyway.
        position = self._store.max_physical_offset
        if self._syncs:
            self.disk.park(connection, position, acks, self._disk_seconds)
            self._on_sync_needed()
        else:
            self._await_slave(connection, position, acks)

    def _on_disk(self, parked: Parked, in_time: bool) -> None:
        if not in_time:  # a slave is not asked then: both were promised
            self._unsure(parked.connection, parked.acks, ResponseCode.FLUSH_DISK_TIMEOUT)
        elif self._replicates:
            self._await_slave(parked.connection, parked.position, parked.acks)
        else:
            self._safe(parked.connection, parked.acks)

    def _await_slave(self, connection: Connection | None, position: int, acks: Acks) -> None:
        """Answer now when a slave has the log, or when no slave can be waited for; else park."""
        if self.replicas.offset >= position:
            self._safe(connection, acks)
        elif not self.replicas.are_near(position):
            self._unsure(connection, acks, ResponseCode.SLAVE_NOT_AVAILABLE)
        else:
            self.slaves.park(connection, position, acks, self._slave_seconds)

    def _on_slave(self, parked: Parked, in_time: bool) -> None:
        if in_time:
            self._safe(parked.connection, parked.acks)
        else:
            self._unsure(parked.connection, parked.acks, ResponseCode.FLUSH_SLAVE_TIMEOUT)

    def _safe(self, connection: Connection | None, acks: Acks) -> None:
        if isinstance(acks, Calls):
            for call in acks.calls:
                call.done(self._store.store_host, None)
            return
        assert connection is not None
        if isinstance(acks, PlainAcks):
            for request in acks.requests:
                connection.reply(request.reply())
        else:
            connection.write(self._answers.stored(acks))

    def _unsure(self, connection: Connection | None, acks: Acks, code: ResponseCode) -> None:
        """Answer stored sends of unknown safety: `code` has the reason."""
        self.unsure[code.name] += len(acks)
        if isinstance(acks, Calls):
            for call in acks.calls:
                call.done(self._store.store_host, for_code(code, "it is written"))
            return
        assert connection is not None
        if isinstance(acks, PlainAcks):
            for request in acks.requests:
                connection.reply(request.reply(code, "it is written, but may not be at the replicas"))
            return
        for ack in acks if isinstance(acks, list) else _acks_of(acks):
            connection.reply(self._answers.unsure(ack, code))


@define(eq=False)
class Parked:
    """Acknowledgements of one chunk, to be written once the log is safe up to `position`."""

    connection: Connection | None
    position: int
    acks: Acks = field(repr=False)
    deadline: float
    since: float


class ParkedSends:
    """Stored sends without an answer: each waits until the log is safe up to its position, or for its
    deadline. They are in the order of their positions.

    `release(parked, in_time)` answers sends. `waited` is the histogram of the waits of sends that were
    released in time. `on_deadline(at)` is called with each new deadline. Times are seconds of `clock`.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        waited: Histogram,
        on_deadline: Callable[[float], None],
        release: Callable[[Parked, bool], None],
    ) -> None:
        self.acks = 0
        self._clock = clock
        self._waited = waited
        self._on_deadline = on_deadline
        self._release = release
        self._line: deque[Parked] = deque()

    def park(self, connection: Connection | None, position: int, acks: Acks, seconds: float) -> None:
        """Keep acknowledgements until the log is safe up to `position`, `seconds` at most. Positions never
        fall.
        """
        now = self._clock()
        assert not self._line or self._line[-1].position <= position
        self._line.append(Parked(connection, position, acks, now + seconds, now))
        self.acks += len(acks)
        self._on_deadline(now + seconds)

    def advance(self, position: int) -> None:
        """The log is safe up to `position`: release the sends up to there."""
        while self._line and self._line[0].position <= position:
            parked = self._take()
            self._waited.observe(self._clock() - parked.since, len(parked.acks))
            self._release(parked, True)

    def expire(self, now: float) -> None:
        """Release the sends past their deadline."""
        while self._line and self._line[0].deadline <= now:
            self._release(self._take(), False)

    def rows(self) -> Iterator[tuple[Connection, int]]:
        """The connections of waiting sends, with the number of each row."""
        for parked in self._line:
            if parked.connection is not None:
                yield parked.connection, len(parked.acks)

    @property
    def awaited(self) -> int:
        """The position that answers every send that waits; -1 when none does."""
        return self._line[-1].position if self._line else -1

    @property
    def deadline(self) -> float:
        """Deadline of the send that has waited longest; infinite when none waits."""
        return self._line[0].deadline if self._line else math.inf

    def _take(self) -> Parked:
        parked = self._line.popleft()
        self.acks -= len(parked.acks)
        return parked
