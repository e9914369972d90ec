"""Pulling: one request for the messages of a queue, and the loop that keeps a consumer's queue filled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import anyio
from attrs import define, frozen

from rmq.client.config import ClientConfig
from rmq.client.consume.message_view import PulledMessage, limited, read_messages, to_original_topic
from rmq.client.consume.process_queue import ProcessQueue
from rmq.client.consume.subscription import ALL, subscription
from rmq.client.session.requests import FAILURES
from rmq.client.session.session import Session
from rmq.errors import (
    NETWORK_ERRORS,
    CorruptRecord,
    RemoteProtocolError,
    SubscriptionNotExist,
    SubscriptionNotLatest,
    for_code,
)
from rmq.message import RETRY_PREFIX, MessageQueue, without_namespace
from rmq.protocol.bodies import SubscriptionData
from rmq.protocol.codes import (
    MASTER_ID,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    RequestCode,
    ResponseCode,
)
from rmq.protocol.command import Command
from rmq.protocol.headers import TOPIC_CREATED_MS
from rmq.remoting.loop import Wakeup, exponential_backoff

log = logging.getLogger("rmq.client.pull")

PULL_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
LONGEST_PAUSE_SECONDS = 1.0
"""Pause after answers without messages that come at once, in seconds."""
DAMAGE = (CorruptRecord, RemoteProtocolError)
FIRST_PAUSE_SECONDS = 0.1
"""Pause after a failed pull, in seconds; doubled with each further one, up to `pull_retry_delay_ms`."""
HURRIED_SECONDS = 0.02
"""An answer without messages that comes sooner was not held by the broker: pulling again at once would be a
busy loop."""


@define
class PullAnswer:
    """A broker's response to a pull. `code` is an element of `PULL_CODES`."""

    code: int
    messages: list[PulledMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    broker_id: int
    """The id of the broker of that name to pull from next time."""
    topic_created_ms: int | None = None
    """The creation of the present topic, if the offset belonged to an earlier topic of that name, or, where
    tables went back, to a later one; else None."""


@frozen
class RawPull:
    """A broker's response to a pull with its records still as bytes, in the form of the CommitLog. `code` is
    an element of `PULL_CODES`, `status` is the broker's own word; `body` holds whole records back to back,
    and is empty unless `code` is SUCCESS."""

    code: int
    status: str
    body: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    broker_id: int
    """The id of the broker of that name to pull from next time."""
    topic_created_ms: int | None = None
    """Same as in `PullAnswer`."""
    address: str = ""
    """The broker that answered."""

    @classmethod
    def of(cls, response: Command, address: str) -> RawPull:
        """Read an answer. Raises ResponseError when the pull was refused, RemoteProtocolError."""
        if response.code not in PULL_CODES:
            raise for_code(response.code, response.remark, address)
        ext = response.ext
        try:
            next_offset, broker_id = int(ext["nextBeginOffset"]), int(ext["suggestWhichBrokerId"])
            min_offset, max_offset = int(ext["minOffset"]), int(ext["maxOffset"])
            created_ms = int(ext[TOPIC_CREATED_MS]) if TOPIC_CREATED_MS in ext else None
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(f"the answer of {address} to a pull lacks {error}") from None
        body = bytes(response.body) if response.code == ResponseCode.SUCCESS else b""
        status = response.remark or ""
        offsets = next_offset, min_offset, max_offset
        return cls(response.code, status, body, *offsets, broker_id, created_ms, address)


class PullTemplate:
    """The common part of a group's pulls of a queue."""

    def __init__(
        self,
        group: str,
        queue: MessageQueue,
        data: SubscriptionData,
        *,
        send_subscription: bool = False,
        config: ClientConfig,
    ) -> None:
        """`send_subscription` sends the expression with each pull; otherwise the broker has it from the
        heartbeat. The namespace of `config` is removed from the topics of messages."""
        self._namespace = config.namespace
        self._kind = limited(config.max_body_size)
        self.queue = queue
        self._flags = PULL_SUBSCRIPTION if send_subscription else 0
        self._tags = data.tags_set
        self._is_retry = queue.topic.startswith(RETRY_PREFIX)
        self._fixed = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "subVersion": str(data.sub_version),
            "expressionType": data.expression_type or "TAG",
            "bname": queue.broker_name,
        }
        if send_subscription:
            self._fixed["subscription"] = data.sub_string

    def request(
        self,
        queue_offset: int,
        max_messages: int,
        suspend_ms: int,
        commit_offset: int | None,
        topic_created_ms: int | None = None,
    ) -> Command:
        """A pull from `queue_offset`, which the broker may hold for `suspend_ms` while it finds no message.
        The offsets are those of the topic created at `topic_created_ms`; None: of any topic of that name."""
        flags = self._flags | (PULL_SUSPEND if suspend_ms else 0)
        flags |= PULL_COMMIT_OFFSET if commit_offset else 0
        ext = {
            **self._fixed,
            "queueOffset": str(queue_offset),
            "maxMsgNums": str(max_messages),
            "sysFlag": str(flags),
            "commitOffset": str(commit_offset or 0),
            "suspendTimeoutMillis": str(suspend_ms),
        }
        if topic_created_ms is not None:
            ext[TOPIC_CREATED_MS] = str(topic_created_ms)
        return Command.request(RequestCode.PULL_MESSAGE, ext)

    def answer(
        self, response: Command, queue_offset: int, address: str, window: ProcessQueue | None = None
    ) -> PullAnswer:
        """Read the answer to a pull from `queue_offset`; the messages are given `window`.

        Raises ResponseError when it was refused, CorruptRecord, RemoteProtocolError.
        """
        raw = RawPull.of(response, address)
        next_offset = raw.next_offset
        messages: list[PulledMessage] = []
        if raw.code == ResponseCode.SUCCESS:
            messages, complete = read_messages(raw.body, self.queue.broker_name, window, self._kind)
            if not complete:
                next_offset = messages[-1].queue_offset + 1
                log.error("%s: cannot read the message after offset %d", self.queue, next_offset - 1)
            messages = self._selected(messages, queue_offset)
        return PullAnswer(
            raw.code,
            messages,
            next_offset,
            raw.min_offset,
            raw.max_offset,
            raw.broker_id,
            raw.topic_created_ms,
        )

    def _selected(self, messages: list[PulledMessage], queue_offset: int) -> list[PulledMessage]:
        if messages and messages[0].queue_offset < queue_offset:
            messages = [message for message in messages if message.queue_offset >= queue_offset]
        if self._tags:  # the broker compares hashes of tags, and different tags may have equal hashes
            messages = [message for message in messages if message.tags in self._tags]
        if self._is_retry:
            for message in messages:
                to_original_topic(message)
        if self._namespace:
            for message in messages:
                message.topic = without_namespace(self._namespace, message.topic)
        return messages


