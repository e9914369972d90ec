"""OpenTelemetry: a span for each send and each handler, joined by the context in message properties.

    from rmq.client.otel import OpenTelemetry

    async with rmq.connect(address, plugins=[OpenTelemetry()]) as client: ...

Needs the extra `otel` (opentelemetry-api); nothing else imports it. Context goes in the properties that the
configured propagator names (`traceparent`, `tracestate`, `baggage`), so it also joins other languages' spans.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from contextvars import Token
from typing import Any

from attrs import frozen
from opentelemetry import context, propagate, trace

from rmq.client.observer import Observer
from rmq.client.outgoing import SendResult
from rmq.message import Message, StoredMessage


@frozen
class _Processing:
    span: trace.Span
    attached: Token[Any]


class OpenTelemetry(Observer):
    """Makes spans: kind PRODUCER for a send, CONSUMER for a handler.

    A handler's span is a child of the send of its message; with several messages it has a link to each.
    """

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("rmq", tracer_provider=tracer_provider)

    def sending(self, group: str, message: Message, extra: MutableMapping[str, str]) -> trace.Span:
        span = self._tracer.start_span(
            f"send {message.topic}",
            kind=trace.SpanKind.PRODUCER,
            attributes={
                **_common(group, message.topic),
                "messaging.operation.type": "send",
                "messaging.message.body.size": len(message.body),
            },
        )
        propagate.inject(extra, context=trace.set_span_in_context(span))
        return span

    def sent(self, token: trace.Span, result: SendResult | None, error: BaseException | None) -> None:
        if result is not None:
            token.set_attribute("messaging.message.id", result.message_id)
        _end(token, error)

    def consuming(self, group: str, messages: Sequence[StoredMessage]) -> _Processing:
        origins = [propagate.extract(message.properties) for message in messages]
        alone = len(messages) == 1
        span = self._tracer.start_span(
            f"process {messages[0].topic}",
            context=origins[0] if alone else None,
            kind=trace.SpanKind.CONSUMER,
            links=_links(origins),
            attributes={
                **_common(group, messages[0].topic),
                "messaging.operation.type": "process",
                **(
                    {"messaging.message.id": messages[0].message_id}
                    if alone
                    else {"messaging.batch.message_count": len(messages)}
                ),
            },
        )
        base = origins[0] if alone else None
        return _Processing(span, context.attach(trace.set_span_in_context(span, base)))

    def consumed(self, token: _Processing, error: BaseException | None) -> None:
        context.detach(token.attached)
        _end(token.span, error)


def _common(group: str, topic: str) -> dict[str, str]:
    return {
        "messaging.system": "rocketmq",
        "messaging.destination.name": topic,
        "messaging.consumer.group.name": group,
    }


def _links(origins: Sequence[context.Context]) -> list[trace.Link]:
    spans = [trace.get_current_span(origin).get_span_context() for origin in origins]
    return [trace.Link(span) for span in spans if span.is_valid]


def _end(span: trace.Span, error: BaseException | None) -> None:
    if isinstance(error, Exception):
        span.record_exception(error)
    if error is not None:
        span.set_status(trace.StatusCode.ERROR, str(error) or type(error).__name__)
    span.end()
