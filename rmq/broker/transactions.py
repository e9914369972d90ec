"""Transactions: half messages, their end, and check-backs to producers that stay silent.

A half message lies in RMQ_SYS_TRANS_HALF_TOPIC; its end is an op message in RMQ_SYS_TRANS_OP_HALF_TOPIC whose
body is the half message's queue offset. A commit also writes the message to its real topic. Both queues are
read in order: the consumer offsets of group CID_RMQ_SYS_TRANS mark the position up to which all half messages
are settled. A check pass writes each overdue half message again at the end of its queue, with its number of
checks raised, and asks a producer of the group; after `transactionCheckMax` checks the message goes to
TRANS_CHECK_MAX_TIME_TOPIC. All of this is RocketMQ 4.9's, so that either broker continues with the other's
store.

This broker adds: a repeated end is ignored, and a late end, for a half message that was written again in the
meantime, settles the new copy too. Only the last `DONE_KEPT` op messages show that an end has come already;
an end without such a trace is obeyed, as RocketMQ obeys every end, so that a commit is at worst delivered
twice and never dropped. An end that names the unique key of another message than the message in its place is
refused: a power cut took the original. Each copy names the queue offset of the original, in RocketMQ's own
property for that (TRAN_PREPARED_QUEUE_OFFSET), and is as old as the original in the store: no producer's
clock makes a half message young, and no immunity lasts longer than the log's retention.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import attrs

from rmq.broker.error_responses import check_room
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
    TRANSACTION_GROUP,
    StoredMessage,
    offset_message_id,
    parse_offset_message_id,
    tags_code,
)
from rmq.plugin import account_of
from rmq.protocol.codes import SYS_COMMIT, SYS_ROLLBACK, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from rmq.protocol.properties import (
    PROPERTY_ACCOUNT,
    PROPERTY_DECISION,
    decode_properties,
    encode_properties,
)
from rmq.protocol.record import PROPERTIES_MAX, Record, decode_record, encode_record, record_of
from rmq.store.config import BrokerRole

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.tables.offsets import Offsets
    from rmq.plugin import Peer
    from rmq.remoting.connection import Connection
    from rmq.store.store import Store

OP_DONE: Final = "d"
"""Tag of an op message: the half message that it names has ended."""
_WORDS: Final = {SYS_COMMIT: "committed", SYS_ROLLBACK: "rolled back"}
_DECISIONS: Final = {word: decision for decision, word in _WORDS.items()}
_ID: Final = re.compile(r"(?:[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})")

STEP_MESSAGES: Final = 100
"""Half messages that one step reads; the event loop serves others between two steps."""
STEP_PASSED: Final = 5_000
"""Ended half messages that one step passes over."""
STEP_BYTES: Final = 1 << 20
"""So much one step writes anew, and one message more."""

DRAIN_AT: Final = 10_000
"""Ended half messages remembered before the settled part of the queue is passed without waiting."""
DONE_KEPT: Final = 20_000
"""So many of the last op messages are known, whatever they ended."""
LEFT_BEHIND: Final = 10_000
"""A half message that asked not to be checked yet stays where it is until so many have come after it; then it
is written anew, so that the queue's settled part moves on."""
RENEWAL_ROOM: Final = 128
"""Bytes of properties that a half message leaves for what a check adds to it."""

log = logging.getLogger("rmq.broker")

Handler = Callable[[Command, "Connection", int], Command | None]


class _Checked(Enum):
    """Outcome of a check of a half message."""

    DONE = auto()
    LEFT = auto()  # it stays open where it is, and those behind it are looked at
    YOUNG = auto()  # as are all behind it


