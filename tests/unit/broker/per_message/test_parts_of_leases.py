"""Messages of one lease that end in parts: some are given back and taken again, others are still out."""

from __future__ import annotations

import random

import pytest

from rmq.errors import ResponseError
from tests.unit.broker.taking import GROUP, TOPIC, Consumer, Taken, filled, step


def test_messages_that_were_given_back_are_leased_beside_the_rest_of_their_first_lease() -> None:
    """Both leases had one name, by their first message: the end of the second one ended the broker."""
    rig = filled(5)
    one, two = Consumer(rig), Consumer(rig)
    first = one.take()
    one.nack(*first[:2])
    again = two.take()
    assert [taken.body for taken in again] == [b"0", b"1"]
    assert two.ack(*again) == [None, None]
    assert one.ack(first[2]) == [None]
    one.close()
    assert [(taken.body, taken.attempt) for taken in two.take()] == [(b"3", 2), (b"4", 2)]
    step(rig, 60)
    assert two.bodies() == [b"3", b"4"]


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_leases_end_in_any_order(seed: int) -> None:
    chance, rig = random.Random(seed), filled(12)
    consumers = [Consumer(rig) for _ in range(3)]
    held: list[tuple[Consumer, Taken]] = []
    finished: list[bytes] = []
    for _ in range(120):
        consumer = chance.choice(consumers)
        mine = [pair for pair in held if pair[0] is consumer]
        some = chance.sample(mine, min(len(mine), chance.randrange(1, 4)))
        match chance.randrange(5):
            case 0 | 1:
                held += [(consumer, taken) for taken in consumer.take(chance.randrange(1, 6))]
            case 2 if some:
                assert consumer.ack(*(taken for _, taken in some)) == [None] * len(some)
                finished += [taken.body for _, taken in some]
                held = [pair for pair in held if pair not in some]
            case 3 if some:
                outcomes = consumer.nack(*(taken for _, taken in some), counts=False)
                assert outcomes == [None] * len(some)
                held = [pair for pair in held if pair not in some]
            case 4 if chance.random() < 0.1:
                consumer.close()
                held = [pair for pair in held if pair[0] is not consumer]
                consumers[consumers.index(consumer)] = Consumer(rig)
        step(rig)
    rest = Consumer(rig)
    for consumer in consumers:
        consumer.close()
    taken = rest.take()
    assert sorted([*finished, *(one.body for one in taken)]) == sorted(b"%d" % n for n in range(12))
    rest.ack(*taken)
    assert rig.offsets.get(GROUP, TOPIC, 0) == 12


@pytest.mark.parametrize("ends", ["lease", "nack", "connection"])
def test_a_message_that_is_to_come_again_becomes_a_dead_letter_by_its_handle(ends: str) -> None:
    """The answer was a success, and the message came again."""
    rig = filled(2)
    one, two = Consumer(rig), Consumer(rig)
    first = one.take(1, seconds=10)
    if ends == "lease":
        one.extend(first[0], 5)
        step(rig, 5)
    elif ends == "nack":
        one.nack(first[0], after=3)
    else:
        one.close()
    outcomes: list[ResponseError | None] = []
    rig.broker.deliveries.dead_letter(GROUP, TOPIC, [first[0].handle], outcomes.extend)
    rig.broker.group_commit.commit_pending()
    assert outcomes == [None]
    rig.broker.deliveries.dead_letter(GROUP, TOPIC, [first[0].handle], outcomes.extend)
    rig.broker.group_commit.commit_pending()
    assert outcomes == [None, None]
    step(rig, 60)
    assert two.bodies() == [b"1"]
    assert rig.store.max_offset(f"%DLQ%{GROUP}", 0) == 1
