"""The queues' part of a store's check: each unit against the record that it stands for.

Records come in log order, so each queue is read once from front to back.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable

from rmq.protocol.properties import has_unit, unit_code
from rmq.store.audit.rules import (
    EXTRA,
    MISSING,
    differences,
    is_compared,
    is_kept,
    is_pending,
    is_replaced,
    kept_topics,
)
from rmq.store.files.consumequeue import UNIT, UNIT_FORM, Unit, is_unit, queue_folder, queues_in
from rmq.store.files.disk import Disk
from rmq.store.files.known_topics import KnownTopics
from rmq.store.files.scan import Scanned
from rmq.store.files.segments import OpenFiles, Segments

Add = Callable[[str, str, int, str], None]

_NAME = re.compile(r"[0-9]{20}")
_CHUNK = 256  # units that are read at once


class QueueAudit:
    """A queue. Its findings wait until the end: when its offsets start again, the topic was deleted and
    created again, and units that its older records lack are no fault."""

    def __init__(self, files: Segments, begin: int) -> None:
        self.files = files
        self.begin = begin  # the records of its topic lie at this physical offset, or behind
        self.next = -1  # the queue offset after the last record's; -1 without any
        self.position = -1  # of the last record
        self.last = -1  # the queue offset of the last unit; -1 without any
        self.held: list[tuple[str, int, str]] = []
        self.expected = 0
        self._cached = range(0)
        self._units: list[Unit] = []

    def unit(self, index: int) -> Unit | None:
        """The unit in the files; None when there is none."""
        if index not in self._cached:
            self._read(index)
        return self._units[index - self._cached.start] if index in self._cached else None

    def _read(self, index: int) -> None:
        self._cached, self._units = range(0), []
        at = index * UNIT
        if self.files.file_size and self.files.bases and self.files.start <= at < self.files.stop:
            left = (self.files.file_size - at % self.files.file_size) // UNIT
            view = self.files.read(at, min(left, _CHUNK) * UNIT)
            if view is not None:
                self._units = list(UNIT_FORM.iter_unpack(view))
                self._cached = range(index, index + len(self._units))

    def path(self, index: int) -> tuple[str, int]:
        """File of a unit and its place in it."""
        size = self.files.file_size or UNIT
        return self.files.path(index * UNIT), index * UNIT % size


class QueueAudits:
    """All queues of a folder. `add` takes findings."""

    def __init__(self, disk: Disk, root: str, delays: dict[int, int], add: Add) -> None:
        self._disk = disk
        self._root = root
        self._delays = delays
        self._add = add
        self._table: dict[tuple[bytes, int], QueueAudit] = {}
        self._deleted: set[bytes] = set()
        self._kept: frozenset[str] | None = None
        self._begins: dict[bytes, int] = {}
        self._is_open = False
        self._limit = OpenFiles(128)
        self._log_start = 0
        self.units = 0
        self.pending = 0  # units that are only not written yet
        self.file_size = 0  # of some queue's files

    def __len__(self) -> int:
        return len(self._table)

    def load(self, log_start: int, known: KnownTopics, *, is_open: bool) -> None:
        """Find the queues' files. `known` topics: others without a folder count as deleted, and so do records
        that lie before their topic. `is_open`: a broker runs on the store, or was killed.
        """
        self._begins = {topic.encode(): begin for topic, begin in known.begins.items()}
        self._log_start, self._is_open = log_start, is_open
        self._kept = kept_topics(known.names, self._disk.list(os.path.join(self._root, "consumequeue")))
        for topic, queue_id in queues_in(self._disk, self._root):
            if is_compared(topic):
                self._make(topic.encode(), queue_id)

    def _make(self, topic: bytes, queue_id: int) -> QueueAudit:
        folder = queue_folder(self._root, topic.decode("utf-8", "replace"), queue_id)
        names = [name for name in self._disk.list(folder) if _NAME.fullmatch(name)]
        sizes = {int(name): self._disk.size(os.path.join(folder, name)) for name in names}
        full = Counter(size for size in sizes.values() if size)
        usual = full.most_common(1)[0][0] if full else 0
        self.file_size = self.file_size or usual
        files = Segments(self._disk, folder, usual or UNIT, limit=self._limit, mapped=False, ordered=False)
        for base, size in sorted(sizes.items()):
            path = os.path.join(folder, f"{base:020d}")
            if not size or size != usual or size % UNIT or base % usual:
                self._add("queue file size", path, 0, f"{size} bytes, which does not fit the others")
            elif files.bases and base != files.stop:
                self._add("queue file missing", files.path(files.stop), 0, f"the next file is {base:020d}")
                files.bases = [base]
            else:
                files.bases.append(base)
        audit = self._table[topic, queue_id] = QueueAudit(files, self._begins.get(topic, 0))
        return audit

    def vouch(self, record: Scanned) -> bool | None:
        """True if the unit of its place is this record's; None when there is no unit."""
        queue = self._table.get((record.topic, record.queue_id)) if has_unit(record.sys_flag) else None
        unit = queue.unit(record.queue_offset) if queue is not None else None
        if unit is None or not is_unit(unit[1]):
            return None
        return unit[:2] == (record.position, record.size)

    def expect(self, record: Scanned) -> None:
        """A good record of the log that must have a unit."""
        if record.position < self._begins.get(record.topic, 0):
            return  # of an earlier topic of that name
        queue = self._table.get((record.topic, record.queue_id))
        if queue is None:
            name = record.topic.decode("utf-8", "replace")
            if not is_compared(name) or (self._kept is not None and name not in self._kept):
                return
            queue = self._make(record.topic, record.queue_id)
        index = record.queue_offset
        if is_replaced(queue.position, queue.next - 1, record.position, index):
            queue.held.clear()
        elif queue.next >= 0:
            for missing in range(queue.next, min(index, queue.next + 1000)):
                self._gap(queue, missing)
        queue.next, queue.position = index + 1, record.position
        queue.expected += 1
        self._compare(queue, index, record)

    def _gap(self, queue: QueueAudit, index: int) -> None:
        """A queue offset without a record in the log."""
        unit = queue.unit(index)
        if unit is not None and is_unit(unit[1]):
            queue.last = max(queue.last, index)
            if is_kept(unit[0], self._log_start) and not self._is_cut(queue, unit[0]):
                queue.held.append((EXTRA, index, f"its record at {unit[0]} is not there"))

    def _is_cut(self, queue: QueueAudit, physical_offset: int) -> bool:
        """True if the next start cuts a unit, since its record is of an earlier topic."""
        return self._is_open and 0 <= physical_offset < queue.begin

    def _compare(self, queue: QueueAudit, index: int, record: Scanned) -> None:
        unit = queue.unit(index)
        where = f"of offset {index}, for the record at {record.position}"
        if unit is None or not is_unit(unit[1]):
            queue.held.append((MISSING, index, where))
            return
        queue.last = max(queue.last, index)
        code = unit_code(record.topic, record.properties, record.store_timestamp, self._delays)
        expected = (record.position, record.size, code)
        if unit == expected:
            return
        for at, (kind, is_wrong) in enumerate(differences(expected, unit).items()):
            if is_wrong:
                queue.held.append((kind, index, f"{where}: {unit[at]}, expected {expected[at]}"))

    def finish(self) -> None:
        """The log is at its end: check the units of the files beyond that end."""
        for queue in self._table.values():
            self.units += queue.expected
            self._look_beyond(queue)
            for kind, index, detail in queue.held:
                if kind == MISSING and is_pending(index, queue.last, self._is_open):
                    self.pending += 1
                    continue
                path, at = queue.path(index)
                self._add(kind, path, at, detail)

    def close(self) -> None:
        """Close all files."""
        for queue in self._table.values():
            queue.files.close()

    def _look_beyond(self, queue: QueueAudit) -> None:
        index = max(queue.next, queue.files.start // UNIT)
        while (unit := queue.unit(index)) is not None:
            physical, size, _ = unit
            if size == 0 and physical == 0:
                return  # the end of the units
            if is_unit(size):
                queue.last = max(queue.last, index)
                if is_kept(physical, self._log_start) and not self._is_cut(queue, physical):
                    queue.held.append((EXTRA, index, f"no record at {physical} has offset {index}"))
            index += 1
