"""Groups: list, look at, create, change, delete; members and their stacks; groups without members."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import anyio
import msgspec
from attrs import evolve, frozen

from rmq.client.admin import GroupProgress, QueueProgress
from rmq.client.admin.reports import version_name
from rmq.dashboard.access.roles import Role
from rmq.dashboard.errors import NoAnswer, NotConfirmed, UnknownName
from rmq.dashboard.operations import figures
from rmq.dashboard.operations.operation import Call, operation
from rmq.dashboard.operations.topics import Deleted, Page, Size
from rmq.errors import ConsumerNotOnline, NoRoute, RmqError, SystemFailure
from rmq.message import dlq_topic, retry_topic, validate_group
from rmq.operate import groups as operate_groups
from rmq.operate import members as operate_members
from rmq.operate.groups import StalledQueue
from rmq.operate.several import ask_each
from rmq.protocol.bodies import ConsumerConnection, SubscriptionData, SubscriptionGroupConfig

KEPT: Final = "Not given: as it is; for a new group"


@frozen
class GroupRow:
    """A group of the list. `members` is the number of connected consumers; -1: not known."""

    name: str
    lag: int
    topics: list[str]
    out_rate: float
    members: int
    mode: str


@frozen
class GroupList:
    """A page of the list; `total` is the number of groups that were found."""

    rows: list[GroupRow]
    total: int
    page: int
    size: int
    lag: int


@operation("GET", "/groups")
async def groups(
    call: Call, *, search: str = "", sort: Literal["lag", "name"] = "lag", page: Page = 1, size: Size = 50
) -> GroupList:
    """The consumer groups with a text in their name, by lag or by name."""
    configs = await figures.all_group_configs(call)
    progress = await figures.all_progress(call)
    names = [name for name in sorted({*configs, *progress}) if search.lower() in name.lower()]
    names = [name for name in names if name in configs]
    lags = {name: progress[name].lag if name in progress else 0 for name in names}
    if sort == "lag":
        names.sort(key=lambda name: (-lags[name], name))
    shown = names[(page - 1) * size : page * size]
    members = await ask_each(shown, lambda name: _members(call, name))
    rows = []
    for name in shown:
        found, known = members[name], progress.get(name)
        topics = {row.message_queue.topic for row in known.queues} if known else set()
        rows.append(
            GroupRow(
                name,
                lags[name],
                sorted(topics - {retry_topic(name)}),
                known.consume_tps if known else 0.0,
                len(found.connection_set) if found else 0,
                _mode(found),
            )
        )
    return GroupList(rows, len(names), page, size, sum(lags.values()))


async def _members(call: Call, group: str) -> ConsumerConnection | None:
    try:
        return await call.admin.consumer_connection(group)
    except RmqError:
        return None


def _mode(found: ConsumerConnection | None) -> str:
    if found is None:
        return ""
    return {"BROADCASTING": "broadcasting", "CLUSTERING": "clustering"}.get(str(found.message_model), "")


@frozen
class GroupQueue:
    """Progress of a group in a queue. `last_consumed_at`: the store time of the last consumed message."""

    topic: str
    broker: str
    queue: int
    offset: int
    end: int
    lag: int
    last_consumed_at: int


@frozen
class Member:
    """A consumer that is connected."""

    client_id: str
    address: str
    language: str
    version: str


@frozen
class Subscribed:
    """A subscription of a group."""

    topic: str
    expression: str
    kind: str


@frozen
class GroupPart:
    """The settings of a group on one master."""

    broker: str
    consume: bool
    broadcast: bool
    retries: int
    retry_queues: int


@frozen
class GroupDetail:
    """All about a group. `dead_letters` is the number of messages that it has given up."""

    name: str
    parts: list[GroupPart]
    queues: list[GroupQueue]
    lag: int
    out_rate: float
    members: list[Member]
    subscriptions: list[Subscribed]
    mode: str
    consume_from: str
    topics: list[str]
    dead_letters: int
    seen: str


@operation("GET", "/groups/{group}")
async def group(call: Call, *, group: str) -> GroupDetail:
    """A group: lag by queue, members, subscriptions, settings by broker."""
    await figures.check_group(call, group)
    progress = await figures.progress_of_group(call, group)
    found = await _members(call, group)
    configs = await _configs(call, group)
    rows = progress.queues if progress else []
    subscriptions = sorted(found.subscription_table.items()) if found else []
    return GroupDetail(
        group,
        await _parts(call, configs),
        [_queue(row) for row in rows],
        progress.lag if progress else 0,
        progress.consume_tps if progress else 0.0,
        [
            Member(one.client_id, one.client_addr, one.language, version_name(one.version))
            for one in (found.connection_set if found else [])
        ],
        [_subscribed(topic, data) for topic, data in subscriptions],
        _mode(found),
        str(found.consume_from_where or "") if found else "",
        sorted({row.message_queue.topic for row in rows} | {topic for topic, _ in subscriptions}),
        await _dead(call, group),
        figures.fingerprint(configs),
    )


def _subscribed(topic: str, data: SubscriptionData) -> Subscribed:
    return Subscribed(topic, data.sub_string, data.expression_type or "TAG")


async def _configs(call: Call, group: str) -> dict[str, SubscriptionGroupConfig]:
    """The settings of a group by the master's address."""
    try:
        return await call.admin.group_config(group)
    except RmqError:  # an account that is no administrator may see the rest
        return {}


