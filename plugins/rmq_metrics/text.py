"""Metrics -> the text for Prometheus, in slices; metrics of this process come from prometheus-client.

prometheus-client's own writer takes 25 µs a row, and so needs a thread, which holds the interpreter's lock:
each call of the loop into the system waited 5 ms for the lock, during the seconds that 100,000 rows take.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from itertools import accumulate
from typing import Final

from rmq.metrics import Histogram, Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "rmq_"
SLICE_ROWS: Final = 500

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class ProcessMetrics:
    """Metrics of this process by the client library. Raises ImportError without the library."""

    def __init__(self) -> None:
        from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
        from prometheus_client.registry import CollectorRegistry

        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, GCCollector, PlatformCollector):
            collector(registry=self._registry)

    def text(self) -> bytes:
        """The process's part of the page. It counts all open descriptors: call this in a thread."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)


def text_of(metrics: Sequence[Metric]) -> Generator[None, None, bytes]:
    """The page of these metrics, in slices."""
    pieces: list[str] = []
    lines: list[str] = []
    for metric in metrics:
        name = PREFIX + metric.name + ("_total" if metric.kind == "counter" else "")
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
