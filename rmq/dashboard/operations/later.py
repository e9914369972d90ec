"""Delayed messages and transactions: messages that wait at the brokers, recall, and check-backs of half
messages."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from attrs import frozen

from rmq.dashboard.access.roles import Role
from rmq.dashboard.errors import BadRequest
from rmq.dashboard.operations import figures
from rmq.dashboard.operations.messages import PAGE_SECONDS, MessageRow, row_of, stored_message
from rmq.dashboard.operations.operation import Call, operation
from rmq.dashboard.operations.topics import SEND_GROUP
from rmq.errors import RmqError
from rmq.message import TRANS_HALF_TOPIC
from rmq.operate.messages import delayed as operate_delayed
from rmq.operate.messages import transactions as operate_transactions
from rmq.operate.several import ask_each

LEVELS = "messageDelayLevel"


@frozen
class LevelRow:
    """A delay level: its delay, and the number of waiting messages at a broker."""

    level: int
    delay: str
    waiting: int


@frozen
class DelayedAtBroker:
    """Delayed messages at a master. `timers` is the number with a time of their own; -1: unknown."""

    broker: str
    levels: list[LevelRow]
    timers: int
    waiting: int
    error: str


@operation("GET", "/delayed")
async def delayed(call: Call) -> list[DelayedAtBroker]:
    """The messages that wait for their delivery time, by broker and delay level."""

    async def ask(address: str) -> DelayedAtBroker:
        try:
            metrics = await call.admin.broker_runtime(address)
            delays = (await call.admin.broker_config(address)).get(LEVELS, "").split()
        except RmqError as error:
            return DelayedAtBroker("", [], -1, 0, str(error))
        levels = [
            LevelRow(number, delay, _waiting(metrics.get(f"scheduleMessageOffset_{number}", "")))
            for number, delay in enumerate(delays, 1)
        ]
        timers = metrics.get("timerMessages", "")
        count = int(timers) if timers.isdecimal() else -1
        return DelayedAtBroker("", levels, count, sum(row.waiting for row in levels) + max(count, 0), "")

    places = await figures.masters(call)
    found = await ask_each(places.values(), ask)
    return [
        DelayedAtBroker(name, one.levels, one.timers, one.waiting, one.error)
        for name, address in places.items()
        for one in (found[address],)
    ]


def _waiting(text: str) -> int:
    """The difference of an offset and an end, as ``10,25``."""
    offset, _, end = text.partition(",")
    return max(int(end) - int(offset), 0) if offset.isdecimal() and end.isdecimal() else 0


@frozen
class DelayedRow:
    """A message that waits for its delivery to `topic` at `due_at`. `level` is its delay level, 0 for a time
    of its own. `handle` recalls it; empty when it cannot be recalled."""

    row: MessageRow
    topic: str
    due_at: int
    level: int
    handle: str


@frozen
class DelayedList:
    """A page of messages that wait. `cursor` requests the next page; it is empty after the last page."""

    rows: list[DelayedRow]
    cursor: str


@operation("GET", "/delayed/messages")
async def delayed_messages(
    call: Call,
    *,
    level: Annotated[
        int, msgspec.Meta(ge=0, le=1000, description="A delay level; 0: a time of their own, at all brokers.")
    ] = 0,
    broker: Annotated[str, msgspec.Meta(description="The broker of the level.")] = "",
    count: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50,
    cursor: Annotated[str, msgspec.Meta(description="The cursor of the page before.")] = "",
) -> DelayedList:
    """The messages that wait at a delay level, the next one first; or for a time of their own, the newest
    sends first."""
    if not level:
        page = await operate_delayed.waiting_for_a_time(
            call.client,
            now_ms=call.now_ms(),
            count=count,
            cursor=cursor or None,
            within_seconds=PAGE_SECONDS,
        )
        return DelayedList([_delayed_row(one) for one in page.messages], page.cursor or "")
    await figures.check_master(call, broker)
    if cursor and not re.fullmatch(r"[0-9]{1,18}", cursor):
        raise BadRequest("cursor: it does not belong to this list")
    levels = await operate_delayed.delay_levels(call.admin, broker=broker)
    place = next((one for one in levels if one.level == level), None)
    if place is None:
        return DelayedList([], "")
    found = await operate_delayed.waiting_at_level(call.client, place, count=count, offset=int(cursor or "0"))
    after = found[-1].message.queue_offset + 1 if found else place.end
    return DelayedList([_delayed_row(one) for one in found], str(after) if after < place.end else "")


def _delayed_row(one: operate_delayed.Delayed) -> DelayedRow:
    return DelayedRow(row_of(one.message), one.topic, one.due_ms, one.level, one.handle or "")


@frozen
class Recalled:
    """A delayed message that was taken back."""

    message_id: str


@operation("POST", "/delayed/recall", Role.OPERATOR)
async def recall(call: Call, *, handle: Annotated[str, msgspec.Meta(min_length=1)]) -> Recalled:
    """Take back a message that waits for its delivery time, by the recall handle that its send gave."""
    async with call.client.producer(SEND_GROUP) as producer:
        return Recalled(await producer.recall(handle.strip()))


# --- transactions ---


@frozen
class HalfRow:
    """A half message without a decision after all check-backs."""

    row: MessageRow
    group: str
    topic: str
    checks: int
    discarded_at: int


@frozen
class OpenAtBroker:
    """Open transactions at a master; -1: unknown, as for Java's brokers."""

    broker: str
    open: int


