"""Reports of heartbeats against an election by the controllers' table alone."""

from __future__ import annotations

import pytest
from attrs import evolve

from rmq.controller.elections import Elections
from rmq.controller.heartbeat import UNKNOWN
from rmq.controller.sets import (
    Adopt,
    AlterInSync,
    BrokerSet,
    BrokerSets,
    Confirmed,
    Elect,
    Register,
)
from tests.unit.controller.tables import do, heartbeat, register, replica, three


def test_a_replica_in_sync_that_lacks_what_was_confirmed_is_not_elected_until_it_has_it() -> None:
    """The replica's folder is an old copy, which may lack messages that it acknowledged."""
    sets, known = three()
    elections = Elections(3.0)
    elections.begin(0.0)

    def lost(number: int, epoch: int, reach: int) -> bool:
        elections.hear(evolve(heartbeat(number, epoch, reach), acted=0), sets.sets["s"], 1.0)
        return elections.evidence.has_lost("s", number)

    elections.hear(evolve(heartbeat(1, reach=90), confirmed=(1, 70)), known, 1.0)
    assert not lost(2, 1, 70)
    assert lost(2, 1, 69)
    assert lost(2, 1, UNKNOWN)  # its log is not open yet
    assert lost(2, 1, 69)
    assert not lost(2, 1, 70)
    assert lost(3, 1, 5)
    assert not lost(2, 1, 75)
    elections.hear(heartbeat(1, reach=90), known, 1.0)  # its lease ends at 4
    elections.hear(evolve(heartbeat(2, reach=69), acted=1), known, 9.0)  # its master had its report before
    (elect,) = elections.due(sets.sets, 9.0)
    assert (elect.master, elect.in_sync) == (2, (2,))
    do(sets, Elect("s", known.epoch, known.version, 1, (1, 2, 3)))
    elections.hear(evolve(heartbeat(1, epoch=2, reach=90), confirmed=(2, 80)), sets.sets["s"], 10.0)
    assert lost(2, 1, 90)  # it did not follow the epoch in which that was confirmed
    do(sets, AlterInSync("s", 2, known.version + 1, (1, 3)))
    assert not lost(2, 1, 3)  # who is not in sync need not have anything


def test_what_was_confirmed_is_known_to_the_next_leader_and_gone_after_an_unclean_election() -> None:
    sets, known = three()
    elections = Elections(3.0)
    elections.begin(0.0)
    elections.hear(evolve(heartbeat(1, reach=90), confirmed=(1, 70)), known, 1.0)
    assert elections.evidence.unsaved(sets.sets, 1.5) == []
    assert elections.evidence.unsaved(sets.sets, 10.0) == [{"s": (1, 70)}]
    do(sets, Confirmed({"s": (1, 70), "t": (1, 1)}))
    assert elections.evidence.unsaved(sets.sets, 20.0) == []
    assert sets.sets["s"].version == known.version  # a change of who is in sync that is on its way holds

    restored = BrokerSets()
    restored.restore(sets.snapshot())
    after = Elections(3.0, is_unclean=True)
    after.begin(100.0, inherited=restored.sets)
    for number in (2, 3):
        after.hear(heartbeat(number, reach=60 + number), restored.sets["s"], 110.0)
    assert after.evidence.has_lost("s", 2)
    (elect,) = after.due(restored.sets, 110.0)
    assert (elect.master, elect.is_unclean) == (3, True)
    do(restored, elect)
    after.hear(heartbeat(3, epoch=2, reach=63), restored.sets["s"], 111.0)
    assert not after.evidence.has_lost("s", 3)
    do(restored, Confirmed({"s": (1, 70)}))  # a late word of the epoch before
    assert restored.sets["s"].confirmed == (0, 0)


def test_a_replica_that_has_lost_messages_is_complained_of_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, known = three()
    elections = Elections(3.0)
    elections.begin(0.0)
    elections.hear(evolve(heartbeat(1, reach=90), confirmed=(1, 70)), known, 1.0)
    for number in range(400):
        elections.hear(evolve(heartbeat(2, reach=7), acted=0), known, 1.0 + 0.3 * number)
    assert len([one for one in caplog.records if one.levelname == "ERROR"]) == 2
    elections.hear(heartbeat(2, reach=70), known, 122.0)
    elections.hear(evolve(heartbeat(2, reach=7), acted=0), known, 123.0)
    assert len([one for one in caplog.records if one.levelname == "ERROR"]) == 3


