"""Idempotent sending: a message that a producer repeats, because a response was lost, is stored once.

The producer numbers its messages. A message stays at the broker of its first write, which answers a
repetition with the place of the first. Brokers of rmq do so while `idempotentSendKeepTime` is not 0. With
other brokers, and for messages that no batch can hold (delayed messages, transactions), it works as a
`Sender`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio
from attrs import evolve

from rmq.client.produce.outgoing import BATCH, SEND, Outgoing
from rmq.client.produce.sender import SHORTEST_PAUSE_SECONDS, SendAttempts, Sender, check_timeout
from rmq.client.session.results import SendResult
from rmq.client.session.routes import select_by_key
from rmq.errors import (
    NETWORK_ERRORS,
    NoRoute,
    RequestCodeNotSupported,
    SendFailed,
    ServiceNotAvailable,
    SystemBusy,
    WindowFull,
)
from rmq.message import RETRY_PREFIX, MessageQueue
from rmq.protocol.codes import IDEMPOTENT_SEND
from rmq.protocol.headers import PRODUCER_ID, SEQUENCE
from rmq.protocol.properties import PROPERTY_DELAY_MS, PROPERTY_DELAY_SEC, PROPERTY_DELIVER_MS
from rmq.protocol.record import encode_batch
from rmq.remoting.loop import exponential_backoff

if TYPE_CHECKING:
    from rmq.client.session.session import Session

log = logging.getLogger(__name__)

_NO_DEDUPLICATION: Final = (
    "broker %s does not deduplicate sends (its idempotentSendKeepTime is 0): a retry of a send may store "
    "the message twice"
)

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 1.0
DELAYING: Final = ("DELAY", PROPERTY_DELAY_MS, PROPERTY_DELAY_SEC, PROPERTY_DELIVER_MS)
AGAIN: Final = (*NETWORK_ERRORS, SystemBusy, ServiceNotAvailable, NoRoute, WindowFull)
"""Errors after which the client asks the same broker again: it may have stored the message, or does so soon,
also when it has no master or no room for a while."""


class IdempotentSender(Sender):
    """Sends in the name of a producer group, each message once. Brokers know the producer by its group and a
    random number: each producer numbers its own messages."""

    def __init__(self, session: Session, group: str) -> None:
        super().__init__(session, group)
        self._producer = f"{group[:100]}#{session.chance.getrandbits(64):016x}"
        self._next_number = 0
        self._without: set[str] = set()
        """Brokers that do not support such sends."""

    async def send(
        self,
        outgoing: Outgoing,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send as `Sender.send` does, but repeat a message that may have been stored at the same queue, up to
        `timeout`, or to `send_queue_ms`. Raises SendFailed after that: the message is stored once or not at
        all. Cancelled: the same."""
        if not _is_numbered(outgoing):
            return await super().send(outgoing, queue, sharding_key, timeout)
        if timeout is not None:
            check_timeout(timeout)
        session = self._session
        until = session.now() + (self._queue_seconds if timeout is None else timeout)
        chosen = await self._chosen(outgoing, queue, sharding_key, timeout)
        if chosen.broker_name in self._without:
            return await super().send(outgoing, queue, sharding_key, timeout)
        numbered = self._number(outgoing)
        attempts: list[tuple[str, BaseException, float]] = []
        began, pauses, course = session.now(), 0, self._course(session.now(), timeout)
        while True:
            left = until - session.now()
            try:
                return await self._once(numbered, chosen, max(left, SHORTEST_PAUSE_SECONDS))
            except RequestCodeNotSupported:
                log.info(_NO_DEDUPLICATION, chosen.broker_name)
                self._without &= set(session.routes.broker_names())  # brokers come and go
                self._without.add(chosen.broker_name)
                return await super().send(outgoing, queue, sharding_key, max(left, SHORTEST_PAUSE_SECONDS))
            except AGAIN as error:
                if isinstance(error, NoRoute) and not attempts and self._gives_up(error, outgoing, course):
                    raise  # nothing can have been stored
                attempts.append((chosen.broker_name, error.with_traceback(None), session.now() - began))
                pause = exponential_backoff(FIRST_PAUSE_SECONDS, pauses, LONGEST_PAUSE_SECONDS)
                pause *= session.chance.uniform(0.5, 1.0)
                if session.now() + pause >= until:
                    raise SendFailed(attempts) from error
            pauses += 1
            session.refresh_soon(outgoing.topic)
            await anyio.sleep(pause)

    def _gives_up(self, error: NoRoute, outgoing: Outgoing, course: SendAttempts) -> bool:
        """True if a route that is missing will probably stay so."""
        return error.refused or self._is_over(error, outgoing.topic, course)

    async def _once(self, numbered: Outgoing, chosen: MessageQueue, left: float) -> SendResult:
        """An attempt within `left` seconds. It waits as long for room, for a master, and for a connection,
        but for its answer no longer than `send_timeout_ms`."""
        session, seconds = self._session, min(self.timeout, left)
        broker = chosen.broker_name
        if session.windows.of(broker).room and session.connection(broker) is not None:
            return await super().send(numbered, chosen, None, seconds)
        return await self._patiently(
            numbered, chosen, None, SendAttempts(session.now(), 0, seconds, left, left)
        )

    async def _chosen(
        self,
        outgoing: Outgoing,
        queue: MessageQueue | None,
        sharding_key: str | None,
        timeout: float | None,
    ) -> MessageQueue:
        """The queue of the message for all its attempts. Waits for a route as a `Sender` does, and raises the
        same errors."""
        if queue is not None:
            return queue
        session = self._session
        rotation = session.routes.get(outgoing.topic)
        if rotation is None or not rotation.is_writable:
            rotation = await self._search(outgoing.topic, self._course(session.now(), timeout))
        if sharding_key is not None:
            return select_by_key(rotation.route.publish_queues, sharding_key)
        return self._next(rotation, (), self._session.now())

    def _number(self, outgoing: Outgoing) -> Outgoing:
        """The message as a batch with its number."""
        number = self._next_number
        self._next_number += outgoing.unique_id.count(",") + 1
        body = outgoing.body
        if not outgoing.is_batch:
            body = encode_batch([(outgoing.flag, outgoing.body, outgoing.properties)])
        more = {PRODUCER_ID: self._producer, SEQUENCE: str(number)}
        return evolve(outgoing, body=body, is_batch=True, code=IDEMPOTENT_SEND, more=more)


def _is_numbered(outgoing: Outgoing) -> bool:
    return (
        outgoing.code in (SEND, BATCH)
        and not outgoing.sys_flag
        and outgoing.more is None
        and not outgoing.topic.startswith(RETRY_PREFIX)
        and not any(f"{name}\x01" in outgoing.properties for name in DELAYING)
    )
