"""`rmq pub`: send messages from arguments, files or standard input."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from attrs import Factory, define, field, frozen

from rmq.cli.completion import complete_topic
from rmq.cli.output import Format, Step, echo, output_option, progress_bar, show
from rmq.cli.target import Target, first_error, run, target_options
from rmq.cli.values import duration_ms, pairs
from rmq.errors import RmqError

if TYPE_CHECKING:
    from rmq.client.outgoing import SendResult
    from rmq.client.producer import Producer

LEVELS = range(1, 19)
FEW = 10
"""So many results are listed one by one; more are summed up, unless JSON or YAML is asked for."""


@frozen
class PubOptions:
    """What to send and how."""

    topic: str
    bodies: Iterator[bytes] = field(repr=False)
    total: int | None
    group: str
    attributes: dict[str, Any]
    sharding_key: str | None
    concurrency: int
    keep: int
    """So many results are kept to be shown."""


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


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.argument("body", required=False)
@click.option("-f", "--file", type=click.File("rb"), help="One message: the whole file; - is standard input.")
@click.option(
    "-l", "--lines", type=click.File("rb"), help="A message a line of this file. [default: standard input]"
)
@click.option("--tags", metavar="TAG", help="Tag of the messages.")
@click.option("--keys", multiple=True, metavar="KEY", help="Key to look them up by; repeatable.")
@click.option("--property", "properties", multiple=True, callback=_properties, metavar="NAME=VALUE")
@click.option(
    "--delay",
    "delay",
    callback=_delay,
    metavar="10s|LEVEL",
    help="Deliver later: a time, or a level 1 to 18.",
)
@click.option("--sharding-key", metavar="KEY", help="Equal keys go to one queue, in order.")
@click.option("--count", type=click.IntRange(1), default=1, help="Send BODY or the file so many times.")
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
    output: Format,
    **options: Any,
) -> None:
    """Send messages to TOPIC: BODY, a file, or the lines of standard input.

    Empty lines are skipped: there are no empty messages. Prints where each went, or a summary of many. The
    first error ends it; what was sent before stays sent.
    """
    if sum(source is not None for source in (body, file, lines)) > 1:
        raise click.UsageError("give one of BODY, --file and --lines")
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
    )
    run(_pub, target, chosen, output)


def _bodies(
    body: str | None, file: BinaryIO | None, lines: BinaryIO | None, count: int
) -> tuple[Iterator[bytes], int | None]:
    """The bodies to send, and how many when that is known."""
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
        pass  # the error says it, or there was no line
    elif outcome.count <= chosen.keep:
        show(outcome.rows, output)
    else:
        rate = outcome.count / outcome.seconds if outcome.seconds else 0.0
        echo(f"{outcome.count} messages sent to {chosen.topic} in {outcome.seconds:.2f} s ({rate:,.0f}/s)")
    for note in outcome.notes():
        echo(f"rmq pub: {note}", err=True)
    if outcome.error is not None:
        before = f"; {outcome.count} messages were sent before" if outcome.count else ""
        error: RmqError = outcome.error
        error.hint = f"{error.hint}{before}" if error.hint else before.lstrip("; ")
        raise error


# --- sending ---


@define
class Outcome:
    """What was sent; `error` ended it before all was sent."""

    keep: int
    count: int = 0
    seconds: float = 0.0
    rows: list[dict[str, Any]] = Factory(list)
    statuses: Counter[str] = Factory(Counter)
    untimed: int = 0
    error: RmqError | None = None

    def add(self, result: SendResult, *, timed: bool) -> None:
        """Note one result; `timed`: it asked for a delivery time that only brokers with timers know."""
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
        """Warnings: messages that are stored less safely, or delivered sooner, than was asked for."""
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

        self._bodies = chosen.bodies
        self._known = chosen.total is not None
        self._turn = trio.Lock()

    async def next(self) -> bytes | None:
        """The next body, None at the end. The lines of a terminal or a pipe are waited for in a thread, so
        that messages go out at once and Ctrl-C works."""
        if self._known:
            return next(self._bodies, None)
        import trio

        async with self._turn:
            return await trio.to_thread.run_sync(next, self._bodies, None, abandon_on_cancel=True)


async def send_all(target: Target, chosen: PubOptions, step: Step) -> Outcome:
    """Sends all bodies, `concurrency` at a time; the first error ends it and is in the outcome."""
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
    """Sends the next body that no other worker has, one after the other."""
    from rmq.message import Message

    timed = "delay_ms" in chosen.attributes
    while (body := await bodies.next()) is not None:
        message = Message(chosen.topic, body, **chosen.attributes)
        outcome.add(await producer.send(message, sharding_key=chosen.sharding_key), timed=timed)
        step(1)
