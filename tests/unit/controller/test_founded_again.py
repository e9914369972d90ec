"""A set that was removed and is begun again under its name: it owes nothing to the former one."""

from __future__ import annotations

from attrs import evolve

from rmq.controller.heartbeat import Heartbeat
from rmq.controller.sets import AlterInSync, BrokerSet, Remove, Replica
from tests.unit.controller.rig import Rig, led, register


def removed(rig: Rig) -> None:
    """An operator removes both replicas of the set, the master last."""
    rig.run(4.0)  # a replica that was heard lately is not removed
    for number in (2, 1):
        assert not rig.done(Remove("s", number)).refusal


def begun_again(rig: Rig) -> BrokerSet:
    known = rig.done(register("x")).broker_set
    assert known is not None
    assert (known.epoch, known.master) == (1, 1)
    return known


def test_its_master_has_a_lease_though_replicas_of_the_former_knew_a_later_epoch() -> None:
    """The case of lost controllers: the old table is behind the brokers, and the operator removes the set."""
    rig = led(Rig("n0"))
    later = Heartbeat("s", 2, 1, 1, 100, identity="b", knows=(2, 7))
    assert rig.done(later).is_behind
    assert not rig.done(Heartbeat("s", 1, 1, 1, 90, identity="a", knows=(1, 2))).is_leased
    removed(rig)
    begun_again(rig)
    beat = Heartbeat("s", 1, 1, 1, 100, identity="x", knows=(1, 1))
    assert rig.done(beat).is_leased
    assert rig.done(AlterInSync("s", 1, 1, (1,))).refusal == ""
    assert rig.done(evolve(register("y"), is_founder=False)).number == 2


def test_its_replicas_are_not_compared_with_what_the_former_confirmed() -> None:
    rig = led(Rig("n0"))
    rig.done(Heartbeat("s", 1, 1, 1, 5_000, identity="a", knows=(1, 2), confirmed=(1, 5_000)))
    rig.run(3.0)  # the journal has the point, too
    removed(rig)
    begun_again(rig)
    again = evolve(register("x"), replica=Replica("x", 2, "x:1", "x:2"))
    assert not rig.done(again).refusal
    rig.run(0.1)
    beat = Heartbeat("s", 1, 2, 1, 10, identity="x", knows=(0, 0), acted=0)
    for _ in range(40):
        rig.done(beat)
        rig.run(0.5)
    known = rig.sets.sets["s"]
    assert (known.epoch, known.master, known.confirmed) == (2, 1, (0, 0))


def test_a_leader_keeps_nothing_of_sets_that_are_gone() -> None:
    rig = led(Rig("n0"))
    rig.done(Heartbeat("s", 1, 1, 1, 5_000, identity="a", confirmed=(1, 5_000)))
    removed(rig)
    rig.run(0.2)
    elections = rig.controller.elections
    for owner in (elections, elections.evidence):
        tables = {name: one for name, one in vars(owner).items() if isinstance(one, dict | set)}
        assert not any(tables.values()), {name: one for name, one in tables.items() if one}
