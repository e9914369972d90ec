"""PrometheusMetrics: a client's metrics for prometheus-client.

    from rmq.client.observability.prometheus import PrometheusMetrics

    async with rmq.connect(address, plugins=[PrometheusMetrics()]) as client: ...

Needs the extra `metrics` (prometheus-client); no other module imports it. The application chooses how to show
the figures: `prometheus_client.start_http_server`, `make_asgi_app`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from rmq.client.observability.metrics import ClientMetrics
from rmq.metrics import Histogram, Metric

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as MetricFamily
    from prometheus_client.registry import CollectorRegistry

PREFIX = "rmq_"


class PrometheusMetrics(ClientMetrics):
    """`ClientMetrics` that a registry, the process's own or `registry`, reads at each scrape. Each client
    needs its own object; two objects need two registries, as their names are equal."""

    def __init__(self, registry: CollectorRegistry = REGISTRY, *, lag_seconds: float = 15.0) -> None:
        super().__init__(lag_seconds=lag_seconds)
        registry.register(_Collector(self))


class _Collector:
    def __init__(self, metrics: ClientMetrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[MetricFamily]:
        return list(self.collect())

    def collect(self) -> Iterator[MetricFamily]:
        return map(_family, self._metrics.collect())


def _family(metric: Metric) -> MetricFamily:
    name = PREFIX + metric.name
    if metric.kind == "histogram":
        durations = HistogramMetricFamily(name, metric.help, labels=metric.labels)
        for labels, value in metric.rows:
            assert isinstance(value, Histogram)
            limits = [*map(str, value.limits), "+Inf"]
            buckets = list(zip(limits, accumulate(value.counts), strict=True))
            durations.add_metric(labels, buckets=buckets, sum_value=value.total)
        return durations
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    numbers: CounterMetricFamily | GaugeMetricFamily = kind(name, metric.help, labels=metric.labels)
    for labels, value in metric.rows:
        assert not isinstance(value, Histogram)
        numbers.add_metric(labels, value)
    return numbers
