"""Queues: all consume queues of a store, their unwritten and unsynced units, and their trimming.

Units wait in memory until a queue has half a page of units per write, or for a few seconds, or until all
units together take too much memory. The queues belong to a single thread; `sync` may run in another.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

from rmq.errors import StoreError
from rmq.store.files.consumequeue import UNIT, UNIT_FORM, ConsumeQueue, Unit, queue_folder, queues_in
from rmq.store.files.disk import Disk
from rmq.store.files.segments import OpenFiles, Progress, no_progress

log = logging.getLogger("rmq.store")

Key = tuple[str, int]

_FILES_OPEN = 256
_GATHERED_BYTES = 16 << 20  # units in memory before a commit writes some
_GATHER_MS = 5000  # how long units may wait in memory
_WRITE_MS = 2  # how long one call may write or trim files: with thousands of them it takes a while
_WRITES_AT_ONCE = 64
_SYNC_ALL_FROM = 64  # the files of more queues than that are synced by one sync of the file system
_TRIM_AT_ONCE = 500


EncodedUnits = tuple[ConsumeQueue, int, bytes]
"""A queue, how many units it gets, and these."""


class Arrival(NamedTuple):
    """A queue got messages: `next_queue_offset` is the offset after the last of them."""

    topic: str
    queue_id: int
    next_queue_offset: int


class Written(NamedTuple):
    """All units of records stored before the time, and of those before the physical offset, are in files."""

    before_ms: int
    before: int


class Queues:
    """`table` holds them all by topic and queue id. `now_ms` bounds how long a call may take."""

    def __init__(self, disk: Disk, root: str, file_size: int, now_ms: Callable[[], int]) -> None:
        self.table: dict[Key, ConsumeQueue] = {}
        self.ends: dict[str, int] = {}  # topic -> the number after its highest queue id
        self.written = Written(0, 0)
        self._taken_to = 0  # all units of records before this physical offset have come
        self.error = ""  # why the last write of a file failed
        self._disk = disk
        self._root = root
        self._file_size = file_size
        self._now_ms = now_ms
        self._open_files = OpenFiles(_FILES_OPEN)
        self._gathered: dict[ConsumeQueue, None] = {}  # the longest waiting first
        self._gathered_bytes = 0
        self._full: list[ConsumeQueue] = []  # enough units for a write
        self._unsynced: dict[ConsumeQueue, None] = {}
        self._to_trim: list[ConsumeQueue] = []
        self._log_was = -1  # where the log began before the files that queues are not trimmed to yet
        self._keeps_files = False  # such a file may still be on the disk
        self._keeper: ConsumeQueue | None = None  # the queue that kept a message in the oldest file last
        self._lost: dict[Key, int] = {}  # queues whose messages went -> where they began before

    def find_folders(self) -> None:
        """Make the queues that have folders; their files are not looked at yet."""
        for topic, queue_id in queues_in(self._disk, self._root):
            self.make(topic, queue_id)

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """A new queue. Raises StoreError for a topic that cannot be the name of a folder."""
        folder = queue_folder(self._root, topic, queue_id)
        queue = ConsumeQueue(self._disk, folder, topic, queue_id, self._file_size, self._open_files)
        self.table[topic, queue_id] = queue
        self.ends[topic] = max(self.ends.get(topic, 0), queue_id + 1)
        return queue

    def find(self, topic: str, queue_id: int, log_start: int) -> ConsumeQueue | None:
        """The queue, beginning with the first message that the log still has; None when there is none."""
        queue = self.table.get((topic, queue_id))
        if queue is not None and queue.trimmed_to < log_start:
            self._trim(queue, log_start)
        return queue

    def _trim(self, queue: ConsumeQueue, log_start: int) -> int:
        before = queue.gathered
        if queue.trimmed_to < self._log_was:  # to tell what is lost now from what was lost before
            queue.trim(self._log_was, files=False)
        start = queue.start
        removed = queue.trim(log_start, files=not self._keeps_files)
        if queue.start > start and self._log_was >= 0:
            self._lost.setdefault((queue.topic, queue.queue_id), start)
        self._gathered_bytes -= before - queue.gathered
        return removed

    def give_up_before(self, topic: str, queue_id: int, index: int, log_start: int) -> int:
        """Set the begin of a queue to `index`; return the number of messages that cannot be read any more."""
        queue = self.find(topic, queue_id, log_start)
        if queue is None or index <= queue.start:
            return 0
        start = queue.start
        if count := queue.give_up_before(index):
            self._lost.setdefault((topic, queue_id), start)
        return count

    def keeps_any(self, before: int) -> bool:
        """True if a queue keeps a message that is before the physical offset `before`."""
        last = self._keeper  # it keeps one for long, so the other queues are seldom looked at
        if last is not None and last is self.table.get((last.topic, last.queue_id)) and _keeps(last, before):
            return True
        self._keeper = next((queue for queue in self.table.values() if _keeps(queue, before)), None)
        return self._keeper is not None

    def take_lost(self) -> list[tuple[str, int, int, int]]:
        """The queues that have lost messages by retention since the last call, as (topic, queue id,
        former begin, present begin)."""
        lost, self._lost = self._lost, {}
        found = [(key, start, self.table.get(key)) for key, start in lost.items()]
        return [(*key, start, queue.start) for key, start, queue in found if queue is not None]

    def recovered(self, timestamp: int, log_end: int, *, changed: bool) -> None:
        """After recovery; `changed`: it may have written files. `timestamp`: the last record's store time."""
        gathered = [queue for queue in self.table.values() if queue.gathered]
        self._gathered = dict.fromkeys(sorted(gathered, key=_first_gathered))
        self._taken_to = log_end
        self._count_gathered()
        if changed:
            self._unsynced.update(dict.fromkeys(self.table.values()))
        self._note_written(timestamp)

    # ---- taking units ----

    def take(self, units: list[Unit], owners: list[ConsumeQueue], timestamp: int) -> list[Arrival]:
        """Hand units, encoded together, to their queues, whose `next` counts them already."""
        pack = UNIT_FORM.pack
        data = b"".join([pack(*unit) for unit in units])
        self._gathered_bytes += len(data)
        touched = dict.fromkeys(owners)
        new, most = tuple.__new__, ConsumeQueue.WRITE_BYTES
        arrivals = []
        for queue in touched:
            tail = queue.tail
            if not tail:
                self._gathered[queue] = None
                queue.gathered_since_ms = timestamp
            elif len(tail) >= most:
                self._full.append(queue)
            queue.end = queue.next
            # Arrival(...) would go through a Python function, which is felt with a queue for each message.
            arrivals.append(new(Arrival, (queue.topic, queue.queue_id, queue.end)))
        if len(touched) == 1:
            tail += data
        else:
            at = 0
            for queue in owners:
                queue.tail += data[at : at + UNIT]
                at += UNIT
        return arrivals

    def take_encoded(self, units: list[EncodedUnits], timestamp: int) -> list[Arrival]:
        """Hand encoded units to their queues, whose `next` may count them already."""
        arrivals = []
        new, most, size = tuple.__new__, ConsumeQueue.WRITE_BYTES, 0
        for queue, count, data in units:
            tail = queue.tail
            if not tail:
                self._gathered[queue] = None
                queue.gathered_since_ms = timestamp
            elif len(tail) >= most:
                self._full.append(queue)
            tail += data
            size += count
            end = queue.end = queue.end + count
            if queue.next < end:
                queue.next = end
            arrivals.append(new(Arrival, (queue.topic, queue.queue_id, end)))  # as in `take`
        self._gathered_bytes += size * UNIT
        return arrivals

    def restart(self, queue: ConsumeQueue, index: int) -> None:
        """Forget a queue's units; the next one has this index."""
        queue.restart(index)
        self._gathered.pop(queue, None)
        self._count_gathered()

    def _count_gathered(self) -> None:
        self._gathered_bytes = sum(queue.gathered for queue in self._gathered)

    # ---- writing ----

    def keep_up(self, timestamp: int, taken_to: int) -> None:
        """Bound the units in memory. `timestamp`: the last record's store time, here and below. `taken_to`:
        the units of all records before this physical offset have come."""
        self._taken_to = taken_to
        if self._full:
            full, self._full = self._full, []
            self.write(full, timestamp)
        if self._gathered_bytes > _GATHERED_BYTES and not self.error:
            self.write(islice(self._gathered, _WRITES_AT_ONCE), timestamp)

    def check_room(self, timestamp: int) -> None:
        """Raise StoreError when so much waits because files cannot be written that no more may come."""
        if self._gathered_bytes > 2 * _GATHERED_BYTES:
            self.write(islice(self._gathered, _WRITES_AT_ONCE), timestamp)
            if self.error:
                raise StoreError(f"queue files cannot be written: {self.error}")

    def write_waiting(self, timestamp: int) -> bool:
        """Write the units that waited long; whether more of them are left to write at once."""
        now = self._now_ms()
        waiting = []
        for queue in islice(self._gathered, _WRITES_AT_ONCE):
            # A clock that was set back must not hold units for ever.
            if 0 <= now - queue.gathered_since_ms < _GATHER_MS:
                break
            waiting.append(queue)
        late = self.write(waiting, timestamp)
        return late or (len(waiting) == _WRITES_AT_ONCE and not self.error)

    def write_all(self, timestamp: int) -> None:
        """Write all units that are in memory only. Raises StoreError when they cannot be written."""
        self.write(self._gathered, timestamp, most_ms=1 << 60)
        if self._gathered:
            raise StoreError(f"queues could not be written, the next start makes them: {self.error}")

    def write(self, queues: Iterable[ConsumeQueue], timestamp: int, most_ms: int = _WRITE_MS) -> bool:
        """Write gathered units to their files; return whether time ran out before the last unit.

        A failure is logged: the units stay readable, and a later call writes them.
        """
        deadline = self._now_ms() + most_ms
        late = False
        for queue in list(queues):
            if late := self._now_ms() >= deadline:
                break
            size = queue.gathered
            try:
                queue.write()
            except StoreError as error:
                if not self.error:
                    log.error("queue %s/%d cannot be written: %s", queue.topic, queue.queue_id, error)
                self.error = str(error)
                return False
            self._gathered.pop(queue, None)
            self._gathered_bytes -= size
            self._unsynced[queue] = None
        self.error = ""
        self._note_written(timestamp)
        return late

    def _note_written(self, timestamp: int) -> None:
        first = next(iter(self._gathered), None)
        if first is None:
            self.written = Written(timestamp, self._taken_to)
        else:
            self.written = Written(first.gathered_since_ms, _first_gathered(first))

    def sync(self) -> Written:
        """Sync the files written so far, up to the places of the result. Thread-safe. Raises StoreError."""
        # Read before the queues are taken: what the other thread writes from here on counts for the next
        # call.
        written = self.written
        queues = []
        while self._unsynced:
            queues.append(self._unsynced.popitem()[0])
        try:
            if len(queues) > _SYNC_ALL_FROM:
                self._disk.sync_all(self._root)
            else:
                for queue in queues:
                    queue.sync()
        except StoreError:
            self._unsynced.update(dict.fromkeys(queues))  # none of them counts as synced
            raise
        return written

    # ---- removing ----

    def cut_files(self, progress: Progress = no_progress) -> None:
        """After a crash: overwrite the bytes after the queues' ends with zeros, for good."""
        cut: list[ConsumeQueue] = []
        for number, queue in enumerate(self.table.values()):
            if queue.cut_files():
                cut.append(queue)
            if number % 64 == 0:
                progress("queues cut", number, len(self.table))
        self._sync_ends(cut)

    def _sync_ends(self, cut: list[ConsumeQueue]) -> None:
        if len(cut) > _SYNC_ALL_FROM:
            self._disk.sync_all(self._root)
        else:
            for queue in cut:
                queue.sync_end()

    def truncate(self, log_end: int) -> None:
        """Drop the units of records that end after `log_end`, for good: others will be at their places."""
        self._sync_ends([queue for queue in self.table.values() if queue.truncate(log_end)])
        self._gathered = {queue: None for queue in self._gathered if queue.gathered}
        self._count_gathered()
        self._taken_to = min(self._taken_to, log_end)
        self.written = self.written._replace(before=min(self.written.before, log_end))

    def topic_folder(self, topic: str) -> str:
        """The folder of a topic's queues."""
        return os.path.dirname(queue_folder(self._root, topic, 0))

    def remove_topic(self, topic: str) -> None:
        """Forget a topic's queues, whose files are out of the way, and close these."""
        self.ends.pop(topic, None)
        for key in [key for key in self.table if key[0] == topic]:
            queue = self.table.pop(key)
            self._gathered.pop(queue, None)
            self._unsynced.pop(queue, None)
            queue.close()
        self._full = [queue for queue in self._full if queue.topic != topic]
        self._to_trim = [queue for queue in self._to_trim if queue.topic != topic]
        self._count_gathered()

    def hold_files(self, log_start: int) -> None:
        """The log is about to begin later than at `log_start`. Until `begin_trim` queues keep their files."""
        if self.is_trimmed and not self._keeps_files:
            self._log_was = log_start
        self._keeps_files = True

    def begin_trim(self) -> None:
        """The log's start moved: all queues are to be trimmed, by calls of `trim_some`."""
        self._keeps_files = False
        self._to_trim = list(self.table.values())

    @property
    def is_trimmed(self) -> bool:
        """True if nothing is left for `trim_some`."""
        return not self._to_trim

    def trim_some(self, log_start: int) -> int:
        """Drop units before the log's start from some of the queues; return the number of removed files."""
        deadline = self._now_ms() + _WRITE_MS
        removed = done = 0
        for queue in islice(self._to_trim, _TRIM_AT_ONCE):
            if done and self._now_ms() >= deadline:
                break
            done += 1
            try:
                removed += self._trim(queue, log_start)
            except StoreError as error:
                log.error("expired files of queue %s/%d stay: %s", queue.topic, queue.queue_id, error)
        del self._to_trim[:done]
        return removed

    def close(self) -> None:
        """Close all files."""
        for queue in self.table.values():
            queue.close()


def _keeps(queue: ConsumeQueue, before: int) -> bool:
    unit = queue.unit(queue.start) if queue.start < queue.end else None
    return unit is not None and unit[0] < before


def _first_gathered(queue: ConsumeQueue) -> int:
    """The physical offset of the first record whose unit is in memory only."""
    first: int = UNIT_FORM.unpack_from(queue.tail)[0]
    return first
