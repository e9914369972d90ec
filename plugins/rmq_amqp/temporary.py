"""Temporary queues and topics: in memory, for the consumers of a connection, until the connection ends."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from attrs import define, evolve

from rmq.message import Message
from rmq_amqp import engine
from rmq_amqp.addresses import TOPIC
from rmq_amqp.conditions import EXPECTED, NOT_FOUND, RESOURCE_LIMIT, Refused, of_error
from rmq_amqp.links import Link
from rmq_amqp.messages import to_store
from rmq_amqp.producers import PREFIX, Producer
from rmq_amqp.sections import Sections, build
from rmq_amqp.transactions import Received
from rmq_amqp.values import Byte, Symbol

if TYPE_CHECKING:
    from rmq_amqp.choosing import Choice
    from rmq_amqp.connection import Connection

MESSAGES_MAX: Final = 10_000
BYTES_MAX: Final = 32 << 20
"""Messages, and their bytes, that wait at a temporary queue, or for a consumer of a temporary topic."""
COUNT_MAX: Final = 1_000
"""Temporary queues and topics of a connection."""
FIXED_BYTES: Final = 1_000
"""Bytes that are counted for each message beside its own."""
_DESTINATION: Final = Symbol("x-opt-jms-dest")


def is_temporary(address: str) -> bool:
    """True if an address is that of a temporary queue or topic, which may have ended."""
    return address.startswith(PREFIX)


@define(eq=False)
class Waiting:
    """A message that waits for a consumer. `client` is the client id of its producer."""

    message: Sections
    size: int
    client: str
    now_ms: int
    deliveries: int = 0
    _facts: Message | None = None

    def facts(self) -> Message:
        """The headers and properties of the message, as selectors know them. A message that the broker could
        not store has only its client."""
        if self._facts is None:
            headers = evolve(self.message, kind=0, body=None)
            try:
                self._facts = to_store(headers, "Temporary", self.now_ms, self.client)
            except Refused:
                self._facts = to_store(Sections(), "Temporary", self.now_ms, self.client)
        return self._facts


class Line:
    """Messages in order, for a temporary queue or a consumer of a temporary topic. Messages that are not
    settled count for `connection`."""

    def __init__(self, connection: Connection) -> None:
        self.messages: OrderedDict[Waiting, None] = OrderedDict()
        self.size = 0
        self.views: dict[View, None] = {}
        self._shares, self._holders = connection.shared.kept, connection.host.holders
        self._counted = 0
        self._is_over = False

    def put(self, one: Waiting) -> None:
        """Put a new message at the end. Raises Refused without room."""
        self.check(one)
        self._count(one.size + FIXED_BYTES)
        self.messages[one] = None
        self.size += one.size
        for view in self.views:
            view.put(one)

    def check(self, one: Waiting, before: int = 0) -> None:
        """Raise Refused without room for a message, behind `before` bytes for other lines."""
        if len(self.messages) >= MESSAGES_MAX or self.size + one.size > BYTES_MAX:
            raise Refused(
                RESOURCE_LIMIT, "a temporary queue or topic is full: its consumer must take messages first"
            )
        if reason := self._shares.full(self._holders, before + one.size + FIXED_BYTES):
            raise Refused(RESOURCE_LIMIT, f"of the bytes of temporary queues and topics {reason}")

    def _count(self, size: int) -> None:
        if not self._is_over:
            self._shares.add(self._holders, size)
            self._counted += size

    def done(self, one: Waiting) -> None:
        """Forget a message that is settled for good."""
        self._count(-one.size - FIXED_BYTES)

    def end(self) -> None:
        """Drop all messages, also the sent messages that are not settled."""
        self._count(-self._counted)
        self._is_over = True
        self.messages.clear()
        for view in self.views:
            view.messages.clear()

    def pop(self, view: View | None = None) -> Waiting:
        """Take the first message, or the first message of a view."""
        one, _ = (self if view is None else view).messages.popitem(last=False)
        self.messages.pop(one, None)
        for each in self.views:
            each.messages.pop(one, None)
        self.size -= one.size
        return one

    def put_back(self, one: Waiting) -> None:
        """Put a message before all others."""
        if self._is_over:
            return
        self.messages[one] = None
        self.messages.move_to_end(one, last=False)
        self.size += one.size
        for view in self.views:
            view.put(one, is_first=True)


class View:
    """The messages of a line that a consumer with a choice wants. The choice is made once for a message."""

    def __init__(self, line: Line, choice: Choice) -> None:
        self.messages: OrderedDict[Waiting, None] = OrderedDict()
        self._choice = choice
        for one in line.messages:
            self.put(one)
        line.views[self] = None

    def put(self, one: Waiting, *, is_first: bool = False) -> None:
        """Note a message that waits at the end of the line, or before all others."""
        if self._choice(one.facts()):
            self.messages[one] = None
            self.messages.move_to_end(one, last=not is_first)


class Temporary:
    """A temporary queue or topic of a connection."""

    def __init__(self, connection: Connection, kind: int) -> None:
        self.owner = connection
        self.kind = kind
        # Whoever knows the address may send to it: nobody guesses it.
        self.address = connection.shared.add_temporary(
            self, f"{PREFIX}{connection.next_name()}-{secrets.token_urlsafe(12)}"
        )
        self.line = Line(connection)
        self.consumers: dict[TemporaryConsumer, None] = {}

    def put(self, message: Sections, size: int, client: str) -> None:
        """Give a message to the consumers. Raises Refused without room. `client` is the client id of its
        producer."""
        now_ms = self.owner.host.now_ms()
        if self.kind == TOPIC:
            # Each consumer gets the message, or none: its producer may send it again.
            wanted: list[tuple[Line, Waiting]] = []
            for consumer in self.consumers:
                one = Waiting(message, size, client, now_ms)
                if consumer.wants(one):
                    consumer.line.check(one, len(wanted) * (size + FIXED_BYTES))
                    wanted.append((consumer.line, one))
            for line, one in wanted:
                line.put(one)
        else:
            self.line.put(Waiting(message, size, client, now_ms))
        self.pump()

    def pump(self) -> None:
        """Let the consumers send."""
        for consumer in list(self.consumers):
            consumer.pump()

    def end(self) -> None:
        """End the queue or topic: its messages are dropped."""
        self.owner.end_temporary(self.address)
        self.line.end()
        for consumer in list(self.consumers):
            consumer.connection.end_link(consumer, NOT_FOUND, f"{self.address} was deleted")


class TemporaryConsumer(Link):
    """A consumer of a temporary queue or topic."""

    def __init__(
        self,
        connection: Connection,
        link: Any,
        temporary: Temporary,
        choice: Choice,
        *,
        ends_it: bool = False,
    ) -> None:
        super().__init__(connection, link)
        self._temporary = temporary
        self._ends_it = ends_it
        self.line = Line(connection) if temporary.kind == TOPIC else temporary.line
        self._choice = choice
        is_whole = temporary.kind == TOPIC or choice.is_all
        self._view = None if is_whole else View(temporary.line, choice)
        self._is_settled = link.remote_snd_settle_mode == 1
        self._tags = 0
        self._out: dict[Any, Waiting] = {}
        temporary.consumers[self] = None

    def wants(self, one: Waiting) -> bool:
        """True if its choice takes a message."""
        return self._choice.is_all or self._choice(one.facts())

    def on_flow(self) -> None:
        """Same as `Link.on_flow`."""
        if self.pump() and not self.is_ended and engine.is_draining(self.pointer):
            engine.drained(self.pointer)
            self.connection.wake()

    def resume(self) -> None:
        """Same as `Link.resume`."""
        self.on_flow()

    def pump(self) -> bool:
        """Send messages as long as the peer has credit; False if the rest waits for the peer."""
        waiting = self.line.messages if self._view is None else self._view.messages
        while not self.is_ended and waiting and engine.credit_of(self.pointer) > 0:
            if self.connection.is_behind(self):
                self.connection.pause(self)
                return False
            self._send(self.line.pop(self._view))
        return True

    def _send(self, one: Waiting) -> None:
        annotations = one.message.annotations | {
            _DESTINATION: Byte(3 if self._temporary.kind == TOPIC else 2)
        }
        message = evolve(
            one.message,
            annotations=annotations,
            to=self._temporary.address,
            delivery_count=one.deliveries,
        )
        self._tags += 1
        tag = self._tags.to_bytes(8, "big")
        data = build(message)
        delivery = engine.send(self.pointer, tag, data, is_settled=self._is_settled)
        self.connection.count_sent(len(data))
        if self._is_settled:
            self.line.done(one)
        else:
            self._out[delivery] = one
        self.connection.wake()

    def on_delivery(self, delivery: Any) -> None:
        """Take the peer's outcome of a message."""
        one = self._out.get(delivery)
        if one is None:
            return
        state = engine.remote_state(delivery)
        if state in (0, engine.RECEIVED) and not engine.is_settled(delivery):
            return
        del self._out[delivery]
        if state == engine.TRANSACTIONAL:
            self._within(delivery, one)
        elif state in (engine.ACCEPTED, engine.REJECTED):
            self.line.done(one)
        else:
            one.deliveries += state == engine.MODIFIED and engine.is_failed(delivery)
            self.line.put_back(one)
        engine.settle(delivery)
        self.connection.wake()
        self.pump()

    def _within(self, delivery: Any, one: Waiting) -> None:
        def end(commits: bool) -> None:
            if commits:
                self.line.done(one)
            else:
                one.deliveries += 1
                self.line.put_back(one)
                self._temporary.pump()

        transactions = self.connection.transactions
        try:
            transaction = transactions.find(engine.state_of(delivery))
            transactions.receive(transaction, Received("", "", "", end))
        except EXPECTED as error:
            self._out[delivery] = one  # the end of the link puts it back
            self.connection.end_link(self, *of_error(error))

    def on_end(self, *, is_closed: bool) -> None:
        """Same as `Link.on_end`."""
        self._temporary.consumers.pop(self, None)
        if self._view is not None:
            self.line.views.pop(self._view, None)
        for one in reversed(list(self._out.values())):
            self.line.put_back(one)
        self._out.clear()
        if self._temporary.kind == TOPIC:
            self.line.end()
        if self._ends_it:
            self._temporary.end()
        else:
            self._temporary.pump()

    def on_lost(self) -> None:
        """Same as `Link.on_lost`."""
        if self._temporary.kind == TOPIC:
            self.line.end()


class TemporaryLink(Producer):
    """The link by which a peer has made a temporary queue or topic, which ends with the link."""

    def __init__(self, connection: Connection, link: Any, temporary: Temporary) -> None:
        super().__init__(connection, link, "", temporary.address)
        self._made = temporary

    def on_end(self, *, is_closed: bool) -> None:
        """Same as `Link.on_end`."""
        super().on_end(is_closed=is_closed)
        self._made.end()
