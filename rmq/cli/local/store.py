"""`rmq store check|repair|dump|compare|seed DIR`: examine and repair stores' folders, without a broker."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from rmq.cli.local.backup import seed_command
from rmq.cli.output import EXIT_FAILED, EXIT_USAGE, echo, echo_json, status_of
from rmq.clock import wall_clock_ms
from rmq.errors import ConfigError, RmqError, StoreLocked
from rmq.printable import counted
from rmq.store.audit.audit import Report, check, dump
from rmq.store.audit.compare import Log, first_difference, open_log, read_digests, write_digests
from rmq.store.audit.repair import Lost, accept_start, cut_tail, rebuild, skip_damaged
from rmq.store.config import DELAY_LEVELS, delay_table
from rmq.store.files.disk import ReadOnlyDisk, RealDisk
from rmq.store.files.scan import Scanned

SHOWN = 50
Step = Callable[[str, int, int], None]
FOLDER = click.argument("folder", type=click.Path(exists=True, file_okay=False), metavar="DIR")
LOG = click.option(
    "--commitlog",
    "commit_log",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="Where the log is (storePathCommitLog), when not in DIR/commitlog.",
)
DELAYS = click.option("--delay-levels", default=DELAY_LEVELS, help="messageDelayLevel, if it was changed.")


@click.group()
def store() -> None:
    """Check, repair, dump or compare the folders of stores, rmq's or RocketMQ's.

    Exit status: 0 nothing wrong, 1 damage found, 2 unreadable, 3 a broker has the store open (repair).
    """


@store.command("check")
@FOLDER
@LOG
@DELAYS
def check_command(folder: str, commit_log: str | None, delay_levels: str) -> None:
    """Compare log, queues, index, checkpoint and config with each other. Changes nothing."""
    with _explained("check"):
        report = _check(folder, commit_log, delay_levels)
        _show(report)
    sys.exit(0 if report.is_clean else EXIT_FAILED)


@store.command()
@FOLDER
@LOG
@DELAYS
@click.option("--cut-tail", "cut", is_flag=True, help="Truncate the log after its last good record.")
@click.option("--accept-start", "start", is_flag=True, help="Accept that first files are missing.")
@click.option("--skip-damaged", "skip", is_flag=True, help="Overwrite damage that good records follow.")
@click.option("--rebuild-queues", "queues", is_flag=True, help="Make all consume queues again from the log.")
@click.option("--rebuild-index", "index", is_flag=True, help="Make the key index again from the log.")
@click.option(
    "--report",
    "target",
    type=click.Path(dir_okay=False),
    help="File for the overwritten bytes, as JSON lines.",
)
def repair(
    folder: str,
    commit_log: str | None,
    delay_levels: str,
    cut: bool,
    start: bool,
    skip: bool,
    queues: bool,
    index: bool,
    target: str | None,
) -> None:
    """Make the requested repairs, and check again. Make a copy of the folder first.

    The bytes given up by --cut-tail and --skip-damaged are written to the report.
    """
    if not (cut or start or skip or queues or index):
        raise click.UsageError(
            "choose what to repair: --cut-tail, --accept-start, --skip-damaged, --rebuild-queues, "
            "--rebuild-index"
        )
    with _explained("repair"):
        disk = RealDisk()
        report = _check(folder, commit_log, delay_levels)
        save = partial(_save, pathlib.Path(target or f"skipped-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"))
        if cut:
            cut_tail(disk, folder, report, save)
        if start:
            accept_start(disk, folder, report)
        if skip:
            skip_damaged(disk, folder, report, save)
        if queues or index:
            with _bar() as progress:
                rebuild(
                    disk, folder, report, queues=queues, index=index, now_ms=wall_clock_ms, progress=progress
                )
        report = _check(folder, commit_log, delay_levels)
        _show(report)
    sys.exit(0 if report.is_clean else EXIT_FAILED)


@store.command("dump")
@FOLDER
@LOG
@click.option("--topic", help="Only this topic.")
@click.option("--from", "start", type=click.IntRange(0), default=0, help="Physical offset to begin at.")
@click.option("--limit", type=click.IntRange(1), help="Largest number of records.")
def dump_command(
    folder: str, commit_log: str | None, topic: str | None, start: int, limit: int | None
) -> None:
    """Print records as JSON lines, in the order of the log."""
    with _explained("dump"):
        for row in dump(
            ReadOnlyDisk(), folder, commit_log=commit_log or "", topic=topic, start=start, limit=limit
        ):
            echo_json(row, indent=None)


@store.command("compare")
@click.argument("replicas", nargs=-1, required=True, type=click.Path(exists=True), metavar="DIR...")
@click.option(
    "--write-digests",
    "target",
    type=click.Path(dir_okay=False),
    help="Write the digests of one DIR to this file.",
)
def compare_command(replicas: tuple[str, ...], target: str | None) -> None:
    """Compare the logs of replicas in their common part, and name the first difference. Changes nothing.

    DIR is a store's folder, or a file of --write-digests for a folder on another machine. Stop the brokers
    first, or the last messages are only in some of the logs. Status 1: they differ, or a log lacks the end.
    """
    with _explained("compare"):
        logs = [_log(name) for name in replicas]
        try:
            if target is not None:
                _write_digests(logs, target)
                return
            if len(logs) < 2:
                raise click.UsageError("name at least two folders, or one and --write-digests FILE")
            same = [_compare(logs[0], other) for other in logs[1:]]
        finally:
            for log in logs:
                log.close()
    sys.exit(0 if all(same) else EXIT_FAILED)


def _log(name: str) -> Log:
    if os.path.isdir(name):
        return open_log(ReadOnlyDisk(), name)
    return read_digests(name, pathlib.Path(name).read_bytes())


def _write_digests(logs: list[Log], target: str) -> None:
    if len(logs) != 1 or logs[0].files is None:
        raise click.UsageError("--write-digests takes one folder")
    with _bar() as progress:
        text = write_digests(logs[0], progress)
    pathlib.Path(target).write_bytes(text)
    echo(f"digests of {logs[0].start} to {logs[0].end} are in {target}")


def _compare(one: Log, other: Log) -> bool:
    with _bar() as progress:
        start, stop, found = first_difference(one, other, progress)
    pair = f"{one.name} and {other.name}"
    if found is not None:
        record = found.record
        where = (
            f"at {found.start}" if found.stop == found.start + 1 else f"from {found.start} to {found.stop}"
        )
        what = "" if record is None else f", in the record at {record.position} ({_name(record)})"
        echo(f"{pair} DIFFER {where}{what}; before, from {start} on, they are the same")
        return False
    echo(f"{pair} are the same from {start} to {stop}")
    for short, long in ((one, other), (other, one)):
        if short.end < long.end:
            missing = long.end - short.end
            echo(
                f"{short.name} ENDS at {short.end}: it lacks {counted(missing, 'byte')} that {long.name} has"
            )
        if short.start > long.start:
            echo(f"{short.name} begins at {short.start}, {long.name} at {long.start}")
    return one.end == other.end


def _name(record: Scanned) -> str:
    return f"{record.topic.decode('utf-8', 'replace')}/{record.queue_id}/{record.queue_offset}"


store.add_command(seed_command)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except (RmqError, OSError, ValueError) as error:
        echo(f"rmq store {name}: {error}", err=True)
        unread = not isinstance(error, (StoreLocked, ConfigError))
        sys.exit(EXIT_USAGE if unread else status_of(error))


def _check(folder: str, commit_log: str | None, delay_levels: str) -> Report:
    with _bar() as progress:
        return check(
            ReadOnlyDisk(),
            folder,
            commit_log=commit_log or "",
            delays=delay_table(delay_levels),
            progress=progress,
        )


@contextmanager
def _bar() -> Iterator[Step]:
    """A progress bar on the error output, when that is a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, object] = {}

        def step(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage)
            bar.update(tasks[stage], completed=done, total=max(total, 1))  # type: ignore[arg-type]

        yield step


