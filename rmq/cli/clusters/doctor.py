"""`rmq doctor`: check a cluster; report problems and their remedies."""

from __future__ import annotations

import pathlib
import sys
from typing import TYPE_CHECKING

import click
from attrs import evolve

from rmq.cli.clusters.controller import CONTROLLERS
from rmq.cli.output import EXIT_FAILED, Format, echo, fail, output_option, progress_bar, show
from rmq.cli.target import Target, run, target_options
from rmq.errors import RmqError
from rmq.printable import counted

if TYPE_CHECKING:
    from rmq.operate.copies.manifest import Manifest
    from rmq.operate.diagnosis import Facts


@click.command()
@click.option(
    "--lag",
    "limit",
    type=click.IntRange(0),
    default=10_000,
    show_default=True,
    help="Backlog of a group that counts as wrong.",
)
@CONTROLLERS
@click.option(
    "--expect",
    "expected",
    type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path),
    help="Compare with FILE, written by `rmq export`.",
)
@output_option
@target_options
def doctor(
    target: Target, limit: int, controllers: str, expected: pathlib.Path | None, output: Format
) -> None:
    """Check a cluster; report problems and their remedies.

    The command checks name servers, brokers and their addresses, disks, clocks, settings, replicas and
    controllers, topics on a single broker only, and groups. Brokers that left without a drain are missing
    until they are back, or until `rmq broker forget`. With --expect all brokers, topics, groups and accounts
    of a file must be there. The command changes nothing, and ends with 1 when it finds a problem; a note
    alone is no problem.
    """
    from rmq.operate.copies.manifest import Reader
    from rmq.operate.diagnosis import diagnose

    manifest = None
    if expected is not None:
        try:
            manifest = Reader(expected.read_text("utf-8"), str(expected)).manifest()
        except (RmqError, OSError, UnicodeDecodeError) as error:
            fail(error)
    facts = run(_examine, target, limit, controllers, manifest)
    found = diagnose(facts)
    if found or output != "table":
        show(found, output)
    if output == "table":
        wrong = sum(finding.level == "wrong" for finding in found)
        rest = len(found) - wrong
        echo(f"{_seen(facts)}: {wrong} wrong, {rest} to note", err=True)
    if any(finding.level == "wrong" for finding in found):
        sys.exit(EXIT_FAILED)


def _seen(facts: Facts) -> str:
    """The number of members of each kind, and the engines of the brokers."""
    kinds = {"name server": facts.name_servers, "broker": facts.brokers}
    kinds |= {"controller": facts.controllers} if facts.controllers else {}
    kinds |= {"topic": facts.topics, "group": facts.groups}
    seen = [counted(len(found), noun) for noun, found in kinds.items()]
    engines = {broker.runtime.get("engine", "") for broker in facts.brokers} - {""}
    return ", ".join([*seen, *(f"{one} engine" for one in sorted(engines))])


async def _examine(target: Target, limit: int, controllers: str, expected: Manifest | None) -> Facts:
    from rmq.config import parse_addresses
    from rmq.operate.examination import PARTS, examine

    addresses = target.namesrv.split(";")
    with progress_bar("looking", PARTS) as step:
        return await examine(
            lambda some: evolve(target, namesrv=some).connect(),
            addresses,
            lag_limit=limit,
            controllers=parse_addresses(controllers, "controllers"),
            expected=expected,
            step=step,
        )
