"""Zeros in properties: those of a sender stay, those of a lost page go with what follows them.

Our broker refuses NUL in properties, but RocketMQ's takes it, and so did ours: such stores exist.
"""

from __future__ import annotations

import pytest

from rmq.errors import CorruptRecord, StoreError
from rmq.protocol.record import Record
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

from ..stores import ROOT, Clock, bodies, fill, make_store, open_store, record, send

BIG = 1 << 20
LOG = f"{ROOT}/commitlog/{0:020d}"
PAGE = 4096


def with_text(properties: str, body: bytes = b"odd") -> Record:
    odd = record(body)
    odd.properties = properties
    return odd


def opened(disk: MemoryDisk, clock: Clock | None = None) -> Store:
    return open_store(disk, clock, mapped_file_size_commit_log=BIG)


@pytest.mark.parametrize("end", ["killed", "killed, RocketMQ's", "power cut", "clean"])
@pytest.mark.parametrize(
    "properties",
    [
        "a\x01" + "\0" * 8200,
        "\0" * 20_000,
        "a\x01" + "\0" * 20_000 + "\x02CLUSTER\x01c",
        "\0" * 8200 + "\x02CLUSTER\x01c",
        "a\x01b\0",
        "\0",
    ],
)
def test_synced_messages_are_there_whatever_zeros_they_have(properties: str, end: str) -> None:
    for before in range(0, 40, 7):  # the record lies elsewhere in its page each time
        disk = MemoryDisk(before)
        store = opened(disk)
        send(store, record("x" * 60 * before))
        send(store, with_text(properties))
        fill(store, 51)
        store.flush()
        wanted = bodies(store)
        assert len(wanted) == 53
        if end == "clean":
            store.close()
        elif end.startswith("killed"):
            store.abandon()
        else:
            disk.crash()
        if "RocketMQ" in end:
            disk.replace(f"{ROOT}/abort", b"")
        for _ in range(2):
            again = opened(disk)
            assert bodies(again) == wanted
            again.abandon()


def test_a_synced_message_at_the_log_s_end_may_end_in_zeros() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    send(store, record("first"), with_text("a\x01b\0"))
    store.flush()
    store.abandon()
    assert bodies(opened(disk)) == [b"first", b"odd"]


def test_a_message_at_the_log_s_end_with_a_unit_may_end_in_zeros() -> None:
    """RocketMQ's, killed: no file says what was synced, but only whole records get a unit."""
    disk, clock = MemoryDisk(), Clock()
    store = opened(disk, clock)
    send(store, record("first"), with_text("a\x01b\0"))
    clock.now_ms += 10_000
    store.dispatch()
    store.abandon()
    disk.replace(f"{ROOT}/abort", b"")
    assert bodies(opened(disk)) == [b"first", b"odd"]


@pytest.mark.parametrize("lost", [(2 * PAGE, PAGE), (2 * PAGE + 1024, 512), (2 * PAGE - 512, 1024)])
def test_what_a_power_cut_took_from_properties_is_cut_with_what_follows(lost: tuple[int, int]) -> None:
    """A page, or sectors of one that was being written."""
    disk = MemoryDisk()
    store = opened(disk)
    send(store, record("first"))
    store.flush()
    send(store, record("long", note="x" * 20_000), record("last"))
    disk.open(LOG, BIG).write(lost[0], bytes(lost[1]))
    again = make_store(disk.copy(), mapped_file_size_commit_log=BIG)
    assert again.load().cut == LOG
    assert bodies(again) == [b"first"]


@pytest.mark.parametrize("kept", [4 * PAGE, 4 * PAGE + 1536, 4 * PAGE + 1537])
def test_an_end_torn_off_by_a_power_cut_is_cut_though_a_unit_is_there(kept: int) -> None:
    disk, clock = MemoryDisk(), Clock()
    store = opened(disk, clock)
    send(store, record("first"))
    store.flush()
    send(store, record("long", note="x" * 20_000))
    clock.now_ms += 10_000
    store.dispatch()
    disk.open(LOG, BIG).clear(kept)
    assert bodies(opened(disk.copy(), clock)) == [b"first"]


def test_zeros_that_were_synced_stay_even_when_they_fill_a_page() -> None:
    """A sender that knows the offsets may send such zeros."""
    disk, clock = MemoryDisk(), Clock()
    store = opened(disk, clock)
    send(store, record("first"))
    start = store.max_physical_offset + 91 + len("Orders") + len("odd")
    send(store, with_text("x" * (PAGE - start) + "\0" * PAGE + "y"))
    fill(store, 5)
    store.flush()
    wanted = bodies(store)
    store.abandon()
    again = opened(disk)
    assert bodies(again) == wanted
    again.close()
    assert bodies(opened(disk)) == wanted
    # without our mark, by the times of the checkpoint
    disk, clock = MemoryDisk(), Clock()
    store = opened(disk, clock)
    send(store, record("first"))
    send(store, with_text("x" * (PAGE - start) + "\0" * PAGE + "y"))
    clock.now_ms += 1
    fill(store, 5)
    store.flush()
    store.flush_checkpoint()
    store.abandon()
    disk.replace(f"{ROOT}/abort", b"")
    assert bodies(opened(disk, clock)) == wanted


def test_what_a_failed_sync_lost_of_properties_is_noticed() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    send(store, record("long", note="x" * 20_000), record("last"))
    disk.fail("sync", "commitlog")
    with pytest.raises(StoreError):
        store.flush()
    disk.open(LOG, BIG).write(2 * PAGE, bytes(PAGE))
    with pytest.raises(CorruptRecord):
        store.mend()


def test_the_mark_says_what_was_synced_and_never_more() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    fill(store, 3)
    synced = store.flush()
    fill(store, 3)
    assert store._abort is not None
    assert store._abort.synced == synced
    assert open_store(disk.copy(), mapped_file_size_commit_log=BIG)._abort.synced > synced  # type: ignore[union-attr]
    store.truncate(store.unit("Orders", 0, 1)[0])  # type: ignore[index]
    assert store._abort.synced == store.max_physical_offset
    image = disk.image(1)
    assert int.from_bytes(image.load(f"{ROOT}/abort")[8:16], "big") == store.max_physical_offset  # type: ignore[index]


def test_what_a_slave_synced_of_a_record_in_two_pieces_is_not_the_record() -> None:
    """The first piece is synced, then comes the second, the unit is on the disk, and the power is cut."""
    master = opened(MemoryDisk(1))
    send(master, record("first"), record("second", note="x" * 300))
    data, half = bytes(master.read_raw(0, BIG)), 20
    disk, clock = MemoryDisk(), Clock()
    slave = opened(disk, clock)
    slave.append_raw(0, data[:-half])
    slave.flush()
    slave.append_raw(len(data) - half, data[-half:])
    clock.now_ms += 10_000
    slave.dispatch()
    disk.open(LOG, BIG).clear(len(data) - half)
    again = opened(disk.copy(), clock)
    assert bodies(again) == [b"first"]
    again.append_raw(again.max_physical_offset, data[again.max_physical_offset :])
    assert bytes(again.read_raw(0, BIG)) == data
