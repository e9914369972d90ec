"""Recovery: open a store, find the end of the log, and make queues fit the log.

After a clean stop (no `abort` file) everything was synced and queued: only the last part of the log is
checked again. After a crash the scan starts with the file that the checkpoint names, every queue is cut to
the records before that file, and units are made from the records again. A queue that turns out to lack older
units is made again from its end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import field

from rmq.errors import CorruptRecord
from rmq.protocol.properties import has_unit, unit_code
from rmq.store.evidence import (
    START_WAY_ON,
    WAY_ON,
    Evidence,
    broken_text,
    find_evidence,
    missing_start,
    zeroed_text,
)
from rmq.store.files.checkpoint import Checkpoint
from rmq.store.files.commitlog import CommitLog
from rmq.store.files.consumequeue import FILLER_SIZE, ConsumeQueue, Unit
from rmq.store.files.known_topics import KnownTopics
from rmq.store.files.queues import Key, Queues
from rmq.store.files.scan import (
    BLANK_SIZE,
    SECTOR,
    Scan,
    Scanned,
    Synced,
    check_end,
    has_lost_page,
    head_at,
    next_good,
    record_at,
)
from rmq.store.files.segments import Progress, no_progress

if TYPE_CHECKING:
    from attrs import define, frozen
else:
    from rmq.lazy_attrs import define, frozen

log = logging.getLogger("rmq.store")

# After a clean stop, so much of the log's end is checked again.
VERIFY_BYTES = 32 << 20
_REPORT_EVERY = 256


@frozen
class Recovery:
    """Result of `Store.load`: whether the stop before was clean, and the work of the recovery.

    `records`: number of records scanned, from physical offset `scanned_from`; `end`: the end of the log;
    `cut`: the file that was cut at a torn tail, if any; `rebuilt`: queues whose older units had to be made
    again; `seconds`: duration of the opening.
    """

    is_clean: bool
    scanned_from: int
    records: int
    end: int
    cut: str | None
    rebuilt: tuple[Key, ...]
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The result in words, for the log."""
        stop = "a clean stop" if self.is_clean else "a crash"
        parts = [f"after {stop}, {self.records} records read from {self.scanned_from} to {self.end}"]
        if self.cut:
            parts.append(f"a torn end cut off in {self.cut}")
        if self.rebuilt:
            parts.append(f"{len(self.rebuilt)} queues made again")
        return f"{', '.join(parts)}, in {self.seconds:.1f} s"


def known_synced(before: int, checkpoint: Checkpoint) -> Synced:
    """The part of the log that was certainly synced: up to the physical offset in `abort`, and up to the
    checkpoint, by its times only when it has no offsets."""
    if checkpoint.has_places:
        return Synced(max(before, checkpoint.log_to), 0)
    return Synced(before, checkpoint.log_ms)


def _own(is_end: Callable[[int, Unit], bool], begin: int) -> Callable[[int, Unit], bool]:
    """The rule, by which a queue also ends at units of records before `begin`, which an earlier topic had."""
    return lambda index, unit: is_end(index, unit) or (unit[0] < begin and unit[1] != FILLER_SIZE)


