"""Consumer groups: the list, lag by queue, stalled queues, and offsets reset or cloned with a preview."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from attrs import evolve, field, frozen

from rmq.client.admin.cluster import is_address
from rmq.client.admin.messages import TOOLS_GROUP
from rmq.errors import ConfigError, ConsumerNotOnline, NoRoute, RmqError
from rmq.message import MessageQueue, StoredMessage, retry_topic, validate_group
from rmq.operate.several import ask_each
from rmq.operate.topics import masters, messages_kept

if TYPE_CHECKING:
    from rmq.client.admin import Admin, GroupProgress, OffsetReset, QueueProgress
    from rmq.client.client import Client
    from rmq.client.reading.pull_consumer import PullConsumer
    from rmq.protocol.bodies import QueueTimeSpan, SubscriptionGroupConfig

PROGRESS_SECONDS: Final = 10.0
"""Time-out for the progress of all groups of a broker: with 10,000 queues it takes the broker some 100 ms."""
EARLIEST: Final = 0
TO_THE_END: Final = -1
"""Times of a reset: the beginning and the end of every queue."""


@frozen
class Group:
    """A consumer group: settings by the broker's name, members, messages left and messages a second.

    `members` is None when the members were not asked for; `lag` and `tps` are None for a broker's group whose
    progress a broker did not tell.
    """

    name: str
    configs: Mapping[str, SubscriptionGroupConfig]
    lag: int = 0
    tps: float = 0.0
    members: int | None = None
    topics: tuple[str, ...] = ()

    @property
    def brokers(self) -> tuple[str, ...]:
        """The names of the brokers that know it, sorted."""
        return tuple(sorted(self.configs))

    @property
    def retry_max(self) -> int:
        """Retries of a message, by the last broker's settings."""
        return next((one.retry_max_times for one in reversed(list(self.configs.values()))), 0)


@frozen
class QueueLag:
    """Progress of a group in a queue.

    `last_consumed_ms` is the store time of the last consumed message, `delay_ms` the age of the oldest unread
    message; 0 without such a message, None when not requested. `owner` is the client id of the member that
    has the queue.
    """

    message_queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_consumed_ms: int
    owner: str = ""
    delay_ms: int | None = None

    @property
    def lag(self) -> int:
        """Unconsumed messages of the queue."""
        return max(0, self.broker_offset - self.consumer_offset)


@frozen
class Progress:
    """Progress of a group in all its queues, retry topic included."""

    group: str
    queues: tuple[QueueLag, ...]
    tps: float

    @property
    def lag(self) -> int:
        """Unconsumed messages in all queues."""
        return sum(one.lag for one in self.queues)

    @property
    def topics(self) -> dict[str, int]:
        """Topic -> unconsumed messages."""
        found: dict[str, int] = {}
        for one in self.queues:
            found[one.message_queue.topic] = found.get(one.message_queue.topic, 0) + one.lag
        return found


@frozen
class StalledQueue:
    """A queue with unread messages and without progress.

    `message` is its oldest unread message; `waits_ms` is the time since its storage. Both are None when it
    could not be read.
    """

    queue: QueueLag
    message: StoredMessage | None
    waits_ms: int | None


@frozen
class ResetStep:
    """Result of a reset for one queue, before it is made: `before` and `after` are the group's offsets."""

    message_queue: MessageQueue
    min_offset: int
    max_offset: int
    before: int
    after: int

    @property
    def again(self) -> int:
        """Messages that are consumed again, if the queue still has them."""
        return max(0, min(self.before, self.max_offset) - max(self.after, self.min_offset))

    @property
    def skipped(self) -> int:
        """Unread messages that are never consumed."""
        return max(0, self.after - max(self.before, self.min_offset))


@frozen
class ResetPreview:
    """Result of a reset, before it is made. `timestamp` is the target time; 0 the beginning, -1 the end.
    `members` are the client ids of connected members: the broker informs them, and they continue at the new
    offset at once."""

    group: str
    topic: str
    timestamp: int
    steps: tuple[ResetStep, ...]
    members: tuple[str, ...] = ()

    @property
    def again(self) -> int:
        """Messages that are consumed again."""
        return sum(one.again for one in self.steps)

    @property
    def skipped(self) -> int:
        """Unread messages that are never consumed."""
        return sum(one.skipped for one in self.steps)


@frozen
class ClonePreview:
    """Result of a clone of offsets, before it is made: (queue, the target's offset or None, the source's)."""

    source: str
    target: str
    queues: tuple[tuple[MessageQueue, int | None, int], ...] = field(factory=tuple)


# --- reading ---


