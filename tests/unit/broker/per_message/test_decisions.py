"""Commits of several half messages with acknowledgements: all or nothing, wherever the broker is killed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rmq.broker import decisions
from rmq.broker.consume.per_message import ledger
from rmq.broker.doors import DoorPeer
from rmq.doors import Appended, TakenMessage, TakeRequest, transaction_id
from rmq.errors import AccessDenied, ResponseError
from rmq.message import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    TRANS_HALF_TOPIC,
    Message,
    StoredMessage,
)
from rmq.plugin import Hooks
from rmq.protocol.headers import EndTransactionRequestHeader
from rmq.testing.disk import MemoryDisk
from tests.unit.broker.per_message.peers import Stream
from tests.unit.broker.rig import Rig, send
from tests.unit.broker.taking import GROUP, TOPIC, restarted, step

PRODUCERS = "producers"
TARGETS = ("Bills", "Parcels")
REQUEST = TakeRequest(GROUP, TOPIC, from_first=True)


class Peer(DoorPeer):
    """A peer of a door with open transactions."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.broker, "test", Stream())
        self.rig = rig
        self.outcomes: list[ResponseError | None] = []

    def half(self, topic: str, body: bytes) -> tuple[str, str]:
        """Store a half message; returns its transaction id and unique key."""
        stored: list[Appended] = []
        properties = {
            PROPERTY_TRANSACTION_PREPARED: "true",
            PROPERTY_PRODUCER_GROUP: PRODUCERS,
            PROPERTY_UNIQUE_KEY: f"key-{body.decode()}",
        }
        self.append(Message(topic, body, properties=properties), stored.append, queue_id=0)
        step(self.rig)
        return transaction_id(stored[0]), properties[PROPERTY_UNIQUE_KEY]

    def commit_all(self, halves: Sequence[tuple[str, str]], taken: Sequence[TakenMessage] = ()) -> None:
        handles = [one.handle for one in taken]
        acknowledged = [(GROUP, TOPIC, handles)] if handles else []
        self.commit_transactions(PRODUCERS, halves, acknowledged, self.outcomes.append)


def prepared(count: int = 2, **given: object) -> tuple[Rig, Peer, list[tuple[str, str]], list[TakenMessage]]:
    """A broker with three messages that a peer has taken, and half messages for each target."""
    rig = Rig(**given)  # type: ignore[arg-type]
    for topic in (TOPIC, *TARGETS):
        rig.topic(topic, 1)
    rig.ask(*(send(TOPIC, b"%d" % number) for number in range(3)))
    peer = Peer(rig)
    taken = peer.take(REQUEST)
    halves = [peer.half(topic, b"%d" % number) for number in range(count) for topic in TARGETS]
    return rig, peer, halves, taken


def cut(rig: Rig, end: int) -> Rig:
    """The broker at its next start, when the log ends at an offset."""
    disk = rig.disk.copy()
    zero(disk, end, rig.store.max_physical_offset, rig.store_config.mapped_file_size_commit_log)
    return Rig(disk=disk)


def zero(disk: MemoryDisk, start: int, end: int, file_size: int) -> None:
    for path, file in disk._files.items():
        if "/commitlog/" in path:
            base = int(path.rpartition("/")[2])
            first, last = max(start - base, 0), min(end - base, file_size)
            if first < last:
                file.live[first:last] = bytes(last - first)


def state(rig: Rig) -> tuple[dict[str, list[bytes]], list[bytes]]:
    """The messages of each target, and those that the group gets again."""
    step(rig)
    again = [one.message.body for one in Peer(rig).take(REQUEST)]
    return {topic: rig.bodies(topic) for topic in TARGETS}, again


NOTHING = ({"Bills": [], "Parcels": []}, [b"0", b"1", b"2"])
ALL = ({"Bills": [b"0", b"1"], "Parcels": [b"0", b"1"]}, [b"2"])


def test_a_commit_has_all_messages_and_acknowledgements() -> None:
    rig, peer, halves, taken = prepared()
    peer.commit_all(halves, taken[:2])
    assert peer.outcomes == []
    step(rig)
    assert peer.outcomes == [None]
    assert [rig.bodies(topic) for topic in TARGETS] == [[b"0", b"1"], [b"0", b"1"]]
    assert rig.broker.transactions.open_count == 0
    assert len(rig.broker.decisions) == 0
    assert state(restarted(rig)) == ALL


def test_wherever_the_log_ends_a_commit_holds_as_a_whole_or_not_at_all() -> None:
    rig, peer, halves, taken = prepared()
    before = rig.store.max_physical_offset
    peer.commit_all(halves, taken[:2])
    rig.broker.group_commit.commit_pending()
    after = rig.store.max_physical_offset
    found = []
    for end in range(before, after + 1):
        if end % 29 == 0 or after - end < 3:
            once = cut(rig, end)
            one = state(once)
            assert one in (NOTHING, ALL), f"the log ends {end - before} bytes behind the commit's begin"
            assert state(restarted(once)) == one, "another start changes the commit"
            found.append(one == ALL)
    assert found == sorted(found)
    assert found[0] is False
    assert found[-1] is True
    assert found.count(True) > 10