def test_after_a_restart_of_all_those_in_sync_are_waited_for_and_the_longest_log_taken() -> None:
    """The folder of one may be an old copy, and nobody was seen to follow in its present life."""
    sets, known = three()
    for heard_at, elected in ((12.0, 3), (None, 2)):
        elections = Elections(3.0, gather_s=10.0)
        elections.begin(0.0, inherited=sets.sets)
        found = []
        now = 0.0
        while not found:
            now += 0.5
            elections.hear(evolve(heartbeat(1, reach=600), acted=0), without_master(known), now)
            elections.hear(evolve(heartbeat(2, reach=700), acted=0), without_master(known), now)
            if heard_at is not None and now >= heard_at:
                elections.hear(evolve(heartbeat(3, reach=900), acted=0), without_master(known), now)
            found = elections.due({"s": without_master(known)}, now)
        assert found[0].master == elected
        assert now == (13.0 if heard_at is None else heard_at)


def test_after_a_restart_of_all_one_that_had_the_longest_log_and_is_silent_again_is_waited_for() -> None:
    _, known = three()
    table = {"s": without_master(known)}
    elections = Elections(3.0, gather_s=10.0)
    elections.begin(0.0, inherited=table)
    elections.hear(evolve(heartbeat(1, reach=900), acted=0), table["s"], 1.0)
    found, now = [], 4.0
    while not found:
        for number in (2, 3):
            elections.hear(evolve(heartbeat(number, reach=600), acted=0), table["s"], now)
        found = elections.due(table, now)
        now += 0.5
    assert (found[0].master, now) == (2, 14.5)


def test_one_that_was_seen_to_follow_is_elected_without_those_that_are_silent() -> None:
    sets, known = three()
    for acted, heard in ((1, True), (0, False)):
        elections = Elections(3.0)
        elections.begin(0.0, inherited=sets.sets)
        elections.hear(evolve(heartbeat(2, reach=7), acted=acted), without_master(known), 4.0)
        assert bool(elections.due({"s": without_master(known)}, 4.0)) is heard


def in_doubt(
    table: dict[str, BrokerSet], *beats: tuple[int, int] | None
) -> list[tuple[int, tuple[int, ...]]]:
    """Masters that are elected by a table in doubt, and those in sync with them. `beats` are epochs and
    reaches of replicas 1, 2, 3, None of a silent one."""
    elections = Elections(3.0)
    elections.begin(0.0, inherited=table)
    elections.evidence.is_doubtful = True
    for number, place in enumerate(beats, 1):
        if place is not None:
            elections.hear(evolve(heartbeat(number, *place), acted=1), table["s"], 99.0)
    return [(one.master, one.in_sync) for one in elections.due(table, 99.0)]


def test_by_a_table_in_doubt_nobody_is_elected_before_all_replicas_were_heard() -> None:
    """The table may lack that another replica was in sync, or was not in sync any more: the master of the
    epoch was in sync in any case."""
    sets, known = three()
    do(sets, AlterInSync("s", 1, known.version, (1, 3)))
    table = {"s": without_master(sets.sets["s"])}
    assert in_doubt(table, (1, 9), (1, 5), (1, 5)) == [(1, (1,))]  # 3 may not have been in sync any more
    assert in_doubt(table, (1, 5), (1, 5), (1, 9)) == [(3, (3,))]
    assert in_doubt(table, (1, 5), (1, 5), (1, 5)) == [(1, (1, 3))]
    assert in_doubt(table, (1, 9), None, (1, 9)) == []
    assert in_doubt(table, None, (1, 9), (1, 9)) == []


def test_a_tail_that_only_a_replica_out_of_sync_has_was_not_acknowledged_by_the_master_of_the_epoch() -> None:
    """The master lost it with its power, before its disk had it."""
    sets, known = three()
    do(sets, AlterInSync("s", 1, known.version, (1,)))
    table = {"s": without_master(sets.sets["s"])}
    assert in_doubt(table, (1, 5), (1, 9), (1, 4)) == [(1, (1,))]


def test_by_a_table_in_doubt_the_master_of_the_epoch_counts_though_it_is_in_sync_no_more() -> None:
    """The master came back at another address, so that other in-sync replicas took its place; they may have
    been in sync no more. A table of an earlier version does not name this replica."""
    _, known = three()
    moved = evolve(known, master=0, in_sync=(2, 3))
    for table in (
        {"s": moved},
        {"s": evolve(moved, led=0)},
        {"s": evolve(known, master=0, in_sync=(2,), led=0)},
    ):
        assert in_doubt(table, (1, 9), (1, 5), (1, 4)) == []
        assert [master for master, _ in in_doubt(table, (1, 9), (1, 9), (1, 4))] == [2]


def test_by_a_table_in_doubt_a_master_whose_folder_lacks_its_epoch_is_not_elected() -> None:
    sets, known = three()
    do(sets, Elect("s", 1, known.version, 1, (1, 2, 3)))
    do(sets, AlterInSync("s", 2, known.version + 1, (1,)))
    table = {"s": without_master(sets.sets["s"])}
    assert in_doubt(table, (1, 9), (2, 5), (2, 4)) == []
    assert in_doubt(table, (2, 5), (2, 9), (2, 4)) == [(1, (1,))]


