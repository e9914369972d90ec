"""Pushdown of Spark's filters: the rows that a plan has to read.

A plan leaves out only rows that a filter refuses. A filter that the plan does not ensure for each row goes
back to Spark, which then checks the rows itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from attrs import frozen

from rmq.message import MessageQueue
from rmq.spark.offsets import Offsets

try:
    from pyspark.sql.datasource import (
        EqualNullSafe,
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
    )
    from pyspark.sql.datasource import (
        Filter as Filter,
    )
except ImportError:  # Spark 4.0, which pushes no filters

    class Filter:  # type: ignore[no-redef]
        """A class without objects."""

    class EqualTo(Filter): ...  # type: ignore[no-redef]

    class EqualNullSafe(Filter): ...  # type: ignore[no-redef]

    class GreaterThan(Filter): ...  # type: ignore[no-redef]

    class GreaterThanOrEqual(Filter): ...  # type: ignore[no-redef]

    class LessThan(Filter): ...  # type: ignore[no-redef]

    class LessThanOrEqual(Filter): ...  # type: ignore[no-redef]

    class In(Filter): ...  # type: ignore[no-redef]

    class IsNotNull(Filter): ...  # type: ignore[no-redef]


SPARE_MS: Final = 60_000
"""Longest setback of a clock, in ms, that a plan allows for: otherwise store times of a queue or a log only
grow."""

_KINDS: Final[Mapping[str, type]] = {
    "topic": str,
    "brokerName": str,
    "queueId": int,
    "queueOffset": int,
    "physicalOffset": int,
    "storeTimestamp": datetime,
}
"""Columns that a plan can use, none of which is ever null in a message, and the types of their values."""
_COMPARISONS: Final[Mapping[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


class Span(NamedTuple):
    """Numbers, or times in ms since 1970, with low <= number < high."""

    low: int = -(1 << 63)
    high: int = 1 << 63

    def both(self, other: Span) -> Span:
        """The intersection of two spans."""
        return Span(max(self.low, other.low), min(self.high, other.high))


@frozen
class Conditions:
    """The supported filters; a row must pass all of them."""

    filters: tuple[Any, ...] = ()

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Conditions:
        """The supported filters among these; all others are ignored."""
        return cls(tuple(each for each in filters if _is_understood(each)))

    def allow(self, column: str, value: Any) -> bool:
        """True if rows with this value in the column, which is not null, may pass."""
        return all(_holds(each, value) for each in self._on(column))

    def span(self, column: str) -> Span:
        """A span with all values of a column of numbers or times that may pass."""
        span = Span()
        for each in self._on(column):
            span = span.both(_span(each))
        return span

    def values(self, column: str) -> tuple[Any, ...] | None:
        """The values of a column that may pass, when filters list them; else None."""
        lists = [_listed(each) for each in self._on(column) if isinstance(each, (EqualTo, EqualNullSafe, In))]
        if not lists:
            return None
        return tuple(dict.fromkeys(value for value in lists[0] if self.allow(column, value)))

    def allow_queue(self, queue: MessageQueue) -> bool:
        """True if a message of the queue may pass."""
        found = {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}
        return all(self.allow(column, value) for column, value in found.items())

    def _on(self, column: str) -> list[Any]:
        return [each for each in self.filters if each.attribute == (column,)]


def is_ensured(pushed: Filter) -> bool:
    """True if a plan of whole queues, clipped to the span of the queue offset, has only rows that pass."""
    if not _is_understood(pushed):
        return False
    (column,) = pushed.attribute  # type: ignore[attr-defined]
    if column == "queueOffset":
        return not isinstance(pushed, In)
    return column in ("topic", "brokerName", "queueId")


def clipped(
    start: Mapping[MessageQueue, int],
    end: Mapping[MessageQueue, int],
    least: Mapping[MessageQueue, int],
    most: Mapping[MessageQueue, int],
) -> tuple[Offsets, Offsets]:
    """The ranges from `start` to `end` without messages before `least` and from `most` on. A range without
    messages is empty; a range that ends before it begins stays unchanged."""
    first = {queue: max(at, min(least[queue], end[queue])) for queue, at in start.items()}
    last = {queue: max(min(at, most[queue]), min(first[queue], at)) for queue, at in end.items()}
    return first, last


def _is_understood(pushed: Any) -> bool:
    if len(getattr(pushed, "attribute", ())) != 1:
        return False
    kind = _KINDS.get(pushed.attribute[0])
    if kind is None or isinstance(pushed, IsNotNull):
        return kind is not None
    if type(pushed) not in _COMPARISONS and not isinstance(pushed, In):
        return False
    values = _listed(pushed)
    if kind is datetime:
        return all(isinstance(value, datetime) and value.tzinfo is not None for value in values)
    return all(type(value) is kind for value in values)  # true counts as no number


def _listed(pushed: Any) -> tuple[Any, ...]:
    return tuple(pushed.value) if isinstance(pushed, In) else (pushed.value,)


def _holds(pushed: Any, value: Any) -> bool:
    if isinstance(pushed, IsNotNull):
        return True
    if isinstance(pushed, In):
        return value in pushed.value
    return _COMPARISONS[type(pushed)](value, pushed.value)


def _span(pushed: Any) -> Span:
    if isinstance(pushed, IsNotNull):
        return Span()
    values = _listed(pushed)
    if not values:
        return Span(0, 0)
    low, high = min(values), max(values)
    if isinstance(pushed, (GreaterThan, GreaterThanOrEqual)):
        return Span(low=_floor(low) + 1 if isinstance(pushed, GreaterThan) else _ceiling(low))
    if isinstance(pushed, (LessThan, LessThanOrEqual)):
        return Span(high=_ceiling(high) if isinstance(pushed, LessThan) else _floor(high) + 1)
    return Span(_ceiling(low), _floor(high) + 1)


def _floor(value: int | datetime) -> int:
    return (value - _EPOCH) // _MS if isinstance(value, datetime) else value


def _ceiling(value: int | datetime) -> int:
    return -((_EPOCH - value) // _MS) if isinstance(value, datetime) else value
