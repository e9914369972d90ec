"""`rmq sub`: consume a topic as a member of a group; `rmq reply`: consume requests and reply to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from attrs import frozen

from rmq.cli.completion import complete_group, complete_topic
from rmq.cli.output import Style, echo, print_message, style_option
from rmq.cli.target import Target, run, target_options
from rmq.cli.values import as_duration, as_position
from rmq.operate.values import Position

if TYPE_CHECKING:
    from rmq.client.client import Client
    from rmq.client.consume.consumer import Consumer
    from rmq.client.consume.subscription import Sql
    from rmq.message import StoredMessage


@frozen
class SubOptions:
    """Topics, limits, and output format of the command."""

    topics: tuple[str, ...]
    group: str
    expression: str | Sql
    options: dict[str, Any]
    most: int | None
    idle_ms: int | None
    style: Style


def expression(tags: str | None, sql: str | None) -> str | Sql:
    """The filter of --filter and --sql. Raises click's usage error, ConfigError."""
    if tags and sql:
        raise click.UsageError("give --filter or --sql, not both")
    if sql:
        from rmq.client.consume.subscription import sql as by_sql

        return by_sql(sql)
    return tags or "*"


def filter_options(command: Any) -> Any:
    """Add the options --filter and --sql."""
    tags = click.option("--filter", "tags", metavar="TAGS", help="Only these tags: 'paid || refunded'.")
    sql = click.option(
        "--sql", metavar="EXPRESSION", help="Only messages that this SQL92 expression selects."
    )
    return tags(sql(command))


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topic)
@click.option("-g", "--group", required=True, shell_complete=complete_group, help="Consumer group.")
@filter_options
@click.option("--max", "most", type=click.IntRange(1), help="End after this number of messages.")
@click.option("--idle", callback=as_duration, metavar="10s", help="End after this time without a message.")
@click.option(
    "--from",
    "start",
    callback=as_position,
    default="first",
    show_default=True,
    help="Where a new group begins.",
)
@click.option("--ordered", is_flag=True, help="In order, under the brokers' queue locks.")
@click.option("--broadcast", is_flag=True, help="Broadcasting: every member gets all messages.")
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
    """Raises NoPermission or NoRoute if this account may not consume: a consumer would retry for ever."""
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
        topics = dict.fromkeys(chosen.topics, chosen.expression)
        async with client.consumer(chosen.group, topics, **chosen.options) as consumer:
            await _take(consumer, chosen)


async def _take(
    consumer: Consumer, chosen: SubOptions, handle: Callable[[StoredMessage], Awaitable[None]] | None = None
) -> None:
    """Print until --max or --idle is reached, after a call of `handle` for each message. Raises the obstacle
    between the consumer and its queues, when --idle is reached, or on an interruption before it has a
    queue."""
    import trio

    left = chosen.most
    idle = (chosen.idle_ms or 0) / 1000 or float("inf")
    while left is None or left > 0:
        delivery = None
        try:
            with trio.move_on_after(idle):
                delivery = await anext(consumer)
        except trio.Cancelled:
            if not consumer.queues:
                consumer.check_ready()
            raise
        if delivery is None:
            consumer.check_ready()  # no message came: perhaps because none could come
            return
        async with delivery as message:
            if handle is not None:
                await handle(message)
            print_message(message, chosen.style)
        left = None if left is None else left - 1


# --- reply ---


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.argument("body", required=False)
@click.option("-g", "--group", required=True, shell_complete=complete_group, help="Consumer group.")
@click.option(
    "--exec", "program", metavar="COMMAND", help="Run this program on each request; its output is the reply."
)
@click.option("--echo", "is_echo", is_flag=True, help="Reply the request itself.")
@filter_options
@click.option("--max", "most", type=click.IntRange(1), help="End after this number of messages.")
@click.option("--idle", callback=as_duration, metavar="10s", help="End after this time without a message.")
@style_option("line")
@target_options
def reply(
    target: Target,
    topic: str,
    body: str | None,
    group: str,
    program: str | None,
    is_echo: bool,
    tags: str | None,
    sql: str | None,
    most: int | None,
    idle: int | None,
    output: Style,
) -> None:
    """Consume the requests that come to TOPIC, reply to each, and print them.

    The reply is BODY, or the output of a command (run by the shell, with the request's body as its input and
    RMQ_MESSAGE_ID, RMQ_MESSAGE_TAGS and RMQ_MESSAGE_KEYS in its environment; one line break at the end of the
    output is left out), or with --echo the request. A command that fails or prints nothing ends `rmq reply`
    with 1, and the request is redelivered. Messages that are no requests are printed and acknowledged. `rmq
    request` sends requests.
    """
    if sum((body is not None, program is not None, is_echo)) != 1 or body == "":
        raise click.UsageError("give one of BODY, --exec and --echo")
    fixed = None if body is None else body.encode("utf-8", "surrogateescape")
    options = {"consume_from": "first", "on_error": "raise"}
    chosen = SubOptions((topic,), group, expression(tags, sql), options, most, idle, output)
    run(_reply, target, chosen, fixed, program)


async def _reply(target: Target, chosen: SubOptions, fixed: bytes | None, program: str | None) -> None:
    from rmq.errors import AskerGone
    from rmq.message import PROPERTY_REPLY_TO_CLIENT

    async with target.connect() as client, client.producer(f"{chosen.group}-replies") as producer:
        await check_may_consume(client, chosen.group, chosen.topics)

        async def handle(message: StoredMessage) -> None:
            if PROPERTY_REPLY_TO_CLIENT not in message.properties:
                echo(f"rmq reply: {message.message_id} is no request", err=True)
                return
            body = fixed or (message.body if program is None else await _printed(program, message))
            try:
                await producer.reply(message, body)
            except AskerGone as error:
                echo(f"rmq reply: {error}", err=True)

        topics = dict.fromkeys(chosen.topics, chosen.expression)
        async with client.consumer(chosen.group, topics, **chosen.options) as consumer:
            await _take(consumer, chosen, handle)


async def _printed(program: str, message: StoredMessage) -> bytes:
    """The output of the command. Raises RmqError when the command fails or prints nothing."""
    import os

    import trio

    from rmq.errors import RmqError

    texts = {"ID": message.message_id, "TAGS": message.tags or "", "KEYS": " ".join(message.keys)}
    environment = {
        f"RMQ_MESSAGE_{name}": text.encode("utf-8", "replace").decode() for name, text in texts.items()
    }
    done = await trio.run_process(
        program,
        shell=True,
        stdin=message.body,
        capture_stdout=True,
        check=False,
        env={**os.environ, **environment},
    )
    printed: bytes = done.stdout.removesuffix(b"\n")
    if done.returncode or not printed:
        what = f"ended with {done.returncode}" if done.returncode else "printed nothing"
        raise RmqError(f"{program!r:.200} {what}")
    return printed
