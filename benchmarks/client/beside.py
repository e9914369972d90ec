"""Our client beside aiokafka and nats-py, each on its own broker, on asyncio: CPU and wall time per message.

    pip install aiokafka nats-py
    python -m benchmarks.client.beside --kafka FOLDER --nats FILE [--rounds 5] [--seconds 2] [--messages N]

FOLDER holds the jars of org.apache.kafka:kafka_2.13 and what it needs, FILE is nats-server; what is not given
is left out. All brokers run as they come, on loopback, for the whole run. Each client works in a process of
its own, and the clients take turns, in an order that is turned round from round to round. Told are the
medians over the rounds of the client's own CPU time, user and system, and of the rate, which depends on the
broker and on what else the machine does.

The works are the same for all, with bodies of 1 KiB: one acknowledged send at a time; 100 tasks that each
send and wait (NATS: to a JetStream stream; Kafka: acks=1); a backlog read with body, headers and id, and
committed: by us as the consumer does it, by aiokafka with its auto-commit, from NATS by a pull subscription
of 256 whose last message is acknowledged for all. The client of Kafka is partly compiled, the others are
Python.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from statistics import median
from typing import Any

from benchmarks.client import micro

BODY = micro.BODY
SEND, FLIGHT, BATCH, CONSUME, BLANK = (
    "one at a time",
    "100 in flight",
    "100, auto_batch",
    "consume, all read",
    "",
)
WORKS = (SEND, FLIGHT, BATCH, CONSUME)
CLIENTS = ("rmq", "aiokafka", "nats-py")
KAFKA_PORT, NATS_PORT = 29092, 24222


# --- what a client's process does ---


class Meter:
    """CPU µs of this process and messages per second."""

    def __init__(self) -> None:
        self.results: dict[str, tuple[float, float]] = {}

    @contextlib.contextmanager
    def of(self, work: str) -> Iterator[list[int]]:
        count = [0]
        cpu, wall = time.process_time(), time.perf_counter()
        yield count
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        self.results[work] = cpu / count[0] * 1e6, count[0] / wall


Send = Callable[[], Awaitable[Any]]


async def send_all(meter: Meter, send: Send, seconds: float, flight: str = FLIGHT) -> None:
    await send()
    if flight == FLIGHT:
        with meter.of(SEND) as count:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                await send()
                count[0] += 1
    with meter.of(flight) as count:
        end = time.perf_counter() + seconds

        async def sender() -> None:
            while time.perf_counter() < end:
                await send()
                count[0] += 1

        await asyncio.gather(*[sender() for _ in range(100)])


async def as_rmq(address: str, meter: Meter, seconds: float, messages: int) -> None:
    import rmq

    message = rmq.Message("Micro", BODY)
    async with rmq.connect(address) as client:
        for flight in (FLIGHT, BATCH):
            async with client.producer(flight[:3], auto_batch=flight == BATCH) as producer:
                await send_all(meter, lambda: producer.send(message), seconds, flight)
        async with client.producer("fill") as producer:
            for _ in range(messages // 32 + 1):
                await producer.send_batch([rmq.Message("Backlog", BODY)] * 32)
        group = f"g{uuid.uuid4().hex}"
        async with client.consumer(group, {"Backlog": "*"}, consume_from="first") as consumer:
            with meter.of(CONSUME) as count:

                async def handle(message: rmq.StoredMessage) -> None:
                    assert message.body
                    assert message.properties
                    assert message.message_id
                    count[0] += 1
                    if count[0] == messages:
                        done.set()

                done = asyncio.Event()
                running = asyncio.create_task(consumer.run(handle))
                await done.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def as_kafka(address: str, meter: Meter, seconds: float, messages: int) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # type: ignore[import-not-found]

    producer = AIOKafkaProducer(bootstrap_servers=address, acks=1)
    await producer.start()
    headers = [("id", uuid.uuid4().bytes)]
    await send_all(meter, lambda: producer.send_and_wait("Micro", BODY, headers=headers), seconds)
    for start in range(0, messages, 500):
        many = min(500, messages - start)
        sent = [await producer.send("Backlog", BODY, headers=headers) for _ in range(many)]
        await asyncio.gather(*sent)
    await producer.stop()
    consumer = AIOKafkaConsumer(
        "Backlog", bootstrap_servers=address, group_id=uuid.uuid4().hex, auto_offset_reset="earliest"
    )
    await consumer.start()
    with meter.of(CONSUME) as count:
        async for message in consumer:
            assert message.value
            assert message.headers
            assert message.offset >= 0
            count[0] += 1
            if count[0] == messages:
                break
    await consumer.stop()


async def as_nats(address: str, meter: Meter, seconds: float, messages: int) -> None:
    import nats  # type: ignore[import-not-found]
    from nats.js.api import AckPolicy, ConsumerConfig  # type: ignore[import-not-found]

    client = await nats.connect(address)
    stream = client.jetstream()
    for name in ("Micro", "Backlog"):
        with contextlib.suppress(nats.js.errors.BadRequestError):
            await stream.add_stream(name=name, subjects=[name])
    headers = {"id": uuid.uuid4().hex}
    await send_all(meter, lambda: stream.publish("Micro", BODY, headers=headers), seconds)
    for start in range(0, messages, 500):
        many = min(500, messages - start)
        await asyncio.gather(*[stream.publish("Backlog", BODY, headers=headers) for _ in range(many)])
    config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=10_000)
    subscription = await stream.pull_subscribe("Backlog", uuid.uuid4().hex, config=config)
    with meter.of(CONSUME) as count:
        while count[0] < messages:
            fetched = await subscription.fetch(256, timeout=10)
            for message in fetched:
                assert message.data
                assert message.headers
                assert message.reply
            count[0] += len(fetched)
            await fetched[-1].ack()
    await client.close()


WAYS = dict(zip(CLIENTS, (as_rmq, as_kafka, as_nats), strict=True))


# --- the brokers ---


@contextlib.contextmanager
def kafka(jars: pathlib.Path) -> Iterator[str]:
    """Kafka in KRaft mode, one node, as it comes; four partitions, as our topics have queues."""
    with tempfile.TemporaryDirectory() as folder:
        address, controller = f"127.0.0.1:{KAFKA_PORT}", f"127.0.0.1:{KAFKA_PORT + 1}"
        settings = pathlib.Path(folder, "server.properties")
        settings.write_text(
            f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@{controller}\n"
            f"listeners=PLAINTEXT://{address},CONTROLLER://{controller}\n"
            "controller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
            f"log.dirs={folder}/data\nnum.partitions=4\noffsets.topic.replication.factor=1\n"
            "group.initial.rebalance.delay.ms=0\n"
        )
        java = ["java", "-Xmx512m", "-cp", f"{jars}/*"]
        cluster = subprocess.check_output([*java, "kafka.tools.StorageTool", "random-uuid"], text=True)
        form = [*java, "kafka.tools.StorageTool", "format", "-t", cluster.split()[-1], "-c", str(settings)]
        subprocess.run(form, check=True, stdout=subprocess.DEVNULL)
        with serving([*java, "kafka.Kafka", str(settings)], KAFKA_PORT):
            yield address


@contextlib.contextmanager
def nats_server(program: pathlib.Path) -> Iterator[str]:
    """nats-server with JetStream, its streams in files."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(program), "-js", "-sd", folder, "-a", "127.0.0.1", "-p", str(NATS_PORT)]
        with serving(command, NATS_PORT):
            yield f"nats://127.0.0.1:{NATS_PORT}"


