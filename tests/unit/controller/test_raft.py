"""Single rules of the Raft core, in scripts that name them. tests/sim runs it against faults of all kinds."""

from __future__ import annotations

import msgspec
import pytest
from attrs import evolve

from rmq.controller.consensus import raft as raft_module
from rmq.controller.consensus.journal import COMMAND, NOOP, Entry, Journal, members_entry
from rmq.controller.consensus.machine import UnknownCommand
from rmq.controller.consensus.messages import Message
from rmq.controller.consensus.raft import ADDRESSES_MAX, ChangeUnderWay, NotLeader, Raft, Role
from rmq.errors import RemoteProtocolError
from rmq.testing.disk import MemoryDisk
from tests.sim.controllers import Register
from tests.unit.controller.groups import TIMING, Group, others, tell


def test_one_leads_and_all_apply_what_it_was_given() -> None:
    group = Group("n0", "n1", "n2")
    leader = group.leader()
    place = leader.propose(b"x", group.now)
    group.run(0.5)

    assert (place[0], place[1], 1) in [(one.index, one.term, one.result) for one in leader.take_applied()]
    assert len({machine.snapshot() for machine in group.machines.values()}) == 1
    for raft in others(group, leader):
        assert raft.leader_address == leader.me
        with pytest.raises(NotLeader) as caught:
            raft.propose(b"y", group.now)
        assert caught.value.leader == leader.me


