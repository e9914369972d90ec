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
    },
)


@attrs.frozen
class Server:
    """A running broker."""

    kind: str
    port: int
    process: subprocess.Popen[bytes]

    def cpu_seconds(self) -> float:
        """User and system time of its processes so far."""
        parents, times = {}, {}
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    parents[int(entry.name)], times[int(entry.name)] = int(fields[1]), fields[11:13]
        found, known = 0, {self.process.pid}
        for _ in parents:
            more = {pid for pid, parent in parents.items() if parent in known} - known
            if not more:
                break
            known |= more
        for pid in known & times.keys():
            found += sum(map(int, times[pid]))
        return found / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def serving(
    kind: str, port: int, command: list[str], environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run a broker on its core from when its port is open."""
    process = subprocess.Popen(
        ["taskset", "-c", BROKER_CORE, *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env=os.environ | (environment or {}),
    )
    try:
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{kind} did not start: {' '.join(command)}") from None
                time.sleep(0.1)
        yield Server(kind, port, process)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def rmq(
    kind: str, folder: str, port: int, durability: Durability, more: Mapping[str, str] | None = None
) -> contextlib.AbstractContextManager[Server]:
    """This checkout's broker; of messages it keeps what a run needs."""
    settings = {
        "listenPort": str(port),
        "storePathRootDir": folder,
        "haEnable": "false",
        "brokerIP1": "127.0.0.1",
        "osPageCacheBusyTimeOutMills": "10000",
        "flushDiskType": "SYNC_FLUSH" if durability is DISK else "ASYNC_FLUSH",
    } | dict(more or {})
    command = [sys.executable, "-m", "rmq", "broker"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    return serving(kind, port, command, {"RMQ_ENGINE": "pure" if kind == "rmq, pure" else "auto"})


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
        + ("log.flush.interval.messages=1\n" if durability is DISK else "")
    )
    java = ["java", "-Xmx1g", "-cp", f"{jars}/*"]
    cluster = subprocess.check_output(
        [*java, "kafka.tools.StorageTool", "random-uuid"], text=True, stderr=subprocess.DEVNULL
    )
    form = [*java, "kafka.tools.StorageTool", "format", "-t", cluster.split()[-1], "-c", str(settings)]
    subprocess.run(form, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
def started(kind: str, where: str, port: int, durability: Durability) -> Iterator[Server]:
    """Any of them, with its files in a folder of its own. `where`: its program, or the folder of its jars."""
    with tempfile.TemporaryDirectory(prefix="rmq-peers-", ignore_cleanup_errors=True) as folder:
        if kind.startswith("rmq"):
            made = rmq(kind, folder, port, durability)
        else:
            way = {"kafka": kafka, "nats": nats, "redis": redis, "rabbitmq": rabbitmq}[kind]
            made = way(where, folder, port, durability)
        with made as server:
            yield server
