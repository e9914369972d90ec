"""Raft: several processes keep a log in common and agree on each entry before the entry counts.

After Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", with the additions of
Ongaro's dissertation: pre-vote (9.6), leader lease (6.4.1), changes of members one at a time (4.1), with a
leader's own entry committed first. The module has no clock, no socket and no random source of its own: `now`
is in seconds of a clock that never runs back and goes on while the machine sleeps, messages are bytes,
`chance` is given.

Only the lease depends on time. A member that has heard a leader grants no vote for `election_s` of its own
clock. A member that has just started grants no vote for as long, since it has forgotten which leader it
heard. A leader counts its lease from the time at which it *sent* the message that a majority has answered,
and ends the lease earlier by the `drift` of two clocks. So no other leader can be elected while a lease
holds. Everything else is right with any clock.
"""

from __future__ import annotations

import enum
import logging
import math
import random
from collections.abc import Mapping
from typing import Any, Final

from attrs import frozen

from rmq.controller.consensus.journal import (
    COMMAND,
    MEMBERS,
    NOOP,
    Entry,
    Journal,
    Snapshot,
    members_entry,
)
from rmq.controller.consensus.machine import Applied, StateMachine, UnknownCommand
from rmq.controller.consensus.messages import (
    EARLIER_KINDS,
    LATER_KINDS,
    Message,
    decode,
    encode,
    in_present_kinds,
)
from rmq.controller.consensus.recall import UNKNOWN_VOTE, Place, Recall
from rmq.errors import RemoteProtocolError, RmqError

log = logging.getLogger("rmq.controller")

ENTRIES_MAX: Final = 256
"""Entries in one message, unless the constructor gives another number."""
BYTES_MAX: Final = 1 << 18
"""Bytes of the entries in one message."""
COMPACT_ENTRIES: Final = 1_000
"""Entries after which a snapshot replaces them."""
STOPPED_ENTRIES_MAX: Final = 10_000
"""A member that has stopped applying makes no snapshots: with this number of entries it accepts no more."""
ADDRESSES_MAX: Final = 64
"""Senders whose addresses are kept, members or not."""


class Role(enum.Enum):
    """State of a member."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class NotLeader(RmqError):
    """A request that only the leader answers: `leader` is the leader's address, empty when unknown."""

    retriable = True
    hint = "ask the leader"

    def __init__(self, leader: str) -> None:
        super().__init__(f"the leader of the controllers is {leader or 'not known here'}")
        self.leader = leader


class ChangeUnderWay(RmqError):
    """A change of members is refused while another change is not committed."""

    retriable = True
    hint = "try again in a moment"


@frozen
class Timing:
    """Times of the algorithm. `election_s`: the silence of a leader after which an election begins. `drift`:
    the difference that two clocks may have after a second, in seconds."""

    election_s: float = 1.0
    heartbeat_s: float = 0.2
    drift: float = 0.1