async def groups(
    admin: Admin, *, cluster: str = "", broker: str = "", everything: bool = False, members: bool = True
) -> list[Group]:
    """List consumer groups by name, with `everything` also the groups of RocketMQ's tools.

    Two requests to each master, and with `members` a request for each group to each master that knows it.
    Raises ConfigError for an unknown cluster or broker.
    """
    places = await masters(admin, cluster=cluster, broker=broker)
    found: dict[str, dict[str, SubscriptionGroupConfig]] = {}
    progress: list[GroupProgress] = []
    for name, address in places.items():
        for group, config in (await admin.group_configs(address, system=everything)).items():
            found.setdefault(group, {})[name] = config
        progress += await admin.broker_consume_stats(address, timeout=PROGRESS_SECONDS)
    rows = {name: Group(name, configs) for name, configs in sorted(found.items())}
    topics_of: dict[str, set[str]] = {}
    for part in progress:
        if part.group in rows:
            row = rows[part.group]
            rows[part.group] = evolve(row, lag=row.lag + part.lag, tps=row.tps + part.consume_tps)
            topics_of.setdefault(part.group, set()).update(one.message_queue.topic for one in part.queues)
    counts: dict[str, int] = {}
    if members:
        counts = await ask_each(rows, lambda name: member_count(admin, name, rows[name].brokers, places))
    return [
        evolve(row, members=counts.get(name), topics=tuple(sorted(topics_of.get(name, ()))))
        for name, row in rows.items()
    ]


async def member_count(
    admin: Admin, group: str, brokers: tuple[str, ...], addresses: Mapping[str, str]
) -> int:
    """Count the members that are connected to any of these brokers."""
    known: set[str] = set()
    for broker in brokers:
        try:
            found = await admin.consumer_connection(group, broker=addresses[broker])
        except ConsumerNotOnline:
            continue
        known.update(one.client_id for one in found.connection_set)
    return len(known)


async def progress(admin: Admin, group: str, topic: str = "") -> Progress:
    """Read the progress of a group in all queues, or in the queues of a topic. Raises ConsumerNotOnline when
    no broker has an offset of the group."""
    found = await admin.consume_stats(group, topic)
    return Progress(group, tuple(_queue_lag(row) for row in found.queues), found.consume_tps)


async def progress_with_owners(admin: Admin, group: str, topic: str = "") -> Progress:
    """Read the progress as `progress` does, with the member of each queue, by the members' reports; one
    request to each member.

    A member that does not answer leaves its queues without an owner. Raises as `progress`.
    """
    found = await progress(admin, group, topic)
    try:
        members = (await admin.consumer_connection(group)).connection_set
    except ConsumerNotOnline:
        return found

    async def ask(client_id: str) -> list[MessageQueue]:
        try:
            return list((await admin.consumer_running_info(group, client_id)).mq_table)
        except RmqError:
            return []

    answers = await ask_each((one.client_id for one in members), ask)
    owners = {queue: member for member, queues in answers.items() for queue in queues}
    rows = tuple(evolve(one, owner=owners.get(one.message_queue, "")) for one in found.queues)
    return evolve(found, queues=rows)


async def consume_times(admin: Admin, group: str, topic: str) -> list[QueueTimeSpan]:
    """Read the store times of the first, the last and the last consumed message of each queue. Raises
    NoRoute."""
    return sorted(
        await admin.consume_time_span(group, topic),
        key=lambda span: span.message_queue or MessageQueue("", "", 0),
    )


async def stalled(
    client: Client, group: str, *, now_ms: int, after_ms: int = 60_000, most: int = 100
) -> list[StalledQueue]:
    """Find queues whose oldest unread message has waited for `after_ms` or longer, the longest first. Reads a
    message of each queue with lag, at most `most` queues, those with most lag first. Raises as `progress`."""
    found = await progress(client.admin, group)
    rows = sorted((one for one in found.queues if one.lag), key=lambda one: -one.lag)
    async with client.pull_consumer(TOOLS_GROUP) as pulls:

        async def look(row: QueueLag) -> StalledQueue:
            message = await _at(pulls, row.message_queue, row.consumer_offset)
            waits = None if message is None else max(0, now_ms - message.store_timestamp)
            return StalledQueue(evolve(row, delay_ms=waits), message, waits)

        seen = (await ask_each(rows[:most], look)).values()
    long = [one for one in seen if one.waits_ms is None or one.waits_ms >= after_ms]
    return sorted(long, key=lambda one: -(one.waits_ms or 0))


async def _at(pulls: PullConsumer, queue: MessageQueue, offset: int) -> StoredMessage | None:
    """The first message of a queue from an offset on, if it can be read."""
    try:
        found = await pulls.pull(queue, offset, max_messages=1)
        if not found.messages and found.min_offset > offset:  # retention has removed the next message
            found = await pulls.pull(queue, found.min_offset, max_messages=1)
    except RmqError:
        return None
    return found.messages[0] if found.messages else None


async def exists(admin: Admin, group: str, *, broker: str = "") -> bool:
    """True if any broker knows the group; if `broker` is an address, if this broker does. Raises
    InvalidName."""
    if is_address(broker):
        return validate_group(group) in await admin.group_configs(broker)
    return bool(await admin.group_config(validate_group(group)))


