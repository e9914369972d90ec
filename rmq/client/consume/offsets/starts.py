"""The offset at which a member begins to consume a queue."""

from __future__ import annotations

import logging

import anyio
from attrs import define, field

from rmq.client.consume.offsets.files import LocalOffsets
from rmq.client.consume.pull import first_since
from rmq.client.consume.subscription import ConsumerOptions
from rmq.client.session.requests import FAILURES
from rmq.client.session.session import Session
from rmq.errors import RmqError
from rmq.message import RETRY_PREFIX, MessageQueue
from rmq.remoting.loop import unwrap_groups

log = logging.getLogger("rmq.client.assignments")


@define(eq=False)
class _Question:
    """A look for offsets of the group in a topic; others wait for the same answer."""

    over: anyio.Event = field(factory=anyio.Event)
    is_known: bool = False
    error: RmqError | None = None


class Starts:
    """The first offsets of one consumer's queues: the group's, or by `consume_from`."""

    def __init__(
        self, session: Session, group: str, options: ConsumerOptions, local: LocalOffsets | None
    ) -> None:
        self._session = session
        self._group = group
        self._options = options
        self._local = local
        self._questions: dict[str, _Question] = {}
        self._news: dict[str, frozenset[MessageQueue]] = {}
        """The queues that topics had when the group was found to be new in them."""

    async def first_position(self, queue: MessageQueue) -> tuple[int, int | None]:
        """The first offset, and the creation (ms) of the topic that this offset belongs to, if it is
        known."""
        # The creation comes with the offset or before, never after: an offset that belongs to an earlier
        # topic would pass for an offset of the present topic, and skip messages.
        stored, created_ms = await self._session.brokers.query_position(self._group, queue)
        if self._local is not None:
            stored, saved_ms = self._local.get(queue), self._local.created_ms(queue)
            created_ms = created_ms if saved_ms is None else saved_ms
        if stored is not None and stored >= 0:
            return stored, created_ms
        return await self._first_offset(queue), created_ms

    async def _first_offset(self, queue: MessageQueue) -> int:
        """The first offset in a queue without an offset of the group, by `consume_from`."""
        options, brokers = self._options, self._session.brokers
        # A new group's retry topic is read from its start: its messages are the group's own.
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if options.consume_from == "first" or (is_retry and options.consume_from == "last"):
            return 0
        if not is_retry and await self._is_known(queue):
            return await brokers.min_offset(queue)
        if isinstance(options.consume_from, int) and not is_retry:
            return await first_since(self._session, self._group, queue, options.consume_from)
        return await brokers.max_offset(queue)

    async def _is_known(self, queue: MessageQueue) -> bool:
        """True if the group has an offset in another queue of the topic: in this case the group is not new,
        and the queue is. A queue is added, usually with another broker, while no member is connected to begin
        with it.

        A new group stays new in the present queues of the topic, whenever this member begins with them,
        although it soon has offsets in some. Raises as `Brokers.query_offset`.
        """
        topic = queue.topic
        if self._local is not None:
            return self._local.has(topic)
        while queue not in self._news.get(topic, ()):
            question = self._questions.get(topic)
            if question is None:
                question = self._questions[topic] = _Question()
                try:
                    question.is_known = await self._has_offsets(topic)
                except FAILURES as error:
                    question.error = error
                    raise
                finally:
                    del self._questions[topic]
                    question.over.set()
                return question.is_known
            await question.over.wait()
            if question.error is not None:
                raise question.error.with_traceback(None)
            if question.is_known:
                return True
        return False

    async def _has_offsets(self, topic: str) -> bool:
        """True if the group has an offset in any queue of a topic. The brokers are asked at the same time,
        and none again that has failed. Raises as `Brokers.query_offset`."""
        session, errors = self._session, list[RmqError]()
        rotation = await session.rotation(topic, session.brokers.timeout)
        queues, found = rotation.route.subscribe_queues, list[MessageQueue]()
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)

        async def look(some: list[MessageQueue]) -> None:
            try:
                for queue in some:
                    if await session.brokers.query_offset(self._group, queue):
                        found.append(queue)
                        tasks.cancel_scope.cancel()
            except FAILURES as error:
                errors.append(error)

        with unwrap_groups():
            async with anyio.create_task_group() as tasks:
                for some in by_broker.values():
                    tasks.start_soon(look, some)
        if found:
            log.info("%s has offsets in %s: reading new queues from the start", self._group, topic)
            return True
        if errors:
            raise errors[0]
        self._news[topic] = frozenset(queues)
        return False
