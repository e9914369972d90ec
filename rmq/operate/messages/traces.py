"""The trace of a message as a timeline: sent, stored, delivered, its transaction ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from attrs import frozen

from rmq.message import TRACE_TOPIC
from rmq.protocol.trace import TraceBean, TraceContext, TraceType

if TYPE_CHECKING:
    from rmq.client.admin import Admin, Trace

Kind = Literal["send", "store", "consume", "end of transaction"]


@frozen
class TraceStep:
    """An event in the life of a message, from `begin_ms` to `end_ms`.

    `success` is None for a delivery whose end is not traced: it may still run. `retries` is the number of
    earlier deliveries; `state` the end of a transaction.
    """

    kind: Kind
    begin_ms: int
    end_ms: int
    group: str
    client: str
    store: str
    success: bool | None
    retries: int = 0
    state: str = ""

    @property
    def cost_ms(self) -> int:
        """Duration of the step."""
        return self.end_ms - self.begin_ms


@frozen
class Timeline:
    """The steps of a message, in the order of their beginnings."""

    message_id: str
    steps: Sequence[TraceStep]

    @property
    def begin_ms(self) -> int:
        """The begin of the first step; 0 without steps."""
        return min((one.begin_ms for one in self.steps), default=0)

    @property
    def end_ms(self) -> int:
        """The end of the last step; 0 without steps."""
        return max((one.end_ms for one in self.steps), default=0)

    @property
    def lanes(self) -> dict[tuple[Kind, str, str], list[TraceStep]]:
        """The steps by kind, group and client, for a picture with a line for each."""
        found: dict[tuple[Kind, str, str], list[TraceStep]] = {}
        for one in self.steps:
            found.setdefault((one.kind, one.group, one.client), []).append(one)
        return found


async def timeline(admin: Admin, message_id: str, *, topic: str = TRACE_TOPIC) -> Timeline:
    """Read the trace of a message by its producer's id; an untraced message has no steps.

    Raises NoRoute when there is no trace topic, RemoteProtocolError for a trace that cannot be read.
    """
    return timeline_of(await admin.trace(message_id, topic=topic))


def timeline_of(trace: Trace) -> Timeline:
    """Join the traced events of a message to steps: both events of a delivery are one."""
    after = {event.request_id: event for event in trace.events if event.type is TraceType.SUB_AFTER}
    begun = {event.request_id for event in trace.events if event.type is TraceType.SUB_BEFORE}
    steps = []
    for event in trace.events:
        for bean in event.beans:
            if bean.message_id != trace.message_id:
                continue
            if event.type is TraceType.SUB_BEFORE:
                steps.append(_delivery(event, after.get(event.request_id), bean))
            elif event.type is not TraceType.SUB_AFTER or event.request_id not in begun:
                steps.append(_step(event, bean))
    return Timeline(trace.message_id, sorted(steps, key=lambda one: (one.begin_ms, one.end_ms)))


_KINDS: dict[TraceType, Kind] = {
    TraceType.PUB: "send",
    TraceType.STORE: "store",
    TraceType.SUB_BEFORE: "consume",
    TraceType.SUB_AFTER: "consume",
    TraceType.END_TRANSACTION: "end of transaction",
}


def _step(event: TraceContext, bean: TraceBean) -> TraceStep:
    return TraceStep(
        _KINDS[event.type],
        event.timestamp_ms,
        event.timestamp_ms + max(0, event.cost_ms),
        event.group,
        bean.client_host,
        bean.store_host,
        event.success,
        bean.retry_times,
        bean.transaction_state if event.type is TraceType.END_TRANSACTION else "",
    )


def _delivery(before: TraceContext, after: TraceContext | None, bean: TraceBean) -> TraceStep:
    cost = 0 if after is None else max(0, after.cost_ms)
    return TraceStep(
        "consume",
        before.timestamp_ms,
        before.timestamp_ms + cost,
        before.group or (after.group if after is not None else ""),
        bean.client_host,
        bean.store_host,
        None if after is None else after.success,
        bean.retry_times,
    )