def test_a_start_that_is_cut_off_too_commits_nothing_twice() -> None:
    rig, peer, halves, taken = prepared()
    before = rig.store.max_physical_offset
    peer.commit_all(halves, taken[:2])
    rig.broker.group_commit.commit_pending()
    messages = [rig.messages(topic)[0].physical_offset for topic in TARGETS]
    assert before < min(messages)
    for first in (min(messages), max(messages), max(messages) + rig.messages(TARGETS[1])[0].size):
        once = cut(rig, first)
        start = once.store.max_physical_offset
        once.put("Bills", body=b"another's")  # it comes between the start and what the start has to write
        step(once)
        for end in range(start, once.store.max_physical_offset + 1, 31):
            twice = cut(once, end)
            (bodies, again) = state(twice)
            assert again == [b"2"]
            assert [body for body in bodies["Bills"] if body != b"another's"] == [b"0", b"1"]
            assert bodies["Parcels"] == [b"0", b"1"]


def test_a_write_that_fails_leaves_nothing_of_the_commit() -> None:
    rig, peer, halves, taken = prepared()
    rig.disk.fail("write", "commitlog")
    peer.commit_all(halves, taken[:2])
    step(rig)
    rig.disk.heal()
    (error,) = peer.outcomes
    assert isinstance(error, ResponseError)
    assert [rig.bodies(topic) for topic in TARGETS] == [[], []]
    assert len(rig.broker.decisions) == 0
    peer.commit_all(halves, taken[:2])
    step(rig)
    assert peer.outcomes[1:] == [None]
    assert state(restarted(rig)) == ALL


def test_a_large_commit_is_written_in_steps_and_survives_a_failed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decisions, "STEP_MESSAGES", 3)
    rig, peer, halves, taken = prepared(5)
    before = rig.store.max_physical_offset
    peer.commit_all(halves, taken)
    rig.broker.group_commit.commit_pending()
    assert peer.outcomes == []
    rig.disk.fail("write", "commitlog")
    rig.broker.steps.deadlines(rig.seconds)
    rig.disk.heal()
    step(rig, decisions.RETRY_SECONDS)
    assert peer.outcomes == [None]
    numbers = [b"%d" % number for number in range(5)]
    assert [rig.bodies(topic) for topic in TARGETS] == [numbers, numbers]
    for end in range(before, rig.store.max_physical_offset, 97):
        (bodies, again) = state(cut(rig, end))
        assert (bodies, again) in (NOTHING, (dict.fromkeys(TARGETS, numbers), []))