async def _parts(call: Call, configs: dict[str, SubscriptionGroupConfig]) -> list[GroupPart]:
    if not configs:
        return []
    names = {address: name for name, address in (await figures.masters(call)).items()}
    return [
        GroupPart(
            names.get(address, address),
            config.consume_enable,
            config.consume_broadcast_enable,
            config.retry_max_times,
            config.retry_queue_nums,
        )
        for address, config in configs.items()
    ]


async def _dead(call: Call, group: str) -> int:
    try:
        stats = await call.admin.topic_stats(dlq_topic(group))
    except RmqError:
        return 0
    return sum(ends.max_offset - ends.min_offset for ends in stats.values())


def _queue(row: QueueProgress) -> GroupQueue:
    queue = row.message_queue
    return GroupQueue(
        queue.topic,
        queue.broker_name,
        queue.queue_id,
        row.consumer_offset,
        row.broker_offset,
        row.lag,
        row.last_timestamp,
    )


# --- members ---

AnswerSeconds = Annotated[
    float, msgspec.Meta(ge=0.1, le=15, description="Time to wait for each member, in seconds.")
]


@frozen
class MemberQueue:
    """A queue of a member: the committed offset, and the messages in memory."""

    topic: str
    broker: str
    queue: int
    committed: int
    cached: int
    cached_from: int
    locked: bool
    pulled_at: int
    consumed_at: int


@frozen
class MemberDetail:
    """State of a consumer. `stack` is empty unless requested."""

    client_id: str
    properties: dict[str, str]
    subscriptions: list[Subscribed]
    queues: list[MemberQueue]
    rates: dict[str, dict[str, float]]
    stack: str


@operation("GET", "/groups/{group}/member")
async def member(
    call: Call, *, group: str, client_id: str, stack: bool = False, answer_seconds: AnswerSeconds = 3
) -> MemberDetail:
    """Ask a member for its state: settings, queues, rates and, if asked for, its stack."""
    info = None
    with anyio.move_on_after(answer_seconds):
        try:
            info = await call.admin.consumer_running_info(group, client_id, stack=stack)
        except SystemFailure:
            await check_member(call, group, client_id)
            raise
    if info is None:
        raise NoAnswer(f"{client_id} of {group} has not answered within {answer_seconds:g} s")
    queues = [
        MemberQueue(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            one.commit_offset,
            one.cached_msg_count,
            one.cached_msg_min_offset,
            one.locked,
            one.last_pull_timestamp,
            one.last_consume_timestamp,
        )
        for queue, one in sorted(info.mq_table.items())
    ]
    rates = {
        topic: {
            "consumed a second": one.consume_ok_tps,
            "failed a second": one.consume_failed_tps,
            "ms for a message": one.consume_rt,
            "ms for a pull": one.pull_rt,
            "failed in the last hour": float(one.consume_failed_msgs),
        }
        for topic, one in sorted(info.status_table.items())
    }
    return MemberDetail(
        client_id,
        dict(sorted(info.properties.items())),
        [_subscribed(one.topic, one) for one in sorted(info.subscription_set, key=lambda one: one.topic)],
        queues,
        rates,
        info.jstack or "",
    )


async def check_member(call: Call, group: str, client_id: str) -> None:
    """Raises UnknownName unless the member is connected, ConsumerNotOnline when no member is."""
    known = [one.client_id for one in (await call.admin.consumer_connection(group)).connection_set]
    if client_id not in known:
        raise UnknownName(f"{group} has no member {client_id}; members are {', '.join(sorted(known))}")


@frozen
class ConsumeTime:
    """A queue's times: of its first and last message and of the one consumed last; `late_ms` is the delay."""

    broker: str
    queue: int
    first_at: int
    last_at: int
    consumed_at: int
    late_ms: int


@frozen
class Stalled:
    """A queue whose oldest unread message has waited long; -1: unreadable."""

    topic: str
    broker: str
    queue: int
    offset: int
    lag: int
    waits_ms: int


@frozen
class Disagreement:
    """Members that subscribe to one topic differently: expression -> their client ids."""

    topic: str
    expressions: dict[str, list[str]]


@frozen
class GroupCheck:
    """Faults of a group: stalled queues, members that disagree, and members that did not answer (client id ->
    why). `members` were asked."""

    members: int
    stalled: list[Stalled]
    conflicts: list[Disagreement]
    owners: dict[str, str]
    silent: dict[str, str]


