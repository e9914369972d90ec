"""Look at a cluster before its migration: the facts, from name servers, brokers, groups and connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rmq.errors import ConsumerNotOnline, NoRoute, RmqError, TopicNotExist, for_code
from rmq.message import RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from rmq.operate.migration.facts import BrokerTables, ClientKind, MigrationFacts, TopicTable
from rmq.operate.overview import Broker, overview
from rmq.operate.several import ask_each
from rmq.protocol.codes import MQVersion, RequestCode, ResponseCode
from rmq.protocol.command import Command

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.protocol.bodies import Connection, ConsumerConnection

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG"
COUNTED: Final = (SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC)
"""Topics of RocketMQ's own in which messages wait; the number of messages is a fact."""
LAST_PATCH, PATCHES = 7, 10
"""4.9.7 is the last version that `MQVersion` names; a minor version has ten patches."""
INTERNAL_GROUPS: Final = frozenset({"CLIENT_INNER_PRODUCER"})
"""Groups that clients create for themselves, not applications."""
GROUPS_NAMED: Final = 3
"""Groups that identify a kind of client."""


async def look(admin: Admin) -> MigrationFacts:
    """Collect the facts of the cluster. A broker or group that does not answer has an error, or is left out.
    Raises Unreachable, NoPermission and the ResponseError of a name server."""
    seen = await overview(admin)
    tables = await ask_each(range(len(seen.brokers)), lambda number: _tables(admin, seen.brokers[number]))
    facts = MigrationFacts(seen, list(tables.values()))
    groups = sorted({group for one in facts.brokers for group in one.groups})
    members = await ask_each(groups, lambda group: _members(admin, group))
    facts.sql_groups = tuple(group for group, found in members.items() if found and _has_sql(found))
    facts.broadcasting_groups = tuple(
        group for group, found in members.items() if found and found.message_model == "BROADCASTING"
    )
    connected = {group: list(found.connection_set) for group, found in members.items() if found}
    facts.clients = _kinds(connected | await _producers(admin, facts))
    facts.order_topics = tuple(await admin.kv_configs(ORDER_NAMESPACE))
    return facts


async def _tables(admin: Admin, broker: Broker) -> BrokerTables:
    found = BrokerTables(
        broker.name,
        broker.address,
        broker.kind == "java",
        broker.version,
        broker.role == "master",
        error=broker.error or "",
    )
    if broker.error:
        return found
    try:
        found.config = await admin.broker_config(broker.address)
        answer = await admin.call(broker.address, Command.request(RequestCode.GET_ALL_TOPIC_CONFIG))
        if answer.code != ResponseCode.SUCCESS:
            raise for_code(answer.code, answer.remark, broker.address)
        table = TopicTable.from_json(answer.body)
        found.topics = table.topic_config_table
        found.static_topics = tuple(sorted(table.topic_queue_mapping_detail_map or ()))
        if found.is_master:
            found.groups = await admin.group_configs(broker.address, system=False)
            found.stored = await _stored(admin, found)
    except RmqError as error:
        found.error = str(error)
    return found


async def _stored(admin: Admin, broker: BrokerTables) -> Mapping[str, int]:
    """Number of messages that the broker keeps of topics in which messages wait."""
    pop_retries = [
        topic
        for topic in broker.topics
        if topic.startswith(RETRY_PREFIX) and topic.removeprefix(RETRY_PREFIX) not in broker.groups
    ]
    counted = [topic for topic in (*COUNTED, *pop_retries) if topic in broker.topics]
    counted += [topic for topic in broker.topics if topic.startswith(REVIVE_PREFIX)]

    async def count(topic: str) -> int:
        try:
            stats = await admin.topic_stats(topic)
        except (NoRoute, TopicNotExist):
            return 0
        return sum(
            ends.max_offset - ends.min_offset
            for queue, ends in stats.items()
            if queue.broker_name == broker.name
        )

    return await ask_each(counted, count)


async def _members(admin: Admin, group: str) -> ConsumerConnection | None:
    try:
        return await admin.consumer_connection(group)
    except ConsumerNotOnline:
        return None
    except RmqError:  # a failed look at a group is no fault of the cluster
        return None


def _has_sql(found: ConsumerConnection) -> bool:
    return any(one.expression_type == "SQL92" for one in found.subscription_table.values())


async def _producers(admin: Admin, facts: MigrationFacts) -> dict[str, list[Connection]]:
    """Producer groups with their connections, where brokers report them (RocketMQ from 4.9.4 on)."""
    from rmq.protocol.bodies import Connection

    found: dict[str, list[Connection]] = {}
    for broker in facts.brokers:
        if broker.error or not broker.is_master:
            continue
        try:
            tables = await admin.producers(broker.address)
        except RmqError:
            continue
        for group, members in tables.items():
            found.setdefault(group, []).extend(
                Connection(one.client_id, one.remote_ip, one.language, one.version) for one in members
            )
    return found


def _kinds(connected: Mapping[str, list[Connection]]) -> list[ClientKind]:
    kinds: dict[tuple[str, str], set[str]] = {}
    for group, members in connected.items():
        for one in members:
            kinds.setdefault((one.language, version_name(one.version)), set()).add(group)
    return [
        ClientKind(language, version, tuple(sorted(groups - INTERNAL_GROUPS)[:GROUPS_NAMED]))
        for (language, version), groups in sorted(kinds.items())
    ]


def version_name(number: int) -> str:
    """The name of a version in the list of RocketMQ, such as V4_9_7; the number without a name.

    From 4.9.8 on each patch has two numbers, its snapshot and itself, and each minor version ten patches.
    """
    if number > MQVersion.V4_9_7:
        patches = LAST_PATCH + (number + 1 - MQVersion.V4_9_7) // 2
        minor, patch = divmod(patches - PATCHES, PATCHES)
        name = f"V4_9_{patches}" if patches < PATCHES else f"V5_{minor}_{patch}"
        snapshot = "" if (number - MQVersion.V4_9_7) % 2 == 0 else "_SNAPSHOT"
        return name + snapshot if minor < PATCHES else str(number)
    try:
        return MQVersion(number).name
    except ValueError:
        return str(number)
