"""Counters of a client, and their form in prometheus-client and OpenTelemetry; one-way sends count, too."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.client.observability.metrics import ClientMetrics
from rmq.client.session.observer import Observer
from rmq.message import Message, StoredMessage
from rmq.metrics import Histogram
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..consume.consuming import fill
from ..world import World


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", topics={"T": 1})


def connect(world: World, *plugins: Observer, **settings: Any) -> rmq.Client:
    config = rmq.ClientConfig(**settings)
    return rmq.connect(world.names, network=world.network, config=config, plugins=plugins)


def rows(metrics: ClientMetrics, name: str) -> dict[tuple[str, ...], Any]:
    (metric,) = [metric for metric in metrics.collect() if metric.name == f"client_{name}"]
    return {labels: sum(row.counts) if isinstance(row, Histogram) else row for labels, row in metric.rows}


async def drive(world: World, *plugins: Observer) -> None:
    """Two sends, a one-way send, one that is refused, and a handler that fails once."""
    seen: list[bytes] = []

    async def handle(message: StoredMessage) -> None:
        seen.append(message.body)
        await trio.sleep(2)
        if len(seen) == 1:
            raise ValueError("once")

    async with connect(world, *plugins, namespace="ns") as client:
        async with client.producer("p") as producer:
            await producer.send(Message("T", b"one", tags="paid", keys=["k1", "k2"]))
            await producer.send_oneway(Message("T", b"two"))
            await trio.sleep(1)
            world.cluster["a"].script(RequestCode.SEND_MESSAGE_V2, ResponseCode.SYSTEM_BUSY)
            await producer.send(Message("T", b"three"))
            world.cluster["a"].script(RequestCode.SEND_MESSAGE_V2, ResponseCode.MESSAGE_ILLEGAL)
            with pytest.raises(rmq.MessageIllegal):
                await producer.send(Message("T", b"four"))
        async with client.consumer(
            "g", {"T": "*"}, consume_from="first", retry=rmq.Backoff(1, 1)
        ) as consumer:
            with trio.move_on_after(50):
                await consumer.run(handle, concurrency=1)
            assert sorted(seen) == sorted([b"one", b"two", b"three", seen[0]])
            world.cluster["a"].put("ns%T", 0, b"five")
            world.cluster["a"].put("ns%T", 0, b"six")
            await trio.sleep(20)


@pytest.fixture
def namespaced() -> Cluster:
    return Cluster("a", topics={"ns%T": 1})


async def test_what_is_counted(clock: MockClock, namespaced: Cluster) -> None:
    from ..world import world

    metrics = ClientMetrics()
    async with world(namespaced) as made:
        await drive(made, metrics)
    sends = rows(metrics, "send_duration_seconds")
    assert sends == {("T", "ok"): 2, ("T", "oneway"): 1, ("T", "rmq.errors.MessageIllegal"): 1}
    assert rows(metrics, "sends_in_flight") == {(): 0}
    assert rows(metrics, "send_retries") == {("T",): 1}
    assert rows(metrics, "consume_duration_seconds") == {("g", "T", "ok"): 3, ("g", "T", "ValueError"): 1}
    assert rows(metrics, "consumed_messages") == {("g", "T", "ok"): 3, ("g", "T", "ValueError"): 1}
    assert rows(metrics, "consuming_messages") == {("g", "T"): 0}
    assert rows(metrics, "redelivered_messages") == {("g", "T"): 1}
    assert rows(metrics, "lag_messages") == {("g", "T"): 2, ("g", "%RETRY%g"): 0}
    (durations,) = [one for one in metrics.collect() if one.name == "client_consume_duration_seconds"]
    assert dict(durations.rows)["g", "T", "ok"].total == pytest.approx(6, abs=0.1)  # type: ignore[union-attr]


async def test_what_is_on_its_way_is_counted(setting: World, clock: MockClock) -> None:
    metrics = ClientMetrics()
    fill(setting.cluster, 3, queues=1)
    async with (
        connect(setting, metrics) as client,
        client.producer("p") as producer,
        client.consumer("g", {"T": "*"}, consume_from="first", on_error="raise") as consumer,
        trio.open_nursery() as nursery,
    ):
        async with await anext(consumer), await anext(consumer):
            assert rows(metrics, "consuming_messages") == {("g", "T"): 2}
        setting.cluster.slow(1)
        nursery.start_soon(producer.send, Message("T", b"x"))
        nursery.start_soon(producer.send_batch, [Message("T", b"x"), Message("T", b"y")])
        await trio.sleep(0.5)
        assert rows(metrics, "sends_in_flight") == {(): 3}
        await trio.sleep(30)
        assert rows(metrics, "sends_in_flight") == {(): 0}


async def test_without_an_answer_there_is_no_lag(setting: World, clock: MockClock) -> None:
    metrics = ClientMetrics(lag_seconds=5)
    fill(setting.cluster, 3, queues=1)
    async with (
        connect(setting, metrics) as client,
        client.consumer("g", {"T": "*"}, consume_from="first"),
    ):
        await trio.sleep(6)
        assert rows(metrics, "lag_messages")["g", "T"] == 3
        await setting.cluster.stop("a")
        await trio.sleep(20)
        assert rows(metrics, "lag_messages") == {}
        await setting.cluster.start("a")
        await trio.sleep(60)
        assert rows(metrics, "lag_messages")["g", "T"] == 3


def test_a_oneway_send_is_observed(both: Play, cluster: Cluster) -> None:
    class Watching(Observer):
        def sending(self, group: str, message: Message, extra: MutableMapping[str, str]) -> bytes:
            extra["traceparent"] = "00-1-2-01"
            return message.body

        def sent(self, token: bytes, result: object, error: BaseException | None) -> None:
            told.append((token, result, type(error).__name__))

    told: list[tuple[bytes, object, str]] = []

    async def scenario(world: World) -> None:
        async with connect(world, Watching()) as client, client.producer("p") as producer:
            await producer.send_oneway(Message("T", b"x", properties={"own": "1"}))
            with pytest.raises(rmq.InvalidMessage):
                await producer.send_oneway(Message("T", bytes(5 << 20)))
            await producer.send(Message("T", b"y"))
        first = cluster["a"].messages("T")[0]
        assert first.properties["traceparent"] == "00-1-2-01"
        assert first.properties["own"] == "1"
        assert [(len(body), kind) for body, _, kind in told] == [
            (1, "NoneType"),
            (5 << 20, "InvalidMessage"),
            (1, "NoneType"),
        ]
        assert told[0][1] is None

    both(scenario, cluster)


async def test_prometheus_shows_it(clock: MockClock, namespaced: Cluster) -> None:
    prometheus = pytest.importorskip("prometheus_client")
    from rmq.client.observability.prometheus import PrometheusMetrics

    from ..world import world

    registry = prometheus.CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    async with world(namespaced) as made:
        await drive(made, metrics)

    def value(name: str, **labels: str) -> float:
        found: float = registry.get_sample_value(name, labels)
        return found

    assert value("rmq_client_send_duration_seconds_count", topic="T", outcome="ok") == 2
    assert value("rmq_client_send_duration_seconds_bucket", topic="T", outcome="oneway", le="+Inf") == 1
    taken = value("rmq_client_consume_duration_seconds_sum", group="g", topic="T", outcome="ok")
    assert taken == pytest.approx(6, abs=0.1)
    assert (
        value("rmq_client_consume_duration_seconds_bucket", group="g", topic="T", outcome="ok", le="1.0") == 0
    )
    assert value("rmq_client_send_retries_total", topic="T") == 1
    assert value("rmq_client_redelivered_messages_total", group="g", topic="T") == 1
    assert value("rmq_client_lag_messages", group="g", topic="T") == 2
    assert b"rmq_client_sends_in_flight 0.0" in prometheus.generate_latest(registry)


class TestOpenTelemetry:
    @pytest.fixture
    async def driven(
        self, autojump_clock: MockClock, namespaced: Cluster
    ) -> tuple[list[Any], dict[str, Any]]:
        """The spans, and the points of each metric, of one round."""
        pytest.importorskip("opentelemetry.sdk")
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        from rmq.client.observability.otel import OpenTelemetry

        from ..world import world

        exporter, tracers, reader = InMemorySpanExporter(), TracerProvider(), InMemoryMetricReader()
        tracers.add_span_processor(SimpleSpanProcessor(exporter))
        telemetry = OpenTelemetry(tracers, MeterProvider([reader]))
        async with world(namespaced) as made:
            await drive(made, telemetry)
        data = reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        points = {one.name: list(one.data.data_points) for scope in scopes for one in scope.metrics}
        return list(exporter.get_finished_spans()), points

    async def test_the_names_are_those_of_the_conventions(
        self, driven: tuple[list[Any], dict[str, Any]], clock: MockClock
    ) -> None:
        spans, _ = driven
        sent = next(span for span in spans if span.name == "send T")
        told = dict(sent.attributes)
        assert told.pop("messaging.client.id")
        assert told.pop("messaging.message.id")
        assert told == {
            "messaging.system": "rocketmq",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": "T",
            "messaging.destination.partition.id": "0",
            "messaging.message.body.size": 3,
            "messaging.rocketmq.client_group": "p",
            "messaging.rocketmq.namespace": "ns",
            "messaging.rocketmq.message.type": "normal",
            "messaging.rocketmq.message.tag": "paid",
            "messaging.rocketmq.message.keys": ("k1", "k2"),
            "server.address": "10.0.1.1",
            "server.port": 10911,
        }
        failed = next(
            span for span in spans if span.attributes.get("error.type") == "rmq.errors.MessageIllegal"
        )
        assert failed.name == "send T"
        assert failed.attributes["server.address"] == "10.0.1.1"
        done = next(span for span in spans if span.name == "process T" and span.status.is_ok)
        assert done.attributes["messaging.consumer.group.name"] == "g"
        assert done.attributes["messaging.operation.name"] == "process"
        assert done.attributes["server.port"] == 10911
        raised = next(span for span in spans if span.name == "process T" and not span.status.is_ok)
        assert raised.attributes["error.type"] == "ValueError"

    async def test_a_handlers_span_is_a_child_of_a_oneway_sends(
        self, driven: tuple[list[Any], dict[str, Any]], clock: MockClock
    ) -> None:
        spans, _ = driven
        sends = {span.get_span_context().span_id for span in spans if span.name == "send T"}
        processed = [span for span in spans if span.name == "process T" and span.parent]
        assert len(processed) == 4
        assert {span.parent.span_id for span in processed} < sends
        oneway = [
            span for span in spans if span.name == "send T" and "messaging.message.id" not in span.attributes
        ]
        assert {span.get_span_context().span_id for span in oneway} & {
            span.parent.span_id for span in processed
        }

    async def test_metrics(self, driven: tuple[list[Any], dict[str, Any]], clock: MockClock) -> None:
        _, points = driven
        count = {
            name: sum(getattr(point, "count", None) or getattr(point, "value", 0) for point in found)
            for name, found in points.items()
        }
        assert count == {
            "messaging.client.operation.duration": 4,
            "messaging.client.sent.messages": 4,
            "messaging.process.duration": 4,
            "messaging.client.consumed.messages": 4,
            "rmq.client.redelivered.messages": 1,
            "rmq.client.sends.in_flight": 0,
            "rmq.client.send.retries": 1,
            "rmq.client.lag": 2,
        }
        (late,) = [
            point
            for point in points["messaging.process.duration"]
            if point.attributes.get("error.type") == "ValueError"
        ]
        assert late.sum == pytest.approx(2, abs=0.1)
        assert not any("messaging.client.id" in point.attributes for one in points.values() for point in one)
