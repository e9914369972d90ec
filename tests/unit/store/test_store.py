"""Putting, committing, failing and reading."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import rmq.store.files.disk
from rmq.errors import StoreError
from rmq.protocol.record import Record
from rmq.store.files.disk import RealDisk
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


@pytest.mark.parametrize("host", [HOST, bytes(range(20))])
def test_a_body_of_the_broker_s_own_is_put_as_its_record_would_be(host: bytes) -> None:
    logs = []
    for is_record in (True, False):
        store = open_store(store_host=host)
        for size in (0, 700, 3_900, 2_000, 3_000):
            body = b"x" * size
            if is_record:
                store.put(Record("Own", 0, body, born_host=host))
            else:
                store.put_body("Own", body)
            store.put(record())
            store.commit()
        logs.append(bytes(store.read_raw(0, 4_096)) + bytes(store.read_raw(4_096, 4_096)))
        assert [len(body) for body in bodies(store, "Own")] == [0, 700, 3_900, 2_000, 3_000]
    assert logs[0] == logs[1]


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


def test_store_host_is_what_the_broker_said() -> None:
    store = open_store()
    fill(store, 1)
    view = store.read(0)
    assert view is not None
    assert bytes(view[64:72]) == HOST


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
