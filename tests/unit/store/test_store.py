"""Putting, committing, failing and reading."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import rmq.store.files.disk
from rmq.errors import CorruptRecord, DiskFull, OffsetOutOfRange, StoreError, StoreLocked
from rmq.message import tags_code
from rmq.protocol import engine
from rmq.protocol.record import decode_record, decode_records
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.files.disk import RealDisk
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

from .stores import HOST, ROOT, START_MS, Clock, bodies, fill, make_store, open_store, record, send


def test_put_fills_in_what_the_store_decides() -> None:
    clock = Clock()
    store = open_store(clock=clock)
    first, second = record("a"), record("b")
    store.put(first)
    store.put(second)
    assert (first.queue_offset, first.physical_offset, first.store_timestamp) == (0, 0, START_MS)
    assert (second.queue_offset, second.physical_offset) == (1, first.size)
    assert first.size == 91 + 1 + len("Orders")
    store.commit()
    message = store.message(second.physical_offset)
    assert message is not None
    assert (message.body, message.queue_offset, message.store_host) == (b"b", 1, "127.0.0.1:10911")


def test_nothing_is_readable_before_commit() -> None:
    store = open_store()
    one = record("a")
    store.put(one)
    assert store.has_pending
    assert store.max_offset("Orders", 0) == 0
    assert store.max_physical_offset == 0
    assert store.read(one.physical_offset) is None
    assert store.get("Orders", 0, 0, 32).status == "NO_MESSAGE_IN_QUEUE"
    assert store.flush() == 0
    assert store.commit() == [("Orders", 0, 1)]
    assert not store.has_pending
    assert bodies(store) == [b"a"]
    assert store.commit() == ()


def test_commit_names_each_queue_once() -> None:
    store = open_store()
    for queue_id in (3, 1, 3, 3):
        store.put(record("x", queue_id=queue_id))
    store.put(record("x", topic="Other"))
    assert sorted(store.commit()) == [("Orders", 1, 1), ("Orders", 3, 3), ("Other", 0, 1)]


def test_one_commit_is_one_write_for_each_file(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    writes: list[int] = []
    fill(store, 1)
    disk.on_change = lambda: writes.append(1)
    for number in range(30):
        store.put(record(f"{number}"))
    store.commit()
    assert len(writes) == 1
    for number in range(30):
        store.put(record(f"{number}"))
    store.commit()
    assert len(writes) == 1 + 1 + 2  # the end of one file, the making of the next, its start


def test_a_record_never_crosses_a_file() -> None:
    store = open_store()
    sizes = [1, 700, 1300, 2000, 3900, 10, 3000, 5]
    for size in sizes:
        send(store, record(b"x" * size))
    found = [len(body) for body in bodies(store)]
    assert found == sizes
    for offset in range(len(sizes)):
        physical, size, _ = store.unit("Orders", 0, offset)  # type: ignore[misc]
        assert physical // 4096 == (physical + size + 7) // 4096


@pytest.mark.parametrize("left", [0, 1, 7, 8, 9, 90])
def test_the_blank_rule_is_java_s(left: int) -> None:
    """A record needs 8 bytes more than its size; else its length and the blank magic close the file."""
    disk = MemoryDisk()
    store = open_store(disk)
    fixed = 91 + len("Orders")
    send(store, record(b"x" * 1000))
    start = store.max_physical_offset
    send(store, record(b"y" * (4096 - start - fixed - left)))
    data = disk.load(f"{ROOT}/commitlog/{0:020d}") or b""
    if left >= 8:
        assert store.max_physical_offset == 4096 - left
    else:
        assert store.max_physical_offset > 4096
        blank = (4096 - start).to_bytes(4, "big") + bytes.fromhex("cbd43194")
        assert data[start : start + 8] == blank
    assert len(bodies(store)) == 2
    fill(store, 1)
    assert store.unit("Orders", 0, 2)[0] >= 4096  # type: ignore[index]


def test_a_record_that_fits_no_file_is_refused() -> None:
    store = open_store()
    store.put(record("good"))
    with pytest.raises(StoreError, match="does not fit"):
        store.put(record(b"x" * 4000))
    store.put(record(b"y" * (4096 - 8 - 97)))
    store.commit()
    assert [len(body) for body in bodies(store)] == [4, 3991]


def test_properties_that_are_too_long_are_refused() -> None:
    store = open_store(mapped_file_size_commit_log=1 << 20)
    with pytest.raises(StoreError, match="32767"):
        store.put(record("x", note="y" * 32768))
    with pytest.raises(StoreError, match="127"):
        store.put(record("x", topic="T" * 128))
    assert not store.has_pending


@pytest.mark.parametrize("topic", ["../up", "a/b", "", ".", "..", "nul\0"])
def test_a_topic_that_is_no_name_gets_no_folder(topic: str) -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    with pytest.raises(StoreError, match="cannot be"):
        store.put(record("x", topic=topic))
    assert not store.has_pending
    assert all(name in ("abort", "checkpoint") for name in disk.list(ROOT))


def test_ipv6_hosts_set_their_bits() -> None:
    disk = MemoryDisk()
    store = make_store(disk, store_host=bytes(15) + b"\1\0\0\x2a\x9f")
    store.load()
    one = record("six", unique="U6")
    one.born_host = bytes(15) + b"\2\0\0\0\x50"
    send(store, one, record("four"))
    message = store.message(0)
    assert message is not None
    assert (message.born_host, message.store_host) == ("[::2]:80", "[::1]:10911")
    again = open_store(disk.copy())
    assert again.message_time("Orders", 0, 1) == START_MS
    assert bodies(again) == [b"six", b"four"]


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
    with pytest.raises(StoreError, match="nothing is taken until it can"):
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
    with pytest.raises(CorruptRecord, match="a failed sync left is gone"):
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
    """What the contract says may run in other threads does so at any time."""
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


# ---- reading ----


def test_get_answers_as_java_for_every_offset() -> None:
    store = open_store()
    assert store.get("Nothing", 0, 5, 32).status == "NO_MESSAGE_IN_QUEUE"
    assert store.get("Nothing", 0, 5, 32).next_queue_offset == 0
    fill(store, 5)
    cases = {-1: ("OFFSET_TOO_SMALL", 0), 5: ("OFFSET_OVERFLOW_ONE", 5), 9: ("OFFSET_OVERFLOW_BADLY", 5)}
    for offset, answer in cases.items():
        result = store.get("Orders", 0, offset, 32)
        assert (result.status, result.next_queue_offset) == answer
        assert (result.min_offset, result.max_offset, result.count, result.buffers) == (0, 5, 0, [])
    result = store.get("Orders", 0, 2, 32)
    assert (result.status, result.next_queue_offset, result.count) == ("FOUND", 5, 3)
    assert result.size == sum(map(len, result.buffers))


def test_a_slave_does_not_move_readers() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    fill(store, 5)
    store.close()
    slave = open_store(disk, broker_role=BrokerRole.SLAVE)
    assert slave.get("Orders", 0, 9, 32).next_queue_offset == 9
    assert slave.get("Nothing", 0, 9, 32).next_queue_offset == 9
    checked = make_store(disk.copy(), broker_role=BrokerRole.SLAVE, offset_check_in_slave=True)
    checked.load()
    assert checked.get("Orders", 0, 9, 32).next_queue_offset == 5


def test_neighbours_are_joined_up_to_the_end_of_a_file() -> None:
    store = open_store()
    fill(store, 50)
    result = store.get("Orders", 0, 0, 32)
    assert len(result.buffers) == 1
    result = store.get("Orders", 0, 20, 10)
    assert [len(decode_records(buffer)) for buffer in result.buffers] == [10]
    found = store.get("Orders", 0, 10, 10)
    assert found.count == 10
    store = open_store()
    for number in range(6):
        send(store, record(f"{number}", queue_id=number % 3))
    apart = store.get("Orders", 0, 0, 32)
    assert len(apart.buffers) == (2 if engine.compiled is None else 1)  # which copies small ones together
    assert [message.body for buffer in apart.buffers for message in decode_records(buffer)] == [b"0", b"3"]
    store = open_store(mapped_file_size_consume_queue=20_000)
    fill(store, 60)
    across = store.get("Orders", 0, 30, 20)
    assert len(across.buffers) == 2
    assert [message.body for buffer in across.buffers for message in decode_records(buffer)] == [
        b"message %d" % number for number in range(30, 50)
    ]


def test_a_read_ends_at_the_end_of_a_queue_file_as_in_java() -> None:
    store = open_store()  # 10 units in a file
    fill(store, 25)
    assert store.get("Orders", 0, 7, 32).next_queue_offset == 10
    assert store.get("Orders", 0, 10, 32).next_queue_offset == 20
    assert store.get("Orders", 0, 20, 32).next_queue_offset == 25


def test_limits_of_one_read() -> None:
    store = open_store(
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20_000,
        max_transfer_bytes_on_message_in_memory=2000,
    )
    for _ in range(100):
        send(store, record(b"x" * 103))  # records of 200 bytes
    assert store.get("Orders", 0, 0, 3).count == 3
    assert store.get("Orders", 0, 0, 100).count == 10  # 2000 bytes
    assert store.get("Orders", 0, 0, 100, 999).count == 4
    assert store.get("Orders", 0, 0, 100, 1).count == 1  # the first one comes whatever its size
    assert store.get("Orders", 0, 0, 0).count == 1  # as in Java
    store.configure(StoreConfig(store_path_root_dir=ROOT, max_transfer_count_on_message_in_memory=32))
    assert store.get("Orders", 0, 0, 100).count == 32
    store.configure(StoreConfig(store_path_root_dir=ROOT))
    assert store.get("Orders", 0, 0, 100).count == 100


def test_old_messages_come_in_smaller_portions_and_from_a_slave() -> None:
    disk = MemoryDisk()
    store = open_store(
        disk,
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20_000,
        max_transfer_count_on_message_in_disk=8,
    )
    for _ in range(100):
        send(store, record(b"x" * 103))
    store._limits.memory = 10_000  # half of the log
    old = store.get("Orders", 0, 0, 32)
    assert (old.count, old.suggests_slave) == (8, True)
    new = store.get("Orders", 0, 60, 32)
    assert (new.count, new.suggests_slave) == (32, False)
    store._limits.bytes_in_disk = 500
    assert store.get("Orders", 0, 0, 32).count == 2


def test_filters_skip_and_the_next_offset_passes_what_was_skipped() -> None:
    store = open_store(mapped_file_size_consume_queue=20_000, mapped_file_size_commit_log=1 << 20)
    for number in range(100):
        send(store, record(f"{number}", tags="hit" if number % 10 == 7 else "miss"))
    hits = {tags_code("hit")}
    result = store.get("Orders", 0, 0, 3, None, hits.__contains__)
    assert [m.body for b in result.buffers for m in decode_records(b)] == [b"7", b"17", b"27"]
    assert result.next_queue_offset == 28  # the unit after the last hit breaks the loop, as in Java
    result = store.get("Orders", 0, 28, 32, None, hits.__contains__)
    assert (result.status, result.count, result.next_queue_offset) == ("FOUND", 7, 100)
    result = store.get("Orders", 0, 0, 32, None, {1}.__contains__)
    assert (result.status, result.count, result.next_queue_offset) == ("NO_MATCHED_MESSAGE", 0, 100)
    result = store.get("Orders", 0, 0, 32, matches_record=lambda view: decode_record(view).body == b"42")
    assert [m.body for b in result.buffers for m in decode_records(b)] == [b"42"]
    assert result.next_queue_offset == 100


def test_one_read_looks_at_no_more_than_800_units() -> None:
    store = open_store(mapped_file_size_consume_queue=40_000, mapped_file_size_commit_log=1 << 20)
    for _ in range(10):
        send(store, *[record("x") for _ in range(100)])
    result = store.get("Orders", 0, 0, 32, None, {1}.__contains__)
    assert (result.status, result.next_queue_offset) == ("NO_MATCHED_MESSAGE", 800)
    assert store.get("Orders", 0, 0, 900, None, {1}.__contains__).next_queue_offset == 900
    assert store.get("Orders", 0, 990, 32, None, {1}.__contains__).next_queue_offset == 1000


def test_buffers_outlive_the_file() -> None:
    disk = MemoryDisk()
    clock = Clock()
    store = open_store(disk, clock)
    fill(store, 100)
    buffers = store.get("Orders", 0, 0, 32).buffers
    clock.now_ms += 100 * 3_600_000
    fill(store, 1)
    assert store.clean(clock.now_ms + 73 * 3_600_000).log_files or True
    store.close()
    assert decode_records(buffers[0])[0].body == b"message 0"


def test_reading_at_any_offset_gives_a_record_or_nothing() -> None:
    store = open_store()
    fill(store, 80)
    starts = {store.unit("Orders", 0, offset)[0] for offset in range(80)}  # type: ignore[index]
    for offset in range(-5, store.max_physical_offset + 300):
        assert (store.read(offset) is not None) == (offset in starts), offset


def test_a_unit_that_points_nowhere_is_passed_over() -> None:
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    fill(store, 10)
    clock.now_ms += 10_000
    store.dispatch()
    fill(store, 3)
    clock.now_ms += 10_000
    store.dispatch()
    path = f"{ROOT}/consumequeue/Orders/0/{0:020d}"
    disk.flip(path, 4 * 20, 6)  # far past the log's end
    disk.open(path, 200).write(7 * 20, bytes(20))
    result = store.get("Orders", 0, 3, 32)
    found = [message.body for buffer in result.buffers for message in decode_records(buffer)]
    assert found == [b"message %d" % number for number in (3, 5, 6, 8, 9)]
    assert result.count == 5
    assert result.next_queue_offset == 10
    result = store.get("Orders", 0, 4, 1)
    assert (result.count, result.next_queue_offset) == (1, 6)
    disk.flip(path, 9 * 20, 6)
    result = store.get("Orders", 0, 9, 32)
    assert (result.status, result.count, result.next_queue_offset) == ("MESSAGE_WAS_REMOVING", 0, 10)


# ---- time ----


def test_offset_by_time_is_java_s() -> None:
    clock = Clock()
    store = open_store(clock=clock)
    assert store.offset_by_time("Orders", 0, START_MS) == 0
    for number in range(35):
        clock.now_ms = START_MS + number * 100
        fill(store, 1)
    for number in range(35):
        assert store.offset_by_time("Orders", 0, START_MS + number * 100) == number
    assert store.offset_by_time("Orders", 0, 0) == 0
    assert store.offset_by_time("Orders", 0, START_MS + 449) == 4  # the nearer neighbour
    assert store.offset_by_time("Orders", 0, START_MS + 450) == 4  # a draw: the earlier
    assert store.offset_by_time("Orders", 0, START_MS + 451) == 5
    assert store.offset_by_time("Orders", 0, START_MS + 10**9) == 34  # the last, not the end
    # Times between two files belong to the later file, so its first message is the nearest.
    assert store.offset_by_time("Orders", 0, START_MS + 910) == 10


def test_offset_by_time_with_equal_times_ends_where_java_s_halving_does() -> None:
    store = open_store(mapped_file_size_consume_queue=20_000)
    fill(store, 8)
    assert store.offset_by_time("Orders", 0, START_MS) == 3


def test_message_and_earliest_time() -> None:
    clock = Clock()
    store = open_store(clock=clock)
    assert store.earliest_time("Orders", 0) == -1
    fill(store, 1)
    clock.now_ms += 50
    fill(store, 1)
    assert store.earliest_time("Orders", 0) == START_MS
    assert store.message_time("Orders", 0, 1) == START_MS + 50
    assert store.message_time("Orders", 0, 2) == -1


def test_small_steps_back_of_the_clock_are_not_stored() -> None:
    clock = Clock()
    store = open_store(clock=clock)
    fill(store, 1)
    clock.now_ms -= 3000
    fill(store, 1)
    assert store.message_time("Orders", 0, 1) == START_MS
    clock.now_ms = START_MS - 60_000
    fill(store, 1)
    assert store.message_time("Orders", 0, 2) == START_MS - 60_000


# ---- topics, offsets, slaves ----


def test_remove_topic_removes_its_queues_only() -> None:
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    fill(store, 30)
    fill(store, 30, topic="Other")
    clock.now_ms += 10_000
    store.dispatch()
    fill(store, 1, queue_id=1)
    assert disk.list(f"{ROOT}/consumequeue") == ["Orders", "Other"]
    store.remove_topic("Orders")
    assert list(store.queues()) == [("Other", 0)]
    assert disk.list(f"{ROOT}/consumequeue") == ["Other"]
    assert store.max_offset("Orders", 0) == 0
    fill(store, 2)
    assert bodies(store) == [b"message 0", b"message 1"]
    assert len(bodies(store, "Other")) == 30
    store.close()
    again = open_store(disk)
    assert bodies(again) == [b"message 0", b"message 1"]


def test_the_files_of_a_removed_topic_leave_in_the_steps_of_retention_and_never_those_of_its_successor(
    tmp_path: Path,
) -> None:
    clock = Clock()
    store = open_store(RealDisk(), clock, root=str(tmp_path))
    removed: list[str] = []
    for _ in range(2):  # deleted, made again, and deleted again before anything is off the disk
        fill(store, 30)
        clock.now_ms += 10_000
        store.dispatch()
        store.remove_topic("Orders")
    fill(store, 3)
    clock.now_ms += 10_000
    store.dispatch()
    assert len(list((tmp_path / "removed").rglob("0" * 20))) == 2
    retention = store.retention
    path = retention.path
    assert path is not None
    assert retention.why(path) == "topic deleted"
    store.disk.remove(path)
    retention.removed(path)
    store.close()

    again = open_store(RealDisk(), clock, root=str(tmp_path))
    fill(again, 1, topic="Other")
    again.remove_topic("Other")  # beside what the run before has left
    while (path := again.retention.path) is not None:
        removed.append(os.path.basename(path))
        again.disk.remove(path)
        again.retention.removed(path)
    assert removed[0] == "2"
    assert list((tmp_path / "removed").iterdir()) == []
    assert bodies(again) == [b"message 0", b"message 1", b"message 2"]
    again.close()


def test_a_topic_removed_while_its_messages_are_pending_stays_removed() -> None:
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    fill(store, 3)
    store.put(record("late"))
    store.put(record("other", topic="Other"))
    store.remove_topic("Orders")
    assert store.commit() == [("Other", 0, 1)]
    store.close()
    assert disk.list(f"{ROOT}/consumequeue") == ["Other"]


def test_a_slave_s_log_is_its_master_s() -> None:
    master_disk, slave_disk = MemoryDisk(), MemoryDisk()
    master = open_store(master_disk)
    for number in range(120):
        tags = f"t{number % 3}"
        send(master, record(f"message {number}", queue_id=number % 2, tags=tags, unique=f"K{number}"))
    slave = open_store(slave_disk, broker_role=BrokerRole.SLAVE)
    position, step = 0, 1
    grown: list[tuple[str, int, int]] = []
    while position < master.max_physical_offset:
        data = bytes(master.read_raw(position, step))
        grown += slave.append_raw(position, data)
        position += len(data)
        step = step * 7 % 1500 + 1
    assert slave.max_physical_offset == master.max_physical_offset
    for queue_id in (0, 1):
        assert bodies(slave, queue_id=queue_id) == bodies(master, queue_id=queue_id)
        assert slave.unit("Orders", queue_id, 33) == master.unit("Orders", queue_id, 33)
    assert grown[-1][2] == 60
    assert len(slave.query("Orders", "K77", 5, 0, 1 << 60)) == 1
    for name in master_disk.list(f"{ROOT}/commitlog"):
        path = f"{ROOT}/commitlog/{name}"
        assert slave_disk.load(path) == master_disk.load(path)
    slave.close()
    again = open_store(slave_disk)
    assert bodies(again) == bodies(master)
    assert again.max_physical_offset == master.max_physical_offset


def test_what_came_of_a_record_in_part_is_cut_before_another_master_goes_on() -> None:
    """A power cut takes a master's end of the log that its slave has in part; other records come there."""
    first, second = open_store(), open_store()
    for master, text in ((first, "old"), (second, "new")):
        fill(master, 20)
        for number in range(12):  # over the end of a file, at another place in each
            send(master, record(f"{text} {number} " + "x" * 150 * (1 + (text == "old"))))
    common = last_of(first, 19)
    whole = [common, *[last_of(first, number) for number in range(20, 32)]]
    for reach in range(common, first.max_physical_offset, 7):
        slave = open_store(broker_role=BrokerRole.SLAVE)
        copy(first, slave, reach)
        assert slave.max_physical_offset == reach
        slave.cut_partial()
        assert slave.max_physical_offset == max(end for end in whole if end <= reach)
        if slave.max_physical_offset > common:
            slave.truncate(common)  # whole records are compared with the master's
        copy(second, slave, second.max_physical_offset)
        assert bodies(slave) == bodies(second)