class Raft:
    """A member of the group, `me`. When a method raises StoreError, the member must stop, and may start
    again.

    After each call the owner sends the messages of `take_messages`, in any order and each at most once;
    messages may get lost. `take_applied` returns the applied entries.

    `stopped` is the reason, not empty, when the log or its snapshot holds an entry that this version cannot
    read. Such a member keeps the log and votes as before, but applies nothing more, does not lead, and
    answers nothing from the state, until a later version is started. To refuse the entry would be wrong:
    members of the later version apply the entry, and the states would differ.
    """

    def __init__(
        self,
        me: str,
        address: str,
        journal: Journal,
        machine: StateMachine,
        *,
        now: float,
        chance: random.Random,
        timing: Timing | None = None,
        compact_entries: int = COMPACT_ENTRIES,
        entries_max: int = ENTRIES_MAX,
    ) -> None:
        self.me = me
        self.address = address
        self.timing = timing or Timing()
        self._compact_entries = compact_entries
        self._entries_max = entries_max
        self.role = Role.FOLLOWER
        self.leader = ""
        self.elections = 0
        self.commit = self.applied = journal.base
        self.stopped = ""
        self._journal = journal
        self._machine = machine
        self._chance = chance
        self._heard_at = now  # it may have heard a leader just before its stop
        self._election_at = now + self._election_timeout()
        self._heartbeat_at = math.inf
        self._led_at = -math.inf
        self._votes: set[str] = set()
        self._next_index: dict[str, int] = {}
        self._match_index: dict[str, int] = {}
        self.lost_journal: set[str] = set()
        """A leader's: members that had more of the log than they have, and were given it again."""
        self._inflight: dict[str, float] = {}  # member -> when entries were sent that it has not answered
        self._answered: dict[str, float] = {}  # send time of the message that a member answered last
        self._first = 0  # a leader's: the index of its first entry
        self._learners: dict[str, str] = {}  # a leader's: members to add, once they have the log
        self._addresses: dict[str, str] = {}
        self._earlier: set[str] = set()
        """Senders of an earlier version, which know the earlier kinds of messages only."""
        self._messages: list[tuple[str, bytes]] = []
        self._applied: list[Applied] = []
        is_empty = not journal.term and not journal.last
        asks = self._others() if is_empty or journal.is_doubtful else []
        token = random.Random()
        token.setstate(chance.getstate())  # another start has another sequence
        self._recall = Recall(me, asks, token.random())
        self._recall_at = now
        self._restore(journal.snapshot)

    # ---- queries ----

    @property
    def term(self) -> int:
        """The present term."""
        return self._journal.term

    @property
    def members(self) -> Mapping[str, str]:
        """Id -> address of the voting members."""
        return self._journal.members()[1]

    @property
    def is_blank(self) -> bool:
        """True if this member began with an empty folder, and no leader has made it a member since."""
        return self._journal.is_blank

    @property
    def leader_address(self) -> str:
        """The address of the leader, empty when none is known."""
        return self.address_of(self.leader)

    def address_of(self, member: str) -> str:
        """The address of a member, empty when unknown."""
        known = {**self._addresses, **self._learners, **self.members}
        return self.address if member == self.me else known.get(member, "")

    @property
    def deadline(self) -> float:
        """The time of the next `step` at the latest."""
        if not self._recall.is_done:
            return self._recall_at
        return self._heartbeat_at if self.role is Role.LEADER else self._election_at

    @property
    def learners(self) -> list[str]:
        """A leader's: members that copy the log and have no vote yet."""
        return sorted(self._learners)

    def heard(self, now: float) -> set[str]:
        """A leader's: members that answered messages of the last `election_s` seconds, and the leader if it
        is a member."""
        since = now - self.timing.election_s
        return {one for one in self.members if one == self.me or self._answered.get(one, -math.inf) >= since}

    def lease_until(self, now: float) -> float:
        """The time until which no other leader can be elected; before `now` when no such time is known."""
        if self.role is not Role.LEADER:
            return -math.inf
        times = [now if one == self.me else self._answered.get(one, -math.inf) for one in self.members]
        since = sorted(times, reverse=True)[self._quorum() - 1]
        return since + self.timing.election_s * (1 - self.timing.drift)

    def is_leading(self, now: float) -> bool:
        """True if this is the only possible leader and has applied every committed entry, so that answers
        from the state machine are final."""
        has_applied = self.applied >= self._first and not self.stopped
        return self.role is Role.LEADER and has_applied and now < self.lease_until(now)

    # ---- changes by the owner ----

    def propose(self, data: bytes, now: float) -> tuple[int, int]:
        """Append an entry for the state machine. Return its index and term.

        The entry counts when `take_applied` returns an entry of the same index and term. An applied entry of
        the same index and another term says that this entry is lost. Raises NotLeader.
        """
        if self.role is not Role.LEADER or self._first > self.commit:
            raise NotLeader(self.leader_address if self.leader != self.me else "")
        return self._propose(Entry(self.term, COMMAND, data), now)

    def add(self, member: str, address: str, now: float) -> None:
        """Add a member. The member gets the log as a learner, and votes once its log is complete. Raises
        NotLeader and ChangeUnderWay."""
        self._check_change()
        if self.members.get(member) != address:
            self._learners[member] = address
            self._next_index[member] = self._journal.last + 1
            self._match_index[member] = 0
            self._send_entries(member, now)

    def remove(self, member: str, now: float) -> tuple[int, int] | None:
        """Remove a member. A leader that removes itself ends when the change is committed. Returns index and
        term of the entry as `propose` does; None for an address that was no member. Raises NotLeader and
        ChangeUnderWay."""
        self._check_change()
        self._learners.pop(member, None)
        self.lost_journal.discard(member)
        members = self.members
        if member not in members:
            return None
        rest = {one: address for one, address in members.items() if one != member}
        return self._propose(members_entry(self.term, rest), now)

    def _check_change(self) -> None:
        if self.role is not Role.LEADER:
            raise NotLeader(self.leader_address)
        # Before a leader's own entry is committed it does not know which change of members held last.
        if self._journal.members()[0] > self.commit or self._first > self.commit:
            raise ChangeUnderWay("the last change of members is not committed yet")

    def _propose(self, entry: Entry, now: float) -> tuple[int, int]:
        index = self._journal.last + 1
        self._journal.append(index, [entry])
        for member in self._others():
            if member not in self._inflight:
                self._send_entries(member, now)
        self._advance(now)
        return index, entry.term

    def take_messages(self) -> list[tuple[str, bytes]]:
        """Messages to send since the last call: (address, bytes)."""
        messages, self._messages = self._messages, []
        return messages

    def take_applied(self) -> list[Applied]:
        """Entries applied since the last call."""
        applied, self._applied = self._applied, []
        return applied

    # ---- time ----

    def step(self, now: float) -> None:
        """Do the due work of time `now`."""
        if not self._recall.is_done:
            if now >= self._recall_at:
                self._recall_at = now + self.timing.heartbeat_s
                self._recall.warn(now)
                for member in self._recall.silent:
                    self._send(member, self._message("recall", sent_at=self._recall.token))
            return
        if self.role is Role.LEADER and self.stopped:
            self._become_follower(self.term, now)
        elif self.role is Role.LEADER:
            if max(self._led_at, self.lease_until(now)) + self.timing.election_s < now:
                log.warning("%s is no longer the leader: most of the controllers do not answer", self.me)
                self._become_follower(self.term, now)
            elif now >= self._heartbeat_at:
                self._heartbeat_at = now + self.timing.heartbeat_s
                for member in self._others():
                    self._send_entries(member, now)
        elif now >= self._election_at:
            self._election_at = now + self._election_timeout()
            may_ask = not self.stopped and not self.is_blank and self.me in self.members
            if may_ask and self._last_place() >= self._recall.place:
                self._campaign(now, pre=True)

    def _election_timeout(self) -> float:
        return self.timing.election_s * self._chance.uniform(1.0, 2.0)

    # ---- elections ----

    def _campaign(self, now: float, *, pre: bool) -> None:
        """Start an election, or with `pre` a pre-vote. The term grows only after a majority granted the
        pre-vote, so that a member that cannot win does not disturb the leader."""
        self.role, self.leader, self._votes = Role.PRE_CANDIDATE if pre else Role.CANDIDATE, "", {self.me}
        if not pre:
            self._journal.save(self.term + 1, self.me)
            self.elections += 1
            log.info("%s is a candidate in term %d", self.me, self.term)
        last = self._journal.last
        request = self._message(
            "pre_vote" if pre else "request_vote",
            index=last,
            log_term=self._journal.term_at(last),
            term=self.term + pre,
        )
        for member in self.members:
            if member != self.me:
                self._send(member, request)
        self._poll_votes(now)

    def _poll_votes(self, now: float) -> None:
        if len(self._votes & set(self.members)) < self._quorum():
            return
        if self.role is Role.PRE_CANDIDATE:
            self._campaign(now, pre=False)
        elif self.role is Role.CANDIDATE:
            self._become_leader(now)

    def _become_leader(self, now: float) -> None:
        log.warning("%s leads the controllers in term %d", self.me, self.term)
        self.role, self.leader, self._led_at = Role.LEADER, self.me, now
        self._answered, self._learners, self._inflight = {}, {}, {}
        self._next_index = dict.fromkeys(self.members, self._journal.last + 1)
        self._match_index = dict.fromkeys(self.members, 0)
        self.lost_journal = set()
        self._heartbeat_at = now + self.timing.heartbeat_s
        self._first, _ = self._propose(Entry(self.term, NOOP), now)

    def _in_lease(self, now: float) -> bool:
        """True if a lease or a forgotten promise forbids this member to grant a vote."""
        if self.is_blank:
            return True
        if self.role is Role.LEADER:
            return now < self.lease_until(now)
        return now < self._heard_at + self.timing.election_s

    def _is_up_to_date(self, message: Message) -> bool:
        return (message.log_term, message.index) >= max(self._last_place(), self._recall.place)

    def _last_place(self) -> Place:
        last = self._journal.last
        return self._journal.term_at(last), last

    # ---- forgotten promises ----

    @property
    def is_doubtful(self) -> bool:
        """True if this member may have forgotten agreed entries and has no other member to ask."""
        return self._journal.is_doubtful and not self._others()

    def trust(self) -> None:
        """Trust the journal again."""
        self._journal.doubt(False, self.term, self._journal.vote)

    def _on_recall(self, message: Message) -> None:
        term, last = self._last_place()
        answer = self._message("recalled", index=last, log_term=term, sent_at=message.sent_at)
        self._send(message.sender, answer)

    def _on_recalled(self, message: Message, now: float) -> None:
        recall, journal = self._recall, self._journal
        if recall.is_done or message.sent_at != recall.token:
            return
        recall.take(message.sender, message.term, (message.log_term, message.index))
        if not recall.is_done:
            return
        if now >= self._election_at:
            self._election_at = now + self._election_timeout()
        if recall.term or journal.is_doubtful:
            log.warning(
                "%s takes part again, without its votes and entries before term %d", self.me, recall.term
            )
            term = max(recall.term, journal.term)
            journal.doubt(True, term, UNKNOWN_VOTE if term == recall.term else journal.vote or UNKNOWN_VOTE)
            self._check_doubt()

    def _check_doubt(self) -> None:
        """Trust the journal as soon as it holds everything that the other members had."""
        if self._journal.is_doubtful and self._others() and self._last_place() >= self._recall.place:
            self.trust()

    def _on_pre_vote(self, message: Message, now: float) -> None:
        if self._in_lease(now):
            return
        granted = message.term >= self.term and self._is_up_to_date(message)
        # A candidate with a term below ours learns our term from the answer.
        term = message.term if granted else self.term
        self._send(message.sender, self._message("pre_vote_resp", granted=granted, term=term))

    def _on_request_vote(self, message: Message, now: float) -> None:
        if self._in_lease(now):
            return
        if message.term > self.term:
            self._become_follower(message.term, now)
        granted = (
            message.term == self.term
            and self._journal.vote in ("", message.sender)
            and self._is_up_to_date(message)
        )
        if granted and not self._journal.vote:
            self._journal.save(self.term, message.sender)
            self._election_at = now + self._election_timeout()
        self._send(message.sender, self._message("request_vote_resp", granted=granted))

    def _on_vote_resp(self, message: Message, now: float) -> None:
        pre = message.kind == "pre_vote_resp"
        if message.term > self.term and not (pre and message.granted):
            self._become_follower(message.term, now)
        elif (
            message.granted
            and self.role is (Role.PRE_CANDIDATE if pre else Role.CANDIDATE)
            and message.term == self.term + pre
        ):
            self._votes.add(message.sender)
            self._poll_votes(now)

    def _become_follower(self, term: int, now: float) -> None:
        """Become a follower, in a term that may be new."""
        if term > self.term:
            self._journal.save(term, "")
        if self.role is Role.LEADER:
            self._election_at = now + self._election_timeout()
        self.role, self.leader, self._heartbeat_at = Role.FOLLOWER, "", math.inf

    # ---- the log ----

    def _others(self) -> list[str]:
        return [member for member in {**self.members, **self._learners} if member != self.me]

    def _quorum(self) -> int:
        return len(self.members) // 2 + 1

    def _send_entries(self, member: str, now: float) -> None:
        """Send the entries that a member lacks, or a heartbeat. Both keep the member from starting an
        election."""
        journal = self._journal
        after = self._next_index.setdefault(member, journal.last + 1) - 1
        if after < journal.base:
            self._inflight[member] = now
            is_learner = member in self._learners
            install = self._message(
                "install_snapshot", snapshot=journal.snapshot, sent_at=now, is_learner=is_learner
            )
            self._send(member, install)
            return
        entries = journal.slice(after + 1, self._entries_max, BYTES_MAX)
        if entries:
            self._inflight[member] = now
        self._send(
            member,
            self._message(
                "append_entries",
                index=after,
                log_term=journal.term_at(after),
                entries=entries,
                commit=self.commit,
                sent_at=now,
                is_learner=member in self._learners,
            ),
        )

    def _on_leader(self, message: Message, now: float) -> bool:
        """True if a message is from the leader of our term. If so, follow that leader."""
        if message.term < self.term:
            self._send(message.sender, self._message("append_entries_resp", sent_at=message.sent_at))
            return False
        if message.term > self.term or self.role is not Role.FOLLOWER:
            assert message.term > self.term or self.role is not Role.LEADER, "two leaders of one term"
            self._become_follower(message.term, now)
        self.leader, self._heard_at, self._election_at = message.sender, now, now + self._election_timeout()
        return True

    def _on_append_entries(self, message: Message, now: float) -> None:
        if not self._on_leader(message, now):
            return
        journal, entries, after = self._journal, message.entries, message.index
        if self.stopped and entries and len(journal.entries) >= STOPPED_ENTRIES_MAX:
            return
        if after < journal.base:  # the entries of a snapshot are committed, and the same everywhere
            entries, after = entries[journal.base - after :], journal.base
        elif after > journal.last or journal.term_at(after) != message.log_term:
            self._answer(message, index=self._hint(after))
            return
        matched = max(after + len(entries), message.index + len(message.entries))
        for number, entry in enumerate(entries, after + 1):
            if number <= journal.last and journal.term_at(number) == entry.term:
                continue
            assert number > self.commit, "a leader takes back what was committed"
            journal.append(number, entries[number - after - 1 :])
            self._check_doubt()
            break
        # Behind `matched` there may be entries of an earlier leader.
        self._commit_to(min(message.commit, matched))
        self._answer(message, granted=True, index=matched)

    def _hint(self, after: int) -> int:
        """The highest index below `after` at which the leader's log may match ours."""
        journal = self._journal
        if after > journal.last:
            return journal.last
        wrong = journal.term_at(after)
        while after > max(journal.base, self.commit) and journal.term_at(after) == wrong:
            after -= 1
        return after

    def _on_install_snapshot(self, message: Message, now: float) -> None:
        if not self._on_leader(message, now):
            return
        snapshot = message.snapshot
        if snapshot is None:
            raise RemoteProtocolError("an install without a snapshot")
        if snapshot.index > self.applied:
            self._journal.install(snapshot)
            self._restore(snapshot)
            self._check_doubt()
            self.commit, self.applied = max(self.commit, snapshot.index), snapshot.index
        self._answer(message, granted=True, index=snapshot.index)

    def _answer(self, message: Message, *, index: int, granted: bool = False) -> None:
        # A leader adds this member, so it was no member before. Earlier versions do not send this.
        is_made = self.me in self.members if message.is_learner is None else message.is_learner
        if self.is_blank and is_made:
            self._journal.begin()
        is_blank = self.is_blank
        answer = self._message(
            "append_entries_resp", granted=granted, index=index, sent_at=message.sent_at, is_blank=is_blank
        )
        self._send(message.sender, answer)

    def _on_append_entries_resp(self, message: Message, now: float) -> None:
        member = message.sender
        if message.term > self.term:
            self._become_follower(message.term, now)
        if message.term < self.term or self.role is not Role.LEADER or member not in self._match_index:
            return
        if message.index > self._journal.last:
            raise RemoteProtocolError(f"{member} has entry {message.index}, and nobody ever had")
        if message.sent_at > now:
            raise RemoteProtocolError(f"{member} answers what was never sent")
        if message.sent_at >= self._inflight.get(member, -math.inf):
            self._inflight.pop(member, None)  # an earlier answer that comes twice leads to no entries
        is_late = message.sent_at <= self._answered.get(member, -math.inf)
        self._answered[member] = max(self._answered.get(member, -math.inf), message.sent_at)
        match = self._match_index[member]
        if message.is_blank and member in self.members:
            self._note_lost_journal(member)
        if not message.granted and message.index < match and not is_late:
            # The member's old match no longer counts, and it gets the entries again. A vote may be lost, too.
            self._note_lost_journal(member)
            self._match_index[member] = match = message.index
        if message.granted:
            self._match_index[member] = match = max(match, message.index)
            self._next_index[member] = max(self._next_index[member], match + 1)
        else:
            self._next_index[member] = max(match, min(self._next_index[member] - 2, message.index)) + 1
        self._advance(now)
        if self.role is Role.LEADER:
            self._promote(member, now)
            if self._next_index[member] <= self._journal.last and member not in self._inflight:
                self._send_entries(member, now)

    def _note_lost_journal(self, member: str) -> None:
        if member not in self.lost_journal:
            self.lost_journal.add(member)
            log.error("%s has lost its journal: drop it, and add it again with an empty folder", member)

    def _promote(self, member: str, now: float) -> None:
        """Let a learner vote once its log holds all committed entries. Before that, its vote would only delay
        the group."""
        address = self._learners.get(member)
        if address is None or self._match_index[member] < self.commit:
            return
        if self._journal.members()[0] <= self.commit:
            del self._learners[member]
            self._propose(members_entry(self.term, {**self.members, member: address}), now)

    def _advance(self, now: float) -> None:
        """Commit the entries that a majority has."""
        last = self._journal.last
        have = sorted(
            (last if one == self.me else self._match_index.get(one, 0) for one in self.members), reverse=True
        )
        agreed = have[self._quorum() - 1]
        # Entries of earlier terms only with one of this term: although a majority has them, a leader of a
        # term in between can still take them back (figure 8 of the paper).
        if agreed > self.commit and self._journal.term_at(agreed) == self.term:
            self._commit_to(agreed)
            if self.me not in self.members and self._journal.members()[0] <= self.commit:
                self._become_follower(self.term, now)

    def _commit_to(self, index: int) -> None:
        self.commit = max(self.commit, index)
        while self.applied < self.commit and not self.stopped:
            place = self.applied + 1
            entry = self._journal.entry(place)
            try:
                result = self._result(entry)
            except UnknownCommand as error:
                self._stop(f"entry {place} of the log, of term {entry.term}: {error}")
                return
            self._applied.append(Applied(place, entry.term, result))
            self.applied = place
        if self.applied - self._journal.base >= self._compact_entries:
            self._journal.compact(self.applied, self._machine.snapshot())

    def _result(self, entry: Entry) -> Any:
        """Apply an entry. Raises UnknownCommand."""
        if entry.kind == COMMAND:
            return self._machine.apply(entry.data)
        if entry.kind == MEMBERS:
            log.warning("the controllers are %s", ", ".join(sorted(entry.members.values())))
            return entry.members
        if entry.kind != NOOP:
            raise UnknownCommand(f"it is of kind {entry.kind}, which this version does not know")
        return None

    def _restore(self, snapshot: Snapshot) -> None:
        self.stopped = ""
        try:
            self._machine.restore(snapshot.data)
        except UnknownCommand as error:
            self._stop(f"the snapshot of the log up to entry {snapshot.index}: {error}")

    def _stop(self, reason: str) -> None:
        """Stop applying; `step` ends the lead."""
        self.stopped = reason
        log.error("%s HAS STOPPED: it cannot read %s. %s", self.me, reason, UnknownCommand.hint)

    # ---- messages ----

    def _message(self, kind: str, *, term: int | None = None, **rest: Any) -> Message:
        return Message(kind, self.me, self.address, self.term if term is None else term, **rest)

    def _send(self, member: str, message: Message) -> None:
        address = self.address_of(member)
        if address:
            self._messages.append((address, encode(message, to_earlier=member in self._earlier)))

    def receive(self, data: bytes, now: float) -> None:
        """Handle a message of another member. Raises RemoteProtocolError for bytes that are no message."""
        message = decode(data)
        if message.sender == self.me:
            raise RemoteProtocolError(f"another controller calls itself {self.me} too")
        message.check(self.term)
        if message.sender in self._addresses or len(self._addresses) < ADDRESSES_MAX:
            self._addresses[message.sender] = message.address
            if message.kind in EARLIER_KINDS:
                self._earlier.add(message.sender)
            elif message.kind in LATER_KINDS:
                self._earlier.discard(message.sender)
        message = in_present_kinds(message)
        if message.kind == "recall":
            self._on_recall(message)
            return
        if message.kind == "recalled":
            self._on_recalled(message, now)
            return
        if not self._recall.is_done:
            return  # a member that relies on its answer may do so in vain
        match message.kind:
            case "pre_vote":
                self._on_pre_vote(message, now)
            case "request_vote":
                self._on_request_vote(message, now)
            case "pre_vote_resp" | "request_vote_resp":
                self._on_vote_resp(message, now)
            case "append_entries":
                self._on_append_entries(message, now)
            case "install_snapshot":
                self._on_install_snapshot(message, now)
            case "append_entries_resp":
                self._on_append_entries_resp(message, now)
            case kind:
                raise RemoteProtocolError(f"a message of kind {kind!r}")
