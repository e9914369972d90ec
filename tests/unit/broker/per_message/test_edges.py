"""Per-message delivery where two things meet: a reset with messages in flight, a kill behind a take, a lease
that another connection extends, dead letters of a queue that is reset."""

from __future__ import annotations

import base64
import tracemalloc

import pytest

from rmq.broker.consume.per_message import ledger
from rmq.errors import ResponseError
from rmq.message import dlq_topic
from rmq.protocol import codes
from rmq.protocol.bodies import SubscriptionGroupConfig
from rmq.protocol.codes import ResponseCode
from rmq.protocol.pop import BatchAck, BatchAckMessageRequestBody, offsets_of
from tests.unit.broker.rig import Rig
from tests.unit.broker.taking import GROUP, TOPIC, Consumer, Taken, filled, restarted, step


def one_attempt(rig: Rig) -> None:
    rig.groups.update(SubscriptionGroupConfig(GROUP, retry_max_times=0))


def dead_letters(rig: Rig) -> int:
    return len(rig.messages(dlq_topic(GROUP)))


@pytest.mark.parametrize("size", [3, 1_000_000])
def test_bits_that_stand_for_too_many_messages_are_refused(size: int) -> None:
    rig = filled(3)
    Consumer(rig).take()
    dense = base64.b64encode(b"\xff" * (size // 8 + 10_000)).decode()
    ack = BatchAck(GROUP, TOPIC, so=0, pt=5, it=5, b=dense)
    tracemalloc.start()
    answer = rig.call(codes.BATCH_ACK_MESSAGE, None, BatchAckMessageRequestBody("wire-a", [ack]).to_json())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert peak < 10 * len(dense) + 1_000_000


def test_far_bits_cost_no_more_than_their_bytes() -> None:
    assert offsets_of(7, 0) == []
    assert offsets_of(7, 0b1011) == [7, 8, 10]
    assert offsets_of(7, 1 << 30_000_000 | 1) == [7, 30_000_007]  # took hours, a shift for each bit


def test_a_reset_to_the_oldest_unfinished_message_brings_the_later_ones_again() -> None:
    rig = filled(10)
    consumer = Consumer(rig)
    slow, *rest = consumer.take()
    consumer.ack(*rest)
    rig.offsets.put(GROUP, TOPIC, {0: 0})
    rig.broker.group_commit.commit_pending()
    assert len(consumer.bodies()) == 10
    assert len(Consumer(restarted(rig)).bodies()) == 10
    (refusal,) = consumer.ack(slow)
    assert refusal is not None


def test_offsets_of_another_group_bring_the_later_messages_again() -> None:
    rig = filled(10)
    consumer = Consumer(rig)
    _, *rest = consumer.take()
    consumer.ack(*rest)
    rig.offsets.put("source", TOPIC, {0: 0})
    rig.offsets.clone("source", GROUP, TOPIC)
    assert len(consumer.bodies()) == 10


def test_a_reset_of_one_queue_leaves_the_others() -> None:
    rig = filled(10, queues=2)
    consumer = Consumer(rig)
    consumer.take()
    rig.offsets.put(GROUP, TOPIC, {0: 0})
    assert sorted(consumer.bodies()) == [b"0", b"2", b"4", b"6", b"8"]


def test_a_snapshot_keeps_that_an_attempt_did_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "SNAPSHOT_RECORDS", 3)
    rig = filled(10)
    one_attempt(rig)
    consumer = Consumer(rig)
    taken = consumer.take()
    consumer.nack(*taken[:3], counts=False)
    for one in taken[3:]:
        consumer.ack(one)
    step(rig)
    assert rig.broker.deliveries.ledger._first > 0
    rig = restarted(rig)
    one_attempt(rig)
    assert [(one.body, one.attempt) for one in Consumer(rig).take()] == [(b"0", 1), (b"1", 1), (b"2", 1)]


@pytest.mark.parametrize("in_order", [False, True])
def test_a_handle_is_good_after_a_kill_though_nothing_was_written_since_its_take(in_order: bool) -> None:
    rig = filled(4)
    first = Consumer(rig).take(2, seconds=1000, in_order=in_order)[0]
    consumer = Consumer(rig := restarted(rig))
    assert consumer.ack(first) == [None]
    expected = [b"1"] if in_order else [b"1", b"2", b"3"]
    assert consumer.bodies(in_order=in_order) == expected
    assert Consumer(restarted(rig)).bodies(in_order=in_order) == expected


@pytest.mark.parametrize("change", ["reset", "deleted"])
def test_a_handle_from_before_a_change_is_not_good_after_a_kill(change: str) -> None:
    rig = filled(3)
    (first, *_) = Consumer(rig).take(seconds=10_000)
    rig.let_pass(60_000)
    if change == "reset":
        rig.offsets.put(GROUP, TOPIC, {0: 0})
    else:
        rig.offsets.delete_group(GROUP)
        Consumer(rig).take(0)
    rig.broker.group_commit.commit_pending()
    consumer = Consumer(restarted(rig))
    (refusal,) = consumer.ack(first)
    assert refusal is not None
    assert consumer.bodies() == [b"0", b"1", b"2"]


def test_a_lease_that_another_connection_extends_is_not_ended_with_the_first() -> None:
    rig = filled(1)
    first, second = Consumer(rig), Consumer(rig)
    (taken,) = first.take(seconds=1000)
    first.wire.close()
    rig.broker.deliveries.on_close(first.wire)
    handle = second.extend(taken, 100)
    step(rig)
    assert Consumer(rig).bodies() == []
    assert second.ack(handle) == [None]


def test_a_message_that_is_forwarded_twice_in_a_turn_is_one_dead_letter() -> None:
    rig = filled(3)
    taken = Consumer(rig).take()
    outcomes: list[ResponseError | None] = []
    for _ in range(2):
        rig.broker.deliveries.dead_letter(GROUP, TOPIC, [taken[1].handle], outcomes.extend)
    rig.broker.group_commit.commit_pending()
    step(rig)
    assert outcomes == [None, None]
    assert dead_letters(rig) == 1
    assert Consumer(restarted(rig)).bodies() == [b"0", b"2"]


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("after", [0, 60])
def test_a_message_that_waits_is_one_dead_letter_and_frees_its_group(in_order: bool, after: float) -> None:
    rig = filled(2)
    consumer = Consumer(rig)
    taken = consumer.take(seconds=1000, in_order=in_order)[0]
    consumer.nack(taken, after=after)
    outcomes: list[ResponseError | None] = []
    for handles in ([taken.handle] * 2, [taken.handle]):
        rig.broker.deliveries.dead_letter(GROUP, TOPIC, handles, outcomes.extend)
    rig.broker.group_commit.commit_pending()
    assert outcomes == [None] * 3
    assert dead_letters(rig) == 1
    step(rig)
    if in_order:
        assert consumer.bodies(in_order=True) == [b"1"]
    assert rig.broker.deliveries.out == 1


def test_a_forwarded_message_comes_again_when_the_write_failed() -> None:
    rig = filled(1)
    (taken,) = Consumer(rig).take()
    rig.disk.fail("write", "commitlog", times=1)
    outcomes: list[ResponseError | None] = []
    rig.broker.deliveries.dead_letter(GROUP, TOPIC, [taken.handle], outcomes.extend)
    rig.broker.group_commit.commit_pending()
    assert outcomes != [None]
    assert dead_letters(rig) == 0
    step(rig, 5)
    assert Consumer(rig).bodies() == [b"0"]


@pytest.mark.parametrize("change", ["reset", "deleted"])
@pytest.mark.parametrize("turns", [0, 1])
def test_dead_letters_of_a_queue_end_with_its_reset(change: str, turns: int) -> None:
    rig = filled(1000)
    one_attempt(rig)
    consumer = Consumer(rig)
    while consumer.take():
        pass
    consumer.wire.close()
    rig.broker.deliveries.on_close(consumer.wire)
    for _ in range(turns):
        rig.broker.deliveries.leases.step(rig.seconds)  # some are in the pending batch, others wait
    if change == "reset":
        rig.offsets.put(GROUP, TOPIC, {0: 1000})
    else:
        rig.offsets.delete_group(GROUP)
    rig.broker.group_commit.commit_pending()
    step(rig)
    assert rig.broker.deliveries.out == 0
    assert rig.offsets.get(GROUP, TOPIC, 0) == (1000 if change == "reset" else -1)
    assert dead_letters(rig) <= 100 * turns


def test_messages_of_a_topic_made_again_after_a_kill_are_not_finished() -> None:
    rig = filled(20)
    consumer = Consumer(rig)
    consumer.ack(*consumer.take())
    disk = rig.disk.copy()
    for name in ("topics.json", "topics.json.bak"):
        disk.remove(f"/store/config/{name}")
    rig = Rig(disk=disk)  # killed while the topic was deleted
    assert rig.topics.get(TOPIC) is None
    step(rig)
    rig.topic(TOPIC, 1)
    rig.broker.group_commit.commit_pending()
    consumer = Consumer(restarted(rig))
    assert len(consumer.bodies()) == 20


def attempts(found: list[Taken]) -> dict[bytes, int]:
    return {one.body: one.attempt for one in found}


def test_a_group_that_begins_to_take_in_order_goes_on_with_messages_that_come_again() -> None:
    rig = filled(4)
    before, after = Consumer(rig), Consumer(rig)
    first, *_ = before.take(3, 5)
    before.nack(first, after=60)
    assert after.take(in_order=True) == []  # two messages are leased
    step(rig, 5)
    assert after.take(in_order=True) == []  # the first of the message group waits
    step(rig, 55)
    found = []
    for _ in range(4):
        (taken,) = after.take(in_order=True)
        found.append(taken)
        after.ack(taken)
    assert list(attempts(found).items()) == [(b"0", 2), (b"1", 2), (b"2", 2), (b"3", 1)]
    assert rig.broker.deliveries.out == 0


def test_a_message_that_is_acknowledged_while_it_waits_for_its_group_does_not_come() -> None:
    rig = filled(3)
    consumer = Consumer(rig)
    first, second, _ = consumer.take(3, 600)
    consumer.nack(*consumer.take(), first, second)
    rig = restarted(rig)
    consumer = Consumer(rig)
    (again,) = consumer.take(in_order=True)
    assert consumer.ack(second) == [None]
    consumer.ack(again)
    assert consumer.bodies(in_order=True) == [b"2"]


def test_a_group_that_takes_in_order_no_more_goes_on_with_messages_that_come_again() -> None:
    rig = filled(4)
    before, after = Consumer(rig), Consumer(rig)
    assert before.bodies(3, 5, in_order=True) == [b"0"]
    assert after.take() == []
    step(rig, 5)
    found = after.take()
    assert attempts(found) == {b"0": 2, b"1": 1, b"2": 1, b"3": 1}
    after.ack(*found)
    assert rig.broker.deliveries.out == 0


def test_a_lease_that_is_made_shorter_again_and_again_takes_one_place() -> None:
    rig = filled(1)
    consumer = Consumer(rig)
    (taken,) = consumer.take(seconds=40_000)
    for number in range(10_000):
        consumer.extend(taken, 40_000 - number)
    assert len(rig.broker.deliveries.leases._times) <= 2 * 1024
    step(rig, 40_000)
    assert len(consumer.take()) == 1
