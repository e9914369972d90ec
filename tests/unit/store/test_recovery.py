"""Recovery after a clean stop, a killed process and a power cut; torn tails and damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmq.errors import CorruptRecord, StoreError
from rmq.store.files.checkpoint import Checkpoint
from rmq.store.files.disk import RealDisk
from rmq.store.files.scan import Synced
from rmq.store.recovery import known_synced
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

from .stores import ROOT, Clock, bodies, fill, make_store, open_store, record, send

LOG = f"{ROOT}/commitlog/{0:020d}"


def log_file(number: int, size: int = 4096) -> str:
    return f"{ROOT}/commitlog/{number * size:020d}"


def expected_bodies(count: int) -> list[bytes]:
    return [f"message {number}".encode() for number in range(count)]


def saved(count: int, clock: Clock | None = None) -> tuple[MemoryDisk, Store]:
    """A disk whose store holds `count` messages, all synced, and the store, left open."""
    disk = MemoryDisk()
    store = open_store(disk, clock)
    fill(store, count)
    store.flush()
    return disk, store


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
    """Whatever the last write was, what was committed before it is there, and offsets are dense."""
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


# ---- damage ----


@pytest.mark.parametrize("clean", [True, False])
def test_a_page_of_zeros_in_what_was_synced_is_damage(clean: bool) -> None:
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock, mapped_file_size_commit_log=65536)
    fill(store, 100)
    clock.now_ms += 1000
    fill(store, 1)
    store.flush()
    store.flush_checkpoint()
    store.close() if clean else store.abandon()
    disk.open(LOG, 65536).write(4096, bytes(4096))
    with pytest.raises(CorruptRecord):
        open_store(disk, clock, mapped_file_size_commit_log=65536)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("at", [0, 4, 30, 84, 88, 95, 97, 105])
def test_damage_before_good_records_is_not_the_end_of_the_log(clean: bool, at: int) -> None:
    clock = Clock()
    disk, store = saved(10, clock)
    damaged = store.unit("Orders", 0, 4)
    assert damaged is not None
    clock.now_ms += 1000
    fill(store, 1)
    store.flush()
    store.flush_checkpoint()
    store.close() if clean else store.abandon()
    disk.flip(LOG, damaged[0] + at)
    with pytest.raises(CorruptRecord) as caught:
        open_store(disk)
    assert caught.value.path == LOG
    assert caught.value.offset == damaged[0]
    assert "truncateDamagedLog" in str(caught.value)


def test_damage_is_found_when_only_later_files_are_good() -> None:
    disk, store = saved(100)
    store.close()
    for at in range(300, 4096):
        disk.flip(log_file(1), at)
    with pytest.raises(CorruptRecord) as caught:
        open_store(disk)
    assert caught.value.path == log_file(1)


def test_a_refused_start_gives_the_lock_back_and_changes_nothing() -> None:
    disk, store = saved(10)
    store.close()
    disk.flip(LOG, 30)
    before = disk.load(LOG)
    for _ in range(2):
        with pytest.raises(CorruptRecord):
            open_store(disk)
    assert disk.load(LOG) == before


def test_a_refused_start_is_refused_again_and_cuts_nothing() -> None:
    """After a clean stop everything was synced; a start that was refused does not change that."""
    disk = MemoryDisk()
    store = open_store(disk, mapped_file_size_commit_log=65536)
    fill(store, 101)
    store.close()
    good = disk.load(LOG) or b""
    disk.open(LOG, 65536).write(4096, bytes(4096))
    for _ in range(3):
        with pytest.raises(CorruptRecord):
            open_store(disk, mapped_file_size_commit_log=65536)
        assert not disk.exists(f"{ROOT}/abort")
    disk.open(LOG, 65536).write(0, good)
    assert bodies(open_store(disk, mapped_file_size_commit_log=65536)) == expected_bodies(101)


def test_a_power_cut_while_a_start_rebuilds_queues_leaves_a_clean_stop() -> None:
    """What it wrote of them is on the medium when it is refused; if it is cut off, they are not believed."""
    settings = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 40_000}
    disk = MemoryDisk()
    store = open_store(disk, **settings)
    fill(store, 1500)
    store.close()
    disk.remove(f"{ROOT}/consumequeue")
    good = disk.load(LOG) or b""
    disk.open(LOG, 1 << 20).write(32 * 4096, bytes(4096))
    disk.sync(LOG)
    images: list[MemoryDisk] = []
    disk.on_change = lambda: images.append(disk.image(len(images)))
    with pytest.raises(CorruptRecord):
        open_store(disk, **settings)
    disk.on_change = None
    assert not disk.exists(f"{ROOT}/abort")
    images += [disk.image(seed) for seed in range(20)]
    assert len(images) > 8
    for number, image in enumerate(images):
        if number % 2:  # or nobody tries before the log is mended
            with pytest.raises(CorruptRecord):
                open_store(image, **settings)
        log = image.open(LOG, 1 << 20)
        log.write(0, good)
        log.sync()
        assert bodies(open_store(image, **settings)) == expected_bodies(1500)


def test_damage_can_be_given_up_on() -> None:
    disk, store = saved(10)
    damaged = store.unit("Orders", 0, 4)
    assert damaged is not None
    store.close()
    disk.flip(LOG, damaged[0] + 90)
    again = open_store(disk, truncate_damaged_log=True)
    assert bodies(again) == expected_bodies(4)
    assert again.max_physical_offset == damaged[0]
    again.close()
    assert bodies(open_store(disk)) == expected_bodies(4)


@pytest.mark.parametrize(("at", "size"), [(4096, 4096), (4096, 512), (7 * 512, 512), (4608, 1024)])
def test_a_lost_page_behind_the_last_sync_is_a_torn_tail(at: int, size: int) -> None:
    """A power cut may keep a page and lose the one before it, or sectors of it."""
    disk = MemoryDisk()
    store = open_store(disk, mapped_file_size_commit_log=65536)
    fill(store, 3)
    store.flush()
    store.flush_checkpoint()
    fill(store, 100)
    disk.open(LOG, 65536).write(at, bytes(size))
    again = make_store(disk.copy(), mapped_file_size_commit_log=65536)
    recovery = again.load()
    assert recovery.cut == LOG
    assert 3 <= len(bodies(again)) < 45
    assert bodies(again) == (expected_bodies(3) + expected_bodies(100))[: len(bodies(again))]


def test_a_lost_page_behind_the_last_sync_is_a_torn_tail_though_the_clock_was_set_back() -> None:
    """The records around it are older than what the checkpoint says is synced."""
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock, mapped_file_size_commit_log=65536)
    fill(store, 3)
    store.flush()
    store.flush_checkpoint()
    clock.now_ms -= 60_000
    fill(store, 100)
    disk.open(LOG, 65536).write(4096, bytes(4096))
    for marked in (True, False):
        image = disk.copy()
        if not marked:
            image.replace(f"{ROOT}/abort", b"")
        again = open_store(image, clock, mapped_file_size_commit_log=65536)
        assert 3 <= len(bodies(again)) < 45


def test_units_that_no_sync_had_covered_are_made_again_though_the_clock_was_set_back() -> None:
    """The newest log file begins with a record that is older than what the checkpoint vouches for."""
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    fill(store, 3)
    clock.now_ms += 20_000
    store.dispatch()
    fill(store, 1)
    store.flush()
    store.flush_queues()
    store.flush_checkpoint()
    clock.now_ms -= 60_000
    fill(store, 60, queue_id=1)
    fill(store, 60)
    store.flush()
    disk.crash()
    again = open_store(disk, clock)
    assert (len(bodies(again)), len(bodies(again, queue_id=1))) == (64, 60)


def test_a_checkpoint_that_rocketmq_wrote_last_tells_times_only() -> None:
    disk = MemoryDisk()
    ours = Checkpoint(disk, "/store/checkpoint")
    ours.log_ms, ours.queues_ms, ours.log_to, ours.queues_to, ours.has_places = 10_000, 9_000, 500, 400, True
    ours.flush()
    again = Checkpoint(disk, "/store/checkpoint")
    assert (again.log_ms, again.replay_from, again.log_to) == (10_000, 400, 500)
    assert known_synced(7, again) == Synced(500, 0)
    disk.open("/store/checkpoint", 4096).write(0, (20_000).to_bytes(8, "big"))
    theirs = Checkpoint(disk, "/store/checkpoint")
    assert (theirs.log_ms, theirs.replay_from, theirs.log_to) == (20_000, None, 0)
    assert known_synced(7, theirs) == Synced(7, 20_000)
    ours.lower(1 << 60, 450)
    assert Checkpoint(disk, "/store/checkpoint").replay_from == 400
    ours.lower(1 << 60, 300)
    lowered = Checkpoint(disk, "/store/checkpoint")
    assert (lowered.log_to, lowered.queues_to, lowered.log_ms) == (300, 300, 10_000)


def test_a_flipped_bit_behind_the_last_sync_is_still_damage() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    fill(store, 10)
    disk.flip(LOG, 106 * 4 + 90)
    with pytest.raises(CorruptRecord):
        open_store(disk.copy())


def test_a_missing_log_file_is_named() -> None:
    disk, store = saved(100)
    store.close()
    disk.remove(log_file(1))
    with pytest.raises(CorruptRecord, match="is missing") as caught:
        open_store(disk)
    assert log_file(1) in str(caught.value)


def test_a_log_file_of_another_size_is_refused() -> None:
    disk, store = saved(10)
    store.close()
    with pytest.raises(StoreError, match="has 4096 bytes, expected 8192"):
        open_store(disk, mapped_file_size_commit_log=8192)
    assert bodies(open_store(disk)) == expected_bodies(10)


def test_an_empty_last_file_is_taken(tmp_path: Path) -> None:
    """A power cut right after a file was made may leave it without its size."""
    store = open_store(RealDisk(), root=str(tmp_path))
    fill(store, 3)
    store.abandon()
    (tmp_path / "commitlog" / f"{4096:020d}").touch()
    again = open_store(RealDisk(), root=str(tmp_path))
    fill(again, 60)
    assert len(bodies(again)) == 63
    again.close()


# ---- queues that do not fit the log ----


def queue_files(disk: MemoryDisk, queue_id: int = 0) -> list[str]:
    folder = f"{ROOT}/consumequeue/Orders/{queue_id}"
    return [f"{folder}/{name}" for name in disk.list(folder)]


def two_queues() -> tuple[MemoryDisk, Store]:
    disk = MemoryDisk()
    store = open_store(disk)
    for number in range(60):
        send(store, record(f"message {number}", queue_id=number % 2, tags="even" if number % 2 else "odd"))
    return disk, store


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", ["all queues", "one queue", "last file", "first file", "middle file"])
def test_units_that_are_missing_are_made_again(clean: bool, lost: str) -> None:
    disk, store = two_queues()
    units = [store.unit("Orders", 0, offset) for offset in range(30)]
    store.close() if clean else store.abandon()
    if lost == "all queues":
        disk.remove(f"{ROOT}/consumequeue")
    elif lost == "one queue":
        disk.remove(f"{ROOT}/consumequeue/Orders/0")
    elif files := queue_files(disk):
        disk.remove(files[{"last": -1, "first": 0, "middle": 1}[lost.split()[0]]])
    again = open_store(disk)
    assert [again.unit("Orders", 0, offset) for offset in range(30)] == units
    assert bodies(again) == [f"message {number}".encode() for number in range(0, 60, 2)]
    assert bodies(again, queue_id=1) == [f"message {number}".encode() for number in range(1, 60, 2)]


def test_a_short_queue_is_completed_from_the_log() -> None:
    """After a clean stop the scan starts late; a queue that ends earlier than it should is noticed there."""
    disk, store = two_queues()
    store.close()
    for path in queue_files(disk)[1:]:
        disk.remove(path)
    again = make_store(disk)
    assert again.load().rebuilt in ((("Orders", 0),), ())
    assert bodies(again) == [f"message {number}".encode() for number in range(0, 60, 2)]


def test_a_queue_ahead_of_the_log_is_cut() -> None:
    disk, store = saved(50)
    store.close()
    keep = make_store(disk)
    keep.load()
    position = keep.unit("Orders", 0, 20)
    keep.abandon()
    disk.remove(f"{ROOT}/abort")
    assert position is not None
    disk.remove(log_file(1))
    disk.open(LOG, 4096).clear(position[0])
    with pytest.raises(CorruptRecord):
        open_store(disk)
    again = open_store(disk, truncate_damaged_log=True)
    assert again.max_offset("Orders", 0) == 20
    assert bodies(again) == expected_bodies(20)
    fill(again, 1)
    assert again.max_offset("Orders", 0) == 21


def test_the_log_is_gone() -> None:
    disk, store = saved(50)
    store.close()
    disk.remove(f"{ROOT}/commitlog")
    with pytest.raises(CorruptRecord, match="restore the file"):
        open_store(disk)
    again = open_store(disk, truncate_damaged_log=True)
    assert list(again.queues()) == [("Orders", 0)]
    assert again.max_offset("Orders", 0) == 0
    fill(again, 1)
    assert bodies(again) == [b"message 0"]


def test_rebuild_makes_queues_and_index_from_the_log() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    for number in range(60):
        send(store, record(f"message {number}", unique=f"K{number}"))
    store.close()
    disk.flip(queue_files(disk)[0], 7)
    again = make_store(disk)
    again.load(rebuild=True)
    while again.dispatch():
        pass
    assert bodies(again) == expected_bodies(60)
    assert len(again.query("Orders", "K33", 5, 0, 1 << 60)) == 1


def test_a_topic_made_again_starts_at_zero_after_a_crash() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    fill(store, 12)
    store.remove_topic("Orders")
    send(store, record("new 0"), record("new 1"))
    assert bodies(store) == [b"new 0", b"new 1"]
    again = open_store(disk.copy())
    assert bodies(again) == [b"new 0", b"new 1"]


def test_leftovers_of_a_deleted_topic_do_not_cost_a_scan() -> None:
    disk = MemoryDisk()
    clock = Clock()
    store = open_store(disk, clock)
    fill(store, 100, topic="Gone")
    fill(store, 5)
    store.save_config("topics", json.dumps({"topicConfigTable": {"Orders": {}}}).encode())
    store.remove_topic("Gone")
    store.close()
    disk.replace(f"{ROOT}/abort", b"")
    clock.now_ms += 10_000
    again = make_store(disk, clock)
    recovery = again.load()
    assert recovery.rebuilt == ()
    assert bodies(again) == expected_bodies(5)


def test_prepared_and_rolled_back_records_have_no_unit_after_recovery() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    send(
        store,
        record("half", sys_flag=4),
        record("plain"),
        record("rolled", sys_flag=12),
        record("done", sys_flag=8),
    )
    assert bodies(store) == [b"plain", b"done"]
    disk.remove(f"{ROOT}/consumequeue")
    again = open_store(disk.copy())
    assert bodies(again) == [b"plain", b"done"]
    assert again.max_physical_offset == store.max_physical_offset


def test_delayed_units_come_out_the_same() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    send(store, record("later", topic="SCHEDULE_TOPIC_XXXX", queue_id=2, tags="t", DELAY="3"))
    send(store, record("much later", topic="SCHEDULE_TOPIC_XXXX", queue_id=17, DELAY="99"))
    units = [store.unit("SCHEDULE_TOPIC_XXXX", queue_id, 0) for queue_id in (2, 17)]
    stored = store.message_time("SCHEDULE_TOPIC_XXXX", 2, 0)
    assert [unit[2] - stored for unit in units if unit] == [10_000, 7_200_000]
    again = open_store(disk.copy())
    assert [again.unit("SCHEDULE_TOPIC_XXXX", queue_id, 0) for queue_id in (2, 17)] == units


def test_progress_is_reported_for_each_phase() -> None:
    disk, store = saved(50)
    fill(store, 50)
    store.abandon()
    seen: list[tuple[str, int, int]] = []
    make_store(disk.copy()).load(lambda stage, done, total: seen.append((stage, done, total)))
    stages = list(dict.fromkeys(stage for stage, _, _ in seen))
    assert stages == ["log", "queues cut", "log written again", "log synced"]
    assert all(0 <= done <= total for _, done, total in seen)


def test_an_opening_that_is_stopped_leaves_what_the_next_one_needs() -> None:
    """At every call of `progress`, that is in every phase."""
    disk, store = saved(50)
    fill(store, 50)
    store.abandon()
    whole = bodies(open_store(disk.copy()))
    assert len(whole) == 100

    def stopped_at(count: int) -> bool:
        image, calls = disk.copy(), 0

        def progress(stage: str, done: int, total: int) -> None:
            nonlocal calls
            calls += 1
            if calls == count:
                raise KeyboardInterrupt

        again = make_store(image)
        try:
            again.load(progress)
        except KeyboardInterrupt:
            opened = make_store(image)
            opened.load()  # nobody has the folder
            assert bodies(opened) == whole
            return True
        return False

    count = 1
    while stopped_at(count):
        count += 1
    assert count >= 5, "each phase was stopped once"


def test_a_broken_checkpoint_costs_only_a_longer_scan() -> None:
    disk, store = saved(50)
    store.abandon()
    for at in range(24):
        disk.flip(f"{ROOT}/checkpoint", at)
    assert bodies(open_store(disk.copy())) == expected_bodies(50)


def test_units_that_were_cut_with_the_log_do_not_come_back_with_a_power_cut() -> None:
    """Records of others are at their places by then."""
    disk = MemoryDisk()
    store = open_store(disk)
    fill(store, 5)
    store.close()
    store = open_store(disk)
    (path,) = queue_files(disk)
    assert any(disk.load(path) or b"")
    store.truncate(0)
    for seed in range(20):
        assert not any(disk.image(seed).load(path) or b"")


def test_a_power_cut_while_the_log_is_cut_is_no_damage() -> None:
    """Some of its pages are empty then, and those behind them are not."""
    disk, big = MemoryDisk(), {"mapped_file_size_commit_log": 1 << 16}
    store = open_store(disk, **big)
    fill(store, 200)
    store.flush()
    store.flush_queues()
    store.flush_checkpoint()
    unit = store.unit("Orders", 0, 10)
    assert unit is not None
    images: list[MemoryDisk] = []
    disk.on_change = lambda: images.extend(disk.image(len(images) * 7 + seed) for seed in range(5))
    disk.on_sync = lambda _: images.extend(disk.image(len(images) * 7 + seed) for seed in range(5))
    store.truncate(unit[0])
    disk.on_change = disk.on_sync = None
    assert len(images) > 20
    for image in images:
        assert len(bodies(open_store(image, **big))) >= 10
