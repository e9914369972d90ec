"""RealDisk and MemoryDisk keep the same contract."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import rmq.store.files.disk
from rmq.errors import DiskFull, StoreError, StoreLocked
from rmq.store.files.disk import Disk, RealDisk
from rmq.testing.disk import MemoryDisk


@pytest.fixture(params=["real", "memory"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return RealDisk() if request.param == "real" else MemoryDisk()


@pytest.mark.parametrize("mapped", [True, False])
def test_a_segment_has_its_full_size_and_keeps_what_is_written(
    disk: Disk, tmp_path: Path, mapped: bool
) -> None:
    path = str(tmp_path / "folder" / "file")
    segment = disk.open(path, 10_000, mapped=mapped)
    assert disk.size(path) == 10_000
    segment.write(9_000, b"abc")
    assert bytes(segment.read(8_999, 5)) == b"\0abc\0" == segment.copy(8_999, 5)
    segment.sync()
    segment.close()
    segment.close()
    again = disk.open(path, 10_000, mapped=mapped)
    assert bytes(again.read(9_000, 3)) == b"abc"
    again.close()


def test_a_write_past_the_end_is_refused(disk: Disk, tmp_path: Path) -> None:
    segment = disk.open(str(tmp_path / "file"), 100)
    with pytest.raises(ValueError, match="past the end"):
        segment.write(99, b"ab")


def test_a_view_outlives_close_and_removal(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    segment = disk.open(path, 4096)
    segment.write(0, b"abc")
    view = segment.read(0, 3)
    segment.close()
    disk.remove(path)
    assert bytes(view) == b"abc"


def test_a_view_sees_later_writes(disk: Disk, tmp_path: Path) -> None:
    segment = disk.open(str(tmp_path / "file"), 4096)
    view = segment.read(0, 3)
    segment.write(0, b"abc")
    assert bytes(view) == b"abc"


def test_a_file_of_another_size_is_refused(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    disk.open(path, 100).close()
    with pytest.raises(StoreError, match="has 100 bytes, expected 200"):
        disk.open(path, 200)


def test_clear_makes_the_rest_zero_and_keeps_the_size(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    segment = disk.open(path, 9000)
    segment.write(0, b"x" * 9000)
    segment.clear(10)
    assert bytes(segment.read(0, 9000)) == b"x" * 10 + bytes(8990)
    assert disk.size(path) == 9000


def test_a_writable_view_is_the_file(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    segment = disk.open(path, 9000)
    assert bytes(segment.read(0, 2)) == b"\0\0"
    segment.writable(4096)[100:103] = b"abc"
    assert bytes(segment.read(100, 3)) == b"abc"
    segment.writable(9000)[8999] = 7
    segment.close()
    assert (disk.load(path) or b"")[8999] == 7


def test_relaxed_pages_are_still_there(disk: Disk, tmp_path: Path) -> None:
    segment = disk.open(str(tmp_path / "file"), 3 * 4096)
    segment.relax(0)
    view = segment.writable(3 * 4096)
    view[5000:5003] = b"abc"
    segment.relax(4500)
    segment.relax(3 * 4096)
    assert bytes(view[5000:5003]) == b"abc"
    assert bytes(segment.read(5000, 3)) == b"abc"


def test_data_after_skips_only_zeros(disk: Disk, tmp_path: Path) -> None:
    segment = disk.open(str(tmp_path / "file"), 1 << 20)
    segment.write(700_000, b"abc")
    start, stop = segment.data_after(5)
    assert 5 <= start <= 700_000
    assert 700_003 <= stop <= 1 << 20
    assert segment.data_after(700_001) == (700_001, stop)
    assert segment.data_after(900_000)[0] >= 900_000
    segment.write(20_000, b"abc")
    assert segment.data_after(5)[0] <= 20_000


def test_list_exists_and_remove(disk: Disk, tmp_path: Path) -> None:
    folder = str(tmp_path / "a")
    assert disk.list(folder) == []
    assert not disk.exists(folder)
    disk.open(folder + "/2", 10).close()
    disk.open(folder + "/1", 10).close()
    assert disk.list(folder) == ["1", "2"]
    assert disk.list(str(tmp_path)) == ["a"]
    disk.remove(folder + "/1")
    disk.remove(folder + "/1")
    assert disk.list(folder) == ["2"]
    disk.remove(folder)
    assert disk.list(folder) == []
    assert not disk.exists(folder + "/2")


def test_replace_and_load(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path / "config" / "topics.json")
    assert disk.load(path) is None
    disk.replace(path, b"one")
    disk.replace(path, b"second")
    assert disk.load(path) == b"second"
    assert disk.list(str(tmp_path / "config")) == ["topics.json"]


def test_the_head_of_a_file_comes_with_its_size(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    segment = disk.open(path, 100, mapped=False)
    segment.write(0, b"begin")
    assert disk.head(path, 7) == (100, b"begin\0\0")
    assert disk.head(path, 1000) == (100, b"begin" + bytes(95))
    with pytest.raises(StoreError, match="nothing"):
        disk.head(str(tmp_path / "nothing"), 7)


def test_the_size_of_a_missing_file_is_an_error(disk: Disk, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        disk.size(str(tmp_path / "nothing"))
    disk.sync(str(tmp_path / "nothing"))


def test_a_lock_is_held_once(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    lock = disk.lock(path)
    with pytest.raises(StoreLocked, match="storePathRootDir"):
        disk.lock(path)
    lock.release()
    lock.release()
    disk.lock(path).release()


def test_usage_is_a_share(disk: Disk, tmp_path: Path) -> None:
    usage = disk.usage(str(tmp_path / "not" / "there"))
    assert 0 <= usage.ratio <= 1
    assert usage.free_bytes > 0
    disk.sync_all(str(tmp_path))


def test_what_is_moved_may_go_to_a_folder_that_is_not_there(disk: Disk, tmp_path: Path) -> None:
    here, there = str(tmp_path / "a"), str(tmp_path / "x" / "y" / "b")
    disk.open(here, 9).write(0, b"kept")
    disk.move(here, there)
    assert not disk.exists(here)
    assert (disk.load(there) or b"").startswith(b"kept")


def test_java_cannot_lock_what_we_locked(tmp_path: Path) -> None:
    """Java's FileLock is a POSIX lock; so is ours, and another process is refused."""
    lock = RealDisk().lock(str(tmp_path / "lock"))
    code = (
        "import fcntl, os, sys\n"
        f"fd = os.open({str(tmp_path / 'lock')!r}, os.O_RDWR)\n"
        "try: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "except OSError: sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7
    lock.release()
    assert (tmp_path / "lock").read_bytes() == b"lock"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_lock_outlives_a_look_at_its_file(tmp_path: Path) -> None:
    """A POSIX lock alone goes when any descriptor of the file is closed."""
    path = tmp_path / "lock"
    lock = RealDisk().lock(str(path))
    assert path.read_bytes() == b"lock"
    with path.open("r+b") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.release()


def test_the_first_sync_of_a_new_file_syncs_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[str] = []
    monkeypatch.setattr("rmq.store.files.disk.sync_folder", folders.append)
    monkeypatch.setattr("rmq.files.sync_folder", folders.append)
    path = str(tmp_path / "log" / "file")
    segment = RealDisk().open(path, 4096)
    segment.sync()
    segment.sync()
    assert folders == [str(tmp_path / "log")]
    RealDisk().open(path, 4096).sync()
    assert len(folders) == 1
    RealDisk().replace(path + ".json", b"{}")
    assert len(folders) == 2


def test_a_sync_in_another_thread_keeps_the_file_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = RealDisk().open(str(tmp_path / "file"), 4096)
    started, go = threading.Event(), threading.Event()
    synced: list[int] = []

    def slow_sync(fd: int) -> None:
        started.set()
        assert go.wait(10)
        os.fstat(fd)  # fails when the descriptor was closed under us
        synced.append(fd)

    monkeypatch.setattr("rmq.store.files.disk.os.fdatasync", slow_sync)
    thread = threading.Thread(target=segment.sync)
    thread.start()
    assert started.wait(10)
    segment.close()
    go.set()
    thread.join(10)
    assert len(synced) == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(synced[0])
    segment.sync()  # closed: nothing left to do


# ---- what only MemoryDisk can do ----


def test_a_crash_keeps_synced_bytes_and_some_unsynced_pages() -> None:
    outcomes = set()
    for seed in range(30):
        disk = MemoryDisk(seed)
        segment = disk.open("/file", 3 * 4096)
        segment.write(0, b"kept")
        segment.sync()
        segment.write(100, b"one")
        segment.write(4096, b"two")
        disk.crash()
        data = disk.load("/file") or b""
        assert data[:4] == b"kept"
        outcomes.add((data[100:103], data[4096:4099]))
    assert outcomes == {(a, b) for a in (b"one", bytes(3)) for b in (b"two", bytes(3))}


@pytest.mark.parametrize("tears", [False, True])
def test_a_crash_tears_pages_in_sectors_when_it_is_told_to(tears: bool) -> None:
    torn = 0
    for seed in range(50):
        disk = MemoryDisk(seed)
        disk.tears = tears
        segment = disk.open("/a", 4096)
        segment.write(0, b"a" * 4096)
        segment.sync()
        segment.write(100, b"b" * 3000)
        whole = segment.copy(0, 4096)
        disk.crash()
        left = disk.open("/a", 4096).copy(0, 4096)
        for at in range(0, 4096, 512):
            assert left[at : at + 512] in (whole[at : at + 512], b"a" * 512)
        torn += left not in (whole, b"a" * 4096)
    assert bool(torn) == tears


def test_the_same_seed_gives_the_same_crash() -> None:
    def run() -> bytes | None:
        disk = MemoryDisk(5)
        disk.open("/file", 40 * 4096).write(0, b"x" * 40 * 4096)
        disk.open("/other", 4096).sync()
        disk.crash()
        return disk.load("/file")

    assert run() == run()


def test_a_file_that_was_never_synced_may_be_gone() -> None:
    outcomes = set()
    for seed in range(20):
        disk = MemoryDisk(seed)
        disk.open("/file", 4096)
        disk.crash()
        outcomes.add(disk.exists("/file"))
    assert outcomes == {True, False}


def test_a_full_disk_takes_what_fits() -> None:
    disk = MemoryDisk(capacity=8192)
    segment = disk.open("/file", 1 << 20)
    with pytest.raises(DiskFull):
        segment.write(4000, b"x" * 9000)
    assert bytes(segment.read(8191, 2)) == b"x\0"
    assert disk.usage("/").ratio == 1
    segment.clear(0)
    segment.write(4000, b"x" * 100)
    with pytest.raises(DiskFull):
        segment.writable(3 * 4096)


def test_faults_happen_once_and_leave_a_part() -> None:
    disk = MemoryDisk()
    segment = disk.open("/log/file", 4096)
    disk.fail("write", "log")
    disk.fail("sync", "log")
    with pytest.raises(StoreError, match="Input/output"):
        segment.write(0, b"x" * 100)
    with pytest.raises(StoreError, match="Input/output"):
        segment.sync()
    segment.write(0, b"y")
    segment.sync()
    disk.flip("/log/file", 0, 1)
    assert bytes(segment.read(0, 1)) == b"{"


def test_a_closed_file_is_synced_all_the_same(disk: Disk, tmp_path: Path) -> None:
    """A thread that syncs may hold a file that another closes to have few open: its pages are unsynced."""
    path = str(tmp_path / "folder" / "file")
    segment = disk.open(path, 8192)
    segment.write(0, b"abc")
    segment.close()
    segment.sync()
    if isinstance(disk, MemoryDisk):
        for seed in range(20):
            assert disk.image(seed).load(path) == b"abc" + bytes(8189)


def test_a_closed_file_that_has_gone_needs_no_sync(disk: Disk, tmp_path: Path) -> None:
    """A topic that is deleted takes its files away while another thread is about to sync them."""
    path = str(tmp_path / "folder" / "file")
    segment = disk.open(path, 8192)
    segment.write(0, b"abc")
    segment.close()
    disk.remove(path)
    segment.sync()
    assert not disk.exists(path)


def test_a_closed_file_is_synced_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = RealDisk().open(str(tmp_path / "folder" / "file"), 8192)
    segment.close()
    synced = []
    monkeypatch.setattr(
        rmq.store.files.disk, "_sync_data", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}"))
    )
    segment.sync()
    assert synced == [str(tmp_path / "folder" / "file")]


@pytest.mark.parametrize("opened", [True, False])
def test_a_file_whose_folder_goes_while_it_is_synced_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: bool
) -> None:
    path = str(tmp_path / "folder" / "file")
    disk = RealDisk()
    segment = disk.open(path, 8192)
    monkeypatch.setattr(rmq.store.files.disk, "_sync_data", lambda fd: disk.remove(str(tmp_path / "folder")))
    segment.sync() if opened else disk.sync(path)
    segment.close()
