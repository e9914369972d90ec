"""Sender: the way of a packed message to a broker. It chooses the queue, waits for room in the broker's
window, tries other brokers after a failure, and records the brokers' health, which all senders of a client
share.

Two times bound a send. While nothing of the message can have been stored (no route, a broker that cannot be
reached, a connection that was lost before the request was written, no room) it waits, up to `send_queue_ms`,
and retries after growing random pauses. Once the message is written, `send_timeout_ms` counts, and so does
each failed attempt. A send with a `timeout` of its own has that for both together.

A sender has neither blocks nor observers: a `Producer` adds both; a re-drive of dead letters and the message
trace use senders directly.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, NoReturn

import anyio
import attrs
from attrs import define

from rmq.client.produce.outgoing import STATUSES, Outgoing, SendTemplate, read_result
from rmq.client.session.requests import no_route
from rmq.client.session.results import SendResult
from rmq.client.session.routes import Rotation, RouteRequest, select_by_key
from rmq.client.session.window import Window
from rmq.errors import (
    NETWORK_ERRORS,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    NoPermission,
    NoRoute,
    ResponseError,
    RmqError,
    SendFailed,
    ServiceNotAvailable,
    SystemBusy,
    WindowFull,
    check_number,
    check_type,
    for_code,
    not_open,
)
from rmq.message import MessageQueue, without_namespace
from rmq.protocol.codes import MASTER_ID
from rmq.remoting.connection import Connection
from rmq.remoting.loop import exponential_backoff

if TYPE_CHECKING:
    from rmq.client.session.session import Session

log = logging.getLogger("rmq.client.sender")

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 1.0
"""Pause before a broker is tried again because no other broker is left; each pause is a random half to whole
of it."""
ASKING_PART: Final = 0.9
"""Share of a send's remaining time that name servers have for an answer."""
SHORTEST_PAUSE_SECONDS: Final = 0.001
"""Shortest pause: a shorter one would never end on a clock that only moves by sleeping."""


@define
class SendAttempts:
    """Attempts of a send. Times are in seconds of the loop's clock."""

    began: float
    retries: int
    """Attempts that may still fail after they were written."""
    timeout: float
    """Total time of attempts that wait for answers."""
    patience: float
    """Time that the send may wait while nothing of it is in flight."""
    limit: float = math.inf
    """Time for the whole send."""
    in_flight: float = 0.0
    """Time that attempts have waited for answers."""
    held_up: float = 0.0
    """Extra time of attempts while the event loop was held up: it does not count."""
    written_at: float = 0.0
    asked: float = 0.0
    """The time of the present attempt for its answer."""
    broker: str = ""
    chosen: MessageQueue | None = None
    """The queue of the first attempt, whose turn it is."""
    tried: list[str] = attrs.Factory(list)
    """Brokers since the last pause."""
    pauses: int = 0
    search: RouteRequest | None = None
    """The search for a route that the send waited for last."""
    attempts: dict[tuple[str, str], tuple[tuple[str, RmqError, float], int]] = attrs.Factory(dict)

    def waited(self, now: float) -> float:
        """Time in which nothing of the send was in flight."""
        return now - self.began - self.in_flight - self.held_up

    def patience_left(self, now: float) -> float:
        """Time that the send may still wait with nothing in flight."""
        waited = self.waited(now)
        return max(min(self.patience - waited, self.limit - waited - self.in_flight), 0.0)

    def seconds_left(self, now: float) -> float:
        """Time that attempts may still wait for answers."""
        return min(self.timeout - self.in_flight, self.limit - self.waited(now) - self.in_flight)

    def attempted(self, now: float) -> None:
        """Count a failed attempt that was written."""
        took = now - self.written_at
        self.in_flight += min(took, self.asked)
        self.held_up += max(took - self.asked, 0.0)

    def note(self, error: RmqError, now: float) -> None:
        """Note a failed attempt. Equal ones are kept once: a patient send makes many."""
        key = self.broker, str(error)
        self.attempts[key] = (
            (self.broker, error, now - self.began),
            self.attempts.pop(key, (None, 0))[1] + 1,
        )

    @property
    def is_forbidden(self) -> bool:
        """True if every tried broker answers that this client may not send to the topic."""
        return all(isinstance(error, NoPermission) for (_, error, _), _ in self.attempts.values())

    def end(self) -> RmqError:
        """The error of a send that is given up."""
        attempts = [attempt for attempt, _ in self.attempts.values()]
        last = attempts[-1][1]
        if isinstance(last, NoRoute) and len(attempts) == 1:
            return last
        if self.is_forbidden:
            return last
        return SendFailed(attempts, [count for _, count in self.attempts.values()])


