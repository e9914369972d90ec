"""Topics: list, look at, create, change, delete; send a message."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from attrs import evolve, frozen

from rmq.dashboard.access.roles import Role
from rmq.dashboard.errors import NotConfirmed
from rmq.dashboard.operations import figures
from rmq.dashboard.operations.operation import Call, operation
from rmq.errors import RmqError
from rmq.message import Message, MessageQueue, validate_topic
from rmq.operate import topics as operate_topics
from rmq.operate.several import ask_each
from rmq.printable import counted
from rmq.protocol.bodies import TopicConfig
from rmq.protocol.codes import PERM_READ, PERM_WRITE

Kind = Literal["", "user", "ordered", "retry", "dead letter", "system"]
Page = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Size = Annotated[int, msgspec.Meta(ge=1, le=200)]
SEND_GROUP = "DASHBOARD_PRODUCER"
KEPT: Final = "Not given: as it is; for a new topic"


@frozen
class TopicRow:
    """A topic of the list. `messages` are those that the brokers hold; -1: not known."""

    name: str
    kind: str
    queues: int
    perm: str
    brokers: list[str]
    messages: int = -1
    last_message_at: int = 0


@frozen
class TopicList:
    """A page of the list; `total` is the number of topics that were found."""

    rows: list[TopicRow]
    total: int
    page: int
    size: int


@operation("GET", "/topics")
async def topics(
    call: Call, *, search: str = "", kind: Kind = "", page: Page = 1, size: Size = 50
) -> TopicList:
    """The topics with a text in their name; without a kind, topics of users."""
    system = await figures.system_topics(call)
    configs = await figures.all_topic_configs(call)
    found = []
    for name, by_broker in configs.items():
        own = figures.topic_kind(name, next(iter(by_broker.values())), system)
        is_listed = own == kind or (not kind and own in ("user", "ordered"))
        if is_listed and search.lower() in name.lower():
            found.append((name, own, by_broker))
    shown = found[(page - 1) * size : page * size]
    rows = {name: _row(name, own, by_broker) for name, own, by_broker in shown}
    counts = await ask_each(rows, lambda name: _counts(call, name))
    return TopicList(
        [
            evolve(row, messages=counts[name][0], last_message_at=counts[name][1])
            for name, row in rows.items()
        ],
        len(found),
        page,
        size,
    )


def _row(name: str, kind: str, by_broker: dict[str, TopicConfig]) -> TopicRow:
    queues = sum(config.read_queue_nums for config in by_broker.values())
    perms = {perm_text(config.perm) for config in by_broker.values()}
    return TopicRow(name, kind, queues, " / ".join(sorted(perms)), sorted(by_broker))


def perm_text(perm: int) -> str:
    """Permissions in words."""
    reads, writes = bool(perm & PERM_READ), bool(perm & PERM_WRITE)
    return {(True, True): "read, write", (True, False): "read", (False, True): "write"}.get(
        (reads, writes), "none"
    )


async def _counts(call: Call, name: str) -> tuple[int, int]:
    try:
        stats = await call.admin.topic_stats(name)
    except RmqError:
        return -1, 0
    messages = sum(ends.max_offset - ends.min_offset for ends in stats.values())
    return messages, max((ends.last_update_timestamp for ends in stats.values()), default=0)


@frozen
class TopicPart:
    """The settings of a topic on one broker."""

    broker: str
    read_queues: int
    write_queues: int
    perm: str
    order: bool


@frozen
class QueueRow:
    """A queue: its first offset, the offset of the next message, the time of the last."""

    broker: str
    queue: int
    min_offset: int
    max_offset: int
    last_message_at: int


@frozen
class TopicReader:
    """A group that reads the topic."""

    group: str
    lag: int
    out_rate: float


@frozen
class TopicDetail:
    """All about a topic. Rates are messages a second of the last minute."""

    name: str
    kind: str
    parts: list[TopicPart]
    queues: list[QueueRow]
    readers: list[TopicReader]
    messages: int
    in_rate: float
    in_day: int
    last_message_at: int
    incomplete: str
    seen: str


@operation("GET", "/topics/{topic}")
async def topic(call: Call, *, topic: str) -> TopicDetail:
    """A topic: its settings by broker, its queues with offsets, rates, and the groups that read it."""
    stats = await call.admin.topic_stats(topic)
    incomplete = ""
    parts: dict[str, TopicConfig] = {}
    readers: list[TopicReader] = []
    in_rate, in_day = 0.0, 0
    system: frozenset[str] = frozenset()
    try:
        system = await figures.system_topics(call)
        parts = (await figures.all_topic_configs(call)).get(topic, {})
        rates = await call.admin.topic_rates(topic)
        in_rate, in_day = rates[0].in_tps, rates[0].in_24h
        readers = [TopicReader(row.group, row.lag, row.out_tps) for row in rates if row.group]
    except RmqError as error:
        incomplete = str(error)
    queues = [
        QueueRow(
            queue.broker_name, queue.queue_id, ends.min_offset, ends.max_offset, ends.last_update_timestamp
        )
        for queue, ends in stats.items()
    ]
    return TopicDetail(
        topic,
        figures.topic_kind(topic, next(iter(parts.values()), None), system),
        [_part(broker, config) for broker, config in sorted(parts.items())],
        queues,
        readers,
        sum(row.max_offset - row.min_offset for row in queues),
        in_rate,
        in_day,
        max((row.last_message_at for row in queues), default=0),
        incomplete,
        figures.fingerprint(parts),
    )


def _part(broker: str, config: TopicConfig) -> TopicPart:
    return TopicPart(
        broker, config.read_queue_nums, config.write_queue_nums, perm_text(config.perm), config.order
    )


@frozen
class TopicChange:
    """The effect of a change of a topic, planned or done. `before` is empty for a new topic; `done` is unset
    in a preview. `seen` is the fingerprint of `before`."""

    topic: str
    before: list[TopicPart]
    after: list[TopicPart]
    warnings: list[str]
    done: bool
    seen: str


@operation("PUT", "/topics/{topic}", Role.OPERATOR)
async def put_topic(
    call: Call,
    *,
    topic: str,
    queues: Annotated[int, msgspec.Meta(ge=1, le=4096, description=f"To read and to write. {KEPT}, 8.")]
    | None = None,
    perm: Annotated[
        Literal["read, write", "read", "write", "none"] | None,
        msgspec.Meta(description=f"{KEPT}, read, write."),
    ] = None,
    order: Annotated[bool | None, msgspec.Meta(description=f"{KEPT}, false.")] = None,
    broker: Annotated[str, msgspec.Meta(description="Only this broker; empty: all masters.")] = "",
    hide_unread: Annotated[
        bool, msgspec.Meta(description="Cut queues that hold unread messages, too.")
    ] = False,
    preview: Annotated[bool, msgspec.Meta(description="Change nothing: only say what would change.")] = False,
    seen: figures.Seen = "",
) -> TopicChange:
    """Create or change a topic; with preview, report the change only. Settings that are not given stay."""
    validate_topic(topic)
    masters = await figures.masters(call)
    if broker:
        await figures.check_master(call, broker)
    known = await figures.topic_configs(call, topic)
    figures.check_seen("topic", topic, seen, known)
    names = [broker] if broker else list(masters)
    some = next(iter(known.values()), TopicConfig(topic, 8, 8))
    after = {name: _changed(known.get(name, some), queues, perm, order) for name in names}
    warnings = await _warnings(call, topic, queues, known, names)
    if not preview:
        planned = operate_topics.TopicChange(
            topic,
            {masters[name]: known[name] for name in names if name in known},
            {masters[name]: config for name, config in after.items()},
        )
        await operate_topics.change(call.admin, planned, hide_unread=hide_unread)
    return TopicChange(
        topic,
        [_part(name, own) for name, own in sorted(known.items())],
        [_part(name, config) for name, config in after.items()],
        warnings,
        not preview,
        figures.fingerprint(known),
    )


def _changed(config: TopicConfig, queues: int | None, perm: str | None, order: bool | None) -> TopicConfig:
    """The settings with the given ones in their place. A topic may have more queues to read than to write."""
    changes: dict[str, Any] = {}
    if queues is not None:
        changes |= {"read_queue_nums": queues, "write_queue_nums": queues}
    if perm is not None:
        bits = (PERM_READ if "read" in perm else 0) | (PERM_WRITE if "write" in perm else 0)
        changes["perm"] = config.perm & ~(PERM_READ | PERM_WRITE) | bits
    if order is not None:
        changes["order"] = order
    return evolve(config, **changes)


async def _warnings(
    call: Call, topic: str, queues: int | None, known: dict[str, TopicConfig], names: list[str]
) -> list[str]:
    found = []
    if queues is not None and any(name in known and known[name].read_queue_nums > queues for name in names):
        for group, rows in (await call.admin.unread_beyond(topic, queues)).items():
            count = sum(row.lag for row in rows)
            found.append(f"{counted(count, 'message', ',')} that {group} has not consumed would be hidden")
        found.append("messages of a key may move to another queue: their order may change once")
    if not names:
        found.append("no master is registered: nothing will be created")
    return found


@frozen
class Deleted:
    """The deleted topic, and the servers that deleted it."""

    name: str
    servers: list[str]


@operation("DELETE", "/topics/{topic}", Role.ADMIN)
async def delete_topic(
    call: Call, *, topic: str, confirm: Annotated[str, msgspec.Meta(description="The name, repeated.")]
) -> Deleted:
    """Delete a topic with its messages, everywhere."""
    if confirm != topic:
        raise NotConfirmed(f"to delete {topic}, its name has to be given again")
    if topic not in await figures.all_topic_configs(call):
        await operate_topics.routes(call.admin, topic)  # a topic that only name servers know can go, too
    return Deleted(topic, await call.admin.delete_topic(topic))


@frozen
class Sent:
    """A message that was stored: its id, and its place. By `recall_handle` a delayed one is recalled."""

    message_id: str
    offset_message_id: str
    topic: str
    broker: str
    queue: int
    offset: int
    status: str
    recall_handle: str


@operation("POST", "/topics/{topic}/messages", Role.OPERATOR)
async def send_message(
    call: Call,
    *,
    topic: str,
    body: str = "",
    tags: str = "",
    keys: Annotated[str, msgspec.Meta(description="Keys, separated by blanks.")] = "",
    properties: dict[str, str] = {},  # noqa: B006 - msgspec copies it
    delay_seconds: Annotated[float, msgspec.Meta(ge=0, le=40 * 86_400)] = 0,
    group: Annotated[str, msgspec.Meta(description="The producer group of the send.")] = SEND_GROUP,
) -> Sent:
    """Send a message. The body is text, in UTF-8."""
    message = Message(
        topic,
        body.encode(),
        tags=tags or None,
        keys=keys,
        properties=properties,
        delay_ms=int(delay_seconds * 1000) or None,
    )
    async with call.client.producer(group) as producer:
        result = await producer.send(message)
    queue: MessageQueue = result.message_queue
    return Sent(
        result.message_id,
        result.offset_message_id,
        topic,
        queue.broker_name,
        queue.queue_id,
        result.queue_offset,
        result.status,
        result.recall_handle or "",
    )
