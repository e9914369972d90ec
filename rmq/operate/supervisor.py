"""Supervision of several brokers as a service: each broker is a process on its own core, beside a name
server.

A process that dies is started again after a pause.
"""

from __future__ import annotations

import json
import logging
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

import trio
from attrs import Factory, define, field, frozen

from rmq.broker.config import BrokerConfig
from rmq.broker.runtime.sibling_processes import LINE, TopicFanout, new_line
from rmq.config import dump_properties, parse_properties
from rmq.errors import ConfigError
from rmq.plugin import METRICS, Answer, Asked, Page
from rmq.printable import counted
from rmq.remoting.address import split_address
from rmq.remoting.loop import unwrap_groups
from rmq.remoting.network import TcpNetwork
from rmq.remoting.transports.tls import TlsConfig
from rmq.server.health import Health
from rmq.server.http import report_to_supervisor, served_pages
from rmq.server.main import EXIT_FAILED, EXIT_SETTINGS, EXIT_TAKEN
from rmq.server.signals import PARENT, obey
from rmq.store.config import StoreConfig

BROKER: Final = "broker"
NAME_SERVER: Final = "name server"
MODULES: Final = {BROKER: "rmq.broker", NAME_SERVER: "rmq.namesrv"}
NAMESRV_FOLDER: Final = "namesrv"
"""In the folder of the stores: the name server's files."""
SHARED: Final = frozenset(
    ("profile", "clusterSecretFile", "aclEnable", "aclFile", "aclAuditFile", "metricsTokenFile", "logLevel")
)
"""Settings of the brokers that the name server shares, beside those of TLS."""
START_SECONDS: Final = 10.0
"""Seconds that the brokers wait for the name server, so that their first registration succeeds."""
PORTS: Final = 10
"""Distance from one broker's listenPort to the next one's: VIP is 2 below it, HA 1 above."""
PAUSE_SECONDS: Final = (1.0, 30.0)
"""First and longest pause before a broker that died is started again."""
LASTING_SECONDS: Final = 60.0
"""Lifetime in seconds after which a broker's death is not one of its start."""
PAGE_SECONDS: Final = 8.0
"""Seconds that a broker has to make its metrics."""
LINE_BYTES: Final = 1 << 16

_HEALTH: Final = re.compile(r"  health +http://(\S+)/ready")
_FAMILY: Final = re.compile(r"# (?:HELP|TYPE) (\S+)")
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{)?")

PrintLine = Callable[[str], object]

log = logging.getLogger("rmq.processes")


@frozen
class Member:
    """A process: its name, its core (-1: any), its own settings, and further arguments of its command line.

    `secrets` are put into the environment of the process, which other users cannot read.
    """

    name: str
    core: int
    own: Mapping[str, str]
    arguments: Sequence[str] = ()
    kind: str = BROKER
    secrets: Mapping[str, str] = Factory(dict)


def members(
    count: int,
    config: BrokerConfig,
    store_config: StoreConfig,
    cores: Sequence[int],
    arguments: Sequence[str] = (),
) -> list[Member]:
    """The members of `count` brokers with the same settings, but for name, ports and folders. `arguments` go
    to every broker.

    Cores are given out in turn. Raises ConfigError for a value that cannot serve several brokers.
    """
    last = config.listen_port + PORTS * (count - 1)
    if not config.listen_port or last >= 65535:
        above = counted(PORTS * (count - 1) + 1, "port")
        expected = f"a port with {above} above it, for {counted(count, 'process')}"
        raise ConfigError("listenPort", config.listen_port, expected)
    if store_config.ha_master_address:
        expected = "empty with --processes: the slaves learn their masters' addresses from the name servers"
        raise ConfigError("haMasterAddress", store_config.ha_master_address, expected)
    made = []
    for number in range(count):
        name = f"{config.broker_name}-{number}"
        folder = os.path.join(store_config.store_path_root_dir, name)
        own = {
            "brokerName": name,
            "listenPort": str(config.listen_port + PORTS * number),
            "storePathRootDir": folder,
            "configStorePath": os.path.join(folder, "config", "broker.properties"),
            "logFile": "",
            "logFormat": "json",
            "metricsAddress": "127.0.0.1",
            "metricsPort": "0",
        }
        if store_config.store_path_commit_log:
            own["storePathCommitLog"] = os.path.join(store_config.store_path_commit_log, name)
        made.append(Member(name, cores[number % len(cores)] if cores else -1, own, arguments))
    return made


