"""OpenTelemetry: a span for each send and each handler, joined by the context in message properties, and
metrics.

    from rmq.client.observability.otel import OpenTelemetry

    async with rmq.connect(address, plugins=[OpenTelemetry()]) as client: ...

Needs the extra `otel` (opentelemetry-api), which no other module imports. The configured propagator names the
properties of the context (`traceparent`, `tracestate`, `baggage`), so that it also joins other languages'
spans. Names are those of OpenTelemetry's semantic conventions for messaging and for RocketMQ; names outside
the conventions begin with `rmq.client.`.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from contextvars import Token
from typing import TYPE_CHECKING, Any, TypeAlias

from attrs import frozen
from opentelemetry import context, metrics, propagate, trace

from rmq.client.observability.metrics import Lags, error_type, short
from rmq.client.session.observer import Observer
from rmq.client.session.results import SendResult
from rmq.message import PROPERTY_TRANSACTION_PREPARED, Message, StoredMessage

if TYPE_CHECKING:
    from rmq.client.session.session import Session

Attributes: TypeAlias = dict[str, Any]


@frozen
class _Sending:
    span: trace.Span
    common: Attributes
    began: float


@frozen
class _Processing:
    span: trace.Span
    attached: Token[Any]
    common: Attributes
    began: float
    count: int


class OpenTelemetry(Observer):
    """Makes spans, kind PRODUCER for a send, CONSUMER for a handler, and metrics of both.

    A handler's span is a child of the send of its message; with several messages it has a link to each. The
    default providers are the process's. Lags are queried every `lag_seconds`. Each client needs its own
    object.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        lag_seconds: float = 15.0,
    ) -> None:
        self._tracer = trace.get_tracer("rmq", tracer_provider=tracer_provider)
        self._session: Session | None = None
        self._lags = Lags(lag_seconds)
        meter = metrics.get_meter("rmq", meter_provider=meter_provider)
        self._send_seconds = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Sends, with all their attempts"
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that were to be sent"
        )
        self._process_seconds = meter.create_histogram(
            "messaging.process.duration", "s", "Handlers and deliveries' blocks"
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that were delivered"
        )
        self._redelivered = meter.create_counter(
            "rmq.client.redelivered.messages", "{message}", "Deliveries that were redeliveries"
        )
        self._in_flight = meter.create_up_down_counter(
            "rmq.client.sends.in_flight", "{message}", "Sends that have not ended"
        )
        meter.create_observable_counter(
            "rmq.client.send.retries", [self._retries], "{attempt}", "Attempts of sends after their first"
        )
        meter.create_observable_gauge(
            "rmq.client.lag", [self._lag], "{message}", "Messages of this client's queues not consumed yet"
        )

    def attach(self, session: Session) -> None:
        self._session = session

    async def run(self) -> None:
        assert self._session is not None, "attach the observer first"
        await self._lags.watch(self._session)

    # --- sends ---

    def sending(self, group: str, message: Message, extra: MutableMapping[str, str]) -> _Sending:
        common = self._common("send", message.topic)
        span = self._tracer.start_span(
            f"send {message.topic}",
            kind=trace.SpanKind.PRODUCER,
            attributes={**common, **self._identity(group), **_of_message(message, extra)},
        )
        propagate.inject(extra, context=trace.set_span_in_context(span))
        self._in_flight.add(1, common)
        return _Sending(span, common, self._now())

    def sent(self, token: _Sending, result: SendResult | None, error: BaseException | None) -> None:
        span, session = token.span, self._session
        self._in_flight.add(-1, token.common)
        attributes = token.common | _error(error)
        if result is not None:
            span.set_attribute("messaging.message.id", result.message_id)
            span.set_attribute("messaging.destination.partition.id", str(result.message_queue.queue_id))
            if session is not None:
                attributes |= _server(session.routes.master(result.message_queue.broker_name))
        elif error is not None:
            attributes |= _server(getattr(error, "broker", None))
        self._send_seconds.record(self._now() - token.began, attributes)
        self._sent.add(1, attributes)
        _end(span, attributes, error)

    # --- handlers ---

    def consuming(self, group: str, messages: Sequence[StoredMessage]) -> _Processing:
        origins = [propagate.extract(message.properties) for message in messages]
        alone, first = len(messages) == 1, messages[0]
        common = self._common("process", first.topic)
        common["messaging.consumer.group.name"] = short(self._session, group)
        attributes = {**common, **self._identity(group), **_server(first.store_host)}
        if alone:
            attributes |= {
                "messaging.message.id": first.message_id,
                "messaging.message.body.size": len(first.body),
                "messaging.destination.partition.id": str(first.queue_id),
                **_names(first.tags, first.keys),
            }
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        span = self._tracer.start_span(
            f"process {first.topic}",
            context=origins[0] if alone else None,
            kind=trace.SpanKind.CONSUMER,
            links=_links(origins),
            attributes=attributes,
        )
        again = sum(message.reconsume_times > 0 for message in messages)
        if again:
            self._redelivered.add(again, common)
        base = origins[0] if alone else None
        attached = context.attach(trace.set_span_in_context(span, base))
        return _Processing(span, attached, common, self._now(), len(messages))

    def consumed(self, token: _Processing, error: BaseException | None) -> None:
        context.detach(token.attached)
        attributes = token.common | _error(error)
        self._process_seconds.record(self._now() - token.began, attributes)
        self._consumed.add(token.count, attributes)
        _end(token.span, attributes, error)

    # --- reading messages ---

    def _retries(self, _: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        retries = {} if self._session is None else self._session.send_retries
        for topic, count in [*retries.items()]:
            yield metrics.Observation(count, self._common("send", short(self._session, topic)))

    def _lag(self, _: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        for (group, topic), lag in self._lags.by_topic.items():
            attributes = self._common("process", topic)
            yield metrics.Observation(lag, attributes | {"messaging.consumer.group.name": group})

    def _now(self) -> float:
        return 0.0 if self._session is None else self._session.now()

    def _common(self, operation: str, topic: str) -> Attributes:
        """Attributes of spans and metrics of an operation."""
        return {
            "messaging.system": "rocketmq",
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": topic,
        }

    def _identity(self, group: str) -> Attributes:
        """Attributes of spans only, with values that differ between processes."""
        session = self._session
        if session is None:
            return {}
        found = {
            "messaging.client.id": session.client_id,
            "messaging.rocketmq.client_group": short(session, group),
        }
        if session.config.namespace:
            found["messaging.rocketmq.namespace"] = session.config.namespace
        return found


def _of_message(message: Message, extra: MutableMapping[str, str]) -> Attributes:
    found: Attributes = {
        "messaging.message.body.size": len(message.body),
        **_names(message.tags, message.keys),
    }
    if PROPERTY_TRANSACTION_PREPARED in extra:
        found["messaging.rocketmq.message.type"] = "transaction"
    else:
        found["messaging.rocketmq.message.type"] = "delay" if message.is_delayed else "normal"
    if message.delay_level:
        found["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    if message.deliver_at_ms is not None:
        found["messaging.rocketmq.message.delivery_timestamp"] = message.deliver_at_ms
    return found


def _names(tags: str | None, keys: Sequence[str]) -> Attributes:
    found: Attributes = {"messaging.rocketmq.message.tag": tags} if tags else {}
    return found | {"messaging.rocketmq.message.keys": list(keys)} if keys else found


def _server(address: str | None) -> Attributes:
    host, colon, port = (address or "").rpartition(":")
    if not colon or not port.isdigit():
        return {}
    return {"server.address": host.strip("[]"), "server.port": int(port)}


def _error(error: BaseException | None) -> Attributes:
    return {} if error is None else {"error.type": error_type(error)}


def _links(origins: Sequence[context.Context]) -> list[trace.Link]:
    spans = [trace.get_current_span(origin).get_span_context() for origin in origins]
    return [trace.Link(span) for span in spans if span.is_valid]


def _end(span: trace.Span, attributes: Attributes, error: BaseException | None) -> None:
    span.set_attributes(
        {name: value for name, value in attributes.items() if name.startswith(("server.", "error."))}
    )
    if isinstance(error, Exception):
        span.record_exception(error)
    if error is not None:
        span.set_status(trace.StatusCode.ERROR, str(error) or type(error).__name__)
    span.end()
