"""`rmq dlq`: list the dead letters of a group, and send letters back to their topics."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq.cli.output import EXIT_FAILED, Format, body_text, clock_text, echo, output_option, progress_bar, show
from rmq.cli.target import Target, run, target_options
from rmq.cli.values import as_position, time_of
from rmq.operate.values import Position
from rmq.printable import counted

if TYPE_CHECKING:
    from rmq.client.reading.dead_letters import DeadLetter, Letters, Redriven

T = TypeVar("T")

BODY_SHOWN = 60
FAILURES_SHOWN = 20


@click.group()
def dlq() -> None:
    """List the dead letters of a group, and send letters back to their topics."""


def _choice_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options that select letters."""
    for option in (
        click.option(
            "--reason", "reason", metavar="TEXT", help="Only letters with this text in their reason."
        ),
        click.option("--topic", metavar="TOPIC", help="Only letters of this original topic."),
        click.option(
            "--until", callback=as_position, metavar="WHEN", help="Only letters from before this time."
        ),
        click.option("--since", callback=as_position, metavar="WHEN", help="Only letters from this time on."),
        click.option("--id", "ids", multiple=True, metavar="ID", help="Only letters with these message ids."),
    ):
        command = option(command)
    return command


def _letters(
    ids: tuple[str, ...],
    since: Position | None,
    until: Position | None,
    topic: str | None,
    reason: str | None,
) -> Letters:
    from rmq.client.reading.dead_letters import Letters

    def where(letter: DeadLetter) -> bool:
        return (topic is None or letter.topic == topic) and (reason is None or reason in letter.reason)

    since_ms = None if since is None else time_of(since, "--since")
    until_ms = None if until is None else time_of(until, "--until")
    return Letters(ids, since_ms, until_ms, where)


@dlq.command("list")
@click.argument("group")
@_choice_options
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Largest number.")
@output_option
@target_options
def list_letters(target: Target, group: str, limit: int, output: Format, **choice: Any) -> None:
    """List dead letters of GROUP: time of death, original topic, number of tries, and reason."""
    letters = _letters(**choice)

    async def work() -> list[DeadLetter]:
        async with target.connect() as client:
            return await client.dead_letters(group, letters, limit=limit)

    show([_row(letter) for letter in run(work)], output)


def _row(letter: DeadLetter) -> dict[str, Any]:
    message = letter.message
    return {
        "died": clock_text(letter.died_at_ms),
        "topic": letter.topic,
        "message_id": letter.message_id,
        "times": letter.times,
        "reason": letter.reason,
        "tags": message.tags or "",
        "keys": list(message.keys),
        "body": body_text(message.body[:BODY_SHOWN]),
    }


@dlq.command()
@click.argument("group")
@_choice_options
@click.option("--all", "every", is_flag=True, help="All letters; needed without another choice.")
@click.option("--to", metavar="TOPIC", help="Send them to this topic instead of their original topic.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Largest number a second.")
@target_options
def redrive(
    target: Target, group: str, every: bool, to: str | None, rate: float | None, **choice: Any
) -> None:
    """Send dead letters of GROUP back to their topics.

    An interrupted run can be started again: sent letters are not sent twice. The letters stay in place. Exit
    status 1 when a letter could not be sent.
    """
    if not every and not any(value for value in choice.values()):
        raise click.UsageError("choose letters: --id, --since, --until, --topic, --reason, or --all")
    letters = _letters(**choice)

    async def work() -> Redriven:
        with progress_bar(f"letters of {group}", None) as step:
            async with target.connect() as client:
                return await client.redrive(group, letters, to=to, rate=rate, progress=lambda _: step(1))

    _print_result(run(work))


def _print_result(result: Redriven) -> None:
    echo(
        f"{result.sent} sent again, {result.already} sent before, {len(result.failed)} failed, of "
        f"{counted(result.looked_at, 'dead letter')} looked at"
    )
    for message_id, error in result.failed[:FAILURES_SHOWN]:
        echo(f"rmq: {message_id}: {error}", err=True)
    if result.failed:
        sys.exit(EXIT_FAILED)
