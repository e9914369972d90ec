"""`rmq doctor`: check a cluster; report problems and their remedies."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from attrs import evolve

from rmq.cli.output import EXIT_FAILED, Format, echo, output_option, progress_bar, show
from rmq.cli.target import Target, run, target_options

if TYPE_CHECKING:
    from rmq.operate.diagnosis import Facts


@click.command()
@click.option(
    "--lag",
    "limit",
    type=click.IntRange(0),
    default=10_000,
    show_default=True,
    help="Messages left that are wrong.",
)
@output_option
@target_options
def doctor(target: Target, limit: int, output: Format) -> None:
    """Check a cluster; report problems and their remedies.

    The command checks name servers, brokers and their addresses, disks, clocks, settings, topics on a single
    broker only, and groups. It changes nothing, and ends with 1 when something is wrong; notes are worth a
    look.
    """
    from rmq.operate.diagnosis import diagnose

    facts = run(_examine, target, limit)
    found = diagnose(facts)
    if found or output != "table":
        show(found, output)
    if output == "table":
        servers = f"{len(facts.name_servers)} name servers, {len(facts.brokers)} brokers"
        seen = f"{servers}, {len(facts.topics)} topics"
        wrong = sum(finding.level == "wrong" for finding in found)
        rest = len(found) - wrong
        engines = {broker.runtime.get("engine", "") for broker in facts.brokers} - {""}
        seen = f"{seen}, {len(facts.groups)} groups" + "".join(f", {one} engine" for one in sorted(engines))
        echo(f"{seen}: {wrong} wrong, {rest} to note", err=True)
    if any(finding.level == "wrong" for finding in found):
        sys.exit(EXIT_FAILED)


async def _examine(target: Target, limit: int) -> Facts:
    from rmq.operate.examination import PARTS, examine

    addresses = target.namesrv.split(";")
    with progress_bar("looking", PARTS) as step:
        return await examine(
            lambda some: evolve(target, namesrv=some).connect(), addresses, lag_limit=limit, step=step
        )
