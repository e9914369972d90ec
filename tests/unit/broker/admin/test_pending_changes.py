"""Changes of topics and groups are answered when they are saved, and taken back when they cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.broker.admin import pending_changes
from rmq.broker.wakeups import Wakeups
from rmq.errors import StoreError
from rmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
)

from ..rig import Rig, Wire, send


class SlowRig(Rig):
    """A broker whose tables are saved when the test says so."""

    def __init__(self, **given: Any) -> None:
        super().__init__(given={"wake": Wakeups(new_topics=lambda: None)}, **given)
        self.broker.topics.update(TopicConfig("Known"))
        self.broker.groups.update(SubscriptionGroupConfig("known"))
        assert self.one(send("Known")).code == 0
        self.offsets.put("known", "Known", {0: 1})

    def save(self, name: str) -> None:
        table = self.broker.files.versioned[name]
        made = table.made
        try:
            self.broker.files.save(name, table.to_json())
        except StoreError as error:
            self.broker.changes.not_saved(name, error)
        else:
            table.saved(made)
            self.broker.changes.saved(name, made)

    def again(self) -> Rig:
        return Rig(disk=self.disk.copy())


def topic_set(name: str, queues: int = 3) -> Command:
    header = CreateTopicRequestHeader(name, "TBW102", queues, queues, 6, "SINGLE_TAG", 0, order=False)
    return Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


def group_set(name: str, tries: int) -> Command:
    body = SubscriptionGroupConfig(name, retry_max_times=tries).to_json()
    return Command.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


TOPIC_DELETED = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader("Known"))
GROUP_DELETED = Command.request(
    RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupRequestHeader("known", remove_offset=True)
)
TOPICS, GROUPS = "topics", "subscriptionGroup"
CHANGES = {
    "new topic": (TOPICS, topic_set("New")),
    "changed topic": (TOPICS, topic_set("Known", 5)),
    "deleted topic": (TOPICS, TOPIC_DELETED),
    "new group": (GROUPS, group_set("new", 3)),
    "changed group": (GROUPS, group_set("known", 4)),
    "deleted group": (GROUPS, GROUP_DELETED),
}


def state(rig: Rig) -> tuple[object, ...]:
    return (
        dict(rig.topics.table),
        dict(rig.groups.table),
        rig.offsets.pairs(),
        rig.store.max_offset("Known", 0),
    )


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_holds_at_once_and_is_answered_when_it_is_saved(kind: str) -> None:
    name, request = CHANGES[kind]
    rig = SlowRig()
    before = state(rig)
    assert rig.ask(request) == []
    assert (rig.topics.table, rig.groups.table) != before[:2]
    held = (dict(rig.topics.table), dict(rig.groups.table))
    assert (rig.again().topics.table, rig.again().groups.table) == before[:2]
    rig.save(GROUPS if name == TOPICS else TOPICS)
    assert rig.wire.take() == []
    rig.save(name)
    (answer,) = rig.wire.take()
    assert (answer.code, answer.opaque) == (0, request.opaque)
    again = rig.again()
    assert (again.topics.table, again.groups.table) == held
    rig.save(name)
    assert rig.wire.take() == []


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_that_cannot_be_saved_is_taken_back_and_refused(kind: str) -> None:
    name, request = CHANGES[kind]
    rig = SlowRig()
    before = state(rig)
    assert rig.ask(request) == []
    rig.disk.fail("write", name)
    rig.save(name)
    (answer,) = rig.wire.take()
    assert answer.code != 0
    assert "write failed" in (answer.remark or "")
    assert state(rig) == before
    rig.save(name)
    assert rig.wire.take() == []
    again = rig.again()
    assert (again.topics.table, again.groups.table) == before[:2]


def test_messages_and_offsets_go_when_the_deletion_is_saved_and_not_before() -> None:
    rig = SlowRig()
    assert rig.ask(TOPIC_DELETED) == []
    assert "Known" in [topic for topic, _ in rig.store.queues()]
    assert rig.offsets.of("known", "Known") == {0: 1}
    rig.save(TOPICS)
    assert rig.wire.take()[0].code == 0
    assert not [topic for topic, _ in rig.store.queues() if topic == "Known"]
    assert rig.offsets.of("known", "Known") == {}


def test_a_topic_is_not_made_again_before_its_deletion_is_saved() -> None:
    """Slaves that have heard of it have no queues of it any more."""
    rig = SlowRig()
    assert rig.ask(TOPIC_DELETED) == []
    again = [*rig.ask(topic_set("Known", 7)), *rig.ask(send("Known"))]
    assert [answer.code for answer in again] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    assert ["is being deleted" in (answer.remark or "") for answer in again] == [True] * 2
    rig.save(TOPICS)
    assert [answer.code for answer in rig.wire.take()] == [0]
    assert rig.ask(topic_set("Known", 7)) == []
    rig.save(TOPICS)
    assert rig.again().topics.table["Known"].write_queue_nums == 7
    assert rig.store.max_offset("Known", 0) == 0


def test_a_topic_whose_deletion_is_taken_back_can_be_changed() -> None:
    rig = SlowRig()
    assert rig.ask(TOPIC_DELETED) == []
    rig.disk.fail("write", TOPICS)
    rig.save(TOPICS)
    assert [answer.code == 0 for answer in rig.wire.take()] == [False]
    assert rig.ask(topic_set("Known", 7)) == []
    rig.save(TOPICS)
    assert [answer.code for answer in rig.wire.take()] == [0]


def test_of_two_changes_both_are_taken_back_in_turn() -> None:
    rig = SlowRig()
    before = state(rig)
    assert rig.ask(topic_set("Known", 5), topic_set("Known", 6), topic_set("New")) == []
    rig.disk.fail("write", TOPICS)
    rig.save(TOPICS)
    assert [answer.code == ResponseCode.SUCCESS for answer in rig.wire.take()] == [False] * 3
    assert state(rig) == before


def test_a_change_during_a_save_waits_for_the_next() -> None:
    rig = SlowRig()
    table = rig.topics
    assert rig.ask(topic_set("One")) == []
    made = table.made
    text = table.to_json()
    assert rig.ask(topic_set("Two")) == []
    rig.broker.files.save(TOPICS, text)
    table.saved(made)
    rig.broker.changes.saved(TOPICS, made)
    assert len(rig.wire.take()) == 1
    rig.save(TOPICS)
    assert len(rig.wire.take()) == 1
    assert {"One", "Two"} <= rig.again().topics.table.keys()


def test_what_is_deleted_twice_is_answered_at_once_the_second_time() -> None:
    rig = Rig()
    rig.broker.topics.update(TopicConfig("Known"))
    rig.broker.groups.update(SubscriptionGroupConfig("known"))
    for request in (TOPIC_DELETED, GROUP_DELETED) * 2:
        assert rig.one(request).code == 0


def test_a_change_is_not_taken_back_over_a_later_one() -> None:
    topics = Rig().topics
    undo = topics.change("T", TopicConfig("T", 1, 1))
    topics.change("T", TopicConfig("T", 2, 2))
    undo()
    assert topics.table["T"].write_queue_nums == 2
    taken_back = topics.change("T", None)
    topics.ended("T", 0)
    topics.change("T", TopicConfig("T", 3, 3))
    taken_back()
    assert topics.table["T"].write_queue_nums == 3


def test_changes_that_wait_are_bounded_and_no_administrator_has_all_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pending_changes, "CHANGES_MAX", 8)
    rig, other = SlowRig(), Wire("10.0.0.2:1")
    for number in range(4):
        assert rig.ask(topic_set(f"New{number}")) == []
    before = state(rig)
    for request in (topic_set("Late"), group_set("late", 3), TOPIC_DELETED, GROUP_DELETED):
        (answer,) = rig.ask(request)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "of the changes that wait to be saved 4 of 8 are taken by" in (answer.remark or "")
    assert state(rig) == before
    assert rig.ask(topic_set("Other"), wire=other) == []
    rig.save(TOPICS)
    assert [answer.code for answer in rig.wire.take()] == [0] * 4
    assert rig.ask(topic_set("Late")) == []
