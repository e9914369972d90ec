"""The table of broker sets, and elections: what no sequence of commands and of clocks may break."""

from __future__ import annotations

import msgspec
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.controller.consensus.machine import UnknownCommand
from rmq.controller.elections import Elections
from rmq.controller.heartbeat import Heartbeat
from rmq.controller.sets import (
    NOBODY,
    REPLICAS_MAX,
    AlterInSync,
    BrokerSet,
    BrokerSets,
    Command,
    Elect,
    Lease,
    Register,
    Remove,
    Replica,
    encode,
)
from tests.unit.controller.tables import do, heartbeat, register, replica, three


def test_the_first_replica_founds_the_set_unless_it_is_a_slave() -> None:
    sets = BrokerSets()
    assert "no master yet" in do(sets, register("b", is_founder=False)).refusal
    assert do(sets, register("a")).number == 1
    assert do(sets, register("b", is_founder=False)).number == 2
    known = sets.sets["s"]
    assert (known.epoch, known.master, known.in_sync) == (1, 1, (1,))


def test_only_the_master_of_the_epoch_changes_who_is_in_sync_one_change_after_the_other() -> None:
    sets, known = three()
    for wrong in (
        AlterInSync("s", known.epoch - 1, known.version, (1,)),
        AlterInSync("s", known.epoch, known.version - 1, (1,)),
        AlterInSync("s", known.epoch, known.version, (2, 3)),
        AlterInSync("s", known.epoch, known.version, (1, 9)),
        AlterInSync("other", known.epoch, known.version, (1,)),
    ):
        assert do(sets, wrong).refusal
    assert sets.sets["s"] == known
    assert not do(sets, AlterInSync("s", known.epoch, known.version, (3, 1))).refusal
    assert sets.sets["s"].in_sync == (1, 3)


def test_a_master_comes_from_those_in_sync_unless_it_is_said_otherwise() -> None:
    sets, known = three()
    do(sets, AlterInSync("s", known.epoch, known.version, (1, 2)))
    known = sets.sets["s"]
    assert do(sets, Elect("s", known.epoch, known.version, 9, (1,))).refusal == "s has no replica 9"
    assert "not in sync" in do(sets, Elect("s", known.epoch, known.version, 3, (3,))).refusal
    assert not do(sets, Elect("s", known.epoch, known.version, 2, (2, 3))).refusal
    after = sets.sets["s"]
    assert (after.epoch, after.master, after.in_sync) == (known.epoch + 1, 2, (2,))  # 3 did not come in by it
    assert do(sets, Elect("s", known.epoch, known.version, 1, (1,))).refusal  # of an earlier epoch
    do(sets, Elect("s", after.epoch, after.version, 3, (2, 3), is_unclean=True))
    assert sets.sets["s"].in_sync == (3,)


def test_who_comes_from_another_address_is_not_in_sync_for_its_folder_may_be_a_copy() -> None:
    def copied(name: str, incarnation: int) -> Register:
        return Register("c", "s", Replica(name, incarnation, "copy:10911", "copy:10912"))

    sets, known = three()
    assert "older copy" in do(sets, copied("b", 1)).refusal  # no life has two addresses
    assert do(sets, copied("b", 2)).number == 2
    assert (sets.sets["s"].in_sync, sets.sets["s"].master) == ((1, 3), 1)
    assert sets.sets["s"].version == known.version + 1
    assert do(sets, copied("a", 2)).number == 1  # the master
    assert (sets.sets["s"].in_sync, sets.sets["s"].master) == ((3,), NOBODY)
    assert do(sets, copied("c", 2)).number == 3  # nobody else has all
    assert sets.sets["s"].in_sync == (3,)


def test_a_master_that_was_started_again_leads_no_more() -> None:
    sets, known = three()
    assert do(sets, register("a", 1)).broker_set == known
    do(sets, register("a", 2))
    assert sets.sets["s"].master == NOBODY
    assert sets.sets["s"].in_sync == (1, 2, 3)
    assert do(sets, AlterInSync("s", known.epoch, known.version, (1,))).refusal
    assert not do(sets, Elect("s", known.epoch, known.version, 1, (1, 2, 3))).refusal
    assert (sets.sets["s"].epoch, sets.sets["s"].master) == (2, 1)
    assert "started more often" in do(sets, register("a", 1)).refusal  # of the earlier life, late
    assert sets.sets["s"].replicas[1].incarnation == 2