def name_server(port: int, config: BrokerConfig, store_config: StoreConfig, tls: TlsConfig) -> Member:
    """The name server beside the brokers, with the same address, accounts and TLS settings."""
    folder = os.path.join(store_config.store_path_root_dir, NAMESRV_FOLDER)
    texts = parse_properties(dump_properties(config)) | parse_properties(dump_properties(tls))
    shared = {key: text for key, text in texts.items() if key in SHARED or key.startswith("tls")}
    own = {
        "listenPort": str(port),
        "bindAddress": config.bind_host,
        "kvConfigPath": os.path.join(folder, "kvConfig.json"),
        "mastersPath": os.path.join(folder, "masters.json"),
        "configStorePath": os.path.join(folder, "namesrv.properties"),
        "logFile": "",
        "logFormat": "json",
        "metricsAddress": "127.0.0.1",
        "metricsPort": "0",
        "plugins": METRICS if METRICS in config.plugins else "",
    }
    secrets = {
        "RMQ_TLS_KEY_PASSWORD": tls.tls_key_password,
        "RMQ_TLS_CLIENT_KEY_PASSWORD": tls.tls_client_key_password,
    }
    return Member(f"{config.broker_name}-namesrv", -1, shared | own, kind=NAME_SERVER, secrets=secrets)


def joined_metrics(pages: Mapping[str, str]) -> str:
    """The metrics of several processes as a text: rows have the label `process`, each metric has a single
    head.
    """
    heads: dict[str, list[str]] = {}
    rows: dict[str, list[str]] = {}
    for name, text in pages.items():
        family = ""
        for line in text.splitlines():
            if head := _FAMILY.match(line):
                family = head[1]
                if line not in heads.setdefault(family, []):
                    heads[family].append(line)
            elif sample := _SAMPLE.match(line):
                rest = line[sample.end() :]
                label = f'process="{name}"'
                if not sample[2]:
                    label = f"{{{label}}}"
                elif not rest.startswith("}"):
                    label = f"{{{label},"
                else:
                    label = f"{{{label}"
                rows.setdefault(family, []).append(sample[1] + label + rest)
    lines = [line for family, found in rows.items() for line in (*heads.get(family, ()), *found)]
    return "".join(f"{line}\n" for line in lines)


def relay(name: str, line: str) -> None:
    """Write a line of a broker's log, which is an object, to the log of the service; other lines
    unchanged."""
    try:
        fields = json.loads(line)
        kind, level = str(fields["logger"]), logging.getLevelName(fields["level"])
        text, trace = str(fields["message"]), str(fields.get("trace", ""))
    except (ValueError, TypeError, KeyError):
        kind, level, text, trace = "rmq.broker", logging.INFO, line, ""
    if not isinstance(level, int):
        level = logging.INFO
    logger = logging.getLogger(kind)
    if logger.isEnabledFor(level):
        record = logging.LogRecord(kind, level, "", 0, f"[{name}] {text}", None, None)
        record.exc_text = "\n".join(one.removeprefix("| ") for one in trace.splitlines()) or None
        logger.handle(record)


