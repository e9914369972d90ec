"""Reads of a queue, as Java's getMessage does them, with neighbours in the log joined to ranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from attrs import field

from rmq.store.files.commitlog import CommitLog
from rmq.store.files.consumequeue import UNIT_FORM, ConsumeQueue
from rmq.store.files.disk import Bytes

if TYPE_CHECKING:
    from types import ModuleType

    from attrs import define
else:
    from rmq.lazy_attrs import define

FOUND = "FOUND"
NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"

_STATUSES = (NO_MATCHED_MESSAGE, MESSAGE_WAS_REMOVING, FOUND)
SMALL_BYTES = 4_096  # records that are smaller are copied together
SCAN_UNITS = 800  # Java looks at no more than their bytes, 16,000, in one call

Matches = Callable[[int], bool]
MatchesRecord = Callable[[memoryview], bool]


@define
class GetResult:
    """`buffers` hold `count` whole records, `size` bytes, in queue order; one buffer may hold several.

    `next_queue_offset` is where to go on. `suggests_slave`: the reader is so far behind that a slave
    should serve it.
    """

    status: str
    next_queue_offset: int
    min_offset: int = 0
    max_offset: int = 0
    buffers: Sequence[Bytes] = field(factory=list)
    count: int = 0
    size: int = 0
    suggests_slave: bool = False
    is_cut: bool = False
    """There are messages behind those that might be read."""


@define
class Limits:
    """The limits of a read. A record within `memory` bytes of the log's end counts as being in memory."""

    memory: int
    bytes_in_memory: int
    count_in_memory: int
    bytes_in_disk: int
    count_in_disk: int


def outside(queue: ConsumeQueue | None, offset: int, correct: bool) -> GetResult:
    """The result for an offset outside the queue. `correct`: this broker may give the reader another offset,
    which a slave may only with offsetCheckInSlave."""
    # NO_MATCHED_LOGIC_QUEUE never comes: Java makes a queue when it looks for one, so that it is empty.
    if queue is None or queue.end == 0:
        return GetResult(NO_MESSAGE_IN_QUEUE, 0 if correct else offset)
    low, high = queue.start, queue.end
    if offset < low:
        return GetResult(OFFSET_TOO_SMALL, low if correct else offset, low, high)
    if offset == high:
        return GetResult(OFFSET_OVERFLOW_ONE, offset, low, high)
    return GetResult(OFFSET_OVERFLOW_BADLY, high if correct else offset, low, high)


@define
class QueueRead:
    """One read: at most `count` messages and `size` bytes; filters may be None. A filter of records is asked
    about `looks` units at most.
    """

    offset: int
    count: int
    size: int
    matches: Matches | None = None
    matches_record: MatchesRecord | None = None
    looks: int = SCAN_UNITS
    stop: int = 1 << 62
    """The queue offset at which to stop, whatever the queue holds."""


def readable_end(queue: ConsumeQueue, reach: int) -> int:
    """The queue offset behind the last message that ends before the physical offset `reach`."""
    low, high = queue.start, queue.end
    # Mostly all of it or all but the last few: look at the end first, in steps that double.
    step = 1
    while low < high:
        at = max(low, high - step)
        unit = queue.unit(at)
        if unit is None or unit[0] + unit[1] <= reach:
            low = at + 1
            break
        high, step = at, 2 * step
    while low < high:
        at = (low + high) // 2
        unit = queue.unit(at)
        if unit is None or unit[0] + unit[1] <= reach:
            low = at + 1
        else:
            high = at
    return high


