"""Topics, groups and offsets that travel with the log: cut anywhere, a slave has what its messages need."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.broker.replication import table_replication
from rmq.broker.replication.sessions import REPORT, encode_note
from rmq.broker.replication.table_replication import OFFSETS_SECONDS
from rmq.broker.tables import versioned
from rmq.broker.wakeups import Wakeups
from rmq.errors import RemoteProtocolError
from rmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import DeleteTopicRequestHeader
from rmq.store.config import BrokerRole, FlushDiskType
from tests.unit.broker.table_links import Link, queues_of, slave

from ..rig import Rig, send


def shown(rig: Rig) -> dict[str, Any]:
    own = set(Rig().topics.table)
    return {
        "topics": {name: row for name, row in rig.topics.table.items() if name not in own},
        "groups": dict(rig.groups.table),
        "offsets": {pair: rig.offsets.of(pair[1], pair[0]) for pair in rig.offsets.pairs()},
    }


def test_a_message_that_a_slave_has_has_its_topic_there() -> None:
    master, to = Rig(), slave()
    link = Link(master, to)
    link.run()
    assert master.one(send(topic="New")).code == 0
    link.send()
    while link.wire:
        link.take(1)
        if to.store.max_physical_offset:
            assert "New" in to.topics.table
    assert to.store.max_offset("New", 0) + to.store.max_offset("New", 1) >= 0
    assert to.topics.table["New"] == master.topics.table["New"]
    assert to.topics.data_version == master.topics.data_version


def test_each_change_is_told_once_and_in_order() -> None:
    changes = versioned.Changes()
    changes.add(["before anybody asked"])
    assert changes.begin() == 0
    changes.add(["a", "b"])
    assert changes.since(0) == ["a", "b"]
    assert changes.since(1) == ["b"]
    changes.add(["a"])
    assert changes.since(0) == ["b", "a"]
    assert changes.since(2) == ["a"]
    assert changes.since(3) == []


def test_what_a_master_deletes_its_slave_forgets_and_both_find_it_no_more() -> None:
    master, to = Rig(), slave()
    link = Link(master, to)
    link.run()
    for name in ("A", "B"):
        master.topics.update(TopicConfig(name))
        master.groups.update(SubscriptionGroupConfig(f"of-{name}"))
        master.offsets.put("G", name, {0: 5})
    link.run()
    assert to.offsets.topics_of("G") == {"A", "B"}
    master.topics.delete("A")
    master.groups.delete("of-A")
    master.offsets.delete_topic("A")
    link.run()
    assert shown(to) == shown(master)
    assert to.offsets.topics_of("G") == {"B"}
    assert to.offsets.groups_of("A") == set()
    master.offsets.put("H", "C", {0: 1})
    link.run()
    assert to.offsets.groups_of("C") == {"H"}


def test_the_queues_of_a_deleted_topic_go_when_all_is_there_that_was_written_before() -> None:
    master, to = Rig(), slave()
    link = Link(master, to)

    def topics(rig: Rig) -> set[str]:
        return {topic for topic, _ in rig.store.queues()}

    def delete(topic: str) -> None:
        command = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic))
        assert master.one(command).code == 0

    for topic in ("A", "B", "C"):
        master.topics.update(TopicConfig(topic))
        assert master.one(send(topic)).code == 0
    link.run()
    assert topics(to) == {"A", "B", "C"}
    for topic in ("A", "B"):
        assert master.one(send(topic, body=b"late")).code == 0  # the slave has not got these
        delete(topic)
    link.send(1)
    link.take()
    assert to.topics.get("A") is None
    assert topics(to) == {"A", "B", "C"}
    master.topics.update(TopicConfig("B"))
    assert master.one(send("B", body=b"anew")).code == 0
    link.run()
    assert topics(to) == topics(master) == {"B", "C"}
    assert to.bodies("B") == master.bodies("B") == [b"anew"]
    assert to.bodies("C") == [b"hello"]


def delete(rig: Rig, topic: str) -> None:
    command = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic))
    assert rig.one(command).code == 0


def a_pair_with_messages() -> tuple[Rig, Rig]:
    """A master and a slave, which have topics A, B and C with three messages each, and no link."""
    master, to = Rig(), slave()
    for topic in ("A", "B", "C"):
        master.topics.update(TopicConfig(topic, 2, 2))
        for number in range(3):
            assert master.one(send(topic, body=b"%d" % number)).code == 0
        assert master.one(send(topic, body=b"x", queue_id=1)).code == 0
    Link(master, to).run()
    assert queues_of(to) == {"A", "B", "C"}
    return master, to


@pytest.mark.parametrize("anew", [0, 1, 5])
@pytest.mark.parametrize("taken", [1, 1 << 30])
def test_a_slave_that_was_away_forgets_topics_that_are_gone_or_were_made_again(anew: int, taken: int) -> None:
    master, to = a_pair_with_messages()
    for topic in ("A", "B"):
        assert master.one(send(topic, body=b"unseen")).code == 0
        delete(master, topic)
    master.topics.update(TopicConfig("B", 2, 2))
    for number in range(anew):
        assert master.one(send("B", body=b"anew %d" % number)).code == 0
    assert master.one(send("C", body=b"3")).code == 0

    link = Link(master, to)
    link.now += 2 * OFFSETS_SECONDS
    link.send()
    while link.wire:
        link.take(taken)

    assert queues_of(to) == queues_of(master)
    assert to.topics.get("A") is None
    assert to.bodies("B") == master.bodies("B") == [b"anew %d" % number for number in range(anew)]
    assert to.bodies("C") == master.bodies("C") == [b"0", b"1", b"2", b"3"]
    for queue_id in (0, 1):
        place = "B", queue_id
        assert to.store.min_offset(*place) == master.store.min_offset(*place) == 0
        assert to.store.max_offset(*place) == master.store.max_offset(*place)


def test_queues_that_a_deletion_left_before_a_restart_go_with_the_next_link() -> None:
    master, to = a_pair_with_messages()
    assert master.one(send("A", body=b"unseen")).code == 0
    delete(master, "A")
    Link(master, to).slave.received(_topics_note(master))
    assert (to.topics.get("A"), "A" in queues_of(to)) == (None, True)  # its log does not reach there
    to.broker.followed._deleted.clear()  # as by a restart
    Link(master, to).run()
    assert queues_of(to) == queues_of(master) == {"B", "C"}


def _topics_note(master: Rig) -> bytes:
    note = {"table": "topics", "rows": master.topics.text_of([]).decode(), "gone": ["A"]}
    return encode_note(note | {"end": master.store.max_physical_offset})


def test_a_slave_keeps_the_queues_that_its_master_has_without_a_row_and_those_that_take_them_over() -> None:
    """An example: topics.json of the master was lost; the messages are visible when the topic is created
    again."""
    master, to = a_pair_with_messages()
    master.topics.forget(["A", "B"])  # rows only
    master.topics.update(TopicConfig("B", 2, 2))
    creation = master.topics.table["B"].creation
    assert creation is not None
    assert creation.log_offset < master.store.max_physical_offset

    link = Link(master, to)
    link.run()
    assert to.topics.get("A") is None
    assert queues_of(to) == queues_of(master) == {"A", "B", "C"}
    master.topics.update(TopicConfig("A", 2, 2))
    assert master.one(send("A", body=b"3")).code == 0
    link.run()
    assert to.bodies("A") == master.bodies("A") == [b"0", b"1", b"2", b"3"]
    assert to.bodies("B") == [b"0", b"1", b"2"]


def test_a_queue_whose_messages_have_all_expired_keeps_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    master, to = a_pair_with_messages()
    to.topics.forget(["A"])  # as where the slave's table was damaged
    monkeypatch.setattr(to.store, "unit", lambda *place: None)
    Link(master, to).run()
    assert to.topics.get("A") is not None
    assert to.store.max_offset("A", 0) == 3


def test_settings_of_a_topic_made_again_do_not_keep_the_queues_of_the_earlier_one() -> None:
    master, to = a_pair_with_messages()
    assert master.one(send("A", body=b"unseen")).code == 0
    delete(master, "A")
    master.topics.update(TopicConfig("A", 2, 2))
    link = Link(master, to)
    link.now += 2 * OFFSETS_SECONDS
    for queues in (2, 3):
        master.topics.update(TopicConfig("A", queues, queues))
        link.send(1)
        link.take()
    link.run()
    assert to.topics.table["A"].write_queue_nums == 3
    assert queues_of(to) == queues_of(master) == {"B", "C"}


def test_the_offsets_of_an_earlier_topic_go_with_the_row_of_the_present_one() -> None:
    """A slave may be elected before it is told of the offsets, which follow."""
    master, to = a_pair_with_messages()
    for topic in ("A", "B"):
        master.offsets.commit("g", topic, 0, 2)
    Link(master, to).run()
    assert to.offsets.of("g", "A") == to.offsets.of("g", "B") == {0: 2}
    delete(master, "A")
    master.topics.update(TopicConfig("A", 2, 2))
    assert master.one(send("A", body=b"anew")).code == 0
    master.offsets.commit("g", "A", 0, 1)
    link = Link(master, to)
    link.send(1)
    link.take()
    assert to.topics.table["A"].creation == master.topics.table["A"].creation
    assert (to.offsets.of("g", "A"), to.offsets.of("g", "B")) == ({}, {0: 2})
    link.run()
    assert (to.offsets.of("g", "A"), to.offsets.of("g", "B")) == ({0: 1}, {0: 2})


def test_what_is_always_there_is_not_taken_away() -> None:
    to = slave()
    own = to.topics.table.keys()
    to.broker.followed.take({"table": "topics", "rows": '{"topicConfigTable":{}}', "gone": [*own]})
    assert to.topics.table.keys() == own


def test_a_slave_tells_name_servers_of_topics_that_come() -> None:
    rung: list[str] = []
    to = Rig(
        store={"broker_role": BrokerRole.SLAVE},
        broker_id=1,
        given={"wake": Wakeups(register=lambda: rung.append("register"))},
    )
    to.broker.followed.take({"table": "topics", "rows": Rig().topics.to_json().decode(), "gone": []})
    assert rung == []
    text = '{"topicConfigTable":{"New":{"topicName":"New","readQueueNums":4,"writeQueueNums":4,"perm":6}}}'
    to.broker.followed.take({"table": "topics", "rows": text, "gone": []})
    assert rung == ["register"]


NAMES = st.sampled_from(["A", "B", "C", "D"])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["topic", "no topic", "group", "no group", "commit", "send", "cut", "part", "run"]
            ),
            NAMES,
            st.integers(0, 40),
        ),
        max_size=40,
    )
)
@settings(max_examples=60)
def test_whatever_changes_and_wherever_a_link_breaks_the_slave_has_the_same_in_the_end(
    steps: list[tuple[str, str, int]],
) -> None:
    master, to = Rig(), slave()
    link = Link(master, to)
    for what, name, number in steps:
        topics, groups = master.topics, master.groups
        if what == "topic":
            topics.update(TopicConfig(name, 1 + number, 1 + number))
        elif what == "no topic":
            topics.delete(name)
            master.offsets.delete_topic(name)
        elif what == "group":
            groups.update(SubscriptionGroupConfig(name, retry_max_times=number))
        elif what == "no group":
            groups.delete(name)
            master.offsets.delete_group(name)
        elif what == "commit":
            master.offsets.put(name, "A", {number % 3: number})
        elif what == "send":
            assert master.one(send(topic=f"made-{name}")).code == 0
        elif what == "cut":
            link.send(number)
            link.take(number * 100)
            link = Link(master, to, link.now)
        elif what == "part":
            link.send(number % 4)
            link.take(number)
        else:
            link.run()
        for topic, _ in to.store.queues():
            assert topic in to.topics.table or topic not in topics.table
    link.run()
    link.run()
    assert shown(to) == shown(master)
    assert to.store.max_physical_offset == master.store.max_physical_offset


def test_large_tables_come_in_pieces_and_what_changes_meanwhile_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_replication, "ROWS", 10)
    master, to = Rig(), slave()
    for number in range(35):
        master.topics.update(TopicConfig(f"T{number}"))
    to.topics.update(TopicConfig("Only here"))
    link = Link(master, to)
    link.send(2)
    master.topics.delete("T34")
    master.topics.delete("T0")
    master.topics.update(TopicConfig("T1", 3, 3))
    link.take()
    assert "Only here" in to.topics.table  # until all is there
    link.run()
    assert shown(to) == shown(master)


def test_who_was_away_for_more_changes_than_are_kept_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versioned, "CHANGES_KEPT", 5)
    master, to = Rig(), slave()
    link = Link(master, to)
    link.run()
    master.topics.update(TopicConfig("Gone"))
    link.run()
    assert "Gone" in to.topics.table
    master.topics.delete("Gone")
    for number in range(8):
        master.topics.update(TopicConfig(f"T{number}"))
    link.run()
    assert shown(to) == shown(master)


def test_offsets_are_told_five_times_a_second_and_topics_at_once() -> None:
    master, to = Rig(), slave()
    link = Link(master, to)
    link.run()
    master.offsets.put("G", "A", {0: 1})
    link.now += OFFSETS_SECONDS / 2
    link.send()
    assert link.wire == b""
    master.topics.update(TopicConfig("A"))
    link.send(1)
    link.take()
    assert "A" in to.topics.table
    assert to.offsets.of("G", "A") == {}
    link.run()
    assert to.offsets.of("G", "A") == {0: 1}


def test_nothing_that_came_after_a_topic_is_reported_before_the_topic_is_saved() -> None:
    master, to = Rig(), slave(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    link = Link(master, to)
    assert master.one(send()).code == 0
    link.run()
    first = to.store.max_physical_offset
    assert REPORT.unpack(link.slave.report(1.0)) == (first,)
    to.disk.fail("write", "topics", times=100)
    assert master.one(send(topic="New")).code == 0
    link.run()
    assert to.store.max_physical_offset > first
    assert link.slave.report(100.0) == REPORT.pack(first)
    to.disk.heal()
    to.broker.group_commit.save_topics()
    assert link.slave.report(101.0) == REPORT.pack(to.store.max_physical_offset)
    again = Rig(disk=to.disk.copy(), store={"broker_role": BrokerRole.SLAVE}, broker_id=1)
    assert "New" in again.topics.table


def test_a_slave_that_is_told_by_the_link_does_not_take_older_texts() -> None:
    master, to = Rig(), slave()
    old = master.topics.to_json()
    link = Link(master, to)
    master.topics.update(TopicConfig("New"))
    work = to.broker.followed.copying("topics", old)
    next(work, None)
    link.run()
    for _ in work:
        pass
    to.broker.followed.copy("topics", old)
    assert "New" in to.topics.table
    to.broker.followed.begin()  # another link: perhaps to a master that tells nothing
    to.broker.followed.copy("topics", old)
    assert "New" not in to.topics.table


@pytest.mark.parametrize(
    "note",
    [
        {"table": "topics"},
        {"table": "topics", "rows": 5},
        {"table": "topics", "rows": "[]"},
        {"table": "topics", "rows": "{}", "gone": "x"},
        {"table": "consumerOffset", "rows": '{"offsetTable":{"a":5}}'},
    ],
)
def test_a_note_that_cannot_be_read_is_refused_and_changes_nothing(note: dict[str, Any]) -> None:
    to = slave()
    before = shown(to)
    with pytest.raises(RemoteProtocolError):
        to.broker.followed.take(note)
    assert shown(to) == before


def test_notes_about_other_things_and_unknown_tables_are_passed_over() -> None:
    to = slave()
    before = shown(to)
    for note in ({}, {"safe": 5}, {"table": 7}, {"table": "acl", "rows": "{}"}):
        to.broker.followed.take(note)
    assert shown(to) == before
    assert not to.broker.followed.is_fed
