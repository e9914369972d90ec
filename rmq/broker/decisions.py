"""Decisions: commits of several half messages together with acknowledgements, all or nothing.

First the half messages are looked at, some in each turn of the loop, and reserved: nothing else ends them.
A decision is one record of the journal of per-message delivery: the finished messages, and the places of the
half messages that are committed. That record is the commit. The messages themselves and their op messages
follow it in the log, in the same batch as far as they fit. So a log that ends before the record has nothing
of the commit, and a log that ends behind it is completed at the next start, by this broker or another replica
of its set: a half message of a decision that has no op message yet is committed then, unless the log has its
message already.

Until all half messages of a decision have ended, no snapshot of the journal is begun.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from rmq.errors import CorruptRecord, ResponseError, StoreError, for_code
from rmq.message import PROPERTY_REAL_TOPIC
from rmq.protocol.codes import ResponseCode
from rmq.protocol.record import decode_record

if TYPE_CHECKING:
    from rmq.broker.consume.per_message.deliveries import Deliveries
    from rmq.broker.consume.per_message.ledger import OnWritten
    from rmq.broker.role import Role
    from rmq.broker.transactions import Transactions
    from rmq.message import StoredMessage
    from rmq.plugin import Peer
    from rmq.protocol.headers import EndTransactionRequestHeader
    from rmq.store.store import Store

STEP_BYTES: Final = 1 << 20
"""So much of a decision's messages is put at once, and one message more."""
STEP_MESSAGES: Final = 1_000
LOOK_MESSAGES: Final = 1_000
"""Half messages of a commit that are looked at in one turn; some 20 ms."""
RETRY_SECONDS: Final = 1.0
UNSURE: Final = frozenset(
    {
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
"""Answers about a record that is in the log, though not as safe as the settings ask."""

log = logging.getLogger("rmq.broker")


class _Decision:
    """A decision with half messages that have not all ended in the log."""

    def __init__(self, places: Iterable[tuple[int, int]], on_done: OnWritten, *, is_written: bool) -> None:
        self.left = deque(places)
        self.put = 0  # so many of the first are in the pending batch
        self.is_written = is_written
        self.outcome: ResponseError | None = None
        self.is_safe = is_written
        self.on_done = on_done

    def one_more(self) -> None:
        """The next half message is in the pending batch."""
        self.put += 1

    def written(self) -> list[int]:
        """The pending batch is in the log; returns the queue offsets of the half messages that have ended."""
        self.is_written = True
        ended = [self.left.popleft()[0] for _ in range(self.put)]
        self.put = 0
        return ended

    def rolled_back(self) -> None:
        """The pending batch is not in the log."""
        self.put = 0

    def safe(self, outcome: ResponseError | None) -> None:
        """The record of the decision is in the log, as safe as it will be."""
        self.is_safe, self.outcome = True, outcome


class _Request:
    """A commit whose half messages are looked at, some in each turn. Those that were looked at are reserved:
    nothing else ends them."""

    def __init__(
        self,
        ends: Iterable[EndTransactionRequestHeader],
        count: int,
        acknowledgements: Sequence[tuple[str, str, Sequence[str]]],
        peer: Peer,
        on_done: OnWritten,
    ) -> None:
        self._ends = iter(ends)
        self.left = count
        self.acknowledgements = acknowledgements
        self.peer = peer
        self.on_done = on_done
        self.places: list[tuple[int, int]] = []
        self.first: list[StoredMessage] = []
        """The first half messages, which are put together with the record."""
        self._size = 0

    def look(self, transactions: Transactions, most: int) -> None:
        """Look at the next half messages, and reserve them. Raises ResponseError, StoreError."""
        for end in islice(self._ends, min(most, self.left)):
            half = transactions.open_half(end, self.peer)
            self.left -= 1
            self.places.append((half.queue_offset, half.physical_offset))
            transactions.decided.add(half.queue_offset)
            if self._size < STEP_BYTES and len(self.first) < STEP_MESSAGES:
                self.first.append(half)
                self._size += half.size

    def release(self, transactions: Transactions) -> None:
        """Give up: the half messages may end otherwise."""
        for offset, _ in self.places:
            transactions.decided.discard(offset)


class Decisions:
    """The decisions of a broker. `clock` is in seconds; `on_deadline(at)` has `step` called by then,
    `commit_soon()` the pending batch written in the next round of the loop."""

    def __init__(
        self,
        store: Store,
        transactions: Transactions,
        deliveries: Deliveries,
        *,
        role: Role,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        on_deadline: Callable[[float], None],
        commit_soon: Callable[[], None],
    ) -> None:
        self._store = store
        self._transactions = transactions
        self._decided = transactions.decided
        self._deliveries = deliveries
        self._ledger = deliveries.ledger
        self._role = role
        self._clock = clock
        self._now_ms = now_ms
        self._on_deadline = on_deadline
        self._commit_soon = commit_soon
        self._requests: deque[_Request] = deque()
        self._open: list[_Decision] = []
        self._retry_at = 0.0
        self._copied: set[int] = set()  # physical offsets of half messages whose message the log had

    def __len__(self) -> int:
        return len(self._requests) + len(self._open)

    # ---- a commit ----

    def commit(
        self,
        ends: Iterable[EndTransactionRequestHeader],
        count: int,
        acknowledgements: Sequence[tuple[str, str, Sequence[str]]],
        peer: Peer,
        on_done: OnWritten,
    ) -> None:
        """Same as `rmq.doors.DoorHost.commit_transactions`; `count` is the number of `ends`. More than
        `LOOK_MESSAGES` half messages take several turns of the loop. Raises ResponseError, StoreError."""
        request = _Request(ends, count, acknowledgements, peer, on_done)
        if count > LOOK_MESSAGES:
            self._requests.append(request)
            self._on_deadline(self._clock())
        else:
            self._look(request)

    def _look(self, request: _Request) -> bool:
        """Look at more half messages of a commit, and decide it behind the last; return whether it is
        decided. Raises ResponseError, StoreError: nothing of it holds."""
        try:
            if reason := self._role.refusal():
                raise for_code(ResponseCode.SERVICE_NOT_AVAILABLE, reason)
            request.look(self._transactions, LOOK_MESSAGES)
            if request.left:
                return False
            self._decide(request)
        except BaseException:
            request.release(self._transactions)
            raise
        return True

    def _decide(self, request: _Request) -> None:
        changes = []
        for group, topic, handles in request.acknowledgements:
            changes += self._deliveries.changes(group, topic, handles)
        if not request.places and not changes:
            request.on_done(None)
            return
        decision = _Decision(request.places, request.on_done, is_written=False)
        self._ledger.commit(changes, request.places, partial(self._safe, decision))
        self._begin(decision)
        self._put(decision, request.first)
        self._commit_soon()

    def _look_on(self) -> None:
        """Go on with the oldest commit whose half messages are not all looked at."""
        request = self._requests[0]
        try:
            if self._look(request):
                self._requests.popleft()
        except (ResponseError, StoreError) as error:
            self._requests.popleft()
            if not isinstance(error, ResponseError):
                error = for_code(ResponseCode.SYSTEM_ERROR, f"the commit is not written: {error}")
            request.on_done(error)

    def _begin(self, decision: _Decision) -> None:
        self._open.append(decision)
        self._ledger.hold_snapshots()
        for offset, _ in decision.left:
            self._decided.add(offset)

    def _put(self, decision: _Decision, halves: Iterable[StoredMessage]) -> None:
        """Put the messages of half messages, the next ones of a decision, as far as they can be written."""
        now_ms = self._now_ms()
        try:
            for half in halves:
                is_copied = half.physical_offset in self._copied
                self._transactions.commit(half, now_ms, is_copied=is_copied)
                decision.one_more()
        except StoreError as error:
            log.error("messages of a commit are not written now: %s", error)
            self._retry_at = self._clock() + RETRY_SECONDS
        if decision.put < len(decision.left):
            self._on_deadline(max(self._clock(), self._retry_at))

    def _safe(self, decision: _Decision, error: ResponseError | None) -> None:
        """The record of a decision is as safe as it will be, or not written."""
        if error is not None and error.code not in UNSURE:
            decision.on_done(error)
            return
        decision.safe(error)
        if not decision.left:
            decision.on_done(error)

    # ---- the pending batch ----

    def written(self) -> None:
        """The pending batch is in the log."""
        if not self._open:
            return
        still = []
        for decision in self._open:
            self._decided.difference_update(decision.written())
            if decision.left:
                still.append(decision)
            else:
                self._completed(decision)
        self._open = still

    def _completed(self, decision: _Decision) -> None:
        self._ledger.free_snapshots()
        if decision.is_safe:
            decision.on_done(decision.outcome)

    def rolled_back(self) -> None:
        """Handle a failed write of the pending batch: report the failure to the callers by `on_done`."""
        still = []
        for decision in self._open:
            decision.rolled_back()
            if decision.is_written:
                still.append(decision)
                continue
            self._ledger.free_snapshots()
            for offset, _ in decision.left:
                self._decided.discard(offset)
        self._open = still
        if still:
            self._retry_at = self._clock() + RETRY_SECONDS
            self._on_deadline(self._retry_at)

    def step(self, now: float) -> float:
        """Look at more half messages of the oldest commit, and put more messages of the oldest open decision;
        return the next deadline."""
        if self._requests:
            self._look_on()
        at = self._put_more(now)
        return now if self._requests else at

    def _put_more(self, now: float) -> float:
        todo = next((one for one in self._open if one.put < len(one.left)), None)
        if todo is None:
            return math.inf
        if now < self._retry_at:
            return self._retry_at
        halves: list[StoredMessage] = []
        size = 0
        while todo.put + len(halves) < len(todo.left) and size < STEP_BYTES and len(halves) < STEP_MESSAGES:
            at = todo.put + len(halves)
            place = todo.left[at]
            half = self._transactions.undecided(*place)
            if half is None:  # it ended before the start, or the log has lost it
                del todo.left[at]
                self._decided.discard(place[0])
                continue
            halves.append(half)
            size += half.size
        self._put(todo, halves)
        if not todo.left:
            self._open.remove(todo)
            self._completed(todo)
        return max(now, self._retry_at) if self._open else math.inf

    # ---- the start ----

    def load(self) -> None:
        """Go on with the decisions that the journal has. Called once the half messages are loaded."""
        since: dict[str, int] = {}
        for found in self._ledger.take_commits():
            places = []
            for place in found.halves:
                half = self._transactions.undecided(*place)
                if half is not None:
                    places.append(place)
                    topic = half.properties.get(PROPERTY_REAL_TOPIC, "")
                    since[topic] = min(since.get(topic, found.physical_offset), found.physical_offset)
            if places:
                log.info("%d messages of a commit are written now, after a restart", len(places))
                self._begin(_Decision(places, lambda error: None, is_written=True))
        for topic, position in since.items():
            self._copied.update(self._copies(topic, position))
        if self._open:
            self._on_deadline(self._clock())

    def _copies(self, topic: str, position: int) -> Iterable[int]:
        """The half messages whose messages lie in a topic behind a position of the log."""
        store = self._store
        for queue_id in range(store.queue_end(topic)):
            offset = store.max_offset(topic, queue_id) - 1
            while (unit := store.unit(topic, queue_id, offset)) is not None and unit[0] > position:
                data = store.read(unit[0])
                try:
                    if data is not None:
                        yield decode_record(data, decompressed=False).prepared_transaction_offset
                except CorruptRecord as error:
                    log.error("%s message %d cannot be read: %s", topic, offset, error)
                offset -= 1