async def why_unknown(admin: Admin, group: str) -> str:
    """The reason why no broker knows a group, with the remedy; empty when a broker knows it. Raises
    InvalidName."""
    if await exists(admin, group):
        return ""
    if not (await admin.cluster_info()).broker_addr_table:
        return (
            "no broker is registered at the name servers; start a broker, or find the reason with "
            "`rmq doctor`"
        )
    return f"no broker knows group {group}; `rmq group list` shows all groups"


async def left_behind(admin: Admin, group: str) -> int:
    """Count the messages in the retry topic of a group, which are deleted with the group."""
    return await messages_kept(admin, retry_topic(group))


# --- setting offsets ---


async def preview_reset(client: Client, group: str, topic: str, timestamp: int) -> ResetPreview:
    """Compare a group's offsets in a topic with the offsets after a reset to `timestamp`; nothing is changed.

    `timestamp` is in ms since 1970, `EARLIEST` or `TO_THE_END`. Brokers decide again when the reset is made.
    Raises NoRoute, InvalidName.
    """
    validate_group(group)
    stats = await client.admin.topic_stats(topic)
    known = await _offsets(client.admin, group, topic)
    async with client.pull_consumer(TOOLS_GROUP) as pulls:

        async def step(queue: MessageQueue) -> ResetStep:
            ends = stats[queue]
            after = ends.min_offset if timestamp == EARLIEST else ends.max_offset
            if timestamp not in (EARLIEST, TO_THE_END):
                after = await pulls.search_offset(queue, timestamp)
            return ResetStep(
                queue, ends.min_offset, ends.max_offset, known.get(queue, ends.min_offset), after
            )

        steps = tuple((await ask_each(stats, step)).values())
    return ResetPreview(group, topic, timestamp, steps, await member_ids(client.admin, group))


async def reset(admin: Admin, group: str, topic: str, timestamp: int) -> list[OffsetReset]:
    """Set a group to a time in a topic (`EARLIEST`, `TO_THE_END` or ms since 1970). Connected members
    continue there at once. Raises NoRoute."""
    return await admin.reset_offset(group, topic, timestamp)


async def preview_offset(admin: Admin, group: str, offsets: Mapping[MessageQueue, int]) -> ResetPreview:
    """Compare a group's offsets with given offsets of queues of one topic; nothing is changed.

    Raises NoRoute, and ConfigError for queues of several topics or an offset outside its queue.
    """
    topics = {queue.topic for queue in offsets}
    if len(topics) != 1:
        raise ConfigError("offsets", str(sorted(topics)), "queues of one topic")
    (topic,) = topics
    stats = await admin.topic_stats(topic)
    known = await _offsets(admin, group, topic)
    steps = []
    for queue, offset in sorted(offsets.items()):
        ends = stats.get(queue)
        if ends is None:
            raise ConfigError("offsets", str(queue), f"a queue of topic {topic}")
        if not ends.min_offset <= offset <= ends.max_offset:
            raise ConfigError(
                "offset", f"{offset} in {queue}", f"a number from {ends.min_offset} to {ends.max_offset}"
            )
        before = known.get(queue, ends.min_offset)
        steps.append(ResetStep(queue, ends.min_offset, ends.max_offset, before, offset))
    return ResetPreview(group, topic, 0, tuple(steps), await member_ids(admin, group))


async def preview_clone(admin: Admin, source: str, target: str, topic: str = "") -> ClonePreview:
    """Compare the offsets of two groups; nothing is changed. Raises InvalidName, ConsumerNotOnline when no
    broker has offsets of the source.
    """
    validate_group(source)
    validate_group(target)
    given = await admin.consumer_progress(source, topic)
    known = await _offsets(admin, target, topic)
    selected = [row for row in given if row.message_queue.topic != retry_topic(source)]
    rows = ((row.message_queue, known.get(row.message_queue), row.consumer_offset) for row in selected)
    return ClonePreview(source, target, tuple(rows))


async def clone(admin: Admin, source: str, target: str, topic: str = "") -> None:
    """Set the offsets of group `target` to those of `source`. Raises InvalidName, ConsumerNotOnline when no
    broker has offsets of the source.
    """
    there = await _offsets(admin, validate_group(source), "")
    await admin.clone_offsets(source, validate_group(target), topic)  # an account without rights is refused
    if not there:
        raise ConsumerNotOnline(None, f"no broker has offsets of group {source}: nothing was set")


def _queue_lag(row: QueueProgress) -> QueueLag:
    return QueueLag(row.message_queue, row.broker_offset, row.consumer_offset, row.last_timestamp)


async def _offsets(admin: Admin, group: str, topic: str) -> dict[MessageQueue, int]:
    """The stored offsets of a group, in one topic or all; none for a group that never consumed."""
    try:
        rows = await admin.consumer_progress(group, topic)
    except (ConsumerNotOnline, NoRoute):
        return {}
    return {row.message_queue: row.consumer_offset for row in rows if topic in ("", row.message_queue.topic)}


async def member_ids(admin: Admin, group: str) -> tuple[str, ...]:
    """Client ids of the connected members; none without a connected member."""
    try:
        return tuple(one.client_id for one in (await admin.consumer_connection(group)).connection_set)
    except ConsumerNotOnline:
        return ()
