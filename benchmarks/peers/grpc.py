"""Our broker's gRPC door beside RocketMQ's proxy 5.3.3 (local mode): the same calls of one client, in turns.

    python -m benchmarks.peers.grpc --jars FOLDER [--sends 3000] [--receives 300] [--rounds 5]

FOLDER holds the jars of org.apache.rocketmq:rocketmq-proxy:5.3.3 and :rocketmq-namesrv:5.3.3 (`mvn
dependency:copy-dependencies`). The client is one connection of HTTP/2 with one call at a time: sends of one
message, then receives of 32 with one acknowledgement for each 32. Told are microseconds of the CPU of all
servers, the name server's among them, as /proc has it: the median of the rounds, after rounds that warm up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import h2.config
import h2.connection
import h2.events
from rmq_grpc import schema

from benchmarks.side_by_side import cpu_seconds
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from rmq.protocol.headers import CreateTopicRequestHeader
from tests.interop.rocketmq import BROKER_SETTINGS, JDK_FLAGS, wait_for_port
from tests.ports import free_ports

TOPIC, GROUP = "Bench", "bench"
COUNT = 32
BODY = bytes(range(256)) * 4
WARM = 3
"""Rounds that warm up: Java compiles what runs often."""
OK, NOTHING = (schema.enum("Code")[word] for word in ("OK", "MESSAGE_NOT_FOUND"))


class Peer:
    """One connection, with one call at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(1 << 30)
        self._calls: dict[int, bytearray] = {}
        self._ended: dict[int, str] = {}
        self._headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", f"127.0.0.1:{port}"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("grpc-timeout", "30S"),
            ("x-mq-client-id", "bench@1"),
            ("x-mq-language", "JAVA"),
            ("x-mq-client-version", "5.2.0"),
            ("x-mq-protocol", "v2"),
        ]

    def begin(self, method: str, request: Any, *, ends: bool = True) -> int:
        """Begin a call; return its stream."""
        stream_id: int = self._h2.get_next_available_stream_id()
        self._calls[stream_id] = bytearray()
        headers = [one for one in self._headers if ends or one[0] != "grpc-timeout"]
        path = (":path", f"/{schema.SERVICE}/{method}")
        self._h2.send_headers(stream_id, [*headers[:3], path, *headers[3:]])
        data = request.SerializeToString()
        self._h2.send_data(stream_id, b"\0" + len(data).to_bytes(4, "big") + data, end_stream=ends)
        self._socket.sendall(self._h2.data_to_send())
        return stream_id

    def read(self) -> None:
        """Take what has come."""
        data = self._socket.recv(1 << 20)
        assert data, "the server has ended the connection"
        for event in self._h2.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                self._calls[event.stream_id] += event.data
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, (h2.events.TrailersReceived, h2.events.ResponseReceived)):
                headers = dict(event.headers)
                if "grpc-status" in headers:
                    self._ended[event.stream_id] = headers["grpc-status"]
            elif isinstance(event, h2.events.StreamReset):
                self._ended[event.stream_id] = f"reset {event.error_code}"
        if data := self._h2.data_to_send():
            self._socket.sendall(data)

    def call(self, method: str, request: Any) -> list[Any]:
        """Make a call; return the messages of its answer."""
        stream_id = self.begin(method, request)
        while stream_id not in self._ended:
            self.read()
        status = self._ended.pop(stream_id)
        assert status == "0", f"{method}: {status}"
        return self.messages(stream_id, f"{method}Response")

    def messages(self, stream_id: int, name: str) -> list[Any]:
        """The messages that a call has got."""
        data, found = self._calls.pop(stream_id), []
        while data:
            size = int.from_bytes(data[1:5], "big")
            found.append(schema.message(name).FromString(bytes(data[5 : 5 + size])))
            del data[: 5 + size]
        return found

    def be_a_consumer(self) -> None:
        """Send the settings of a simple consumer, and wait for the server's."""
        command = schema.message("TelemetryCommand")()
        settings = command.settings
        settings.client_type = schema.enum("ClientType")["SIMPLE_CONSUMER"]
        settings.subscription.group.name = GROUP
        entry = settings.subscription.subscriptions.add()
        entry.topic.name, entry.expression.expression = TOPIC, "*"
        entry.expression.type = 1
        settings.subscription.long_polling_timeout.seconds = 20
        stream_id = self.begin("Telemetry", command, ends=False)
        while not self._calls[stream_id]:
            self.read()
            assert stream_id not in self._ended, self._ended


