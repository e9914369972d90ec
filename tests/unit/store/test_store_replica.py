"""A slave's store: the bytes of its master, cut, set aside, begun again."""

from __future__ import annotations

import pytest

from rmq.errors import CorruptRecord, OffsetOutOfRange, StoreError
from rmq.store.config import BrokerRole
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

from .stores import ROOT, START_MS, Clock, bodies, fill, open_store, record, send


def test_a_slave_s_log_is_its_master_s() -> None:
    master_disk, slave_disk = MemoryDisk(), MemoryDisk()
    master = open_store(master_disk)
    for number in range(120):
        tags = f"t{number % 3}"
        send(master, record(f"message {number}", queue_id=number % 2, tags=tags, unique=f"K{number}"))
    slave = open_store(slave_disk, broker_role=BrokerRole.SLAVE)
    position, step = 0, 1
    grown: list[tuple[str, int, int]] = []
    while position < master.max_physical_offset:
        data = bytes(master.read_raw(position, step))
        grown += slave.append_raw(position, data)
        position += len(data)
        step = step * 7 % 1500 + 1
    assert slave.max_physical_offset == master.max_physical_offset
    for queue_id in (0, 1):
        assert bodies(slave, queue_id=queue_id) == bodies(master, queue_id=queue_id)
        assert slave.unit("Orders", queue_id, 33) == master.unit("Orders", queue_id, 33)
    assert grown[-1][2] == 60
    assert len(slave.query("Orders", "K77", 5, 0, 1 << 60)) == 1
    for name in master_disk.list(f"{ROOT}/commitlog"):
        path = f"{ROOT}/commitlog/{name}"
        assert slave_disk.load(path) == master_disk.load(path)
    slave.close()
    again = open_store(slave_disk)
    assert bodies(again) == bodies(master)
    assert again.max_physical_offset == master.max_physical_offset


def test_what_came_of_a_record_in_part_is_cut_before_another_master_goes_on() -> None:
    """A power cut takes a master's end of the log that its slave has in part; other records come there."""
    first, second = open_store(), open_store()
    for master, text in ((first, "old"), (second, "new")):
        fill(master, 20)
        for number in range(12):  # over the end of a file, at another place in each
            send(master, record(f"{text} {number} " + "x" * 150 * (1 + (text == "old"))))
    common = last_of(first, 19)
    whole = [common, *[last_of(first, number) for number in range(20, 32)]]
    for reach in range(common, first.max_physical_offset, 7):
        slave = open_store(broker_role=BrokerRole.SLAVE)
        copy(first, slave, reach)
        assert slave.max_physical_offset == reach
        slave.cut_partial()
        assert slave.max_physical_offset == max(end for end in whole if end <= reach)
        if slave.max_physical_offset > common:
            slave.truncate(common)  # whole records are compared with the master's
        copy(second, slave, second.max_physical_offset)
        assert bodies(slave) == bodies(second)


def feed(slave: Store, data: bytes | bytearray, step: int) -> None:
    for position in range(0, len(data), step):
        slave.append_raw(position, data[position : position + step])


def last_of(store: Store, queue_offset: int) -> int:
    """The end of the record at this offset of the queue."""
    unit = store.unit("Orders", 0, queue_offset)
    assert unit is not None
    return unit[0] + unit[1]


def copy(master: Store, slave: Store, reach: int) -> None:
    """Have the slave's log reach there."""
    position = slave.max_physical_offset
    while position < reach:
        data = bytes(master.read_raw(position, min(100, reach - position)))
        slave.append_raw(position, data)
        position += len(data)


