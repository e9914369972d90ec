"""`rmq backup` and `rmq store seed`: a hot copy of a store's folder, and a new slave's folder from a copy."""

from __future__ import annotations

import pathlib
import sys
from typing import NoReturn

import click

from rmq.cli.output import EXIT_FAILED, echo, fail
from rmq.errors import RmqError
from rmq.operate.copies.backup import back_up, paced, seed, verify
from rmq.printable import counted


def _fail(error: Exception, folder: pathlib.Path) -> NoReturn:
    """End with the error; an error of a write, which has no path, names the folder."""
    if isinstance(error, OSError) and error.filename is None and error.errno is not None:
        error = OSError(error.errno, error.strerror, str(folder))
    fail(error)


PATH = click.Path(file_okay=False, path_type=pathlib.Path)
RATE = click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="MiB a second at most.")
LOG = click.option("--commitlog", "log", type=PATH, help="Where the store's log is, when not in its folder.")


@click.command("backup")
@click.argument("folders", type=PATH, nargs=-1, required=True, metavar="[STORE] TARGET")
@LOG
@RATE
@click.option("--verify", "verifies", is_flag=True, help="Read all of TARGET, not only new data.")
def backup_command(
    folders: tuple[pathlib.Path, ...], log: pathlib.Path | None, rate: float | None, verifies: bool
) -> None:
    """Copy the folder STORE of a broker, which may run, to TARGET; a second run copies only new data.

    A broker that is started on a copy of TARGET has all messages, topics, groups and offsets. Without STORE
    and with --verify nothing is copied. Status 1 when a file in TARGET differs from the copied file.
    """
    *stores, target = folders
    if len(stores) != 1 and (stores or not verifies):
        raise click.UsageError("name two folders: rmq backup STORE TARGET")
    try:
        for store in stores:
            done = back_up(store, log or store / "commitlog", target, paced((rate or 0) * (1 << 20)))
            echo(
                f"{counted(done.copied, 'log file')} copied ({counted(done.copied_bytes, 'byte')}), "
                f"{done.kept} already there; the log ends at {done.end}"
            )
        wrong = list(verify(target)) if verifies else []
    except (RmqError, OSError) as error:
        _fail(error, target)
    for line in wrong:
        echo(line, err=True)
    if wrong:
        sys.exit(EXIT_FAILED)
    if verifies:
        echo(f"{target} matches the copy")


@click.command("seed")
@click.argument("backup", type=PATH)
@click.argument("folder", type=PATH)
@LOG
@RATE
def seed_command(
    backup: pathlib.Path, folder: pathlib.Path, log: pathlib.Path | None, rate: float | None
) -> None:
    """Make the empty FOLDER the store of a new slave, from a BACKUP of its master.

    Each file is checked. The slave then copies only later writes of its master.
    """
    try:
        total = seed(backup, folder, log or folder / "commitlog", paced((rate or 0) * (1 << 20)))
    except (RmqError, OSError, ValueError) as error:
        _fail(error, folder)
    echo(f"{folder} is seeded with {counted(total, 'byte')}: start the slave on it")
