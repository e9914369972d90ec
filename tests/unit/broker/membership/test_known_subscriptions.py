"""membership.known_subscriptions: what groups subscribe to, for brokers that their members have not told."""

from __future__ import annotations

import json
import sys

import pytest

from rmq.broker.filtering.subscription import parse_subscription
from rmq.broker.membership import known_subscriptions as module
from rmq.broker.membership.known_subscriptions import FORMER_MS, KnownSubscriptions
from rmq.broker.membership.members import ConsumerGroup
from rmq.broker.replication import table_replication
from rmq.broker.replication.table_replication import TableSender
from rmq.errors import RemoteProtocolError
from rmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from tests.unit.broker.membership.heartbeats import beat, consumer

from ..rig import Rig, Wire


def group(name: str, **topics: str) -> ConsumerGroup:
    wanted = {topic: SubscriptionData(topic, text, sub_version=1) for topic, text in topics.items()}
    return ConsumerGroup(name, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", wanted)


class Pair:
    """KnownSubscriptions of a master and of its slave. `groups` have members at the master."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.groups: dict[str, ConsumerGroup] = {}
        self.own: dict[str, ConsumerGroup] = {}  # of the slave
        self.master = KnownSubscriptions(self.groups, lambda: self.now)
        self.slave = KnownSubscriptions(self.own, lambda: self.now)
        self.feed = TableSender({"announcements": self.master}, lambda: 0)

    def tell(self) -> int:
        """Tell the slave what is new; returns the number of notes."""
        count, whole = 0, {}
        while note := self.feed.note(0.0):
            count += 1
            rows, version = self.slave.rows_of(note["rows"].encode())
            if "whole" not in note:
                self.slave.apply_delta(rows, version, note["gone"])
                continue
            whole |= rows
            if note["whole"][1]:
                self.slave.apply_delta(whole, version, None)
        return count

    def wants(self, name: str, topic: str = "T") -> str | None:
        """The knowledge of the slave about a group."""
        known = self.slave.of(name)
        wanted = None if known is None else known.subscriptions.get(topic)
        return None if wanted is None else wanted.sub_string

    def let_pass(self, milliseconds: int) -> None:
        self.now += milliseconds / 1000
        for one in (self.master, self.slave):
            one.expire(round(self.now * 1000))


def test_a_slave_knows_what_was_announced_to_its_master() -> None:
    pair = Pair()
    pair.groups["before"] = group("before", T="A", U="B || C")
    pair.tell()
    told = pair.slave.of("before")
    assert told is not None
    assert told.announced == pair.groups["before"].announced
    pair.groups["after"] = group("after", T="D")
    pair.master.changed("after")
    pair.tell()
    assert (pair.wants("before"), pair.wants("after")) == ("A", "D")
    pair.groups["after"] = group("after", U="E")
    pair.master.changed("after")
    assert pair.tell() == 1
    assert (pair.wants("after"), pair.wants("after", "U")) == (None, "E")
    assert pair.tell() == 0


def test_what_members_announce_here_goes_before_what_the_master_knows() -> None:
    pair = Pair()
    pair.groups["g"] = group("g", T="A")
    pair.tell()
    pair.own["g"] = group("g", T="B")
    assert pair.wants("g") == "B"
    assert pair.slave.all()["g"].subscriptions["T"].sub_string == "B"
    del pair.own["g"]
    assert pair.wants("g") == "A"


def test_what_is_gone_at_the_master_holds_for_a_minute() -> None:
    """Connections of clients end before a master that stops has told its last."""
    pair = Pair()
    pair.groups |= {"g": group("g", T="A"), "h": group("h", T="B")}
    pair.tell()
    del pair.groups["g"]
    pair.master.changed("g")
    pair.tell()
    pair.let_pass(FORMER_MS - 1)
    assert (pair.wants("g"), pair.wants("h")) == ("A", "B")
    pair.let_pass(1)
    assert (pair.wants("g"), pair.wants("h")) == (None, "B")
    assert pair.slave.all().keys() == {"h"}


def test_another_master_tells_all_that_it_knows() -> None:
    pair = Pair()
    pair.slave.apply_delta({"g": group("g", T="A"), "h": group("h", T="A")}, None, None)
    pair.groups["h"] = group("h", T="B")
    pair.tell()
    assert (pair.wants("g"), pair.wants("h")) == ("A", "B")
    pair.let_pass(FORMER_MS)
    assert (pair.wants("g"), pair.wants("h")) == (None, "B")


def test_a_new_master_tells_what_it_knew_before_and_when_that_is_over() -> None:
    pair = Pair()
    pair.master.restore({"g": group("g", T="A")})
    pair.tell()
    assert pair.wants("g") == "A"
    pair.groups["h"] = group("h", T="B")
    pair.master.left(pair.groups.pop("h"))
    pair.tell()
    assert pair.wants("h") == "B"
    pair.let_pass(FORMER_MS)
    pair.tell()
    assert pair.master.all() == {}
    pair.let_pass(FORMER_MS)
    assert pair.slave.all() == {}


def test_what_a_broker_knows_goes_to_its_next_role_without_members() -> None:
    rig, line = Rig(), Wire()
    beat(rig, line, "c", consumer("g", T="A"))
    rig.clients.known_subscriptions.apply_delta({"h": group("h", T="B")}, None, None)
    known = rig.clients.known_subscriptions.all()
    assert [(one.name, one.members) for one in known.values()] == [("h", {}), ("g", {})]
    assert rig.clients.consumer_ids("g") == ["c"]


@pytest.mark.parametrize(("is_cut", "wanted"), [(True, "A"), (False, None)])
def test_a_group_whose_last_connection_was_cut_may_come_again(is_cut: bool, wanted: str | None) -> None:
    rig, lines = Rig(), (Wire("h:1"), Wire("h:2"))
    for at, line in enumerate(lines):
        beat(rig, line, f"c{at}", consumer("g", T="A"))
    for line in lines:
        if is_cut:
            rig.clients.on_close(line)
        else:
            rig.clients.unregister(line, consumer_group="g")
    known = rig.clients.known_subscriptions.of("g")
    assert (None if known is None else known.subscriptions["T"].sub_string) == wanted
    assert rig.clients.consumer_group("g") is None, "it has no members"
    assert rig.clients.consumer_ids("g") == []


def test_each_change_of_what_is_announced_is_told_and_no_repetition() -> None:
    rig, line = Rig(), Wire()
    changes = rig.clients.known_subscriptions.changes
    changes.begin()
    told = []

    def says(data: ConsumerData) -> None:
        before = changes.serial
        beat(rig, line, "c", data)
        told.append(changes.serial - before)

    says(consumer("g"))
    says(consumer("g", T="A"))
    says(consumer("g", T="A"))
    newer = consumer("g")
    newer.subscription_data_set = [SubscriptionData("T", "B", sub_version=2)]
    says(newer)
    newer.message_model = "BROADCASTING"
    says(newer)
    assert told == [1, 1, 0, 1, 1]
    rig.clients.unregister(line, consumer_group="g")
    assert changes.since(changes.serial - 1) == ["g"]


def test_former_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORMER_BYTES_MAX", 4_000)
    pair = Pair()
    for name in ("a", "b", "a", "c", "d", "e"):
        pair.slave.left(group(name, T="A"))
    assert list(pair.slave.all()) == ["c", "d", "e"]
    pair.slave.left(group("f", T="A" * 20))
    assert list(pair.slave.all()) == ["e", "f"]
    pair.slave.left(group("g", T="A" * 200))
    assert list(pair.slave.all()) == []
    pair.let_pass(FORMER_MS)
    for name in ("h", "i", "j"):
        pair.slave.left(group(name, T="A"))
    assert list(pair.slave.all()) == ["h", "i", "j"]


def test_who_announces_too_much_is_not_told_to_slaves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A note that no frame holds would end each link to a slave."""
    pair = Pair()
    pair.groups |= {"g": group("g", T="A"), "h": group("h", T="x" * 1_000)}
    monkeypatch.setattr(module, "TOLD_BYTES_MAX", 1_000)
    pair.tell()
    assert (pair.wants("g"), pair.wants("h")) == ("A", None)
    assert "the subscriptions of group h are not replicated: 1" in caplog.text


def test_large_rows_go_in_several_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    pair.groups |= {f"g{at}": group(f"g{at}", T="x" * 500) for at in range(9)}
    monkeypatch.setattr(table_replication, "ROWS_BYTES", 2_500)
    assert pair.tell() >= 3
    assert pair.slave.all().keys() == pair.groups.keys()
    for name in pair.groups:
        pair.master.changed(name)
    monkeypatch.setattr(table_replication, "ROWS_BYTES", 10)
    assert pair.tell() == 9, "one row is the least"


@pytest.mark.parametrize("text", [b"", b"[]", b'{"consumerDataSet":[{"subscriptionDataSet":7}]}'])
def test_what_is_no_table_of_announcements_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Pair().slave.rows_of(text)


def test_rows_are_told_in_the_form_of_a_heartbeat() -> None:
    pair = Pair()
    pair.groups["g"] = group("g", T="A")
    told = json.loads(pair.master.text_of(["g", "nobody"]))
    (row,) = told.pop("consumerDataSet")
    assert told == {}
    assert (
        row
        == json.loads(HeartbeatData(consumer_data_set=[consumer("g", T="A")]).to_json())["consumerDataSet"][0]
    )


def test_how_large_a_group_is_taken_to_be_is_not_less_than_it_is() -> None:
    """Of short tags there are as many as fit, and each is a string, a hash and its place in two sets."""
    text = "||".join(f"{at:x}" for at in range(1_000))
    (data,) = HeartbeatData.from_json(
        HeartbeatData(
            consumer_data_set=[ConsumerData("g", subscription_data_set=[parse_subscription("T", text)])]
        ).to_json()
    ).consumer_data_set
    (wanted,) = data.subscription_data_set
    sets = sys.getsizeof(wanted.tags_set) + sys.getsizeof(wanted.code_set)
    size = (
        sets + sum(map(sys.getsizeof, wanted.tags_set)) + sum(map(sys.getsizeof, wanted.code_set)) + len(text)
    )
    assert size <= module._size(group("g", T=text)) <= 10 * size
