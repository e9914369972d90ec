"""Subscription of a consumer to a topic (all messages, some tags, or an SQL92 expression), and its options.
Pure.

    {"Orders": "*"}                          all messages
    {"Orders": "paid || refunded"}           messages with one of these tags
    {"Orders": rmq.sql("amount > 100")}      messages whose properties fit; evaluated by the broker
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Literal, TypedDict

from rmq.client.consume.rebalance import Strategy
from rmq.client.consume.retry import Backoff
from rmq.client.session.events import Assigned
from rmq.errors import ConfigError, check_callable, check_number, check_type
from rmq.message import MessageQueue, java_hash, retry_topic, validate_topic, with_namespace
from rmq.protocol.bodies import SubscriptionData

if TYPE_CHECKING:
    from attrs import frozen
else:
    from rmq.lazy_attrs import frozen

OnAssignment = Callable[[Assigned], Awaitable[object] | object]
"""Called when the queues of a consumer have changed."""

OnError = Literal["retry", "raise"]
"""Result of a handler's exception: the message is sent back, and with "raise" the exception is also
raised."""


class ConsumerSettings(TypedDict, total=False):
    """The keywords of `Client.consumer`."""

    consume_from: str | int
    broadcasting: bool
    on_error: OnError
    strategy: Strategy
    ordered: bool
    max_reconsume_times: int | None
    retry: Backoff | None
    on_assignment: OnAssignment | None
    require_topics: bool
    per_message: bool
    lease: float


@frozen
class ConsumerOptions:
    """A consumer's settings for its group; see `Client.consumer` and `PullConsumer`."""

    consume_from: str | int
    broadcasting: bool
    on_error: OnError
    strategy: Strategy
    max_reconsume_times: int | None = None
    ordered: bool = False
    """True to deliver the messages of a queue one after another, under the broker's lock of the queue."""
    polled: bool = False
    """True if the application takes messages by `PullConsumer.poll`; no message goes to a retry topic."""
    queues: frozenset[MessageQueue] | None = None
    """The queues to read, without being a member of the group; None: a member's share."""
    auto_commit: bool = True
    retry: Backoff | None = None
    """The delays of failed messages; None: the broker's."""
    on_assignment: OnAssignment | None = None
    require_topics: bool = False
    """True if missing topics are an error."""
    per_message: bool = False
    """True for messages one by one, each leased for `lease` seconds."""
    lease: float = 60.0

    def __attrs_post_init__(self) -> None:
        if isinstance(self.consume_from, str) and self.consume_from not in ("first", "last"):
            raise ConfigError("consume_from", self.consume_from, "'first', 'last' or a time in ms since 1970")
        if not isinstance(self.consume_from, str):
            check_number("consume_from", self.consume_from, 0)
        check_callable(
            "strategy",
            self.strategy,
            "a function such as rmq.client.consume.rebalance.averagely",
            takes=3,
            is_awaited=False,
        )
        check_type("broadcasting", self.broadcasting, bool, "True or False")
        check_type("ordered", self.ordered, bool, "True or False")
        check_type("require_topics", self.require_topics, bool, "True or False")
        check_type("per_message", self.per_message, bool, "True or False")
        check_number("lease", self.lease, 3, whole=False)
        if self.per_message:
            self._check_per_message()
        if self.max_reconsume_times is not None:
            check_number("max_reconsume_times", self.max_reconsume_times, 0)
        check_type("retry", self.retry, (Backoff, NoneType), "an rmq.Backoff, or None")
        if self.retry is not None and self.retry.tries is not None and self.max_reconsume_times is not None:
            expected = "none beside a Backoff that has tries"
            raise ConfigError("max_reconsume_times", self.max_reconsume_times, expected)
        if self.on_assignment is not None:
            check_callable("on_assignment", self.on_assignment, "a function of an rmq.Assigned")
        if self.on_error not in ("retry", "raise"):
            raise ConfigError("on_error", self.on_error, "'retry' or 'raise'")

    def _check_per_message(self) -> None:
        """Raises ConfigError for options that have no meaning without queues of the member's own."""
        if self.consume_from not in ("first", "last"):
            raise ConfigError("consume_from", self.consume_from, "'first' or 'last' with per_message")
        for name in ("broadcasting", "on_assignment"):
            if getattr(self, name):
                raise ConfigError(name, getattr(self, name), "unset: per_message does not support it")
        if self.max_reconsume_times is not None:
            expected = "unset: with per_message the group's retryMaxTimes decides"
            raise ConfigError("max_reconsume_times", self.max_reconsume_times, expected)

    @property
    def retries(self) -> int | None:
        """The number of redeliveries before a message becomes a dead letter; None: the configuration's, or,
        ordered, no limit."""
        tries = None if self.retry is None else self.retry.tries
        return self.max_reconsume_times if tries is None else tries - 1


