"""Real processes, killed by SIGKILL under load: no acknowledged message may be lost.

RMQ_KILL_CYCLES says how often (200 for the broker alone, a quarter of that for master and slave in turn).
Each cycle sends from several tasks, delayed messages and transactions too, kills in the middle, starts again,
and goes on with the same store. At the end, when all is due and brokers have asked for the transactions that
they did not hear the end of, every message that a producer was told SEND_OK for must be read back, with its
own body, and nothing that was rolled back.
"""

from __future__ import annotations

import os
import pathlib
import random
import shutil
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import pytest
import trio

import rmq
from rmq.config import load_all
from rmq.protocol.bodies import KVTable
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.record import decode_records
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.network import TcpNetwork
from rmq.remoting.pool import Pool
from rmq.store.config import StoreConfig
from rmq.store.files.disk import RealDisk
from rmq.store.store import Store
from tests.interop.rocketmq import BROKER_SETTINGS, Process, Processes, free_port

from ..ledger import Found
from ..load import CHECKS, SENDERS, TOPIC, Load, now_ms

pytestmark = pytest.mark.crash

CYCLES = int(os.environ.get("RMQ_KILL_CYCLES", "200"))
SEED = int(os.environ.get("RMQ_KILL_SEED", "1"))
SIZES = {name: value for name, value in BROKER_SETTINGS.items() if name.startswith(("mapped", "max"))}


@pytest.fixture
def processes(tmp_path: pathlib.Path) -> Iterator[Processes]:
    with Processes(cast(Any, None), tmp_path) as started:
        yield started


async def load(
    namesrv: str, senders: Load, kill: trio.Event, killed: trio.Event, *, later: bool = True
) -> None:
    """Send from several tasks until the broker has been killed. `later`: also what is seen later only."""
    chance = random.Random(senders.sent)
    async with (
        rmq.connect(namesrv) as client,
        client.transactional_producer("killers", senders.decided) as producer,
        trio.open_nursery() as nursery,
    ):
        for sender in range(SENDERS):
            nursery.start_soon(senders.send, producer, sender)
        if later:
            nursery.start_soon(senders.delay, producer, SENDERS, chance)
            nursery.start_soon(senders.transact, producer, SENDERS + 1, chance)
        await kill.wait()
        await killed.wait()
        nursery.cancel_scope.cancel()


async def cycle(namesrv: str, senders: Load, victim: Process, seconds: float, *, later: bool = True) -> None:
    """Load the broker, kill `victim` after some time."""
    kill, killed = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(load, namesrv, senders, kill, killed, later=later))
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
    settings = {"flushDiskType": "SYNC_FLUSH", "listenPort": str(free_port())} | CHECKS
    for number in range(CYCLES):
        broker = processes.rmq_broker(namesrv, tmp_path / "store", **settings)
        trio.run(cycle, namesrv, senders, broker, chance.random() * 0.3)
        if number % 25 == 24:
            print(f"{number + 1} kills, {senders.acknowledged} acknowledged", flush=True)
    processes.rmq_broker(namesrv, tmp_path / "store", **settings)
    found = trio.run(senders.settle, namesrv)
    print(f"seed {SEED}: {CYCLES} kills, {senders.acknowledged} acknowledged of {senders.sent} sent")
    print(f"  {senders.kinds()}")
    assert senders.acknowledged >= 20 * CYCLES
    senders.check(found)


def test_master_and_slave_killed_in_turn_lose_nothing(processes: Processes, tmp_path: pathlib.Path) -> None:
    chance, senders = random.Random(SEED), Load()
    namesrv = processes.rmq_namesrv()
    master = {"durability": "replicated", "brokerName": "pair", "listenPort": str(free_port())} | CHECKS
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
    found = trio.run(senders.settle, namesrv)
    print(f"seed {SEED}: {cycles} kills in turn, {senders.acknowledged} acknowledged: {senders.kinds()}")
    assert senders.acknowledged >= 10 * cycles
    senders.check(found)


def read_folder(folder: pathlib.Path) -> Found:
    """The load's topic in a copy of a store's folder, as a broker started over it would serve it."""
    copied = folder.with_name(f"{folder.name}-copy")
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(folder, copied)
    (config,) = load_all((StoreConfig,), arguments=SIZES | {"storePathRootDir": str(copied)}, environment={})
    store = Store(RealDisk(), config, store_host=bytes(8), now_ms=now_ms)
    store.load()
    found: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    for topic, queue_id in store.queues():
        offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        while topic == TOPIC and offset < end:
            result = store.get(topic, queue_id, offset, 32)
            messages = [message for buffer in result.buffers for message in decode_records(buffer)]
            found.setdefault((topic, queue_id), []).extend((m.queue_offset, m.body) for m in messages)
            offset += len(messages)
    store.abandon()
    return found


async def until_stopped(address: str) -> str:
    """Wait until a slave reports that it follows no more; return the reason."""
    with trio.fail_after(60):
        async with Pool(TcpNetwork(), ClientOnlyEndpoint()) as pool:
            while True:
                answer = await pool.call(address, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), 5)
                state = dict(KVTable.from_json(answer.body).table).get("replication", "")
                if state.startswith("stopped"):
                    return state
                await trio.sleep(0.1)


def test_a_master_started_without_its_disk_takes_nothing_from_its_slave(
    processes: Processes, tmp_path: pathlib.Path
) -> None:
    senders, namesrv = Load(), processes.rmq_namesrv()
    master = {"durability": "replicated", "brokerName": "pair", "listenPort": str(free_port())}
    slave = {"brokerRole": "SLAVE", "brokerId": "1", "brokerName": "pair", "listenPort": str(free_port())}
    leader = processes.rmq_broker(namesrv, tmp_path / "master", **master)
    follower = processes.rmq_broker(namesrv, tmp_path / "slave", **slave)
    trio.run(partial(cycle, namesrv, senders, leader, 0.5, later=False))
    assert senders.acknowledged > 0
    (tmp_path / "master").rename(tmp_path / "right")
    leader = processes.rmq_broker(namesrv, tmp_path / "master", **master)
    print(trio.run(until_stopped, f"127.0.0.1:{slave['listenPort']}"))
    follower.kill()
    leader.kill()
    senders.check(read_folder(tmp_path / "slave"))
    senders.check(read_folder(tmp_path / "right"))
