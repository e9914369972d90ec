"""RocketMQ's official 5.x clients (Java, Python, Node) on our broker's gRPC door; v5/ tells what they do.

`nox -s grpc` runs this. A client whose tools are missing is skipped by its name.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import trio
from attrs import define, field

import rmq
from tests.interop.rocketmq import wait_for_port
from tests.ports import free_ports

pytest.importorskip("h2")
pytestmark = pytest.mark.interop

HERE = pathlib.Path(__file__).parents[1] / "v5"
SECONDS = 60.0


@define
class Job:
    """A program that runs; `rows` are the lines that it has printed, taken apart at blanks."""

    child: subprocess.Popen[str]
    rows: list[list[str]] = field(factory=list)

    def read(self) -> None:
        """Read its lines until it ends."""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.rows.append(line.split())

    def told(self, word: str) -> list[list[str]]:
        """The rest of the lines that begin with a word."""
        return [row[1:] for row in list(self.rows) if row and row[0] == word]

    def bodies(self) -> list[str]:
        """The bodies of the messages that have come."""
        return [row[0] for row in self.told("message")]

    def until(self, holds: Callable[[Job], object]) -> Job:
        """Wait until this holds."""
        end = time.monotonic() + SECONDS
        while not holds(self):
            assert time.monotonic() < end, self.rows
            time.sleep(0.05)
        return self

    def done(self) -> Job:
        """Wait for its end."""
        assert self.child.wait(SECONDS) == 0, self.rows
        return self


Run = Callable[..., Job]


def _python(cache: pathlib.Path) -> list[str]:
    """The client of PyPI, in an environment of its own."""
    python = cache / "python" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", cache / "python"], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "rocketmq-python-client==5.1.2"], check=True)
    return [str(python), str(HERE / "driver.py")]


def _node(cache: pathlib.Path) -> list[str]:
    """The client of npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("needs node and npm")
    folder = cache / "node"
    if not (folder / "node_modules").exists():
        folder.mkdir(exist_ok=True)
        shutil.copy(HERE / "package.json", folder)
        subprocess.run([npm, "install", "--silent"], cwd=folder, check=True)
    shutil.copy(HERE / "driver.js", folder)
    return [node, str(folder / "driver.js")]


