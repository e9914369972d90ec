"""`rmq group`: list, show, create, move and delete consumer groups."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from rmq.cli.completion import complete_group, complete_topic
from rmq.cli.output import Format, clock_text, echo, output_option, refuse, show
from rmq.cli.target import Target, confirm, part_options, report_done, run_admin, target_options, yes_option
from rmq.cli.values import as_position
from rmq.errors import ConsumerNotOnline, RmqError
from rmq.message import validate_group
from rmq.operate.values import Position
from rmq.printable import counted

if TYPE_CHECKING:
    from rmq.client.admin import Admin, OffsetReset, QueueProgress
    from rmq.client.admin.groups import DeliveryFigures
    from rmq.operate.groups import Group
    from rmq.operate.members import Member
    from rmq.protocol.bodies import SubscriptionGroupConfig

GROUP = click.argument("group", shell_complete=complete_group)
TOPIC = click.argument("topic", shell_complete=complete_topic)
TO_THE_END = -1


@click.group()
def group() -> None:
    """List, show, create, move and delete consumer groups."""


@group.command("list")
@click.option("-a", "--all", "every", is_flag=True, help="Also the groups of RocketMQ's own tools.")
@part_options
@output_option
@target_options
def list_groups(target: Target, every: bool, cluster: str, broker: str, output: Format) -> None:
    """List groups: connected members, backlog, and rate of consumption."""

    from rmq.operate import groups

    async def work(admin: Admin) -> list[Group]:
        return await groups.groups(admin, cluster=cluster, broker=broker, everything=every)

    rows = [
        {
            "group": one.name,
            "lag": one.lag,
            "tps": one.tps,
            "brokers": len(one.configs),
            "retry_max": one.retry_max,
            "members": one.members,
        }
        for one in run_admin(target, work)
    ]
    show(rows, output, columns=("group", "members", "lag", "tps", "brokers", "retry_max"))


@group.command("show")
@GROUP
@output_option
@target_options
def show_group(target: Target, group: str, output: Format) -> None:
    """Show the settings of a group on each of its brokers."""

    from rmq.operate import groups

    async def work(admin: Admin) -> tuple[dict[str, SubscriptionGroupConfig], dict[str, DeliveryFigures]]:
        if why := await groups.why_unknown(admin, group):
            raise RmqError(why)
        configs = await admin.group_config(group)
        figures = {}
        for address in configs:
            with suppress(RmqError):  # RocketMQ's brokers may not know the request
                figures[address] = await admin.delivery_figures(address, group)
        return configs, figures

    found, figures = run_admin(target, work)
    rows = [
        {
            "broker": address,
            "consume": config.consume_enable,
            "broadcast": config.consume_broadcast_enable,
            "retry_queues": config.retry_queue_nums,
            "retry_max": config.retry_max_times,
            "by_message_group": bool(config.consume_message_orderly),
            **_one_by_one(figures.get(address)),
        }
        for address, config in found.items()
    ]
    show(rows, output)


def _one_by_one(figures: DeliveryFigures | None) -> dict[str, float]:
    """Columns of per-message delivery; none for groups that pull."""
    if figures is None or not (figures.taken or figures.waiting or figures.polls):
        return {}
    oldest = round(figures.oldest_ms / 1000, 1)
    return {"taken": figures.taken, "oldest_s": oldest, "waiting": figures.waiting, "polls": figures.polls}


@group.command()
@GROUP
@click.option(
    "--retry-max", type=click.IntRange(-1), default=16, show_default=True, help="Retries of a message."
)
@click.option("--retry-queues", type=click.IntRange(1, 1024), default=1, help="Queues of its retry topic.")
@click.option("--consume/--no-consume", default=True, help="Whether it may consume.")
@click.option("--broadcast/--no-broadcast", default=True, help="Whether it may broadcast.")
@part_options
@target_options
def create(
    target: Target,
    group: str,
    retry_max: int,
    retry_queues: int,
    consume: bool,
    broadcast: bool,
    cluster: str,
    broker: str,
) -> None:
    """Create a group, or change it, on every master of the cluster, or of all clusters."""

    async def work(admin: Admin) -> list[str]:
        return await admin.create_group(
            group,
            cluster=cluster,
            broker=broker,
            retry_max_times=retry_max,
            retry_queues=retry_queues,
            consume_enable=consume,
            broadcast_enable=broadcast,
        )

    report_done(f"group {group} made", run_admin(target, work))


@group.command()
@GROUP
@click.option("--offsets", is_flag=True, help="Also delete its offsets.")
@yes_option
@part_options
@target_options
def delete(target: Target, group: str, offsets: bool, yes: bool, cluster: str, broker: str) -> None:
    """Delete a group, its retries and its dead letters."""

    from rmq.operate import groups

    async def work(admin: Admin) -> list[str]:
        return await admin.delete_group(group, cluster=cluster, broker=broker, remove_offset=offsets)

    if not run_admin(target, lambda admin: groups.exists(admin, group, broker=broker)):
        refuse(
            run_admin(target, lambda admin: groups.why_unknown(admin, group)) or f"{broker} has no such group"
        )
    confirm(yes, f"Delete group {group} from {broker or cluster or 'all brokers'}?")
    report_done(f"group {group} deleted", run_admin(target, work))


@group.command()
@GROUP
@click.option("--topic", default="", help="Only this topic.")
@output_option
@target_options
def lag(target: Target, group: str, topic: str, output: Format) -> None:
    """Show the number of unconsumed messages of a group in each queue."""

    from rmq.operate import groups

    async def work(admin: Admin) -> list[QueueProgress]:
        if topic:
            await admin.topic_route(topic)
        try:
            found = await admin.consumer_progress(group)
        except ConsumerNotOnline:
            if why := await groups.why_unknown(admin, group):
                raise RmqError(why) from None
            return []
        return [row for row in found if row.message_queue.topic == topic] if topic else found

    found = run_admin(target, work)
    rows = [
        {
            "topic": row.message_queue.topic,
            "broker": row.message_queue.broker_name,
            "queue_id": row.message_queue.queue_id,
            "broker_offset": row.broker_offset,
            "consumer_offset": row.consumer_offset,
            "lag": row.lag,
            "last_consumed": clock_text(row.last_timestamp),
        }
        for row in found
    ]
    show(rows, output)
    if output == "table" and found:
        echo(f"\n{counted(sum(row.lag for row in found), 'message')} left")
    elif not found:
        where = f" in topic {topic}" if topic else ""
        echo(f"group {group} has no offsets{where}: it begins there when its first member consumes", err=True)


@group.command()
@GROUP
@TOPIC
@click.option(
    "--to", "place", callback=as_position, required=True, help="earliest, latest, -10m, or a date and time."
)
@yes_option
@output_option
@target_options
def reset(target: Target, group: str, topic: str, place: Position, yes: bool, output: Format) -> None:
    """Move a group to another offset of a topic: messages in between are consumed again, or skipped.

    Running members get the new offset and continue from it at once.
    """
    where = place if isinstance(place, str) else clock_text(place)
    timestamp = {"first": 0, "last": TO_THE_END}.get(place) if isinstance(place, str) else place
    _move(
        target,
        f"Reset group {group} in topic {topic} to {where}?",
        (group, topic, timestamp or 0),
        yes,
        output,
    )


@group.command()
@GROUP
@TOPIC
@yes_option
@output_option
@target_options
def skip(target: Target, group: str, topic: str, yes: bool, output: Format) -> None:
    """Move a group to the end: it skips its unconsumed messages for good."""
    question = f"Let group {group} skip all that it has not consumed of topic {topic}?"
    _move(target, question, (group, topic, TO_THE_END), yes, output)


def _move(target: Target, question: str, where: tuple[str, str, int], yes: bool, output: Format) -> None:
    group, topic, timestamp = where

    from rmq.operate import groups

    async def look(admin: Admin) -> None:
        await admin.topic_route(topic)
        if why := await groups.why_unknown(admin, validate_group(group)):
            raise RmqError(why)

    async def work(admin: Admin) -> list[OffsetReset]:
        return await groups.reset(admin, group, topic, timestamp)

    run_admin(target, look)
    confirm(yes, question)
    rows = [
        {
            "broker": row.message_queue.broker_name,
            "queue_id": row.message_queue.queue_id,
            "broker_offset": row.broker_offset,
            "was": row.consumer_offset,
            "now": row.new_offset,
        }
        for row in run_admin(target, work)
    ]
    show(rows, output)


@group.command()
@GROUP
@click.option("--stack", is_flag=True, help="Include the stacks of their threads or tasks.")
@output_option
@target_options
def members(target: Target, group: str, stack: bool, output: Format) -> None:
    """Show the connected members, their subscriptions and their numbers of queues."""

    from rmq.operate import members

    async def work(admin: Admin) -> list[Member]:
        return await members.members(admin, group, stack=stack)

    rows = [
        {
            "client_id": one.client_id,
            "address": one.address,
            "language": one.language,
            "version": one.version,
            "consume_type": one.consume_type,
            "message_model": one.message_model,
            "queues": None if one.queues is None else len(one.queues),
            "subscriptions": one.subscriptions,
            "stack": one.stack,
        }
        for one in run_admin(target, work)
    ]
    show(rows, output, columns=("client_id", "address", "language", "version", "queues", "subscriptions"))
    if output == "table":
        subscriptions = {str(row["subscriptions"]) for row in rows if row["subscriptions"] is not None}
        if len(subscriptions) > 1:
            echo("all members of a group need the same subscriptions: messages are lost", err=True)
        for row in rows if stack else []:
            echo(f"\n{row['client_id']}\n{row['stack'] or 'it does not say'}")


@group.command()
@click.argument("source", shell_complete=complete_group)
@click.argument("copy", shell_complete=complete_group)
@click.option("--topic", default="", help="Only this topic.")
@yes_option
@target_options
def clone(target: Target, source: str, copy: str, topic: str, yes: bool) -> None:
    """Copy the offsets of group SOURCE to group COPY."""

    from rmq.operate import groups

    confirm(yes, f"Set the offsets of group {copy} to those of {source}?")
    run_admin(target, lambda admin: groups.clone(admin, source, copy, topic))
    echo(f"group {copy} continues at the offsets of {source}")
