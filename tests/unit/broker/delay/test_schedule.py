"""Delayed messages: due to the millisecond, in order, across restarts, and never lost to a full disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq.broker.delay.delay_levels import STEP_MESSAGES, Schedule
from rmq.errors import DiskFull, StoreError
from rmq.message import SCHEDULE_TOPIC
from rmq.protocol.properties import encode_properties
from rmq.protocol.record import Record, decode_record
from rmq.store.config import StoreConfig
from rmq.store.files.disk import RealDisk
from rmq.store.store import Store

LEVELS = "1s 5s 10s"
START = 1_800_000_000_000


class Bench:
    """A store whose clock the test sets, and a schedule over it."""

    def __init__(self, folder: Path) -> None:
        self.now = START
        self.ahead = 0
        self.folder = folder
        self.fail: StoreError | None = None
        self.woken: list[bool] = []
        self.open()

    def open(self) -> None:
        config = StoreConfig(
            store_path_root_dir=str(self.folder),
            mapped_file_size_commit_log=1 << 20,
            mapped_file_size_consume_queue=20_000,
            message_delay_level=LEVELS,
        )
        self.store = Store(RealDisk(), config, store_host=bytes(8), now_ms=lambda: self.now)
        self.store.load()
        self.schedule = self.made(LEVELS)

    def made(self, levels: str) -> Schedule:
        store = self.store
        return Schedule(levels, store, self.commit, lambda: self.woken.append(True), self.clock, store.put)

    def clock(self) -> float:
        return (self.now - self.ahead) / 1000

    def set_clock(self, by_ms: int) -> None:
        """Unlike a change of `now` no time goes by."""
        self.now += by_ms
        self.ahead += by_ms

    def commit(self) -> None:
        if self.fail is not None:
            raise self.fail
        self.store.commit()

    def delay(self, level: int, body: bytes, topic: str = "Real", queue_id: int = 1) -> None:
        properties = {"DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": str(queue_id), "TAGS": "T"}
        self.store.put(Record(SCHEDULE_TOPIC, level - 1, body, encode_properties(properties)))
        self.store.commit()
        self.schedule.arrived(level - 1, self.now)

    def delivered(self, topic: str = "Real", queue_id: int = 1) -> list[bytes]:
        bodies = []
        for offset in range(self.store.max_offset(topic, queue_id)):
            unit = self.store.unit(topic, queue_id, offset)
            assert unit is not None
            data = self.store.read(unit[0])
            assert data is not None
            bodies.append(decode_record(data).body)
        return bodies


def test_a_message_is_delivered_when_its_level_has_passed_and_not_before(bench: Bench) -> None:
    bench.delay(2, b"five seconds")
    assert bench.schedule.step(START) == START + 5000
    assert bench.schedule.step(START + 4999) == START + 5000
    assert bench.delivered() == []
    bench.now = START + 5000
    bench.schedule.step(bench.now)
    assert bench.delivered() == [b"five seconds"]
    assert bench.schedule.progress[2] == 1


def test_the_delivered_record_keeps_what_rocketmq_keeps(bench: Bench) -> None:
    bench.delay(1, b"x")
    bench.now += 1000
    bench.schedule.step(bench.now)
    unit = bench.store.unit("Real", 1, 0)
    assert unit is not None
    message = bench.store.message(unit[0])
    assert message is not None
    assert message.properties == {"DELAY": "1", "REAL_TOPIC": "Real", "REAL_QID": "1", "TAGS": "T"}
    assert (message.topic, message.queue_id, message.queue_offset) == ("Real", 1, 0)


def test_each_level_keeps_its_order_and_the_next_deadline_is_the_earliest(bench: Bench) -> None:
    for number in range(3):
        bench.delay(3, b"slow %d" % number)
        bench.delay(1, b"quick %d" % number)
        bench.now += 10
    assert bench.schedule.step(bench.now) == START + 1000
    bench.now = START + 1010
    assert bench.schedule.step(bench.now) == START + 1020
    assert bench.delivered() == [b"quick 0", b"quick 1"]
    bench.now = START + 20_000
    bench.schedule.step(bench.now)
    assert bench.delivered()[2:] == [b"quick 2", b"slow 0", b"slow 1", b"slow 2"]


def test_an_arrival_that_is_due_first_wakes_the_timer(bench: Bench) -> None:
    bench.schedule.step(START)
    bench.delay(3, b"later")
    assert bench.woken == [True]
    bench.delay(3, b"behind it")
    assert bench.woken == [True]
    bench.delay(1, b"sooner")
    assert bench.woken == [True, True]


def test_progress_survives_a_restart_and_nothing_comes_twice(bench: Bench) -> None:
    bench.delay(1, b"a")
    bench.now += 500
    bench.delay(1, b"b")
    bench.now += 500
    bench.schedule.step(bench.now)
    saved = bench.schedule.to_json()
    bench.store.close()
    bench.open()
    bench.schedule.load(saved)
    bench.now += 5000
    bench.schedule.step(bench.now)
    assert bench.delivered() == [b"a", b"b"]


def test_the_progress_file_of_a_java_broker_is_read(bench: Bench) -> None:
    bench.schedule.load(b'{\n\t"offsetTable":{1:2,3:1,18:7}\n}')
    assert bench.schedule.progress == {1: 2, 2: 0, 3: 1}


def test_progress_of_another_store_takes_no_waiting_message(bench: Bench) -> None:
    """An old store beside a newer delayOffset.json, whose offset the queue never reached."""
    bench.delay(3, b"old")
    bench.now += 100_000
    bench.delay(1, b"x")
    bench.delay(3, b"waits")
    bench.delay(3, b"waits, too")
    bench.schedule.load(b'{"offsetTable":{"1":1,"3":99}}')
    bench.schedule.check_ends()
    assert bench.schedule.progress == {1: 1, 2: 0, 3: 1}
    assert bench.schedule.is_changed
    bench.now += 10_000
    bench.schedule.step(bench.now)
    assert bench.delivered() == [b"waits", b"waits, too"]


def test_progress_beyond_a_loss_is_of_this_store(bench: Bench) -> None:
    bench.delay(3, b"delivered")
    bench.store.may_have_lost()
    bench.schedule.load(b'{"offsetTable":{"3":99}}')
    bench.schedule.check_ends()
    bench.now += 10_000
    bench.schedule.step(bench.now)
    assert bench.delivered() == []


def test_progress_outside_the_queue_is_corrected(bench: Bench) -> None:
    bench.delay(1, b"a")
    bench.schedule.load(b'{"offsetTable":{"1":99}}')
    bench.now += 1000
    bench.schedule.step(bench.now)
    assert bench.schedule.progress[1] == 1
    bench.delay(1, b"b")
    bench.now += 1000
    bench.schedule.step(bench.now)
    assert bench.delivered() == [b"b"]


def test_a_failed_commit_delivers_nothing_and_is_tried_again(bench: Bench) -> None:
    bench.delay(1, b"a")
    bench.now += 1000
    bench.fail = DiskFull("no room")
    with pytest.raises(DiskFull):
        bench.schedule.step(bench.now)
    bench.store._rollback()
    assert bench.schedule.progress[1] == 0
    bench.fail = None
    bench.schedule.step(bench.now)
    assert bench.delivered() == [b"a"]


def test_a_clock_set_back_holds_nothing_longer_than_its_level(bench: Bench) -> None:
    bench.delay(1, b"a")
    bench.set_clock(-3_600_000)
    bench.schedule.arrived(0, bench.now)
    bench.schedule.step(bench.now)
    bench.now += 1000
    bench.schedule.step(bench.now)
    assert bench.delivered() == [b"a"]


@pytest.mark.parametrize("back_ms", [400, 2_000, 3_600_000])
def test_after_a_clock_was_set_back_nothing_is_early_and_nothing_late(bench: Bench, back_ms: int) -> None:
    """Store times do not go back by some seconds: what comes then has the time of the clock as it was."""
    bench.delay(3, b"another", "Other")
    bench.set_clock(-back_ms)
    sent: dict[bytes, int] = {}
    while bench.now < START + 10_000 - back_ms:
        sent[b"%d" % bench.now] = bench.now
        bench.delay(2, b"%d" % bench.now)
        bench.now += 30
        before = len(bench.delivered())
        bench.schedule.step(bench.now)
        for body in bench.delivered()[before:]:
            assert 5_000 <= bench.now - sent[body] < 5_000 + 5_000 // 64 + 30
    assert len(bench.delivered()) > 100
    assert len(bench.schedule._there[2]) < 70
    bench.now += 6_000
    while bench.schedule.step(bench.now) == bench.now:
        pass
    assert bench.delivered() == list(sent)
    assert not bench.schedule._there[2]


@pytest.mark.parametrize("again_ms", [-60_000, 0, 58_000, 60_000])
def test_what_waits_while_the_clock_is_set_is_never_early(bench: Bench, again_ms: int) -> None:
    bench.delay(2, b"a")
    bench.set_clock(-60_000)
    bench.delay(2, b"b")
    bench.now += 1_000
    bench.schedule.step(bench.now)
    bench.set_clock(again_ms)
    began = bench.now
    while len(bench.delivered()) < 2:
        assert not (bench.delivered() and bench.now < began + 4_000)
        bench.now += 100
        bench.schedule.step(bench.now)
        assert bench.now < began + 5_200
    assert bench.delivered() == [b"a", b"b"]


def test_a_clock_set_back_is_noticed_although_nothing_arrives(bench: Bench) -> None:
    bench.delay(1, b"a")
    bench.schedule.step(bench.now)
    bench.set_clock(-3_600_000)
    assert bench.schedule.step(bench.now) == bench.now + 1000
    bench.now += 1000
    bench.schedule.step(bench.now)
    assert bench.delivered() == [b"a"]


def test_a_start_after_the_clock_was_set_back_counts_from_then(bench: Bench) -> None:
    bench.delay(2, b"a")
    bench.store.close()
    bench.set_clock(-3_000)
    bench.open()
    bench.schedule.step(bench.now)
    assert bench.delivered() == []
    assert bench.schedule.step(bench.now) == bench.now + 5_000
    bench.now += 5_000
    bench.schedule.step(bench.now)
    assert bench.delivered() == [b"a"]


def test_a_message_without_a_real_topic_is_passed_over(bench: Bench) -> None:
    bench.store.put(Record(SCHEDULE_TOPIC, 0, b"lost", encode_properties({"DELAY": "1"})))
    bench.store.commit()
    bench.delay(1, b"a")
    bench.now += 1000
    bench.schedule.step(bench.now)
    assert bench.delivered() == [b"a"]


def test_one_step_is_bounded(bench: Bench) -> None:
    for number in range(STEP_MESSAGES + 3):
        bench.delay(1, b"%d" % number)
    bench.now += 1000
    assert bench.schedule.step(bench.now) == bench.now
    assert len(bench.delivered()) == STEP_MESSAGES
    bench.schedule.step(bench.now)
    assert len(bench.delivered()) == STEP_MESSAGES + 3


def test_a_level_with_very_many_does_not_hold_up_the_others(bench: Bench) -> None:
    for number in range(3 * STEP_MESSAGES):
        bench.delay(1, b"%d" % number)
    bench.delay(2, b"other")
    bench.now += 5000
    bench.schedule.step(bench.now)
    bench.schedule.step(bench.now)
    assert b"other" in bench.delivered()
    assert len(bench.delivered()) == 2 * STEP_MESSAGES


def test_a_step_delivers_few_bytes(bench: Bench) -> None:
    for number in range(4):
        bench.delay(1, b"%d" % number + bytes(500_000))
    bench.delay(2, b"other")
    bench.now += 5000
    assert bench.schedule.step(bench.now) == bench.now
    assert len(bench.delivered()) == 3
    bench.schedule.step(bench.now)
    assert bench.delivered()[3] == b"other"


def test_levels_that_are_no_longer_there_are_named_and_their_progress_is_kept(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        bench.delay(3, b"%d" % number)
    bench.schedule.step(START + 10_000)
    bench.delay(3, b"waits")
    saved = bench.schedule.to_json()
    fewer = bench.made("1s 5s")
    fewer.load(saved)
    assert "delay level 3" in caplog.text
    assert "ends at level 2: its messages (1) are not delivered" in caplog.text
    assert "messageDelayLevel" in caplog.text
    again = bench.made(LEVELS)
    again.load(fewer.to_json())
    again.step(START + 60_000)
    assert bench.delivered() == [b"0", b"1", b"2", b"waits"]


def test_a_level_that_was_never_delivered_is_named_too(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.delay(3, b"waits")
    bench.made("1s 5s").load(None)
    assert "delay level 3" in caplog.text
    caplog.clear()
    bench.made(LEVELS).load(None)
    assert caplog.text == ""
