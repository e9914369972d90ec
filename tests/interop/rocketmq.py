"""Apache RocketMQ 4.9.7 as processes: its jars, its servers, mqadmin, and small programs on its client.

Everything runs on loopback, in folders of its own and with a small heap; each process is stopped by the one
`Processes` value that started it. Used by the interop tests and by benchmarks/.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from tests.ports import free_ports

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]  # our servers run from this checkout, whatever is installed
PYTHON_PATH = f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"

# What the servers reach into since JDK 9: Netty's and MappedFile's cleaners.
JDK_FLAGS = [
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "-Djava.net.preferIPv4Stack=true",
]

MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"

LOGBACK = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{path}</file><encoder><pattern>%d %p %t %logger{{0}} - %m%n</pattern></encoder>
  </appender>
  <root level="{level}"><appender-ref ref="file"/></root>
</configuration>
"""

# Small files, no slow-disk refusals: the tests run on shared machines.
BROKER_SETTINGS = {
    "brokerClusterName": "DefaultCluster",
    "brokerId": "0",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "mappedFileSizeCommitLog": str(4 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "20000",
    "maxIndexNum": "80000",
    "diskMaxUsedSpaceRatio": "95",
    "waitTimeMillsInSendQueue": "10000",
    "autoCreateTopicEnable": "true",
}


class StartFailed(Exception):
    """A server did not answer in time; the message ends with what it printed."""


def free_port() -> int:
    """A port P of loopback with P-2 (the VIP port) and P+1 (the HA port) free, too."""
    return free_ports(4)[2]


START_SECONDS = 240.0
"""For a JVM's start, which takes a second on a machine that does nothing else."""

STOP_SECONDS = 240.0
"""The same for its end: a broker of RocketMQ waits for its services one by one, and writes its files."""


def wait_until(condition: Callable[[], Any], seconds: float, what: str, every: float = 0.05) -> Any:
    """Poll until `condition()` is true, and return its value. Raises TimeoutError with `what`."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(every)


def answers(port: int) -> bool:
    """True if a process accepts connections on this port of loopback."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for_port(port: int, seconds: float = 60) -> None:
    """Wait until a process accepts connections on this port of loopback."""
    wait_until(lambda: answers(port), seconds, f"something that listens on port {port}")


def cluster_text(namesrv: str) -> str:
    """Ask a name server for the brokers that it knows (request 106), and return the body unchanged."""
    host, port = namesrv.split(":")
    header = (
        b'{"code":106,"flag":0,"language":"JAVA","opaque":1,"serializeTypeCurrentRPC":"JSON","version":407}'
    )
    with socket.create_connection((host, int(port)), timeout=5) as link, link.makefile("rb") as reader:
        link.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        (size,) = struct.unpack(">I", reader.read(4))
        frame = reader.read(size)
    (header_size,) = struct.unpack(">I", frame[:4])
    return frame[4 + (header_size & 0xFFFFFF) :].decode()


class Process:
    """One child process; its standard output is kept line by line, its error output goes to a file."""

    def __init__(
        self, command: list[str], log: pathlib.Path, *, env: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": PYTHON_PATH, **(env or {})},
                cwd=log.parent,
                start_new_session=True,
            )
        self.port = 0
        self.started_at = time.monotonic()
        self.seconds_to_port = 0.0
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.lines.append(line.decode("utf-8", "replace").rstrip("\n"))

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The JSON lines printed so far."""
        return [json.loads(line) for line in list(self.lines) if line.startswith("{")]

    def finish(self, seconds: float = 60) -> list[dict[str, Any]]:
        """Wait for the end of a program, and return its rows. Raises StartFailed if the program failed."""
        status = self.child.wait(seconds)
        self._reader.join(10)
        if status != 0:
            raise StartFailed(f"exit status {status}: {self.said()}")
        return self.rows

    def close_input(self, seconds: float = 30) -> None:
        """End a program that runs until its standard input ends."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait(seconds)
        self._reader.join(10)

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Send SIGTERM and wait; after `seconds` SIGKILL. Return the exit status."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.child.wait()

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()

    def said(self) -> str:
        """The end of what the process printed, for error messages."""
        return "\n".join(self.lines[-20:]) + "\n" + self.log.read_text("utf-8", "replace")[-3000:]


class Mqadmin:
    """mqadmin's commands, run one after the other in one JVM (java/Mqadmin.java)."""

    def __init__(self, process: Process, namesrv: str) -> None:
        self.process = process
        self.namesrv = namesrv

    def __call__(self, command: str, *arguments: str, seconds: float = 60) -> str:
        """Run `command -n NAMESRV arguments`, and return the output."""
        return self.run(command, "-n", self.namesrv, *arguments, seconds=seconds)

    def run(self, *arguments: str, seconds: float = 60) -> str:
        """Run these arguments unchanged. Raises StartFailed if the command ended the JVM."""
        process, before = self.process, len(self.process.rows)
        assert process.child.stdin is not None
        process.child.stdin.write(json.dumps(arguments).encode() + b"\n")
        process.child.stdin.flush()

        def is_answered() -> bool:
            return len(process.rows) > before or process.child.poll() is not None

        wait_until(is_answered, seconds, " ".join(arguments), every=0.01)
        if len(process.rows) == before:
            raise StartFailed(f"{arguments} ended the JVM: {process.said()}")
        said: str = process.rows[before]["said"]
        return said


class Java:
    """The jars and our compiled programs; `folder` keeps them between runs. `version` is RocketMQ's."""

    def __init__(self, folder: pathlib.Path, version: str = "4.9.7") -> None:
        self.folder = folder
        self.version = version
        given = "RMQ_INTEROP_JARS" if version.startswith("4.") else "RMQ_INTEROP_JARS_5"
        self.jars = pathlib.Path(os.environ.get(given) or folder / "jars")
        self.classes = folder / "classes"

    def prepare(self, *more_sources: pathlib.Path) -> None:
        """Fetch missing jars by Maven, and compile the programs."""
        if not self.jars.is_dir():
            unfinished = self.jars.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
            command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), goal]
            options = [f"-DoutputDirectory={unfinished}", f"-Drocketmq={self.version}"]
            subprocess.run([*command, *options], check=True)
            unfinished.rename(self.jars)
        sources = [*self._sources(), *more_sources]
        self.classes.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["javac", "-nowarn", "-cp", f"{self.jars}/*", "-d", str(self.classes), *map(str, sources)],
            check=True,
        )

    def _sources(self) -> list[pathlib.Path]:
        """Our programs; 5.x has classes of the protocol in another package."""
        sources = sorted((HERE / "java").glob("*.java"))
        if self.version.startswith("4."):
            return sources
        copies = self.folder / "sources"
        copies.mkdir(parents=True, exist_ok=True)
        for source in sources:
            text = source.read_text("utf-8")
            text = text.replace(
                "org.apache.rocketmq.common.protocol.", "org.apache.rocketmq.remoting.protocol."
            )
            (copies / source.name).write_text(text, "utf-8")
        return sorted(copies.glob("*.java"))

    def command(
        self,
        main: str,
        *arguments: str,
        heap: str = "128m",
        home: pathlib.Path,
        options: tuple[str, ...] = (),
    ) -> list[str]:
        """The command line that runs `main`; `home` is its ROCKETMQ_HOME and user.home."""
        flags = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:MaxDirectMemorySize=256m", *JDK_FLAGS, *options]
        properties = [f"-Drocketmq.home.dir={home}", f"-Duser.home={home}"]
        return ["java", *flags, *properties, "-cp", f"{self.classes}:{self.jars}/*", main, *arguments]


