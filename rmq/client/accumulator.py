"""Accumulator: sends that begin together, by the tasks that run in one turn of the event loop, go to their
broker in one request. It is the `auto_batch` of RocketMQ's producers, but waits for no time: a hundred tasks
that are woken by the answers of one request begin their next sends in one turn.

Only what a batch may hold is taken: see `takes`. What is gathered is sent as `send_batch` does it, at most
`BATCH_BYTES` in a request, and each message has a result of its own, or the error. Where a broker refuses a
batch for one of its messages, or takes no batches at all, they go one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from anyio.abc import TaskGroup
from attrs import define

from rmq.client.outgoing import BATCH, BATCH_MESSAGES, SEND, Outgoing, SendResult, each
from rmq.client.sender import Sender
from rmq.errors import LocalProtocolError, MessageIllegal, RequestCodeNotSupported, check_type
from rmq.message import RETRY_PREFIX, Message, MessageQueue
from rmq.protocol.record import encode_batch
from rmq.remoting.loop import Waiter, current_loop

BATCH_BYTES: Final = 128 * 1024
"""Bodies and properties of one request, at most: what keeps a broker's other senders waiting for 0.1 ms."""


@define(eq=False)
class _Entry:
    """A message that waits for its batch, or for its result."""

    outgoing: Outgoing
    waiter: Waiter


_Key = tuple[str, bool, MessageQueue | None, str | None]
"""What the messages of a batch share: topic, `wait_store`, and where they are to go."""


class Accumulator:
    """Of one producer. `tasks` outlives every send."""

    def __init__(self, sender: Sender, tasks: TaskGroup) -> None:
        self._sender = sender
        self._tasks = tasks
        self._gathered: dict[_Key, list[_Entry]] = {}
        self._new_waiter = current_loop().waiter
        self._has_batches = True  # until a broker says that it knows no such request

    def takes(self, message: Message, outgoing: Outgoing) -> bool:
        """Whether it may go with others: it is no delayed message, none of a retry topic, has no flag of the
        system (compressed, prepared), and is not large."""
        return (
            self._has_batches
            and not (message.is_delayed or outgoing.sys_flag)
            and outgoing.code == SEND
            and len(outgoing.body) < BATCH_BYTES
            and not outgoing.topic.startswith(RETRY_PREFIX)
        )

    async def send(
        self, message: Message, outgoing: Outgoing, queue: MessageQueue | None, sharding_key: str | None
    ) -> SendResult:
        """Send it with those that begin in this turn of the loop. As `Producer.send`."""
        if queue is not None:
            check_type("queue", queue, MessageQueue, "an rmq.MessageQueue")
        elif sharding_key is not None:
            check_type("sharding_key", sharding_key, str, "text")
        entry = _Entry(outgoing, self._new_waiter())
        key = (outgoing.topic, message.wait_store, queue, sharding_key)
        together = self._gathered.get(key)
        if together is not None:
            together.append(entry)
        else:
            if not self._gathered:
                # A task that is started now runs when all that are ready now have had their turn.
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

    async def _send(self, key: _Key, batch: list[_Entry]) -> None:
        """One request. Raises nothing but cancellation: that is for those who wait."""
        _, wait_store, queue, sharding_key = key
        try:
            outgoing = batch[0].outgoing if len(batch) == 1 else _joined(batch, wait_store)
            result = await self._sender.send(outgoing, queue, sharding_key)
            if len(batch) == 1:
                batch[0].waiter.resolve(result)
            else:
                for entry, one in zip(batch, each(result), strict=True):
                    entry.waiter.resolve(one)
        except (MessageIllegal, RequestCodeNotSupported) as error:
            if isinstance(error, RequestCodeNotSupported):
                self._has_batches = False
            if len(batch) == 1:
                batch[0].waiter.fail(error)
            else:  # nothing of it is stored
                for entry in batch:
                    await self._send(key, [entry])
        except Exception as error:
            for entry in batch:
                entry.waiter.fail(_copy(error))
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


def _joined(batch: list[_Entry], wait_store: bool) -> Outgoing:
    first = batch[0].outgoing
    all_of_it = [entry.outgoing for entry in batch]
    return Outgoing(
        first.topic,
        encode_batch([(one.flag, one.body, one.properties) for one in all_of_it]),
        0,
        first.flag,
        "WAIT\x01true" if wait_store else "WAIT\x01false",
        ",".join([one.unique_id for one in all_of_it]),
        is_batch=True,
        code=BATCH,
    )


def _copy(error: Exception) -> Exception:
    """The same error once more: each who raises it adds to its traceback. The classes take what they like, so
    it is made as pickle would, but not initialized."""
    made = type(error).__new__(type(error), *error.args)
    made.args = error.args
    made.__dict__.update(error.__dict__)
    made.__cause__ = error.__cause__
    return made