class Transactions:
    """The half messages of `store`.

    `ask(group, account, topic, request)` sends a check-back about a message for `topic` to a live producer of
    the group that may act for the account and send to the topic, and returns whether such a producer exists.
    `may_act_for(peer, account)`: whether a peer may end the account's messages, `may_publish(peer, topic)`:
    whether a peer may end messages for the topic. `put(record)` stores a record of the broker's own,
    `commit()` commits these records and answers senders; both raise StoreError. `answer` gives the response
    to an end that is in the log, or has it sent later.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        offsets: Offsets,
        *,
        host: bytes,
        ask: Callable[[str, str, str, Command], bool],
        put: Callable[[Record], None],
        commit: Callable[[], None],
        answer: Callable[[Command, Connection], Command | None] = lambda request, connection: request.reply(),
        may_act_for: Callable[[Peer, str], bool] = lambda peer, account: True,
        may_publish: Callable[[Peer, str], bool] = lambda peer, topic: True,
    ) -> None:
        self._settings = settings
        self._store = store
        self._offsets = offsets
        self._host = host
        self._ask = ask
        self._put = put
        self._commit = commit
        self._answer = answer
        self._may_act_for = may_act_for
        self._may_publish = may_publish
        self._discarded = DiscardedHalves(store, put, commit)
        self._next = 0  # queue offset of the first half message that is not settled
        self._ended: dict[int, int] = {}  # queue offset at or above it -> queue offset of its op message
        self._ops: deque[tuple[int, int]] = deque()  # (op's queue offset, half's queue offset), oldest first
        # Half messages that the last op messages ended, and their decision; 0 if the op message has none.
        self._done: dict[int, int] = {}
        self._done_in_order: deque[int] = deque()  # the same, oldest first
        self._latest: dict[int, int] = {}  # an open one's first queue offset -> that of its newest copy
        self._replaced: set[int] = set()  # queue offsets at or above `_next` that have a newer copy
        self.decided: set[int] = set()  # queue offsets of those that only a decision ends; `decisions`' set
        self._is_surveyed = False  # whether the copies that the store had at its opening are known
        self._pass_at = 0
        self._pass_end: int | None = None  # where the running pass ends; None between two passes
        self._cursor = 0  # how far the running pass is
        self._left: int | None = None  # the first half message that it left behind

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            RequestCode.END_TRANSACTION: self._on_end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self._discarded.put_back,
        }

    @property
    def open_count(self) -> int:
        """Half messages that wait for their end."""
        known = len(self._ended) + len(self._replaced)
        return self._store.max_offset(TRANS_HALF_TOPIC, 0) - self._next - known

    def load(self, now_ms: int) -> None:
        """Find the half messages of the store that have not ended. Called once the offsets are loaded."""
        for table in (self._ended, self._ops, self._done, self._done_in_order, self._latest, self._replaced):
            table.clear()
        self.decided.clear()
        self._pass_end, self._is_surveyed = None, False
        self._next = self._start_of(TRANS_HALF_TOPIC)
        end, op = self._store.max_offset(TRANS_OP_HALF_TOPIC, 0), self._start_of(TRANS_OP_HALF_TOPIC)
        first = max(self._store.min_offset(TRANS_OP_HALF_TOPIC, 0), min(op, end - DONE_KEPT))
        for op_offset in range(first, end):
            message = self._message(TRANS_OP_HALF_TOPIC, op_offset)
            if message is not None and message.tags == OP_DONE and message.body.isdigit():
                decision = _DECISIONS.get(message.properties.get(PROPERTY_DECISION, ""), 0)
                self._end(op_offset, int(message.body), decision, is_passed=op_offset < op)
        self._pass_at = now_ms + self._settings.broker.transaction_check_interval

    def rolled_back(self) -> None:
        """Handle a failed commit: forget the batch that was not written."""
        end = self._store.max_offset(TRANS_OP_HALF_TOPIC, 0)
        while self._ops and self._ops[-1][0] >= end:
            half = self._ops.pop()[1]
            self._ended.pop(half, None)
            self._done.pop(half, None)

    def _start_of(self, topic: str) -> int:
        low = self._store.min_offset(topic, 0)
        return max(low, self._offsets.get(TRANSACTION_GROUP, topic, 0))

    # ---- half messages ----

    def prepare(self, record: Record, properties: dict[str, str]) -> None:
        """Turn a record that a transactional producer sent into the half message that is stored for it."""
        properties[PROPERTY_REAL_TOPIC] = record.topic
        properties[PROPERTY_REAL_QUEUE_ID] = str(record.queue_id)
        for name in (PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, PROPERTY_TRANSACTION_CHECK_TIMES):
            properties.pop(name, None)  # a message that was one before, sent on
        record.properties = encode_properties(properties)
        check_room(record.properties, PROPERTIES_MAX - RENEWAL_ROOM, "half message")
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
            self._decide(header, connection, now_ms)
        else:
            log.info("producer %s does not decide on %s", connection.peer_address, header.msg_id)
        if request.is_oneway:
            return None
        if self._store.has_pending:
            self._commit()
        return self._answer(request, connection)

    def _decide(self, header: EndTransactionRequestHeader, connection: Connection, now_ms: int) -> None:
        """Apply an end. Raises ResponseError for the message of another account, or for a topic to which the
        account may not send, and for a message that has ended by the other decision."""
        offset, decision = header.tran_state_table_offset, header.commit_or_rollback
        ended = offset
        if not self._has_ended(offset):
            half = self._checked_half(header)
            self._check_account(half, connection)
            ended = first = _first_of(half)
            if not self._has_ended(first):
                if self._latest.get(first, offset) in self.decided:
                    remark = f"{header.msg_id} is being committed with the rest of its transaction"
                    raise for_code(ResponseCode.SYSTEM_ERROR, remark)
                if decision == SYS_COMMIT:
                    self._put(_committed(half))
                self._put_end(half, now_ms, decision)
                return
        before = self._done.get(ended, 0)
        if before and before != decision:
            remark = f"{header.msg_id} has been {_WORDS[before]} already and cannot be {_WORDS[decision]}"
            raise for_code(ResponseCode.SYSTEM_ERROR, remark)
        log.info("the transaction of %s has ended already", header.msg_id)

    def _put_end(self, half: StoredMessage, now_ms: int, decision: int) -> None:
        """Put the op messages of a half message and of its newest copy."""
        first = _first_of(half)
        newest = self._latest.pop(first, half.queue_offset)
        self._put_op(first, now_ms, decision)
        if newest != first and not self._has_ended(newest):
            self._put_op(newest, now_ms, decision)

    # ---- commits of several at once, by `decisions` ----

    def open_half(self, header: EndTransactionRequestHeader, connection: Peer) -> StoredMessage:
        """The open half message that a commit names, as its newest copy. Raises ResponseError when it has
        ended, and as an end of it would."""
        half = self._checked_half(header)
        self._check_account(half, connection)
        first = _first_of(half)
        newest = self._latest.get(first, half.queue_offset)
        if self._has_ended(first) or self._has_ended(newest) or newest in self.decided:
            raise for_code(ResponseCode.SYSTEM_ERROR, f"the half message {header.msg_id} has ended already")
        found = half if newest == half.queue_offset else self._message(TRANS_HALF_TOPIC, newest)
        if found is None:
            raise for_code(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        return found

    def undecided(self, queue_offset: int, physical_offset: int) -> StoredMessage | None:
        """The half message that a decision names, if it has not ended; None for any other."""
        if queue_offset < self._next or self._has_ended(queue_offset):
            return None
        half = self._message(TRANS_HALF_TOPIC, queue_offset)
        if half is None or half.physical_offset != physical_offset or self._has_ended(_first_of(half)):
            return None
        return half

    def commit(self, half: StoredMessage, now_ms: int, *, is_copied: bool = False) -> None:
        """Put a half message's message, if not `is_copied`, and its op message. Raises StoreError."""
        if not is_copied:
            self._put(_committed(half))
        self._put_end(half, now_ms, SYS_COMMIT)

    def _check_account(self, half: StoredMessage, connection: Peer) -> None:
        account = half.properties.get(PROPERTY_ACCOUNT, "")
        if account and not self._may_act_for(connection, account):
            mine = account_of(connection)
            log.warning("account %s may not end %s of account %s", mine or "-", half.message_id, account)
            remark = (
                f"the half message {half.message_id} belongs to another account: only that account may end it"
            )
            raise for_code(ResponseCode.NO_PERMISSION, remark)
        topic = half.properties.get(PROPERTY_REAL_TOPIC, "")
        if not self._may_publish(connection, topic):
            remark = f"no permission to send to {topic}: {half.message_id} cannot be ended"
            raise for_code(ResponseCode.NO_PERMISSION, remark)

    def _has_ended(self, half_offset: int) -> bool:
        return half_offset in self._ended or half_offset in self._done

    def _checked_half(self, header: EndTransactionRequestHeader) -> StoredMessage:
        data = self._store.confirmed(header.commit_log_offset)
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
        if _names_another(header, half):
            # A power cut took the message that the producer means; this one got its place.
            log.warning("the end names %s, but %s is at its place", header.msg_id, half.message_id)
            raise for_code(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        return half

    def _put_op(self, half_offset: int, now_ms: int, decision: int = 0) -> None:
        properties = {PROPERTY_WAIT_STORE: "true", PROPERTY_TAGS: OP_DONE}
        if decision:
            properties[PROPERTY_DECISION] = _WORDS[decision]
        record = Record(
            TRANS_OP_HALF_TOPIC,
            0,
            str(half_offset).encode(),
            encode_properties(properties),
            born_timestamp=now_ms,
            born_host=self._host,
            tags_code=tags_code(OP_DONE),
        )
        self._put(record)
        self._end(record.queue_offset, half_offset, decision)
        if len(self._ended) >= DRAIN_AT:
            self._skip_decided(self._next)

    def _end(self, op_offset: int, half_offset: int, decision: int, *, is_passed: bool = False) -> None:
        self._done[half_offset] = decision or self._done.get(half_offset, 0)
        self._done_in_order.append(half_offset)
        if len(self._done_in_order) > DONE_KEPT:
            self._done.pop(self._done_in_order.popleft(), None)
        if not is_passed:
            self._ops.append((op_offset, half_offset))
            if half_offset >= self._next:
                self._ended[half_offset] = op_offset

    # ---- check-back ----

    def step(self, now_ms: int) -> int:
        """Go on with the check pass that is due; returns the time (ms) of the next step.

        Raises StoreError when nothing can be written; the half messages stay and are checked later.
        """
        if self._pass_end is None:
            # The clock may have been set back: no pass is further away than the interval.
            self._pass_at = min(self._pass_at, now_ms + self._settings.broker.transaction_check_interval)
            if now_ms < self._pass_at:
                self._skip_decided(self._next)
                return self._pass_at
            self._pass_end = self._store.max_offset(TRANS_HALF_TOPIC, 0)
            self._cursor, self._left = self._next, None
        if not self._is_surveyed:
            self._survey(self._pass_end)
            return now_ms
        try:
            if self._check_some(now_ms, self._pass_end):
                return now_ms
        except StoreError:
            self.rolled_back()
            raise
        self._pass_end = None
        if len(self._latest) > self.open_count:  # some were cut off with the log's old files
            self._latest = {first: last for first, last in self._latest.items() if last >= self._next}
        self._pass_at = now_ms + self._settings.broker.transaction_check_interval
        return self._pass_at

    def _survey(self, end: int) -> None:
        """Before the first check: find out which open half messages have newer copies."""
        stop = min(end, self._cursor + STEP_MESSAGES)
        for offset in range(self._cursor, stop):
            half = None if offset in self._ended else self._message(TRANS_HALF_TOPIC, offset)
            if half is not None and _first_of(half) != offset:
                self._replace(_first_of(half), offset)
        self._cursor = stop
        if stop == end:
            self._cursor, self._is_surveyed = self._next, True

    def _replace(self, first: int, newest: int) -> None:
        """A half message has a newer copy."""
        before = self._latest.get(first, first)
        if before >= self._next:
            self._replaced.add(before)
        self._latest[first] = newest

    def _check_some(self, now_ms: int, end: int) -> bool:
        """Check some half messages below `end`; return whether this pass has more."""
        offset, left, check = self._cursor, self._left, _Check(now_ms, end)
        stop = min(end, offset + STEP_PASSED)
        while offset < stop and check.read < STEP_MESSAGES and check.size < STEP_BYTES:
            if offset not in self._ended and offset not in self._replaced:
                result = self._check_at(offset, check)
                if result is _Checked.YOUNG:
                    stop = end = offset
                    break
                if result is _Checked.LEFT and left is None:
                    left = offset
            offset += 1
        # The new copies and op messages are in the log before anything here is remembered of them, and before
        # a producer is asked: after a failed write the same half messages are checked again.
        if self._store.has_pending:
            self._commit()
        assert self._next <= offset <= end, (self._next, offset, end)
        self._cursor, self._left = offset, left
        for half, record in check.renewed:
            self._replace(_first_of(half), record.queue_offset)
        self._skip_decided(offset if left is None else left)
        for half, record in check.asks:
            self._ask_producer(half, record)
        return offset < end

    def _check_at(self, offset: int, check: _Check) -> _Checked:
        check.read += 1
        if offset in self.decided:
            return _Checked.LEFT
        half = self._message(TRANS_HALF_TOPIC, offset)
        if half is None:
            return _Checked.DONE
        if self._has_ended(_first_of(half)):  # by an end that came when it was not known as its newest copy
            self._put_op(offset, check.now_ms, self._done.get(_first_of(half), 0))
            return _Checked.DONE
        return self._check(half, offset, check)

    def _check(self, half: StoredMessage, offset: int, check: _Check) -> _Checked:
        """Do the due work of an undecided half message."""
        keep_ms = self._store.config.file_reserved_time * 3_600_000
        age = _age(self._store, half, check.now_ms, keep_ms)
        times = _number(half.properties.get(PROPERTY_TRANSACTION_CHECK_TIMES), 0)
        # A wall clock that was set forward makes none too old: its producer is asked first.
        is_too_old = age > keep_ms and not self._store.retention.held(check.now_ms)
        if times >= self._settings.broker.transaction_check_max or is_too_old:
            return self._discard(half, check)
        immunity = _number(half.properties.get(PROPERTY_CHECK_IMMUNITY_TIME), -1)
        properties = half.properties | {PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET: str(_first_of(half))}
        if immunity >= 0 and age < min(immunity * 1000, keep_ms):
            is_old = check.now_ms - half.store_timestamp > keep_ms // 2
            if check.end - offset < LEFT_BEHIND and not is_old:
                return _Checked.LEFT
            self._renew(half, properties, check)
            return _Checked.DONE
        if 0 <= age < self._settings.broker.transaction_time_out and immunity < 0:
            return _Checked.YOUNG
        record = self._renew(half, properties | {PROPERTY_TRANSACTION_CHECK_TIMES: str(times + 1)}, check)
        if record is not None:
            check.asks.append((half, record))
        return _Checked.DONE

    def _renew(self, half: StoredMessage, properties: Mapping[str, str], check: _Check) -> Record | None:
        """Write a half message again at the end of its queue. A message without room for more properties,
        from another broker's store, is discarded."""
        record = record_of(half, TRANS_HALF_TOPIC, 0, properties)
        if len(record.properties.encode()) > PROPERTIES_MAX:
            log.error("half message %s has no room in its properties for a check", half.message_id)
            self._discard(half, check)
            return None
        self._put(record)
        check.size += record.size
        check.renewed.append((half, record))
        return record

    def _discard(self, half: StoredMessage, check: _Check) -> _Checked:
        log.warning(
            "half message %s of group %s got no decision and goes to %s",
            half.message_id,
            half.properties.get(PROPERTY_PRODUCER_GROUP),
            TRANS_CHECK_MAX_TIME_TOPIC,
        )
        record = record_of(half, TRANS_CHECK_MAX_TIME_TOPIC, 0, half.properties)
        self._put(record)
        check.size += record.size
        self._latest.pop(_first_of(half), None)
        return _Checked.DONE

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
        shown = attrs.evolve(
            record, topic=topic, queue_id=queue_id, properties=encode_properties(_shown(record))
        )
        request = Command.request(
            RequestCode.CHECK_TRANSACTION_STATE, header, encode_record(shown, self._host), oneway=True
        )
        account = half.properties.get(PROPERTY_ACCOUNT, "")
        if not self._ask(group, account, topic, request):
            log.warning(
                "no producer of group %s%s that may send to %s is connected to decide on %s",
                group,
                f" and account {account}" if account else "",
                topic,
                half.message_id,
            )

    def _skip_decided(self, up_to: int) -> None:
        """Move the decided part of the queues on: to `up_to`, and over every ended message behind it. An
        uncommitted end may be rolled back and is not passed."""
        # Messages that a pass left behind may have ended, and been passed, since that pass.
        offset, ended, replaced = max(up_to, self._next), self._ended, self._replaced
        written = self._store.max_offset(TRANS_OP_HALF_TOPIC, 0)
        for passed in range(self._next, offset):
            ended.pop(passed, None)
            replaced.discard(passed)
        stop = offset + DRAIN_AT  # the rest the next time: one call must not take long
        while offset < stop and (ended.get(offset, written) < written or offset in replaced):
            ended.pop(offset, None)
            replaced.discard(offset)
            offset += 1
        if offset != self._next:
            self._next = offset
            self._offsets.commit(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0, offset)
        # An op message is needed until its half message is passed: the next start reads those from the offset
        # that is committed here, to learn what has ended.
        ops = self._ops
        op_offset = -1
        while ops and ops[0][1] < offset and ops[0][0] < written:
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


class DiscardedHalves:
    """The half messages that got no decision, and lie in TRANS_CHECK_MAX_TIME_TOPIC."""

    def __init__(self, store: Store, put: Callable[[Record], None], commit: Callable[[], None]) -> None:
        self._store = store
        self._put = put
        self._commit = commit

    def put_back(self, request: Command, connection: Connection, now_ms: int) -> Command | None:
        """Put a discarded half message back, with its checks counted from 0."""
        message_id = request.read(ResumeCheckHalfMessageRequestHeader).msg_id or ""
        half = self._find(message_id)
        properties = half.properties | {PROPERTY_TRANSACTION_CHECK_TIMES: "0"}
        properties.pop(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, None)  # its age begins again
        try:
            self._put(record_of(half, TRANS_HALF_TOPIC, 0, properties))
            self._commit()
        except StoreError as error:
            raise for_code(ResponseCode.SYSTEM_ERROR, f"{message_id} is not put back: {error}") from None
        log.info("%s puts half message %s back", connection.peer_address, message_id)
        return request.reply()

    def _find(self, message_id: str) -> StoredMessage:
        try:
            _, physical_offset = parse_offset_message_id(message_id)
            data = self._store.confirmed(physical_offset)
            message = None if data is None else decode_record(data, decompressed=False)
        except Exception as error:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"no message {message_id!r} can be read: {error}"
            ) from None
        if message is None or message.topic not in (TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC):
            raise for_code(ResponseCode.SYSTEM_ERROR, f"{message_id} is not a discarded half message")
        return message