class Servers:
    """A name server and one with a gRPC port."""

    def __init__(self, name: str, processes: list[subprocess.Popen[bytes]], port: int) -> None:
        self.name = name
        self._pids = [process.pid for process in processes]
        self.peer = Peer(port)
        self._number = 0
        self._beat_at = 0.0
        self.costs: dict[str, list[float]] = {"send": [], "receive of 32": []}

    def prepare(self) -> None:
        """Learn the queues, and be a consumer."""
        request = schema.message("QueryRouteRequest")()
        request.topic.name = TOPIC
        end = time.monotonic() + 60
        while True:  # a proxy learns of a topic a little later
            (answer,) = self.peer.call("QueryRoute", request)
            if answer.status.code == OK:
                break
            assert time.monotonic() < end, answer
            time.sleep(0.5)
        self._queue = answer.message_queues[0]
        self.peer.be_a_consumer()

    def round(self, sends: int, receives: int) -> None:
        """Send, and receive what was sent, as far as it goes."""
        self.costs["send"].append(self._measured(sends, self._send))
        for _ in range(receives * COUNT - sends):
            self._send()
        self.costs["receive of 32"].append(self._measured(receives, self._receive))
        for _ in range((sends - receives * COUNT) // COUNT):
            self._receive()

    def _measured(self, count: int, act: Any) -> float:
        self.peer.be_a_consumer()  # a proxy may have forgotten who was silent
        began = sum(map(cpu_seconds, self._pids))
        for _ in range(count):
            act()
            if time.monotonic() > self._beat_at:
                self._beat()
        return (sum(map(cpu_seconds, self._pids)) - began) / count * 1e6

    def _beat(self) -> None:
        """Be heard, as a client is all ten seconds."""
        self._beat_at = time.monotonic() + 5
        request = schema.message("HeartbeatRequest")()
        request.group.name = GROUP
        request.client_type = schema.enum("ClientType")["SIMPLE_CONSUMER"]
        self.peer.call("Heartbeat", request)

    def _send(self) -> None:
        self._number += 1
        request = schema.message("SendMessageRequest")()
        message = request.messages.add(body=BODY)
        message.topic.name = TOPIC
        system = message.system_properties
        system.message_id = f"01{self._number:032X}"
        system.tag = "TagA"
        system.keys.append(f"key-{self._number}")
        system.message_type = schema.enum("MessageType")["NORMAL"]
        system.body_encoding = schema.enum("Encoding")["IDENTITY"]
        system.born_timestamp.seconds = int(time.time())
        system.born_host = "127.0.0.1"
        system.queue_id = self._number % 8
        message.user_properties["colour"] = "red"
        (answer,) = self.peer.call("SendMessage", request)
        assert answer.status.code == OK, answer

    def _receive(self) -> None:
        """Receive and acknowledge 32 messages; a receive may give fewer, and there is another then."""
        left = COUNT
        while left > 0:
            request = schema.message("ReceiveMessageRequest")(batch_size=left, auto_renew=False)
            request.group.name = GROUP
            request.message_queue.CopyFrom(self._queue)
            request.message_queue.id = -1
            request.filter_expression.expression, request.filter_expression.type = "*", 1
            request.invisible_duration.seconds = 60
            request.long_polling_timeout.seconds = 5
            answers = self.peer.call("ReceiveMessage", request)
            messages = [one.message for one in answers if one.WhichOneof("content") == "message"]
            if not messages:
                assert answers[0].status.code == NOTHING, answers[0]
                continue
            left -= len(messages)
            acks = schema.message("AckMessageRequest")()
            acks.group.name, acks.topic.name = GROUP, TOPIC
            for message in messages:
                system = message.system_properties
                acks.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
            (answer,) = self.peer.call("AckMessage", acks)
            assert answer.status.code == OK, answer


def make_topic(port: int) -> None:
    """Make the topic by a request of RocketMQ 4."""
    header = CreateTopicRequestHeader(TOPIC, "TBW102", 8, 8, 6, "SINGLE_TAG", 0, False)
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(encode(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)))
        decoder, found = Decoder(), []
        while not found:
            found = decoder.feed(link.recv(1 << 16))
    assert found[0].code == 0, found[0].remark


