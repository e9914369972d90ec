"""Accumulator: sends that begin in the same turn of the event loop go to their broker in a single request.

This is the `auto_batch` of RocketMQ's producers, without a waiting time: a hundred tasks that a response
wakes begin their next sends in the same turn. Only messages that fit a batch are taken (`Batches.takes`).
Each message has its own result or error.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from anyio.abc import TaskGroup
from attrs import define

from rmq.client.produce.batches import BATCH_BYTES, Batches, BatchKey, batch_key, joined
from rmq.client.produce.outgoing import BATCH_MESSAGES, Outgoing, each
from rmq.client.produce.sender import Sender
from rmq.client.session.results import SendResult
from rmq.errors import LocalProtocolError
from rmq.message import Message, MessageQueue
from rmq.protocol.record import encode_batch
from rmq.remoting.loop import Waiter, current_loop


@define(eq=False)
class _Entry:
    """A message that waits for its batch, or for its result."""

    outgoing: Outgoing
    waiter: Waiter


class Accumulator:
    """The accumulator of one producer. `tasks` outlives every send."""

    def __init__(self, sender: Sender, tasks: TaskGroup) -> None:
        self._batches = Batches(sender)
        self._tasks = tasks
        self._gathered: dict[BatchKey, list[_Entry]] = {}
        self._new_waiter = current_loop().waiter
        self.takes = self._batches.takes

    async def send(
        self, message: Message, outgoing: Outgoing, queue: MessageQueue | None, sharding_key: str | None
    ) -> SendResult:
        """Send a message with those that begin in this turn of the loop. As `Producer.send`."""
        key = batch_key(message, outgoing, queue, sharding_key)
        entry = _Entry(outgoing, self._new_waiter())
        together = self._gathered.get(key)
        if together is not None:
            together.append(entry)
        else:
            if not self._gathered:
                # A task that is started now runs after all tasks that are ready now.
                self._tasks.start_soon(self._send_gathered)
            self._gathered[key] = [entry]
        result: SendResult = await entry.waiter.wait()
        return result

    async def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        batches = [(key, batch) for key, entries in gathered.items() for batch in _batches(entries)]
        for key, batch in batches[1:]:
            self._tasks.start_soon(self._send, key, batch)
        for key, batch in batches[:1]:
            await self._send(key, batch)

    async def _send(self, key: BatchKey, batch: list[_Entry]) -> None:
        """Send a batch. Raises only cancellation: errors go to the waiting sends."""
        entries = iter(batch)
        try:
            outgoing = batch[0].outgoing if len(batch) == 1 else _joined(key, batch)
            for count, outcome in await self._batches.send(key, outgoing):
                if isinstance(outcome, Exception):
                    for entry in islice(entries, count):
                        entry.waiter.fail(outcome if len(batch) == 1 else _copy(outcome))
                elif count == 1:
                    next(entries).waiter.resolve(outcome)
                else:
                    for entry, one in zip(islice(entries, count), each(outcome), strict=True):
                        entry.waiter.resolve(one)
        except BaseException:
            for entry in batch:
                entry.waiter.fail(LocalProtocolError("the client was closed; the message may be stored"))
            raise


def _batches(entries: list[_Entry]) -> Iterator[list[_Entry]]:
    batch: list[_Entry] = []
    size = 0
    for entry in entries:
        more = len(entry.outgoing.body) + len(entry.outgoing.properties)
        if batch and (size + more > BATCH_BYTES or len(batch) >= BATCH_MESSAGES):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += more
    yield batch


def _joined(key: BatchKey, batch: list[_Entry]) -> Outgoing:
    all_of_it = [entry.outgoing for entry in batch]
    body = encode_batch([(one.flag, one.body, one.properties) for one in all_of_it])
    return joined(key, all_of_it[0].flag, body, [one.unique_id for one in all_of_it])


def _copy(error: Exception) -> Exception:
    """Copy an error: each task that raises it adds to its traceback. The constructors differ, so the copy is
    made as pickle would, without a call of the constructor."""
    made = type(error).__new__(type(error), *error.args)
    made.args = error.args
    made.__dict__.update(error.__dict__)
    made.__cause__ = error.__cause__
    return made
