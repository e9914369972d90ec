"""`rmq spark archive` killed by SIGKILL again and again while producers write: every message is in the
Parquet files once, and at no time twice.

RMQ_SPARK_KILLS says how often (20). It begins at `latest`, so that the first offsets matter too: the first
kill hits the first batch. Driver, Java and workers die at once. Small files are merged all the time. The rows
are read by pyarrow, which knows nothing of the archive but its folders.
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
from tests.interop.rocketmq import Process, Processes

from .ledger import TOPIC, Ledger, read_all

pytest.importorskip("pyspark")
pq = pytest.importorskip("pyarrow.parquet")

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
    """The archive, started and killed."""

    def __init__(self, processes: Processes, folder: pathlib.Path, namesrv: str) -> None:
        self.processes = processes
        self.folder = folder
        self.namesrv = namesrv

    def start(self, *more: str) -> Process:
        program = [sys.executable, "-m", "rmq", "spark", "archive", TOPIC, str(self.folder)]
        program += ["-n", self.namesrv, "--from", "latest", "--batch-rows", "500", "--compact-files", "6"]
        program += ["--master", "local[2]", "--memory", "512m", *more]
        plugins = pathlib.Path(__file__).parents[2] / "plugins"
        path = os.pathsep.join([str(plugins.parent), str(plugins)])
        return self.processes.start(program, "spark-archive", env={"PYTHONPATH": path})

    def steps(self) -> int:
        """Batches that are planned, and those that are finished."""
        checkpoint = self.folder / "_rmq" / "checkpoint"
        logs = [*checkpoint.glob("offsets/[0-9]*"), *checkpoint.glob("commits/[0-9]*")]
        return len(logs)

    def rows(self) -> list[tuple[tuple[int, int], bytes]]:
        """((queue, offset), body) of each row that a reader of the files finds now."""
        found = []
        for path in self.folder.glob("date=*/topic=*/*.parquet"):
            table = pq.read_table(path, columns=["queueId", "queueOffset", "body"], partitioning=None)
            columns = [column.to_pylist() for column in table.columns]
            found += [((queue, at), body) for queue, at, body in zip(*columns, strict=True)]
        return found

    def check(self) -> None:
        places = Counter(place for place, _ in self.rows())
        assert [place for place, count in places.items() if count > 1] == []

    async def killed_after(self, steps: int, seconds: float) -> None:
        """Run until the checkpoint has got so many steps on, a moment longer, then kill all of it."""
        began = self.steps()
        process = self.start("--every", "100ms")
        try:
            with trio.fail_after(BATCH_SECONDS):
                while self.steps() < began + steps:
                    assert process.child.poll() is None, process.said()
                    await trio.sleep(0.02)
            await trio.sleep(seconds)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.kill()
        self.check()


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


def test_an_archive_killed_again_and_again_has_every_message_once(
    processes: Processes, tmp_path: pathlib.Path
) -> None:
    namesrv = processes.rmq_namesrv()
    processes.rmq_broker(namesrv, tmp_path / "store", brokerName="killed")
    folder, ledger = tmp_path / "archive", Ledger()
    job = Job(processes, folder, namesrv)
    trio.run(campaign, job, ledger, random.Random(SEED))
    job.start("--batch-rows", "50000").finish(600)  # what writers are ahead by, in few batches

    stored = trio.run(read_all, namesrv)
    state = json.loads((folder / "_rmq" / "state" / "startingOffsets.json").read_text())
    first = {int(queue): at for queue, at in state["topics"][TOPIC]["killed"].items()}
    expected = {place: body for place, body in stored.items() if place[1] >= first[place[0]]}
    found = job.rows()
    files = [path.name for path in folder.glob("date=*/topic=*/*.parquet")]
    merged = sum(name.startswith("merged-") for name in files)
    print(
        f"seed {SEED}: {KILLS} kills, {len(expected)} messages, {len(found)} rows in {len(files)} files,"
        f" {merged} of them merged"
    )
    assert sum(first.values()) >= BEFORE
    assert len(expected) > 10 * KILLS
    assert len(found) == len(expected)
    assert dict(found) == expected
    assert merged or KILLS < 5
    told = [(place, body) for body, place in ledger.acknowledged.items() if place[1] >= first[place[0]]]
    assert all(expected[place] == body for place, body in told)
