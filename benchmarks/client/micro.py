"""What the client costs: CPU and wall time per message of this process, while name server and broker run in
another.

    python benchmarks/client/micro.py [--loop trio|asyncio] [--seconds 2] [--messages 100000]

Goals: one send at a time <= 100 µs of client CPU, 100 in flight <= 15 µs, a backlog with body, properties and
id read <= 4 µs; without async 150 and 15 µs; the import <= 120 ms. CPU per message is the figure to compare;
rates depend on what else the machine does."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import anyio

import rmq
from rmq.client import blocking

BODY = b"x" * 1024
GROUP = "micro"


def serve(folder: str) -> None:
    """The other process: name server and broker on free ports; prints the name server's address."""
    from functools import partial

    import trio

    from rmq.broker.config import BrokerConfig
    from rmq.broker.runtime import service as broker
    from rmq.namesrv import service as namesrv
    from rmq.namesrv.config import NamesrvConfig
    from rmq.store.config import StoreConfig

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            (names, *_) = await nursery.start(partial(namesrv.run, NamesrvConfig(listen_port=0)))
            config = BrokerConfig(namesrv_addr=names, listen_port=0, broker_name="micro")
            await nursery.start(partial(broker.run, config, StoreConfig(store_path_root_dir=folder)))
            print(names, flush=True)

    trio.run(main)


@contextlib.contextmanager
def servers() -> Iterator[str]:
    """Run `serve` in a process of its own; gives the name server's address."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--serve", folder]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait()


class Meter:
    """CPU of this process and wall time, per message."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0

    def __enter__(self) -> Meter:
        self.cpu, self.wall = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        cpu, wall = time.process_time() - self.cpu, time.perf_counter() - self.wall
        count = self.count or 1
        print(
            f"{self.name:34} {count / wall:12,.0f} /s   {cpu / count * 1e6:8.2f} µs CPU   {count:9,}",
            flush=True,
        )


async def send_in_turn(producer: rmq.Producer, seconds: float) -> None:
    message = rmq.Message("Micro", BODY)
    with Meter("send, one at a time") as meter:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            await producer.send(message)
            meter.count += 1


async def send_in_flight(
    producer: rmq.Producer, seconds: float, tasks: int = 100, how: str = "in flight"
) -> None:
    message = rmq.Message("Micro", BODY)

    async def sender() -> None:
        while time.perf_counter() < end:
            await producer.send(message)
            meter.count += 1

    with Meter(f"send, {tasks} {how}") as meter:
        end = time.perf_counter() + seconds
        async with anyio.create_task_group() as group:
            for _ in range(tasks):
                group.start_soon(sender)


async def send_batches(producer: rmq.Producer, messages: int, topic: str) -> None:
    batch = [rmq.Message(topic, BODY) for _ in range(32)]
    with Meter("send_batch, 32 messages each") as meter:
        async with anyio.create_task_group() as group:

            async def sender() -> None:
                while meter.count < messages:
                    meter.count += len(batch)
                    await producer.send_batch(batch)

            for _ in range(4):
                group.start_soon(sender)


async def send_by_pipeline(producer: rmq.Producer, messages: int) -> None:
    message = rmq.Message("Micro", BODY)
    with Meter("send, pipeline") as meter:
        async with producer.pipeline() as pipeline:
            for _ in range(messages):
                await pipeline.send(message)
        meter.count = pipeline.stored


Consume = Callable[[rmq.Consumer, Callable[[int], None]], Awaitable[None]]


async def consume(client: rmq.Client, name: str, messages: int, topic: str, how: Consume) -> None:
    async with client.consumer(f"{GROUP}-{name}", {topic: "*"}, consume_from="first") as consumer:
        with Meter(f"consume, {name}") as meter, anyio.CancelScope() as scope:

            def count(more: int) -> None:
                meter.count += more
                if meter.count >= messages:
                    scope.cancel()

            await how(consumer, count)


async def by_run(consumer: rmq.Consumer, count: Callable[[int], None]) -> None:
    async def handle(message: rmq.StoredMessage) -> None:
        assert len(message.body) == len(BODY)
        count(1)

    await consumer.run(handle, concurrency=20)


async def by_reading(consumer: rmq.Consumer, count: Callable[[int], None]) -> None:
    async def handle(message: rmq.StoredMessage) -> None:
        assert message.body
        assert message.properties
        assert message.message_id
        count(1)

    await consumer.run(handle, concurrency=20)


async def by_batches(consumer: rmq.Consumer, count: Callable[[int], None]) -> None:
    async def handle(messages: list[rmq.StoredMessage]) -> None:
        assert all(len(message.body) == len(BODY) for message in messages)
        count(len(messages))

    await consumer.run_batches(handle)


async def by_iterating(consumer: rmq.Consumer, count: Callable[[int], None]) -> None:
    async for delivery in consumer:
        async with delivery as message:
            assert len(message.body) == len(BODY)
            count(1)


@contextlib.asynccontextmanager
async def client_of(names: str) -> AsyncIterator[tuple[rmq.Client, rmq.Producer]]:
    async with rmq.connect(names) as client, client.producer(GROUP) as producer:
        await producer.send(rmq.Message("Micro", BODY))
        yield client, producer


async def main(names: str, seconds: float, messages: int) -> None:
    async with client_of(names) as (client, producer):
        await send_in_turn(producer, seconds)
        await send_in_flight(producer, seconds)
        async with client.producer(f"{GROUP}-auto", auto_batch=True) as batching:
            await send_in_flight(batching, seconds, how="in flight, auto_batch")
        await send_by_pipeline(producer, messages)
        await send_batches(producer, messages, "MicroBacklog")
        ways: dict[str, Consume] = {
            "run": by_run,
            "all-read": by_reading,
            "run_batches": by_batches,
            "async-for": by_iterating,
        }
        for name, how in ways.items():
            await consume(client, name, messages, "MicroBacklog", how)


def without_async(names: str, seconds: float, messages: int) -> None:
    """The client for scripts, whose loop is in another thread of this process."""
    message = rmq.Message("Micro", BODY)
    with blocking.connect(names) as client:
        with client.producer(GROUP) as producer, Meter("blocking send") as meter:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                producer.send(message)
                meter.count += 1
        topics = {"MicroBacklog": "*"}
        with (
            client.consumer(f"{GROUP}-blocking", topics, consume_from="first") as consumer,
            Meter("blocking consume, all read") as meter,
        ):
            for delivery in consumer:
                with delivery as got:
                    assert got.body
                    assert got.properties
                    assert got.message_id
                meter.count += 1
                if meter.count >= messages:
                    break


def imported() -> None:
    """What the client's import takes beside asyncio and ssl, compiled as installed packages are; the middle
    of seven, behind one that may have to compile."""
    taken = []
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(8):
        code = (
            "import asyncio, ssl, time; began = time.process_time(); import rmq.client.client;"
            "print(time.process_time() - began)"
        )
        taken.append(float(subprocess.check_output([sys.executable, "-c", code], env=environment)))
    print(f"import of the client beside asyncio and ssl: {sorted(taken[1:])[3] * 1e3:.0f} ms CPU")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--loop", choices=["trio", "asyncio"], default="trio")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--messages", type=int, default=100_000)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    else:
        with servers() as address:
            anyio.run(main, address, options.seconds, options.messages, backend=options.loop)
            if options.loop == "asyncio":
                without_async(address, options.seconds, options.messages)
                imported()
