"""Processes of Spark: settings for a quick start, signals, and the number of their batches."""

from __future__ import annotations

import os
import pathlib
import signal
import sys

from tests.interop.rocketmq import Process, Processes

QUICK_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Java does not run for long here: it starts with less processor time."""


def signal_all(process: Process, number: signal.Signals) -> None:
    """Send a signal to a command, its Java and its workers; these have a process group of their own."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            session = int(stat.read_text().rpartition(")")[2].split()[3])
            if session == process.pid:
                os.kill(int(stat.parent.name), number)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has just ended


def batches_in(log: pathlib.Path) -> int:
    """The number of batches in a log of a checkpoint (`offsets`, `commits`). Spark keeps the files of the
    last 100 batches only."""
    return max((int(path.name) + 1 for path in log.glob("[0-9]*") if path.name.isdigit()), default=0)


def start_spark(processes: Processes, namesrv: str, name: str, *arguments: str) -> Process:
    """Start `rmq spark NAME`."""
    program = [sys.executable, "-m", "rmq", "spark", name, "-n", namesrv, *arguments]
    plugins = pathlib.Path(__file__).parents[3] / "plugins"
    path = os.pathsep.join([str(plugins.parent), str(plugins)])
    room = ("--master", "local[2]", "--memory", "512m")
    return processes.start([*program, *room], f"spark-{name}", env={"PYTHONPATH": path, **QUICK_JAVA})
