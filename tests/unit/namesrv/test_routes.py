"""RouteTable: what a broker's coming and going does to the five tables."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from attrs import evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rmq.errors import SystemFailure
from rmq.namesrv.routes import (
    CLASH_MS,
    EXPIRY_MS,
    Registered,
    Registration,
    RouteLimits,
    RouteTable,
)
from rmq.protocol.bodies import (
    BrokerData,
    DataVersion,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicRouteData,
)
from rmq.protocol.codes import TOPIC_UNIT, TOPIC_UNIT_SUB

A_MASTER = Registration("C", "a", 0, "10.0.0.1:10911", "10.0.0.1:10912")
A_SLAVE = Registration("C", "a", 1, "10.0.0.2:10911", "10.0.0.2:10912")
B_MASTER = Registration("C", "b", 0, "10.0.0.3:10911", "10.0.0.3:10912")


def body_of(
    *topics: TopicConfig | str, version: int = 1, filters: tuple[str, ...] = ()
) -> RegisterBrokerBody:
    configs = [TopicConfig(topic, 4, 4) if isinstance(topic, str) else topic for topic in topics]
    table = {topic.topic_name: topic for topic in configs}
    return RegisterBrokerBody(TopicConfigSerializeWrapper(table, DataVersion(1, version)), list(filters))


def snapshot(table: RouteTable) -> Any:
    """All that a refusal must leave as it was."""
    return repr(
        [
            table.topic_queue_table,
            table.broker_addr_table,
            {name: sorted(brokers) for name, brokers in table.cluster_addr_table.items()},
            table.broker_live_table,
            table.filter_server_table,
        ]
    )


def is_empty(table: RouteTable) -> bool:
    tables = (
        table.topic_queue_table,
        table.broker_addr_table,
        table.cluster_addr_table,
        table.broker_live_table,
        table.filter_server_table,
    )
    return not any(tables)


def test_a_topic_is_found_once_its_master_registered() -> None:
    table = RouteTable()
    assert table.route("T") is None
    assert (
        table.register(A_MASTER, body_of(TopicConfig("T", 4, 8, 6, topic_sys_flag=1)), "link", 0)
        == Registered()
    )
    assert table.route("T") == TopicRouteData(
        [QueueData("a", 4, 8, 6, 1)], [BrokerData("C", "a", {0: "10.0.0.1:10911"})]
    )


def test_a_slave_learns_its_master_and_brings_no_topics() -> None:
    table = RouteTable()
    assert table.register(A_SLAVE, body_of("T"), "slave", 0) == Registered()
    assert table.route("T") is None
    table.register(A_MASTER, body_of("T"), "master", 0)
    assert table.register(A_SLAVE, body_of("T"), "slave", 0) == Registered("10.0.0.1:10912", "10.0.0.1:10911")
    route = table.route("T")
    assert route is not None
    assert route.broker_datas == [BrokerData("C", "a", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"})]


def test_topics_are_taken_again_only_when_their_version_changed() -> None:
    table = RouteTable()
    table.register(A_MASTER, body_of("T"), "link", 0)
    table.change_write_permission("a", writable=False)
    table.register(A_MASTER, body_of("T", "U"), "link", 0)
    assert table.topics().topic_list == ["T"]
    assert table.topic_queue_table["T"]["a"].perm == 4
    table.register(A_MASTER, body_of("T", "U", version=2), "link", 0)
    assert table.topics().topic_list == ["T", "U"]
    assert table.topic_queue_table["T"]["a"].perm == 6


def test_a_whole_registration_takes_away_what_it_does_not_have() -> None:
    table = RouteTable()
    table.register(A_MASTER, body_of("T", "Gone", "Both"), "c1", 0, is_whole=True)
    table.register(B_MASTER, body_of("Both"), "c2", 0, is_whole=True)
    table.register(A_MASTER, body_of("T", "New", version=2), "c1", 0, is_whole=True)
    assert {topic: set(queues) for topic, queues in table.topic_queue_table.items()} == {
        "T": {"a"},
        "New": {"a"},
        "Both": {"b"},
    }
    table.register(A_MASTER, body_of("Single", version=3), "c1", 0)  # as a Java broker tells of a new topic
    assert set(table.topic_queue_table) == {"T", "New", "Both", "Single"}
    table.register(A_SLAVE, body_of(version=9), "c3", 0, is_whole=True)
    assert set(table.topic_queue_table) == {"T", "New", "Both", "Single"}, "a slave has no say"
    for who in (A_MASTER, A_SLAVE, B_MASTER):
        table.unregister(who)
    assert is_empty(table)


def test_the_same_registration_again_is_told_by_its_digest() -> None:
    table = RouteTable()
    assert table.renew(A_MASTER, b"1", "link", 0) is None
    table.register(A_MASTER, body_of("T"), "link", 0, b"1")
    table.register(A_SLAVE, body_of("T"), "link", 0, b"1")
    assert table.renew(A_MASTER, b"2", "link", 5) is None
    assert table.renew(Registration("C", "a", 0, "10.0.0.1:10911", "other:1"), b"1", "link", 5) is None
    assert table.broker_live_table["10.0.0.1:10911"].last_update_ms == 0
    assert table.renew(A_MASTER, b"1", "new link", 7) == Registered()
    assert table.renew(A_SLAVE, b"1", "link", 7) == Registered("10.0.0.1:10912", "10.0.0.1:10911")
    held = table.broker_live_table["10.0.0.1:10911"]
    assert (held.last_update_ms, held.source) == (7, "new link")


def test_a_slave_may_become_master() -> None:
    table = RouteTable()
    table.register(A_MASTER, body_of("T"), "master", 0)
    table.register(A_SLAVE, body_of("T"), "slave", 0)
    promoted = Registration("C", "a", 0, A_SLAVE.broker_addr, A_SLAVE.ha_server_addr)
    table.register(promoted, body_of("T", version=2), "slave", 10)
    assert table.broker_addr_table["a"].broker_addrs == {0: A_SLAVE.broker_addr}
    assert list(table.broker_live_table) == [A_SLAVE.broker_addr]
    demoted = Registration("C", "a", 2, A_MASTER.broker_addr)
    assert table.register(demoted, body_of(), "master", 20).master_addr == A_SLAVE.broker_addr


def test_topics_that_a_slave_told_of_are_taken_when_it_is_master() -> None:
    """The master that made them was killed, or cut off from here, before it could tell."""
    table = RouteTable()
    table.register(A_MASTER, body_of("T"), "master", 0)
    table.register(A_SLAVE, body_of("T", "New", version=2), "slave", 0)
    promoted = Registration("C", "a", 0, A_SLAVE.broker_addr, A_SLAVE.ha_server_addr)
    table.register(promoted, body_of("T", "New", version=2), "slave", 10)
    assert sorted(table.topics().topic_list) == ["New", "T"]


def test_a_broker_whose_connection_closed_is_gone_at_once() -> None:
    table = RouteTable()
    table.register(A_MASTER, body_of("T", filters=("f:1",)), "one", 0)
    table.register(A_SLAVE, body_of("T"), "two", 0)
    assert [held.registration for held in table.source_closed("one")] == [A_MASTER]
    assert table.filter_server_table == {}
    route = table.route("T")
    assert route is not None
    assert route.broker_datas == [BrokerData("C", "a", {1: "10.0.0.2:10911"})]
    table.source_closed("two")
    assert is_empty(table)


def test_a_closed_connection_takes_nothing_that_registered_again_elsewhere() -> None:
    table = RouteTable()
    table.register(A_MASTER, body_of("T"), "one", 0)
    table.register(A_MASTER, body_of("T"), "two", 1)
    assert table.source_closed("one") == []
    assert table.route("T") is not None


def test_silence_of_two_minutes_ends_a_broker() -> None:
    table = RouteTable()
    table.register(A_MASTER, body_of("T"), "one", 1000)
    assert table.expire(1000 + EXPIRY_MS) == []
    table.touch(A_MASTER.broker_addr, 1001)
    assert table.expire(1001 + EXPIRY_MS) == []
    assert [held.source for held in table.expire(1002 + EXPIRY_MS)] == ["one"]
    assert is_empty(table)


def test_unregistering() -> None:
    table = RouteTable()
    table.register(A_MASTER, body_of("T"), "one", 0)
    table.register(B_MASTER, body_of("T"), "two", 0)
    assert not table.unregister(Registration("C", "b", 0, A_MASTER.broker_addr))
    assert not table.unregister(Registration("D", "a", 0, A_MASTER.broker_addr))
    assert not table.unregister(Registration("C", "a", 0, "10.9.9.9:1"))
    assert table.unregister(A_MASTER)
    assert table.topic_queue_table == {"T": {"b": QueueData("b", 4, 4, 6, 0)}}
    assert table.unregister(B_MASTER)
    assert is_empty(table)


def test_a_restarted_broker_may_have_a_new_name_cluster_or_address() -> None:
    table = RouteTable()
    table.register(A_MASTER, body_of("T"), "one", 0)
    renamed = Registration("C", "a2", 0, A_MASTER.broker_addr)
    table.register(renamed, body_of("T"), "one", 1)
    assert list(table.broker_addr_table) == ["a2"]
    moved = Registration("D", "a2", 0, A_MASTER.broker_addr)
    table.register(moved, body_of("T"), "one", 2)
    assert table.cluster_addr_table == {"D": {"a2"}}
    elsewhere = Registration("D", "a2", 0, "10.0.0.9:1")
    table.register(elsewhere, body_of("T"), "three", 2 + CLASH_MS)
    assert list(table.broker_live_table) == ["10.0.0.9:1"]
    other_cluster = Registration("E", "a2", 0, "10.0.0.8:1")
    table.register(other_cluster, body_of("T"), "four", 2 + 2 * CLASH_MS)
    assert table.cluster_addr_table == {"E": {"a2"}}
    assert table.broker_addr_table["a2"].cluster == "E"
    table.source_closed("four")
    assert is_empty(table)


def test_a_master_of_a_later_epoch_takes_the_place_of_one_that_is_cut_off() -> None:
    table = RouteTable()
    table.register(Registration("C", "s", 0, "10.0.0.1:1", epoch=4), body_of("T"), "one", 0)
    for epoch in (0, 4):
        with pytest.raises(SystemFailure, match="id 0 is"):
            table.register(Registration("C", "s", 0, "10.0.0.2:1", epoch=epoch), body_of("T"), "two", 1)
    table.register(Registration("C", "s", 0, "10.0.0.2:1", epoch=5), body_of("T"), "two", 2)
    assert table.broker_addr_table["s"].broker_addrs == {0: "10.0.0.2:1"}


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        (Registration("C", "a", 0, "10.0.0.7:1"), "id 0 is 10.0.0.1:10911, heard 59999 ms ago"),
        (Registration("D", "a", 3, "10.0.0.7:1"), "belongs to cluster C, not D"),
        (Registration("C", "b", 0, A_MASTER.broker_addr), "belongs to live broker a of cluster C"),
        (Registration("D", "a", 0, A_MASTER.broker_addr), "belongs to live broker a"),
        (Registration("", "x", 0, "h:1"), "clusterName"),
        (Registration("C", "", 0, "h:1"), "brokerName"),
        (Registration("C", "x;y:4", 0, "h:1"), "brokerName 'x;y:4'"),
        (Registration("C", "x y", 0, "h:1"), "brokerName"),
        (Registration("C", "x\0", 0, "h:1"), "brokerName"),
        (Registration("C", "../x", 0, "h:1"), "brokerName"),
        (Registration("C", "x" * 128, 0, "h:1"), "brokerName"),
        (Registration("C", "x", -1, "h:1"), "brokerId -1"),
        (Registration("C", "x", 0, "h"), "brokerAddr 'h'"),
        (Registration("C", "x", 0, ""), "brokerAddr"),
        (Registration("C", "x", 0, "h:0"), "brokerAddr"),
        (Registration("C", "x", 0, "h:65536"), "brokerAddr"),
        (Registration("C", "x", 0, "h:1,g:2"), "brokerAddr"),
        (Registration("C", "x", 0, "h:1", "h" * 301), "haServerAddr"),
    ],
)
def test_a_bad_or_clashing_broker_is_refused_and_nothing_changes(who: Registration, reason: str) -> None:
    table = RouteTable()
    table.register(A_MASTER, body_of("T"), "one", 0)
    table.register(A_SLAVE, body_of("T"), "two", 0)
    before = snapshot(table)
    with pytest.raises(SystemFailure, match=reason):
        table.register(who, body_of("T", "U", version=9), "other", CLASH_MS - 1)
    assert snapshot(table) == before


@pytest.mark.parametrize(
    "topic",
    [
        TopicConfig("", 1, 1),
        TopicConfig("a b", 1, 1),
        TopicConfig("../x", 1, 1),
        TopicConfig("x" * 256, 1, 1),
        TopicConfig("x", -1, 1),
        TopicConfig("x", 1, -1),
        TopicConfig("x", 1, 1, 16),
        TopicConfig("x", 1, 1, -1),
    ],
)
def test_a_bad_topic_refuses_the_whole_registration(topic: TopicConfig) -> None:
    table = RouteTable()
    with pytest.raises(SystemFailure, match="topic"):
        table.register(A_MASTER, body_of("T", topic), "one", 0)
    assert is_empty(table)


def test_a_topic_under_another_key_is_refused() -> None:
    body = body_of("T")
    body.topic_config_serialize_wrapper.topic_config_table["U"] = TopicConfig("T")
    with pytest.raises(SystemFailure, match="topic 'U' has the name 'T'"):
        RouteTable().register(A_MASTER, body, "one", 0)


def test_ipv6_and_named_hosts_may_register() -> None:
    table = RouteTable()
    for number, address in enumerate(["[::1]:10911", "fe80::1:10911", "broker-a.example.org:10911", "h_1:1"]):
        table.register(Registration("C", f"b{number}", 0, address), body_of(), "one", 0)
    assert len(table.broker_live_table) == 4


def test_the_tables_are_bounded() -> None:
    table = RouteTable(RouteLimits(brokers=2, queue_entries=3, filter_servers=1))
    table.register(A_MASTER, body_of("T", "U"), "one", 0)
    with pytest.raises(SystemFailure, match="no more topics may register: 2 of 3 are taken"):
        table.register(B_MASTER, body_of("T", "U"), "two", 0)
    with pytest.raises(SystemFailure, match="filter servers"):
        table.register(B_MASTER, body_of("T", filters=("a", "b")), "two", 0)
    table.register(B_MASTER, body_of("T"), "two", 0)
    with pytest.raises(SystemFailure, match="no more brokers may register: 2 of 2 are taken"):
        table.register(A_SLAVE, body_of(), "three", 0)
    table.register(A_MASTER, body_of("T", "U", version=2), "one", 0)
    table.delete_topic("U")
    table.register(B_MASTER, body_of("T", "V", version=2), "two", 0)
    table.unregister(A_MASTER)
    table.register(B_MASTER, body_of("T", "V", "W", version=3), "two", 0)


def test_write_permission_is_taken_and_given() -> None:
    table = RouteTable()
    table.register(A_MASTER, body_of("T", TopicConfig("U", 1, 1, 7)), "one", 0)
    table.register(B_MASTER, body_of("T"), "two", 0)
    assert table.change_write_permission("a", writable=False) == 2
    perms = {topic: queues["a"].perm for topic, queues in table.topic_queue_table.items()}
    assert perms == {"T": 4, "U": 5}
    assert table.topic_queue_table["T"]["b"].perm == 6
    assert table.change_write_permission("a", writable=True) == 2
    assert {queues["a"].perm for queues in table.topic_queue_table.values()} == {6}
    assert table.change_write_permission("nobody", writable=False) == 0


def test_topics_are_deleted_in_one_cluster_or_in_all() -> None:
    table = RouteTable()
    table.register(A_MASTER, body_of("T", "U"), "one", 0)
    table.register(Registration("D", "d", 0, "10.0.0.4:1"), body_of("T"), "two", 0)
    table.delete_topic("T", "C")
    assert list(table.topic_queue_table["T"]) == ["d"]
    table.delete_topic("T", "nowhere")
    table.delete_topic("nothing")
    assert table.topics().topic_list == ["T", "U"]
    table.delete_topic("T")
    assert table.topics().topic_list == ["U"]


def test_the_lists() -> None:
    table = RouteTable()
    unit, sub = (
        TopicConfig("unit", topic_sys_flag=TOPIC_UNIT),
        TopicConfig("sub", topic_sys_flag=TOPIC_UNIT_SUB),
    )
    both = TopicConfig("both", topic_sys_flag=TOPIC_UNIT | TOPIC_UNIT_SUB)
    table.register(A_MASTER, body_of("T", unit, sub, both), "one", 0)
    table.register(A_SLAVE, body_of(), "three", 0)
    table.register(Registration("D", "d", 0, "10.0.0.4:1"), body_of("T", "V"), "two", 0)
    assert table.topics().topic_list == ["T", "V", "both", "sub", "unit"]
    assert table.unit_topics().topic_list == ["both", "unit"]
    assert table.unit_sub_topics().topic_list == ["both", "sub"]
    assert table.unit_sub_ununit_topics().topic_list == ["sub"]
    assert table.topics_of_cluster("D").topic_list == ["T", "V"]
    assert table.topics_of_cluster("nowhere").topic_list == []
    system = table.system_topics()
    assert (system.topic_list, system.broker_addr) == (["C", "a", "D", "d"], "10.0.0.1:10911")
    info = table.cluster_info()
    assert info.cluster_addr_table == {"C": ["a"], "D": ["d"]}
    assert info.broker_addr_table["a"].broker_addrs == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
    assert RouteTable().system_topics().broker_addr is None


def test_filter_servers_come_with_the_route() -> None:
    table = RouteTable()
    table.register(A_MASTER, body_of("T", filters=("f:1", "f:2")), "one", 0)
    table.register(B_MASTER, body_of("U"), "two", 0)
    route = table.route("T")
    assert route is not None
    assert route.filter_server_table == {"10.0.0.1:10911": ["f:1", "f:2"]}
    route.filter_server_table.clear()
    route.broker_datas[0].broker_addrs.clear()
    assert table.route("T") != route
    other = table.route("U")
    assert other is not None
    assert other.filter_server_table == {}
    table.register(A_MASTER, body_of("T"), "one", 1)
    assert table.filter_server_table == {}


class Routes(RuleBasedStateMachine):
    """RouteTable against a list of the brokers that should be there, newest last."""

    NAMES = st.sampled_from(["a", "b"])
    HOSTS = st.sampled_from([f"10.0.0.{number}:1" for number in range(4)])
    LINKS = st.sampled_from(["one", "two", "three"])
    TOPICS = st.frozensets(st.sampled_from(["T", "U", "V"]))

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.now = 0
        self.live: dict[str, tuple[Registration, Any, int]] = {}
        self.topics: dict[str, set[str]] = {}
        self.versions = 0

    @rule(
        cluster=st.sampled_from(["C", "D"]),
        name=NAMES,
        number=st.integers(0, 2),
        host=HOSTS,
        link=LINKS,
        topics=TOPICS,
        is_whole=st.booleans(),
    )
    def register(
        self,
        cluster: str,
        name: str,
        number: int,
        host: str,
        link: str,
        topics: frozenset[str],
        is_whole: bool,
    ) -> None:
        who = Registration(cluster, name, number, host)
        self.versions += 1
        body = body_of(*sorted(topics), version=self.versions)
        before = snapshot(self.table)
        if not self.allowed(who, link):
            with pytest.raises(SystemFailure):
                self.table.register(who, body, link, self.now, is_whole=is_whole)
            assert snapshot(self.table) == before
            return
        self.table.register(who, body, link, self.now, is_whole=is_whole)
        for address, (other, _, _) in list(self.live.items()):
            if address == host and (other.cluster, other.broker_name) != (cluster, name):
                self.forget(address)
            elif (other.broker_name, other.broker_id) == (name, number):
                self.live.pop(address)
        self.live[host] = (who, link, self.now)
        if number == 0:
            held_topics = self.topics.setdefault(name, set())
            if is_whole:
                held_topics.clear()
            held_topics.update(topics)

    def allowed(self, who: Registration, link: str) -> bool:
        def defends(held: tuple[Registration, Any, int]) -> bool:
            return held[1] != link and self.now - held[2] < CLASH_MS

        mine = self.live.get(who.broker_addr)
        same = mine is not None and (mine[0].cluster, mine[0].broker_name) == (who.cluster, who.broker_name)
        if mine is not None and not same and defends(mine):
            return False
        of_name = [held for held in self.live.values() if held[0].broker_name == who.broker_name]
        known = any(held[0].broker_addr == who.broker_addr for held in of_name)
        for held in of_name:
            if held[0].broker_addr == who.broker_addr:
                continue
            takes_id = held[0].broker_id == who.broker_id
            if takes_id and not known and defends(held):
                return False
            if not takes_id and held[0].cluster != who.cluster:
                return False
        return True

    def forget(self, address: str) -> None:
        name = self.live.pop(address)[0].broker_name
        if not any(held[0].broker_name == name for held in self.live.values()):
            self.topics.pop(name, None)

    @rule(name=NAMES, host=HOSTS)
    def unregister(self, name: str, host: str) -> None:
        expected = host in self.live and self.live[host][0].broker_name == name
        who = self.live[host][0] if expected else Registration("C", name, 0, host)
        if not expected and host in self.live and self.live[host][0].broker_name == name:
            return
        assert self.table.unregister(who) == expected
        if expected:
            self.forget(host)

    @rule(link=LINKS)
    def close(self, link: str) -> None:
        gone = [address for address, held in self.live.items() if held[1] == link]
        assert {held.registration.broker_addr for held in self.table.source_closed(link)} == set(gone)
        for address in gone:
            self.forget(address)

    @rule(step=st.sampled_from([1, CLASH_MS, EXPIRY_MS]))
    def wait(self, step: int) -> None:
        self.now += step
        gone = [address for address, held in self.live.items() if held[2] + EXPIRY_MS < self.now]
        assert {held.registration.broker_addr for held in self.table.expire(self.now)} == set(gone)
        for address in gone:
            self.forget(address)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.live)))
        self.table.touch(address, self.now)
        who, link, _ = self.live[address]
        self.live[address] = (who, link, self.now)

    @rule(topic=st.sampled_from(["T", "U"]))
    def delete(self, topic: str) -> None:
        self.table.delete_topic(topic)
        for topics in self.topics.values():
            topics.discard(topic)

    @invariant()
    def tables_agree(self) -> None:
        table = self.table
        assert {
            address: (held.registration, held.source, held.last_update_ms)
            for address, held in table.broker_live_table.items()
        } == self.live
        by_name: dict[str, dict[int, str]] = {}
        clusters: dict[str, set[str]] = {}
        for who, _, _ in self.live.values():
            by_name.setdefault(who.broker_name, {})[who.broker_id] = who.broker_addr
            clusters.setdefault(who.cluster, set()).add(who.broker_name)
        assert {name: data.broker_addrs for name, data in table.broker_addr_table.items()} == by_name
        assert table.cluster_addr_table == clusters
        assert table._brokers_of == Counter(held.source for held in table.broker_live_table.values())
        names = (name for queues in table.topic_queue_table.values() for name in queues)
        assert table._topics_of == Counter(names)
        entries = {(topic, name) for name, topics in self.topics.items() for topic in topics}
        assert {
            (topic, name) for topic, queues in table.topic_queue_table.items() for name in queues
        } == entries
        assert table._entries.used == len(entries)
        assert table._brokers.used == len(table.broker_live_table)
        for topic in ("T", "U", "V"):
            route = table.route(topic)
            names = sorted(name for found, name in entries if found == topic)
            assert (route and [data.broker_name for data in route.broker_datas]) == (names or None)


TestRoutes = Routes.TestCase
TestRoutes.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


# --- limits of one ---


def test_one_broker_has_a_bounded_number_of_topics() -> None:
    table = RouteTable(RouteLimits(topics_of_broker=3))
    table.register(A_MASTER, body_of("S", "T"), "a", 1)
    before = snapshot(table)
    with pytest.raises(SystemFailure, match="broker a would have 4 topics, maxTopicsOfBroker is 3"):
        table.register(A_MASTER, body_of("U", "V", version=2), "a", 2)
    assert snapshot(table) == before
    table.register(A_MASTER, body_of("T", "U", version=3), "a", 3)
    table.register(B_MASTER, body_of("S", "T", "U"), "b", 3)
    table.delete_topic("S")
    table.register(A_MASTER, body_of("V", version=4), "a", 4)
    table.source_closed("a")
    table.source_closed("b")
    assert is_empty(table)
    assert table._topics_of == table._brokers_of == {}


def test_one_connection_registers_a_bounded_number_of_brokers() -> None:
    """Otherwise one peer could fill the table with unknown brokers, and keep all other brokers out."""
    table = RouteTable(RouteLimits(brokers_of_source=2))
    table.register(A_MASTER, body_of(), "one", 1)
    table.register(B_MASTER, body_of(), "one", 1)
    with pytest.raises(SystemFailure, match="2 brokers have registered over this connection"):
        table.register(A_SLAVE, body_of(), "one", 1)
    table.register(A_MASTER, body_of(version=2), "one", 2)  # who is in may register again
    table.register(A_SLAVE, body_of(), "two", 2)
    table.register(A_MASTER, body_of(version=3), "three", CLASH_MS * 2)  # over a new connection
    table.register(Registration("C", "c", 0, "10.0.0.9:1"), body_of(), "one", CLASH_MS * 2)
    assert table._brokers_of == {"one": 2, "two": 1, "three": 1}


def test_unregistering_with_another_id_does_not_remove_the_master() -> None:
    table = RouteTable()
    table.register(A_MASTER, body_of("T"), "one", 0)
    assert not table.unregister(evolve(A_MASTER, broker_id=1))
    assert table.route("T") is not None
    assert table.unregister(A_MASTER)
