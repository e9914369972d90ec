"""ConsumeQueue, CommitLog, Segments and the checkpoint on their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rmq.errors import CorruptRecord, StoreError
from rmq.store.files.checkpoint import Checkpoint
from rmq.store.files.commitlog import CommitLog
from rmq.store.files.consumequeue import ConsumeQueue, Unit, queue_folder
from rmq.store.files.disk import RealDisk
from rmq.store.files.segments import OpenFiles, Segments
from rmq.store.reader import FOUND, MESSAGE_WAS_REMOVING, Limits, QueueRead, read_queue
from rmq.testing.disk import MemoryDisk

from ..stores import ROOT, Clock, bodies, fill, open_store

FOLDER = "/data/queue"


def make_queue(disk: MemoryDisk, limit: OpenFiles | None = None) -> ConsumeQueue:
    return ConsumeQueue(disk, FOLDER, "Orders", 0, 200, limit or OpenFiles(4))


def add(queue: ConsumeQueue, *units: Unit) -> None:
    for unit in units:
        queue.append(unit, 1)


def is_free(index: int, unit: Unit) -> bool:
    return unit[1] <= 0


def test_a_new_queue_file_has_its_size_and_zeros_after_the_units() -> None:
    disk = MemoryDisk()
    queue = make_queue(disk)
    add(queue, (1 << 40, 100, -5))
    queue.write()
    data = disk.load(f"{FOLDER}/{0:020d}")
    assert data == (1 << 40).to_bytes(8, "big") + (100).to_bytes(4, "big") + b"\xff" * 7 + b"\xfb" + bytes(
        180
    )


def test_the_file_size_is_whole_units() -> None:
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock, mapped_file_size_consume_queue=1001)
    fill(store, 60)
    store.close()
    assert disk.list(f"{ROOT}/consumequeue/Orders/0") == [f"{0:020d}", f"{1020:020d}"]
    assert disk.size(f"{ROOT}/consumequeue/Orders/0/{0:020d}") == 1020
    again = open_store(disk, clock, mapped_file_size_consume_queue=1001)
    assert len(bodies(again)) == 60


class QueueMachine(RuleBasedStateMachine):
    """A queue against a list, over files of ten units that are opened, closed and cut."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.units: list[Unit] = []
        self.start = 0
        self.position = 0
        self.queue = make_queue(self.disk, OpenFiles(2))

    @rule(count=st.integers(1, 25), size=st.integers(100, 200), code=st.integers(-(1 << 31), 1 << 45))
    def add(self, count: int, size: int, code: int) -> None:
        new = [(self.position + number * size, size, code + number) for number in range(count)]
        self.position += count * size
        self.units += new
        add(self.queue, *new)

    @rule()
    def write(self) -> None:
        self.queue.write()

    # A queue that was trimmed and then cut to nothing has no unit to tell its numbers by.
    @precondition(lambda self: self.start < len(self.units) or not self.start)
    @rule()
    def reload(self) -> None:
        self.queue.write()
        self.queue.close()
        self.queue = make_queue(self.disk, OpenFiles(1))
        self.queue.load(is_free)
        self.queue.trim(self.units[self.start][0] if self.start < len(self.units) else self.position)

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        keep = self.start + int((len(self.units) - self.start) * share)
        self.position = self.units[keep][0] if keep < len(self.units) else self.position
        del self.units[keep:]
        self.queue.truncate(self.position)

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        self.start += int((len(self.units) - self.start) * share)
        self.queue.trim(self.units[self.start][0] if self.start < len(self.units) else self.position)

    @invariant()
    def it_reads_as_written(self) -> None:
        queue = self.queue
        assert (queue.start, queue.end, queue.next) == (self.start, len(self.units), len(self.units))
        assert queue.end == queue.start or queue.physical_end() == self.position
        for index in range(self.start, len(self.units)):
            assert queue.unit(index) == self.units[index]
        assert queue.unit(len(self.units)) is None
        assert queue.unit(self.start - 1) is None
        for low in range(self.start, len(self.units), 7):
            data = bytes(queue.units(low, 100))
            stop = min(low - low % 10 + 10, len(self.units))
            assert len(data) == (stop - low) * 20


TestQueue = QueueMachine.TestCase


