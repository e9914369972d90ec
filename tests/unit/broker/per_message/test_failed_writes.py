"""The journal after a disk that failed for a moment: what is kept of a queue is kept though its first record
was not written."""

from __future__ import annotations

import math

import pytest

from rmq.broker.consume.per_message import ledger
from rmq.broker.consume.per_message.journal import JOURNAL_TOPIC, first_of
from tests.unit.broker.rig import Rig
from tests.unit.broker.taking import GROUP, TOPIC, Consumer, filled, restarted, step

LOG = "commitlog"


def fail_next_write(rig: Rig) -> None:
    rig.disk.fail("write", LOG, times=1)


def test_acknowledgements_are_read_though_the_record_that_names_their_queue_failed() -> None:
    rig = filled(6)
    consumer = Consumer(rig)
    fail_next_write(rig)
    taken = consumer.take()
    assert [one.body for one in taken] == [b"%d" % number for number in range(6)]
    assert consumer.ack(taken[1], taken[4]) == [None, None]
    again = Consumer(restarted(rig))
    assert again.bodies() == [b"0", b"2", b"3", b"5"]


def test_a_failed_acknowledgement_stays_one() -> None:
    rig = filled(2)
    consumer = Consumer(rig)
    one, two = consumer.take()
    fail_next_write(rig)
    (outcome,) = consumer.ack(one)
    assert outcome is not None
    assert consumer.ack(two) == [None]
    assert Consumer(restarted(rig)).bodies() == [b"0"]


def test_a_reset_whose_record_failed_holds_with_the_next() -> None:
    rig = filled(3)
    consumer = Consumer(rig)
    assert consumer.ack(*consumer.take()) == [None] * 3
    fail_next_write(rig)
    rig.offsets.put(GROUP, TOPIC, {0: 0})
    rig.broker.group_commit.commit_pending()
    first, *_ = consumer.take()
    assert consumer.ack(first) == [None]
    assert Consumer(restarted(rig)).bodies() == [b"1", b"2"]


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_snapshot_that_is_not_written_is_not_named(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "SNAPSHOT_RECORDS", 3)
    monkeypatch.setattr(ledger, "PIECE_BYTES", 1)
    rig = filled(12, queues=3)
    consumer = Consumer(rig)
    taken = consumer.take(seconds=1000)
    for one in taken[:5]:
        assert consumer.ack(one) == [None]
    for number in range(1, 5):  # a queue in each, and the record that names the begin
        if number >= failing:
            rig.disk.fail("write", LOG, times=math.inf)
        rig.broker.steps.deadlines(rig.seconds)
    rig.disk.heal()
    assert consumer.ack(taken[6]) == [None]
    wanted = sorted({one.body for one in taken} - {one.body for one in [*taken[:5], taken[6]]})
    assert sorted(Consumer(restarted(rig)).bodies()) == wanted
    step(rig)  # the snapshot is written in the end
    assert rig.broker.deliveries.ledger._first > 0
    assert sorted(Consumer(restarted(rig)).bodies()) == wanted


def test_records_before_the_whole_snapshot_name_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last records of a snapshot are one write, of which a power cut may leave the first part."""
    monkeypatch.setattr(ledger, "SNAPSHOT_RECORDS", 3)
    monkeypatch.setattr(ledger, "BODY_BYTES", 1)
    rig = filled(12, queues=3)
    consumer = Consumer(rig)
    for one in consumer.take(seconds=1000)[:5]:
        assert consumer.ack(one) == [None]
    begin = rig.store.max_offset(JOURNAL_TOPIC, 0)
    step(rig)
    names = [first_of(body) for body in rig.bodies(JOURNAL_TOPIC)[begin:]]
    assert len(names) > 3
    assert names == [0] * (len(names) - 1) + [begin]
