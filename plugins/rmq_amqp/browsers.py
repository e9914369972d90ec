"""Browsers: links that look at the messages of a queue and take none."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from rmq_amqp import engine
from rmq_amqp.conditions import EXPECTED, of_error
from rmq_amqp.links import Link
from rmq_amqp.messages import encoded, expires_ms

if TYPE_CHECKING:
    from rmq.message import StoredMessage
    from rmq_amqp.choosing import Choice
    from rmq_amqp.connection import Connection

LOOKS_OF_A_TURN = 2_000
"""Messages that are read before other connections have their turn."""


class Browser(Link):
    """A link that gets a copy of each message that the queue has when the link is attached."""

    def __init__(self, connection: Connection, link: Any, topic: str, address: str, choice: Choice) -> None:
        super().__init__(connection, link)
        self._host = connection.host
        self._topic = topic
        self._address = address
        self._choice = choice
        self._tags = 0
        self._found: deque[StoredMessage] = deque()
        self._left: deque[tuple[int, int, int]] = deque()  # queue id, offset, end
        for queue_id in range(self._host.queues(topic)):
            first, end = self._host.bounds(topic, queue_id)
            first = max(first, self._host.position(topic, topic, queue_id))
            if first < end:
                self._left.append((queue_id, first, end))

    def on_flow(self) -> None:
        """Same as `Link.on_flow`."""
        self._pump()

    def resume(self) -> None:
        """Same as `Link.resume`."""
        self._pump()

    def _pump(self) -> None:
        looks = LOOKS_OF_A_TURN
        try:
            while not self.is_ended and engine.credit_of(self.pointer) > 0 and (self._found or self._left):
                if self.connection.is_behind(self):
                    self.connection.pause(self)
                    self.connection.wake()
                    return
                if looks <= 0:
                    self.connection.give_way(self)
                    return
                if self._found:
                    self._send(self._found.popleft())
                else:
                    looks -= self._look()
        except EXPECTED as error:
            self.connection.end_link(self, *of_error(error))
            return
        if not self.is_ended and engine.is_draining(self.pointer):
            engine.drained(self.pointer)
        self.connection.wake()

    def _look(self) -> int:
        """Read further; returns the number of messages that were read."""
        queue_id, offset, end = self._left.popleft()
        messages, following = self._host.browse(self._topic, self._topic, queue_id, offset)
        now_ms = self._host.now_ms()
        for message in messages:
            expires = expires_ms(message.properties)
            is_old = expires is not None and expires <= now_ms
            if message.queue_offset < end and not is_old and self._choice(message):
                self._found.append(message)
        if offset < following < end:
            self._left.appendleft((queue_id, following, end))
        return max(1, following - offset)

    def _send(self, message: StoredMessage) -> None:
        data = encoded(message, 1, self._address, 0, self._host.now_ms())
        self._tags += 1
        self.connection.count_sent(len(data))
        engine.send(self.pointer, self._tags.to_bytes(8, "big"), data, is_settled=True)
