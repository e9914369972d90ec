"""RocketMQ's official 5.x clients as programs (v5/), and a broker with the gRPC door for them.

Java comes from Maven Central, Python from PyPI, Node from npm, Rust from crates.io, Go by its module proxy.
Each is made once, in a folder that stays between runs.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import pytest
import trio
from attrs import define, field
from click.testing import CliRunner

import rmq
from rmq.cli.local.certs import certs
from rmq.protocol.bodies import CustomizedRetryPolicy, GroupRetryPolicy, SubscriptionGroupConfig
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from tests.interop.rocketmq import PYTHON_PATH, wait_for_port
from tests.ports import free_ports

HERE = pathlib.Path(__file__).parent / "v5"
SECONDS = 90.0
CLUSTER = "DefaultCluster"


class Missing(Exception):
    """A tool that a client needs is not on this machine."""


@define
class Client:
    """A client: the command that runs its driver, and the file for what it prints as errors."""

    language: str
    command: list[str]
    log: pathlib.Path


@define
class Job:
    """A program that runs; `rows` are the lines that it has printed, taken apart at blanks."""

    child: subprocess.Popen[str]
    rows: list[list[str]] = field(factory=list)
    at: list[float] = field(factory=list)
    """Time at which each line came, in seconds of `time.monotonic`."""

    def read(self) -> None:
        """Read its lines until it ends."""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.at.append(time.monotonic())
            self.rows.append(line.split())

    def told(self, word: str) -> list[list[str]]:
        """The rest of the lines that begin with a word."""
        return [row[1:] for row in list(self.rows) if row and row[0] == word]

    def times(self, word: str) -> list[float]:
        """Times of the lines that begin with a word."""
        rows = list(self.rows)
        return [at for row, at in zip(rows, list(self.at), strict=False) if row and row[0] == word]

    def bodies(self) -> list[str]:
        """Bodies of the messages that have come."""
        return [row[0] for row in self.told("message")]

    def attempts(self) -> list[list[str]]:
        """Bodies and attempts of the messages that have come."""
        return [row[:2] for row in self.told("message")]

    def until(self, holds: Callable[[Job], object], seconds: float = SECONDS) -> Job:
        """Wait until this holds."""
        end = time.monotonic() + seconds
        while not holds(self):
            assert time.monotonic() < end, self.rows
            time.sleep(0.05)
        return self

    def started(self) -> Job:
        """Wait until its client has started."""
        return self.until(lambda job: job.told("started"))

    def done(self) -> Job:
        """Wait for its end."""
        status = self.child.wait(SECONDS)
        time.sleep(0.1)  # its last lines are read by another thread
        assert status == 0, self.rows
        return self

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.child.kill()
        self.child.wait()


class Jobs:
    """Starts drivers, and ends those that are left."""

    def __init__(self, client: Client, env: Mapping[str, str]) -> None:
        self.client = client
        self._env = {**os.environ, **env}
        self._jobs: list[Job] = []

    def __call__(self, address: str, action: str, **options: object) -> Job:
        """Start the client with an action and its options."""
        words = [f"{name}={value}" for name, value in options.items()]
        with self.client.log.open("ab") as log:
            child = subprocess.Popen(
                [*self.client.command, address, action, *words],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._env,
            )
        job = Job(child)
        self._jobs.append(job)
        threading.Thread(target=job.read, daemon=True).start()
        return job

    def close(self) -> None:
        """End all of them."""
        for job in self._jobs:
            job.kill()


# ---- drivers ----


def _tools(*names: str) -> None:
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise Missing(f"needs {' and '.join(missing)}")


def _java(cache: pathlib.Path) -> list[str]:
    _tools("java", "javac", "mvn")
    folder = _folder(cache, "java", "pom.xml", "Driver.java")
    if not (folder / "lib").exists():
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        subprocess.run(["mvn", "-q", "-B", goal, "-DoutputDirectory=unfinished"], cwd=folder, check=True)
        (folder / "unfinished").rename(folder / "lib")
    subprocess.run(["javac", "-cp", "lib/*", "Driver.java"], cwd=folder, check=True)
    return ["java", "-Xmx128m", f"-Duser.home={folder}", "-cp", f"{folder}/lib/*:{folder}", "Driver"]


def _python(cache: pathlib.Path) -> list[str]:
    python = cache / "python" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", cache / "python"], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "rocketmq-python-client==5.1.2"], check=True)
    return [str(python), str(HERE / "driver.py")]


def _node(cache: pathlib.Path) -> list[str]:
    _tools("node", "npm")
    folder = _folder(cache, "node", "package.json", "driver.js")
    if not (folder / "node_modules").exists():
        subprocess.run(["npm", "install", "--silent"], cwd=folder, check=True)
    return ["node", str(folder / "driver.js")]


def _rust(cache: pathlib.Path) -> list[str]:
    _tools("cargo")
    folder = _folder(cache, "rust", "Cargo.toml", "Cargo.lock", "driver.rs")
    subprocess.run(["cargo", "build", "--quiet"], cwd=folder, check=True)
    return [str(folder / "target" / "debug" / "driver")]


def _go(cache: pathlib.Path) -> list[str]:
    _tools("go")
    folder = _folder(cache, "go", "go.mod", "go.sum", "driver.go")
    subprocess.run(["go", "build", "-o", "driver", "."], cwd=folder, check=True)
    return [str(folder / "driver")]


def _folder(cache: pathlib.Path, name: str, *files: str) -> pathlib.Path:
    """A folder with files of v5/; a build tool does nothing where they are as they were."""
    folder = cache / name
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy2(HERE / file, folder)
    return folder


BUILDS: Mapping[str, Callable[[pathlib.Path], list[str]]] = {
    "java": _java,
    "python": _python,
    "node": _node,
    "rust": _rust,
    "go": _go,
}


def client_of(language: str, cache: pathlib.Path) -> Client:
    """Make the driver of a language. Raises Missing without its tools."""
    return Client(language, BUILDS[language](cache), cache / f"{language}.log")


def client_for(request: pytest.FixtureRequest) -> Client:
    """The driver of the language that is a fixture's parameter; the test is skipped without its tools."""
    try:
        return client_of(request.param, pathlib.Path(request.config.cache.mkdir("grpc-clients")).resolve())
    except Missing as why:
        pytest.skip(str(why))


