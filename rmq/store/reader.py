"""Reading a queue: what Java's getMessage answers, with neighbours in the log joined to ranges."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from attrs import define, field

from rmq.store.commitlog import CommitLog
from rmq.store.consumequeue import UNIT, ConsumeQueue

FOUND = "FOUND"
NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"

_UNIT = Struct(">qiq")
_SCAN_BYTES = 16_000  # Java looks at no more than this many bytes of units in one call

Matches = Callable[[int], bool]
MatchesRecord = Callable[[memoryview], bool]


@define
class GetResult:
    """`buffers` hold `count` whole records, `size` bytes, in queue order; one buffer may hold several.

    `next_queue_offset` is where to go on. `suggest_slave`: the reader is so far behind that a slave
    should serve it.
    """

    status: str
    next_queue_offset: int
    min_offset: int = 0
    max_offset: int = 0
    buffers: list[memoryview] = field(factory=list)
    count: int = 0
    size: int = 0
    suggest_slave: bool = False


@define
class Limits:
    """What one read may take; `memory` is how far behind the log's end a record counts as being in memory."""

    memory: int
    bytes_in_memory: int
    count_in_memory: int
    bytes_in_disk: int
    count_in_disk: int


def outside(queue: ConsumeQueue | None, offset: int, correct: bool) -> GetResult | None:
    """The answer for an offset that the queue does not hold, or None. `correct`: this broker may move
    readers.
    """
    if queue is None or queue.end == 0:
        return GetResult(NO_MESSAGE_IN_QUEUE, 0 if correct else offset)
    low, high = queue.start, queue.end
    if offset < low:
        return GetResult(OFFSET_TOO_SMALL, low if correct else offset, low, high)
    if offset == high:
        return GetResult(OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        return GetResult(OFFSET_OVERFLOW_BADLY, high if correct else offset, low, high)
    return None


class Gather:
    """Collects records, joining those that follow each other in one file of the log."""

    __slots__ = ("_end", "_file_size", "_log", "_start", "buffers", "count", "size")

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._file_size = log.file_size
        self._start = self._end = -1
        self.buffers: list[memoryview] = []
        self.count = 0
        self.size = 0

    def add(self, physical_offset: int, size: int) -> None:
        """Take one record, whose bytes were checked to be there."""
        if physical_offset != self._end or physical_offset % self._file_size == 0:
            self.close()
            self._start = physical_offset
        self._end = physical_offset + size
        self.count += 1
        self.size += size

    def close(self) -> None:
        """End the current range."""
        if self._start >= 0:
            view = self._log.read(self._start, self._end - self._start)
            assert view is not None
            self.buffers.append(view)
            self._start = -1


@define
class Wanted:
    """One read: at most `count` messages and `size` bytes; filters may be None."""

    offset: int
    count: int
    size: int
    matches: Matches | None = None
    matches_record: MatchesRecord | None = None


def read_queue(queue: ConsumeQueue, log: CommitLog, limits: Limits, wanted: Wanted) -> GetResult:
    """Read from an offset that the queue holds. Bounds and the next offset are Java's, unit by unit."""
    scan = max(_SCAN_BYTES, wanted.count * UNIT) // UNIT
    if wanted.matches is None and wanted.matches_record is None:
        # Nothing is skipped but what is gone, so more units than the limits allow need not be looked at.
        scan = min(scan, max(limits.count_in_memory, limits.count_in_disk) + 1)
    units = queue.units(wanted.offset, scan)
    if not units:
        return GetResult(OFFSET_FOUND_NULL, queue.next_file(wanted.offset), queue.start, queue.end)
    gather, status, looked, last = _scan(units, log, limits, wanted)
    gather.close()
    result = GetResult(status, wanted.offset + looked, queue.start, queue.end, gather.buffers)
    result.count, result.size = gather.count, gather.size
    result.suggest_slave = log.end - last > limits.memory
    return result


def _scan(
    units: bytes | bytearray | memoryview, log: CommitLog, limits: Limits, wanted: Wanted
) -> tuple[Gather, str, int, int]:
    """The records found, the status, how many units were looked at, and the physical offset of the last of
    them.
    """
    matches, matches_record = wanted.matches, wanted.matches_record
    log_start, log_end = log.start, log.end
    old = log_end - limits.memory  # records before it count as being on disk
    gather = Gather(log)
    status = NO_MATCHED_MESSAGE
    resume_at = -1  # after a gap in the log: the file to go on with
    physical = looked = 0
    for physical, size, code in _UNIT.iter_unpack(units):
        if physical < resume_at:
            looked += 1
            continue
        if gather.count and _is_full(gather, size, limits, wanted, physical < old):
            break
        looked += 1
        if matches is not None and not matches(code):
            if not gather.count:
                status = NO_MATCHED_MESSAGE
            continue
        if physical < log_start or physical + size > log_end or size <= 0:
            if not gather.count:
                status = MESSAGE_WAS_REMOVING
            resume_at = log.next_file(physical)
            continue
        if matches_record is not None and not _record_matches(log, physical, size, matches_record):
            if not gather.count:
                status = NO_MATCHED_MESSAGE
            continue
        gather.add(physical, size)
        status = "FOUND"
        resume_at = -1
    return gather, status, looked, physical


def _is_full(gather: Gather, size: int, limits: Limits, wanted: Wanted, in_disk: bool) -> bool:
    count, total = gather.count, gather.size + size
    if count >= wanted.count or total > wanted.size:
        return True
    if in_disk:
        return total > limits.bytes_in_disk or count >= limits.count_in_disk
    return total > limits.bytes_in_memory or count >= limits.count_in_memory


def _record_matches(log: CommitLog, physical: int, size: int, matches: MatchesRecord) -> bool:
    view = log.read(physical, size)
    return view is not None and matches(view)


def offset_by_time(queue: ConsumeQueue, log: CommitLog, timestamp_ms: int) -> int:
    """The offset whose record was stored nearest to that time, as Java searches for it; 0 for an empty
    queue.

    Java takes the first file whose last write is not before the time, or the last file; we take the
    store time of a file's last record for its last write. In it, of the two neighbours of the time the
    nearer one wins, the earlier on a draw.
    """
    chosen = None
    for low, stop in queue.file_ranges():
        chosen = (low, stop)
        unit = queue.unit(stop - 1)
        if unit is not None and log.store_timestamp(unit[0]) >= timestamp_ms:
            break
    return 0 if chosen is None else _search(queue, log, timestamp_ms, chosen)


def _search(queue: ConsumeQueue, log: CommitLog, timestamp_ms: int, bounds: tuple[int, int]) -> int:
    base = bounds[0] - bounds[0] % queue.units_per_file
    low, high = bounds[0], bounds[1] - 1
    left = right = -1
    left_ms = right_ms = -1
    while low <= high:
        # Java halves byte positions within the file.
        middle = base + (low - base + high - base) // 2
        unit = queue.unit(middle)
        if unit is None or unit[0] < log.start:
            low, left = middle + 1, middle
            continue
        stored = log.store_timestamp(unit[0])
        if stored < 0:
            return 0
        if stored == timestamp_ms:
            return middle
        if stored > timestamp_ms:
            high, right, right_ms = middle - 1, middle, stored
        else:
            low, left, left_ms = middle + 1, middle, stored
    if left_ms == -1:
        return max(right, 0)
    if right_ms == -1:
        return left
    return right if timestamp_ms - left_ms > right_ms - timestamp_ms else left
