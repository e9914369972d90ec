"""Consumers: links on which a peer gets the messages of a queue by its credit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from attrs import define

from rmq.errors import ResponseError
from rmq.plugin import TakenMessage, TakeRequest
from rmq_amqp import engine
from rmq_amqp.conditions import EXPECTED, of_error
from rmq_amqp.links import Link
from rmq_amqp.messages import encoded, expires_ms
from rmq_amqp.transactions import Received

if TYPE_CHECKING:
    from rmq_amqp.connection import Connection
    from rmq_amqp.settlements import OnSettled
    from rmq_amqp.subscriptions import Subscription

log = logging.getLogger("rmq.amqp")

LEASE_MS: Final = 7 * 86_400_000
"""Time without a settlement after which a message is redelivered."""
TAKE_MAX: Final = 32
WAIT_SECONDS: Final = 20.0
TAKES_OF_A_TURN: Final = 64
"""Takes after which other connections have their turn: a selector may refuse most of many messages."""
UNSETTLED_MAX: Final = 10_000
SETTLED: Final = 1
"""The mode of a peer that settles nothing: each message is acknowledged when it is sent."""


@define(eq=False)
class Out:
    """A message that the peer has and has not settled."""

    handle: str
    attempt: int


class Consumer(Link):
    """A link that gets the messages of a subscription."""

    def __init__(self, connection: Connection, link: Any, subscription: Subscription, address: str) -> None:
        super().__init__(connection, link)
        self._host = connection.host
        self._subscription = subscription
        self._topic, self._group = subscription.topic, subscription.group
        self._address = address
        self._is_settled = link.remote_snd_settle_mode == SETTLED
        self._tags = 0
        self._out: dict[Any, Out] = {}
        self._end_wait: Callable[[], None] | None = None
        self._wait_for = 0
        self._is_full = False

    # ---- messages for the peer ----

    def on_flow(self) -> None:
        """Send messages up to the peer's credit."""
        self._pull()

    def resume(self) -> None:
        """Continue to send."""
        self._pull()

    def _request(self, most: int) -> TakeRequest:
        chooser = self._subscription.chooser
        return TakeRequest(
            self._group,
            self._topic,
            max_msg_nums=most,
            invisible_ms=LEASE_MS,
            in_order=False,
            from_first=True,
            chooser=chooser if chooser is not None and chooser.is_needed else None,
        )

    def _room(self) -> int:
        credit = int(engine.credit_of(self.pointer))
        return max(0, min(credit, TAKE_MAX, UNSETTLED_MAX - len(self._out)))

    def _pull(self) -> None:
        """Take messages as long as the peer has credit; then wait for messages."""
        if self.is_ended:
            return
        try:
            self._pull_or_raise()
        except EXPECTED as error:
            self.connection.end_link(self, *of_error(error))

    def _pull_or_raise(self) -> None:
        if self._end_wait is not None:
            if 0 < self._wait_for <= self._room() and not engine.is_draining(self.pointer):
                return
            self._stop_waiting()
        takes = TAKES_OF_A_TURN
        while room := self._room():
            if self.connection.is_behind(self):
                self.connection.pause(self)
                return
            if not takes:
                self.connection.give_way(self)
                return
            takes -= 1
            taken = self._host.take(self._request(room))
            if not taken:
                break
            self._send_all(taken)
        self._is_full = len(self._out) >= UNSETTLED_MAX
        if engine.is_draining(self.pointer):
            engine.drained(self.pointer)
            self.connection.wake()
        elif room:
            self._wait_for = room
            self._end_wait = self._host.hold_take(self._request(room), self._on_taken, WAIT_SECONDS)

    def _stop_waiting(self) -> None:
        if self._end_wait is not None:
            self._end_wait()
            self._end_wait = None

    def _on_taken(self, found: Sequence[TakenMessage] | ResponseError) -> None:
        self._end_wait = None
        if isinstance(found, ResponseError):
            self.connection.end_link(self, *of_error(found))
            return
        if self.is_ended:
            self._release([one.handle for one in found])
            return
        self._send_all(found)
        self._pull()

    def _send_all(self, taken: Sequence[TakenMessage]) -> None:
        now_ms = self._host.now_ms()
        for one in taken:
            expires = expires_ms(one.message.properties)
            if not self._subscription.wants(one.message):
                self.connection.settlements.accept(self._group, self._topic, one.handle)
            elif expires is not None and expires <= now_ms:
                self._expired(one)
            else:
                self._send(one, now_ms)
        self.connection.settlements.flush()
        self.connection.wake()

    def _send(self, one: TakenMessage, now_ms: int) -> None:
        data = encoded(one.message, one.attempt, self._address, self._subscription.kind, now_ms)
        self._tags += 1
        tag = self._tags.to_bytes(8, "big")
        delivery = engine.send(self.pointer, tag, data, is_settled=self._is_settled)
        self.connection.count_sent(len(data))
        if self._is_settled:
            self.connection.settlements.accept(self._group, self._topic, one.handle)
        else:
            self._out[delivery] = Out(one.handle, one.attempt)

    def _expired(self, one: TakenMessage) -> None:
        settlements = self.connection.settlements
        if self.connection.shared.expired_are_dead:
            settlements.dead_letter(self._group, self._topic, one.handle, was_seen=False)
        else:
            settlements.accept(self._group, self._topic, one.handle)

    # ---- input of the peer ----

    def on_delivery(self, delivery: Any) -> None:
        """Take the peer's outcome of a message."""
        out = self._out.get(delivery)
        if out is None:
            return
        state = engine.remote_state(delivery)
        if state in (0, engine.RECEIVED) and not engine.is_settled(delivery):
            return
        if state == engine.TRANSACTIONAL:
            self._within(delivery, out)
            return
        del self._out[delivery]
        settlements = self.connection.settlements
        if state == engine.ACCEPTED:
            if not engine.is_settled(delivery):
                settlements.accept(self._group, self._topic, out.handle, self._answer(delivery))
                return
            settlements.accept(self._group, self._topic, out.handle)
        elif state == engine.REJECTED or (state == engine.MODIFIED and engine.is_undeliverable(delivery)):
            settlements.dead_letter(self._group, self._topic, out.handle, was_seen=True)
        else:
            counts = state == engine.MODIFIED and engine.is_failed(delivery)
            settlements.nack(self._group, self._topic, [out.handle], counts=counts)
        engine.settle(delivery)
        self._settled()

    def _within(self, delivery: Any, out: Out) -> None:
        """Acknowledge a message in a transaction."""
        is_settled = engine.is_settled(delivery)

        def end(commits: bool) -> None:
            if not is_settled and not self.is_ended:
                engine.update(delivery, engine.ACCEPTED if commits else engine.RELEASED)
                self.connection.wake()

        transactions = self.connection.transactions
        try:
            transaction = transactions.find(engine.state_of(delivery))
            transactions.receive(transaction, Received(self._group, self._topic, out.handle, end))
        except EXPECTED as error:
            self.connection.end_link(self, *of_error(error))
            return
        del self._out[delivery]
        if is_settled:
            engine.settle(delivery)
        self._settled()

    def _answer(self, delivery: Any) -> OnSettled:
        """The function that settles a delivery when its acknowledgement is kept."""

        def done(error: Exception | None) -> None:
            if not self.is_ended:
                if error is None:
                    engine.update(delivery, engine.ACCEPTED)
                else:
                    engine.update(delivery, engine.REJECTED, *of_error(error))
                self._settled()

        return done

    def _settled(self) -> None:
        if self._is_full:
            self._is_full = False
            self._pull()

    # ---- the end ----

    def _release(self, handles: Sequence[str]) -> None:
        self.connection.settlements.nack(self._group, self._topic, handles, counts=False)

    def on_end(self, *, is_closed: bool) -> None:
        """Give back the unsettled messages."""
        self._stop_waiting()
        self.connection.settlements.flush()
        handles = [out.handle for out in self._out.values()]
        self._out.clear()
        if handles:
            self._release(handles)
        self._subscription.end(is_closed=is_closed)

    def on_lost(self) -> None:
        """Forget the messages: the broker gives back all messages of a connection."""
        self._out.clear()
        self._end_wait = None
        self._subscription.end(is_closed=False)
