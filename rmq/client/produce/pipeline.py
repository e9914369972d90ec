"""Pipeline: sends of many messages without a task or a wait for each.

Messages are gathered and go in few requests, several of which are in flight at a time. A request begins when
it is full, when no request of its kind is in flight, or when the present request is answered: so messages
that come slowly do not wait, and messages that come fast go together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

from rmq.client.produce.batches import BatchBody, Batches, BatchKey, batch_key, encoded, joined, new_body
from rmq.client.produce.outgoing import BATCH_MESSAGES, Outgoing, each, pack
from rmq.client.produce.sender import Sender
from rmq.client.session.observer import Observer
from rmq.client.session.results import SendResult
from rmq.client.session.session import Session
from rmq.errors import LocalProtocolError, check_callable, check_number, not_open
from rmq.message import Message, MessageQueue
from rmq.remoting.loop import Waiter, current_loop

if TYPE_CHECKING:
    from rmq.protocol import _engine

OnResult = Callable[[Message, SendResult | Exception], object]

AT_A_TIME: Final = 4
"""Requests for which a window has room, so that one is always in flight."""
_CLOSED = "the client was closed; the message may be stored"


@define(eq=False)
class _Batch:
    """Messages that go in one request."""

    body: BatchBody | _engine.BatchBody
    ids: list[str] = field(factory=list)
    flag: int = 0
    """The index of the first message."""
    messages: list[Message] = field(factory=list)
    """True if the caller wants the result of each message."""
    tokens: list[list[tuple[Observer, Any]]] = field(factory=list)
    """Results of observers for each message, if there are observers."""
    alone: Outgoing | None = None
    """Its only message, which cannot go with others; `body` is empty in that case."""


@define(eq=False)
class _Lane:
    """Messages of a key: in flight, waiting for an earlier request, or being gathered."""

    key: BatchKey
    on_their_way: int = 0
    waiting: deque[_Batch] = field(factory=deque)
    gathered: _Batch | None = None

    @property
    def is_ordered(self) -> bool:
        """True if a request begins only when the one before it has ended."""
        *_, queue, sharding_key = self.key
        return queue is not None or sharding_key is not None


class Pipeline:
    """Sends many messages: `async with producer.pipeline() as pipeline`.

    `send` returns as soon as the window has room for the message, without waiting for its result. Leaving the
    block waits for all results and raises the first error; after an error it waits for nothing, and accepted
    messages are still sent. Messages of the same topic with the same `queue`, or the same `sharding_key`, are
    stored in the order of their sends: only one request of these messages is in flight at a time. Other
    messages have several requests in flight, and queues take turns from request to request.

    `on_result(message, result)` is called with each message's result, a SendResult or the error, in the order
    of the sends within a request. In that case `on_result` handles the errors. Without it the first error
    ends the pipeline: the next `send`, `flush` or the block raises it, with a note of the number of stored
    messages. An exception of `on_result` ends the pipeline as well.
    """

    def __init__(
        self,
        session: Session,
        sender: Sender,
        group: str,
        window: int,
        on_result: OnResult | None,
        begin: Callable[[], None],
        end: Callable[[], None],
    ) -> None:
        """`begin` and `end` are called around each request: the producer waits for requests when it is
        left."""
        check_number("window", window, 1)
        if on_result is not None:
            expected = "a function of a message and its result"
            check_callable("on_result", on_result, expected, takes=2, is_awaited=False)
        self.window = window
        """Messages without a result, at most, at a time."""
        self.stored = 0
        """Number of stored messages."""
        self.failed = 0
        """Number of messages whose result is an error."""
        self._session = session
        self._group = group
        self._batches = Batches(sender)
        self._most = min(BATCH_MESSAGES, max(1, window // AT_A_TIME))
        self._on_result = on_result
        self._begin, self._end = begin, end
        self._taken = 0
        self._lanes: dict[BatchKey, _Lane] = {}
        self._last: _Lane | None = None  # the lane of the last message, which is mostly that of the next one
        self._is_starting = False
        self._failure: BaseException | None = None
        self._is_open = False
        self._waiting: list[Waiter] = []

    @property
    def in_flight(self) -> int:
        """Number of messages that were taken and have no result yet."""
        return self._taken

    async def __aenter__(self) -> Pipeline:
        """Begin to take messages. Raises LocalProtocolError when the producer is not open."""
        self._begin()
        self._end()
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for all results and raise the first error; see the class."""
        self._is_open = False
        if error is None:
            await self.flush()
        else:
            self._start_all()

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, sharding_key: str | None = None
    ) -> None:
        """Take a message, as soon as the window has room.

        The message is sent as by `Producer.send`, whose errors are those of its result. Raises InvalidName,
        InvalidMessage, InvalidType and ConfigError, for a refused message, after which the pipeline
        continues; LocalProtocolError outside of the block; without `on_result` the first error of an earlier
        message. Cancelled: the message is not taken.
        """
        while self._taken >= self.window and self._failure is None and self._is_open:
            await self._change()
        self._check()
        lane, session = self._last, self._session
        if lane is not None and lane.key[2] is queue and lane.key[3] == sharding_key:
            # The way of nearly all messages with the compiled engine, which accepts plain messages only.
            batch = lane.gathered
            if batch is not None and self._batches.are_known and not session.observers:
                unique_id = session.unique_ids.next()
                if batch.body.add(message, unique_id) > 0:
                    batch.ids.append(unique_id)
                    self._taken += 1
                    if self._on_result is not None:
                        batch.messages.append(message)
                    if len(batch.ids) >= self._most:
                        self._start(lane, batch)
                    return
        self._take(message, queue, sharding_key)

    def _take(self, message: Message, queue: MessageQueue | None, sharding_key: str | None) -> None:
        session = self._session
        tokens: list[tuple[Observer, Any]] | None = None
        if session.observers:
            outgoing, tokens = self._observed(message)
        else:
            outgoing = pack(message, session.unique_ids.next(), session.config)
        key = batch_key(message, outgoing, queue, sharding_key)
        lane = self._last = self._lanes.setdefault(key, _Lane(key))
        batch = lane.gathered
        if not self._batches.takes(message, outgoing):
            if batch is not None and lane.is_ordered:
                self._start(lane, batch)
            alone = self._new_batch(key, outgoing)
            alone.alone = outgoing
            self._note(alone, message, tokens)
            self._start(lane, alone)
            return
        one = encoded(outgoing)
        if batch is not None and not batch.body.add_encoded(one):
            self._start(lane, batch)
            batch = None
        if batch is None:
            batch = lane.gathered = self._new_batch(key, outgoing)
            batch.body.add_encoded(one)
            if not lane.on_their_way and not self._is_starting:
                # A task that is started now runs when the sender's task has to wait.
                self._is_starting = True
                self._tasks.start_soon(self._start_waiting)
        batch.ids.append(outgoing.unique_id)
        self._note(batch, message, tokens)
        if len(batch.ids) >= self._most:
            self._start(lane, batch)

    def _new_batch(self, key: BatchKey, first: Outgoing) -> _Batch:
        return _Batch(new_body(key[0], key[1], self._session.config), flag=first.flag)

    def _note(self, batch: _Batch, message: Message, tokens: list[tuple[Observer, Any]] | None) -> None:
        self._taken += 1
        if self._on_result is not None:
            batch.messages.append(message)
        if tokens is not None:
            batch.tokens.append(tokens)

    async def flush(self) -> None:
        """Wait for the results of all accepted messages, also of those that other tasks send during the wait.
        Raises the first error, without `on_result`. Cancelled: the messages are still sent."""
        self._start_all()
        while self._taken:
            await self._change()
        if self._failure is not None:
            self._raise()

    # --- requests ---

    @property
    def _tasks(self) -> Any:
        tasks = self._session.tasks
        if tasks is None:
            raise not_open("client", "send")
        return tasks

    async def _start_waiting(self) -> None:
        """Begin requests that need not wait."""
        self._is_starting = False
        for lane in list(self._lanes.values()):
            if lane.gathered is not None and not lane.on_their_way:
                self._start(lane, lane.gathered)

    def _start_all(self) -> None:
        for lane in list(self._lanes.values()):
            if lane.gathered is not None:
                self._start(lane, lane.gathered)

    def _start(self, lane: _Lane, batch: _Batch) -> None:
        if lane.gathered is batch:
            lane.gathered = None
        if lane.on_their_way and lane.is_ordered:
            lane.waiting.append(batch)
            return
        lane.on_their_way += 1
        self._begin()
        self._tasks.start_soon(self._run, lane, batch)

    async def _run(self, lane: _Lane, batch: _Batch) -> None:
        """Send a batch, and the messages gathered since."""
        try:
            while True:
                await self._exchange(lane.key, batch)
                if lane.waiting:
                    batch = lane.waiting.popleft()
                elif lane.gathered is not None:
                    batch, lane.gathered = lane.gathered, None
                else:
                    break
        except BaseException:  # the client ends
            for one in (*lane.waiting, *([lane.gathered] if lane.gathered else ())):
                self._finish(one, 0, max(len(one.ids), 1), LocalProtocolError(_CLOSED))
            lane.waiting.clear()
            lane.gathered = None
            raise
        finally:
            lane.on_their_way -= 1
            if not (lane.on_their_way or lane.gathered) and self._lanes.get(lane.key) is lane:
                del self._lanes[lane.key]
                self._last = None
            self._end()

    async def _exchange(self, key: BatchKey, batch: _Batch) -> None:
        at, count = 0, max(len(batch.ids), 1)
        try:
            outgoing = batch.alone or joined(key, batch.flag, batch.body.take(), batch.ids)
            for part, outcome in await self._batches.send(key, outgoing):
                self._finish(batch, at, part, outcome)
                at += part
        except BaseException:
            self._finish(batch, at, count - at, LocalProtocolError(_CLOSED))
            raise

    def _finish(self, batch: _Batch, at: int, count: int, outcome: SendResult | Exception) -> None:
        """Give their result to `count` messages of a batch, from number `at` on."""
        self._taken -= count
        if isinstance(outcome, Exception):
            self.failed += count
            if self._on_result is None and self._failure is None:
                self._failure = outcome
        else:
            self.stored += count
        if batch.tokens or self._on_result is not None:
            results = each(outcome) if isinstance(outcome, SendResult) and count > 1 else [outcome] * count
            self._report_results(batch, at, list(results))
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.resolve(None)

    def _report_results(self, batch: _Batch, at: int, results: list[SendResult | Exception]) -> None:
        for number, result in enumerate(results, at):
            if batch.tokens:
                self._report(batch.tokens[number], result)
            if self._on_result is not None:
                try:
                    self._on_result(batch.messages[number], result)
                except Exception as bug:
                    self._failure = self._failure or bug

    def _report(self, tokens: list[tuple[Observer, Any]], result: SendResult | BaseException) -> None:
        stored, error = (result, None) if isinstance(result, SendResult) else (None, result)
        self._session.observers.end(tokens, lambda observer, token: observer.sent(token, stored, error))

    def _observed(self, message: Message) -> tuple[Outgoing, list[tuple[Observer, Any]]]:
        session, extra = self._session, dict[str, str]()
        tokens = session.observers.begin(lambda observer: observer.sending(self._group, message, extra))
        try:
            return pack(message, session.unique_ids.next(), session.config, extra=extra), tokens
        except BaseException as failure:
            self._report(tokens, failure)
            raise

    # --- waiting ---

    def _check(self) -> None:
        if self._failure is not None:
            self._raise()
        if not self._is_open:
            raise not_open("pipeline", "send")

    def _raise(self) -> None:
        failure = self._failure
        assert failure is not None
        note = f"of the pipeline's messages {self.stored} are stored"
        if not any(one.startswith(note[:27]) for one in getattr(failure, "__notes__", ())):
            failure.add_note(f"{note}, {self.failed} are not, {self._taken} have no result yet")
        raise failure

    async def _change(self) -> None:
        """Wait until some messages have their results."""
        waiter = current_loop().waiter()
        self._waiting.append(waiter)
        await waiter.wait()