def _show(report: Report) -> None:
    console = Console()
    table = Table("part", "metrics", title=f"store {report.folder}", title_justify="left")
    table.add_row("log", f"{counted(report.records, 'record')}, {report.log_start} to {report.log_end}")
    table.add_row("queues", f"{report.queues} with {counted(report.units, 'unit')}")
    table.add_row(
        "index", f"{counted(report.index_files, 'file')} with {counted(report.index_entries, 'entry')}"
    )
    table.add_row("stopped", "cleanly" if report.clean_stop else "not cleanly, or still running")
    for kind, count in sorted(report.counts.items()):
        table.add_row(f"[red]{kind}[/red]", str(count))
    console.print(table)
    for note in report.notes:
        echo(f"note: {note}")
    for finding in report.findings[:SHOWN]:
        echo(f"{finding.kind}: {finding.path} at {finding.offset}: {finding.detail}")
    if len(report.findings) > SHOWN:
        echo(f"... and {sum(report.counts.values()) - SHOWN} more")
    echo("nothing wrong" if report.is_clean else f"{counted(sum(report.counts.values()), 'fault')} found")


def _save(path: pathlib.Path, lost: list[Lost]) -> None:
    """Add to the report, and sync it before the log is changed."""
    if not lost:
        return
    with path.open("a", encoding="utf-8") as file:
        for part in lost:
            row = {"path": part.path, "start": part.start, "stop": part.stop, "was": part.what}
            file.write(json.dumps(row | {"reason": part.reason, "data": part.data.hex()}) + "\n")
        file.flush()
        os.fsync(file.fileno())
    echo(f"{counted(len(lost), 'part')} of the log given up and kept in {path}")
