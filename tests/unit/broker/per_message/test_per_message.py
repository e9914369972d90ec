"""Per-message delivery: take, acknowledge, extend, give back, in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmq.broker.consume.per_message import ledger
from rmq.errors import ResponseError, StoreError
from rmq.message import dlq_topic, tags_code
from rmq.protocol.bodies import SubscriptionGroupConfig
from rmq.protocol.codes import ResponseCode
from rmq.store.files.consumequeue import UNIT_FORM
from rmq.store.reader import GetResult
from tests.unit.broker.rig import Rig, pull, send
from tests.unit.broker.taking import GROUP, TOPIC, Consumer, filled, restarted, step


def all_bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_consumers_share_a_queue_and_no_message_goes_to_two() -> None:
    rig = filled(10)
    first, second = Consumer(rig), Consumer(rig)
    assert first.bodies(4) == [b"0", b"1", b"2", b"3"]
    assert second.bodies(4) == [b"4", b"5", b"6", b"7"]
    assert first.bodies(4) == [b"8", b"9"]
    assert second.bodies() == []


def test_a_take_goes_over_all_queues() -> None:
    rig = filled(10, queues=4)
    assert sorted(Consumer(rig).bodies()) == all_bodies(10)


def test_what_a_failed_take_had_leased_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = filled(4, queues=2)
    consumer = Consumer(rig)
    read = rig.store.get

    def get(topic: str, queue_id: int, *more: Any) -> GetResult:
        if rig.broker.deliveries.figures()[0].leased:
            raise StoreError("the disk fails")
        return read(topic, queue_id, *more)

    monkeypatch.setattr(rig.store, "get", get)
    with pytest.raises(StoreError):
        consumer.take()
    monkeypatch.undo()
    assert rig.broker.deliveries.out == 2
    step(rig, 30)
    again = consumer.take()
    assert sorted(one.body for one in again) == all_bodies(4)
    assert sorted(one.attempt for one in again) == [1, 1, 2, 2]


def test_a_take_of_one_queue_gets_no_other() -> None:
    rig = filled(8, queues=4)
    assert Consumer(rig).bodies(queue_id=2) == [b"2", b"6"]


def test_an_acknowledged_message_never_comes_again() -> None:
    rig = filled(4)
    consumer = Consumer(rig)
    taken = consumer.take()
    assert consumer.ack(taken[1], taken[3]) == [None, None]
    step(rig, 30)
    assert consumer.bodies() == [b"0", b"2"]


def test_a_message_comes_again_at_the_time_its_lease_ends_with_its_attempt() -> None:
    rig = filled(1)
    consumer = Consumer(rig)
    (taken,) = consumer.take(seconds=10)
    assert (taken.attempt, taken.told) == (1, 0)
    consumer.hold(wait=60)
    step(rig, 9.999)
    assert consumer.found == []
    step(rig, 0.001)
    (again,) = consumer.found[0]  # type: ignore[misc]
    assert (again.body, again.attempt, again.told) == (b"0", 2, 1)  # type: ignore[attr-defined]


def test_a_message_that_nobody_has_seen_is_given_back_without_an_attempt() -> None:
    rig = filled(2)
    rig.broker.groups.update(SubscriptionGroupConfig(GROUP, retry_max_times=0))
    consumer = Consumer(rig)
    for _ in range(3):
        taken = consumer.take()
        assert [(one.body, one.attempt) for one in taken] == [(b"0", 1), (b"1", 1)]
        assert consumer.nack(*taken, counts=False) == [None, None]
    rig = restarted(rig)
    (first, _) = Consumer(rig).take()
    assert first.attempt == 1


def test_messages_that_come_again_are_in_order() -> None:
    rig = filled(6)
    consumer = Consumer(rig)
    taken = consumer.take()
    for number in (4, 1, 3, 0, 2, 5):
        consumer.nack(taken[number])
    assert consumer.bodies() == all_bodies(6)


def test_one_slow_message_does_not_hold_its_queue() -> None:
    rig = filled(100)
    consumer = Consumer(rig)
    (slow,) = consumer.take(1, seconds=3600)
    for _ in range(10):
        consumer.ack(*consumer.take(10))
    rig.put(TOPIC, body=b"new")
    assert consumer.bodies() == [b"new"]
    assert rig.offsets.get(GROUP, TOPIC, 0) == 0
    consumer.ack(slow)
    assert rig.offsets.get(GROUP, TOPIC, 0) == 100


def test_the_offset_is_that_of_the_oldest_unfinished_message() -> None:
    rig = filled(10)
    consumer = Consumer(rig)
    taken = consumer.take()
    consumer.ack(*taken[:3], *taken[5:])
    assert rig.offsets.get(GROUP, TOPIC, 0) == 3
    consumer.ack(taken[4], taken[3])
    assert rig.offsets.get(GROUP, TOPIC, 0) == 10


def test_a_new_message_wakes_a_poll() -> None:
    rig = filled(0)
    consumer = Consumer(rig)
    assert consumer.take() == []
    consumer.hold()
    rig.ask(send(TOPIC, b"new"))
    assert [[one.body for one in found] for found in consumer.found] == [[b"new"]]  # type: ignore[union-attr]


def test_a_message_that_is_given_back_wakes_a_poll() -> None:
    rig = filled(1)
    one, other = Consumer(rig), Consumer(rig)
    taken = one.take()
    other.hold()
    one.nack(*taken)
    step(rig)
    assert [[(message.body, message.attempt) for message in found] for found in other.found] == [[(b"0", 2)]]  # type: ignore[union-attr]


def test_a_poll_ends_empty_at_its_time() -> None:
    rig = filled(0)
    consumer = Consumer(rig)
    consumer.hold(wait=5)
    step(rig, 4.9)
    assert consumer.found == []
    step(rig, 0.1)
    assert consumer.found == [[]]


def test_a_message_waits_as_long_as_its_consumer_says() -> None:
    rig = filled(1)
    consumer = Consumer(rig)
    consumer.nack(*consumer.take(), after=3)
    assert consumer.take() == []
    consumer.hold(wait=60)
    step(rig, 2.9)
    assert consumer.found == []
    step(rig, 0.1)
    assert len(consumer.found) == 1


def test_a_message_waits_by_the_retry_policy_of_its_group() -> None:
    rig = filled(1)
    consumer = Consumer(rig)
    waits = []
    for _ in range(3):
        consumer.nack(*consumer.take(), after=None)
        seconds = 0
        while not rig.broker.deliveries.out or not _is_ready(rig):
            step(rig, 1)
            seconds += 1
        waits.append(seconds)
    assert waits == [10, 30, 60]


def _is_ready(rig: Rig) -> bool:
    return any(queue.ready for queue in rig.broker.deliveries.ledger.rows.values())


def test_after_the_last_attempt_a_message_is_a_dead_letter() -> None:
    rig = filled(2)
    rig.groups.get(GROUP)
    _set_retries(rig, 2)
    consumer = Consumer(rig)
    for attempt in (1, 2, 3):
        taken = consumer.take()
        assert [one.attempt for one in taken] == [attempt, attempt]
        consumer.nack(*taken)
    step(rig)
    assert consumer.take() == []
    letters = rig.messages(dlq_topic(GROUP))
    assert [letter.body for letter in letters] == [b"0", b"1"]
    assert [letter.reconsume_times for letter in letters] == [3, 3]
    assert letters[0].properties["DLQ_ORIGIN_TOPIC"] == TOPIC
    assert rig.offsets.get(GROUP, TOPIC, 0) == 2
    assert rig.broker.deliveries.out == 0


def _set_retries(rig: Rig, most: int) -> None:
    from attrs import evolve

    config = rig.groups.get(GROUP)
    assert config is not None
    rig.groups.update(evolve(config, retry_max_times=most))


def test_a_dead_letter_is_written_once_more_when_a_write_failed() -> None:
    rig = filled(1)
    rig.groups.get(GROUP)
    _set_retries(rig, 0)
    consumer = Consumer(rig)
    rig.topic(dlq_topic(GROUP), 1)
    (taken,) = consumer.take()
    consumer.nack(taken)
    rig.disk.fail("write", "commitlog")
    step(rig)
    assert rig.messages(dlq_topic(GROUP)) == []
    step(rig, 5)
    assert [letter.body for letter in rig.messages(dlq_topic(GROUP))] == [b"0"]
    step(rig, 60)
    assert len(rig.messages(dlq_topic(GROUP))) == 1


def test_a_consumer_whose_connection_ends_gives_back_at_once() -> None:
    rig = filled(40)
    one, other = Consumer(rig), Consumer(rig)
    one.take(20, seconds=3600)
    other.take(20, seconds=3600)
    one.close()
    again = other.take()
    assert [message.body for message in again] == all_bodies(20)
    assert {message.attempt for message in again} == {2}


def test_a_lease_that_is_extended_holds() -> None:
    rig = filled(3)
    consumer = Consumer(rig)
    taken = consumer.take(seconds=10)
    handle = taken[1].handle
    for _ in range(20):
        step(rig, 8)
        handle = consumer.extend(handle, 10)
    assert consumer.bodies() == [b"0", b"2"]
    assert consumer.ack(handle) == [None]
    step(rig, 30)
    assert consumer.bodies() == [b"0", b"2"]


def test_the_handle_from_before_an_extension_acknowledges() -> None:
    rig = filled(2)
    consumer = Consumer(rig)
    taken = consumer.take(seconds=10)
    consumer.extend(taken[0], 60)
    assert consumer.ack(taken[0]) == [None]
    step(rig, 100)
    assert consumer.bodies() == [b"1"]


def test_an_extension_may_make_a_lease_shorter() -> None:
    rig = filled(1)
    consumer = Consumer(rig)
    (taken,) = consumer.take(seconds=100)
    consumer.extend(taken, 3)
    step(rig, 3)
    assert consumer.bodies() == [b"0"]


def test_a_second_acknowledgement_is_a_success() -> None:
    rig = filled(1)
    consumer = Consumer(rig)
    (taken,) = consumer.take()
    assert consumer.ack(taken) == [None]
    assert consumer.ack(taken) == [None]


def test_a_handle_whose_time_has_ended_is_refused() -> None:
    rig = filled(1)
    one, other = Consumer(rig), Consumer(rig)
    (taken,) = one.take(seconds=10)
    step(rig, 10.5)
    (refusal,) = one.ack(taken)
    assert refusal is not None
    assert refusal.code == ResponseCode.NO_MESSAGE
    with pytest.raises(ResponseError):
        one.extend(taken, 10)
    (again,) = other.take()
    assert one.ack(taken)[0] is not None
    assert other.ack(again) == [None]


def test_the_handle_of_a_message_that_another_consumer_has_is_refused() -> None:
    rig = filled(1)
    one, other = Consumer(rig), Consumer(rig)
    (taken,) = one.take(seconds=100)
    one.nack(taken)
    (again,) = other.take()
    (refusal,) = one.ack(taken)
    assert refusal is not None
    assert "another consumer" in str(refusal)
    assert other.ack(again) == [None]


@pytest.mark.parametrize(
    "text", ["", "nonsense", "1 2 3", "a b c d e f g h", "1 2 3 0 0 b -1 4", "0 0 0 0 0 b 0 9"]
)
def test_a_text_that_is_no_handle_is_refused(text: str) -> None:
    rig = filled(1)
    consumer = Consumer(rig)
    consumer.take()
    (refusal,) = consumer.ack(text)
    assert refusal is not None
    assert refusal.code in (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_MESSAGE)


def test_messages_that_a_filter_refuses_are_finished() -> None:
    rig = Rig()
    rig.topic(TOPIC, 1)
    for number, tag in enumerate("abab"):
        rig.put(TOPIC, body=b"%d" % number, tags=tag)
    consumer = Consumer(rig)
    taken = consumer.take(subscription="b")
    assert [one.body for one in taken] == [b"1", b"3"]
    assert rig.offsets.get(GROUP, TOPIC, 0) == 1
    consumer.ack(taken[0])
    assert rig.offsets.get(GROUP, TOPIC, 0) == 3
    consumer.nack(taken[1])
    step(rig)
    assert consumer.bodies(subscription="b") == [b"3"]


def test_pulls_of_the_group_are_refused_while_it_takes() -> None:
    rig = filled(1)
    consumer = Consumer(rig)
    taken = consumer.take()
    answer = rig.one(pull(TOPIC, consumer_group=GROUP))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "one by one" in (answer.remark or "")
    consumer.ack(*taken)
    step(rig, 200)
    assert rig.one(pull(TOPIC, 1, consumer_group=GROUP)).code != ResponseCode.NO_PERMISSION


def test_a_take_is_refused_while_a_pull_of_the_group_waits() -> None:
    rig = filled(0)
    assert rig.ask(pull(TOPIC, consumer_group=GROUP, sys_flag=6)) == []
    with pytest.raises(ResponseError, match="cannot be taken one by one"):
        Consumer(rig).take()


@pytest.mark.parametrize("place", [0, 4, 100])
def test_a_damaged_unit_does_not_stop_takes(place: int) -> None:
    """It points to bytes that are no record, such as a body of zeros."""
    rig = filled(0)
    start = rig.put(TOPIC, 0, bytes(1_000), tags="a")
    for tag in "bab":
        rig.put(TOPIC, 0, b"good", tags=tag)
    queue = rig.store.lane(TOPIC, 0)
    assert queue is not None
    damaged = UNIT_FORM.pack(start + place, 500, tags_code("a"))
    queue.tail[: len(damaged)] = damaged
    consumer = Consumer(rig)
    taken = consumer.take(subscription="a")
    assert [one.offset for one in taken] == ([2] if place else [0, 2])  # only its size is wrong at 0
    assert set(consumer.ack(*taken)) == {None}


def test_no_more_is_handed_out_than_the_limit() -> None:
    rig = filled(100, max_taken_messages_of_group=10)
    consumer = Consumer(rig)
    taken = consumer.take()
    assert len(taken) == 10
    assert consumer.take() == []
    consumer.ack(*taken[:5])
    assert len(consumer.take()) == 5


@pytest.mark.parametrize("limit", ["max_taken_messages_of_group", "max_taken_messages"])
def test_a_limit_does_not_keep_back_what_is_out_already(limit: str) -> None:
    rig = filled(40, **{limit: 10})
    consumer = Consumer(rig)
    taken = len(consumer.take())
    consumer.close()
    other = Consumer(rig)
    assert other.bodies() == all_bodies(40)[:taken]
    assert other.take() == []


def test_a_message_that_is_finished_makes_room_for_one_that_waits() -> None:
    rig = filled(20, max_taken_messages_of_group=10)
    consumer, other = Consumer(rig), Consumer(rig)
    taken = consumer.take()
    other.hold()
    step(rig, 1)
    assert other.found == []
    consumer.ack(*taken[:2])
    step(rig)
    assert [[one.body for one in found] for found in other.found] == [[b"10", b"11"]]


def test_a_reset_brings_messages_again() -> None:
    rig = filled(10)
    consumer = Consumer(rig)
    taken = consumer.take()
    consumer.ack(*taken[:5])
    rig.offsets.put(GROUP, TOPIC, {0: 2})
    assert consumer.bodies() == all_bodies(10)[2:]
    assert rig.broker.deliveries.out == 8


def test_a_reset_to_the_end_drops_what_is_out() -> None:
    rig = filled(10)
    consumer = Consumer(rig)
    consumer.take(5)
    rig.offsets.put(GROUP, TOPIC, {0: 10})
    step(rig, 60)
    assert consumer.take() == []
    assert rig.broker.deliveries.out == 0


def test_a_deleted_group_begins_anew() -> None:
    rig = filled(3)
    consumer = Consumer(rig)
    consumer.ack(*consumer.take())
    rig.offsets.delete_group(GROUP)
    assert consumer.bodies() == all_bodies(3)


# ---- kill -9 ----


def test_state_survives_a_kill() -> None:
    rig = filled(10)
    consumer = Consumer(rig)
    taken = consumer.take()
    consumer.ack(taken[0], taken[2], taken[9])
    consumer.nack(taken[4], after=100)
    rig = restarted(rig)
    again = Consumer(rig).take()
    assert [one.body for one in again] == [b"1", b"3", b"5", b"6", b"7", b"8"]
    assert {one.attempt for one in again} == {2}
    step(rig, 100)
    (late,) = [one for one in Consumer(rig).take() if one.body == b"4"]
    assert late.attempt == 2


def test_a_handle_is_good_after_a_kill() -> None:
    rig = filled(2)
    (one, two) = Consumer(rig).take(seconds=60)
    Consumer(rig).ack(two)
    rig = restarted(rig)
    consumer = Consumer(rig)
    assert consumer.ack(one) == [None]
    assert consumer.take() == []


def test_nothing_sent_before_a_kill_is_skipped_by_a_group_that_began_at_the_end() -> None:
    rig = filled(3)
    consumer = Consumer(rig)
    rig.offsets.put(GROUP, TOPIC, {0: 3})
    assert consumer.take() == []
    rig.put(TOPIC, body=b"3")
    rig = restarted(rig)
    assert Consumer(rig).bodies(from_first=False) == [b"3"]


def test_attempts_that_a_stop_of_the_broker_cuts_off_do_not_count() -> None:
    rig = filled(6)
    consumer = Consumer(rig)
    (failed,) = consumer.take(1)
    consumer.nack(failed)
    taken = consumer.take(3)
    consumer.take(1)
    assert [(one.body, one.attempt) for one in taken] == [(b"0", 2), (b"1", 1), (b"2", 1)]
    rig.broker.deliveries.stop()
    consumer.ack(taken[-1])  # a late one, before its connection ends
    consumer.close()
    step(rig, 60)
    again = Consumer(restarted(rig)).take()
    assert [(one.body, one.attempt) for one in again] == [
        (b"0", 2),
        (b"1", 1),
        (b"3", 1),
        (b"4", 1),
        (b"5", 1),
    ]


def test_a_stop_of_the_broker_counts_no_attempt_of_an_ordered_message() -> None:
    rig = filled(2)
    (taken,) = Consumer(rig).take(in_order=True)
    assert (taken.body, taken.attempt) == (b"0", 1)
    rig.broker.deliveries.stop()
    rig.broker.group_commit.commit_pending()
    (again,) = Consumer(restarted(rig)).take(in_order=True)
    assert (again.body, again.attempt) == (b"0", 1)


def test_attempts_count_over_kills() -> None:
    rig = filled(1)
    rig.groups.get(GROUP)
    _set_retries(rig, 3)
    attempts = []
    for _ in range(4):
        consumer = Consumer(rig)
        (taken,) = consumer.take()
        attempts.append(taken.attempt)
        consumer.nack(taken)
        rig = restarted(rig)
        rig.groups.get(GROUP)
        _set_retries(rig, 3)
    assert attempts == [1, 2, 3, 4]
    assert Consumer(rig).take() == []
    step(rig)
    assert [letter.body for letter in rig.messages(dlq_topic(GROUP))] == [b"0"]


@pytest.mark.parametrize("records", [1, 7])
def test_a_snapshot_replaces_the_journal(records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "SNAPSHOT_RECORDS", records)
    rig = filled(100, queues=3)
    consumer = Consumer(rig)
    kept = []
    for number in range(50):
        for taken in consumer.take(2, seconds=1000):
            if number % 3:
                consumer.ack(taken)
            elif number % 2:
                consumer.nack(taken, after=5000)
            else:
                kept.append(taken.body)
        step(rig, 1)
    first = rig.broker.deliveries.ledger._first
    assert first > 10
    waiting = {batch.start for queue in rig.broker.deliveries.ledger.rows.values() for batch in queue.waiting}
    rig = restarted(rig)
    assert rig.broker.deliveries.ledger._first == first
    again = Consumer(rig)
    found = [one for _ in range(10) for one in again.bodies()]
    assert sorted(found) == sorted(kept)
    assert waiting


def test_a_slave_writes_no_snapshot(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ledger, "SNAPSHOT_RECORDS", 1)
    rig = filled(4)
    consumer = Consumer(rig)
    consumer.ack(*consumer.take())
    rig.become_slave()
    step(rig, 1)
    assert "not written" not in caplog.text


def test_a_failed_write_is_an_error_and_the_message_comes_again() -> None:
    rig = filled(2)
    consumer = Consumer(rig)
    taken = consumer.take(seconds=10)
    rig.disk.fail("write", "commitlog")
    (refusal,) = consumer.ack(taken[0])
    assert refusal is not None
    step(rig, 10)
    assert consumer.bodies() == [b"0", b"1"]


def test_a_poll_looks_on_behind_many_messages_that_wait() -> None:
    rig = filled(61)
    consumer = Consumer(rig)
    for number in range(30):  # all of them have another time to come again
        consumer.nack(*consumer.take(1), after=1000 + number)
        consumer.ack(*consumer.take(1))
    rig = restarted(rig)
    consumer = Consumer(rig)
    assert consumer.take() == []
    consumer.hold()
    step(rig)
    assert [one.body for one in consumer.found[0]] == [b"60"]  # type: ignore[union-attr]


# ---- by message group ----


def ordered(keys: str) -> Rig:
    rig = Rig()
    rig.topic(TOPIC, 1)
    for number, key in enumerate(keys):
        rig.put(TOPIC, body=b"%s%d" % (key.encode(), number), properties={"__SHARDINGKEY": key})
    return rig


def test_the_next_of_a_message_group_waits_and_others_go_on() -> None:
    rig = ordered("aabab")
    consumer = Consumer(rig)
    first = consumer.take(in_order=True)
    assert [one.body for one in first] == [b"a0", b"b2"]
    assert consumer.take(in_order=True) == []
    consumer.ack(first[0])
    (second,) = consumer.take(in_order=True)
    assert second.body == b"a1"
    consumer.ack(first[1], second)
    assert sorted(consumer.bodies(in_order=True)) == [b"a3", b"b4"]


def test_a_failed_message_holds_its_group_until_it_is_finished() -> None:
    rig = ordered("aab")
    consumer = Consumer(rig)
    first, other = consumer.take(in_order=True)
    consumer.nack(first, after=5)
    consumer.ack(other)
    assert consumer.take(in_order=True) == []
    step(rig, 5)
    (again,) = consumer.take(in_order=True)
    assert (again.body, again.attempt) == (b"a0", 2)
    consumer.hold(in_order=True)
    consumer.ack(again)
    step(rig)
    assert [one.body for one in consumer.found[0]] == [b"a1"]  # type: ignore[union-attr]


def test_a_dead_letter_frees_its_message_group() -> None:
    rig = ordered("aa")
    rig.groups.get(GROUP)
    _set_retries(rig, 0)
    consumer = Consumer(rig)
    consumer.nack(*consumer.take(in_order=True))
    step(rig)
    assert consumer.bodies(in_order=True) == [b"a1"]


def test_order_holds_over_a_kill() -> None:
    rig = ordered("aabba")
    consumer = Consumer(rig)
    first = consumer.take(in_order=True)
    consumer.ack(first[0])
    consumer.nack(first[1], after=50)
    rig = restarted(rig)
    consumer = Consumer(rig)
    (taken,) = consumer.take(in_order=True)
    assert taken.body == b"a1"
    consumer.ack(taken)
    assert consumer.bodies(in_order=True) == [b"a4"]
    step(rig, 50)
    assert b"b2" in consumer.bodies(in_order=True)


def test_messages_without_a_key_are_one_group() -> None:
    rig = filled(3)
    consumer = Consumer(rig)
    assert consumer.bodies(in_order=True) == [b"0"]


def test_a_connection_that_ends_frees_nothing_but_its_own() -> None:
    rig = ordered("aab")
    one, other = Consumer(rig), Consumer(rig)
    one.take(1, in_order=True)
    (b,) = other.take(1, in_order=True)
    one.close()
    assert other.bodies(in_order=True) == [b"a0"]
    assert other.ack(b) == [None]


@pytest.mark.parametrize("end", [Consumer.close, lambda consumer: step(consumer.rig, 30)])
def test_a_million_messages_are_bounded(end: Callable[[Consumer], None]) -> None:
    """Leases cost by the batch, finished messages by the bit; here a thousand of them."""
    rig = filled(2000)
    consumer = Consumer(rig)
    taken = [one for _ in range(100) for one in consumer.take(10)]
    consumer.ack(*taken[1::2])
    (queue,) = rig.broker.deliveries.ledger.rows.values()
    assert len(queue.leased) == 100
    assert len(list(queue.finished.pieces())) == 1
    end(consumer)
    step(rig)
    assert not queue.leased
    assert not queue._blocks
    assert rig.broker.deliveries.out == 500
