"""A cluster of two masters, its clients, and one mqadmin that is kept running: for the tests of mqadmin."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tests.interop.conftest import Servers
from tests.interop.rocketmq import Mqadmin, Process, Processes, wait_until

SETTINGS = {
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "2000",
}


Start = Callable[[str, str], Process]
"""Starts a consumer of a topic in a group."""


class Cluster:
    """A name server and the masters broker-a and broker-b.

    `admin(command, *arguments)` runs mqadmin against them and returns what it printed; `alone` does so in a
    process of its own, for commands that keep something in static fields or write into their folder. `more`
    gives further settings of a broker by its name.
    """

    def __init__(
        self,
        processes: Processes,
        folder: pathlib.Path,
        kind: str,
        more: Callable[[str], Mapping[str, str]] = lambda name: {},
    ) -> None:
        self.processes = processes
        self.folder = folder
        self.servers = Servers(processes, kind)
        self.namesrv = self.servers.namesrv
        self.brokers = {name: self._start(name, more(name)) for name in ("broker-a", "broker-b")}
        self.admin: Mqadmin = processes.mqadmin_shell(self.namesrv)

    def _start(self, name: str, more: Mapping[str, str]) -> Process:
        return self.servers.broker(self.folder / name, brokerName=name, **SETTINGS, **more)

    def alone(self, command: str, *arguments: str) -> str:
        return self.processes.mqadmin(command, "-n", self.namesrv, *arguments)

    def address(self, name: str) -> str:
        """The address of a broker."""
        return f"127.0.0.1:{self.brokers[name].port}"

    @property
    def a(self) -> str:
        return self.address("broker-a")

    @property
    def b(self) -> str:
        return self.address("broker-b")

    @property
    def kv_file(self) -> pathlib.Path:
        """The file of the name server's key-value configs."""
        if self.servers.kind == "java":
            return self.processes.home / "namesrv" / "kvConfig.json"
        return self.processes.folder / f"kvConfig-{self.namesrv.rpartition(':')[2]}.json"

    def config_file(self, name: str) -> pathlib.Path:
        """The file that a broker was started with."""
        arguments = self.brokers[name].child.args
        assert isinstance(arguments, list)
        return pathlib.Path(arguments[arguments.index("-c") + 1])

    def restart(self, name: str, while_down: Callable[[], object] = lambda: None) -> None:
        """Stop a broker, do the given work, and start the broker as it was."""
        old = self.brokers[name]
        assert isinstance(old.child.args, list)
        old.stop()
        while_down()
        self.brokers[name] = self.processes.serve_registered(old.child.args, name, old.port, self.namesrv)

    # --- topics and traffic ---

    def make_topic(self, topic: str, queues: int = 4) -> None:
        """A topic on both brokers."""
        sizes = ("-r", str(queues), "-w", str(queues))
        said = self.admin("updateTopic", "-c", "DefaultCluster", "-t", topic, *sizes)
        assert said.count("success") == 2, said

    def produce(self, topic: str, count: int, prefix: str = "m", *more: str) -> list[dict[str, Any]]:
        """Sends with the Java client; one row for each answer."""
        return self.processes.program(
            "Produce", self.namesrv, topic, "sync", str(count), prefix, *more
        ).finish()

    def java_consumer(self, topic: str, group: str) -> Process:
        """A running push consumer of the Java client."""
        return self.processes.program("Consume", self.namesrv, topic, group)

    def rmq_consumer(self, topic: str, group: str) -> Process:
        """A running consumer of our client."""
        command = [sys.executable, "-m", "tests.interop.consume", self.namesrv, topic, group]
        return self.processes.start(command, "rmq-consume")

    # --- what it says ---

    def committed(self, group: str, topic: str) -> int:
        """The number of messages that the group has committed, in all queues."""
        said = self.admin("consumerProgress", "-g", group)
        return sum(int(row[4]) for row in rows(said, topic))

    def diff(self, group: str) -> int:
        """The group's lag, as consumerProgress sums it up; -1 when it says none."""
        said = self.admin("consumerProgress", "-g", group)
        return next((int(line.split()[-1]) for line in said.splitlines() if "Diff Total" in line), -1)

    def wait_for_diff(self, group: str, diff: int) -> None:
        """Wait until the group has committed this number of messages (the clients commit every 5 s)."""
        wait_until(lambda: self.diff(group) == diff, 30, f"{group} at lag {diff}", every=0.3)

    def client_id(self, group: str) -> str:
        """The id of the group's only member."""
        (row,) = [
            row
            for row in map(str.split, self.admin("consumerConnection", "-g", group).splitlines())
            if row and "@" in row[0]
        ]
        return row[0]


def name_of(start: Start, word: str) -> str:
    """A name for the topic or the group of one test with one client."""
    return f"{word}-{start.__name__.partition('_')[0]}"


def rows(said: str, first: str) -> list[list[str]]:
    """The lines whose first word is `first`, as words."""
    return [words for words in map(str.split, said.splitlines()) if words[:1] == [first]]


def bodies(process: Process) -> list[str]:
    """The bodies that a consumer has received so far."""
    return [row["body"] for row in process.rows if "body" in row]


def wait_for_bodies(process: Process, count: int) -> list[str]:
    """Wait until a consumer has received this number of messages in all."""
    wait_until(
        lambda: len(bodies(process)) >= count or process.child.poll() is not None, 40, f"{count} bodies"
    )
    assert len(bodies(process)) >= count, process.said()
    return bodies(process)


def settings(said: str) -> dict[str, str]:
    """The `key = value` and `key : value` lines."""
    pairs = (line.replace(" : ", " = ", 1).partition("=") for line in said.splitlines())
    return {key.strip(): value.strip() for key, mark, value in pairs if mark}
