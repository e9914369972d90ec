"""LeasedConsumer: handlers run on single messages, with leases that are renewed during the work."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from types import TracebackType
from typing import Final

import anyio

from rmq.client.consume.isolation import Isolated
from rmq.client.consume.retry import Backoff, Retry
from rmq.client.consume.subscription import OnError, Sql
from rmq.client.reading.simple_consumer import ReceivedMessage, SimpleConsumer
from rmq.client.session.session import PASSING, Session
from rmq.errors import NETWORK_ERRORS, NoRoute, ResponseError, check_callable, check_number
from rmq.message import StoredMessage
from rmq.remoting.cancellation import as_failure, cancel_requests, raise_failure
from rmq.remoting.loop import AsyncResource, Wakeup, unwrap_groups
from rmq.remoting.threads import ThreadWaits, as_async

LEASE_SECONDS: Final = 60.0
POLL_SECONDS: Final = 15.0
FAILED_SECONDS: Final = 1.0
ACKS_MAX: Final = 512
"""Acknowledgements of one request."""
ACK_SECONDS: Final = 0.1
"""Acknowledgements are gathered for so long, as each request costs the broker a write; not in order, where
the next message waits for them."""

AT_HAND: Final = 128
"""Messages that wait for fast handlers."""
FAST_SECONDS: Final = 0.05
SLOW_SECONDS: Final = 0.5
"""Handlers that work on a batch so long are fast, or slow. For slow handlers no more messages wait than there
are handlers, since other members could work on them."""

FAILURES: Final = (*NETWORK_ERRORS, NoRoute, ResponseError)
Handler = Callable[[StoredMessage], Awaitable[object] | object]

log = logging.getLogger("rmq.client.consumer")


class LeasedConsumer(AsyncResource):
    """Consumes single messages: `client.consumer(group, topics, per_message=True)`.

    Members of a group share the topics whatever the number of queues, and a slow message holds up no other. A
    message is leased for `lease` seconds, and the lease is renewed while its handler works. A handler that
    returns acknowledges its message; a failed handler gives the message back, for a retry after the time that
    a `Retry` or the consumer's `retry` says, else by the policy of the group.
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
        check_number("lease", lease, 3, whole=False)
        self._inner = SimpleConsumer(session, group, topics, in_order=in_order, from_first=from_first)
        self.group = self._inner.group
        self._session = session
        self._observers = session.observers
        self._on_error = on_error
        self._retry = retry
        self._lease = lease
        self._drain_seconds = session.config.drain_timeout_ms / 1000
        self._waiting: deque[ReceivedMessage] = deque()
        self._working: dict[ReceivedMessage, None] = {}
        self._acks: list[ReceivedMessage] = []
        self._gather_seconds = 0.0 if in_order else min(ACK_SECONDS, lease / 30)
        self._messages = anyio.Semaphore(0)
        """One for each message that waits; more when there is to be an end."""
        self._has_room, self._has_acks, self._has_many = Wakeup(), Wakeup(), Wakeup()
        self._running: set[anyio.CancelScope] = set()
        self._is_stopping = False
        self._workers = 0
        self._receiving = anyio.CancelScope()
        self._idle = anyio.Event()
        self._threads = ThreadWaits()

    async def __aenter__(self) -> LeasedConsumer:
        """Begin. Cancelled: the consumer is not open."""
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop: handlers are cancelled, their messages are redelivered."""
        self._is_stopping = True
        for scope in self._running:
            scope.cancel()
        await self._inner.__aexit__(kind, error, trace)

    def check_ready(self) -> None:
        """Return: a member needs no queues."""

    @property
    def in_flight(self) -> int:
        """The messages that this consumer has."""
        return len(self._waiting) + len(self._working)

    async def drain(self, timeout: float | None = None) -> bool:
        """Receive nothing more, and let the handlers that run end, within `timeout` seconds
        (by default `drain_timeout_ms`). Messages that wait for a handler are given back. Returns whether all
        ended by themselves. Cancelled: the consumer has stopped, and handlers may still run.
        """
        if timeout is None:
            timeout = self._drain_seconds
        check_number("timeout", timeout, 0, whole=False)
        self._is_stopping = True
        waiting = list(self._waiting)
        self._waiting.clear()
        for message in waiting:
            await self._give_back(message, 0.0)
        self._wake_all()
        is_done = True
        if self._running:
            with anyio.move_on_after(timeout) as scope:
                await self._idle.wait()
            is_done = not scope.cancelled_caught
        for running in self._running:
            running.cancel()
        self._threads.give_up()
        return is_done

    def _wake_all(self) -> None:
        """Wake the tasks of all runs, so that the runs end."""
        for _ in range(self._workers):
            self._messages.release()
        self._has_room.set()
        self._receiving.cancel()

    async def run(self, handler: Handler, *, concurrency: int = 20) -> None:
        """Call `handler` with each message, up to `concurrency` at a time, until the consumer drains or its
        block is left.

        Returning means acknowledged. An exception is logged and the message is redelivered; with
        `on_error="raise"` the exception is raised, but for a `Retry`. An ordinary function runs in a worker
        thread. Cancelled: handlers are cancelled; their messages are redelivered.
        """
        check_number("concurrency", concurrency, 1)
        check_callable("handler", handler, "a function of a message")
        with self._threads.used():
            call = Isolated(self._observers.handler(self.group, as_async(handler, concurrency)))
        self._idle, self._workers = anyio.Event(), concurrency
        with anyio.CancelScope() as scope, self._threads.used(), unwrap_groups():
            self._running.add(scope)
            try:
                async with anyio.create_task_group() as around:
                    around.start_soon(self._renew)
                    around.start_soon(self._acknowledge)
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._receive, concurrency)
                        for _ in range(concurrency):
                            tasks.start_soon(self._work, call)
                    with anyio.move_on_after(self._drain_seconds):
                        await self._flush()
                    around.cancel_scope.cancel()
            finally:
                self._running.discard(scope)
                self._idle.set()

    # ---- the tasks of a run ----

    async def _receive(self, concurrency: int) -> None:
        """Keep a message at hand for each handler, or as many as the handlers finish in a moment. More are
        taken when half of them are worked on: taken singly, each would cost a request."""
        size, came_at = concurrency, self._session.now()
        while not self._is_stopping:
            room = size - len(self._waiting)
            if room < size / 2:
                await self._has_room.wait()
                continue
            lasted = self._session.now() - came_at
            if lasted > SLOW_SECONDS:
                size = concurrency
                room = max(1, size - len(self._waiting))
            found: list[ReceivedMessage] = []
            try:
                with anyio.CancelScope() as self._receiving:
                    found = await self._inner.receive(room, wait=POLL_SECONDS, invisible=self._lease)
            except FAILURES as error:
                log.warning("%s: cannot take messages: %s", self.group, error)
                await anyio.sleep(FAILED_SECONDS)
                continue
            if self._is_stopping:
                for message in found:
                    await self._give_back(message, 0.0)
                return
            if lasted < FAST_SECONDS and len(found) >= room:
                size = min(2 * size, max(concurrency, AT_HAND))
            came_at = self._session.now()
            self._waiting += found
            for _ in found:
                self._messages.release()

    async def _work(self, call: Isolated) -> None:
        context, requests = copy_context(), cancel_requests()
        while True:
            await self._messages.acquire()
            if not self._waiting:
                if self._is_stopping:
                    return
                continue
            message = self._waiting.popleft()
            self._has_room.set()
            if message.expires_at <= self._session.now():
                continue
            self._working[message] = None
            try:
                await call(message)
            except BaseException as error:
                failure = as_failure(error, requests)
                if failure is None:
                    raise
                await self._failed(message, failure)
                if self._on_error == "raise" and not isinstance(failure, Retry):
                    raise_failure(failure, error)
            else:
                self._acks.append(message)
                if len(self._acks) == 1:
                    self._has_acks.set()
                elif len(self._acks) == ACKS_MAX:
                    self._has_many.set()
            finally:
                self._working.pop(message, None)
            if not call.is_needed:
                call.look(context)

    async def _failed(self, message: ReceivedMessage, failure: Exception) -> None:
        after = self._retry.seconds(message.attempt - 1) if self._retry is not None else None
        if isinstance(failure, Retry):
            after = failure.after if failure.after is not None else after
            log.warning("%s: message %s is redelivered: %s", self.group, message.message_id, failure.reason)
        else:
            log.error("%s: %s failed", self.group, message.message_id, exc_info=failure)
        await self._give_back(message, after)

    async def _give_back(self, message: ReceivedMessage, after: float | None) -> None:
        try:
            await self._inner.nack(message, after=after)
        except FAILURES as error:
            log.warning(
                "%s: message %s is redelivered when its lease ends: %s", self.group, message.message_id, error
            )

    async def _acknowledge(self) -> None:
        """Send acknowledgements, in batches."""
        while True:
            await self._has_acks.wait()
            if self._gather_seconds:
                await self._has_many.wait(anyio.current_time() + self._gather_seconds)
            await self._flush()

    async def _flush(self) -> None:
        """Send the acknowledgements; a failed one is retried as long as its lease lasts."""
        while self._acks:
            some, self._acks = self._acks[:ACKS_MAX], self._acks[ACKS_MAX:]
            try:
                await self._inner.ack(*some)
            except FAILURES as error:
                now = self._session.now()
                passes = isinstance(error, (*NETWORK_ERRORS, NoRoute, *PASSING))
                left = [message for message in some if passes and message.expires_at > now]
                self._acks += left
                text = "%s: %d messages are not acknowledged, %d are tried again: %s"
                log.warning(text, self.group, len(some), len(left), error)
                if left:
                    await anyio.sleep(FAILED_SECONDS)

    async def _renew(self) -> None:
        """Extend the leases of all messages of this consumer, before a third of their time is left."""
        while True:
            await anyio.sleep(self._lease / 3)
            soon = self._session.now() + 2 * self._lease / 3
            for message in [*self._working, *self._waiting]:
                if message.expires_at < soon and (message in self._working or message in self._waiting):
                    try:
                        await self._inner.extend(message, self._lease)
                    except FAILURES as error:
                        log.warning(
                            "%s: cannot extend the lease of message %s: %s",
                            self.group,
                            message.message_id,
                            error,
                        )
