"""Latencies: one timed send, percentiles, and a meter that counts many as a histogram."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import Factory, define

from rmq.cli.output import console
from rmq.errors import RmqError

if TYPE_CHECKING:
    from rmq.client.produce.producer import Producer
    from rmq.message import Message, MessageQueue

BARS = 40
PRECISION_BITS = 8
"""Bits that are kept of a latency in µs."""
BOUNDS_MS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, float("inf"))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the sorted `values` lie; 0.0 without values."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


async def timed_send(
    producer: Producer, message: Message, queue: MessageQueue | None
) -> tuple[float, RmqError | None]:
    """Send a message, to `queue` or to the next queue. Return the ms taken, and the error when the broker
    refused."""
    began = time.perf_counter()
    try:
        await producer.send(message, queue=queue)
    except RmqError as error:
        return (time.perf_counter() - began) * 1000, error
    return (time.perf_counter() - began) * 1000, None


@define
class Meter:
    """Count, errors and latencies of a role: producer or consumer. `latencies`: µs, in steps of less than 1
    %, -> count; it stays small however long a run takes."""

    role: str
    size: int
    began: float = 0.0
    ended: float = 0.0
    count: int = 0
    failed: int = 0
    longest: float = 0.0
    latencies: Counter[int] = Factory(Counter)
    error: str = ""

    def record(self, seconds: float, times: int = 1) -> None:
        """Count a latency, in seconds, of `times` messages."""
        now = time.perf_counter()
        # A sender begins with its first send, a consumer with its first message.
        self.began = self.began or (now - seconds if self.role == "producer" else now)
        self.ended = now
        self.count += times
        self.longest = max(self.longest, seconds)
        micros = int(seconds * 1e6)
        shift = max(0, micros.bit_length() - PRECISION_BITS)
        self.latencies[micros >> shift << shift] += times

    def percentile(self, share: float) -> float:
        """The ms below which `share` (0 to 1) of the latencies lie; 0.0 when there are none."""
        before, rank = 0, int(self.count * share)
        for micros in sorted(self.latencies):
            before += self.latencies[micros]
            if before > rank:
                return micros / 1000
        return self.longest * 1000

    def row(self) -> dict[str, Any]:
        """The metrics, as they are printed."""
        seconds = self.ended - self.began
        per_second = self.count / seconds if seconds > 0 else 0.0
        shares = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}
        return {
            "role": self.role,
            "messages": self.count,
            "failed": self.failed,
            "seconds": round(seconds, 3),
            "per_second": round(per_second, 1),
            "mib_per_second": round(per_second * self.size / (1 << 20), 3),
            **{name: round(self.percentile(share), 3) for name, share in shares.items()},
            "max_ms": round(self.longest * 1000, 3),
        }

    def print_histogram(self) -> None:
        """Print a histogram: numbers of messages by latency."""
        from rich.table import Table

        if not self.count:
            return
        table = Table(box=None, pad_edge=False, title=f"\n{self.role}: latency", title_justify="left")
        for heading, justify in (("UP TO MS", "right"), ("MESSAGES", "right"), ("", "left")):
            table.add_column(heading, justify=justify)  # type: ignore[arg-type]
        counts = [0] * len(BOUNDS_MS)
        for micros, many in self.latencies.items():
            counts[next(n for n, bound in enumerate(BOUNDS_MS) if micros / 1000 <= bound)] += many
        for bound, count in zip(BOUNDS_MS, counts, strict=True):
            if count:
                bar = "#" * max(1, round(BARS * count / self.count))
                table.add_row("more" if bound == float("inf") else f"{bound:g}", f"{count:,}", bar)
        console().print(table)
