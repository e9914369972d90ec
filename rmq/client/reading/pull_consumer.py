"""PullConsumer: the application owns the offsets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from rmq.client.consume.dispatch import QueueDispatch
from rmq.client.consume.group_member import GroupMember
from rmq.client.consume.message_view import PulledMessage
from rmq.client.consume.pull import FIRST_PAUSE_SECONDS, PullAnswer, PullTemplate, RawPull, first_since
from rmq.client.consume.rebalance import Strategy, averagely
from rmq.client.consume.subscription import ALL, ConsumerOptions, Sql, check_queues, full_topics, subscription
from rmq.client.session.session import Session
from rmq.errors import LocalProtocolError, NoPermission, NoRoute, check_number, check_type, not_open
from rmq.message import MessageQueue, StoredMessage, validate_group, validate_topic, with_namespace
from rmq.protocol.codes import MASTER_ID, ResponseCode
from rmq.protocol.command import Command
from rmq.remoting.loop import AsyncResource, TaskGroupScope, unwrap_groups

if TYPE_CHECKING:
    from attrs import define
else:
    from rmq.lazy_attrs import define

TEMPLATES_MOST: Final = 10_000
"""Queues with an expression whose requests a pull consumer keeps ready."""

# Polling: queues are pulled in the background, messages are taken when the application asks.


class _Polling:
    """A group member whose messages the application takes, for `PullConsumer.subscribe` and `assign`."""

    def __init__(
        self, session: Session, group: str, topics: Mapping[str, str | Sql], options: ConsumerOptions
    ) -> None:
        self.member = GroupMember(session, group, topics, options)
        self._assignments = self.member.assignments
        self._taken: list[PulledMessage] = []

    @property
    def _dispatch(self) -> QueueDispatch:
        dispatch = self.member.dispatch
        assert isinstance(dispatch, QueueDispatch)
        return dispatch

    async def leave(self, *, done: bool) -> None:
        """Leave the group; `done`: the messages taken last were consumed."""
        if done:
            self._finish_taken()
        await self.member.leave()

    async def poll(self, most: int, timeout: float) -> list[StoredMessage]:
        """See `PullConsumer.poll`."""
        await anyio.lowlevel.checkpoint()
        self._finish_taken()
        taken, dispatch = self._taken, self._dispatch
        with anyio.move_on_after(timeout):
            while not taken and not dispatch.ready.is_closed:
                await dispatch.ready.arrival()
                while len(taken) < most and (more := dispatch.take(most - len(taken))):
                    taken += more
        return [*taken]

    def _finish_taken(self) -> None:
        """Mark the messages taken last as consumed."""
        taken, self._taken = self._taken, []
        for message in taken:
            if message.window is not None:
                message.window.finish(message.queue_offset)

    async def commit(self) -> None:
        """Commit all messages that were taken."""
        self._finish_taken()
        await self._assignments.commit(asked=True)

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Continue at another offset."""
        self.member.seek(queue, queue_offset)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Take nothing from these queues."""
        self._dispatch.pause(queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Take from these queues again."""
        self._dispatch.resume(queues)


@define
class PullResult:
    """Result of a pull. `next_offset` is the offset of the next pull; `min_offset` and `max_offset` are the
    ends of the queue; `messages` is empty when the queue has nothing more for now."""

    messages: Sequence[StoredMessage]
    next_offset: int
    min_offset: int
    max_offset: int


