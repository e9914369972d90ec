"""Members of consumer groups: their address, language, version, queues, subscriptions, conflicts and stacks;
and all clients that are connected to a broker.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Literal

import anyio
from attrs import field, frozen

from rmq.client.admin.reports import version_name
from rmq.errors import ConsumerNotOnline, RequestCodeNotSupported, RmqError
from rmq.message import RETRY_PREFIX, MessageQueue
from rmq.operate.several import ask_each

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.protocol.bodies import Connection, ConsumerConnection, ConsumerRunningInfo

STUCK_MS: Final = 60_000
"""Milliseconds without consumption after which a queue with messages is reported."""
MEMBERS_AT_ONCE: Final = 32
"""Members that are asked in parallel: most of the time is spent on members that do not answer."""

Answered = Callable[[int, int], None]
"""Called with the number of members that have answered or were given up, and the number of all."""


@frozen
class Member:
    """A connected member of a consumer group.

    `version` is RocketMQ's name of the version. `info` is the member's own report of its settings, queues and
    rates; None when it did not answer (`error` is the reason) or was not asked.
    """

    client_id: str
    address: str
    language: str
    version: str
    consume_type: str | None
    message_model: str | None
    info: ConsumerRunningInfo | None = field(default=None, repr=False)
    error: str = ""

    @property
    def queues(self) -> tuple[MessageQueue, ...] | None:
        """Its queues, sorted."""
        return None if self.info is None else tuple(sorted(self.info.mq_table))

    @property
    def subscriptions(self) -> Mapping[str, str] | None:
        """Topic -> expression, by topic."""
        if self.info is None:
            return None
        subscribed = sorted(self.info.subscription_set, key=lambda data: data.topic)
        return {data.topic: data.sub_string for data in subscribed}

    @property
    def stack(self) -> str | None:
        """The stacks of its threads or tasks, if requested."""
        return None if self.info is None else self.info.jstack


@frozen
class Conflict:
    """Members of a group with different subscriptions to a topic: messages are lost or late. `expressions`:
    expression -> client ids; an empty expression stands for no subscription."""

    topic: str
    expressions: Mapping[str, tuple[str, ...]]


@frozen
class ClientConnection:
    """A client of a broker. `seen_ms` is the time of its last heartbeat; 0 where the broker does not report
    it."""

    kind: Literal["producer", "consumer"]
    group: str
    client_id: str
    address: str
    language: str
    version: str
    seen_ms: int = 0


async def members(
    admin: Admin,
    group: str,
    *,
    stack: bool = False,
    ask: bool = True,
    within: float = math.inf,
    answered: Answered | None = None,
) -> list[Member]:
    """List the connected members of a group; with `ask`, each is asked for its state, with `stack` for its
    stacks.

    A member that does not answer has an `error`: after `within` seconds, at the latest after 15 s for each
    broker of the group. `answered` is called after each member. Raises ConsumerNotOnline without a connected
    member.
    """
    found = await admin.consumer_connection(group)
    total, done = len(found.connection_set), 0

    async def look(number: int) -> Member:
        nonlocal done
        one = found.connection_set[number]
        if not ask:
            return _member(found, one, None)
        info, error = await _ask(admin, group, one.client_id, stack, within)
        done += 1
        if answered is not None:
            answered(done, total)
        return _member(found, one, info, error)

    if ask and answered is not None:
        answered(0, total)
    return list((await ask_each(range(total), look, MEMBERS_AT_ONCE)).values())


async def _ask(
    admin: Admin, group: str, client_id: str, stack: bool, within: float
) -> tuple[ConsumerRunningInfo | None, str]:
    """State of a member, or the reason for having none."""
    with anyio.move_on_after(within):
        try:
            return await admin.consumer_running_info(group, client_id, stack=stack), ""
        except RmqError as error:
            return None, str(error)
    return None, f"no answer within {within:g} s"


def _member(
    found: ConsumerConnection, one: Connection, info: ConsumerRunningInfo | None, error: str = ""
) -> Member:
    return Member(
        one.client_id,
        one.client_addr,
        str(one.language),
        version_name(one.version),
        found.consume_type,
        found.message_model,
        info,
        error,
    )


def conflicts(found: Iterable[Member]) -> list[Conflict]:
    """Compare the subscriptions of members that answered; retry topics do not count."""
    answered = {one.client_id: one.subscriptions for one in found if one.subscriptions is not None}
    topics = sorted({topic for subscribed in answered.values() for topic in subscribed})
    differing = []
    for topic in topics:
        if topic.startswith(RETRY_PREFIX):
            continue
        expressions: dict[str, list[str]] = {}
        for client_id, subscribed in answered.items():
            expressions.setdefault(subscribed.get(topic, ""), []).append(client_id)
        if len(expressions) > 1:
            differing.append(Conflict(topic, {text: tuple(ids) for text, ids in expressions.items()}))
    return differing


def same_subscriptions(infos: Iterable[ConsumerRunningInfo]) -> bool:
    """True if all members subscribe to the same topics by the same expressions; retry topics do not count."""
    subscribed = {
        frozenset(
            (data.topic, data.sub_string, data.expression_type)
            for data in info.subscription_set
            if not data.topic.startswith(RETRY_PREFIX)
        )
        for info in infos
    }
    return len(subscribed) <= 1


@frozen
class StuckQueue:
    """A queue of a push consumer without progress: `reason` is ``lock``, ``unlock`` or ``consume``.

    `still_ms` is the time without progress; for ``unlock``, `times` is the number of failures.
    """

    message_queue: MessageQueue
    reason: Literal["lock", "unlock", "consume"]
    still_ms: int = 0
    times: int = 0


def stuck_queues(info: ConsumerRunningInfo, now_ms: int) -> Iterator[StuckQueue]:
    """Queues of a push consumer without progress: in an ordered group queues without a lock, in other groups
    queues with messages from which nothing was consumed for a minute."""
    if info.properties.get("PROP_CONSUME_TYPE") != "CONSUME_PASSIVELY":
        return
    ordered = info.properties.get("PROP_CONSUMEORDERLY") == "true"
    for queue, one in sorted(info.mq_table.items()):
        if ordered and not one.locked:
            yield StuckQueue(queue, "lock", now_ms - one.last_lock_timestamp)
        elif ordered and one.droped and one.try_unlock_times > 0:
            yield StuckQueue(queue, "unlock", times=one.try_unlock_times)
        elif not ordered and one.cached_msg_count > 0:
            still_ms = now_ms - one.last_consume_timestamp
            if still_ms > STUCK_MS:
                yield StuckQueue(queue, "consume", still_ms)


# --- all clients of a broker ---


async def connections(admin: Admin, broker: str) -> list[ClientConnection]:
    """List the producers and consumers that are connected to a broker, producers first, by group.

    A request for all producers, and a request for each group. A broker of RocketMQ before 4.9.3 does not list
    its producers: they are left out. Raises ConfigError for an unknown name.
    """
    try:
        producing = await admin.producers(broker)
    except RequestCodeNotSupported:
        producing = {}
    rows = [
        ClientConnection(
            "producer",
            group,
            one.client_id,
            one.remote_ip,
            str(one.language),
            version_name(one.version),
            one.last_update_timestamp,
        )
        for group, found in producing.items()
        for one in found
    ]

    async def ask(group: str) -> list[Connection]:
        try:
            return (await admin.consumer_connection(group, broker=broker)).connection_set
        except ConsumerNotOnline:
            return []

    consuming = await ask_each(await admin.group_configs(broker), ask)
    rows += [
        ClientConnection(
            "consumer",
            group,
            one.client_id,
            one.client_addr,
            str(one.language),
            version_name(one.version),
        )
        for group, found in consuming.items()
        for one in found
    ]
    return rows


def by_version(found: Iterable[ClientConnection]) -> dict[tuple[str, str], int]:
    """Count clients by language and version; a client in several groups counts once."""
    clients = {(one.client_id, one.language, one.version) for one in found}
    counts = Counter((language, version) for _, language, version in clients)
    return dict(sorted(counts.items()))