@define
class Recoverer:
    """A single recovery. `synced`: the part of the log that a crash cannot have taken; `topics`: the existing
    topics, and their begins in the log; `changing` is called before queue files are written, `remaking`
    before any are removed to be made again. `abort`: the synced end of the log by the file of that name;
    `now_ms`: the wall clock."""

    commit_log: CommitLog
    queues: Queues
    delays: dict[int, int]
    synced: Synced
    topics: KnownTopics
    check_crc: bool = True
    cut_damage: bool = False
    abort: int = 0
    now_ms: int = 0
    progress: Progress = no_progress
    changing: Callable[[], None] = lambda: None
    remaking: Callable[[], None] = lambda: None
    _short: dict[ConsumeQueue, int] = field(factory=dict)
    _by_name: dict[tuple[bytes, int], ConsumeQueue] = field(factory=dict)
    _begins: dict[bytes, int] = field(factory=dict)
    _timestamp: int = 0
    _latest_ms: int = 0
    _evidence: Evidence = field(factory=Evidence)
    _unsynced_from: int | None = None
    _checkpoint: Checkpoint | None = None

    def run(self, checkpoint: Checkpoint, *, clean: bool, rebuild: bool) -> Recovery:
        """Recover log and queues. Raises CorruptRecord for damage, StoreError when files cannot be read or
        written.
        """
        self._begins = {topic.encode(): begin for topic, begin in self.topics.begins.items()}
        self._checkpoint = checkpoint
        start = self._start(checkpoint, clean=clean, rebuild=rebuild)
        evidence = self._evidence = self._find_evidence(checkpoint, clean=clean)
        records, end, cut = self._scan_log(start)
        cut |= self._check_reach(evidence, start, end)
        # No sync had covered the bytes after `end`, or `check_end` has raised (unless truncateDamagedLog
        # gives them up): with SYNC_FLUSH no message in them was acknowledged.
        assert start <= end, "a scan never ends before it began"
        # First queues are cut to the log, then what they lack is made: a unit must never name a place after
        # the log's end, where other records will come.
        self._cut(end, torn=cut)
        assert self.commit_log.end == self.commit_log.flushed == end
        rebuilt = tuple((queue.topic, queue.queue_id) for queue in self._short)
        if self._short:
            self._distrust_queues(min(self._short.values()))
            self._rebuild_short(end)
        if not clean:
            self.queues.cut_files(self.progress)
            # The writes of a killed process are in the page cache only, and after a failed sync no later sync
            # writes them to the disk. From now on they count as synced.
            if self._unsynced_from is not None:
                self.commit_log.write_again(min(self._unsynced_from, end), end, progress=self.progress)
            self.commit_log.segments.sync(start, end, progress=self.progress)
        path = self.commit_log.segments.path(end) if cut else None
        return Recovery(clean, start, records, end, path, rebuilt)

    def _find_evidence(self, checkpoint: Checkpoint, *, clean: bool) -> Evidence:
        queues = self.queues.table.values()
        return find_evidence(checkpoint, self.abort, queues, clean=clean, now_ms=self.now_ms)

    def _check_reach(self, evidence: Evidence, start: int, end: int) -> bool:
        """Compare the end of the scan with the files beside the log; return whether missing records are given
        up. Raises CorruptRecord."""
        segments = self.commit_log.segments
        try:
            evidence.check_reach(segments, end)
            evidence.check_time(segments, end, self._latest_ms, start)
        except CorruptRecord as error:
            if not self.cut_damage:
                raise
            log.error("the log is accepted without its lost records: %s", error)
            return segments.at(end) is not None
        return False

    def _check_always_empty(self, checkpoint: Checkpoint, *, clean: bool) -> None:
        """The log has no file: check before queues are removed that the log was always empty. Raises
        CorruptRecord."""
        if clean:
            for queue in self.queues.table.values():
                queue.load(lambda index, unit: unit[1] <= 0)
        self._check_reach(self._find_evidence(checkpoint, clean=clean), 0, 0)

    # ---- where to start ----

    def _start(self, checkpoint: Checkpoint, *, clean: bool, rebuild: bool) -> int:
        segments = self.commit_log.segments
        segments.load()
        if not segments.bases:
            self._check_always_empty(checkpoint, clean=clean)
        elif why := missing_start(checkpoint, segments):
            error = CorruptRecord(segments.path(segments.start), segments.start, f"{why}; {START_WAY_ON}")
            if not self.cut_damage:
                raise error
            log.error("the log is accepted without its first files: %s", error)
        if not segments.bases or rebuild:
            # No unit is believed. The queues begin at 0, and at the offset of the first record that they
            # have.
            for queue in self.queues.table.values():
                queue.restart(0)
            return segments.start
        if clean:
            return self._start_clean()
        # Units of records from `start` on are rebuilt in any case: the pages of these files that reached the
        # medium are not known.
        start = self._file_vouched_for(checkpoint)
        self._load_queues(
            lambda queue: lambda index, unit: not self._is_unit_before(start, queue, index, unit)
        )
        return start if self.queues.table else segments.start

    def _start_clean(self) -> int:
        segments = self.commit_log.segments
        self._load_queues(lambda queue: lambda index, unit: unit[1] <= 0)
        last = max(self.queues.table.values(), key=lambda queue: queue.known_to, default=None)
        if last is None or last.known_to == 0:
            return segments.start
        # Begin at a record that a queue vouches for: the first one inside the part to be checked.
        unit = last.unit(last.first_at(last.known_to - VERIFY_BYTES)) or last.unit(last.end - 1)
        if unit is not None and head_at(segments, unit[0]) is not None:
            return unit[0]
        newest = segments.bases[-1]  # the queues are ahead of the log
        return newest if head_at(segments, newest) is not None else segments.start

    def _load_queues(self, rule: Callable[[ConsumeQueue], Callable[[int, Unit], bool]]) -> None:
        total = len(self.queues.table)
        for number, queue in enumerate(self.queues.table.values()):
            begin = self.topics.begins.get(queue.topic, 0)
            queue.load(_own(rule(queue), begin) if begin else rule(queue))
            if begin:
                self._cut_earlier(queue, begin)
            if queue.file_start > 0 == self.commit_log.start and self._is_short(queue):
                # Nothing ever expired, so the queue's first files were lost.
                queue.restart(0)
                self._short[queue] = 0
            if number % 64 == 0:
                self.progress("queues", number, total)
        self._find_lost_firsts()

    def _find_lost_firsts(self) -> None:
        """Rebuild queues whose first files were lost while the log still has their records.

        Retention keeps the unit before the first unit whose record is in the log. A queue whose first file
        begins with a later unit is complete only if the queue begins at this unit, as after RocketMQ's
        retention.
        """
        low = self.commit_log.start
        doubtful: dict[tuple[bytes, int], ConsumeQueue] = {}
        stop = low
        for queue in self.queues.table.values():
            unit = queue.first_in_files() if queue.file_start > 0 and queue not in self._short else None
            if unit is not None and low < unit[0] <= self.commit_log.segments.stop and self._is_short(queue):
                doubtful[queue.topic.encode(), queue.queue_id] = queue
                stop = max(stop, unit[0])
        if not doubtful:
            return
        for record in Scan(self.commit_log.segments, low, check_crc=False, stop=stop):
            found = doubtful.get((record.topic, record.queue_id))
            begins = self._begins.get(record.topic, 0)
            if found is None or not has_unit(record.sys_flag) or record.position < begins:
                continue
            if record.queue_offset < found.file_start:
                self._distrust_queues(low)
                found.restart(0)
                self._short[found] = low
                del doubtful[record.topic, record.queue_id]

    def _distrust_queues(self, physical_offset: int) -> None:
        """Lower the evidence for units of records from this offset on: synced units are about to be removed,
        and exist again only after the next checkpoint. If the process is killed before, the next start makes
        them."""
        self.remaking()
        checkpoint = self._checkpoint
        if checkpoint is not None and (checkpoint.queues_to > physical_offset or checkpoint.queues_ms):
            checkpoint.queues_to, checkpoint.queues_ms = min(checkpoint.queues_to, physical_offset), 0
            checkpoint.flush()

    def _cut_earlier(self, queue: ConsumeQueue, begin: int) -> None:
        """Cut units of an earlier topic of the same name, for good: a power cut may bring its files back."""
        unit = queue.unit_in_files(queue.end)
        if unit is None or unit[0] >= begin:
            return
        log.warning("queue %s/%d has messages of a deleted topic: removing them", queue.topic, queue.queue_id)
        self.changing()
        if queue.known_to <= begin:
            queue.restart(0)
        elif queue.cut_files():
            queue.sync_end()

    def _file_vouched_for(self, checkpoint: Checkpoint) -> int:
        """The newest file before whose first record all records are synced and queued."""
        segments = self.commit_log.segments
        replay_from, replay_from_ms = checkpoint.replay_from, checkpoint.replay_from_ms
        for base in reversed(segments.bases):
            first = record_at(segments, base, check_crc=False)
            if first is None:
                continue
            if first.store_timestamp <= replay_from_ms if replay_from is None else base <= replay_from:
                return base
        return segments.start

    def _is_unit_before(self, start: int, queue: ConsumeQueue, index: int, unit: Unit) -> bool:
        """True if a unit found after a crash is whole and its record lies before `start`."""
        physical, size, _ = unit
        if size <= 0 or not 0 <= physical < start:
            return False
        if physical < self.commit_log.start:
            return True  # nothing to compare with; so old a unit was synced long ago
        return head_at(self.commit_log.segments, physical) == (size, index)

    # ---- the log ----

    def _scan_log(self, start: int) -> tuple[int, int, bool]:
        """Scan to the end; returns how many records, the end, and if a bad spot, not a hole, is there."""
        segments = self.commit_log.segments
        scan = Scan(segments, start, check_crc=self.check_crc)
        records, last_end = 0, start
        held: Scanned | None = None
        # A record gets its unit when the next one was seen: of the last it must first be known whether its
        # end was torn off, since a unit cannot be taken back from a queue that was written.
        for record in scan:
            if held is not None:
                assert held.position + held.size <= record.position, "records do not overlap"
                self.restore(held)
                held = None
            if 0 in record.properties and (self._is_pierced(record) or self._has_zeroed_text(record)):
                return records, record.position, True
            held = record
            self._latest_ms = max(self._latest_ms, record.store_timestamp)
            if self._unsynced_from is None and not self.synced.covers(record):
                self._unsynced_from = last_end  # with the end of a file, which lies between two records
            records, last_end = records + 1, record.position + record.size
            if records % _REPORT_EVERY == 0:
                self.progress("log", record.position - start, segments.stop - start)
        end = scan.position
        if held is not None and self._is_torn(held):
            records, end = records - 1, held.position
        elif held is not None:
            self.restore(held)
        if self._unsynced_from is None and last_end < end:
            self._unsynced_from = last_end
        self.progress("log", end - start, end - start)
        if segments.at(end) is None:
            return records, end, False
        try:
            check_end(segments, end, self.synced, self._timestamp, self._vouch)
        except CorruptRecord as error:
            if not self.cut_damage:
                raise
            log.error("the log is cut at damage, good records are lost: %s", error)
            return records, end, True
        torn = any(segments.copy(end, BLANK_SIZE)) or segments.bases[-1] > end
        return records, end, torn

    def _is_pierced(self, record: Scanned) -> bool:
        """True if a power cut took a part of the record's properties. Synced records lost none, and neither
        did earlier records."""
        if self.synced.covers(record) or not has_lost_page(record):
            return False
        following = next_good(self.commit_log.segments, record.position, self._vouch)
        return following is None or not self.synced.covers(following)

    def _is_torn(self, last: Scanned) -> bool:
        """True if the last record before the end lacks its last bytes: a killed write, or a power cut, leaves
        zeros in their place. A sender's zeros begin in the middle of a sector, and the record has a unit.

        A record that a slave received in two pieces may have its unit on the disk and the first piece only.
        Our brokers accept no zeros from senders, so if they have recorded the synced end, zeros are lost
        bytes.
        """
        zeros = len(last.properties) - len(last.properties.rstrip(b"\0"))
        if not zeros:
            return False
        if self._evidence.is_exact and last.position + last.size > self._evidence.before:
            return True  # a slave stopped in order when it had a part of it
        if self.synced.covers(last):
            return self._is_damaged(last)
        if (last.position + last.size - zeros) % SECTOR == 0 or self.synced.before:
            return True
        return not self._vouch(last)

    def _is_damaged(self, last: Scanned) -> bool:
        """True if the zeros at the end of a synced record are cut: no sender sent them, and damage is cut.
        Raises CorruptRecord when damage is not cut."""
        why = broken_text(last.properties) or self._other_unit(last)
        return bool(why) and self._is_cut_at(last, f"it ends in zeros, and {why}")

    def _has_zeroed_text(self, record: Scanned) -> bool:
        """True if the log is cut at a record that was synced and has zeros in its properties where no record
        has any. Raises CorruptRecord unless damage is cut."""
        why = zeroed_text(record.properties) if self._is_whole(record) else ""
        return bool(why) and self._is_cut_at(record, why)

    def _is_whole(self, record: Scanned) -> bool:
        """True if all bytes of a record were synced. A slave may have stopped in order with a part of one."""
        is_part = self._evidence.is_exact and record.position + record.size > self._evidence.before
        return self.synced.covers(record) and not is_part

    def _is_cut_at(self, record: Scanned, why: str) -> bool:
        """True where damage is cut. Raises CorruptRecord where it is not."""
        path = self.commit_log.segments.path(record.position)
        error = CorruptRecord(path, record.position, f"{why}; {WAY_ON}")
        if not self.cut_damage:
            raise error
        log.error("the log is cut at damage: %s", error)
        return True

    def _other_unit(self, record: Scanned) -> str:
        """The difference between the record and its unit in the queue's files; empty without a difference."""
        queue = self.queues.table.get((record.topic.decode("utf-8", "replace"), record.queue_id))
        unit = queue.unit_in_files(record.queue_offset) if queue and has_unit(record.sys_flag) else None
        code = unit_code(record.topic, record.properties, record.store_timestamp, self.delays)
        if unit is None or unit[:2] != (record.position, record.size) or unit[2] == code:
            return ""
        return f"its queue has the tags code {unit[2]} for it, not {code} (--rebuild-queues takes the record)"

    def _vouch(self, record: Scanned) -> bool | None:
        queue = self.queues.table.get((record.topic.decode("utf-8", "replace"), record.queue_id))
        unit = queue.unit_in_files(record.queue_offset) if queue and has_unit(record.sys_flag) else None
        return None if unit is None else unit[:2] == (record.position, record.size)

    def _cut(self, end: int, *, torn: bool) -> None:
        if torn:
            log.warning("%s: torn tail cut at %d", self.commit_log.segments.path(end), end)
        ahead = [queue for queue in self.queues.table.values() if queue.known_to > end]
        for queue in ahead:
            log.warning("queue %s/%d is ahead of the log and is cut", queue.topic, queue.queue_id)
            queue.truncate(end)
        if self.commit_log.segments.bases:
            self.commit_log.truncate(end)
        self.commit_log.open_at(end, self._timestamp or self._last_timestamp())

    def _last_timestamp(self) -> int:
        last = max(self.queues.table.values(), key=lambda queue: queue.known_to, default=None)
        unit = None if last is None else last.unit(last.end - 1)
        record = None if unit is None else record_at(self.commit_log.segments, unit[0], check_crc=False)
        return 0 if record is None else record.store_timestamp

    # ---- the queues ----

    def restore(self, record: Scanned) -> None:
        """Give a record its queue unit, unless the queue has it."""
        position, size, queue_id, queue_offset, sys_flag, stored, topic, _ = record
        self._timestamp = stored
        if not has_unit(sys_flag) or position < self._begins.get(topic, 0):
            return
        queue = self._by_name.get((topic, queue_id)) or self._queue_of(topic, queue_id)
        if position + size <= queue.known_to or queue in self._short:
            return
        if queue_offset > queue.next and self._is_short(queue):
            # Older units are missing, so this one cannot be put behind them yet. Once the scan is through,
            # all of the queue's records from there on are gone through again.
            queue.known_to = queue.physical_end()
            self._short[queue] = max(queue.known_to, self.commit_log.start)
            return
        self._append(queue, record)

    def _append(self, queue: ConsumeQueue, record: Scanned) -> None:
        position, size, _, queue_offset, _, stored, topic, properties = record
        if queue_offset != queue.next:
            # The topic was deleted and made again, or older records are gone from the log.
            queue.restart(queue_offset)
        assert queue.next == queue_offset, "a unit's index is its record's queue offset"
        queue.append((position, size, unit_code(topic, properties, stored, self.delays)), stored)
        if queue.gathered >= queue.WRITE_BYTES:
            self.changing()
            queue.write()

    def _queue_of(self, name: bytes, queue_id: int) -> ConsumeQueue:
        topic = name.decode("utf-8", "replace")
        queue = self.queues.table.get((topic, queue_id)) or self.queues.make(topic, queue_id)
        self._by_name[name, queue_id] = queue
        return queue

    def _is_short(self, queue: ConsumeQueue) -> bool:
        """True if the missing units should be in the log: not for the leftovers of a deleted topic."""
        known = self.topics.names is None or queue.topic in self.topics.names
        return known or (not queue.is_empty and queue.file_start == 0)

    def _rebuild_short(self, end: int) -> None:
        """Scan again from the end of the shortest queue, for the short queues alone."""
        short, self._short = self._short, {}
        start = min(short.values())
        names = ", ".join(f"{queue.topic}/{queue.queue_id}" for queue in list(short)[:5])
        log.warning("%d queues lack units (%s …): made again from offset %d on", len(short), names, start)
        scan = Scan(self.commit_log.segments, self._boundary(start), check_crc=False, stop=end)
        for number, record in enumerate(scan):
            if has_unit(record.sys_flag) and record.position >= self._begins.get(record.topic, 0):
                queue = self._queue_of(record.topic, record.queue_id)
                if queue in short and record.position + record.size > queue.known_to:
                    self._append(queue, record)
            if number % _REPORT_EVERY == 0:
                self.progress("queues from log", record.position - start, end - start)

    def _boundary(self, position: int) -> int:
        """A place at or before `position` where a record starts."""
        if head_at(self.commit_log.segments, position) is not None:
            return position
        return position - position % self.commit_log.file_size
