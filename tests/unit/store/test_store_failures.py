"""A store whose disk fails: full, unable to sync, or shared by threads."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rmq.errors import CorruptRecord, DiskFull, StoreError, StoreLocked
from rmq.store.files.disk import RealDisk
from rmq.testing.disk import MemoryDisk

from .stores import ROOT, Clock, bodies, fill, open_store, record, send

# ---- failures ----


@pytest.mark.parametrize("already", [0, 3, 30])
def test_a_full_disk_refuses_the_batch_and_only_it(already: int) -> None:
    disk = MemoryDisk()
    store = open_store(disk, disk_min_free_bytes=1)
    fill(store, already)
    store.flush()
    used = 1 - disk.usage(ROOT).ratio
    assert used > 0
    disk.capacity = 0
    for number in range(40):
        store.put(record(f"refused {number}" + "z" * 90))
    with pytest.raises(DiskFull):
        store.commit()
    assert not store.has_pending
    assert store.max_offset("Orders", 0) == already
    disk.capacity = None
    fill(store, 2)
    assert bodies(store) == [b"message %d" % n for n in range(already)] + [b"message 0", b"message 1"]
    for image in (disk.copy(), disk.image(1)):
        found = bodies(open_store(image))
        assert not any(body.startswith(b"refused") for body in found)


def test_bytes_of_a_failed_write_are_never_recovered() -> None:
    """The same sizes as before, so that the old bytes would line up behind the new record."""
    for seed in range(20):
        disk = MemoryDisk(seed)
        store = open_store(disk)
        fill(store, 3)
        for number in range(5):
            store.put(record(f"refused {number}"))
        disk.fail("write", "commitlog")
        with pytest.raises(StoreError):
            store.commit()
        assert bodies(open_store(disk.copy())) == [b"message 0", b"message 1", b"message 2"]
        send(store, record("settled 0"))
        assert bodies(open_store(disk.copy()))[3:] == [b"settled 0"]


def test_a_tail_that_cannot_be_cleared_is_cleared_before_the_next_write() -> None:
    disk = MemoryDisk(3)
    store = open_store(disk)
    fill(store, 3)
    store.put(record("refused"))
    disk.fail("write", "commitlog")
    disk.fail("clear", "commitlog", times=2)
    with pytest.raises(StoreError):
        store.commit()
    store.put(record("refused too"))
    with pytest.raises(StoreError):
        store.commit()
    assert store.max_offset("Orders", 0) == 3
    fill(store, 1)
    assert bodies(open_store(disk.copy())) == [b"message 0", b"message 1", b"message 2", b"message 0"]


def test_bytes_of_a_failed_write_that_the_kernel_wrote_back_do_not_return() -> None:
    """Cleared in the page cache is not cleared on the medium: a power cut could bring them back."""
    for seed in range(30):
        disk = MemoryDisk(seed)
        store = open_store(disk, mapped_file_size_commit_log=16384)
        fill(store, 3)
        store.flush()
        for number in range(110):
            store.put(record(f"refused {number:03d}"))
        disk.fail("write", "commitlog")
        disk.fail("clear", "commitlog")
        with pytest.raises(StoreError):
            store.commit()
        disk.write_back()
        for number in range(110):
            send(store, record(f"settled {number:03d}"))
        disk.crash()
        found = bodies(open_store(disk, mapped_file_size_commit_log=16384))
        assert not any(body.startswith(b"refused") for body in found)


def test_after_a_failed_sync_nothing_is_taken_until_it_is_written_again() -> None:
    """A second sync would say that all is well, although the kernel has dropped the pages."""
    disk = MemoryDisk()
    store = open_store(disk)
    fill(store, 2)
    disk.fail("sync", "commitlog")
    with pytest.raises(StoreError, match="Input/output"):
        store.flush()
    assert store.flushed_offset == 0
    store.put(record("x"))
    with pytest.raises(StoreError, match="no message is accepted until a sync succeeds"):
        store.commit()
    state = store.disk_state()
    assert not state.is_writable
    assert "cannot be synced" in state.reason
    assert len(bodies(store)) == 2
    with pytest.raises(StoreError, match="cannot be synced"):
        store.flush()
    disk.fail("sync", "commitlog")
    with pytest.raises(StoreError, match="Input/output"):
        store.mend()
    assert store.mend() == store.flushed_offset == store.max_physical_offset
    assert store.disk_state().is_writable
    fill(store, 1)
    store.flush()
    disk.crash()
    assert bodies(open_store(disk)) == [b"message 0", b"message 1", b"message 0"]


def test_what_a_failed_sync_left_is_written_again_over_several_files() -> None:
    """A record per piece, the BLANK that closes a file, and the last record in the third file."""
    disk = MemoryDisk(5)
    store = open_store(disk, mapped_file_size_commit_log=4096)
    fill(store, 3)
    store.flush()
    fill(store, 60)
    for _ in range(3):
        disk.fail("sync", "commitlog")
        with pytest.raises(StoreError):
            store.flush() if store.disk_state().is_writable else store.mend()
    store.mend()
    disk.crash()
    again = open_store(disk, mapped_file_size_commit_log=4096)
    assert bodies(again) == [b"message %d" % n for n in (*range(3), *range(60))]


def test_what_a_failed_sync_left_and_the_kernel_lost_is_told() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    fill(store, 3)
    disk.fail("sync", "commitlog")
    with pytest.raises(StoreError):
        store.flush()
    disk.flip(ROOT + "/commitlog/00000000000000000000", 90)
    with pytest.raises(CorruptRecord, match="bytes of a failed sync are lost"):
        store.mend()


def test_a_failed_sync_of_queue_files_is_not_vouched_for() -> None:
    """No later sync may move the checkpoint: the kernel dropped the pages of the first one."""
    for seed in range(20):
        disk, clock = MemoryDisk(seed), Clock()
        store = open_store(disk, clock)
        fill(store, 30)
        store.flush()
        clock.now_ms += 10_000
        store.dispatch()
        disk.fail("sync", "consumequeue")
        with pytest.raises(StoreError):
            store.flush_queues()
        clock.now_ms += 100_000
        fill(store, 30)
        clock.now_ms += 10_000
        store.dispatch()
        store.flush()
        store.flush_queues()
        store.flush_checkpoint()
        store.close()
        disk.crash()
        assert len(bodies(open_store(disk, clock))) == 60


def test_queue_files_that_cannot_be_written_lose_nothing(caplog: pytest.LogCaptureFixture) -> None:
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    fill(store, 30)
    clock.now_ms += 10_000
    disk.fail("write", "consumequeue", times=2)
    store.dispatch()
    assert "cannot be written" in caplog.text
    assert len(bodies(store)) == 30
    fill(store, 5)
    clock.now_ms += 10_000
    for _ in range(3):
        store.dispatch()
    assert len(bodies(store)) == 35
    store.close()
    assert len(bodies(open_store(disk))) == 35


def test_an_index_that_cannot_be_written_is_completed_later(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    disk.capacity = 4096  # room for the log
    for number in range(10):
        send(store, record("x", unique=f"K{number}"))
    store.dispatch()
    assert "the index cannot be written" in caplog.text
    disk.capacity = None
    while store.dispatch():
        pass
    assert all(len(store.query("Orders", f"K{number}", 5, 0, 1 << 60)) == 1 for number in range(10))


def test_after_a_failed_write_of_the_index_its_last_record_is_not_in_it_twice() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    for number in range(5):
        send(store, record("x", unique=f"K{number}", keys="shared"))
    store.dispatch()
    send(store, record("x", unique="K5", keys="shared"))
    disk.capacity = 0
    store.dispatch()
    disk.capacity = None
    store._reput.start(again=True)
    while store.dispatch():
        pass
    assert sum(file.count - 1 for file in store._index.files) == 12
    assert [len(store.query("Orders", f"K{number}", 5, 0, 1 << 60)) for number in range(6)] == [1] * 6


def test_close_without_room_leaves_the_mark_of_a_crash() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    fill(store, 3)
    disk.fail("sync", "commitlog")
    with pytest.raises(StoreError):
        store.close()
    assert disk.exists(f"{ROOT}/abort")
    assert bodies(open_store(disk)) == [b"message 0", b"message 1", b"message 2"]


def test_the_folder_is_locked_while_open() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    with pytest.raises(StoreLocked, match=ROOT):
        open_store(disk)
    store.close()
    open_store(disk).close()


def test_syncs_in_threads_while_the_store_works(tmp_path: Path) -> None:
    """The contract allows these calls in other threads, at any time."""
    root = str(tmp_path)
    store = open_store(RealDisk(), root=root, mapped_file_size_commit_log=1 << 16, max_index_num=500)
    stop = threading.Event()
    errors: list[BaseException] = []

    def sync() -> None:
        try:
            while not stop.is_set():
                flushed = store.flush()
                assert flushed <= store.max_physical_offset
                store.flush_queues()
                store.flush_checkpoint()
                store.save_config("topics", b'{"n":%d}' % flushed)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=sync) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(6000):
        store.put(record(f"message {number}", queue_id=number % 50, unique=f"K{number}"))
        if number % 20 == 19:
            store.commit()
            store.dispatch(50)
            store._queues.write(list(store._queues.table.values())[number % 50 :][:3], 1)
        if number == 3000:
            for _ in range(3):
                store._log.segments.remove_first()
            store._queues.begin_trim()
    stop.set()
    for thread in threads:
        thread.join(30)
    assert errors == []
    store.close()
    again = open_store(RealDisk(), root=root, mapped_file_size_commit_log=1 << 16, max_index_num=500)
    assert again.max_offset("Orders", 7) == 120
    assert all(len(bodies(again, queue_id=queue_id)) > 60 for queue_id in range(50))
    again.close()