def feed(slave: Store, data: bytes | bytearray, step: int) -> None:
    for position in range(0, len(data), step):
        slave.append_raw(position, data[position : position + step])


def last_of(store: Store, queue_offset: int) -> int:
    """Where the record at that offset of the queue ends."""
    unit = store.unit("Orders", 0, queue_offset)
    assert unit is not None
    return unit[0] + unit[1]


def copy(master: Store, slave: Store, reach: int) -> None:
    """Have the slave's log reach there."""
    position = slave.max_physical_offset
    while position < reach:
        data = bytes(master.read_raw(position, min(100, reach - position)))
        slave.append_raw(position, data)
        position += len(data)


def test_a_slave_s_full_queue_files_are_written_as_they_fill() -> None:
    """Else it would hold in memory what its master sends, until its next sync."""
    master, disk = open_store(), MemoryDisk()
    fill(master, 1000)
    slave = open_store(disk)
    while slave.max_physical_offset < master.max_physical_offset:
        position = slave.max_physical_offset
        slave.append_raw(position, bytes(master.read_raw(position, 1 << 20)))
    assert len(disk.list(f"{ROOT}/consumequeue/Orders/0")) >= 2


def test_raw_bytes_must_follow_the_end() -> None:
    store = open_store()
    fill(store, 3)
    with pytest.raises(OffsetOutOfRange, match="outside the log"):
        store.append_raw(store.max_physical_offset + 1, b"x")
    with pytest.raises(OffsetOutOfRange):
        store.read_raw(store.max_physical_offset + 1, 10)
    assert store.read_raw(store.max_physical_offset, 10) == b""
    empty = open_store()
    for offset in (100, -4096, -(1 << 63)):
        with pytest.raises(OffsetOutOfRange):
            empty.append_raw(offset, b"x")


