"""RocketMQ's official 5.x clients while the master of a set of three is killed by SIGKILL: simple and push
consumers and a producer, at the brokers' own doors and behind `rmq proxy`.

At the brokers' doors a client has the addresses of all three. RMQ_KILL_CYCLES says how often a master is
killed: a fiftieth of it, 2 at least.
"""

from __future__ import annotations

import os
import pathlib
import random
import time
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import trio

import rmq
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.network import TcpNetwork
from rmq.remoting.pool import Pool
from tests.interop.clients5 import INVISIBLE, Client, Job, Jobs, client_for, judge
from tests.interop.rocketmq import wait_for_port
from tests.ports import free_ports
from tests.system import failover

pytest.importorskip("h2")
pytestmark = pytest.mark.interop

CYCLES = max(2, int(os.environ.get("RMQ_KILL_CYCLES", "100")) // 50)
SEED = int(os.environ.get("RMQ_KILL_SEED", "1"))
PUSHING = ("java", "node", "python")
SEVERAL = ("java", "python")
"""Clients that go on to the next of several addresses (docs/grpc.md tells what Node and Rust do)."""
STEPS = 120
"""A kill comes after so many acknowledged messages, and a little more."""
EVERY_MS = 15
SECONDS = 240.0


@pytest.fixture(params=["java", "python", "node", "rust"])
def client(request: pytest.FixtureRequest) -> Client:
    """A client's driver."""
    return client_for(request)


@pytest.mark.parametrize("door", ["brokers", "proxy"])
def test_nothing_is_lost_when_masters_are_killed(client: Client, door: str, tmp_path: pathlib.Path) -> None:
    if door == "brokers" and client.language not in SEVERAL:
        pytest.skip(f"the {client.language} client does not go on to another of its addresses")
    trio.run(partial(_kill_masters, tmp_path, client, door))


async def _kill_masters(folder: pathlib.Path, client: Client, door: str) -> None:
    processes, chance = failover.Processes(folder, 3), random.Random(SEED)
    processes.settings = {"plugins": "grpc", "grpcPort": "0"}
    jobs = Jobs(client, {})
    try:
        processes.start()
        async with Pool(TcpNetwork(), ClientOnlyEndpoint()) as pool:
            await processes.until_in_sync(pool, 3)
            await _make_topic(processes.namesrv)
            address = ";".join(f"127.0.0.1:{port}" for port in processes.brokers)
            if door == "proxy":
                (port,) = free_ports(1)
                processes.spawn(port, "rmq.proxy", {"namesrvAddr": processes.namesrv, "listenPort": port})
                await trio.to_thread.run_sync(wait_for_port, port)
                address = f"127.0.0.1:{port}"
            work = Work(jobs, address, pushes=client.language in PUSHING)
            await work.has_acked(10)
            for _ in range(CYCLES):
                port = await processes.until_in_sync(pool, 3)
                await work.has_acked(work.acked + STEPS)
                await trio.sleep(chance.random() * 0.3)
                processes.kill(port)
                await processes.until_in_sync(pool, 1, besides=port)
                killed = time.monotonic()
                await work.has_acked(work.acked + 1)
                print(f"{client.language} by {door}: acknowledged {time.monotonic() - killed:.1f} s later")
                processes.start_broker(port)
            await work.finish()
            work.check()
    finally:
        jobs.close()
        processes.stop()


async def _make_topic(names: str) -> None:
    async with rmq.connect(names) as ours:
        with trio.fail_after(SECONDS):
            while not await ours.admin.create_topic("Kept", queues=4):
                await trio.sleep(0.2)


class Work:
    """A producer, two simple consumers of one group, and a push consumer of another, at work."""

    def __init__(self, jobs: Jobs, address: str, *, pushes: bool) -> None:
        options = {"topic": "Kept", "seconds": 3_600}
        simple = partial(jobs, address, "simple", consumer="simple", batch=8, **options)
        self.consumers = [simple(), simple()]
        self.pushed = [jobs(address, "push", consumer="push", **options)] if pushes else []
        for job in (*self.consumers, *self.pushed):
            job.started()
        count = CYCLES * STEPS * 4
        self.bodies = [f"m{number}" for number in range(count)]
        self.sender = jobs(
            address, "send", topic="Kept", bodies=",".join(self.bodies), retry="yes", every=EVERY_MS
        )

    @property
    def acked(self) -> int:
        """Messages that the simple consumers have acknowledged."""
        return sum(len(job.told("acked")) for job in self.consumers)

    async def has_acked(self, count: int) -> None:
        """Wait until so many messages were acknowledged, or all."""
        await self._until(lambda: self.acked >= min(count, len(self.bodies)), "acknowledgements")

    async def finish(self) -> None:
        """Wait until all messages were sent, and have come to both groups. Some may be acknowledged
        without an answer, as that was lost with a master."""
        await self._until(lambda: self.sender.child.poll() is not None, "the producer's end")
        wanted = {row[0] for row in self.sender.told("sent")}
        await self._until(lambda: wanted <= _of(self.consumers, "message"), "all at the simple consumers")
        if self.pushed:
            await self._until(lambda: wanted <= _of(self.pushed, "message"), "all at the push consumer")
        await trio.sleep(INVISIBLE + 3)

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        with trio.move_on_after(SECONDS):
            while not holds():
                await trio.sleep(0.1)
            return
        rows = [job.rows[-8:] for job in (self.sender, *self.consumers, *self.pushed)]
        raise AssertionError(f"{what} not within {SECONDS:g} s: {rows}")

    def check(self) -> None:
        """Check that no acknowledged message was lost, or came after its acknowledgement."""
        assert {row[0] for row in self.sender.told("sent")} == set(self.bodies)
        verdict = judge(self.sender, self.consumers, EVERY_MS / 1000)
        assert (verdict.lost, verdict.again) == ([], [])


def _of(jobs: Sequence[Job], word: str) -> set[str]:
    return {row[0] for job in jobs for row in job.told(word)}
