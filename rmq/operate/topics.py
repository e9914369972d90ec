"""Topics: the list, settings by broker, queues, groups that consume a topic, and changes with a preview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from attrs import evolve, field, frozen

from rmq.client.admin.cluster import is_address
from rmq.errors import ConsumerNotOnline, NoRoute, RmqError, TopicNotExist, Unreachable, for_code
from rmq.message import DLQ_PREFIX, RETRY_PREFIX, MessageQueue, validate_topic
from rmq.operate.several import ask_each
from rmq.operate.values import perm_text
from rmq.printable import counted
from rmq.protocol.codes import PERM_READ, PERM_WRITE, RETENTION_BYTES, RETENTION_MS, ResponseCode

if TYPE_CHECKING:
    from rmq.client.admin import Admin, QueueProgress
    from rmq.protocol.bodies import TopicConfig

Kind = Literal["user", "retry", "dead letters", "system"]


@frozen
class Topic:
    """A topic with its settings on each master that has it: `configs` by the broker's name.

    `read_queues` and `write_queues` are sums over the brokers; `perm` is ``rw``, ``r``, ``w`` or ``none``,
    several joined by ``/`` if brokers differ.
    """

    name: str
    kind: Kind
    configs: Mapping[str, TopicConfig]

    @property
    def brokers(self) -> tuple[str, ...]:
        """The names of the brokers that have it, sorted."""
        return tuple(sorted(self.configs))

    @property
    def read_queues(self) -> int:
        """Queues that are read, of all brokers."""
        return sum(config.read_queue_nums for config in self.configs.values())

    @property
    def write_queues(self) -> int:
        """Queues that are written, of all brokers."""
        return sum(config.write_queue_nums for config in self.configs.values())

    @property
    def perm(self) -> str:
        """Allowed operations."""
        return "/".join(sorted({perm_text(config.perm) for config in self.configs.values()}))

    @property
    def is_ordered(self) -> bool:
        """True if any broker has it as an ordered topic."""
        return any(config.order for config in self.configs.values())


@frozen
class QueueEnds:
    """The ends of a queue. `last_message_ms` is the store time of its last message; 0 without one."""

    message_queue: MessageQueue
    min_offset: int
    max_offset: int
    last_message_ms: int

    @property
    def messages(self) -> int:
        """Messages in the queue, at most."""
        return max(0, self.max_offset - self.min_offset)


@frozen
class TopicRoute:
    """The queues of a topic at one broker, in the name servers' route for clients. `addresses`: broker id ->
    address."""

    cluster: str
    broker: str
    addresses: Mapping[int, str]
    read_queues: int
    write_queues: int
    perm: str


@frozen
class TopicReader:
    """A group that consumes a topic. `lag` is None when its progress is unknown, and `error` is the
    reason."""

    group: str
    lag: int | None
    tps: float
    error: str = ""


@frozen
class TopicChange:
    """Result of a change of a topic, before it is made.

    `before` and `after` are the settings by the broker's address, `before` without brokers that lack the
    topic. `unread`: group -> its queues whose unread messages would be hidden, since the topic would get
    fewer queues to read.
    """

    topic: str
    before: Mapping[str, TopicConfig]
    after: Mapping[str, TopicConfig]
    unread: Mapping[str, list[QueueProgress]] = field(factory=dict)

    @property
    def is_empty(self) -> bool:
        """True if it changes nothing."""
        return dict(self.before) == dict(self.after)

    @property
    def hidden(self) -> Mapping[str, int]:
        """Group -> unread messages that would be hidden."""
        return {group: sum(row.lag for row in rows) for group, rows in self.unread.items()}


def kind_of(name: str, system: frozenset[str] | set[str] = frozenset()) -> Kind:
    """The kind of a topic by its name; `system` are topics that brokers create for themselves."""
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dead letters"
    return "system" if name in system else "user"


async def topics(
    admin: Admin, *, cluster: str = "", broker: str = "", everything: bool = False
) -> list[Topic]:
    """List the topics of users, with `everything` also retry topics, dead letters and the system's; by name.

    Two requests to each master. Raises ConfigError for an unknown cluster or broker.
    """
    found: dict[str, dict[str, TopicConfig]] = {}
    system: set[str] = set()
    for name, address in (await masters(admin, cluster=cluster, broker=broker)).items():
        system.update(await admin.system_topics(address))
        for topic, config in (await admin.topic_configs(address)).items():
            found.setdefault(topic, {})[name] = config
    listed = [Topic(name, kind_of(name, system), configs) for name, configs in sorted(found.items())]
    return [topic for topic in listed if everything or topic.kind == "user"]


async def masters(admin: Admin, *, cluster: str = "", broker: str = "") -> dict[str, str]:
    """The names of masters -> their addresses: of a cluster, of one broker's name, or all.

    A `broker` that is an address stands for itself under its name, or under the address when no name server
    knows it. Raises ConfigError for a name that no name server knows.
    """
    try:
        table = (await admin.cluster_info()).broker_addr_table
    except Unreachable:
        if not is_address(broker):
            raise
        return {broker: broker}
    names = {address: name for name, data in table.items() for address in data.broker_addrs.values()}
    addresses = await admin.broker_addresses(cluster=cluster, broker=broker)
    return {names.get(address, address): address for address in addresses}


async def topic(admin: Admin, name: str) -> Topic:
    """Read one topic. Raises NoRoute."""
    configs = await admin.topic_config(name)
    system = await admin.system_topics() if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)) else []
    return Topic(name, kind_of(name, set(system)), configs)


async def queues(admin: Admin, name: str) -> list[QueueEnds]:
    """Read the ends of all queues of a topic, by broker and number. Raises NoRoute, TopicNotExist."""
    return [
        QueueEnds(queue, ends.min_offset, ends.max_offset, ends.last_update_timestamp)
        for queue, ends in (await admin.topic_stats(name)).items()
    ]


async def routes(admin: Admin, name: str) -> list[TopicRoute]:
    """Read the route of a topic, by broker. Raises NoRoute."""
    found = await admin.topic_route(name)
    brokers = {data.broker_name: data for data in found.broker_datas}
    return [
        TopicRoute(
            brokers[data.broker_name].cluster if data.broker_name in brokers else "",
            data.broker_name,
            dict(sorted(brokers[data.broker_name].broker_addrs.items()))
            if data.broker_name in brokers
            else {},
            data.read_queue_nums,
            data.write_queue_nums,
            perm_text(data.perm),
        )
        for data in sorted(found.queue_datas, key=lambda data: data.broker_name)
    ]


async def readers(admin: Admin, name: str) -> list[TopicReader]:
    """List the groups that consume a topic, with their lag in it. Raises NoRoute."""

    async def look(group: str) -> TopicReader:
        try:
            progress = await admin.consume_stats(group, name)
        except ConsumerNotOnline:
            return TopicReader(group, 0, 0.0)
        except RmqError as error:
            return TopicReader(group, None, 0.0, str(error))
        return TopicReader(group, progress.lag, progress.consume_tps)

    return list((await ask_each(await admin.groups_of_topic(name), look)).values())


# --- changes ---


def retention_of(config: TopicConfig) -> tuple[str, str]:
    """The topic's own limits by age in ms and by size in bytes; "0" for no limit."""
    attributes = config.attributes or {}
    return attributes.get(RETENTION_MS, "0"), attributes.get(RETENTION_BYTES, "0")