def settings_of(folder: pathlib.Path, name: str, values: dict[str, object]) -> str:
    """Write a file of settings; return its path."""
    path = folder / name
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return str(path)


def broker_settings(folder: pathlib.Path, names: int, port: int) -> dict[str, object]:
    """What both brokers are told."""
    settings: dict[str, object] = dict(BROKER_SETTINGS)
    settings |= {"mappedFileSizeCommitLog": 1 << 30, "mappedFileSizeConsumeQueue": 6_000_000}
    settings |= {"maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000, "brokerName": "bench"}
    settings |= {"listenPort": port, "haListenPort": port + 1, "namesrvAddr": f"127.0.0.1:{names}"}
    store = folder / "store"
    return settings | {"storePathRootDir": store, "storePathCommitLog": store / "commitlog"}


def ours(folder: pathlib.Path) -> tuple[list[list[str]], list[int], int, int]:
    """Commands of our servers, the ports to wait for, and the ports of the broker and of gRPC."""
    port, _, names, grpc = free_ports(4)
    file = settings_of(folder, "names.conf", {"listenPort": names, "kvConfigPath": folder / "kv.json"})
    settings = broker_settings(folder, names, port) | {"plugins": "grpc", "grpcPort": grpc}
    broker = settings_of(folder, "broker.conf", settings)
    commands = [
        [sys.executable, "-m", "rmq.namesrv", "-c", file],
        [sys.executable, "-m", "rmq.broker", "-c", broker],
    ]
    return commands, [names, grpc], port, grpc


def theirs(folder: pathlib.Path, jars: str) -> tuple[list[list[str]], list[int], int, int]:
    """The same of RocketMQ's."""
    port, _, names, grpc, remoting = free_ports(5)
    java = ["java", "-Xms1g", "-Xmx1g", *JDK_FLAGS, f"-Drocketmq.home.dir={folder}", f"-Duser.home={folder}"]
    java += ["-cp", f"{jars}/*"]
    file = settings_of(folder, "names.conf", {"listenPort": names, "kvConfigPath": folder / "kv.json"})
    broker = settings_of(folder, "broker.conf", broker_settings(folder, names, port))
    proxy = {"rocketMQClusterName": "DefaultCluster", "namesrvAddr": f"127.0.0.1:{names}"}
    ports = {"grpcServerPort": grpc, "remotingListenPort": remoting}
    (folder / "proxy.json").write_text(json.dumps(proxy | ports))
    startup = "org.apache.rocketmq.proxy.ProxyStartup"
    commands = [
        [*java, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", file],
        [*java, startup, "-pm", "LOCAL", "-bc", broker, "-pc", str(folder / "proxy.json")],
    ]
    return commands, [names, grpc], port, grpc


@contextlib.contextmanager
def started(
    name: str, folder: pathlib.Path, plan: tuple[list[list[str]], list[int], int, int]
) -> Iterator[Servers]:
    """Run the servers for the length of the block."""
    commands, ports, port, grpc = plan
    processes: list[subprocess.Popen[bytes]] = []
    root = pathlib.Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'plugins'}"}
    try:
        for command, waits in zip(commands, ports, strict=True):
            with (folder / "log").open("ab") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd=folder))
            wait_for_port(waits, 120)
        make_topic(port)
        servers = Servers(name, processes, grpc)
        servers.prepare()
        yield servers
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jars", required=True, help="folder with the jars of RocketMQ's proxy")
    parser.add_argument("--sends", type=int, default=3_000)
    parser.add_argument("--receives", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    jars = os.path.abspath(options.jars)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        folders = pathlib.Path(one), pathlib.Path(other)
        with (
            started("rmq", folders[0], ours(folders[0])) as mine,
            started("RocketMQ 5.3.3", folders[1], theirs(folders[1], jars)) as java,
        ):
            for number in range(WARM + options.rounds):
                for servers in (mine, java) if number % 2 else (java, mine):
                    servers.round(options.sends, options.receives)
            for work in mine.costs:
                costs = [servers.costs[work][WARM:] for servers in (mine, java)]
                ratio = median(b / a for a, b in zip(*costs, strict=True))
                both = " ".join(
                    f"{one.name} {median(some):8.0f} µs"
                    for one, some in zip((mine, java), costs, strict=True)
                )
                print(f"{work:15} {both}   {ratio:.2f} times", flush=True)


if __name__ == "__main__":
    main()
