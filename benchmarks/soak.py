"""Hours of everyday work for a small cluster: what grows, and whether every message arrives.

    python -m benchmarks.soak [--hours 2] [--rate 200] [--table FILE.csv]

A name server, a master that acknowledges what is on its slave's disk too, and the slave; producers of plain,
delayed and transactional messages (every tenth transaction ends without a word and is checked back), a group
that consumes all of them and fails at one of 200, visitors that come, send, consume and go every few seconds,
and a topic and group that are made and deleted every half a minute. Files of the log are deleted when they
are an hour old. Each minute it takes of every process, this one with the clients too: memory of its own
(RssAnon), all resident memory, open descriptors, and tasks. At the end every message must have come, and the
table shows each process's middle value of the second, third and last quarter. Needs the extra `metrics`, and
/proc.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import os
import pathlib
import random
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

from attrs import Factory, define, frozen

import rmq
from tests.system.drill import Drill, Server

TOPIC, PAID, GROUP = "Orders", "Paid", "billing"
BODY = 300
ONE_FAILS_OF, ONE_IS_DELAYED_OF, ONE_IS_PAID_OF, ONE_IS_FORGOTTEN_OF = 200, 20, 50, 10
VISIT_SECONDS, TABLES_SECONDS, SAMPLE_SECONDS, BAR_SECONDS = 5.0, 30.0, 60.0, 2.0
END_SECONDS = 300.0
"""How long after the last send the last retry, delay and check-back may come."""
SETTINGS: dict[str, Any] = {
    "mappedFileSizeCommitLog": "16777216",
    "fileReservedTime": "1",
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "cleanResourceInterval": "10000",
    "transactionTimeOut": "3000",
    "transactionCheckInterval": "5000",
}


@frozen
class Sample:
    """One process at a moment; memory in MiB."""

    seconds: float
    process: str
    own: float
    resident: float
    descriptors: int
    tasks: int


@define
class Work:
    """What was sent, what came, and what the clients met; keys are the messages' own."""

    waited_for: set[str] = Factory(set)
    sent: int = 0
    delivered: int = 0
    again: int = 0
    unknown: int = 0
    visits: int = 0
    tables: int = 0
    errors: Counter[str] = Factory(Counter)
    is_over: bool = False


def sampled(process: str, pid: int, tasks: int, seconds: float) -> Sample:
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    own, resident = (int(re.findall(rf"{name}:\s+(\d+)", status)[0]) / 1024 for name in ("RssAnon", "VmRSS"))
    return Sample(seconds, process, own, resident, len(os.listdir(f"/proc/{pid}/fd")), tasks)


def tasks_of(server: Server) -> int:
    with urllib.request.urlopen(
        f"http://127.0.0.1:{server.settings['metricsPort']}/metrics", timeout=60
    ) as got:
        return int(float(re.findall(rb"^rmq_tasks (\S+)", got.read(), re.MULTILINE)[0]))


async def take_samples(servers: list[Server], samples: list[Sample], begin: float) -> None:
    while True:
        seconds = time.monotonic() - begin
        for server in servers:
            assert server.process is not None
            tasks = await asyncio.to_thread(tasks_of, server)
            samples.append(sampled(server.name, server.process.pid, tasks, seconds))
        samples.append(sampled("clients", os.getpid(), len(asyncio.all_tasks()), seconds))
        await asyncio.sleep(SAMPLE_SECONDS)


async def send(producer: rmq.TransactionalProducer, work: Work, rate: float, ends: float) -> None:
    """Messages at a steady rate; what fails was not stored, or was, and is not waited for."""
    chance, begin, number = random.Random(7), time.monotonic(), 0
    while time.monotonic() < ends:
        number += 1
        await asyncio.sleep(max(0.0, begin + number / rate - time.monotonic()))
        key = f"k{number}"
        body = chance.randbytes(BODY)
        work.waited_for.add(key)  # before: it may come sooner than its acknowledgement
        try:
            if number % ONE_IS_PAID_OF == 0:
                await pay(producer, rmq.Message(PAID, body, keys=[key]), number)
            else:
                level = 3 if number % ONE_IS_DELAYED_OF == 0 else 0
                await producer.send(rmq.Message(TOPIC, body, keys=[key], delay_level=level))
            work.sent += 1
        except rmq.RmqError as error:
            work.waited_for.discard(key)
            work.errors[f"send: {type(error).__name__}"] += 1
    work.is_over = True


def check_back(message: rmq.StoredMessage) -> rmq.Decision:
    return rmq.COMMIT


async def pay(producer: rmq.TransactionalProducer, message: rmq.Message, number: int) -> None:
    async with producer.transaction(message) as transaction:
        if number // ONE_IS_PAID_OF % ONE_IS_FORGOTTEN_OF == 0:
            transaction.decision = rmq.UNKNOWN


async def consume(client: rmq.Client, work: Work) -> None:
    chance = random.Random(8)

    async def handle(message: rmq.StoredMessage) -> None:
        if chance.randrange(ONE_FAILS_OF) == 0:
            work.again += 1
            raise rmq.Retry("one of 200", delay_level=1)
        work.delivered += 1
        for key in message.keys:
            if key in work.waited_for:
                work.waited_for.discard(key)
            else:
                work.unknown += 1

    async with client.consumer(GROUP, {TOPIC: "*", PAID: "*"}, consume_from="first") as consumer:
        await consumer.run(handle)


