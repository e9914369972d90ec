"""Calls of consumers: receive, acknowledge, change the invisible time, forward to the dead letters."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from rmq.errors import ResponseError
from rmq.plugin import TakenMessage, TakeRequest
from rmq_grpc import schema
from rmq_grpc.clients import Client, Lease
from rmq_grpc.encoding import acknowledged, received
from rmq_grpc.messages import group_of, ms_of, put_ms, topic_of
from rmq_grpc.statuses import EXPECTED, Refused, conclude, of_error, of_handle, status

if TYPE_CHECKING:
    from rmq.gateway import TopicAtBroker
    from rmq_grpc.calls import Call
    from rmq_grpc.service import Session

log = logging.getLogger("rmq.grpc")

POLL_SECONDS: Final = (5.0, 20.0)
"""Shortest and longest long poll."""
ANSWER_SECONDS: Final = 0.2
"""Time before the client's deadline at which a long poll is answered."""
RECEIVE_MS: Final = (10_000, 12 * 3600 * 1000)
"""Shortest and longest lease of a received message."""
BATCH_MAX: Final = 256
LEASE_MS: Final = 60_000
"""Lease of a message that the server renews, for push consumers."""
RENEW_SECONDS: Final = 20.0
RENEWED_SECONDS: Final = 3 * 3600.0
"""Longest time for which the leases of a message are renewed."""
LEASES_MAX: Final = 100_000
KNOWN_REQUESTS: Final = 256
"""Number of different requests that are kept."""

_SQL: Final = schema.enum("FilterType")["SQL"]
_GOOD: Final = schema.message("ReceiveMessageResponse")(status=status()).SerializeToString()


def receive(session: Session, call: Call, request: Any, client: Client) -> None:
    """Take messages of a topic, or wait for them."""
    queue = request.message_queue
    topic, group = topic_of(queue.topic), group_of(request.group)
    seconds = _poll_seconds(call, request, session.clock())
    renews, expression, broker = request.auto_renew, request.filter_expression, queue.broker.name
    # As in RocketMQ's proxy the queue of the request names the broker only: any of its queues will do.
    take = _take_request(
        group,
        topic,
        request.batch_size,
        None if renews else ms_of(request.invisible_duration),
        expression.expression,
        expression.type == _SQL,
    )

    def taken(found: Sequence[TakenMessage] | Exception) -> None:
        if isinstance(found, Exception):
            end(session, call, of_error(found))
        elif call.is_over:
            client.gateway.release(group, topic, [one.handle for one in found])
        else:
            _deliver(session, call, client, take, found, renews=renews)

    def go_on(parts: Sequence[TopicAtBroker] | Exception) -> None:
        if isinstance(parts, Exception):
            raise parts
        if not call.is_over:
            known = broker in [one.broker_name for one in parts]
            call.on_cancel = client.gateway.receive(broker if known else "", take, taken, seconds)

    client.gateway.topic(topic, session.guarded(call, go_on))


@lru_cache(KNOWN_REQUESTS)
def _take_request(
    group: str, topic: str, count: int, invisible_ms: int | None, expression: str, is_sql: bool
) -> TakeRequest:
    """The request to the broker; without an invisible time the server renews the leases. Raises Refused."""
    if invisible_ms is not None and not RECEIVE_MS[0] <= invisible_ms <= RECEIVE_MS[1]:
        least, most = RECEIVE_MS
        text = f"a message is invisible for {least} to {most} ms, not for {invisible_ms}"
        raise Refused("ILLEGAL_INVISIBLE_TIME", text)
    if not is_sql and any(not tag.strip() for tag in expression.split("||")[1:]):
        raise Refused("ILLEGAL_FILTER_EXPRESSION", f"{expression!r} has an empty tag")
    return TakeRequest(
        group,
        topic,
        max_msg_nums=max(1, min(count, BATCH_MAX)),
        invisible_ms=LEASE_MS if invisible_ms is None else invisible_ms,
        subscription=expression or "*",
        expression_type="SQL92" if is_sql else None,
    )


def _poll_seconds(call: Call, request: Any, now: float) -> float:
    """Time that a receive may wait. Raises Refused when the client's deadline comes before."""
    least, most = POLL_SECONDS
    left = call.deadline - now
    if request.HasField("long_polling_timeout"):
        seconds = ms_of(request.long_polling_timeout) / 1000
    else:
        seconds = most if left == math.inf else left - least / 2
    seconds = min(max(seconds, least), most)
    if left - ANSWER_SECONDS < seconds:
        seconds = left - ANSWER_SECONDS
        if left < least:
            raise Refused(
                "ILLEGAL_POLLING_TIME",
                f"the deadline of the call leaves {left:.1f} s, less than {least:g} s",
            )
    return seconds


