"""A log that ends before what the files beside it vouch for is refused; what no sync had covered may go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmq.errors import CorruptRecord
from rmq.protocol.record import Record
from rmq.store.audit.audit import Report, check
from rmq.store.audit.repair import cut_tail
from rmq.store.config import StoreConfig
from rmq.store.evidence import broken_text
from rmq.store.files.checkpoint import Checkpoint
from rmq.store.files.disk import RealDisk
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

from ..stores import HOST, ROOT, START_MS, Clock, bodies, fill, make_store, open_store, record, send

LOG = f"{ROOT}/commitlog/{0:020d}"
BIG: dict[str, Any] = {"mapped_file_size_commit_log": 1 << 16}


def stopped(*, how: str, count: int = 100) -> tuple[MemoryDisk, int]:
    """A store with so many synced messages, stopped in order, killed, or killed after a checkpoint; and where
    its log ends.
    """
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock, **BIG)
    fill(store, count)
    store.flush()
    if how == "checkpoint":
        clock.now_ms += 10_000
        store.dispatch()
        store.flush_queues()
        store.flush_checkpoint()
    end = store.max_physical_offset
    store.close() if how == "clean" else store.abandon()
    if how == "checkpoint":
        disk.replace(f"{ROOT}/abort", b"")
    return disk, end


def zero(disk: MemoryDisk, start: int, path: str = LOG) -> None:
    file = disk.open(path, 1 << 16)
    file.clear(start)
    file.sync()


# ---- a log that lost its end ----


@pytest.mark.parametrize("how", ["clean", "abort", "checkpoint"])
@pytest.mark.parametrize("lost", [9, 29, 108, 3000, 1 << 20])
def test_a_log_that_lost_its_end_is_refused_and_nothing_is_cut(how: str, lost: int) -> None:
    disk, end = stopped(how=how)
    zero(disk, max(end - lost, 0))
    kept = {path: disk.load(path) for path in [LOG, *queue_files(disk)]}
    for _ in range(2):
        with pytest.raises(CorruptRecord, match=r"--cut-tail.*truncateDamagedLog") as caught:
            open_store(disk, **BIG)
        assert caught.value.path == LOG
        assert end - lost - 200 <= caught.value.offset <= end
    assert {path: disk.load(path) for path in kept} == kept
    assert disk.exists(f"{ROOT}/abort") == (how != "clean")


def queue_files(disk: MemoryDisk) -> list[str]:
    folder = f"{ROOT}/consumequeue/Orders/0"
    return [f"{folder}/{name}" for name in disk.list(folder)]


@pytest.mark.parametrize("how", ["clean", "abort"])
def test_a_flipped_bit_in_the_last_synced_record_is_damage(how: str) -> None:
    disk, end = stopped(how=how)
    disk.flip(LOG, end - 15)
    with pytest.raises(CorruptRecord):
        open_store(disk, **BIG)


@pytest.mark.parametrize("how", ["clean", "abort", "checkpoint"])
def test_whole_files_at_the_end_that_are_gone_are_missed(how: str) -> None:
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    fill(store, 200)
    store.flush()
    store.flush_checkpoint()
    store.close() if how == "clean" else store.abandon()
    if how == "checkpoint":
        disk.replace(f"{ROOT}/abort", b"")
    for name in disk.list(f"{ROOT}/commitlog")[-2:]:
        disk.remove(f"{ROOT}/commitlog/{name}")
    with pytest.raises(CorruptRecord, match="bytes are missing"):
        open_store(disk)


def test_what_no_sync_had_covered_may_be_gone() -> None:
    """A power cut may take such bytes of any file, in any order."""
    for seed in range(40):
        disk, clock = MemoryDisk(seed), Clock()
        disk.tears = seed % 2 == 0
        store = open_store(disk, clock, **BIG)
        fill(store, 30)
        store.flush()
        fill(store, 40)
        clock.now_ms += 10_000
        store.dispatch()
        store.flush_queues()  # ahead of the log
        disk.write_back()
        disk.crash()
        assert len(bodies(open_store(disk, clock, **BIG))) >= 30


def test_a_slave_that_synced_a_part_of_a_record_opens() -> None:
    master = open_store(**BIG)
    fill(master, 20, tags="t")
    unit = master.unit("Orders", 0, 15)
    assert unit is not None
    for more in range(1, unit[1]):
        for clean in (True, False):
            disk = MemoryDisk()
            slave = open_store(disk, **BIG)
            slave.append_raw(0, master.read_raw(0, unit[0] + more))
            slave.flush()
            slave.flush_checkpoint()
            slave.close() if clean else slave.abandon()
            again = open_store(disk, **BIG)
            assert again.max_physical_offset == unit[0]
            again.append_raw(unit[0], master.read_raw(unit[0], 1 << 16))
            assert bodies(again) == bodies(master)


def test_a_log_that_begins_anew_elsewhere_is_not_compared_with_the_one_before() -> None:
    """An empty slave of a master whose oldest files are gone, and then one of another master."""
    disk = MemoryDisk()
    master = open_store()
    fill(master, 120)
    slave = open_store(disk)
    slave.append_raw(8192, master.read_raw(8192, 50))
    slave.cut_partial()
    slave.flush()
    slave.flush_checkpoint()
    slave.append_raw(0, master.read_raw(0, 300))
    slave.abandon()
    zero_from = disk.copy()
    zero_from.open(LOG, 4096).clear(0)
    assert open_store(zero_from).max_physical_offset == 0


# ---- stores that RocketMQ wrote ----


def open_java(root: Path) -> Store:
    config = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=65536,
        mapped_file_size_consume_queue=1000,
        max_hash_slot_num=500,
        max_index_num=200,
    )
    store = Store(RealDisk(), config, store_host=bytes(8), now_ms=lambda: 1_795_253_400_000)
    store.load()
    return store


@pytest.mark.parametrize("stop", ["in order", "killed"])
def test_a_store_of_rocketmq_that_lost_its_end_is_refused(folder: Path, stop: str) -> None:
    if stop == "killed":
        (folder / "abort").touch()
    whole = open_java(folder)
    end = whole.max_physical_offset
    whole.abandon()
    if stop == "in order":
        (folder / "abort").unlink()
    else:
        (folder / "abort").write_bytes(b"")
    last = max((folder / "commitlog").iterdir())
    data = last.read_bytes()
    used = end - int(last.name)
    last.write_bytes(data[: used - 3000].ljust(len(data), b"\0"))
    with pytest.raises(CorruptRecord):
        open_java(folder)
    last.write_bytes(data)
    again = open_java(folder)
    assert again.max_physical_offset == end
    again.abandon()


def test_a_time_of_the_checkpoint_counts_though_the_clock_was_set_back() -> None:
    """The latest record is not among the last ones; a time that is still to come is a damaged file's."""
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    fill(store, 60)
    store.flush()
    clock.now_ms -= 600_000
    fill(store, 60)
    store.flush()
    store.abandon()
    disk.replace(f"{ROOT}/abort", b"")
    checkpoint = Checkpoint(disk, f"{ROOT}/checkpoint")
    for log_ms, opens in ((START_MS, True), (START_MS + 5, False), (START_MS + 1_000_000, True)):
        checkpoint.has_places, checkpoint.log_ms, checkpoint.queues_ms = False, log_ms, START_MS - 500_000
        checkpoint.flush()
        again = make_store(disk.copy(), Clock(START_MS + 1000))
        if opens:
            again.load()
        else:
            with pytest.raises(CorruptRecord, match="latest record"):
                again.load()