class Processes:
    """Starts processes under one folder; the end of its `with` block kills what is left of them."""

    def __init__(self, java: Java, folder: pathlib.Path, *, broker_heap: str = "512m") -> None:
        self.java = java
        self.broker_heap = broker_heap
        self.pin = ""  # a core number: what starts from now on is bound to it
        self.folder = folder
        self.started: list[Process] = []
        self.home = folder / "home"
        for name in ("namesrv", "broker", "tools"):
            path = self.home / "conf" / f"logback_{name}.xml"
            path.parent.mkdir(parents=True, exist_ok=True)
            level = "OFF" if name == "tools" else "WARN"
            path.write_text(LOGBACK.format(path=self.home / "logs" / f"{name}.log", level=level))

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in reversed(self.started):
            process.kill()

    def start(self, command: list[str], name: str, *, env: Mapping[str, str] | None = None) -> Process:
        """Start a command; its error output goes to logs/NAME.log."""
        process = Process(
            self.pinned(command), self.folder / "logs" / f"{len(self.started)}-{name}.log", env=env
        )
        self.started.append(process)
        return process

    def pinned(self, command: list[str]) -> list[str]:
        """The command, bound to the core `pin` when one is set."""
        return ["taskset", "-c", self.pin, *command] if self.pin else command

    def serve(self, command: list[str], name: str, port: int, seconds: float = START_SECONDS) -> Process:
        """Start a server and wait until its port answers."""
        process = self.start(command, name)
        process.port = port
        try:
            wait_until(lambda: answers(port) or process.child.poll() is not None, seconds, name, every=0.01)
        except TimeoutError:
            process.kill()
        if process.child.poll() is not None:
            raise StartFailed(f"{name} ended: {process.said()}")
        process.seconds_to_port = time.monotonic() - process.started_at
        return process

    def write_settings(self, name: str, settings: Mapping[str, str]) -> pathlib.Path:
        """Write a properties file that both the Java servers and ours read."""
        path = self.folder / "conf" / f"{name}.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def use_account(self, access_key: str, secret_key: str) -> None:
        """Let mqadmin's next commands have this account."""
        text = f"accessKey: {access_key}\nsecretKey: {secret_key}\n"
        (self.home / "conf" / "tools.yml").write_text(text)

    def java_namesrv(self, *, options: tuple[str, ...] = (), **settings: str) -> str:
        """Start a Java name server with JVM `options`; return its address."""
        port = int(settings.get("listenPort") or free_port())
        path = self.write_settings(f"namesrv-{port}", {"listenPort": str(port), **settings})
        main, heap = "org.apache.rocketmq.namesrv.NamesrvStartup", "256m"
        command = self.java.command(main, "-c", str(path), home=self.home, heap=heap, options=options)
        self.serve(command, "java-namesrv", port)
        return f"127.0.0.1:{port}"

    def java_broker(
        self, namesrv: str, store: pathlib.Path, *, options: tuple[str, ...] = (), **settings: str
    ) -> Process:
        """Start a Java broker with JVM `options` over the folder `store`, registered at `namesrv`."""
        path, port = self.broker_settings(store, settings)
        arguments = ("-n", namesrv, "-c", str(path))
        main, heap = "org.apache.rocketmq.broker.BrokerStartup", self.broker_heap
        command = self.java.command(main, *arguments, heap=heap, home=self.home, options=options)
        return self.serve_registered(command, "java-broker", port, namesrv)

    def rmq_namesrv(self) -> str:
        """Start our name server; return its address."""
        port = free_port()
        kept = {"listenPort": str(port), "kvConfigPath": str(self.folder / f"kvConfig-{port}.json")}
        settings = self.write_settings(f"namesrv-{port}", kept)
        self.serve([sys.executable, "-m", "rmq.namesrv", "-c", str(settings)], "rmq-namesrv", port)
        return f"127.0.0.1:{port}"

    def rmq_broker(self, namesrv: str, store: pathlib.Path, **settings: str) -> Process:
        """Start our broker over the folder `store`, registered at `namesrv`."""
        path, port = self.broker_settings(store, settings)
        command = [sys.executable, "-m", "rmq.broker", "-n", namesrv, "-c", str(path)]
        return self.serve_registered(command, "rmq-broker", port, namesrv)

    def serve_registered(self, command: list[str], name: str, port: int, namesrv: str) -> Process:
        """Start a broker and wait until the name server hands out its address."""
        process = self.serve(command, name, port)
        wait_until(
            lambda: f'"127.0.0.1:{port}"' in cluster_text(namesrv), START_SECONDS, f"{name} registered"
        )
        return process

    def broker_settings(self, store: pathlib.Path, settings: Mapping[str, str]) -> tuple[pathlib.Path, int]:
        """Write a broker's settings file; return its path and the port."""
        port = int(settings.get("listenPort") or free_port())
        ports = {"listenPort": str(port), "haListenPort": str(port + 1)}
        paths = {"storePathRootDir": str(store), "storePathCommitLog": str(store / "commitlog")}
        merged = {**BROKER_SETTINGS, "brokerName": "interop-a", **ports, **paths, **settings}
        return self.write_settings(f"broker-{port}-{len(self.started)}", merged), port

    def program(self, main: str, *arguments: str, options: tuple[str, ...] = ()) -> Process:
        """Start one of our programs on the stock Java client."""
        command = self.java.command(main, *arguments, home=self.home, heap="96m", options=options)
        return self.start(command, main.lower())

    def make_topic(self, namesrv: str, topic: str, queues: int = 4) -> None:
        """Make a topic without sending to it, on all brokers of the cluster."""
        numbers = ("-r", str(queues), "-w", str(queues))
        said = self.mqadmin("updateTopic", "-n", namesrv, "-c", "DefaultCluster", "-t", topic, *numbers)
        if "success" not in said:
            raise StartFailed(said)

    def mqadmin_shell(self, namesrv: str) -> Mqadmin:
        """Start a JVM that runs mqadmin's commands against this name server."""
        return Mqadmin(self.program("Mqadmin"), namesrv)

    def mqadmin_for(self, seconds: float, *arguments: str) -> str:
        """Run a command of mqadmin that has no end; return its output in this time."""
        process = self.start(
            self.java.command(MQADMIN, *arguments, home=self.home), f"mqadmin-{arguments[0]}"
        )
        with suppress(subprocess.TimeoutExpired):
            process.child.wait(seconds)
        process.kill()
        return process.said()

    def mqadmin(self, *arguments: str) -> str:
        """Run mqadmin to its end, and return its output."""
        command = self.java.command(MQADMIN, *arguments, home=self.home)
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, cwd=self.folder)
        return done.stdout + done.stderr