class _Check:
    """Result of a step of a check pass."""

    def __init__(self, now_ms: int, end: int) -> None:
        self.now_ms = now_ms
        self.end = end
        self.read = 0
        self.size = 0  # bytes written
        self.renewed: list[tuple[StoredMessage, Record]] = []
        self.asks: list[tuple[StoredMessage, Record]] = []


def _first_of(half: StoredMessage) -> int:
    """The queue offset of a half message's first copy."""
    first = _number(half.properties.get(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET), half.queue_offset)
    return first if 0 <= first < half.queue_offset else half.queue_offset


def _age(store: Store, half: StoredMessage, now_ms: int, keep_ms: int) -> int:
    """The time that the original has been in the store; the retention of files when the original is gone."""
    first = _first_of(half)
    if first == half.queue_offset:
        return now_ms - half.store_timestamp
    stored_ms = store.message_time(TRANS_HALF_TOPIC, 0, first)
    return keep_ms if stored_ms < 0 else now_ms - stored_ms


def _shown(record: Record) -> dict[str, str]:
    """The properties of a copy as its producer is shown it."""
    properties = decode_properties(record.properties)
    properties.pop(PROPERTY_ACCOUNT, None)
    return properties


def _committed(half: StoredMessage) -> Record:
    properties = {name: text for name, text in half.properties.items() if name != PROPERTY_ACCOUNT}
    real_queue = _number(properties.get(PROPERTY_REAL_QUEUE_ID), 0)
    record = record_of(half, properties[PROPERTY_REAL_TOPIC], real_queue, properties)
    record.sys_flag = half.sys_flag & ~SYS_ROLLBACK | SYS_COMMIT
    record.prepared_transaction_offset = half.physical_offset
    return record


def _names_another(header: EndTransactionRequestHeader, half: StoredMessage) -> bool:
    """True if an end's message id is the unique key of another message than `half`: RocketMQ's clients send
    that key. Ids of other forms, and offset ids (of the place that the end names), say nothing.
    """
    named, own = header.msg_id, half.properties.get(PROPERTY_UNIQUE_KEY, "")
    if not named or named.upper() == own.upper() or not (_has_id_form(named) and _has_id_form(own)):
        return False
    return parse_offset_message_id(named)[1] != header.commit_log_offset


def _has_id_form(text: str) -> bool:
    """32 or 56 hex digits, as RocketMQ's unique keys and offset message ids have."""
    return _ID.fullmatch(text) is not None


def _number(text: str | None, default: int) -> int:
    try:
        return default if text is None else int(text)
    except ValueError:
        return default