def with_retention(config: TopicConfig, age_ms: int | None = None, size: int | None = None) -> TopicConfig:
    """The topic with other limits; None leaves a limit as it is, 0 removes it."""
    attributes = dict(config.attributes or {})
    for name, value in ((RETENTION_MS, age_ms), (RETENTION_BYTES, size)):
        if value is not None:
            attributes.pop(name, None)
        if value:
            attributes[name] = str(value)
    return evolve(config, attributes=attributes or None)


async def preview_change(
    admin: Admin,
    name: str,
    changes: Mapping[str, Any],
    *,
    cluster: str = "",
    broker: str = "",
    retention_ms: int | None = None,
    retention_bytes: int | None = None,
) -> TopicChange:
    """Compare a topic with the result of `changes`, fields of `TopicConfig`, and of other limits, see
    `with_retention`; nothing is changed.

    Every master of the cluster, or the given broker, has the topic afterwards: a broker without the topic
    gets the settings of another broker. Raises NoRoute, TopicNotExist, ConfigError.
    """
    own = (await admin.topic_configs(broker)).get(name) if is_address(broker) else None
    configs = {broker: own} if own is not None else await admin.topic_config(name)
    if not configs:
        raise for_code(ResponseCode.TOPIC_NOT_EXIST, f"no master has topic {name}")
    some = next(iter(configs.values()))
    before, after = {}, {}
    for address in await admin.broker_addresses(cluster=cluster, broker=broker):
        present = (await admin.topic_configs(address)).get(name)
        if present is not None:
            before[address] = present
        changed = evolve(present or some, **changes)
        after[address] = with_retention(changed, retention_ms, retention_bytes)
    unread = {}
    if "read_queue_nums" in changes:
        unread = await admin.unread_beyond(name, changes["read_queue_nums"])
    return TopicChange(name, before, after, unread)


def unread_text(unread: Mapping[str, Sequence[QueueProgress]]) -> str:
    """Unread messages of groups in words, as ``5 unread messages of group billing in 2 queues``; empty for
    none.
    """
    return ", ".join(
        f"{counted(sum(row.lag for row in rows), 'unread message')} of group {group} "
        f"in {counted(len(rows), 'queue')}"
        for group, rows in unread.items()
    )


async def change(admin: Admin, planned: TopicChange, *, hide_unread: bool = False) -> list[str]:
    """Make a previewed change; return the addresses of the brokers.

    Raises ResponseError when the topic would hide unread messages, unless `hide_unread`. The first error ends
    the call; earlier brokers have changed, and a second call continues.
    """
    for address, config in planned.after.items():
        before = planned.before.get(address)
        had = {} if before is None else before.attributes or {}
        dropped = had.keys() - (config.attributes or {}).keys()
        await admin.put_topic(config, broker=address, hide_unread=hide_unread, drop_attributes=dropped)
    return list(planned.after)


async def create(
    admin: Admin,
    name: str,
    *,
    cluster: str = "",
    broker: str = "",
    queues: int = 8,
    perm: int = PERM_READ | PERM_WRITE,
    order: bool = False,
) -> list[str] | None:
    """Create a topic; None, with nothing changed, when the topic exists. Return the brokers' addresses.

    A broker given by its address gets the only request: no name server needs to answer. Raises InvalidName,
    ConfigError.
    """
    validate_topic(name)
    if await admin.topic_exists(name, broker=broker):
        return None
    return await admin.create_topic(
        name, cluster=cluster, broker=broker, queues=queues, perm=perm, order=order
    )


def is_absent(error: RmqError) -> bool:
    """True if an error means that a topic does not exist: not that no name server answers, or that they
    refuse the account."""
    if isinstance(error, NoRoute):
        return not error.refused and not isinstance(error, Unreachable)
    return isinstance(error, TopicNotExist)


async def messages_kept(admin: Admin, name: str) -> int:
    """Count the messages in all queues of a topic; 0 for a topic that does not exist."""
    try:
        return sum(ends.messages for ends in await queues(admin, name))
    except (NoRoute, TopicNotExist) as error:
        if not is_absent(error):
            raise
        return 0
