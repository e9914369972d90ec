"""Consumer: a member of a consumer group that gets messages as they come."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import anyio
import anyio.abc

from rmq.client.assignments import Assignments, Membership
from rmq.client.delivery import Consumption, Delivery, Hand, queue_topic
from rmq.client.dispatch import Inbox
from rmq.client.handlers import as_async
from rmq.client.message_view import PulledMessage
from rmq.client.process_queue import ProcessQueue
from rmq.client.session import Session
from rmq.client.subscription import ConsumerOptions, Sql, subscriptions
from rmq.errors import ConfigError, NoRoute
from rmq.message import MessageQueue, StoredMessage, validate_group
from rmq.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    ProcessQueueInfo,
)
from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.record import decode_record
from rmq.remoting.connection import Connection
from rmq.remoting.loop import TaskScope, bare_errors

log = logging.getLogger(__name__)

Handler = Callable[[StoredMessage], Awaitable[object] | object]
BatchHandler = Callable[[list[StoredMessage]], Awaitable[object] | object]

BURST = 64
"""Messages that one task takes before it lets others run, when its handler never waits."""


class Consumer:
    """Consumes messages, in one of two ways, over any number of tasks:

        async for delivery in consumer:
            async with delivery as message:
                ...
        await consumer.run(handler, concurrency=20)

    Each message is delivered at least once; messages of a queue begin in order but are not waited for.
    Leaving the block stops pulling, waits for deliveries that other tasks work on, commits offsets and
    leaves the group, within `shutdown_timeout_ms` and whatever cancels the block meanwhile; messages that
    were not finished go to others.
    """

    ordered = False
    retries = True

    def __init__(
        self, session: Session, group: str, topics: Mapping[str, str | Sql], options: ConsumerOptions
    ) -> None:
        self.group = validate_group(group)
        self._session = session
        self._options = options
        retry = self.retries and not options.broadcasting
        self._subscriptions = subscriptions(topics, group, session.now_ms(), retry=retry)
        self._scope = TaskScope()
        self._inbox: Inbox[PulledMessage] = Inbox()
        self._assignments = self._assign(
            Membership(
                group, self._subscriptions, options.consume_from, options.broadcasting, options.strategy
            )
        )
        self._started_ms = session.now_ms()
        self._handler: Callable[[StoredMessage], Awaitable[object]] | None = None
        self._consumption = self._new_consumption()
        self._taken = 0

    def _assign(self, membership: Membership) -> Assignments:
        return Assignments(self._session, self, membership)

    def _new_consumption(self) -> Consumption:
        return Consumption(self._session, self.group, self._options, self._inbox, self._deliver_again)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member has now."""
        return sorted(self._assignments.pullers)

    # --- joining and leaving ----------------------------------------------------------------------

    async def __aenter__(self) -> Consumer:
        """Join the group and take queues.

        Topics that do not exist are waited for. Raises ConfigError when this client has a member of that
        group already, SubscriptionParseFailed when a broker cannot read an SQL92 expression, another
        ResponseError when a broker does not let the group in (`rejectSubscriptionConflicts`, access control).
        Cancelled: leaves again.
        """
        session = self._session
        self.check_alone()
        session.arrive()
        await self._scope.__aenter__()
        try:
            await self._join()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    def check_alone(self) -> None:
        """Raise ConfigError when this client has a member of the group already."""
        if self.group in self._session.members:
            expected = "a group that has no consumer in this client; a second member needs a second client"
            raise ConfigError("group", self.group, expected)

    async def _join(self) -> None:
        session = self._session
        for topic in self._subscriptions:
            try:
                await session.rotation(topic, session.brokers.timeout)
            except NoRoute as error:
                log.info("%s", error)
        await self._check_expressions()
        session.members[self.group] = self
        await session.beat()
        session.check_admitted(self.group)
        self._scope.tasks.start_soon(self._consumption.redeliver)
        self._scope.tasks.start_soon(self._consumption.overdue.watch)
        await self._scope.tasks.start(self._assignments.run)

    async def _check_expressions(self) -> None:
        """Let a broker read what is more than tags."""
        session = self._session
        for topic, data in self._subscriptions.items():
            rotation = session.routes.get(topic)
            if data.expression_type == "TAG" or rotation is None:
                continue
            for name in rotation.route.brokers:
                found = session.routes.reader(name)
                if found is not None:
                    await session.brokers.check_subscription(found[1], session.client_id, self.group, data)
                    break

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the group; see the class. An error of the block comes out as it is."""
        try:
            await self._leave()
        finally:
            self._session.depart()
            await self._scope.__aexit__(kind, error, trace)

    async def _leave(self) -> None:
        session = self._session
        seconds = session.config.shutdown_timeout_ms / 1000
        with anyio.move_on_after(seconds, shield=True):
            self._inbox.close()
            self._assignments.stop()
            with anyio.move_on_after(seconds * 0.6) as draining:
                await self._consumption.drained()
            if draining.cancelled_caught:
                log.warning("%s: leaving while messages are still being consumed", self.group)
            await self._assignments.commit()
            await self._assignments.release()
            if session.members.get(self.group) is self:
                await session.leave(consumer=self.group)
        if session.members.get(self.group) is self:
            del session.members[self.group]

    # --- iterating --------------------------------------------------------------------------------

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Delivery:
        """The next delivery. Ends when the consumer's block is left. Cancelled: no message is lost."""
        inbox = self._inbox
        self._taken += 1
        if not self._taken % BURST:
            await anyio.lowlevel.checkpoint()
        while True:
            while inbox.ready:
                message = inbox.ready.popleft()
                window = message.window
                assert window is not None
                if not window.dropped:
                    if inbox.idle and inbox.ready:
                        inbox.wake()
                    return Delivery(self._consumption, message, window)
            if inbox.closed:
                raise StopAsyncIteration
            await inbox.arrival()

    # --- running a handler ------------------------------------------------------------------------

    async def run(self, handler: Handler, *, concurrency: int = 20) -> None:
        """Call `handler` with each message, up to `concurrency` at a time, until the consumer's block is
        left.

        Returning means consumed. An exception is logged and the message goes back for a retry after the
        group's next delay, or the one that a `Retry` names; with `on_error="raise"` it then comes out of
        here, but for a `Retry`. An ordinary function runs in a worker thread. A message that an
        administrator sends goes to `handler` beside these. Cancelled: handlers are cancelled; their messages
        are not consumed and are delivered again.
        """
        call = self._session.observers.handler(self.group, as_async(handler, concurrency))
        with self._taking_direct(call):
            await self._run_workers(concurrency, self._work, call)

    async def run_batches(self, handler: BatchHandler, *, batch: int = 32, concurrency: int = 1) -> None:
        """As `run`, but with lists of up to `batch` messages, whatever is there; a list is consumed or
        retried as one. For handlers that write many messages at once, and for the highest rates. Cancelled:
        as `run`.
        """
        if batch < 1:
            raise ConfigError("batch", batch, "at least 1")
        call = self._session.observers.handler(self.group, as_async(handler, concurrency), batches=True)
        with self._taking_direct(lambda message: call([message])):
            await self._run_workers(concurrency, self._work_batches, call, batch)

    @contextmanager
    def _taking_direct(self, handle: Callable[[StoredMessage], Awaitable[object]]) -> Iterator[None]:
        """Meanwhile, `consume_directly` has a handler."""
        self._handler = handle
        try:
            yield
        finally:
            self._handler = None

    async def _run_workers(
        self, concurrency: int, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any
    ) -> None:
        if concurrency < 1:
            raise ConfigError("concurrency", concurrency, "at least 1")
        with bare_errors():
            async with anyio.create_task_group() as tasks:
                for _ in range(concurrency):
                    tasks.start_soon(work, *arguments)

    async def _work(self, handle: Callable[[StoredMessage], Awaitable[object]]) -> None:
        inbox, consumption, hand = self._inbox, self._consumption, Hand()
        while not inbox.closed:
            await inbox.arrival()
            consumption.hold(hand)
            try:
                await self._burst(handle, inbox, hand)
            finally:
                consumption.release(hand)
            await anyio.lowlevel.checkpoint()

    async def _burst(
        self, handle: Callable[[StoredMessage], Awaitable[object]], inbox: Inbox[PulledMessage], hand: Hand
    ) -> None:
        ready = inbox.ready
        if len(ready) > 1 and inbox.idle:
            inbox.wake()  # each one who takes some wakes the next, so all come that are needed
        for _ in range(BURST):
            if not ready:
                return
            message = ready.popleft()
            window = message.window
            assert window is not None
            if window.dropped:
                continue
            hand.messages = (message,)
            try:
                await handle(message)
            except Exception as error:
                await self._consumption.failed(message, window, error)
                if self._consumption.lets_out(error):
                    raise
            except BaseException:
                self._consumption.put_off(message, window)
                raise
            else:
                window.finish(message.queue_offset)

    async def _work_batches(
        self, handle: Callable[[list[StoredMessage]], Awaitable[object]], batch: int
    ) -> None:
        inbox, consumption, hand = self._inbox, self._consumption, Hand()
        while not inbox.closed:
            await inbox.arrival()
            taken = self._take(batch)
            if inbox.ready and inbox.idle:
                inbox.wake()
            if not taken:
                continue
            consumption.hold(hand)
            hand.messages = [message for message, _ in taken]
            try:
                await self._consume_batch(handle, taken)
            finally:
                consumption.release(hand)
            await anyio.lowlevel.checkpoint()

    def _take(self, most: int) -> list[tuple[PulledMessage, ProcessQueue]]:
        ready = self._inbox.ready
        taken: list[tuple[PulledMessage, ProcessQueue]] = []
        while ready and len(taken) < most:
            message = ready.popleft()
            window = message.window
            if window is not None and not window.dropped:
                taken.append((message, window))
        return taken

    async def _consume_batch(
        self,
        handle: Callable[[list[StoredMessage]], Awaitable[object]],
        taken: list[tuple[PulledMessage, ProcessQueue]],
    ) -> None:
        try:
            await handle([message for message, _ in taken])
        except Exception as error:
            await self._consumption.all_failed(taken, error)
            if self._consumption.lets_out(error):
                raise
        except BaseException:
            self._consumption.put_all_off(taken)
            raise
        else:
            for message, window in taken:
                window.finish(message.queue_offset)

    def _deliver_again(self, message: PulledMessage) -> None:
        self._inbox.put([message])

    # --- what pulling needs: see pulling.Owner ----------------------------------------------------

    def arrived(self, messages: Sequence[PulledMessage]) -> None:
        self._consumption.rates.arrived(queue_topic(messages[0]), len(messages))
        self._inbox.put(messages)

    def moved(self, queue: MessageQueue, next_offset: int) -> None:
        self._assignments.start(queue, next_offset)

    # --- what brokers ask: see session.Member -----------------------------------------------------

    def describe(self) -> ConsumerData:
        """What the heartbeat says of this member."""
        self._consumption.rates.sample(self._session.now(), self._pending())
        consume_from = self._options.consume_from
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_PASSIVELY",
            message_model="BROADCASTING" if self._options.broadcasting else "CLUSTERING",
            consume_from_where={
                "first": "CONSUME_FROM_FIRST_OFFSET",
                "last": "CONSUME_FROM_LAST_OFFSET",
            }.get(str(consume_from), "CONSUME_FROM_TIMESTAMP"),
            subscription_data_set=list(self._subscriptions.values()),
        )

    def rebalance_soon(self) -> None:
        self._assignments.rebalance_soon()

    def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        self._assignments.reset(topic, offsets)

    def running_info(self) -> ConsumerRunningInfo:
        """What an administrator gets to see."""
        session, rates = self._session, self._consumption.rates
        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in session.names.addresses),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_CONSUMEORDERLY": "true" if self.ordered else "false",
                "PROP_THREADPOOL_CORE_SIZE": "1",
                "PROP_CLIENT_VERSION": "V4_9_7",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            },
            subscription_set=sorted(self._subscriptions.values(), key=lambda data: data.topic),
            mq_table={queue: self._window_info(queue) for queue in self.queues},
            status_table=rates.of(sorted(self._subscriptions), session.now(), self._pending()),
        )

    def _pending(self) -> Counter[str]:
        """Topic -> messages that were pulled and are not done with."""
        pending = Counter[str]()
        for queue, puller in self._assignments.pullers.items():
            pending[queue.topic] += len(puller.window)
        return pending

    def _window_info(self, queue: MessageQueue) -> ProcessQueueInfo:
        window = self._assignments.pullers[queue].window
        return ProcessQueueInfo(
            commit_offset=window.commit_offset,
            cached_msg_min_offset=window.commit_offset if len(window) else 0,
            cached_msg_max_offset=window.last_offset,
            cached_msg_count=len(window),
            cached_msg_size_in_mib=window.bytes >> 20,
            last_pull_timestamp=window.pulled_at_ms,
            droped=window.dropped,
        )

    def consume_directly(self, request: Command, connection: Connection) -> Command | None:
        """Give the running handler a message that an administrator sent; the answer comes when it is done."""
        if self._handler is None:
            remark = (
                f"the consumer of {self.group} has no handler running that could take it: it takes its "
                "messages itself, by iteration or poll; name a member that works with a handler"
            )
            return request.reply(ResponseCode.SYSTEM_ERROR, remark)
        self._scope.tasks.start_soon(self._consume_directly, request, connection, self._handler)
        return None

    async def _consume_directly(
        self,
        request: Command,
        connection: Connection,
        handle: Callable[[StoredMessage], Awaitable[object]],
    ) -> None:
        began = self._session.now()
        result = ConsumeMessageDirectlyResult(consume_result="CR_SUCCESS")
        try:
            await handle(decode_record(request.body, body_max=self._session.config.max_body_size))
        except Exception as error:
            log.error("%s: a message given by an administrator failed", self.group, exc_info=error)
            result.consume_result = "CR_THROW_EXCEPTION"
            result.remark = repr(error)
        result.spent_time_mills = int((self._session.now() - began) * 1000)
        connection.reply(request.reply(body=result.to_json()))
