"""Attaching: chooses the kind of link that a peer requests, by its termini."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rmq_amqp import engine
from rmq_amqp.addresses import QUEUE, TOPIC, destination
from rmq_amqp.browsers import Browser
from rmq_amqp.choosing import Choice
from rmq_amqp.conditions import INVALID_FIELD, LOCKED, NOT_ALLOWED, NOT_FOUND, Refused
from rmq_amqp.consumers import Consumer
from rmq_amqp.links import Link
from rmq_amqp.producers import Producer
from rmq_amqp.selectors import InvalidSelector, Selector
from rmq_amqp.subscriptions import (
    QueueSubscription,
    Subscription,
    TopicSubscription,
    end_group,
    group_name,
    known_subscription,
)
from rmq_amqp.temporary import TemporaryConsumer, TemporaryLink, is_temporary
from rmq_amqp.transactions import Coordinator

if TYPE_CHECKING:
    from rmq_amqp.connection import Connection

SELECTOR: Final = 0x0000468C00000004
NO_LOCAL: Final = 0x0000468C00000003
_SELECTORS: Final = (SELECTOR, "apache.org:selector-filter:string")
_NO_LOCALS: Final = (NO_LOCAL, "apache.org:no-local-filter:list")


def attach(connection: Connection, link: Any) -> Link:
    """The link for a peer's request. Raises Refused, AccessDenied, ResponseError."""
    if link.name is None:
        raise Refused(INVALID_FIELD, "the link has no name")
    return _producer(connection, link) if link.is_receiver else _consumer(connection, link)


def _producer(connection: Connection, link: Any) -> Link:
    target = link.remote_target
    if target.type == engine.COORDINATOR:
        engine.accept_coordinator(link)
        return Coordinator(connection, link)
    engine.accept_link(link)
    if target.dynamic:
        kind = TOPIC if "temporary-topic" in engine.words(target.capabilities) else QUEUE
        temporary = connection.new_temporary(kind)
        link.target.address = temporary.address
        return TemporaryLink(connection, link, temporary)
    if is_temporary(target.address or ""):
        if target.address not in connection.shared.temporaries:
            raise Refused(NOT_FOUND, f"there is no {target.address}: it ends with its connection")
        return Producer(connection, link, "", target.address)
    if not target.address:
        return Producer(connection, link, "")
    _, topic = destination(target.address, engine.words(target.capabilities))
    return Producer(connection, link, topic)


def _consumer(connection: Connection, link: Any) -> Link:
    source = link.remote_source
    if source.type == engine.UNSPECIFIED:
        return Unsubscribing(connection, link)
    if source.dynamic or is_temporary(source.address or ""):
        return _temporary_consumer(connection, link)
    if not source.address:
        raise Refused(INVALID_FIELD, "the source of the link has no address")
    capabilities = engine.words(source.capabilities)
    kind, topic = destination(source.address, capabilities)
    choice = _choice(connection, source)
    connection.host.make_topic(topic)
    if source.distribution_mode == engine.COPY and kind == QUEUE:
        engine.accept_link(link)
        return Browser(connection, link, topic, source.address, choice)
    if kind == TOPIC:
        subscription: Subscription = _topic_subscription(connection, link, topic, capabilities, choice)
    else:
        subscription = QueueSubscription(connection, topic, choice)
    engine.accept_link(link)
    return Consumer(connection, link, subscription, source.address)


def _temporary_consumer(connection: Connection, link: Any) -> Link:
    source = link.remote_source
    choice = _choice(connection, source)
    if source.dynamic:
        temporary = connection.new_temporary(QUEUE)
        engine.accept_link(link)
        link.source.address = temporary.address
        return TemporaryConsumer(connection, link, temporary, choice, ends_it=True)
    found = connection.shared.temporaries.get(source.address)
    if found is None:
        raise Refused(NOT_FOUND, f"there is no {source.address}: it ends with its connection")
    if found.owner is not connection:
        raise Refused(NOT_ALLOWED, f"{source.address} belongs to another connection, which alone may consume")
    engine.accept_link(link)
    return TemporaryConsumer(connection, link, found, choice)


def _choice(connection: Connection, source: Any) -> Choice:
    selector, hidden = None, ""
    filters = engine.fields_of(source.filter)
    if not isinstance(filters, (dict, type(None))):
        raise Refused(INVALID_FIELD, "the filter of the source is no map")
    for name, value in (filters or {}).items():
        descriptor = getattr(value, "descriptor", None)
        if descriptor in _SELECTORS or str(name) == "jms-selector":
            text = getattr(value, "value", value)
            try:
                selector = Selector(str(text))
            except InvalidSelector as error:
                raise Refused(INVALID_FIELD, str(error)) from None
        elif descriptor in _NO_LOCALS or str(name) == "no-local":
            hidden = connection.container
    return Choice(selector, hidden)


def _topic_subscription(
    connection: Connection, link: Any, topic: str, capabilities: list[str], choice: Choice
) -> TopicSubscription:
    is_durable = link.remote_source.durability != 0 or link.remote_source.expiry_policy == engine.NEVER
    is_shared = "shared" in capabilities
    owner = "global" if "global" in capabilities else connection.container
    name = link.name.partition("|")[0]
    if is_durable:
        group = group_name(owner, name)
    elif is_shared:
        group = group_name(owner, name, "volatile")
    else:
        group = group_name(connection.container, "temporary", connection.next_name())
    return TopicSubscription(connection, group, topic, choice, is_durable=is_durable, is_shared=is_shared)


class Unsubscribing(Link):
    """A link without a source: a durable subscription is found by its name, and deleted when the link is
    closed. Raises Refused without such a subscription.
    """

    def __init__(self, connection: Connection, link: Any) -> None:
        super().__init__(connection, link)
        self._group, topic = known_subscription(connection, link.name)
        engine.accept_link(link)
        engine.describe_subscription(link, topic)

    def on_end(self, *, is_closed: bool) -> None:
        """Same as `Link.on_end`."""
        if not is_closed:
            return
        if self.connection.shared.used(self._group):
            engine.set_condition(self.link, LOCKED, "the subscription has a consumer now; close it first")
        else:
            end_group(self.connection, self._group)
