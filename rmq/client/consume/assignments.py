"""The present queues of a consumer: divided among the group, pulled, committed, given up.

Broadcasting members have all queues, and keep their offsets in a file. `offsets` gives the first offset of a
queue, and keeps its progress.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from typing import Any, Final

import anyio
import anyio.abc

from rmq.client.consume.dispatch import Dispatch
from rmq.client.consume.isolation import awaited, in_context
from rmq.client.consume.message_view import PulledMessage
from rmq.client.consume.offsets.commits import Commits
from rmq.client.consume.offsets.files import LocalOffsets, offsets_path
from rmq.client.consume.offsets.starts import Starts
from rmq.client.consume.process_queue import ASKED_PART, ProcessQueue
from rmq.client.consume.pull import Puller, PullTemplate
from rmq.client.consume.queue_locks import QueueLocks
from rmq.client.consume.rebalance import Change, difference, in_short, plan
from rmq.client.consume.subscription import ConsumerOptions
from rmq.client.session.events import Assigned
from rmq.client.session.requests import FAILURES
from rmq.client.session.session import Session
from rmq.errors import RmqError, StrayCancellation
from rmq.message import RETRY_PREFIX, MessageQueue
from rmq.protocol.bodies import SubscriptionData
from rmq.remoting.cancellation import as_failure
from rmq.remoting.loop import Wakeup, task_context

log = logging.getLogger("rmq.client.assignments")

REPEAT_SECONDS: Final = 60.0
"""Seconds between two log lines about the same obstacle of a topic."""
UNANSWERED_SECONDS: Final = 30.0
"""Seconds without an answer to the pulls of a queue after which the consumer has a problem: a broker that
holds the pulls answers sooner."""
FIRST_RETRY_SECONDS = 0.5
"""First pause before another look at an incomplete assignment; doubled each time, up to the interval."""


class Assignments:
    """The queues of one consumer. `run` owns the loops."""

    def __init__(
        self,
        session: Session,
        group: str,
        subscriptions: Mapping[str, SubscriptionData],
        options: ConsumerOptions,
        dispatch: Dispatch[Any],
        on_messages: Callable[[Sequence[PulledMessage]], None],
        locks: QueueLocks | None = None,
    ) -> None:
        """`on_messages` gets the messages of each pull; with `locks`, only locked queues are pulled."""
        self.pullers: dict[MessageQueue, Puller] = {}
        self._session = session
        self._group = group
        self._subscriptions = subscriptions
        self._options = options
        self._dispatch = dispatch
        self._on_messages = on_messages
        self._locks = locks
        self._tasks: anyio.abc.TaskGroup | None = None
        self._context = copy_context()
        self._changed = Wakeup()
        self._leaving: dict[MessageQueue, ProcessQueue] = {}  # given up, once its deliveries have ended
        self._count = 0  # of the present queues and of those to come
        self.errors: dict[str, tuple[RmqError, float]] = {}
        """The reason why a topic gives no queues, or no new ones, and the time of its last log line."""
        self.missing = {topic for topic in subscriptions if not topic.startswith(RETRY_PREFIX)}
        """Topics whose queues were never divided yet."""
        self._lost: list[MessageQueue] = []  # with their locks, and not reported yet
        self._is_complete = True
        self._is_stopped = False
        self._progress = Wakeup()
        self._local: LocalOffsets | None = None
        if options.broadcasting:
            directory = session.config.offsets_dir
            self._local = LocalOffsets(offsets_path(directory, session.persistent_name, group))
        self._starts = Starts(session, group, options, self._local)
        self._commits = Commits(session, group, options, self._local, locks)

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; `started` when the first assignment has been tried."""
        self._context = task_context()
        try:
            async with anyio.create_task_group() as self._tasks:
                await self.rebalance()
                task_status.started()
                self._tasks.start_soon(self._keep_committing)
                await self._keep_balanced()
        finally:
            self._tasks = None  # brokers may still send requests to this member while it leaves
        if not self._is_stopped:  # the group has swallowed a cancellation of one of its tasks
            raise StrayCancellation(
                f"{self._group}: a background task that pulls or rebalances was cancelled"
            )

    @property
    def is_stopped(self) -> bool:
        """True if `stop` was called."""
        return self._is_stopped

    def unanswered(self) -> str:
        """The queues whose pulls had no answer for long, although requests are made; empty without any."""
        config, now = self._session.config, self._session.now()
        longest = max(UNANSWERED_SECONDS, 2 * config.pull_suspend_ms / 1000)
        since = {
            queue: puller.unanswered_since
            for queue, puller in self.pullers.items()
            if puller.unanswered_since is not None and now - puller.unanswered_since >= longest
        }
        if not since:
            return ""
        queue = min(since, key=lambda one: since[one])
        trouble = self.pullers[queue].trouble or "the last request is still on its way"
        return (
            f"has had no answer to the pulls of {len(since)} of its {len(self.pullers)} queues for"
            f" {now - since[queue]:.0f} s, {queue} first: {trouble}"
        )

    def stop(self) -> None:
        """Pull no more. Messages in the windows can still be finished and committed."""
        self._is_stopped = True
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    def rebalance_soon(self) -> None:
        """Look at the assignment now, because something has changed."""
        self._changed.set()
        self.reconnected()

    def reconnected(self) -> None:
        """Renew the locks that were taken over the old connection to a broker."""
        if self._locks is not None:
            self._locks.check_connections()

    # --- division of queues -----------------------------------------------------------------------

    async def _keep_balanced(self) -> None:
        interval = self._session.config.rebalance_interval_ms / 1000
        retry = FIRST_RETRY_SECONDS
        while True:
            pause = interval if self._is_complete else min(retry, interval)
            await self._changed.wait(self._session.now() + pause)
            await self.rebalance()
            retry = FIRST_RETRY_SECONDS if self._is_complete else retry * 2

    async def rebalance(self) -> None:
        """Take and give back queues until the held queues are this member's share."""
        is_complete = True
        for topic in self._subscriptions:
            self._is_complete = True
            try:
                await self._rebalance_topic(topic)
            except FAILURES as error:
                self._is_complete = False
                self.failed(topic, error)
            else:
                if self._is_complete and self.errors.pop(topic, None) is not None:
                    log.info("%s: %s can be consumed now", self._group, topic)
            if self._is_complete:
                self.missing.discard(topic)
            is_complete &= self._is_complete
        self._is_complete = is_complete

    def failed(self, topic: str, error: RmqError) -> None:
        """Note an obstacle of a topic, which gives no queues or no new ones; log it, but not at every
        attempt."""
        if topic.startswith(RETRY_PREFIX):  # a new group's retry topic does not exist yet
            log.debug("%s: %s: %s", self._group, topic, error)
            return
        before, now = self.errors.get(topic), self._session.now()
        if before is None or type(before[0]) is not type(error) or now >= before[1] + REPEAT_SECONDS:
            self.errors[topic] = error, now
            hint = f" ({error.hint})" if error.hint else ""
            log.warning("%s: cannot consume topic %s yet: %s%s", self._group, topic, error, hint)

    async def _rebalance_topic(self, topic: str) -> None:
        session, options = self._session, self._options
        rotation = await session.rotation(topic, session.brokers.timeout)
        queues = rotation.route.subscribe_queues
        clients: list[str] = []
        if options.queues is None and not options.broadcasting:
            clients = await self._members(queues)
        # Checked only now: during the requests the lock of a queue may have been lost.
        held = [queue for queue in self.pullers if queue.topic == topic]
        if options.queues is not None:
            change = difference(held, (queue for queue in options.queues if queue.topic == topic))
        elif options.broadcasting:
            change = difference(held, queues)
        else:
            # The members have no coordinator: each asks for the list of all members and computes the same
            # division. While their lists differ, a queue may have two consumers for a while, or none.
            if session.client_id not in clients:
                # The broker does not know us (yet, or any more). Giving all queues up now would move them
                # twice; so keep the present queues, send a heartbeat, and look again soon.
                self._is_complete = False
                session.heartbeat_soon()
                return
            change = plan(options.strategy, queues, clients, session.client_id, held)
        await self._apply(topic, change)

    async def _members(self, queues: Iterable[MessageQueue]) -> list[str]:
        """The client ids of the group, from the first broker of the topic that answers."""
        session = self._session
        error: Exception | None = None
        for name in dict.fromkeys(queue.broker_name for queue in queues):
            found = session.routes.reader(name)
            if found is not None:
                try:
                    return await session.brokers.consumer_ids(found[1], self._group)
                except FAILURES as failure:
                    error = failure
        if error is not None:
            raise error
        return []

    async def _apply(self, topic: str, change: Change) -> None:
        lost, self._lost = self._lost, []
        if not change.added and not change.removed and not lost:
            return
        level = logging.DEBUG if topic.startswith(RETRY_PREFIX) else logging.INFO
        if log.isEnabledFor(level):
            kept = {queue for queue in self.pullers if queue.topic == topic} - set(change.removed)
            has = in_short([*kept, *change.added])
            added, removed = in_short(change.added), in_short(change.removed)
            log.log(level, "%s: has %s of %s; takes %s, gives up %s", self._group, has, topic, added, removed)
        dropped = [self._drop(queue) for queue in change.removed]
        if self._dispatch.is_ordered:
            assert self._tasks is not None, "only `run` rebalances"
            for window in dropped:
                self._leaving[window.queue] = window
                self._tasks.start_soon(self._give_up, window)
        else:
            # Committed before new queues begin, even if some of their messages are in flight: the next member
            # begins at the committed offset, and gets the unfinished messages again.
            with anyio.CancelScope(shield=True):  # also when the member leaves now, which commits the rest
                await self._commits.commit(dropped, last=True)
        self._count = len(self.pullers) + len(change.added)
        listens = self._options.on_assignment is not None
        with self._dispatch.beginning(change.added) if listens else nullcontext():
            async with anyio.create_task_group() as tasks:
                for queue in change.added:
                    tasks.start_soon(self._begin, queue)
            self._set_limits()
            taken = [queue for queue in change.added if queue in self.pullers]
            await self.report(taken, [*lost, *change.removed])

    async def report(self, taken: Iterable[MessageQueue], given_up: Iterable[MessageQueue]) -> None:
        """Call `on_assignment`, unless all of the queues belong to retry topics."""
        visible = [
            tuple(q for q in queues if not q.topic.startswith(RETRY_PREFIX)) for queues in (taken, given_up)
        ]
        listener = self._options.on_assignment
        if not any(visible):
            return
        change = Assigned(self._group, *visible)
        self._session.emit(change)
        if listener is None:
            return
        try:
            context = copy_context()
            answer = context.run(listener, change)
            if inspect.isawaitable(answer):
                await in_context(context, awaited(answer))
        except BaseException as error:
            failure = as_failure(error)
            if failure is None:
                raise
            log.error("%s: on_assignment failed", self._group, exc_info=failure)

    def _drop(self, queue: MessageQueue) -> ProcessQueue:
        """Stop pulling a queue; none of its pulled messages is delivered any more."""
        puller = self.pullers.pop(queue)
        puller.stop()  # first: a message that ends from now on finds its window dropped
        self._dispatch.forget(puller.window)
        return puller.window

    async def _give_up(self, window: ProcessQueue) -> None:
        """Commit and unlock a queue, once its message has ended: the next member must not begin earlier."""
        await self._dispatch.until_idle(window)
        await self._commits.commit([window], last=True)
        if self._locks is not None:
            await self._locks.release([window.queue])
        self._leaving.pop(window.queue, None)

    async def _begin(self, queue: MessageQueue) -> None:
        assert queue not in self.pullers, f"{queue} would be consumed twice"
        if queue in self._leaving:
            self._is_complete = False  # its last message is still in flight here
            return
        try:
            # Lock before reading the offset: the former member commits before it unlocks.
            if self._locks is not None and not await self._locks.acquire([queue]):
                log.info("%s is still locked by another member of %s", queue, self._group)
                self._is_complete = False
                return
            self.start(queue, *await self._starts.first_position(queue))
        except FAILURES as error:
            self._is_complete = False
            log.warning("cannot start to consume %s: %s", queue, error)

    def start(
        self,
        queue: MessageQueue,
        queue_offset: int,
        topic_created_ms: int | None = None,
        *,
        sought: bool = False,
    ) -> None:
        """Pull `queue` from `queue_offset`; an existing window is dropped. The offset belongs to the topic
        created at `topic_created_ms`, or with None to that of the window before. `sought`: the application
        gave the offset, and an offset beyond the end means the end. After `stop` nothing is pulled; the
        offset is what the member commits when it leaves."""
        pulls = self._tasks is not None and not self._is_stopped
        old = self.pullers.get(queue)
        if old is not None:
            old.stop()
        elif not pulls:
            return
        window = self._dispatch.new_window(queue, queue_offset)
        if old is not None:
            self._dispatch.forget(old.window)
            if topic_created_ms in (None, old.window.topic_created_ms):
                topic_created_ms = old.window.topic_created_ms
                window.furthest_before = old.window.furthest
        window.topic_created_ms = topic_created_ms
        puller = self.pullers[queue] = Puller(
            self._session,
            window,
            self._template(queue),
            may_commit=partial(self._commits_by_pulls, queue),
            on_messages=self._on_messages,
            on_progress=self._progress.set,
            on_offset_moved=self.start,
            beyond_is_end=sought,
            owns_offsets=self._local is not None,
        )
        self._progress.set()
        self._set_limits()
        # In the context of our own tasks: the caller may be a handler, by `seek`, or, outside of any task, a
        # broker's request.
        if pulls and self._tasks is not None:
            self._context.copy().run(self._tasks.start_soon, puller.run)

    def _commits_by_pulls(self, queue: MessageQueue) -> bool:
        return self._options.auto_commit and not self._options.broadcasting and self._commits.allows(queue)

    def _template(self, queue: MessageQueue) -> PullTemplate:
        """The common part of the pulls of a queue. A consumer outside of a group sends its subscription with
        each."""
        data = self._subscriptions[queue.topic]
        report = self._options.queues is not None
        return PullTemplate(self._group, queue, data, send_subscription=report, config=self._session.config)

    # --- queue locks ------------------------------------------------------------------------------

    async def keep_locks(self) -> None:
        """Renew the locks until cancelled, also while queues are being given up, after `stop`."""
        if self._locks is not None:
            await self._locks.keep(self._held, self._is_overtaken, self._on_lock_renewed, self._on_lock_lost)

    def _held(self) -> list[MessageQueue]:
        return [*self.pullers, *self._leaving]

    async def _is_overtaken(self, queue: MessageQueue) -> bool:
        """True if the group is further in a queue than this member ever was. Raises as `query_offset`."""
        stored = await self._session.brokers.query_offset(self._group, queue)
        puller = self.pullers.get(queue)
        window = self._leaving.get(queue) if puller is None else puller.window
        return stored is not None and window is not None and stored > window.furthest

    def _on_lock_renewed(self, queue: MessageQueue) -> None:
        if queue in self.pullers:
            self._dispatch.offer(queue)

    def _on_lock_lost(self, queue: MessageQueue) -> None:
        """Continue at the group's present offset: another member may have consumed the queue in between."""
        if queue in self.pullers and self._locks is not None:
            log.warning(
                "%s: lost the queue lock to another member, reading again from the committed offset", queue
            )
            self._drop(queue)
            self._lost.append(queue)
            self._locks.forget(queue)
            self._is_complete = False
            self.rebalance_soon()

    async def release(self) -> None:
        """Commit and unlock all queues on leaving, except queues with a message in flight."""
        await self._commits.commit(self._leaving.values(), last=True)
        if self._locks is not None:
            windows = {queue: puller.window for queue, puller in self.pullers.items()} | self._leaving
            await self._locks.release(
                [queue for queue, window in windows.items() if not self._dispatch.is_busy(window)]
            )

    def _set_limits(self) -> None:
        """Set the limits of each queue: the configured limit, or its share of the total limit where that is
        less."""
        config, count = self._session.config, max(self._count, 1)
        share = config.total_max_bytes // count
        for puller in self.pullers.values():
            puller.window.set_limits(
                min(config.queue_max_messages, max(config.total_max_messages // count, 1)),
                min(config.queue_max_bytes, max(share - share // ASKED_PART, 1)),
                config.queue_max_span,
            )

    def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Read held queues from other offsets, and commit these soon."""
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
            if not any(self._is_open(puller.window) for puller in self.pullers.values()):
                await self._progress.wait()  # of a queue with messages in flight; no event marks their end

    def _is_open(self, window: ProcessQueue) -> bool:
        return len(window) > 0 or (self._options.auto_commit and window.commit_offset != window.committed)

    async def commit(self, *, asked: bool = False) -> None:
        """Commit the progress in all queues, to the brokers or the file. A failed commit is logged and
        repeated next time. Without `auto_commit` only when `asked`."""
        if self._options.auto_commit or asked:
            await self._commits.commit([puller.window for puller in self.pullers.values()])
