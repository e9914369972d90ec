"""A log whose first files are gone, though retention did not remove them, is refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rmq.cli import command
from rmq.errors import CorruptRecord, StoreError
from rmq.store.audit.audit import check
from rmq.store.audit.repair import accept_start
from rmq.store.audit.rules import STARTS_LATE
from rmq.store.files.checkpoint import Checkpoint
from rmq.store.files.consumequeue import ConsumeQueue
from rmq.store.files.disk import RealDisk
from rmq.store.files.scan import Scanned
from rmq.store.recovery import Recoverer
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

from .stores import ROOT, START_MS, Clock, bodies, fill, make_store, open_store, record, send

DAY = 86_400_000
FIRST = f"{ROOT}/commitlog/{0:020d}"


def stopped(*, how: str = "clean", count: int = 120) -> MemoryDisk:
    """A store of several log files, stopped in order, or killed after a checkpoint."""
    disk = MemoryDisk()
    store = open_store(disk)
    fill(store, count)
    store.flush()
    if how == "clean":
        store.close()
    else:
        store.dispatch()
        store.flush_queues()
        store.flush_checkpoint()
        store.abandon()
    return disk


@pytest.mark.parametrize("how", ["clean", "killed"])
def test_a_log_whose_first_file_is_gone_is_refused_until_that_is_accepted(how: str) -> None:
    disk = stopped(how=how)
    disk.remove(FIRST)
    for _ in range(2):
        with pytest.raises(CorruptRecord, match=r"began at 0 at most.*--accept-start.*truncateDamagedLog"):
            open_store(disk)
    report = check(disk, ROOT)
    assert report.counts[STARTS_LATE] == 1
    assert [one.offset for one in report.findings if one.kind == STARTS_LATE] == [4096]
    accept_start(disk, ROOT, report)
    store = open_store(disk)
    assert store.min_physical_offset == 4096
    store.close()
    assert STARTS_LATE not in check(disk, ROOT).counts


def test_the_command_accepts_the_start(tmp_path: Path) -> None:
    store = open_store(RealDisk(), root=str(tmp_path))
    fill(store, 120)
    store.close()
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    said = CliRunner().invoke(command, ["store", "check", str(tmp_path)])
    assert (said.exit_code, "log starts late" in said.output) == (1, True)
    CliRunner().invoke(command, ["store", "repair", str(tmp_path), "--accept-start"])
    assert "log starts late" not in CliRunner().invoke(command, ["store", "check", str(tmp_path)]).output
    open_store(RealDisk(), root=str(tmp_path)).close()


def test_it_opens_once_where_damage_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    disk = stopped()
    disk.remove(FIRST)
    open_store(disk, truncate_damaged_log=True).close()
    assert "the log is accepted without its first files" in caplog.text
    open_store(disk).close()


def test_a_first_file_that_comes_back_from_a_backup_is_no_damage() -> None:
    disk = stopped()
    folder = f"{ROOT}/commitlog"
    kept = {name: disk.load(f"{folder}/{name}") or b"" for name in disk.list(folder)}
    expired(disk).close()
    assert not disk.exists(FIRST)
    for name, data in kept.items():
        if not disk.exists(f"{folder}/{name}"):
            disk.replace(f"{folder}/{name}", data)
    again = open_store(disk)
    assert again.min_physical_offset == 0
    again.close()


def expired(disk: MemoryDisk) -> Store:
    """The store after retention has removed its oldest files."""
    store = open_store(disk, Clock(START_MS))
    store.clean(START_MS + 4 * DAY, asked=True)
    assert store.min_physical_offset > 0
    return store


def test_retention_says_where_the_log_begins_before_it_removes_a_file() -> None:
    disk = stopped()
    store = open_store(disk)
    seen: list[tuple[int | None, int]] = []
    remove = disk.remove

    def noting(path: str, **given: Any) -> None:
        if "/commitlog/" in path:
            image = disk.image(1)  # a power cut just before
            checkpoint = Checkpoint(image, f"{ROOT}/checkpoint")
            seen.append((checkpoint.log_from, int(path[-20:])))
            open_store(image).abandon()
        remove(path, **given)

    disk.remove = noting  # type: ignore[method-assign]
    store.clean(START_MS + 4 * DAY, asked=True)
    disk.remove = remove  # type: ignore[method-assign]
    assert seen
    assert all(start is not None and start > base for start, base in seen)
    left = disk.copy()  # killed just after
    assert open_store(left).min_physical_offset == store.min_physical_offset
    assert STARTS_LATE not in check(left, ROOT).counts
    store.close()
    open_store(disk).close()


def test_no_file_of_the_log_is_removed_when_its_start_cannot_be_written_down() -> None:
    disk = stopped()
    store = open_store(disk)

    def fail() -> None:
        raise StoreError("the disk is full")

    store.flush_checkpoint = fail  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        store.clean(START_MS + 4 * DAY, asked=True)
    assert disk.exists(FIRST)
    store.abandon()
    assert open_store(disk).min_physical_offset == 0


def test_a_checkpoint_of_rocketmq_or_of_an_older_version_says_nothing_of_the_start() -> None:
    for row in (24, 52):
        disk = stopped()
        path = f"{ROOT}/checkpoint"
        data = disk.load(path)
        assert data is not None
        if row == 24:  # RocketMQ wrote other times last
            data = struct.pack(">q", START_MS - 1) + data[8:]
        else:
            data = data[:row].ljust(len(data), b"\0")
        disk.replace(path, data)
        disk.remove(FIRST)
        assert open_store(disk).min_physical_offset == 4096


def test_an_empty_log_of_a_slave_may_begin_elsewhere() -> None:
    disk = MemoryDisk()
    master = expired(stopped())
    slave = open_store(disk)
    slave.flush_checkpoint()
    low = master.min_physical_offset
    slave.append_raw(low, master.read_raw(low, 1 << 16))
    slave.flush()
    slave.abandon()
    again = open_store(disk)
    assert again.min_physical_offset == low
    again.close()
    assert bodies(open_store(disk)) == bodies(master)


def test_where_the_log_begins_outlives_a_cut() -> None:
    disk = stopped()
    store = open_store(disk)
    unit = store.unit("Orders", 0, 20)
    assert unit is not None
    store.truncate(unit[0])
    store.close()
    checkpoint = Checkpoint(disk, f"{ROOT}/checkpoint")
    assert (checkpoint.log_from, checkpoint.log_to) == (0, unit[0])


# ---- queues ----


def trimmed(units_before: int) -> MemoryDisk:
    """A store whose log lost some files by retention; the first record that is left has a unit that lies so
    many units behind the beginning of a queue file."""
    for count in range(1, 40):
        disk = MemoryDisk()
        store = open_store(disk)
        fill(store, count, topic="Others")
        fill(store, 120)
        for _ in range(2):
            store.retention._queues.hold_files(store._log.start)
            store.retention._leaving[store._log.segments.take_first()] = "time"
            store.retention._to_trim = True
            store._remove_left()
        first = store.min_offset("Orders", 0)
        store.close()
        if first % 10 == units_before and first > 10:
            return disk
    raise AssertionError("no such store")


@pytest.mark.parametrize("units_before", [0, 1, 6])
@pytest.mark.parametrize("how", ["clean", "killed"])
def test_a_queue_whose_first_file_is_gone_is_made_again(units_before: int, how: str) -> None:
    disk = trimmed(units_before)
    store = open_store(disk)
    assert store.recovery is not None
    assert store.recovery.rebuilt == ()
    expected, first = bodies(store), store.min_offset("Orders", 0)
    if how == "clean":
        store.close()
    else:
        store.flush_queues()
        store.flush_checkpoint()
        store.abandon()
    folder = f"{ROOT}/consumequeue/Orders/0"
    names = sorted(disk.list(folder))
    assert int(names[0]) // 20 < max(first, 1), "the unit before is in the first file"
    for name in names[: 1 + (int(names[1]) // 20 <= first)]:
        disk.remove(f"{folder}/{name}")
    assert check(disk, ROOT).counts["queue unit missing"] > 0
    again = open_store(disk)
    assert again.recovery is not None
    assert again.recovery.rebuilt == (("Orders", 0),)
    assert (again.min_offset("Orders", 0), bodies(again)) == (first, expected)
    again.close()
    assert check(disk, ROOT).is_clean


def test_a_queue_that_begins_with_a_file_is_left_as_it_is() -> None:
    """RocketMQ's retention leaves a queue in this way, when all earlier messages were in an expired log
    file."""
    disk = trimmed(0)
    folder = f"{ROOT}/consumequeue/Orders/0"
    disk.remove(f"{folder}/{min(disk.list(folder))}")
    store = open_store(disk)
    assert store.recovery is not None
    assert store.recovery.rebuilt == ()


@pytest.mark.parametrize("when", ["before", "in the middle"])
def test_a_kill_while_a_queue_is_made_again_loses_no_unit(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = trimmed(1)
    store = open_store(disk)
    expected = bodies(store)
    for number in range(300):  # none of its records is in the end of the log that is looked at
        send(store, record(f"other {number}", topic="Others"))
    store.close()
    folder = f"{ROOT}/consumequeue/Orders/0"
    disk.remove(f"{folder}/{min(disk.list(folder))}")
    monkeypatch.setattr("rmq.store.recovery.VERIFY_BYTES", 2000)
    appended = 0
    append = Recoverer._append

    def killed(self: Recoverer, queue: ConsumeQueue, scanned: Scanned) -> None:
        nonlocal appended
        appended += 1
        if appended > 30 * (when == "in the middle"):
            queue.write()
            raise KeyboardInterrupt
        append(self, queue, scanned)

    monkeypatch.setattr(Recoverer, "_append", killed)
    store = make_store(disk)
    with pytest.raises(KeyboardInterrupt):
        store.load()
    monkeypatch.setattr(Recoverer, "_append", append)
    assert bodies(open_store(disk)) == expected
