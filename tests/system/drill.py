"""Parts of the drills of docs/runbooks.md: servers with settings of their own, traffic, and a shell.

A drill says which section it goes through. `Drill.rmq` runs a command as an operator types it, and at the
end those that ran are compared with those of the section, so that page and drill cannot drift apart.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import anyio
from attrs import define, field

import rmq
from tests.ports import free_ports
from tests.system.shell import ROOT, SMALL, Shell

PAGE: Final = ROOT / "docs" / "runbooks.md"
PATIENCE_SECONDS: Final = float(os.environ.get("RMQ_DRILL_SECONDS", "120"))
"""For what takes a second on a machine that does nothing else."""
TOPIC: Final = "Orders"
QUICK: Final = {
    "mappedFileSizeCommitLog": "1048576",
    "registerNameServerPeriod": "10000",
    "flushConsumerOffsetInterval": "1000",
    "haHousekeepingInterval": "5000",
    "plugins": "metrics",
    "logLevel": "INFO",
}
"""Small files, and what comes every so often comes soon."""


def lines_of(section: str) -> list[list[str]]:
    """The commands in the blocks of a section of the page, as words."""
    text = PAGE.read_text("utf-8")
    (body,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", body, re.MULTILINE | re.DOTALL))
    lines = [line.strip() for line in blocks.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line]


def commands_of(section: str) -> list[str]:
    """The commands of rmq and of mqadmin, in their order, in the form of `shape`."""
    return [shape(words) for words in lines_of(section) if words[0] in ("rmq", "mqadmin")]


def services_of(section: str) -> set[str]:
    """The actions of the section on services: `restart broker` of `sudo systemctl restart rmq-broker`."""
    text = "\n".join(shlex.join(words) for words in lines_of(section))
    return {
        f"{verb} {kind}"
        for verb, kind in re.findall(r"systemctl (\w+) rmq-(\w+)", text.replace("enable --now", "start"))
    }


def shape(words: Sequence[str]) -> str:
    """`rmq topic create --queues` of `rmq topic create Orders --queues 4`: without what is another one's on
    other machines, and without what an operator is asked for, or how an answer is written."""
    many = {"topic", "group", "controller", "cluster", "broker", "store", "acl", "certs", "msg"}
    verbs = 1
    if words[0] == "rmq" and words[1] in many and not words[2].startswith("-"):
        verbs = 3 if list(words[1:3]) == ["broker", "config"] else 2
    options = sorted({word for word in words[1:] if word.startswith("-")} - {"--yes", "-o"})
    return " ".join([*words[: 1 + verbs], *options])


def until(condition: Callable[[], object], what: Callable[[], str]) -> None:
    """Wait until the condition holds; a command that fails during the wait may succeed later. `what()` is the
    error after PATIENCE_SECONDS; a second counts by the share of a core that this machine has for each
    process."""
    left, last = PATIENCE_SECONDS, time.monotonic()
    while not condition():
        assert left > 0, what()
        time.sleep(0.1)
        now = time.monotonic()
        left -= (now - last) / crowding()
        last = now


def crowding() -> float:
    """The number of processes that want each core of this machine, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def write_figures(section: str, acknowledged: int, failed: int, lost: int, longest: float) -> None:
    """Append the figures of a drill, as a line of JSON, to the file that RMQ_DRILL_FIGURES names. `longest`
    is the longest time without an acknowledgement, in seconds."""
    if file := os.environ.get("RMQ_DRILL_FIGURES"):
        figures = {
            "drill": section,
            "acknowledged": acknowledged,
            "failed": failed,
            "lost": lost,
            "longest_without_s": round(longest, 1),
            "load": round(os.getloadavg()[0], 1),
        }
        with open(file, "a") as lines:
            lines.write(json.dumps(figures) + "\n")


