"""`rmq sub`: consume a topic as a member of a group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click
from attrs import frozen

from rmq.cli.completion import complete_group, complete_topic
from rmq.cli.output import Style, print_message, style_option
from rmq.cli.target import Target, run, target_options
from rmq.cli.values import Position, as_duration, as_position

if TYPE_CHECKING:
    from rmq.client.client import Client
    from rmq.client.consumer import Consumer
    from rmq.client.subscription import Sql


@frozen
class SubOptions:
    """What to consume, how much of it, and how to print it."""

    topics: tuple[str, ...]
    group: str
    wanted: str | Sql
    options: dict[str, Any]
    most: int | None
    idle_ms: int | None
    style: Style


def expression(tags: str | None, sql: str | None) -> str | Sql:
    """The filter that --filter and --sql name. Raises click's usage error, ConfigError."""
    if tags and sql:
        raise click.UsageError("give --filter or --sql, not both")
    if sql:
        from rmq.client.subscription import sql as by_sql

        return by_sql(sql)
    return tags or "*"


def filter_options(command: Any) -> Any:
    """Adds --filter and --sql."""
    tags = click.option("--filter", "tags", metavar="TAGS", help="Only these tags: 'paid || refunded'.")
    sql = click.option("--sql", metavar="EXPRESSION", help="Only what this SQL92 expression takes.")
    return tags(sql(command))


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topic)
@click.option("-g", "--group", required=True, shell_complete=complete_group, help="Consumer group.")
@filter_options
@click.option("--max", "most", type=click.IntRange(1), help="End after so many messages.")
@click.option("--idle", callback=as_duration, metavar="10s", help="End when none has come for so long.")
@click.option(
    "--from",
    "start",
    callback=as_position,
    default="first",
    show_default=True,
    help="Where a new group begins.",
)
@click.option("--ordered", is_flag=True, help="In order, under the brokers' queue locks.")
@click.option("--broadcast", is_flag=True, help="Get all messages, whatever other members get.")
@style_option("body")
@target_options
def sub(
    target: Target,
    topics: tuple[str, ...],
    group: str,
    tags: str | None,
    sql: str | None,
    start: Position,
    most: int | None,
    idle: int | None,
    output: Style,
    ordered: bool,
    broadcast: bool,
) -> None:
    """Consume TOPICs as a member of a group; each message counts as consumed once it is printed.

    `rmq tail` looks at a topic without a group. --from takes earliest, latest, -10m or a date and time.
    """
    options = {"consume_from": start, "ordered": ordered, "broadcasting": broadcast, "on_error": "raise"}
    run(_sub, target, SubOptions(topics, group, expression(tags, sql), options, most, idle, output))


async def check_may_consume(client: Client, group: str, topics: Iterable[str]) -> None:
    """Raises NoPermission or NoRoute where this account may not consume: a consumer would retry for ever."""
    from rmq.errors import NoPermission, NoRoute, RmqError

    for topic in topics:
        try:
            await client.admin.consume_stats(group, topic)
        except RmqError as error:
            if isinstance(error, NoPermission) or (isinstance(error, NoRoute) and error.refused):
                raise


async def _sub(target: Target, chosen: SubOptions) -> None:
    async with target.connect() as client:
        await check_may_consume(client, chosen.group, chosen.topics)
        topics = dict.fromkeys(chosen.topics, chosen.wanted)
        async with client.consumer(chosen.group, topics, **chosen.options) as consumer:
            await _take(consumer, chosen)


async def _take(consumer: Consumer, chosen: SubOptions) -> None:
    """Prints until --max or --idle is reached."""
    import trio

    left = chosen.most
    idle = (chosen.idle_ms or 0) / 1000 or float("inf")
    while left is None or left > 0:
        with trio.move_on_after(idle):
            delivery = await anext(consumer)
            async with delivery as message:
                print_message(message, chosen.style)
            left = None if left is None else left - 1
            continue
        return