ALL = "*"


@frozen
class Sql:
    """An SQL92 filter expression; made by `sql`."""

    expression: str


def sql(expression: str) -> Sql:
    """Subscribe by an SQL92 expression over message properties. Raises ConfigError for an empty expression,
    InvalidType for any other type."""
    check_type("subscription", expression, str, "an SQL92 expression as text, such as amount > 100")
    if not expression.strip():
        raise ConfigError("subscription", expression, "an SQL92 expression, such as amount > 100")
    return Sql(expression)


_EXPECTED = "'*', tags such as 'paid || refunded', or rmq.sql(...)"


def _check_expression(topic: str, expression: object) -> None:
    check_type(f"subscription to {topic}", expression, (str, Sql), _EXPECTED)


def subscription(topic: str, expression: str | Sql, version: int) -> SubscriptionData:
    """The subscription to one topic. `version` (ms) orders subscriptions: the broker keeps the newest.

    Raises InvalidName for the topic, ConfigError for an expression without any tag.
    """
    validate_topic(topic)
    _check_expression(topic, expression)
    if isinstance(expression, Sql):
        return SubscriptionData(
            topic=topic, sub_string=expression.expression, sub_version=version, expression_type="SQL92"
        )
    if expression.strip() in ("", ALL):
        return SubscriptionData(topic=topic, sub_string=ALL, sub_version=version)
    tags = frozenset(filter(None, (part.strip() for part in expression.split("||"))))
    if not tags:
        raise ConfigError(f"subscription to {topic}", expression, _EXPECTED)
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        tags_set=tags,
        code_set=frozenset(map(java_hash, tags)),
        sub_version=version,
    )


def subscriptions(
    topics: Mapping[str, str | Sql], group: str, version: int, *, retry: bool
) -> dict[str, SubscriptionData]:
    """All subscriptions of a group; with `retry` also that to its retry topic. Raises as `subscription`."""
    if not topics:
        raise ConfigError("topics", topics, "at least one topic, such as {'Orders': '*'}")
    topics_and_retries = dict(topics)
    if retry:
        topics_and_retries[retry_topic(group)] = ALL
    return {
        topic: subscription(topic, expression, version) for topic, expression in topics_and_retries.items()
    }


def full_topics(topics: Mapping[str, str | Sql], namespace: str) -> dict[str, str | Sql]:
    """`topics` with the cluster's full names. Raises InvalidType unless it is a dict."""
    check_type("topics", topics, Mapping, "a dict of topics and their filters, such as {'Orders': '*'}")
    for topic, expression in topics.items():
        _check_expression(topic, expression)
    return {
        with_namespace(namespace, validate_topic(topic)): expression for topic, expression in topics.items()
    }


def check_queues(argument: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """The queues that an application names. Raises InvalidType for a value that is not one."""
    check_type(argument, queues, Iterable, "rmq.MessageQueue, any number")
    found = list(queues)
    for queue in found:
        check_type(argument, queue, MessageQueue, "rmq.MessageQueue, any number")
    return found
