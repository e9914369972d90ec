"""PullConsumer: the application owns the offsets."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import anyio
from attrs import define

from rmq.client.namespace import wrapped
from rmq.client.pulling import FIRST_PAUSE_SECONDS, PullAnswer, PullForm
from rmq.client.session import Session
from rmq.client.subscription import ALL, Sql, subscription
from rmq.errors import LocalProtocolError
from rmq.message import MessageQueue, StoredMessage, validate_group, validate_topic
from rmq.protocol.codes import MASTER_ID, ResponseCode


@define
class PullResult:
    """What a pull found. `next_offset` is where the next one goes on; `min_offset` and `max_offset` are the
    ends of the queue; `messages` is empty when the queue has nothing more for now.
    """

    messages: Sequence[StoredMessage]
    next_offset: int
    min_offset: int
    max_offset: int


class PullConsumer:
    """Reads queues where and when the application says: `async with client.pull_consumer("replay") as
    puller`.

    Nothing runs between calls, nothing is committed unasked. All methods raise NoRoute, ConnectFailed,
    ConnectionLost, RequestTimeout and the ResponseError of what a broker refuses; nothing is retried.
    """

    def __init__(self, session: Session, group: str) -> None:
        self.group = validate_group(group)
        self._session = session
        self._positions: dict[MessageQueue, int] = {}
        self._broker_ids: dict[MessageQueue, int] = {}
        self._forms: dict[tuple[MessageQueue, str | Sql], PullForm] = {}
        self._open = False

    async def __aenter__(self) -> PullConsumer:
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False

    async def message_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read. Cancelled: nothing has happened."""
        self._check_open()
        session = self._session
        full = wrapped(session.config.namespace, validate_topic(topic))
        rotation = await session.rotation(full, session.brokers.timeout)
        return list(rotation.route.subscribe_queues)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that is still there. Cancelled: nothing has happened."""
        await self._know(queue)
        return await self._session.brokers.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get. Cancelled: nothing has happened."""
        await self._know(queue)
        return await self._session.brokers.max_offset(queue)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at that time (ms since 1970) or later. Cancelled:
        nothing.
        """
        await self._know(queue)
        return await self._session.brokers.search_offset(queue, timestamp_ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset that the group has committed; None when there is none. Cancelled: nothing has
        happened.
        """
        await self._know(queue)
        return await self._session.brokers.query_offset(self.group, queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit: the group goes on with the message at `offset`. Cancelled: it may or may not be
        committed.
        """
        await self._know(queue)
        await self._session.brokers.update_offset(self.group, queue, offset)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Let the next `pull` without an offset begin here."""
        self._positions[queue] = offset

    async def position(self, queue: MessageQueue) -> int:
        """Where the next `pull` without an offset begins: after the last one, where `seek` said, where the
        group has committed, or else at the oldest message.
        """
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
        """Up to `max_messages` messages from `offset` on, or from `position`; fewer is no sign of the end,
        none is.

        `expression` filters as in a subscription. `wait` is how many seconds the broker may hold the answer
        while there is nothing. An offset outside the queue is corrected as the broker says. Cancelled:
        nothing has happened, and the position stays.
        """
        await self._know(queue)
        at = await self.position(queue) if offset is None else offset
        form = self._form(queue, expression)
        deadline = self._session.now() + wait
        while True:
            answer = await self._ask(form, at, max_messages, max(deadline - self._session.now(), 0.0))
            over = answer.code == ResponseCode.PULL_NOT_FOUND and self._session.now() >= deadline
            if answer.messages or over:
                break
            if answer.next_offset == at:
                await anyio.sleep(FIRST_PAUSE_SECONDS)
            at = answer.next_offset
        self._positions[queue] = answer.next_offset
        return PullResult(answer.messages, answer.next_offset, answer.min_offset, answer.max_offset)

    async def _ask(self, form: PullForm, queue_offset: int, max_messages: int, wait: float) -> PullAnswer:
        session, queue = self._session, form.queue
        _, address = session.brokers.reader(queue, self._broker_ids.get(queue, MASTER_ID))
        request = form.request(queue_offset, max_messages, int(wait * 1000), None)
        response = await session.pool.call(address, request, wait + session.brokers.timeout)
        answer = form.answer(response, queue_offset, address)
        self._broker_ids[queue] = answer.broker_id
        return answer

    def _form(self, queue: MessageQueue, expression: str | Sql) -> PullForm:
        form = self._forms.get((queue, expression))
        if form is None:
            data = subscription(queue.topic, expression, self._session.now_ms())
            form = self._forms[queue, expression] = PullForm(
                self.group,
                queue,
                data,
                tell_subscription=True,
                namespace=self._session.config.namespace,
            )
        return form

    async def _know(self, queue: MessageQueue) -> None:
        """Have the address of the queue's broker."""
        self._check_open()
        if self._session.routes.reader(queue.broker_name) is None:
            await self._session.refresh(queue.topic)

    def _check_open(self) -> None:
        if not self._open:
            raise LocalProtocolError(f"the pull consumer of {self.group} is not open: use it in its block")
