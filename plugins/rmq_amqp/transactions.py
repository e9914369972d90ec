"""Transactions: the coordinator of a connection, and its open transactions.

Messages that are sent in a transaction are half messages until the commit. The commit is one decision of the
broker, which delivers the half messages and acknowledges the received messages, or neither, also when the
broker is killed. A transaction ends with the coordinator's link that has begun it, by a rollback.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

from rmq.errors import ResponseError
from rmq.message import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_UNIQUE_KEY,
    Message,
)
from rmq.plugin import Appended, OpenTransaction, transaction_id
from rmq.protocol.codes import ResponseCode
from rmq_amqp import engine
from rmq_amqp.conditions import (
    DECODE_ERROR,
    EXPECTED,
    INTERNAL_ERROR,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT,
    TOO_LONG,
    TX_ROLLBACK,
    TX_UNKNOWN,
    Refused,
    of_error,
)
from rmq_amqp.links import Link
from rmq_amqp.sections import VALUE, parse
from rmq_amqp.values import Described, Malformed

if TYPE_CHECKING:
    from rmq_amqp.connection import Connection

log = logging.getLogger("rmq.amqp")

GROUP: Final = "amqp-transactions"
"""The producer group of all half messages of the door."""
UNSURE: Final = (
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
"""Answers to a commit that holds on this broker and may be lost with it."""
DECLARE: Final = (0x31, "amqp:declare:list")
DISCHARGE: Final = (0x32, "amqp:discharge:list")
CREDIT: Final = 100
CONTROL_BYTES: Final = 4_096
"""The longest message to the coordinator."""
ENDS_OF_A_TURN: Final = 500
"""Half messages of a rollback that are ended before others have their turn; some 25 ms."""
OPEN_MAX: Final = 1_000
"""Open transactions of a connection."""
WORK_MAX: Final = 100_000
"""Messages of a transaction."""
RECEIVED_MAX: Final = 10_000
"""Received messages of a transaction: their acknowledgements are decided in one turn; some 40 ms."""


@define(eq=False)
class Received:
    """A received message whose acknowledgement waits for the commit. `end` is called with the outcome: True
    is the commit. Without a group only `end` is called."""

    group: str
    topic: str
    handle: str
    end: Callable[[bool], None]


@define(eq=False)
class Transaction:
    """An open transaction."""

    name: bytes
    owner: Coordinator
    work: int = 0
    """Messages that were sent or received in the transaction, or refused."""
    kept: int = 0
    """Bytes of the messages in `local`."""
    is_committing: bool = False
    halves: list[tuple[str, str]] = field(factory=list)
    """The transaction ids and unique keys of the half messages."""
    offsets: list[int] = field(factory=list)
    """The offsets of the half messages in the queue of half messages."""
    received: deque[Received] = field(factory=deque)
    pending: int = 0
    """Half messages that are not stored yet."""
    local: deque[Callable[[], None]] = field(factory=deque)
    """The messages to temporary queues and topics, as functions that give them."""
    failure: str = ""
    then: Callable[[], None] | None = None
    """The discharge that waits for the half messages."""


class Transactions:
    """The open transactions of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._host, self._shared = connection.host, connection.shared
        self._open: dict[bytes, Transaction] = {}
        self._unfinished: dict[Transaction, None] = {}
        self._ending: dict[Transaction, None] = {}
        """Committed transactions that have messages left to give."""
        self._is_producing = False

    def find(self, fields: Any) -> Transaction:
        """The transaction of a transactional state, for one more message. Raises Refused."""
        first = fields[0] if isinstance(fields, (list, tuple)) and fields else None
        name = bytes(first) if isinstance(first, (bytes, memoryview)) else b""
        found = self._open.get(name)
        if found is None:
            raise Refused(TX_UNKNOWN, f"there is no open transaction {name.hex()!r:.80} on this connection")
        if found.work >= WORK_MAX:
            raise Refused(RESOURCE_LIMIT, f"a transaction has at most {WORK_MAX} messages; commit before")
        if reason := self._shared.work.full(self._host.holders):
            text = f"of the messages of open transactions {reason}; end transactions before"
            raise Refused(RESOURCE_LIMIT, text)
        self._shared.work.add(self._host.holders)
        found.work += 1
        return found

    def receive(self, transaction: Transaction, received: Received) -> None:
        """Let a received message end with a transaction. Raises Refused."""
        if len(transaction.received) >= RECEIVED_MAX:
            text = f"a transaction acknowledges at most {RECEIVED_MAX} messages; commit before"
            raise Refused(RESOURCE_LIMIT, text)
        transaction.received.append(received)

    def keep(self, transaction: Transaction, size: int, give: Callable[[], None]) -> None:
        """Keep a message of `size` bytes in memory until the commit, which calls `give`. Raises Refused
        without room."""
        if reason := self._shared.kept.full(self._host.holders, size):
            raise Refused(RESOURCE_LIMIT, f"of the bytes of temporary queues and topics {reason}")
        self._shared.kept.add(self._host.holders, size)
        transaction.kept += size
        transaction.local.append(give)

    def declare(self, owner: Coordinator) -> bytes:
        """Begin a transaction; returns its name. Raises Refused, AccessDenied, ResponseError."""
        if len(self._open) >= OPEN_MAX:
            raise Refused(RESOURCE_LIMIT, f"a connection has at most {OPEN_MAX} open transactions")
        if not self._is_producing:
            self._host.produce(GROUP, self._connection.client_id, self._check)
            self._is_producing = True
        name = uuid.uuid4().bytes
        transaction = self._open[name] = Transaction(name, owner)
        self._unfinished[transaction] = None
        return name

    def _check(self, orphan: OpenTransaction) -> None:
        """Roll back a half message that no open transaction has: the broker asks for its end."""
        properties = orphan.message.properties
        first = properties.get(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, "")
        if not first.isdecimal() or int(first) not in self._shared.halves:
            self._end_half(orphan.transaction_id, properties.get(PROPERTY_UNIQUE_KEY, ""), False)

    def half(self, message: Message) -> None:
        """Make a message a half message. Raises Refused for a delayed one."""
        if message.is_delayed:
            raise Refused(NOT_IMPLEMENTED, "a delivery delay is not possible in a transaction")
        message.properties[PROPERTY_TRANSACTION_PREPARED] = "true"
        message.properties[PROPERTY_PRODUCER_GROUP] = GROUP
        message.properties.setdefault(PROPERTY_UNIQUE_KEY, uuid.uuid4().hex)

    def stored(self, transaction: Transaction, message: Message, outcome: Appended | None, text: str) -> None:
        """Note a half message of a transaction that is stored, or failed."""
        transaction.pending -= 1
        if outcome is not None and outcome.message_id:
            key = message.properties[PROPERTY_UNIQUE_KEY]
            transaction.halves.append((transaction_id(outcome), key))
            transaction.offsets.append(outcome.queue_offset)
            self._shared.halves.add(outcome.queue_offset)
        transaction.failure = transaction.failure or text
        if transaction.then is not None and not transaction.pending:
            then, transaction.then = transaction.then, None
            then()

    # ---- the end ----

    def discharge(self, name: bytes, fails: bool, on_done: Callable[[str], None]) -> None:
        """End a transaction; `on_done` is called with the reason for a rollback against the peer's wish,
        empty without one. Raises Refused."""
        transaction = self._open.get(name)
        if transaction is None:
            raise Refused(TX_UNKNOWN, f"there is no open transaction {name.hex()!r:.80} on this connection")
        if transaction.then is not None:
            raise Refused(TX_UNKNOWN, "the transaction is being ended already")

        def end() -> None:
            self._open.pop(name, None)
            if fails or transaction.failure:
                self._roll_back(transaction)
                on_done("" if fails else transaction.failure)
            else:
                self._commit(transaction, on_done)

        if transaction.pending:
            transaction.then = end
        else:
            end()

    def _commit(self, transaction: Transaction, on_done: Callable[[str], None]) -> None:
        """Commit half messages and acknowledge received messages, as a decision of the broker."""
        handles: dict[tuple[str, str], list[str]] = {}
        for received in transaction.received:
            if received.group:
                handles.setdefault((received.group, received.topic), []).append(received.handle)

        def done(error: ResponseError | None) -> None:
            if error is None:
                self._committed(transaction, on_done)
            elif error.code in UNSURE:
                self._finish(transaction)
                self._connection.refuse(INTERNAL_ERROR, f"the outcome of a commit is not known: {error}")
            else:
                self._roll_back(transaction)
                on_done(f"nothing is committed: {error}")

        self._connection.settlements.flush()
        transaction.is_committing = True
        try:
            acknowledged = [(*key, texts) for key, texts in handles.items()]
            self._host.commit_transactions(GROUP, transaction.halves, acknowledged, done)
        except EXPECTED as error:
            self._roll_back(transaction)
            on_done(f"nothing is committed: {of_error(error)[1]}")

    def _committed(self, transaction: Transaction, on_done: Callable[[str], None]) -> None:
        """Give the messages to temporary queues and topics and report the commit, some in each turn."""
        self._finish(transaction)
        self._ending[transaction] = None
        self._end_some(transaction, on_done)

    def _end_some(self, transaction: Transaction, on_done: Callable[[str], None]) -> None:
        left = ENDS_OF_A_TURN
        while left and (transaction.local or transaction.received):
            left -= 1
            if transaction.local:
                transaction.local.popleft()()
            else:
                transaction.received.popleft().end(True)
            if not left:
                try:
                    self._host.defer(0.0, partial(self._end_some, transaction, on_done))
                    return
                except ResponseError:  # too many calls wait
                    left = WORK_MAX
        self._ending.pop(transaction, None)
        on_done("")

    def _finish(self, transaction: Transaction) -> None:
        """Give back the places of a transaction that has ended."""
        self._unfinished.pop(transaction, None)
        self._shared.halves.difference_update(transaction.offsets)
        self._shared.work.give(self._host.holders, transaction.work)
        self._shared.kept.give(self._host.holders, transaction.kept)

    def _roll_back(self, transaction: Transaction) -> None:
        self._finish(transaction)
        self._end_halves(deque(transaction.halves))
        handles: dict[tuple[str, str], list[str]] = {}
        for received in reversed(transaction.received):
            if received.group:
                handles.setdefault((received.group, received.topic), []).append(received.handle)
            received.end(False)
        for (group, topic), texts in handles.items():
            self._connection.settlements.nack(group, topic, texts, counts=True)

    def _end_halves(self, halves: deque[tuple[str, str]]) -> None:
        """Roll back half messages, some in each turn. The broker asks for the end of those that are left when
        the connection ends."""
        for _ in range(min(ENDS_OF_A_TURN, len(halves))):
            self._end_half(*halves.popleft(), False)
        if halves:
            try:
                self._host.defer(0.0, partial(self._end_halves, halves))
            except ResponseError as error:
                log.info("%d half messages are left to the broker's questions: %s", len(halves), error)

    def _end_half(self, name: str, key: str, commits: bool) -> None:
        try:
            self._host.end_transaction(GROUP, name, key, commits)
        except EXPECTED as error:
            log.warning("the half message %s is not ended: %s", name, error)

    def end(self, owner: Coordinator) -> None:
        """Roll back the open transactions of a coordinator's link that has ended. A transaction with half
        messages on their way to the store is rolled back behind them."""
        for transaction in [one for one in self._open.values() if one.owner is owner]:
            del self._open[transaction.name]
            if transaction.then is not None:
                transaction.failure = transaction.failure or "the coordinator has ended"
            elif transaction.pending:
                transaction.then = partial(self._roll_back, transaction)
            else:
                self._roll_back(transaction)

    def forget(self) -> None:
        """The connection has ended, and the broker reports no more outcomes to it. The broker gives back the
        received messages, and asks for the end of half messages that are stored later, or whose commit is not
        decided."""
        self._open.clear()
        for transaction in self._ending:
            while transaction.local:
                transaction.local.popleft()()
        self._ending.clear()
        for transaction in list(self._unfinished):
            transaction.received.clear()
            transaction.then = None
            if transaction.is_committing:
                self._finish(transaction)
            else:
                self._roll_back(transaction)


