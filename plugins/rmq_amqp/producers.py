"""Producers: links on which a peer sends messages to a topic, or to the topic that each message names."""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rmq.errors import AccessDenied, ResponseError
from rmq.message import Message, java_hash
from rmq.plugin import PUBLISH, Appended
from rmq.protocol.codes import ResponseCode
from rmq.protocol.properties import PROPERTY_SHARDING_KEY
from rmq_amqp import engine
from rmq_amqp.addresses import destination
from rmq_amqp.conditions import (
    DECODE_ERROR,
    EXPECTED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    TOO_LONG,
    Refused,
    of_error,
)
from rmq_amqp.links import Link
from rmq_amqp.messages import to_store
from rmq_amqp.sections import Sections, parse
from rmq_amqp.values import Malformed

if TYPE_CHECKING:
    from rmq_amqp.connection import Connection
    from rmq_amqp.temporary import Temporary
    from rmq_amqp.transactions import Transaction

log = logging.getLogger("rmq.amqp")

PREFIX: Final = "rmq-temporary|"
"""Prefix of the addresses of temporary queues and topics."""
CREDIT: Final = 1_000
"""Messages that a peer may send before it gets an answer."""
MESSAGE_BYTES: Final = 8 << 20
"""Bytes of the longest message in AMQP's form; the broker's maxMessageSize counts for its body."""
FIXED_BYTES: Final = 1_000
"""Bytes that are counted for each waiting message, beside its body."""
RETRY_SECONDS: Final = 0.2
"""Pause before a message is stored for which the broker has no room now, in seconds."""
_NO_ROOM: Final = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
"""Temporary refusals: a full disk, a share that is used up, too few replicas in sync. Messages wait, and
their peer gets no credit."""


def _give_late(temporary: Temporary, sections: Sections, size: int, client: str) -> None:
    """Give a message at a commit; without room it is lost, as all of a temporary queue may be."""
    try:
        temporary.put(sections, size, client)
    except Refused as error:
        log.warning("a message of a transaction is dropped: %s", error)


