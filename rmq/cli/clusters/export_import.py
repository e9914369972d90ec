"""`rmq export` and `rmq import`: topics, groups, offsets and accounts of a cluster in one YAML file."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import click
from attrs import evolve

from rmq.cli.output import Format, echo, fail, output_option, progress_bar, show
from rmq.cli.target import Target, confirm, run_admin, target_options
from rmq.errors import RmqError
from rmq.operate.copies.manifest import Reader, text_of
from rmq.printable import counted

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.operate.copies.transfer import Change, Plan


@click.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=pathlib.Path))
@click.option("-c", "--cluster", default="", help="Only this cluster. [default: all]")
@click.option("--offsets/--no-offsets", default=True, help="Also how far groups are. [default: yes]")
@target_options
def export(target: Target, file: pathlib.Path, cluster: str, offsets: bool) -> None:
    """Write topics, groups, offsets and accounts to FILE (YAML); - is standard output.

    Messages and secrets are left out. `rmq import` reads the file.
    """
    from rmq.operate.copies.transfer import read_cluster

    manifest = run_admin(target, lambda admin: read_cluster(admin, cluster, offsets=offsets))
    text = text_of(manifest)
    if str(file) == "-":
        echo(text, nl=False)
        return
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        fail(error)
    kinds = {"topic": manifest.topics, "group": manifest.groups, "account": manifest.accounts}
    counts = ", ".join(counted(len(found), noun) for noun, found in kinds.items())
    echo(f"{counts} written to {file}")


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path))
@click.option("-c", "--cluster", default="", help="Only into this cluster. [default: all]")
@click.option("--dry-run", is_flag=True, help="Show the changes without making them.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@output_option
@target_options
def import_command(
    target: Target, file: pathlib.Path, cluster: str, dry_run: bool, yes: bool, output: Format
) -> None:
    """Bring the topics, groups and offsets of FILE, an output of `rmq export`, into the cluster.

    Everything outside of FILE stays. A second run changes nothing. Existing accounts get their permissions; a
    missing account is only named, since the file has no secret for it.
    """
    from rmq.operate.copies.transfer import compare

    try:
        manifest = Reader(file.read_text("utf-8"), str(file)).manifest()
    except (RmqError, OSError, UnicodeDecodeError) as error:
        fail(error)
    plan = run_admin(target, lambda admin: compare(admin, manifest, cluster))
    for note in plan.notes:
        echo(f"note: {note}", err=True)
    if not plan.changes:
        show([], output) if output != "table" else echo("nothing to change")
        return
    show([_shown(change) for change in plan.changes] if output == "table" else plan.changes, output)
    if dry_run:
        return
    confirm(yes, f"Make {counted(len(plan.changes), 'change')}?")
    run_admin(target, lambda admin: _apply(admin, plan))
    if output == "table":
        echo(f"{counted(len(plan.changes), 'change')} made")


def _shown(change: Change) -> Change:
    """A change of an existing thing, without unchanged fields."""
    if change.was is None:
        return change
    changed = [key for key in change.becomes if change.was.get(key) != change.becomes[key]]
    was, becomes = ({key: side.get(key) for key in changed} for side in (change.was, change.becomes))
    return evolve(change, was=was, becomes=becomes)


async def _apply(admin: Admin, plan: Plan) -> None:
    from rmq.operate.copies.transfer import apply

    with progress_bar("changes", len(plan.changes)) as step:
        await apply(admin, plan, step)
