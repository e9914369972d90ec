"""GroupMember: a member of a consumer group, put together from parts by its kind:

    dispatch      message by message, or queue by queue (ordered consumers and polling)
    locks         the brokers' queue locks (ordered consumers), or none
    assignments   the held queues, and the loops that pull them
    deliveries    the messages in flight, and the treatment of failed messages

`Consumer` gives it handlers and iteration, `PullConsumer` gives it `poll`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import anyio

from rmq.client.consume.assignments import Assignments
from rmq.client.consume.deliveries.consume_metrics import ConsumeMetrics
from rmq.client.consume.deliveries.outcomes import Deliveries
from rmq.client.consume.dispatch import Dispatch, MessageDispatch, QueueDispatch
from rmq.client.consume.message_view import PulledMessage
from rmq.client.consume.process_queue import ProcessQueue
from rmq.client.consume.queue_locks import QueueLocks
from rmq.client.consume.subscription import ConsumerOptions, Sql, subscriptions
from rmq.client.consume.workers import Workers
from rmq.client.session.health import ConsumerHealth, lag_of
from rmq.client.session.session import Session
from rmq.errors import ConfigError, CorruptRecord, LocalProtocolError, NoRoute, NotReady
from rmq.message import PROPERTY_REPLY_TO_CLIENT, RETRY_PREFIX, MessageQueue, StoredMessage
from rmq.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    ProcessQueueInfo,
)
from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.record import decode_record
from rmq.remoting.cancellation import as_failure
from rmq.remoting.connection import Connection
from rmq.remoting.loop import TaskGroupScope

log = logging.getLogger("rmq.client.group_member")

DRAINING_PART = 0.6
"""Share of `shutdown_timeout_ms` for messages in flight; the rest is for commits and for leaving the
group."""


def _is_request(message: PulledMessage) -> bool:
    """True if the producer waits for a reply; False for damaged properties, which the handler meets."""
    try:
        return PROPERTY_REPLY_TO_CLIENT in message.properties
    except CorruptRecord:
        return False


class GroupMember:
    """A member of a consumer group, put together from its parts; the module names them. To brokers and
    administrators it is a `session.Member`."""

    def __init__(
        self, session: Session, group: str, topics: Mapping[str, str | Sql], options: ConsumerOptions
    ) -> None:
        """Raises InvalidName, ConfigError."""
        self.group = group
        self._session = session
        self._options = options
        self._started_ms = session.now_ms()
        has_retries = not options.broadcasting and not options.polled
        self._subscriptions = subscriptions(topics, group, self._started_ms, retry=has_retries)
        self._locks: QueueLocks | None = None
        self.dispatch: Dispatch[Any]
        config = session.config
        if options.ordered and not options.broadcasting:
            self._locks = QueueLocks(session, group)
            self.dispatch = QueueDispatch(config.suspend_queue_ms, self._locks.holds)
        elif options.ordered or options.polled:
            self.dispatch = QueueDispatch(config.suspend_queue_ms)
        else:
            self.dispatch = MessageDispatch(config.redelivery_delay_ms)
        self._metrics = ConsumeMetrics()
        self.workers = Workers()
        """The workers of `Consumer.run`."""
        self.deliveries = Deliveries(session, group, options, self.dispatch, self._metrics)
        self.assignments = Assignments(
            session, group, self._subscriptions, options, self.dispatch, self._on_messages, self._locks
        )
        self.has_requests = False
        """True if some of the messages may be requests, which are not delivered past their time to live."""
        self._handler: Callable[[StoredMessage], Awaitable[object]] | None = None
        self._scope: TaskGroupScope | None = None
        self._has_left = False

    @property
    def queues(self) -> list[MessageQueue]:
        """The present queues of this member."""
        return sorted(self.assignments.pullers)

    def _on_messages(self, messages: Sequence[PulledMessage]) -> None:
        window = messages[0].window
        assert window is not None
        self._metrics.pull(window.queue.topic, len(messages))
        # Reading properties costs as much as the rest of a delivery, so most consumers must not read them:
        # the first message of any pull shows a topic of requests, and `Session.is_replying` shows a replier.
        self.has_requests = self.has_requests or self._session.is_replying or _is_request(messages[0])
        self.dispatch.put(messages)
        self.deliveries.came.set()

    # --- joining and leaving ---

    async def join(self, scope: TaskGroupScope) -> None:
        """Join the group and take queues; `scope` gets the loops, which end only with the scope. Raises as
        `Consumer.__aenter__`, after leaving. Cancelled: has left as well."""
        if self._options.queues is None and self.group in self._session.members:
            expected = "a group that has no consumer in this client; a second member needs a second client"
            raise ConfigError("group", self.group, expected)
        self._scope, tasks = scope, scope.tasks
        self._session.arrive()
        try:
            if self._options.queues is None:
                await self._register()
                tasks.start_soon(self.dispatch.redeliver)
                tasks.start_soon(self.deliveries.timeouts.watch)
                if not self._options.polled:
                    tasks.start_soon(self.deliveries.watch_stalls, self._windows)
            await tasks.start(self.assignments.run)
            tasks.start_soon(self.assignments.keep_locks)
        except BaseException:
            await self.leave()
            raise

    async def _register(self) -> None:
        """Get routes, and announce the member to all brokers."""
        session = self._session
        for topic in self._subscriptions:
            try:
                await session.rotation(topic, session.brokers.timeout)
            except NoRoute as error:
                if self._options.require_topics and not topic.startswith(RETRY_PREFIX):
                    raise
                self.assignments.failed(topic, error)
        await self._check_expressions()
        session.members[self.group] = self
        await session.join(self.group)
        session.check_admitted(self.group)

    async def _check_expressions(self) -> None:
        """Let a broker check expressions that are more than tags."""
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

    def stop(self) -> None:
        """Stop pulling and handing out. Messages in flight may still end and be committed."""
        self.dispatch.ready.close()
        self.assignments.stop()

    async def drained(self, seconds: float) -> bool:
        """Wait for deliveries after `stop`, and commit in between; False when the time is up."""
        pause, now = self._session.config.commit_interval_ms / 1000, self._session.now
        deadline = now() + seconds
        while True:
            with anyio.CancelScope(deadline=min(deadline, now() + pause)) as waiting:
                await self.deliveries.drained()
            await self.assignments.commit()
            if not waiting.cancelled_caught or now() >= deadline:
                return not waiting.cancelled_caught

    async def leave(self) -> None:
        """Stop pulling, wait for deliveries, commit, unlock and leave the group, within `shutdown_timeout_ms`
        and despite cancellation of the caller. A second call has no effect."""
        if self._has_left:
            return
        self._has_left = True
        session = self._session
        seconds = session.config.shutdown_timeout_ms / 1000
        try:
            # Shielded: when the caller is cancelled, the commits below are still made, and the next member of
            # the group waits for no time-out.
            with anyio.move_on_after(seconds, shield=True):
                self.stop()
                with anyio.move_on_after(seconds * DRAINING_PART) as draining:
                    await self.deliveries.drained()
                if draining.cancelled_caught:
                    log.warning("%s: leaving the group while handlers still run", self.group)
                # In this order: the next member of a queue asks for the offset once it has the lock.
                with session.brokers.leaving.going_on():
                    await self.assignments.commit()
                    await self.assignments.release()
                await self.assignments.report((), self.queues)
                if session.members.get(self.group) is self:
                    await session.leave(consumer=self.group)
            if session.members.get(self.group) is self:
                del session.members[self.group]
        finally:
            session.depart()

    # --- requests of brokers and administrators: see session.Member ---

    def describe(self) -> ConsumerData:
        """Content of the heartbeat for this member."""
        self._metrics.sample(self._session.now(), self._pending())
        options = self._options
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_ACTIVELY" if options.polled else "CONSUME_PASSIVELY",
            message_model="BROADCASTING" if options.broadcasting else "CLUSTERING",
            consume_from_where={
                "first": "CONSUME_FROM_FIRST_OFFSET",
                "last": "CONSUME_FROM_LAST_OFFSET",
            }.get(str(options.consume_from), "CONSUME_FROM_TIMESTAMP"),
            subscription_data_set=list(self._subscriptions.values()),
        )

    def rebalance_soon(self) -> None:
        self.assignments.rebalance_soon()

    def reconnected(self) -> None:
        self.assignments.reconnected()

    def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        self.assignments.reset(topic, offsets)

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Continue at another offset. Raises LocalProtocolError for a queue of another member."""
        if queue not in self.assignments.pullers:
            raise LocalProtocolError(f"{queue} is not assigned to this consumer now")
        self.assignments.start(queue, queue_offset, sought=True)

    def running_info(self) -> ConsumerRunningInfo:
        """State for an administrator."""
        session = self._session
        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in session.name_servers.addresses),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_CONSUMEORDERLY": "true" if self._options.ordered else "false",
                "PROP_THREADPOOL_CORE_SIZE": "1",
                "PROP_CLIENT_VERSION": "V4_9_7",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            },
            subscription_set=sorted(self._subscriptions.values(), key=lambda data: data.topic),
            mq_table={queue: self._window_info(queue) for queue in self.queues},
            status_table=self._metrics.of(sorted(self._subscriptions), session.now(), self._pending()),
        )

    def _pending(self) -> Counter[str]:
        """Topic -> number of messages that were pulled and are not done."""
        pending = Counter[str]()
        for queue, puller in self.assignments.pullers.items():
            pending[queue.topic] += len(puller.window)
        return pending

    def _windows(self) -> list[ProcessQueue]:
        return [puller.window for puller in self.assignments.pullers.values()]

    def health(self) -> ConsumerHealth:
        """The member's part of `Client.health`."""
        windows = self._windows()
        problems = [
            f"{self.group}: cannot consume topic {topic} yet: {error}"
            for topic, (error, _) in self.assignments.errors.items()
        ]
        if (stopped := self._stopped()) is not None:
            problems.append(f"{self.group} {stopped}")
        return ConsumerHealth(
            self.group,
            tuple(self.queues),
            sum(map(len, windows)),
            sum(window.bytes for window in windows),
            len(self.deliveries.in_flight),
            tuple(self.deliveries.stalls.current.values()),
            tuple(problems),
            self.workers.running,
        )

    def _stopped(self) -> str | None:
        """The reason why a member without a request to stop consumes nothing, or less than its share."""
        if self.assignments.is_stopped:
            return None
        if self._scope is not None and (ended := self._scope.ended()):
            return f"consumes nothing: its background tasks have ended ({ended})"
        return self.workers.problem() or self.assignments.unanswered() or None

    def check_ready(self) -> None:
        """Raises the obstacle between this member and its share of the queues, or NotReady; a new check
        follows soon."""
        errors, missing = self.assignments.errors, self.assignments.missing
        if errors or missing:
            self.rebalance_soon()
        for error, _ in errors.values():
            raise error.with_traceback(None)
        if missing:
            raise NotReady(self.group, sorted(missing))
        if (stopped := self._stopped()) is not None:
            raise NotReady(self.group, reason=stopped)

    async def lag(self) -> dict[MessageQueue, int]:
        """See `Consumer.lag`."""
        return await lag_of(
            self._session, [(window.queue, window.commit_offset) for window in self._windows()]
        )

    def _window_info(self, queue: MessageQueue) -> ProcessQueueInfo:
        window = self.assignments.pullers[queue].window
        return ProcessQueueInfo(
            commit_offset=window.commit_offset,
            cached_msg_min_offset=window.commit_offset if len(window) else 0,
            cached_msg_max_offset=window.last_offset,
            cached_msg_count=len(window),
            cached_msg_size_in_mib=window.bytes >> 20,
            last_pull_timestamp=window.pulled_at_ms,
            droped=window.is_dropped,
            locked=self.dispatch.is_ordered if self._locks is None else self._locks.holds(queue),
        )

    @contextmanager
    def handling(self, handle: Callable[[StoredMessage], Awaitable[object]]) -> Iterator[None]:
        """Let `handle` consume the messages that an administrator sends, in the block."""
        self._handler = handle
        try:
            yield
        finally:
            self._handler = None

    def consume_directly(self, request: Command, connection: Connection) -> Command | None:
        """Give the running handler a message that an administrator sent; the answer follows when the handler
        has ended."""
        if self._handler is None or self._scope is None:
            remark = (
                f"the consumer of {self.group} runs no handler: it consumes by iteration or poll; "
                "name a member that consumes with a handler"
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
        except BaseException as error:
            failure = as_failure(error)
            if failure is None:
                raise
            log.error("%s: a message that an administrator sent failed", self.group, exc_info=failure)
            result.consume_result = "CR_THROW_EXCEPTION"
            result.remark = repr(failure)
        result.spent_time_mills = int((self._session.now() - began) * 1000)
        connection.reply(request.reply(body=result.to_json()))