@pytest.mark.parametrize("at", [0, 4, 30, 90, 100])
@pytest.mark.parametrize("step", [1, 50, 5000])
def test_a_record_that_comes_damaged_from_the_master_is_not_kept(at: int, step: int) -> None:
    """`at`: where in the record a byte is wrong (size, magic, place, body)."""
    master, slave = open_store(), open_store(broker_role=BrokerRole.SLAVE)
    for number in range(5):
        send(master, record(f"message {number}" + "x" * 20))
    good = last_of(master, 2)
    data = bytearray(master.read_raw(0, 1 << 20))
    data[good + at] ^= 0x55
    with pytest.raises(CorruptRecord, match="damaged") as caught:
        feed(slave, data, step)
    assert caught.value.offset == good
    assert slave.max_physical_offset == good
    assert bodies(slave) == bodies(master)[:3]
    copy(master, slave, master.max_physical_offset)
    assert bodies(slave) == bodies(master)


def test_a_slave_may_begin_in_the_middle_of_its_master_s_log() -> None:
    master, slave_disk = open_store(), MemoryDisk()
    fill(master, 120)
    slave = open_store(slave_disk)
    position = 2 * 4096
    while position < master.max_physical_offset:
        data = bytes(master.read_raw(position, 1000))
        slave.append_raw(position, data)
        position += len(data)
    first = slave.min_offset("Orders", 0)
    assert 60 < first < 90
    assert slave.get("Orders", 0, 0, 32).status == "OFFSET_TOO_SMALL"
    assert bodies(slave) == bodies(master)[first:]
    slave.close()
    unit = slave_disk.load(f"{ROOT}/consumequeue/Orders/0/{first // 10 * 200:020d}") or b""
    assert unit[:20] == bytes(8) + b"\x7f\xff\xff\xff" + bytes(8), "Java's filler"
    again = open_store(slave_disk)
    assert again.min_offset("Orders", 0) == first
    assert bodies(again) == bodies(master)[first:]