# ---- a record whose last bytes are zeros ----


def with_zeroed_end(properties: str, zeros: int, *, how: str) -> MemoryDisk:
    disk = MemoryDisk()
    store = open_store(disk, **BIG)
    fill(store, 3)
    odd = Record("Orders", 0, b"odd", properties, born_timestamp=START_MS, born_host=HOST, tags_code=0)
    send(store, odd)
    store.flush()
    end = store.max_physical_offset
    store.close() if how == "clean" else store.abandon()
    zero(disk, end - zeros)
    return disk


@pytest.mark.parametrize("how", ["clean", "abort"])
def test_zeros_that_nobody_sends_at_the_end_of_a_synced_record_are_damage(how: str) -> None:
    properties = "KEYS\x01k1\x02UNIQ_KEY\x01" + "7F0000010AB2" * 3
    disk = with_zeroed_end(properties, 29, how=how)
    assert {finding.kind for finding in checked(disk).findings} == {"record text"}
    with pytest.raises(CorruptRecord, match="UNIQ_KEY has zeros"):
        open_store(disk, **BIG)
    assert len(bodies(open_store(disk, truncate_damaged_log=True, **BIG))) == 3


@pytest.mark.parametrize("how", ["clean", "abort"])
@pytest.mark.parametrize(("zeros", "why"), [(29, "UNIQ_KEY has zeros"), (37, "zeros where a name ends")])
def test_zeros_that_nobody_sends_in_the_middle_of_the_log_are_damage(how: str, zeros: int, why: str) -> None:
    disk = MemoryDisk()
    store = open_store(disk, **BIG)
    fill(store, 3)
    properties = "KEYS\x01k1\x02UNIQ_KEY\x01" + "7F0000010AB2" * 3
    send(store, Record("Orders", 0, b"odd", properties, born_timestamp=START_MS, born_host=HOST, tags_code=0))
    end = store.max_physical_offset
    fill(store, 20)
    store.flush()
    store.close() if how == "clean" else store.abandon()
    log = disk.open(LOG, 1 << 16)
    log.write(end - zeros, bytes(zeros))
    log.sync()
    assert {finding.kind for finding in checked(disk).findings} == {"record text"}
    with pytest.raises(CorruptRecord, match=why):
        open_store(disk, **BIG)
    assert len(bodies(open_store(disk, truncate_damaged_log=True, **BIG))) == 3


