"""Metrics -> the text that Prometheus reads, by prometheus-client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from rmq.metrics import Histogram, Metric

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as MetricFamily

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "rmq_"


class Exposition:
    """Writes metrics, and beside them what the client library knows of this process.

    Raises ImportError when prometheus-client is not installed.
    """

    def __init__(self) -> None:
        from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
        from prometheus_client.registry import CollectorRegistry

        self._process = CollectorRegistry()
        for collector in (ProcessCollector, GCCollector, PlatformCollector):
            collector(registry=self._process)

    def text(self, metrics: Sequence[Metric]) -> bytes:
        """The page. Safe in a thread, as nobody changes the rows."""
        from prometheus_client import generate_latest
        from prometheus_client.registry import CollectorRegistry

        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Given(metrics))
        return generate_latest(self._process) + generate_latest(registry)


class _Given:
    """A collector of what is there already."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[MetricFamily]:
        return map(family_of, self._metrics)

    def describe(self) -> list[Any]:
        return []


def family_of(metric: Metric) -> MetricFamily:
    """The client library's form of a metric."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    family: Any = kinds[metric.kind](PREFIX + metric.name, metric.help, labels=metric.labels)
    for labels, value in metric.rows:
        if isinstance(value, Histogram):
            family.add_metric(labels, buckets=_buckets(value), sum_value=value.total)
        else:
            family.add_metric(labels, value)
    made: MetricFamily = family
    return made


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    limits = [*map(str, histogram.limits), "+Inf"]
    return list(zip(limits, accumulate(histogram.counts), strict=True))
