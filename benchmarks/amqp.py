"""Qpid's JMS client at our broker's AMQP door and at ActiveMQ Artemis, in turn, with the CPU of each server.

    python -m benchmarks.amqp [--count 20000] [--rounds 3] [--cache FOLDER] [--only rmq|artemis]

One connection, messages of 256 bytes, tests/interop/jms/Bench.java: sends that each wait for their answer,
sends with completion listeners, receives with automatic acknowledgement, and transactions of ten sends or ten
receives. Rounds alternate between the servers, each round at servers that were started for it, after a
warm-up in the same connection. A figure is the median of the rounds: messages a second, and µs of CPU of the
server for a message. Our broker flushes asynchronously, Artemis has its journal's defaults. Needs a JDK,
Maven and the extra `amqp`.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.interop.amqp.broker import served
from tests.interop.amqp.jms_program import HERE, filled, made
from tests.interop.rocketmq import wait_for_port
from tests.ports import free_ports

SERVERS: Final = ("rmq", "artemis")
TICK: Final = os.sysconf("SC_CLK_TCK")


def cpu_of(process: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = pathlib.Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


@contextmanager
def artemis(cache: pathlib.Path, folder: pathlib.Path) -> Iterator[tuple[str, int]]:
    """An embedded Artemis: its URL and its process."""
    jars = cache / "artemis"
    jars.mkdir(exist_ok=True)
    command = made(filled(jars, HERE / "artemis" / "pom.xml"), HERE / "artemis" / "Artemis.java")
    (port,) = free_ports(1)
    with (folder / "artemis.log").open("w") as log:
        child = subprocess.Popen([*command, str(port), str(folder)], stdout=log, stderr=log)
    try:
        wait_for_port(port)
        yield f"amqp://127.0.0.1:{port}", child.pid
    finally:
        child.kill()
        child.wait()


@contextmanager
def ours(folder: pathlib.Path) -> Iterator[tuple[str, int]]:
    """Our broker: its URL and its process."""
    with served(folder) as broker:
        yield broker.url, broker.process


def measured(command: list[str], url: str, process: int, count: int) -> dict[str, tuple[float, float]]:
    """Messages a second, and µs of CPU for a message, of each part of the program."""
    found: dict[str, tuple[float, float]] = {}
    child = subprocess.Popen([*command, url, str(count)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    began = 0.0
    for line in child.stdout:
        word, name, *figures = line.split()
        if word == "begin":
            began = cpu_of(process)
        elif not name.startswith("warm-"):
            seconds, messages = float(figures[0]), int(figures[1])
            found[name] = messages / seconds, (cpu_of(process) - began) / messages * 1e6
    assert child.wait() == 0
    return found


def main() -> None:
    """Run, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--cache", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "rmq-amqp"
    )
    parser.add_argument("--only", choices=SERVERS)
    options = parser.parse_args()
    jars = options.cache / "jms"
    jars.mkdir(parents=True, exist_ok=True)
    command = made(filled(jars, HERE / "pom.xml"), HERE / "Bench.java")
    servers = SERVERS if options.only is None else (options.only,)
    rounds: dict[str, list[dict[str, tuple[float, float]]]] = {name: [] for name in servers}
    for _ in range(options.rounds):
        for name in servers:
            with tempfile.TemporaryDirectory() as text:
                folder = pathlib.Path(text)
                with ours(folder) if name == "rmq" else artemis(options.cache, folder) as (url, process):
                    rounds[name].append(measured(command, url, process, options.count))
    print(f"| | {' | '.join(f'{name}: messages/s | µs of CPU' for name in servers)} |")
    for part in rounds[servers[0]][0]:
        cells = []
        for name in servers:
            rates, costs = zip(*(one[part] for one in rounds[name]), strict=True)
            cells += [f"{statistics.median(rates):,.0f}", f"{statistics.median(costs):.0f}"]
        print(f"| {part} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
