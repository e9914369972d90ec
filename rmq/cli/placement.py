"""`rmq topic move` and `rmq cluster plan`: on which broker a topic is, and which would better be moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
from attrs import evolve, frozen

from rmq.cli.completion import complete_topic
from rmq.cli.output import Format, echo, output_option, progress_bar, refuse, show
from rmq.cli.target import Target, confirm, run_admin, target_options, yes_option
from rmq.cli.values import as_duration
from rmq.protocol.codes import MASTER_ID, PERM_READ, PERM_WRITE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmq.client.admin import Admin

SCAN_SECONDS: Final = 1.0
"""Between two looks at what is left at a broker."""
STILL_SECONDS: Final = 31.0
"""For so long no message must have come: producers ask for routes every 30 s."""
EVEN: Final = 1.1
"""Brokers are even when the fullest has at most so many times the average's messages."""


# --- waiting until nobody needs what a broker has ---


async def emptied(admin: Admin, broker: str, topic: str, seconds: float) -> str:
    """Wait until no message has come to `broker` for `STILL_SECONDS`, and every group has consumed what is
    there; of one topic, or of all when it is "". Returns what is left after `seconds`, in words; empty when
    nothing is. Shows on standard error what it waits for. Raises what `Admin` raises."""
    import anyio

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
            waits.append(f"no message must come for {STILL_SECONDS:.0f} s (producers notice within 30 s)")
        for one in groups:
            lag = sum(row.lag for row in one.queues if topic in ("", row.message_queue.topic))
            if lag:
                waits.append(f"group {one.group} has {lag} messages left")
        if not waits or now - began >= seconds:
            return ", ".join(waits)
        if (text := ", ".join(waits)) != shown:
            shown = text
            echo(f"{broker}: {text}", err=True)
        await anyio.sleep(SCAN_SECONDS)


async def _stored(admin: Admin, broker: str, topic: str) -> int:
    if not topic:
        return int((await admin.broker_runtime(broker)).get("msgPutTotalTodayNow", "0"))
    stats = await admin.topic_stats(topic)
    return sum(ends.max_offset for queue, ends in stats.items() if queue.broker_name == broker)


# --- rmq topic move ---


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.option("--from", "source", required=True, metavar="BROKER", help="Where it is.")
@click.option("--to", "goal", required=True, metavar="BROKER", help="Where it is to be.")
@click.option(
    "--timeout", callback=as_duration, default="10m", show_default=True, help="How long to wait at most."
)
@click.option("--no-wait", is_flag=True, help="Let new messages go to the new broker, and return.")
@click.option("--delete", is_flag=True, help="Delete it at the old broker, with what retention keeps there.")
@yes_option
@target_options
def move(
    target: Target, topic: str, source: str, goal: str, timeout: int, no_wait: bool, delete: bool, yes: bool
) -> None:
    """Move a topic from one broker to another, without losing or holding up a message.

    The new broker gets the topic, with its queues and groups, and the old one takes no more messages of it:
    producers follow within 30 s. Then the command waits until every group has consumed what is at the old
    broker. The messages stay there, to be read again, until their retention ends, or --delete. Keys of an
    ordered topic go to other queues. Status 1 when something is left; the same command goes on then.
    """
    if delete and no_wait:
        refuse("--delete deletes only what all groups have consumed: leave --no-wait out")
    confirm(yes, f"Move topic {topic} from {source} to {goal}?")
    seconds = 0.0 if no_wait else timeout / 1000
    echo(run_admin(target, lambda admin: moved(admin, topic, source, goal, seconds, delete=delete)))


