"""A group that takes messages one by one of a broker in memory, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmq.broker.consume.per_message.handles import handle_text
from rmq.broker.consume.per_message.polls import HeldTake
from rmq.broker.consume.per_message.taking import Handed
from rmq.doors import TakeRequest
from rmq.errors import ResponseError
from rmq.protocol.record import decode_records
from rmq.testing.front import Wire
from tests.unit.broker.rig import Rig

GROUP = "workers"
TOPIC = "Orders"


def filled(count: int = 10, queues: int = 1, **given: Any) -> Rig:
    """A broker with the messages b"0", b"1", ... in turn in the queues of a topic."""
    rig = Rig(**given)
    rig.topic(TOPIC, queues)
    for number in range(count):
        rig.put(TOPIC, number % queues, b"%d" % number)
    return rig


class Taken:
    """A message as its consumer has it."""

    def __init__(self, body: bytes, handle: str, attempt: int, told: int, offset: int) -> None:
        self.body = body
        self.handle = handle
        self.attempt = attempt
        self.told = told
        """The failed attempts that its record tells of."""
        self.offset = offset


def of(found: Sequence[Handed]) -> list[Taken]:
    """The messages of a take."""
    taken = []
    for one in found:
        messages = [message for buffer in one.buffers for message in decode_records(memoryview(buffer))]
        assert [message.queue_offset for message in messages] == one.offsets()
        for message in messages:
            handle = handle_text(
                one.start, one.taken_ms, one.invisible_ms, "wire-a", one.queue_id, message.queue_offset
            )
            times = message.reconsume_times
            taken.append(Taken(message.body, handle, one.attempt, times, message.queue_offset))
    return taken


class Consumer:
    """A consumer of a rig, with a connection of its own. Every outcome is committed at once."""

    def __init__(self, rig: Rig, group: str = GROUP, topic: str = TOPIC) -> None:
        self.rig = rig
        self.wire = Wire()
        self.group, self.topic = group, topic
        self.found: list[list[Taken] | ResponseError] = []

    def request(self, count: int = 32, seconds: float = 30.0, **more: Any) -> TakeRequest:
        values = {"from_first": True} | more
        return TakeRequest(self.group, self.topic, count, round(seconds * 1000), **values)

    def take(self, count: int = 32, seconds: float = 30.0, **more: Any) -> list[Taken]:
        found = self.rig.broker.deliveries.take(self.request(count, seconds, **more), self.wire)
        self.rig.broker.group_commit.commit_pending()
        return of(found)

    def bodies(self, count: int = 32, seconds: float = 30.0, **more: Any) -> list[bytes]:
        """The bodies of what a take gets."""
        return [one.body for one in self.take(count, seconds, **more)]

    def hold(self, wait: float = 20.0, count: int = 32, **more: Any) -> HeldTake:
        """Wait for messages; what comes is in `found`."""

        def taken(outcome: Sequence[Handed] | ResponseError) -> None:
            self.found.append(outcome if isinstance(outcome, ResponseError) else of(outcome))

        held = HeldTake(self.wire, self.request(count, **more), self.rig.seconds + wait, taken)
        self.rig.broker.deliveries.hold(held)
        return held

    def ack(self, *taken: Taken | str) -> list[ResponseError | None]:
        outcomes: list[ResponseError | None] = []
        handles = [one if isinstance(one, str) else one.handle for one in taken]
        self.rig.broker.deliveries.acknowledge(self.group, self.topic, handles, outcomes.extend)
        self.rig.broker.group_commit.commit_pending()
        return outcomes

    def nack(
        self, *taken: Taken, after: float | None = 0.0, counts: bool = True
    ) -> list[ResponseError | None]:
        after_ms = None if after is None else round(after * 1000)
        handles = [one.handle for one in taken]
        outcomes = self.rig.broker.deliveries.nack(self.group, self.topic, handles, after_ms, counts=counts)
        self.rig.broker.group_commit.commit_pending()
        return outcomes

    def extend(self, taken: Taken | str, seconds: float) -> str:
        handle = taken if isinstance(taken, str) else taken.handle
        return self.rig.broker.deliveries.extend(
            self.group, self.topic, handle, round(seconds * 1000), self.wire
        )

    def close(self) -> None:
        self.wire.close()
        self.rig.broker.deliveries.on_close(self.wire)
        self.rig.broker.steps.deadlines(self.rig.seconds)


def step(rig: Rig, seconds: float = 0.0) -> None:
    """Turn the clocks on, and do what is due."""
    rig.let_pass(round(seconds * 1000))
    for _ in range(1000):
        if rig.broker.steps.deadlines(rig.seconds) > rig.seconds:
            return
    raise AssertionError("there is no end of what is due")


def restarted(rig: Rig) -> Rig:
    """The broker after kill -9."""
    return Rig(disk=rig.disk.copy())
