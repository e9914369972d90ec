"""Repair of a store's folder: only on request, and never while a broker has the store open.

The log keeps its addresses: a skipped range is overwritten with marked records, so that scans, ours and
RocketMQ's, pass the range. A skipped message whose place in its queue is known stays in its queue with a body
of zeros and the property DAMAGED, so that offsets stay dense; any other bytes become records without a queue.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attrs import frozen

from rmq.errors import StoreError
from rmq.protocol.record import Record, encode_record
from rmq.store.audit.audit import Gap, Report, log_runs
from rmq.store.config import StoreConfig
from rmq.store.files.abort import mark_of, synced_in
from rmq.store.files.checkpoint import Checkpoint
from rmq.store.files.commitlog import blank
from rmq.store.files.consumequeue import FILLER_SIZE, UNIT, UNIT_FORM, queue_folder, queues_in
from rmq.store.files.disk import Disk
from rmq.store.files.queues import Queues
from rmq.store.files.scan import BLANK_SIZE, parse
from rmq.store.files.segments import Segments
from rmq.store.store import Store

SKIPPED_TOPIC = "RMQ_SYS_SKIPPED"
_ROLLBACK = 12
_HOST = bytes(8)
_FIXED = 91


@frozen
class Lost:
    """Bytes of the log that a repair gave up."""

    path: str
    start: int
    stop: int
    reason: str
    what: str
    data: bytes


Save = Callable[[list[Lost]], object]


def _keep_nothing(lost: list[Lost]) -> None:
    """Default `save`, for callers that use the return value."""


@contextmanager
def locked(disk: Disk, folder: str) -> Iterator[None]:
    """Lock the folder for the time of a repair. Raises StoreLocked when a broker has it open."""
    lock = disk.lock(os.path.join(folder, "lock"))
    try:
        yield
    finally:
        lock.release()


def cut_tail(disk: Disk, folder: str, report: Report, save: Save = _keep_nothing) -> list[Lost]:
    """Cut the bytes behind the log's last good record; `save` gets them before. Lower the ends in queues,
    checkpoint and abort too: otherwise a log that has lost its end would not open. Raises StoreError."""
    lost = []
    with locked(disk, folder):
        for run in log_runs(disk, Report(folder, report.commit_log))[-1:]:
            for gap in sorted(report.gaps, key=lambda gap: -gap.start):
                if gap.is_tail:
                    lost.append(_taken(run, gap.start, gap.stop, gap.reason, "torn tail"))
                    save(lost)
                    run.truncate(gap.start)
                    run.sync(gap.start, min(gap.start + 1, run.stop))
            run.close()
        _accept_end(disk, folder, report)
    return lost


def _accept_end(disk: Disk, folder: str, report: Report) -> None:
    """Remove all evidence beside the log that it reached further."""
    tails = [gap.start for gap in report.gaps if gap.is_tail]
    end = max(min([report.log_end, *tails]), report.log_start)
    table = Queues(disk, folder, report.queue_file_size or 6_000_000, lambda: 0)
    table.find_folders()
    for queue in table.table.values():
        queue.load(lambda index, unit: unit[1] <= 0)
        if queue.truncate(end):
            queue.sync_end()
    table.close()
    abort, path = os.path.join(folder, "abort"), os.path.join(folder, "checkpoint")
    if (data := disk.load(abort)) and synced_in(data) > end:
        disk.replace(abort, mark_of(end))
    if disk.exists(path):
        checkpoint = Checkpoint(disk, path)
        if checkpoint.has_places:
            checkpoint.lower(report.latest_ms, end)
        elif checkpoint.log_ms > report.latest_ms:
            checkpoint.log_ms = report.latest_ms
            checkpoint.queues_ms = min(checkpoint.queues_ms, report.latest_ms)
            checkpoint.index_ms = min(checkpoint.index_ms, report.latest_ms)
            checkpoint.flush()
        checkpoint.close()


def accept_start(disk: Disk, folder: str, report: Report) -> None:
    """Move the log's start in the checkpoint to its first file. Raises StoreError."""
    path = os.path.join(folder, "checkpoint")
    with locked(disk, folder):
        if disk.exists(path):
            checkpoint = Checkpoint(disk, path)
            if checkpoint.log_from is not None:
                checkpoint.log_from = report.log_start
                checkpoint.flush()
            checkpoint.close()


def skip_damaged(disk: Disk, folder: str, report: Report, save: Save = _keep_nothing) -> list[Lost]:
    """Overwrite each damaged range that good records follow; `save` gets the former bytes before. Raises
    StoreError, with nothing changed, when a range is too small."""
    with locked(disk, folder):
        plans = [
            (run, gap, plan)
            for run in log_runs(disk, Report(folder, report.commit_log))
            for gap in report.gaps
            if not gap.is_tail and run.start <= gap.start < run.stop
            for plan in [list(_plan(disk, folder, run, gap))]
        ]
        lost = [
            _taken(run, start, start + int.from_bytes(data[:4], "big"), gap.reason, what)
            for run, gap, plan in plans
            for start, data, what in plan
        ]
        save(lost)
        for run, gap, plan in plans:
            for start, data, _ in plan:
                run.write(start, data)
            run.sync(gap.start, gap.stop)
            run.close()
        return lost