# ---- a broker ----


class Broker:
    """A name server and a broker with the gRPC door, plain and TLS, as processes."""

    def __init__(self, folder: pathlib.Path, **settings: object) -> None:
        self._folder = folder
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self.port, ha, names, self.grpc_port = free_ports(4)
        self.names = f"127.0.0.1:{names}"
        self.address = f"127.0.0.1:{self.grpc_port}"
        self.env = _certificate(folder)
        (folder / "names.conf").write_text(f"listenPort={names}\nkvConfigPath={folder}/kv.json\n")
        merged = {
            "brokerName": "b",
            "listenPort": self.port,
            "haListenPort": ha,
            "brokerIP1": "127.0.0.1",
            "storePathRootDir": folder / "store",
            "plugins": "grpc",
            "grpcPort": self.grpc_port,
            "namesrvAddr": self.names,
            "enablePropertyFilter": "true",
            "transactionTimeOut": 3_000,
            "transactionCheckInterval": 2_000,
            "tlsMode": "permissive",
            "tlsCertPath": folder / "certs" / "server.pem",
            "tlsKeyPath": folder / "certs" / "server.key",
            **settings,
        }
        text = "".join(f"{key}={value}\n" for key, value in merged.items())
        (folder / "broker.conf").write_text(text)
        self._start("rmq.namesrv", "names.conf", names)
        self.start()

    def _start(self, module: str, file: str, port: int) -> None:
        env = {**os.environ, "PYTHONPATH": PYTHON_PATH}
        with (self._folder / f"{file}.log").open("ab") as log:
            command = [sys.executable, "-m", module, "-c", str(self._folder / file)]
            self._children[module] = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        wait_for_port(port)

    def start(self) -> None:
        """Start the broker, again after it has ended."""
        self._start("rmq.broker", "broker.conf", self.grpc_port)

    def set(self, name: str, value: str) -> None:
        """Stop the broker, change a setting, and start it again."""
        self.stop()
        file = self._folder / "broker.conf"
        lines = [one for one in file.read_text().splitlines() if not one.startswith(f"{name}=")]
        file.write_text("\n".join([*lines, f"{name}={value}", ""]))
        self.start()

    @property
    def pid(self) -> int:
        """Process id of the broker."""
        return self._children["rmq.broker"].pid

    def kill(self) -> None:
        """End the broker by SIGKILL."""
        self._end("rmq.broker", is_hard=True)

    def stop(self) -> None:
        """End the broker in order."""
        self._end("rmq.broker")

    def _end(self, module: str, *, is_hard: bool = False) -> None:
        child = self._children.pop(module, None)
        if child is None:
            return
        if not is_hard:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(SECONDS)
        child.kill()
        child.wait()

    def close(self) -> None:
        """End both."""
        self.stop()
        self._end("rmq.namesrv")

    def topic(self, name: str, queues: int = 4, account: rmq.Credentials | None = None) -> str:
        """Make a topic; returns its name."""

        async def create() -> None:
            async with rmq.connect(self.names, credentials=account) as ours:
                with trio.fail_after(SECONDS):
                    while not await ours.admin.create_topic(name, queues=queues):  # not registered yet
                        await trio.sleep(0.2)

        trio.run(create)
        return name

    def until_topic(self, name: str) -> str:
        """Wait until a topic exists; returns its name."""

        async def wait() -> None:
            async with rmq.connect(self.names) as ours:
                with trio.fail_after(SECONDS):
                    while True:
                        with suppress(rmq.RmqError):
                            await ours.admin.topic_route(name)
                            return
                        await trio.sleep(0.2)

        trio.run(wait)
        return name

    def group(self, name: str, *, attempts: int = 17, delay_ms: int = 0, in_order: bool = False) -> str:
        """Make a group with a policy of retries; returns its name."""
        policy = GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy([delay_ms]))
        config = SubscriptionGroupConfig(
            name,
            retry_max_times=attempts - 1,
            consume_message_orderly=in_order,
            group_retry_policy=policy if delay_ms else None,
        )
        request = Command.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config.to_json())
        with socket.create_connection(("127.0.0.1", self.port)) as link:
            link.sendall(encode(request))
            decoder, found = Decoder(), []
            while not found:
                found = decoder.feed(link.recv(1 << 16))
        assert found[0].code == 0, found[0].remark
        return name


