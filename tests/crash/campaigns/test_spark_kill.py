"""`rmq spark archive` and `rmq spark replay` killed by SIGKILL again and again.

RMQ_SPARK_KILLS says how often (20, and a replay 10). Driver, Java and workers die at once.

Archive, while producers write: every message is in the Parquet files once, and at no time twice. It begins
at `latest`, so that the first offsets matter too: the first kill hits the first batch. Small files are merged
all the time. The rows are read by pyarrow, which knows nothing of the archive but its folders.

Replay: every message of the source is in the target, and once for readers that drop duplicates by their key.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest
import trio

import rmq
from tests.crash.spark.processes import batches_in, signal_all, start_spark
from tests.crash.spark.replay import AHEAD_UNLIMITED, RATE, TARGET, Replay
from tests.interop.rocketmq import Process, Processes

from ..load import TOPIC, Load, places, read_all

pytest.importorskip("pyspark")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.crash

KILLS = int(os.environ.get("RMQ_SPARK_KILLS", "20"))
REPLAY_KILLS = int(os.environ.get("RMQ_SPARK_KILLS", "10"))
SEED = int(os.environ.get("RMQ_KILL_SEED", "1"))
BATCH_SECONDS = 900
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
        given = ("--from", "latest", "--batch-rows", "500", "--compact-files", "6")
        return start_spark(self.processes, self.namesrv, "archive", TOPIC, str(self.folder), *given, *more)

    def steps(self) -> int:
        """Batches that are planned, and those that are finished."""
        checkpoint = self.folder / "_rmq" / "checkpoint"
        return batches_in(checkpoint / "offsets") + batches_in(checkpoint / "commits")

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
            signal_all(process, signal.SIGKILL)
            process.kill()
        self.check()


async def campaign(job: Job, senders: Load, chance: random.Random) -> None:
    async with rmq.connect(job.namesrv) as client, client.producer("writers") as producer:
        for number in range(BEFORE):
            body = b"before %d" % number
            senders.ledger.sending(body, (TOPIC, -1)).may_repeat = True
            await producer.send(rmq.Message(TOPIC, body))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, senders, producer)
            for number in range(KILLS):
                steps = 1 if number == 0 else chance.randint(1, 8)
                await job.killed_after(steps, 0.0 if number == 0 else chance.random())
                print(f"kill {number + 1}: {job.steps()} steps, {senders.sent} sent", flush=True)
            nursery.cancel_scope.cancel()


async def write(senders: Load, producer: rmq.Producer) -> None:
    """Some hundred messages a second: enough for a batch at any time, not more than the job can follow."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(senders.send, Paced(producer), 0)


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
    folder, senders = tmp_path / "archive", Load()
    job = Job(processes, folder, namesrv)
    trio.run(campaign, job, senders, random.Random(SEED))
    job.start("--batch-rows", "50000").finish(600)  # what writers are ahead by, in few batches

    stored = places(trio.run(read_all, namesrv))
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
    told = [one for one in senders.ledger.sent.values() if one.promises]
    places_told = {(one.queue[1], one.offset or 0): one.body for one in told}
    assert all(expected[at] == body for at, body in places_told.items() if at[1] >= first[at[0]])
    senders.check(trio.run(read_all, namesrv))


# --- sending again ---


async def replay_campaign(
    processes: Processes, folder: pathlib.Path, namesrv: str, chance: random.Random
) -> int:
    """Kill a run again and again, and have it end. Returns the number of messages in the source."""
    async with rmq.connect(namesrv) as client, client.producer("writers") as producer:
        await producer.send(rmq.Message(TARGET, b"before"))
        async with client.pull_consumer("auditors") as puller:
            job = Replay(processes, folder, namesrv, puller, producer)
            for number in range(REPLAY_KILLS):
                early = number % 4 == 3  # while it starts, looks, or sends the first rows
                rows, seconds = (0, chance.uniform(1, 14)) if early else (chance.randint(1, 3 * RATE), 0)
                rate = ("--rate", str(RATE)) if early or number % 3 else ()
                await job.killed(rows, seconds, *rate)
                print(f"kill {number + 1}: {await job.length() - 1} sent {' '.join(rate)}", flush=True)
            await job.write_ahead(AHEAD_UNLIMITED)
            left = job.source + 1 - await job.length()
            last = await job.overtaken()
            print(f"{left} were left, the last run sent {last['sent']}: {await job.length() - 1}")
            assert last["sent"] > 0
            assert (await job.finish())["sent"] == 0
            return job.source


def test_a_replay_killed_again_and_again_has_sent_every_message(
    processes: Processes, tmp_path: pathlib.Path
) -> None:
    namesrv = processes.rmq_namesrv()
    processes.rmq_broker(namesrv, tmp_path / "store", brokerName="killed")
    written = trio.run(replay_campaign, processes, tmp_path / "state", namesrv, random.Random(SEED))

    source = Counter(places(trio.run(read_all, namesrv)).values())
    target = Counter(places(trio.run(read_all, namesrv, TARGET)).values())
    assert target.pop(b"before") == 1
    once = read_once(namesrv)
    print(
        f"seed {SEED}: {REPLAY_KILLS} kills, {source.total()} messages, {target.total()} sent,"
        f" {target.total() - len(target)} of them twice, {once.total()} without duplicates"
    )
    assert source.total() == len(source) == written
    assert set(target) == set(source)
    assert target.total() > len(target)  # those of the run that was overtaken
    assert once == source


def read_once(namesrv: str) -> Counter[bytes]:
    """The bodies that the run has sent, without duplicates."""
    from rmq.spark import session
    from rmq.spark.sink import without_duplicates

    spark = session("check", master="local[2]", settings={"spark.driver.memory": "512m"})
    rows = spark.read.format("rmq").options(nameServer=namesrv, topic=TARGET).load()
    sent = rows.where("properties['rmqSparkKey'] like 'killed/%'").select("msgId", "body")
    found = Counter(bytes(row.body) for row in without_duplicates(sent).collect())
    spark.stop()
    return found
