"""Real processes, killed by SIGKILL under load: no acknowledged message may be lost.

RMQ_KILL_CYCLES says how often (200 for the broker alone, a quarter of that for master and slave in turn).
Each cycle sends from several tasks, kills in the middle, starts again, and goes on with the same store. At
the end every message that a producer was told SEND_OK for must be read back, with its own body.
"""

from __future__ import annotations

import os
import pathlib
import random
from collections.abc import Iterator
from typing import Any, cast

import pytest
import trio

import rmq
from tests.interop.rocketmq import Process, Processes, free_port

from .load import SENDERS, Load, read_all

pytestmark = pytest.mark.crash

CYCLES = int(os.environ.get("RMQ_KILL_CYCLES", "200"))
SEED = int(os.environ.get("RMQ_KILL_SEED", "1"))


@pytest.fixture
def processes(tmp_path: pathlib.Path) -> Iterator[Processes]:
    with Processes(cast(Any, None), tmp_path) as started:
        yield started


async def load(namesrv: str, senders: Load, kill: trio.Event, killed: trio.Event) -> None:
    """Send from several tasks until the broker has been killed."""
    async with (
        rmq.connect(namesrv) as client,
        client.producer("killers") as producer,
        trio.open_nursery() as nursery,
    ):
        for sender in range(SENDERS):
            nursery.start_soon(senders.send, producer, sender)
        await kill.wait()
        await killed.wait()
        nursery.cancel_scope.cancel()


async def cycle(namesrv: str, senders: Load, victim: Process, seconds: float) -> None:
    """Load the broker, kill `victim` after some time."""
    kill, killed = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load, namesrv, senders, kill, killed)
        before = senders.acknowledged
        with trio.move_on_after(20):
            while senders.acknowledged < before + 20:
                await trio.sleep(0.01)
        await trio.sleep(seconds)
        kill.set()
        victim.kill()
        killed.set()


def test_a_broker_killed_again_and_again_loses_nothing(processes: Processes, tmp_path: pathlib.Path) -> None:
    chance, senders = random.Random(SEED), Load()
    namesrv = processes.rmq_namesrv()
    settings = {"flushDiskType": "SYNC_FLUSH", "listenPort": str(free_port())}
    for number in range(CYCLES):
        broker = processes.rmq_broker(namesrv, tmp_path / "store", **settings)
        trio.run(cycle, namesrv, senders, broker, chance.random() * 0.3)
        if number % 25 == 24:
            print(f"{number + 1} kills, {senders.acknowledged} acknowledged", flush=True)
    processes.rmq_broker(namesrv, tmp_path / "store", **settings)
    found = trio.run(read_all, namesrv)
    print(f"seed {SEED}: {CYCLES} kills, {senders.acknowledged} acknowledged of {senders.sent} sent")
    assert senders.acknowledged >= 20 * CYCLES
    senders.check(found)


def test_master_and_slave_killed_in_turn_lose_nothing(processes: Processes, tmp_path: pathlib.Path) -> None:
    chance, senders = random.Random(SEED), Load()
    namesrv = processes.rmq_namesrv()
    master = {"durability": "replicated", "brokerName": "pair", "listenPort": str(free_port())}
    slave = {"brokerRole": "SLAVE", "brokerId": "1", "brokerName": "pair", "listenPort": str(free_port())}
    running = {
        "master": processes.rmq_broker(namesrv, tmp_path / "master", **master),
        "slave": processes.rmq_broker(namesrv, tmp_path / "slave", **slave),
    }
    cycles = max(2, CYCLES // 4)
    for number in range(cycles):
        victim = ("master", "slave")[number % 2]
        trio.run(cycle, namesrv, senders, running[victim], chance.random() * 0.3)
        settings = master if victim == "master" else slave
        running[victim] = processes.rmq_broker(namesrv, tmp_path / victim, **settings)
    found = trio.run(read_all, namesrv)
    print(f"seed {SEED}: {cycles} kills in turn, {senders.acknowledged} acknowledged")
    assert senders.acknowledged >= 10 * cycles
    senders.check(found)
