"""Assignments: the queues that a consumer has now: shared out among the group, pulled, committed, given
back.
"""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Final

import anyio
import anyio.abc
from attrs import frozen

from rmq.client.name_servers import UNREACHABLE
from rmq.client.process_queue import ProcessQueue
from rmq.client.pull import Owner, Puller, PullForm, first_since
from rmq.client.rebalance import Change, Strategy, difference, plan
from rmq.client.session import Session
from rmq.errors import NoRoute, RemoteProtocolError, ResponseError
from rmq.message import RETRY_PREFIX, MessageQueue
from rmq.protocol.bodies import ResetOffsetBody, SubscriptionData

# Broadcasting: every member gets every message, and keeps its own offsets in a file.

log = logging.getLogger(__name__)

DEFAULT_DIR: Final = ".rocketmq_offsets"
"""In the home directory; where Java's clients have it."""


def offsets_path(directory: str, client: str, group: str) -> pathlib.Path:
    """Where the offsets of a client's group lie."""
    root = pathlib.Path(directory) if directory else pathlib.Path.home() / DEFAULT_DIR
    return root / client.replace(os.sep, "_") / group.replace(os.sep, "_") / "offsets.json"


class LocalOffsets:
    """The offsets in a file. A file that cannot be read is as good as none, but for a warning."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._backup = path.with_name(path.name + ".bak")
        self._offsets = self._load(path) or self._load(self._backup) or {}

    def get(self, queue: MessageQueue) -> int | None:
        """Where to go on in the queue; None when it was never read."""
        return self._offsets.get(queue)

    def update(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Take these offsets and write the file, if anything is new. What fails is logged."""
        changed = {queue: at for queue, at in offsets.items() if self._offsets.get(queue) != at}
        if not changed:
            return
        self._offsets.update(changed)
        try:
            self._save()
        except OSError as error:
            log.error("%s: the offsets are not saved: %s", self.path, error)

    def _save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        fresh.write_bytes(ResetOffsetBody(self._offsets).to_json())
        if self.path.exists():
            os.replace(self.path, self._backup)
        os.replace(fresh, self.path)

    def _load(self, path: pathlib.Path) -> dict[MessageQueue, int] | None:
        try:
            return dict(ResetOffsetBody.from_json(path.read_bytes()).offset_table)
        except FileNotFoundError:
            return None
        except (OSError, RemoteProtocolError) as error:
            log.warning("%s cannot be read: %s", path, error)
            return None


FAILURES = (*UNREACHABLE, NoRoute, ResponseError, RemoteProtocolError)
"""What is logged and tried again at the next turn."""

FIRST_RETRY_SECONDS = 0.5
"""While something of the assignment is missing, look again so soon; doubled each time, up to the
interval.
"""


@frozen
class Membership:
    """How a consumer takes part in its group."""

    group: str
    subscriptions: Mapping[str, SubscriptionData]
    consume_from: str | int
    broadcasting: bool
    strategy: Strategy
    auto_commit: bool = True


