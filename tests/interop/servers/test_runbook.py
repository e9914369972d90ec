"""The drill of the section "Java in and out" of docs/runbooks.md, with RocketMQ's servers, clients and tool.

A Java broker becomes ours and Java again, over one folder and one file of settings, while Java's client and
ours send and a Java consumer consumes. Nothing that was acknowledged is lost, no offset goes back.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

import anyio
import pytest
from attrs import define

import rmq
from tests.interop.cluster import rows
from tests.interop.rocketmq import Mqadmin, Process, Processes, free_port
from tests.ports import free_ports
from tests.system.drill import PATIENCE_SECONDS, TOPIC, Drill, Server, crowding, drill, shape, until

pytestmark = pytest.mark.interop

GROUP = "auditors"


TOO_LATE = ("RemotingTimeoutException", "connect to null failed")
"""Errors of mqadmin whose 3 s were short on a busy machine. One JVM runs all commands: a new one for each
spends its 3 s on loading classes, and ends in such an error again and again."""


@define
class Machine:
    """One machine with both kinds of broker installed, of which one runs; and the operator's notes."""

    processes: Processes
    run: Drill
    settings: pathlib.Path
    broker: Process
    admin: Mqadmin
    noted: dict[str, int]

    def mqadmin(self, name: str, *arguments: str) -> str:
        """A step of the section; repeated as long as its 3 s were short."""
        self.run.ran.append(shape(["mqadmin", name, "-n", *arguments]))
        said: list[str] = []

        def is_answered() -> bool:
            said[:] = [self.admin(name, *arguments, seconds=PATIENCE_SECONDS * crowding())]
            return not any(words in said[0] for words in TOO_LATE)

        until(is_answered, lambda: said[0])
        return said[0]

    def check_with_mqadmin(self) -> None:
        """Check the offsets of topic and group on this broker: none may be below its earlier value."""
        said = self.mqadmin("topicStatus", "-t", TOPIC)
        found = {f"max of {row[1]}": int(row[3]) for row in rows(said, "broker-a")}
        assert len(found) == 4, said
        said = self.mqadmin("consumerProgress", "-g", GROUP)
        queues = [row for row in rows(said, TOPIC) if row[1] == "broker-a"]
        found |= {f"group at {row[2]}": int(row[4]) for row in queues}
        assert len(found) == 8, said
        assert all(found[name] >= at for name, at in self.noted.items()), (self.noted, found)
        self.noted = found

    def check_is(self, kind: str) -> None:
        """The broker is of that kind, under its address."""
        (row,) = [row for row in self.run.rows("cluster", "list") if row["broker"] == "broker-a"]
        assert row["kind"].split()[0] == kind, row
        assert row["address"].endswith(f":{self.broker.port}")

    def check_is_listed(self) -> None:
        until(self.is_listed, lambda: "mqadmin does not find it")

    def is_listed(self) -> bool:
        said = self.mqadmin("clusterList")
        return any(row[1] == "broker-a" and row[3].endswith(f":{self.broker.port}") for row in all_rows(said))

    def start_ours(self) -> None:
        self.run.servers["broker-a"].done.add("start")
        command = [sys.executable, "-m", "rmq", "broker", "-c", str(self.settings)]
        port = self.broker.port
        self.broker = self.processes.serve_registered(command, "rmq-broker", port, self.run.namesrv)

    def check_is_refused(self) -> None:
        """Ours does not take a folder that Java still has."""
        (port,) = free_ports(1)
        command = [sys.executable, "-m", "rmq", "broker", "-c", str(self.settings)]
        command += ["--set", f"listenPort={port}", "--set", "haEnable=false", "--set", "plugins="]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 3, done.stderr
        assert "is locked by another broker" in done.stderr

    def start_java(self, command: list[str]) -> None:
        port = self.broker.port
        self.broker = self.processes.serve_registered(command, "java-broker", port, self.run.namesrv)

    def end(self) -> None:
        self.run.servers["broker-a"].done.add("stop")
        assert self.broker.stop() in (0, 143)  # a JVM reports the signal

    def check_folder(self) -> None:
        """The page's path stands for the store of this machine."""
        self.run.rmq("store", "check", str(self.run.folder / "store-a"))


def all_rows(said: str) -> list[list[str]]:
    """The lines of `clusterList` that are about a broker."""
    return [words for words in map(str.split, said.splitlines()) if len(words) > 4]


def steady(processes: Processes, namesrv: str) -> Process:
    """A Java producer that sends until it is told to end."""
    return processes.program("Produce", namesrv, TOPIC, "steady", "1000000", "java")