class PullConsumer(AsyncResource):
    """Reads queues at the application's offsets and times: `async with client.pull_consumer("replay") as
    puller`.

    There are two ways. With `pull` and the methods with a queue the application gives each offset: nothing
    runs between calls and nothing is committed without a call. With `subscribe` (queues divided among the
    members of the group) or `assign` (queues as given) the queues are pulled in the background, and `poll`
    takes messages.

    All methods raise NoRoute, ConnectFailed, ConnectionLost, RequestTimeout and the ResponseError of a
    broker's refusal; only the background work is retried.
    """

    def __init__(self, session: Session, group: str) -> None:
        self.group = validate_group(group)
        self._session = session
        self._positions: dict[MessageQueue, int] = {}
        self._created_ms: dict[MessageQueue, int | None] = {}  # of the topics of these queues
        self._broker_ids: dict[MessageQueue, int] = {}
        self._templates: dict[tuple[MessageQueue, str | Sql], PullTemplate] = {}
        self._is_open = False
        self._scope = TaskGroupScope()
        self._polling: _Polling | None = None

    async def __aenter__(self) -> PullConsumer:
        await self._scope.__aenter__()
        self._session.watchers.add(self._forget)
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the group; with `auto_commit`, a normal exit commits all that was polled."""
        self._is_open = False
        self._session.watchers.discard(self._forget)
        try:
            if self._polling is not None:
                await self._polling.leave(done=error is None)
        finally:
            await self._scope.__aexit__(kind, error, trace)

    # --- polling ---

    async def subscribe(
        self,
        topics: Mapping[str, str | Sql],
        *,
        consume_from: str | int = "last",
        auto_commit: bool = True,
        strategy: Strategy = averagely,
    ) -> None:
        """Join the group, and pull this member's share of the queues in the background. See
        `Client.consumer`.

        With `auto_commit`, polled messages are committed every `commit_interval_ms`, once the next `poll` (or
        the end of the block) has shown that they were consumed. Raises ConfigError, InvalidName,
        LocalProtocolError for a consumer with queues, ResponseError when a broker refuses the group.
        Cancelled: the consumer has left again and has no queues.
        """
        full = full_topics(topics, self._session.config.namespace)
        await self._begin_polling(full, self._options(consume_from, auto_commit, strategy))

    async def assign(
        self, queues: Iterable[MessageQueue], *, consume_from: str | int = "last", auto_commit: bool = True
    ) -> None:
        """Pull these queues in the background, whatever other members of the group do. Raises as `subscribe`.
        Cancelled: the consumer has no queues."""
        named = frozenset(check_queues("queues", queues))
        topics = dict.fromkeys((queue.topic for queue in named), ALL)
        await self._begin_polling(topics, self._options(consume_from, auto_commit, queues=named))

    def _options(
        self,
        consume_from: str | int,
        auto_commit: bool,
        strategy: Strategy = averagely,
        queues: frozenset[MessageQueue] | None = None,
    ) -> ConsumerOptions:
        return ConsumerOptions(
            consume_from=consume_from,
            broadcasting=False,
            on_error="retry",
            strategy=strategy,
            polled=True,
            queues=queues,
            auto_commit=auto_commit,
        )

    async def _begin_polling(self, topics: Mapping[str, str | Sql], options: ConsumerOptions) -> None:
        self._check_open()
        if self._polling is not None:
            raise LocalProtocolError(
                f"the pull consumer of {self.group} has subscribed already: subscribe or assign once"
            )
        polling = _Polling(self._session, self.group, topics, options)
        with unwrap_groups():
            await polling.member.join(self._scope)
        self._polling = polling

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are pulled for `poll` now."""
        return [] if self._polling is None else self._polling.member.queues

    async def poll(self, max_messages: int = 32, timeout: float = 5.0) -> list[StoredMessage]:
        """The next messages of the assigned queues, at most `max_messages`; none after `timeout` seconds
        without messages. The messages of the last poll count as consumed. Cancelled: no message is lost."""
        check_number("max_messages", max_messages, 1)
        check_number("timeout", timeout, 0, whole=False)
        return await self._started().poll(max_messages, timeout)

    async def commit_polled(self) -> None:
        """Commit everything polled, for applications without `auto_commit`. Failures are logged. Cancelled:
        some queues may be committed, and the next commit takes the rest."""
        await self._started().commit()

    def pause(self, *queues: MessageQueue) -> None:
        """Let `poll` take nothing from these queues."""
        self._started().pause(check_queues("queues", queues))

    def resume(self, *queues: MessageQueue) -> None:
        """Let `poll` take from these queues again."""
        self._started().resume(check_queues("queues", queues))

    def _started(self) -> _Polling:
        if self._polling is None:
            raise LocalProtocolError("there is nothing to poll: subscribe or assign first")
        return self._polling

    # --- reading by offsets ---

    async def message_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read. Cancelled: nothing changes."""
        self._check_open()
        session = self._session
        full = with_namespace(session.config.namespace, validate_topic(topic))
        rotation = await session.rotation(full, session.brokers.timeout)
        return list(rotation.route.subscribe_queues)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message in a queue. Cancelled: nothing changes."""
        await self._ensure_route(queue)
        return await self._session.brokers.min_offset(queue)

    async def max_offset(
        self, queue: MessageQueue, *, on_slave: Callable[[MessageQueue], object] | None = None
    ) -> int:
        """The offset of the next message to be stored in a queue. `on_slave` is called with the queue when a
        slave is asked, because no master is known: then the offset is a lower bound. Cancelled: nothing
        changes."""
        await self._ensure_route(queue)
        self._note_slave(queue, on_slave)
        return await self._session.brokers.max_offset(queue)

    async def bounds(
        self, queue: MessageQueue, *, on_slave: Callable[[MessageQueue], object] | None = None
    ) -> dict[MessageQueue, tuple[int, int]]:
        """The minimum and maximum offsets of all queues that the topic has on the broker of `queue`, in one
        request; `on_slave` as for `max_offset`. Raises TopicNotExist. Cancelled: nothing changes."""
        await self._ensure_route(queue)
        self._note_slave(queue, on_slave)
        return await self._session.brokers.bounds(queue)

    def _note_slave(
        self, queue: MessageQueue, on_slave: Callable[[MessageQueue], object] | None
    ) -> None:  # right before the request: a look at the route may change who is asked
        if on_slave is not None and self.master(queue) is None:
            on_slave(queue)

    def master(self, queue: MessageQueue) -> str | None:
        """The address of the master of the queue's broker, as of the last look at the route. Without a master
        a slave answers, which may lack the newest messages: an offset from a slave is a lower bound. The next
        request may look at the route again; `on_slave` of `bounds` and `max_offset` tells who is asked."""
        return self._session.routes.master(queue.broker_name)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at that time (ms since 1970) or later; `max_offset` when
        there is none. Cancelled: nothing changes."""
        check_number("timestamp_ms", timestamp_ms, 0)
        await self._ensure_route(queue)
        return await first_since(self._session, self.group, queue, timestamp_ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset that the group has committed; None when there is none. Cancelled: nothing changes."""
        await self._ensure_route(queue)
        stored, created_ms = await self._session.brokers.query_position(self.group, queue)
        self._created_ms.setdefault(queue, created_ms)
        return stored

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit an offset: the group continues with the message at `offset`. Raises ResponseError when the
        topic was deleted and created again since this consumer began with the queue, until `pull` has
        continued in the present topic. Cancelled: the offset may or may not be committed."""
        check_number("offset", offset, 0)
        await self._ensure_route(queue)
        created_ms = self._created_ms.get(queue)
        await self._session.brokers.update_offset(self.group, queue, offset, created_ms)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Let the next `pull` without an offset begin here, or the next `poll`, for a queue in the
        background."""
        check_type("queue", queue, MessageQueue, "an rmq.MessageQueue")
        check_number("offset", offset, 0)
        if self._polling is not None:
            self._polling.seek(queue, offset)
        self._positions[queue] = offset

    async def position(self, queue: MessageQueue) -> int:
        """The offset of the next `pull` without an offset: behind the last message, or the offset of `seek`,
        or the group's committed offset, or else the oldest message. Cancelled: nothing changes."""
        if queue not in self._positions:
            stored = await self.committed(queue)
            self._positions[queue] = await self.min_offset(queue) if stored is None or stored < 0 else stored
        return self._positions[queue]

    async def pull(
        self,
        queue: MessageQueue,
        offset: int | None = None,
        *,
        max_messages: int = 32,
        expression: str | Sql = ALL,
        wait: float = 0.0,
    ) -> PullResult:
        """Up to `max_messages` messages from `offset` on, or from `position`; only an empty result means the
        end of the queue.

        `expression` filters as in a subscription. `wait` is the number of seconds for which the broker may
        hold the answer while the queue has no message. An offset outside the queue is replaced by the
        broker's answer, and so is an offset of a topic that was deleted and created again since this consumer
        began with the queue. Cancelled: nothing changes, and the position stays.
        """
        check_number("max_messages", max_messages, 1)
        check_number("wait", wait, 0, whole=False)
        if offset is not None:
            check_type("offset", offset, int, "an int, the offset of a message in the queue")
        await self._ensure_route(queue, self._broker_ids.get(queue, MASTER_ID))
        if queue not in self._created_ms:
            await self._learn_creation(queue)
        at = await self.position(queue) if offset is None else offset
        template = self._template(queue, expression)
        deadline = self._session.now() + wait
        while True:
            answer = await self._ask(template, at, max_messages, max(deadline - self._session.now(), 0.0))
            over = answer.code == ResponseCode.PULL_NOT_FOUND and self._session.now() >= deadline
            if answer.messages or over:
                break
            if answer.topic_created_ms is not None:
                self._created_ms[queue] = answer.topic_created_ms
            elif answer.next_offset == at:
                await anyio.sleep(FIRST_PAUSE_SECONDS)
            at = answer.next_offset if answer.topic_created_ms is None else answer.min_offset
        self._positions[queue] = answer.next_offset
        return PullResult(answer.messages, answer.next_offset, answer.min_offset, answer.max_offset)

    async def _learn_creation(self, queue: MessageQueue) -> None:
        try:
            await self.committed(queue)
        except NoPermission:  # a reader of the topic may lack rights on the group: then no offset is compared
            self._created_ms[queue] = None

    async def pull_raw(
        self, queue: MessageQueue, offset: int, *, max_messages: int = 32, expression: str | Sql = ALL
    ) -> RawPull:
        """A pull whose records stay bytes, for readers of many at once; the broker's advice on the offset is
        not followed, and tags are compared only by the broker, by their hashes.

        Any number of pulls may be in flight at once. Cancelled: nothing changes.
        """
        await self._ensure_route(queue, self._broker_ids.get(queue, MASTER_ID))
        response, address = await self._exchange(self._template(queue, expression), offset, max_messages, 0.0)
        return RawPull.of(response, address)

    async def raw_requests(
        self, queue: MessageQueue, *, expression: str | Sql = ALL
    ) -> tuple[str, Callable[[int, int], Command]]:
        """The address that `pull_raw` would ask, and its request by offset and number of messages: for a
        reader with a connection of its own, which signs requests itself. Cancelled: nothing changes."""
        await self._ensure_route(queue)
        template = self._template(queue, expression)
        _, address = self._session.brokers.reader(queue)
        return address, lambda offset, most: template.request(offset, most, 0, None)

    async def topics(self) -> list[str]:
        """The names of all topics that a name server knows, RocketMQ's own too. Cancelled: nothing
        changes."""
        self._check_open()
        return await self._session.name_servers.topics(self._session.brokers.timeout)

    async def recorded(self, queue: MessageQueue) -> int | None:
        """The offset in the broker's table of commits of the group; None without one.

        `committed` may return 0 for a young queue that the group never committed. This method reads the
        broker's table of all groups, so it is for rare use. Cancelled: nothing changes.
        """
        await self._ensure_route(queue)
        return await self._session.brokers.recorded_offset(self.group, queue)

    async def _ask(
        self, template: PullTemplate, queue_offset: int, max_messages: int, wait: float
    ) -> PullAnswer:
        response, address = await self._exchange(template, queue_offset, max_messages, wait)
        answer = template.answer(response, queue_offset, address)
        self._broker_ids[template.queue] = answer.broker_id
        return answer

    async def _exchange(
        self, template: PullTemplate, queue_offset: int, max_messages: int, wait: float
    ) -> tuple[Command, str]:
        """Send a pull; returns the answer and the answering address."""
        session, queue = self._session, template.queue
        _, address = session.brokers.reader(queue, self._broker_ids.get(queue, MASTER_ID))
        created_ms = self._created_ms.get(queue)
        request = template.request(queue_offset, max_messages, int(wait * 1000), None, created_ms)
        return await session.pool.call(address, request, wait + session.brokers.timeout), address

    def _forget(self, topic: str) -> None:
        """Forget the queues of a topic that does not exist any more."""
        for table in (self._positions, self._created_ms, self._broker_ids):
            for queue in [queue for queue in table if queue.topic == topic]:
                del table[queue]
        self._templates = {key: made for key, made in self._templates.items() if key[0].topic != topic}

    def _template(self, queue: MessageQueue, expression: str | Sql) -> PullTemplate:
        template = self._templates.get((queue, expression))
        if template is None:
            if len(self._templates) >= TEMPLATES_MOST:
                self._templates.clear()
            data = subscription(queue.topic, expression, self._session.now_ms())
            template = self._templates[queue, expression] = PullTemplate(
                self.group,
                queue,
                data,
                send_subscription=True,
                config=self._session.config,
            )
        return template

    async def _ensure_route(self, queue: MessageQueue, broker_id: int = MASTER_ID) -> None:
        """Make sure that the address of the queue's broker is known, and ask for the route again after a lost
        connection: the broker may have moved."""
        self._check_open()
        check_type("queue", queue, MessageQueue, "an rmq.MessageQueue")
        known = self._session.routes.reader(queue.broker_name, broker_id)
        if known is None:
            await self._session.refresh(queue.topic)
        elif self._session.has_lost(known[1]):
            with suppress(NoRoute):  # then the known address is the best there is
                await self._session.refresh(queue.topic)

    def _check_open(self) -> None:
        if not self._is_open:
            raise not_open(f"pull consumer of {self.group}")


# Whole topics, for tools: their present messages, queue by queue.

READER: Final = "TOOLS_CONSUMER"
"""The group in whose name tools read: every broker knows it."""


async def read_topic(
    session: Session, topic: str, since_ms: int | None = None
) -> AsyncGenerator[StoredMessage]:
    """The present messages of `topic`, or those stored at `since_ms` or later; none for an unknown topic.

    Use the iterator in `aclosing`. Raises NoPermission when the topic may not be read, and as
    `PullConsumer.pull`. Cancelled: nothing changes.
    """
    async with PullConsumer(session, READER) as puller:
        try:
            queues = await puller.message_queues(topic)
        except NoRoute as error:
            if not error.refused and await session.name_servers.topics(session.brokers.timeout):
                return  # a name server answers, so there is no such topic
            raise
        if not queues:
            raise NoPermission(remark=f"{topic} may not be read; give the topic the permission 6")
        for queue in queues:
            end = await puller.max_offset(queue)
            at = await (
                puller.min_offset(queue) if since_ms is None else puller.search_offset(queue, since_ms)
            )
            while at < end:
                page = await puller.pull(queue, at)
                for message in page.messages:
                    if message.queue_offset < end:
                        yield message
                at = page.next_offset if page.messages else end
