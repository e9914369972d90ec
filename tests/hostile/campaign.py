"""A broker in a process of its own, an honest client beside each attack, and what that client notices.

The rule. The honest client sends a message and pulls it, a hundred times a second; each second is a window
and has a p99. The figure is the median of the p99 of some windows, because a machine with other work has bad
seconds of its own. An attack may cost the client twice what it sees, just before, beside an honest producer
that sends as fast as it can, for that much any client may cost; a busy machine needs a floor, FLOOR_MS. After
each window a new client, a slave and a probe come, and each must be able to do its work.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from attrs import define, field

from rmq.protocol.auth.signature import Credentials, signed
from rmq.protocol.codes import PULL_SUBSCRIPTION
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from rmq.protocol.record import decode_records
from tests.interop.rocketmq import free_port
from tests.system.closed.cluster import ENVIRONMENT, ROOT, Closed, _name_contexts, _prepare
from tests.unit.broker.rig import pull, send

from .newcomers import Newcomer

HONEST: Final = "0 an honest producer"
TOPIC: Final = "Orders"
GROUP: Final = "readers"
FLOOR_MS: Final = 25.0
GROWTH_MIB: Final = 64.0
DESCRIPTORS: Final = 1024
NEWCOMER_SECONDS: Final = 1.0
"""What a new client takes of the attack's time after each window."""
SMALL: Final = {
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": "400000",
    "maxHashSlotNum": "100000",
    "maxIndexNum": "400000",
    "enablePropertyFilter": "true",
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "1000",
    "traceTopicEnable": "true",
    "connectionBufferBytes": str(32 << 20),
    "pullThreadPoolQueueCapacity": "10000",
    "maxGroupMembers": "20000",
    "waitTimeMillsInSendQueue": "60000",  # a disk that is busy elsewhere is no attack
    "osPageCacheBusyTimeOutMills": "60000",
    "cleanFileForciblyEnable": "false",  # messages that a full disk of the machine costs look like lost ones
}


class Unsound(AssertionError):
    """A promise that did not hold."""


@define
class Target:
    """A broker that is started, killed and started again over one store, with few descriptors."""

    folder: pathlib.Path
    command: list[str]
    cwd: pathlib.Path
    address: str
    ca: str = ""
    accounts: dict[str, str] = field(factory=dict, repr=False)
    pages_address: str = ""
    secret_file: str = ""
    descriptors: int = DESCRIPTORS
    process: subprocess.Popen[str] | None = None
    start_seconds: float = 0.0

    @property
    def ha_address(self) -> str:
        """The port after the clients'."""
        host, _, port = self.address.rpartition(":")
        return f"{host}:{int(port) + 1}"

    @property
    def log(self) -> pathlib.Path:
        """The log of the broker."""
        return self.folder / "broker.log"

    def start(self) -> None:
        """Start it and wait until it listens. Raises Unsound when it ends instead."""
        begun = time.monotonic()
        limited = ["sh", "-c", f'ulimit -n {self.descriptors}; exec "$0" "$@"', *self.command]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                limited, cwd=self.cwd, env=SERVER_ENVIRONMENT, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if re.search(r"listens on", line):
                self.start_seconds = time.monotonic() - begun
                return
        raise Unsound(f"the broker does not start: {self.log.read_text('utf-8', 'replace')[-2000:]}")

    def end(self, number: signal.Signals) -> None:
        """Send a signal and wait."""
        process = self.running
        process.send_signal(number)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Unsound("the broker does not stop within a minute") from None
        finally:
            process.communicate()

    @property
    def running(self) -> subprocess.Popen[str]:
        """The process. Raises Unsound when it has ended."""
        assert self.process is not None
        if (status := self.process.poll()) is not None:
            said = self.log.read_text("utf-8", "replace")[-2000:]
            raise Unsound(f"the broker has ended with {status}: {said}")
        return self.process

    def resident_mib(self) -> float:
        """Memory that no file backs; 0 where the system does not tell it."""
        try:
            text = pathlib.Path(f"/proc/{self.running.pid}/status").read_text("ascii")
        except OSError:
            return 0.0
        found = re.search(r"RssAnon:\s+(\d+)", text)
        return int(found[1]) / 1024 if found else 0.0


SERVER_ENVIRONMENT: Final = {**ENVIRONMENT, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"}


@contextmanager
def compat(folder: pathlib.Path, **more: str) -> Iterator[Target]:
    """A broker that lets everybody in, with `more` settings; `plugins` among them are added to `metrics`."""
    plugins = ",".join(filter(None, ("metrics", more.pop("plugins", ""))))
    port, pages = free_port(), free_port()
    settings = {**SMALL, **more, "listenPort": str(port), "storePathRootDir": str(folder / "store")}
    settings |= {"plugins": plugins, "metricsPort": str(pages)}
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "rmq", "broker", *options, "--set", "brokerIP1=127.0.0.1"]
    made = Target(folder, command, folder, f"127.0.0.1:{port}", pages_address=f"127.0.0.1:{pages}")
    yield from _for_the_block(made)