def _taken(run: Segments, start: int, stop: int, reason: str, what: str) -> Lost:
    pieces = []
    at = start
    while at < min(stop, run.stop):
        end = min(at - at % run.file_size + run.file_size, stop)
        pieces.append(bytes(run.read(at, end - at) or b""))
        at = end
    return Lost(run.path(start), start, stop, reason, what, b"".join(pieces))


def _plan(disk: Disk, folder: str, run: Segments, gap: Gap) -> Iterator[tuple[int, bytes, str]]:
    """Records to write over a gap: (place, record, the former content)."""
    if gap.start // run.file_size != (gap.stop - 1) // run.file_size:
        raise StoreError(
            f"{run.path(gap.start)}: damage from {gap.start} to {gap.stop} crosses files: restore them from "
            "a backup or a replica"
        )
    at = gap.start
    for start, size, place in [*_places(disk, folder, run, gap), (gap.stop, 0, None)]:
        if start < at or start + size > gap.stop:
            continue
        if start > at:
            yield at, _filler(run, at, start - at), "not known"
        if place is not None:
            topic, queue_id, queue_offset = place
            yield (
                start,
                _record(start, size, topic, queue_id, queue_offset),
                f"{topic}/{queue_id}/{queue_offset}",
            )
        at = start + size


def _places(
    disk: Disk, folder: str, run: Segments, gap: Gap
) -> list[tuple[int, int, tuple[str, int, int] | None]]:
    """The messages of a gap, as far as their heads or queue units show."""
    found: dict[int, tuple[int, int, tuple[str, int, int] | None]] = {}
    base = gap.start - gap.start % run.file_size
    view = run.read(base, run.file_size)
    whole = None if view is None else parse(view, gap.start - base, gap.start, check_crc=False)
    if whole is not None and whole.position + whole.size <= gap.stop:
        place = (whole.topic.decode("utf-8", "replace"), whole.queue_id, whole.queue_offset)
        found[gap.start] = (gap.start, whole.size, place)
    for topic, queue_id, index, physical, size in _units(disk, folder):
        if gap.start <= physical < gap.stop and size != FILLER_SIZE:
            found[physical] = (physical, size, (topic, queue_id, index))
    return [found[start] for start in sorted(found)]


def _units(disk: Disk, folder: str) -> Iterator[tuple[str, int, int, int, int]]:
    for topic, queue_id in queues_in(disk, folder):
        place = queue_folder(folder, topic, queue_id)
        for name in disk.list(place):
            if not (name.isascii() and name.isdecimal()):
                continue
            data = disk.load(os.path.join(place, name)) or b""
            units = UNIT_FORM.iter_unpack(data[: len(data) - len(data) % UNIT])
            for number, (physical, size, _) in enumerate(units, int(name) // UNIT):
                if size > 0:
                    yield topic, queue_id, number, physical, size


def _filler(run: Segments, at: int, size: int) -> bytes:
    """A record without a queue; a BLANK when the file ends behind it."""
    if at + size == at - at % run.file_size + run.file_size and size >= BLANK_SIZE:
        return blank(size)
    return _record(at, size, SKIPPED_TOPIC, 0, 0, sys_flag=_ROLLBACK)


def _record(at: int, size: int, topic: str, queue_id: int, queue_offset: int, *, sys_flag: int = 0) -> bytes:
    properties = "" if sys_flag else "DAMAGED\x01true"
    room = size - _FIXED - len(topic.encode()) - len(properties)
    if room < 0:
        properties, room = "", room + len(properties)
    if room < 0:
        raise StoreError(f"damage at {at}: {size} bytes are too few for a record, so it cannot be skipped")
    record = Record(topic, queue_id, bytes(room), properties, sys_flag=sys_flag, born_host=_HOST)
    record.queue_offset, record.physical_offset = queue_offset, at
    return encode_record(record, _HOST)


def rebuild(
    disk: Disk,
    folder: str,
    report: Report,
    *,
    queues: bool,
    index: bool,
    now_ms: Callable[[], int],
    progress: Callable[[str, int, int], None],
) -> None:
    """Make queues or index again from the log, which must have no damage. Raises StoreError."""
    with locked(disk, folder):
        for name in (["consumequeue"] if queues else []) + (["index"] if index else []):
            disk.remove(os.path.join(folder, name))
    store = Store(disk, _config(folder, report), store_host=_HOST, now_ms=now_ms)
    store.load(progress)
    try:
        while store.dispatch(2000):
            progress(
                "index", store.max_physical_offset - store.dispatch_behind_bytes, store.max_physical_offset
            )
    finally:
        store.close()


def _config(folder: str, report: Report) -> StoreConfig:
    """The sizes that the files have."""
    sizes: dict[str, int] = {"mapped_file_size_commit_log": report.file_size}
    if report.queue_file_size:
        sizes["mapped_file_size_consume_queue"] = report.queue_file_size
    if report.index_slots and report.index_file_size:
        sizes["max_hash_slot_num"] = report.index_slots
        sizes["max_index_num"] = (report.index_file_size - 40 - 4 * report.index_slots) // 20
    paths = {"store_path_root_dir": folder, "store_path_commit_log": report.commit_log}
    return StoreConfig(**paths, **sizes)  # type: ignore[arg-type]
