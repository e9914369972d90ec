"""Transactions: a message that consumers see only when its producer's own work has succeeded.

The message is stored at once, out of sight ("half"); its end, commit or rollback, follows as a one-way
request. When no end comes, the broker asks a producer of the group for it: the check-back.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING, Final

import anyio

from rmq.client.produce.producer import Producer
from rmq.client.session.results import SendResult
from rmq.client.session.session import Session
from rmq.errors import (
    ConnectFailed,
    InvalidMessage,
    LocalProtocolError,
    SendFailed,
    check_callable,
    for_code,
)
from rmq.message import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_PREPARED,
    Message,
    MessageQueue,
    StoredMessage,
    parse_offset_message_id,
)
from rmq.protocol.codes import SYS_COMMIT, SYS_PREPARED, SYS_ROLLBACK, RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from rmq.remoting.cancellation import as_failure
from rmq.remoting.loop import TaskGroupScope
from rmq.remoting.threads import as_async

if TYPE_CHECKING:
    pass
else:
    pass

log = logging.getLogger("rmq.client.transactional")

CHECKS_AT_ONCE: Final = 16
CHECKS_WAITING: Final = 2_000
"""Check-backs that may run; further ones are dropped: the broker asks again."""


class Decision(IntEnum):
    """The end of a transaction. UNKNOWN: not decided yet, ask again later."""

    UNKNOWN = 0
    COMMIT = SYS_COMMIT
    ROLLBACK = SYS_ROLLBACK


COMMIT: Final = Decision.COMMIT
ROLLBACK: Final = Decision.ROLLBACK
UNKNOWN: Final = Decision.UNKNOWN

CheckBack = Callable[[StoredMessage], Awaitable[Decision] | Decision]

_CODES: Final = {"FLUSH_DISK_TIMEOUT": 10, "SLAVE_NOT_AVAILABLE": 11, "FLUSH_SLAVE_TIMEOUT": 12}


class TransactionalProducer(Producer):
    """A producer whose messages can be part of a transaction; made by `Client.transactional_producer`.

    `check_back(message)` returns COMMIT, ROLLBACK or UNKNOWN for a half message whose end the broker does not
    know, perhaps of another process of the group. The function runs beside the block, at most 16 at a time;
    its errors are logged and count as UNKNOWN. An ordinary function runs in a worker thread.
    """

    def __init__(self, session: Session, group: str, check_back: CheckBack) -> None:
        super().__init__(session, group)
        check_callable("check_back", check_back, "a function of a message that gives a decision")
        self._check_back = as_async(check_back, CHECKS_AT_ONCE)
        self._limiter = anyio.CapacityLimiter(CHECKS_AT_ONCE)
        self._checking: set[str] = set()
        self._scope = TaskGroupScope()

    async def __aenter__(self) -> TransactionalProducer:
        async with self._scope.entering():  # first: check-backs may come as soon as brokers know the producer
            await super().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        finally:
            await self._scope.__aexit__(kind, error, trace)

    def transaction(
        self, message: Message, *, queue: MessageQueue | None = None, sharding_key: str | None = None
    ) -> Transaction:
        """`async with producer.transaction(message) as transaction`: the message is committed when the
        block ends, rolled back when it raises; see `Transaction`. Delays are not possible."""
        return Transaction(self, message, queue, sharding_key)

    # --- half messages and their end ---

    async def _send_half(self, message: Message, queue: MessageQueue | None, key: str | None) -> SendResult:
        if message.is_delayed:
            raise InvalidMessage(remark="a message of a transaction cannot be delayed")
        session = self._session
        extra = {PROPERTY_TRANSACTION_PREPARED: "true", PROPERTY_PRODUCER_GROUP: self.group}
        began = session.now()
        result = await self._observed(message, queue, key, extra, SYS_PREPARED)
        if result.status != "SEND_OK":
            # The message may be lost with its broker, so the transaction does not begin.
            await self._send_decision(result, Decision.ROLLBACK, f"half message: {result.status}")
            broker = result.message_queue.broker_name
            refusal = for_code(_CODES[result.status], "the half message is not safe", broker)
            raise SendFailed([(broker, refusal, session.now() - began)])
        return result

    async def _decide(
        self, result: SendResult, message: Message, decision: Decision, remark: str | None = None
    ) -> None:
        """Decide a transaction at the end of an application's block."""
        await self._send_decision(result, decision, remark)
        observers = self._session.observers
        if observers:
            observers.begin(
                lambda observer: observer.ended(self.group, result, message, decision, checked=False)
            )

    async def _send_decision(self, result: SendResult, decision: Decision, remark: str | None = None) -> None:
        """Send the decision to the broker. A failure is logged: the check-back decides."""
        broker = result.message_queue.broker_name
        address = self._session.routes.master(broker)
        if address is None:
            log.warning(
                "broker %s has no known address: transaction %s ends by the broker's check-back",
                broker,
                result.message_id,
            )
            return
        header = EndTransactionRequestHeader(
            self.group,
            result.queue_offset,
            parse_offset_message_id(result.offset_message_id)[1],
            decision,
            msg_id=result.message_id,
            transaction_id=result.transaction_id,
            bname=broker,
        )
        await self._end_transaction(address, header, remark)

    async def _end_transaction(
        self, address: str, header: EndTransactionRequestHeader, remark: str | None
    ) -> None:
        session = self._session
        request = Command.request(RequestCode.END_TRANSACTION, header, oneway=True, remark=remark)
        try:
            await session.pool.notify(address, request, session.brokers.timeout)
        except ConnectFailed as error:
            log.warning(
                "cannot end transaction %s now, the broker's check-back will end it: %s", header.msg_id, error
            )

    # --- check-back ---

    def check(self, message: StoredMessage, header: CheckTransactionStateRequestHeader, address: str) -> None:
        """Handle the check-back of a half message by the broker at `address`."""
        unique = message.message_id
        if not self._is_open or unique in self._checking or len(self._checking) >= CHECKS_WAITING:
            return
        self._checking.add(unique)
        self._scope.tasks.start_soon(self._check, message, header, address)

    async def _check(
        self, message: StoredMessage, header: CheckTransactionStateRequestHeader, address: str
    ) -> None:
        remark = None
        try:
            async with self._limiter:
                decision = Decision(await self._check_back(message))
        except BaseException as error:
            failure = as_failure(error)
            if failure is None:
                raise
            log.error("the check-back of %s failed", message.message_id, exc_info=failure)
            decision, remark = Decision.UNKNOWN, f"check-back failed: {failure!r}"
        finally:
            self._checking.discard(message.message_id)
        answer = EndTransactionRequestHeader(
            self.group,
            header.tran_state_table_offset,
            header.commit_log_offset,
            decision,
            True,
            msg_id=message.message_id,
            transaction_id=header.transaction_id,
            bname=header.bname,
        )
        await self._end_transaction(address, answer, remark)


