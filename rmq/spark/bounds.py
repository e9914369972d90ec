"""Where a read begins and ends: the words of the options turned into offsets, and the first offsets of a
stream kept, so that a crash in its first batch finds the same again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from rmq.errors import ConfigError
from rmq.files import sync_folder
from rmq.message import MessageQueue
from rmq.spark.cluster import Cluster
from rmq.spark.offsets import EARLIEST, LATEST, Offsets, offsets_text, parse_offsets
from rmq.spark.options import ReadOptions, ending, starting

FILE_NAME: Final = "startingOffsets.json"

log = logging.getLogger(__name__)


def batch_bounds(cluster: Cluster, options: ReadOptions) -> tuple[Offsets, Offsets]:
    """The first and the last offsets of a batch, fixed now."""
    queues = cluster.queues()
    start = _resolved(cluster, queues, starting(options, streaming=False), options.starting_timestamp)
    end = _resolved(cluster, queues, ending(options), options.ending_timestamp)
    return start, end


def first_offsets(cluster: Cluster, options: ReadOptions) -> Offsets:
    """The first offsets of a stream: the ones kept before, else those that the options say, kept from now on
    in `stateLocation` or by the broker as committed offsets of `groupId`.

    Raises ConfigError when the folder cannot be used, or holds the offsets of another query."""
    if options.state_location:
        return _kept_in_file(cluster, options)
    wanted = starting(options, streaming=True)
    moves = wanted in (LATEST, "timestamp") or (isinstance(wanted, dict) and LATEST in wanted.values())
    queues = cluster.queues()
    if not moves:
        return _resolved(cluster, queues, wanted, None)
    recorded = cluster.recorded(queues)
    kept = {queue: offset for queue, offset in recorded.items() if offset is not None}
    if len(kept) < len(queues):
        found = _resolved(cluster, queues, wanted, options.starting_timestamp)
        fresh = {queue: offset for queue, offset in found.items() if queue not in kept}
        cluster.commit(fresh)
        kept |= fresh
    return kept


def _resolved(
    cluster: Cluster, queues: list[MessageQueue], wanted: str | int | Offsets, timestamp_ms: int | None
) -> Offsets:
    if wanted == "timestamp":
        assert timestamp_ms is not None
        return cluster.at_time(queues, timestamp_ms)
    if isinstance(wanted, dict):
        _check_named(queues, wanted)
    bounds = cluster.bounds(queues)
    if wanted == "group":
        committed = cluster.committed(queues)
        return {queue: bounds[queue][0] if (at := committed[queue]) is None else at for queue in queues}
    marks = wanted if isinstance(wanted, dict) else dict.fromkeys(queues, int(wanted))
    named = {EARLIEST: 0, LATEST: 1}
    return {queue: bounds[queue][named[at]] if at < 0 else at for queue, at in marks.items()}


def _check_named(queues: list[MessageQueue], offsets: Offsets) -> None:
    for what, found in (("lacks", set(queues) - set(offsets)), ("also names", set(offsets) - set(queues))):
        if found:
            shown = ", ".join(sorted(f"{q.topic}/{q.broker_name}/{q.queue_id}" for q in found)[:5])
            raise ConfigError(
                "offsets",
                f"JSON that {what} {len(found)} queues: {shown}",
                "all queues of the topics, no others",
            )


# --- the file ---


def _kept_in_file(cluster: Cluster, options: ReadOptions) -> Offsets:
    path = _folder(options.state_location) / FILE_NAME
    kept = read_kept(path)
    if kept is None:
        wanted = starting(options, streaming=True)
        found = _resolved(cluster, cluster.queues(), wanted, options.starting_timestamp)
        kept = keep(path, found)
        log.info("the first offsets are kept in %s", path)
    chosen = set(options.topics)
    others = sorted({queue.topic for queue in kept} - chosen)
    if others and not options.topic_pattern:
        raise ConfigError(
            "stateLocation",
            options.state_location,
            f"a folder of this query's own: {path} is of the topics {', '.join(others)}",
        )
    return kept


def _folder(location: str) -> Path:
    parts = urlsplit(location)
    if len(parts.scheme) > 1 and parts.scheme != "file":
        raise ConfigError("stateLocation", location, "a folder that the driver sees as a file system's")
    return Path(unquote(parts.path) if parts.scheme == "file" else location)


def read_kept(path: Path) -> Offsets | None:
    """The offsets that `keep` wrote; None without a file. Raises ConfigError when it cannot be read."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError("stateLocation", str(path), f"a readable file ({error.strerror})") from None
    return parse_offsets(text, str(path))


def keep(path: Path, offsets: Offsets) -> Offsets:
    """Write offsets, once for ever: whole and on the disk when this returns, and never over others.

    Returns what is kept: these, or those of whoever came first. Raises ConfigError when the folder cannot be
    written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
            file.write(offsets_text(offsets).encode())
            file.flush()
            os.fsync(file.fileno())
        try:
            with contextlib.suppress(FileExistsError):
                os.link(file.name, path)  # unlike a rename, it never replaces
        finally:
            os.unlink(file.name)
        sync_folder(path.parent)
    except OSError as error:
        raise ConfigError("stateLocation", str(path.parent), f"a folder to write to ({error})") from None
    kept = read_kept(path)
    assert kept is not None
    return kept
