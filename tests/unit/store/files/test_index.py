"""The key index: hash, order, roll over, times."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.errors import DiskFull
from rmq.message import java_hash
from rmq.store.files.disk import RealDisk, RealSegment
from rmq.store.files.index import Index, KeyHash
from rmq.testing.disk import MemoryDisk

from ..stores import ROOT, START_MS, Clock, open_store, record, send

FOLDER = "/data/store/index"


def entry(number: int, key: str | None = None, step_ms: int = 1000) -> tuple[str, tuple[str, ...], int, int]:
    return "Orders", (key or f"K{number}",), number * 100, START_MS + number * step_ms


def make(disk: MemoryDisk | None = None, slots: int = 16, capacity: int = 20) -> Index:
    index = Index(disk or MemoryDisk(), FOLDER, slots, capacity)
    index.load(None)
    return index


def test_hashes_are_java_s(golden: Path) -> None:
    key_hash = KeyHash()
    vectors: Any = json.loads((golden / "index_hash.json").read_text())["vectors"]
    assert len(vectors) > 40
    for row in vectors:
        assert key_hash(row["topic"], row["key"]) == row["key_hash"], row


@given(
    st.text(st.characters(codec="utf-16"), max_size=8),
    st.text(st.characters(codec="utf-16"), max_size=12) | st.text("0123456789ABCDEF", max_size=40),
)
def test_hashes_agree_with_the_plain_rule(topic: str, key: str) -> None:
    plain = abs(java_hash(f"{topic}#{key}"))
    assert KeyHash()(topic, key) == (0 if plain == 0x80000000 else plain)
    many = KeyHash()
    many._LIMIT = 2  # type: ignore[misc]
    assert many(topic, "first") == many(topic, "first") == KeyHash()(topic, "first")
    assert many(topic, key) == many(topic, key) == (0 if plain == 0x80000000 else plain)


def test_the_hash_that_has_no_absolute_value_is_zero() -> None:
    target = next(
        f"{a}{b}"
        for a in map("{:c}".format, range(33, 127))
        for b in [_completing(a)]
        if b and abs(java_hash(f"T#{a}{b}")) == 0x80000000
    )
    assert KeyHash()("T", target) == 0


def _completing(start: str) -> str | None:
    """Letters that bring the hash of T#start… to -2147483648, found digit by digit."""
    need = (0x80000000 - java_hash(f"T#{start}") * 31**6) & 0xFFFFFFFF
    for carry in range(2):
        rest, letters = need + carry * (1 << 32), []
        for power in range(5, -1, -1):
            digit = min(max((rest - 40 * sum(31**p for p in range(power))) // 31**power, 33), 126)
            letters.append(chr(digit))
            rest -= digit * 31**power
        if rest == 0:
            return "".join(letters)
    return None


def test_entries_are_found_newest_first_and_by_time() -> None:
    index = make()
    index.add([entry(number, "same") for number in range(5)], START_MS)
    assert index.find("Orders", "same", 0, 1 << 60, 64) == [400, 300, 200, 100, 0]
    assert index.find("Orders", "same", 0, 1 << 60, 2) == [400, 300]
    assert index.find("Orders", "same", START_MS + 1000, START_MS + 3000, 64) == [300, 200, 100]
    assert index.find("Orders", "same", START_MS + 10_000, 1 << 60, 64) == []
    assert index.find("Orders", "other", 0, 1 << 60, 64) == []
    assert index.find("Other", "same", 0, 1 << 60, 64) == []


def test_both_ends_of_a_time_count() -> None:
    index = make()
    index.add([entry(number) for number in range(10)], START_MS)
    assert index.find("Orders", "K5", START_MS + 5000, START_MS + 5000, 9) == [500]
    assert index.find("Orders", "K5", START_MS + 5001, START_MS + 9000, 9) == []
    assert index.find("Orders", "K5", START_MS, START_MS + 4999, 9) == []
    assert index.find("Orders", "K5", START_MS + 2000, START_MS + 99_000, 9) == [500]
    assert index.find("Orders", "K5", START_MS - 9000, START_MS + 7000, 9) == [500]
    assert index.find("Orders", "K5", START_MS - 9000, START_MS + 99_000, 9) == [500]


def test_a_full_file_is_followed_by_another() -> None:
    disk = MemoryDisk()
    index = make(disk)
    for number in range(100):
        index.add([entry(number)], START_MS + number * 1000)
    assert [file.count for file in index.files] == [20, 20, 20, 20, 20, 6]
    assert all(file.is_full for file in index.files[:-1])
    for number in range(100):
        assert index.find("Orders", f"K{number}", 0, 1 << 60, 64) == [number * 100]
    names = disk.list(FOLDER)
    stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(START_MS // 1000))
    assert names[0] == f"{stamp}{START_MS % 1000:03d}"
    again = make(disk)
    assert again.find("Orders", "K42", 0, 1 << 60, 64) == [4200]
    assert again.end_offset == 9900


def test_keys_of_one_record_may_lie_in_two_files() -> None:
    index = make(capacity=4)
    index.add([("Orders", ("a", "b", "c", "d", "e", "f", "g"), 50, START_MS)], START_MS)
    assert len(index.files) == 3
    assert all(index.find("Orders", key, 0, 1 << 60, 9) == [50] for key in "abcdefg")


def test_files_made_in_one_millisecond_have_names_in_order() -> None:
    disk = MemoryDisk()
    index = make(disk, capacity=3)
    index.add([entry(number) for number in range(9)], START_MS)
    index.add([entry(number) for number in range(9, 12)], START_MS - 5000)  # the clock was set back
    assert [os.path.basename(file.path) for file in index.files] == disk.list(FOLDER)
    assert len(index.files) == 6
    assert all(make(disk, capacity=3).find("Orders", f"K{n}", 0, 1 << 60, 9) == [n * 100] for n in range(12))


def test_a_file_that_is_in_the_way_is_left_alone() -> None:
    disk = MemoryDisk()
    first, second = make(disk), make(disk)
    first.add([entry(1)], START_MS)
    second.add([entry(2)], START_MS)
    assert second.files[0].path > first.files[0].path
    assert first.find("Orders", "K1", 0, 1 << 60, 9) == [100]


def test_after_a_crash_files_past_the_checkpoint_are_made_again() -> None:
    disk = MemoryDisk()
    index = make(disk)
    index.add([entry(number) for number in range(50)], START_MS)
    assert index.sync() == START_MS + 37_000
    crashed = Index(disk, FOLDER, 16, 20)
    crashed.load(START_MS + 37_000)
    assert len(crashed.files) == 2
    assert crashed.end_offset == 3700
    assert len(disk.list(FOLDER)) == 2


def test_after_a_crash_only_the_file_that_was_synced_is_believed() -> None:
    """Everything in one millisecond: the checkpoint's time says which file it was only with `full`."""
    for seed in range(20):
        disk = MemoryDisk(seed)
        index = make(disk, capacity=400)
        index.add([entry(number, step_ms=0) for number in range(399)], START_MS)
        assert index.sync() == START_MS
        index.add([entry(number, step_ms=0) for number in range(399, 1100)], START_MS)
        disk.crash()
        crashed = Index(disk, FOLDER, 16, 400)
        crashed.load(START_MS)
        assert [file.count for file in crashed.files] == [400]
        assert crashed.end_offset == 39_800
        assert len(disk.list(FOLDER)) == 1


def test_the_checkpoint_does_not_vouch_for_files_made_again() -> None:
    """The index was synced, the log was not; all happens in one millisecond."""
    for seed in range(20):
        disk = MemoryDisk(seed)
        store = open_store(disk, max_index_num=400)  # two pages, of which one may be lost
        send(store, *[record("x", unique=f"K{number}") for number in range(399)])
        while store.dispatch():
            pass
        store.flush_queues()
        store.flush_checkpoint()
        disk.crash()
        store = open_store(disk, max_index_num=400)
        send(store, *[record("y", unique=f"L{number}") for number in range(399)])
        store.flush()
        while store.dispatch():
            pass
        count = store.max_offset("Orders", 0) - 399
        disk.crash()
        store = open_store(disk, max_index_num=400)
        while store.dispatch():
            pass
        keys = [f"K{number}" for number in range(count)] + [f"L{number}" for number in range(399)]
        assert [len(store.query("Orders", key, 5, 0, 1 << 60)) for key in keys] == [1] * len(keys)


def test_an_empty_last_file_does_not_hide_what_is_to_go() -> None:
    disk = MemoryDisk()
    index = make(disk, capacity=10)
    index.add([entry(number) for number in range(9)], START_MS)
    index._make(START_MS + 9000)
    index.truncate(500)
    assert index.files == []


def test_a_file_of_another_size_is_made_again() -> None:
    disk = MemoryDisk()
    index = make(disk)
    index.add([entry(number) for number in range(50)], START_MS)
    other = make(disk, capacity=30)
    assert other.files == []
    assert disk.list(FOLDER) == []


def test_trim_and_truncate() -> None:
    index = make()
    index.add([entry(number) for number in range(100)], START_MS)
    assert index.trim(1700) == []
    assert index.trim(1800) == [], "the record of its last entry is the first of the log"
    assert len(index.trim(2000)) == 1
    assert index.find("Orders", "K5", 0, 1 << 60, 9) == []
    assert index.find("Orders", "K19", 0, 1 << 60, 9) == [1900]
    index.truncate(9000)
    assert index.end_offset == 7500
    before = len(index.files)
    assert len(index.trim(1 << 40)) == before - 1 > 0
    assert len(index.files) == 1, "the last file stays"


def test_a_chain_that_a_broken_file_makes_a_ring_ends() -> None:
    disk = MemoryDisk()
    index = make(disk, slots=1)
    index.add([entry(number, "same") for number in range(5)], START_MS)
    segment = index.files[0].segment
    at = 40 + 4 + 2 * 20 + 16
    segment.writable(at + 4)[at : at + 4] = (4).to_bytes(4, "big")  # entry 2 points forward
    assert index.find("Orders", "same", 0, 1 << 60, 64) == [400, 300, 200, 100]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_index_catches_up_after_it_was_off(enabled: bool) -> None:
    disk = MemoryDisk()
    store = open_store(disk, message_index_enable=False)
    for number in range(100):
        send(store, record("x", unique=f"K{number}", keys="shared a"))
    store.close()
    again = open_store(disk, message_index_enable=enabled)
    assert again.dispatch_behind_bytes == (again.max_physical_offset if enabled else 0)
    send(again, record("y", unique="K100", keys="shared"))
    steps = 1
    while again.dispatch(30):
        steps += 1
    assert steps == (4 if enabled else 1)
    assert len(again.query("Orders", "shared", 200, 0, 1 << 60)) == (64 if enabled else 0)
    for number in (0, 50, 100):
        assert len(again.query("Orders", f"K{number}", 9, 0, 1 << 60)) == enabled


@pytest.mark.parametrize("follows", [True, False])
def test_the_index_goes_on_behind_damage(follows: bool) -> None:
    disk = MemoryDisk()
    settings = {"message_index_enable": False, "mapped_file_size_commit_log": 1 << 16}
    store = open_store(disk, **settings)
    for number in range(20):
        send(store, record("x", unique=f"K{number}"))
    broken = 9 if follows else 19
    unit = store.unit("Orders", 0, broken)
    assert unit is not None
    store.close()
    again = open_store(disk, **settings | {"message_index_enable": True})
    disk.flip(f"{ROOT}/commitlog/{0:020d}", unit[0] + 4)  # its magic
    while again.dispatch(30):
        pass
    found = [
        len(again.lookup("Orders", f"K{number}", 9, 0, 1 << 60).physical_offsets) for number in range(20)
    ]
    assert found == [int(number != broken) for number in range(20)]


def test_hashes_of_ever_new_keys_take_little_memory() -> None:
    made = KeyHash()
    tracemalloc.start()
    try:
        for number in range(60_000):
            made("Orders", f"{number:08d}abc")
        assert tracemalloc.get_traced_memory()[0] < 3 << 20
    finally:
        tracemalloc.stop()
    assert made("Orders", "00000000abc") == KeyHash()("Orders", "00000000abc")


def test_commit_helps_when_the_backlog_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq.store.writer.COUNT_BACKLOG", 40)
    store = open_store()
    for number in range(200):
        send(store, record("x", unique=f"K{number}"))
        assert len(store._reput) <= 41


def test_keys_of_rolled_back_records_are_not_indexed() -> None:
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    send(store, record("half", unique="HALF", sys_flag=4), record("rolled", unique="ROLLED", sys_flag=12))
    send(store, record("done", unique="DONE", sys_flag=8))
    for each in (store, open_store(disk.copy(), clock)):
        while each.dispatch():
            pass
        found = {
            key: len(each.lookup("Orders", key, 9, 0, 1 << 60).physical_offsets)
            for key in ("HALF", "ROLLED", "DONE")
        }
        assert found == {"HALF": 1, "ROLLED": 0, "DONE": 1}


def test_query_leaves_out_other_keys_with_the_same_hash() -> None:
    store = open_store()
    send(store, record("one", keys="AaAa"), record("two", keys="BBBB"))
    assert len(store.lookup("Orders", "AaAa", 9, 0, 1 << 60).physical_offsets) == 1
    assert len(store._index.find("Orders", "AaAa", 0, 1 << 60, 9)) == 2
    assert [message.body for message in store.query("Orders", "AaAa", 9, 0, 1 << 60)] == [b"one"]


def test_lookup_says_how_far_the_index_reaches() -> None:
    clock = Clock()
    store = open_store(clock=clock)
    assert store.lookup("Orders", "a", 9, 0, 1 << 60) == ([], 0, 0, True)
    send(store, record("one", keys="a"))
    clock.now_ms += 7
    send(store, record("two", keys="a"))
    found = store.lookup("Orders", "a", 9, 0, 1 << 60)
    assert found.index_timestamp == START_MS + 7
    assert found.index_offset == found.physical_offsets[1]


def test_a_file_that_cannot_be_made_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try makes another file."""
    index = Index(RealDisk(), str(tmp_path), 16, 4)
    index.add([entry(number) for number in range(3)], START_MS)
    full = RealSegment.writable

    def no_room(segment: RealSegment, size: int) -> memoryview:
        if segment.path == index.files[0].path:
            return full(segment, size)
        raise DiskFull(f"{segment.path}: no space left")

    monkeypatch.setattr(RealSegment, "writable", no_room)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(DiskFull):
            index.add([entry(3)], START_MS)
    assert len(os.listdir("/proc/self/fd")) == before
    assert [str(path) for path in tmp_path.iterdir()] == [index.files[0].path]
    monkeypatch.undo()
    index.add([entry(3)], START_MS)
    assert index.find("Orders", "K3", 0, 1 << 60, 9) == [300]
    index.close()


@pytest.mark.parametrize("kept", [1, 4, 9])
@pytest.mark.parametrize("how", ["truncated", "recovered"])
def test_entries_past_a_cut_go(kept: int, how: str) -> None:
    """Also when the cut takes only the last record. Another record comes to its place, with other keys."""
    disk, clock = MemoryDisk(), Clock()
    settings = {"max_index_num": 11, "mapped_file_size_commit_log": 1 << 16}  # a full file: it is synced
    store = open_store(disk, clock, **settings)
    for number in range(10):
        send(store, record("x", unique=f"K{number}"))
    while store.dispatch():
        pass
    unit = store.unit("Orders", 0, kept)
    assert unit is not None
    if how == "truncated":
        store.truncate(unit[0])
    else:
        store.close()
        disk.open(f"{ROOT}/commitlog/{0:020d}", 1 << 16).clear(unit[0])
        store = open_store(disk, clock, truncate_damaged_log=True, **settings)
    for number in range(kept, 12):
        send(store, record("x", unique=f"N{number}"))
    while store.dispatch():
        pass

    def found(key: str) -> int:
        return len(store.lookup("Orders", key, 9, 0, 1 << 60).physical_offsets)

    assert [found(f"K{number}") for number in range(10)] == [1] * kept + [0] * (10 - kept)
    assert [found(f"N{number}") for number in range(kept, 12)] == [1] * (12 - kept)


def test_an_entry_is_known_whatever_the_clock_said() -> None:
    index = make(capacity=4)
    late, early = START_MS + 60_000, START_MS
    index.add([("Orders", ("A",), 100, late), ("Orders", ("B", "C"), 200, early)], late)
    assert index.find("Orders", "B", early - 2_000, early + 2_000, 10) == [], "the file says its own begin"
    assert index.has("Orders", "B", 200)
    assert index.has("Orders", "C", 200)
    assert not index.has("Orders", "B", 100)
    assert not index.has("Orders", "D", 200)
    index.add([("Orders", ("D",), 300, early)], late)
    assert len(index.files) == 2
    assert index.has("Orders", "C", 200), "in the file before the last"


def test_a_record_is_indexed_once_after_the_clock_was_set_back() -> None:
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    clock.now_ms += 60_000
    send(store, record("one", keys="A"))
    clock.now_ms -= 60_000
    send(store, record("two", keys="B C"))
    store.dispatch()
    store._reput.start(again=True)  # as after a failed write, a cut of the log or a crash
    store.dispatch()
    assert sum(file.count - 1 for file in store._index.files) == 3


DAY_MS = 86_400_000


@pytest.mark.parametrize("capacity", [5, 64])
@pytest.mark.parametrize("back_ms", [0, 3 * DAY_MS])
def test_messages_are_found_by_their_time_when_the_clock_was_set_back(capacity: int, back_ms: int) -> None:
    """The clock is set back behind K3. A file that began behind the step hid all earlier files, and an entry
    behind the step hid those before it in its slot."""
    clock = Clock()
    store = open_store(None, clock, max_index_num=capacity, max_hash_slot_num=1)
    times = []
    for number in range(8):
        clock.now_ms += 3_600_000
        if number == 4:
            clock.now_ms -= back_ms
        times.append(clock.now_ms)
        send(store, record(f"message {number}", keys="K"))
    for number, at in enumerate(times[:-1]):
        if capacity == 5 and number in (4, 5):
            continue  # the first entry of a second file has the time of the next one, as in RocketMQ's files
        found = [message.body.decode() for message in store.query("Orders", "K", 10, at - 1000, at + 1000)]
        assert found == [f"message {number}"], (number, found)
    assert len(store.query("Orders", "K", 10, 0, 1 << 60)) == 8


def test_few_of_many_files_are_open_and_all_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each took two descriptors for as long as the store was open: a long index kept probes out."""
    monkeypatch.setattr("rmq.store.files.index.OPEN_FILES", 3)
    folder = str(tmp_path / "index")

    def descriptors() -> int:
        return sum(
            os.path.dirname(path) == folder for path in map(os.path.realpath, Path("/proc/self/fd").iterdir())
        )

    index = Index(RealDisk(), folder, 16, 20)
    index.load(None)
    for number in range(0, 200, 10):
        index.add([entry(each) for each in range(number, number + 10)], START_MS + number)
    assert len(index.files) > 10
    assert descriptors() <= 6
    for number in (0, 57, 111, 199):
        assert index.find("Orders", f"K{number}", 0, 1 << 60, 9) == [number * 100]
    assert index.sync() > 0  # also of files that are closed meanwhile
    index.add([entry(200)], START_MS + 200)  # the last file is open, or opens
    index.sync(all_files=True)
    index.close()
    assert descriptors() == 0
    again = Index(RealDisk(), folder, 16, 20)
    again.load(None)
    assert descriptors() <= 3
    assert again.find("Orders", "K5", 0, 1 << 60, 9) == [500]
    assert again.find("Orders", "K200", 0, 1 << 60, 9) == [20_000]
    again.close()
    assert descriptors() == 0