async def moved(admin: Admin, topic: str, source: str, goal: str, seconds: float, *, delete: bool) -> str:
    """Move a topic; returns what was done, in words. `seconds` 0 does not wait. Ends the command when it
    cannot be, or is not done in time. May be called again after any part of it."""
    configs = await admin.topic_config(topic)
    if source not in configs:
        refuse(f"topic {topic} is not on {source}, but on {', '.join(sorted(configs))}")
    masters = {
        name
        for name, data in (await admin.cluster_info()).broker_addr_table.items()
        if MASTER_ID in data.broker_addrs
    }
    if goal not in masters or goal == source:
        others = ", ".join(sorted(masters - {source})) or "none"
        refuse(f"topic {topic} cannot move to {goal}: other masters are {others}")
    config = configs[source]
    there = configs.get(goal)
    if there is None or not there.perm & PERM_WRITE:
        await admin.put_topic(evolve(there or config, perm=config.perm), broker=goal)
    known = await admin.group_configs(goal)
    for group in await admin.groups_of_topic(topic):
        settings = (await admin.group_configs(source)).get(group)
        if settings is not None and group not in known:
            await admin.put_group(settings, broker=goal)
    if config.perm != PERM_READ:
        await admin.put_topic(evolve(config, perm=PERM_READ), broker=source)
    await _move_order(admin, topic, source, f"{goal}:{config.write_queue_nums}")
    if not seconds:
        return f"new messages of {topic} go to {goal}"
    if left := await emptied(admin, source, topic, seconds):
        refuse(f"new messages of {topic} go to {goal}, but {source} is still needed: {left}")
    if delete:
        await admin.delete_topic(topic, broker=source)
        return f"topic {topic} is at {goal}, and deleted at {source}"
    return (
        f"topic {topic} is at {goal}, and all groups have consumed what {source} has of it; "
        f"`rmq topic delete {topic} -b {source}` deletes it there"
    )


async def _move_order(admin: Admin, topic: str, source: str, entry: str) -> None:
    conf = await admin.order_conf(topic)
    if conf is None:
        return
    entries = [one for one in conf.split(";") if one.rpartition(":")[0] != source]
    if all(one.rpartition(":")[0] != entry.rpartition(":")[0] for one in entries):
        entries.append(entry)
    await admin.put_order_conf(topic, ";".join(entries))


# --- rmq cluster plan ---


@frozen
class Move:
    """A topic that would better be elsewhere. `messages` that `source` keeps of it."""

    topic: str
    source: str
    goal: str
    messages: int


def planned(counts: Mapping[str, Mapping[str, int]]) -> list[Move]:
    """Few moves that make brokers even. `counts`: by broker and topic, the messages that are kept.

    Each takes the topic that is nearest to half of what the fuller broker has more than the emptiest, and
    that the emptiest does not have, until they are even or no move helps."""
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


@click.command()
@click.argument("cluster", default="")
@output_option
@target_options
def plan(target: Target, cluster: str, output: Format) -> None:
    """Say which topics to move so that the masters of CLUSTER, or all, get about as many messages each.

    It counts the messages that they keep, and changes nothing: `rmq topic move` does. A topic that is on all
    brokers is spread by its producers already.
    """
    counts = run_admin(target, lambda admin: _counts(admin, cluster))
    if not counts:
        refuse(f"no master of cluster {cluster or 'any'}; `rmq cluster list` shows those there are")
    moves = planned(counts)
    totals = {broker: sum(topics.values()) for broker, topics in counts.items()}
    after = dict(totals)
    rows: list[dict[str, Any]] = []
    for one in moves:
        after[one.source] -= one.messages
        after[one.goal] += one.messages
        command = f"rmq topic move {one.topic} --from {one.source} --to {one.goal}"
        rows.append({"topic": one.topic, "messages": one.messages, "command": command})
    for broker in sorted(totals):
        echo(f"{broker}: {totals[broker]} messages, {after[broker]} after the moves", err=True)
    if rows or output != "table":
        show(rows, output)
    else:
        echo("nothing to move")


async def _counts(admin: Admin, cluster: str) -> dict[str, dict[str, int]]:
    info = await admin.cluster_info()
    counts: dict[str, dict[str, int]] = {}
    topics: set[str] = set()
    for name, data in sorted(info.broker_addr_table.items()):
        address = data.broker_addrs.get(MASTER_ID)
        if address is None or cluster not in ("", data.cluster):
            continue
        counts[name] = dict.fromkeys(await admin.topic_configs(address, system=False), 0)
        topics.update(counts[name])
    with progress_bar("looking at topics", len(topics)) as step:
        for topic in sorted(topics):
            for queue, ends in (await admin.topic_stats(topic)).items():
                if topic in (of_broker := counts.get(queue.broker_name, {})):
                    of_broker[topic] += ends.max_offset - ends.min_offset
            step(1)
    return counts
