"""A run of `rmq demo`: name server, broker, producer and two consumers in one process."""

from __future__ import annotations

import pathlib
import time
import zlib
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

import trio
from attrs import field, frozen
from rich.progress import Progress, TaskID

import rmq
from rmq import embedded
from rmq.cli.demo.report import Delivery, Results
from rmq.cli.demo.rows import Row
from rmq.cli.output import console, progress
from rmq.client.consumer import Consumer
from rmq.client.producer import Producer
from rmq.remoting.loop import bare_errors

CONSUMERS = 2
WORKERS = 32
"""Sends in flight; one worker sends all rows of a key, one after the other."""
STALL_SECONDS = 30
LONGEST_INDEXED_KEY = 128


class DemoFailed(Exception):
    """The demo could not be carried through; the text says how far it came."""


@frozen
class Plan:
    """What to send, where to, and the id by which this run knows its own messages."""

    rows: Sequence[Row] = field(repr=False)
    topic: str
    queues: int
    folder: pathlib.Path
    run_id: str

    def message(self, row: Row) -> rmq.Message:
        """The message of one row."""
        indexed = row.key.isprintable() and " " not in row.key and len(row.key) <= LONGEST_INDEXED_KEY
        return rmq.Message(
            self.topic,
            row.body,
            keys=(row.key,) if indexed else (),
            properties={"demo": self.run_id, "row": str(row.number)},
        )


async def run_demo(plan: Plan) -> Results:
    """Runs it all and returns what happened. Raises RmqError, DemoFailed."""
    results = Results(plan.rows)
    async with embedded.open(plan.folder) as system:
        await system.create_topic(plan.topic, plan.queues)
        async with AsyncExitStack() as stack:
            producer, consumers = await _connect(stack, system, plan)
            with bare_errors():
                async with trio.open_nursery() as nursery:
                    for number, consumer in enumerate(consumers):
                        handler = partial(_deliver, plan, results, number)
                        nursery.start_soon(partial(consumer.run, handler, concurrency=plan.queues))
                    await _wait_for_even_shares(consumers, plan)
                    await _publish_and_wait(producer, plan, results)
                    nursery.cancel_scope.cancel()
    return results


async def _connect(
    stack: AsyncExitStack, system: embedded.System, plan: Plan
) -> tuple[Producer, list[Consumer]]:
    """One producer and two members of one group, each on a client of its own as in separate processes."""
    group = f"demo-{plan.run_id}"
    clients = [
        await stack.enter_async_context(rmq.connect(system.namesrv_address)) for _ in range(CONSUMERS + 1)
    ]
    # Ordered: of a queue one message at a time, under the broker's lock of the queue.
    ordered = partial(rmq.Client.consumer, consume_from="first", ordered=True)
    consumers = [
        await stack.enter_async_context(ordered(client, group, {plan.topic: "*"})) for client in clients[1:]
    ]
    return await stack.enter_async_context(clients[0].producer(group)), consumers


async def _wait_for_even_shares(consumers: Sequence[Consumer], plan: Plan) -> None:
    """Waits until the queues are shared out evenly, so that no queue changes hands while messages flow."""
    with trio.move_on_after(STALL_SECONDS):
        while True:
            counts = [sum(queue.topic == plan.topic for queue in one.queues) for one in consumers]
            if sum(counts) == plan.queues and max(counts) - min(counts) <= 1:
                return
            await trio.sleep(0.02)
    raise DemoFailed(f"the {plan.queues} queues were not shared out within {STALL_SECONDS} s: {counts}")


async def _deliver(plan: Plan, results: Results, consumer: int, message: rmq.StoredMessage) -> None:
    """The handler of both consumers. Messages of an earlier run in the same folder are passed over."""
    if message.properties.get("demo") != plan.run_id:
        return
    number = int(message.properties["row"])
    await trio.lowlevel.checkpoint()  # as a handler that waits: another one may overtake it here
    intact = message.body == plan.rows[number].body
    results.delivered(Delivery(consumer, number, message.queue_id, time.perf_counter(), intact))


async def _publish_and_wait(producer: Producer, plan: Plan, results: Results) -> None:
    shares: list[list[Row]] = [[] for _ in range(WORKERS)]
    for row in plan.rows:
        shares[zlib.crc32(row.key.encode()) % WORKERS].append(row)
    with progress(console(stderr=True), transient=False) as shown:
        bars = [shown.add_task(name, total=len(plan.rows)) for name in ("published", "consumed")]
        with bare_errors():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_watch, shown, bars, results, nursery.cancel_scope)
                for rows in shares:
                    nursery.start_soon(_publish, producer, plan, results, rows)
        if not results.complete:
            came = f"only {len(results.seen):,} of {len(plan.rows):,} rows came"
            raise DemoFailed(f"{came}; the last {STALL_SECONDS} s brought none")


async def _publish(producer: Producer, plan: Plan, results: Results, rows: Sequence[Row]) -> None:
    """Sends rows one after the other: a row leaves when the one before it is acknowledged."""
    for row in rows:
        message = plan.message(row)
        results.sent_at[row.number] = time.perf_counter()
        await producer.send(message, sharding_key=row.key)
        results.acknowledged_at[row.number] = time.perf_counter()


async def _watch(shown: Progress, bars: Sequence[TaskID], results: Results, scope: trio.CancelScope) -> None:
    """Moves the bars; ends the wait when everything has come, or when nothing comes any more."""
    last, since = (0, 0), trio.current_time()
    while not results.complete:
        now = len(results.acknowledged_at), len(results.seen)
        for bar, count in zip(bars, now, strict=True):
            shown.update(bar, completed=count)
        if now != last:
            last, since = now, trio.current_time()
        elif trio.current_time() - since > STALL_SECONDS:
            break
        await trio.sleep(0.05)
    while len(results.acknowledged_at) < len(results.seen):
        await trio.sleep(0.01)  # a row can be consumed before its send has heard of it
    for bar in bars:
        shown.update(bar, completed=len(results.seen))
    scope.cancel()
