"""Evidence beside the log of its end and its begin, compared with the log's files.

A log that has lost its last bytes looks like a log that ends earlier. The files beside the log reveal the
loss, each as far as it is reliable:

| file | after a clean stop | after a kill | after a power cut |
|---|---|---|---|
| `checkpoint`, with physical offsets | the log ends exactly there | synced before it was written | the same |
| `checkpoint` of RocketMQ, store times only | a record of that time was synced | the same | the same |
| `abort` | does not exist | exactly the synced position | at most the synced position |
| queue units | each names a record | each names a record | may be ahead of the log |

A kill and a power cut leave the same files, so queue units count only after a clean stop. A flipped bit in a
queue is no reason to refuse a log that ends at our checkpoint's offset, so queue units count only if the
checkpoint has no physical offset.

Only our checkpoint has the begin of the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from rmq.errors import CorruptRecord
from rmq.message import (
    PROPERTY_CLUSTER,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_INSTANCE_ID,
    PROPERTY_MSG_REGION,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TRACE_SWITCH,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT_STORE,
)
from rmq.store.files.abort import ALL
from rmq.store.files.scan import Scan, why_no_record
from rmq.store.files.segments import Segments

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.store.files.checkpoint import Checkpoint
    from rmq.store.files.consumequeue import ConsumeQueue
else:
    from rmq.lazy_attrs import frozen

WAY_ON: Final = (
    "restore the file from a backup or a replica, give up what is missing with `rmq store repair DIR"
    " --cut-tail`, or start once with truncateDamagedLog=true"
)
START_WAY_ON: Final = (
    "restore the files from a backup or a replica, go on without their messages with `rmq store repair DIR"
    " --accept-start`, or start once with truncateDamagedLog=true"
)
_NEVER_ZERO: Final = frozenset(
    name.encode()
    for name in (
        PROPERTY_CLUSTER,
        PROPERTY_DELAY_LEVEL,
        PROPERTY_INSTANCE_ID,
        PROPERTY_MSG_REGION,
        PROPERTY_PRODUCER_GROUP,
        PROPERTY_REAL_QUEUE_ID,
        PROPERTY_REAL_TOPIC,
        PROPERTY_TRACE_SWITCH,
        PROPERTY_TRANSACTION_PREPARED,
        PROPERTY_UNIQUE_KEY,
        PROPERTY_WAIT_STORE,
    )
)
"""Properties that clients and brokers make themselves, without NUL; a sender may put NUL into others."""


@frozen
class Evidence:
    """The least end of a log: `before`, a physical offset, by the file or queue `by`; 0 when unknown.
    `time_ms`: the log must have a record stored at this time or later, by the checkpoint; 0 when unknown.
    `is_exact`: the log ended at this offset, so that nothing follows."""

    before: int = 0
    by: str = ""
    time_ms: int = 0
    is_exact: bool = False

    def missing(self, segments: Segments, end: int) -> str:
        """Why a log that ends at `end` has lost something by `before`; empty when it has not. A slave's log
        may have been synced up to the middle of a record.
        """
        if end >= self.before:
            return ""
        # After a log that is gone as a whole there is no file to look into.
        if segments.at(end) is not None and not why_no_record(segments, end, min(self.before, segments.stop)):
            return ""
        return (
            f"the log ends here, but {self.by} says that it reached {self.before} at least:"
            f" {self.before - end} bytes are missing or damaged"
        )

    def check_reach(self, segments: Segments, end: int) -> None:
        """Raise CorruptRecord when a log that ends at `end` has lost something by `before`."""
        if why := self.missing(segments, end):
            raise CorruptRecord(segments.path(end), end, f"{why}; {WAY_ON}")

    def check_time(self, segments: Segments, end: int, latest_ms: int, scanned_from: int) -> None:
        """Raise CorruptRecord when the log has no record that was stored at `time_ms` or later. `latest_ms`
        is the latest store time from `scanned_from` on. The clock may have been set back: then the whole log
        is looked through.
        """
        if latest_ms >= self.time_ms:
            return
        earlier = Scan(segments, segments.start, check_crc=False, stop=scanned_from)
        if not any(record.store_timestamp >= self.time_ms for record in earlier):
            reason = (
                f"the log ends here, and its latest record was stored at {latest_ms}, but the checkpoint says"
                f" that one of {self.time_ms} was synced (ms); {WAY_ON}"
            )
            raise CorruptRecord(segments.path(end), end, reason)


def missing_start(checkpoint: Checkpoint, segments: Segments) -> str:
    """Why the log's first files are missing; empty when they are not, or when nothing is known. Retention
    writes down the new begin of the log before it removes a file."""
    known = checkpoint.log_from
    if known is None or not segments.bases or segments.start <= known:
        return ""
    return (
        f"the log begins here, but the checkpoint says that it began at {known} at most:"
        f" {segments.start - known} bytes are missing"
    )


def find_evidence(
    checkpoint: Checkpoint, synced: int, queues: Iterable[ConsumeQueue], *, clean: bool, now_ms: int
) -> Evidence:
    """The furthest evidence of the files. `synced` is the offset in `abort`; `queues` are loaded."""
    if checkpoint.has_places:
        if clean or synced in (0, ALL) or synced <= checkpoint.log_to:
            return Evidence(checkpoint.log_to, "the checkpoint", is_exact=clean)
        return Evidence(synced, "the file abort")
    # A time that is still to come is a damaged file's, or the clock is wrong: nothing is known by it.
    time_ms = checkpoint.log_ms if 0 < checkpoint.log_ms <= now_ms else 0
    if not clean:
        return Evidence(0 if synced == ALL else synced, "the file abort", time_ms)
    last = max(queues, key=lambda queue: queue.known_to, default=None)
    if last is None:
        return Evidence(0, "", time_ms)
    return Evidence(last.known_to, f"the last unit of queue {last.topic}/{last.queue_id}", time_ms)


def broken_text(properties: bytes) -> str:
    """The reason why zeros in a record's properties are lost bytes; empty when a sender may have sent the
    zeros: RocketMQ accepts NUL in the values of properties."""
    text = properties.rstrip(b"\0")
    for pair in properties[:-1].split(b"\x02") if properties.endswith(b"\x02") else properties.split(b"\x02"):
        name, separator, _ = pair.partition(b"\x01")
        if not separator or not name or 0 in name:
            return f"after {len(text)} bytes its properties are no pairs of names and values"
    return zeroed_text(properties)


def zeroed_text(properties: bytes) -> str:
    """The reason why no sender can have sent the zeros in a record's properties, wherever the record stands;
    empty without one."""
    for pair in properties.split(b"\x02"):
        name, separator, value = pair.partition(b"\x01")
        if not separator and pair.partition(b"\0")[0] in _NEVER_ZERO and 0 in pair:
            return "its properties have zeros where a name ends"
        if name in _NEVER_ZERO and 0 in value:
            return f"its property {name.decode()} has zeros, which no client sends"
    return ""
