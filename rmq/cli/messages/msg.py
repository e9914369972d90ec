"""`rmq msg`: find messages, follow their traces, redeliver messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rmq.cli.completion import complete_group, complete_topic
from rmq.cli.messages.pub import pub
from rmq.cli.messages.sub import expression, filter_options
from rmq.cli.messages.tail import TailOptions, grep_option, show_messages
from rmq.cli.output import Format, Style, clock_text, message_row, output_option, refuse, show, style_option
from rmq.cli.target import Target, confirm, run, run_admin, target_options, yes_option
from rmq.cli.values import as_position
from rmq.clock import wall_clock_ms
from rmq.operate.values import Position

if TYPE_CHECKING:
    import re

    from rmq.client.admin import Admin, Lookup, MessageTrack, Trace
    from rmq.message import StoredMessage
    from rmq.protocol.bodies import ConsumeMessageDirectlyResult

ID = click.argument("message_id", metavar="ID")
FOUND = ("stored", "broker", "queue_id", "queue_offset", "message_id", "tags", "keys", "body")
BODY_SHOWN = 200
SHOWN_BYTES = 64 << 20
"""Bytes of each body that `find` keeps; bodies may be compressed a thousandfold."""


@click.group()
def msg() -> None:
    """Find messages, follow their traces, redeliver messages."""


msg.add_command(pub, "send")


@msg.command()
@ID
@click.option("--topic", default="", help="Its topic: needed for an id that a producer gave.")
@click.option("--groups", is_flag=True, help="Show also which groups have consumed it.")
@output_option
@target_options
def get(target: Target, message_id: str, topic: str, groups: bool, output: Format) -> None:
    """Show one message, by its offset id, or with --topic by its unique id."""

    async def work(admin: Admin) -> tuple[StoredMessage, list[MessageTrack]]:
        message = await admin.view_message(message_id, topic)
        return message, await admin.message_tracks(message) if groups else []

    message, tracks = run_admin(target, work)
    row = message_row(message)
    if groups:
        row["groups"] = {track.group: track.state for track in tracks}
    if output == "table":
        row |= {key: clock_text(row[key]) for key in ("born_timestamp", "store_timestamp")}
    show(row, output)


@msg.command()
@click.argument("topic", shell_complete=complete_topic)
@click.argument("key")
@click.option("--from", "begin", callback=as_position, default="first", help="Stored then or later.")
@click.option("--to", "end", callback=as_position, default="last", help="Stored then or before.")
@click.option("--max", "most", type=click.IntRange(1, 10_000), default=64, show_default=True)
@output_option
@target_options
def find(
    target: Target, topic: str, key: str, begin: Position, end: Position, most: int, output: Format
) -> None:
    """Find messages by a key, or by their producer's id."""
    from rmq.operate.messages import lookup

    async def work(admin: Admin) -> Lookup:
        return await lookup.find(
            admin,
            topic,
            key,
            most=most,
            since_ms=begin if isinstance(begin, int) else 0,
            until_ms=end if isinstance(end, int) else None,
            now_ms=wall_clock_ms(),
        )

    found = run_admin(target, work)
    if not found.messages:
        refuse(
            f"topic {topic} has no message with key {key} then; the indexes reach to"
            f" {clock_text(found.index_timestamp)}"
        )
    rows, size = [], 0
    for message in found.messages:
        row = message_row(message)
        if output == "table":
            row = _short(row)
        rows.append(row)
        size += len(row["body"] if "body" in row else row["body_base64"])
        if size > SHOWN_BYTES:
            refuse(f"the bodies take over {SHOWN_BYTES} bytes: ask for fewer by --max, or for a table")
    show(rows, output, columns=FOUND)


def _short(row: dict[str, Any]) -> dict[str, Any]:
    body = row.get("body", f"base64 {row.get('body_base64')}")
    return row | {"stored": clock_text(row["store_timestamp"]), "body": body[:BODY_SHOWN]}


@msg.command()
@ID
@click.option("--trace-topic", default="RMQ_SYS_TRACE_TOPIC", show_default=True)
@output_option
@target_options
def trace(target: Target, message_id: str, trace_topic: str, output: Format) -> None:
    """Show the history of a message, by its unique id, from the traces of clients and brokers."""

    async def work(admin: Admin) -> Trace:
        return await admin.trace(message_id, topic=trace_topic)

    events = run_admin(target, work).events
    if not events:
        refuse(f"nothing was traced of message {message_id} in topic {trace_topic}; do its clients trace?")
    rows = [
        {
            "time": clock_text(event.timestamp_ms),
            "what": event.type.value,
            "group": event.group,
            "success": event.success,
            "cost_ms": event.cost_ms,
            "client": bean.client_host,
            "store": bean.store_host,
            "retries": bean.retry_times,
        }
        for event in events
        for bean in event.beans
        if bean.message_id == message_id
    ]
    show(rows, output)


@msg.command("print")
@click.argument("topic", shell_complete=complete_topic)
@click.option(
    "--from", "start", callback=as_position, default="first", help="Where to begin. [default: earliest]"
)
@click.option(
    "--to", "end", callback=as_position, default="last", help="Where to end. [default: the end now]"
)
@filter_options
@grep_option
@click.option("--max", "most", type=click.IntRange(1), help="End after this number of messages.")
@style_option("line")
@target_options
def print_messages(
    target: Target,
    topic: str,
    start: Position,
    end: Position,
    tags: str | None,
    sql: str | None,
    grep: re.Pattern[bytes] | None,
    most: int | None,
    output: Style,
) -> None:
    """Print the messages of a topic from one time to another."""
    options = TailOptions(topic, start, expression(tags, sql), grep, end, output)
    run(show_messages, target, options, most)


@msg.command()
@click.argument("group", shell_complete=complete_group)
@ID
@click.option("--topic", default="", help="Its topic: needed for an id that a producer gave.")
@click.option("--client", default="", help="The member that gets it. [default: the first]")
@yes_option
@output_option
@target_options
def resend(
    target: Target, group: str, message_id: str, topic: str, client: str, yes: bool, output: Format
) -> None:
    """Give a stored message to a member of a group again, now. Offsets stay unchanged."""

    from rmq.operate.messages import lookup

    async def work(admin: Admin) -> ConsumeMessageDirectlyResult:
        return await lookup.give_to_member(admin, group, message_id, topic, client)

    confirm(yes, f"Let group {group} consume message {message_id} once more?")
    result = run_admin(target, work)
    show(result, output)
    if not lookup.is_consumed(result):
        refuse(f"the member did not consume message {message_id}: {result.remark or result.consume_result}")