def test_an_answer_that_comes_twice_leads_to_entries_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each message that the network doubles would begin one more line of messages."""
    monkeypatch.setattr(raft_module, "BYTES_MAX", 1)
    group = Group("n0", "n1", "n2")
    leader = group.leader()
    follower = others(group, leader)[0]
    group.down = {follower.me}
    group.propose(leader, 20)
    group.down = set()
    leader.take_messages()

    def appended() -> list[bytes]:
        return [data for to, data in leader.take_messages() if to == follower.me]

    group.now += TIMING.heartbeat_s
    leader.step(group.now)
    (sent,) = appended()
    lengths = []
    for _ in range(10):
        follower.receive(sent, group.now)
        follower.receive(sent, group.now)
        group.now += 0.001
        answers = [data for _, data in follower.take_messages()]
        for data in answers:
            leader.receive(data, group.now)
        (sent,) = appended()
        lengths.append(follower._journal.last)
    assert lengths[-1] > lengths[0], "it gets on"


def test_a_leader_without_a_majority_loses_its_lease_before_another_can_win() -> None:
    group = Group("n0", "n1", "n2")
    old = group.leader()
    group.down = {old.me}
    silent = group.now
    while not any(raft.is_leading(group.now) for raft in others(group, old)):
        group.run(0.05)
        assert sum(raft.is_leading(group.now) for raft in group.rafts.values()) <= 1
    assert not old.is_leading(group.now)
    assert group.now - silent < 4 * TIMING.election_s

    old.step(group.now + TIMING.election_s)
    assert old.role is Role.FOLLOWER


def test_who_heard_a_leader_or_has_just_started_votes_for_nobody() -> None:
    group = Group("n0", "n1", "n2")
    leader = group.leader()
    follower, candidate = others(group, leader)
    term = leader.term
    candidate._campaign(group.now, pre=False)
    ballots = dict(candidate.take_messages())
    for voter in (follower, leader, group.start(follower.me)):
        voter.receive(ballots[voter.me], group.now)
        assert voter.term == term
        assert not voter.take_messages()


def test_a_lease_is_shorter_than_the_silence_of_voters_by_the_drift_of_clocks() -> None:
    group = Group("n0", "n1", "n2")
    leader = group.leader()
    group.now = asked = group.now + 0.5
    leader.step(asked)
    group.deliver()
    assert leader.lease_until(asked + 0.3) == pytest.approx(asked + 0.9)
    assert leader.is_leading(asked + 0.89)
    assert not leader.is_leading(asked + 0.91)
    follower = next(iter(others(group, leader)))
    for after, answered in ((0.99, 0), (1.01, 1)):
        question = Message("pre_vote", "n9", "n9", leader.term + 1, index=9, log_term=9)
        tell(follower, question, asked + after)
        assert len(follower.take_messages()) == answered


def test_who_lacks_entries_or_is_of_an_earlier_term_is_promised_no_vote() -> None:
    group = Group("n0", "n1", "n2")
    leader = group.leader()
    leader.propose(b"x", group.now)
    group.run(1.0)
    voter = next(iter(others(group, leader)))
    term, last = voter.term, voter._journal.last
    group.now += 5.0  # it has heard nobody for long
    for asked, index, log_term, promised in (
        (term + 1, last, term, True),
        (term, last, term, True),
        (term + 1, last - 1, term, False),
        (term + 1, last + 9, term - 1, False),
        (term - 1, last, term, False),
    ):
        question = Message("pre_vote", "n9", "n9", asked, index=index, log_term=log_term)
        tell(voter, question, group.now)
        ((to, data),) = voter.take_messages()
        answer = decoded(data)
        assert (to, answer.kind, answer.granted) == ("n9", "pre_vote_resp", promised)
        assert answer.term == (asked if promised else term)
    assert voter.term == term


def test_a_member_that_cannot_win_does_not_raise_the_term() -> None:
    group = Group("n0", "n1", "n2")
    leader = group.leader()
    term = leader.term
    (cut, _) = others(group, leader)
    group.down = {cut.me}
    for _ in range(200):
        group.now += 0.1
        cut.step(group.now)
        leader.step(group.now)
        cut.take_messages()
        group.deliver()
    group.down = set()
    group.run(2.0)

    assert leader.term == term
    assert leader.is_leading(group.now)


def test_entries_of_earlier_terms_are_not_committed_by_counting() -> None:
    """Figure 8 of the paper: a majority has an entry of term 2, and another leader may still take it back."""
    group = Group("n0", "n1", "n2")
    raft = group.rafts["n0"]
    raft._journal.save(2, "n0")
    raft._journal.append(1, [Entry(2, NOOP), Entry(2, COMMAND, b"x")])
    raft._journal.save(4, "n0")
    raft._become_leader(group.now)
    raft._match_index["n1"] = 2

    raft._advance(group.now)
    assert raft.commit == 0
    raft._match_index["n1"] = 3  # with the entry of its own term all before it count
    raft._advance(group.now)
    assert raft.commit == 3


def test_entries_that_the_leader_does_not_have_go() -> None:
    group = Group("n0", "n1", "n2")
    old = group.leader()
    group.down = {raft.me for raft in others(group, old)}
    for number in range(5):
        old.propose(b"lost %d" % number, group.now)
    group.run(0.5)
    group.down = {old.me}
    new = group.leader()
    new.propose(b"kept", group.now)
    group.run(0.5)
    group.down = set()
    group.run(3.0)

    assert old.role is Role.FOLLOWER
    assert old._journal.entries == new._journal.entries
    assert {machine.count for machine in group.machines.values()} == {1}


def test_entries_that_come_twice_are_kept_and_those_behind_them_taken() -> None:
    group = Group("n0", "n1", "n2")
    leader = group.leader()
    group.propose(leader, 3)
    group.run(1.0)
    follower = next(iter(others(group, leader)))
    had, new = list(follower._journal.entries), Entry(leader.term, COMMAND, b"3")
    place = Message(
        "append_entries", leader.me, leader.me, leader.term, index=1, log_term=had[0].term, commit=5
    )
    for entries in ([*had[1:], new], had[1:], []):
        tell(follower, evolve(place, entries=entries), group.now)
        assert follower._journal.entries == [*had, new]
        assert (follower.commit, group.machines[follower.me].count) == (5, 4)


def test_a_follower_commits_and_confirms_only_what_the_leader_sent() -> None:
    """Behind it there may be entries of an earlier leader, which this one is about to replace."""
    group = Group("n0", "n1", "n2")
    follower = group.rafts["n1"]
    follower._journal.save(1, "")
    follower._journal.append(1, [Entry(1, NOOP), *(Entry(1, COMMAND, b"%d" % number) for number in range(4))])
    sent = [Entry(1, COMMAND, b"0")]
    message = Message("append_entries", "n0", "n0", 2, index=1, log_term=1, commit=5, entries=sent)

    tell(follower, message, group.now)

    assert (follower.commit, group.machines["n1"].count, follower._journal.last) == (2, 1, 5)
    ((_, data),) = follower.take_messages()
    assert (decoded(data).granted, decoded(data).index) == (True, 2)


def test_a_member_that_is_far_behind_gets_a_snapshot() -> None:
    group = Group("n0", "n1", "n2", compact_entries=10)
    leader = group.leader()
    (behind, _) = others(group, leader)
    group.down = {behind.me}
    group.propose(leader, 55, 0.05)
    assert len(leader._journal.entries) < 15
    group.down = set()
    group.run(1.0)

    assert group.machines[behind.me].snapshot() == group.machines[leader.me].snapshot()
    group.start(behind.me)
    group.run(1.0)
    assert group.machines[behind.me].count == 55


def test_members_come_when_they_have_the_log_and_go_one_at_a_time() -> None:
    group = Group("n0")
    leader = group.leader()
    group.propose(leader, 300)
    leader.add("n1", "n1", group.now)
    group.run(1.0)
    assert leader.members == {"n0": "n0"}  # nobody answers there: it holds nothing up
    assert leader.is_leading(group.now)

    group.start("n1", {})
    group.run(1.0)
    assert leader.members == {"n0": "n0", "n1": "n1"} == group.rafts["n1"].members
    assert group.machines["n1"].count == 300

    leader.add("n2", "n2", group.now)
    group.start("n2", {})
    group.run(1.0)
    with pytest.raises(NotLeader):
        group.rafts["n1"].add("n3", "n3", group.now)
    with pytest.raises(NotLeader):
        group.rafts["n1"].remove("n0", group.now)
    leader.remove("n0", group.now)
    with pytest.raises(ChangeUnderWay):
        leader.remove("n1", group.now)
    with pytest.raises(ChangeUnderWay):
        leader.add("n3", "n3", group.now)
    group.run(3.0)
    assert leader.role is Role.FOLLOWER
    assert sorted(group.leader().members) == ["n1", "n2"]


def test_a_learner_becomes_a_member_when_it_has_all_that_is_committed_and_not_before() -> None:
    group = Group("n0")
    leader = group.leader()
    group.propose(leader, 300)
    leader.add("n1", "n1", group.now)
    answer = Message("append_entries_resp", "n1", "n1", leader.term)
    for index, granted in ((0, False), (256, True), (leader.commit - 1, True)):
        tell(leader, evolve(answer, index=index, granted=granted), group.now)
        assert (sorted(leader.members), leader.learners) == (["n0"], ["n1"])
    tell(leader, evolve(answer, index=leader.commit, granted=True), group.now)
    assert (sorted(leader.members), leader.learners) == (["n0", "n1"], [])


def test_a_learner_waits_for_a_change_of_members_that_is_open() -> None:
    group = Group("n0", "n1", "n2")
    leader = group.leader()
    gone, last = (raft.me for raft in others(group, leader))
    leader.add("n3", "n3", group.now)
    leader.remove(gone, group.now)
    group.down = {gone, last}  # nobody agrees to that
    group.start("n3", {})
    group.run(0.5)
    rest = sorted((leader.me, last))
    assert (sorted(leader.members), leader.learners) == (rest, ["n3"])
    assert leader._match_index["n3"] >= leader.commit
    with pytest.raises(ChangeUnderWay):
        leader.add("n4", "n4", group.now)

    group.down = {gone}
    group.run(1.0)
    assert (sorted(leader.members), leader.learners) == (sorted((*rest, "n3")), [])


def test_members_are_who_they_were_when_a_change_is_taken_back() -> None:
    group = Group("n0", "n1", "n2")
    old = group.leader()
    first, second = others(group, old)
    group.down = {old.me}
    old.remove(first.me, group.now)  # nobody hears of it
    assert sorted(old.members) == sorted((old.me, second.me))

    new = group.leader()
    group.down = set()
    group.run(1.0)
    assert old.leader_address == new.me
    assert sorted(old.members) == ["n0", "n1", "n2"]
    assert old.applied == new.applied


def test_addresses_of_strangers_are_bounded_and_those_known_are_renewed() -> None:
    group = Group("n0", "n1", "n2")
    raft = group.leader()
    for number in range(2 * ADDRESSES_MAX):
        stranger = Message("pre_vote", f"s{number}", f"at {number}", 0)
        tell(raft, stranger, group.now)
    assert raft.address_of("s0") == "at 0"
    assert raft.address_of(f"s{2 * ADDRESSES_MAX - 1}") == ""
    tell(raft, Message("pre_vote", "s0", "moved", 0), group.now)
    assert raft.address_of("s0") == "moved"


def test_what_is_no_message_is_refused() -> None:
    group = Group("n0", "n1")
    raft = group.leader()
    (other,) = others(group, raft)
    for data in (b"", b"\xc1", b"\x80", b"{}"):
        with pytest.raises(RemoteProtocolError):
            raft.receive(data, group.now)
    kind = Message("hello", other.me, other.me, raft.term)
    beyond = Message(
        "append_entries_resp", other.me, other.me, raft.term, index=raft._journal.last + 1, granted=True
    )
    empty = Message("install_snapshot", raft.me, raft.me, raft.term)
    for at, message, why in (
        (raft, kind, "of kind 'hello'"),
        (raft, beyond, "nobody ever had"),
        (other, empty, "without a snapshot"),
    ):
        with pytest.raises(RemoteProtocolError, match=why):
            tell(at, message, group.now)
    other.step(group.now + 10)
    (_, data), *_ = other.take_messages()
    with pytest.raises(RemoteProtocolError, match="calls itself"):
        other.receive(data, group.now)


def test_a_vote_is_kept_over_a_restart() -> None:
    group = Group("n0", "n1", "n2")
    group.now += 5.0
    ballots = {}
    for name in ("n0", "n1"):
        group.rafts[name]._campaign(group.now, pre=False)
        ballots[name] = dict(group.rafts[name].take_messages())["n2"]
    voter = group.rafts["n2"]
    voter.receive(ballots["n0"], group.now)
    group.disks["n2"].crash()
    voter = group.start("n2")
    group.now += 1.5
    voter.receive(ballots["n1"], group.now)
    ((_, answer),) = voter.take_messages()
    assert not decoded(answer).granted
    voter.receive(ballots["n0"], group.now)
    ((_, answer),) = voter.take_messages()
    assert decoded(answer).granted


def test_an_answer_of_an_earlier_term_counts_for_nothing() -> None:
    group = Group("n0", "n1", "n2")
    leader = group.leader()
    (_, late), *_ = [
        message for message in answers(group, leader) if decoded(message[1]).kind == "append_entries_resp"
    ]
    leader._become_follower(leader.term + 1, group.now)
    leader._journal.save(leader.term + 1, leader.me)
    leader._become_leader(group.now)
    before = leader.lease_until(group.now), leader.commit
    leader.receive(late, group.now)
    assert (leader.lease_until(group.now), leader.commit) == before


def answers(group: Group, leader: Raft) -> list[tuple[str, bytes]]:
    """The responses of a follower to a message of its leader."""
    leader.propose(b"x", group.now)
    (to, data), *_ = leader.take_messages()
    group.rafts[to].receive(data, group.now)
    return group.rafts[to].take_messages()


def decoded(data: bytes) -> Message:
    return msgspec.msgpack.decode(data, type=Message)


def test_a_member_that_lost_its_journal_gets_the_log_again() -> None:
    group = Group("n0", "n1", "n2")
    leader = group.leader()
    group.propose(leader, 5, 0.3)
    lost = next(iter(others(group, leader))).me
    group.disks[lost] = MemoryDisk(seed=1)
    again = group.start(lost)
    leader.propose(b"more", group.now)
    sent = 0
    for _ in range(20):
        messages = [message for name in group.up() for message in group.rafts[name].take_messages()]
        sent += len(messages)
        for to, data in messages:
            group.rafts[to].receive(data, group.now)
    assert sent < 30  # and not one after the other without end
    group.run(1.0)
    assert again.commit == leader.commit
    assert group.machines[lost].snapshot() == group.machines[leader.me].snapshot()


class Early(Register):
    """The machine of a version that knows no command `b"new"`, and no state that it made."""

    def apply(self, data: bytes) -> int:
        if data == b"new":
            raise UnknownCommand("command new is not known")
        return super().apply(data)

    def restore(self, data: bytes) -> None:
        super().restore(b"")
        if data:
            raise UnknownCommand("the state cannot be read")


def test_a_member_stops_applying_at_a_command_that_it_does_not_know(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = Group("n0", "n1", "n2", compact_entries=10)
    early = group.start("n2", machine=Early())
    group.down = {"n2"}
    leader = group.leader()
    group.down = set()
    group.propose(leader, 2, 0.3)
    place, _ = leader.propose(b"new", group.now)
    group.propose(leader, 3, 0.3)

    assert (early.applied, group.machines["n2"].count) == (place - 1, 2)
    assert early.stopped == f"entry {place} of the log, of term {leader.term}: command new is not known"
    assert sum(early.stopped in record.message for record in caplog.records) == 1
    assert early._journal.last == early.commit == leader.commit == leader.applied  # it keeps the log

    (other,) = (raft for raft in others(group, leader) if raft is not early)
    group.down = {leader.me}  # its vote counts, and it wants none itself
    assert group.leader() is other
    assert early.elections == 0
    group.down = {leader.me, other.me}
    group.run(10.0)
    assert early.role is Role.FOLLOWER

    group.down = {leader.me}
    later = group.start("n2")
    group.run(5.0)
    assert (later.stopped, group.machines["n2"].snapshot()) == ("", group.machines[other.me].snapshot())


def test_a_member_that_cannot_read_a_snapshot_says_nothing_from_its_state() -> None:
    group = Group("n0", "n1", "n2", compact_entries=10)
    leader = group.leader()
    behind = next(iter(others(group, leader))).me
    group.down = {behind}
    group.propose(leader, 25, 0.05)
    group.down = set()
    for _ in range(2):  # given by the leader, then found in its journal
        early = group.start(behind, machine=Early())
        group.run(1.0)
        assert (
            early.stopped
            == f"the snapshot of the log up to entry {early._journal.base}: the state cannot be read"
        )
    group.down = {name for name in group.rafts if name != behind}
    group.run(10.0)
    assert (early.role, early.elections) == (Role.FOLLOWER, 0)


def test_the_only_member_does_not_lead_when_it_cannot_read_its_log() -> None:
    group = Group("n0")
    leader = group.leader()
    leader.propose(b"new", group.now)
    early = group.start("n0", machine=Early())
    group.run(5.0)
    assert (early.role, early.elections) == (Role.FOLLOWER, 1)
    assert "command new is not known" in early.stopped
    group.start("n0")
    assert group.leader().applied > early.applied


def test_an_entry_of_an_unknown_kind_stops_a_member_and_what_it_keeps_then_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(raft_module, "STOPPED_ENTRIES_MAX", 3)
    group = Group("n0", "n1")
    raft = group.rafts["n1"]
    message = Message("append_entries", "n0", "n0", 1, commit=9, entries=[Entry(1, NOOP), Entry(1, 7)])
    tell(raft, message, group.now)
    assert "entry 2 of the log, of term 1: it is of kind 7" in raft.stopped
    for number in range(2, 6):
        more = evolve(message, index=number, log_term=1, entries=[Entry(1, COMMAND)])
        tell(raft, more, group.now)
    assert (raft.applied, raft._journal.last) == (1, 3)


def test_an_empty_member_neither_votes_nor_founds_before_all_others_said_what_they_know() -> None:
    """One of the other members has every entry that the member acknowledged before it lost its folder."""
    group = Group("n0", "n1", "n2")
    leader = group.leader()
    behind, lost = others(group, leader)
    group.down = {behind.me}
    group.propose(leader, 3, 0.3)
    group.disks[lost.me] = MemoryDisk(seed=1)
    group.down = {leader.me}
    again = group.start(lost.me)
    group.run(20.0)
    assert not behind.is_leading(group.now)
    assert (again.term, again.role) == (0, Role.FOLLOWER)

    group.down = set()
    leader = group.leader()
    assert leader.me not in (behind.me, lost.me)
    assert group.machines[leader.me].count == 3
    group.run(1.0)
    assert not again._journal.is_doubtful
    group.down = {leader.me}
    assert group.leader().me in (behind.me, lost.me)  # it is one of them again


def test_members_that_are_all_empty_found_a_cluster_only_when_all_are_there() -> None:
    group = Group("n0")
    names = {name: name for name in ("n0", "n1", "n2")}
    for name in names:
        group.disks[name] = MemoryDisk(seed=1)
        group.start(name, names)
    group.down = {"n2"}
    group.run(20.0)
    assert [group.rafts[name].term for name in names] == [0, 0, 0]
    group.down = set()
    assert group.leader().term > 0


def test_who_forgot_a_frame_votes_in_no_term_that_the_others_know_and_for_nobody_who_lacks_entries() -> None:
    group = Group("n0", "n1", "n2")
    leader = group.leader()
    group.propose(leader, 3, 0.3)
    (voter, other) = others(group, leader)
    journal = voter._journal
    group.disks[voter.me].flip(journal._path(journal._number), journal._position - 5)
    again = group.start(voter.me)
    assert again._journal.is_doubtful
    assert again._journal.last < leader._journal.last
    last, term = leader._journal.last, leader.term

    again.step(group.now)
    for name in (leader.me, other.me):
        answer = Message("recalled", name, name, term, index=last, log_term=term)
        tell(again, evolve(answer, term=term - 1, index=1), group.now)  # to a question of an earlier life
        tell(again, evolve(answer, sent_at=again._recall.token), group.now)
    again.take_messages()
    group.now += 2.0
    for asked, index, granted in ((term, last, False), (term + 1, last - 1, False), (term + 2, last, True)):
        tell(again, Message("request_vote", other.me, other.me, asked, index=index, log_term=term), group.now)
        ((_, data),) = again.take_messages()
        assert decoded(data).granted is granted, (asked, index)
    again._election_at = group.now
    again.step(group.now)
    assert again.role is Role.FOLLOWER  # it lacks what the others have
    assert opened_again(group, voter.me).is_doubtful


def opened_again(group: Group, name: str) -> Journal:
    return Journal(group.disks[name], "/raft", group.names)


def test_a_member_that_comes_back_with_an_empty_folder_votes_for_nobody_until_it_is_added_anew() -> None:
    """Otherwise the vote of a member that has forgotten an entry could elect a leader that never had the
    entry."""
    group = Group("n0", "n1", "n2")
    leader = group.leader()
    wiped, behind = (raft.me for raft in others(group, leader))
    group.down = {behind}
    group.propose(leader, 5, 0.2)  # committed by the leader and the one that is to be wiped
    told = group.machines[leader.me].count
    group.down = {leader.me}
    group.disks[wiped] = MemoryDisk(seed=1)
    group.start(wiped, {})
    group.start(behind)
    group.run(20.0)
    assert not any(group.rafts[name].is_leading(group.now) for name in (wiped, behind))

    group.down = set()
    again = group.leader()
    group.run(1.0)
    assert group.machines[again.me].count == told
    assert again.lost_journal == {wiped}
    group.start(wiped, {})  # it is the same after another start, at another leader
    assert group.rafts[wiped].is_blank
    again.remove(wiped, group.now)
    group.run(1.0)
    again.add(wiped, wiped, group.now)
    group.run(1.0)
    assert sorted(again.members) == ["n0", "n1", "n2"]
    assert (again.lost_journal, group.rafts[wiped].is_blank) == (set(), False)
    group.down = {again.me}
    group.start(wiped, {})
    assert group.leader().me in (wiped, behind)


def test_a_learner_votes_before_it_knows_that_it_is_a_member() -> None:
    """A leader that dies as it makes the second member needs its vote."""
    group = Group("n0")
    leader = group.leader()
    leader.add("n1", "n1", group.now)
    group.start("n1", {})
    while "n1" not in leader.members:
        for sender, to in ((leader, group.rafts["n1"]), (group.rafts["n1"], leader)):
            for _, data in sender.take_messages():
                to.receive(data, group.now)
    leader.take_messages()  # the change gets lost with the leader
    assert not group.rafts["n1"].members
    group.start("n0")
    group.run(5.0)
    assert sorted(group.leader().members) == ["n0", "n1"]


def test_a_leader_of_an_earlier_version_makes_a_member_of_one_that_joins() -> None:
    group = Group("n0")
    joins = group.start("n1", {})
    entries = [Entry(1, NOOP), members_entry(1, {"n0": "n0", "n1": "n1"})]
    tell(joins, Message("append_entries", "n0", "n0", 1, entries=entries, commit=2), group.now)
    assert not joins.is_blank
    joins.step(group.now + 10)
    assert [decoded(data).kind for _, data in joins.take_messages()] == ["append_entries_resp", "pre_vote"]
