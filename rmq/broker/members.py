"""The members of a group: clients that say by heartbeat that they belong to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from attrs import define, evolve, field

from rmq.broker.filter import is_tag_type
from rmq.message import retry_topic

if TYPE_CHECKING:
    from rmq.protocol.bodies import ConsumerData, SubscriptionData
    from rmq.remoting.connection import Connection

Terms = tuple[str | None, tuple[tuple[str, str], ...]]


VERSION_AHEAD_MS: Final = 300_000
"""How far a client's clock may be ahead of ours. The version of a subscription is the time at which it was
made, and the newest of a group counts: one from the far future would keep all later ones out."""


@define(eq=False)
class Member:
    """A client in a group, over one connection, there since `since_ms` and heard last at `heard_ms`, in ms of
    a clock that only goes forward; `stamp_ms` is the wall time at which it was heard.

    `terms` is what all members of a consumer group must agree on: the message model, and topic and expression
    of each subscription, but for the group's retries: whether one reads them depends on its kind.
    """

    client_id: str
    language: str
    version: int
    connection: Connection
    heard_ms: int
    since_ms: int
    stamp_ms: int
    terms: Terms = (None, ())


@define(eq=False)
class ConsumerGroup:
    """The members of a consumer group and what they announced last."""

    name: str
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscriptions: dict[str, SubscriptionData] = field(factory=dict)
    members: dict[Connection, Member] = field(factory=dict)

    def subscribe(self, wanted: Iterable[SubscriptionData]) -> bool:
        """Take what a member wants; whether the group's topics have changed by it."""
        latest = {subscription.topic: subscription for subscription in wanted}
        changed = latest.keys() != self.subscriptions.keys()
        for topic, subscription in latest.items():
            known = self.subscriptions.get(topic)
            if known is not None and subscription.sub_version <= known.sub_version:
                latest[topic] = known
        self.subscriptions = latest
        return changed


def with_past_versions(wanted: Iterable[SubscriptionData], now_ms: int) -> list[SubscriptionData]:
    """The same subscriptions; a version that is further ahead than `VERSION_AHEAD_MS` is made now's."""
    latest = now_ms + VERSION_AHEAD_MS
    return [one if one.sub_version <= latest else evolve(one, sub_version=now_ms) for one in wanted]


def terms_of(consumer: ConsumerData) -> Terms:
    """See `Member`."""
    retries = retry_topic(consumer.group_name)
    wanted = (
        (
            one.topic,
            one.sub_string
            if is_tag_type(one.expression_type)
            else f"{one.expression_type}: {one.sub_string}",
        )
        for one in consumer.subscription_data_set
        if one.topic != retries
    )
    return consumer.message_model, tuple(sorted(wanted))