@contextlib.contextmanager
def serving(command: list[str], port: int) -> Iterator[None]:
    """Run a server, from when its port is open."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asyncio.run(until_open(port))
        yield
    finally:
        process.terminate()
        process.wait()


async def until_open(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.2)
            else:
                writer.close()
                return


# --- the rounds ---


def one_turn(name: str, address: str, seconds: float, messages: int) -> dict[str, tuple[float, float]]:
    command = [sys.executable, "-m", "benchmarks.client.beside", "--turn", name, address]
    command += ["--seconds", str(seconds), "--messages", str(messages)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    results: dict[str, tuple[float, float]] = json.loads(told.splitlines()[-1])
    return results


def play(options: argparse.Namespace) -> None:
    results: dict[tuple[str, str], list[tuple[float, float]]] = {}
    loads = []
    with contextlib.ExitStack() as stack:
        addresses = {"rmq": stack.enter_context(micro.servers())}
        if options.kafka:
            addresses["aiokafka"] = stack.enter_context(kafka(options.kafka))
        if options.nats:
            addresses["nats-py"] = stack.enter_context(nats_server(options.nats))
        for turn in range(options.rounds):
            for name in list(addresses)[:: -1 if turn % 2 else 1]:
                for work, figures in one_turn(
                    name, addresses[name], options.seconds, options.messages
                ).items():
                    results.setdefault((name, work), []).append(figures)
            loads.append(os.getloadavg()[0])
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores,"
        f" load {min(loads):.1f} to {max(loads):.1f},"
    )
    print(f"{options.rounds} rounds; CPU µs a message (messages a second)\n")
    print("| work |", " | ".join(addresses), "|")
    print("|---|" + "---|" * len(addresses))
    for work in WORKS:
        cells = [told(results.get((name, work))) for name in addresses]
        print(f"| {work} |", " | ".join(cells), "|")


def told(figures: list[tuple[float, float]] | None) -> str:
    if not figures:
        return ""
    return f"{median(cpu for cpu, _ in figures):.1f} ({median(rate for _, rate in figures):,.0f})"


async def take_turn(name: str, address: str, seconds: float, messages: int) -> None:
    meter = Meter()
    await WAYS[name](address, meter, seconds, messages)
    print(json.dumps(meter.results))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kafka", type=pathlib.Path, metavar="FOLDER", help="jars of Kafka")
    parser.add_argument("--nats", type=pathlib.Path, metavar="FILE", help="nats-server")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--turn", nargs=2, metavar=("CLIENT", "ADDRESS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        client, address = options.turn
        asyncio.run(take_turn(client, address, options.seconds, options.messages))
    else:
        play(options)