def test_a_tag_that_is_not_the_one_of_the_queue_is_damage() -> None:
    disk = MemoryDisk()
    store = open_store(disk, **BIG)
    send(store, record("first"), record("second", tags="abcdefgh"))
    end = store.max_physical_offset
    store.close()
    zero(disk, end - 4)
    with pytest.raises(CorruptRecord, match="tags code"):
        open_store(disk, **BIG)


FROM_SENDERS = [b"a\x01b\0", b"a\x01" + bytes(50), b"WAIT\x01true\x02a\x01\0\x02", b"a\x01b"]
LOST = [b"a\x01b\x02WA\0\0", b"WAIT\x01tr\0\0", b"\0", b"UNIQ_KEY\0\0", b"a\x01b\x02\0"]


@pytest.mark.parametrize("text", FROM_SENDERS)
def test_zeros_that_rocketmq_takes_from_senders_are_none(text: bytes) -> None:
    assert not broken_text(text)


@pytest.mark.parametrize("text", LOST)
def test_zeros_of_lost_bytes_are_known(text: bytes) -> None:
    assert broken_text(text)


# ---- looking and repairing ----


def checked(disk: MemoryDisk) -> Report:
    return check(disk, ROOT)


@pytest.mark.parametrize("how", ["clean", "abort", "checkpoint"])
def test_a_repair_gives_up_what_is_missing(how: str) -> None:
    disk, end = stopped(how=how)
    assert checked(disk).is_clean
    zero(disk, end - 3000)
    report = checked(disk)
    assert "log ends early" in report.counts
    cut_tail(disk, ROOT, report)
    assert checked(disk).is_clean
    again = open_store(disk, **BIG)
    assert 60 < len(bodies(again)) < 100
    fill(again, 1)
    again.close()
    assert checked(disk).is_clean
    open_store(disk, **BIG)


@pytest.mark.parametrize("stop", ["in order", "killed"])
def test_a_repair_gives_up_what_a_store_of_rocketmq_lost(folder: Path, stop: str) -> None:
    whole = open_java(folder)
    end = whole.max_physical_offset
    whole.abandon()
    (folder / "abort").unlink() if stop == "in order" else (folder / "abort").write_bytes(b"")
    last = max((folder / "commitlog").iterdir())
    data = last.read_bytes()
    last.write_bytes(data[: end - int(last.name) - 3000].ljust(len(data), b"\0"))
    with pytest.raises(CorruptRecord):
        open_java(folder)
    cut_tail(RealDisk(), str(folder), check(RealDisk(), str(folder)))
    again = open_java(folder)
    assert end - 6000 < again.max_physical_offset < end - 2000
    again.close()
