"""Transactions: half messages, their end, and the check-back of those whose producer stays silent.

A half message lies in RMQ_SYS_TRANS_HALF_TOPIC; its end is an op message in RMQ_SYS_TRANS_OP_HALF_TOPIC whose
body is the half message's queue offset. A commit also writes the message to its real topic. Both queues are
read in order: the consumer offsets of group CID_RMQ_SYS_TRANS tell up to where all half messages are settled.
A check pass writes each overdue half message anew at the end of its queue, with one more check counted, and
asks a producer of the group; after `transactionCheckMax` checks it goes to TRANS_CHECK_MAX_TIME_TOPIC. All of
that is RocketMQ 4.9's, so that either broker goes on with the other's store.

Beyond it: an end that comes twice is ignored, and one that comes late, for a half message that was written
anew meanwhile, settles the new one too.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs

from rmq.errors import CorruptRecord, ResponseError, StoreError, for_code
from rmq.message import (
    PROPERTY_CHECK_IMMUNITY_TIME,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT_STORE,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    StoredMessage,
    offset_message_id,
    parse_offset_message_id,
    tags_code,
)
from rmq.protocol.codes import SYS_COMMIT, SYS_ROLLBACK, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from rmq.protocol.record import (
    Record,
    decode_record,
    encode_properties,
    encode_record,
    record_of,
)
from rmq.store.config import BrokerRole

if TYPE_CHECKING:
    from rmq.broker.config import BrokerConfig
    from rmq.broker.offsets import Offsets
    from rmq.remoting.connection import Connection
    from rmq.store.store import Store

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
OP_DONE: Final = "d"
"""Tag of an op message: its half message needs nothing any more."""

STEP_MESSAGES: Final = 500
"""Half messages that one step looks at; the loop of the broker breathes between two steps."""

DRAIN_AT: Final = 10_000
"""Ended half messages remembered before the settled part of the queue is passed without waiting."""

log = logging.getLogger("rmq.broker")

Handler = Callable[[Command, "Connection", int], Command | None]


class Transactions:
    """The half messages of `store`.

    `ask(group, topic, request)` sends a check-back about a message for `topic` to a live producer of the
    group that may send to it, and says whether there was one.
    `commit()` commits what was put and tells who waits for it; it raises StoreError.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        offsets: Offsets,
        *,
        host: bytes,
        ask: Callable[[str, str, Command], bool],
        commit: Callable[[], None],
    ) -> None:
        self.config = config
        self._store = store
        self._offsets = offsets
        self._host = host
        self._ask = ask
        self._commit = commit
        self._next = 0  # queue offset of the first half message that is not settled
        self._ended: set[int] = set()  # queue offsets at or above it that have their op message
        self._ops: deque[tuple[int, int]] = deque()  # (op's queue offset, half's queue offset), oldest first
        self._renewed: dict[int, int] = {}  # a half message written anew: old queue offset -> new one
        self._pass_at = 0
        self._pass_end: int | None = None  # where the running pass ends; None between two passes

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            RequestCode.END_TRANSACTION: self._on_end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self._on_resume,
        }

    @property
    def open_count(self) -> int:
        """Half messages that wait for their end."""
        return self._store.max_offset(TRANS_HALF_TOPIC, 0) - self._next - len(self._ended)

    def load(self, now_ms: int) -> None:
        """Find out which half messages of the store are not settled.

        Call it once the offsets are loaded, and again when a commit has failed: what is remembered of the
        batch that was not written is forgotten.
        """
        self._ended.clear()
        self._ops.clear()
        self._renewed.clear()
        self._pass_end = None
        self._next = self._start_of(TRANS_HALF_TOPIC)
        op = self._start_of(TRANS_OP_HALF_TOPIC)
        for op_offset in range(op, self._store.max_offset(TRANS_OP_HALF_TOPIC, 0)):
            message = self._message(TRANS_OP_HALF_TOPIC, op_offset)
            if message is not None and message.tags == OP_DONE and message.body.isdigit():
                self._end(op_offset, int(message.body))
        self._pass_at = now_ms + self.config.transaction_check_interval

    def _start_of(self, topic: str) -> int:
        low = self._store.min_offset(topic, 0)
        return max(low, self._offsets.get(TRANSACTION_GROUP, topic, 0))

    # ---- half messages ----

    def prepare(self, record: Record, properties: dict[str, str]) -> None:
        """Turn a record that a transactional producer sent into the half message that is stored for it."""
        properties[PROPERTY_REAL_TOPIC] = record.topic
        properties[PROPERTY_REAL_QUEUE_ID] = str(record.queue_id)
        record.properties = encode_properties(properties)
        record.topic, record.queue_id = TRANS_HALF_TOPIC, 0
        record.sys_flag &= ~SYS_ROLLBACK

    def _on_end(self, request: Command, connection: Connection, now_ms: int) -> Command | None:
        if self._store.config.broker_role is BrokerRole.SLAVE:  # answered as RocketMQ does
            log.warning("%s ends a transaction on a slave", connection.peer_address)
            raise for_code(
                ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave: end transactions at its master"
            )
        header = request.read(EndTransactionRequestHeader)
        decision = header.commit_or_rollback
        if decision in (SYS_COMMIT, SYS_ROLLBACK):
            self._settle(header, now_ms)
        else:
            log.info("producer %s leaves %s undecided", connection.peer_address, header.msg_id)
        if request.is_oneway:
            return None
        if self._store.pending:
            self._commit()
        return request.reply()

    def _settle(self, header: EndTransactionRequestHeader, now_ms: int) -> None:
        offset = header.tran_state_table_offset
        if (offset < self._next and offset not in self._renewed) or offset in self._ended:
            log.info("the transaction of %s has ended already", header.msg_id)
            return
        half = self._checked_half(header)
        if header.commit_or_rollback == SYS_COMMIT:
            self._store.put(_committed(half))
        while True:
            self._put_op(offset, now_ms)
            newer = self._renewed.pop(offset, None)
            if newer is None or newer in self._ended:
                return
            offset = newer

    def _checked_half(self, header: EndTransactionRequestHeader) -> StoredMessage:
        data = self._store.read(header.commit_log_offset)
        try:
            half = None if data is None else decode_record(data, decompressed=False)
        except CorruptRecord:
            half = None
        if half is None or half.topic != TRANS_HALF_TOPIC:
            raise for_code(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        if half.properties.get(PROPERTY_PRODUCER_GROUP) != header.producer_group:
            raise for_code(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != header.tran_state_table_offset:
            raise for_code(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        return half

    def _put_op(self, half_offset: int, now_ms: int) -> None:
        properties = {PROPERTY_WAIT_STORE: "true", PROPERTY_TAGS: OP_DONE}
        record = Record(
            TRANS_OP_HALF_TOPIC,
            0,
            str(half_offset).encode(),
            encode_properties(properties),
            born_timestamp=now_ms,
            born_host=self._host,
            tags_code=tags_code(OP_DONE),
        )
        self._store.put(record)
        self._end(record.queue_offset, half_offset)
        if len(self._ended) >= DRAIN_AT:
            self._pass_settled()

    def _end(self, op_offset: int, half_offset: int) -> None:
        self._ops.append((op_offset, half_offset))
        if half_offset >= self._next:
            self._ended.add(half_offset)

    # ---- check-back ----

    def step(self, now_ms: int) -> int:
        """Go on with the check pass that is due; returns the time (ms) of the next step.

        Raises StoreError when nothing can be written; the half messages stay and are checked later.
        """
        if self._pass_end is None:
            if now_ms < self._pass_at:
                self._pass_settled()
                return self._pass_at
            self._pass_end = self._store.max_offset(TRANS_HALF_TOPIC, 0)
        try:
            if self._check_some(now_ms, self._pass_end):
                return now_ms
        except StoreError:
            self.load(now_ms)
            raise
        self._pass_end = None
        self._pass_at = now_ms + self.config.transaction_check_interval
        return self._pass_at

    def _check_some(self, now_ms: int, end: int) -> bool:
        """Look at some half messages below `end`; says whether there are more for this pass."""
        offset, asks = self._next, list[tuple[StoredMessage, Record]]()
        stop = min(end, offset + STEP_MESSAGES)
        while offset < stop:
            if offset not in self._ended:
                half = self._message(TRANS_HALF_TOPIC, offset)
                if half is not None and not self._check(half, offset, now_ms, asks):
                    break
            offset += 1
        more = offset == stop < end
        if self._store.pending:
            self._commit()
        self._pass_settled(offset)
        for half, record in asks:
            self._ask_producer(half, record)
        return more

    def _check(
        self, half: StoredMessage, offset: int, now_ms: int, asks: list[tuple[StoredMessage, Record]]
    ) -> bool:
        """Do what an unsettled half message needs; False when it is too young, as are all behind it."""
        age = now_ms - half.born_timestamp
        times = _number(half.properties.get(PROPERTY_TRANSACTION_CHECK_TIMES), 0)
        if (
            times >= self.config.transaction_check_max
            or age > self._store.config.file_reserved_time * 3_600_000
        ):
            self._discard(half)
            return True
        immunity = _number(half.properties.get(PROPERTY_CHECK_IMMUNITY_TIME), -1)
        if immunity >= 0 and age < immunity * 1000:
            self._postpone(half, offset)
            return True
        if 0 <= age < self.config.transaction_time_out and immunity < 0:
            return False
        properties = half.properties | {PROPERTY_TRANSACTION_CHECK_TIMES: str(times + 1)}
        asks.append((half, self._renew(half, offset, properties)))
        return True

    def _renew(self, half: StoredMessage, offset: int, properties: dict[str, str]) -> Record:
        record = record_of(half, TRANS_HALF_TOPIC, 0, properties)
        self._store.put(record)
        self._renewed[offset] = record.queue_offset
        return record

    def _postpone(self, half: StoredMessage, offset: int) -> None:
        """Write a half message anew that asked not to be checked yet, unless its first copy has ended."""
        first = _number(half.properties.get(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET), offset)
        if first not in self._ended:
            name = PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET
            self._renew(half, offset, half.properties | {name: str(first)})

    def _discard(self, half: StoredMessage) -> None:
        log.warning(
            "half message %s of group %s got no decision and goes to %s",
            half.message_id,
            half.properties.get(PROPERTY_PRODUCER_GROUP),
            TRANS_CHECK_MAX_TIME_TOPIC,
        )
        self._store.put(record_of(half, TRANS_CHECK_MAX_TIME_TOPIC, 0, half.properties))

    def _ask_producer(self, half: StoredMessage, record: Record) -> None:
        group = half.properties.get(PROPERTY_PRODUCER_GROUP, "")
        unique = half.properties.get(PROPERTY_UNIQUE_KEY)
        header = CheckTransactionStateRequestHeader(
            record.queue_offset,
            record.physical_offset,
            unique,
            unique,
            offset_message_id(self._host, record.physical_offset),
        )
        topic = half.properties.get(PROPERTY_REAL_TOPIC, "")
        queue_id = _number(half.properties.get(PROPERTY_REAL_QUEUE_ID), 0)
        shown = attrs.evolve(record, topic=topic, queue_id=queue_id)
        request = Command.request(
            RequestCode.CHECK_TRANSACTION_STATE, header, encode_record(shown, self._host), oneway=True
        )
        if not self._ask(group, topic, request):
            log.warning("no producer of group %s is connected to decide on %s", group, half.message_id)

    def _pass_settled(self, up_to: int | None = None) -> None:
        """Move the settled part of the queues on: to `up_to`, and over all that has ended behind it."""
        offset = self._next if up_to is None else up_to
        ended = self._ended
        for passed in range(self._next, offset):
            ended.discard(passed)
        while offset in ended:
            ended.discard(offset)
            offset += 1
        if offset != self._next:
            self._next = offset
            self._offsets.commit(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0, offset)
        ops = self._ops
        op_offset = -1
        while ops and ops[0][1] < offset:
            op_offset = ops.popleft()[0] + 1
        if op_offset >= 0:
            self._offsets.commit(TRANSACTION_GROUP, TRANS_OP_HALF_TOPIC, 0, op_offset)

    def _message(self, topic: str, queue_offset: int) -> StoredMessage | None:
        unit = self._store.unit(topic, 0, queue_offset)
        data = None if unit is None else self._store.read(unit[0])
        try:
            return None if data is None else decode_record(data, decompressed=False)
        except CorruptRecord as error:
            log.error("%s message %d cannot be read: %s", topic, queue_offset, error)
            return None

    # ---- discarded half messages ----

    def _on_resume(self, request: Command, connection: Connection, now_ms: int) -> Command | None:
        """Put a discarded half message back, with its checks counted from 0."""
        message_id = request.read(ResumeCheckHalfMessageRequestHeader).msg_id or ""
        half = self._discarded(message_id)
        properties = half.properties | {PROPERTY_TRANSACTION_CHECK_TIMES: "0"}
        try:
            self._store.put(record_of(half, TRANS_HALF_TOPIC, 0, properties))
            self._commit()
        except StoreError as error:
            raise for_code(ResponseCode.SYSTEM_ERROR, f"{message_id} is not put back: {error}") from None
        log.info("%s puts half message %s back", connection.peer_address, message_id)
        return request.reply()

    def _discarded(self, message_id: str) -> StoredMessage:
        try:
            _, physical_offset = parse_offset_message_id(message_id)
            data = self._store.read(physical_offset)
            message = None if data is None else decode_record(data, decompressed=False)
        except Exception as error:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"no message {message_id!r} can be read: {error}"
            ) from None
        if message is None or message.topic not in (TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC):
            raise for_code(ResponseCode.SYSTEM_ERROR, f"{message_id} is not a discarded half message")
        return message


def _committed(half: StoredMessage) -> Record:
    properties = half.properties
    real_queue = _number(properties.get(PROPERTY_REAL_QUEUE_ID), 0)
    record = record_of(half, properties[PROPERTY_REAL_TOPIC], real_queue, properties)
    record.sys_flag = half.sys_flag & ~SYS_ROLLBACK | SYS_COMMIT
    record.prepared_transaction_offset = half.physical_offset
    return record


def _number(text: str | None, default: int) -> int:
    try:
        return default if text is None else int(text)
    except ValueError:
        return default
