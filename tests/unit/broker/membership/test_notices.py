"""rmq.broker.membership.notices: changes of a group that follow closely are told together."""

from __future__ import annotations

import math

from rmq.broker.membership.notices import APART_SECONDS
from rmq.protocol.codes import RequestCode
from tests.unit.broker.membership.heartbeats import beat, consumer
from tests.unit.broker.rig import Rig, Wire


def told(line: Wire) -> list[str]:
    """The groups whose change the line was told since the last time."""
    taken = line.take()
    assert all(command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for command in taken)
    return [command.ext["consumerGroup"] for command in taken]


def pass_time(rig: Rig) -> None:
    """Let the time between two notices pass, and the loop of deadlines run."""
    rig.seconds += APART_SECONDS + 0.001
    rig.broker.steps.deadlines(rig.seconds)


def test_each_of_a_crowd_is_told_at_most_twice() -> None:
    rig, lines = Rig(), [Wire(f"h:{number}") for number in range(50)]
    for line in lines:
        beat(rig, line, line.peer_address, consumer("g", T="*"))
    assert [told(line) for line in lines] == [["g"], *[[]] * 49]
    assert rig.broker.deadlines.next == rig.seconds + APART_SECONDS

    pass_time(rig)
    assert [told(line) for line in lines] == [["g"]] * 50
    pass_time(rig)
    assert [told(line) for line in lines] == [[]] * 50

    for line in lines[:40]:
        rig.clients.on_close(line)
    assert [told(line) for line in lines] == [[], *[["g"]] * 49]
    pass_time(rig)
    assert [told(line) for line in lines] == [*[[]] * 40, *[["g"]] * 10]


def test_changes_that_never_pause_are_told_again_and_again() -> None:
    rig, one, other = Rig(), Wire("h:1"), Wire("h:2")
    beat(rig, one, "c1", consumer("g", T="*"))
    notices = 0
    for _ in range(100):
        beat(rig, other, "c2", consumer("g", T="*"))
        rig.clients.on_close(other)
        rig.seconds += 0.001
        rig.broker.steps.deadlines(rig.seconds)
        notices += len(told(one))
    assert 4 <= notices <= 7


def test_groups_do_not_wait_for_each_other() -> None:
    rig, one, two = Rig(), Wire("h:1"), Wire("h:2")
    beat(rig, one, "c1", consumer("g", T="*"))
    beat(rig, two, "c2", consumer("other", T="*"))
    assert (told(one), told(two)) == (["g"], ["other"])


def test_nobody_is_told_of_a_group_without_members() -> None:
    rig, one, two = Rig(), Wire("h:1"), Wire("h:2")
    for line in (one, two):
        beat(rig, line, line.peer_address, consumer("g", T="*"))
    for line in (one, two):
        rig.clients.on_close(line)
    one.take()
    pass_time(rig)
    assert (told(one), told(two)) == ([], [])
    assert rig.clients.notices.step(rig.seconds) == math.inf


def test_nothing_is_kept_of_groups_that_were_told() -> None:
    rig = Rig()
    for number in range(10):
        beat(rig, Wire(f"h:{number}"), "c", consumer(f"g{number}", T="*"))
        rig.seconds += 2 * APART_SECONDS
    assert len(rig.clients.notices._next) == 1