@contextmanager
def secure(folder: pathlib.Path) -> Iterator[Target]:
    """A broker with profile=secure: TLS, accounts, a secret for slaves."""
    cluster, port, pages = Closed(folder), free_port(), free_port()
    _prepare(cluster)
    cluster.configure("names", "kvConfigPath=kv.json")
    cluster.start("names")
    cluster.ready("names")
    _name_contexts(cluster)
    settings = [f"{key}={value}" for key, value in SMALL.items()]
    settings += ["plugins=acl,metrics", f"metricsPort={pages}"]
    cluster.configure("broker", f"namesrvAddr={cluster.namesrv}", "storePathRootDir=store", *settings)
    command = [sys.executable, "-m", "rmq", "broker", "-c", "secure.conf", "--set", f"listenPort={port}"]
    made = Target(folder, command, folder / "broker", f"127.0.0.1:{port}", cluster.ca, dict(cluster.secrets))
    made.pages_address, made.secret_file = f"127.0.0.1:{pages}", str(folder / "cluster.secret")
    try:
        yield from _for_the_block(made, cluster)
    finally:
        cluster.stop("names")


def _for_the_block(made: Target, cluster: Closed | None = None) -> Iterator[Target]:
    try:
        made.start()
        if cluster is not None:
            for topic in ("Orders", "Low"):
                cluster.ok("topic", "create", topic, "--queues", "4")
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.process.kill()
            made.process.communicate()


# ---- the honest client ----


