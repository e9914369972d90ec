"""Consumer: a member of a consumer group that gets messages as they come."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sized
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any

import anyio
import anyio.lowlevel

from rmq.client.consume.deliveries.delivery import Delivery
from rmq.client.consume.deliveries.timeouts import InFlight
from rmq.client.consume.dispatch import MessageDispatch
from rmq.client.consume.group_member import GroupMember
from rmq.client.consume.isolation import Isolated
from rmq.client.consume.message_view import PulledMessage
from rmq.client.consume.subscription import ConsumerOptions, Sql, check_queues
from rmq.client.session.session import Session
from rmq.errors import check_callable, check_number, not_open
from rmq.message import MessageQueue, StoredMessage, validate_group
from rmq.remoting.cancellation import (
    as_failure,
    cancel_requests,
    raise_failure,
    resume_when_cancelled_alone,
)
from rmq.remoting.loop import AsyncResource, TaskGroupScope, unwrap_groups
from rmq.remoting.threads import ThreadWaits, as_async

log = logging.getLogger("rmq.client.consumer")

Handler = Callable[[StoredMessage], Awaitable[object] | object]
BatchHandler = Callable[[list[StoredMessage]], Awaitable[object] | object]

BURST = 64
"""Messages that one task takes before it lets other tasks run, when its handler never waits."""


class Consumer(AsyncResource):
    """Consumes messages, in one of two ways, over any number of tasks:

        async for delivery in consumer:
            async with delivery as message:
                ...

        await consumer.run(handler, concurrency=20)

    Each message is delivered at least once; messages of a queue begin in order but do not wait for each
    other. Leaving the block stops pulling, waits for deliveries of other tasks, commits offsets and leaves
    the group, within `shutdown_timeout_ms` and despite cancellation of the block; unfinished messages go to
    other members.

    With `ordered`, a single message, or batch, of a queue is delivered at a time, in the order of their
    offsets; `concurrency` is the number of queues consumed at once. A failed message holds up its queue: it
    is redelivered locally after `suspend_queue_ms`, up to `max_reconsume_times` (without a limit for ever),
    and after that it becomes a dead letter. Leaving the block releases the queue locks; a message in flight
    after the block keeps its queue locked until the broker's time-out of 60 s.
    """

    def __init__(
        self, session: Session, group: str, topics: Mapping[str, str | Sql], options: ConsumerOptions
    ) -> None:
        self.group = validate_group(group)
        self._observers = session.observers
        self._member = GroupMember(session, group, topics, options)
        self._dispatch = self._member.dispatch
        self._deliveries = self._member.deliveries
        self._scope = TaskGroupScope()
        self._workers = self._member.workers
        self._running: set[anyio.CancelScope] = set()
        self._threads = ThreadWaits()
        self._drain_seconds = session.config.drain_timeout_ms / 1000
        self._taken = 0
        self._has_joined = False

    @property
    def queues(self) -> list[MessageQueue]:
        """The present queues of this member."""
        return self._member.queues

    def check_ready(self) -> None:
        """Raises the obstacle between this consumer and its share of the queues, if one is known: NoRoute,
        Unreachable, ConnectFailed, a ResponseError, or NotReady before its first share. See also
        `Client.ready`."""
        self._member.check_ready()

    async def lag(self) -> dict[MessageQueue, int]:
        """The number of unconsumed messages in each of its queues, according to the brokers. A message
        waiting for a retry counts when its time has come, in the queues of the retry topic. Raises NoRoute,
        ConnectFailed, ConnectionLost, RequestTimeout, ResponseError, and LocalProtocolError before its block.
        Cancelled: nothing has happened."""
        self._check_open()
        return await self._member.lag()

    async def __aenter__(self) -> Consumer:
        """Join the group and take queues.

        The consumer waits for missing topics and silent name servers, with a warning each minute; with
        `require_topics` both are errors, NoRoute or Unreachable. Raises ConfigError when this client has a
        member of that group already, SubscriptionParseFailed when a broker cannot read an SQL92 expression,
        another ResponseError when a broker refuses the group (`rejectSubscriptionConflicts`, access control).
        Cancelled: leaves again.
        """
        async with self._scope.entering():
            with unwrap_groups():
                await self._member.join(self._scope)
        self._has_joined = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the group; see the class. An error of the block is raised unchanged."""
        try:
            await self._member.leave()
        finally:
            await self._scope.__aexit__(kind, error, trace)

    def _check_open(self) -> None:
        if not self._has_joined:
            raise not_open(f"consumer of {self.group}")

    # --- control ---

    def pause(self, *queues: MessageQueue) -> None:
        """Deliver nothing from these queues until `resume`, also when they come back from other members;
        without queues, stop all deliveries. Deliveries in flight continue; pulled messages stay in memory,
        and a queue with a full window is not pulled. Raises InvalidType."""
        self._dispatch.pause(check_queues("queues", queues) if queues else None)

    def resume(self, *queues: MessageQueue) -> None:
        """Deliver from these queues again; without queues, from all. Raises InvalidType."""
        self._dispatch.resume(check_queues("queues", queues) if queues else None)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue in a held queue with the message at `offset`, which is committed as the group's offset.
        Handlers of earlier messages run on, and their end has no effect. An offset that the queue does not
        have is corrected as `offset_reset` says. Raises LocalProtocolError for a queue that is not held,
        InvalidType, ConfigError."""
        check_queues("queue", [queue])
        check_number("offset", offset, 0)
        self._member.seek(queue, offset)

    async def drain(self, timeout: float | None = None) -> bool:
        """Shut down gracefully, as on a signal: take nothing new, let the running handlers and deliveries
        end, commit and leave the group. `run` then returns, and iteration ends.

        Handlers get `timeout` seconds (default: `drain_timeout_ms`). Handlers of `run` that still run after
        that are cancelled, and their messages go to other members. An ordinary function in a thread cannot be
        cancelled: it runs on, with a warning, and its message is redelivered elsewhere. So this takes at most
        `timeout`, and `shutdown_timeout_ms` for leaving. Returns whether all ended by themselves. Inside a
        handler or a delivery's block, `drain` waits for that one, too. Raises InvalidType, ConfigError.
        Cancelled: the consumer has stopped, but has not left yet; leaving the block does that.
        """
        if timeout is None:
            timeout = self._drain_seconds
        check_number("timeout", timeout, 0, whole=False)
        self._member.stop()
        is_done = await self._member.drained(timeout)
        for scope in self._running:
            scope.cancel()
        if given_up := self._threads.give_up():
            log.warning(
                "%s: handlers still running in threads after %g s: %d; their messages are delivered again",
                self.group,
                timeout,
                given_up,
            )
        await self._member.leave()
        return is_done

    # --- iterating ---

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Delivery:
        """The next delivery. Ends when the consumer drains, or its block is left. Raises LocalProtocolError
        before its block. Cancelled: no message is lost."""
        dispatch = self._dispatch
        self._taken += 1
        if not self._taken % BURST:
            await anyio.lowlevel.checkpoint()
        while True:
            message = dispatch.next()
            if message is not None:
                if self._member.has_requests and self._deliveries.drop_expired(message):
                    continue
                return Delivery(self._deliveries, message)
            if dispatch.ready.is_closed:
                raise StopAsyncIteration
            self._check_open()
            await dispatch.ready.arrival()

    def take_now(self) -> Delivery | None:
        """A delivery that is available now, or None. For the blocking client, which calls this from other
        threads: the call takes from a thread-safe queue, and wakes no task."""
        dispatch = self._dispatch
        if self._member.has_requests or not isinstance(dispatch, MessageDispatch):
            return None
        message = dispatch.taken_now()
        return None if message is None else Delivery(self._deliveries, message)

    # --- running a handler ---

    async def run(self, handler: Handler, *, concurrency: int = 20) -> None:
        """Call `handler` with each message, up to `concurrency` at a time, until the consumer drains or its
        block is left.

        A return acknowledges the message. An exception is logged and the message is retried after the group's
        next delay, or the delay of a `Retry`; with `on_error="raise"` any exception except a `Retry` is then
        raised from this call. An ordinary function runs in a worker thread. Messages sent by an administrator
        go to `handler` as well. Each call begins with the context variables of this call of `run`, whatever
        earlier calls have set. Raises LocalProtocolError before the consumer's block. Cancelled: handlers are
        cancelled, and their messages are redelivered.
        """
        check_number("concurrency", concurrency, 1)
        check_callable("handler", handler, "a function of a message")
        with self._threads.used():
            call = Isolated(self._observers.handler(self.group, as_async(handler, concurrency)))
        with self._member.handling(call.alone):
            await self._run_workers(concurrency, self._work, call)

    async def run_batches(self, handler: BatchHandler, *, batch: int = 32, concurrency: int = 1) -> None:
        """Call `handler` as `run` does, but with lists of up to `batch` available messages; a list is
        consumed or retried as a whole. For handlers that write many messages at once, and for the highest
        rates. Cancelled: as `run`."""
        check_number("batch", batch, 1)
        check_number("concurrency", concurrency, 1)
        check_callable("handler", handler, "a function of a list of messages")
        with self._threads.used():
            observed = self._observers.handler(self.group, as_async(handler, concurrency), batches=True)
            call = Isolated(observed)
        with self._member.handling(lambda message: call.alone([message])):
            await self._run_workers(concurrency, self._work_batches, call, batch)

    async def _run_workers(
        self, concurrency: int, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any
    ) -> None:
        self._check_open()
        with anyio.CancelScope() as scope:
            self._running.add(scope)
            try:
                with self._threads.used(), self._workers.requested(concurrency) as crew, unwrap_groups():
                    async with anyio.create_task_group() as tasks:
                        one = partial(work, crew.got_messages, *arguments)
                        crew.begin(lambda: tasks.start_soon(self._keep_working, one))
            finally:
                self._running.discard(scope)

    async def _keep_working(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a worker."""
        with self._workers.one():
            await resume_when_cancelled_alone(work, self.group)

    async def _work(self, got_messages: Callable[[Sized], None], handle: Isolated) -> None:
        ready, deliveries, in_flight = self._dispatch.ready, self._deliveries, InFlight()
        while not ready.is_closed:
            await ready.arrival()
            got_messages(ready.parked)
            deliveries.hold(in_flight)
            try:
                await self._burst(handle, in_flight)
            finally:
                deliveries.release(in_flight)
            await anyio.lowlevel.checkpoint()

    async def _burst(self, handle: Isolated, in_flight: InFlight) -> None:
        deliveries, member, requests = self._deliveries, self._member, cancel_requests()
        context = copy_context()
        for message in self._dispatch.burst(BURST):
            if member.has_requests and deliveries.drop_expired(message):
                continue
            in_flight.messages = (message,)
            try:
                await handle(message)
            except BaseException as error:
                failure = as_failure(error, requests)
                if failure is None:
                    deliveries.schedule_redelivery([message])
                    raise
                await deliveries.failed(message, failure)
                if deliveries.raises(failure):
                    raise_failure(failure, error)
            else:
                window = message.window
                assert window is not None
                window.finish(message.queue_offset)
            if not handle.is_needed:
                handle.look(context)

    async def _work_batches(
        self, got_messages: Callable[[Sized], None], handle: Isolated, batch: int
    ) -> None:
        dispatch, deliveries, in_flight = self._dispatch, self._deliveries, InFlight()
        while not dispatch.ready.is_closed:
            await dispatch.ready.arrival()
            got_messages(dispatch.ready.parked)
            taken = dispatch.take(batch)
            if self._member.has_requests:
                taken = [message for message in taken if not deliveries.drop_expired(message)]
            if not taken:
                continue
            deliveries.hold(in_flight)
            in_flight.messages = taken
            try:
                await self._consume_batch(handle, taken)
            finally:
                deliveries.release(in_flight)
            await anyio.lowlevel.checkpoint()

    async def _consume_batch(self, handle: Isolated, taken: list[PulledMessage]) -> None:
        requests, context = cancel_requests(), copy_context()
        try:
            await handle([*taken])
        except BaseException as error:
            failure = as_failure(error, requests)
            if failure is None:
                self._deliveries.schedule_redelivery(taken)
                raise
            await self._deliveries.nack_all(taken, failure)
            if self._deliveries.raises(failure):
                raise_failure(failure, error)
        else:
            for message in taken:
                if message.window is not None:
                    message.window.finish(message.queue_offset)
        handle.look(context)
