"""Per-message delivery with a choice of the consumer: the refused messages stay for others."""

from __future__ import annotations

import pytest

from rmq.message import StoredMessage
from tests.unit.broker.taking import GROUP, TOPIC, Consumer, filled, restarted, step


class Among:
    """Chooses messages by their bodies."""

    def __init__(self, *bodies: int) -> None:
        self.bodies = {b"%d" % body for body in bodies}
        self.version = 0
        self.looks = 0

    def __call__(self, message: StoredMessage) -> bool:
        self.looks += 1
        return message.body in self.bodies


def test_what_a_chooser_refuses_is_left_to_others_in_order_and_as_new() -> None:
    rig = filled(10)
    even, other = Consumer(rig), Consumer(rig)
    chooser = Among(0, 2, 4, 6, 8)
    taken = even.take(chooser=chooser)
    assert [one.body for one in taken] == [b"0", b"2", b"4", b"6", b"8"]
    rest = other.take()
    assert [(one.body, one.attempt) for one in rest] == [(b"%d" % number, 1) for number in (1, 3, 5, 7, 9)]
    even.ack(*taken)
    other.ack(*rest)
    assert rig.offsets.get(GROUP, TOPIC, 0) == 10


def test_a_chooser_looks_at_a_message_once_until_its_version_changes() -> None:
    rig = filled(100)
    consumer, chooser = Consumer(rig), Among(99)
    assert consumer.bodies(chooser=chooser) == [b"99"]
    looks = chooser.looks
    assert consumer.bodies(chooser=chooser) == []
    assert chooser.looks == looks
    chooser.bodies.add(b"5")
    chooser.version += 1
    assert consumer.bodies(chooser=chooser) == [b"5"]


def test_waiting_consumers_with_other_choices_all_get_theirs() -> None:
    rig = filled(0)
    one, two, rest = Consumer(rig), Consumer(rig), Consumer(rig)
    one.hold(chooser=Among(1))
    two.hold(chooser=Among(2))
    for number in (2, 1):
        rig.put(TOPIC, 0, b"%d" % number)
        rig.broker.deliveries.arrived(TOPIC)
        step(rig)
    assert [[each.body for each in found] for found in one.found] == [[b"1"]]  # type: ignore[union-attr]
    assert [[each.body for each in found] for found in two.found] == [[b"2"]]  # type: ignore[union-attr]
    rest.hold()
    rig.put(TOPIC, 0, b"3")
    rig.broker.deliveries.arrived(TOPIC)
    step(rig)
    assert [[each.body for each in found] for found in rest.found] == [[b"3"]]  # type: ignore[union-attr]


def test_a_message_that_comes_again_may_be_chosen_and_counts_its_attempts() -> None:
    rig = filled(3)
    consumer = Consumer(rig)
    consumer.nack(*consumer.take())
    (taken,) = consumer.take(chooser=Among(1))
    assert (taken.body, taken.attempt) == (b"1", 2)
    assert [(one.body, one.attempt) for one in consumer.take()] == [(b"0", 2), (b"2", 2)]


def test_refused_messages_outlive_kill_9_without_an_attempt() -> None:
    rig = filled(4)
    consumer = Consumer(rig)
    consumer.ack(*consumer.take(chooser=Among(1, 3)))
    rig = restarted(rig)
    assert [(one.body, one.attempt) for one in Consumer(rig).take()] == [(b"0", 1), (b"2", 1)]


def test_a_chooser_that_refuses_everything_leaves_room_for_others() -> None:
    rig = filled(300, max_taken_messages_of_group=100)
    Consumer(rig).take(chooser=Among())
    assert Consumer(rig).bodies(10) == [b"%d" % number for number in range(10)]


def test_a_chooser_that_fails_takes_nothing_and_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Among):
        def __call__(self, message: StoredMessage) -> bool:
            raise RecursionError("too deep")

    rig = filled(4)
    broken, sound = Consumer(rig), Consumer(rig)
    assert broken.bodies(chooser=Broken()) == []
    assert sound.bodies(chooser=Among(0, 2)) == [b"0", b"2"]
    assert broken.bodies(chooser=Broken()) == []
    assert sound.bodies() == [b"1", b"3"]
    assert "a door cannot choose among messages: too deep" in caplog.text