def test_a_part_of_a_record_is_no_damage_for_the_index(caplog: pytest.LogCaptureFixture) -> None:
    """A disk that is full in the middle of a record: the slave cuts the part, and gets it again."""
    master, slave = open_store(), open_store(broker_role=BrokerRole.SLAVE)
    for number in range(3):
        send(master, record("x" * 100, unique=f"K{number}"))
    whole, size = last_of(master, 1), last_of(master, 2) - last_of(master, 1)
    copy(master, slave, whole + size // 2)
    slave.cut_partial()
    copy(master, slave, whole + size // 2)
    while slave.dispatch():
        pass
    assert "no good record" not in caplog.text
    copy(master, slave, master.max_physical_offset)
    while slave.dispatch():
        pass
    assert [len(slave.query("Orders", f"K{number}", 5, 0, 1 << 60)) for number in range(3)] == [1, 1, 1]


def test_a_slave_s_full_queue_files_are_written_as_they_fill() -> None:
    """Otherwise the slave would hold its master's messages in memory until its next sync."""
    master, disk = open_store(), MemoryDisk()
    fill(master, 1000)
    slave = open_store(disk)
    while slave.max_physical_offset < master.max_physical_offset:
        position = slave.max_physical_offset
        slave.append_raw(position, bytes(master.read_raw(position, 1 << 20)))
    assert len(disk.list(f"{ROOT}/consumequeue/Orders/0")) >= 2


def test_raw_bytes_must_follow_the_end() -> None:
    store = open_store()
    fill(store, 3)
    with pytest.raises(OffsetOutOfRange, match="outside the log"):
        store.append_raw(store.max_physical_offset + 1, b"x")
    with pytest.raises(OffsetOutOfRange):
        store.read_raw(store.max_physical_offset + 1, 10)
    assert store.read_raw(store.max_physical_offset, 10) == b""
    empty = open_store()
    for offset in (100, -4096, -(1 << 63)):
        with pytest.raises(OffsetOutOfRange):
            empty.append_raw(offset, b"x")


@pytest.mark.parametrize("at", [0, 4, 30, 90, 100])
@pytest.mark.parametrize("step", [1, 50, 5000])
def test_a_record_that_comes_damaged_from_the_master_is_not_kept(at: int, step: int) -> None:
    """`at`: where in the record a byte is wrong (size, magic, place, body)."""
    master, slave = open_store(), open_store(broker_role=BrokerRole.SLAVE)
    for number in range(5):
        send(master, record(f"message {number}" + "x" * 20))
    good = last_of(master, 2)
    data = bytearray(master.read_raw(0, 1 << 20))
    data[good + at] ^= 0x55
    with pytest.raises(CorruptRecord, match="damaged") as caught:
        feed(slave, data, step)
    assert caught.value.offset == good
    assert slave.max_physical_offset == good
    assert bodies(slave) == bodies(master)[:3]
    copy(master, slave, master.max_physical_offset)
    assert bodies(slave) == bodies(master)


def test_a_slave_may_begin_in_the_middle_of_its_master_s_log() -> None:
    master, slave_disk = open_store(), MemoryDisk()
    fill(master, 120)
    slave = open_store(slave_disk)
    position = 2 * 4096
    while position < master.max_physical_offset:
        data = bytes(master.read_raw(position, 1000))
        slave.append_raw(position, data)
        position += len(data)
    first = slave.min_offset("Orders", 0)
    assert 60 < first < 90
    assert slave.get("Orders", 0, 0, 32).status == "OFFSET_TOO_SMALL"
    assert bodies(slave) == bodies(master)[first:]
    slave.close()
    unit = slave_disk.load(f"{ROOT}/consumequeue/Orders/0/{first // 10 * 200:020d}") or b""
    assert unit[:20] == bytes(8) + b"\x7f\xff\xff\xff" + bytes(8), "Java's filler"
    again = open_store(slave_disk)
    assert again.min_offset("Orders", 0) == first
    assert bodies(again) == bodies(master)[first:]


def test_truncate_cuts_log_queues_and_index() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    for number in range(100):
        send(store, record(f"message {number}", unique=f"K{number}"))
    while store.dispatch():
        pass
    position = store.unit("Orders", 0, 40)
    assert position is not None
    store.put(record("pending"))
    store.truncate(position[0])
    assert store.max_physical_offset == position[0]
    assert bodies(store) == [b"message %d" % number for number in range(40)]
    assert store.query("Orders", "K50", 5, 0, 1 << 60) == []
    while store.dispatch():
        pass
    assert len(store.query("Orders", "K39", 5, 0, 1 << 60)) == 1
    fill(store, 1)
    assert store.max_offset("Orders", 0) == 41
    assert len(bodies(open_store(disk.copy()))) == 41
    with pytest.raises(OffsetOutOfRange):
        store.truncate(1 << 40)


def test_a_slave_s_log_without_a_record_begins_where_its_master_s_does_now() -> None:
    """The first record arrived in part, and expired at the master before the rest arrived."""
    disk, master = MemoryDisk(), open_store()
    fill(master, 120)
    slave = open_store(disk, broker_role=BrokerRole.SLAVE)
    slave.append_raw(4096, master.read_raw(4096, 50))
    slave.cut_partial()
    assert slave.min_physical_offset == slave.max_physical_offset == 4096
    with pytest.raises(OffsetOutOfRange):
        slave.append_raw(2 * 4096 + 1, b"x")
    for again in (slave, open_store(disk.copy(), broker_role=BrokerRole.SLAVE)):
        position = 2 * 4096
        while position < master.max_physical_offset:
            data = bytes(master.read_raw(position, 1000))
            again.append_raw(position, data)
            position += len(data)
        assert again.min_physical_offset == 2 * 4096
        assert bodies(again) == bodies(master)[again.min_offset("Orders", 0) :]


def test_a_log_set_aside_is_kept_whole_and_the_store_goes_on_empty() -> None:
    disk, clock = MemoryDisk(), Clock()
    master = open_store()
    fill(master, 120)
    slave = open_store(disk, clock, broker_role=BrokerRole.SLAVE)
    copy(master, slave, master.max_physical_offset)
    slave.flush()
    slave.flush_queues()
    slave.flush_checkpoint()
    kept = {name: disk.load(f"{ROOT}/commitlog/{name}") for name in disk.list(f"{ROOT}/commitlog")}
    assert slave.set_aside() == f"{ROOT}/aside/commitlog"
    assert {name: disk.load(f"{ROOT}/aside/commitlog/{name}") for name in kept} == kept
    assert (slave.min_physical_offset, slave.max_physical_offset, list(slave.queues())) == (0, 0, [])
    other = open_store(clock=Clock(START_MS - 3_600_000))
    fill(other, 60)
    copy(other, slave, other.max_physical_offset)
    assert bodies(slave) == bodies(other)
    with pytest.raises(StoreError, match="aside"):
        slave.set_aside()
    assert bodies(slave) == bodies(other)
    assert len(slave.query("Orders", "K1", 5, 0, 1 << 60)) == len(other.query("Orders", "K1", 5, 0, 1 << 60))
    for seed in range(20):  # nothing of the new log was synced
        left = open_store(disk.image(seed))
        assert bodies(left) == bodies(other)[: len(bodies(left))]


def test_a_power_cut_while_the_log_is_set_aside_leaves_it_here_or_there() -> None:
    disk = MemoryDisk()
    master = open_store()
    fill(master, 120)
    slave = open_store(disk, broker_role=BrokerRole.SLAVE)
    copy(master, slave, master.max_physical_offset)
    slave.flush()
    slave.flush_queues()
    slave.flush_checkpoint()
    images: list[MemoryDisk] = []
    disk.on_change = lambda: images.append(disk.image(len(images)))
    slave.set_aside()
    assert len(images) > 2
    for image in images:
        again = open_store(image, broker_role=BrokerRole.SLAVE)
        if not image.exists(f"{ROOT}/aside"):
            assert bodies(again) == bodies(master)
            continue
        assert list(again.queues()) == [] or bodies(again) == []
        copy(master, again, master.max_physical_offset)
        assert bodies(again) == bodies(master)


def test_what_a_slave_gets_after_a_cut_is_no_damage_when_a_power_cut_tears_it() -> None:
    """The records that follow a cut may be older than what was synced before it."""
    disk, clock = MemoryDisk(), Clock()
    late, common = MemoryDisk(), open_store(clock=clock)
    fill(common, 5)
    slave = open_store(late, clock, broker_role=BrokerRole.SLAVE)
    copy(common, slave, common.max_physical_offset)
    old, new = open_store(disk, Clock(START_MS + 5000)), open_store(clock=Clock(START_MS + 60_000))
    for master in (old, new):
        master.append_raw(0, common.read_raw(0, 1 << 20))
        fill(master, 100)
    copy(new, slave, new.max_physical_offset)
    slave.flush()
    slave.flush_queues()
    slave.flush_checkpoint()
    slave.truncate(common.max_physical_offset)
    copy(old, slave, old.max_physical_offset)
    slave.flush_checkpoint()
    for seed in range(30):
        assert len(bodies(open_store(late.image(seed)))) >= 5


def test_a_queue_that_begins_again_hides_no_other_queue_s_arrival() -> None:
    """Both lie in the same bytes; pulls wait for the other queue."""
    master, slave = open_store(), open_store(broker_role=BrokerRole.SLAVE)
    send(master, record("first"))
    copy(master, slave, master.max_physical_offset)
    send(master, record("other", topic="Parts"))
    send(master, record("second"))
    master.remove_topic("Orders")
    send(master, record("again", delay="1"))
    start = slave.max_physical_offset
    arrivals = slave.append_raw(start, bytes(master.read_raw(start, 1 << 20)))
    assert {(topic, end) for topic, _, end in arrivals} == {("Parts", 1), ("Orders", 1)}
    assert bodies(slave) == [b"again"]
    assert bodies(slave, "Parts") == [b"other"]
