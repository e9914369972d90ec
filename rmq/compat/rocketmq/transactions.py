"""TransactionMQProducer: messages of transactions, with check-back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rmq.client import blocking
from rmq.client.produce.transactional import Decision
from rmq.compat.rocketmq.exceptions import ProducerException
from rmq.compat.rocketmq.messages import Message, ReceivedMessage, check_message
from rmq.compat.rocketmq.opening import log
from rmq.compat.rocketmq.producers import Producer
from rmq.compat.rocketmq.values import SendResult, Text, TransactionStatus, failing, result_of
from rmq.message import PROPERTY_UNIQUE_KEY, StoredMessage, parse_offset_message_id, with_properties

_DECISIONS: Final = {
    TransactionStatus.COMMIT: Decision.COMMIT,
    TransactionStatus.ROLLBACK: Decision.ROLLBACK,
    TransactionStatus.UNKNOWN: Decision.UNKNOWN,
}

Checker = Callable[[ReceivedMessage], TransactionStatus | int]
LocalExecute = Callable[[ReceivedMessage, Any], TransactionStatus | int]


class TransactionMQProducer(Producer):
    """A producer of transactions. `checker_callback(message)` decides, in a thread, about a message whose end
    the broker does not know; `user_args` has no effect, as in the old client."""

    _kind = "transaction producer"

    def __init__(
        self,
        group_id: Text,
        checker_callback: Checker,
        user_args: Any = None,
        timeout: int | None = None,
        compress_level: int | None = None,
        max_message_size: int | None = None,
    ) -> None:
        if not callable(checker_callback):
            raise TypeError(f"checker_callback = {checker_callback!r:.100}: expected a function of a message")
        super().__init__(group_id, False, timeout, compress_level, max_message_size)
        self._checker = checker_callback
        self._user_args = user_args

    def _made(self, client: blocking.Client) -> blocking.Producer:
        return client.transactional_producer(self._group, self._check)

    def _check(self, message: StoredMessage) -> Decision:
        return _decision("the check-back", lambda: self._checker(ReceivedMessage(message)))

    def send_message_in_transaction(
        self, message: Message, local_execute: LocalExecute, user_args: Any = None
    ) -> SendResult:
        """Store a half message, call `local_execute(message, user_args)` in this thread, and end the
        transaction by its result.

        An exception of `local_execute`, and a result that is no TransactionStatus, are logged and count as
        UNKNOWN: the check-back decides. Raises ProducerException when the half message could not be stored as
        safely as the broker promises; `local_execute` is not called in that case.
        """
        check_message(message)
        with failing(ProducerException):
            producer = self._open(ProducerException)
            assert isinstance(producer, blocking.TransactionalProducer)
            packed = message.packed()
            with producer.transaction(packed) as transaction:
                result = transaction.result
                properties = with_properties(packed, {PROPERTY_UNIQUE_KEY: result.message_id})
                half = StoredMessage(
                    packed.topic,
                    result.message_queue.queue_id,
                    result.queue_offset,
                    parse_offset_message_id(result.offset_message_id)[1],
                    0,
                    packed.body,
                    properties,
                    broker_name=result.message_queue.broker_name,
                )
                transaction.decision = _decision(
                    "the local execution", lambda: local_execute(ReceivedMessage(half), user_args)
                )
            return result_of(result)


def _decision(what: str, decide: Callable[[], TransactionStatus | int]) -> Decision:
    """The decision of a callback; UNKNOWN, and a log line, for an exception or any other result."""
    try:
        status = decide()
    except Exception:
        log.exception("%s failed, treated as TransactionStatus.UNKNOWN", what)
        return Decision.UNKNOWN
    try:
        return _DECISIONS[TransactionStatus(status)]
    except ValueError:
        log.error("%s returned %r: expected a TransactionStatus, treated as UNKNOWN", what, status)
        return Decision.UNKNOWN