def _java(cache: pathlib.Path) -> list[str]:
    """The client of Maven Central."""
    java, javac, maven = shutil.which("java"), shutil.which("javac"), shutil.which("mvn")
    if java is None or javac is None or maven is None:
        pytest.skip("needs a JDK and Maven")
    folder = cache / "java"
    if not (folder / "lib").exists():
        folder.mkdir(exist_ok=True)
        shutil.copy(HERE / "pom.xml", folder)
        command = [maven, "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
        subprocess.run(command, cwd=folder, check=True)
    shutil.copy(HERE / "Driver.java", folder)
    subprocess.run([javac, "-cp", "lib/*", "Driver.java"], cwd=folder, check=True)
    return [java, "-Xmx64m", "-cp", f"{folder}/lib/*:{folder}", "Driver"]


CLIENTS = {"python": _python, "node": _node, "java": _java}


@pytest.fixture(scope="module", params=sorted(CLIENTS))
def client(request: pytest.FixtureRequest) -> list[str]:
    """The command of a client."""
    return CLIENTS[request.param](pathlib.Path(request.config.cache.mkdir("grpc-clients")).resolve())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A broker of processes; its address for gRPC, and that of its name server."""
    folder = tmp_path_factory.mktemp("grpc")
    names, port, _, grpc = free_ports(4)  # the one behind the broker's is for slaves
    (folder / "names.conf").write_text(f"listenPort={names}\nkvConfigPath={folder}/kv.json\n")
    (folder / "broker.conf").write_text(
        f"brokerName=b\nlistenPort={port}\nstorePathRootDir={folder}/store\nplugins=grpc\ngrpcPort={grpc}\n"
        f"namesrvAddr=127.0.0.1:{names}\nenablePropertyFilter=true\n"
        "transactionTimeOut=3000\ntransactionCheckInterval=2000\n"
    )
    started = []
    try:
        for module, file in (("rmq.namesrv", "names.conf"), ("rmq.broker", "broker.conf")):
            log = (folder / f"{file}.log").open("w")
            command = [sys.executable, "-m", module, "-c", str(folder / file)]
            started.append(subprocess.Popen(command, stdout=log, stderr=log))
            wait_for_port(names if module == "rmq.namesrv" else grpc)
        yield f"127.0.0.1:{grpc}", f"127.0.0.1:{names}"
    finally:
        for child in reversed(started):
            child.terminate()
            child.wait(SECONDS)


@pytest.fixture
def run(client: list[str], broker: tuple[str, str]) -> Iterator[Run]:
    """Start the client with an action and its options."""
    jobs: list[Job] = []

    def start(action: str, **options: object) -> Job:
        words = [f"{name}={value}" for name, value in options.items()]
        child = subprocess.Popen(
            [*client, broker[0], action, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        job = Job(child)
        jobs.append(job)
        threading.Thread(target=job.read, daemon=True).start()
        return job

    yield start
    for job in jobs:
        job.child.kill()
        job.child.wait()


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: tuple[str, str]) -> str:
    """A topic of the test's own."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)

    async def create() -> None:
        async with rmq.connect(broker[1]) as ours:
            with trio.fail_after(SECONDS):
                while not await ours.admin.create_topic(name, queues=4):  # the broker has not registered yet
                    await trio.sleep(0.2)

    trio.run(create)
    return name


async def test_ours_reads_what_theirs_sends(run: Run, topic: str, broker: tuple[str, str]) -> None:
    run("send", topic=topic, bodies="one,two,three", tag="x").done()
    seen = []
    async with (
        rmq.connect(broker[1]) as ours,
        ours.consumer("ours-" + topic, {topic: "*"}, consume_from="first") as consumer,
    ):
        async for delivery in consumer:
            message = delivery.message
            seen.append((message.body, message.tags, message.keys, message.properties["colour"]))
            if len(seen) == 3:
                break
    assert sorted(seen) == [
        (b"one", "x", ("key-one",), "red"),
        (b"three", "x", ("key-three",), "red"),
        (b"two", "x", ("key-two",), "red"),
    ]


async def test_theirs_reads_what_ours_sends(run: Run, topic: str, broker: tuple[str, str]) -> None:
    async with rmq.connect(broker[1]) as ours, ours.producer("ours") as producer:
        for body in (b"one", b"two"):
            message = rmq.Message(topic, body, tags="t", keys=("k",), properties={"colour": "blue"})
            await producer.send(message)
    job = run("simple", topic=topic, consumer="g-" + topic, seconds=12)
    job.until(lambda job: len(job.bodies()) == 2)
    assert sorted(job.told("message")) == [["one", "1", "t", "k", "blue"], ["two", "1", "t", "k", "blue"]]


def test_a_simple_consumer_gets_again_what_it_did_not_acknowledge(run: Run, topic: str) -> None:
    run("send", topic=topic, bodies="one").done()
    job = run("simple", topic=topic, consumer="g-" + topic, seconds=25, ack="no")
    job.until(lambda job: len(job.bodies()) >= 2)
    assert [row[:2] for row in job.told("message")][:2] == [["one", "1"], ["one", "2"]]


def test_a_push_consumer_retries_and_filters(run: Run, topic: str) -> None:
    job = run("push", topic=topic, consumer="g-" + topic, seconds=40, filter="yes", fails="two")
    job.until(lambda job: job.told("started"))
    time.sleep(2)
    run("send", topic=topic, bodies="no", tag="no").done()
    run("send", topic=topic, bodies="one,two", tag="yes").done()
    job.until(lambda job: len(job.bodies()) == 3)
    assert sorted(row[:2] for row in job.told("message")) == [["one", "1"], ["two", "1"], ["two", "2"]]


def test_sql_filters(run: Run, topic: str) -> None:
    run("send", topic=topic, bodies="red", colour="red").done()
    run("send", topic=topic, bodies="blue", colour="blue").done()
    job = run("simple", topic=topic, consumer="g-" + topic, seconds=12, sql="colour = 'blue'")
    job.until(lambda job: job.bodies())
    job.done()
    assert job.bodies() == ["blue"]


def test_messages_of_a_group_come_in_order(run: Run, topic: str) -> None:
    bodies = [f"m{number}" for number in range(8)]
    run("send", topic=topic, bodies=",".join(bodies), group="user").done()
    job = run("simple", topic=topic, consumer="g-" + topic, seconds=12)
    job.until(lambda job: len(job.bodies()) == 8)
    assert job.bodies() == bodies


def test_a_delayed_message_comes_at_its_time(run: Run, topic: str) -> None:
    job = run("simple", topic=topic, consumer="g-" + topic, seconds=30)
    job.until(lambda job: job.told("started"))
    run("send", topic=topic, bodies="late", delay=6_000).done()
    began = time.monotonic()
    job.until(lambda job: job.bodies())
    assert 2 < time.monotonic() - began < 9


@pytest.mark.parametrize(("end", "expected"), [("commit", ["tx"]), ("rollback", []), ("orphan", ["tx"])])
def test_transactions(run: Run, topic: str, end: str, expected: list[str]) -> None:
    sender = run("send", topic=topic, bodies="tx", end=end)
    sender.until(lambda job: job.told("sent"))
    if end == "orphan":
        sender.until(lambda job: job.told("check") == [["tx"]])
    job = run("simple", topic=topic, consumer="g-" + topic, seconds=8)
    job.done()
    assert job.bodies() == expected