def test_of_replicas_that_have_all_just_started_the_wanted_one_is_waited_for_as_any_other() -> None:
    """The wanted replica's folder may be an old copy: an operator's wish is no reason to lose messages."""
    _, known = three()
    elections = Elections(3.0, gather_s=10.0)
    table = {"s": without_master(known)}
    elections.begin(0.0, inherited=table)
    for now in (4.0, 5.0):
        elections.hear(evolve(heartbeat(2, reach=600), acted=0), table["s"], now)
        elections.choose_successor(table["s"], 2)
        assert elections.due(table, now) == []
    for number in (1, 3):
        elections.hear(evolve(heartbeat(number, reach=900), acted=0), table["s"], 5.0)
    elections.choose_successor(table["s"], 2)
    assert [one.master for one in elections.due(table, 5.0)] == [1]


def test_a_table_in_doubt_is_as_any_other_once_its_living_master_knows_no_more() -> None:
    sets, known = three()
    elections = Elections(3.0)
    elections.begin(0.0, inherited=sets.sets)
    elections.evidence.is_doubtful = True
    elections.hear(evolve(heartbeat(1, reach=9), acted=1, knows=(1, known.version), identity="a"), known, 4.0)
    assert not elections.evidence.is_inherited("s")
    elections.hear(evolve(heartbeat(2, reach=9), acted=1), known, 7.1)
    assert [one.master for one in elections.due(sets.sets, 7.1)] == [2]


def test_nobody_is_elected_by_a_table_that_is_older_than_what_a_replica_was_told() -> None:
    sets, known = three()
    elections = Elections(3.0)
    elections.begin(0.0, inherited=sets.sets)
    elections.hear(heartbeat(3, reach=9), known, 4.0)
    later = evolve(known, version=known.version + 1, in_sync=(1, 3))
    told = evolve(heartbeat(2, reach=5), knows=(1, later.version), identity="b")
    assert elections.evidence.knows_more(told, known)
    assert not elections.evidence.knows_more(evolve(told, identity="x"), known)
    elections.hear(told, known, 4.0)
    assert elections.due(sets.sets, 4.0) == []
    assert not do(sets, Adopt(later)).refusal
    assert sets.sets["s"].in_sync == (1, 3)
    assert [one.master for one in elections.due(sets.sets, 4.0)] == [3]