def _deliver(
    session: Session,
    call: Call,
    client: Client,
    take: TakeRequest,
    found: Sequence[TakenMessage],
    *,
    renews: bool,
) -> None:
    if not found:
        end(session, call, status("MESSAGE_NOT_FOUND", "no new message"))
        return
    now, invisible_ms, leases = session.clock(), take.invisible_ms, client.leases
    if renews:
        group, topic, until = take.consumer_group, take.topic, now + RENEWED_SECONDS
        for one in found[: max(0, LEASES_MAX - len(leases))]:
            leases[one.handle] = Lease(group, topic, one.handle, now + RENEW_SECONDS, until)
    call.answer_by(_GOOD, *received(found, invisible_ms), _time_of(session, call))


def end(session: Session, call: Call, given: Any) -> None:
    """End a receive without messages: by a status, and the time of the server."""
    call.answer_by(session.answer_to(call, given).SerializeToString(), _time_of(session, call))


def _time_of(session: Session, call: Call) -> bytes:
    """The last message of the answer to a receive: the time of the server."""
    last = session.answer_to(call)
    put_ms(last.delivery_timestamp, session.host.now_ms())
    encoded: bytes = last.SerializeToString()
    return encoded


def renew(client: Client, now: float) -> None:
    """Renew the leases of messages in work at a push consumer."""
    for key, lease in list(client.leases.items()):
        if lease.renew_at > now:
            continue
        if now >= lease.until:
            del client.leases[key]
            continue
        lease.renew_at = now + RENEW_SECONDS
        extended = partial(_extended, client, key, lease)
        try:
            client.gateway.extend(lease.group, lease.topic, lease.handle, LEASE_MS, extended)
        except EXPECTED as error:
            extended(error)


def _extended(client: Client, key: str, lease: Lease, outcome: str | Exception) -> None:
    if isinstance(outcome, str):
        lease.handle = outcome
        return
    log.debug("the lease of a message of %s has ended: %s", lease.topic, outcome)
    if isinstance(outcome, ResponseError):
        client.leases.pop(key, None)
    else:
        lease.renew_at = anyio.current_time()  # the broker was not reached: try again at the next turn


def acknowledge(session: Session, call: Call, request: Any, client: Client) -> None:
    """Acknowledge messages."""
    group, topic = group_of(request.group), topic_of(request.topic)
    if not request.entries:
        raise Refused("BAD_REQUEST", "the request names no message")
    entries = [(entry.message_id, entry.receipt_handle) for entry in request.entries]
    handles = [handle for _, handle in entries]
    if client.leases:
        for handle in handles:
            client.leases.pop(handle, None)

    def done(outcomes: Sequence[Exception | None]) -> None:
        if not any(outcomes):
            call.answer_by(acknowledged(entries))
            return
        answer = session.answer_to(call)
        for (message_id, handle), outcome in zip(entries, outcomes, strict=True):
            answer.entries.add(message_id=message_id, receipt_handle=handle, status=of_handle(outcome))
        conclude(answer)
        call.answer(answer)

    client.gateway.acknowledge(group, topic, handles, done)


def change_invisible(session: Session, call: Call, request: Any, client: Client) -> None:
    """Change the invisible time of a message."""
    group, topic = group_of(request.group), topic_of(request.topic)
    invisible_ms = ms_of(request.invisible_duration)
    if not 0 <= invisible_ms <= RECEIVE_MS[1]:
        text = f"a message is invisible for 0 to {RECEIVE_MS[1]} ms, not for {invisible_ms}"
        raise Refused("ILLEGAL_INVISIBLE_TIME", text)
    client.leases.pop(request.receipt_handle, None)

    def done(outcome: str | Exception) -> None:
        answer = session.answer_to(call)
        if isinstance(outcome, Exception):
            answer.status.CopyFrom(of_handle(outcome))
        else:
            answer.status.CopyFrom(status())
            answer.receipt_handle = outcome
        call.answer(answer)

    client.gateway.extend(group, topic, request.receipt_handle, invisible_ms, done)


def dead_letter(session: Session, call: Call, request: Any, client: Client) -> None:
    """Make a message a dead letter."""
    group, topic = group_of(request.group), topic_of(request.topic)
    client.leases.pop(request.receipt_handle, None)

    def done(outcomes: Sequence[Exception | None]) -> None:
        call.answer(session.answer_to(call, of_handle(outcomes[0])))

    client.gateway.dead_letter(group, topic, [request.receipt_handle], done)
