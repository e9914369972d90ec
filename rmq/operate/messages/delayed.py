"""Delayed messages: the number that waits at each delay level, messages with a delivery time of their own,
and their recall."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from attrs import frozen

from rmq.client.admin.messages import TOOLS_GROUP
from rmq.errors import ConfigError, NoRoute, TopicNotExist, check_number
from rmq.message import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQUE_KEY,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    MessageQueue,
)
from rmq.operate.messages.pages import read_page
from rmq.operate.several import ask_each
from rmq.operate.topics import is_absent, masters
from rmq.protocol.headers import RecallHandle
from rmq.protocol.properties import PROPERTY_TIMER_HANDLE_MS, PROPERTY_TIMER_REPLACES

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.client.client import Client
    from rmq.message import StoredMessage
    from rmq.protocol.bodies import TopicOffset

PROPERTY_OUT_MS: Final = "TIMER_OUT_MS"
"""Property: the due time of a message with a delivery time of its own, in ms since 1970."""
PROPERTY_RECALLED: Final = "TIMER_DEL_UNIQKEY"
"""Property of a record that recalls a message, as ``topic+key``."""
RECALLS_MAX: Final = 1000
PROGRESS: Final = "scheduleMessageOffset_"
UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@frozen
class DelayLevel:
    """A delay level of a broker: messages from `offset` to `end` of its queue wait. `delay_ms` is 0 when the
    level's delay is unknown."""

    broker: str
    level: int
    delay_ms: int
    offset: int
    end: int

    @property
    def waiting(self) -> int:
        """Number of messages that are not delivered yet."""
        return max(0, self.end - self.offset)

    @property
    def queue(self) -> MessageQueue:
        """The queue of the waiting messages."""
        return MessageQueue(SCHEDULE_TOPIC, self.broker, self.level - 1)


@frozen
class Delayed:
    """A message that waits for its delivery to `topic`, in queue `queue_id`, at `due_ms`.

    `level` is its delay level, 0 for a time of its own. `handle` recalls it; None when it cannot be recalled.
    """

    message: StoredMessage
    topic: str
    queue_id: int
    due_ms: int
    level: int = 0
    handle: str | None = None


@frozen
class DelayedPage:
    """Messages that wait. `cursor` is the begin of the next page, None after the last one."""

    messages: Sequence[Delayed]
    cursor: str | None


def delays_of(levels: str) -> dict[int, int]:
    """The delays of a broker's messageDelayLevel, as ``1s 5s 2h``: level -> ms; an invalid word is 0."""
    found = {}
    for level, word in enumerate(levels.split(), 1):
        number, unit = word[:-1], word[-1:].lower()
        found[level] = int(number) * UNITS_MS[unit] if number.isdecimal() and unit in UNITS_MS else 0
    return found


async def delay_levels(admin: Admin, *, cluster: str = "", broker: str = "") -> list[DelayLevel]:
    """List the delay levels of all masters with the messages that wait; three requests to each master.

    RocketMQ's brokers report the progress of levels that have delivered a message; other levels begin at
    their first message.

    Raises ConfigError for an unknown cluster or broker.
    """

    async def look(place: tuple[str, str]) -> list[DelayLevel]:
        name, address = place
        metrics = await admin.broker_runtime(address)
        delays = delays_of((await admin.broker_config(address)).get("messageDelayLevel", ""))
        return levels_of(name, metrics, delays, ends)

    try:
        ends = await admin.topic_stats(SCHEDULE_TOPIC)
    except (NoRoute, TopicNotExist) as error:
        if not is_absent(error):
            raise
        ends = {}
    places = (await masters(admin, cluster=cluster, broker=broker)).items()
    return [row for rows in (await ask_each(places, look)).values() for row in rows]


def levels_of(
    broker: str,
    metrics: Mapping[str, str],
    delays: Mapping[int, int],
    ends: Mapping[MessageQueue, TopicOffset] | None = None,
) -> list[DelayLevel]:
    """The delay levels of a broker, sorted: their progress by its metrics, and by the ends of their
    queues.
    """
    found = {}
    for level, delay_ms in delays.items():
        known = (ends or {}).get(MessageQueue(SCHEDULE_TOPIC, broker, level - 1))
        if known is not None:
            found[level] = DelayLevel(broker, level, delay_ms, known.min_offset, known.max_offset)
    for name, text in metrics.items():
        word, (offset, _, end) = name.removeprefix(PROGRESS), text.partition(",")
        if name.startswith(PROGRESS) and word.isdecimal() and offset.isdecimal() and end.isdecimal():
            level = int(word)
            found[level] = DelayLevel(broker, level, delays.get(level, 0), int(offset), int(end))
    return sorted(found.values(), key=lambda one: one.level)


