"""Delayed messages and transactions: waiting messages at the brokers; recall, and checks of discarded
halves."""

from __future__ import annotations

from typing import Annotated

import msgspec
from attrs import frozen

from rmq.dashboard.access.roles import Role
from rmq.dashboard.errors import UnknownName
from rmq.dashboard.operations import figures
from rmq.dashboard.operations.messages import MessageRow, row_of
from rmq.dashboard.operations.operation import Call, operation
from rmq.dashboard.operations.topics import SEND_GROUP
from rmq.errors import RmqError
from rmq.message import TRANS_HALF_TOPIC
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
    """A half message whose producers gave no decision in all check-backs."""

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
    """Open and discarded transactions. The open ones are messages of `half_topic`."""

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


@operation("POST", "/transactions/resume", Role.OPERATOR)
async def resume_transaction(call: Call, *, id: str) -> Recalled:
    """Have the producers of a discarded half message asked again. `id` is its offset id."""
    for half in await call.client.discarded_transactions(limit=1000):
        if half.offset_message_id == id:
            await call.client.resume_transaction(half)
            return Recalled(half.message.message_id)
    raise UnknownName(f"no discarded half message has the id {id}")
