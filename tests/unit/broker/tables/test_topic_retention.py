"""Limits of topics: messages that are too old, or beyond a topic's size, are given up."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.broker.tables.offsets import FLOORS
from rmq.broker.tables.topic_attributes import changed_attributes
from rmq.broker.tables.versioned import run_to_end
from rmq.errors import ResponseError
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import UpdateConsumerOffsetRequestHeader
from rmq.store.retention import Retention

from ..rig import START, Rig, pull

HOUR = 3_600_000


def limited(rig: Rig, name: str = "T", queues: int = 1, **limits: Any) -> Rig:
    rig.topic(name, queues, attributes={f"retention.{key}": str(value) for key, value in limits.items()})
    return rig


def look(rig: Rig) -> bool:
    """The first decides, the second hides."""
    run_to_end(rig.broker.topic_retention.look(rig.now_ms))
    return run_to_end(rig.broker.topic_retention.look(rig.now_ms))


def kept(rig: Rig, topic: str = "T", queue_id: int = 0) -> tuple[int, int]:
    return rig.store.min_offset(topic, queue_id), rig.store.max_offset(topic, queue_id)


def restarted(rig: Rig, **more: Any) -> Rig:
    """The same store, by what was saved of the tables, with the clock as it is."""
    rig.store.save_configs({**rig.broker.files.unsaved(), **run_to_end(rig.broker.files.changed())})
    rig.store.close()
    again = Rig(disk=rig.disk.copy(), store={"mapped_file_size_commit_log": 4096}, **more)
    again.now_ms = rig.now_ms
    return again


def aging(**limits: Any) -> Rig:
    """Ten messages, one an hour, of a topic with a limit."""
    rig = limited(Rig(store={"mapped_file_size_commit_log": 4096}), **limits)
    for number in range(10):
        rig.put("T", body=b"%d" % number * 1_000, keys=(f"K{number}",))
        rig.let_pass(HOUR)
    return rig


def test_messages_older_than_the_topic_s_limit_are_neither_read_nor_counted() -> None:
    rig = aging(ms=int(3.5 * HOUR))
    rig.offsets.commit("readers", "T", 0, 2)
    look(rig)
    assert kept(rig) == (7, 10)
    answer = rig.one(pull("T", 0))
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert (answer.ext["nextBeginOffset"], answer.ext["minOffset"]) == ("7", "7")
    assert rig.bodies("T") == [b"%d" % number * 1_000 for number in (7, 8, 9)]
    assert rig.store.query("T", "K6", 9, 0, 1 << 62) == []
    assert len(rig.store.query("T", "K7", 9, 0, 1 << 62)) == 1
    assert rig.store.earliest_time("T", 0) == START + 7 * HOUR
    assert rig.store.lost() == [("T", 0, 0, 7)]  # and the log says which groups had not read them
    rig.let_pass(100 * HOUR)
    look(rig)
    assert kept(rig) == (10, 10)
    rig.put("T")
    assert rig.bodies("T") == [b"body"]


def test_what_a_look_gives_up_is_hidden_by_the_next_one() -> None:
    """Files and slaves have the rows by then: a message that was hidden never comes back."""
    rig = aging(ms=int(3.5 * HOUR))
    run_to_end(rig.broker.topic_retention.look(rig.now_ms))
    assert kept(rig) == (0, 10)
    assert rig.broker.topic_retention.floor("T", 0) == 7


def test_the_oldest_messages_of_all_queues_beyond_the_topic_s_size_go() -> None:
    rig = limited(Rig(), queues=2, bytes=1)
    for number in range(20):
        rig.put("T", number % 2, body=bytes(1_000))
    unit = rig.store.unit("T", 0, 0)
    assert unit is not None
    limited(rig, queues=2, bytes=5 * unit[1] + 10)
    look(rig)
    assert (kept(rig, queue_id=0), kept(rig, queue_id=1)) == ((8, 10), (7, 10))  # the five newest
    for _ in range(3):
        rig.put("T", 1, body=bytes(1_000))
    look(rig)
    assert (kept(rig, queue_id=0), kept(rig, queue_id=1)) == ((9, 10), (9, 13))
    limited(rig, queues=2)  # without a limit nothing more goes, and nothing comes back
    rig.put("T", 1, body=bytes(100_000))
    look(rig)
    assert (kept(rig, queue_id=0), kept(rig, queue_id=1)) == ((9, 10), (9, 14))


def test_both_limits_hold_and_other_topics_keep_theirs() -> None:
    rig = aging(ms=int(5.5 * HOUR), bytes=2_300)
    rig.topic("Other", 1)
    rig.put("Other")
    look(rig)
    assert kept(rig) == (8, 10)
    assert kept(rig, "Other") == (0, 1)


def test_nothing_that_was_given_up_comes_back_with_a_restart_whatever_the_clock_says() -> None:
    rig = aging(ms=int(3.5 * HOUR))
    look(rig)
    rig.now_ms -= 9 * HOUR
    again = restarted(rig)
    assert kept(again) == (7, 10)
    assert again.bodies("T") == rig.bodies("T")
    again.topics.delete("T")
    again.offsets.delete_topic("T")
    assert again.broker.topic_retention.floors() == []


def test_while_the_wall_clock_is_doubtful_nothing_goes_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = aging(ms=HOUR, bytes=5_000)
    monkeypatch.setattr(Retention, "held", lambda self, now_ms: "it was set by +864000 s")
    rig.let_pass(1_000 * HOUR)
    look(rig)
    assert kept(rig)[0] == 6  # by size only


def test_a_slave_hides_what_its_master_gave_up_and_decides_nothing() -> None:
    rig = aging(ms=int(3.5 * HOUR))
    rig.become_slave()
    look(rig)
    assert kept(rig) == (0, 10)
    rig.offsets.apply_delta({f"T@{FLOORS}": {0: 4}}, None, frozenset())
    look(rig)
    assert kept(rig) == (4, 10)
    rig.offsets.apply_delta({f"T@{FLOORS}": {0: 99}}, None, frozenset())  # before the log has come
    look(rig)
    assert kept(rig) == (10, 10)


@pytest.mark.parametrize("kept_units", [8, 3, 0])
def test_a_log_that_is_cut_before_a_queue_s_begin_cuts_the_queue(kept_units: int) -> None:
    """An example: a slave whose next master has less of the log."""
    rig = aging(ms=int(3.5 * HOUR))
    cut = rig.store.unit("T", 0, kept_units)
    assert cut is not None
    look(rig)
    queue = rig.store._queues.table["T", 0]
    queue.truncate(cut[0])
    assert (queue.start, queue.end) == (min(7, kept_units), kept_units)


def test_queue_files_stay_as_long_as_the_records() -> None:
    """Without them the next start would rebuild the queue."""
    rig = limited(
        Rig(store={"mapped_file_size_commit_log": 1 << 14, "mapped_file_size_consume_queue": 100}), ms=1
    )
    for _ in range(60):
        rig.put("T", body=bytes(400))
    rig.let_pass(HOUR)
    rig.put("T")
    rig.store._queues.write_all(rig.now_ms)
    look(rig)
    retention, config = rig.store.retention, rig.store.config
    assert kept(rig) == (60, 61)
    assert retention.take(config, rig.now_ms, by_topic=True)
    path = retention.path
    assert path is not None
    rig.store.remove_left(path)
    retention.removed(path)
    queue, start = rig.store._queues.table["T", 0], rig.store.min_physical_offset
    assert queue.first_in_files()[0] < start  # type: ignore[index]
    assert queue.start == 60


def test_files_go_when_no_queue_keeps_a_message_in_them() -> None:
    rig = aging(ms=int(3.5 * HOUR))
    rig.topic("Other", 1)
    before = rig.store.min_physical_offset
    by_topic = look(rig)
    retention, config = rig.store.retention, rig.store.config
    assert by_topic
    assert not retention.take(config, rig.now_ms), "its time has not come"
    assert retention.take(config, rig.now_ms, by_topic=True)
    assert retention.reason == "unused"
    while retention.take(config, rig.now_ms, by_topic=True):
        pass
    assert before < rig.store.min_physical_offset <= rig.store.unit("T", 0, 7)[0]  # type: ignore[index]
    assert rig.bodies("T") == [b"%d" % number * 1_000 for number in (7, 8, 9)]
    again = restarted(rig)
    assert kept(again) == (7, 10)
    assert again.bodies("T") == rig.bodies("T")


def test_a_file_with_a_message_of_a_topic_without_limits_stays() -> None:
    rig = Rig(store={"mapped_file_size_commit_log": 4096})
    rig.topic("Other", 1)
    rig.put("Other")
    limited(rig, ms=HOUR)
    for _ in range(10):
        rig.put("T", body=bytes(1_000))
    rig.let_pass(9 * HOUR)
    look(rig)
    assert kept(rig) == (10, 10)
    assert not rig.store.retention.take(rig.store.config, rig.now_ms, by_topic=True)


def test_the_log_as_a_whole_has_a_size_too() -> None:
    rig = Rig(store={"mapped_file_size_commit_log": 4096, "file_reserved_bytes": 9_000})
    rig.topic("T", 1)
    for _ in range(10):
        rig.put("T", body=bytes(1_000))
    retention = rig.store.retention
    while retention.take(rig.store.config, rig.now_ms):
        assert retention.reason == "size"
    assert 4_096 < rig.store.max_physical_offset - rig.store.min_physical_offset <= 9_000


def test_no_client_moves_the_begin_of_a_queue() -> None:
    rig = aging()
    header = UpdateConsumerOffsetRequestHeader(FLOORS, "T", 0, 5)
    assert rig.call(RequestCode.UPDATE_CONSUMER_OFFSET, header).code == ResponseCode.NO_PERMISSION
    with pytest.raises(ResponseError, match="the broker's own"):
        rig.offsets.put(FLOORS, "T", {0: 5})
    with pytest.raises(ResponseError, match="the broker's own"):
        rig.offsets.clone("g", FLOORS, "T")
    look(rig)
    assert kept(rig) == (0, 10)


def test_the_broker_s_own_rows_are_no_group_s() -> None:
    rig = aging(ms=HOUR)
    rig.offsets.commit("readers", "T", 0, 1)
    look(rig)
    assert rig.offsets.groups_of("T") == {"readers"}
    assert ("T", FLOORS) not in rig.offsets.pairs()
    answer = rig.ask(Command.request(RequestCode.GET_ALL_CONSUMER_OFFSET))[0]
    assert FLOORS.encode() in answer.body  # slaves get them


@pytest.mark.parametrize("value", ["0", "-1", "3d", "1e3", "٣"])
def test_a_limit_is_a_whole_number(value: str) -> None:
    with pytest.raises(ResponseError, match=r"retention.ms is .*: expected a whole number"):
        changed_attributes(None, f"+retention.ms={value}")
