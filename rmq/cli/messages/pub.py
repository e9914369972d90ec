"""`rmq pub`: send messages from arguments, files or standard input; `rmq request`: send one and wait for the
reply.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click
from attrs import Factory, define, field, frozen

from rmq.cli.completion import complete_topic
from rmq.cli.output import (
    Format,
    Step,
    Style,
    echo,
    output_option,
    print_message,
    progress_bar,
    show,
    style_option,
)
from rmq.cli.target import Target, first_error, run, target_options
from rmq.cli.values import as_duration, pairs
from rmq.errors import ConfigError, RmqError
from rmq.operate.values import duration_ms
from rmq.printable import counted

if TYPE_CHECKING:
    from rmq.client.produce.producer import Producer
    from rmq.client.session.results import SendResult
    from rmq.message import Message

LEVELS = range(1, 19)
FEW = 10
"""Number of results that are listed one by one; more are summed up, unless the output is JSON or YAML."""


@frozen
class PubOptions:
    """The messages to send, and the way of sending."""

    topic: str
    bodies: Iterator[bytes] = field(repr=False)
    total: int | None
    group: str
    attributes: dict[str, Any]
    sharding_key: str | None
    concurrency: int
    keep: int
    """Number of results that are kept for the output."""
    is_json: bool = False
    """True if the bodies are JSON, each a message in the form of `-o json`."""


def _properties(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    return pairs(given, "NAME=VALUE")


def _delay(context: click.Context, parameter: click.Parameter, given: str | None) -> dict[str, int]:
    if given is None:
        return {}
    if given.isdigit():
        if int(given) not in LEVELS:
            raise click.BadParameter("a level is 1 to 18; a time has a unit, such as 10s")
        return {"delay_level": int(given)}
    try:
        return {"delay_ms": duration_ms(given)}
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def message_options(command: Any) -> Any:
    """Add --tags, --keys and --property: the parts of messages beside their bodies."""
    tags = click.option("--tags", metavar="TAG", help="Tag of the messages.")
    keys = click.option("--keys", multiple=True, metavar="KEY", help="Key to look them up by; repeatable.")
    properties = click.option(
        "--property", "properties", multiple=True, callback=_properties, metavar="NAME=VALUE"
    )
    return tags(keys(properties(command)))


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.argument("body", required=False)
@click.option("-f", "--file", type=click.File("rb"), help="One message: the whole file; - is standard input.")
@click.option(
    "-l", "--lines", type=click.File("rb"), help="A message a line of this file. [default: standard input]"
)
@click.option("--json", "is_json", is_flag=True, help="Lines are messages as `rmq tail -o json` prints them.")
@message_options
@click.option(
    "--delay",
    "delay",
    callback=_delay,
    metavar="10s|LEVEL",
    help="Deliver later: a time, or a level 1 to 18.",
)
@click.option("--sharding-key", metavar="KEY", help="Messages with equal keys go to one queue, in order.")
@click.option("--count", type=click.IntRange(1), default=1, help="Sends of BODY or the file.")
@click.option(
    "--concurrency", type=click.IntRange(1, 1024), default=1, help="Sends in flight; over 1 unordered."
)
@click.option("--group", default="rmq-cli-pub", show_default=True, help="Producer group.")
@output_option
@target_options
def pub(
    target: Target,
    topic: str,
    body: str | None,
    file: BinaryIO | None,
    lines: BinaryIO | None,
    is_json: bool,
    output: Format,
    **options: Any,
) -> None:
    """Send messages to TOPIC: BODY, a file, or the lines of standard input.

    Empty lines are skipped: there are no empty messages. Prints the place of each message, or a summary of
    many. The first error ends the command; earlier messages stay sent.

    With --json each line is an object with `body` or `body_base64`, and `tags`, `keys`, `properties`, `flag`,
    `sharding_key`, `delay_level`, `delay_ms` or `deliver_at_ms`; the other fields that -o json prints are
    ignored, and so are RocketMQ's own properties. --tags replaces the tags of a line, --keys and --property
    add to the line's. To copy a topic: rmq tail A --from earliest --no-follow -o json | rmq pub B --json
    """
    if sum(source is not None for source in (body, file, lines)) > 1:
        raise click.UsageError("give one of BODY, --file and --lines")
    if is_json and (body is not None or file is not None):
        raise click.UsageError("--json goes with lines")
    bodies, total = _bodies(body, file, lines, options["count"])
    chosen = PubOptions(
        topic,
        bodies,
        total,
        options["group"],
        {key: options[key] for key in ("tags", "keys", "properties")} | options["delay"],
        options["sharding_key"],
        options["concurrency"],
        keep=FEW if output == "table" else 1 << 62,
        is_json=is_json,
    )
    run(_pub, target, chosen, output)


def _bodies(
    body: str | None, file: BinaryIO | None, lines: BinaryIO | None, count: int
) -> tuple[Iterator[bytes], int | None]:
    """The bodies to send, and their number if it is known."""
    if body is not None or file is not None:
        whole = body.encode("utf-8", "surrogateescape") if body is not None else file.read()  # type: ignore[union-attr]
        return iter([whole] * count if count <= FEW else (whole for _ in range(count))), count
    if count != 1:
        raise click.UsageError("--count goes with BODY or --file")
    if lines is None and sys.stdin.isatty():
        echo("a message a line; Ctrl-D ends", err=True)
    source = lines or sys.stdin.buffer
    return (text for line in source if (text := line.rstrip(b"\r\n"))), None


async def _pub(target: Target, chosen: PubOptions, output: Format) -> None:
    with progress_bar("sent", chosen.total) as step:
        outcome = await send_all(target, chosen, step)
    if outcome.count == 0:
        pass  # the error has been printed, or no line was read
    elif outcome.count <= chosen.keep:
        show(outcome.rows, output)
    else:
        rate = outcome.count / outcome.seconds if outcome.seconds else 0.0
        sent = counted(outcome.count, "message")
        echo(f"{sent} sent to {chosen.topic} in {outcome.seconds:.2f} s ({rate:,.0f}/s)")
    for note in outcome.notes():
        echo(f"rmq pub: {note}", err=True)
    if outcome.error is not None:
        before = f"; {counted(outcome.count, 'message')} sent before" if outcome.count else ""
        error: RmqError = outcome.error
        error.hint = f"{error.hint}{before}" if error.hint else before.lstrip("; ")
        raise error


# --- sending ---


@define
class Outcome:
    """Counts of sends; `error` ended the run early."""

    keep: int
    count: int = 0
    seconds: float = 0.0
    rows: list[dict[str, Any]] = Factory(list)
    statuses: Counter[str] = Factory(Counter)
    untimed: int = 0
    error: RmqError | None = None

    def add(self, result: SendResult, *, timed: bool) -> None:
        """Count a result; `timed`: the message had a delivery time, which only brokers with timers
        support."""
        self.count += 1
        self.statuses[result.status] += 1
        self.untimed += timed and result.recall_handle is None
        if len(self.rows) < self.keep:
            queue = result.message_queue
            self.rows.append(
                {
                    "status": result.status,
                    "message_id": result.message_id,
                    "broker": queue.broker_name,
                    "queue_id": queue.queue_id,
                    "queue_offset": result.queue_offset,
                }
            )

    def notes(self) -> list[str]:
        """Warnings: messages that are stored less safely, or delivered sooner, than requested."""
        warnings = [
            f"{count} stored, but {status}: see `rmq errors {status}`"
            for status, count in self.statuses.items()
            if status != "SEND_OK"
        ]
        if self.untimed:
            warnings.append(
                f"{self.untimed} delivered at once: the broker knows no free delays; give a level, 1 to 18"
            )
        return warnings


class Bodies:
    """The bodies, one by one, for all workers."""

    def __init__(self, chosen: PubOptions) -> None:
        import trio

        self.taken = 0
        self._bodies = chosen.bodies
        self._known = chosen.total is not None
        self._turn = trio.Lock()

    async def next(self) -> bytes | None:
        """The next body, None at the end. A thread waits for the lines of a terminal or a pipe, so that
        messages are sent at once and Ctrl-C works."""
        self.taken += 1
        if self._known:
            return next(self._bodies, None)
        import trio

        async with self._turn:
            return await trio.to_thread.run_sync(next, self._bodies, None, abandon_on_cancel=True)


async def send_all(target: Target, chosen: PubOptions, step: Step) -> Outcome:
    """Send all bodies, `concurrency` at a time; the first error ends the run and is in the outcome."""
    import trio

    outcome = Outcome(chosen.keep)
    bodies = Bodies(chosen)
    began = time.perf_counter()
    async with target.connect() as client, client.producer(chosen.group) as producer:
        try:
            with first_error():
                async with trio.open_nursery() as nursery:
                    for _ in range(chosen.concurrency):
                        nursery.start_soon(_worker, producer, chosen, bodies, outcome, step)
        except RmqError as error:
            outcome.error = error
        outcome.seconds = time.perf_counter() - began
    return outcome


async def _worker(
    producer: Producer, chosen: PubOptions, bodies: Bodies, outcome: Outcome, step: Step
) -> None:
    """Send bodies one after the other, each taken by a single worker."""
    while (body := await bodies.next()) is not None:
        message, sharding_key = _made(chosen, body, bodies.taken)
        timed = message.delay_ms is not None or message.deliver_at_ms is not None
        outcome.add(await producer.send(message, sharding_key=sharding_key), timed=timed)
        step(1)


def _made(chosen: PubOptions, body: bytes, number: int) -> tuple[Message, str | None]:
    """The message of a body, and its sharding key; for a JSON line, with its number, from the line together
    with the options. Raises InvalidMessage, and ConfigError for an invalid line."""
    from rmq.message import Message

    if not chosen.is_json:
        return Message(chosen.topic, body, **chosen.attributes), chosen.sharding_key
    given, options = read_row(body, f"line {number}"), chosen.attributes
    sharding_key = given.pop("sharding_key", None)
    given["tags"] = options["tags"] or given.get("tags")
    given["keys"] = (*given.get("keys", ()), *options["keys"])
    given["properties"] = given.get("properties", {}) | options["properties"]
    if "delay_ms" in options or "delay_level" in options:
        for name in ("delay_level", "delay_ms", "deliver_at_ms"):
            given.pop(name, None)
        given |= {name: value for name, value in options.items() if name.startswith("delay")}
    return Message(chosen.topic, **given), chosen.sharding_key or sharding_key


# --- messages as JSON ---

_TEXT, _NUMBER = "text", "a whole number"
_FIELDS: Final[dict[str, tuple[type, str]]] = {
    "body": (str, _TEXT),
    "body_base64": (str, "base64"),
    "tags": (str, _TEXT),
    "keys": (list, "a list of texts"),
    "properties": (dict, "an object of texts"),
    "flag": (int, _NUMBER),
    "sharding_key": (str, _TEXT),
    "delay_level": (int, _NUMBER),
    "delay_ms": (int, _NUMBER),
    "deliver_at_ms": (int, _NUMBER),
}
"""Fields of a line for a message to send."""
_PRINTED: Final = {
    *("topic", "broker", "queue_id", "queue_offset", "message_id", "offset_message_id", "reconsume_times"),
    *("born_timestamp", "born_host", "store_timestamp", "store_host"),
}
"""Further fields of `-o json`, which are ignored: a copy gets its own."""


def read_row(line: bytes, where: str) -> dict[str, Any]:
    """The message in a JSON object, under the names of Message's fields and `sharding_key`.

    The inverse of `message_row`: body, tags, keys and properties come out byte for byte; properties that
    RocketMQ makes itself do not, since a copy gets its own. Raises ConfigError, which names the line by
    `where`.
    """
    expected = "a JSON object of a message, as -o json prints it"
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(where, _shown(line), expected, str(error)) from None
    if not isinstance(row, dict):
        raise ConfigError(where, _shown(line), expected)
    given = {name: value for name, value in row.items() if name not in _PRINTED and value is not None}
    for name, value in given.items():
        if name not in _FIELDS:
            raise ConfigError(f"{where}: {name}", value, f"no such field, but one of {', '.join(_FIELDS)}")
        kind, what = _FIELDS[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ConfigError(f"{where}: {name}", value, what)
    if ("body" in given) == ("body_base64" in given):
        raise ConfigError(where, _shown(line), "body or body_base64")
    given["body"] = _body(given, where)
    if "properties" in given:
        given["properties"] = own_properties(given["properties"])
    return given


def _body(given: dict[str, Any], where: str) -> bytes:
    try:
        text = given.pop("body_base64", None)
        body: bytes = given["body"].encode() if text is None else base64.b64decode(text, validate=True)
    except ValueError as error:  # a lone surrogate, or no base64
        raise ConfigError(f"{where}: body", "...", "bytes as UTF-8 or base64", str(error)) from None
    return body


def _shown(line: bytes) -> str:
    return line[:80].decode("utf-8", "backslashreplace")


def own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that an application set on a message, without RocketMQ's own."""
    from rmq.message import RESERVED_PROPERTIES
    from rmq.protocol.properties import (
        INTERNAL_PROPERTIES,
        PROPERTY_DELAY_MS,
        PROPERTY_DELAY_SEC,
        PROPERTY_DELIVER_MS,
    )

    times = {PROPERTY_DELAY_MS, PROPERTY_DELAY_SEC, PROPERTY_DELIVER_MS}
    dropped = RESERVED_PROPERTIES | INTERNAL_PROPERTIES | times
    return {name: value for name, value in properties.items() if name not in dropped}


# --- request ---


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.argument("body", required=False)
@click.option("--timeout", callback=as_duration, default="3s", show_default=True, help="Wait so long.")
@message_options
@click.option("--sharding-key", metavar="KEY", help="Messages with equal keys go to one queue.")
@click.option("--group", default="rmq-cli-request", show_default=True, help="Producer group.")
@style_option("body")
@target_options
def request(
    target: Target,
    topic: str,
    body: str | None,
    timeout: int,
    sharding_key: str | None,
    group: str,
    output: Style,
    **attributes: Any,
) -> None:
    """Send BODY, or standard input, to TOPIC and print the consumer's reply.

    Ends with 1 when no reply came in time. `rmq reply` answers requests.
    """
    from rmq.message import Message

    data = sys.stdin.buffer.read() if body is None else body.encode("utf-8", "surrogateescape")
    run(_request, target, Message(topic, data, **attributes), group, timeout / 1000, sharding_key, output)


async def _request(
    target: Target, message: Message, group: str, timeout: float, sharding_key: str | None, style: Style
) -> None:
    async with target.connect() as client, client.producer(group) as producer:
        print_message(await producer.request(message, timeout, sharding_key=sharding_key), style)
