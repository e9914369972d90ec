"""Traces in RocketMQ's form, spans, and what observers may and may not do."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import anyio
import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.client.observability.trace import WAITING_MAX, MessageTrace
from rmq.client.produce.transactional import Decision
from rmq.client.session.observer import Observer
from rmq.message import Message, StoredMessage
from rmq.protocol.codes import RequestCode
from rmq.protocol.trace import TraceContext, TraceMessageType, TraceType, decode
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World

TRACE = "RMQ_SYS_TRACE_TOPIC"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", topics={"T": 1}, trace_topic_enable=True)


def connect(world: World, *plugins: Observer, **settings: Any) -> rmq.Client:
    config = rmq.ClientConfig(**settings)
    return rmq.connect(world.names, network=world.network, config=config, plugins=plugins)


def rows(cluster: Cluster) -> list[TraceContext]:
    return [row for message in cluster["a"].messages(TRACE) for row in decode(message.body.decode())]


async def unknown(message: StoredMessage) -> Decision:
    return rmq.UNKNOWN


def test_what_is_sent_and_consumed_is_traced(both: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        async with connect(world, MessageTrace()) as client:
            async with client.producer("p") as producer:
                result = await producer.send(Message("T", b"hello", tags="t", keys=["k1", "k2"]))
                batch = await producer.send_batch([Message("T", b"x"), Message("T", b"y")])
            failed = False
            async with client.consumer("c", {"T": "*"}, consume_from="first") as consumer:
                async for delivery in consumer:
                    async with delivery as message:
                        if message.body == b"hello" and not failed:
                            failed = True
                            raise ValueError("once")
                        if message.reconsume_times:
                            break
        told = rows(cluster)
        sent = [row for row in told if row.type is TraceType.PUB]
        assert [row.beans[0].message_id for row in sent] == [result.message_id, *batch.message_ids]
        bean = sent[0].beans[0]
        assert (sent[0].group, bean.topic, bean.tags, bean.keys) == ("p", "T", "t", "k1 k2")
        assert (bean.body_length, bean.store_host) == (5, cluster["a"].address)
        assert bean.offset_message_id == result.offset_message_id
        before = [row for row in told if row.type is TraceType.SUB_BEFORE]
        after = [row for row in told if row.type is TraceType.SUB_AFTER]
        assert [row.request_id for row in before] == [row.request_id for row in after]
        assert [(row.success, row.context_code) for row in after] == [(False, 2)] + [(True, 0)] * 3
        assert [row.beans[0].retry_times for row in before] == [0, 0, 0, 1]
        assert {row.group for row in before + after} == {"c"}
        keys = cluster["a"].messages(TRACE)[0].keys
        assert {result.message_id, "k1", "k2"} <= set(keys)

    both(scenario, cluster)


async def test_a_trace_tells_how_long_consuming_took(
    setting: World, clock: MockClock, cluster: Cluster
) -> None:
    cluster["a"].put("T", 0, b"x")
    async with (
        connect(setting, MessageTrace()) as client,
        client.consumer("c", {"T": "*"}, consume_from="first") as consumer,
    ):
        await trio.sleep(7)
        async with await anext(consumer):
            await trio.sleep(2)
        await trio.sleep(1)
    (after,) = [row for row in rows(cluster) if row.type is TraceType.SUB_AFTER]
    assert after.cost_ms == pytest.approx(2000, abs=1)


async def test_transactions_and_delays_are_told_apart(
    setting: World, clock: MockClock, cluster: Cluster
) -> None:
    async with (
        connect(setting, MessageTrace()) as client,
        client.transactional_producer("p", unknown) as producer,
    ):
        async with producer.transaction(Message("T", b"x", keys="k")) as transaction:
            pass
        await producer.send(Message("T", b"x", delay_level=1))
        await trio.sleep(1)
        told = rows(cluster)
    assert [(row.type, row.beans[0].message_type) for row in told] == [
        (TraceType.PUB, TraceMessageType.TRANSACTION_HALF),
        (TraceType.END_TRANSACTION, TraceMessageType.TRANSACTION_COMMIT),
        (TraceType.PUB, TraceMessageType.DELAY),
    ]
    bean = told[1].beans[0]
    assert (bean.message_id, bean.transaction_state, bean.keys) == (
        transaction.result.message_id,
        "COMMIT_MESSAGE",
        "k",
    )


async def test_traces_are_not_traced(setting: World, clock: MockClock, cluster: Cluster) -> None:
    trace = MessageTrace()
    async with connect(setting, trace) as client, client.producer("p") as producer:
        await producer.send(Message(TRACE, b"a tool writes a trace"))
        async with client.consumer("tool", {TRACE: "*"}, consume_from="first") as consumer:
            async with await anext(consumer) as message:
                assert message.body == b"a tool writes a trace"
            await trio.sleep(2)
            assert list(trace._rows) == []
            await producer.send(Message("T", b"another is traced"))
            async with await anext(consumer) as message:
                assert b"Pub" in message.body
            await trio.sleep(2)
            assert list(trace._rows) == []
    assert len(cluster["a"].messages(TRACE)) == 2


async def test_handlers_of_batches_are_traced_too(setting: World, clock: MockClock, cluster: Cluster) -> None:
    async def handle(messages: list[StoredMessage]) -> None:
        if len(messages) == 3:
            scope.cancel()

    for number in range(3):
        cluster["a"].put("T", 0, b"x", f"UNIQ_KEY\x01ID{number}")
    cluster["a"].put(TRACE, 0, b"", "UNIQ_KEY\x01ID9")
    async with (
        connect(setting, MessageTrace()) as client,
        client.consumer("c", {"T": "*"}, consume_from="first") as consumer,
    ):
        with anyio.CancelScope() as scope:
            await consumer.run_batches(handle)
    told = rows(cluster)
    assert [(row.type.value, row.beans[0].message_id) for row in told] == [
        *[("SubBefore", f"ID{number}") for number in range(3)],
        *[("SubAfter", f"ID{number}") for number in range(3)],
    ]


async def test_rows_that_come_too_fast_are_dropped_and_counted(
    setting: World, clock: MockClock, cluster: Cluster
) -> None:
    trace = MessageTrace()
    async with connect(setting, trace, compress_over=0) as client, client.producer("p") as producer:
        await producer.send(Message("T", b"x"))
        context = trace._rows[0]
        for _ in range(WAITING_MAX + 4):
            trace._add(context)
        assert trace.dropped == 5
        cluster["a"].script(RequestCode.SEND_MESSAGE_V2, 13)
        await trio.sleep(1)
    assert trace.dropped == 105
    assert len(rows(cluster)) == WAITING_MAX - 100


async def test_an_observer_that_fails_is_logged_and_no_more(
    setting: World, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Observer):
        def sending(self, *_: object) -> None:
            raise ValueError("sending is broken")

        def consumed(self, *_: object) -> None:
            raise ValueError("consumed is broken")

    async with connect(setting, Broken()) as client:
        async with client.producer("p") as producer:
            await producer.send(Message("T", b"x"))
        async with client.consumer("c", {"T": "*"}, consume_from="first") as consumer:
            async for delivery in consumer:
                async with delivery:
                    break
    assert "sending is broken" in caplog.text
    assert "consumed is broken" in caplog.text


class TestOpenTelemetry:
    async def test_spans_are_joined(self, setting: World, clock: MockClock) -> None:
        pytest.importorskip("opentelemetry.sdk")
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        from rmq.client.observability.otel import OpenTelemetry

        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = provider.get_tracer("test")
        inside = []

        async def handle(message: StoredMessage) -> None:
            inside.append(trace.get_current_span().get_span_context().span_id)
            if len(inside) == 1:
                raise ValueError("once")
            if len(inside) == 4:
                scope.cancel()

        async with connect(setting, OpenTelemetry(provider)) as client:
            async with client.producer("p") as producer:
                with tracer.start_as_current_span("order"):
                    await producer.send(Message("T", b"x"))
                await producer.send_batch([Message("T", b"y"), Message("T", b"z")])
            async with client.consumer("c", {"T": "*"}, consume_from="first") as consumer:
                with anyio.CancelScope() as scope:
                    await consumer.run(handle, concurrency=1)
        spans = exporter.get_finished_spans()
        (order,) = (span for span in spans if span.name == "order")
        sent = [span for span in spans if span.name == "send T"]
        processed = [span for span in spans if span.name == "process T"]
        assert len(sent) == 3
        assert sent[0].parent == order.get_span_context()
        assert [span.get_span_context().span_id for span in processed] == inside
        parents = [span.parent.span_id for span in processed if span.parent is not None]
        ids = [span.get_span_context().span_id for span in sent]
        assert parents == [*ids, ids[0]]  # the one that failed comes again, with its origin
        assert {
            span.get_span_context().trace_id for span in (order, sent[0], processed[0], processed[3])
        } == {order.get_span_context().trace_id}
        assert all(link.context.span_id in ids for span in processed for link in span.links)
        assert [span.status.is_ok for span in processed] == [False, True, True, True]

    def test_nothing_is_imported_without_it(self) -> None:
        code = "import rmq, sys; rmq.connect, rmq.MessageTrace; assert 'opentelemetry' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)