@define
class Fleet:
    """The processes, kept running until all must end, a name server after the brokers."""

    health: Health
    folder: pathlib.Path
    """The folder of the sockets over which processes report their health, in the form of sd_notify(3)."""
    stop: trio.Event
    """Set to end all processes."""
    spread: TopicFanout
    """Creates a topic at all brokers that a send has created at any of the brokers."""
    print_line: PrintLine
    """Takes the lines that the processes print."""
    processes: dict[str, trio.Process] = field(factory=dict)
    pages: dict[str, str] = field(factory=dict)
    """The processes' addresses for metrics."""
    status: int = 0
    """The exit status of the end."""

    async def keep(self, member: Member, stop: trio.Event) -> None:
        """Keep a process running until `stop`, by a new start when the process dies. A process that was never
        ready and cannot start because of its settings or its port ends all."""
        pause, was_ready = PAUSE_SECONDS[0], False
        while not stop.is_set():
            began = trio.current_time()
            self.health.lacks(member.name, "it starts")
            status = await self._run(member, stop)
            was_ready = was_ready or member.name not in self.health.lacking
            self.pages.pop(member.name, None)
            self.health.lacks(member.name, f"it ended with {status}")
            if stop.is_set():
                self.status = self.status or (EXIT_FAILED if status else 0)
                return
            log.error("%s %s ended with %d", member.kind, member.name, status)
            if status in (EXIT_SETTINGS, EXIT_TAKEN) and not was_ready:
                self.status = status
                self.stop.set()
                return
            if trio.current_time() - began > LASTING_SECONDS:
                pause = PAUSE_SECONDS[0]
            with trio.move_on_after(pause):
                await stop.wait()
            pause = min(2 * pause, PAUSE_SECONDS[1])

    async def ready(self, members: Sequence[Member]) -> None:
        """Wait for the first start of these processes, for a while."""
        with trio.move_on_after(START_SECONDS):
            while not self.stop.is_set() and any(member.name in self.health.lacking for member in members):
                await trio.sleep(0.05)

    async def _run(self, member: Member, stop: trio.Event) -> int:
        """Run a member's process; return the exit status."""
        own = [text for key, value in member.own.items() for text in ("--set", f"{key}={value}")]
        address = self.folder / member.name
        address.unlink(missing_ok=True)
        environment = {**os.environ, **member.secrets}
        environment |= {PARENT: str(os.getpid()), "NOTIFY_SOCKET": str(address)}
        environment.pop("WATCHDOG_USEC", None)
        with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_DGRAM) as notify_socket:
            await notify_socket.bind(str(address))
            async with trio.open_nursery() as nursery:
                with ExitStack() as ends:
                    inherited: list[int] = []
                    if member.kind == BROKER:
                        line, end = new_line()
                        nursery.start_soon(self.spread.serve, member.name, line)
                        inherited = [ends.enter_context(end).fileno()]
                        environment[LINE] = str(inherited[0])
                    process = await trio.lowlevel.open_process(
                        [sys.executable, "-m", MODULES[member.kind], *member.arguments, *own],
                        env=environment,
                        stdin=None,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        pass_fds=inherited,
                    )
                self.processes[member.name] = process
                _pin(process.pid, member)
                if stop.is_set():  # a stop came during the start of the process
                    process.terminate()
                nursery.start_soon(self._listen, member, notify_socket)
                async with trio.open_nursery() as reading:
                    reading.start_soon(_lines, process.stdout, partial(self._forward_line, member))
                    reading.start_soon(_lines, process.stderr, partial(relay, member.name))
                    status = await process.wait()
                nursery.cancel_scope.cancel()
        del self.processes[member.name]
        return status

    def _forward_line(self, member: Member, line: str) -> None:
        """Forward a line of a process's banner."""
        if found := _HEALTH.match(line):
            self.pages[member.name] = found[1]
        self.print_line(f"{member.name} | {line}")

    async def _listen(self, member: Member, notify_socket: trio.socket.SocketType) -> None:
        """Receive the reports of a process on its health."""
        while True:
            for line in (await notify_socket.recv(LINE_BYTES)).decode("utf-8", "replace").splitlines():
                key, _, value = line.partition("=")
                if key == "STATUS" and value == "ready":
                    self.health.has(member.name)
                elif key == "STATUS":
                    self.health.lacks(member.name, value)

    def send_signal(self, number: signal.Signals) -> None:
        """Pass a signal on to all running processes."""
        for process in list(self.processes.values()):
            process.send_signal(number)

    async def end_at(self, stop: trio.Event, members: Sequence[Member]) -> None:
        """End members together when `stop` is set."""
        await stop.wait()
        for member in members:
            if (process := self.processes.get(member.name)) is not None:
                process.terminate()

    async def page(self, asked: Asked) -> Answer:
        """The metrics of all running processes. Each process checks the token that the caller brings."""
        answers: dict[str, tuple[int, bytes]] = {}

        async def ask(name: str, address: str) -> None:
            answers[name] = await fetch(address, asked)

        async with trio.open_nursery() as nursery:
            for name, address in sorted(self.pages.items()):
                nursery.start_soon(ask, name, address)
        if any(status == 401 for status, _ in answers.values()):
            more = (("WWW-Authenticate", "Bearer"),)
            return Answer(b"a token is needed: Authorization: Bearer TOKEN\n", 401, more=more)
        texts = {name: answers[name][1].decode() for name in sorted(answers) if answers[name][0] == 200}
        up = "# TYPE rmq_process_up gauge\n"
        pages = {name: f"{up}rmq_process_up {int(name in texts)}\n" for name in self.processes}
        joined = joined_metrics({name: page + texts.get(name, "") for name, page in sorted(pages.items())})
        return Answer(joined.encode(), content_type="text/plain; version=0.0.4; charset=utf-8")