def test_truncate_cuts_log_queues_and_index() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    for number in range(100):
        send(store, record(f"message {number}", unique=f"K{number}"))
    while store.dispatch():
        pass
    position = store.unit("Orders", 0, 40)
    assert position is not None
    store.put(record("pending"))
    store.truncate(position[0])
    assert store.max_physical_offset == position[0]
    assert bodies(store) == [b"message %d" % number for number in range(40)]
    assert store.query("Orders", "K50", 5, 0, 1 << 60) == []
    while store.dispatch():
        pass
    assert len(store.query("Orders", "K39", 5, 0, 1 << 60)) == 1
    fill(store, 1)
    assert store.max_offset("Orders", 0) == 41
    assert len(bodies(open_store(disk.copy()))) == 41
    with pytest.raises(OffsetOutOfRange):
        store.truncate(1 << 40)


def test_store_host_is_what_the_broker_said() -> None:
    store = open_store()
    fill(store, 1)
    view = store.read(0)
    assert view is not None
    assert bytes(view[64:72]) == HOST


def test_a_slave_s_log_without_a_record_begins_where_its_master_s_does_now() -> None:
    """Its first record came in part, and expired at the master before the rest came."""
    disk, master = MemoryDisk(), open_store()
    fill(master, 120)
    slave = open_store(disk, broker_role=BrokerRole.SLAVE)
    slave.append_raw(4096, master.read_raw(4096, 50))
    slave.cut_partial()
    assert slave.min_physical_offset == slave.max_physical_offset == 4096
    with pytest.raises(OffsetOutOfRange):
        slave.append_raw(2 * 4096 + 1, b"x")
    for again in (slave, open_store(disk.copy(), broker_role=BrokerRole.SLAVE)):
        position = 2 * 4096
        while position < master.max_physical_offset:
            data = bytes(master.read_raw(position, 1000))
            again.append_raw(position, data)
            position += len(data)
        assert again.min_physical_offset == 2 * 4096
        assert bodies(again) == bodies(master)[again.min_offset("Orders", 0) :]


