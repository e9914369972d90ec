"""Expiry by age and by the disk's watermarks."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from rmq.errors import StoreError
from rmq.store.config import StoreConfig
from rmq.store.files.disk import DiskUsage
from rmq.store.retention import disk_state, why_clean
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

from .stores import ROOT, START_MS, Clock, bodies, open_store, record, send

HOUR_MS = 3_600_000
ALL_DAY = ";".join(f"{hour:02d}" for hour in range(24))


def usage(percent: float, free: int = 1 << 40) -> DiskUsage:
    return DiskUsage(percent / 100, free)


def filled(clock: Clock, **settings: object) -> tuple[MemoryDisk, Store]:
    """A store of about 10 log files, one an hour."""
    disk = MemoryDisk()
    store = open_store(disk, clock, **settings)
    for number in range(100):
        send(store, record(f"message {number} " + "x" * 250, unique=f"K{number}"))
        clock.now_ms += HOUR_MS // 10
    while store.dispatch():
        pass
    return disk, store


def log_files(disk: MemoryDisk) -> int:
    return len(disk.list(f"{ROOT}/commitlog"))


def test_why_files_go() -> None:
    config = StoreConfig(delete_when="04", disk_min_free_bytes=1000)
    four = START_MS - START_MS % HOUR_MS
    while time.localtime(four // 1000).tm_hour != 4:
        four += HOUR_MS
    assert why_clean(usage(50), config, four) == "time"
    assert why_clean(usage(50), config, four + HOUR_MS) == ""
    assert why_clean(usage(75), config, four + HOUR_MS) == ""
    assert why_clean(usage(76), config, four + HOUR_MS) == "space"
    assert why_clean(usage(85), config, four + HOUR_MS) == "space"
    assert why_clean(usage(86), config, four + HOUR_MS) == "forced"
    assert why_clean(usage(10, 1999), config, four + HOUR_MS) == "forced"
    gentle = StoreConfig(delete_when="04", clean_file_forcibly_enable=False)
    assert why_clean(usage(99), gentle, four + HOUR_MS) == "space"
    twice = StoreConfig(delete_when="05;04")
    assert why_clean(usage(50), twice, four + HOUR_MS) == "time"


def test_sends_are_refused_over_the_highest_watermark() -> None:
    config = StoreConfig(disk_min_free_bytes=1000)
    assert disk_state(usage(90), config).is_writable
    full = disk_state(usage(91), config)
    assert not full.is_writable
    assert "91% full" in full.reason
    assert "over 90 %" in full.reason
    short = disk_state(usage(10, 999), config)
    assert not short.is_writable
    assert "under 1000 free bytes" in short.reason


def test_disk_state_looks_once_a_second() -> None:
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    assert store.disk_state().is_writable
    disk.capacity = 0
    assert store.disk_state().is_writable
    clock.now_ms += 1000
    assert not store.disk_state().is_writable


def test_files_go_by_age_in_order_and_whole() -> None:
    clock = Clock()
    disk, store = filled(clock, file_reserved_time=5, delete_when=ALL_DAY)
    before, start = log_files(disk), store.min_physical_offset
    report = store.clean(clock.now_ms)
    assert report.reason == "time"
    assert 0 < report.log_files < before
    assert log_files(disk) == before - report.log_files
    assert store.min_physical_offset == start + report.log_files * 4096
    first = store.min_offset("Orders", 0)
    assert 30 < first < 55
    assert store.message_time("Orders", 0, first) >= clock.now_ms - 6 * HOUR_MS
    assert bodies(store)[0].startswith(b"message %d " % first)
    assert store.get("Orders", 0, 0, 32).next_queue_offset == first
    assert (store.clean(clock.now_ms).log_files, report.reason) == (0, "time")


def test_queues_and_index_go_with_the_log() -> None:
    clock = Clock()
    disk, store = filled(clock, file_reserved_time=3, delete_when=ALL_DAY)
    clock.now_ms += 10_000
    store.dispatch()
    queue_files = disk.list(f"{ROOT}/consumequeue/Orders/0")
    assert len(queue_files) == 10
    report = store.clean(clock.now_ms)
    first = store.min_offset("Orders", 0)
    assert disk.list(f"{ROOT}/consumequeue/Orders/0")[0] == f"{first // 10 * 200:020d}"
    assert report.queue_files == first // 10
    assert report.index_files > 0
    assert store.query("Orders", "K1", 5, 0, 1 << 60) == []
    assert len(store.query("Orders", f"K{first}", 5, 0, 1 << 60)) == 1
    expected = bodies(store)
    store.close()
    again = open_store(disk, clock)
    assert bodies(again) == expected
    assert again.min_offset("Orders", 0) == first


def test_the_last_file_never_goes() -> None:
    clock = Clock()
    disk, store = filled(clock, file_reserved_time=1, delete_when=ALL_DAY)
    clock.now_ms += 1000 * HOUR_MS
    for _ in range(5):
        store.clean(clock.now_ms)
    assert log_files(disk) == 1
    assert store.max_physical_offset > store.min_physical_offset
    send(store, record("still works"))
    assert bodies(store)[-1] == b"still works"


def test_a_queue_that_lost_all_its_messages_keeps_counting() -> None:
    clock = Clock()
    disk = MemoryDisk()
    store = open_store(disk, clock, file_reserved_time=1, delete_when=ALL_DAY)
    send(store, record("early"))
    clock.now_ms += 10 * HOUR_MS
    for _ in range(40):
        send(store, record("x" * 250, topic="Busy"))
    clock.now_ms += 2 * HOUR_MS
    assert store.clean(clock.now_ms).log_files > 0
    assert (store.min_offset("Orders", 0), store.max_offset("Orders", 0)) == (1, 1)
    result = store.get("Orders", 0, 0, 32)
    assert (result.status, result.next_queue_offset) == ("OFFSET_TOO_SMALL", 1)
    result = store.get("Orders", 0, 1, 32)
    assert (result.status, result.next_queue_offset) == ("OFFSET_OVERFLOW_ONE", 1)
    store.close()
    again = open_store(disk, clock)
    assert again.max_offset("Orders", 0) == 1
    send(again, record("late"))
    assert bodies(again) == [b"late"]


def test_gathered_bytes_are_counted_right_after_a_trim() -> None:
    clock = Clock()
    store = open_store(clock=clock, file_reserved_time=3, delete_when=ALL_DAY)
    for number in range(60):
        send(store, record(f"message {number} " + "x" * 250, queue_id=number % 2))
        clock.now_ms += HOUR_MS // 5
    assert store.clean(clock.now_ms).log_files > 0
    queues = store._queues
    assert queues._gathered_bytes == sum(queue.gathered for queue in queues.table.values()) > 0
    assert queues._gathered_bytes < 60 * 20
    store.close()
    assert queues._gathered_bytes == 0


def test_a_full_disk_takes_the_oldest_files_whatever_their_age() -> None:
    clock = Clock()
    disk, store = filled(clock, file_reserved_time=10_000, delete_when="04")
    disk.capacity = int(disk.used / 0.88)
    report = store.clean(clock.now_ms)
    assert report.reason == "forced"
    assert report.log_files > 0
    assert bodies(store)


def test_at_most_ten_files_go_at_once() -> None:
    clock = Clock()
    _, store = filled(clock, file_reserved_time=1, delete_when=ALL_DAY)
    for number in range(100):
        send(store, record("y" * 300, unique=f"L{number}"))
    clock.now_ms += 100 * HOUR_MS
    assert store.clean(clock.now_ms).log_files == 10


def test_trimming_very_many_queues_is_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq.store.files.queues._TRIM_AT_ONCE", 3)
    clock = Clock()
    disk = MemoryDisk()
    store = open_store(disk, clock, file_reserved_time=1, delete_when=ALL_DAY)
    for number in range(200):
        send(store, record("x" * 250, queue_id=number % 10))
        clock.now_ms += HOUR_MS // 20
    clock.now_ms += 10_000
    store.dispatch()
    assert all(len(disk.list(f"{ROOT}/consumequeue/Orders/{queue_id}")) == 2 for queue_id in range(10))
    store.clean(clock.now_ms)
    assert store.min_offset("Orders", 9) > 0, "a queue that was not trimmed yet answers right"
    store.clean(clock.now_ms)
    while store.dispatch():
        pass
    assert all(len(disk.list(f"{ROOT}/consumequeue/Orders/{queue_id}")) == 1 for queue_id in range(10))


def slow(clock: Clock) -> Callable[[], int]:
    """A clock on which each look at a file takes a millisecond."""

    def now_ms() -> int:
        clock.now_ms += 1
        return clock.now_ms

    return now_ms


def test_a_piece_of_a_trim_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    store = open_store(MemoryDisk(), clock, file_reserved_time=1, delete_when=ALL_DAY)
    for number in range(200):
        send(store, record("x" * 250, queue_id=number % 100))
        clock.now_ms += HOUR_MS // 20
    clock.now_ms += 10_000
    while store.dispatch():
        pass
    clock.now_ms += 100 * HOUR_MS
    monkeypatch.setattr(store._queues, "_now_ms", slow(clock))
    assert store.clean(clock.now_ms).log_files
    pieces = 1
    while store.dispatch():
        pieces += 1
    assert pieces > 30, "each of them looks at three queues at most"
    assert [store.min_offset("Orders", queue_id) for queue_id in (0, 50)] == [2, 1]


def test_a_piece_of_writing_queue_files_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    store = open_store(MemoryDisk(), clock)
    for number in range(100):
        send(store, record("x", queue_id=number))
    assert not store.dispatch(), "young units wait"
    clock.now_ms += 10_000
    monkeypatch.setattr(store._queues, "_now_ms", slow(clock))
    pieces = [len(store._queues._gathered)]
    while store.dispatch():
        pieces.append(len(store._queues._gathered))
    assert len(pieces) > 30, pieces
    assert not store._queues._gathered


def test_files_that_cannot_be_written_are_left_for_a_later_look() -> None:
    clock, disk = Clock(), MemoryDisk()
    store = open_store(disk, clock)
    for number in range(100):
        send(store, record("x", queue_id=number))
    clock.now_ms += 10_000
    disk.capacity = disk.used
    assert not store.dispatch(), "it would be called again at once"
    assert store.is_indexed
    assert len(store._queues._gathered) == 100


def test_no_more_files_go_than_make_room_enough() -> None:
    clock = Clock()
    disk, store = filled(clock, file_reserved_time=10_000, delete_when="04")
    disk.capacity = int(disk.used / 0.86)  # one file of ten is 4 % of it
    before = log_files(disk)
    assert store.clean(clock.now_ms).log_files == before - log_files(disk) == 1
    assert store.clean(clock.now_ms).log_files == 0


def test_a_deleted_topic_makes_room_before_any_file_of_the_log_goes() -> None:
    clock = Clock()
    disk, store = filled(clock, file_reserved_time=10_000, delete_when="04")
    for number in range(90):
        send(store, record("x", topic="Bills", queue_id=number % 4))
    clock.now_ms += 10_000
    store.dispatch()
    disk.capacity = int(disk.used / 0.88)
    before = log_files(disk)
    store.remove_topic("Bills")
    assert store.clean(clock.now_ms).log_files == 0
    assert log_files(disk) == before


def test_a_full_disk_gives_up_no_file_while_another_waits_to_be_removed() -> None:
    clock = Clock()
    disk, store = filled(clock, file_reserved_time=10_000, delete_when="04")
    disk.capacity = int(disk.used / 0.88)
    # As the request of an operator does it, who asks for expired files: the disk takes its time.
    taken = 0
    while store.retention.take(store.config, clock.now_ms, asked=True):
        taken += 1
    assert taken == 1


def test_a_file_leaves_the_log_before_the_disk_and_its_units_after_it() -> None:
    clock = Clock()
    disk, store = filled(clock, file_reserved_time=5, delete_when=ALL_DAY)
    clock.now_ms += 10_000
    store.dispatch()
    everything, units = bodies(store), disk.list(f"{ROOT}/consumequeue/Orders/0")
    while store.retention.take(store.config, clock.now_ms):
        pass
    first = store.min_offset("Orders", 0)
    assert bodies(store) == everything[first:] != everything

    # A reader has trimmed the queue by now, but a crash still finds units for all the records.
    assert disk.list(f"{ROOT}/consumequeue/Orders/0") == units
    again = open_store(disk.copy(), clock, file_reserved_time=5)
    assert bodies(again) == everything

    paths = []
    while (path := store.retention.path) is not None:
        paths.append(path)
        disk.remove(path)
        store.retention.removed(path)
    assert paths[0] == f"{ROOT}/commitlog/{0:020d}"
    assert any("/index/" in path for path in paths)
    assert disk.list(f"{ROOT}/consumequeue/Orders/0") == units[first // 10 :]
    assert bodies(store) == everything[first:]


def test_a_file_that_cannot_be_removed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    disk, store = filled(clock, file_reserved_time=5, delete_when=ALL_DAY)
    with monkeypatch.context() as patch:

        def refuse(path: str) -> None:
            raise StoreError(f"{path} is busy")

        patch.setattr(disk, "remove", refuse)
        with pytest.raises(StoreError, match="busy"):
            store.clean(clock.now_ms)
    assert f"{0:020d}" in disk.list(f"{ROOT}/commitlog")
    with pytest.raises(StoreError, match="is being removed"):
        store.set_aside()
    store.clean(clock.now_ms)
    assert f"{0:020d}" not in disk.list(f"{ROOT}/commitlog")
    assert store.retention.path is None


def test_what_queues_lost_is_told_once() -> None:
    clock = Clock()
    disk, store = filled(clock, file_reserved_time=5, delete_when=ALL_DAY)
    store.close()
    store = open_store(disk, clock, file_reserved_time=5, delete_when=ALL_DAY)
    assert store.lost() == []
    store.clean(clock.now_ms)
    first = store.min_offset("Orders", 0)
    assert store.lost() == [("Orders", 0, 0, first)]
    assert store.lost() == []
    store.close()

    # What was lost before a start is not told again, though nobody has looked at the queue since.
    store = open_store(disk, clock, file_reserved_time=2, delete_when=ALL_DAY)
    store.clean(clock.now_ms)
    assert store.lost() == [("Orders", 0, first, store.min_offset("Orders", 0))]


# ---- a wall clock that is wrong ----


class Times:
    """A wall clock and one that nobody sets."""

    def __init__(self) -> None:
        self.clock, self.seconds = Clock(), 500.0

    def steady(self) -> float:
        return self.seconds

    def go_on(self, seconds: float) -> None:
        self.clock.now_ms += round(seconds * 1000)
        self.seconds += seconds


def filled_in(times: Times, disk: MemoryDisk, **settings: object) -> Store:
    store = open_store(disk, times.clock, steady=times.steady, file_reserved_time=72, **settings)
    for number in range(100):
        send(store, record(f"message {number} " + "x" * 250))
        times.go_on(360)
        store.clean(times.clock.now_ms)  # as a service does, again and again
    return store


def test_a_clock_that_is_ahead_for_seconds_deletes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    times, disk = Times(), MemoryDisk()
    store = filled_in(times, disk, delete_when=ALL_DAY)
    everything, files = bodies(store), log_files(disk)
    times.clock.now_ms += 240 * HOUR_MS
    for _ in range(3):
        assert store.clean(times.clock.now_ms).log_files == 0
        times.go_on(3)
    assert caplog.text.count("NOT DELETED") == 1
    assert "set by +864000 s" in caplog.text
    times.clock.now_ms -= 240 * HOUR_MS
    store.clean(times.clock.now_ms)
    assert (bodies(store), log_files(disk)) == (everything, files)


def test_a_clock_that_stays_where_it_was_set_is_believed_after_an_hour_or_by_command() -> None:
    for asked in (False, True):
        times, disk = Times(), MemoryDisk()
        store = filled_in(times, disk, delete_when=ALL_DAY)
        times.clock.now_ms += 240 * HOUR_MS
        for _ in range(59):
            assert store.clean(times.clock.now_ms).log_files == 0
            times.go_on(60)
        if asked:
            assert store.clean(times.clock.now_ms, asked=True).log_files > 0
        else:
            assert store.clean(times.clock.now_ms).log_files == 0
            times.go_on(61)
            assert store.clean(times.clock.now_ms).log_files > 0
        assert log_files(disk) == 1


def test_a_start_long_after_the_last_message_deletes_nothing_for_an_hour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    times, disk = Times(), MemoryDisk()
    filled_in(times, disk, delete_when=ALL_DAY).close()
    times.go_on(240 * 3600)
    store = open_store(disk, times.clock, steady=times.steady, delete_when=ALL_DAY)
    send(store, record("first of now"))
    assert store.clean(times.clock.now_ms).log_files == 0
    assert "later than the last message" in caplog.text
    times.go_on(3601)
    assert store.clean(times.clock.now_ms).log_files > 0


def test_a_clock_that_is_corrected_slowly_is_believed() -> None:
    times, disk = Times(), MemoryDisk()
    store = filled_in(times, disk, delete_when=ALL_DAY)
    for _ in range(1000):
        times.go_on(360)
        times.clock.now_ms += 180  # 500 ppm
        store.clean(times.clock.now_ms)
    assert log_files(disk) == 1


def test_a_full_disk_is_emptied_whatever_the_clock_says() -> None:
    times, disk = Times(), MemoryDisk()
    store = filled_in(times, disk, delete_when="04")
    times.clock.now_ms += 240 * HOUR_MS
    disk.capacity = int(disk.used / 0.88)
    report = store.clean(times.clock.now_ms)
    assert (report.reason, report.log_files > 0) == ("forced", True)
