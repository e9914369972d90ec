"""Leases of taken messages: acknowledgements, extensions, and the result of a failed attempt.

A message is delivered again, with its attempt counted, when its lease ends, when its consumer gives the
message back, and when the consumer's connection ends; after the group's last attempt it becomes a dead
letter. A heap has the times of all leases and retries. Leases are in memory only: when the broker ends, all
connections end. At a graceful shutdown the attempts that the broker ends do not count.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

from rmq.broker.consume.per_message.handles import Handle, handle_text, lease_ended, lease_length
from rmq.broker.consume.per_message.ledger import Change
from rmq.broker.consume.per_message.offset_set import OffsetSet
from rmq.broker.consume.per_message.queue_delivery import (
    DYING,
    GONE,
    LEASED,
    WAITING,
    Batch,
    QueueDelivery,
    TopicDelivery,
)
from rmq.errors import ResponseError, StoreError
from rmq.shares import Holders, Shares

if TYPE_CHECKING:
    from rmq.broker.consume.per_message.ledger import Ledger
    from rmq.broker.consume.per_message.retry_policy import RetryPolicy
    from rmq.broker.consume.per_message.taking import Taking

    OnHandled = Callable[[Sequence[ResponseError | None]], None]
    Handles = Sequence[Handle | ResponseError]

BATCHES_OF_A_STEP: Final = 256
"""Leases that one step ends; the event loop serves others between two steps."""
DEAD_LETTERS_OF_A_STEP: Final = 100
RETRY_SECONDS: Final = 5.0
"""Wait in seconds of a message that cannot become a dead letter now."""
_TIMES: Final = 1024

log = logging.getLogger("rmq.broker")


class Leases:
    """The leases of all groups.

    `ledger` keeps the finished messages. `policy(group)` gives the attempts of a message, and the policy of
    its retries. `give_up(queue, offset, attempts, reason)` puts a dead letter into the pending batch; it
    raises StoreError and ResponseError. `on_ready(topic)` is called when a message may be taken,
    `on_base(queue)` when the oldest unfinished message of a queue changes. `on_deadline(at)` is called with
    each new deadline, so that `step` is called by then. Times are seconds of `clock`.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        policy: Callable[[str], tuple[int, RetryPolicy]],
        give_up: Callable[[QueueDelivery, int, int, str], None],
        on_ready: Callable[[TopicDelivery], None],
        on_base: Callable[[QueueDelivery], None],
        on_deadline: Callable[[float], None],
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._now_ms = now_ms
        self._policy = policy
        self._give_up = give_up
        self._on_ready = on_ready
        self._on_base = on_base
        self._on_deadline = on_deadline
        self._shares = Shares(0)
        self.dead_letters = 0
        """Messages that became dead letters here since the start."""
        self._times: list[tuple[float, int, Batch]] = []
        self._most_times = _TIMES
        self._order = count()
        self._owned: dict[object, dict[Batch, None]] = {}
        self._ending: deque[tuple[object, Iterator[Batch]]] = deque()
        self._dying: deque[Batch] = deque()
        self._is_stopped = False

    # ---- what is taken ----

    def took(self, topic: TopicDelivery, taking: Taking) -> None:
        """Keep the leases of a take, and the batches that were not handed out; first attempts count as
        out."""
        for batch in taking.leased:
            self._keep(batch)
        for batch, until_ms in taking.postpone:
            self._postpone(batch, until_ms)
        for batch in taking.dying:
            self._doom(batch)
        for batch in taking.left_over:
            self._leave(batch)
        if taking.new != taking.dropped:
            self.count_out(topic, taking.new - taking.dropped)

    def took_new(self, batch: Batch, count: int) -> None:
        """Keep the lease of `count` new messages that were handed out."""
        batch.queue.lease(batch)
        self._keep(batch)
        self.count_out(batch.queue.topic, count)

    def _keep(self, batch: Batch) -> None:
        self._owned.setdefault(batch.owner, {})[batch] = None
        self._at(batch)

    @property
    def out(self) -> int:
        """Messages of all groups that were taken and are not finished."""
        return self._shares.used

    def shares(self, most: int) -> Shares:
        """The places of the messages that are out, of `most` in all."""
        self._shares.most = most
        return self._shares

    def room(self, topic: TopicDelivery, taker: Holders, most: int) -> int:
        """Number of further messages of a topic that may be taken, of `most` in all, by the shares of the
        topic's holders. A topic with no message out counts for `taker` from now on."""
        if not topic.out:
            topic.holders = taker
        return self.shares(most).room(topic.holders)

    def count_out(self, topic: TopicDelivery, count: int) -> None:
        """Add a number of messages, negative to subtract, to the messages of a topic that are out."""
        topic.out += count
        if count < 0 and topic.is_at_limit:
            self._on_ready(topic)
        self._shares.add(topic.holders, count)

    def set_order(self, queue: QueueDelivery, in_order: bool) -> bool:
        """Set whether messages of a queue are taken by message group. Return True if it is set; never while
        some are leased. Messages that were given back are taken from the queue once more."""
        is_set = (queue.groups is not None) is in_order
        if is_set or queue.leased or queue.dying:
            return is_set
        for batch in queue.batches():
            queue.note(batch, self._clock(), self._now_ms())
            self._remove(batch)
            self.count_out(queue.topic, -batch.count)
        queue.set_order(in_order)
        return True

    def _postpone(self, batch: Batch, until_ms: int) -> None:
        """Keep a recovered batch until a wall time."""
        batch.queue.wait(batch, self._clock() + (until_ms - self._now_ms()) / 1000)
        self._at(batch)

    def _leave(self, batch: Batch) -> None:
        """Leave a batch that a consumer has looked at and not taken to the other consumers."""
        self._ledger.note(batch, 0)
        batch.queue.make_ready(batch)
        self._on_ready(batch.queue.topic)
        self._on_deadline(self._clock())

    def _doom(self, batch: Batch) -> None:
        """Make dead letters of a batch that was taken out."""
        batch.queue.doom(batch)
        self._dying.append(batch)
        self._on_deadline(self._clock())

    def _at(self, batch: Batch) -> None:
        """Look at a batch at its time, or before."""
        if batch.time >= batch.due:
            return
        batch.due = batch.time
        heappush(self._times, (batch.time, next(self._order), batch))
        if len(self._times) > self._most_times:
            self._times = [
                entry
                for entry in self._times
                if entry[2].state in (LEASED, WAITING) and entry[0] <= entry[2].due
            ]
            heapify(self._times)
            self._most_times = max(_TIMES, 2 * len(self._times))
        self._on_deadline(batch.time)

    def _own(self, batch: Batch, owner: object) -> None:
        """Let a batch return when the connection `owner` ends; None: no connection."""
        mine = self._owned.get(batch.owner)
        if mine is not None:
            mine.pop(batch, None)
            if not mine:
                del self._owned[batch.owner]
        batch.owner = owner
        if owner is not None:
            self._owned.setdefault(owner, {})[batch] = None

    def _remove(self, batch: Batch) -> None:
        """Remove a batch from all tables that have it."""
        batch.queue.take_out(batch)
        self._own(batch, None)

    # ---- what consumers say ----

    def acknowledge(self, topic: TopicDelivery | None, handles: Handles, on_done: OnHandled) -> None:
        """Finish messages. `on_done` is called with the outcome of each handle once the change is as safe as
        the broker's settings ask; at once if no change has to be written."""
        outcomes, changes = self._changes(topic, handles)
        for change in changes:
            self._ledger.finish(change)
        self._report(outcomes, changes, on_done)

    def acknowledge_batch(
        self, topic: TopicDelivery | None, queue_id: int, start: int, taken_ms: int, mask: int
    ) -> Change | None:
        """The change that finishes messages of one lease; None unless all of the messages are still
        leased."""
        queue = None if topic is None else topic.queues.get(queue_id)
        batch = None if queue is None else queue.leased.get(start)
        if queue is None or batch is None or batch.taken_ms != taken_ms or batch.start != start:
            return None
        return Change(queue, batch, start, mask) if mask & batch.mask == mask else None

    def changes(self, topic: TopicDelivery | None, handles: Handles) -> list[Change]:
        """The changes that finish messages. Raises ResponseError if the lease of a handle has ended."""
        outcomes, changes = self._changes(topic, handles)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        return changes

    def dead_letter(self, topic: TopicDelivery | None, handles: Handles, on_done: OnHandled) -> None:
        """Make dead letters of messages now; `on_done` as in `acknowledge`. Raises StoreError,
        ResponseError."""
        outcomes, found = self._changes(topic, handles)
        changes = []
        for change in found:
            queue, batch = change.queue, change.batch
            if batch is None:
                if not queue.is_to_come(change.start):
                    continue
                batch = queue.given_back(change.start)
            attempts = queue.attempts(change.start) if batch is None else batch.attempt
            for at in range(change.mask.bit_length()):
                if change.mask >> at & 1:
                    self._give_up(queue, change.start + at, attempts, "forwarded by its consumer")
                    self.dead_letters += 1
            changes.append(self._doomed(change, batch, attempts))
            self._ledger.finish(changes[-1])
        self._report(outcomes, changes, on_done)

    def _doomed(self, change: Change, batch: Batch | None, attempts: int) -> Change:
        """The same change, with a batch of its own that is dying: a second request for the messages finds no
        lease, and no message to come."""
        queue, start, mask = change.queue, change.start, change.mask
        if batch is None:
            batch = Batch(queue, start, mask, attempts, 0, 0.0, None, ~start, None, GONE)
            self.count_out(queue.topic, mask.bit_count())
        elif batch.count != mask.bit_count():
            batch = queue.part(batch, mask << start - batch.start)
        self._remove(batch)
        queue.doom(batch)
        return Change(queue, batch, batch.start, batch.mask)

    def _report(
        self, outcomes: Sequence[ResponseError | None], changes: Sequence[Change], on_done: OnHandled
    ) -> None:
        def done(error: ResponseError | None) -> None:
            on_done(outcomes if error is None else [one or error for one in outcomes])

        if changes:
            self._ledger.call(done)
        else:
            done(None)

    def _changes(
        self, topic: TopicDelivery | None, handles: Handles
    ) -> tuple[list[ResponseError | None], list[Change]]:
        """The messages that handles name, grouped by lease, and the reasons for refused handles."""
        outcomes: list[ResponseError | None] = []
        masks: dict[Batch, int] = {}
        changes = []
        for handle in handles:
            try:
                if isinstance(handle, ResponseError):
                    raise handle
                queue, batch = _found(topic, handle, self._now_ms())
            except ResponseError as error:
                outcomes.append(error)
                continue
            outcomes.append(None)
            if batch is None:
                changes.append(Change(queue, None, handle.offset, 1))
            else:
                masks[batch] = masks.get(batch, 0) | 1 << handle.offset - batch.start
        changes += [Change(batch.queue, batch, batch.start, mask) for batch, mask in masks.items()]
        return outcomes, changes

    def extend(
        self, topic: TopicDelivery | None, handle: Handle, invisible_ms: int, owner: object, broker: str
    ) -> str:
        """Set the end of a lease to `invisible_ms` after now. Return the new handle; the old one acknowledges
        as well. Raises ResponseError."""
        queue, batch = _found(topic, handle, self._now_ms())
        if batch is None:
            raise lease_ended(handle, "the message is finished, or was given back")
        if batch.count > 1:
            batch = queue.split(batch, handle.offset)
        self._own(batch, owner)
        batch.time = self._clock() + invisible_ms / 1000
        self._at(batch)
        lasts_ms = lease_length(batch.taken_ms, self._now_ms(), invisible_ms)
        return handle_text(handle.offset, batch.taken_ms, lasts_ms, broker, queue.queue_id, handle.offset)

    def nack(
        self, topic: TopicDelivery | None, handles: Handles, after_ms: int | None, *, counts: bool = True
    ) -> list[ResponseError | None]:
        """End the attempts of messages: deliver again after `after_ms`, None: by the policy of the group.
        Without `counts` the attempt is not counted. Return the outcome of each handle."""
        outcomes, changes = self._changes(topic, handles)
        for change in changes:
            batch = change.batch
            if batch is None:
                continue
            if batch.mask != change.mask:
                batch = change.queue.part(batch, change.mask)
            self._remove(batch)
            if not counts:
                batch.attempt -= 1
            delay_ms = after_ms
            if delay_ms is None:
                delay_ms = self._policy(change.queue.topic.group)[1].delay_ms(batch.attempt)
            self._failed(batch, delay_ms)
        return outcomes

    def on_close(self, owner: object) -> None:
        """A connection has ended: redeliver its messages at once."""
        mine = self._owned.pop(owner, None)
        if mine:
            self._ending.append((owner, iter(mine)))
            self._on_deadline(self._clock())

    def stop(self, queues: Iterable[QueueDelivery]) -> None:
        """The broker stops: keep in the journal that the attempts of all leased messages do not count. They
        may still be acknowledged; no lease ends any more."""
        self._is_stopped = True
        for queue in queues:
            for batch in queue.leased.values():
                self._ledger.note_uncounted(batch)

    # ---- the end of an attempt ----

    def _failed(self, batch: Batch, delay_ms: int) -> None:
        """Handle a failed attempt of a batch without owner: deliver it again after `delay_ms`, or give up."""
        queue = batch.queue
        if not self._left(batch):
            return
        most, _ = self._policy(queue.topic.group)
        if batch.attempt >= most:
            self._ledger.note(batch, 0)
            self._doom(batch)
        elif delay_ms > 0:
            queue.wait(batch, self._clock() + delay_ms / 1000)
            self._ledger.note(batch, self._now_ms() + delay_ms)
            self._at(batch)
        else:
            self._ledger.note(batch, 0)
            queue.make_ready(batch)
            self._on_ready(queue.topic)

    def _left(self, batch: Batch) -> int:
        """The unfinished part of a batch; the rest is dropped."""
        queue = batch.queue
        stale = queue.finished.bits(batch.start, batch.mask.bit_length()) & batch.mask
        if stale:
            batch.mask &= ~stale
            self.count_out(queue.topic, -stale.bit_count())
            if batch.key is not None and queue.groups is not None and queue.groups.finished(batch.key):
                self._on_ready(queue.topic)
        return batch.mask

    def step(self, now: float) -> float:
        """End the leases and waits that are due; return the next deadline, infinite when nothing waits."""
        if self._is_stopped:
            return math.inf
        left = BATCHES_OF_A_STEP
        while self._ending and left > 0:
            owner, batches = self._ending[0]
            batch = next(batches, None)
            if batch is None:
                self._ending.popleft()
            elif batch.state == LEASED and batch.owner is owner:  # nobody has extended the lease
                left -= 1
                self._remove(batch)
                self._failed(batch, 0)
        times = self._times
        while times and times[0][0] <= now and left > 0:
            batch = heappop(times)[2]
            batch.due = math.inf
            if batch.state not in (LEASED, WAITING):
                continue
            if batch.time > now:
                self._at(batch)
                times = self._times
                continue
            left -= 1
            self._end(batch)
        self._bury()
        if self._ending or self._dying:
            return now
        return self._times[0][0] if self._times else math.inf

    def _end(self, batch: Batch) -> None:
        """The time of a batch has come."""
        was_leased = batch.state == LEASED
        self._remove(batch)
        if was_leased:
            self._failed(batch, 0)
        elif self._left(batch):
            queue = batch.queue
            if batch.attempt >= self._policy(queue.topic.group)[0]:
                self._doom(batch)
            else:
                queue.make_ready(batch)
                self._on_ready(queue.topic)

    def _bury(self) -> None:
        """Put some dead letters into the pending batch."""
        left = DEAD_LETTERS_OF_A_STEP
        while self._dying and left > 0:
            batch = self._dying.popleft()
            if batch.state != DYING:
                continue
            if not self._left(batch):
                self._remove(batch)
                continue
            queue, buried = batch.queue, 0
            try:
                for offset in list(batch.offsets())[:left]:
                    self._give_up(queue, offset, batch.attempt, "")
                    buried |= 1 << offset - batch.start
            except (StoreError, ResponseError) as error:
                group = queue.topic.group
                log.error("a message of group %s cannot become a dead letter now: %s", group, error)
                rest = queue.part(batch, batch.mask & ~buried)
                queue.wait(rest, self._clock() + RETRY_SECONDS)
                self._at(rest)
            left -= buried.bit_count()
            self.dead_letters += buried.bit_count()
            if rest_mask := batch.mask & ~buried:
                self._doom(queue.part(batch, rest_mask))
            if buried:
                self._ledger.finish(Change(queue, batch, batch.start, buried))

    # ---- what the journal has ----

    def apply(self, changes: Sequence[Change], is_written: bool) -> None:
        """Apply changes that are in the log, or drop changes that were not written."""
        moved: dict[QueueDelivery, None] = {}
        finished: dict[TopicDelivery, int] = {}
        for change in changes:
            queue, batch = change.queue, change.batch
            if not is_written:
                if batch is not None and batch.state == DYING:
                    queue.wait(batch, self._clock() + RETRY_SECONDS)
                    self._at(batch)
                continue
            if queue.finished.add(change.start, change.mask):
                moved[queue] = None
            if batch is None:
                queue.finished_early(change.start + change.mask.bit_length())
            else:
                count = self._finished(batch, change.mask)
                finished[queue.topic] = finished.get(queue.topic, 0) + count
        for topic, count in finished.items():
            self.count_out(topic, -count)
        for queue in moved:
            self._on_base(queue)

    def _finished(self, batch: Batch, mask: int) -> int:
        """Finish messages of a batch; return how many were not finished."""
        queue, removed = batch.queue, batch.mask & mask
        batch.mask &= ~mask
        if not batch.mask:
            self._remove(batch)
        key, groups = batch.key, queue.groups
        if key is not None and groups is not None and removed and groups.finished(key):
            self._on_ready(queue.topic)
        return removed.bit_count()

    def reset(self, queue: QueueDelivery, base: int) -> None:
        """Move a queue to `base`, without regard to taken and finished messages."""
        for batch in queue.batches():
            self._remove(batch)
            self.count_out(queue.topic, -batch.count)
        self._ledger.drop(queue)
        queue.restart(OffsetSet(base))


def _found(topic: TopicDelivery | None, handle: Handle, now_ms: int) -> tuple[QueueDelivery, Batch | None]:
    """The queue of a handle, and the lease; None: the message is finished already, or may be finished
    though its lease is gone. Raises ResponseError.
    """
    queue = None if topic is None else topic.queues.get(handle.queue_id)
    if queue is None:
        raise lease_ended(handle, "the group takes no messages of this queue")
    offset = handle.offset
    batch = queue.find(handle.start, offset, handle.taken_ms)
    if batch is not None or offset in queue.finished:
        return queue, batch
    if offset >= max(queue.cursor, queue.recovered) and not queue.was_taken_before(offset, handle.taken_ms):
        raise lease_ended(handle, "the message was not taken")
    if handle.ends_ms < now_ms:
        raise lease_ended(handle, "its lease has ended")
    if queue.is_leased(offset):
        raise lease_ended(handle, "another consumer has the message")
    return queue, None
