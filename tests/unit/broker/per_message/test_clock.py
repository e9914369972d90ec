"""Per-message delivery while the wall clock of the broker is set: leases and delays keep their length."""

from __future__ import annotations

import pytest

from tests.unit.broker.taking import Consumer, filled, restarted, step

DAY_MS = 86_400_000


@pytest.mark.parametrize("set_by", [-DAY_MS, DAY_MS, -5_000])
def test_a_handle_is_good_whatever_the_clock_was_set_to(set_by: int) -> None:
    rig = filled(2)
    consumer = Consumer(rig)
    consumer.take(seconds=30)
    rig.now_ms += set_by
    step(rig, 31)
    one, two = consumer.take(seconds=30)
    assert (one.attempt, two.attempt) == (2, 2)
    longer = consumer.extend(two, 60)
    assert consumer.ack(one, longer) == [None, None]
    step(rig, 120)
    assert consumer.take() == []


@pytest.mark.parametrize("set_by", [-DAY_MS, -5_000])
def test_a_message_that_was_taken_before_the_clock_was_set_back_is_acknowledged(set_by: int) -> None:
    rig = filled(1)
    consumer = Consumer(rig)
    (one,) = consumer.take(seconds=30)
    rig.now_ms += set_by
    assert consumer.ack(consumer.extend(one, 60)) == [None]
    assert Consumer(restarted(rig)).take() == []


def test_a_delay_is_not_longer_after_a_restart_under_a_clock_that_was_set_back() -> None:
    rig = filled(2)
    rig.now_ms += DAY_MS
    consumer = Consumer(rig)
    one, _ = consumer.take(1) + consumer.take(1)
    consumer.nack(one, after=100)
    rig = restarted(rig)  # whose clock is a day behind
    consumer = Consumer(rig)
    assert consumer.bodies(seconds=600) == [b"1"]
    step(rig, 99)
    assert consumer.bodies() == []
    step(rig, 1)
    assert consumer.bodies() == [b"0"]