class Puller:
    """Keeps the window of a queue filled, until `stop` cancels it."""

    def __init__(
        self,
        session: Session,
        window: ProcessQueue,
        template: PullTemplate,
        *,
        may_commit: Callable[[], bool],
        on_messages: Callable[[Sequence[PulledMessage]], None],
        on_progress: Callable[[], None],
        on_offset_moved: Callable[[MessageQueue, int, int | None], None],
        beyond_is_end: bool = False,
        owns_offsets: bool = False,
    ) -> None:
        """While `may_commit()`, each pull commits the present offset. `on_messages` gets the messages of a
        pull, which are in the window already, `on_progress` is called when the window begins at another
        offset; `on_offset_moved(queue, next_offset, topic_created_ms)` is called when the requested offset
        does not exist: the queue continues at another offset, and this puller ends. With a creation (ms), the
        queue is of another topic of that name. `beyond_is_end`: an offset beyond the end stands for the end,
        whatever the broker answers. `owns_offsets`: the brokers' offsets of the group are not this
        member's."""
        self.window = window
        self._session = session
        self._on_messages = on_messages
        self._on_progress = on_progress
        self._on_offset_moved = on_offset_moved
        self._beyond_is_end = beyond_is_end
        self._owns_offsets = owns_offsets
        self._template = template
        self._may_commit = may_commit
        self._broker_id = MASTER_ID
        self._useless = 0
        self._failures = 0
        self._failure: type[Exception] | None = None
        self.unanswered_since: float | None = None
        """Begin of the first request without an answer since the last answer; None when no request waits."""
        self.trouble = ""
        """The error of the last of these requests."""
        self._scope = anyio.CancelScope()
        self._room = Wakeup()

    def stop(self) -> None:
        """End the loop and drop the window: its pulled messages are not delivered any more."""
        self.window.drop()
        self._scope.cancel()

    async def run(self) -> None:
        """Pull until stopped. A failure is logged, and the pull repeated after a pause; only a bug ends the
        loop with an error."""
        with self._scope:
            while not self.window.is_dropped:
                while self.window.is_full:
                    self.unanswered_since = None
                    self.window.when_room(self._room.set)
                    await self._room.wait()
                try:
                    await self._pull()
                    self._failures = 0
                except (*FAILURES, CorruptRecord) as error:
                    await self._failed(error)

    async def _pull(self) -> None:
        session, window, config = self._session, self.window, self._session.config
        broker_id, address = session.brokers.reader(window.queue, self._broker_id)
        commits = broker_id == MASTER_ID and self._may_commit()
        commit_offset = window.commit_offset if commits else None
        asked = window.next_offset
        most = window.room(config.pull_batch_size)
        request = self._template.request(
            asked, most, config.pull_suspend_ms, commit_offset, window.topic_created_ms
        )
        window.pulled_at_ms = session.now_ms()
        began = session.now()
        if self.unanswered_since is None:
            self.unanswered_since = began
        response = await session.pool.call(address, request, config.pull_timeout_ms / 1000)
        self.unanswered_since, self.trouble = None, ""
        answer = self._template.answer(response, asked, address, window)
        self._broker_id = answer.broker_id
        if answer.topic_created_ms is not None:
            next_offset = answer.min_offset if self._owns_offsets else answer.next_offset
            self._go_on_in_present_topic(asked, next_offset, answer.topic_created_ms)
            return
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            places = {"first": answer.min_offset, "last": answer.max_offset}
            at = answer.next_offset
            if self._beyond_is_end and asked > answer.max_offset >= answer.min_offset:
                at = answer.max_offset
            next_offset = places.get(config.offset_reset, at)
            log.warning("%s: offset %d does not exist, continuing at %d", window.queue, asked, next_offset)
            # Another puller begins at that offset: it cannot know that this one was moved, too.
            await anyio.sleep(LONGEST_PAUSE_SECONDS if next_offset == asked else FIRST_PAUSE_SECONDS)
            self._on_offset_moved(window.queue, next_offset, None)
            return
        messages = answer.messages
        if messages:
            next_offset = max(answer.next_offset, messages[-1].queue_offset + 1)
            window.add([m.queue_offset for m in messages], [m.size for m in messages], next_offset)
            self._on_progress()
            self._on_messages(messages)
        else:
            if answer.next_offset > asked:  # never back: messages of the window would be pulled twice
                window.next_offset = answer.next_offset
                self._on_progress()
            await self._paced(began, is_useless=answer.next_offset <= asked)
            return
        self._useless = 0

    def _go_on_in_present_topic(self, asked: int, next_offset: int, topic_created_ms: int) -> None:
        """Continue at the broker's offset: the present one belongs to another topic of the name."""
        window = self.window
        if asked == next_offset == window.commit_offset:  # begun before the topic was created
            window.topic_created_ms = topic_created_ms
            return
        log.warning(
            "%s: the topic was deleted and created again: offset %d is not valid there, continuing at %d",
            window.queue,
            asked,
            next_offset,
        )
        self._on_offset_moved(window.queue, next_offset, topic_created_ms)

    async def _paced(self, began: float, *, is_useless: bool) -> None:
        """Wait after an answer without messages that came at once, longer after each further one."""
        if not is_useless or self._session.now() - began >= HURRIED_SECONDS:
            self._useless = 0
            return
        await anyio.sleep(exponential_backoff(FIRST_PAUSE_SECONDS, self._useless, LONGEST_PAUSE_SECONDS))
        self._useless += 1

    async def _failed(self, error: Exception) -> None:
        session, queue = self._session, self.window.queue
        self.trouble = str(error)
        is_damage = isinstance(error, DAMAGE) or isinstance(getattr(error, "cause", None), DAMAGE)
        if type(error) is not self._failure and not is_damage:
            self._failures = 0  # for example a broker that is back, and has had no heartbeat from us yet
        self._failure = type(error)
        # A new group's retry topic does not exist everywhere yet.
        is_known = self._failures > 0 or queue.topic.startswith(RETRY_PREFIX)
        place: object = queue
        if isinstance(error, NETWORK_ERRORS):
            place = f"broker {queue.broker_name}"
            is_known = is_known or not session.brokers.news.is_new(queue.broker_name, error, session.now())
        log.log(logging.DEBUG if is_known else logging.WARNING, "pull from %s: %s", place, error)
        if isinstance(error, (SubscriptionNotExist, SubscriptionNotLatest)):
            session.heartbeat_soon()
        elif not isinstance(error, CorruptRecord):
            session.refresh_soon(queue.topic)
        self._broker_id = MASTER_ID
        longest = session.config.pull_retry_delay_ms / 1000
        # Closing the connection would not help: a broker that sends damage does so again.
        rest = anyio.sleep if is_damage else session.rest
        await rest(exponential_backoff(FIRST_PAUSE_SECONDS, self._failures, longest))
        self._failures += 1


