"""`rmq topic`: list, show, create, change, move and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rmq.cli.clusters.placement import move
from rmq.cli.completion import complete_topic
from rmq.cli.output import Format, clock_text, echo, output_option, refuse, show
from rmq.cli.target import Target, confirm, part_options, report_done, run_admin, target_options, yes_option
from rmq.cli.values import as_limit_duration, as_limit_size, as_perm
from rmq.message import validate_topic
from rmq.operate.values import perm_text
from rmq.printable import counted

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.operate.topics import Topic, TopicChange
    from rmq.protocol.bodies import TopicConfig

QUEUES_MAX = 1024
TOPIC = click.argument("topic", shell_complete=complete_topic)
QUEUES = click.IntRange(1, QUEUES_MAX)
RETENTION = click.option(
    "--retention",
    metavar="DURATION|none",
    callback=as_limit_duration,
    help="Age at which its messages are given up, read or not: 3d, 12h; none: as the broker's.",
)
RETENTION_BYTES = click.option(
    "--retention-bytes",
    metavar="SIZE|none",
    callback=as_limit_size,
    help="Bytes of messages to keep on each broker: 10g, 512m; older messages are dropped.",
)


@click.group()
def topic() -> None:
    """List, show, create, change, move and delete topics."""


topic.add_command(move)


@topic.command("list")
@click.option("-a", "--all", "every", is_flag=True, help="Also retry topics, dead letters and the system's.")
@part_options
@output_option
@target_options
def list_topics(target: Target, every: bool, cluster: str, broker: str, output: Format) -> None:
    """List topics with their brokers, queues and permissions."""

    from rmq.operate import topics

    async def work(admin: Admin) -> list[Topic]:
        return await topics.topics(admin, cluster=cluster, broker=broker, everything=every)

    rows = [
        {
            "topic": one.name,
            "brokers": len(one.configs),
            "read_queues": one.read_queues,
            "write_queues": one.write_queues,
            "perm": one.perm,
            "order": one.is_ordered,
        }
        for one in run_admin(target, work)
    ]
    show(rows, output)


@topic.command("show")
@TOPIC
@output_option
@target_options
def show_topic(target: Target, topic: str, output: Format) -> None:
    """Show the settings of a topic on each of its brokers."""
    from rmq.operate.copies.manifest import topic_settings  # YAML comes with the file format

    async def work(admin: Admin) -> dict[str, TopicConfig]:
        return await admin.topic_config(topic)

    rows = [{"broker": name, **topic_settings(config)} for name, config in run_admin(target, work).items()]
    show(rows, output)


@topic.command()
@TOPIC
@click.option("--queues", type=QUEUES, default=8, show_default=True, help="Queues on each broker.")
@click.option("--perm", default="rw", callback=as_perm, show_default=True, help="rw, r, w or none.")
@click.option("--order", is_flag=True, help="An ordered topic: name servers note its queues.")
@click.option("--if-missing", is_flag=True, help="Do nothing, with status 0, if it exists.")
@part_options
@target_options
def create(
    target: Target,
    topic: str,
    queues: int,
    perm: int,
    order: bool,
    if_missing: bool,
    cluster: str,
    broker: str,
) -> None:
    """Create a topic on every master of the cluster, or of all clusters."""

    from rmq.operate import topics

    async def work(admin: Admin) -> list[str] | None:
        return await topics.create(
            admin, topic, cluster=cluster, broker=broker, queues=queues, perm=perm, order=order
        )

    addresses = run_admin(target, work)
    if addresses is None and if_missing:
        echo(f"topic {topic} exists already; nothing was changed")
    elif addresses is None:
        refuse(f"topic {topic} exists already; `rmq topic update` changes it, --if-missing accepts it")
    else:
        report_done(f"topic {topic} made with {counted(queues, 'queue')} each", addresses)


@topic.command()
@TOPIC
@click.option("--queues", type=QUEUES, help="Queues on each broker, for reading and writing.")
@click.option("--read-queues", type=QUEUES, help="Queues that are read, on each broker.")
@click.option("--write-queues", type=QUEUES, help="Queues that are written, on each broker.")
@click.option("--perm", callback=as_perm, help="rw, r, w or none.")
@click.option("--order/--no-order", default=None, help="Whether it is an ordered topic.")
@RETENTION
@RETENTION_BYTES
@yes_option
@part_options
@target_options
def update(
    target: Target,
    topic: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: int | None,
    order: bool | None,
    retention: int | None,
    retention_bytes: int | None,
    yes: bool,
    cluster: str,
    broker: str,
) -> None:
    """Change a topic on every master; settings without an option stay. Masters without the topic get it.

    A limit by --retention or --retention-bytes holds within seconds, also for stored messages.

    To have fewer queues without losing messages, lower --write-queues first, and --read-queues when the other
    queues are consumed. If --read-queues would hide unread messages, the command names them and asks.
    """
    changes = {
        "read_queue_nums": read_queues or queues,
        "write_queue_nums": write_queues or queues,
        "perm": perm,
        "order": order,
    }
    planned: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}

    from rmq.operate import topics

    async def look(admin: Admin) -> TopicChange:
        return await topics.preview_change(
            admin,
            topic,
            planned,
            cluster=cluster,
            broker=broker,
            retention_ms=retention,
            retention_bytes=retention_bytes,
        )

    change = run_admin(target, look)
    hides = yes
    if hidden := topics.unread_text(change.unread):
        confirm(yes, f"Hide {hidden}? No consumer is given these queues then.")
        hides = True

    async def work(admin: Admin) -> list[str]:
        return await topics.change(admin, change, hide_unread=hides)

    report_done(f"topic {topic} changed", run_admin(target, work))


@topic.command()
@TOPIC
@click.argument("perm", callback=as_perm)
@part_options
@target_options
def perm(target: Target, topic: str, perm: int, cluster: str, broker: str) -> None:
    """Change the permissions of a topic: rw, r, w or none."""

    async def work(admin: Admin) -> dict[str, TopicConfig]:
        return await admin.set_topic_perm(topic, perm, cluster=cluster, broker=broker)

    report_done(f"topic {topic} allows {perm_text(perm)}", run_admin(target, work))


@topic.command()
@TOPIC
@yes_option
@part_options
@target_options
def delete(target: Target, topic: str, yes: bool, cluster: str, broker: str) -> None:
    """Delete a topic and its messages."""
    where = broker or cluster or "all brokers"

    async def look(admin: Admin) -> None:
        if not await admin.topic_exists(validate_topic(topic), broker=broker):
            await admin.topic_config(topic)  # the error of a cluster without the topic

    async def work(admin: Admin) -> list[str]:
        return await admin.delete_topic(topic, cluster=cluster, broker=broker)

    run_admin(target, look)
    confirm(yes, f"Delete topic {topic} with its messages from {where}?")
    report_done(f"topic {topic} deleted", run_admin(target, work))


@topic.command()
@TOPIC
@output_option
@target_options
def stats(target: Target, topic: str, output: Format) -> None:
    """Show the ends of each queue and the time of its last message."""

    from rmq.operate import topics

    rows = [
        {
            "broker": ends.message_queue.broker_name,
            "queue_id": ends.message_queue.queue_id,
            "min_offset": ends.min_offset,
            "max_offset": ends.max_offset,
            "messages": ends.messages,
            "last_message": clock_text(ends.last_message_ms),
        }
        for ends in run_admin(target, lambda admin: topics.queues(admin, topic))
    ]
    show(rows, output)


@topic.command()
@TOPIC
@output_option
@target_options
def route(target: Target, topic: str, output: Format) -> None:
    """Show the brokers of a topic, and their addresses for clients."""
    from rmq.operate import topics

    rows = [
        {
            "cluster": one.cluster,
            "broker": one.broker,
            "addresses": {str(number): address for number, address in one.addresses.items()},
            "read_queues": one.read_queues,
            "write_queues": one.write_queues,
            "perm": one.perm,
        }
        for one in run_admin(target, lambda admin: topics.routes(admin, topic))
    ]
    show(rows, output)
