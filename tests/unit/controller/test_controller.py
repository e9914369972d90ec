"""One controller as a whole: who answers, when, and how elections come about."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from attrs import evolve

from rmq.controller.consensus.journal import COMMAND, Entry
from rmq.controller.consensus.raft import Message, NotLeader
from rmq.controller.controller import (
    AddMember,
    Answer,
    ElectRequest,
    RemoveMember,
    refused_address,
)
from rmq.controller.heartbeat import UNKNOWN, Heartbeat
from rmq.controller.requests import ControllerRequests
from rmq.controller.sets import Adopt, AlterInSync, Register, Remove, Replica, encode
from tests.unit.controller.rig import Rig, led, register


def beat(rig: Rig, number: int) -> Answer:
    """A replica of a set of two says that it follows its epoch, with an empty log."""
    return rig.done(Heartbeat("s", number, 1, rig.sets.sets["s"].epoch))


def serving(rig: Rig) -> ControllerRequests:
    """Answers for its controller."""
    requests = ControllerRequests(lambda: rig.now)
    requests.start(rig.controller)
    return requests


def silent_for(rig: Rig) -> float:
    """The time until the set has another master after the present master falls silent."""
    known = rig.sets.sets["s"]
    (other,) = set(known.in_sync) - {known.master}
    began = rig.now
    while rig.sets.sets["s"].epoch == known.epoch:
        beat(rig, other)
        rig.run(0.1)
    assert rig.sets.sets["s"].master == other
    return rig.now - began


def test_a_shorter_lease_holds_when_no_longer_one_lasts_any_more() -> None:
    """The controller before may have granted the longer one at the moment of its end."""
    rig = led(Rig("n0"))
    assert beat(rig, 1).lease_s == 3.0
    rig.start(1.0)
    began = rig.now
    while not rig.controller.raft.is_leading(rig.now):
        rig.run(0.1)
    answer = beat(rig, 1)
    assert (answer.is_leased, answer.lease_s) == (True, 1.0)
    assert rig.now - began < 2.5
    assert silent_for(rig) >= 2.9
    rig.run(0.2)
    assert rig.sets.lease_ms == 1_000
    assert beat(rig, 2).lease_s == 1.0
    known = rig.sets.sets["s"]
    rig.done(AlterInSync("s", known.epoch, known.version, (1, 2)))
    assert silent_for(rig) == pytest.approx(1.0, abs=0.3)


def test_a_longer_lease_is_granted_when_it_is_agreed_on_and_outlives_the_setting() -> None:
    rig = led(Rig("n0"))
    rig.start(9.0)
    rig.run(3.0)
    assert rig.sets.lease_ms == 9_000
    assert beat(rig, 1).lease_s == 9.0
    rig.start(3.0)
    while not rig.controller.raft.is_leading(rig.now):
        rig.run(0.1)
    assert beat(rig, 1).lease_s == 3.0
    assert silent_for(rig) >= 8.9
    rig.run(0.2)
    assert rig.sets.lease_ms == 3_000


def test_only_who_leads_answers() -> None:
    rig = Rig("n0", "n1", "n2")
    rig.run(5.0)
    assert isinstance(rig.ask(register("a")), NotLeader)
    assert isinstance(rig.ask(Heartbeat("s", 1, 1)), NotLeader)


def test_a_set_comes_about_loses_its_master_and_gets_another() -> None:
    rig = Rig("n0")
    rig.run(3.0)
    assert rig.done(Heartbeat("s", 1, 1)).refusal
    assert [rig.done(register(name)).number for name in "abc"] == [1, 2, 3]
    known = rig.sets.sets["s"]
    assert not rig.done(AlterInSync("s", known.epoch, known.version, (1, 2, 3))).refusal
    for _ in range(40):
        rig.run(0.5)
        answers = [rig.done(Heartbeat("s", number, 1, 1, 10 * number)) for number in (1, 2, 3)]
        assert [answer.is_leased for answer in answers] == [True, False, False]
    for _ in range(5):  # the master is silent, for less than its lease
        rig.run(0.5)
        assert not any(rig.done(Heartbeat("s", number, 1, 1, 10 * number)).is_leased for number in (2, 3))
    assert rig.sets.sets["s"].epoch == 1
    rig.run(0.7)
    known = rig.sets.sets["s"]
    assert (known.epoch, known.master, known.in_sync) == (2, 3, (2, 3))
    assert not rig.done(Heartbeat("s", 1, 1, 1)).is_leased
    assert rig.done(Heartbeat("s", 3, 1, 2)).is_leased
    assert (rig.controller.elected, rig.controller.elected_uncleanly) == (1, 0)
    assert "lives at a:1: stop it first" in rig.done(Remove("s", 1)).refusal
    rig.run(3.1)
    assert not rig.done(Remove("s", 1)).refusal
    assert "was removed: register" in rig.done(Heartbeat("s", 1, 1, 1)).refusal


def test_a_new_leader_removes_no_replica_that_may_have_a_lease_of_the_leader_before() -> None:
    rig = led(Rig("n0"))
    assert rig.done(Heartbeat("s", 1, 1, 1, 10)).is_leased
    rig.start(3.0)
    while isinstance(rig.ask(ElectRequest("s", 9)), NotLeader):
        rig.run(0.1)
    began = rig.now
    for number in (1, 2):
        refusal = rig.done(Remove("s", number)).refusal
        assert "has led for too short a time to know; try again in" in refusal
    assert sorted(rig.sets.sets["s"].replicas) == [1, 2]
    rig.run(began + 3.2 - rig.now)
    assert not rig.done(Remove("s", 2)).refusal


def test_an_identity_is_one_brokers_as_long_as_it_lives() -> None:
    rig = Rig("n0")
    rig.run(3.0)
    rig.done(register("a"))
    rig.done(Heartbeat("s", 1, 1))
    copy = Register("c", "s", Replica("a", 2, "copy:1", "copy:2"))
    assert "lives at a:1: if this store's folder is a copy" in rig.done(copy).refusal
    again = Register("c", "s", Replica("a", 2, "a:1", "a:2"))
    assert rig.done(again).number == 1
    rig.run(3.1)  # a folder that was moved
    assert rig.done(evolve(copy, replica=Replica("a", 3, "copy:1", "copy:2"))).number == 1
    older = rig.done(evolve(copy, replica=Replica("a", 2, "old:1", "old:2"))).refusal
    assert "was started more often, last at copy:1" in older


def test_who_has_stopped_is_told_to_the_master_until_it_starts_again() -> None:
    rig = Rig("n0")
    rig.run(3.0)
    for name in "ab":
        rig.done(register(name))
    rig.done(Heartbeat("s", 2, 1, leaving=True))
    assert rig.done(Heartbeat("s", 1, 1, 1)).leaving == (2,)
    rig.done(Register("c", "s", Replica("b", 2, "b:1", "b:2")))
    assert rig.done(Heartbeat("s", 1, 1, 1)).leaving == ()


def test_a_set_whose_master_died_and_nobody_can_follow_counts_as_one_without_a_master() -> None:
    rig = Rig("n0")
    rig.run(3.0)
    requests = serving(rig)

    def without() -> object:
        return {one.name: one.rows[0][1] for one in requests.metrics()}["controller_sets_without_master"]

    for name in "ab":
        rig.done(register(name))
    rig.done(Heartbeat("s", 1, 1, 1))
    assert without() == 0
    for _ in range(20):  # the slave is not in sync
        rig.run(0.2)
        rig.done(Heartbeat("s", 2, 1, 1))
    assert without() == 1
    rig.done(Heartbeat("s", 1, 1, 1))
    assert without() == 0


def test_a_controller_that_stops_tells_who_waits() -> None:
    rig = Rig("n0")
    answers = waits_for_another(rig)
    serving(rig).stop()
    (answer,) = answers
    assert isinstance(answer, NotLeader)


def test_metrics_say_who_leads_and_what_it_elected() -> None:
    rig = led(Rig("n0"))
    requests = ControllerRequests(lambda: rig.now)

    def told() -> tuple[object, object]:
        found = {one.name: one.rows for one in requests.metrics()}
        return found["controller_leading"][0][1], dict(found["controller_elections"])

    none = {("clean",): 0, ("unclean",): 0}
    assert told() == (0, none)
    requests.start(rig.controller)
    assert told() == (1, none)
    beat(rig, 1)
    silent_for(rig)
    rig.run(0.1)
    assert told() == (1, {("clean",): 1, ("unclean",): 0})
    rig = Rig("n0", "n1", "n2")
    requests.start(rig.controller)
    assert told() == (0, none)


def test_the_status_says_what_the_leader_heard() -> None:
    rig = led(Rig("n0"))
    rig.done(Heartbeat("s", 1, 1, 1, reach=7))
    status = serving(rig).status()
    assert (status["leading"], status["leaseMs"], status["members"]) == (True, 3000, {"n0": "n0"})
    heard = [(one["lives"], one["reach"]) for one in status["sets"][0]["replicas"]]
    assert heard == [(True, 7), (None, None)]  # it leads for too short a time to know
    rig.run(4.0)
    heard = [one["lives"] for one in serving(rig).status()["sets"][0]["replicas"]]
    assert heard == [False, False]


def test_a_planned_change_waits_for_the_last_lease_and_only_takes_who_is_in_sync() -> None:
    rig = Rig("n0")
    rig.run(6.0)
    for name in "ab":
        rig.done(register(name))
    for number in (1, 2):
        rig.done(Heartbeat("s", number, 1, 1))
    assert "in sync" in rig.done(ElectRequest("s", 2)).refusal
    known = rig.sets.sets["s"]
    rig.done(AlterInSync("s", known.epoch, known.version, (1, 2)))
    answer = rig.done(Heartbeat("s", 1, 1, 1))
    assert (answer.is_leased, answer.hands_over) == (True, False)
    assert not rig.done(ElectRequest("s", 2)).refusal
    asked = rig.now
    while rig.sets.sets["s"].master == 1:
        answer = rig.done(Heartbeat("s", 1, 1, 1))
        assert (answer.is_leased, answer.hands_over) == (False, True)
        assert not rig.done(Heartbeat("s", 2, 1, 1)).hands_over
        rig.run(0.2)
        assert rig.now - asked < 4.0
    assert rig.now - asked >= 3.0
    assert rig.sets.sets["s"].master == 2


def waits_for_another(rig: Rig) -> list[Answer | NotLeader]:
    """The response for a broker whose registration waits for a second controller, n1, which does not
    answer."""
    rig.run(3.0)
    raft = rig.controller.raft
    raft.add("n1", "n1", rig.now)
    raft._match_index["n1"] = raft.commit
    raft._promote("n1", rig.now)
    answers: list[Answer | NotLeader] = []
    raft._answered["n1"] = rig.now
    rig.controller.submit(register("a"), answers.append, rig.now)
    return answers


def test_a_wanted_master_whose_new_registration_waits_for_the_log_is_not_elected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Seed 636000555 of folders that go back: it would lead without what its folder lost in between."""
    rig = led(Rig("n0"))
    raft = rig.controller.raft
    raft.add("n1", "n1", rig.now)
    raft._match_index["n1"] = raft.commit
    raft._promote("n1", rig.now)
    raft._answered["n1"] = rig.now
    assert beat(rig, 1).is_leased
    beat(rig, 2)
    assert not rig.done(ElectRequest("s", 2)).refusal
    again = evolve(register("b"), replica=evolve(register("b").replica, incarnation=2))
    answers: list[Answer | NotLeader] = []
    rig.controller.submit(again, answers.append, rig.now)
    for _ in range(50):
        raft._answered["n1"] = rig.now
        assert raft.is_leading(rig.now)
        beat(rig, 2)
        rig.run(0.1)
    assert answers == []
    assert "2 is to be master" not in caplog.text


