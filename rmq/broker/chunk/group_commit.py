"""Group commit: the end of each chunk of requests.

The messages that the requests of a chunk have put are written to the log by a single call. After the write
their senders are answered, and the consumers of their queues wake. After a failed write all senders get the
cause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rmq.broker.error_responses import not_written
from rmq.broker.produce.append import stored_events
from rmq.broker.tables.versioned import run_to_end
from rmq.errors import StoreError
from rmq.message import SCHEDULE_TOPIC, TIMER_TOPIC
from rmq.plugin import Hooks

if TYPE_CHECKING:
    from rmq.broker.consume.long_polling import ParkedPulls
    from rmq.broker.consume.per_message.deliveries import Deliveries
    from rmq.broker.decisions import Decisions
    from rmq.broker.delay.delay_levels import Schedule
    from rmq.broker.delay.timers import Timers
    from rmq.broker.produce.writers import Writers
    from rmq.broker.state import Tables
    from rmq.broker.tables.files import TableFiles
    from rmq.broker.tables.histograms import Histograms
    from rmq.broker.wakeups import Wakeups
    from rmq.remoting.connection import Connection
    from rmq.store.store import Arrival, Store

log = logging.getLogger("rmq.broker")


class Chunk:
    """The chunk of requests that is handled now.

    `connection` is the connection of the requests, None outside of a chunk. `began` is the time at which the
    handling of the last chunk began, by the clock that measures work.
    """

    __slots__ = ("began", "connection")

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.began = 0.0

    def begin(self, connection: Connection | None, began: float) -> None:
        """Begin a chunk; None: of a message that no connection has sent."""
        self.connection, self.began = connection, began

    def end(self) -> None:
        """End the chunk."""
        self.connection = None


class Arrivals:
    """Wakes the readers of queues that have grown."""

    def __init__(
        self,
        parked_pulls: ParkedPulls,
        deliveries: Deliveries,
        schedule: Schedule,
        timers: Timers,
        now_ms: Callable[[], int],
    ) -> None:
        self._parked_pulls = parked_pulls
        self._deliveries = deliveries
        self._schedule = schedule
        self._timers = timers
        self._now_ms = now_ms

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """Wake the waiting reads of these queues, once for each queue."""
        parked, takes = self._parked_pulls.count, len(self._deliveries.polls)
        if parked:
            self._parked_pulls.turn()
        for topic, queue_id, next_offset in arrivals:
            if parked:
                self._parked_pulls.arrived(topic, queue_id, next_offset)
            if takes:
                self._deliveries.arrived(topic)
            if topic == SCHEDULE_TOPIC:
                self._schedule.arrived(queue_id, self._now_ms())
            elif topic == TIMER_TOPIC:
                self._timers.arrived(next_offset)


class GroupCommit:
    """Commits the pending messages, answers their senders, and wakes the consumers of their queues.

    `clock` is in seconds, `work_clock` measures work in seconds.
    """

    def __init__(
        self,
        store: Store,
        chunk: Chunk,
        files: TableFiles,
        tables: Tables,
        writers: Writers,
        deliveries: Deliveries,
        decisions: Decisions,
        arrivals: Arrivals,
        *,
        histograms: Histograms,
        wake: Wakeups,
        clock: Callable[[], float],
        work_clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._chunk = chunk
        self._files = files
        self._topics = tables.topics
        self._arrivals = arrivals
        self._append = writers.append
        self._acknowledgement = writers.acknowledgement
        self._flow = writers.flow
        self._transactions = writers.transactions
        self._decisions = decisions
        self._deliveries = deliveries
        self._stats = tables.stats
        self._histograms = histograms
        self._wake = wake
        self._clock, self._work_clock = clock, work_clock
        self._save_topics = wake.new_topics or self.save_topics
        self._hooks = Hooks()
        self._next_warning_at = 0.0

    def use_plugins(self, hooks: Hooks) -> None:
        """Show these hooks the messages that are stored from now on."""
        self._hooks = hooks

    def forget(self) -> None:
        """Drop the pending batch without answers."""
        self._append.take_counts()
        self._acknowledgement.forget()

    def commit_pending(self) -> None:
        """Commit the pending messages, answer their senders, and wake the consumers of their queues; also for
        parts that put messages outside a chunk. After a failure all senders get the cause, and none gets
        success."""
        store, ledger = self._store, self._deliveries.ledger
        while ledger.has_pending or store.has_pending:
            try:
                ledger.write()
                self.commit()
            except StoreError:
                continue  # the senders have the cause, and so has the log

    def commit(self) -> None:
        """Commit now, also in the middle of a chunk. Raises StoreError, without success for any sender."""
        clock = self._work_clock
        began = clock()
        try:
            arrivals = self._store.commit()
        except StoreError as error:
            self.not_written(error)
            raise
        except BaseException:  # a bug: nothing is written, and the next commit must not answer with success
            self.forget()
            raise
        self._written(clock() - began)
        if self._topics.unsaved:
            self._save_topics()
        self._arrivals.arrived(arrivals)
        self._acknowledgement.replicas.grown()
        self._wake.reput()

    def _written(self, seconds: float) -> None:
        """Answer the senders and count."""
        self._flow.wrote(seconds)
        if self._deliveries.ledger.is_writing:
            self._deliveries.ledger.written()
        self._decisions.written()
        (counts, plugin_counts), connection = self._append.take_counts(), self._chunk.connection
        if self._acknowledgement.calls:
            self._acknowledgement.calls_committed()
        if not counts and not plugin_counts:
            return
        hooks = self._hooks
        records = self._acknowledgement.records() if hooks.stored else []
        if connection is not None:
            self._acknowledgement.committed(connection)
        total = self._append.count_stored(counts)
        if plugin_counts:  # without an event: a plug-in may answer it by a message
            total += self._append.count_stored(plugin_counts)
        if hooks.stored:
            for event in stored_events(counts, records, connection, self._store.store_host):
                hooks.observe(hooks.stored, event)
        self._stats.stored(seconds * 1000, total)
        self._histograms.write.observe(self._work_clock() - self._chunk.began, total)

    def not_written(self, error: StoreError, connection: Connection | None = None) -> None:
        """Report a failed write to all senders of the pending batch: to `connection`, or to the senders of
        the present chunk."""
        connection = connection or self._chunk.connection
        code, remark = not_written(error)
        now = self._clock()
        if now >= self._next_warning_at:  # a full disk refuses every chunk: once a second is enough
            self._next_warning_at = now + 1
            log.error("messages were not stored: %s", error)
        self._append.count_failed()
        if connection is not None:
            self._acknowledgement.refused(connection, code, remark)
        self._acknowledgement.calls_refused(code, remark)
        self._deliveries.ledger.written(is_written=False)
        self._transactions.rolled_back()
        self._decisions.rolled_back()

    def save_topics(self) -> None:
        """Save created topics at once: the caller waits for the disk."""
        made = self._topics.made
        try:
            run_to_end(self._files.saving("topics"))()
        except StoreError as error:
            self._acknowledgement.topics_not_saved(error)
        else:
            self._topics.saved(made)
            self._acknowledgement.topics_saved()