@define
class Honest:
    """A client that sends a message, pulls it, and so on; every answer's time is kept."""

    target: Target
    stored: int = 0
    slowest_ms: float = 0.0
    refused: list[str] = field(factory=list)
    _link: socket.socket | None = None
    _decoder: Decoder = field(factory=Decoder)

    def connect(self) -> None:
        """Connect anew."""
        self.close()
        host, _, port = self.target.address.rpartition(":")
        link = socket.create_connection((host, int(port)), timeout=30)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.target.ca:
            context = ssl.create_default_context(cafile=self.target.ca)
            link = context.wrap_socket(link, server_hostname=host)
        self._link, self._decoder = link, Decoder()

    def close(self) -> None:
        """Hang up."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def ask(self, request: Command) -> Command:
        """The answer to a request. Raises OSError."""
        assert self._link is not None
        if self.target.accounts:
            request = signed(request, Credentials("owner-app", self.target.accounts["owner-app"]))
        self._link.sendall(encode(request))
        while True:
            data = self._link.recv(1 << 18)
            if not data:
                raise ConnectionResetError("closed")
            for answer in self._decoder.feed(data):
                if answer.opaque == request.opaque:
                    return answer

    def window(self, seconds: float) -> float:
        """Send and pull for so long, and once at least; the p99 of the answers, in ms."""
        until, times = time.monotonic() + seconds, []
        while not times or time.monotonic() < until:
            text = f"UNIQ_KEY\x01P{self.stored}"
            sent = self._timed(times, send(TOPIC, b"%d" % self.stored, properties=text))
            if sent.code != 0:
                self.refused.append(f"send: {sent.code} {sent.remark}")
                time.sleep(0.01)
                continue
            self.stored += 1
            asked = pull(TOPIC, int(sent.ext["queueOffset"]), consumer_group=GROUP, max_msg_nums=1)
            found = self._timed(times, asked)
            if found.code != 0:
                self.refused.append(f"pull: {found.code} {found.remark}")
            time.sleep(0.005)
        self.slowest_ms = max(self.slowest_ms, *times)
        return sorted(times)[int(len(times) * 0.99)]

    def _timed(self, times: list[float], request: Command) -> Command:
        begun = time.perf_counter()
        answer = self.ask(request)
        times.append((time.perf_counter() - begun) * 1000)
        return answer

    def lost(self) -> int:
        """The number of acknowledged messages that are missing; reads all messages."""
        found, offset = 0, 0
        while True:
            asked = pull(TOPIC, offset, consumer_group=GROUP, sys_flag=PULL_SUBSCRIPTION, max_msg_nums=32)
            answer = self.ask(asked)
            if answer.code != 0:
                return self.stored - found
            messages = decode_records(answer.body)
            found += len(messages)
            offset = int(answer.ext["nextBeginOffset"])


# ---- one attack ----


@define
class Row:
    """The result of one attack."""

    name: str
    beside_honest_ms: float
    p99_ms: float
    slowest_ms: float
    growth_mib: float
    restart_seconds: float
    refused: list[str]
    report: dict[str, int]
    newcomers: list[str]

    @property
    def wrong(self) -> list[str]:
        """The broken promises of a row."""
        found, allowed = [], max(FLOOR_MS, 2 * self.beside_honest_ms)
        if self.p99_ms > allowed:
            found.append(f"p99 is {self.p99_ms:.1f} ms, {allowed:.1f} are allowed")
        if self.growth_mib > GROWTH_MIB:
            found.append(f"memory grew by {self.growth_mib:.0f} MiB")
        if self.report["obtained"]:
            found.append(f"{self.report['obtained']} times it got what it must not")
        if self.refused:
            found.append(f"{len(self.refused)} honest requests were refused: {self.refused[0]}")
        found += self.newcomers[:3]
        return [f"{self.name}: {text}" for text in found]

    @property
    def text(self) -> str:
        """A line of the table."""
        return (
            f"| {self.name} | {self.report['sent']:,} | {self.report['cut']} "
            f"| {self.beside_honest_ms:.1f} | {self.p99_ms:.1f} | {self.slowest_ms:.0f} "
            f"| {self.growth_mib:.0f} | {self.restart_seconds:.1f} | {len(self.newcomers) or 'all'} |"
        )


HEAD: Final = (
    "| attack | frames | cut off | p99 beside an honest flood, ms | p99, ms | slowest, ms | RSS, MiB "
    "| start, s | newcomers |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


TURNS: Final = 3


def under(target: Target, name: str, *, windows: int, seconds: float) -> Row:
    """Attack the broker beside an honest client; then kill or stop it, start it, and count the messages.

    What others pay depends on the other work of the machine, too. So an attack whose row is wrong is measured
    again, beside a new flood of honest clients, up to `TURNS` times; the last row counts, with all that
    was obtained.

    Raises Unsound when the broker ends, does not start, or lost a message.
    """
    honest = Honest(target)
    honest.connect()
    honest.window(0.2)
    obtained, base = 0, 0.0
    for _ in range(TURNS):
        beside, _, _, _ = _measured(target, honest, HONEST, windows, seconds)
        honest.slowest_ms, base = 0.0, base or target.resident_mib()
        honest.refused.clear()
        p99_ms, most, report, newcomers = _measured(target, honest, name, windows, seconds)
        report["obtained"] = obtained = obtained + report["obtained"]
        refused = list(honest.refused)
        row = Row(name, beside, p99_ms, honest.slowest_ms, most - base, 0.0, refused, report, newcomers)
        if not row.wrong:
            break
    target.end(signal.SIGKILL if sum(name.encode()) % 2 else signal.SIGTERM)
    target.start()
    row.restart_seconds = target.start_seconds
    honest.connect()
    lost = _with_all(target, honest)
    honest.close()
    if lost:
        raise Unsound(f"{name}: {lost} acknowledged messages are not there after the restart")
    return row


def _measured(
    target: Target, honest: Honest, name: str, windows: int, seconds: float
) -> tuple[float, float, dict[str, int], list[str]]:
    """The median of the windows' p99 (ms) beside an attack, the most memory (MiB), the attack's report, and
    what new clients could not do."""
    attacker = _attack(target, name, windows * (seconds + NEWCOMER_SECONDS) + 0.5)
    newcomer, problems = Newcomer(target), []
    try:
        assert attacker.stdout is not None
        attacker.stdout.readline()  # it is prepared
        time.sleep(0.2)
        figures, most = [], 0.0
        for _ in range(windows):
            figures.append(honest.window(seconds))
            most = max(most, target.resident_mib())
            if name != HONEST:
                problems += newcomer.problems()
        out, error = attacker.communicate(timeout=60)
        if attacker.returncode != 0:
            raise Unsound(f"the attack failed itself: {error[-1000:]}")
    finally:
        attacker.kill()
        attacker.communicate()
    most = max(most, target.resident_mib())
    return statistics.median(figures), most, json.loads(out.splitlines()[-1]), problems


_told: dict[pathlib.Path, int] = {}  # of each store: acknowledged messages so far


def _with_all(target: Target, honest: Honest) -> int:
    """Messages of this client and of those before it that are lost."""
    _told[target.folder] = _told.get(target.folder, 0) + honest.stored
    honest.stored = _told[target.folder]
    return max(0, honest.lost())


def _attack(target: Target, name: str, seconds: float) -> subprocess.Popen[str]:
    spec = {
        "name": name,
        "address": target.address,
        "ha_address": target.ha_address,
        "pages_address": target.pages_address,
        "seconds": seconds,
        "ca": target.ca,
    }
    if target.accounts:
        spec |= {"access_key": "low-user", "secret": target.accounts["low-user"]}
    nice = ["nice", "-n", "5"] if shutil.which("nice") else []
    return subprocess.Popen(
        [*nice, sys.executable, "-m", "tests.hostile", json.dumps(spec)],
        cwd=ROOT,
        env=SERVER_ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
