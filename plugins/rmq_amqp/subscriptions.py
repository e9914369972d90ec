"""Subscriptions: the groups behind consumers, of queues and of topics, from their begin to their end."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Final

from rmq_amqp.addresses import QUEUE, TOPIC, encoded
from rmq_amqp.choosing import Choice, QueueChooser
from rmq_amqp.conditions import EXPECTED, LOCKED, NOT_FOUND, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from rmq.message import StoredMessage
    from rmq_amqp.connection import Connection

log = logging.getLogger("rmq.amqp")

NAME_MAX: Final = 120


def group_name(*parts: str) -> str:
    """The group of a subscription: its parts with `|` between, in the characters that RocketMQ allows. A name
    that is too long ends with a digest."""
    name = "|".join(encoded(part).replace("|", "%7C") for part in parts)
    if len(name) > NAME_MAX:
        name = f"{name[:79]}|{hashlib.sha256(name.encode()).hexdigest()[:40]}"
    return name


class Subscription:
    """The group from which a consumer takes messages of a topic, for one consumer."""

    kind = QUEUE

    def __init__(self, connection: Connection, group: str, topic: str, choice: Choice) -> None:
        self.connection = connection
        self.group = group
        self.topic = topic
        self.choice = choice
        self.chooser: QueueChooser | None = None
        self._leave: Callable[[], None] = connection.join(group, topic)

    def wants(self, message: StoredMessage) -> bool:
        """True if the consumer gets a message that it has taken; other messages are finished."""
        return True

    def end(self, *, is_closed: bool) -> None:
        """Note the end of the consumer; with `is_closed` it will not come back."""
        self._leave()


class QueueSubscription(Subscription):
    """A queue: the group has the name of the topic."""

    def __init__(self, connection: Connection, topic: str, choice: Choice) -> None:
        super().__init__(connection, topic, topic, choice)
        self.chooser = QueueChooser(choice, connection.shared.owners(topic))

    def wants(self, message: StoredMessage) -> bool:
        """True: the chooser has decided before. See `Subscription.wants`."""
        assert self.chooser is not None
        self.chooser.took(message)
        return True

    def end(self, *, is_closed: bool) -> None:
        """Same as `Subscription.end`."""
        assert self.chooser is not None
        self.chooser.end()
        self.connection.shared.end_owner(self.topic)
        super().end(is_closed=is_closed)


class TopicSubscription(Subscription):
    """A subscription of a topic: a group of its own, that begins at the end of the topic. Without
    `is_durable` the group ends with its last consumer.
    """

    kind = TOPIC

    def __init__(
        self,
        connection: Connection,
        group: str,
        topic: str,
        choice: Choice,
        *,
        is_durable: bool,
        is_shared: bool,
    ) -> None:
        self._is_durable = is_durable
        shared = connection.shared
        if shared.used(group) and not is_shared:
            raise Refused(LOCKED, f"the subscription {group} has a consumer already, and is not shared")
        # A message that the choice of one consumer refuses is finished for all consumers.
        terms = (topic, choice.terms, is_shared)
        if not shared.fits(group, terms):
            raise Refused(
                LOCKED,
                f"the subscription {group} has consumers with another topic or selector, or is not shared",
            )
        note = _note(choice)
        if not shared.used(group):
            _begin(connection, group, topic, note, is_durable=is_durable)
        super().__init__(connection, group, topic, choice)
        if is_durable:
            connection.host.set_note(group, note)
        shared.use(group, terms)

    def wants(self, message: StoredMessage) -> bool:
        """Same as `Subscription.wants`."""
        return self.choice(message)

    def end(self, *, is_closed: bool) -> None:
        """Same as `Subscription.end`."""
        super().end(is_closed=is_closed)
        left = self.connection.shared.end_use(self.group)
        if not left and (is_closed or not self._is_durable):
            end_group(self.connection, self.group)


def _note(choice: Choice) -> str:
    """The terms of a durable subscription, to compare with those of its next consumer."""
    return hashlib.sha256("\0".join(choice.terms).encode()).hexdigest()[:32]


def _begin(connection: Connection, group: str, topic: str, note: str, *, is_durable: bool) -> None:
    """Let a group begin at the end of a topic; a durable one continues at its offset. With another topic or
    other terms it begins anew: for JMS (1.1, 6.11.1) that is to unsubscribe and to subscribe again. A group
    of an earlier version has no note, and continues."""
    host = connection.host
    topics = host.topics_of_group(group)
    is_same = is_durable and topic in topics and host.note(group) in ("", note)
    if topics and not is_same:
        host.end_group(group)
        topics = []
    if topic not in topics:
        for queue_id in range(host.queues(topic)):
            host.commit(group, topic, queue_id, host.bounds(topic, queue_id)[1])


def end_group(connection: Connection, group: str) -> None:
    """Delete the group of a subscription."""
    try:
        connection.host.end_group(group)
    except EXPECTED as error:
        log.warning("the subscription %s is not deleted: %s", group, error)


def known_subscription(connection: Connection, link_name: str) -> tuple[str, str]:
    """The group and the topic of a durable subscription, by the name of a link. Raises Refused."""
    name, _, rest = link_name.partition("|")
    owner = "global" if rest.startswith("global") else connection.container
    group = group_name(owner, name)
    topics = [topic for topic in connection.host.topics_of_group(group) if not topic.startswith("%RETRY%")]
    if not topics:
        raise Refused(NOT_FOUND, f"there is no subscription {name} of {owner}")
    if connection.shared.used(group):
        raise Refused(LOCKED, f"the subscription {name} of {owner} has a consumer; close it first")
    return group, topics[0]