async def waiting_at_level(
    client: Client, level: DelayLevel, *, count: int = 50, offset: int = 0
) -> list[Delayed]:
    """Read messages that wait at a level, in the order of their due times: at most `count`, from the level's
    progress or a later `offset` on. Raises as `PullConsumer.pull`."""
    check_number("count", count, 1)
    found: list[Delayed] = []
    at = max(level.offset, offset)
    async with client.pull_consumer(TOOLS_GROUP) as pulls:
        while at < level.end and len(found) < count:
            pulled = await pulls.pull(level.queue, at, max_messages=min(32, count - len(found)))
            found += [_at_level(message, level) for message in pulled.messages]
            if pulled.next_offset <= at:
                break
            at = pulled.next_offset
    return found


def _at_level(message: StoredMessage, level: DelayLevel) -> Delayed:
    topic, queue_id = real_place(message)
    return Delayed(message, topic, queue_id, message.store_timestamp + level.delay_ms, level.level)


async def waiting_for_a_time(
    client: Client,
    *,
    now_ms: int,
    count: int = 50,
    cursor: str | None = None,
    within_seconds: float = math.inf,
) -> DelayedPage:
    """Read messages that wait for a delivery time of their own, the newest sends first. After
    `within_seconds` the page ends with the messages that it has.

    Messages that were recalled, or stored again by their broker, are left out, if the record of that is among
    the last `RECALLS_MAX`. A cluster that never had such a message has an empty page. Raises as `read_page`.
    """
    try:
        page = await read_page(
            client,
            TIMER_TOPIC,
            count=count,
            cursor=cursor,
            where=lambda message: due_ms(message) > now_ms,
            within_seconds=within_seconds,
        )
    except (NoRoute, TopicNotExist) as error:
        if not is_absent(error):
            raise
        return DelayedPage([], None)
    later = [*page.messages]
    if cursor is not None:  # such a record is stored after its message, so it may be on a page before
        later += (await read_page(client, TIMER_TOPIC, count=RECALLS_MAX, where=_cancels)).messages
    recalled = {
        (one.properties.get(PROPERTY_RECALLED), due_ms(one))
        for one in later
        if PROPERTY_TIMER_REPLACES not in one.properties
    }
    replaced = {(one.broker_name, one.properties.get(PROPERTY_TIMER_REPLACES)) for one in later}
    waiting = [timed(one) for one in page.messages if PROPERTY_RECALLED not in one.properties]
    rest = [
        one
        for one in waiting
        if (f"{one.topic}+{one.message.properties.get(PROPERTY_UNIQUE_KEY)}", one.due_ms) not in recalled
        and (one.message.broker_name, str(one.message.queue_offset)) not in replaced
    ]
    return DelayedPage(rest, page.cursor)


def _cancels(message: StoredMessage) -> bool:
    return PROPERTY_RECALLED in message.properties or PROPERTY_TIMER_REPLACES in message.properties


def due_ms(message: StoredMessage) -> int:
    """The due time of a message with a delivery time of its own; 0 without one."""
    text = message.properties.get(PROPERTY_OUT_MS, "")
    return int(text) if text.isdecimal() else 0


def timed(message: StoredMessage) -> Delayed:
    """The delayed message in a record of the timer topic."""
    topic, queue_id = real_place(message)
    due = due_ms(message)
    unique_key = message.properties.get(PROPERTY_UNIQUE_KEY)
    named = message.properties.get(PROPERTY_TIMER_HANDLE_MS, "")  # the time in its producer's handle
    handle_ms = int(named) if named.isdecimal() else due
    handle: str | None = None
    if unique_key and topic:
        handle = str(RecallHandle(topic, message.broker_name, handle_ms, unique_key))
    return Delayed(message, topic, queue_id, due, handle=handle)


def real_place(message: StoredMessage) -> tuple[str, int]:
    """The target topic and queue of a delayed message."""
    queue_id = message.properties.get(PROPERTY_REAL_QUEUE_ID, "")
    return message.properties.get(PROPERTY_REAL_TOPIC, ""), int(queue_id) if queue_id.isdecimal() else 0


async def recall(client: Client, handle: str, group: str = "CLIENT_INNER_PRODUCER") -> str:
    """Take a message back that waits for a time of its own, by its handle; return its id.

    Raises LocalProtocolError for a text that is no handle, NoRoute, ResponseError when it is too late or the
    account is not the sender's. ConfigError: the message has no handle.
    """
    if not handle:
        raise ConfigError("handle", handle, "the handle of a message that waits for a time of its own")
    async with client.producer(group) as producer:
        return await producer.recall(handle)
