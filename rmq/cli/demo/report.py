"""The results of `rmq demo`: its records, their checks and the printed tables."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Iterable, Sequence

from attrs import Factory, define, frozen
from rich.console import Console, RenderableType
from rich.table import Table

from rmq.cli.demo.rows import Row
from rmq.cli.latency import percentile


@frozen
class Delivery:
    """A received message; times are seconds of a monotonic clock."""

    consumer: int
    row: int
    queue_id: int
    at: float
    is_intact: bool


@define
class Results:
    """Filled while the demo runs; row numbers index `sent_at` and `acknowledged_at`."""

    rows: Sequence[Row]
    sent_at: dict[int, float] = Factory(dict)
    acknowledged_at: dict[int, float] = Factory(dict)
    deliveries: list[Delivery] = Factory(list)
    seen: set[int] = Factory(set)

    def delivered(self, delivery: Delivery) -> None:
        """Note one delivery."""
        self.deliveries.append(delivery)
        self.seen.add(delivery.row)

    @property
    def is_complete(self) -> bool:
        """True if each row has come at least once."""
        return len(self.seen) == len(self.rows)


@frozen
class OrderCheck:
    """The published sequence of each key beside the received sequence."""

    keys: int
    kept: int
    missing: int
    repeated: int
    altered: int
    first_wrong: str

    @property
    def has_passed(self) -> bool:
        """True if each row came once, unchanged and in order."""
        return self.kept == self.keys and not (self.missing or self.repeated or self.altered)


def by_key(rows: Iterable[Row]) -> dict[str, list[int]]:
    """Key -> the numbers of its rows, in the order given."""
    grouped: dict[str, list[int]] = {}
    for row in rows:
        grouped.setdefault(row.key, []).append(row.number)
    return grouped


def check_order(rows: Sequence[Row], deliveries: Sequence[Delivery]) -> OrderCheck:
    """Compare, key by key, the published messages with the received messages of all consumers."""
    published = by_key(rows)
    came = by_key(rows[delivery.row] for delivery in deliveries)
    wrong = [key for key, numbers in published.items() if came.get(key) != numbers]
    times = Counter(delivery.row for delivery in deliveries)
    return OrderCheck(
        keys=len(published),
        kept=len(published) - len(wrong),
        missing=len(rows) - len(times),
        repeated=sum(count - 1 for count in times.values()),
        altered=sum(not delivery.is_intact for delivery in deliveries),
        first_wrong=f"{wrong[0]}: rows {published[wrong[0]]} came as {came.get(wrong[0], [])}"
        if wrong
        else "",
    )


def latencies(results: Results) -> tuple[list[float], list[float]]:
    """Sorted seconds from the start of each send to its acknowledgement, and to its first delivery."""
    acknowledged = [at - results.sent_at[row] for row, at in results.acknowledged_at.items()]
    first: dict[int, float] = {}
    for delivery in results.deliveries:
        first.setdefault(delivery.row, delivery.at)
    consumed = [at - results.sent_at[row] for row, at in first.items()]
    return sorted(acknowledged), sorted(consumed)


def flow_table(results: Results) -> Table:
    """Messages, seconds, rates and latencies of publishing and consuming."""
    begin = min(results.sent_at.values())
    acknowledged, consumed = latencies(results)
    table = Table(title="Flow: rates, and time from send to acknowledgement / to consumer")
    for name in ("", "messages", "seconds", "per s", "p50 ms", "p90 ms", "p99 ms", "max ms"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    published = max(results.acknowledged_at.values()) - begin
    table.add_row("published", *_metrics(acknowledged, published))
    table.add_row("consumed", *_metrics(consumed, max(one.at for one in results.deliveries) - begin))
    return table


def _metrics(values: Sequence[float], seconds: float) -> list[str]:
    rate = f"{len(values) / seconds:,.0f}" if seconds > 0 else "-"
    points = [f"{percentile(values, share) * 1000:.1f}" for share in (0.5, 0.9, 0.99, 1.0)]
    return [f"{len(values):,}", f"{seconds:.2f}", rate, *points]


def share_table(results: Results, names: Sequence[str], key: str) -> Table:
    """The division of the load between the consumers."""
    table = Table(title="Shared between two consumers of one group")
    for name in ("", "messages", "share", f"values of {key}", "queues"):
        table.add_column(name, justify="right" if name else "left", no_wrap=name != "queues")
    total = len(results.deliveries)
    for number, consumer in enumerate(names):
        own = [delivery for delivery in results.deliveries if delivery.consumer == number]
        keys = len({results.rows[delivery.row].key for delivery in own})
        queues = " ".join(str(queue) for queue in sorted({delivery.queue_id for delivery in own}))
        table.add_row(consumer, f"{len(own):,}", f"{len(own) / total:.0%}", f"{keys:,}", queues or "-")
    return table


def order_line(check: OrderCheck, key: str) -> str:
    """The result of the ordering check, in one line."""
    text = f"{check.kept:,} of {check.keys:,} values of {key} came in the order they were published"
    faults = [
        f"{count:,} {what}"
        for count, what in (
            (check.missing, "missing"),
            (check.repeated, "repeated"),
            (check.altered, "altered"),
        )
        if count
    ]
    return f"Ordering: {'kept' if check.has_passed else 'BROKEN'}: {', '.join([text, *faults])}."


def files_table(folder: pathlib.Path) -> Table:
    """The store's parts with the bytes they take on disk."""
    table = Table(title="Files")
    for name in ("folder", "content", "files", "on disk"):
        table.add_column(name, justify="right" if name in ("files", "on disk") else "left", no_wrap=True)
    for name, what in STORE_PARTS.items():
        files = [path for path in (folder / name).rglob("*") if path.is_file()]
        used = sum(path.stat().st_blocks * 512 for path in files)
        table.add_row(name, what, f"{len(files):,}", f"{used / 1024:,.0f} KiB")
    return table


STORE_PARTS = {
    "commitlog": "the messages, one after the other",
    "consumequeue": "each queue's index into them",
    "index": "look-up by key",
    "config": "topics, groups, offsets",
}


def print_parts(console: Console, *parts: RenderableType) -> None:
    """Print tables and lines; a line is never cut, whatever the width of the terminal."""
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str), highlight=False)