def hear(rig: Rig, message: Message) -> None:
    rig.controller.raft.receive(msgspec.msgpack.encode(message), rig.now)
    rig.controller.advance(rig.now)


def test_without_a_majority_it_stops_to_answer_and_gives_up_who_waits() -> None:
    rig = Rig("n0")
    answers = waits_for_another(rig)
    assert answers == []
    rig.run(3.0)
    (answer,) = answers
    assert isinstance(answer, NotLeader)


def test_who_waits_goes_on_waiting_while_only_the_lease_is_over() -> None:
    rig = Rig("n0")
    answers = waits_for_another(rig)
    rig.run(1.2)
    raft = rig.controller.raft
    assert not raft.is_leading(rig.now)
    assert answers == []

    last = raft._journal.last
    hear(
        rig, Message("append_entries_resp", "n1", "n1", raft.term, index=last, granted=True, sent_at=rig.now)
    )
    (answer,) = answers
    assert isinstance(answer, Answer)
    assert answer.number == 1


def test_who_waits_is_told_of_another_leader_at_once() -> None:
    rig = Rig("n0")
    answers = waits_for_another(rig)
    raft = rig.controller.raft
    hear(rig, Message("append_entries", "n1", "n1", raft.term + 1, index=raft._journal.last + 9))
    (answer,) = answers
    assert isinstance(answer, NotLeader)
    assert answer.leader == "n1"


