"""Reads of a store: by offset, within limits, by time."""

from __future__ import annotations

import pytest

from rmq.message import tags_code
from rmq.protocol import engine
from rmq.protocol.record import decode_record, decode_records
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.files.consumequeue import UNIT, UNIT_FORM
from rmq.testing.disk import MemoryDisk

from .stores import ROOT, START_MS, Clock, fill, make_store, open_store, record, send

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


@pytest.mark.parametrize("damage", [1, 100, 5_000])
def test_a_damaged_unit_that_names_bytes_of_two_files_is_left_out(damage: int) -> None:
    store = open_store(mapped_file_size_commit_log=4_000)
    fill(store, 60)
    queue = store.lane("Orders", 0)
    assert queue is not None
    units = list(UNIT_FORM.iter_unpack(queue.tail))
    last = next(at for at in range(60) if units[at + 1][0] // 4_000 > units[at][0] // 4_000)
    place, _, code = units[last]
    size = 4_000 - place % 4_000 + damage
    queue.tail[last * UNIT : (last + 1) * UNIT] = UNIT_FORM.pack(place, size, code)
    result = store.get("Orders", 0, last - 1, 3)
    bodies = [message.body for buffer in result.buffers for message in decode_records(buffer)]
    others = [store.get("Orders", 0, offset, 1) for offset in (last - 1, last + 1, last + 2)]
    assert bodies == [message.body for one in others for message in decode_records(one.buffers[0])]
    assert result.size == sum(map(len, result.buffers)) == sum(one.size for one in others)
    assert (result.count, result.next_queue_offset) == (3, last + 3)


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
    assert len(across.buffers) == (2 if engine.compiled is None else 1)
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
