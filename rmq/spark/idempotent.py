"""Idempotent writes: the key of a write, the numbers of a task's rows, and their brokers in each run of the
task.

A broker stores a row once if the same producer repeats it with its number at the same broker. The producer is
the task, in any attempt; rows are numbered in order. The broker of a row is computed from its number and from
the names of the brokers, so the names must stay the same, also while a broker is away.

Inside of foreachBatch the key of a write is the query, the batch, and the number of the write among those of
the batch with the same target and columns. Spark gives tasks the query and the batch, but not the number: so
the end of a write is noted in a file of the driver's machine, and the next write gets the notes.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import define, frozen

from rmq.errors import ConfigError
from rmq.files import replace_file
from rmq.message import MessageQueue

BLOCK_ROWS: Final = 8192
"""Consecutive rows that go to one broker, if they choose no queue."""
PREFIX_MAX: Final = 100


@define
class Line:
    """Rows of a task with common numbers: all, or the rows of a topic or queue."""

    producer: str
    next: int = 0

    def blocks(self, count: int) -> Iterator[tuple[int, int, int]]:
        """Number the next `count` rows: (number of the first, first row, end row) of each part that goes to
        one broker."""
        at = 0
        while at < count:
            end = min(count, at + BLOCK_ROWS - self.next % BLOCK_ROWS)
            yield self.next, at, end
            self.next += end - at
            at = end


def producer_id(prefix: str, queue: MessageQueue | None) -> str:
    """The producer name of rows that chose a queue and whose keys begin with `prefix`."""
    if len(prefix) > PREFIX_MAX or not (prefix.isascii() and prefix.isprintable()) or " " in prefix:
        prefix = hashlib.md5(prefix.encode(), usedforsecurity=False).hexdigest()
    return prefix if queue is None else f"{prefix}@{queue.queue_id}"


# --- the writes of a batch ---

KEPT_SECONDS: Final = 7 * 86400.0
"""Age of queries, in seconds, above which their notes are deleted."""
Notes = Mapping[str, Mapping[str, int]]
"""Attempt of a batch -> label of a write -> number of such writes that have ended."""


@frozen
class MicroBatch:
    """A batch of a streaming query, in one attempt."""

    query: str
    batch: str
    attempt: str

    @classmethod
    def of(cls, local: Callable[[str], str | None]) -> MicroBatch | None:
        """The batch of a task by its local properties; None in a task of no streaming query."""
        query, batch = local("sql.streaming.queryId"), local("streaming.sql.batchId")
        if not query or batch is None:
            return None
        names = ("spark.jobGroup.id", "spark.app.startTime", "spark.sql.execution.root.id")
        return cls(query, batch, "/".join([query, batch, *(local(name) or "" for name in names)]))


def label_of(*parts: str) -> str:
    """A short name of a write by its target and columns."""
    return hashlib.md5("\n".join(parts).encode(), usedforsecurity=False).hexdigest()[:8]


def notes_folder() -> Path:
    """The folder of the notes, in the driver's folder for temporary files."""
    return Path(tempfile.gettempdir()) / f"rmq-spark-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


def read_notes(folder: Path) -> Notes:
    """The ended writes of each batch in progress. Lines that are not notes are ignored."""
    found: dict[str, dict[str, int]] = {}
    for path in folder.glob("*.json"):
        try:
            tree = json.loads(path.read_text("utf-8"))
            counts = {str(label): int(count) for label, count in tree["writes"].items()}
            found.setdefault(str(tree["attempt"]), {}).update(counts)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def note_write(folder: Path, batch: MicroBatch, label: str) -> None:
    """Note the end of a write, in a file of its query and label: other writes may end at the same time.
    Raises ConfigError if the folder cannot be written."""
    count = read_notes(folder).get(batch.attempt, {}).get(label, 0) + 1
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps({"attempt": batch.attempt, "writes": {label: count}})
        replace_file(folder / f"{batch.query}-{label}.json", text.encode())
        for path in folder.glob("*.json"):
            if path.stat().st_mtime < time.time() - KEPT_SECONDS:
                path.unlink(missing_ok=True)
    except OSError as error:
        expected = f"a folder of the driver to note the writes of a batch in ({error.strerror})"
        raise ConfigError("TMPDIR", str(folder), expected) from None


# --- brokers of rows ---


class BrokerPartitioner:
    """Destinations of rows that choose no queue: `queues` are those of their topic, on possible brokers."""

    def __init__(self, queues: Sequence[MessageQueue]) -> None:
        self._of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            self._of.setdefault(queue.broker_name, []).append(queue)
        self._names = sorted(self._of)
        self._turns = dict.fromkeys(self._names, 0)

    @property
    def are_of_one_broker(self) -> bool:
        """True if there is only one broker."""
        return len(self._names) == 1

    def queue(self, producer: str, number: int) -> MessageQueue:
        """A queue of the row's broker; any queue is right, so the queues take turns."""
        block = f"{producer}/{number // BLOCK_ROWS}"
        broker = self._names[zlib.crc32(block.encode()) % len(self._names)]
        self._turns[broker] += 1
        queues = self._of[broker]
        return queues[self._turns[broker] % len(queues)]
