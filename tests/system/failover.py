"""A broker set as processes whose master is killed under load: what is lost, and how long writes pause.

    python -m tests.system.failover --size 3 --kills 20

Three controllers, a name server and the brokers of one set run as processes on loopback; a producer sends all
the time, waits for each answer and tries again. The master is killed by SIGKILL (or stopped by SIGSTOP, or
ended by SIGTERM, or hands over to another by the command), and comes back once another one leads. A
controller is killed, the one that leads every other time, and every third time the master with it. With
`--cuts` every broker is on a machine of its own (`tests.system.machines`; needs root): the master's cable is
pulled, or it hears nothing of the controllers, or nothing of the other replicas, for up to `CUT_SECONDS`. In
the end all that was acknowledged must be there, and no send may have failed while a master handed over.
With `--second` the topic is at another broker, too, a plain one whom nothing happens to.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import trio
from attrs import define, field

import rmq
from rmq.errors import NETWORK_ERRORS, RmqError
from rmq.message import Message, MessageQueue
from rmq.protocol.codes import CONTROLLER_STATUS
from rmq.protocol.command import Command
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.network import TcpNetwork
from rmq.remoting.pool import Pool
from tests.ports import free_ports
from tests.system.machines import SWITCH, Machine, Switch, in_a_network_of_its_own, lacks

PATIENCE = 90.0
"""Seconds for what must come about; machines of tests are busy."""
PAUSE_SECONDS, CUT_SECONDS = 3.0, 20.0
"""How long a master stands still, or is cut off, at most, once writes go on without it."""
LOOPBACK = "127.0.0.1"
SECOND = "second"
"""The name of the plain broker beside the set."""
WITHIN = "RMQ_FAILOVER_WITHIN"
"""Set in a network of its own."""
SLAVE = "kill a slave"
CUTS = "pull the cable", "cut from controllers", "cut from replicas"
CONTROLLERS = "kill the leading controller", "kill another controller", "kill a controller and the master"


@define
class Report:
    """The results of a campaign."""

    acknowledged: list[str] = field(factory=list)
    lost: list[str] = field(factory=list)
    gaps: list[float] = field(factory=list)
    planned: list[float] = field(factory=list)
    failed: int = 0
    """Sends that failed."""
    longest: float = 0.0
    """The longest time without an answer since this was reset."""
    epochs: int = 0
    others: dict[str, list[float]] = field(factory=dict)
    """Of other producers beside ours: their times without an acknowledgement, in seconds."""
    struck: list[float] = field(factory=list)
    """When something was done to a broker, in seconds since the epoch."""

    def text(self) -> str:
        """In words."""
        found = f"{len(self.acknowledged)} acknowledged, {len(self.lost)} lost, epoch {self.epochs}"
        named = {"without writes": self.gaps, "when planned": self.planned, **self.others}
        for name, given in named.items():
            if gaps := sorted(given):
                middle, late = gaps[len(gaps) // 2], gaps[min(len(gaps) - 1, int(len(gaps) * 0.99))]
                found += f"; {name} p50 {middle:.1f} s, p99 {late:.1f} s, longest {gaps[-1]:.1f} s"
        return found + (f"; {self.failed} sends failed")


class Beside(Protocol):
    """Other clients that work beside ours while masters die."""

    def start(self, namesrv: str, topic: str) -> None:
        """Begin to send and to consume."""

    async def have_begun(self) -> None:
        """Return when each consumer has got something."""

    async def end(self, report: Report, stored: Callable[[], Awaitable[set[str]]]) -> None:
        """Send no more; add to the report what was acknowledged, and what the consumer did not get of it."""


class Processes:
    """The processes of a set of `size` brokers, each on a machine of its own if there is a switch."""

    def __init__(self, folder: pathlib.Path, size: int, switch: Switch | None = None) -> None:
        self.folder = folder
        ports = free_ports(4)
        self.hall = None if switch is None else switch.machine()
        """Where the controllers are."""
        self.namesrv = f"{LOOPBACK if switch is None else SWITCH}:{ports[0]}"
        host = LOOPBACK if self.hall is None else self.hall.host
        self.controllers = [f"{host}:{port}" for port in ports[1:]]
        self.brokers = [free_ports(4)[2] for _ in range(size)]  # the port before it and after it are free
        self.machines = {} if switch is None else {port: switch.machine() for port in self.brokers}
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.settings: dict[str, str] = {}

    def spawn(self, port: int, module: str, settings: dict[str, Any], machine: Machine | None = None) -> None:
        given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        prefix = [] if machine is None else machine.prefix
        with (self.folder / f"{port}.log").open("ab") as log:
            self.running[port] = subprocess.Popen(
                [*prefix, sys.executable, "-m", module, *given], stdout=log, stderr=log
            )

    def start(self) -> None:
        host, _, port = self.namesrv.rpartition(":")
        settings = {"bindAddress": host, "listenPort": port, "kvConfigPath": self.folder / "kv.json"}
        self.spawn(int(port), "rmq.namesrv", settings)
        for address in self.controllers:
            self.start_controller(address)
        for broker in self.brokers:
            self.start_broker(broker)

    def start_controller(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        settings = {
            "bindAddress": host,
            "listenPort": port,
            "controllers": ";".join(self.controllers),
            "controllerPath": self.folder / f"controller-{port}",
            "controllerOpen": "true",
        }
        self.spawn(int(port), "rmq.controller", settings, self.hall)

    def start_broker(self, port: int) -> None:
        is_founder = port == self.brokers[0]
        machine = self.machines.get(port)
        host = LOOPBACK if machine is None else machine.host
        role = {"durability": "replicated"} if is_founder else {"brokerRole": "SLAVE", "brokerId": 1}
        settings = {
            "listenPort": port,
            "bindAddress": host,
            "brokerIP1": host,
            "brokerName": "set",
            "namesrvAddr": self.namesrv,
            "controllerAddr": ";".join(self.controllers),
            "storePathRootDir": self.folder / f"broker-{port}",
            "mappedFileSizeCommitLog": 1 << 22,
            "flushDiskType": "SYNC_FLUSH",
            "vipChannelEnabled": "false",
            **role,
            **self.settings,
        }
        self.spawn(port, "rmq.broker", settings, machine)

    def start_second(self) -> None:
        """A plain broker beside the set."""
        port = free_ports(4)[2]
        settings = {
            "listenPort": port,
            "brokerName": SECOND,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": self.folder / "second",
            "mappedFileSizeCommitLog": 1 << 22,
            "flushDiskType": "SYNC_FLUSH",
            "vipChannelEnabled": "false",
        }
        self.spawn(port, "rmq.broker", settings)

    def kill(self, port: int) -> None:
        process = self.running.pop(port)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    async def leader(self, pool: Pool) -> tuple[str, dict[str, Any]]:
        """The controller that leads, and what it says; empty while nobody does."""
        for address in self.controllers:
            try:
                found = json.loads((await pool.call(address, Command.request(CONTROLLER_STATUS), 2.0)).body)
            except NETWORK_ERRORS:
                continue
            if found["leading"]:
                return address, found
        return "", {"sets": []}

    async def set_status(self, pool: Pool) -> dict[str, Any]:
        """The set as the leading controller knows it; empty while nobody leads or knows it."""
        _, found = await self.leader(pool)
        status: dict[str, Any] = found["sets"][0] if found["sets"] else {}
        return status

    async def until_in_sync(self, pool: Pool, count: int, *, besides: int = 0) -> int:
        """Wait for so many in sync and a living master, not the one at port `besides`; returns its port."""
        with trio.fail_after(PATIENCE):
            while True:
                found = await self.set_status(pool)
                if len(found.get("inSync", ())) >= count and found["master"] in found["inSync"]:
                    master = next(one for one in found["replicas"] if one["number"] == found["master"])
                    port = int(master["address"].rpartition(":")[2])
                    if master["lives"] and port != besides:
                        return port
                await trio.sleep(0.2)


async def run(
    folder: pathlib.Path,
    *,
    size: int,
    kills: int,
    pauses: int = 0,
    stops: int = 0,
    handovers: int = 0,
    slaves: int = 0,
    controllers: int = 0,
    cuts: int = 0,
    seed: int = 0,
    load_s: float = 2.0,
    settings: Sequence[str] = (),
    second: bool = False,
    queues: int = 2,
    beside: Beside | None = None,
) -> Report:
    """Kill, pause, stop and cut off the master so often, have it hand over, kill slaves and controllers, in
    any order, with `load_s` seconds of load before each. `settings` are more of brokers. `second`: another
    broker has the topic, too, of `queues` at each. `beside` are more clients."""
    brokers = ("set", SECOND) if second else ("set",)
    switch = Switch() if cuts else None
    processes, report, chance = Processes(folder, size, switch), Report(), random.Random(seed)
    processes.settings.update(setting.split("=", 1) for setting in settings)
    try:
        processes.start()
        if second:
            processes.start_second()
        async with (
            Pool(TcpNetwork(), ClientOnlyEndpoint()) as pool,
            rmq.connect(processes.namesrv, config=rmq.ClientConfig(send_timeout_ms=2000)) as client,
        ):
            await processes.until_in_sync(pool, size)
            for name in brokers:
                await _create_topic(client, name, queues)
            if beside is not None:
                beside.start(processes.namesrv, "T")
            async with trio.open_nursery() as nursery:
                last = [time.monotonic()]
                nursery.start_soon(_load, client, report, last)
                if beside is not None:
                    await beside.have_begun()
                deeds = ["kill"] * kills + ["pause"] * pauses + ["stop"] * stops + ["hand over"] * handovers
                deeds += [SLAVE] * slaves
                deeds += [CUTS[number % len(CUTS)] for number in range(cuts)]
                deeds += [CONTROLLERS[number % len(CONTROLLERS)] for number in range(controllers)]
                chance.shuffle(deeds)
                for done, deed in enumerate(deeds):
                    _bar(done, len(deeds), report)
                    port = await processes.until_in_sync(pool, size)
                    await trio.sleep(load_s)
                    if deed in ("stop", "hand over"):
                        await _hand_over(processes, port, deed, report)
                    elif deed == SLAVE:
                        await _kill_slave(processes, port, chance, report)
                    elif deed in CONTROLLERS:
                        await _kill_controller(processes, pool, port, deed, chance, report, last)
                    else:
                        other = partial(processes.until_in_sync, pool, 1, besides=port) if second else None
                        await _strike(processes, port, deed, chance, report, last, other)
                _bar(len(deeds), len(deeds), report)
                await processes.until_in_sync(pool, size)
                await trio.sleep(load_s)
                report.epochs = (await processes.set_status(pool))["epoch"]
                nursery.cancel_scope.cancel()
            if beside is not None:
                await beside.end(report, partial(_stored, client, brokers, queues))
            stored = await _stored(client, brokers, queues)
            report.lost += [text for text in report.acknowledged if text not in stored]
    finally:
        processes.stop()
        if switch is not None:
            switch.close()
    return report


def _bar(done: int, count: int, report: Report) -> None:
    """A progress bar, on a terminal."""
    if sys.stderr.isatty():
        filled = round(30 * done / max(1, count))
        bar = "#" * filled + "." * (30 - filled)
        line = f"[{bar}] {done} of {count}, {len(report.acknowledged):,} acknowledged"
        print(f"\r{line}", end="\n" if done == count else "", file=sys.stderr, flush=True)


async def _create_topic(client: rmq.Client, broker: str, queues: int) -> None:
    with trio.fail_after(PATIENCE):
        while True:
            try:
                await client.admin.create_topic("T", broker=broker, queues=queues)
                return
            except RmqError:
                await trio.sleep(0.2)


async def _strike(
    processes: Processes,
    port: int,
    deed: str,
    chance: random.Random,
    report: Report,
    last: list[float],
    other: Callable[[], Awaitable[object]] | None = None,
) -> None:
    """Kill, pause or cut off the master, wait until writes go on (and for `other`), and let it come back."""
    count, struck_at = len(report.acknowledged), time.monotonic()
    report.struck.append(time.time())
    machine = processes.machines.get(port)
    heal: list[Callable[[], object]] = []
    seconds = CUT_SECONDS
    if deed == "kill":
        processes.kill(port)
        heal.append(partial(processes.start_broker, port))
        seconds = 0.0
    elif deed == "pause":
        process = processes.running[port]
        process.send_signal(signal.SIGSTOP)
        heal.append(partial(process.send_signal, signal.SIGCONT))
        seconds = PAUSE_SECONDS
    elif deed == "pull the cable":
        assert machine is not None
        machine.pull_cable()
        heal.append(machine.plug_in)
    else:
        assert machine is not None
        others = [processes.hall] if deed == "cut from controllers" else list(processes.machines.values())
        for one in others:
            if one is not None and one is not machine:
                machine.drop(one.host)
                heal.append(partial(machine.take, one.host))
    with trio.fail_after(PATIENCE):
        while len(report.acknowledged) <= count + 1:  # one answer may have been on its way
            await trio.sleep(0.02)
    report.gaps.append(last[0] - struck_at)
    if other is not None:
        await other()
    await trio.sleep(chance.uniform(0, seconds))
    for undo in heal:
        undo()


async def _kill_slave(processes: Processes, master: int, chance: random.Random, report: Report) -> None:
    """Kill one, wait until writes go on, and start it again."""
    slave = chance.choice([port for port in processes.brokers if port != master])
    report.struck.append(time.time())
    processes.kill(slave)
    report.longest, count = 0.0, len(report.acknowledged)
    await trio.sleep(2 * PAUSE_SECONDS)  # longer than replicaLagMs
    with trio.fail_after(PATIENCE):
        while len(report.acknowledged) <= count + 1:
            await trio.sleep(0.02)
    report.others.setdefault("when a slave dies", []).append(report.longest)
    processes.start_broker(slave)


async def _kill_controller(
    processes: Processes,
    pool: Pool,
    port: int,
    deed: str,
    chance: random.Random,
    report: Report,
    last: list[float],
) -> None:
    """Kill the controller that leads, or another one, and the master too where that is to be; start them."""
    with trio.fail_after(PATIENCE):
        while not (leader := (await processes.leader(pool))[0]):
            await trio.sleep(0.1)
    others = [one for one in processes.controllers if one != leader]
    address = chance.choice(others) if deed == CONTROLLERS[1] else leader
    processes.kill(int(address.rpartition(":")[2]))
    if deed == CONTROLLERS[2]:
        await _strike(processes, port, "kill", chance, report, last)
    else:
        report.longest, count = 0.0, len(report.acknowledged)
        await trio.sleep(2 * PAUSE_SECONDS)  # longer than a lease
        with trio.fail_after(PATIENCE):
            while len(report.acknowledged) <= count + 1:
                await trio.sleep(0.02)
        report.others.setdefault("without a controller", []).append(report.longest)
    processes.start_controller(address)


async def _hand_over(processes: Processes, port: int, deed: str, report: Report) -> None:
    """End the master in order and start it again, or have it hand over; writes go on."""
    failed, report.longest = report.failed, 0.0
    report.struck.append(time.time())
    if deed == "stop":
        process = processes.running.pop(port)
        process.terminate()
        with trio.fail_after(PATIENCE):
            await trio.to_thread.run_sync(process.wait)
    else:
        controllers = ";".join(processes.controllers)
        command = [sys.executable, "-m", "rmq", "broker", "handover", "set", "--controllers", controllers]
        with trio.fail_after(PATIENCE):
            said = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        assert said.returncode == 0, said.stderr.decode()
        print(said.stdout.decode().strip())
    count = len(report.acknowledged)
    with trio.fail_after(PATIENCE):
        while len(report.acknowledged) <= count + 1:
            await trio.sleep(0.02)
    report.planned.append(report.longest)
    if deed == "stop":
        processes.start_broker(port)
    else:
        assert report.failed == failed, "a send failed while the master handed over"


async def _load(client: rmq.Client, report: Report, last: list[float]) -> None:
    number = 0
    async with client.producer("P") as producer:
        while True:
            number += 1
            text = f"message {number}"
            try:
                result = await producer.send(Message("T", text.encode()))
            except RmqError:
                report.failed += 1
                await trio.sleep(0.05)
                continue
            if result.status == "SEND_OK":
                report.acknowledged.append(text)
                now = time.monotonic()
                report.longest = max(report.longest, now - last[0])
                last[0] = now


async def _stored(client: rmq.Client, brokers: Sequence[str], queues: int) -> set[str]:
    """The bodies of all messages that the brokers hand out."""
    found: set[str] = set()
    async with client.pull_consumer("look") as consumer:
        for queue in (MessageQueue("T", name, number) for name in brokers for number in range(queues)):
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                found |= {bytes(message.body).decode() for message in result.messages}
                offset = result.next_offset
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `run`, by their names in `run`."""
    parser.add_argument("--size", type=int, default=3, help="brokers of the set, 2 or 3")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--pauses", type=int, default=0)
    parser.add_argument("--stops", type=int, default=0)
    parser.add_argument("--handovers", type=int, default=0)
    parser.add_argument("--slaves", type=int, default=0, help="kills of slaves")
    parser.add_argument("--controllers", type=int, default=0, help="kills of controllers")
    parser.add_argument("--cuts", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--load", dest="load_s", type=float, default=2.0, help="seconds before each")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="of brokers: key=value")
    parser.add_argument("--second", action="store_true", help="another broker has the topic, too")
    parser.add_argument("--queues", type=int, default=2, help="of the topic, at each broker that has it")


def in_network(module: str, arguments: Sequence[str], options: argparse.Namespace) -> int | None:
    """Run the module again in a place where it can make machines, if it needs some; return its status, or
    None if it may go on."""
    if not options.cuts or os.environ.get(WITHIN):
        return None
    if missing := lacks():
        print(f"--cuts: {missing}", file=sys.stderr)
        return 2
    command = in_a_network_of_its_own(module, arguments)
    return subprocess.run(command, env={**os.environ, WITHIN: "1"}, check=False).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, and say what came out; the status is 1 when something was lost."""
    parser = argparse.ArgumentParser("python -m tests.system.failover")
    add_options(parser)
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)
    status = in_network("tests.system.failover", given, options)
    if status is not None:
        return status
    with tempfile.TemporaryDirectory(prefix="rmq-failover-") as folder:
        report = trio.run(lambda: run(pathlib.Path(folder), **vars(options)))
    print(report.text(), *report.lost[:10], sep="\n")
    return 1 if report.lost else 0


if __name__ == "__main__":
    sys.exit(main())
