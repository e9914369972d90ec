"""Attaching: which kind of link a peer asks for, by its termini, and the names behind addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmq_amqp import engine
from rmq_amqp.addresses import TOPIC, destination
from rmq_amqp.conditions import INVALID_FIELD, NOT_IMPLEMENTED, Refused
from rmq_amqp.consumers import QueueConsumer
from rmq_amqp.producers import Producer

if TYPE_CHECKING:
    from rmq_amqp.connection import Connection
    from rmq_amqp.links import Link


def attach(connection: Connection, link: Any) -> Link:
    """The link that a peer asks for. Raises Refused, AccessDenied, ResponseError."""
    return _producer(connection, link) if link.is_receiver else _consumer(connection, link)


def _producer(connection: Connection, link: Any) -> Link:
    target = link.remote_target
    if target.type == engine.COORDINATOR:
        raise Refused(NOT_IMPLEMENTED, "transactions are not possible")
    if target.dynamic:
        raise Refused(NOT_IMPLEMENTED, "temporary queues and topics are not possible")
    engine.accept_link(link)
    if not target.address:
        return Producer(connection, link, "")
    _, topic = destination(target.address, engine.words(target.capabilities))
    return Producer(connection, link, topic)


def _consumer(connection: Connection, link: Any) -> Link:
    source = link.remote_source
    if source.dynamic:
        raise Refused(NOT_IMPLEMENTED, "temporary queues and topics are not possible")
    if not source.address:
        raise Refused(INVALID_FIELD, "the source of the link has no address")
    kind, topic = destination(source.address, engine.words(source.capabilities))
    if kind == TOPIC:
        raise Refused(NOT_IMPLEMENTED, "subscriptions of topics are not possible")
    engine.accept_link(link)
    return QueueConsumer(connection, link, topic, source.address)
