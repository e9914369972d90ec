"""Subscriptions: what a consumer group wants of a topic, by tags or by an SQL92 expression.

Tags are looked at in two steps, as RocketMQ does: the broker compares the hash codes in the queue units,
which may let strangers with the same code pass, and the consumer compares the tags themselves. An SQL
expression is evaluated over the properties of each message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from struct import error as struct_error
from typing import Final

from rmq.broker.sql import FilterSyntaxError, compile_sql
from rmq.errors import CorruptRecord, ResponseError, for_code
from rmq.message import tags_code
from rmq.protocol.bodies import SubscriptionData
from rmq.protocol.codes import SYS_BORNHOST_V6, SYS_STOREHOST_V6, ResponseCode
from rmq.protocol.properties import decode_properties
from rmq.protocol.text import JAVA

ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"

_SEPARATOR: Final = "||"
_BLANKS: Final = "".join(map(chr, range(33)))  # what Java's trim takes away

TagMatcher = Callable[[int], bool]
MessageFilter = Callable[[Mapping[str, str]], bool]


def is_tag_type(expression_type: str | None) -> bool:
    """Whether the expression names tags: no type means tags."""
    return not expression_type or expression_type == TAG


def parse_subscription(
    topic: str, expression: str | None, expression_type: str | None = TAG, *, sub_version: int = 0
) -> SubscriptionData:
    """The subscription that a client's text stands for. Raises ResponseError(SUBSCRIPTION_PARSE_FAILED).

    Tags are separated by `||`; none at all or `*` is every message. An SQL expression is not compiled here.
    """
    if not is_tag_type(expression_type):
        if not expression:
            raise _unparsable(f"Expression can't be null! {expression_type}")
        return SubscriptionData(topic, expression, sub_version=sub_version, expression_type=expression_type)
    if not expression or expression == ALL:
        return SubscriptionData(topic, ALL, sub_version=sub_version)
    tags = _tags(expression)
    return SubscriptionData(topic, expression, tags, frozenset(map(tags_code, tags)), sub_version)


def _tags(expression: str) -> frozenset[str]:
    if not expression.replace(_SEPARATOR, ""):
        raise _unparsable(f"{expression!r} names no tag; write tags as 'TagA || TagB', or * for all")
    return frozenset(filter(None, (part.strip(_BLANKS) for part in expression.split(_SEPARATOR))))


def _unparsable(remark: str) -> ResponseError:
    return for_code(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)


def tag_matcher(subscription: SubscriptionData) -> TagMatcher | None:
    """A test of a queue unit's tags code; None lets every unit pass (`*`, SQL, class filters)."""
    if subscription.sub_string == ALL or subscription.class_filter_mode:
        return None
    if not is_tag_type(subscription.expression_type):
        return None
    return subscription.code_set.__contains__


def message_filter(subscription: SubscriptionData) -> MessageFilter | None:
    """A test of a message's properties; None lets every message pass (tags).

    Raises ResponseError(SUBSCRIPTION_PARSE_FAILED) for an expression that cannot be compiled.
    """
    if is_tag_type(subscription.expression_type) or subscription.class_filter_mode:
        return None
    if subscription.expression_type != SQL92:
        raise _unparsable(f"there is no filter of type {subscription.expression_type!r}; use TAG or SQL92")
    try:
        return compile_sql(subscription.sub_string).matches
    except FilterSyntaxError as error:
        raise _unparsable(str(error)) from None


_INT, _SHORT = Struct(">i"), Struct(">h")
_SYS_FLAG_AT, _BORN_HOST_AT = 36, 48


def record_properties(record: memoryview) -> dict[str, str]:
    """The properties of a stored record, which are all that filters need. Raises CorruptRecord."""
    try:
        (sys_flag,) = _INT.unpack_from(record, _SYS_FLAG_AT)
        store_timestamp_at = _BORN_HOST_AT + (20 if sys_flag & SYS_BORNHOST_V6 else 8)
        # 8 bytes of store timestamp, the store host, 4 of reconsume times, 8 of a prepared offset
        body_size_at = store_timestamp_at + 8 + (20 if sys_flag & SYS_STOREHOST_V6 else 8) + 12
        topic_at = body_size_at + 4 + _INT.unpack_from(record, body_size_at)[0]
        start = topic_at + 1 + record[topic_at] + 2
        (size,) = _SHORT.unpack_from(record, start - 2)
        return decode_properties(str(record[start : start + size], "utf-8", JAVA))
    except (struct_error, IndexError) as error:
        raise CorruptRecord("record", 0, str(error)) from None
