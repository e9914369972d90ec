"""Queues that do not fit the log after a crash are made again from it."""

from __future__ import annotations

import json

import pytest

from rmq.errors import CorruptRecord
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

from .crashes import LOG, expected_bodies, log_file, queue_files, saved
from .stores import ROOT, Clock, bodies, fill, make_store, open_store, record, send


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