class Coordinator(Link):
    """The link on which a peer begins and ends transactions."""

    def on_open(self) -> None:
        """Give the peer credit."""
        self._inbox = bytearray()
        engine.give_credit(self.pointer, CREDIT)

    def on_delivery(self, delivery: Any) -> None:
        """Take a declare or discharge."""
        if engine.is_aborted(delivery):
            self._inbox.clear()
            engine.settle(delivery)
            engine.give_credit(self.pointer, 1)
            return
        if not engine.is_readable(delivery):
            return
        engine.receive(self.pointer, self._inbox)
        if len(self._inbox) > CONTROL_BYTES:
            self._inbox.clear()
            text = f"a message to the coordinator has more than {CONTROL_BYTES} bytes"
            self.connection.end_link(self, TOO_LONG, text)
            return
        if engine.is_partial(delivery):
            return
        data = bytes(self._inbox)
        self._inbox.clear()
        engine.advance(self.pointer)
        try:
            self._take(delivery, data)
        except EXPECTED as error:
            self._answer(delivery, engine.REJECTED, *of_error(error))
        engine.give_credit(self.pointer, 1)

    def _take(self, delivery: Any, data: bytes) -> None:
        try:
            sections = parse(data)
        except Malformed as error:
            raise Refused(DECODE_ERROR, f"a message to the coordinator is broken: {error}") from None
        body = sections.body if sections.kind == VALUE else None
        if not isinstance(body, Described) or not isinstance(body.value, list):
            raise Refused(DECODE_ERROR, "the message to the coordinator is neither declare nor discharge")
        transactions, fields = self.connection.transactions, body.value
        if body.descriptor in DECLARE:
            if fields and fields[0] is not None:
                raise Refused(NOT_IMPLEMENTED, "distributed transactions are not possible")
            self._answer(delivery, engine.DECLARED, fields=[transactions.declare(self)])
        elif body.descriptor in DISCHARGE and fields and isinstance(fields[0], bytes):
            fails = len(fields) > 1 and fields[1] is True
            transactions.discharge(fields[0], fails, partial(self._discharged, delivery))
        else:
            raise Refused(DECODE_ERROR, "the message to the coordinator is neither declare nor discharge")

    def _discharged(self, delivery: Any, failure: str) -> None:
        if failure:
            self._answer(delivery, engine.REJECTED, TX_ROLLBACK, failure)
        else:
            self._answer(delivery, engine.ACCEPTED)

    def _answer(
        self, delivery: Any, state: int, condition: str = "", text: str = "", fields: Any = None
    ) -> None:
        if not self.is_ended:
            engine.update(delivery, state, condition, text, fields)
            self.connection.wake()

    def on_end(self, *, is_closed: bool) -> None:
        """Same as `Link.on_end`."""
        self.connection.transactions.end(self)