def test_who_waits_is_not_given_the_answer_to_anothers_entry_in_its_place() -> None:
    rig = Rig("n0")
    answers = waits_for_another(rig)
    raft = rig.controller.raft
    place, term, before = raft._journal.last, raft.term, raft._journal.term_at(raft._journal.last - 1)
    others = Entry(term + 1, COMMAND, encode(register("b")))
    message = Message("append_entries", "n1", "n1", term + 1, index=place - 1, log_term=before, commit=place)
    hear(rig, evolve(message, entries=[others]))
    assert rig.sets.sets["s"].number_of("b") == 1
    (answer,) = answers
    assert isinstance(answer, NotLeader)


def test_elections_of_who_lacks_messages_are_counted() -> None:
    rig = Rig("n0")
    rig.run(3.0)
    rig.controller.elections.is_unclean = True
    for name in "ab":
        rig.done(register(name))
    while rig.sets.sets["s"].epoch == 1:
        rig.done(Heartbeat("s", 2, 1))
        rig.run(0.5)
    assert rig.sets.sets["s"].master == 2
    assert (rig.controller.elected, rig.controller.elected_uncleanly) == (1, 1)


def stranded(caplog: pytest.LogCaptureFixture) -> Rig:
    """A set whose replica in sync is silent, while another lives."""
    rig = Rig("n0")
    rig.run(3.0)
    for name in "ab":
        rig.done(register(name))
    for _ in range(40):
        rig.done(Heartbeat("s", 2, 1, reach=700))
        rig.run(0.5)
    return rig