def test_a_queue_trimmed_and_cut_to_nothing_in_memory_goes_on() -> None:
    queue = make_queue(MemoryDisk())
    for number in range(18):
        add(queue, (number * 100, 100, number))
    queue.trim(1000)
    queue.truncate(1000)
    assert (queue.start, queue.end, queue.physical_end()) == (10, 10, 1000)
    queue.truncate(1000)
    add(queue, (1000, 100, 7))
    assert queue.unit(10) == (1000, 100, 7)


@pytest.mark.parametrize("start", [0, 4, 9, 10, 17, 25])
def test_the_parts_of_a_queue_end_where_its_files_end(start: int) -> None:
    queue = make_queue(MemoryDisk())
    for number in range(26):
        add(queue, (number * 100, 100, number))
    queue.trim(start * 100)
    parts = list(queue.file_ranges())
    assert [index for low, stop in parts for index in range(low, stop)] == list(range(start, 26))
    assert [stop for _, stop in parts] == [stop for stop in (10, 20, 26) if stop > start]
    assert queue.next_file(start) == start // 10 * 10 + 10


def test_units_whose_file_has_gone_are_not_there() -> None:
    disk = MemoryDisk()
    queue = make_queue(disk)
    for number in range(26):
        add(queue, (number * 100, 100, number))
    queue.write()
    assert len(queue.units(3, 5)) == 100
    disk.remove(f"{FOLDER}/{0:020d}")
    queue._files.remove_first()
    assert bytes(queue.units(3, 5)) == b""
    assert len(queue.units(13, 5)) == 100


def test_a_queue_that_is_removed_leaves_no_file_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    queue = ConsumeQueue(RealDisk(), str(tmp_path / "0"), "Orders", 0, 200, OpenFiles(4))
    for number in range(26):
        add(queue, (number * 100, 100, number))
    queue.write()
    assert len(os.listdir("/proc/self/fd")) > before
    queue.remove()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not (tmp_path / "0").exists()


