"""Findings about a cluster before its migration. Pure; `look` collects the facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from rmq.message import RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from rmq.operate.migration.facts import LEVELS, BrokerTables, ClientKind, Finding, MigrationFacts
from rmq.operate.migration.look import REVIVE_PREFIX
from rmq.operate.migration.settings import settings_findings

TRIED: Final = ("V4_9_7", "V5_3_3")
"""Versions of RocketMQ with which the tests run."""
NAMES: Final = 5
"""Names of topics or groups that a finding lists."""
LMQ_PREFIX: Final = "%LMQ%"
_CLIENTS: Final = {
    "JAVA": "tested with 4.9.7 and 5.3.3",
    "GO": "tested with rocketmq-client-go v2",
    "PYTHON": "tested: the client of rmq",
    "CPP": "not tested; programs of rocketmq-client-python, which is made of it, move by one import"
    " (docs/from_client_python.md)",
    "OTHER": "Node's ali-ons is among them, which is tested",
}
_UNTRIED: Final = "not tested with rmq: try this client with a test cluster first"
_KNOWN_ATTRIBUTES: Final = ("message.type", "retention.ms", "retention.bytes")


def findings(facts: MigrationFacts) -> list[Finding]:
    """Judge the facts: findings in the order stop, act, note."""
    found = [
        *_cluster(facts),
        *(finding for broker in facts.brokers for finding in _of_broker(broker)),
        *_topics(facts),
        *_messages(facts),
        *_groups(facts),
        *(_client(kind) for kind in facts.clients),
    ]
    return sorted(dict.fromkeys(found), key=lambda finding: LEVELS.index(finding.level))


def _cluster(facts: MigrationFacts) -> Iterator[Finding]:
    if not facts.brokers:
        yield Finding("stop", "cluster", "no broker is registered", "name the name servers of the cluster")
        return
    ours = [one.name for one in facts.brokers if not one.is_java and not one.error]
    if ours:
        yield Finding("note", "cluster", f"already brokers of rmq: {_some(ours)}", "nothing")
    if facts.order_topics:
        what = f"name servers keep the order of topics: {_some(facts.order_topics)}"
        todo = "copy kvConfig.json to each new name server (docs/runbooks.md, Java in and out)"
        yield Finding("act", "name servers", what, todo)
    if any(one.is_java for one in facts.brokers):
        what = "move brokers one by one, with their folders and settings"
        todo = (
            "follow docs/runbooks.md, Java in and out; brokerIP1, storePathRootDir and namesrvAddr must stand"
        )
        yield Finding("note", "cluster", what, f"{todo} in broker.conf")


def _of_broker(broker: BrokerTables) -> Iterator[Finding]:
    where = f"broker {broker.name}"
    if broker.error:
        todo = "start it, or use an administrator's account, and check again"
        yield Finding("stop", where, f"could not be looked at: {broker.error}", todo)
        return
    if not broker.is_java:
        return
    if broker.version not in TRIED:
        todo = (
            "try the move with a copy of its folder first: `rmq store check DIR`, then start a broker on it"
        )
        yield Finding(
            "note", where, f"version {broker.version}: the tests run with {' and '.join(TRIED)}", todo
        )
    if broker.is_5:
        todo = "try the move, and the way back, with a copy of the folder first; or consume the messages and"
        what = f"version {broker.version}: only folders of 4.9.7 are tested there and back"
        yield Finding("act", where, what, f"{todo} send them to a new broker of rmq")
    yield from settings_findings(broker)


def _topics(facts: MigrationFacts) -> Iterator[Finding]:
    java = [one for one in facts.brokers if one.is_java]
    static = {topic for one in java for topic in one.static_topics}
    if static:
        what = f"static topics, whose queues are mapped over brokers: {_some(static)}"
        todo = (
            "create an ordinary topic, move the producers to it, and delete the static topic when it "
            "is consumed"
        )
        yield Finding("stop", "topics", what, todo)
    lmq = {topic for one in java for topic in one.topics if topic.startswith(LMQ_PREFIX)}
    if lmq:
        todo = "leave the topics of the MQTT proxy at RocketMQ"
        yield Finding("stop", "topics", f"light message queues (LMQ): {_some(lmq)}", todo)
    yield from _attributes(java)


def _attributes(brokers: Iterable[BrokerTables]) -> Iterator[Finding]:
    found: dict[tuple[str, str], set[str]] = {}
    for broker in brokers:
        for topic, config in broker.topics.items():
            for name, value in (config.attributes or {}).items():
                found.setdefault((name, value), set()).add(topic)
    for (name, value), topics in sorted(found.items()):
        what = f"{name}={value}: {_some(topics)}"
        if (name, value.upper()) == ("cleanup.policy", "COMPACTION"):
            todo = "retention here is by time and size: keep the latest message of each key elsewhere"
            yield Finding("stop", "topics", f"compacted topics, {what}", todo)
        elif (name, value) == ("queue.type", "BatchCQ"):
            todo = "their queue files cannot be read: make an ordinary topic and move the producers there"
            yield Finding("stop", "topics", f"topics with queues of batches, {what}", todo)
        elif name == "message.type" and value != "MIXED":
            todo = (
                "rmq's brokers check the type of each message, RocketMQ's only in the proxy: if clients"
                " send other types by remoting, set message.type=MIXED at rmq's broker (`mqadmin updateTopic"
                " -a +message.type=MIXED` of 5.x); RocketMQ takes MIXED with enableMixedMessageType=true"
            )
            yield Finding("act", "topics", what, todo)
        elif name in _KNOWN_ATTRIBUTES:
            yield Finding("note", "topics", what, "nothing: the attribute means the same here")
        elif (name, value) not in (("cleanup.policy", "DELETE"), ("queue.type", "SimpleCQ")):
            yield Finding("note", "topics", what, "the attribute is kept, and has no effect")


def _messages(facts: MigrationFacts) -> Iterator[Finding]:
    java = [one for one in facts.brokers if one.is_java]

    def stored(prefix: str) -> int:
        return sum(count for one in java for topic, count in one.stored.items() if topic.startswith(prefix))

    if count := stored(SCHEDULE_TOPIC):
        what = f"delayed messages: {count} are stored, delivered or not"
        yield Finding("note", "messages", what, "nothing: waiting messages are delivered after the move")
    if count := stored(TRANS_HALF_TOPIC):
        what = f"transactions: {count} half messages are stored, ended or not"
        yield Finding("note", "messages", what, "nothing: open transactions are checked back after the move")
    if count := stored(TIMER_TOPIC):
        what = f"messages with a delivery time of their own: {count} are stored, delivered or not"
        todo = "wait until none is waiting before the move: the timer wheel of RocketMQ 5.x is not read"
        yield Finding("act", "messages", what, todo)
    retries = {
        topic: count
        for one in java
        for topic, count in one.stored.items()
        if topic.startswith(RETRY_PREFIX) and count
    }
    if stored(REVIVE_PREFIX) or retries:
        listed = f", retries in {_some(retries)}" if retries else ""
        what = f"consumers use POP, or gRPC clients{listed}"
        todo = "stop these consumers, wait for one invisible time until their retries are consumed, then move"
        yield Finding("act", "messages", what, f"{todo}: leases of RocketMQ's brokers are not read")


def _groups(facts: MigrationFacts) -> Iterator[Finding]:
    if facts.sql_groups:
        off = [
            one.name
            for one in facts.brokers
            if one.is_master and one.config.get("enablePropertyFilter") != "true"
        ]
        todo = f"set enablePropertyFilter=true at {_some(off)}" if off else "nothing: the setting stays"
        yield Finding("note", "groups", f"filters by SQL92: {_some(facts.sql_groups)}", todo)
    if facts.broadcasting_groups:
        what = f"broadcasting: {_some(facts.broadcasting_groups)}"
        todo = "nothing at the servers: each client keeps its offsets in a file; leave the files in place"
        yield Finding("note", "groups", what, todo)
    policies = {
        name
        for one in facts.brokers
        if one.is_java
        for name, config in one.groups.items()
        if config.group_retry_policy is not None and config.group_retry_policy.type != "CUSTOMIZED"
    }
    if policies:
        what = f"retry policies of 5.x: {_some(policies)}"
        yield Finding("note", "groups", what, "nothing for POP consumers; push consumers use delay levels")


def _client(kind: ClientKind) -> Finding:
    named = f", {_some(kind.groups)}" if kind.groups else ""
    what = f"{kind.language} {kind.version}{named}"
    todo = _CLIENTS.get(kind.language)
    return Finding("note" if todo else "act", "clients", what, todo or _UNTRIED)


def _some(names: Iterable[str]) -> str:
    listed = sorted(set(names))
    rest = len(listed) - NAMES
    return ", ".join(listed[:NAMES]) + (f" and {rest} more" if rest > 0 else "")
