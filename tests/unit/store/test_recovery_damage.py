"""Damage in the log: found, named, and given up on only when told to."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq.errors import CorruptRecord, StoreError
from rmq.store.files.checkpoint import Checkpoint
from rmq.store.files.disk import RealDisk
from rmq.store.files.scan import Synced
from rmq.store.recovery import known_synced
from rmq.testing.disk import MemoryDisk

from .crashes import LOG, expected_bodies, log_file, saved
from .stores import ROOT, Clock, bodies, fill, make_store, open_store

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
    """The rebuilt queues are on the medium when the start is refused; if the start is cut off, they are not
    trusted."""
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
