"""`rmq transactions`: half messages without a decision of their producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rmq.cli.output import Format, body_text, clock_text, echo, output_option, show
from rmq.cli.target import Target, run, target_options

if TYPE_CHECKING:
    from rmq.client.reading.discarded import DiscardedHalf

BODY_SHOWN = 60
LOOKED_AT = 100_000


@click.group()
def transactions() -> None:
    """List half messages that the broker has given up, and start their check-backs again."""


@transactions.command("list")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Largest number.")
@output_option
@target_options
def list_halves(target: Target, limit: int, output: Format) -> None:
    """List the half messages whose producers gave no decision in all check-backs."""

    async def work() -> list[DiscardedHalf]:
        async with target.connect() as client:
            return await client.discarded_transactions(limit=limit)

    show([_row(half) for half in run(work)], output)


def _row(half: DiscardedHalf) -> dict[str, Any]:
    return {
        "discarded": clock_text(half.discarded_at_ms),
        "id": half.offset_message_id,
        "group": half.group,
        "topic": half.topic,
        "checks": half.checks,
        "message_id": half.message.message_id,
        "keys": list(half.message.keys),
        "body": body_text(half.message.body[:BODY_SHOWN]),
    }


@transactions.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@target_options
def resume(target: Target, ids: tuple[str, ...]) -> None:
    """Ask the producers of half messages again. Take each ID from `rmq transactions list`.

    Resume each once: a message that is resumed twice may be delivered twice.
    """
    run(_resume, target, dict.fromkeys(ids))


async def _resume(target: Target, ids: dict[str, None]) -> None:
    async with target.connect() as client:
        known = {
            half.offset_message_id: half for half in await client.discarded_transactions(limit=LOOKED_AT)
        }
        missing = [wanted for wanted in ids if wanted not in known]
        if missing:
            raise click.UsageError(f"no discarded half message has the id {', '.join(missing)}")
        for wanted in ids:
            await client.resume_transaction(known[wanted])
            echo(f"{wanted} is checked again")