@operation("GET", "/groups/{group}/check")
async def check_group(
    call: Call,
    *,
    group: str,
    after_seconds: Annotated[float, msgspec.Meta(ge=0)] = 60,
    answer_seconds: AnswerSeconds = 3,
) -> GroupCheck:
    """Ask the members of a group, and look for stalled queues and subscriptions that differ.

    `owners`: topic/broker/queue -> the member that has the queue.
    """
    await figures.check_group(call, group)
    call.progress.report(0, note="reading the oldest messages that wait")
    try:
        stuck = await operate_groups.stalled(
            call.client, group, now_ms=call.now_ms(), after_ms=int(after_seconds * 1000)
        )
    except (ConsumerNotOnline, NoRoute) as error:
        figures.check_never_consumed(error)
        stuck = []
    try:
        asked = await operate_members.members(
            call.admin, group, within=answer_seconds, answered=call.progress.report
        )
    except ConsumerNotOnline:
        asked = []
    return GroupCheck(
        len(asked),
        [_stalled(one) for one in stuck],
        [
            Disagreement(one.topic, {text: list(ids) for text, ids in one.expressions.items()})
            for one in operate_members.conflicts(asked)
        ],
        {
            f"{queue.topic}/{queue.broker_name}/{queue.queue_id}": one.client_id
            for one in asked
            for queue in one.queues or ()
        },
        {one.client_id: one.error for one in asked if one.error},
    )


def _stalled(one: StalledQueue) -> Stalled:
    queue = one.queue.message_queue
    return Stalled(
        queue.topic,
        queue.broker_name,
        queue.queue_id,
        one.queue.consumer_offset,
        one.queue.lag,
        -1 if one.waits_ms is None else one.waits_ms,
    )


@operation("GET", "/groups/{group}/times")
async def consume_times(call: Call, *, group: str, topic: str) -> list[ConsumeTime]:
    """By how much a group is late in each queue of a topic, in ms."""
    await figures.check_group(call, group)
    spans = await call.admin.consume_time_span(group, topic)
    return [
        ConsumeTime(
            one.message_queue.broker_name,
            one.message_queue.queue_id,
            one.min_time_stamp,
            one.max_time_stamp,
            one.consume_time_stamp,
            one.delay_time,
        )
        for one in spans
        if one.message_queue is not None
    ]


# --- settings ---


@frozen
class GroupChange:
    """A group that was created or changed."""

    group: str
    servers: list[str]


@operation("PUT", "/groups/{group}", Role.OPERATOR)
async def put_group(
    call: Call,
    *,
    group: str,
    retries: Annotated[int, msgspec.Meta(ge=-1, le=1000, description=f"{KEPT}, 16.")] | None = None,
    retry_queues: Annotated[int, msgspec.Meta(ge=1, le=64, description=f"{KEPT}, 1.")] | None = None,
    consume: Annotated[bool | None, msgspec.Meta(description=f"{KEPT}, true.")] = None,
    broadcast: Annotated[bool | None, msgspec.Meta(description=f"{KEPT}, true.")] = None,
    broker: str = "",
    seen: figures.Seen = "",
) -> GroupChange:
    """Create a consumer group, or change its settings. Settings that are not given stay."""
    validate_group(group)
    if broker:
        await figures.check_master(call, broker)
    given = {
        "retry_max_times": retries,
        "retry_queue_nums": retry_queues,
        "consume_enable": consume,
        "consume_broadcast_enable": broadcast,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    known = await call.admin.group_config(group)
    figures.check_seen("group", group, seen, known)
    some = next(iter(known.values()), SubscriptionGroupConfig(group))
    servers = await call.admin.broker_addresses(broker=broker)
    for address in servers:
        await call.admin.put_group(evolve(known.get(address, some), **changes), broker=address)
    return GroupChange(group, servers)


@operation("DELETE", "/groups/{group}", Role.ADMIN)
async def delete_group(
    call: Call,
    *,
    group: str,
    confirm: Annotated[str, msgspec.Meta(description="The name, repeated.")],
    remove_offsets: bool = True,
) -> Deleted:
    """Delete a consumer group, its retry topic and its dead letters."""
    if confirm != group:
        raise NotConfirmed(f"to delete {group}, its name has to be given again")
    await figures.check_group(call, group)
    return Deleted(group, await call.admin.delete_group(group, remove_offset=remove_offsets))


# --- groups without members ---


@frozen
class StreamRow:
    """A group without members: its topics, lag, and the time of the last message that it has read."""

    group: str
    topics: list[str]
    lag: int
    read_up_to: int


@operation("GET", "/streams")
async def streams(call: Call) -> list[StreamRow]:
    """Streams of Spark and other readers that commit offsets as a group without members."""
    progress = await figures.all_progress(call)
    started = {name: one for name, one in progress.items() if any(row.consumer_offset for row in one.queues)}

    async def has_members(group: str) -> bool:
        try:
            await call.admin.consumer_connection(group)
        except ConsumerNotOnline:
            return False
        return True

    online = await ask_each(started, has_members)
    return [_stream(name, one) for name, one in started.items() if not online[name]]


def _stream(name: str, one: GroupProgress) -> StreamRow:
    rows = [row for row in one.queues if row.message_queue.topic != retry_topic(name)]
    return StreamRow(
        name,
        sorted({row.message_queue.topic for row in rows}),
        sum(row.lag for row in rows),
        max((row.last_timestamp for row in rows), default=0),
    )