def test_an_older_table_takes_what_its_master_was_told_and_gives_no_number_twice() -> None:
    sets, known = three()
    full = evolve(
        known,
        version=9,
        in_sync=(1, 4),
        next_number=6,
        replicas={**known.replicas, 4: replica("d", 3), 5: replica("e")},
    )
    do(sets, Register("c", "s", replica("x")), Register("c", "s", replica("e", 2)))
    assert sets.sets["s"].replicas[4].identity == "x"
    assert not do(sets, Adopt(full)).refusal
    found = sets.sets["s"]
    assert (found.version, found.in_sync, found.master) == (9, (1, 4), 1)
    assert [(number, one.identity) for number, one in found.replicas.items()] == [
        *((1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e"))
    ]
    assert found.replicas[5].incarnation == 2
    assert do(sets, Register("c", "s", replica("x"))).number == 6
    assert "is at epoch 1, version 9" in do(sets, Adopt(full)).refusal
    assert "another set" in do(sets, Adopt(evolve(full, version=11, began="z 1"))).refusal
    assert "must be replicas of the set" in do(sets, Adopt(evolve(full, version=11, in_sync=(7,)))).refusal


def test_a_longer_lease_that_only_replicas_know_is_waited_for() -> None:
    """The table may have gone back to the time of shorter leases, and the master be cut off."""
    sets, known = three()
    for told_s, elected_at in ((0.0, 3.0), (9.0, 9.0)):
        elections = Elections(3.0)
        elections.begin(0.0)
        refused = evolve(heartbeat(2, epoch=7, reach=9), lease_s=told_s)
        assert elections.refusal(refused, known)
        elections.take_lease_length(refused)
        for now in (0.1, elected_at - 0.1):
            assert not elections.hear(heartbeat(2, reach=9), known, now)
            assert elections.due(sets.sets, now) == []
        (elect,) = elections.due(sets.sets, elected_at)
        assert elect.master == 2
        elections.begin(elected_at, inherited=sets.sets)
        elections.hear(heartbeat(2, reach=9), known, elected_at + 2.9)
        assert elections.due(sets.sets, elected_at + 3.0), "this leader was told nothing"


def test_by_a_table_that_is_behind_nobody_has_a_lease_nor_comes_in_sync() -> None:
    """In the later version another may be the master."""
    sets, known = three()
    elections = Elections(3.0)
    elections.begin(0.0, inherited=sets.sets)
    elections.hear(evolve(heartbeat(2), knows=(2, 9), identity="b"), known, 4.0)
    assert not elections.hear(evolve(heartbeat(1), knows=(1, known.version), identity="a"), known, 4.0)


def test_a_later_epoch_is_believed_once_all_replicas_of_both_versions_were_heard() -> None:
    sets, known = three()
    elections = Elections(3.0)
    elections.begin(0.0, inherited=sets.sets)
    later = evolve(known, epoch=2, version=9, replicas={**known.replicas, 4: replica("d")})
    for number, knows in ((1, (1, 3)), (2, (2, 9)), (3, (2, 8))):
        told = evolve(heartbeat(number), knows=knows, identity="abc"[number - 1])
        elections.evidence.knows_more(told, known)
    assert not elections.evidence.all_heard(known, later)
    new = evolve(heartbeat(4), knows=(2, 9), identity="d")  # it came since the table
    assert not elections.evidence.knows_more(new, known)
    assert elections.evidence.all_heard(known, later)
    elections.evidence.knows_more(evolve(new, knows=(3, 1)), known)
    assert not elections.evidence.all_heard(known, later)


def test_a_replica_whose_last_start_an_older_table_lacks_registers_again() -> None:
    _, known = three()
    elections = Elections(3.0)
    elections.begin(0.0)
    assert elections.refusal(heartbeat(1, life=2), known).endswith(": register")


def test_a_master_alone_in_sync_whose_folder_is_of_an_earlier_epoch_is_not_elected() -> None:
    sets, known = three()
    do(
        sets,
        Elect("s", known.epoch, known.version, 1, (1, 2, 3)),
        AlterInSync("s", 2, known.version + 1, (1,)),
    )
    for epoch, is_lost in ((1, True), (2, False)):
        elections = Elections(3.0)
        elections.begin(0.0, inherited=sets.sets)
        elections.hear(
            evolve(heartbeat(1, epoch=epoch, reach=9), acted=0), without_master(sets.sets["s"]), 4.0
        )
        assert elections.evidence.has_lost("s", 1) is is_lost


def without_master(broker_set: BrokerSet) -> BrokerSet:
    """The state after a new start of the master."""
    return evolve(broker_set, master=0)


def test_a_replica_that_has_started_again_is_elected_by_what_its_new_life_says() -> None:
    """The replica's log may be another log: it lost its end, or an old copy was put back."""
    sets, known = three()
    elections = Elections(3.0)
    elections.begin(0.0)
    elections.hear(heartbeat(1, reach=90), known, 2.7)
    elections.hear(heartbeat(2, reach=90), known, 5.0)
    do(sets, register("b", 2))
    assert elections.due(sets.sets, 5.8) == []
    elections.hear(heartbeat(2, reach=UNKNOWN, life=2), sets.sets["s"], 5.8)
    assert elections.due(sets.sets, 5.8) == []
    elections.hear(heartbeat(2, reach=90, life=2), sets.sets["s"], 6.0)
    assert [elect.master for elect in elections.due(sets.sets, 6.0)] == [2]


def test_of_replicas_that_started_again_each_is_waited_for_until_its_new_life_has_spoken() -> None:
    sets, known = three()
    elections = Elections(3.0)
    elections.begin(0.0)
    for number in (1, 2, 3):
        elections.hear(evolve(heartbeat(number, reach=90), acted=1), known, 2.0)
    do(sets, register("a", 2), register("b", 2), register("c", 2))
    elections.hear(evolve(heartbeat(2, reach=70, life=2), acted=0), sets.sets["s"], 6.0)
    assert elections.due(sets.sets, 6.0) == []
    elections.hear(evolve(heartbeat(1, reach=90, life=2), acted=0), sets.sets["s"], 6.1)
    elections.hear(evolve(heartbeat(3, reach=80, life=2), acted=0), sets.sets["s"], 6.1)
    assert [elect.master for elect in elections.due(sets.sets, 6.1)] == [1]


def test_replicas_that_die_at_one_moment_elect_none_of_themselves() -> None:
    """The last heartbeat of the master came first, so its lease ends first: the replica that was elected then
    was in sync alone, and a set whose other replicas had everything waited for it for ever."""
    sets, known = three()
    elections = Elections(3.0)
    elections.begin(0.0)
    elections.hear(heartbeat(1, reach=90), known, 2.7)
    for number in (2, 3):
        elections.hear(heartbeat(number, reach=90), known, 3.0)
    for now in (5.7, 5.9, 6.1, 20.0):
        assert elections.due(sets.sets, now) == []
    elections.hear(heartbeat(3, reach=90), known, 20.0)
    assert [elect.master for elect in elections.due(sets.sets, 20.0)] == [3]
