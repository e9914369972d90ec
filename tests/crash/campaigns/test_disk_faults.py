"""Real broker processes on disks that fill up, break, turn read-only or crawl, under load.

RMQ_FAULT_CYCLES says how often each fault comes (50). A cycle sends from several tasks, makes the disk bad,
and well again; every fifth one kills the broker while the disk is bad. Refusals must say why; sends must
succeed again without a restart; at the end every message that a producer was told SEND_OK for must be read
back, and the check of the store must find no damage.
"""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest
import trio

import rmq
from rmq.client.config import ClientConfig
from tests.interop.rocketmq import Process, Processes, free_port

from ..load import SENDERS, Load, read_all

pytestmark = pytest.mark.crash

CYCLES = int(os.environ.get("RMQ_FAULT_CYCLES", "50"))
SEED = int(os.environ.get("RMQ_KILL_SEED", "1"))
IMPATIENT = ClientConfig(send_timeout_ms=2000, retry_times=0)
LONG_SECONDS = 4.0
"""A fault that lasts for longer than a producer tries: it says why it was refused."""
MAX_MIB = 200  # of the broker's memory

# fault -> what a refusal must name
FAULTS = {
    "full": "No space left on device",
    "eio": "Input/output error",
    "sync": "Input/output error",
    "readonly": "Read-only file system",
    "slow": "",
}


@pytest.fixture
def processes(tmp_path: pathlib.Path) -> Iterator[Processes]:
    with Processes(cast(Any, None), tmp_path) as started:
        yield started


class Disk:
    """The fault file, and the broker on that disk."""

    def __init__(self, processes: Processes, folder: pathlib.Path) -> None:
        self.store = folder / "store"
        self._processes = processes
        self._fault = folder / "fault"
        self._namesrv = processes.rmq_namesrv()
        self._settings = {"flushDiskType": "SYNC_FLUSH", "listenPort": str(free_port())}
        self._settings |= {"syncFlushTimeout": "1000", "cleanResourceInterval": "500"}
        self._settings |= {"flushConsumeQueueThoroughInterval": "300", "flushConsumerOffsetInterval": "200"}

    @property
    def namesrv(self) -> str:
        return self._namesrv

    def turn(self, word: str) -> None:
        """Make the disk so from now on."""
        self._fault.write_text(word, "ascii")

    def start(self) -> Process:
        path, port = self._processes.broker_settings(self.store, self._settings)
        module = [sys.executable, "-m", "tests.crash.faulty_broker", str(self._fault)]
        command = [*module, "-n", self._namesrv, "-c", str(path)]
        return self._processes.serve_registered(command, "faulty-broker", port, self._namesrv)


async def cycle(disk: Disk, senders: Load, word: str, seconds: float, victim: Process | None) -> None:
    """Load the broker, make its disk bad for some time, and see sends succeed again."""
    async with (
        rmq.connect(disk.namesrv, config=IMPATIENT) as client,
        client.producer("sufferers") as producer,
        trio.open_nursery() as nursery,
    ):
        for sender in range(SENDERS):
            nursery.start_soon(senders.send, producer, sender)
        await senders.grow(10)
        disk.turn(word)
        await trio.sleep(seconds)
        if victim is not None:
            victim.kill()
        else:
            disk.turn("well")
            await senders.grow(SENDERS + 10)  # some may have been on their way
        nursery.cancel_scope.cancel()
    disk.turn("well")


def memory_mib(process: Process) -> float:
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text("ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@pytest.mark.parametrize("word", FAULTS)
def test_a_bad_disk_is_refused_and_recovered_from(
    processes: Processes, tmp_path: pathlib.Path, word: str
) -> None:
    chance, senders = random.Random(SEED), Load()
    disk = Disk(processes, tmp_path)
    broker = disk.start()
    most = 0.0
    for number in range(CYCLES):
        victim = broker if number % 5 == 3 else None
        seconds = LONG_SECONDS if number % 10 == 5 else 0.2 + chance.random()
        trio.run(cycle, disk, senders, word, seconds, victim)
        if victim is not None:
            broker = disk.start()
        assert broker.child.poll() is None, broker.said()
        most = max(most, memory_mib(broker))
    found = trio.run(read_all, disk.namesrv)
    print(f"{word}: {CYCLES} times, {senders.acknowledged} of {senders.sent} acknowledged, {most:.0f} MiB")
    print(f"  refused: {dict(Counter(kind(text) for text in senders.refusals).most_common())}")
    senders.check(found)
    assert most < MAX_MIB
    assert any(FAULTS[word] in text for text in senders.refusals) or word == "slow"
    assert broker.stop() == 0
    checked = subprocess.run(
        [sys.executable, "-m", "rmq", "store", "check", str(disk.store)], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def kind(text: str) -> str:
    """A refusal's text without the paths and numbers."""
    words = [word for word in text.split() if not any(letter.isdigit() or letter == "/" for letter in word)]
    return " ".join(words)[:100]