async def fetch(address: str, asked: Asked) -> tuple[int, bytes]:
    """The status and the body of a broker's page of metrics; status 0 for a broker that does not answer in
    time.
    """
    token = asked.headers.get(b"authorization")
    lines = [b"GET /metrics?%b HTTP/1.1" % asked.query, b"Host: localhost", b"Connection: close"]
    lines += [b"Authorization: %b" % token] if token else []
    data = b""
    with trio.move_on_after(PAGE_SECONDS) as scope:
        try:
            where = split_address(address)
            async with await trio.open_tcp_stream(where.host, where.port) as stream:
                await stream.send_all(b"\r\n".join([*lines, b"", b""]))
                async for piece in stream:
                    data += piece
        except (OSError, trio.BrokenResourceError):
            return 0, b""
    head, ending, body = data.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if scope.cancelled_caught or not ending or len(words) < 2 or not words[1].isdigit():
        return 0, b""
    return int(words[1]), body


def _pin(pid: int, member: Member) -> None:
    if member.core >= 0:
        try:
            os.sched_setaffinity(pid, {member.core})
        except OSError as error:
            log.warning("broker %s may run on any core: %s", member.name, error)


async def _lines(stream: trio.abc.ReceiveStream | None, take: Callable[[str], None]) -> None:
    """Give each line to `take`, until the process closes its end."""
    assert stream is not None
    rest = b""
    async with stream:
        async for piece in stream:
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                take(line.decode("utf-8", "replace"))
            if len(rest) > LINE_BYTES:
                take(rest.decode("utf-8", "replace"))
                rest = b""
    if rest:
        take(rest.decode("utf-8", "replace"))


async def supervise(
    brokers: list[Member], beside: list[Member], config: BrokerConfig, print_line: PrintLine
) -> int:
    """Keep brokers running, and the processes of `beside` for longer, until SIGTERM or SIGINT.

    Return the exit status: the status of a broker, and 1 when a broker did not end cleanly.
    `config` has the settings of all; `print_line` is called with each line that a process prints. Raises
    PortInUse.
    """
    health, stop, brokers_ended = Health(), trio.Event(), trio.Event()
    pages: dict[str, Page] = {}
    with tempfile.TemporaryDirectory(prefix="rmq-") as folder, unwrap_groups():
        fleet = Fleet(
            health, pathlib.Path(folder), stop, TopicFanout([member.name for member in brokers]), print_line
        )
        for member in (*beside, *brokers):
            health.lacks(member.name, "it starts")
        pages["/metrics"] = pages["/"] = fleet.page
        parts = partial(_parts, fleet)
        async with served_pages(TcpNetwork(), config, health) as served, trio.open_nursery() as watch:
            served.pages.update(pages if METRICS in config.plugins else {})
            watch.start_soon(
                partial(obey, config, stop, reload=partial(fleet.send_signal, signal.SIGHUP), parts=parts)
            )
            watch.start_soon(report_to_supervisor, health)
            watch.start_soon(fleet.end_at, stop, brokers)
            watch.start_soon(fleet.end_at, brokers_ended, beside)
            async with trio.open_nursery() as last:
                for member in beside:
                    last.start_soon(fleet.keep, member, brokers_ended)
                await fleet.ready(beside)
                async with trio.open_nursery() as keeping:
                    for member in brokers:
                        keeping.start_soon(fleet.keep, member, stop)
                brokers_ended.set()
            watch.cancel_scope.cancel()
    return fleet.status


def _parts(fleet: Fleet) -> str:
    rows = [f"{name}  process {process.pid}" for name, process in sorted(fleet.processes.items())]
    return "\n".join([*rows, fleet.health.text()])