@define
class Server:
    """One process with its file of settings, which a drill may change before the next start."""

    kind: str
    name: str
    folder: pathlib.Path
    settings: dict[str, str]
    before: tuple[str, ...] = ()
    """Words before the command, such as a namespace for its files."""
    options: tuple[str, ...] = ()
    """Words after the command, such as `--processes 2`."""
    python_path: str = f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"
    process: subprocess.Popen[bytes] | None = None
    done: set[str] = field(factory=set)
    """What a service manager was told: start, stop, restart."""

    @property
    def file(self) -> pathlib.Path:
        return self.folder / f"{self.name}.conf"

    @property
    def store(self) -> pathlib.Path:
        return pathlib.Path(self.settings["storePathRootDir"])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.settings['listenPort']}"

    @property
    def said(self) -> str:
        return (self.folder / f"{self.name}.log").read_text()

    def launch(self) -> None:
        """Start the server without a wait."""
        self.done |= {"start", "restart"} if "stop" in self.done else {"start"}
        self.file.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        with (self.folder / f"{self.name}.log").open("a") as log:
            self.process = subprocess.Popen(
                [*self.before, sys.executable, "-m", "rmq", self.kind, *self.options, "-c", str(self.file)],
                env={**os.environ, "PYTHONPATH": self.python_path, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def start(self) -> None:
        """Start the server, and wait until its probe reports that it serves."""
        self.launch()
        until(self.is_ready, lambda: f"{self.name} is not ready: {self.said[-2000:]}")

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.said
        return self.probe() == 200

    def probe(self) -> int:
        """The status of /ready; 0 when nothing answers."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.settings['metricsPort']}/ready", timeout=20
            ) as got:
                return int(got.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the server as a service manager does; SIGKILL is an accident."""
        assert self.process is not None
        if number is signal.SIGTERM:
            self.done.add("stop")
        self.process.send_signal(number)
        until(lambda: self.process is None or self.process.poll() is not None, lambda: self.said[-2000:])
        assert number is not signal.SIGTERM or self.process.returncode == 0, self.said


@define
class Traffic:
    """Clients that send numbered messages without a pause until `stop`; `stored` were acknowledged, `longest`
    is the longest time in which none was, in seconds."""

    namesrv: str
    stored: list[str] = field(factory=list)
    failures: list[str] = field(factory=list)
    is_over: bool = False
    thread: threading.Thread | None = None
    longest: float = 0.0
    last: float = 0.0

    def start(self) -> None:
        self.thread = threading.Thread(target=self._in_thread)
        self.thread.start()
        self.go_on()

    def _in_thread(self) -> None:
        try:
            anyio.run(self._run)
        except BaseException as error:
            self.failures.append(f"the clients ended: {error!r}")
            raise

    async def _run(self) -> None:
        async with (
            rmq.connect(self.namesrv) as client,
            client.producer("drill") as producer,
            anyio.create_task_group() as tasks,
        ):
            for name in range(4):
                tasks.start_soon(self._send, producer, name)

    async def _send(self, producer: rmq.Producer, name: int) -> None:
        number = 0
        while not self.is_over:
            number += 1
            body = f"{name}-{number}"
            try:
                await producer.send(rmq.Message(TOPIC, body.encode()))
                self.stored.append(body)
                now = time.monotonic()
                self.longest = max(self.longest, now - (self.last or now))
                self.last = now
            except rmq.RmqError as error:
                self.failures.append(f"{body}: {error!r}")
            await anyio.sleep(0.02)

    def go_on(self, count: int = 40) -> None:
        """Wait until this number of further messages was stored."""
        wanted = len(self.stored) + count
        until(lambda: len(self.stored) >= wanted, lambda: f"sends do not go on: {self.failures[-3:]}")

    def stop(self) -> None:
        self.is_over = True
        if self.thread is not None:
            until(lambda: self.thread is None or not self.thread.is_alive(), lambda: "a send does not end")


@define
class Drill:
    """A cluster, and an operator who follows a section of the page."""

    folder: pathlib.Path
    section: str
    servers: dict[str, Server] = field(factory=dict)
    ran: list[str] = field(factory=list)
    traffic: Traffic | None = None

    @property
    def namesrv(self) -> str:
        names = [server.address for server in self.servers.values() if server.kind == "namesrv"]
        return ";".join(names)

    # --- servers ---

    def name_server(self, name: str = "names", start: bool = True, **settings: str) -> Server:
        """Start a name server at ports of its own."""
        port, metrics = free_ports(2)
        given = {
            "listenPort": str(port),
            "metricsPort": str(metrics),
            "kvConfigPath": str(self.folder / name / "kv.json"),
            "mastersPath": str(self.folder / name / "masters.json"),
            "plugins": "metrics",
        }
        return self.put(Server("namesrv", name, self.folder, given | settings), start)

    def controller(self, name: str, start: bool = True, **settings: str) -> Server:
        """Start a controller at ports of its own."""
        port, metrics = free_ports(2)
        given = {
            "listenPort": str(port),
            "metricsPort": str(metrics),
            "controllerPath": str(self.folder / name),
            "plugins": "metrics",
        }
        return self.put(Server("controller", name, self.folder, given | settings), start)

    def broker(self, name: str, start: bool = True, **settings: str) -> Server:
        """Start a broker at ports of its own."""
        ports = free_ports(5)
        given = dict(line.split("=") for line in SMALL) | QUICK
        del given["haEnable"]
        given |= {
            "brokerName": name,
            "namesrvAddr": self.namesrv,
            "listenPort": str(ports[2]),
            "haListenPort": str(ports[3]),
            "metricsPort": str(ports[4]),
            "storePathRootDir": str(self.folder / name),
            "brokerIP1": "127.0.0.1",
        }
        return self.put(Server("broker", name, self.folder, given | settings), start)

    def slave(self, name: str, start: bool = True, **settings: str) -> Server:
        """Start the slave of a master, under the name NAME-slave."""
        own = {"brokerRole": "SLAVE", "brokerId": "1", "brokerName": name}
        store = {"storePathRootDir": str(self.folder / f"{name}-slave")}
        server = self.broker(f"{name}-slave", start=False, **own, **store, **settings)
        if start:
            server.start()
        return server

    def put(self, server: Server, start: bool = True) -> Server:
        """Add a server, and start it."""
        self.servers[server.name] = server
        if start:
            server.start()
        return server

    def load(self) -> Traffic:
        """Make the topic and begin to send."""
        self.shell.ok("topic", "create", TOPIC, "--queues", "4")
        self.traffic = Traffic(self.namesrv)
        self.traffic.start()
        return self.traffic

    def fill(self, count: int, size: int) -> None:
        """Send messages of a size to the topic `Ballast`, with an old time."""

        async def send() -> None:
            async with rmq.connect(self.namesrv) as client, client.producer("ballast") as producer:
                for _ in range(0, count, 50):
                    await producer.send_batch([rmq.Message("Ballast", os.urandom(size)) for _ in range(50)])

        self.shell.ok("topic", "create", "Ballast")
        anyio.run(send)

    # --- the operator ---

    @property
    def shell(self) -> Shell:
        return Shell(self.folder, self.namesrv)

    def rmq(self, *arguments: str) -> str:
        """A step of the section; it must end with 0."""
        self.ran.append(shape(["rmq", *arguments]))
        return self.shell.ok(*arguments)

    def repeat(self, *arguments: str) -> None:
        """A step of the section that an operator repeats until it ends with 0: on a busy machine the cluster
        has not recovered yet, or elects."""
        until(lambda: self.shell.run(*arguments).exit_code == 0, lambda: self.shell.run(*arguments).output)
        self.ran.append(shape(["rmq", *arguments]))

    def type(self, start: str, paths: Mapping[str, object]) -> None:
        """A step of the section that is no command of rmq: the page's own line that begins so, with these
        paths in place of its own; longer ones first. It must end with 0."""
        (line,) = [line for line in map(shlex.join, lines_of(self.section)) if line.startswith(start)]
        for told, here in sorted(paths.items(), reverse=True):
            line = line.replace(told, str(here))
        subprocess.run(shlex.split(line.removeprefix("sudo ")), check=True, timeout=PATIENCE_SECONDS)

    def rows(self, *arguments: str) -> Any:
        """A step of the section, and what it shows."""
        return json.loads(self.rmq(*arguments, "-o", "json"))

    def wait_until_copied(self, name: str) -> None:
        """Wait until the slaves of a broker have its whole log, as `rmq cluster list` shows it."""

        def copied() -> bool:
            done = self.shell.run("cluster", "list", "-o", "json")
            if done.exit_code:
                return False
            rows = [row for row in json.loads(done.stdout) if row["broker"] == name]
            lags = [row["lag_bytes"] for row in rows if row["id"] != 0]
            return bool(lags) and all(lag == 0 for lag in lags)

        until(copied, lambda: f"slaves of {name} do not come near")

    def read(self, group: str = "auditors", wanted: int | None = None) -> Counter[str]:
        """Bodies of the topic, until the first `wanted` that were acknowledged are among them, or all. Others
        may be there too: of sends that nobody was told of."""
        assert self.traffic is not None
        return anyio.run(self._read, group, set(self.traffic.stored[:wanted]))

    async def _read(self, group: str, wanted: set[str]) -> Counter[str]:
        got: Counter[str] = Counter()
        async with (
            rmq.connect(self.namesrv) as client,
            client.consumer(group, {TOPIC: "*"}, consume_from="first") as consumer,
        ):
            with anyio.move_on_after(PATIENCE_SECONDS / 2) as waiting:
                async for delivery in consumer:
                    async with delivery as message:
                        got[message.body.decode()] += 1
                    waiting.deadline = anyio.current_time() + PATIENCE_SECONDS / 2 * crowding()
                    wanted.discard(message.body.decode())
                    if not wanted:
                        break
        return got

    def check_nothing_is_lost(self) -> None:
        """Every message that was acknowledged can be read."""
        assert self.traffic is not None
        self.traffic.stop()
        missing = set(self.traffic.stored) - self.read().keys()
        self.note(len(missing))
        assert not missing, f"{len(missing)} of {len(self.traffic.stored)}: {sorted(missing)[:9]}"

    def note(self, lost: int) -> None:
        """Append the figures of this drill, as a line of JSON, to the file that RMQ_DRILL_FIGURES names."""
        if self.traffic is not None:
            stored, failures = len(self.traffic.stored), len(self.traffic.failures)
            write_figures(self.section, stored, failures, lost, self.traffic.longest)

    def stop(self) -> None:
        """Stop all started processes."""
        if self.traffic is not None:
            self.traffic.stop()
        for server in reversed(self.servers.values()):
            if server.process is not None:
                server.process.kill()
                server.process.wait()

    def check_page(self) -> None:
        """Check that the typed commands are those of the page, in its order; repetitions count once."""
        typed = [verb for at, verb in enumerate(self.ran) if at == 0 or self.ran[at - 1] != verb]
        told = commands_of(self.section)
        told = [verb for at, verb in enumerate(told) if at == 0 or told[at - 1] != verb]
        assert typed == told, (typed, told)
        done = {f"{verb} {server.kind}" for server in self.servers.values() for verb in server.done}
        assert done >= services_of(self.section), (done, self.section)


@contextmanager
def drill(folder: pathlib.Path, section: str) -> Iterator[Drill]:
    """A drill of a section of the page; all that it started is stopped at its end."""
    running = Drill(folder, section)
    try:
        yield running
        running.check_page()
    finally:
        running.stop()
