"""Messages with a time of their own: delivered on it, recalled before it, kept across restarts and days."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest

from rmq.broker.delay.timer_records import MAX_AHEAD_MS, deliver_time
from rmq.broker.delay.timers import STEP_MESSAGES
from rmq.errors import DiskFull, RemoteProtocolError, ResponseError, StoreError, SystemBusy
from rmq.message import TIMER_TOPIC
from rmq.protocol.headers import RecallHandle
from rmq.protocol.record import Record
from tests.unit.broker.delay.bench import DAY, HOST, HOUR, START, Bench, send_delayed


def test_messages_come_at_their_time_whatever_their_order(bench: Bench) -> None:
    bench.send(b"late", START + 39 * DAY)
    bench.send(b"soon", START + 1)
    bench.send(b"middle", START + 7_777)
    assert bench.at(START) == START + 1
    assert bench.at(START + 1) == START + 7_777
    assert bench.at(START + 7_776) == START + 7_777
    assert bench.delivered() == [b"soon"]
    bench.at(START + 7_777)
    assert bench.delivered() == [b"soon", b"middle"]
    assert len(bench.timers) == 1


def test_the_delivered_message_has_its_own_tags_code(bench: Bench) -> None:
    bench.send(b"a", START + 5)
    bench.at(START + 5)
    unit = bench.store.unit("Real", 3, 0)
    assert unit is not None
    assert unit[2] == ord("T")


def test_an_earlier_arrival_wakes_the_timer(bench: Bench) -> None:
    bench.send(b"a", START + 1000)
    bench.send(b"b", START + 2000)
    bench.send(b"c", START + 500)
    assert len(bench.woken) == 2


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, None),
        ({"TIMER_DELIVER_MS": str(START + 5)}, START + 5),
        ({"TIMER_DELAY_MS": "5"}, START + 5),
        ({"TIMER_DELAY_SEC": "5"}, START + 5000),
        ({"TIMER_DELIVER_MS": "1"}, 1),
        ({"TIMER_DELIVER_MS": "1", "TIMER_DELAY_MS": "2", "TIMER_DELAY_SEC": "3"}, START + 3000),
        ({"TIMER_DELIVER_MS": "1", "TIMER_DELAY_MS": "2"}, START + 2),
        ({"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": str(START - 1)}, None),
    ],
)
def test_the_time_is_read_from_the_properties_of_5x(properties: dict[str, str], expected: int | None) -> None:
    assert deliver_time(properties, START) == expected


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "٣", str(START + MAX_AHEAD_MS + 1), "9" * 30])
def test_a_time_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ResponseError) as refused:
        deliver_time({"TIMER_DELIVER_MS": text}, START)
    assert refused.value.code == 13


def test_a_recalled_message_never_comes(bench: Bench) -> None:
    handle = bench.send(b"a", START + 100)
    bench.send(b"b", START + 100)
    bench.store.put(bench.timers.recall(RecallHandle.parse(str(handle)), HOST, bench.now))
    bench.commit()
    bench.at(START + 100)
    assert bench.delivered() == [b"b"]
    assert len(bench.timers) == 0


def test_a_recall_holds_across_a_restart_and_between_full_steps(bench: Bench) -> None:
    handles = [bench.send(b"%d" % number, START + 100) for number in range(STEP_MESSAGES + 10)]
    bench.store.put(bench.timers.recall(handles[0], HOST, bench.now))
    bench.commit()
    bench.restart()
    bench.at(START + 100)
    assert bench.delivered() == [b"%d" % number for number in range(1, STEP_MESSAGES + 10)]


def many(bench: Bench, count: int = 3 * STEP_MESSAGES) -> list[RecallHandle]:
    return [bench.send(b"%d" % number, START + 100) for number in range(count)]


def test_very_many_at_one_time_come_in_short_steps_and_in_order(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.broker.delay.timers.STEP_LOOKS", 70)
    many(bench)
    bench.now = START + 100
    steps = []
    while bench.timers.step(bench.now) == bench.now:
        steps.append(len(bench.delivered()))
    assert bench.delivered() == [b"%d" % number for number in range(3 * STEP_MESSAGES)]
    assert max(after - before for before, after in pairwise([0, *steps])) <= STEP_MESSAGES
    assert steps[:4] == [0, 0, 0, 0]  # recalls are looked for before anything is delivered
    assert len(bench.timers) == 0


def test_a_step_looks_through_a_thousand_records(bench: Bench) -> None:
    many(bench, 1_500)
    bench.now = START + 100
    assert bench.timers.step(bench.now) == bench.now
    assert bench.delivered() == []
    bench.timers.step(bench.now)
    assert len(bench.delivered()) == STEP_MESSAGES


def test_a_step_delivers_few_bytes(bench: Bench) -> None:
    for number in range(4):
        bench.send(b"%d" % number + bytes(500_000), START + 100)
    bench.now = START + 100
    bench.timers.step(bench.now)
    assert len(bench.delivered()) == 3


def test_the_last_recall_of_very_many_holds_for_the_first_message(bench: Bench) -> None:
    handles = many(bench)
    bench.store.put(bench.timers.recall(handles[0], HOST, bench.now))
    bench.commit()
    bench.at(START + 100)
    assert bench.delivered() == [b"%d" % number for number in range(1, 3 * STEP_MESSAGES)]


def test_a_clean_restart_in_the_middle_of_very_many_repeats_none_and_keeps_recalls(bench: Bench) -> None:
    handles = many(bench)
    for at in (0, 3 * STEP_MESSAGES - 1):
        bench.store.put(bench.timers.recall(handles[at], HOST, bench.now))
    bench.commit()
    bench.now = START + 100
    bench.timers.step(bench.now)
    assert len(bench.delivered()) == STEP_MESSAGES - 1
    for _ in range(2):  # the second start finds what the first has saved again
        bench.saved = bench.timers.to_json()
        bench.restart()
    bench.at(START + 101)
    assert bench.delivered() == [b"%d" % number for number in range(1, 3 * STEP_MESSAGES - 1)]
    assert len(bench.timers) == 0


def test_what_arrives_after_its_time_is_not_lost_by_a_clean_restart(bench: Bench) -> None:
    bench.at(START + 50)
    bench.send(b"late", START + 49)
    bench.saved = bench.timers.to_json()
    bench.restart()
    bench.at(START + 60)
    assert bench.delivered() == [b"late"]


def test_a_failure_in_the_middle_of_a_step_repeats_none(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(bench, 10)
    put, count = bench.store.put, iter(range(100))

    def failing(record: Record) -> None:
        if next(count) == 4:
            raise DiskFull("no room")
        put(record)

    monkeypatch.setattr(bench.store, "put", failing)
    with pytest.raises(DiskFull):
        bench.at(START + 100)
    assert len(bench.delivered()) == 4
    bench.at(START + 100)
    assert bench.delivered() == [b"%d" % number for number in range(10)]


def test_a_recall_does_not_reach_a_topic_whose_name_begins_the_same(bench: Bench) -> None:
    bench.send(b"a", START + 100)
    for topic in ("Rea", "Real_K", "R"):
        bench.store.put(bench.timers.recall(RecallHandle(topic, "b", START + 100, "l_Ka"), HOST, bench.now))
    bench.store.put(bench.timers.recall(RecallHandle("Real_Ka", "b", START + 100, ""), HOST, bench.now))
    bench.commit()
    bench.at(START + 100)
    assert bench.delivered() == [b"a"]


def test_a_recall_stored_by_an_earlier_version_holds(bench: Bench) -> None:
    bench.send(b"a", START + 100)
    record = Record("Real", 0, b"0", born_timestamp=bench.now, born_host=HOST)
    bench.timers.take(record, {"TIMER_DEL_UNIQKEY": "Real_Ka"}, START + 100)
    bench.store.put(record)
    bench.commit()
    bench.at(START + 100)
    assert bench.delivered() == []


def test_a_recall_after_the_time_is_refused(bench: Bench) -> None:
    handle = bench.send(b"a", START + 100)
    with pytest.raises(ResponseError, match="timestamp invalid"):
        bench.timers.recall(handle, HOST, START + 100)


@pytest.mark.parametrize("text", ["", "x", "djEgYQ==", "djIgYSBiIDEgYw==", "djEgYSBiIHggYw=="])
def test_a_handle_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="recall handle is invalid"):
        RecallHandle.parse(text)


def test_what_waits_survives_a_restart_and_what_came_does_not_come_again(bench: Bench) -> None:
    bench.send(b"b", START + 2000)
    bench.send(b"a", START + 1000)
    bench.at(START + 1000)
    bench.saved = bench.timers.to_json()
    bench.send(b"c", START + 1000)
    bench.restart()
    assert len(bench.timers) == 2
    bench.at(START + 3000)
    assert bench.delivered() == [b"a", b"c", b"b"]


def test_units_made_again_from_the_log_hold_the_time(bench: Bench) -> None:
    bench.send(b"a", START + 9000)
    bench.store.close()
    for file in (bench.folder / "consumequeue").rglob("0*"):
        if file.is_file():
            file.unlink()
    bench.open()
    assert bench.at(START) == START + 9000


def test_too_many_are_refused(bench: Bench) -> None:
    bench.timers.limit = 1
    bench.send(b"a", START + 9000)
    with pytest.raises(SystemBusy, match="wait for their time 1 of 1 are taken"):
        bench.send(b"b", START + 9000)


def test_who_fills_half_of_the_places_has_no_more_until_some_of_them_are_delivered(bench: Bench) -> None:
    bench.timers.limit = 8
    greedy = ("10.0.0.1",)
    for number in range(4):
        bench.send(b"%d" % number, START + 10 + number * 20 * DAY, greedy)
    with pytest.raises(SystemBusy, match=r"4 of 8 are taken by 10\.0\.0\.1, 4 are free"):
        bench.send(b"x", START + 10, greedy)
    bench.send(b"o", START + 39 * DAY, ("10.0.0.2",))
    for day in range(1, 20):
        bench.at(START + day * DAY)  # what waits long is copied, and counts as before
    assert len(bench.timers) == 4
    bench.send(b"y", START + 39 * DAY, greedy)
    with pytest.raises(SystemBusy, match=r"4 of 8 are taken by 10\.0\.0\.1, 3 are free"):
        bench.send(b"z", START + 39 * DAY, greedy)
    bench.at(START + 61 * DAY)
    assert not bench.timers.full(greedy)
    assert len(bench.timers) == 0


def test_a_message_that_was_not_stored_counts_for_nobody(bench: Bench) -> None:
    bench.timers.limit = 4
    bench.fail = DiskFull("no room")
    for number in range(5):
        with pytest.raises(DiskFull):
            bench.send(b"%d" % number, START + 9000, ("10.0.0.1",))
    bench.fail = None
    bench.send(b"a", START + 9000, ("10.0.0.2",))
    bench.send(b"b", START + 9000, ("10.0.0.1",))
    assert bench.timers.full(("10.0.0.2",)) == ""


def test_a_failed_commit_delivers_nothing_and_is_tried_again(bench: Bench) -> None:
    bench.send(b"a", START + 10)
    bench.fail = DiskFull("no room")
    with pytest.raises(DiskFull):
        bench.at(START + 10)
    bench.fail = None
    bench.at(START + 10)
    assert bench.delivered() == [b"a"]


def test_what_could_not_be_written_anew_waits_as_before(bench: Bench) -> None:
    bench.send(b"a", START + 39 * DAY)
    for day in range(1, 39):
        bench.fail = DiskFull("no room")
        with suppress(DiskFull):
            bench.at(START + day * DAY)
        assert not bench.store.has_pending
        assert len(bench.timers) == 1
        bench.fail = None
        bench.at(START + day * DAY)
    bench.at(START + 39 * DAY)
    assert bench.delivered() == [b"a"]


def test_what_waits_long_is_written_anew_before_its_file_is_deleted(bench: Bench) -> None:
    handle = bench.send(b"a", START + 39 * DAY)
    for day in range(1, 39):
        bench.at(START + day * DAY)
        assert not bench.store.has_pending, "what was written anew is committed in the same step"
    newest = bench.store.message_time(TIMER_TOPIC, 0, bench.store.max_offset(TIMER_TOPIC, 0) - 1)
    assert START + 39 * DAY - newest <= 3 * DAY
    assert len(bench.timers) == 1
    bench.saved = bench.timers.to_json()
    bench.restart()
    bench.at(START + 39 * DAY)
    assert bench.delivered() == [b"a"]
    assert handle.deliver_ms == START + 39 * DAY


# ---- a wall clock that was set back ----


def test_a_delay_that_was_asked_for_with_a_clock_ahead_is_counted_from_when_that_is_noticed(
    bench: Bench,
) -> None:
    bench.at(START)
    send_delayed(bench, b"before", 60)
    bench.at(START + 10 * HOUR)  # the clock is ten hours ahead
    assert bench.delivered() == [b"before"]
    send_delayed(bench, b"delayed", 60)
    bench.send(b"at a time", START + 10 * HOUR + 60_000)
    bench.at(START + 5_000)  # it is right again
    bench.at(START + 64_999)
    assert bench.delivered() == [b"before"]
    bench.at(START + 65_000)
    assert bench.delivered() == [b"before", b"delayed"]
    bench.saved = bench.timers.to_json()
    bench.restart()
    bench.at(START + 9 * HOUR)
    assert bench.delivered() == [b"before", b"delayed"]
    bench.at(START + 11 * HOUR)
    assert bench.delivered() == [b"before", b"delayed", b"at a time"], "and not the first one again"
    assert len(bench.timers) == 0


def test_a_corrected_delay_is_known_after_a_restart_and_can_be_recalled(bench: Bench) -> None:
    bench.at(START + 10 * HOUR)
    send_delayed(bench, b"delayed", 60)
    handle = send_delayed(bench, b"recalled", 60)
    bench.saved = bench.timers.to_json()
    bench.restart()
    bench.at(START)
    bench.store.put(bench.timers.recall(handle, HOST, bench.now))
    bench.commit()
    bench.at(START + 60_000)
    assert bench.delivered() == [b"delayed"]
    bench.at(START + 11 * HOUR)
    assert bench.delivered() == [b"delayed"]


def test_a_failed_write_of_a_correction_is_tried_again(bench: Bench) -> None:
    bench.at(START + 10 * HOUR)
    for number in range(250):
        send_delayed(bench, b"m%03d" % number, 60)
    bench.fail = StoreError("the disk is full")
    with pytest.raises(StoreError):
        bench.at(START)
    bench.fail = None
    bench.at(START + 60_000)
    assert sorted(bench.delivered()) == [b"m%03d" % number for number in range(250)]
    bench.at(START + 11 * HOUR)
    assert len(bench.delivered()) == 250


def test_delivered_messages_behind_one_that_waits_long_take_no_memory(bench: Bench) -> None:
    bench.send(b"far", START + 30 * DAY)
    for number in range(300):
        bench.send(b"n%d" % number, bench.now + 1)
        bench.at(bench.now + 1)
    assert len(bench.delivered()) == 300
    assert len(bench.timers._by_age._counts) == 1, "nothing is kept of those that were delivered"
    bench.at(START + 2 * DAY)
    assert list(bench.timers._by_age) == [301], "the one that waits is still copied in time"


@pytest.mark.parametrize("lost", [False, True])
def test_progress_of_another_store_takes_no_waiting_message(bench: Bench, lost: bool) -> None:
    """An old store beside a newer timerProgress.json, whose offset the queue never reached."""
    bench.send(b"delivered", START + 1000)
    bench.at(START + 1000)
    bench.at(START + HOUR)
    bench.send(b"waits", bench.now + HOUR)
    if lost:
        bench.store.may_have_lost()
    later = bench.now + 2 * HOUR
    bench.timers.load(b'{"first":9,"read":9,"deliveredMs":%d}' % later)
    bench.timers.check_ends()
    bench.at(later)
    assert bench.delivered() == ([b"delivered"] if lost else [b"delivered", b"waits"])
