"""`rmq run`: an application as processes, which end, die, and start anew when files change."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import attrs
import pytest

import rmq
from rmq.client import blocking
from tests.system.running import running_dev
from tests.system.shell import ROOT

ORDERS = """
import anyio, os, rmq
app = rmq.App()

@app.consumer("{topic}", group="{group}", model=str, consume_from="first")
async def handle(text: str) -> None:
    say(f"began {{text}} {{os.getpid()}}")
    await anyio.sleep({seconds})
    say(f"finished {{text}}")

def say(line):  # whole: print() may write in pieces, and other workers write to the same pipe
    os.write(1, (line + chr(10)).encode())
"""
SECONDS = 60.0


@attrs.define
class Running:
    """A process of `rmq run`, and what it has said."""

    process: subprocess.Popen[str]

    def until(self, pattern: str) -> str:
        """Read its output up to a line that has this; returns the group. One that does not come ends it."""
        assert self.process.stdout is not None
        seen = []
        limit = threading.Timer(SECONDS, self.process.kill)
        limit.start()
        try:
            for line in self.process.stdout:
                seen.append(line)
                if found := re.search(pattern, line):
                    return found[1] if found.groups() else line
        finally:
            limit.cancel()
        pytest.fail(f"it never said {pattern}: {''.join(seen)}")

    def end(self, *signals: signal.Signals) -> tuple[int, str]:
        """The status of the process, and the rest of its output."""
        for one in signals:
            self.process.send_signal(one)
        said, _ = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, said


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_dev(tmp_path_factory.mktemp("dev")) as (addresses, _):
        with blocking.connect(addresses[0]) as client:
            client.admin.create_topic("Runs", queues=4)
        yield addresses[0]


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder for the application; what runs in it is killed in the end."""
    yield tmp_path
    for process in STARTED:
        if process.poll() is None:
            process.kill()
            process.communicate()
    STARTED.clear()


STARTED: list[subprocess.Popen[str]] = []


def start(
    folder: pathlib.Path,
    names: str,
    *options: str,
    group: str,
    seconds: float = 0,
    topic: str = "Runs",
    text: str = ORDERS,
) -> Running:
    (folder / "orders.py").write_text(text.format(group=group, seconds=seconds, topic=topic))
    process = subprocess.Popen(
        [sys.executable, "-m", "rmq", "run", "orders:app", "-n", names, *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    STARTED.append(process)
    return Running(process)


def send(names: str, *texts: str, topic: str = "Runs") -> None:
    with blocking.connect(names) as client, client.producer("p") as producer:
        for text in texts:
            producer.send(rmq.Message(topic, text.encode()))


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_handlers_finish(
    loop: str, number: signal.Signals, names: str, folder: pathlib.Path
) -> None:
    group = topic = f"finish-{loop}-{number.name}"  # messages of other tests would count in its lag
    with blocking.connect(names) as client:
        client.admin.create_topic(topic, queues=4)
    running = start(folder, names, "--loop", loop, group=group, seconds=1, topic=topic)
    running.until("runs as process")
    send(names, "mine", topic=topic)
    running.until("began mine")
    status, said = running.end(number)

    assert status == 0
    assert "finished mine" in said
    with blocking.connect(names) as client:
        assert client.admin.consume_stats(group, topic).lag == 0


def test_a_second_signal_ends_it_at_once_and_the_message_comes_again(
    names: str, folder: pathlib.Path
) -> None:
    running = start(folder, names, "--drain", "1h", group="twice", seconds=10_000)
    running.until("runs as process")
    send(names, "again")
    running.until("began again")
    running.process.send_signal(signal.SIGTERM)
    running.until("stopping")
    began = time.monotonic()
    status, said = running.end(signal.SIGTERM)
    assert (status, "finished" in said) == (130, False)
    assert time.monotonic() - began < 2

    running = start(folder, names, group="twice")
    running.until("finished again")
    assert running.end(signal.SIGTERM)[0] == 0


def test_handlers_get_as_long_as_is_said(names: str, folder: pathlib.Path) -> None:
    running = start(folder, names, "--drain", "100ms", group="hurried", seconds=10_000)
    running.until("runs as process")
    send(names, "slow")
    running.until("began slow")
    status, said = running.end(signal.SIGTERM)
    assert (status, "did not finish in time" in said) == (0, True)


def test_workers_share_a_topic_and_one_that_dies_is_started_again(names: str, folder: pathlib.Path) -> None:
    running = start(folder, names, "--workers", "2", group="shared")
    pids = {int(running.until(r"runs as process (\d+)")) for _ in range(2)}
    os.kill(min(pids), signal.SIGKILL)
    running.until("worker . ended with -9")
    pids = {max(pids), int(running.until(r"runs as process (\d+)"))}

    seen: set[int] = set()
    deadline = time.monotonic() + SECONDS
    while seen != pids and time.monotonic() < deadline:  # until the queues are shared out
        send(names, "a", "b", "c", "d")
        seen |= {int(running.until(r"began [a-d] (\d+)")) for _ in range(4)}
    assert seen == pids
    status, said = running.end(signal.SIGINT)
    assert status == 0
    assert said.count("stopping") == 2


def test_workers_end_when_their_parent_is_killed(names: str, folder: pathlib.Path) -> None:
    running = start(folder, names, "--workers", "2", group="orphans")
    for _ in range(2):
        running.until("runs as process")
    status, said = running.end(signal.SIGKILL)  # ends when no process holds the output any more
    assert status == -9
    assert said.count("stopping") == 2


def test_a_change_of_a_file_starts_it_anew(names: str, folder: pathlib.Path) -> None:
    running = start(folder, names, "--reload", group="before")
    running.until("runs as process")
    (folder / "orders.py").write_text("import nonsense_of_mine\n")
    running.until("changed: orders.py")
    running.until("worker 1 ended with 1")
    (folder / "orders.py").write_text(ORDERS.format(group="after", seconds=0, topic="Runs"))
    running.until("runs as process")
    send(names, "new")
    running.until("finished new")
    assert running.end(signal.SIGINT)[0] == 0


@pytest.mark.parametrize("what", ["nowhere:app", "orders:missing", "orders:os", "orders.app:app"])
def test_what_names_no_app_ends_with_2(what: str, folder: pathlib.Path) -> None:
    (folder / "orders.py").write_text("import os\n")
    done = subprocess.run(
        [sys.executable, "-m", "rmq", "run", what, "--workers", "2"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 2
    assert f"MODULE:APP = {what!r}" in done.stderr


BLOCKING = """
import os, time, rmq
app = rmq.App()

@app.consumer("{topic}", group="{group}", model=str, consume_from="first")
def handle(text):
    os.write(1, b"began" + bytes([10]))
    time.sleep(3600)
"""


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_handler_in_a_thread_does_not_keep_the_process(loop: str, names: str, folder: pathlib.Path) -> None:
    group = topic = f"thread-{loop}"
    with blocking.connect(names) as client:
        client.admin.create_topic(topic, queues=4)
    running = start(folder, names, "--loop", loop, "--drain", "1s", group=group, topic=topic, text=BLOCKING)
    send(names, "one", topic=topic)
    running.until("began")
    before = time.monotonic()
    status, said = running.end(signal.SIGTERM)
    assert (status, time.monotonic() - before < 30) == (0, True)
    assert "handlers still running in threads after 1 s: 1" in said
