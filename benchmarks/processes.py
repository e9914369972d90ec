"""What a message costs `rmq broker --processes N`: CPU of all its brokers, user and system, by N and by how
many sends are in flight in all.

    python -m benchmarks.processes [--messages 40000] [--body 128] [--engine pure] [--java]

With --java RocketMQ's own broker, which uses all cores by itself, has a column (needs a JDK and Maven).
One process sends frames that are made before, to each broker its share of the window; brokers are pinned to
cores as the service does it. Rates are not told: the load needs a core, too. The second table has what
several full cores would take of the rate of one, by the CPU of a message.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median

from benchmarks.scale import Link as ScaleLink
from benchmarks.scale import make_topic, send
from benchmarks.side_by_side import SETTINGS, cpu_seconds
from rmq.protocol.frames import Decoder
from tests.interop.rocketmq import Java, Processes

FIRST_PORT, DISTANCE, HEALTH_PORT = 27_410, 10, 27_400
QUEUES, RUNS = 8, 3
PROCESSES, WINDOWS = (1, 2, 8), (16, 64, 256, 1024, 4096)
START_SECONDS = 120.0
JAVA_WARM = 300_000  # messages until most of it is compiled


class Link(ScaleLink):
    """A connection to one broker, with a share of the window."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.left = self.flying = 0
        self.decoder = Decoder()


def cpu_of_children(supervisor: int) -> float:
    """User and system time of the brokers below the process that looks after them."""
    ticks = 0
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == supervisor:
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def service(count: int, folder: str, engine: str) -> Iterator[int]:
    """The service of so many brokers from when it is ready; gives its process."""
    settings = {
        "brokerName": "b",
        "listenPort": str(FIRST_PORT),
        "storePathRootDir": folder,
        "haEnable": "false",
        "plugins": "metrics",
        "metricsPort": str(HEALTH_PORT),
        "osPageCacheBusyTimeOutMills": "10000",
    }
    command = [sys.executable, "-m", "rmq", "broker", "--processes", str(count)]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    quiet = subprocess.DEVNULL
    environment = os.environ | {"RMQ_ENGINE": engine}
    process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, env=environment)
    try:
        end = time.monotonic() + START_SECONDS
        while not is_ready():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the brokers did not start")
            time.sleep(0.2)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_SECONDS)


@contextmanager
def java_broker(folder: str) -> Iterator[tuple[int, int]]:
    """RocketMQ 4.9.7's broker on all cores: its port and its process."""
    java = Java(pathlib.Path(__file__).parents[1] / ".pytest_cache" / "d" / "rocketmq-4.9.7")
    java.prepare()
    with Processes(java, pathlib.Path(folder), broker_heap="1g") as processes:
        broker = processes.java_broker(processes.java_namesrv(), pathlib.Path(folder, "store"), **SETTINGS)
        yield broker.port, broker.pid


def is_ready() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{HEALTH_PORT}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def load(links: list[Link], frames: list[bytes], messages: int, window: int) -> None:
    """Send so many messages with so many in flight over all connections, each its share of both."""
    with selectors.DefaultSelector() as ready:
        for link in links:
            link.left, link.flying = messages // len(links), 0
            ready.register(link.sock, selectors.EVENT_READ, link)
            push(link, frames, window // len(links))
        while ready.get_map():
            for key, _ in ready.select():
                link = key.data
                answers = link.decoder.feed(link.sock.recv(1 << 20))
                if any(answer.code for answer in answers):
                    raise ValueError(f"{answers[0].code}: {answers[0].remark}")
                link.flying -= len(answers)
                push(link, frames, len(answers))
                if not link.flying:
                    ready.unregister(link.sock)


def push(link: Link, frames: list[bytes], count: int) -> None:
    count = min(count, link.left)
    link.left -= count
    link.flying += count
    if count:
        link.sock.sendall(b"".join(frames[at % len(frames)] for at in range(count)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--body", type=int, default=128)
    parser.add_argument("--java", action="store_true", help="RocketMQ's own broker, too")
    parser.add_argument("--engine", default="auto", choices=("auto", "pure", "compiled"))
    options = parser.parse_args()
    frames = [send("shared", queue, bytes(options.body)) for queue in range(QUEUES)]
    columns = {}
    for count in PROCESSES:
        with tempfile.TemporaryDirectory() as folder, service(count, folder, options.engine) as supervisor:
            links = [Link(FIRST_PORT + DISTANCE * number) for number in range(count)]
            spent = partial(cpu_of_children, supervisor)
            columns[f"at {count}"] = measured(links, frames, options.messages, spent, 2_000)
    if options.java:
        with tempfile.TemporaryDirectory() as folder, java_broker(folder) as (port, process):
            spent = partial(cpu_seconds, process)
            columns["Java"] = measured([Link(port)], frames, options.messages, spent, JAVA_WARM)
    print(f"| sends in flight | {' | '.join(columns)} |")
    print(f"|---|{'---|' * len(columns)}")
    for window in WINDOWS:
        print(f"| {window:,} | {' | '.join(f'{costs[window]:.1f}' for costs in columns.values())} |")
    alone = columns[f"at {PROCESSES[0]}"]
    several = [count for count in PROCESSES if 1 < count <= (os.cpu_count() or 1)]
    print(f"\n| sends in flight | {' | '.join(f'{count} full cores ÷ one' for count in several)} |")
    print(f"|---|{'---|' * len(several)}")
    for window in WINDOWS:
        gains = (count * alone[window] / columns[f"at {count}"][window] for count in several)
        print(f"| {window:,} | {' | '.join(f'{gain:.2f}' for gain in gains)} |")


def measured(
    links: list[Link], frames: list[bytes], most: int, spent: Callable[[], float], warm: int
) -> dict[int, float]:
    """CPU µs a message by the number in flight, after so many messages that are not counted."""
    for link in links:
        make_topic(link, "shared", QUEUES)
    load(links, frames, warm, 64)
    found = {}
    for window in WINDOWS:
        messages = min(most, 4_000 * window)
        costs = []
        for _ in range(RUNS):
            before = spent()
            load(links, frames, messages, window)
            costs.append((spent() - before) / messages * 1e6)
        found[window] = median(costs)
        print(f"# {len(links)} connections, {window} in flight: {found[window]:.1f} µs", file=sys.stderr)
    return found


if __name__ == "__main__":
    main()
