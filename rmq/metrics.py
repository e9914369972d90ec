"""Metrics of a service, as values: counters, gauges and histograms, for any display.

Counting is done in plain Python where events happen; a Metric is made only on demand.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, Literal, Protocol

from attrs import frozen

SECONDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""Upper limits of the buckets of durations."""


class Histogram:
    """Number of values in each bucket: `counts[i]` up to `limits[i]`, the last above all limits."""

    __slots__ = ("counts", "limits", "total")

    def __init__(self, limits: Sequence[float] = SECONDS) -> None:
        self.limits = limits
        self.counts = [0] * (len(limits) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, `times` times."""
        self.counts[bisect_left(self.limits, value)] += times
        self.total += value * times

    def copy(self) -> Histogram:
        """A copy of the present counts."""
        made = Histogram(self.limits)
        made.counts, made.total = self.counts.copy(), self.total
        return made


Kind = Literal["counter", "gauge", "histogram"]


@frozen
class Metric:
    """A metric: its rows are (values of the labels, number or Histogram). `name` is in Prometheus' form
    without prefix, its unit last; a counter's name there ends in _total."""

    name: str
    kind: Kind
    help: str
    rows: Sequence[tuple[tuple[str, ...], float | Histogram]]
    labels: tuple[str, ...] = ()


def single(name: str, kind: Kind, help: str, value: float | Histogram) -> Metric:
    """A metric without labels."""
    return Metric(name, kind, help, [((), value)])


class Refusing(Protocol):
    """An acceptor of connections, with counts of its refusals."""

    @property
    def refused(self) -> Mapping[str, int]:
        """Reason of a refusal -> number."""

    @property
    def delayed(self) -> int:
        """Number of connections that waited for their turn."""

    @property
    def failed(self) -> int:
        """Number of connections that sent bytes but no valid request or login."""


class Holding(Protocol):
    """The bound on bytes that peers make a process hold."""

    held: int
    cuts: int


def connection_metrics(ports: Mapping[str, Refusing], budget: Holding) -> Iterator[Metric]:
    """Metrics of a service's connections: refusals, delays, failures and held bytes."""
    help = "Connections that a limit refused: of the port, of an address, of its rate, of descriptors; or cut"
    help += " off for others, since they had proved nothing"
    rows = [((port, reason), n) for port, one in ports.items() for reason, n in one.refused.items()]
    yield Metric("connections_refused", "counter", help, rows, ("port", "reason"))
    help = "Connections that waited, since too many handshakes of their address were on their way or failed"
    delayed = [((port,), one.delayed) for port, one in ports.items()]
    yield Metric("connections_delayed", "counter", help, delayed, ("port",))
    help = "Connections that spoke and proved nothing, neither by certificate nor secret nor a request"
    failed = [((port,), one.failed) for port, one in ports.items()]
    yield Metric("handshakes_failed", "counter", help, failed, ("port",))
    help = "Bytes of unsent answers and unfinished requests"
    yield single("connection_buffer_bytes", "gauge", help, budget.held)
    help = "Connections that were cut off because all of them held too much"
    yield single("connections_cut", "counter", help, budget.cuts)


# --- as text ---

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SLICE_ROWS: Final = 500

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


def page_of(metrics: Iterable[Metric], prefix: str = "rmq_") -> bytes:
    """Write the page of these metrics at once."""
    writer = text_of(metrics, prefix)
    while True:
        try:
            next(writer)
        except StopIteration as done:
            page: bytes = done.value
            return page


def text_of(metrics: Iterable[Metric], prefix: str = "rmq_") -> Generator[None, None, bytes]:
    """Write the page of these metrics for Prometheus, in slices, each of which ends with a `yield`. The page
    is the value that the generator returns.

    The writer of prometheus-client takes 25 µs a row, so it would need a thread. The thread would hold the
    interpreter's lock: during the seconds that 100,000 rows take, each system call of the loop waits 5 ms.
    """
    pieces: list[str] = []
    lines: list[str] = []
    for metric in metrics:
        name = prefix + metric.name + ("_total" if metric.kind == "counter" else "")
        lines += (
            f"# HELP {name} {metric.help.translate(_HELP_ESCAPES)}",
            f"# TYPE {name} {metric.kind}",
        )
        for labels, value in metric.rows:
            text = ",".join(
                [
                    f'{label}="{given.translate(_ESCAPES)}"'
                    for label, given in zip(metric.labels, labels, strict=True)
                ]
            )
            if isinstance(value, Histogram):
                lines += _histogram(name, text, value)
            else:
                lines.append(f"{name}{{{text}}} {value}" if text else f"{name} {value}")
            if len(lines) >= SLICE_ROWS:
                pieces.append("\n".join(lines))
                lines = []
                yield
    pieces.append("\n".join([*lines, ""]))
    return "\n".join(pieces).encode("utf-8", "replace")


def _histogram(name: str, labels: str, histogram: Histogram) -> Iterator[str]:
    before = f"{labels}," if labels else ""
    limits = (*histogram.limits, math.inf)
    count = 0
    for limit, count in zip(limits, accumulate(histogram.counts), strict=True):
        shown = "+Inf" if limit == math.inf else limit
        yield f'{name}_bucket{{{before}le="{shown}"}} {count}'
    after = f"{{{labels}}}" if labels else ""
    yield f"{name}_count{after} {count}"
    yield f"{name}_sum{after} {histogram.total}"