# Search by time: the offset of a moment in a queue.

LOOK_BACK: Final = 16
"""Messages before the broker's answer that a search looks at."""


async def first_since(session: Session, group: str, queue: MessageQueue, timestamp_ms: int) -> int:
    """The offset of the first message stored at that time (ms since 1970) or later, or of the queue's end.

    Brokers answer with the message nearest to the time, or any of those stored in that ms: a look at its
    neighbours, pulled by `group`, finds the first. Raises as `PullConsumer.pull`. Cancelled: nothing changes.
    """
    brokers = session.brokers
    if session.routes.reader(queue.broker_name) is None:
        await session.refresh(queue.topic)
    data = subscription(queue.topic, ALL, session.now_ms())
    template = PullTemplate(group, queue, data, send_subscription=True, config=session.config)
    at = await brokers.search_offset(queue, timestamp_ms)
    first = max(at - LOOK_BACK, await brokers.min_offset(queue))
    while True:
        answer = await _pull(session, template, first)
        late = [message for message in answer.messages if message.store_timestamp >= timestamp_ms]
        if late and (late[0] is not answer.messages[0] or first <= answer.min_offset):
            return late[0].queue_offset
        if late:
            first = max(first - LOOK_BACK, answer.min_offset)
        elif answer.next_offset <= first:
            return first
        else:
            first = answer.next_offset


async def _pull(session: Session, template: PullTemplate, queue_offset: int) -> PullAnswer:
    _, address = session.brokers.reader(template.queue)
    request = template.request(queue_offset, 2 * LOOK_BACK, 0, None)
    return template.answer(
        await session.pool.call(address, request, session.brokers.timeout), queue_offset, address
    )