def test_a_log_set_aside_is_kept_whole_and_the_store_goes_on_empty() -> None:
    disk, clock = MemoryDisk(), Clock()
    master = open_store()
    fill(master, 120)
    slave = open_store(disk, clock, broker_role=BrokerRole.SLAVE)
    copy(master, slave, master.max_physical_offset)
    slave.flush()
    slave.flush_queues()
    slave.flush_checkpoint()
    kept = {name: disk.load(f"{ROOT}/commitlog/{name}") for name in disk.list(f"{ROOT}/commitlog")}
    assert slave.set_aside() == f"{ROOT}/aside/commitlog"
    assert {name: disk.load(f"{ROOT}/aside/commitlog/{name}") for name in kept} == kept
    assert (slave.min_physical_offset, slave.max_physical_offset, list(slave.queues())) == (0, 0, [])
    other = open_store(clock=Clock(START_MS - 3_600_000))
    fill(other, 60)
    copy(other, slave, other.max_physical_offset)
    assert bodies(slave) == bodies(other)
    with pytest.raises(StoreError, match="aside"):
        slave.set_aside()
    assert bodies(slave) == bodies(other)
    assert len(slave.query("Orders", "K1", 5, 0, 1 << 60)) == len(other.query("Orders", "K1", 5, 0, 1 << 60))
    for seed in range(20):  # nothing of the new log was synced
        left = open_store(disk.image(seed))
        assert bodies(left) == bodies(other)[: len(bodies(left))]


