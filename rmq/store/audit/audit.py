"""Audit of a store's folder without a broker, ours or RocketMQ's: its damage and its content.

The audit changes nothing (`rmq.store.audit.repair` does), and needs no settings: sizes of files are taken
from the files. A single pass over the log compares every record with its queue unit and its index entries,
so that memory grows with the number of queues, not of messages.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator

from attrs import define, field, frozen

from rmq.errors import RmqError, StoreError
from rmq.printable import counted
from rmq.protocol import json
from rmq.protocol.properties import has_unit
from rmq.protocol.record import FIXED_SIZE, MESSAGE_MAGIC, decode_record, part
from rmq.store.audit.index import IndexAudit
from rmq.store.audit.queue import QueueAudits
from rmq.store.audit.rules import DAMAGE, ENDS_EARLY, NO_FILE, OPEN_NOTE, RECORD_TEXT, STARTS_LATE, TORN
from rmq.store.config import DELAY_LEVELS, delay_table
from rmq.store.evidence import Evidence, broken_text, find_evidence, missing_start
from rmq.store.files.abort import synced_in
from rmq.store.files.checkpoint import SIZE as CHECKPOINT_SIZE
from rmq.store.files.checkpoint import Checkpoint
from rmq.store.files.disk import Disk
from rmq.store.files.known_topics import KnownTopics, read_topics
from rmq.store.files.scan import Scan, Scanned, Vouch, next_good, no_evidence, parse
from rmq.store.files.segments import OpenFiles, Segments

Progress = Callable[[str, int, int], None]

_NAME = re.compile(r"[0-9]{20}")
_REPORT_EVERY = 2000
_KEPT = 1000  # findings of a kind that are kept; more are counted

__all__ = ["Finding", "Gap", "Report", "check", "dump", "known_topics", "log_runs"]


@frozen
class Finding:
    """A fault. `kind` is a keyword; `offset` is a place in the file (or in the log, for the log's files)."""

    kind: str
    path: str
    offset: int
    detail: str


@frozen
class Gap:
    """A part of the log without good records; `is_tail`: no good record follows, so that the part can be
    cut."""

    start: int
    stop: int
    reason: str
    is_tail: bool


@define
class Report:
    """Result of `check`. `counts`: findings by kind; `findings` has the first thousand of each kind."""

    folder: str
    commit_log: str = ""  # the log's own folder, where it is not commitlog/ below `folder`
    records: int = 0
    log_bytes: int = 0
    queues: int = 0
    units: int = 0
    index_files: int = 0
    index_slots: int = 0
    index_file_size: int = 0
    queue_file_size: int = 0
    index_entries: int = 0
    log_start: int = 0
    log_end: int = 0
    latest_ms: int = 0
    clean_stop: bool = True
    file_size: int = 0
    notes: list[str] = field(factory=list)
    findings: list[Finding] = field(factory=list)
    gaps: list[Gap] = field(factory=list)
    counts: Counter[str] = field(factory=Counter)

    def add(self, kind: str, path: str, offset: int, detail: str) -> None:
        """Take a finding."""
        self.counts[kind] += 1
        if self.counts[kind] <= _KEPT:
            self.findings.append(Finding(kind, path, offset, detail))

    @property
    def log_folder(self) -> str:
        """The folder of the log's files."""
        return self.commit_log or os.path.join(self.folder, "commitlog")

    @property
    def is_clean(self) -> bool:
        """True if nothing was found."""
        return not self.counts


def check(
    disk: Disk,
    folder: str,
    *,
    commit_log: str = "",
    delays: dict[int, int] | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> Report:
    """Check everything in a store's folder. `delays` is the table of `messageDelayLevel`; `commit_log` the
    folder of the log (storePathCommitLog), if outside the store's folder.

    Raises StoreError without a store, and when a file cannot be read.
    """
    report = Report(folder, commit_log, clean_stop=not disk.exists(os.path.join(folder, "abort")))
    if not report.clean_stop:
        report.notes.append(OPEN_NOTE)
    evidence = _evidence(disk, folder, clean=report.clean_stop)  # before the log, which may grow
    runs = log_runs(disk, report)
    queues = QueueAudits(disk, folder, delays or delay_table(DELAY_LEVELS), report.add)
    topics = known_topics(disk, folder)
    queues.load(runs[0].start if runs else 0, topics, is_open=not report.clean_stop)
    index = IndexAudit(disk, os.path.join(folder, "index"), report.add)
    index.load(runs[0].start if runs else 0, lambda offset: _record_at(runs, offset))
    report.index_slots, report.index_file_size = index.slots, index.file_size
    report.queue_file_size = queues.file_size
    try:
        last = _check_log(runs, report, queues, index, progress)
        _check_reach(runs, report, evidence)
        _check_start(disk, runs, report)
        queues.finish()
        index.finish()
    finally:
        queues.close()
        for run in runs:
            run.close()
    report.queues, report.units = len(queues), queues.units
    report.index_files, report.index_entries = index.file_count, index.entry_count
    report.notes += index.notes
    if queues.pending:
        report.notes.append(f"{counted(queues.pending, 'unit')} at the ends of queues not written yet")
    _check_checkpoint(disk, folder, report, last)
    _check_config(disk, folder, report)
    return report


# ---- the log ----


def log_runs(disk: Disk, report: Report) -> list[Segments]:
    """The log's files as runs without a hole, each of files of the usual size. StoreError without any."""
    place = report.log_folder
    sizes = {int(name): disk.size(os.path.join(place, name)) for name in _named(disk, place)}
    if not sizes:
        raise StoreError(
            f"{report.folder}: no store is here: {place} has no files (--commitlog names another place)"
        )
    usual = report.file_size = Counter(sizes.values()).most_common(1)[0][0]
    runs: list[Segments] = []
    after = min(sizes)
    for base, size in sorted(sizes.items()):
        path = os.path.join(place, f"{base:020d}")
        if size != usual and not (size == 0 and base == max(sizes)):
            report.add("log file size", path, base, f"{size} bytes, the others have {usual}: it is not read")
            continue
        if size == 0:
            report.notes.append(f"{path} is empty: it was made just before a crash")
            continue
        if not runs or base != runs[-1].stop:
            if base != after:
                report.add(NO_FILE, path, after, f"files from {after} to {base} are not there")
            runs.append(Segments(disk, place, usual, limit=OpenFiles(16), mapped=True, ordered=True))
        runs[-1].bases.append(base)
        after = base + usual
    return runs


def _named(disk: Disk, folder: str) -> list[str]:
    return [name for name in disk.list(folder) if _NAME.fullmatch(name)]


def known_topics(disk: Disk, folder: str) -> KnownTopics:
    """The topics of a store's folder, and the physical offsets from which records belong to them."""
    return read_topics(lambda: disk.load(os.path.join(folder, "config", "topics.json")))


def _record_at(runs: list[Segments], offset: int) -> Scanned | None:
    for run in runs:
        if run.start <= offset < run.stop:
            base = offset - offset % run.file_size
            view = run.read(base, run.file_size)
            return None if view is None else parse(view, offset - base, offset, check_crc=True)
    return None


def _check_log(
    runs: list[Segments], report: Report, queues: QueueAudits, index: IndexAudit, progress: Progress
) -> int:
    """Pass over the log; return the latest store time."""
    report.log_start = runs[0].start if runs else 0
    total = sum(run.stop - run.start for run in runs)
    last = done = foreign = 0
    broken: Gap | None = None  # the last record, when it has lost its last bytes
    for number, run in enumerate(runs):
        for record in _records(run, report, final=number == len(runs) - 1, vouch=queues.vouch):
            report.records += 1
            before, broken = last, None
            last = max(last, record.store_timestamp)  # the clock may have been set back
            report.log_end = record.position + record.size
            if not _is_text(record.topic):
                detail = "the topic is not UTF-8; no CRC covers it"
                report.add(RECORD_TEXT, run.path(record.position), record.position, detail)
            foreign += not _is_text(record.properties)
            if 0 in record.properties and (why := broken_text(record.properties)):
                report.add(RECORD_TEXT, run.path(record.position), record.position, why)
                if not record.properties[-1]:
                    broken, report.latest_ms = Gap(record.position, report.log_end, why, is_tail=True), before
            if has_unit(record.sys_flag):
                queues.expect(record)
            index.expect(record)
            if report.records % _REPORT_EVERY == 0:
                progress("log", done + record.position - run.start, total)
        done += run.stop - run.start
    progress("log", total, total)
    if broken is not None:
        report.gaps.append(broken)
    else:
        report.latest_ms = last
    if foreign:
        report.notes.append(
            f"records with properties that are not UTF-8: {foreign}; batches are kept as sent"
        )
    report.log_bytes = report.log_end - report.log_start
    return last


def _records(run: Segments, report: Report, *, final: bool, vouch: Vouch = no_evidence) -> Iterator[Scanned]:
    """The good records of a run; gaps between the records go into the report."""
    position = run.start
    while position < run.stop:
        scan = Scan(run, position)
        yield from scan
        position = scan.position
        if position >= run.stop:
            return
        following = next_good(run, position, vouch)
        if following is None:
            _note_tail(run, position, report, final=final)
            return
        reason = _why(run, position)
        report.gaps.append(Gap(position, following.position, reason, is_tail=False))
        skipped = following.position - position
        report.add(
            DAMAGE,
            run.path(position),
            position,
            f"{reason}; {counted(skipped, 'byte')} until the next record",
        )
        position = following.position


def _evidence(disk: Disk, folder: str, *, clean: bool) -> Evidence:
    """Compare abort and checkpoint with the log's end. Queues are compared unit by unit."""
    path = os.path.join(folder, "checkpoint")
    if not disk.exists(path) or disk.size(path) != CHECKPOINT_SIZE:
        return Evidence()
    checkpoint = Checkpoint(disk, path)
    checkpoint.close()
    abort = disk.load(os.path.join(folder, "abort"))
    return find_evidence(checkpoint, 0 if abort is None else synced_in(abort), (), clean=clean, now_ms=0)


def _check_reach(runs: list[Segments], report: Report, evidence: Evidence) -> None:
    """Compare the log's end with the files beside the log."""
    if runs and (why := evidence.missing(runs[-1], max(report.log_end, runs[-1].start))):
        report.add(ENDS_EARLY, runs[-1].path(report.log_end), report.log_end, why)


def _check_start(disk: Disk, runs: list[Segments], report: Report) -> None:
    """Compare the log's start with the checkpoint. The checkpoint is read last, because retention lowers it
    before it removes a file."""
    path = os.path.join(report.folder, "checkpoint")
    if not runs or not disk.exists(path) or disk.size(path) != CHECKPOINT_SIZE:
        return
    checkpoint = Checkpoint(disk, path)
    checkpoint.close()
    if why := missing_start(checkpoint, runs[0]):
        report.add(STARTS_LATE, runs[0].path(runs[0].start), runs[0].start, why)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _note_tail(run: Segments, position: int, report: Report, *, final: bool) -> None:
    """Report the rest after the last good record: the log's end, when the rest is zeros."""
    used = _last_used(run, position)
    if used > position:
        reason = _why(run, position)
        report.gaps.append(Gap(position, used, reason, is_tail=final))
        if final and not report.clean_stop:
            report.notes.append(f"{counted(used - position, 'byte')} after the last whole record")
            return
        kind = TORN if final else DAMAGE
        report.add(
            kind,
            run.path(position),
            position,
            f"{reason}; no record after it, {counted(used - position, 'byte')}",
        )
    elif not final:
        report.add(DAMAGE, run.path(position), position, "the log ends here, but more files follow")


def _last_used(run: Segments, position: int) -> int:
    """After the last byte that is not zero, at or after `position`."""
    used = position
    address = position
    while address < run.stop:
        base = address - address % run.file_size
        for at, piece in run.pieces(address):
            stripped = piece.rstrip(b"\0")
            if stripped:
                used = base + at + len(stripped)
        address = base + run.file_size
    return used


_HEAD = part("size", "magic", "physical_offset")


def _why(run: Segments, position: int) -> str:
    """Why no good record starts at `position`."""
    base = position - position % run.file_size
    view = run.read(base, run.file_size)
    assert view is not None
    at = position - base
    head = bytes(view[at : at + _HEAD.size])
    if len(head) < _HEAD.size:
        return "no room for a record and no BLANK that closes the file"
    size, magic, physical_offset = _HEAD.unpack(head)
    if magic != MESSAGE_MAGIC:
        return f"magic {magic:08x} is none of a record" + (" (zeros)" if not any(head) else "")
    if not FIXED_SIZE <= size <= run.file_size - at:
        return f"size {size} is not possible here"
    if physical_offset != position:
        return "the record's physical offset is not its place"
    if parse(view, at, position, check_crc=False) is None:
        return "lengths inside the record do not fit, or its topic, queue id or queue offset cannot be"
    return "the CRC of the body is wrong"


# ---- checkpoint and config ----


def _check_checkpoint(disk: Disk, folder: str, report: Report, last_ms: int) -> None:
    path = os.path.join(folder, "checkpoint")
    data = disk.load(path)
    if data is None:
        report.notes.append("no checkpoint: the next start after a crash reads the whole log")
        return
    if len(data) != CHECKPOINT_SIZE:
        report.add("checkpoint", path, 0, f"{counted(len(data), 'byte')}, expected {CHECKPOINT_SIZE}")
    for at, name in ((0, "log"), (8, "queues"), (16, "index")):
        time_ms = int.from_bytes(data[at : at + 8], "big", signed=True)
        if not 0 <= time_ms <= last_ms:
            detail = (
                f"the time of the {name}, {time_ms}, lies outside the log, whose latest record is of "
                f"{last_ms}"
            )
            report.add("checkpoint", path, at, detail)


def _check_config(disk: Disk, folder: str, report: Report) -> None:
    place = os.path.join(folder, "config")
    for name in disk.list(place):
        if name.endswith((".json", ".json.bak")):
            path = os.path.join(place, name)
            try:
                json.loads(disk.load(path) or b"")
            except (RmqError, ValueError) as error:
                report.add("config", path, 0, f"not JSON: {error}")


# ---- dump ----


def dump(
    disk: Disk,
    folder: str,
    *,
    commit_log: str = "",
    topic: str | None = None,
    start: int = 0,
    limit: int | None = None,
) -> Iterator[dict[str, object]]:
    """The good records from physical offset `start` on, as plain values; bodies as text, or else in hex.
    Raises StoreError without a store."""
    given = 0
    for run in log_runs(disk, Report(folder, commit_log)):
        if run.stop <= start:
            continue
        run.bases = [base for base in run.bases if base + run.file_size > start]
        try:
            for record in _records(run, Report(folder), final=True):
                if limit is not None and given >= limit:
                    return
                if record.position >= start and (topic is None or record.topic == topic.encode()):
                    given += 1
                    yield _row(run, record)
        finally:
            run.close()


def _row(run: Segments, record: Scanned) -> dict[str, object]:
    view = run.read(record.position, record.size)
    assert view is not None
    message = decode_record(view, decompressed=False)
    body = bytes(message.body)
    row: dict[str, object] = {
        "physicalOffset": record.position,
        "size": record.size,
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_timestamp,
        "bornHost": message.born_host,
        "storeTimestamp": message.store_timestamp,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyCrc": zlib.crc32(body) & 0x7FFFFFFF,
        "properties": message.properties,
    }
    try:
        row["body"] = body.decode()
    except UnicodeDecodeError:
        row["bodyHex"] = body.hex()
    return row
