"""LeasedConsumer: handlers run on single messages, with leases that are renewed during the work."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sized
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Final

import anyio
import anyio.abc

from rmq.client.consume.consumer import BURST
from rmq.client.consume.dispatch import ReadyQueue
from rmq.client.consume.isolation import Isolated
from rmq.client.consume.retry import Backoff, Retry, delay_of, named, reason_text
from rmq.client.consume.subscription import OnError, Sql
from rmq.client.consume.workers import Workers
from rmq.client.reading.simple_consumer import (
    FAILURES,
    Place,
    ReceivedMessage,
    SimpleConsumer,
    check_lease,
    place_of,
)
from rmq.client.session.requests import LEAVING_SECONDS
from rmq.client.session.session import PASSING, Session
from rmq.errors import NETWORK_ERRORS, NoRoute, check_callable, check_number
from rmq.message import StoredMessage
from rmq.remoting.cancellation import (
    as_failure,
    cancel_requests,
    raise_failure,
    resume_when_cancelled_alone,
)
from rmq.remoting.loop import AsyncResource, Wakeup, unwrap_groups
from rmq.remoting.threads import ThreadWaits, as_async

LEASE_SECONDS: Final = 60.0
POLL_SECONDS: Final = 15.0
FAILED_SECONDS: Final = 1.0
ACKS_MAX: Final = 2_048
"""Acknowledgements of one request."""
ACK_SECONDS: Final = 0.1
"""Seconds for which acknowledgements are gathered, as each request costs the broker a write; not in order,
where the next message waits for them."""

AT_HAND: Final = 1_024
"""Messages that wait for fast handlers, as many as with a push consumer of four queues."""
FAST_SECONDS: Final = 0.2
SLOW_SECONDS: Final = 1.0
"""Seconds for half of the waiting messages that divide fast handlers from slow ones. For slow handlers only
as many messages wait as there are handlers, since other members could work on them."""
EXTENSIONS_AT_ONCE: Final = 16
"""Requests in flight that extend leases at one broker: one at a time, over a slow network, would be late for
many messages."""
RELEASES_AT_ONCE: Final = 16
"""Requests in flight that give back messages at a drain."""

Handler = Callable[[StoredMessage], Awaitable[object] | object]

log = logging.getLogger("rmq.client.consumer")


class LeasedConsumer(AsyncResource):
    """Consumes single messages: `client.consumer(group, topics, per_message=True)`.

    Members of a group share the topics whatever the number of queues, and a slow message holds up no other. A
    message is leased for `lease` seconds, and the lease is renewed while its handler works. When a handler
    returns, its message is acknowledged; when it fails, its message is retried after the delay of a `Retry`
    or of the consumer's `retry`, else by the policy of the group.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        topics: Mapping[str, str | Sql],
        *,
        in_order: bool = False,
        from_first: bool = False,
        on_error: OnError = "retry",
        retry: Backoff | None = None,
        lease: float = LEASE_SECONDS,
    ) -> None:
        check_lease("lease", lease, 3)
        self._workers = Workers()
        self._inner = SimpleConsumer(
            session,
            group,
            topics,
            in_order=in_order,
            from_first=from_first,
            workers=self._workers,
            problem=self._problem,
        )
        self._scope = self._inner._scope
        self.group = self._inner.group
        self._session = session
        self._observers = session.observers
        self._on_error = on_error
        self._retry = retry
        self._lease = lease
        self._drain_seconds = session.config.drain_timeout_ms / 1000
        self._ready: ReadyQueue[ReceivedMessage] = ReadyQueue()
        self._handled = 0
        self._refill_at = 0
        """Number of waiting messages below which more are taken."""
        self._working: dict[ReceivedMessage, None] = {}
        self._acks: list[ReceivedMessage] = []
        self._cut_off: list[ReceivedMessage] = []
        """Messages whose handlers were cancelled."""
        self._gather_seconds = 0.0 if in_order else min(ACK_SECONDS, lease / 30)
        self._has_room, self._has_acks, self._has_many = Wakeup(), Wakeup(), Wakeup()
        self._running: set[anyio.CancelScope] = set()
        self._is_stopping = False
        self._receiving = anyio.CancelScope()
        self._idle = anyio.Event()
        self._threads = ThreadWaits()

    async def __aenter__(self) -> LeasedConsumer:
        """Begin to receive. Cancelled: the consumer is not open."""
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the consumer: handlers are cancelled. Messages whose handlers have ended are acknowledged
        first, and all others given back."""
        self._is_stopping = True
        for scope in self._running:
            scope.cancel()
        with self._session.brokers.leaving.going_on():
            try:
                with anyio.move_on_after(LEAVING_SECONDS, shield=True):
                    if self._running:
                        await self._idle.wait()
                    await self._give_back()
            finally:
                await self._inner.__aexit__(kind, error, trace)

    def _problem(self) -> str:
        return "" if self._is_stopping else self._workers.problem()

    def check_ready(self) -> None:
        """Raises NotReady when this consumer does not consume: its `run` has ended, or no broker answers. A
        member needs no queues."""
        self._inner.check_ready()

    @property
    def in_flight(self) -> int:
        """Number of messages that this consumer holds."""
        return len(self._ready.entries) + len(self._working)

    async def drain(self, timeout: float | None = None) -> bool:
        """Receive nothing more, and let the handlers that run end, within `timeout` seconds (by default
        `drain_timeout_ms`). Messages that wait for a handler are given back, without a counted attempt.
        Returns whether all ended by themselves. Cancelled: the consumer has stopped, and handlers may still
        run.
        """
        if timeout is None:
            timeout = self._drain_seconds
        check_number("timeout", timeout, 0, whole=False)
        self._is_stopping = True
        await self._give_back()
        await self._inner._stop_taking()
        is_done = True
        if self._running:
            with anyio.move_on_after(timeout) as scope:
                await self._idle.wait()
            is_done = not scope.cancelled_caught
        for running in self._running:
            running.cancel()
        self._threads.give_up()
        return is_done

    async def _give_back(self) -> None:
        """Take no more messages, and give back the messages that wait for a handler."""
        waiting = list(self._ready.entries)
        self._ready.close()
        self._has_room.set()
        self._receiving.cancel()
        silent, left = Counter[str](), iter(waiting)
        async with anyio.create_task_group() as tasks:
            for _ in range(min(RELEASES_AT_ONCE, len(waiting))):
                tasks.start_soon(self._inner._release_all, left, silent, self._log_failed_nack)
        for broker, count in silent.items():
            text = "%s: broker %s cannot be reached: %d messages are redelivered when their leases end"
            log.warning(text, self.group, broker, count)

    async def run(self, handler: Handler, *, concurrency: int = 20) -> None:
        """Call `handler` with each message, up to `concurrency` at a time, until the consumer drains or its
        block is left.

        A return acknowledges the message. An exception is logged and the message is redelivered; with
        `on_error="raise"` the exception is raised, but for a `Retry`. An ordinary function runs in a worker
        thread. Cancelled: handlers are cancelled, and their messages are redelivered.
        """
        check_number("concurrency", concurrency, 1)
        check_callable("handler", handler, "a function of a message")
        with self._threads.used():
            call = Isolated(self._observers.handler(self.group, as_async(handler, concurrency)))
        self._idle = anyio.Event()
        with (
            anyio.CancelScope() as scope,
            self._threads.used(),
            self._workers.requested(concurrency) as crew,
            unwrap_groups(),
        ):
            self._running.add(scope)
            try:
                async with anyio.create_task_group() as around:
                    around.start_soon(self._renew, around)
                    around.start_soon(self._acknowledge)
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._receive, concurrency)
                        one = partial(self._work, crew.got_messages, call)
                        crew.begin(lambda: tasks.start_soon(self._keep_working, one))
                    with anyio.move_on_after(self._drain_seconds):
                        await self._flush()
                    around.cancel_scope.cancel()
            finally:
                try:
                    if self._acks or self._cut_off:  # the run is cancelled
                        with anyio.move_on_after(self._session.brokers.timeout, shield=True):
                            await self._flush()
                            await self._nack_cut_off()
                finally:
                    self._running.discard(scope)
                    self._idle.set()

    # ---- the tasks of a run ----

    async def _receive(self, concurrency: int) -> None:
        """Keep a message ready for each handler, or as many as the handlers finish in a moment. More are
        taken when half of them are in work: taken singly, each would cost a request."""
        size, came_at, entries = concurrency, self._session.now(), self._ready.entries
        handled = self._handled
        while not self._is_stopping:
            room, self._refill_at = size - len(entries), size // 2
            if room < size / 2:
                await self._has_room.wait()
                continue
            lasted = self._session.now() - came_at
            if lasted > SLOW_SECONDS:
                size = concurrency
                room = max(1, size - len(entries))
            found: list[ReceivedMessage] = []
            try:
                with anyio.CancelScope() as self._receiving:
                    found = await self._inner.receive(room, wait=POLL_SECONDS, invisible=self._lease)
            except FAILURES as error:
                log.warning("%s: cannot take messages: %s", self.group, error)
                await anyio.sleep(FAILED_SECONDS)
                continue
            if self._is_stopping:
                await self._inner._release_all(found, Counter(), self._log_failed_nack)
                return
            is_fast = lasted < FAST_SECONDS and self._handled - handled >= size // 2
            if is_fast and len(found) >= room:
                size = min(2 * size, max(concurrency, AT_HAND))
            came_at, handled = self._session.now(), self._handled
            self._ready.put(found)

    async def _keep_working(self, work: Callable[[], Awaitable[None]]) -> None:
        with self._workers.one():
            await resume_when_cancelled_alone(work, self.group)

    async def _work(self, got_messages: Callable[[Sized], None], call: Isolated) -> None:
        while not self._ready.is_closed:
            if self._cut_off:  # a handler has ended this worker's task alone
                await self._nack_cut_off()
            await self._ready.arrival()
            got_messages(self._ready.parked)
            await self._burst(call)
            await anyio.lowlevel.checkpoint()

    async def _burst(self, call: Isolated) -> None:
        """Handle ready messages, before other tasks get a turn."""
        ready, entries, working = self._ready, self._ready.entries, self._working
        context, requests, now = copy_context(), cancel_requests(), self._session.now
        if len(entries) > 1:
            ready.wake()
        for _ in range(BURST):
            if not entries:
                return
            message = entries.popleft()
            if len(entries) <= self._refill_at:
                self._has_room.set()
            if message.expires_at <= now():
                continue
            working[message] = None
            try:
                await call(message)
            except BaseException as error:
                failure = as_failure(error, requests)
                if failure is None:
                    self._cut_off.append(message)
                    raise
                await self._failed(message, failure)
                if self._on_error == "raise" and not isinstance(failure, Retry):
                    raise_failure(failure, error)
            else:
                self._done(message)
            finally:
                working.pop(message, None)
                self._handled += 1
            if not call.is_needed:
                call.look(context)

    async def _failed(self, message: ReceivedMessage, failure: Exception) -> None:
        delay = delay_of(failure, None, self._retry, message.attempt - 1)
        what = "is given up" if delay.level < 0 else "is redelivered"
        if isinstance(failure, Retry):
            log.warning("%s: %s %s: %s", self.group, named(message), what, failure.reason)
        else:
            log.error("%s: %s failed", self.group, named(message), exc_info=failure)
        if delay.level >= 0 or not await self._give_up(message, reason_text(failure)):
            await self._nack(message, delay.in_seconds)

    async def _give_up(self, message: ReceivedMessage, reason: str) -> bool:
        """Make a message a dead letter, and acknowledge it: when the acknowledgement fails, the message is
        redelivered all the same. False when the broker does not take the dead letter."""
        limit = self._session.config.max_reconsume_times
        try:
            await self._session.brokers.send_back(message, self.group, -1, limit, reason)
        except FAILURES as error:
            text = "%s: cannot send %s to the dead letters: %s"
            log.warning(text, self.group, named(message), error)
            return False
        self._done(message)
        return True

    def _done(self, message: ReceivedMessage) -> None:
        """Acknowledge a message with the next batch."""
        self._acks.append(message)
        if len(self._acks) == 1:
            self._has_acks.set()
        elif len(self._acks) == ACKS_MAX:
            self._has_many.set()

    async def _nack_cut_off(self) -> None:
        """Nack messages whose handlers were cancelled."""
        while self._cut_off:
            await self._nack(self._cut_off.pop(), self._session.config.redelivery_delay_ms / 1000)

    async def _nack(self, message: ReceivedMessage, after: float | None) -> None:
        try:
            await self._inner.nack(message, after=after)
        except FAILURES as error:
            self._log_failed_nack(message, error)

    def _log_failed_nack(self, message: ReceivedMessage, error: Exception) -> None:
        text = "%s: message %s is redelivered when its lease ends: %s"
        log.warning(text, self.group, message.message_id, error)

    async def _acknowledge(self) -> None:
        """Send acknowledgements, in batches: the next batch is gathered during a request."""
        while True:
            if not self._acks:
                await self._has_acks.wait()
            if self._gather_seconds and len(self._acks) < ACKS_MAX:
                await self._has_many.wait(anyio.current_time() + self._gather_seconds)
            await self._send_acks()

    async def _flush(self) -> None:
        """Send all acknowledgements."""
        while self._acks:
            await self._send_acks()

    async def _send_acks(self) -> None:
        """Send one batch of acknowledgements; a failed one is retried as long as its lease lasts."""
        some, self._acks = self._acks[:ACKS_MAX], self._acks[ACKS_MAX:]
        by_place: dict[Place, list[ReceivedMessage]] = {}
        for message in some:
            by_place.setdefault(place_of(message), []).append(message)
        left: list[ReceivedMessage] = []
        with anyio.CancelScope(shield=True):  # else the broker's state of each message is unknown
            if len(by_place) == 1:
                await self._ack(some, left)
            else:
                async with anyio.create_task_group() as tasks:  # brokers that hang do so at the same time
                    for mine in by_place.values():
                        tasks.start_soon(self._ack, mine, left)
        if left:
            await anyio.sleep(FAILED_SECONDS)

    async def _ack(self, some: list[ReceivedMessage], left: list[ReceivedMessage]) -> None:
        """Acknowledge messages of one broker; those to be tried again are also added to `left`."""
        try:
            await self._inner.ack(*some)
        except FAILURES as error:
            again = [message for message in some if self._passes(error, message)]
            self._acks += again
            left += again
            text = "%s: %d messages are not acknowledged, %d are tried again: %s"
            log.warning(text, self.group, len(some), len(again), error)

    def _passes(self, error: Exception, message: ReceivedMessage) -> bool:
        """True if a request for the message that failed with `error` may succeed before its lease ends."""
        is_passing = isinstance(error, (*NETWORK_ERRORS, NoRoute, *PASSING))
        return is_passing and message.expires_at > self._session.now()

    async def _renew(self, tasks: anyio.abc.TaskGroup) -> None:
        """Extend the leases of all messages of this consumer, before a third of their time is left: at each
        broker by itself, as a broker that hangs must not hold up the others."""
        busy = set[str]()
        while True:
            await anyio.sleep(self._lease / 3)
            soon = self._session.now() + 2 * self._lease / 3
            by_broker: dict[str, deque[ReceivedMessage]] = {}
            for message in [*self._working, *self._ready.entries]:
                if message.expires_at < soon:
                    by_broker.setdefault(message.broker_name, deque()).append(message)
            for broker in by_broker.keys() - busy:
                busy.add(broker)
                tasks.start_soon(self._extend_all, broker, by_broker[broker], busy)

    async def _extend_all(self, broker: str, messages: deque[ReceivedMessage], busy: set[str]) -> None:
        """Extend the leases of messages of one broker, which is `busy` meanwhile."""
        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(min(EXTENSIONS_AT_ONCE, len(messages))):
                    tasks.start_soon(self._extend_some, messages)
        finally:
            busy.discard(broker)

    async def _extend_some(self, messages: deque[ReceivedMessage]) -> None:
        """Extend leases, one after the other. A failure that passes is tried again as long as the lease
        lasts."""
        while messages:
            message = messages.popleft()
            if message not in self._working and message not in self._ready.entries:
                continue
            try:
                await self._inner.extend(message, self._lease)
            except FAILURES as error:
                text = "%s: cannot extend the lease of message %s: %s"
                log.warning(text, self.group, message.message_id, error)
                if self._passes(error, message):
                    messages.append(message)
                    await anyio.sleep(min(FAILED_SECONDS, self._lease / 30))