class Producer(Link):
    """A link for messages of a peer. Without a topic each message names its own."""

    def __init__(self, connection: Connection, link: Any, topic: str, temporary: str = "") -> None:
        super().__init__(connection, link)
        self._temporary = temporary
        self._host = connection.host
        self._topic = topic
        self._inbox = bytearray()
        self._waiting: deque[tuple[Any, Message]] = deque()
        self._is_retrying = False
        self._within: dict[Any, Transaction] = {}
        link.max_message_size = MESSAGE_BYTES
        if topic:
            if not self._host.may(PUBLISH, topic):
                raise AccessDenied(remark=f"no permission to publish: {topic}")
            self._host.make_topic(topic)

    def on_open(self) -> None:
        """Give the peer credit."""
        engine.give_credit(self.pointer, CREDIT)

    def on_delivery(self, delivery: Any) -> None:
        """Take the bytes of a message; store the complete message."""
        if not engine.is_readable(delivery) and not engine.is_aborted(delivery):
            return
        before = len(self._inbox)
        engine.receive(self.pointer, self._inbox)
        if engine.is_aborted(delivery):
            self.connection.count_part(self, 0)
            self._inbox.clear()
            engine.settle(delivery)
            self._grant()
            return
        if len(self._inbox) > MESSAGE_BYTES:
            self.connection.count_part(self, 0)
            self._inbox.clear()
            self.connection.end_link(self, TOO_LONG, f"a message has more than {MESSAGE_BYTES} bytes")
            return
        if engine.is_partial(delivery):
            self.connection.count_part(self, len(self._inbox))
            return
        if before:
            self.connection.count_part(self, 0)
        data = bytes(self._inbox)
        self._inbox.clear()
        engine.advance(self.pointer)
        self._take(delivery, data)

    def _take(self, delivery: Any, data: bytes) -> None:
        try:
            try:
                sections = parse(data)
            except Malformed as error:
                raise Refused(DECODE_ERROR, f"the message cannot be decoded: {error}") from None
            transactions, transaction = self.connection.transactions, None
            if engine.remote_state(delivery) == engine.TRANSACTIONAL:
                transaction = transactions.find(engine.state_of(delivery))
            address = self._temporary or ("" if self._topic else sections.to or "")
            if address.startswith(PREFIX):
                self._give(delivery, address, sections, len(data), transaction)
                return
            topic = self._topic_of(sections)
            message = to_store(sections, topic, self._host.now_ms(), self.connection.container)
            if transaction is not None:
                transactions.half(message)
                transaction.pending += 1
                self._within[delivery] = transaction
        except EXPECTED as error:
            self._answer(delivery, *of_error(error))
        else:
            self._store(delivery, message)

    def _answer_to(self, delivery: Any, message: Message, error: Exception) -> None:
        """Send the refusal of a message to the peer."""
        transaction = self._within.pop(delivery, None)
        if transaction is not None:
            self.connection.transactions.stored(transaction, message, None, of_error(error)[1])
        self._answer(delivery, *of_error(error))

    def _give(
        self, delivery: Any, address: str, sections: Sections, size: int, transaction: Transaction | None
    ) -> None:
        """Give a message to a temporary queue or topic, in a transaction by its commit. Raises Refused."""
        temporary, client = self.connection.shared.temporaries.get(address), self.connection.container
        if temporary is None:
            raise Refused(NOT_FOUND, f"there is no {address} any more: it ends with its connection")
        if transaction is None:
            temporary.put(sections, size, client)
        else:
            give = partial(_give_late, temporary, sections, size, client)
            self.connection.transactions.keep(transaction, size + FIXED_BYTES, give)
        self._answer(delivery, transaction=transaction)

    def _topic_of(self, sections: Sections) -> str:
        if self._topic:
            return self._topic
        if not sections.to:
            raise Refused(PRECONDITION_FAILED, "neither the link nor the message names a destination (`to`)")
        _, topic = destination(sections.to, [])
        if not self._host.may(PUBLISH, topic):
            raise AccessDenied(remark=f"no permission to publish: {topic}")
        self._host.make_topic(topic)
        return topic

    def on_end(self, *, is_closed: bool) -> None:
        """Drop the messages that wait for room, and were not answered; see `Link.on_end`."""
        sizes = (len(message.body) + FIXED_BYTES for _, message in self._waiting)
        self.connection.count(-sum(sizes))
        self.connection.count_part(self, 0)
        self._inbox.clear()
        waiting, self._waiting = self._waiting, deque()
        for delivery, message in waiting:
            transaction = self._within.pop(delivery, None)
            if transaction is not None:
                text = "the link of a producer has ended while its message waited for room"
                self.connection.transactions.stored(transaction, message, None, text)

    # ---- to the broker ----

    def _store(self, delivery: Any, message: Message) -> None:
        if self._waiting:
            self._wait(delivery, message)
            return
        try:
            self._append(delivery, message)
        except ResponseError as error:
            if error.code in _NO_ROOM:
                self._wait(delivery, message)
            else:
                self._answer_to(delivery, message, error)
        except EXPECTED as error:
            self._answer_to(delivery, message, error)

    def _wait(self, delivery: Any, message: Message) -> None:
        """Keep a message until the store has room."""
        self._waiting.append((delivery, message))
        self.connection.count(len(message.body) + FIXED_BYTES)
        if not self._is_retrying:
            self._is_retrying = True
            self._host.defer(RETRY_SECONDS, self._retry)

    def _append(self, delivery: Any, message: Message) -> None:
        queue_id = self._queue_of(message)
        self._host.append(message, partial(self._stored, delivery, message), queue_id=queue_id)

    def _queue_of(self, message: Message) -> int:
        """The queue of a message: the same for all messages of a connection, for their order."""
        view = self._host.topic(message.topic)
        queues = view.write_queues if view is not None else 0
        group = message.properties.get(PROPERTY_SHARDING_KEY)
        number = self.connection.number if group is None else abs(java_hash(group))
        return number % queues if queues else 0

    def _retry(self) -> None:
        """Store the messages that waited for room."""
        self._is_retrying = False
        while self._waiting and not self.is_ended:
            delivery, message = self._waiting[0]
            try:
                self._append(delivery, message)
            except ResponseError as error:
                if error.code in _NO_ROOM:
                    self._is_retrying = True
                    self._host.defer(RETRY_SECONDS, self._retry)
                    return
                self._refuse_first(error)
            except EXPECTED as error:
                self._refuse_first(error)
            else:
                self._take_first()
        self.connection.wake()

    def _take_first(self) -> tuple[Any, Message]:
        """Take the first message that waits."""
        delivery, message = self._waiting.popleft()
        self.connection.count(-len(message.body) - FIXED_BYTES)
        return delivery, message

    def _refuse_first(self, error: Exception) -> None:
        """Refuse the first message that waits: the last refusal gives the peer credit again."""
        delivery, message = self._take_first()
        self._answer_to(delivery, message, error)

    def _stored(self, delivery: Any, message: Message, outcome: Appended) -> None:
        error = outcome.error
        if error is not None and error.code in _NO_ROOM and not outcome.message_id and not self.is_ended:
            self._wait(delivery, message)  # the disk was full when the batch was written
            return
        transaction = self._within.pop(delivery, None)
        if transaction is not None:
            text = "" if outcome.error is None else of_error(outcome.error)[1]
            self.connection.transactions.stored(transaction, message, outcome, text)
        if outcome.error is None:
            self._answer(delivery, transaction=transaction)
        else:
            self._answer(delivery, *of_error(outcome.error))

    def _answer(
        self, delivery: Any, condition: str = "", text: str = "", transaction: Transaction | None = None
    ) -> None:
        """Send the outcome of a message to the peer; without a condition the message is stored."""
        if self.is_ended:
            return
        if engine.is_settled(delivery):
            engine.settle(delivery)
        elif condition:
            engine.update(delivery, engine.REJECTED, condition, text)
        elif transaction is not None:
            engine.accept_within(delivery, transaction.name)
        else:
            engine.update(delivery, engine.ACCEPTED)
        self._grant()
        self.connection.wake()

    def _grant(self) -> None:
        """Give new credit when half is used, but none while messages wait for room."""
        left = engine.credit_of(self.pointer)
        if left <= CREDIT // 2 and not self._waiting:
            engine.give_credit(self.pointer, CREDIT - left)
