"""Records whose topic, queue id or queue offset no queue can have. No CRC covers these: they are damage."""

from __future__ import annotations

import pytest

from rmq.errors import CorruptRecord
from rmq.protocol.record import Record, encode_record
from rmq.store.audit.audit import check
from rmq.store.audit.repair import skip_damaged
from rmq.store.config import BrokerRole
from rmq.testing.disk import MemoryDisk

from ..stores import HOST, ROOT, bodies, open_store, record, send

WRONG = [
    ("a/b", 0, 0),
    ("../x", 0, 0),
    ("..", 0, 0),
    ("", 0, 0),
    ("rmq_s\0\0", 0, 0),
    ("Orders", -1, 0),
    ("Orders", 0, -5),
]


def wrong(topic: str, queue_id: int, queue_offset: int, position: int) -> bytes:
    made = Record(topic, queue_id, b"body", "TAGS\x01a", born_host=HOST)
    made.queue_offset, made.physical_offset, made.store_timestamp = queue_offset, position, 1
    return encode_record(made, HOST)


@pytest.mark.parametrize(("topic", "queue_id", "queue_offset"), WRONG)
def test_a_slave_keeps_none_and_opens_again(topic: str, queue_id: int, queue_offset: int) -> None:
    disk = MemoryDisk()
    store = open_store(disk, broker_role=BrokerRole.SLAVE)
    good = encode_record(Record("Orders", 0, b"good", born_host=HOST), HOST)
    store.append_raw(0, memoryview(good))
    with pytest.raises(CorruptRecord, match="damaged"):
        store.append_raw(len(good), memoryview(wrong(topic, queue_id, queue_offset, len(good))))
    assert store.max_physical_offset == len(good)
    store.abandon()
    again = open_store(disk, broker_role=BrokerRole.SLAVE)
    assert bodies(again) == [b"good"]


@pytest.mark.parametrize(("topic", "queue_id", "queue_offset"), [row for row in WRONG if row[0]])
def test_in_a_synced_log_it_is_damage_that_can_be_skipped(
    topic: str, queue_id: int, queue_offset: int
) -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    send(store, record("first"))
    position = store.max_physical_offset
    send(store, Record("x" * len(topic), 0, b"body", "TAGS\x01a", born_host=HOST))
    send(store, record("last"))
    store.close()
    log = next(path for path in disk._files if "commitlog" in path)
    bad = wrong(topic, queue_id, queue_offset, position)
    disk._files[log].live[position : position + len(bad)] = bad
    with pytest.raises(CorruptRecord, match=f"offset {position}"):
        open_store(disk)
    report = check(disk, ROOT)
    assert report.counts["damage"] == 1
    assert len(skip_damaged(disk, ROOT, report)) == 1
    assert bodies(open_store(disk)) == [b"first", b"last"]
