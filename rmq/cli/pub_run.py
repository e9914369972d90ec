"""The running part of `rmq pub`."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import trio
from attrs import Factory, define

from rmq.cli.progress import Step
from rmq.cli.target import Target, first_error
from rmq.client.outgoing import SendResult
from rmq.client.producer import Producer
from rmq.errors import RmqError
from rmq.message import Message

if TYPE_CHECKING:
    from rmq.cli.pub import Sending


@define
class Outcome:
    """What was sent; `error` is what ended it before its end."""

    keep: int
    count: int = 0
    seconds: float = 0.0
    rows: list[dict[str, Any]] = Factory(list)
    statuses: Counter[str] = Factory(Counter)
    untimed: int = 0
    error: RmqError | None = None

    def add(self, result: SendResult, *, timed: bool) -> None:
        """Note one result; `timed`: it asked for a delivery time that only brokers with timers know."""
        self.count += 1
        self.statuses[result.status] += 1
        self.untimed += timed and result.recall_handle is None
        if len(self.rows) < self.keep:
            queue = result.message_queue
            self.rows.append(
                {
                    "status": result.status,
                    "message_id": result.message_id,
                    "broker": queue.broker_name,
                    "queue_id": queue.queue_id,
                    "queue_offset": result.queue_offset,
                }
            )

    def notes(self) -> list[str]:
        """What a person should know beside the results."""
        weak = [
            f"{count} stored, but {status}: see `rmq errors {status}`"
            for status, count in self.statuses.items()
            if status != "SEND_OK"
        ]
        if self.untimed:
            weak.append(
                f"{self.untimed} delivered at once: the broker knows no free delays; give a level, 1 to 18"
            )
        return weak


class Bodies:
    """The bodies, one by one, for all lanes."""

    def __init__(self, sending: Sending) -> None:
        self._bodies = sending.bodies
        self._known = sending.total is not None
        self._turn = trio.Lock()

    async def next(self) -> bytes | None:
        """The next body, None at the end. The lines of a terminal or a pipe are waited for in a thread, so
        that messages go out at once and Ctrl-C works."""
        if self._known:
            return next(self._bodies, None)
        async with self._turn:
            return await trio.to_thread.run_sync(next, self._bodies, None, abandon_on_cancel=True)


async def send_all(target: Target, sending: Sending, step: Step) -> Outcome:
    """Sends all bodies, `concurrency` at a time; the first error ends it and is in the outcome."""
    outcome = Outcome(sending.keep)
    bodies = Bodies(sending)
    began = time.perf_counter()
    async with target.connect() as client, client.producer(sending.group) as producer:
        try:
            with first_error():
                async with trio.open_nursery() as nursery:
                    for _ in range(sending.concurrency):
                        nursery.start_soon(_lane, producer, sending, bodies, outcome, step)
        except RmqError as error:
            outcome.error = error
        outcome.seconds = time.perf_counter() - began
    return outcome


async def _lane(producer: Producer, sending: Sending, bodies: Bodies, outcome: Outcome, step: Step) -> None:
    """Sends the next body that no other lane has, one after the other."""
    timed = "delay_ms" in sending.marks
    while (body := await bodies.next()) is not None:
        message = Message(sending.topic, body, **sending.marks)
        outcome.add(await producer.send(message, sharding_key=sending.sharding_key), timed=timed)
        step(1)
