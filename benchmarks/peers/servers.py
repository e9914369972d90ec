"""The brokers of `benchmarks.peers`: each as it comes but for what its durability asks for."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping

import attrs

from benchmarks.side_by_side import SETTINGS
from tests.interop.rocketmq import Java, Processes

BROKER_CORE = "1"
START_SECONDS = 120.0


@attrs.frozen
class Durability:
    """What an acknowledgement means, and the settings that each broker has for it."""

    name: str
    words: Mapping[str, str]


CACHE = Durability(
    "acknowledged before it is on the disk",
    {
        "rmq": "ASYNC_FLUSH: written to the file, synced within 0.5 s",
        "rmq, pure": "as rmq, without the compiled engine",
        "kafka": "acks=1, one replica: written to the file, never synced by itself",
        "nats": "JetStream, file, one replica: written to the file, synced every 2 minutes",
        "redis": "appendonly, everysec: written to the file, synced each second; all of it in memory, too",
        "rabbitmq": "stream: written to the file, never synced by itself",
        "java": "RocketMQ 4.9.7, ASYNC_FLUSH: written to the file, synced within 0.5 s",
        "java, 5.3.3": "RocketMQ 5.3.3, ASYNC_FLUSH: written to the file, synced within 0.5 s",
    },
)
DISK = Durability(
    "acknowledged when it is on the disk",
    {
        "rmq": "SYNC_FLUSH",
        "rmq, pure": "as rmq, without the compiled engine",
        "kafka": "log.flush.interval.messages=1",
        "nats": "sync_interval: always",
        "redis": "appendfsync always",
        "java": "RocketMQ 4.9.7, SYNC_FLUSH",
        "java, 5.3.3": "RocketMQ 5.3.3, SYNC_FLUSH",
        "rabbitmq, quorum": "quorum queue of one member: synced",
    },
)


@attrs.frozen
class Server:
    """A running broker, or the first of several that belong together."""

    kind: str
    port: int
    process: subprocess.Popen[bytes]
    more: tuple[int, ...] = ()
    """The other processes: members of its set, name servers, controllers."""
    ports: tuple[int, ...] = ()
    """If several take messages, the ports of all."""

    def tree(self) -> dict[int, list[str]]:
        """Its processes and what they started: each with its line of /proc from the state on."""
        lines = {}
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    lines[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()
        known = {self.process.pid, *self.more}
        for _ in lines:
            more = {pid for pid, line in lines.items() if int(line[1]) in known} - known
            if not more:
                break
            known |= more
        return {pid: line for pid, line in lines.items() if pid in known}

    def cpu_seconds(self) -> float:
        """User and system time of its processes so far."""
        ticks = sum(int(field) for line in self.tree().values() for field in line[11:13])
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        """Memory of its processes that is their own: pages of mapped files are not counted."""
        found = 0
        for pid in self.tree():
            with contextlib.suppress(OSError):
                for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("RssAnon"):
                        found += int(line.split()[1])
        return found / 1024


@contextlib.contextmanager
def serving(
    kind: str,
    port: int,
    command: list[str],
    environment: Mapping[str, str] | None = None,
    cores: str = BROKER_CORE,
) -> Iterator[Server]:
    """Run a broker on its core from when its port is open."""
    process = subprocess.Popen(
        ["taskset", "-c", cores, *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env=os.environ | (environment or {}),
    )
    try:
        wait_for(port, kind, process)
        yield Server(kind, port, process)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(port: int, kind: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the port of a process is open. Raises RuntimeError if the process ends, or after a while."""
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{kind} did not start: {process.args!r}") from None
            time.sleep(0.1)


def rmq(
    kind: str,
    folder: str,
    port: int,
    durability: Durability,
    more: Mapping[str, str] | None = None,
    cores: str = BROKER_CORE,
) -> contextlib.AbstractContextManager[Server]:
    """This checkout's broker; of messages it keeps what a run needs."""
    settings = {
        "listenPort": str(port),
        "storePathRootDir": folder,
        "haEnable": "false",
        "brokerIP1": "127.0.0.1",
        "osPageCacheBusyTimeOutMills": "10000",
        "maxNewConnectionsPerAddress": "0",  # all come from one
        "flushDiskType": "SYNC_FLUSH" if durability is DISK else "ASYNC_FLUSH",
        "diskSpaceCleanForciblyRatio": "97",  # the others do not look
        "diskSpaceWarningLevelRatio": "98",
    } | dict(more or {})
    command = rmq_command("broker", settings)
    return serving(kind, port, command, {"RMQ_ENGINE": "pure" if kind == "rmq, pure" else "auto"}, cores)


def rmq_command(server: str, settings: Mapping[str, str]) -> list[str]:
    """The command line of a server of this checkout."""
    command = [sys.executable, "-m", "rmq", server]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    return command


@contextlib.contextmanager
def rmq_processes(kind: str, folder: str, port: int, count: int) -> Iterator[Server]:
    """`rmq broker --processes`, one on each core."""
    settings = {"brokerName": "b", "listenPort": str(port), "storePathRootDir": folder, "haEnable": "false"}
    settings |= {"osPageCacheBusyTimeOutMills": "10000", "maxNewConnectionsPerAddress": "0"}
    command = [*rmq_command("broker", settings), "--processes", str(count)]
    ports = tuple(range(port, port + 10 * count, 10))
    with serving(kind, port, command, cores=f"0-{count - 1}") as server:
        for one in ports:
            wait_for(one, kind, server.process)
        yield attrs.evolve(server, ports=ports)


def kafka_uuid(jars: str) -> str:
    """A name for a new cluster."""
    command = ["java", "-cp", f"{jars}/*", "kafka.tools.StorageTool", "random-uuid"]
    return subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).split()[-1]


