"""Sender: how one packed message gets to a broker. It chooses the queue, tries other brokers when one fails,
and keeps account of the brokers' health, which all senders of a client share.

It knows neither blocks nor observers: a `Producer` adds those; a re-drive of dead letters and the message
trace use it as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import anyio
import attrs

from rmq.client.outgoing import STATUSES, Outgoing, SendResult, SendTemplate, read_result
from rmq.client.routes import Rotation, select_by_key
from rmq.client.servers import no_route
from rmq.errors import (
    NETWORK_ERRORS,
    ConnectFailed,
    NoRoute,
    ResponseError,
    RmqError,
    SendFailed,
    ServiceNotAvailable,
    SystemBusy,
    check_type,
    for_code,
)
from rmq.message import MessageQueue, without_namespace

if TYPE_CHECKING:
    from rmq.client.session import Session

log = logging.getLogger(__name__)

RETRY_PAUSE_SECONDS: Final = 0.05
"""Before the same broker is tried again, because there is no other."""


class Sender:
    """Sends in the name of a producer group, which need not be a member of anything."""

    def __init__(self, session: Session, group: str) -> None:
        self.timeout = session.config.send_timeout_ms / 1000
        self._session = session
        self._template = SendTemplate(group, str(session.config.default_topic_queue_nums))

    async def send(
        self, outgoing: Outgoing, queue: MessageQueue | None = None, sharding_key: str | None = None
    ) -> SendResult:
        """Send to `queue`, to the queue of `sharding_key`, or else to any: then other brokers are tried.

        Raises as `Producer.send`. Cancelled: it may or may not be stored.
        """
        session = self._session
        began = session.now()
        deadline = began + self.timeout
        if queue is not None:
            check_type("queue", queue, MessageQueue, "an rmq.MessageQueue")
            return await self._attempt(outgoing, queue, began, deadline)
        rotation = session.routes.get(outgoing.topic)
        if rotation is None or not rotation.is_writable:
            rotation = await self.rotation(outgoing.topic, self.timeout)
        if sharding_key is not None:
            check_type("sharding_key", sharding_key, str, "text")
            queue = select_by_key(rotation.route.publish_queues, sharding_key)
            return await self._attempt(outgoing, queue, began, deadline)
        # The loop stands here, not in a function of its own: each frame is paid for by every send.
        left = session.config.retry_times
        attempts: list[tuple[str, BaseException, float]] = []
        tried: list[str] = []
        while True:
            queue = self._next(rotation, tried, began)
            tried.append(queue.broker_name)
            # While there is another broker to try, one that hangs may take half of the time, not all of it.
            spare = left and rotation.has_other(tried)
            until = (began + deadline) / 2 if spare else deadline
            try:
                return await self._attempt(outgoing, queue, began, until)
            except RmqError as error:
                now = session.now()
                attempts.append((queue.broker_name, error, now - began))
                if not error.retriable:
                    raise
            if not left or now >= deadline:
                raise SendFailed(attempts) from attempts[-1][1]
            left -= 1
            rotation = await self._after_failure(outgoing.topic, rotation, tried, deadline - now)
            began = session.now()

    async def send_oneway(
        self, outgoing: Outgoing, queue: MessageQueue | None = None, sharding_key: str | None = None
    ) -> None:
        """Hand a request without an answer to a connection. Raises NoRoute, ConnectFailed. Cancelled: it may
        or may not be on its way.
        """
        if queue is not None:
            check_type("queue", queue, MessageQueue, "an rmq.MessageQueue")
        elif sharding_key is not None:
            check_type("sharding_key", sharding_key, str, "text")
        session, timeout = self._session, self.timeout
        rotation = await self.rotation(outgoing.topic, timeout)
        if queue is None and sharding_key is not None:
            queue = select_by_key(rotation.route.publish_queues, sharding_key)
        target = queue or self._next(rotation, (), session.now())
        command = self._template.request(outgoing, target, session.now_ms(), oneway=True)
        try:
            await session.pool.notify(session.brokers.master(target), command, timeout)
        except ConnectFailed:
            session.health.failed(target.broker_name, session.now())
            session.refresh_soon(outgoing.topic)
            raise

    async def rotation(self, topic: str, timeout: float) -> Rotation:
        """The queues of `topic` that can be written, also of one that a broker is to make on the first send.

        Raises NoRoute. Cancelled: nothing has happened."""
        session = self._session
        rotation = await session.rotation(topic, timeout, create=True)
        if not rotation.is_writable:
            await session.refresh(topic, timeout)
            rotation = await session.rotation(topic, timeout)
        if not rotation.is_writable:
            detail = "it has no queue that may be written and has a master"
            raise no_route(topic, session.name_servers.addresses, detail)
        return rotation

    async def _attempt(
        self, outgoing: Outgoing, queue: MessageQueue, began: float, deadline: float
    ) -> SendResult:
        """One request to one queue's broker; keeps account of the broker's health."""
        session = self._session
        broker_name = queue.broker_name
        address = session.routes.master(broker_name)
        if address is None:
            await session.refresh(outgoing.topic, deadline - began)
            address = session.brokers.master(queue)
        command = self._template.request(outgoing, queue, session.now_ms())
        try:
            response = await session.pool.call(address, command, deadline - began)
        except NETWORK_ERRORS:
            session.health.failed(broker_name, session.now())
            session.refresh_soon(outgoing.topic)
            raise
        now = session.now()
        session.health.succeeded(broker_name, now - began, now)
        if response.code in STATUSES:
            result = read_result(response, queue, outgoing.unique_id)
            if session.config.namespace:
                result.message_queue = attrs.evolve(
                    queue,
                    topic=without_namespace(session.config.namespace, queue.topic),
                    queue_id=result.message_queue.queue_id,
                )
            return result
        raise self._refused(for_code(response.code, response.remark, address), queue)

    def _refused(self, error: ResponseError, queue: MessageQueue) -> ResponseError:
        session = self._session
        if isinstance(error, (SystemBusy, ServiceNotAvailable)):
            session.health.failed(queue.broker_name, session.now())
        if error.refresh_route:
            session.refresh_soon(queue.topic)
        if error.hint:
            error.add_note(error.hint)
        return error

    def _next(self, rotation: Rotation, tried: Sequence[str], now: float) -> MessageQueue:
        """The next queue: on no broker that was tried, and if possible on none that is to be avoided."""
        session = self._session
        avoided = session.health.avoided(now) if session.config.avoid_slow_brokers else ()
        if avoided:
            both = {*tried, *avoided}
            if rotation.has_other(both):
                return rotation.next(both)
        return rotation.next(tried)

    async def _after_failure(
        self, topic: str, rotation: Rotation, tried: Sequence[str], timeout: float
    ) -> Rotation:
        """The route for the next attempt: where no other broker is left, the name servers may know one."""
        session = self._session
        if rotation.has_other(tried):
            session.refresh_soon(topic)
            return rotation
        try:
            await session.refresh(topic, timeout)
        except NoRoute as error:
            log.info("%s", error)
        await anyio.sleep(min(RETRY_PAUSE_SECONDS, timeout / 2))
        return session.routes.get(topic) or rotation
