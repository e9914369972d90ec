"""The replicated brokers of `benchmarks.peers`, all servers of each on one machine, on both cores."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
from collections.abc import Iterator, Mapping

import attrs

from benchmarks.peers.servers import (
    DISK,
    Durability,
    Server,
    java_processes,
    kafka_format,
    kafka_uuid,
    rmq,
    rmq_command,
    serving,
)
from benchmarks.side_by_side import SETTINGS
from tests.ports import free_ports

CORES = "0,1"
NODES = 3

REPLICATED = Durability(
    "acknowledged by replicas, before it is on a disk",
    {
        "rmq, 1 slave": "SYNC_MASTER: written to the files of the master and of its slave",
        "rmq, 2 slaves": "SYNC_MASTER: written to the files of the master and of one of its two slaves",
        "java, 1 slave": "4.9.7, SYNC_MASTER: written to the files of the master and of its slave",
        "kafka": "acks=all, min.insync.replicas=3: written to the files of three nodes",
        "nats": "JetStream, R3: written to the files of two of three nodes",
    },
)
SYNCED = Durability(
    "acknowledged by replicas that have it on their disks",
    {
        "rmq, set of 3": "durability=replicated with controllers: synced by three brokers",
        "rmq, 1 slave": "SYNC_MASTER, SYNC_FLUSH at both: synced by the master and its slave",
        "java, 1 slave": "4.9.7, SYNC_MASTER, SYNC_FLUSH: synced by the master, written by its slave",
        "kafka": "acks=all, min.insync.replicas=3, log.flush.interval.messages=1: synced by three nodes",
        "nats": "JetStream, R3, sync_interval: always: synced by two of three nodes",
    },
)


@contextlib.contextmanager
def rmq_pair(folder: str, port: int, durability: Durability, slaves: int) -> Iterator[Server]:
    """A master and its slaves, without name servers."""
    common = {"brokerName": "pair", "haEnable": "true"}
    with contextlib.ExitStack() as stack:
        more = common | {"brokerRole": "SYNC_MASTER", "haListenPort": str(port + 1)}
        master = stack.enter_context(rmq("rmq", f"{folder}/0", port, durability, more, CORES))
        pids = []
        for number in range(1, slaves + 1):
            own = port + 10 * number
            more = common | {"brokerRole": "SLAVE", "brokerId": str(number), "haListenPort": str(own + 1)}
            more["haMasterAddress"] = f"127.0.0.1:{port + 1}"
            slave = stack.enter_context(rmq("rmq", f"{folder}/{number}", own, durability, more, CORES))
            pids.append(slave.process.pid)
        yield attrs.evolve(master, more=tuple(pids))


@contextlib.contextmanager
def rmq_set(folder: str, port: int, count: int = NODES, least: int = NODES) -> Iterator[Server]:
    """A set of brokers and one controller, in a name server; the first broker begins as master."""
    controller = f"127.0.0.1:{port + 5}"
    settings = {"listenPort": str(port + 5), "controllers": controller, "controllerPath": f"{folder}/c"}
    settings["kvConfigPath"] = f"{folder}/kvConfig.json"
    common = {"brokerName": "set", "haEnable": "true", "controllerAddr": controller}
    common |= {"namesrvAddr": controller, "minInSyncReplicas": str(least)}
    with contextlib.ExitStack() as stack:
        command = rmq_command("namesrv", settings)
        names = stack.enter_context(serving("rmq", port + 5, command, cores=CORES))
        brokers = []
        for number in range(count):
            own = port + 10 * number
            role = (
                {"brokerRole": "SLAVE"}
                if number
                else {"durability": "replicated", "brokerRole": "SYNC_MASTER"}
            )
            more = common | role | {"brokerId": str(number), "haListenPort": str(own + 1)}
            made = rmq("rmq", f"{folder}/{number}", own, DISK, more, CORES)
            brokers.append(stack.enter_context(made))
        pids = [names.process.pid, *(broker.process.pid for broker in brokers[1:])]
        ports = tuple(broker.port for broker in brokers)
        yield attrs.evolve(brokers[0], more=tuple(pids), ports=ports)


@contextlib.contextmanager
def java_pair(jars: str, folder: str, durability: Durability) -> Iterator[Server]:
    """RocketMQ's master and slave with their name server."""
    with java_processes(jars, folder) as processes:
        processes.pin = CORES
        names = processes.java_namesrv()
        port = free_ports(4)[2]
        common = SETTINGS | {"brokerName": "pair"}
        flush = "SYNC_FLUSH" if durability is SYNCED else "ASYNC_FLUSH"
        more = common | {"brokerRole": "SYNC_MASTER", "flushDiskType": flush, "listenPort": str(port)}
        master = processes.java_broker(names, pathlib.Path(folder, "0"), options=(), **more)
        more = common | {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": f"127.0.0.1:{port + 1}"}
        slave = processes.java_broker(names, pathlib.Path(folder, "1"), options=(), **more)
        others = tuple(process.pid for process in processes.started if process is not master)
        assert slave.pid in others
        yield Server("java", port, master.child, others)


@contextlib.contextmanager
def kafka_nodes(jars: str, folder: str, port: int, durability: Durability) -> Iterator[Server]:
    """Three brokers; the first is the only controller, too, so that consensus costs little."""
    identity, controller = kafka_uuid(jars), f"127.0.0.1:{port + 1}"
    with contextlib.ExitStack() as stack:
        nodes = []
        for number in range(NODES):
            own, home = port + 10 * number, pathlib.Path(folder, str(number))
            home.mkdir()
            is_first = number == 0
            listeners = f"PLAINTEXT://127.0.0.1:{own}" + f",CONTROLLER://{controller}" * is_first
            settings = home / "server.properties"
            settings.write_text(
                f"process.roles=broker{',controller' * is_first}\nnode.id={number + 1}\n"
                f"controller.quorum.voters=1@{controller}\nlisteners={listeners}\n"
                f"advertised.listeners=PLAINTEXT://127.0.0.1:{own}\ncontroller.listener.names=CONTROLLER\n"
                "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
                f"log.dirs={home}/data\noffsets.topic.replication.factor=1\n"
                + "log.flush.interval.messages=1\n"
                * (durability is SYNCED)
            )
            kafka_format(jars, identity, settings)
            command = ["java", "-Xmx1g", "-cp", f"{jars}/*", "kafka.Kafka", str(settings)]
            nodes.append(stack.enter_context(serving("kafka", own, command, cores=CORES)))
        yield attrs.evolve(nodes[0], more=tuple(node.process.pid for node in nodes[1:]))


@contextlib.contextmanager
def nats_nodes(program: str, folder: str, port: int, durability: Durability) -> Iterator[Server]:
    """Three servers that are called n and their port."""
    routes = ", ".join(f'"nats://127.0.0.1:{port + 10 * number + 1}"' for number in range(NODES))
    always = "sync_interval: always" * (durability is SYNCED)
    with contextlib.ExitStack() as stack:
        nodes = []
        for number in range(NODES):
            own, home = port + 10 * number, pathlib.Path(folder, str(number))
            home.mkdir()
            settings = home / "nats.conf"
            settings.write_text(
                f"host: 127.0.0.1\nport: {own}\nserver_name: n{own}\n"
                f'jetstream {{\nstore_dir: "{home}"\n{always}\n}}\n'
                f'cluster {{\nname: c\nlisten: "127.0.0.1:{own + 1}"\nroutes: [{routes}]\n}}\n'
            )
            nodes.append(
                stack.enter_context(serving("nats", own, [program, "-c", str(settings)], cores=CORES))
            )
        yield attrs.evolve(nodes[0], more=tuple(node.process.pid for node in nodes[1:]))


def _made(
    kind: str, given: Mapping[str, str], folder: str, port: int, durability: Durability
) -> contextlib.AbstractContextManager[Server]:
    flushed = DISK if durability is SYNCED else durability
    if kind == "rmq, set of 3":
        return rmq_set(folder, port)
    if kind.startswith("rmq"):
        return rmq_pair(folder, port, flushed, 2 if "2" in kind else 1)
    if kind.startswith("java"):
        return java_pair(given["java"], folder, durability)
    if kind == "kafka":
        return kafka_nodes(given["kafka"], folder, port, durability)
    return nats_nodes(given["nats"], folder, port, durability)


@contextlib.contextmanager
def set_started(kind: str, given: Mapping[str, str], port: int, durability: Durability) -> Iterator[Server]:
    """Any of them, with its files in a folder of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="rmq-peers-", ignore_cleanup_errors=True) as folder,
        _made(kind, given, folder, port, durability) as server,
    ):
        yield attrs.evolve(server, kind=kind)


def is_given(kind: str, given: Mapping[str, str]) -> bool:
    """True if the files of this kind are there."""
    return kind.split(",")[0] in given