def read_queue(
    queue: ConsumeQueue, log: CommitLog, limits: Limits, read: QueueRead, compiled: ModuleType | None = None
) -> GetResult:
    """Read from an offset that the queue holds. Bounds and the next offset are Java's, unit by unit.
    `compiled` is the engine that does it, if not this module.
    """
    scan = max(SCAN_UNITS, read.count)
    if read.matches is None and read.matches_record is None:
        # Nothing is skipped but what is gone, so more units than the limits allow need not be looked at.
        scan = min(scan, max(limits.count_in_memory, limits.count_in_disk) + 1)
    elif read.matches_record is not None:
        scan = min(scan, read.looks)
    end = min(queue.end, read.stop)
    units = queue.units(read.offset, min(scan, end - read.offset))
    result = GetResult(NO_MATCHED_MESSAGE, read.offset, queue.start, end, is_cut=end < queue.end)
    if not units:
        result.status, result.next_queue_offset = OFFSET_FOUND_NULL, queue.next_file(read.offset)
        return result
    count, size, matches, matches_record = read.count, read.size, read.matches, read.matches_record
    log_end = log.end
    old = log_end - limits.memory  # records before it count as being on disk
    most = min(count, limits.count_in_memory), min(size, limits.bytes_in_memory)
    most_old = min(count, limits.count_in_disk), min(size, limits.bytes_in_disk)
    buffers: Sequence[Bytes] | None = None
    if compiled is not None and matches_record is None:
        found = compiled.read(
            units, log.start, log_end, old, most, most_old, matches, log.file_view, SMALL_BYTES
        )
        status, result.count, result.size, looked, last, buffers = found
    if buffers is None:
        test = None if matches_record is None else _of_log(log, matches_record)
        chosen = choose(units, log.start, log_end, old, most, most_old, matches, test)
        buffers = log.read_ranges(chosen[5])
        if sum(map(len, buffers)) != chosen[2]:  # a damaged unit: no record lies in two files
            chosen = choose(units, log.start, log_end, old, most, most_old, matches, log.is_in_one_file)
            buffers = log.read_ranges(chosen[5])
        status, result.count, result.size, looked, last, _ = chosen
    result.status = _STATUSES[status]
    result.next_queue_offset += looked
    result.suggests_slave = log_end - last > limits.memory
    result.buffers = buffers
    return result


Chosen = tuple[int, int, int, int, int, list[tuple[int, int]]]


def choose(
    units: Bytes,
    log_start: int,
    log_end: int,
    old: int,
    most: tuple[int, int],
    most_old: tuple[int, int],
    matches: Matches | None,
    matches_record: Callable[[int, int], bool] | None = None,
) -> Chosen:
    """Go through units. Return the place in _STATUSES, the numbers of messages and bytes taken, the number of
    units visited, the place of the last unit's record, and the ranges of the log that hold the records.
    `most` and `most_old` are limits on messages and bytes, the latter for records before `old`.

    Records that follow each other in a file make a single range. The function is a single long loop because
    it runs for each message of each reader.
    """
    status = 0
    ranges: list[tuple[int, int]] = []
    start = stop = -1
    count = total = looked = physical = 0
    for physical, size, code in UNIT_FORM.iter_unpack(units):
        if count:
            most_count, most_bytes = most if physical >= old else most_old
            if count >= most_count or total + size > most_bytes:
                break
        looked += 1
        if matches is not None and not matches(code):
            status = status if count else 0
            continue
        if physical < log_start or physical + size > log_end or size <= 0:
            status = status if count else 1
            continue
        if matches_record is not None and not matches_record(physical, size):
            status = status if count else 0
            continue
        if physical != stop:  # a file's first record never follows: a blank is between
            if count:
                ranges.append((start, stop))
            start = physical
        stop = physical + size
        count += 1
        total += size
        status = 2
    if count:
        ranges.append((start, stop))
    return status, count, total, looked, physical, ranges


def _of_log(log: CommitLog, matches: MatchesRecord) -> Callable[[int, int], bool]:
    """A test of a record as a test of its place."""
    return lambda physical, size: _record_matches(log, physical, size, matches)


def _record_matches(log: CommitLog, physical: int, size: int, matches: MatchesRecord) -> bool:
    view = log.read(physical, size)
    return view is not None and matches(view)


def offset_by_time(queue: ConsumeQueue, log: CommitLog, timestamp_ms: int) -> int:
    """The offset whose record was stored nearest to that time, as Java searches for it; 0 for an empty queue.

    Java takes the first file whose last write is not before the time, or the last file; this function uses
    the store time of a file's last record as its last write. Within the file the nearer neighbour of the time
    wins, the earlier on a draw.
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