async def visit(address: str, work: Work) -> None:
    """Clients that come and go: connections, members of groups, heartbeats."""
    while True:
        await asyncio.sleep(VISIT_SECONDS)
        try:
            async with rmq.connect(address) as client, client.producer("visitors") as producer:
                for _ in range(10):
                    await producer.send(rmq.Message("Visits", b"here", tags="visit"))
                group = f"visitor-{work.visits % 20}"
                async with (
                    client.consumer(group, {"Visits": "*"}) as consumer,
                    asyncio.timeout(VISIT_SECONDS),
                ):
                    async for delivery in consumer:
                        async with delivery:
                            break
        except TimeoutError:
            pass
        except rmq.RmqError as error:
            work.errors[f"visit: {type(error).__name__}"] += 1
        work.visits += 1


async def change_tables(client: rmq.Client, work: Work) -> None:
    while True:
        await asyncio.sleep(TABLES_SECONDS)
        name = f"Passing-{work.tables}"
        try:
            await client.admin.create_topic(name, queues=4)
            await client.admin.create_group(name)
            async with client.producer("passing") as producer:
                for queue in await producer.queues(name):
                    await producer.send(rmq.Message(name, bytes(BODY)), queue=queue)
            await client.admin.delete_topic(name)
            await client.admin.delete_group(name, remove_offset=True)
            work.tables += 1
        except rmq.RmqError as error:
            work.errors[f"tables: {type(error).__name__}"] += 1


async def show(work: Work, begin: float, seconds: float) -> None:
    while True:
        passed = time.monotonic() - begin
        part = min(1.0, passed / seconds)
        bar = ("#" * round(part * 30)).ljust(30, ".")
        line = f"[{bar}] {passed / 60:5.1f} min, {work.sent:,} sent, {len(work.waited_for):,} on their way"
        print(f"\r{line}", end="", file=sys.stderr, flush=True)
        await asyncio.sleep(BAR_SECONDS if sys.stderr.isatty() else SAMPLE_SECONDS)


async def soak(drill: Drill, seconds: float, rate: float, samples: list[Sample]) -> Work:
    work, begin = Work(), time.monotonic()
    async with rmq.connect(drill.namesrv) as client:
        for topic in (TOPIC, PAID, "Visits"):
            await client.admin.create_topic(topic, queues=8)
        servers = list(drill.servers.values())
        async with client.transactional_producer("orders", check_back) as producer:
            others = [
                asyncio.create_task(each)
                for each in (
                    consume(client, work),
                    visit(drill.namesrv, work),
                    change_tables(client, work),
                    take_samples(servers, samples, begin),
                    show(work, begin, seconds),
                )
            ]
            sender = asyncio.create_task(send(producer, work, rate, begin + seconds))
            done, _ = await asyncio.wait([sender, *others], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # only the sender ends by itself
            limit = time.monotonic() + END_SECONDS
            while work.waited_for and time.monotonic() < limit:
                await asyncio.sleep(0.5)
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
    return work


def quarters(samples: list[Sample], process: str, name: str) -> Iterator[float]:
    """The middle values of the second, third and last quarter of the time."""
    found = [getattr(sample, name) for sample in samples if sample.process == process]
    size = max(1, len(found) // 4)
    for number in (1, 2, 3):
        yield statistics.median(found[number * size : (number + 1) * size] or found[-1:])


def report(samples: list[Sample]) -> Iterator[str]:
    yield "| process | own memory, MiB | resident, MiB | descriptors | tasks |"
    yield "|---|---|---|---|---|"
    for process in dict.fromkeys(sample.process for sample in samples):
        cells = [
            ", ".join(f"{value:.{digits}f}" for value in quarters(samples, process, name))
            for name, digits in (("own", 1), ("resident", 0), ("descriptors", 0), ("tasks", 0))
        ]
        yield f"| {process} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=200.0, help="messages a second")
    parser.add_argument("--table", type=pathlib.Path, help="where all samples go, as CSV")
    given = parser.parse_args()
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="rmq-soak-") as folder:
        drill = Drill(pathlib.Path(folder), "")
        try:
            drill.name_server()
            drill.broker("orders", durability="replicated", **SETTINGS)
            drill.slave("orders", **SETTINGS)
            drill.wait_until_copied("orders")
            work = asyncio.run(soak(drill, given.hours * 3600, given.rate, samples))
            for server in reversed(drill.servers.values()):
                server.end()
        finally:
            drill.stop()
            if given.table:
                with given.table.open("w", newline="") as file:
                    rows = csv.writer(file)
                    rows.writerow(("seconds", "process", "own", "resident", "descriptors", "tasks"))
                    rows.writerows(
                        (round(one.seconds), one.process, one.own, one.resident, one.descriptors, one.tasks)
                        for one in samples
                    )
    print(f"\n{given.hours:g} hours, load of this machine at the end {os.getloadavg()[0]:.1f}")
    print(
        f"{work.sent:,} sent, {work.delivered:,} delivered, {work.again:,} of them failed first, "
        f"{work.unknown:,} came twice, {work.visits:,} visits, {work.tables:,} topics came and went"
    )
    print(f"errors: {dict(work.errors) or 'none'}")
    print("\n".join(report(samples)))
    if work.waited_for:
        sys.exit(f"{len(work.waited_for)} did not come, such as {sorted(work.waited_for)[:5]}")


if __name__ == "__main__":
    main()