class Transaction:
    """One message in the hands of its producer.

    Entering stores the half message; raises as `Producer.send`, and SendFailed when it is stored but not as
    safely as the broker promises. A normal exit sends `decision` (by default: commit); an exception rolls
    back and is raised again. Cancelled inside the block: no decision is sent, and the check-back decides. A
    decision that does not reach the broker is logged, and the check-back decides.
    """

    def __init__(
        self, producer: TransactionalProducer, message: Message, queue: MessageQueue | None, key: str | None
    ) -> None:
        self.message = message
        self.decision = Decision.COMMIT
        """The decision of a normal exit."""
        self._producer = producer
        self._where = (queue, key)
        self._result: SendResult | None = None

    @property
    def result(self) -> SendResult:
        """The place of the half message, and its ids."""
        if self._result is None:
            raise LocalProtocolError("the transaction has not begun: use the transaction inside its block")
        return self._result

    async def __aenter__(self) -> Transaction:
        if self._result is not None:
            raise LocalProtocolError("this transaction was already used: create one for each message")
        self._result = await self._producer._send_half(self.message, *self._where)
        self._producer._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        producer = self._producer
        try:
            if error is None:
                await producer._decide(self.result, self.message, Decision(self.decision))
            elif isinstance(error, Exception):
                await producer._decide(self.result, self.message, Decision.ROLLBACK, repr(error)[:1000])
        finally:
            producer._end()