def kafka_format(jars: str, cluster: str, settings: pathlib.Path) -> None:
    """Make the folders of a node."""
    command = ["java", "-cp", f"{jars}/*", "kafka.tools.StorageTool", "format", "-t", cluster]
    command += ["-c", str(settings)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def kafka(jars: str, folder: str, port: int, durability: Durability) -> Iterator[Server]:
    """Kafka in KRaft mode, one node, four partitions."""
    address, controller = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
    settings = pathlib.Path(folder, "server.properties")
    settings.write_text(
        f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@{controller}\n"
        f"listeners=PLAINTEXT://{address},CONTROLLER://{controller}\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        f"log.dirs={folder}/data\nnum.partitions=4\noffsets.topic.replication.factor=1\n"
        "message.max.bytes=4194304\n" + ("log.flush.interval.messages=1\n" if durability is DISK else "")
    )
    kafka_format(jars, kafka_uuid(jars), settings)
    java = ["java", "-Xmx1g", "-cp", f"{jars}/*"]
    with serving("kafka", port, [*java, "kafka.Kafka", str(settings)]) as server:
        yield server


def nats(
    program: str, folder: str, port: int, durability: Durability
) -> contextlib.AbstractContextManager[Server]:
    """nats-server with JetStream in files."""
    always = "sync_interval: always" if durability is DISK else ""
    settings = pathlib.Path(folder, "nats.conf")
    settings.write_text(f'host: 127.0.0.1\nport: {port}\njetstream {{\nstore_dir: "{folder}"\n{always}\n}}\n')
    return serving("nats", port, [program, "-c", str(settings)])


def redis(
    program: str, folder: str, port: int, durability: Durability
) -> contextlib.AbstractContextManager[Server]:
    """Redis with its append-only file, which is not rewritten meanwhile."""
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", "always" if durability is DISK else "everysec"]
    return serving("redis", port, [*command, "--auto-aof-rewrite-percentage", "0"])


@contextlib.contextmanager
def rabbitmq(program: str, folder: str, port: int, durability: Durability) -> Iterator[Server]:
    """RabbitMQ with its stream plugin."""
    plugins, settings = pathlib.Path(folder, "plugins"), pathlib.Path(folder, "rabbitmq.conf")
    plugins.write_text("[rabbitmq_stream].\n")
    settings.write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port + 2}\nstream.listeners.tcp.1 = 127.0.0.1:{port}\n"
    )
    names = str(port + 3)  # of the process that knows Erlang's nodes, which outlives the broker
    environment = {
        "RABBITMQ_NODENAME": f"peers{port}@localhost",
        "RABBITMQ_MNESIA_BASE": f"{folder}/data",
        "RABBITMQ_LOG_BASE": f"{folder}/log",
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        "RABBITMQ_CONFIG_FILE": str(settings),
        "RABBITMQ_DIST_PORT": str(port + 4),
        "ERL_EPMD_PORT": names,
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "HOME": folder,
    }
    try:
        with serving("rabbitmq", port, [program], environment) as server:
            yield server
    finally:
        subprocess.run(["epmd", "-port", names, "-kill"], stdout=subprocess.DEVNULL, check=False)


@contextlib.contextmanager
def rabbitmq_quorum(program: str, folder: str, port: int, durability: Durability) -> Iterator[Server]:
    """The same by its port for AMQP."""
    with rabbitmq(program, folder, port, durability) as server:
        wait_for(port + 2, server.kind, server.process)
        yield attrs.evolve(server, kind="rabbitmq, quorum", port=port + 2)


@contextlib.contextmanager
def java(jars: str, folder: str, port: int, durability: Durability, kind: str) -> Iterator[Server]:
    """RocketMQ's broker with its name server, which runs on the core of the load."""
    with java_processes(jars, folder) as processes:
        processes.pin = "0"
        names = processes.java_namesrv()
        processes.pin = BROKER_CORE
        flush = "SYNC_FLUSH" if durability is DISK else "ASYNC_FLUSH"
        more = SETTINGS | {"flushDiskType": flush, "listenPort": str(port)}
        broker = processes.java_broker(names, pathlib.Path(folder, "0"), options=(), **more)
        yield Server(kind, port, broker.child)


def java_processes(jars: str, folder: str) -> Processes:
    """Starts RocketMQ's servers from a folder of jars."""
    java = Java(pathlib.Path(folder))
    java.jars = pathlib.Path(jars)
    return Processes(java, pathlib.Path(folder), broker_heap="1g")


def _made(
    kind: str, where: str, folder: str, port: int, durability: Durability
) -> contextlib.AbstractContextManager[Server]:
    if kind == "rmq, 2 processes":
        return rmq_processes(kind, folder, port, 2)
    if kind.startswith("rmq"):
        return rmq(kind, folder, port, durability)
    if kind == "rabbitmq, quorum":
        return rabbitmq_quorum(where, folder, port, durability)
    if kind.startswith("java"):
        return java(where, folder, port, durability, kind)
    ways = {"kafka": kafka, "nats": nats, "redis": redis, "rabbitmq": rabbitmq}
    return ways[kind](where, folder, port, durability)


@contextlib.contextmanager
def started(kind: str, where: str, port: int, durability: Durability) -> Iterator[Server]:
    """Any of them, with its files in a folder of its own. `where`: its program, or the folder of its jars."""
    with (
        tempfile.TemporaryDirectory(prefix="rmq-peers-", ignore_cleanup_errors=True) as folder,
        _made(kind, where, folder, port, durability) as server,
    ):
        yield server
