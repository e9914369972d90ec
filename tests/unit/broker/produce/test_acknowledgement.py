"""Waits of sends: lines of sends by position and deadline, and the responses to late sends."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.produce.acks import ParkedSends
from rmq.broker.produce.send_answers import Answers, Records
from rmq.broker.wakeups import Wakeups
from rmq.metrics import Histogram
from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import JSON, ROCKETMQ, Command
from rmq.protocol.frames import Decoder
from rmq.protocol.record import Record
from rmq.store.config import BrokerRole, FlushDiskType
from rmq.store.writer import Batch

from ..rig import Rig, send


class Fixture:
    """A line with a clock to turn and a record of whom it released."""

    def __init__(self) -> None:
        self.now = 0.0
        self.released: list[tuple[int, bool]] = []
        self.deadlines: list[float] = []
        self.waited = Histogram()
        self.line = ParkedSends(lambda: self.now, self.waited, self.deadlines.append, self._release)

    def _release(self, parked: Any, in_time: bool) -> None:
        self.released.append((parked.position, in_time))

    def park(self, position: int, *, acks: int = 1) -> None:
        acknowledgements: Any = [None] * acks
        self.line.park(None, position, acknowledgements, 5)  # type: ignore[arg-type]


@pytest.fixture
def table() -> Fixture:
    return Fixture()


def test_a_flush_answers_all_sends_that_it_covers(table: Fixture) -> None:
    table.park(100)
    table.park(200, acks=3)
    table.park(300)
    assert (table.line.awaited, table.line.acks) == (300, 5)
    table.now = 0.5
    table.line.advance(200)
    assert table.released == [(100, True), (200, True)]
    assert (sum(table.waited.counts), table.waited.total) == (4, 2.0)
    assert (table.line.awaited, table.line.acks) == (300, 1)
    table.line.advance(300)
    assert (table.line.awaited, table.line.acks) == (-1, 0)


def test_a_send_whose_flush_takes_too_long_is_released_as_late(table: Fixture) -> None:
    table.park(100)
    table.now = 1
    table.park(200)
    assert table.deadlines == [5, 6]
    table.line.expire(5)
    assert table.line.deadline == 6
    assert table.released == [(100, False)]
    table.line.advance(200)
    assert table.released == [(100, False), (200, True)]
    assert sum(table.waited.counts) == 1
    assert table.line.deadline == math.inf


def test_the_timed_task_is_told_only_of_an_earlier_deadline() -> None:
    rung: list[float] = []
    wake = Wakeups(deadlines=lambda: rung.append(rig.seconds))
    rig = Rig(store={"flush_disk_type": FlushDiskType.SYNC_FLUSH}, given={"wake": wake})
    rig.ask(send())
    rig.seconds += 1
    rig.ask(send())
    assert rung == [100]
    assert rig.broker.steps.deadlines(101) == 105
    rig.broker.on_synced(rig.store.flush())
    assert rig.broker.steps.deadlines(105) == math.inf
    rig.ask(send())
    assert rung == [100, 101]


class Slave:
    """A link to a slave that has the log's beginning and never reports more."""

    acknowledged = 0


@pytest.mark.parametrize("flush", FlushDiskType)
def test_who_waits_for_a_slave_when_the_broker_stops_is_told_that_the_message_is_stored(
    flush: FlushDiskType,
) -> None:
    rig = Rig(store={"broker_role": BrokerRole.SYNC_MASTER, "flush_disk_type": flush})
    rig.broker.acknowledgement.replicas.join(Slave(), "10.0.0.7:1", lambda: None)  # type: ignore[arg-type]
    assert rig.ask(send()) == []
    rig.broker.on_synced(rig.store.flush())
    assert rig.wire.take() == []
    rig.broker.acknowledgement.stop()
    (answer,) = rig.wire.take()
    assert (answer.code, answer.ext["queueOffset"]) == (ResponseCode.FLUSH_SLAVE_TIMEOUT, "0")
    assert rig.broker.acknowledgement.waiting == 0


def test_who_waits_for_the_disk_when_the_last_sync_fails_is_told_that_it_is_not_known() -> None:
    rig = Rig(store={"flush_disk_type": FlushDiskType.SYNC_FLUSH})
    assert rig.ask(send()) == []
    rig.broker.acknowledgement.stop()
    assert [answer.code for answer in rig.wire.take()] == [ResponseCode.FLUSH_DISK_TIMEOUT]


# --- answers as bytes ---

FORMS = [JSON, ROCKETMQ]
HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


def one_record(physical_offset: int, queue_offset: int) -> tuple[Record]:
    record = Record("Orders", 0, b"")
    record.physical_offset, record.queue_offset = physical_offset, queue_offset
    return (record,)


def answer(form: int, queue_id: int, records: Records, *, opaque: int = 7, **settings: Any) -> Command:
    made = Answers(HOST, **{"region": "DefaultRegion", "trace_on": True} | settings)
    (command,) = Decoder().feed(made.stored([(Command(310, opaque, serialization=form), queue_id, records)]))
    return command


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("queue_id", "offset", "opaque"), [(0, 0, 0), (3, 17, 1005), (2**31 - 1, 2**63 - 1, -(2**31))]
)
@pytest.mark.parametrize("is_batch", [False, True])
def test_the_answer_to_a_send(form: int, queue_id: int, offset: int, opaque: int, is_batch: bool) -> None:
    records = Batch(offset, [1024, 1200], 300) if is_batch else one_record(1024, offset)

    answered = answer(form, queue_id, records, opaque=opaque)

    assert (answered.code, answered.opaque, answered.flag, answered.serialization) == (0, opaque, 1, form)
    assert (answered.language, answered.version, answered.remark, answered.body) == ("PYTHON", 407, None, b"")
    ids = ["7F00000100002A9F0000000000000400", "7F00000100002A9F00000000000004B0"]
    assert answered.ext == {
        "msgId": ",".join(ids[: 1 + is_batch]),
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("region", ["", 'a"b\\c', "山\n", "100 %d", "x" * 300])
def test_a_region_of_any_text(form: int, region: str) -> None:
    for records in (one_record(1, 2), Batch(2, [1], 100)):
        answered = answer(form, 1, records, region=region, trace_on=False)

        assert answered.ext["MSG_REGION"] == region
        assert answered.ext["msgId"] == "7F00000100002A9F0000000000000001"
        assert answered.ext["TRACE_ON"] == "false"


@pytest.mark.parametrize("form", FORMS)
def test_the_answer_to_a_send_has_the_names_that_java_has(form: int, golden: Path) -> None:
    captured = json.loads((golden / "frames" / "05_send_response.json").read_text())

    assert answer(form, 2, one_record(1024, 17), opaque=1005).ext == captured["ext_fields"]
