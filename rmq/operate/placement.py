"""Placement of topics: moves from one broker to another without losing a message, and proposals that make
brokers even."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import anyio
from attrs import evolve, frozen

from rmq.errors import ConfigError, ConsumerNotOnline, RmqError
from rmq.message import MessageQueue
from rmq.operate.several import ask_each
from rmq.printable import counted
from rmq.protocol.codes import MASTER_ID, PERM_READ, PERM_WRITE

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.protocol.bodies import TopicConfig

Report = Callable[[str], object]
"""Called with a line on the progress, when it has changed."""
Step = Callable[[int], object]

SCAN_SECONDS: Final = 1.0
"""Seconds between two looks at the backlog of a broker."""
STILL_SECONDS: Final = 31.0
"""Seconds without a new message after which producers count as gone: they ask for routes every 30 s."""
READ_ONLY: Final = {"brokerPermission": "4"}
READ_WRITE: Final = {"brokerPermission": "6"}
EVEN: Final = 1.1
"""Ratio to the average number of messages up to which the fullest broker counts as even."""


class NoSuchBroker(ConfigError):
    """No broker has a name that matches a pattern."""

    hint = "give the name of a broker, or a pattern that matches some"

    def __init__(self, pattern: str, known: Iterable[str]) -> None:
        names = ", ".join(sorted(known))
        super().__init__("broker", pattern, f"a name, or a pattern that matches one of {names}")
        self.args = (f"no broker is called {pattern}: there are {names}",)


class NotMoved(RmqError):
    """The error for a topic that cannot be moved in this way, or was not moved in time."""

    hint = "see the text on the topic, and repeat the move"


def _skip(count: object) -> None:
    return


# --- waiting until a broker's messages are consumed ---


async def emptied(admin: Admin, broker: str, topic: str, seconds: float, report: Report = _skip) -> str:
    """Wait until no message has come to `broker` for `STILL_SECONDS`, and every group has consumed its
    backlog; of a topic, or of all topics when it is "". Return the rest after `seconds`, in words; empty when
    nothing is left. `report` gets a line when the obstacles have changed. Raises as `client.admin`."""
    began = anyio.current_time()
    before, since = -1, began
    shown = ""
    while True:
        stored = await _stored(admin, broker, topic)
        groups = await admin.broker_consume_stats(broker)
        now = anyio.current_time()
        if stored != before:
            before, since = stored, now
        waits = []
        if now - since < STILL_SECONDS:
            waits.append(f"no message may arrive for {STILL_SECONDS:.0f} s (producers notice within 30 s)")
        for one in groups:
            lag = sum(row.lag for row in one.queues if topic in ("", row.message_queue.topic))
            if lag:
                waits.append(f"group {one.group} has {counted(lag, 'message')} left")
        if not waits or now - began >= seconds:
            return ", ".join(waits)
        if (text := ", ".join(waits)) != shown:
            shown = text
            report(f"{broker}: {text}")
        await anyio.sleep(SCAN_SECONDS)


async def _stored(admin: Admin, broker: str, topic: str) -> int:
    if not topic:
        return int((await admin.broker_runtime(broker)).get("msgPutTotalTodayNow", "0"))
    stats = await admin.topic_stats(topic)
    return sum(ends.max_offset for queue, ends in stats.items() if queue.broker_name == broker)


async def matching(admin: Admin, patterns: Sequence[str]) -> list[str]:
    """Replace patterns such as ``b-*`` by the broker names that they match; names without ``*`` and ``?``
    stay.

    Raises NoSuchBroker for a pattern that matches none, and as `client.admin`.
    """
    named: dict[str, None] = {}
    for pattern in patterns:
        found = [pattern]
        if any(letter in pattern for letter in "*?"):
            known = (await admin.cluster_info()).broker_addr_table
            found = sorted(fnmatch.filter(known, pattern), key=lambda name: (len(name), name))
            if not found:
                raise NoSuchBroker(pattern, known)
        named |= dict.fromkeys(found)
    return list(named)


async def drain(admin: Admin, brokers: Sequence[str], seconds: float, report: Report = _skip) -> str:
    """Stop sends to brokers, and wait until their groups have consumed everything; return the rest after
    `seconds`, in words, empty when nothing is left. `seconds` 0 does not wait.

    All brokers are changed before the wait begins, so that no broker gets the messages that another one
    refuses. `undrain` reverts this.
    """
    for broker in brokers:
        await admin.update_broker_config(READ_ONLY, broker=broker)
    if not seconds:
        return ""
    left = await ask_each(brokers, lambda broker: emptied(admin, broker, "", seconds, report), len(brokers))
    if len(brokers) == 1:
        return left[brokers[0]]
    return "; ".join(f"{broker}: {text}" for broker, text in left.items() if text)


async def undrain(admin: Admin, brokers: Sequence[str]) -> list[str]:
    """Let messages be sent to brokers again; return the addresses. Raises as `matching`."""
    return [
        address
        for broker in await matching(admin, brokers)
        for address in await admin.update_broker_config(READ_WRITE, broker=broker)
    ]


# --- moving a topic ---


async def moved(
    admin: Admin,
    topic: str,
    source: str,
    goal: str,
    seconds: float,
    *,
    delete: bool,
    in_order: bool = False,
    report: Report = _skip,
) -> str:
    """Move a topic; return the result, in words. `seconds` 0 does not wait. May be called again after any
    part of the move. Raises NotMoved when the topic cannot be moved, or not in time, and as `client.admin`.

    For an ordered topic (and with `in_order` for any) no message at `goal` is delivered before all groups
    have consumed the messages of `source`: until that time the topic can be written but not read at `goal`.
    """
    configs = await admin.topic_config(topic)
    if source not in configs:
        raise NotMoved(f"topic {topic} is not on {source}, but on {', '.join(sorted(configs))}")
    masters = {
        name
        for name, data in (await admin.cluster_info()).broker_addr_table.items()
        if MASTER_ID in data.broker_addrs
    }
    if goal not in masters or goal == source:
        others = ", ".join(sorted(masters - {source})) or "none"
        raise NotMoved(f"topic {topic} cannot move to {goal}: other masters are {others}")
    config = configs[source]
    there = configs.get(goal)
    in_order = in_order or is_ordered(config) or await admin.order_conf(topic) is not None
    if there is None or not there.perm & PERM_WRITE:
        perm = 0 if in_order else config.perm
        there = evolve(there or config, perm=perm)
        await admin.put_topic(there, broker=goal)
    known = await admin.group_configs(goal)
    for group in await admin.groups_of_topic(topic):
        settings = (await admin.group_configs(source)).get(group)
        if settings is not None and group not in known:
            await admin.put_group(settings, broker=goal)
    if config.perm != PERM_READ:
        await admin.put_topic(evolve(config, perm=PERM_READ), broker=source)
    if (
        not there.perm & PERM_WRITE
    ):  # only now: keys that were at two brokers for a while would lose their order
        await admin.put_topic(evolve(there, perm=PERM_WRITE), broker=goal)
    await _move_order(admin, topic, source, f"{goal}:{config.write_queue_nums}")
    if not seconds:
        later = ", and are delivered when the move is called again and waits" if in_order else ""
        return f"new messages of {topic} go to {goal}{later}"
    if left := await emptied(admin, source, topic, seconds, report):
        raise NotMoved(f"new messages of {topic} go to {goal}, but {source} is still needed: {left}")
    if in_order:
        await _open(admin, topic, goal)
    if delete:
        await admin.delete_topic(topic, broker=source)
        return f"topic {topic} is at {goal}, and deleted at {source}"
    return (
        f"topic {topic} is at {goal}, and all groups have consumed what {source} has of it; "
        f"`rmq topic delete {topic} -b {source}` deletes it there"
    )


def is_ordered(config: TopicConfig) -> bool:
    """True if a topic's settings require that its messages are consumed in order."""
    return config.order or (config.attributes or {}).get("message.type") == "FIFO"