def test_a_power_cut_while_the_log_is_set_aside_leaves_it_here_or_there() -> None:
    disk = MemoryDisk()
    master = open_store()
    fill(master, 120)
    slave = open_store(disk, broker_role=BrokerRole.SLAVE)
    copy(master, slave, master.max_physical_offset)
    slave.flush()
    slave.flush_queues()
    slave.flush_checkpoint()
    images: list[MemoryDisk] = []
    disk.on_change = lambda: images.append(disk.image(len(images)))
    slave.set_aside()
    assert len(images) > 2
    for image in images:
        again = open_store(image, broker_role=BrokerRole.SLAVE)
        if not image.exists(f"{ROOT}/aside"):
            assert bodies(again) == bodies(master)
            continue
        assert list(again.queues()) == [] or bodies(again) == []
        copy(master, again, master.max_physical_offset)
        assert bodies(again) == bodies(master)


def test_what_a_slave_gets_after_a_cut_is_no_damage_when_a_power_cut_tears_it() -> None:
    """The records that follow a cut may be older than what was synced before it."""
    disk, clock = MemoryDisk(), Clock()
    late, common = MemoryDisk(), open_store(clock=clock)
    fill(common, 5)
    slave = open_store(late, clock, broker_role=BrokerRole.SLAVE)
    copy(common, slave, common.max_physical_offset)
    old, new = open_store(disk, Clock(START_MS + 5000)), open_store(clock=Clock(START_MS + 60_000))
    for master in (old, new):
        master.append_raw(0, common.read_raw(0, 1 << 20))
        fill(master, 100)
    copy(new, slave, new.max_physical_offset)
    slave.flush()
    slave.flush_queues()
    slave.flush_checkpoint()
    slave.truncate(common.max_physical_offset)
    copy(old, slave, old.max_physical_offset)
    slave.flush_checkpoint()
    for seed in range(30):
        assert len(bodies(open_store(late.image(seed)))) >= 5


def test_a_topic_that_is_deleted_while_queues_are_synced_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    store = open_store(RealDisk(), clock, root=str(tmp_path))
    fill(store, 3)
    fill(store, 3, topic="Other")
    clock.now_ms += 10_000
    store.dispatch()
    sync_data = rmq.store.files.disk._sync_data

    def delete_and_sync(fd: int) -> None:
        if "Orders" in os.readlink(f"/proc/self/fd/{fd}"):
            store.remove_topic("Orders")
        sync_data(fd)

    monkeypatch.setattr(rmq.store.files.disk, "_sync_data", delete_and_sync)
    store.flush_queues()
    monkeypatch.undo()
    fill(store, 3)
    clock.now_ms += 10_000
    store.dispatch()
    store.flush_queues()
    store.flush_checkpoint()
    assert store._checkpoint is not None
    assert store._checkpoint.queues_ms == store._log.timestamp
    store.close()
    assert not (tmp_path / "abort").exists()
    assert len(bodies(open_store(RealDisk(), root=str(tmp_path)), "Other")) == 3
