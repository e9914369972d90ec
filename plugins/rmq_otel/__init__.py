"""OpenTelemetry in the broker, as a plug-in: `plugins = otel`; needs the extra `otel`.

Each stored message whose producer sent a context along (`traceparent` in its properties) gets a span "store
TOPIC", a child of the span of its send; messages without a context get no span and cost next to nothing.
OpenTelemetry's own settings choose the target of spans (`opentelemetry-instrument python -m rmq.broker`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from opentelemetry import propagate, trace

from rmq.message import PROPERTY_UNIQUE_KEY
from rmq.plugin import Host, Plugin, StoredEvent
from rmq.protocol.properties import decode_properties
from rmq.protocol.record import Record, host_text

__all__ = ["OtelPlugin"]

NS_OF_MS: Final = 1_000_000


class OtelPlugin(Plugin):
    """Makes the spans. `tracer_provider` is for tests; the default is the process's."""

    def __init__(
        self,
        config: Mapping[str, str],
        host: Host,
        tracer_provider: trace.TracerProvider | None = None,
    ) -> None:
        super().__init__(config, host)
        self._tracer = trace.get_tracer("rmq.broker", tracer_provider=tracer_provider)
        self._marks = tuple(f"{field}\x01" for field in propagate.get_global_textmap().fields)

    def on_stored(self, event: StoredEvent) -> None:
        """Make a span of each message that has a parent."""
        for record in event.records:
            if any(mark in record.properties for mark in self._marks):
                self._make_span(event, record)

    def _make_span(self, event: StoredEvent, record: Record) -> None:
        properties = decode_properties(record.properties)
        parent = propagate.extract(properties)
        if not trace.get_current_span(parent).get_span_context().is_valid:
            return
        began = record.store_timestamp * NS_OF_MS
        span = self._tracer.start_span(
            f"store {event.topic}",
            context=parent,
            kind=trace.SpanKind.INTERNAL,
            start_time=began,
            attributes={
                "messaging.system": "rocketmq",
                "messaging.operation.type": "store",
                "messaging.destination.name": event.topic,
                "messaging.destination.partition.id": str(record.queue_id),
                "messaging.message.id": properties.get(PROPERTY_UNIQUE_KEY, ""),
                "messaging.rocketmq.message.offset": record.queue_offset,
                "messaging.message.body.size": len(record.body),
                "server.address": host_text(event.store_host),
            },
        )
        span.end(max(began, time.time_ns()))