async def _open(admin: Admin, topic: str, goal: str) -> None:
    """Open an ordered topic for reads, from the first message at the new broker."""
    config = (await admin.topic_config(topic))[goal]
    if config.perm & PERM_READ:
        return
    for group in await admin.groups_of_topic(topic):
        try:
            rows = (await admin.consume_stats(group, topic)).queues
        except ConsumerNotOnline:
            rows = []
        known = {row.message_queue for row in rows if row.consumer_offset > 0}
        queues = [MessageQueue(topic, goal, number) for number in range(config.read_queue_nums)]
        offsets = {queue: 0 for queue in queues if queue not in known}
        await admin.set_offsets(group, offsets, online=True)  # no member has these queues yet
    await admin.put_topic(evolve(config, perm=PERM_READ | PERM_WRITE), broker=goal)


async def _move_order(admin: Admin, topic: str, source: str, entry: str) -> None:
    conf = await admin.order_conf(topic)
    if conf is None:
        return
    entries = [one for one in conf.split(";") if one.rpartition(":")[0] != source]
    if all(one.rpartition(":")[0] != entry.rpartition(":")[0] for one in entries):
        entries.append(entry)
    await admin.put_order_conf(topic, ";".join(entries))


# --- planning moves ---


@frozen
class Move:
    """A proposed move of a topic. `messages` is the number that `source` keeps of it."""

    topic: str
    source: str
    goal: str
    messages: int


