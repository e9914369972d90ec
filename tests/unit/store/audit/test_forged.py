"""Records made up inside bodies, behind damage: neither recovery nor a repair takes them for records."""

from __future__ import annotations

import struct
import zlib

import pytest

from rmq.errors import CorruptRecord
from rmq.protocol.record import MESSAGE_MAGIC, Record, encode_record
from rmq.store.audit.audit import Report, check
from rmq.store.audit.repair import skip_damaged
from rmq.store.files import scan
from rmq.store.files.segments import OpenFiles, Segments
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

from ..stores import HOST, ROOT, START_MS, Clock, bodies, fill, make_store, open_store, record, send

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


def nested(at: int, size: int, step: int, *, crc: int | None) -> bytes:
    """The bytes of a body at `at`: heads `step` bytes apart, each of a record that ends where the body does.
    With `crc` that is theirs, else each has its own."""
    tail = b"\x06Orders\0\0"
    made = bytearray(size - len(tail)) + tail
    for start in range(size - len(tail) - 2 * step, -1, -step):
        body = made[start + BODY_AT : size - len(tail)]
        head = struct.pack(
            ">iIiiiqqiqiiqiiiqi",
            *(size - start, MESSAGE_MAGIC, zlib.crc32(body) & 0x7FFFFFFF if crc is None else crc, 0, 0, 99),
            *(at + start, 0, START_MS, 1, 1, START_MS, 1, 1, 0, 0, len(body)),
        )
        made[start : start + BODY_AT] = head
    return bytes(made)


@pytest.mark.parametrize("crc", [None, 1])
@pytest.mark.parametrize("units", [True, False])
def test_heads_inside_heads_are_not_each_read_to_their_end(
    crc: int | None, units: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 MiB of them made a search read 90 GB; without CRCs to their liking too."""
    disk = MemoryDisk()
    store = opened(disk)
    fill(store, 2)
    at = store.max_physical_offset
    body = nested(at + BODY_AT, 300_000, 100, crc=crc)
    send(store, record(body, topic="Mine"))
    fill(store, 2)
    store.dispatch()
    store.close()
    segments = Segments(disk, f"{ROOT}/commitlog", BIG, limit=OpenFiles(4), mapped=True, ordered=True)
    segments.load()
    disk.flip(LOG, at + 5, 3)  # the magic: so its own body is not known
    read, copy = [0], Segments.copy

    def counted(self: Segments, address: int, size: int) -> bytes:
        read[0] += size
        return copy(self, address, size)

    monkeypatch.setattr(Segments, "copy", counted)
    monkeypatch.setattr(scan, "_CHECKED_BYTES", 1 << 20)

    def vouch(found: scan.Scanned) -> bool | None:
        return True if found.position > at + len(body) else None

    found = scan.next_good(segments, at, vouch if units else scan.no_evidence)
    assert found is not None
    assert (found.position > at + len(body)) is units
    assert read[0] < 6 << 20  # 450 MB when each is read


@pytest.mark.parametrize("ahead", [0, 2 * PAGE])
@pytest.mark.parametrize("stored", [0, START_MS - 5000, START_MS + 1])
@pytest.mark.parametrize("lost", ["head", "body", "end"])
def test_a_torn_tail_with_a_forged_record_is_cut(lost: str, stored: int, ahead: int) -> None:
    """By its time the forged record was synced long ago: a start would be refused for damage."""
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