def test_replicas_go_but_not_the_master_and_their_numbers_never_come_again() -> None:
    sets, _ = three()
    assert "is the master" in do(sets, Remove("s", 1)).refusal
    assert do(sets, Remove("s", 9)).refusal == "s has no replica 9"
    do(sets, Remove("s", 2))
    assert sets.sets["s"].in_sync == (1, 3)
    assert do(sets, register("b")).number == 4
    do(sets, Remove("s", 3), Remove("s", 4), Remove("s", 1))
    assert sets.sets == {}
    do(sets, Register("c", "s", replica("a"), is_founder=True, epoch=7))
    assert sets.sets["s"].epoch == 8


def test_the_only_replica_in_sync_is_not_removed_though_it_leads_no_more() -> None:
    sets, known = three()
    do(sets, AlterInSync("s", known.epoch, known.version, (1,)), register("a", 2))
    assert sets.sets["s"].master == NOBODY
    assert "is the only one in sync" in do(sets, Remove("s", 1)).refusal
    assert sets.sets["s"].in_sync == (1,)


def test_tables_are_bounded_and_what_cannot_be_read_changes_nothing() -> None:
    sets, _ = three()
    for number in range(20):
        do(sets, register(f"more{number}"))
    assert len(sets.sets["s"].replicas) == REPLICAS_MAX
    assert do(sets, Register("c", "s", replica("x" * 300))).refusal
    assert do(sets, Register("other", "s", replica("y"))).refusal


def test_a_command_or_a_snapshot_of_a_later_version_is_not_refused_but_unknown() -> None:
    """A refusal would be an outcome, and members of the later version have another one."""
    sets, _ = three()
    before = sets.snapshot()
    name, fields = msgspec.msgpack.decode(encode(Remove("s", 2)))
    commands = {
        b"": "cannot be read",
        b"\xc1" * 9: "cannot be read",
        msgspec.msgpack.encode(["Split", {}]): "knows no command Split",
        msgspec.msgpack.encode([name, fields, 2]): "command Remove has version 2",
        msgspec.msgpack.encode([name, {"name": "s", "number": "two"}]): "cannot be read",
    }
    for data, why in commands.items():
        with pytest.raises(UnknownCommand, match=why):
            sets.apply(data)
    for data in (msgspec.msgpack.encode([3000, {}, "more"]), msgspec.msgpack.encode({"s": 1}), b"\xc1"):
        with pytest.raises(UnknownCommand, match="table of broker sets cannot be read"):
            sets.restore(data)
    assert sets.snapshot() == before
    assert not sets.apply(msgspec.msgpack.encode([name, fields, 1])).refusal


