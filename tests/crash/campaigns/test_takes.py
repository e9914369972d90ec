"""Messages taken one by one, and brokers killed by SIGKILL in the middle: no answered acknowledgement is
lost, nothing comes after it, and every message is delivered in the end.

RMQ_KILL_CYCLES says how often: a tenth of it the broker alone, a fiftieth the master of a set with
controllers.
"""

from __future__ import annotations

import os
import pathlib
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import pytest
import trio

import rmq
from rmq.errors import NETWORK_ERRORS, NoRoute, ResponseError
from tests.crash.takers import Takers
from tests.interop.rocketmq import Process, Processes, free_port
from tests.system.failover import Report, run

pytestmark = pytest.mark.crash

CYCLES = max(2, int(os.environ.get("RMQ_KILL_CYCLES", "200")) // 10)
SEED = int(os.environ.get("RMQ_KILL_SEED", "1"))
TOPIC = "Taken"
TAKERS = 3
DRAIN_SECONDS = 120.0


@pytest.fixture
def processes(tmp_path: pathlib.Path) -> Iterator[Processes]:
    with Processes(cast(Any, None), tmp_path) as started:
        yield started


class Sender:
    """Sends numbered messages; `acknowledged` are those that are stored."""

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self._next = 0

    async def send(self, namesrv: str) -> None:
        """Send until cancelled."""
        async with rmq.connect(namesrv) as client, client.producer("senders") as producer:
            while True:
                self._next += 1
                body = b"%d" % self._next
                try:
                    await producer.send(rmq.Message(TOPIC, body))
                except (*NETWORK_ERRORS, NoRoute, ResponseError):
                    await trio.sleep(0.1)
                else:
                    self.acknowledged.append(body)


async def kill_in_the_middle(
    namesrv: str, takers: Takers, sender: Sender, start: Callable[[], Process]
) -> None:
    chance = random.Random(SEED)
    broker = start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.send, namesrv)
        for _ in range(TAKERS):
            nursery.start_soon(takers.take, namesrv)
        for _ in range(CYCLES):
            before = len(takers.answered)
            with trio.fail_after(60):
                while len(takers.answered) < before + 50:
                    await trio.sleep(0.01)
            await trio.sleep(chance.random() * 0.3)
            broker.kill()
            broker = await trio.to_thread.run_sync(start)
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        for _ in range(TAKERS):
            nursery.start_soon(takers.take, namesrv)
        await takers.until_done(sender.acknowledged, DRAIN_SECONDS)
        nursery.cancel_scope.cancel()


def test_a_broker_is_killed_while_messages_are_taken(processes: Processes, tmp_path: pathlib.Path) -> None:
    namesrv = processes.rmq_namesrv()
    settings = {"flushDiskType": "SYNC_FLUSH", "listenPort": str(free_port())}

    def start() -> Process:
        return processes.rmq_broker(namesrv, tmp_path / "store", **settings)

    takers, sender = Takers(TOPIC, SEED), Sender()
    trio.run(kill_in_the_middle, namesrv, takers, sender, start)
    print(
        f"seed {SEED}: {CYCLES} kills, {len(sender.acknowledged)} sent, {len(takers.answered)} acknowledged, "
        f"highest attempt {takers.attempts}"
    )
    assert len(takers.answered) >= 50 * CYCLES


class Beside:
    """Takers beside the producer of a failover."""

    def __init__(self, takers: Takers) -> None:
        self._takers = takers
        self._namesrv = ""
        self._has_started = trio.Event()

    def start(self, namesrv: str, topic: str) -> None:
        """Begin."""
        self._namesrv = namesrv
        self._has_started.set()

    async def take(self) -> None:
        """Take from the start on, until cancelled."""
        await self._has_started.wait()
        async with trio.open_nursery() as nursery:
            for _ in range(TAKERS):
                nursery.start_soon(self._takers.take, self._namesrv)

    async def have_begun(self) -> None:
        """Return when something was acknowledged."""
        with trio.fail_after(60):
            while not self._takers.answered:
                await trio.sleep(0.1)

    async def end(self, report: Report, stored: Callable[[], Awaitable[set[str]]]) -> None:
        """Take the rest."""
        await self._takers.until_done([text.encode() for text in await stored()], DRAIN_SECONDS)


def test_the_master_of_a_set_is_killed_while_messages_are_taken(tmp_path: pathlib.Path) -> None:
    takers = Takers("T", SEED)
    kills = max(2, CYCLES // 5)

    async def main() -> Report:
        beside = Beside(takers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(beside.take)
            report = await run(tmp_path, size=3, kills=kills, seed=SEED, beside=beside)
            nursery.cancel_scope.cancel()
        return report

    report = trio.run(main)
    print(f"seed {SEED}: {kills} masters killed, {len(takers.answered)} acknowledged; {report.text()}")
    assert report.lost == []
