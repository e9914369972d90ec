"""Ordered consumption: the messages of a queue one after another, under the broker's lock of the queue.

A member consumes a queue only while it holds the queue's lock: it takes the lock before it asks where to
begin, renews it every `lock_interval_ms`, and gives it back only when the message that it was working on has
ended and its offset is committed. The next member begins there, so the order holds through rebalance and
restart. A lock whose last renewal lies `TRUST_SECONDS` back is not relied on: the broker gives it to others
after 60 s; nor is one whose connection has ended."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final

import anyio
import anyio.abc
from attrs import frozen

from rmq.client.assignments import FAILURES, Assignments, Membership
from rmq.client.consumer import BURST, Consumer
from rmq.client.delivery import Consumption, Delivery, Hand
from rmq.client.dispatch import Inbox
from rmq.client.handlers import told_reason, wanted_delay
from rmq.client.message_view import PulledMessage
from rmq.client.namespace import wrapped
from rmq.client.outgoing import STATUSES, Outgoing, SendTemplate, checked_properties
from rmq.client.process_queue import ProcessQueue
from rmq.client.rebalance import Change
from rmq.client.session import Session
from rmq.errors import RmqError, for_code
from rmq.message import (
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRANSACTION_PREPARED,
    MessageQueue,
    StoredMessage,
    retry_topic,
)
from rmq.protocol.bodies import ProcessQueueInfo
from rmq.protocol.command import Command
from rmq.protocol.properties import DLQ_REASON
from rmq.remoting.connection import Connection

log = logging.getLogger(__name__)

TRUST_SECONDS: Final = 30.0
"""A lock is relied on for so long after its renewal was asked for."""
EXPIRY_SECONDS: Final = 60.0
"""A broker gives a lock to others when it was not renewed for so long."""
RETRY_SECONDS: Final = 1.0
"""A renewal that failed is tried again so soon."""


class Lane(ProcessQueue):
    """The window of a queue whose messages are delivered one after another."""

    __slots__ = ("back", "on_free", "paused", "queued", "taken", "waiting")

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        super().__init__(queue, next_offset)
        self.waiting: deque[PulledMessage] = deque()
        """Pulled and not delivered yet, in order."""
        self.taken: dict[int, PulledMessage] = {}
        """Being delivered; nothing else is delivered meanwhile."""
        self.back: list[PulledMessage] = []
        """Of those that were delivered together: what failed."""
        self.queued = False
        """Whether it stands in line to be delivered from."""
        self.paused = False
        """After a failure, for a while."""
        self.on_free: Callable[[Lane], None] = lambda lane: None
        """Called when nothing of it is being delivered any more."""

    @property
    def busy(self) -> bool:
        return bool(self.taken)

    def take(self, most: int) -> list[PulledMessage]:
        """The next messages, at most so many; until each is finished or put back there are no others."""
        messages = [self.waiting.popleft() for _ in range(min(most, len(self.waiting)))]
        self.taken = {message.queue_offset: message for message in messages}
        return messages

    def finish(self, queue_offset: int) -> bool:
        finished = super().finish(queue_offset)
        self._end(queue_offset)
        return finished

    def put_back(self, message: PulledMessage) -> None:
        """Deliver it again, before all others."""
        if message.queue_offset in self.taken:
            self.back.append(message)
            self._end(message.queue_offset)

    def _end(self, queue_offset: int) -> None:
        if self.taken.pop(queue_offset, None) is not None and not self.taken:
            self.waiting.extendleft(sorted(self.back, key=attrgetter("queue_offset"), reverse=True))
            self.paused = bool(self.back)
            self.back.clear()
            self.on_free(self)


@frozen
class _Trust:
    """How long a lock is relied on, and the connection that it was taken over: a broker that was started anew
    has forgotten the lock, and may have given the queue to another member."""

    until: float
    connection: Connection

    def holds_at(self, now: float) -> bool:
        return self.until > now and not self.connection.closed


class OrderedAssignments(Assignments):
    """Queues that are consumed only under their lock. `renew` runs beside `run` and outlives it."""

    owner: OrderedConsumer

    def __init__(self, session: Session, owner: OrderedConsumer, membership: Membership) -> None:
        super().__init__(session, owner, membership)
        self.owner = owner
        self.locks = not membership.broadcasting
        self._trusted: dict[MessageQueue, _Trust] = {}
        self._renew_now = anyio.Event()
        self._parting: dict[MessageQueue, Lane] = {}
        self._freed = anyio.Event()

    def trusts(self, queue: MessageQueue) -> bool:
        """Whether we may consume the queue now."""
        if not self.locks:
            return True
        trust = self._trusted.get(queue)
        return trust is not None and trust.holds_at(self._session.now())

    def lane(self, queue: MessageQueue) -> Lane | None:
        """The present window of a queue."""
        puller = self.pullers.get(queue)
        return puller.window if puller is not None and isinstance(puller.window, Lane) else None

    def freed(self) -> None:
        """Some message has ended: queues that are to be given up may be so now."""
        self._freed.set()

    # --- taking and giving up ---

    def new_window(self, queue: MessageQueue, queue_offset: int) -> ProcessQueue:
        lane = Lane(queue, queue_offset)
        lane.on_free = self.owner.freed
        return lane

    def start(self, queue: MessageQueue, queue_offset: int) -> None:
        """As `Assignments.start`; what the old window was delivering ends before the new one delivers."""
        old = self.lane(queue)
        super().start(queue, queue_offset)
        if old is not None and old.busy:
            self.owner.wait_for(old)

    async def _begin(self, queue: MessageQueue) -> None:
        if queue in self._parting:
            self._complete = False  # its last message is still being consumed here
            return
        try:
            if self.locks and not await self._lock([queue]):
                log.info("%s is still locked by another member of %s", queue, self._member.group)
                self._complete = False
                return
        except FAILURES as error:
            self._complete = False
            log.warning("cannot lock %s: %s", queue, error)
            return
        await super()._begin(queue)

    async def _apply(self, topic: str, change: Change) -> None:
        for queue in change.removed:
            lane = self.lane(queue)
            self.pullers.pop(queue).stop()
            if lane is not None and self._tasks is not None:
                self._parting[queue] = lane
                self._tasks.start_soon(self._part, lane)
        await super()._apply(topic, Change(change.added, []))

    async def _part(self, lane: Lane) -> None:
        """Give a queue up, once its message has ended: commit, then unlock."""
        while lane.busy or self.owner.is_waited_for(lane.queue):
            self._freed = anyio.Event()
            await self._freed.wait()
        await self._commit([lane], last=True)
        await self._unlock([lane.queue])
        self._parting.pop(lane.queue, None)

    async def release(self) -> None:
        """Unlock what can be: all but the queues whose message goes on."""
        await self._commit(self._parting.values(), last=True)
        lanes = {**{queue: self.lane(queue) for queue in self.pullers}, **self._parting}
        await self._unlock([queue for queue, lane in lanes.items() if lane is None or not lane.busy])

    # --- locks ---

    async def renew(self) -> None:
        """Renew the locks until cancelled; a queue whose lock is lost is given up and begun anew."""
        interval = self._session.config.lock_interval_ms / 1000
        done = True
        while self.locks:
            with anyio.move_on_after(interval if done else min(RETRY_SECONDS, interval)):
                await self._renew_now.wait()
            self._renew_now = anyio.Event()
            done = await self._renew_all()

    def rebalance_soon(self) -> None:
        """As `Assignments.rebalance_soon`; a broker that was started anew says so too, and has no locks."""
        super().rebalance_soon()
        if any(trust.connection.closed for trust in self._trusted.values()):
            self._renew_now.set()

    async def _renew_all(self) -> bool:
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in [*self.pullers, *self._parting]:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        done = True
        for queues in by_broker.values():
            try:
                await self._renew(queues)
            except FAILURES as error:
                done = False
                log.warning("the locks of %s are not renewed: %s", queues[0].broker_name, error)
        return done

    async def _renew(self, queues: Sequence[MessageQueue]) -> None:
        before = {queue: self._trusted.get(queue) for queue in queues}
        got = await self._lock(queues)
        latest = self._session.now() - (EXPIRY_SECONDS - TRUST_SECONDS)
        for queue in queues:
            trust = before[queue]
            if queue not in got or trust is None or not trust.holds_at(latest):
                # Another member may have had it meanwhile, and have gone further than we have.
                self._lose(queue)
            elif (lane := self.lane(queue)) is not None:
                self.owner.offer(lane)

    def _lose(self, queue: MessageQueue) -> None:
        puller = self.pullers.pop(queue, None)
        if puller is not None:
            log.warning("%s: the lock is lost, beginning anew", queue)
            puller.stop()
            if isinstance(puller.window, Lane) and puller.window.busy:
                self.owner.wait_for(puller.window)
            self._trusted.pop(queue, None)
            self._complete = False
            self.rebalance_soon()

    async def _lock(self, queues: Sequence[MessageQueue]) -> frozenset[MessageQueue]:
        session = self._session
        asked_at = session.now()
        address = session.brokers.master(queues[0])
        connection = await session.pool.connection(address)
        got = await session.brokers.lock(address, self._member.group, session.client_id, queues)
        self._trusted.update(dict.fromkeys(got, _Trust(asked_at + TRUST_SECONDS, connection)))
        return got

    async def _unlock(self, queues: Iterable[MessageQueue]) -> None:
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            if self._trusted.pop(queue, None) is not None:
                by_broker.setdefault(queue.broker_name, []).append(queue)
        session, group = self._session, self._member.group
        for mine in by_broker.values():
            try:
                await session.brokers.unlock(session.brokers.master(mine[0]), group, session.client_id, mine)
            except FAILURES as error:
                log.warning("unlock at %s: %s", mine[0].broker_name, error)


class OrderedConsumption(Consumption):
    """A message that fails stays at the head of its lane, up to `max_reconsume_times`."""

    returns_late = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._form = SendTemplate(self.group, "1")

    def put_off(self, message: PulledMessage, window: ProcessQueue) -> None:
        """Deliver it again here, before all others of its queue."""
        assert isinstance(window, Lane)
        window.put_back(message)

    async def failed(
        self, message: PulledMessage, window: ProcessQueue, error: Exception | None, delay_level: int = 0
    ) -> None:
        """Bury a message that was tried too often or is given up; deliver any other again."""
        self.count_failure(message, error)
        limit = self._options.max_reconsume_times
        if not window.dropped and not self._options.broadcasting:
            spent = limit is not None and message.reconsume_times >= limit
            given_up = wanted_delay(error, delay_level) < 0
            if (spent or given_up) and await self._bury(message, told_reason(error)):
                window.finish(message.queue_offset)
                return
        message.reconsume_times += 1
        self.put_off(message, window)

    async def _bury(self, message: PulledMessage, reason: str) -> bool:
        """Send a message to the dead letters; False when that failed."""
        session = self._session
        queue = MessageQueue(retry_topic(self.group), message.broker_name, 0)
        try:
            address = session.brokers.master(queue)
            request = self._burial(message, queue, reason)
            response = await session.pool.call(address, request, session.config.send_timeout_ms / 1000)
            if response.code not in STATUSES:
                raise for_code(response.code, response.remark, address)
        except RmqError as error:
            log.warning(
                "%s: message %s cannot go to the dead letters: %s", self.group, message.message_id, error
            )
            return False
        except BaseException:
            if message.window is not None:
                self.put_off(message, message.window)
            raise
        return True

    def _burial(self, message: PulledMessage, queue: MessageQueue, reason: str) -> Command:
        """A send to the retry topic of a message that was tried too often: the broker makes it a dead
        letter."""
        times = str(message.reconsume_times)
        properties = dict(message.properties)
        properties.pop(PROPERTY_TRANSACTION_PREPARED, None)
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.message_id)
        properties[PROPERTY_RETRY_TOPIC] = wrapped(self._session.config.namespace, message.topic)
        properties[PROPERTY_RECONSUME_TIME] = properties[PROPERTY_MAX_RECONSUME_TIMES] = times
        properties |= {DLQ_REASON: reason} if reason else {}
        text = checked_properties(properties)
        outgoing = Outgoing(
            queue.topic,
            message.body,
            0,
            message.flag,
            text,
            message.message_id,
            more={"j": times, "l": times},
        )
        return self._form.request(outgoing, queue, self._session.now_ms())


class OrderedConsumer(Consumer):
    """A consumer that has one message, or one batch, of a queue at a time, in the order of their offsets.

    Used as `Consumer`; `concurrency` is how many queues are consumed at once. A message that fails holds up
    its queue: it is delivered again here after `suspend_queue_ms`, up to `max_reconsume_times` (for ever
    without one), and then goes to the dead letters. Leaving the block gives the locks back; a message that
    outlives the block keeps its queue locked for the 60 s that the broker waits."""

    ordered = True
    _assignments: OrderedAssignments

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._endings: dict[MessageQueue, Lane] = {}  # dropped while one of their messages is delivered

    def _assign(self, membership: Membership) -> Assignments:
        return OrderedAssignments(self._session, self, membership)

    def _new_consumption(self) -> Consumption:
        return OrderedConsumption(self._session, self.group, self._options, self._inbox, self._deliver_again)

    async def _join(self) -> None:
        await super()._join()
        self._scope.tasks.start_soon(self._assignments.renew)

    @property
    def _lanes(self) -> Inbox[Lane]:
        inbox: Any = self._inbox
        return inbox  # type: ignore[no-any-return]

    def _window_info(self, queue: MessageQueue) -> ProcessQueueInfo:
        info = super()._window_info(queue)
        info.locked = self._assignments.trusts(queue)
        return info

    # --- lanes ---

    def arrived(self, messages: Sequence[PulledMessage]) -> None:
        lane = messages[0].window
        assert isinstance(lane, Lane)
        self._consumption.rates.arrived(lane.queue.topic, len(messages))
        lane.waiting.extend(messages)
        self.offer(lane)

    def offer(self, lane: Lane) -> None:
        """Let a queue stand in line, if there is a message that may be delivered."""
        if lane.waiting and not (lane.queued or lane.busy or lane.paused or lane.dropped):
            lane.queued = True
            self._lanes.put([lane])

    def freed(self, lane: Lane) -> None:
        """Nothing of the lane is being delivered any more."""
        if self._endings.get(lane.queue) is lane:
            del self._endings[lane.queue]
        self._assignments.freed()
        if lane.paused and not lane.dropped:
            self._pause(lane)
        current = self._assignments.lane(lane.queue)
        if current is not None:
            self.offer(current)

    def wait_for(self, lane: Lane) -> None:
        """Deliver nothing of the queue before this window's message has ended."""
        self._endings.setdefault(lane.queue, lane)

    def is_waited_for(self, queue: MessageQueue) -> bool:
        """Whether a message of a dropped window is still being delivered."""
        return queue in self._endings

    def _pause(self, lane: Lane) -> None:
        self._consumption.deliver_later(lane.waiting[0], self._session.config.suspend_queue_ms)

    def _deliver_again(self, message: PulledMessage) -> None:
        lane = message.window
        assert isinstance(lane, Lane)
        lane.paused = False
        self.offer(lane)

    # --- delivering ---

    def _take(self, most: int) -> list[tuple[PulledMessage, ProcessQueue]]:
        """Messages of the first queue in line that may be delivered."""
        ready = self._lanes.ready
        while ready:
            lane = ready.popleft()
            lane.queued = False
            if lane.dropped or lane.queue in self._endings or not self._assignments.trusts(lane.queue):
                continue  # offered again when the lock is renewed, or when the old window's message ends
            if ready and self._lanes.idle:
                self._lanes.wake()
            return [(message, lane) for message in lane.take(most)]
        return []

    async def __anext__(self) -> Delivery:
        self._taken += 1
        if not self._taken % BURST:
            await anyio.lowlevel.checkpoint()
        while True:
            for message, window in self._take(1):
                return Delivery(self._consumption, message, window)
            if self._inbox.closed:
                raise StopAsyncIteration
            await self._inbox.arrival()

    async def _burst(
        self, handle: Callable[[StoredMessage], Awaitable[object]], inbox: Inbox[PulledMessage], hand: Hand
    ) -> None:
        for _ in range(BURST):
            taken = self._take(1)
            if not taken:
                return
            hand.messages = (taken[0][0],)
            await self._consume_batch(lambda messages: handle(messages[0]), taken)