def _certificate(folder: pathlib.Path) -> dict[str, str]:
    """Make a certificate for loopback; returns the environment by which all clients trust it."""
    made = folder / "certs"
    for arguments in (["ca", str(made)], ["issue", str(made), "server", "--host", "127.0.0.1"]):
        result = CliRunner().invoke(certs, arguments)
        assert result.exit_code == 0, result.output
    authority = str(made / "ca.pem")
    return {
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": authority,
        "NODE_EXTRA_CA_CERTS": authority,
        "SSL_CERT_FILE": authority,
    }


SLOW_SECONDS = 0.4
"""A send that took longer was tried again, and may have been stored twice."""


INVISIBLE = 10.0


@define
class Verdict:
    """The faults of messages, by their bodies."""

    lost: list[str]
    """Acknowledged to the producer, and never delivered."""
    doubled: list[str]
    """Delivered a second time as a first attempt."""
    again: list[str]
    """Delivered after their acknowledgement was answered."""
    swapped: list[str]
    """Delivered for the first time after one that was sent later."""


def judge(sender: Job, consumers: list[Job], every: float = 0.0, kills: Sequence[float] = ()) -> Verdict:
    """Judge what the programs have said. Bodies are numbered in the order in which they were sent. The broker
    was killed at the times `kills`: it may have stored the send under way, which is tried again, and does not
    count the attempts of messages that were out."""
    sent = [row[0] for row in sender.told("sent")]
    unsure, before = set(), None
    for body, at in zip(sent, sender.times("sent"), strict=True):
        if before is not None:
            is_slow = at - before > SLOW_SECONDS + every
            if is_slow or any(before - SLOW_SECONDS <= kill <= at for kill in kills):
                unsure.add(body)
        before = at
    events = sorted(
        (at, row[0], row[1], row[2] if row[0] == "message" else "")
        for job in consumers
        for row, at in zip(list(job.rows), list(job.at), strict=False)
        if row and row[0] in ("message", "acked")
    )
    firsts: dict[str, list[float]] = {}
    acked: dict[str, float] = {}
    again = []
    for at, kind, body, attempt in events:
        if kind == "acked":
            acked.setdefault(body, at)
        elif attempt == "1":
            firsts.setdefault(body, []).append(at)
        elif body in acked and body not in unsure:
            again.append(body)

    def was_out(body: str, early: float, late: float) -> bool:
        """True if a kill came between two deliveries of a message, before its acknowledgement."""
        return any(early - SLOW_SECONDS <= kill <= min(late, acked.get(body, late)) for kill in kills)

    doubled = [
        body
        for body, times in firsts.items()
        if body not in unsure and not all(was_out(body, *pair) for pair in itertools.pairwise(times))
    ]
    places = {body: place for place, body in enumerate(sent)}
    order = [places[body] for body in firsts if body in places]
    swapped = [sent[late] for early, late in itertools.pairwise(order) if late < early]
    return Verdict([body for body in sent if body not in {*firsts, *acked}], doubled, again, swapped)
