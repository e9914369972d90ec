"""Qpid's JMS client at work while brokers are killed by SIGKILL: jms/Kills.java.

Transacted sessions move messages between queues: each message is moved as a whole or not at all, none is
lost, none twice, and none comes again after its commit. Sessions that acknowledge by hand get every message.
Both at a broker that comes back, and at a set of three with controllers, of which the master is killed: the
client has the failover URI of the set.

RMQ_KILL_CYCLES says how often: a twentieth of it, 3 at least.
"""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
import trio

from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.network import TcpNetwork
from rmq.remoting.pool import Pool
from tests.interop.amqp.jms_program import compiled
from tests.interop.rocketmq import wait_for_port
from tests.ports import free_ports
from tests.system import failover

pytest.importorskip("proton", reason="needs the extra amqp: pip install 'rmq[amqp]'")
pytestmark = pytest.mark.interop

CYCLES = max(3, int(os.environ.get("RMQ_KILL_CYCLES", "100")) // 20)
SEED = int(os.environ.get("RMQ_KILL_SEED", "1"))
COUNT = 400 * CYCLES
WORKERS = 3
STEPS = 8
"""A kill comes after so many steps of the program, and a little more."""
SECONDS = 900.0


class Program:
    """Kills.java at work; its lines are read as they come."""

    def __init__(self, command: Sequence[str], urls: Sequence[str], mode: str) -> None:
        options = "failover.reconnectDelay=50&failover.maxReconnectDelay=500&jms.prefetchPolicy.all=20"
        url = f"failover:({','.join(urls)})?{options}"
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self.child = subprocess.Popen(
            [*command, url, mode, str(COUNT), str(WORKERS)], stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            with self._changed:
                self.lines.append(line.strip())
                self._changed.notify_all()
        with self._changed:
            self.lines.append("closed")
            self._changed.notify_all()

    def until(self, holds: Callable[[list[str]], bool]) -> None:
        """Wait until the lines are so."""
        with self._changed:
            assert self._changed.wait_for(lambda: holds(self.lines) or "closed" in self.lines, SECONDS)

    @property
    def is_done(self) -> bool:
        return "done" in self.lines or "closed" in self.lines

    def await_steps(self, more: int) -> None:
        """Wait for more steps of the program, or its end."""
        steps = self._steps() + more
        self.until(lambda lines: self._steps() >= steps or self.is_done)

    def _steps(self) -> int:
        return sum(line.startswith("did ") for line in self.lines)

    def outcome(self) -> dict[str, list[int]]:
        """The messages of each queue at the end."""
        self.until(lambda lines: lines[-1].startswith("ended"))
        found = {}
        for line in self.lines:
            name, _, rest = line.partition(" ")
            if name in ("In", "Left", "Right"):
                found[name] = [int(word) for word in rest.split()]
        return found

    def stop(self) -> None:
        self.child.kill()
        self.child.wait()


@pytest.fixture(scope="module")
def kills(request: pytest.FixtureRequest) -> list[str]:
    """The command that runs Kills.java."""
    return compiled(request, "Kills")


def check(program: Program, mode: str, kills: int) -> None:
    outcome = program.outcome()
    failures = [line for line in program.lines if line.startswith("failed")]
    print(f"{mode}: {kills} kills, {COUNT} messages, {len(failures)} failures of the client")
    assert [line for line in program.lines if line.startswith(("again", "worker"))] == []
    if mode == "move":
        whole = list(range(COUNT))
        assert outcome["In"] == []
        assert sorted(outcome["Left"]) == whole
        assert sorted(outcome["Right"]) == whole
    else:
        assert program.lines[-2:] == [f"ended {COUNT}", "closed"] or program.lines[-1] == f"ended {COUNT}"


class Lone:
    """A broker of processes that comes back after each kill."""

    def __init__(self, folder: pathlib.Path) -> None:
        port, _, self.amqp = free_ports(3)  # the one behind the broker's is for slaves
        self._folder = folder
        (folder / "broker.conf").write_text(
            f"brokerName=b\nlistenPort={port}\nstorePathRootDir={folder}/store\n"
            f"plugins=amqp\namqpPort={self.amqp}\nmappedFileSizeCommitLog={1 << 22}\n"
        )
        self._start()

    def _start(self) -> None:
        with (self._folder / "broker.log").open("a") as log:
            command = [sys.executable, "-m", "rmq.broker", "-c", str(self._folder / "broker.conf")]
            self._child = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for_port(self.amqp)

    def kill(self) -> None:
        self.stop()
        self._start()

    def stop(self) -> None:
        self._child.kill()
        self._child.wait()


@pytest.fixture
def lone(tmp_path: pathlib.Path) -> Iterator[Lone]:
    broker = Lone(tmp_path)
    try:
        yield broker
    finally:
        broker.stop()


@pytest.mark.parametrize("mode", ["move", "ack"])
def test_a_broker_is_killed(lone: Lone, kills: list[str], mode: str) -> None:
    chance, done = random.Random(SEED), 0
    program = Program(kills, [f"amqp://127.0.0.1:{lone.amqp}"], mode)
    try:
        program.until(lambda lines: "seeded" in lines)
        while done < CYCLES and not program.is_done:
            program.await_steps(STEPS)
            time.sleep(chance.random() * 0.3)
            lone.kill()
            done += 1
        check(program, mode, done)
    finally:
        program.stop()
    assert done == CYCLES


@pytest.mark.parametrize("mode", ["move", "ack"])
def test_the_master_of_a_set_is_killed(tmp_path: pathlib.Path, kills: list[str], mode: str) -> None:
    trio.run(partial(_kill_masters, tmp_path, kills, mode, max(2, CYCLES // 3)))


async def _kill_masters(folder: pathlib.Path, kills: list[str], mode: str, count: int) -> None:
    processes, chance, done = failover.Processes(folder, 3), random.Random(SEED), 0
    processes.settings = {"plugins": "amqp", "amqpPort": "0"}
    program = None
    try:
        processes.start()
        async with Pool(TcpNetwork(), ClientOnlyEndpoint()) as pool:
            await processes.until_in_sync(pool, 3)
            urls = [f"amqp://127.0.0.1:{port}" for port in processes.brokers]
            program = Program(kills, urls, mode)
            await trio.to_thread.run_sync(program.until, lambda lines: "seeded" in lines)
            while done < count and not program.is_done:
                port = await processes.until_in_sync(pool, 3)
                await trio.to_thread.run_sync(program.await_steps, STEPS)
                await trio.sleep(chance.random() * 0.3)
                processes.kill(port)
                await processes.until_in_sync(pool, 1, besides=port)
                processes.start_broker(port)
                done += 1
            await trio.to_thread.run_sync(check, program, mode, done)
    finally:
        if program is not None:
            program.stop()
        processes.stop()
    assert done == count
