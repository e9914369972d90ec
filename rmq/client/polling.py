"""Polling: queues are pulled in the background, messages are taken when the application asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import anyio
import anyio.lowlevel
from attrs import evolve

from rmq.client.assignments import Assignments, Membership
from rmq.client.consumer_options import ConsumerOptions
from rmq.client.ordered import OrderedAssignments, OrderedConsumer
from rmq.client.process_queue import ProcessQueue
from rmq.client.pulled import PulledMessage
from rmq.client.pulling import PullForm
from rmq.client.rebalance import difference
from rmq.client.scope import TaskScope
from rmq.client.session import Session
from rmq.client.subscription import Sql
from rmq.errors import LocalProtocolError
from rmq.message import MessageQueue, StoredMessage
from rmq.protocol.bodies import ConsumerData


class PolledAssignments(OrderedAssignments):
    """Queues shared out among the group, or those that were named; without locks."""

    def __init__(
        self,
        session: Session,
        owner: OrderedConsumer,
        membership: Membership,
        named: frozenset[MessageQueue] | None,
    ) -> None:
        super().__init__(session, owner, membership)
        self.locks = False
        self._named = named

    async def _rebalance_topic(self, topic: str) -> None:
        if self._named is None:
            await super()._rebalance_topic(topic)
            return
        await self._session.rotation(topic, self._session.brokers.timeout)
        held = [queue for queue in self.pullers if queue.topic == topic]
        await self._apply(topic, difference(held, (q for q in self._named if q.topic == topic)))

    def form(self, queue: MessageQueue) -> PullForm:
        """Who is no member of the group says with each pull what it wants."""
        if self._named is None:
            return super().form(queue)
        data, config = self._member.subscriptions[queue.topic], self._session.config
        return PullForm(self._member.group, queue, data, tell_subscription=True, config=config)


class Polled(OrderedConsumer):
    """What `PullConsumer.subscribe` and `assign` set up. `join` and `leave` stand for the block."""

    ordered = False
    retries = False

    def __init__(
        self,
        session: Session,
        group: str,
        topics: Mapping[str, str | Sql],
        options: ConsumerOptions,
        scope: TaskScope,
        named: frozenset[MessageQueue] | None = None,
    ) -> None:
        self._named = named
        self._held: set[MessageQueue] = set()
        self._polled: list[tuple[PulledMessage, ProcessQueue]] = []
        super().__init__(session, group, topics, options)
        self._scope = scope

    def _assign(self, membership: Membership) -> Assignments:
        member = evolve(membership, auto_commit=self._options.auto_commit)
        return PolledAssignments(self._session, self, member, self._named)

    async def join(self) -> None:
        """Begin. Raises as entering a consumer does; then nothing is left behind."""
        self._session.arrive()
        try:
            if self._named is None:
                self.check_alone()
                await self._join()
            else:
                await self._scope.tasks.start(self._assignments.run)
        except BaseException:
            await self.leave()
            raise

    async def leave(self, *, done: bool = False) -> None:
        """End; `done`: what was polled last has been consumed."""
        if done:
            self.finish_polled()
        try:
            await self._leave()
        finally:
            self._session.depart()

    def describe(self) -> ConsumerData:
        return evolve(super().describe(), consume_type="CONSUME_ACTIVELY")

    # --- taking ---

    async def poll(self, most: int, timeout: float) -> list[StoredMessage]:
        """See `PullConsumer.poll`."""
        await anyio.lowlevel.checkpoint()
        self.finish_polled()
        taken = self._polled
        with anyio.move_on_after(timeout):
            while not taken and not self._inbox.closed:
                await self._inbox.arrival()
                while len(taken) < most and (more := self._take(most - len(taken))):
                    taken += more
        return [message for message, _ in taken]

    def _take(self, most: int) -> list[tuple[PulledMessage, ProcessQueue]]:
        ready = self._lanes.ready
        for lane in [lane for lane in ready if lane.queue in self._held]:
            lane.queued = False
            ready.remove(lane)
        return super()._take(most)

    def finish_polled(self) -> None:
        """What was polled last has been consumed."""
        polled, self._polled = self._polled, []
        for message, window in polled:
            window.finish(message.queue_offset)

    async def commit(self) -> None:
        """Commit all that was polled."""
        self.finish_polled()
        await self._assignments.commit(asked=True)

    # --- moving ---

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Go on at another offset."""
        if queue not in self._assignments.pullers:
            raise LocalProtocolError(f"{queue} is not assigned to this consumer now")
        self._assignments.start(queue, queue_offset)

    def hold(self, queues: Iterable[MessageQueue]) -> None:
        """Take nothing from these queues."""
        self._held.update(queues)

    def let_go(self, queues: Iterable[MessageQueue]) -> None:
        """Take from them again."""
        for queue in queues:
            self._held.discard(queue)
            lane = self._assignments.lane(queue)
            if lane is not None:
                self.offer(lane)

    @property
    def assigned(self) -> Sequence[MessageQueue]:
        return self.queues
