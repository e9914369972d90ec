"""Recovery after a clean stop, a killed process and a power cut; torn tails and damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq.errors import StoreError
from rmq.store.files.disk import RealDisk
from rmq.testing.disk import MemoryDisk

from .crashes import LOG, expected_bodies, log_file, queue_files, saved
from .stores import ROOT, Clock, bodies, fill, make_store, open_store, record, send

# ---- clean stop ----


def test_after_a_clean_stop_all_is_there() -> None:
    disk, store = saved(100)
    end = store.max_physical_offset
    store.close()
    assert not disk.exists(f"{ROOT}/abort")
    again = make_store(disk)
    recovery = again.load()
    assert recovery.is_clean
    assert (recovery.end, recovery.cut, recovery.rebuilt) == (end, None, ())
    assert bodies(again) == expected_bodies(100)
    fill(again, 3)
    assert again.max_offset("Orders", 0) == 103


def test_the_log_says_how_a_store_was_opened(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rmq.store")
    disk, store = saved(100)
    end, clock = store.max_physical_offset, Clock()

    def slow(stage: str, done: int, total: int) -> None:
        clock.now_ms += 1500

    again = make_store(disk.image(1), clock)
    assert again.load(slow).seconds > 1
    assert f"is open: after a crash, 100 records read from 0 to {end}, in " in caplog.messages[-1]
    assert f", in {again.recovery.seconds:.1f} s" in caplog.messages[-1]


def test_a_clean_stop_survives_a_power_cut_right_after() -> None:
    for seed in range(20):
        disk, store = saved(60)
        for number in range(60):
            send(store, record(f"more {number}", unique=f"KEY{number:05d}"))
        store.close()
        again = make_store(disk.image(seed))
        assert again.load().is_clean
        assert len(bodies(again)) == 120
        assert len(again.query("Orders", "KEY00007", 5, 0, 1 << 60)) == 1


def test_a_clean_stop_of_a_big_log_scans_only_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, store = saved(300)
    store.close()
    monkeypatch.setattr("rmq.store.recovery.VERIFY_BYTES", 1000)
    again = make_store(disk)
    assert 5 < again.load().records < 12
    assert bodies(again) == expected_bodies(300)


def test_a_store_without_messages_opens_again() -> None:
    disk = MemoryDisk()
    open_store(disk).close()
    store = open_store(disk)
    assert (store.min_physical_offset, store.max_physical_offset) == (0, 0)
    fill(store, 1)
    assert bodies(store) == [b"message 0"]


# ---- a killed process ----


def test_a_killed_process_loses_nothing_it_wrote(tmp_path: Path) -> None:
    """The abort file is there, and the page cache has every write."""
    store = open_store(RealDisk(), root=str(tmp_path))
    fill(store, 100)
    store.abandon()
    assert (tmp_path / "abort").exists()
    again = make_store(RealDisk(), root=str(tmp_path))
    recovery = again.load()
    assert not recovery.is_clean
    assert bodies(again) == expected_bodies(100)
    again.close()


def test_kill_at_every_change_of_a_file() -> None:
    """After any last write the committed messages are in the store, and offsets are dense."""
    images: list[tuple[int, MemoryDisk]] = []
    disk = MemoryDisk()
    store = open_store(disk)
    committed = 0

    def keep() -> None:
        images.append((committed, disk.copy()))

    disk.on_change = keep
    for number in range(60):
        send(store, record(f"message {number}", unique=f"KEY{number}"))
        committed += 1
        if number % 7 == 0:
            store.flush()
            store.dispatch()
    store.close()
    assert len(images) > 80
    for count, image in images:
        again = make_store(image)
        again.load()
        found = bodies(again)
        assert found == expected_bodies(len(found))
        assert len(found) >= count
        fill(again, 2)
        assert again.max_offset("Orders", 0) == len(found) + 2


@pytest.mark.parametrize("back_ms", [0, 60_000])
def test_power_cuts_lose_nothing_that_was_flushed(back_ms: int) -> None:
    """At every change, and for several seeds: flushed messages are there, in order and dense."""
    images: list[tuple[int, MemoryDisk]] = []
    disk = MemoryDisk()
    disk.tears = True
    clock = Clock()
    store = open_store(disk, clock)
    flushed = 0

    def keep() -> None:
        images.extend((flushed, disk.image(len(images) * 10 + seed)) for seed in range(3))

    disk.on_change = keep
    for number in range(60):
        clock.now_ms += 700 if number % 23 else -back_ms
        send(store, record(f"message {number} " + "x" * (number * 13 % 300), unique=f"KEY{number}"))
        if number % 5 == 0:
            store.flush()
            flushed = number + 1
        if number % 11 == 0:
            while store.dispatch():
                pass
            store.flush_queues()
            store.flush_checkpoint()
    store.close()
    assert len(images) > 200
    for count, image in images:
        again = make_store(image, clock)
        again.load()
        found = bodies(again)
        assert len(found) >= count
        assert [body.split()[1] for body in found] == [b"%d" % number for number in range(len(found))]
        for number in range(0, len(found), 9):
            while again.dispatch():
                pass
            assert len(again.query("Orders", f"KEY{number}", 9, 0, 1 << 60)) == 1, number


def test_after_a_crash_only_files_that_the_checkpoint_does_not_cover_are_scanned() -> None:
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    for number in range(200):
        clock.now_ms += 100
        send(store, record(f"message {number}"))
    clock.now_ms += 10_000
    store.dispatch()
    store.flush()
    store.flush_queues()
    store.flush_checkpoint()
    fill(store, 1)
    store.abandon()
    again = make_store(disk, clock)
    recovery = again.load()
    assert recovery.scanned_from >= 4096
    assert 0 < recovery.records < 100
    assert len(bodies(again)) == 201


def test_a_second_start_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    store = open_store(RealDisk(), root=str(tmp_path))
    with pytest.raises(StoreError, match="is locked by another broker"):
        open_store(RealDisk(), root=str(tmp_path))
    store.close()
    open_store(RealDisk(), root=str(tmp_path)).close()


def test_files_made_between_two_flushes_cannot_be_missing_in_the_middle() -> None:
    for seed in range(20):
        disk = MemoryDisk(seed)
        store = open_store(disk)
        store.flush()
        for number in range(150):
            store.put(record(f"message {number}"))
        store.commit()
        disk.crash()
        found = bodies(open_store(disk))
        assert found == expected_bodies(150)[: len(found)]


def test_what_a_recovery_found_is_synced_by_it() -> None:
    """A killed process leaves its writes in the page cache; after the next start they count as flushed."""
    for seed in range(10):
        disk = MemoryDisk(seed)
        store = open_store(disk)
        fill(store, 100)
        store.abandon()
        again = open_store(disk)
        assert again.flush() == again.flushed_offset == again.max_physical_offset
        disk.crash()
        assert bodies(open_store(disk)) == expected_bodies(100)


def crashed_after_checkpoint() -> tuple[MemoryDisk, Clock, list[object]]:
    """A disk with five log files, whose checkpoint vouches for the first ones; all units are in files."""
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    for number in range(200):
        clock.now_ms += 100
        send(store, record(f"message {number}"))
    clock.now_ms += 10_000
    store.dispatch()
    store.flush()
    store.flush_queues()
    store.flush_checkpoint()
    units: list[object] = [store.unit("Orders", 0, offset) for offset in range(200)]
    store.abandon()
    return disk, clock, units


@pytest.mark.parametrize(("first", "last"), [(0, 4), (0, 8), (0, 12), (4, 8), (8, 12), (12, 20), (0, 20)])
def test_torn_units_are_made_again(first: int, last: int) -> None:
    """A page border may cut a unit anywhere; what is left may look like a unit of an older record."""
    disk, clock, units = crashed_after_checkpoint()
    recovered = make_store(disk.copy(), clock)
    start = recovered.load().scanned_from
    torn = next(at for at, unit in enumerate(units) if unit[0] >= start) + 3  # type: ignore[index]
    for index in range(torn, 200, 4):
        file = disk.open(f"{ROOT}/consumequeue/Orders/0/{index // 10 * 200:020d}", 200)
        file.write(index % 10 * 20 + first, bytes(last - first))
    again = open_store(disk.copy(), clock)
    assert [again.unit("Orders", 0, offset) for offset in range(200)] == units


def test_units_of_records_that_a_power_cut_took_do_not_come_back() -> None:
    """The queue files were synced, the log was not."""
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    fill(store, 5)
    store.flush()
    clean = disk.copy()
    fill(store, 20)
    clock.now_ms += 10_000
    store.dispatch()
    store.flush_queues()
    for path in queue_files(disk):
        clean.open(path, 200).write(0, disk.load(path) or b"")
    again = open_store(clean, clock)
    assert len(bodies(again)) == 5
    send(again, record("x" * 1500), record("y" * 1500))  # the log now goes past where the lost records were
    again.close()
    last = open_store(clean, clock)
    assert last.max_offset("Orders", 0) == 7
    assert len(bodies(last)) == 7


def test_units_that_were_cut_do_not_come_back_after_the_next_power_cut() -> None:
    for seed in range(20):
        disk, clock = MemoryDisk(seed), Clock()
        store = open_store(disk, clock)
        store.flush()
        fill(store, 5, queue_id=1)
        clock.now_ms += 10_000
        store.dispatch()
        store.flush_queues()
        disk.crash()
        again = open_store(disk, clock)
        left = again.max_offset("Orders", 1)
        fill(again, 5)
        again.close()
        disk.crash()
        assert open_store(disk, clock).max_offset("Orders", 1) == left


def test_the_checkpoint_does_not_vouch_for_units_in_memory() -> None:
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    fill(store, 3)
    clock.now_ms += 4000
    fill(store, 3)
    store.dispatch()
    store.flush()
    store.flush_queues()
    store.flush_checkpoint()
    times = disk.load(f"{ROOT}/checkpoint") or b""
    assert int.from_bytes(times[:8], "big") == clock.now_ms
    assert int.from_bytes(times[8:16], "big") == clock.now_ms - 4000
    clock.now_ms += 10_000
    store.dispatch()
    store.flush_queues()
    store.flush_checkpoint()
    times = disk.load(f"{ROOT}/checkpoint") or b""
    assert int.from_bytes(times[8:16], "big") == clock.now_ms - 10_000


def test_a_clean_stop_syncs_the_index() -> None:
    for seed in range(10):
        disk = MemoryDisk()
        store = open_store(disk, max_index_num=2000)
        for number in range(700):
            send(store, record("x", unique=f"KEY{number}"))
        store.close()
        again = open_store(disk.image(seed), max_index_num=2000)
        assert all(
            len(again.query("Orders", f"KEY{number}", 5, 0, 1 << 60)) == 1 for number in range(0, 700, 50)
        )


# ---- torn tails ----


def test_a_tail_torn_at_every_byte_of_the_last_record_is_cut() -> None:
    disk, store = saved(10)
    start = store.max_physical_offset
    send(store, record("the last one", tags="t", unique="LAST"))
    end = store.max_physical_offset
    for kept in range(end - start):
        image = disk.copy()
        image.open(LOG, 4096).clear(start + kept)
        again = make_store(image)
        recovery = again.load()
        assert recovery.end == start
        assert recovery.cut == (LOG if kept >= 4 else None)  # the size's first three bytes are zeros
        assert bodies(again) == expected_bodies(10)
        assert again.query("Orders", "LAST", 5, 0, 1 << 60) == []
        fill(again, 1)
        assert again.max_offset("Orders", 0) == 11


def test_a_page_lost_inside_properties_is_not_a_good_record() -> None:
    """No CRC covers the properties; the zeros of a lost page do not pass for them."""
    disk = MemoryDisk()
    store = open_store(disk, mapped_file_size_commit_log=65536)
    send(store, record("first"), record("long", note="x" * 20_000), record("last"))
    disk.open(LOG, 65536).write(8192, bytes(4096))
    again = open_store(disk.copy(), mapped_file_size_commit_log=65536)
    assert bodies(again) == [b"first"]


def test_a_zero_in_a_property_is_no_reason_to_cut() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    for _ in range(100):
        send(store, record("odd", note="a\0b"), record("odder", note="b\0"))
    store.flush()
    store.close()
    assert len(bodies(open_store(disk))) == 200


def test_a_flipped_bit_in_the_last_record_is_a_torn_tail() -> None:
    """No sync had covered it; test_evidence.py has those that one had."""
    disk, store = saved(9)
    send(store, record("message 9"))
    disk.flip(LOG, store.max_physical_offset - 15)
    again = make_store(disk.copy())
    assert again.load().cut == LOG
    assert bodies(again) == expected_bodies(9)


def test_records_behind_a_cut_never_come_back() -> None:
    """Records of one size would line up again behind a new one, if the cut left them there."""
    for seed in range(10):
        disk = MemoryDisk()
        store = open_store(disk)
        send(store, *[record(f"old {number}") for number in range(5)])
        store.truncate(store.unit("Orders", 0, 2)[0])  # type: ignore[index]
        send(store, record("new 0"))
        again = open_store(disk.copy())
        assert bodies(again) == [b"old 0", b"old 1", b"new 0"]
        store.flush()
        assert bodies(open_store(disk.image(seed))) == [b"old 0", b"old 1", b"new 0"]


def test_a_log_that_lost_all_but_its_place_goes_on_there() -> None:
    """Older files expired, and a power cut took what the last one held: offsets must not begin again."""
    disk = MemoryDisk()
    store = open_store(disk)
    fill(store, 60)
    store.abandon()
    disk.remove(LOG)
    disk.open(log_file(1), 4096).clear(0)
    again = open_store(disk)
    assert (again.min_physical_offset, again.max_physical_offset) == (4096, 4096)
    again.close()
    assert open_store(disk).max_physical_offset == 4096


@pytest.mark.parametrize("seed", range(4))
def test_what_a_killed_broker_could_not_sync_is_written_again_by_its_next_start(seed: int) -> None:
    """The kernel shows these messages still, but will not write them: a power cut would take them."""
    disk, big = MemoryDisk(seed), {"mapped_file_size_commit_log": 1 << 16}
    store = open_store(disk, **big)
    fill(store, 100)
    disk.fail("sync", "commitlog")
    with pytest.raises(StoreError):
        store.flush()
    killed = disk.copy()
    again = open_store(killed, **big)
    assert len(bodies(again)) == 100
    assert len(bodies(open_store(killed.image(seed), **big))) == 100


def test_the_end_of_a_file_that_a_killed_broker_could_not_sync_is_written_again() -> None:
    """No record has these bytes: the last one was synced, and the next one lies in another file."""
    disk, files = MemoryDisk(), {"mapped_file_size_commit_log": 1 << 14}
    store = open_store(disk, **files)
    while store.max_physical_offset < (1 << 14) - 300:
        fill(store, 1)
    store.flush()
    count = store.max_offset("Orders", 0)
    send(store, record("x" * 1000))
    disk.fail("sync", "commitlog")
    with pytest.raises(StoreError):
        store.flush()
    killed = disk.copy()
    open_store(killed, **files)
    for seed in range(8):
        assert len(bodies(open_store(killed.image(seed), **files))) == count + 1
