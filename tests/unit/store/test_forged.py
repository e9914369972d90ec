"""Records made up inside bodies, behind damage: neither recovery nor a repair takes them for records."""

from __future__ import annotations

import pytest

from rmq.errors import CorruptRecord
from rmq.protocol.record import Record, encode_record
from rmq.store.audit import Report, check
from rmq.store.repair import skip_damaged
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

from .stores import HOST, ROOT, START_MS, Clock, bodies, fill, make_store, open_store, record, send

BIG = 1 << 20
PAGE = 4096
LOG = f"{ROOT}/commitlog/{0:020d}"
BODY_AT = 88
FILLED = "x" * 3000


def forge(
    at: int, count: int = 1, *, topic: str = "Orders", stored: int = START_MS, first: int = 100
) -> bytes:
    """Records of that place, one after the other, as a sender makes them up."""
    made = b""
    for number in range(count):
        one = Record(topic, 0, b"forged", "a\x01b", born_timestamp=START_MS, born_host=HOST)
        one.queue_offset, one.physical_offset, one.store_timestamp = first + number, at + len(made), stored
        made += encode_record(one, HOST)
    return made


def send_forged(store: Store, *, ahead: int = 0, **forged: object) -> int:
    """Send a body with made-up records, `ahead` bytes after its start; returns where its own record lies."""
    at = store.max_physical_offset
    place = at + BODY_AT + ahead
    made = forge(place, **forged)  # type: ignore[arg-type]
    send(store, record(b"y" * ahead + made + b"z" * 200, topic="Mine"))
    return at


def opened(disk: MemoryDisk, clock: Clock | None = None, **settings: object) -> Store:
    return open_store(disk, clock, mapped_file_size_commit_log=BIG, **settings)


def checked(disk: MemoryDisk) -> Report:
    return check(disk, ROOT)


@pytest.mark.parametrize("forged", [{"count": 3}, {"topic": "Secret", "first": 0}, {"first": 2, "stored": 0}])
@pytest.mark.parametrize("damage", ["magic", "size", "place", "body", "body size"])
@pytest.mark.parametrize("clean", [True, False])
def test_skipped_damage_leaves_no_forged_record(damage: str, forged: dict[str, object], clean: bool) -> None:
    disk, clock = MemoryDisk(), Clock()
    store = opened(disk, clock)
    fill(store, 5)
    at = send_forged(store, **forged)
    fill(store, 5)
    clock.now_ms += 10_000
    store.dispatch()
    store.flush()
    store.close() if clean else store.abandon()
    places = {"size": 1, "magic": 5, "place": 31, "body size": 84, "body": BODY_AT + 300}
    disk.flip(LOG, at + places[damage], 3)
    with pytest.raises(CorruptRecord):
        opened(disk)
    report = checked(disk)
    size = len(forge(0, **forged)) + 200 + BODY_AT + 3 + len("Mine")  # type: ignore[arg-type]
    assert [(gap.start, gap.stop) for gap in report.gaps] == [(at, at + size)]
    skip_damaged(disk, ROOT, report)
    again = opened(disk)
    assert again.max_offset("Orders", 0) == 10
    assert set(again.queues()) <= {("Orders", 0), ("Mine", 0)}
    assert b"forged" not in bodies(again)
    again.close()
    assert checked(disk).gaps == []


@pytest.mark.parametrize("ahead", [0, 2 * PAGE])
@pytest.mark.parametrize("stored", [0, START_MS - 5000, START_MS + 1])
@pytest.mark.parametrize("lost", ["head", "body", "end"])
def test_a_torn_tail_with_a_forged_record_is_cut(lost: str, stored: int, ahead: int) -> None:
    """Its time says that it was synced long ago: a start would be refused for damage."""
    for marked in (True, False):
        disk, clock = MemoryDisk(), Clock()
        store = opened(disk, clock)
        fill(store, 5)
        clock.now_ms += 10_000
        store.dispatch()
        send(store, record(FILLED))
        store.flush()
        store.flush_queues()
        store.flush_checkpoint()
        clock.now_ms += 5000
        send(store, record("after the checkpoint"))
        store.flush()
        at = send_forged(store, ahead=ahead, count=3, stored=stored)
        send(store, record("y" * 10_000, topic="Mine"))
        wanted = bodies(store)
        log = disk.open(LOG, BIG)
        border = at - at % PAGE + PAGE
        if lost == "head":
            log.write(at, bytes(border - at))
        elif lost == "body":
            log.write(border, bytes(PAGE))
        else:
            log.clear(border + 2 * PAGE + 700)
        image = disk.copy()
        if not marked:
            image.replace(f"{ROOT}/abort", b"")
        again = make_store(image, clock, mapped_file_size_commit_log=BIG)
        again.load()
        assert bodies(again) == wanted
        assert b"forged" not in bodies(again) + bodies(again, "Mine")


def test_damage_of_what_was_synced_is_told_with_the_next_record() -> None:
    disk, clock = MemoryDisk(), Clock()
    store = opened(disk, clock)
    fill(store, 5)
    at = send_forged(store, count=2)
    following = store.max_physical_offset
    fill(store, 5)
    clock.now_ms += 10_000
    store.dispatch()
    store.flush()
    store.abandon()
    disk.flip(LOG, at + 5)
    with pytest.raises(CorruptRecord, match=f"but one at {following}"):
        opened(disk)


def test_forged_records_that_a_queue_is_made_again_over_stay_bodies() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    for _ in range(5):
        send_forged(store, count=2)
    store.close()
    disk.remove(f"{ROOT}/consumequeue")
    again = opened(disk)
    assert (again.max_offset("Mine", 0), again.max_offset("Orders", 0)) == (5, 0)


def test_a_lost_page_of_what_was_synced_is_damage_though_the_clock_was_set_back() -> None:
    """The next record has an earlier time and no unit yet; its place says that it was synced."""
    disk, clock = MemoryDisk(), Clock()
    store = opened(disk, clock)
    fill(store, 5)
    send(store, record("y" * 10_000))
    clock.now_ms -= 60_000
    fill(store, 5)
    store.flush()
    store.abandon()
    disk.open(LOG, BIG).write(PAGE, bytes(PAGE))
    with pytest.raises(CorruptRecord):
        opened(disk, clock)