NUMBERS = st.integers(0, 4)
SOME = st.lists(NUMBERS, max_size=4).map(tuple)
COMMANDS = st.one_of(
    st.builds(register, st.sampled_from("abcd"), st.integers(1, 3), is_founder=st.booleans()),
    st.builds(AlterInSync, st.just("s"), st.integers(0, 3), st.integers(0, 6), SOME),
    st.builds(Elect, st.just("s"), st.integers(0, 3), st.integers(0, 6), NUMBERS, SOME, st.booleans()),
    st.builds(Remove, st.just("s"), NUMBERS),
    st.builds(Lease, st.integers(1, 60_000)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(COMMANDS, max_size=40))
def test_no_commands_break_the_rules(commands: list[Command]) -> None:
    sets, masters = BrokerSets(), dict[int, int]()
    for command in commands:
        before = sets.sets.get("s")
        do(sets, command)
        after = sets.sets.get("s")
        if after is None:
            masters = {}
            continue
        assert after.master in (NOBODY, *after.in_sync)
        assert set(after.in_sync) <= set(after.replicas)
        if after.master:
            assert masters.setdefault(after.epoch, after.master) == after.master
        if before is not None and after != before:
            assert (after.epoch, after.version) >= (before.epoch, before.version)
            is_unclean = isinstance(command, Elect) and command.is_unclean
            new = set(after.in_sync) - set(before.in_sync)
            assert not new or is_unclean or (isinstance(command, AlterInSync) and before.master)
    again = BrokerSets()
    again.restore(sets.snapshot())
    assert (again.sets, again.lease_ms) == (sets.sets, sets.lease_ms)


def test_a_snapshot_is_what_earlier_versions_read_until_there_is_another_lease() -> None:
    sets, known = three()
    before = sets.snapshot()
    assert msgspec.msgpack.decode(before, type=dict[str, BrokerSet]) == {"s": known}
    assert not do(sets, Lease(9_000)).refusal
    assert sets.sets["s"] == known
    after = sets.snapshot()
    for snapshot, lease_ms, names in ((after, 9_000, ["s"]), (before, 3_000, ["s"]), (b"", 3_000, [])):
        sets.restore(snapshot)
        assert (sets.lease_ms, list(sets.sets)) == (lease_ms, names)


def test_nobody_is_elected_while_a_lease_may_last() -> None:
    sets, known = three()
    elections = Elections(3.0)
    elections.begin(100.0)
    for number in (2, 3):
        elections.hear(heartbeat(number), known, 102.5)
    assert elections.due(sets.sets, 102.9) == []  # an earlier leader may have granted one at 100
    assert elections.hear(heartbeat(1), known, 102.9)
    assert elections.deadline(sets.sets, 103.0) == pytest.approx(105.9)
    for number in (2, 3):
        elections.hear(heartbeat(number, reach=number), known, 105.0)
    assert elections.due(sets.sets, 105.8) == []
    (elect,) = elections.due(sets.sets, 105.9)
    assert (elect.master, elect.in_sync) == (3, (2, 3))
    do(sets, elect)
    assert not elections.hear(heartbeat(1), sets.sets["s"], 106.0)  # the old one has no lease any more
    assert elections.hear(heartbeat(3, epoch=2), sets.sets["s"], 106.0)


def test_from_an_election_on_the_old_master_gets_no_lease_though_it_is_not_agreed_on_yet() -> None:
    sets, known = three()
    elections = Elections(3.0)
    elections.begin(0.0)
    assert elections.hear(heartbeat(1), known, 10.0)
    elections.hear(heartbeat(2), known, 12.0)
    (elect,) = elections.due(sets.sets, 13.0)
    assert not elections.hear(heartbeat(1), known, 13.1)  # it is back, just too late
    elections.begin(13.5, is_new_term=False)
    assert not elections.hear(heartbeat(1), known, 13.6)  # of this term, it may still be agreed on
    do(sets, elect)
    assert elections.hear(heartbeat(2, epoch=2), sets.sets["s"], 14.0)
    elections.begin(20.0)  # in a new term it is agreed on, or gone: then the old master goes on
    assert elections.hear(heartbeat(1), known, 20.1)


def test_who_is_not_in_sync_is_elected_only_where_that_is_allowed() -> None:
    sets, known = three()
    do(sets, AlterInSync("s", known.epoch, known.version, (1,)))
    for is_unclean, elected in ((False, []), (True, [2])):
        elections = Elections(3.0, is_unclean=is_unclean)
        elections.begin(0.0)
        elections.hear(heartbeat(2, reach=7), sets.sets["s"], 9.0)
        elections.hear(heartbeat(3, reach=5), sets.sets["s"], 9.0)
        found = elections.due(sets.sets, 9.0)
        assert [(one.master, one.is_unclean) for one in found] == [(one, True) for one in elected]


def test_a_wanted_master_follows_when_the_last_lease_is_over() -> None:
    sets, known = three()
    elections = Elections(3.0)
    elections.begin(0.0)
    assert elections.hear(heartbeat(1), known, 10.0)
    elections.choose_successor(known, 2)
    for now in (11.0, 12.0):
        assert not elections.hear(heartbeat(1), known, now)
        elections.hear(heartbeat(2), known, now)
    assert elections.due(sets.sets, 12.9) == []
    (elect,) = elections.due(sets.sets, 13.0)
    assert (elect.master, elect.in_sync) == (2, (1, 2))


def test_a_replica_that_was_started_again_is_not_elected_for_what_it_reported_before() -> None:
    """Its registration waits for the log; a power cut may have taken a part of its messages."""
    for is_new_term in (False, True):
        sets, known = three()
        elections = Elections(3.0)
        elections.begin(0.0)
        elections.hear(heartbeat(2), known, 2.5)
        elections.take_start(known, evolve(known.replicas[2], incarnation=2))
        assert elections.due(sets.sets, 3.0) == []
        elections.begin(3.0, is_new_term=is_new_term)  # a new term's table has it, or it is lost
        elections.hear(heartbeat(2), known, 5.5)
        assert [one.master for one in elections.due(sets.sets, 6.0)] == [2] * is_new_term


def test_a_wanted_master_that_does_not_live_is_given_up() -> None:
    sets, known = three()
    elections = Elections(3.0)
    elections.begin(0.0)
    elections.hear(heartbeat(1), known, 10.0)
    elections.choose_successor(known, 2)
    elections.hear(heartbeat(1), known, 12.0)
    assert elections.due(sets.sets, 13.0) == []
    assert elections.hear(heartbeat(1), known, 13.1)


def test_a_wish_for_a_master_is_for_the_epoch_that_it_was_made_in() -> None:
    sets, known = three()
    elections = Elections(3.0)
    assert not elections.is_handing_over(known)
    elections.choose_successor(known, 1)
    assert not elections.is_handing_over(known)  # it is the master
    elections.choose_successor(known, 2)
    assert elections.is_handing_over(known)
    do(sets, Elect("s", known.epoch, known.version, 3, (1, 2, 3)))
    assert not elections.is_handing_over(sets.sets["s"])


def test_a_master_that_resigned_is_followed_at_once_by_another_if_one_lives() -> None:
    sets, known = three()
    for others, elected in (((2, 3), (3, (2, 3))), ((), (1, (1,)))):
        elections = Elections(3.0)
        elections.begin(0.0)
        assert elections.hear(heartbeat(1, reach=9), known, 10.0)
        for number in others:
            elections.hear(heartbeat(number, reach=number), known, 10.1)
        assert elections.due(sets.sets, 10.1) == []
        assert not elections.hear(Heartbeat("s", 1, 1, 1, 9, resigned=True), known, 10.2)
        (elect,) = elections.due(sets.sets, 10.2)
        assert (elect.master, elect.in_sync) == elected


def test_an_earlier_life_of_a_replica_says_nothing() -> None:
    _, known = three()
    elections = Elections(3.0)
    elections.begin(0.0)
    assert "was started again" in elections.refusal(heartbeat(1, life=0), known)
    assert not elections.refusal(heartbeat(1), known)
    assert not elections.hear(heartbeat(1, life=0), known, 1.0)
    assert not elections.lives("s", 1, 1.0)


def test_a_replica_that_knows_more_than_the_table_may_not_follow_by_it() -> None:
    """The controllers lost their table, or have an old one: the replica would cut what it has more."""
    sets, known = three()
    do(sets, Elect("s", known.epoch, known.version, 2, (2, 3)))
    later = Register("c", "s", replica("b", 2), is_founder=False, epoch=2, began=sets.sets["s"].began)
    assert not do(sets, later).refusal

    anew = BrokerSets()
    begins = Register("c", "s", replica("a", 2), is_founder=True, epoch=1, began=known.began)
    assert "do not know" in do(anew, begins).refusal  # b has more, or leads by the word of other controllers
    do(anew, Register("c", "s", replica("a", 2), is_founder=True, epoch=1))
    assert anew.sets["s"].epoch == 2  # another second epoch than that of b
    assert "of another set" in do(anew, later).refusal
    assert "knows epoch 3" in do(anew, Register("c", "s", replica("b", 2), is_founder=False, epoch=3)).refusal
    assert anew.sets["s"].replicas.keys() == {1}


def test_two_brokers_of_one_life_are_not_one_replica() -> None:
    sets, known = three()
    copy = Replica("b", 1, "d:10911", "d:10912")
    assert "older copy" in do(sets, Register("c", "s", copy, is_founder=False)).refusal
    assert sets.sets["s"] == known


def test_a_replica_of_a_later_epoch_is_neither_elected_nor_told_of_the_table() -> None:
    sets, known = three()
    elections = Elections(3.0)
    elections.begin(0.0)
    for number in (1, 2, 3):
        assert elections.refusal(heartbeat(number, epoch=2), known)
        assert not elections.hear(heartbeat(number, epoch=2), known, 10.0)
    assert elections.due(sets.sets, 20.0) == []


def test_a_heartbeat_of_another_broker_by_that_number_says_nothing() -> None:
    _, known = three()
    elections = Elections(3.0)
    elections.begin(0.0)
    other = Heartbeat("s", 1, 1, 1, identity="x")
    assert "register" in elections.refusal(other, known)
    assert not elections.hear(other, known, 1.0)
    assert elections.refusal(Heartbeat("s", 9, 1, 1, identity="x"), known) == ""  # one that was removed
    assert elections.hear(Heartbeat("s", 1, 1, 1, identity="a"), known, 1.0)