class Assignments:
    """The queues of one consumer. `run` owns the loops."""

    def __init__(self, session: Session, owner: Owner, membership: Membership) -> None:
        self.pullers: dict[MessageQueue, Puller] = {}
        self._session = session
        self._owner = owner
        self._member = membership
        self._tasks: anyio.abc.TaskGroup | None = None
        self._changed = anyio.Event()
        self._count = 0  # of the queues that we have or are about to have
        self._complete = True
        self._stopped = False
        self._local: LocalOffsets | None = None
        if membership.broadcasting:
            directory = session.config.offsets_dir
            self._local = LocalOffsets(offsets_path(directory, session.lasting_name, membership.group))

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; `started` when the first assignment has been tried."""
        async with anyio.create_task_group() as self._tasks:
            await self.rebalance()
            task_status.started()
            self._tasks.start_soon(self._keep_committing)
            await self._keep_balanced()

    def stop(self) -> None:
        """Pull no more. What is in the windows can still be finished and committed."""
        self._stopped = True
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    def rebalance_soon(self) -> None:
        """Something has changed: look now."""
        self._changed.set()

    # --- sharing out ------------------------------------------------------------------------------

    async def _keep_balanced(self) -> None:
        interval = self._session.config.rebalance_interval_ms / 1000
        retry = FIRST_RETRY_SECONDS
        while True:
            with anyio.move_on_after(interval if self._complete else min(retry, interval)):
                await self._changed.wait()
            self._changed = anyio.Event()
            await self.rebalance()
            retry = FIRST_RETRY_SECONDS if self._complete else retry * 2

    async def rebalance(self) -> None:
        """Take and give back queues until what is held is what this member should have."""
        self._complete = True
        for topic in self._member.subscriptions:
            try:
                await self._rebalance_topic(topic)
            except FAILURES as error:
                self._complete = False
                level = logging.DEBUG if topic.startswith(RETRY_PREFIX) else logging.WARNING
                log.log(level, "rebalance %s in %s: %s", self._member.group, topic, error)

    async def _rebalance_topic(self, topic: str) -> None:
        session, member = self._session, self._member
        rotation = await session.rotation(topic, session.brokers.timeout)
        queues = rotation.route.subscribe_queues
        held = [queue for queue in self.pullers if queue.topic == topic]
        if member.broadcasting:
            change = difference(held, queues)
        else:
            clients = await self._members(queues)
            if session.client_id not in clients:
                # The broker does not know us (yet, or any more): keep what we have until it does.
                self._complete = False
                session.beat_soon()
                return
            change = plan(member.strategy, queues, clients, session.client_id, held)
        await self._apply(topic, change)

    async def _members(self, queues: Iterable[MessageQueue]) -> list[str]:
        """The client ids of the group, from the first broker of the topic that answers."""
        session = self._session
        error: Exception | None = None
        for name in dict.fromkeys(queue.broker_name for queue in queues):
            found = session.routes.reader(name)
            if found is not None:
                try:
                    return await session.brokers.consumer_ids(found[1], self._member.group)
                except FAILURES as failure:
                    error = failure
        if error is not None:
            raise error
        return []

    async def _apply(self, topic: str, change: Change) -> None:
        if not change.added and not change.removed:
            return
        log.info("%s in %s: gives up %s, takes %s", self._member.group, topic, change.removed, change.added)
        dropped = [self.pullers.pop(queue) for queue in change.removed]
        for puller in dropped:
            puller.stop()
        await self._commit((puller.window for puller in dropped), last=True)
        self._count = len(self.pullers) + len(change.added)
        async with anyio.create_task_group() as tasks:
            for queue in change.added:
                tasks.start_soon(self._begin, queue)
        self._set_limits()

    async def _begin(self, queue: MessageQueue) -> None:
        try:
            self.start(queue, await self._first_offset(queue))
        except FAILURES as error:
            self._complete = False
            log.warning("cannot begin with %s: %s", queue, error)

    async def _first_offset(self, queue: MessageQueue) -> int:
        """Where to begin: where the group was, else where `consume_from` says."""
        member, brokers = self._member, self._session.brokers
        local = self._local
        stored = local.get(queue) if local else await brokers.query_offset(member.group, queue)
        if stored is not None and stored >= 0:
            return stored
        retry = queue.topic.startswith(RETRY_PREFIX)
        if member.consume_from == "first" or (retry and member.consume_from == "last"):
            return 0
        if isinstance(member.consume_from, int) and not retry:
            return await first_since(self._session, member.group, queue, member.consume_from)
        return await brokers.max_offset(queue)

    def start(self, queue: MessageQueue, queue_offset: int) -> None:
        """Pull `queue` from `queue_offset`; a window that was there is dropped."""
        old = self.pullers.get(queue)
        if old is not None:
            old.stop()
        if self._stopped or self._tasks is None:
            return
        member = self._member
        window = self.new_window(queue, queue_offset)
        commits = member.auto_commit and not member.broadcasting
        puller = Puller(self._session, self._owner, window, self.form(queue), commits=commits)
        self.pullers[queue] = puller
        self._set_limits()
        self._tasks.start_soon(puller.run)

    def form(self, queue: MessageQueue) -> PullForm:
        """What the pulls of a queue have in common."""
        member = self._member
        data = member.subscriptions[queue.topic]
        return PullForm(member.group, queue, data, config=self._session.config)

    def new_window(self, queue: MessageQueue, queue_offset: int) -> ProcessQueue:
        """The window of a queue that is begun at `queue_offset`."""
        return ProcessQueue(queue, queue_offset)

    async def release(self) -> None:
        """Hand back, on leaving, what keeps others from the queues. Here nothing does."""

    def _set_limits(self) -> None:
        """Each queue may hold what the configuration says, or its share of the total's where that is
        less.
        """
        config, count = self._session.config, max(self._count, 1)
        for puller in self.pullers.values():
            window = puller.window
            window.max_messages = min(config.queue_max_messages, max(config.total_max_messages // count, 1))
            window.max_bytes = min(config.queue_max_bytes, max(config.total_max_bytes // count, 1))
            window.max_span = config.queue_max_span

    def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Read queues that we have anew from other offsets, and commit those soon."""
        for queue, queue_offset in offsets.items():
            if queue.topic == topic and queue in self.pullers:
                log.warning("%s: offset reset to %d", queue, queue_offset)
                self.start(queue, queue_offset)
        if self._tasks is not None:
            self._tasks.start_soon(self.commit)

    # --- offsets ----------------------------------------------------------------------------------

    async def _keep_committing(self) -> None:
        while True:
            await anyio.sleep(self._session.config.commit_interval_ms / 1000)
            await self.commit()

    async def commit(self, *, asked: bool = False) -> None:
        """Tell the brokers, or the file, how far we are in all queues. What fails is logged and told next
        time. Without `auto_commit` only when `asked`.
        """
        if self._member.auto_commit or asked:
            await self._commit([puller.window for puller in self.pullers.values()])

    async def _commit(self, windows: Iterable[ProcessQueue], *, last: bool = False) -> None:
        if last and not self._member.auto_commit:
            return
        if self._local is not None:
            self._local.update({window.queue: window.commit_offset for window in windows})
            return
        by_broker: dict[str, list[ProcessQueue]] = {}
        for window in windows:
            if window.commit_offset != window.committed:
                by_broker.setdefault(window.queue.broker_name, []).append(window)
        async with anyio.create_task_group() as tasks:
            for changed in by_broker.values():
                tasks.start_soon(self._commit_at_broker, changed, last)

    async def _commit_at_broker(self, windows: list[ProcessQueue], last: bool) -> None:
        try:
            for window in windows:
                if window.dropped and not last:
                    continue  # somebody else may have committed more by now
                queue_offset = window.commit_offset
                await self._session.brokers.update_offset(self._member.group, window.queue, queue_offset)
                window.committed = queue_offset
        except FAILURES as error:
            log.warning("commit of %s: %s", windows[0].queue.broker_name, error)
