"""Messages as text: bodies, lines for people, JSON lines for programs."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from typing import Any, Final, Literal

import click

from rmq.cli.output import body_text, echo
from rmq.cli.times import clock_text
from rmq.message import PROPERTY_KEYS, PROPERTY_TAGS, StoredMessage
from rmq.printable import printable, printable_json

Style = Literal["body", "line", "json"]
STYLES: Final = ["body", "line", "json"]


def style_option(default: Style) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds `-o body|line|json`; the command gets it as argument `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(STYLES),
        default=default,
        show_default=True,
        help="body: the body only; line: with time, place, tags and keys; json: one object a line.",
    )


def print_message(message: StoredMessage, style: Style) -> None:
    """Prints one message and flushes. Raises BrokenPipeError when nobody reads any more."""
    if style == "body" and not sys.stdout.isatty():
        sys.stdout.flush()
        sys.stdout.buffer.write(message.body + b"\n")
        sys.stdout.buffer.flush()
        return
    echo({"body": _body, "line": _line, "json": _json}[style](message))


def _body(message: StoredMessage) -> str:
    return "\n".join(map(printable, body_text(message.body).split("\n")))


def _line(message: StoredMessage) -> str:
    place = f"{message.broker_name}/{message.queue_id}@{message.queue_offset}"
    marks = [f"tags={message.tags}"] if message.tags else []
    marks += [f"keys={','.join(message.keys)}"] if message.keys else []
    text = " ".join([clock_text(message.store_timestamp), place, *marks, body_text(message.body)])
    return printable(text)


def _json(message: StoredMessage) -> str:
    return printable_json(json.dumps(message_row(message), ensure_ascii=False))


def message_row(message: StoredMessage) -> dict[str, Any]:
    """A message as JSON and YAML have it; a body that is no UTF-8 stands in `body_base64`."""
    row: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id if message.store_host else "",
        "tags": message.tags,
        "keys": list(message.keys),
        "properties": {
            name: value
            for name, value in message.properties.items()
            if name not in (PROPERTY_TAGS, PROPERTY_KEYS)
        },
        "born_timestamp": message.born_timestamp,
        "born_host": message.born_host,
        "store_timestamp": message.store_timestamp,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
    }
    try:
        row["body"] = message.body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(message.body).decode()
    return row