def planned(counts: Mapping[str, Mapping[str, int]]) -> list[Move]:
    """Few moves that make brokers even. `counts`: by broker and topic, the number of kept messages.

    Each move takes the topic nearest to half of the difference between the fuller and the emptiest broker, if
    the emptiest does not have the topic, until the brokers are even or no move helps.
    """
    held = {broker: dict(topics) for broker, topics in counts.items()}
    moves: list[Move] = []
    while (one := _next_move(held)) is not None:
        held[one.goal][one.topic] = held[one.source].pop(one.topic)
        moves.append(one)
    return moves


def _next_move(held: Mapping[str, Mapping[str, int]]) -> Move | None:
    totals = {broker: sum(topics.values()) for broker, topics in held.items()}
    if not totals:
        return None
    many = EVEN * sum(totals.values()) / len(totals)
    empty = min(totals, key=lambda broker: (totals[broker], broker))
    for full in sorted(totals, key=lambda broker: (-totals[broker], broker)):
        if totals[full] <= many:
            return None
        gap = totals[full] - totals[empty]
        useful = [
            (abs(gap - 2 * count), topic)
            for topic, count in held[full].items()
            if 0 < count < gap and topic not in held[empty]
        ]
        if useful:
            topic = min(useful)[1]
            return Move(topic, full, empty, held[full][topic])
    return None


async def message_counts(admin: Admin, cluster: str = "", step: Step = _skip) -> dict[str, dict[str, int]]:
    """Count the messages that the masters of a cluster, or all, keep: broker -> topic -> messages.

    One request for each topic; `step` is called after each.
    """
    info = await admin.cluster_info()
    counts: dict[str, dict[str, int]] = {}
    topics: set[str] = set()
    for name, data in sorted(info.broker_addr_table.items()):
        address = data.broker_addrs.get(MASTER_ID)
        if address is None or cluster not in ("", data.cluster):
            continue
        counts[name] = dict.fromkeys(await admin.topic_configs(address, system=False), 0)
        topics.update(counts[name])
    for topic in sorted(topics):
        for queue, ends in (await admin.topic_stats(topic)).items():
            if topic in (of_broker := counts.get(queue.broker_name, {})):
                of_broker[topic] += ends.max_offset - ends.min_offset
        step(1)
    return counts