def looks(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of half messages that a commit has looked at."""
    seen: list[str] = []
    look = rig.broker.transactions.open_half

    def open_half(header: EndTransactionRequestHeader, peer: DoorPeer) -> StoredMessage:
        seen.append(header.msg_id or "")
        return look(header, peer)

    monkeypatch.setattr(rig.broker.transactions, "open_half", open_half)
    monkeypatch.setattr(decisions, "LOOK_MESSAGES", 3)
    return seen


def test_a_commit_looks_at_some_half_messages_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 of them were one turn of the loop, of 2 s."""
    rig, peer, halves, taken = prepared(5)
    seen, before = looks(rig, monkeypatch), rig.store.max_physical_offset
    peer.commit_all(halves, taken)
    counts = [len(seen)]
    while len(seen) < len(halves):
        assert len(rig.broker.decisions) == 1
        due = rig.broker.decisions.step(rig.seconds)
        assert len(seen) == len(halves) or due <= rig.seconds, "the next turn goes on"
        counts.append(len(seen))
        assert rig.store.max_physical_offset == before
    assert counts == [0, 3, 6, 9, 10]
    assert peer.outcomes == []
    step(rig)
    assert peer.outcomes == [None]
    assert len(rig.broker.decisions) == 0
    numbers = [b"%d" % number for number in range(5)]
    for end in range(before, rig.store.max_physical_offset, 97):
        assert state(cut(rig, end)) in (NOTHING, (dict.fromkeys(TARGETS, numbers), []))


@pytest.mark.parametrize("fault", ["half", "lease", "disk"])
def test_a_commit_that_fails_while_it_looks_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    rig, peer, halves, taken = prepared(5)
    looks(rig, monkeypatch)
    peer.commit_all(halves, taken)
    rig.broker.decisions.step(rig.seconds)
    if fault == "half":
        peer.end_transaction(PRODUCERS, *halves[-1], False)
    elif fault == "lease":
        peer.nack(GROUP, TOPIC, [taken[0].handle], 0)
        Peer(rig).take(REQUEST)
    else:
        rig.disk.fail("write", "commitlog")
    step(rig)
    rig.disk.heal()
    (error,) = peer.outcomes
    assert isinstance(error, ResponseError)
    assert [rig.bodies(topic) for topic in TARGETS] == [[], []]
    assert len(rig.broker.decisions) == 0
    assert not rig.broker.transactions.decided, "the half messages may end otherwise"
    peer.commit_all(halves[:-1])
    step(rig)
    assert peer.outcomes[1:] == [None]


def test_a_half_message_that_a_commit_has_looked_at_does_not_end_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, peer, halves, _ = prepared(5)
    looks(rig, monkeypatch)
    peer.commit_all(halves)
    rig.broker.decisions.step(rig.seconds)
    refused: list[ResponseError | None] = []
    peer.end_transaction(PRODUCERS, *halves[0], False, refused.append)
    assert "is being committed" in str(refused[0])
    step(rig)
    assert peer.outcomes == [None]


def test_what_is_not_its_holders_any_more_ends_the_commit_before_it_begins() -> None:
    rig, peer, halves, taken = prepared()
    peer.acknowledge(GROUP, TOPIC, [taken[0].handle], lambda outcomes: None)
    peer.nack(GROUP, TOPIC, [taken[1].handle], 0)
    (again,) = Peer(rig).take(REQUEST)
    assert again.message.body == b"1"
    with pytest.raises(ResponseError, match="another consumer has the message"):
        peer.commit_all(halves, taken[:2])
    peer.end_transaction(PRODUCERS, *halves[0], False)
    with pytest.raises(ResponseError, match="has ended already"):
        peer.commit_all(halves)
    with pytest.raises(ResponseError, match="not the id of a transaction"):
        peer.commit_all([("nonsense", "key")])
    step(rig)
    assert [rig.bodies(topic) for topic in TARGETS] == [[], []]
    peer.commit_all(halves[1:])
    step(rig)
    assert [rig.bodies(topic) for topic in TARGETS] == [[b"1"], [b"0", b"1"]]


def test_nothing_to_commit_is_done_at_once() -> None:
    _, peer, _, _ = prepared(0)
    peer.commit_all([])
    assert peer.outcomes == [None]


def test_a_half_message_that_was_checked_meanwhile_is_committed_once() -> None:
    rig, peer, halves, taken = prepared(1)
    rig.let_pass(3_600_000)
    rig.broker.steps.transactions()
    while rig.broker.steps.transactions() <= rig.now_ms:
        pass
    assert len(rig.messages(TRANS_HALF_TOPIC)) == 4  # two of them are copies
    before = rig.store.max_physical_offset
    peer.commit_all(halves, taken[:1])
    step(rig)
    assert peer.outcomes == [None]
    whole = {"Bills": [b"0"], "Parcels": [b"0"]}, [b"1", b"2"]
    nothing = {"Bills": [], "Parcels": []}, [b"0", b"1", b"2"]
    for end in range(before, rig.store.max_physical_offset, 37):
        assert state(cut(rig, end)) in (whole, nothing)


def test_no_check_takes_a_half_message_from_its_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "STEP_MESSAGES", 1)
    rig, peer, halves, _ = prepared()
    rig.let_pass(3_600_000)
    peer.commit_all(halves)
    rig.broker.group_commit.commit_pending()
    for _ in range(3):
        rig.broker.steps.transactions()
    refused: list[ResponseError | None] = []
    peer.end_transaction(PRODUCERS, *halves[-1], False, refused.append)
    assert "is being committed" in str(refused[0])
    step(rig)
    assert [rig.bodies(topic) for topic in TARGETS] == [[b"0", b"1"], [b"0", b"1"]]
    assert rig.broker.transactions.open_count == 0


def test_a_snapshot_leaves_out_no_open_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "STEP_MESSAGES", 1)
    monkeypatch.setattr(ledger, "SNAPSHOT_RECORDS", 1)
    rig, peer, halves, taken = prepared()
    peer.commit_all(halves, taken[:2])
    rig.broker.group_commit.commit_pending()
    journal = len(rig.messages("rmq_sys_delivery_journal"))
    rig.broker.deliveries.step(rig.seconds)
    rig.broker.group_commit.commit_pending()
    assert len(rig.messages("rmq_sys_delivery_journal")) == journal
    assert state(restarted(rig)) == ALL


def test_an_account_commits_its_own_half_messages_only(monkeypatch: pytest.MonkeyPatch) -> None:
    _, peer, halves, taken = prepared(1)
    monkeypatch.setattr(Hooks, "may", lambda self, peer, action, name: False)
    with pytest.raises(AccessDenied, match="no permission to join"):
        peer.commit_all(halves, taken)
