"""Findings before a migration, from facts as brokers of RocketMQ 4.9.7 and 5.3.3 give them."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.operate.migration.facts import BrokerTables, ClientKind, Finding, MigrationFacts, TopicTable
from rmq.operate.migration.findings import findings
from rmq.operate.migration.look import version_name
from rmq.operate.overview import Overview
from rmq.protocol.bodies import GroupRetryPolicy, SubscriptionGroupConfig, TopicConfig


def java(name: str = "a", version: str = "V4_9_7", **fields: Any) -> BrokerTables:
    """A master of RocketMQ."""
    return BrokerTables(name, "10.0.0.1:10911", True, version, True, **fields)


def found(*brokers: BrokerTables, **fields: Any) -> list[Finding]:
    return findings(MigrationFacts(Overview(()), list(brokers), **fields))


def texts(all_found: list[Finding], level: str) -> list[str]:
    return [f"{one.where}: {one.what}" for one in all_found if one.level == level]


def test_a_plain_broker_can_be_moved() -> None:
    all_found = found(java(config={"brokerRole": "ASYNC_MASTER", "aclEnable": "false", "enableLmq": "false"}))
    assert texts(all_found, "stop") == []
    assert texts(all_found, "act") == []
    (one,) = all_found
    assert one.what_to_do.startswith("follow docs/runbooks.md, Java in and out; brokerIP1")


@pytest.mark.parametrize(
    ("key", "value", "level"),
    [
        ("enableDLegerCommitLog", "true", "stop"),
        ("enableControllerMode", "true", "act"),
        ("isInBrokerContainer", "true", "act"),
        ("enableSlaveActingMaster", "true", "act"),
        ("enableLmq", "true", "stop"),
        ("fetchNamesrvAddrByAddressServer", "true", "act"),
        ("authenticationEnabled", "true", "act"),
        ("authorizationEnabled", "true", "act"),
        ("aclEnable", "true", "act"),
        ("transientStorePoolEnable", "true", "note"),
        ("popConsumerKVServiceEnable", "true", "act"),
        ("defaultMessageRequestMode", "POP", "note"),
        ("storeType", "defaultRocksDB", "stop"),
        ("configManagerVersion", "v2", "stop"),
        ("messageStorePlugIn", "org.apache.rocketmq.tieredstore.TieredMessageStore", "stop"),
        ("messageStorePlugIn", "com.example.Store", "stop"),
        ("storePathCommitLog", "/a/commitlog,/b/commitlog", "act"),
    ],
)
def test_a_setting_is_found_with_its_remedy(key: str, value: str, level: str) -> None:
    all_found = [one for one in found(java(config={key: value})) if one.where == "broker a"]
    (one,) = all_found
    assert (one.level, one.what.partition(":")[0]) == (level, f"{key}={value}")
    assert one.what_to_do


def test_settings_without_effect_are_named_once_and_defaults_are_not() -> None:
    config = {"enableCalcFilterBitMap": "true", "maxDelayTime": "40", "maxLmqConsumeQueueNum": "7", "my": "x"}
    assert texts(found(java(config=config)), "note") == [
        f"cluster: {texts(found(java()), 'note')[0].removeprefix('cluster: ')}",
        "broker a: settings without effect: enableCalcFilterBitMap=true, maxLmqConsumeQueueNum=7",
    ]


def test_other_versions_and_silent_brokers() -> None:
    silent = java("b", error="cannot connect to 10.0.0.2:10911")
    ours = BrokerTables("c", "10.0.0.3:10911", False, "V4_9_7", True)
    all_found = found(java(version="V4_8_0"), silent, ours)
    assert texts(all_found, "stop") == ["broker b: could not be looked at: cannot connect to 10.0.0.2:10911"]
    notes = texts(all_found, "note")
    assert "broker a: version V4_8_0: the tests run with V4_9_7 and V5_3_3" in notes
    assert "cluster: already brokers of rmq: c" in notes
    assert texts(found(), "stop") == ["cluster: no broker is registered"]


def test_topics_of_5() -> None:
    kinds = {
        "Plain": None,
        "Fifo": {"message.type": "FIFO"},
        "Mixed": {"message.type": "MIXED"},
        "Compact": {"cleanup.policy": "COMPACTION"},
        "Batches": {"queue.type": "BatchCQ"},
        "Kept": {"other": "value"},
        "Usual": {"cleanup.policy": "DELETE", "queue.type": "SimpleCQ"},
        "%LMQ%phone": None,
    }
    topics = {name: TopicConfig(name, attributes=attributes) for name, attributes in kinds.items()}
    all_found = found(java(version="V5_3_3", topics=topics, static_topics=("Static",)))
    assert texts(all_found, "stop") == [
        "topics: static topics, whose queues are mapped over brokers: Static",
        "topics: light message queues (LMQ): %LMQ%phone",
        "topics: compacted topics, cleanup.policy=COMPACTION: Compact",
        "topics: topics with queues of batches, queue.type=BatchCQ: Batches",
    ]
    assert [one for one in texts(all_found, "act") if "message.type" in one] == [
        "topics: message.type=FIFO: Fifo"
    ]
    notes = [one for one in all_found if one.level == "note" and one.where == "topics"]
    assert [(one.what, one.what_to_do.partition(":")[0]) for one in notes] == [
        ("message.type=MIXED: Mixed", "nothing"),
        ("other=value: Kept", "the attribute is kept, and has no effect"),
    ]


def test_messages_that_wait() -> None:
    stored = {
        "SCHEDULE_TOPIC_XXXX": 3,
        "RMQ_SYS_TRANS_HALF_TOPIC": 2,
        "rmq_sys_wheel_timer": 1,
        "rmq_sys_REVIVE_LOG_DefaultCluster": 9,
        "%RETRY%billing_Orders": 4,
        "%RETRY%audit_Orders": 0,
    }
    all_found = found(java(version="V5_3_3", stored=stored))
    assert [one for one in texts(all_found, "note") if one.startswith("messages")] == [
        "messages: delayed messages: 3 are stored, delivered or not",
        "messages: transactions: 2 half messages are stored, ended or not",
    ]
    assert texts(all_found, "act") == [
        "broker a: version V5_3_3: only folders of 4.9.7 are tested there and back",
        "messages: messages with a delivery time of their own: 1 are stored, delivered or not",
        "messages: consumers use POP, or gRPC clients, retries in %RETRY%billing_Orders",
    ]
    assert not [one for one in found(java(stored=dict.fromkeys(stored, 0))) if one.where == "messages"]


def test_groups_clients_and_order() -> None:
    policy = SubscriptionGroupConfig("backing-off", group_retry_policy=GroupRetryPolicy("EXPONENTIAL"))
    clients = [
        ClientKind("JAVA", "V4_9_7", ("a", "b")),
        ClientKind("CPP", "V4_6_0", ("old",)),
        ClientKind("RUST", "V5_0_0", ()),
    ]
    names = tuple(f"group-{number}" for number in range(7))
    all_found = found(
        java(groups={"backing-off": policy}),
        clients=clients,
        sql_groups=("sifters",),
        broadcasting_groups=names,
        order_topics=("Ordered",),
    )
    assert texts(all_found, "act") == [
        "name servers: name servers keep the order of topics: Ordered",
        "clients: RUST V5_0_0",
    ]
    by_what = {one.what: one.what_to_do for one in all_found}
    assert by_what["filters by SQL92: sifters"] == "set enablePropertyFilter=true at a"
    assert "broadcasting: group-0, group-1, group-2, group-3, group-4 and 2 more" in by_what
    assert "retry policies of 5.x: backing-off" in by_what
    assert "docs/from_client_python.md" in by_what["CPP V4_6_0, old"]
    assert by_what["JAVA V4_9_7, a, b"] == "tested with 4.9.7 and 5.3.3"


def test_the_topics_of_a_5_x_broker_are_read_with_its_static_ones() -> None:
    body = (
        b'{"topicConfigTable":{"Static":{"attributes":{"message.type":"FIFO"},"perm":6,"topicName":"Static"}},'
        b'"topicQueueMappingDetailMap":{"Static":{"bname":"a","hostedQueues":{0:[{"gen":0}]}}}}'
    )
    table = TopicTable.from_json(body)
    assert list(table.topic_queue_mapping_detail_map or ()) == ["Static"]
    assert table.topic_config_table["Static"].attributes == {"message.type": "FIFO"}
    assert TopicTable.from_json(b'{"topicConfigTable":{}}').topic_queue_mapping_detail_map is None


def test_versions_have_their_names() -> None:
    assert version_name(407) == "V4_9_7"
    assert [version_name(number) for number in (409, 413, 478, 479)] == [
        *("V4_9_8", "V5_0_0", "V5_3_3_SNAPSHOT", "V5_3_3")
    ]
    assert version_name(999_999) == "999999"
