"""plugins/rmq_otel: a stored message gets a span below the span of its send."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.plugin_host import plugin_host
from rmq.plugin import hooks_of
from tests.unit.broker.rig import Rig, send

sdk = pytest.importorskip("opentelemetry.sdk.trace")
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SENT = f"UNIQ_KEY\x01AC11\x02traceparent\x0100-{TRACE}-{SPAN}-01"


@pytest.fixture
def spans() -> Any:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    return InMemorySpanExporter()


@pytest.fixture
def rig(spans: Any) -> Rig:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from rmq_otel import OtelPlugin

    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    rig = Rig()
    plugin = OtelPlugin({}, plugin_host(rig.broker), provider)
    rig.broker.use_plugins(hooks_of([("otel", plugin)]))
    return rig


def test_the_entry_point_names_it() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["rmq.plugins"]["otel"] == "rmq_otel:OtelPlugin"


def test_the_store_is_a_child_of_the_send(rig: Rig, spans: Any) -> None:
    assert rig.one(send(properties=SENT)).code == 0
    (span,) = spans.get_finished_spans()
    assert span.name == "store Orders"
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    assert span.attributes["messaging.message.id"] == "AC11"
    assert span.attributes["messaging.rocketmq.message.offset"] == 0
    assert span.end_time >= span.start_time


@pytest.mark.parametrize("properties", [None, "UNIQ_KEY\x01A", "traceparent\x01nonsense"])
def test_without_a_parent_there_is_no_span(rig: Rig, spans: Any, properties: str | None) -> None:
    assert rig.one(send(properties=properties)).code == 0
    assert spans.get_finished_spans() == ()