def check_timeout(timeout: object) -> None:
    """Raises InvalidType for a time that is no number, ConfigError for a time that is too short for any
    send."""
    check_number("timeout", timeout, SHORTEST_PAUSE_SECONDS, whole=False)


def _check_queue(queue: object, sharding_key: object) -> None:
    """Raises InvalidType for any type but a queue, ConfigError when a sharding key is given too."""
    check_type("queue", queue, MessageQueue, "an rmq.MessageQueue")
    if sharding_key is not None:
        raise ConfigError(
            "sharding_key",
            sharding_key,
            "either sharding_key or queue: each chooses the queue",
        )


def _is_unsent(error: RmqError) -> bool:
    """True if nothing can have been stored: the request was not written, or its broker does not write now."""
    if isinstance(error, ConnectionLost):
        return not error.was_sent
    return isinstance(error, (ConnectFailed, WindowFull, ServiceNotAvailable)) or (
        isinstance(error, NoRoute) and not error.refused
    )


class Sender:
    """Sends in the name of a producer group, without being a member of it."""

    def __init__(self, session: Session, group: str) -> None:
        self.timeout = session.config.send_timeout_ms / 1000
        self._queue_seconds = session.config.send_queue_ms / 1000
        self._retries = session.config.retry_times
        self._session = session
        self._template = SendTemplate(group, str(session.config.default_topic_queue_nums))

    async def send(
        self,
        outgoing: Outgoing,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send to `queue`, to the queue of `sharding_key`, or else to any queue: failures are then retried at
        other brokers. Raises as `Producer.send`. Cancelled: the message may or may not be stored."""
        session = self._session
        if timeout is not None:
            check_timeout(timeout)
        now = session.now()
        chosen = course = None
        is_free = False
        rotation = session.routes.get(outgoing.topic)
        if queue is not None:
            _check_queue(queue, sharding_key)
            chosen = queue
        elif sharding_key is not None:
            check_type("sharding_key", sharding_key, str, "text")
            if rotation is not None and rotation.is_writable:
                chosen = select_by_key(rotation.route.publish_queues, sharding_key)
        else:
            is_free = True
            if rotation is not None and rotation.is_writable:
                chosen = self._next(rotation, (), now)
        if chosen is not None:
            # The way of nearly all sends: nothing to wait for, and nothing to count. Each call costs time.
            broker = chosen.broker_name
            window, connection = session.windows.of(broker), session.connection(broker)
            if connection is not None and window.room:
                window.room -= 1
                halved = is_free and self._retries and rotation is not None and rotation.is_spread
                seconds = self.timeout if timeout is None else timeout
                if halved:
                    seconds /= 2
                try:
                    return await self._exchange(connection, outgoing, chosen, now, seconds)
                except RmqError as error:
                    course = self._course(now, timeout)
                    course.written_at, course.asked, course.broker = now, seconds, broker
                    known = rotation if is_free else None
                    pause = self._after(error, outgoing.topic, course, known, is_free=is_free)
                finally:
                    window.leave()
                await self._rest(pause)
        if course is None:
            course = self._course(now, timeout)
            course.chosen = chosen if is_free else None
        return await self._patiently(outgoing, queue, sharding_key, course)

    def _course(self, now: float, timeout: float | None) -> SendAttempts:
        if timeout is None:
            return SendAttempts(now, self._retries, self.timeout, self._queue_seconds)
        return SendAttempts(now, self._retries, timeout, timeout, timeout)

    async def send_oneway(
        self, outgoing: Outgoing, queue: MessageQueue | None = None, sharding_key: str | None = None
    ) -> None:
        """Hand a request without an answer to a connection. Raises NoRoute, ConnectFailed. Cancelled: the
        request may or may not be sent."""
        if queue is not None:
            _check_queue(queue, sharding_key)
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
        """The writable queues of `topic`, also of a topic that a broker creates on the first send.

        Raises NoRoute. Cancelled: nothing changes.
        """
        session = self._session
        rotation = await session.rotation(topic, timeout, create=True)
        if not rotation.is_writable:
            await session.refresh(topic, timeout)
            rotation = await session.rotation(topic, timeout)
        if not rotation.is_writable:
            detail = "it has no writable queue with a master"
            raise no_route(topic, session.name_servers.addresses, detail)
        return rotation

    async def _patiently(
        self, outgoing: Outgoing, fixed: MessageQueue | None, sharding_key: str | None, course: SendAttempts
    ) -> SendResult:
        """Send with all waits: for a route, for room, for a connection, and for retries. During a pause the
        send stays in its broker's window, so that later sends wait and do not try, too."""
        session, topic = self._session, outgoing.topic
        is_free = fixed is None and sharding_key is None
        inside: Window | None = None
        rotation: Rotation | None = None
        try:
            while True:
                course.broker = "" if fixed is None else fixed.broker_name
                try:
                    if fixed is None:
                        rotation = session.routes.get(topic)
                        if rotation is None or not rotation.is_writable:
                            rotation = await self._search(topic, course)
                    queue = self._queue(fixed, sharding_key, rotation, course)
                    course.broker = queue.broker_name
                    window = session.windows.of(queue.broker_name)
                    others = rotation.broker_names if is_free and rotation is not None else ()
                    if window is not inside:
                        if inside is not None:
                            inside.leave()
                            inside = None
                        if not await window.enter(course.patience_left(session.now()), others):
                            continue
                        inside = window
                    return await self._attempt(outgoing, queue, course, rotation if is_free else None)
                except RmqError as error:
                    pause = self._after(error, topic, course, rotation if is_free else None, is_free=is_free)
                await self._rest(pause)
        finally:
            if inside is not None:
                inside.leave()

    async def _search(self, topic: str, course: SendAttempts) -> Rotation:
        """The route of a topic that has none, or none that can be written. Raises NoRoute."""
        session = self._session
        if course.limit == math.inf:
            return await self._found(topic, course)
        with anyio.move_on_after(course.patience_left(session.now())):
            return await self._found(topic, course)
        search = course.search
        if search is None or search.last is None:  # another send began it, and has more time
            raise session.name_servers.unanswered(topic, course.limit)
        raise search.last.with_traceback(None)

    async def _found(self, topic: str, course: SendAttempts) -> Rotation:
        """Wait for a route: of many sends that wait for one, a single send queries repeatedly, and the others
        use its results."""
        session = self._session
        while (search := session.searches.get(topic)) is not None:
            course.search = search
            await search.over.wait()
            rotation = session.routes.get(topic)
            if rotation is not None and rotation.is_writable:
                return rotation
            if search.error is not None and self._is_over(search.error, topic, course):
                raise search.error.with_traceback(None)
        course.search = search = session.searches[topic] = RouteRequest()
        try:
            while True:
                try:
                    return await self.rotation(topic, self._asking_seconds(course))
                except NoRoute as error:
                    search.last = error
                    # At least once more: the first answer may have come while a burst of sends kept the loop
                    # busy.
                    if error.refused or (course.pauses and self._is_over(error, topic, course)):
                        search.error = error
                        raise
                await anyio.sleep(self._pause(course))
        finally:
            del session.searches[topic]
            search.over.set()

    def _asking_seconds(self, course: SendAttempts) -> float:
        """Seconds that name servers may take now. A send with a limit has their errors before its own end."""
        seconds = min(self.timeout, course.timeout)
        if course.limit == math.inf:
            return seconds
        left = course.patience_left(self._session.now()) * ASKING_PART
        return max(min(seconds, left), SHORTEST_PAUSE_SECONDS)

    def _queue(
        self, fixed: MessageQueue | None, key: str | None, rotation: Rotation | None, course: SendAttempts
    ) -> MessageQueue:
        """The queue of the next attempt."""
        if fixed is not None:
            return fixed
        assert rotation is not None
        if key is not None:
            return select_by_key(rotation.route.publish_queues, key)
        session = self._session
        chosen, course.chosen = course.chosen, None
        if chosen is not None and session.windows.of(chosen.broker_name).room:
            return chosen
        now = session.now()
        busy = {*course.tried, *session.windows.full(), *self._avoided(now)}
        return rotation.next(busy) if rotation.has_other(busy) else self._next(rotation, course.tried, now)

    async def _attempt(
        self, outgoing: Outgoing, queue: MessageQueue, course: SendAttempts, rotation: Rotation | None
    ) -> SendResult:
        """Send a request to a queue's broker, as soon as a connection takes it."""
        session, broker = self._session, queue.broker_name
        address = session.routes.master(broker)
        if address is None:
            await session.refresh(outgoing.topic, min(self.timeout, course.timeout))
            address = session.brokers.master(queue)
        seconds = max(course.seconds_left(session.now()), SHORTEST_PAUSE_SECONDS)
        # While another broker is left to try, a broker that hangs may take half of the time, not all of it.
        if course.retries and rotation is not None and rotation.has_other([*course.tried, broker]):
            seconds /= 2
        connection = session.connection(broker)
        if connection is None:
            patience = max(course.patience_left(session.now()), SHORTEST_PAUSE_SECONDS)
            connection = await session.pool.connection(address, min(seconds, patience))
        if connection.is_busy:
            await self._room(connection, queue, course)
        course.written_at = now = session.now()
        course.asked = seconds
        return await self._exchange(connection, outgoing, queue, now, seconds)

    async def _room(self, connection: Connection, queue: MessageQueue, course: SendAttempts) -> None:
        """Wait until earlier writes are in flight."""
        session = self._session
        patience = course.patience_left(session.now())
        with anyio.move_on_after(patience) as scope:
            await connection.room()
        if scope.cancelled_caught:
            raise WindowFull(queue.broker_name, session.windows.of(queue.broker_name).size, patience)

    async def _exchange(
        self, connection: Connection, outgoing: Outgoing, queue: MessageQueue, now: float, seconds: float
    ) -> SendResult:
        """Write the request now, and return its answer. Records the time that it took."""
        session = self._session
        make = self._template.request if connection.is_signing else self._template.framed
        response = await connection.call(make(outgoing, queue, session.now_ms()), seconds)
        ended = session.now()
        session.health.succeeded(queue.broker_name, ended - now, ended)
        if response.code in STATUSES:
            result = read_result(response, queue, outgoing.unique_id)
            if session.config.namespace:
                result.message_queue = attrs.evolve(
                    queue,
                    topic=without_namespace(session.config.namespace, queue.topic),
                    queue_id=result.message_queue.queue_id,
                )
            return result
        raise self._refused(for_code(response.code, response.remark, connection.peer_address), queue)

    def _refused(self, error: ResponseError, queue: MessageQueue) -> ResponseError:
        session = self._session
        is_throttled = isinstance(error, SystemBusy) and error.wait_seconds > 0  # the account's fault
        if isinstance(error, (SystemBusy, ServiceNotAvailable)) and not is_throttled:
            session.health.failed(queue.broker_name, session.now())
        if error.refresh_route:
            session.refresh_soon(queue.topic)
        if error.hint:
            error.add_note(error.hint)
        return error

    def _next(self, rotation: Rotation, tried: Collection[str], now: float) -> MessageQueue:
        """The next queue: on no tried broker, and if possible on no broker to avoid."""
        avoided = self._avoided(now)
        if avoided:
            both = {*tried, *avoided}
            if rotation.has_other(both):
                return rotation.next(both)
        return rotation.next(tried)

    def _avoided(self, now: float) -> Collection[str]:
        session = self._session
        return session.health.avoided(now) if session.config.avoid_slow_brokers else ()

    def _after(
        self,
        error: RmqError,
        topic: str,
        course: SendAttempts,
        rotation: Rotation | None,
        *,
        is_free: bool,
    ) -> float:
        """Handle a failed attempt: raise its error, or that of the whole send, when no attempt follows;
        return the pause before the next attempt."""
        session = self._session
        if session.has_ended and isinstance(error, NETWORK_ERRORS):  # no attempt could be made
            raise not_open("client", "send") from error
        now = session.now()
        if isinstance(error, NETWORK_ERRORS):
            self._note_failure(course.broker, topic, error, now, rotation)
        if _is_unsent(error):
            course.note(error, now)
            if isinstance(error, WindowFull) or self._is_over(error, topic, course):
                self._give_up(error, course, is_free)
        else:
            course.attempted(now)
            if not error.retriable or not is_free:
                raise error
            course.note(error, now)
            if not course.retries or course.seconds_left(now) <= SHORTEST_PAUSE_SECONDS:
                self._give_up(error, course, is_free)
            tried = (*course.tried, course.broker)
            if course.is_forbidden and not (rotation is not None and rotation.has_other(tried)):
                session.refresh_soon(topic)
                self._give_up(error, course, is_free)  # the same brokers would answer the same again
            course.retries -= 1
        session.send_retries[topic] += 1
        error.with_traceback(None)  # it is kept, and its frames would be, too
        course.tried.append(course.broker)
        if rotation is not None and rotation.has_other(course.tried):
            return 0.0
        course.tried.clear()
        session.refresh_soon(topic)  # the name servers may know another broker
        pause = error.wait_seconds if isinstance(error, SystemBusy) else 0.0
        return max(self._pause(course), min(pause, course.patience_left(self._session.now())))

    def _pause(self, course: SendAttempts) -> float:
        """Seconds to the next attempt: longer each time, and random, so that many sends do not come
        together."""
        longest = exponential_backoff(FIRST_PAUSE_SECONDS, course.pauses, LONGEST_PAUSE_SECONDS)
        course.pauses += 1
        left = course.patience_left(self._session.now())
        return min(longest * self._session.chance.uniform(0.5, 1.0), max(left, SHORTEST_PAUSE_SECONDS))

    def _give_up(self, error: RmqError, course: SendAttempts, is_free: bool) -> NoReturn:
        last = course.end() if is_free else error
        raise last from (None if last is error else error)

    def _is_over(self, error: RmqError, topic: str, course: SendAttempts) -> bool:
        """True if the send has waited long enough for the missing thing that an error names. An unknown
        topic, or a topic without write permission, is probably a mistake, which is reported soon."""
        patience = course.patience
        if isinstance(error, NoRoute):
            known = self._session.routes.get(topic)
            if known is None or all(MASTER_ID in by_id for by_id in known.route.brokers.values()):
                patience = min(self.timeout, patience)
        elif isinstance(error, ServiceNotAvailable):  # it stops, and may be back soon; or its disk is full
            patience = min(self.timeout, patience)
        now = self._session.now()
        return course.waited(now) >= patience or course.patience_left(now) <= 0

    def _note_failure(
        self, broker: str, topic: str, error: RmqError, now: float, rotation: Rotation | None
    ) -> None:
        session = self._session
        session.refresh_soon(topic)
        if session.health.failed(broker, now):
            log.warning("sends to broker %s fail, preferring other brokers for now: %s", broker, error)
            if rotation is not None and rotation.has_other(session.health.avoided(now)):
                session.windows.of(broker).disperse()

    async def _rest(self, seconds: float) -> None:
        if seconds:
            await anyio.sleep(seconds)