@frozen
class Transactions:
    """Open transactions by broker, and discarded ones. `half_topic` has all half messages."""

    brokers: list[OpenAtBroker]
    discarded: list[HalfRow]
    half_topic: str


@operation("GET", "/transactions")
async def transactions(
    call: Call, *, limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200
) -> Transactions:
    """Open transactions by broker, and discarded ones, which can be resumed."""

    async def ask(address: str) -> int:
        try:
            text = (await call.admin.broker_runtime(address)).get("openTransactions", "")
        except RmqError:
            return -1
        return int(text) if text.isdecimal() else -1

    places = await figures.masters(call)
    counts = await ask_each(places.values(), ask)
    halves = await call.client.discarded_transactions(limit=limit)
    return Transactions(
        [OpenAtBroker(name, counts[address]) for name, address in places.items()],
        [
            HalfRow(row_of(one.message), one.group, one.topic, one.checks, one.discarded_at_ms)
            for one in reversed(halves)
        ],
        TRANS_HALF_TOPIC,
    )


@frozen
class OpenRow:
    """A half message without a decision: its producer group, its target topic, and its check-backs."""

    row: MessageRow
    group: str
    topic: str
    checks: int


@frozen
class OpenTransactions:
    """The open transactions of a broker, oldest first. `is_whole` is unset when there are more."""

    broker: str
    rows: list[OpenRow]
    is_whole: bool


@operation("GET", "/transactions/open")
async def open_transactions(
    call: Call,
    *,
    broker: Annotated[str, msgspec.Meta(description="Only this broker; empty: all masters.")] = "",
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200,
) -> list[OpenTransactions]:
    """The half messages without a decision of their producers, by broker. RocketMQ's brokers show none before
    their first check-backs."""
    if broker:
        await figures.check_master(call, broker)
    return [
        OpenTransactions(
            one.broker,
            [OpenRow(row_of(half.message), half.group, half.topic, half.checks) for half in one.halves],
            one.is_whole,
        )
        for one in await operate_transactions.open_halves(call.client, broker=broker, most=limit)
    ]


@operation("POST", "/transactions/resume", Role.OPERATOR)
async def resume_transaction(call: Call, *, id: str) -> Recalled:
    """Ask the producers of a discarded half message again. `id` is its offset id."""
    message = await stored_message(call, id)
    await operate_transactions.resume(call.client, id.strip())
    return Recalled(message.message_id)