@pytest.mark.parametrize("written", [0, 3, 10, 13, 20, 27])
@pytest.mark.parametrize("start", [0, 5, 10, 12, 20, 29, 30])
def test_trimming_a_queue_whose_units_are_in_memory(written: int, start: int) -> None:
    disk = MemoryDisk()
    queue = make_queue(disk)
    for number in range(30):
        if number == written:
            queue.write()
        add(queue, (number * 100, 100, number))
    queue.trim(start * 100)
    queue.write()
    queue.close()
    again = make_queue(disk)
    again.load(is_free)
    again.trim(start * 100)
    for each in (queue, again):
        assert (each.start, each.end) == (start, 30)
        assert [each.unit(index) for index in range(start, 30)] == [
            (n * 100, 100, n) for n in range(start, 30)
        ]
    kept = max(min(start, 29) - 1, 0)  # the unit before the first one stays
    assert disk.list(FOLDER) == [f"{base:020d}" for base in range(kept // 10 * 200, 600, 200)]


def test_sync_covers_all_writes_since_the_last_one() -> None:
    for seed in range(10):
        disk = MemoryDisk(seed)
        queue = make_queue(disk)
        for number in range(45):
            add(queue, (number * 100, 100, number))
            if number % 15 == 14:
                queue.write()
        queue.sync()
        disk.crash()
        again = make_queue(disk)
        again.load(is_free)
        assert again.end == 45


def test_sync_looks_for_no_file_before_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave's queue begins where its master's records do, maybe far from 0."""
    disk, looked_for = MemoryDisk(), list[str]()
    queue = make_queue(disk)
    queue.restart(100_003)
    sync = disk.sync
    monkeypatch.setattr(disk, "sync", lambda path: looked_for.append(path) or sync(path))
    add(queue, (0, 100, 7))
    queue.sync()
    queue.write()
    queue.sync()
    assert set(looked_for) == {"/data/queue/00000000000002000000"}
    disk.crash()
    again = make_queue(disk)
    again.load(is_free)
    assert again.end == 100_004


def test_no_more_files_are_open_than_allowed() -> None:
    limit = OpenFiles(3)
    disk = MemoryDisk()
    queues = [ConsumeQueue(disk, f"/data/{n}", "Orders", n, 200, limit) for n in range(50)]
    for round_ in range(3):
        for queue in queues:
            add(queue, (round_ * 100, 100, queue.queue_id))
            queue.write()
            assert len(limit) <= 3
    assert all(queue.unit(2) == (200, 100, queue.queue_id) for queue in queues)
    for queue in queues:
        queue.close()
    assert len(limit) == 0


def test_files_of_a_queue_behind_a_broken_one_are_removed() -> None:
    disk = MemoryDisk()
    queue = make_queue(disk)
    add(queue, *((number * 100, 100, number) for number in range(30)))
    queue.write()
    queue.close()
    first, broken, last = disk.list(FOLDER)
    disk.replace(f"{FOLDER}/{broken}", b"x" * 70)
    again = make_queue(disk)
    again.load(is_free)
    assert (again.start, again.end) == (0, 10)
    assert disk.list(FOLDER) == [first], "units that are made again need the place of both"
    add(again, *((number * 100, 100, number) for number in range(10, 25)))
    again.write()
    assert disk.list(FOLDER) == [first, broken, last]
    assert [again.unit(number) for number in range(25)] == [(n * 100, 100, n) for n in range(25)]
    assert again.unit(25) is None


def test_a_cut_queue_says_where_its_last_record_ends() -> None:
    queue = make_queue(MemoryDisk())
    add(queue, *((number * 100, 100, number) for number in range(25)))
    queue.write()
    queue.load(is_free)
    assert queue.known_to == 2500
    queue.truncate(2600)
    assert queue.known_to == 2500
    queue.truncate(1450)
    assert queue.physical_end() == 1400
    assert queue.known_to <= 1450, "a recovery would take what follows for known"


@pytest.mark.parametrize("unit", [(450, 100, 7), (600, 100, 7), (100, 0, 7), (100, -5, 7)])
def test_a_unit_that_is_not_inside_the_log_is_passed_over(unit: Unit) -> None:
    log = CommitLog(MemoryDisk(), "/log", 4096)
    log.open_at(0, 0)
    log.append(b"a" * 500)
    log.commit()
    queue = make_queue(MemoryDisk())
    add(queue, (0, 100, 7), unit)
    limits = Limits(1 << 20, 1 << 20, 32, 1 << 20, 32)
    found = read_queue(queue, log, limits, QueueRead(0, 32, 1 << 20))
    assert (found.status, found.count, found.size, found.next_queue_offset) == (FOUND, 1, 100, 2)
    assert [bytes(view) for view in found.buffers] == [b"a" * 100]
    none = read_queue(queue, log, limits, QueueRead(1, 32, 1 << 20))
    assert (none.status, none.count, none.next_queue_offset) == (MESSAGE_WAS_REMOVING, 0, 2)


def test_folders_are_inside_the_store() -> None:
    assert queue_folder("/s", "%RETRY%g", 3) == "/s/consumequeue/%RETRY%g/3"
    for topic, queue_id in (("..", 0), ("a/..", 0), ("", 0), ("T", -1), ("a\0", 1)):
        with pytest.raises(StoreError):
            queue_folder("/s", topic, queue_id)


def test_segments_refuse_a_gap_and_a_wrong_size() -> None:
    disk = MemoryDisk()

    def make(size: int = 100) -> Segments:
        return Segments(disk, "/log", size, limit=OpenFiles(9), mapped=True, ordered=True)

    log = make()
    log.write(0, b"x" * 350)
    log.close()
    again = make()
    again.load()
    assert (again.start, again.stop) == (0, 400)
    assert bytes(again.read(330, 20) or b"") == b"x" * 20
    assert again.read(90, 20) is None, "a read lies in one file"
    assert again.read(400, 1) is None
    disk.remove(f"/log/{300:020d}")
    disk.remove(f"/log/{100:020d}")
    with pytest.raises(StoreError, match="expected 200"):
        make(200).load()
    with pytest.raises(CorruptRecord, match="missing"):
        make().load()


@given(st.lists(st.integers(1, 300), max_size=20))
def test_segments_are_one_address_space(sizes: list[int]) -> None:
    disk = MemoryDisk()
    segments = Segments(disk, "/log", 128, limit=OpenFiles(2), mapped=True, ordered=False)
    model = bytearray()
    for number, size in enumerate(sizes):
        data = bytes([number + 1]) * size
        segments.write(len(model), data)
        model += data
    for at in range(0, len(model), 50):
        size = min(30, 128 - at % 128, len(model) - at)
        assert bytes(segments.read(at, size) or b"") == model[at : at + size]
    cut = len(model) // 2
    segments.truncate(cut)
    assert segments.stop == (max(-(-cut // 128), 1) * 128 if model else 0)
    for at in range(cut - cut % 128, segments.stop):
        assert bytes(segments.read(at, 1) or b"") == (model[at : at + 1] if at < cut else b"\0")


def test_no_power_cut_takes_a_log_file_and_leaves_a_later_one() -> None:
    disk = MemoryDisk(1)
    segments = Segments(disk, "/log", 128, limit=OpenFiles(9), mapped=True, ordered=True)
    for address in (0, 128, 256):
        segments.make(address)
        for seed in range(8):
            assert disk.image(seed).list("/log") == [f"{base:020d}" for base in segments.bases]


def test_flush_syncs_what_is_committed_and_no_more() -> None:
    disk = MemoryDisk()
    log = CommitLog(disk, "/log", 4096)
    log.open_at(0, 0)
    synced: list[str] = []
    disk.on_sync = synced.append
    log.append(b"a" * 100)
    assert log.flush() == 0
    log.commit()
    log.append(b"b" * 100)
    synced.clear()
    assert log.flush() == 100
    assert synced == [f"/log/{0:020d}"]
    synced.clear()
    assert log.flush() == 100
    assert synced == []


def test_ranges_of_several_files_are_read_as_they_lie_there() -> None:
    log = CommitLog(MemoryDisk(), "/log", 100)
    log.open_at(0, 0)
    for letter in b"abcdefgh":
        if log.left < 30 + 8:
            log.roll(30)
        log.append(bytes([letter]) * 30)
    log.commit()
    ranges = [(0, 30), (30, 90), (210, 240), (220, 225), (110, 120), (100, 130), (0, 1)]
    views = log.read_ranges(ranges)
    assert [len(view) for view in views] == [stop - start for start, stop in ranges]
    assert views == [log.read(start, stop - start) for start, stop in ranges]
    assert log.read_ranges([]) == []


def test_a_commit_during_a_flush_is_not_counted_as_synced() -> None:
    disk = MemoryDisk()
    log = CommitLog(disk, "/log", 4096)
    log.open_at(0, 0)
    log.append(b"a" * 100)
    log.commit()

    def send_meanwhile(path: str) -> None:
        disk.on_sync = None
        log.append(b"b" * 100)
        log.commit()

    disk.on_sync = send_meanwhile
    assert log.flush() == 100
    assert (log.end, log.flushed) == (200, 100)
    assert log.flush() == 200


def test_checkpoint_keeps_three_times_in_4096_bytes() -> None:
    disk = MemoryDisk()
    checkpoint = Checkpoint(disk, "/store/checkpoint")
    assert checkpoint.replay_from_ms == 0
    checkpoint.log_ms, checkpoint.queues_ms, checkpoint.index_ms = 10_000, 9_000, 5
    checkpoint.flush()
    checkpoint.close()
    data = disk.load("/store/checkpoint") or b""
    assert data == b"".join(n.to_bytes(8, "big") for n in (10_000, 9_000, 5)) + bytes(4072)
    again = Checkpoint(disk, "/store/checkpoint")
    assert (again.log_ms, again.queues_ms, again.index_ms) == (10_000, 9_000, 5)
    assert again.replay_from_ms == 6_000


def test_ten_thousand_queues_need_few_descriptors(tmp_path: object) -> None:
    """The real thing on a small scale; benchmarks/micro_store.py measures it with 10,000."""
    store = open_store(RealDisk(), root=str(tmp_path), mapped_file_size_commit_log=1 << 20)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(600):
        fill(store, 1, topic=f"Topic{number % 300}", queue_id=number // 300)
    store.close()
    again = open_store(RealDisk(), root=str(tmp_path), mapped_file_size_commit_log=1 << 20)
    assert all(bodies(again, f"Topic{number % 300}", number // 300) for number in range(600))
    assert len(os.listdir("/proc/self/fd")) < before + 300
    again.close()
    assert len(os.listdir("/proc/self/fd")) < before
