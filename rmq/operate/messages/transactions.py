"""Transactions: half messages that wait for their end, and half messages that brokers gave up after all
check-backs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from attrs import frozen

from rmq.client.admin.messages import TOOLS_GROUP
from rmq.client.reading.discarded import DiscardedHalf, read_discarded
from rmq.errors import (
    CorruptRecord,
    NoRoute,
    QueryNotFound,
    RemoteProtocolError,
    ResponseError,
    SystemFailure,
    TopicNotExist,
)
from rmq.message import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_GROUP,
    MessageQueue,
)
from rmq.operate.messages.pages import read_page
from rmq.operate.several import ask_each
from rmq.operate.topics import is_absent, masters

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.client.client import Client
    from rmq.client.reading.pull_consumer import PullConsumer
    from rmq.message import StoredMessage
    from rmq.protocol.bodies import TopicOffset

OPS_MAX: Final = 20_000
"""Ends of transactions that are read of a broker; brokers keep about this number."""
HALVES_MAX: Final = 10_000
"""Half messages that are read of a broker."""
UNITS_MAX: Final = 1000
"""Ends that are read one by one."""
PULLED: Final = 32


@frozen
class OpenHalf:
    """A half message without a decision of its producer. `group` is the producer group, `topic` the target
    after a commit, `checks` the number of check-backs."""

    message: StoredMessage
    group: str
    topic: str
    checks: int

    @property
    def begun_at_ms(self) -> int:
        """The time at which its producer made it, in ms since 1970."""
        return self.message.born_timestamp


@frozen
class OpenHalves:
    """The open half messages of a broker, oldest first. `is_whole` is false when the scan ended early."""

    broker: str
    halves: Sequence[OpenHalf]
    is_whole: bool


@frozen
class DiscardedPage:
    """Half messages that were given up, newest first. `cursor` is the begin of the next page, None after the
    last one."""

    halves: Sequence[DiscardedHalf]
    total: int
    cursor: str | None


async def open_halves(client: Client, *, broker: str = "", most: int = 1000) -> list[OpenHalves]:
    """List half messages without a decision, by broker; at most `most` of each.

    The scan ends behind the part that the broker has decided, so its cost grows with the distance of that
    part. A broker of RocketMQ shows none before its first check-back pass, a minute after its first half
    message. Raises as `PullConsumer.pull`.
    """
    found = []
    async with client.pull_consumer(TOOLS_GROUP) as pulls:
        for name, address in (await masters(client.admin, broker=broker)).items():
            found.append(await _of_broker(client.admin, pulls, name, address, most))
    return found


async def _of_broker(admin: Admin, pulls: PullConsumer, name: str, address: str, most: int) -> OpenHalves:
    queue = MessageQueue(TRANS_HALF_TOPIC, name, 0)
    ends = await _ends(admin, queue)
    if ends is None:
        return OpenHalves(name, [], True)
    offsets = await admin.broker_offsets(address)
    decided = offsets.get(f"{TRANS_HALF_TOPIC}@{TRANSACTION_GROUP}", {}).get(0, ends.min_offset)
    passed = offsets.get(f"{TRANS_OP_HALF_TOPIC}@{TRANSACTION_GROUP}", {}).get(0, 0)
    op_queue = MessageQueue(TRANS_OP_HALF_TOPIC, name, 0)
    ended = await _ended(admin, pulls, op_queue, address, passed)
    last = min(ends.max_offset, decided + HALVES_MAX)
    halves = [
        read_half(message)
        for message in await _read(pulls, queue, decided, last)
        if message.queue_offset not in ended
    ]
    return OpenHalves(name, halves[:most], last == ends.max_offset and len(halves) <= most)


async def _ends(admin: Admin, queue: MessageQueue) -> TopicOffset | None:
    """The ends of a queue; None when name servers or broker do not know the topic."""
    try:
        return (await admin.topic_stats(queue.topic)).get(queue)
    except (NoRoute, TopicNotExist) as error:
        if not is_absent(error):
            raise
        return None


async def _ended(
    admin: Admin, pulls: PullConsumer, queue: MessageQueue, address: str, passed: int
) -> set[int]:
    """The offsets of half messages whose ends the broker has not taken into account yet."""
    ends = await _ends(admin, queue)
    if ends is not None:
        first = max(passed, ends.min_offset, ends.max_offset - OPS_MAX)
        bodies = [message.body for message in await _read(pulls, queue, first, ends.max_offset)]
    else:  # RocketMQ's brokers have the queue without a topic, so that it cannot be pulled
        bodies = await _bodies_by_units(admin, queue, address, passed)
    return {offset for body in bodies for offset in ended_by(body)}


async def _bodies_by_units(admin: Admin, queue: MessageQueue, address: str, first: int) -> list[bytes]:
    """The bodies of a queue from an offset on, at most `UNITS_MAX`, one request for each."""
    try:
        units = (await admin.consume_queue(queue, first, UNITS_MAX, broker=address)).queue_data
    except (ResponseError, RemoteProtocolError):  # no such queue: no transaction has ended yet
        return []

    async def body(physical_offset: int) -> bytes:
        try:
            return (await admin.message_in_log(address, physical_offset)).body
        except (SystemFailure, CorruptRecord):  # removed since
            return b""

    return list((await ask_each((unit.physic_offset for unit in units), body)).values())


def ended_by(body: bytes) -> set[int]:
    """The half messages that an end names, by their offsets: one, or with RocketMQ 5 several with commas
    between.
    """
    words = body.decode("utf-8", "replace").replace(",", " ").split()
    return {int(word) for word in words if word.isdecimal()}


def read_half(message: StoredMessage) -> OpenHalf:
    """The half message in a record of RMQ_SYS_TRANS_HALF_TOPIC."""
    given = message.properties
    checks = given.get(PROPERTY_TRANSACTION_CHECK_TIMES, "")
    return OpenHalf(
        message,
        given.get(PROPERTY_PRODUCER_GROUP, ""),
        given.get(PROPERTY_REAL_TOPIC, ""),
        int(checks) if checks.isdecimal() else 0,
    )


async def _read(pulls: PullConsumer, queue: MessageQueue, first: int, last: int) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    at = first
    while at < last:
        pulled = await pulls.pull(queue, at, max_messages=min(PULLED, last - at))
        found += [message for message in pulled.messages if message.queue_offset < last]
        if pulled.next_offset <= at:
            break
        at = pulled.next_offset
    return found


async def discarded(client: Client, *, count: int = 50, cursor: str | None = None) -> DiscardedPage:
    """Read discarded half messages, newest first; a resumed message stays among them. Raises as `read_page`;
    a cluster without any has an empty page."""
    try:
        page = await read_page(client, TRANS_CHECK_MAX_TIME_TOPIC, count=count, cursor=cursor)
    except (NoRoute, TopicNotExist) as error:
        if not is_absent(error):
            raise
        return DiscardedPage([], 0, None)
    return DiscardedPage([read_discarded(one) for one in page.messages], page.total, page.cursor)


async def resume(client: Client, offset_message_id: str) -> None:
    """Repeat the check-backs of a discarded half message, from the first one on. A message that is resumed
    twice may be committed twice. Raises QueryNotFound, and the ResponseError of a broker for any other
    message."""
    message = await client.admin.view_message(offset_message_id)
    if message.topic != TRANS_CHECK_MAX_TIME_TOPIC:
        raise QueryNotFound(None, f"{offset_message_id} is no half message that was given up")
    await client.admin.resume_check(offset_message_id)