def sent(producer: Process) -> set[str]:
    return {row["sent"] for row in producer.rows if row.get("status") == "SEND_OK"}


def failed(producer: Process) -> list[str]:
    return [row["failed"] for row in producer.rows if "failed" in row]


def stop_steady(producer: Process) -> None:
    assert producer.child.stdin is not None
    producer.child.stdin.write(b"\n")
    producer.child.stdin.flush()
    producer.finish()


def consumed(consumer: Process) -> set[str]:
    assert consumer.child.poll() is None, consumer.said()
    return {row["body"] for row in consumer.rows if "body" in row}


def go_on(machine: Machine, producer: Process) -> None:
    """Wait until messages of both clients that are sent from now on are stored at the changed broker."""
    assert machine.run.traffic is not None
    machine.run.traffic.go_on()
    begun = len(producer.rows)

    def is_served() -> bool:
        assert producer.child.poll() is None, producer.said()
        return any(row.get("broker") == "broker-a" for row in producer.rows[begun:])

    until(is_served, lambda: f"Java does not send to it again: {producer.said()}")


def send_in(namesrv: str, seconds: int) -> None:
    """One message of the topic, with a delivery time of its own, to broker-a."""

    async def send() -> None:
        async with rmq.connect(namesrv) as client, client.producer("later") as producer:
            queue = rmq.MessageQueue(TOPIC, "broker-a", 0)
            await producer.send(rmq.Message(TOPIC, b"later", delay_ms=seconds * 1000), queue=queue)

    anyio.run(send)


@pytest.mark.timeout(3600)  # nine JVMs
@pytest.mark.parametrize("names", ["java", "rmq"])
def test_java_in_and_out(processes: Processes, tmp_path: pathlib.Path, names: str) -> None:
    with drill(tmp_path, "Java in and out") as run:
        namesrv = processes.java_namesrv() if names == "java" else processes.rmq_namesrv()
        listens = {"listenPort": namesrv.rpartition(":")[2]}
        run.servers["names"] = Server("namesrv", "names", tmp_path, listens)
        run.servers["broker-a"] = Server("broker", "broker-a", tmp_path, {})  # to note what is done to it
        port, (metrics,) = free_port(), free_ports(1)
        common = {"namesrvAddr": namesrv, "flushConsumerOffsetInterval": "1000"}
        more = common | {"brokerName": "broker-a", "plugins": "metrics", "metricsPort": str(metrics)}
        first = processes.java_broker(namesrv, tmp_path / "store-a", listenPort=str(port), **more)
        processes.java_broker(namesrv, tmp_path / "store-b", **common, brokerName="broker-b")
        java_command = first.child.args
        assert isinstance(java_command, list)
        settings = pathlib.Path(java_command[java_command.index("-c") + 1])
        machine = Machine(processes, run, settings, first, processes.mqadmin_shell(namesrv), {})

        traffic = run.load()
        consumer = processes.program("Consume", namesrv, TOPIC, GROUP)
        producer = steady(processes, namesrv)
        go_on(machine, producer)
        until(lambda: consumed(consumer), lambda: consumer.said())

        # In.
        known = run.rmq("broker", "-c", str(settings), "-m")
        assert f"storePathRootDir={tmp_path / 'store-a'}" in known
        assert "brokerIP1=127.0.0.1" in known
        machine.check_with_mqadmin()
        machine.check_is_refused()
        early = failed(producer)  # the first sends may find no route while the topic is made
        machine.end()
        machine.check_folder()
        machine.start_ours()
        go_on(machine, producer)
        unanswered = failed(producer)  # the one that was on its way when Java's broker stopped, if any
        assert len(unanswered) <= len(early) + 1
        machine.check_is_listed()
        machine.check_with_mqadmin()
        machine.check_is("rmq")
        run.rmq("doctor")
        send_in(namesrv, 30)

        # And out.
        machine.end()
        machine.check_folder()
        machine.start_java(java_command)
        go_on(machine, producer)
        machine.check_is_listed()
        machine.check_with_mqadmin()
        machine.check_is("java")

        traffic.stop()
        assert traffic.failures == []
        stop_steady(producer)
        stored = {*traffic.stored, *sent(producer)}
        assert len(stored) > 200
        until(lambda: stored <= consumed(consumer), lambda: f"lost: {sorted(stored - consumed(consumer))}")
        assert failed(producer) == unanswered, "it sends to the other broker"

        # What Java does not deliver was kept, and is delivered when the folder is ours again.
        machine.end()
        machine.start_ours()
        until(lambda: "later" in consumed(consumer), lambda: "a message with a time of its own is lost")
