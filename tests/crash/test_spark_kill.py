"""A streaming job killed by SIGKILL again and again while producers write: every message is in the Parquet
files once.

RMQ_SPARK_KILLS says how often (20). It begins at `latest`, so that the first offsets matter too: the first
kill hits the first batch. Driver, Java and workers die at once.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest
import trio

import rmq
from rmq.message import MessageQueue
from tests.interop.rocketmq import Process, Processes

from .ledger import TOPIC, Ledger, read_all

pytest.importorskip("pyspark")

pytestmark = pytest.mark.crash

KILLS = int(os.environ.get("RMQ_SPARK_KILLS", "20"))
SEED = int(os.environ.get("RMQ_KILL_SEED", "1"))
BATCH_SECONDS = 180
BEFORE = 50


@pytest.fixture
def processes(tmp_path: pathlib.Path) -> Iterator[Processes]:
    with Processes(cast(Any, None), tmp_path) as started:
        yield started


class Job:
    """The streaming job, started and killed."""

    def __init__(self, processes: Processes, folder: pathlib.Path, namesrv: str) -> None:
        self.processes = processes
        self.folder = folder
        self.namesrv = namesrv

    def start(self, what: str) -> Process:
        program = [sys.executable, "-m", "tests.crash.spark_archive", what, str(self.folder), self.namesrv]
        plugins = pathlib.Path(__file__).parents[2] / "plugins"
        path = os.pathsep.join([str(plugins.parent), str(plugins)])
        return self.processes.start(program, f"spark-{what}", env={"PYTHONPATH": path})

    def steps(self) -> int:
        """Batches that are planned, and those that are finished."""
        checkpoint = self.folder / "checkpoint"
        logs = [*checkpoint.glob("offsets/[0-9]*"), *checkpoint.glob("commits/[0-9]*")]
        return len(logs)

    async def killed_after(self, steps: int, seconds: float) -> None:
        """Run until the checkpoint has got so many steps on, a moment longer, then kill all of it."""
        began = self.steps()
        process = self.start("stream")
        try:
            with trio.fail_after(BATCH_SECONDS):
                while self.steps() < began + steps:
                    assert process.child.poll() is None, process.said()
                    await trio.sleep(0.02)
            await trio.sleep(seconds)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.kill()


async def campaign(job: Job, ledger: Ledger, chance: random.Random) -> None:
    async with rmq.connect(job.namesrv) as client, client.producer("writers") as producer:
        for number in range(BEFORE):
            await producer.send(rmq.Message(TOPIC, b"before %d" % number))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, ledger, producer)
            for number in range(KILLS):
                steps = 1 if number == 0 else chance.randint(1, 8)
                await job.killed_after(steps, 0.0 if number == 0 else chance.random())
                print(f"kill {number + 1}: {job.steps()} steps, {ledger.sent} sent", flush=True)
            nursery.cancel_scope.cancel()


async def write(ledger: Ledger, producer: rmq.Producer) -> None:
    """Some hundred messages a second: enough for a batch at any time, not more than the job can follow."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ledger.send, Paced(producer), 0)


class Paced:
    """A producer that takes a breath before each message."""

    def __init__(self, producer: rmq.Producer) -> None:
        self._producer = producer

    async def send(self, message: rmq.Message) -> rmq.SendResult:
        await trio.sleep(0.005)
        return await self._producer.send(message)


def test_a_streaming_job_killed_again_and_again_has_every_message_once(
    processes: Processes, tmp_path: pathlib.Path
) -> None:
    namesrv = processes.rmq_namesrv()
    processes.rmq_broker(namesrv, tmp_path / "store", brokerName="killed")
    folder, ledger = tmp_path / "job", Ledger()
    folder.mkdir()
    job = Job(processes, folder, namesrv)
    trio.run(campaign, job, ledger, random.Random(SEED))
    job.start("finish").finish(600)

    stored = trio.run(read_all, namesrv)
    state = json.loads((folder / "state" / "startingOffsets.json").read_text())
    first = {int(queue): at for queue, at in state["topics"][TOPIC]["killed"].items()}
    expected = {(queue, at): body for (queue, at), body in stored.items() if at >= first[queue]}
    found = [
        (MessageQueue(topic, broker, queue), at, bytes.fromhex(body))
        for topic, broker, queue, at, body in json.loads((folder / "rows.json").read_text())
    ]
    places = Counter((queue, at) for queue, at, _ in found)
    print(f"seed {SEED}: {KILLS} kills, {len(expected)} messages, {len(found)} rows")
    assert sum(first.values()) >= BEFORE
    assert len(expected) > 10 * KILLS
    assert [place for place, count in places.items() if count > 1] == []
    assert {(queue.queue_id, at): body for queue, at, body in found} == expected
    told = [(place, body) for body, place in ledger.acknowledged.items() if place[1] >= first[place[0]]]
    assert all(expected[place] == body for place, body in told)