def test_what_an_operator_can_do_is_said_where_no_replica_in_sync_lives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stranded(caplog)
    (text,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert "s has no master: of its replicas in sync, 1 (" in text
    assert "`rmq controller elect s 2 --unclean`" in text


def test_a_replica_whose_folder_was_replaced_by_another_s_is_named(caplog: pytest.LogCaptureFixture) -> None:
    rig = stranded(caplog)
    caplog.clear()
    rig.run(4.0)
    known = rig.sets.sets["s"]
    moved = evolve(known.replicas[2], incarnation=9, address=known.replicas[1].address)
    assert not rig.done(Register("c", "s", moved)).refusal
    for _ in range(140):
        rig.done(Heartbeat("s", 2, 9, reach=700))
        rig.run(0.5)
    assert "at the address of 1 replica 2 has registered: was its folder replaced by a copy?" in caplog.text


def test_an_operator_has_a_replica_elected_that_is_not_in_sync(caplog: pytest.LogCaptureFixture) -> None:
    rig = stranded(caplog)
    assert "in sync" in rig.done(ElectRequest("s", 2)).refusal
    assert "has no replica 3" in rig.done(ElectRequest("s", 3, is_unclean=True)).refusal
    assert not rig.done(ElectRequest("s", 2, is_unclean=True)).refusal
    rig.run(0.5)
    broker_set = rig.sets.sets["s"]
    assert (broker_set.master, broker_set.in_sync, broker_set.epoch) == (2, (2,), 2)
    assert "UNCLEAN ELECTION: replica 2 of s" in caplog.text


def test_nobody_is_elected_uncleanly_while_a_replica_in_sync_lives() -> None:
    rig = Rig("n0")
    rig.run(3.0)
    for name in "ab":
        rig.done(register(name))
    rig.done(Heartbeat("s", 1, 1))
    rig.done(Heartbeat("s", 2, 1, reach=700))
    assert "in sync and lives" in rig.done(ElectRequest("s", 2, is_unclean=True)).refusal
    rig.run(3.5)
    assert "was not heard of" in rig.done(ElectRequest("s", 2, is_unclean=True)).refusal
    rig.done(Heartbeat("s", 2, 1, reach=UNKNOWN))
    assert "has not opened its log" in rig.done(ElectRequest("s", 2, is_unclean=True)).refusal


def test_more_than_may_wait_for_the_log_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig("n0")
    waits_for_another(rig)
    monkeypatch.setattr("rmq.controller.controller.WAITING_MAX", 1)
    assert "too many requests wait" in rig.done(register("b")).refusal


def test_members_change_one_at_a_time() -> None:
    rig = Rig("n0:1")
    rig.run(3.0)
    assert rig.done(RemoveMember("n0:1")).refusal.startswith("n0:1 is the only controller")
    assert rig.done(AddMember("n1:1")).refusal == ""
    assert rig.done(AddMember("n1:1")).refusal == ""  # it may be asked for again
    assert rig.done(AddMember("n2:1")).refusal.startswith("n1:1 is being added")
    assert rig.done(RemoveMember("n1:1")).refusal == ""
    assert rig.done(AddMember("n2:1")).refusal == ""
    assert rig.done(AddMember("n0:1")).controllers == ("n0:1",)


def test_who_is_known_by_a_loopback_address_takes_nobody_from_elsewhere() -> None:
    assert "cannot reach" in refused_address("127.0.0.1:9878", "10.0.0.1:9878")
    assert "cannot reach" in refused_address("[::1]:9878", "a:9878")
    assert refused_address("127.0.0.1:9878", "localhost:9879") == ""
    assert refused_address("tls://10.0.0.1:9878", "tls://10.0.0.2:9878") == ""


def test_the_copy_of_a_replica_that_lives_waits() -> None:
    rig = Rig("n0")
    rig.run(6.0)
    assert rig.done(register("a")).number == 1
    copy = Register("c", "s", Replica("a", 2, "b:1", "b:2"), is_founder=True)
    for _ in range(8):
        rig.done(Heartbeat("s", 1, 1, 1))
        rig.run(0.5)
        assert rig.done(copy).refusal.startswith("replica 1 of s lives at a:1")
    rig.run(3.0)  # the former place is silent: the store was carried to another machine
    assert rig.done(copy).number == 1


def test_a_new_leader_does_not_know_yet_whether_a_replica_lives_elsewhere() -> None:
    rig = Rig("n0")
    rig.run(6.0)
    rig.done(register("a"))
    rig.controller.elections.begin(rig.now)
    copy = Register("c", "s", Replica("a", 2, "b:1", "b:2"), is_founder=True)
    assert rig.done(copy).refusal
    again = Register("c", "s", Replica("a", 2, "a:1", "a:2"), is_founder=True)
    assert rig.done(again).number == 1


def flip_last_frame(rig: Rig) -> None:
    """The disk changes a bit of what was written last, and the controller starts again."""
    (name,) = rig.disk.list("/raft")
    written = rig.disk.load(f"/raft/{name}")
    assert written is not None
    rig.disk.flip(f"/raft/{name}", len(written.rstrip(b"\0")) - 5)
    rig.start(3.0)


def told(number: int, version: int, **more: Any) -> Heartbeat:
    """A replica of a set of two that was told this version of its first epoch."""
    beat = Heartbeat("s", number, 1, 1, 10 * number, identity="ab"[number - 1], knows=(1, version), acted=1)
    return evolve(beat, **more)


def test_a_controller_that_lost_its_last_frame_elects_nobody_before_the_master_said_what_it_knows() -> None:
    rig = led(Rig("n0"))
    known = rig.sets.sets["s"]
    later = rig.done(AlterInSync("s", 1, known.version, (1,))).broker_set
    assert later is not None
    flip_last_frame(rig)
    rig.run(3.0)
    assert rig.sets.sets["s"].in_sync == (1, 2)  # by the table that is left
    for _ in range(100):  # the slave, which lacks what the master has acknowledged since
        rig.run(0.5)
        rig.ask(told(2, known.version))
    assert rig.sets.sets["s"].epoch == 1
    assert rig.controller.elections.evidence.is_doubtful

    assert rig.done(told(1, later.version)).is_behind
    assert not rig.done(Adopt(later)).refusal
    assert rig.done(told(1, later.version)).is_leased
    assert rig.sets.sets["s"] == later
    rig.run(0.2)
    rig.start(3.0)
    rig.run(3.0)
    rig.done(told(1, later.version))
    assert not rig.controller.raft.is_doubtful


def test_a_table_in_doubt_elects_who_has_the_longest_log_once_all_replicas_were_heard() -> None:
    rig = led(Rig("n0"))
    rig.done(AlterInSync("s", 1, 2, (1,)))
    flip_last_frame(rig)
    rig.run(6.0)
    for number in (1, 2):  # both were started again: what they were told is forgotten, too
        rig.done(evolve(register("ab"[number - 1]), replica=replica_again("ab"[number - 1])))
    for _ in range(100):
        rig.run(0.5)
        rig.done(told(2, 0, incarnation=2, reach=10, acted=0, knows=(0, 0)))
    assert rig.sets.sets["s"].master == 0
    for _ in range(3):
        rig.run(0.5)
        rig.done(told(2, 0, incarnation=2, reach=10, acted=0, knows=(0, 0)))
        rig.done(told(1, 0, incarnation=2, reach=90, acted=0, knows=(0, 0)))
    assert rig.sets.sets["s"].master == 1


def test_an_operator_ends_the_wait_of_a_table_in_doubt(caplog: pytest.LogCaptureFixture) -> None:
    rig = led(Rig("n0"))
    rig.done(AlterInSync("s", 1, 2, (1,)))
    flip_last_frame(rig)
    rig.run(6.0)
    rig.done(evolve(register("b"), replica=replica_again("b")))
    beat = told(2, 0, incarnation=2, reach=10, acted=0, knows=(0, 0))
    for _ in range(20):
        rig.run(0.5)
        rig.done(beat)
    assert rig.sets.sets["s"].epoch == 1
    assert "--unclean elects a replica now" in rig.done(ElectRequest("s", 2)).refusal
    (text,) = {one.getMessage() for one in caplog.records if "no master is elected" in one.getMessage()}
    assert "the controllers' journal was damaged, and replicas 1 were not heard: start them" in text
    assert "`rmq controller elect s NUMBER --unclean`" in text
    assert not rig.done(ElectRequest("s", 2, is_unclean=True)).refusal
    rig.run(0.5)
    assert rig.sets.sets["s"].master == 2


def replica_again(name: str) -> Replica:
    return Replica(name, 2, f"{name}:1", f"{name}:2")
