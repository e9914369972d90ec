"""Subscriptions of consumers: expressions of tags or SQL-92, as consumers send them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmq.errors import ResponseError, for_code
from rmq.message import tags_code
from rmq.protocol.bodies import SubscriptionData
from rmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    pass

else:
    pass


ALL: Final = "*"


TAG: Final = "TAG"


_SEPARATOR: Final = "||"


_BLANKS: Final = "".join(map(chr, range(33)))  # what Java's trim takes away


VERSION_AHEAD_MS: Final = 300_000
"""Milliseconds by which a client's clock may be ahead of the broker's. The version of a subscription is the
time at which it was made, and the newest of a group counts: one from the far future would keep all later ones
out."""


def is_tag_type(expression_type: str | None) -> bool:
    """True if the expression names tags: no type means tags."""
    return not expression_type or expression_type == TAG


def parse_subscription(
    topic: str, expression: str | None, expression_type: str | None = TAG, *, sub_version: int = 0
) -> SubscriptionData:
    """The subscription that a client's text stands for. Raises ResponseError(SUBSCRIPTION_PARSE_FAILED).

    Tags are separated by `||`; none at all or `*` is every message. An SQL expression is not compiled here.
    """
    if not is_tag_type(expression_type):
        if not expression:
            raise unparsable(f"Expression can't be null! {expression_type}")
        return SubscriptionData(topic, expression, sub_version=sub_version, expression_type=expression_type)
    if not expression or expression == ALL:
        return SubscriptionData(topic, ALL, sub_version=sub_version)
    tags = _tags(expression)
    return SubscriptionData(topic, expression, tags, frozenset(map(tags_code, tags)), sub_version)


def _tags(expression: str) -> frozenset[str]:
    if not expression.replace(_SEPARATOR, ""):
        raise unparsable(f"{expression!r} names no tag; write tags as 'TagA || TagB', or * for all")
    return frozenset(filter(None, (part.strip(_BLANKS) for part in expression.split(_SEPARATOR))))


def unparsable(remark: str) -> ResponseError:
    return for_code(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
