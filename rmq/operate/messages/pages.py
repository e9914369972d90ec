"""Pages of a topic's messages in the order of their time, read from the queues only as far as a page needs
them.

    page = await read_page(client, "Orders", since_ms=yesterday, count=50)
    older = await read_page(client, "Orders", since_ms=yesterday, count=50, cursor=page.cursor)

A topic may have millions of messages: a page reads some tens of each queue, and never more than
`LOOKED_AT_MAX` when it filters. No group is joined and no offset is stored.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define, field, frozen

from rmq.client.admin.messages import TOOLS_GROUP
from rmq.errors import ConfigError, RemoteProtocolError, check_number
from rmq.message import MessageQueue
from rmq.operate.several import ask_each
from rmq.protocol import json

if TYPE_CHECKING:
    from rmq.client.client import Client
    from rmq.client.consume.subscription import Sql
    from rmq.client.reading.pull_consumer import PullConsumer
    from rmq.message import StoredMessage

Where = Callable[["StoredMessage"], bool]
"""A condition on a message."""

COUNT_MAX: Final = 1000
"""Messages of a page."""
PULLED_MAX: Final = 32
"""Messages of a pull; brokers give no more at once."""
PULLED_MIN: Final = 4
BYTES_MAX: Final = 32 << 20
"""Bytes of bodies, after which a page ends early."""
LOOKED_AT_MAX: Final = 20_000
"""Messages that a page with a condition reads before it ends early."""
CURSOR_BYTES_MAX: Final = 1 << 20


@frozen
class Page:
    """Messages of a topic, in the requested order.

    `total` counts the messages of the span in all queues, before any filter; the ends of queues are those at
    the time of the read. `looked_at` counts the messages that were read for the page, `left` the messages of
    the span that the next pages read. `cursor` is the begin of the next page, None after the last one; a page
    may have fewer messages than requested, or none, and still a cursor.
    """

    messages: Sequence[StoredMessage]
    total: int
    looked_at: int
    left: int
    cursor: str | None


@frozen
class Span:
    """A part of a queue: offsets from `low` on and below `high`."""

    queue: MessageQueue
    low: int
    high: int

    @property
    def size(self) -> int:
        """Messages in it, at most."""
        return max(0, self.high - self.low)


async def read_page(
    client: Client,
    topic: str,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    queues: Sequence[MessageQueue] = (),
    count: int = 50,
    newest_first: bool = True,
    expression: str | Sql = "*",
    where: Where | None = None,
    cursor: str | None = None,
    within_seconds: float = math.inf,
) -> Page:
    """Read one page of a topic: messages stored from `since_ms` on and before `until_ms`, of all queues or
    some.

    `expression` filters by tags or SQL at the broker, `where` is a condition of the caller. `cursor` is that
    of the previous page, with the same other arguments. After `within_seconds` the page ends with the
    messages that it has; each page reads at least once from each queue. Raises ConfigError for an invalid
    cursor, NoRoute, and as `PullConsumer.pull`.
    """
    deadline = anyio.current_time() + within_seconds
    check_number("count", count, 1)
    if count > COUNT_MAX:
        raise ConfigError("count", count, f"an int, at most {COUNT_MAX}")
    begun = None if cursor is None else read_cursor(topic, cursor, newest_first=newest_first)
    async with client.pull_consumer(TOOLS_GROUP) as pulls:
        spans = await spans_of(client, pulls, topic, since_ms, until_ms, queues)
        total = sum(span.size for span in spans)
        rest = _rest(spans, begun, newest_first)
        reader = _Reader(pulls, expression, newest_first, rest, count, deadline)
        return await reader.page(count, total, where)


async def spans_of(
    client: Client,
    pulls: PullConsumer,
    topic: str,
    since_ms: int | None = None,
    until_ms: int | None = None,
    queues: Sequence[MessageQueue] = (),
) -> list[Span]:
    """The offsets between two times in each queue of a topic, or in some of its queues. Raises NoRoute, and
    ConfigError for a queue that the topic does not have.
    """
    ends = await client.admin.topic_stats(topic)
    for queue in queues:
        if queue not in ends:
            raise ConfigError("queue", str(queue), f"a queue of topic {topic}")

    async def span(queue: MessageQueue) -> Span:
        low, high = ends[queue].min_offset, ends[queue].max_offset
        if since_ms is not None and low < high:
            low = max(low, await pulls.search_offset(queue, since_ms))
        if until_ms is not None and low < high:
            high = min(high, await pulls.search_offset(queue, until_ms))
        return Span(queue, low, high)

    return list((await ask_each(queues or ends, span)).values())


def _rest(spans: Sequence[Span], begun: Mapping[MessageQueue, int] | None, newest_first: bool) -> list[Span]:
    """The parts of spans after earlier pages."""
    if begun is None:
        return list(spans)
    if newest_first:
        return [
            Span(span.queue, span.low, min(span.high, begun[span.queue]))
            for span in spans
            if span.queue in begun
        ]
    return [Span(span.queue, max(span.low, begun.get(span.queue, span.low)), span.high) for span in spans]


# --- reading ---


@define(eq=False)
class _Lane:
    """A queue on a page: the offsets that are not pulled yet, and the pulled messages that are not on the
    page yet. `batch` is the number of offsets of the next pull."""

    queue: MessageQueue
    low: int
    high: int
    batch: int
    waiting: deque[StoredMessage] = field(factory=deque)

    @property
    def is_empty(self) -> bool:
        return not self.waiting and self.low >= self.high


class _Reader:
    """The merge of queues by time. Lanes are filled one pull at a time, until `deadline`."""

    def __init__(
        self,
        pulls: PullConsumer,
        expression: str | Sql,
        newest_first: bool,
        spans: Sequence[Span],
        count: int,
        deadline: float,
    ) -> None:
        self._pulls, self._expression, self._newest_first = pulls, expression, newest_first
        batch = max(PULLED_MIN, min(PULLED_MAX, 2 * count // max(1, len(spans))))
        self._lanes = [_Lane(span.queue, span.low, span.high, batch) for span in spans]
        self._deadline, self._looked_at = deadline, 0

    async def page(self, count: int, total: int, where: Where | None) -> Page:
        """Take the next messages of all lanes, at most `count`. The page ends at the first lane whose next
        message is not known: messages of other lanes may come after it."""
        found: list[StoredMessage] = []
        size = 0
        await ask_each(self._lanes, lambda lane: self._fill(lane, is_first=True))
        is_known = all(lane.waiting or lane.is_empty for lane in self._lanes)
        following = [(self._order(lane), number) for number, lane in enumerate(self._lanes) if lane.waiting]
        heapify(following)
        while is_known and following and len(found) < count and size < BYTES_MAX:
            lane = self._lanes[number := following[0][1]]
            message = lane.waiting.popleft()
            if where is None or where(message):
                found.append(message)
                size += len(message.body)
            if not lane.waiting:
                await self._fill(lane)
            if lane.waiting:
                heapreplace(following, (self._order(lane), number))
            else:
                heappop(following)
                is_known = lane.is_empty
        left, cursor = sum(map(self._left, self._lanes)), None
        if left:
            cursor = write_cursor({lane.queue: self._at(lane) for lane in self._lanes}, self._newest_first)
        return Page(found, total, self._looked_at, left, cursor)

    def _order(self, lane: _Lane) -> int:
        stored = lane.waiting[0].store_timestamp
        return -stored if self._newest_first else stored

    def _at(self, lane: _Lane) -> int:
        """The begin of the next page in a lane."""
        if self._newest_first:
            return lane.waiting[0].queue_offset + 1 if lane.waiting else lane.high
        return lane.waiting[0].queue_offset if lane.waiting else lane.low

    def _left(self, lane: _Lane) -> int:
        """Offsets of a lane after the page."""
        at = self._at(lane)
        return max(0, at - lane.low if self._newest_first else lane.high - at)

    async def _fill(self, lane: _Lane, *, is_first: bool = False) -> None:
        """Pull until a message of the lane waits, the lane is read to its end, or the page has to end; at
        least once for a new page."""
        while not lane.waiting and lane.low < lane.high and (is_first or self._may_pull()):
            is_first = False
            if self._newest_first:
                first = max(lane.low, lane.high - lane.batch)
                found = await self._between(lane.queue, first, lane.high)
                lane.high = first
                lane.waiting.extend(reversed(found))
            else:
                last = min(lane.high, lane.low + lane.batch)
                lane.waiting.extend(await self._between(lane.queue, lane.low, last))
                lane.low = last
            lane.batch = min(PULLED_MAX, 2 * lane.batch)

    def _may_pull(self) -> bool:
        return self._looked_at < LOOKED_AT_MAX and anyio.current_time() < self._deadline

    async def _between(self, queue: MessageQueue, low: int, high: int) -> list[StoredMessage]:
        """The messages at these offsets that exist and pass the filter."""
        found: list[StoredMessage] = []
        at = low
        while at < high:
            pulled = await self._pulls.pull(queue, at, max_messages=high - at, expression=self._expression)
            found += [one for one in pulled.messages if low <= one.queue_offset < high]
            if pulled.next_offset <= at:
                break
            at = pulled.next_offset
        self._looked_at += high - low
        return found


# --- cursors ---


def write_cursor(at: Mapping[MessageQueue, int], newest_first: bool) -> str:
    """Positions in the queues of a topic as a text for links, without the topic's name."""
    brokers: dict[str, list[list[int]]] = {}
    for queue, offset in sorted(at.items()):
        brokers.setdefault(queue.broker_name, []).append([queue.queue_id, offset])
    data = json.dumps([1, newest_first, brokers])
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def read_cursor(topic: str, text: str, *, newest_first: bool) -> dict[MessageQueue, int]:
    """The positions of a cursor. Raises ConfigError for an invalid text, or for the other direction."""
    expected = "the cursor of the page before, with the same order"
    if len(text) > CURSOR_BYTES_MAX:
        raise ConfigError("cursor", f"{len(text)} characters", expected)
    try:
        value: Any = json.loads(
            base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        )
        version, direction, brokers = value
        at = {
            MessageQueue(topic, str(broker), _offset(queue)): _offset(offset)
            for broker, rows in brokers.items()
            for queue, offset in rows
        }
    except (ValueError, TypeError, AttributeError, binascii.Error, RemoteProtocolError):
        raise ConfigError("cursor", text[:80], expected) from None
    if version != 1 or direction is not newest_first:
        raise ConfigError("cursor", text[:80], expected)
    return at


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(value)
    return value
