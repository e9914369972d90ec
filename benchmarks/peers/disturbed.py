"""The rows of `benchmarks.peers` on what disturbs our latency: sends come at a steady rate to one broker,
each when it is due, while something else goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator

import attrs

from benchmarks.peers.servers import CACHE, DISK, Durability, Server, rmq, rmq_command, serving
from benchmarks.peers.sets import rmq_set
from benchmarks.peers.turns import Figures, Row, rows_of, run_load, tell
from benchmarks.peers.wires import Histogram, Rmq, latencies
from benchmarks.scale import Link, drain, make_topic, pull, send
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.frames import encode
from rmq.protocol.record import encode_batch

PORT, BESIDE_PORT, METRICS_PORT, SET_PORT, FULL_PORT = 27_900, 27_920, 27_930, 27_940, 27_970
LOG_FILE_BYTES = 64 << 20
LARGE, LARGE_BYTES = 2000, 1 << 19
"""Messages that make the log long before its files are deleted."""
QUEUES = 1000
"""Of which a scrape tells something each."""
SCRAPE_SECONDS = 1.0
PULLS, SLOW_BYTES = 64, 1 << 14
"""Pulls that a slow reader has in flight, and the bytes that it reads each 10 ms."""
HELD, FULL_QUEUES, HOLD_MS = 10_000, 100, 300_000
"""Held pulls, 100 to a connection, each of a queue of its own: objects through which a collection looks."""
COLLECTING = """
import gc, sys, threading, time
def collect():
    while True:
        time.sleep(1.0)
        gc.collect()
threading.Thread(target=collect, daemon=True).start()
sys.argv[0] = "rmq"
from rmq.__main__ import main
main()
"""
"""A broker that collects all of its garbage each second; by itself it seldom does."""
TRIES_SECONDS = 60.0
"""How long an election may take."""
WORK = "sends at a steady rate"
QUIET = "quiet"

SECTION = Durability(
    "what disturbs rmq's latency",
    {
        QUIET: "nothing else; the log is synced each 0.5 s",
        "scrapes": f"/metrics is asked for each second; the broker has {QUEUES:,} queues more",
        "syncs": "another broker with SYNC_FLUSH on the same disk, 256 in flight at it",
        "slow reader": f"{PULLS} pulls of 256 messages in flight on a connection that reads 1.6 MB a second",
        "collections": f"a broker with {HELD:,} held pulls looks through all of its objects each second",
        "the same, by itself": f"a broker with {HELD:,} held pulls, which collects when it wants to",
        "cold reader": "a backlog that is not in the page cache is pulled, 256 messages a pull",
        "retention": "1 GiB of log in files of 64 MiB, of which all but two are deleted",
        "election": "a set of three, on three disks (durability=replicated), whose master is killed",
    },
)


@contextlib.contextmanager
def beside(step: Callable[[], object], pause: float) -> Iterator[None]:
    """Do a step again and again in a thread."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set():
            step()
            is_over.wait(pause)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def scrape() -> None:
    """Read all metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=20) as answer:
        assert len(answer.read()) > 1000


@contextlib.contextmanager
def syncs(folder: str) -> Iterator[None]:
    """Another broker that syncs all the time."""
    with rmq("rmq", folder, BESIDE_PORT, DISK) as other:
        command = [sys.executable, "-m", "benchmarks.peers.wires", "rmq", str(other.port), "1024", "256"]
        load = subprocess.Popen([*command, "0", "0", "3600"], stdout=subprocess.DEVNULL)
        try:
            yield
        finally:
            load.kill()
            load.wait()


def fill(messages: int) -> None:
    """Send the backlog that is read cold."""
    link = Link(PORT)
    make_topic(link, "Backlog", 4)
    body = encode_batch([(0, os.urandom(512).hex().encode(), "")] * 100)
    requests = [send("Backlog", queue, body, batch=True, properties="") for queue in range(4)]
    link.ask_many((requests[number % 4] for number in range(messages // 100)), 4)


def read_cold(folder: str) -> None:
    """Put the log out of the page cache and read the backlog once."""
    for path in pathlib.Path(folder, "commitlog").iterdir():
        with path.open("rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    drain(Link(PORT), 0, "*")


@contextlib.contextmanager
def slow_reader() -> Iterator[None]:
    """A connection whose answers come faster than it reads."""
    link = Link(PORT)
    for number in range(PULLS):
        link.sock.sendall(encode(pull("Backlog", number % 4, number)))
    with contextlib.closing(link.sock), beside(lambda: link.sock.recv(SLOW_BYTES), 0.01):
        yield


@contextlib.contextmanager
def full(folder: str, *, collects: bool) -> Iterator[Server]:
    """A broker with many held pulls, which collects garbage each second or by itself."""
    settings = {"listenPort": str(FULL_PORT), "storePathRootDir": folder, "haEnable": "false"}
    command = rmq_command("broker", settings | {"osPageCacheBusyTimeOutMills": "10000"})
    if collects:
        command[1:3] = ["-c", COLLECTING]
    with serving("rmq", FULL_PORT, command) as server:
        link = Link(FULL_PORT)
        holders = [Link(FULL_PORT) for _ in range(HELD // FULL_QUEUES)]
        for number, holder in enumerate(holders):
            make_topic(link, f"Full{number}", FULL_QUEUES)
            for queue in range(FULL_QUEUES):
                holder.sock.sendall(encode(pull(f"Full{number}", queue, 0, suspend_ms=HOLD_MS)))
        time.sleep(2.0)
        yield server
        for holder in holders:
            holder.sock.close()


def disturbances(folder: str) -> Iterator[tuple[str, contextlib.AbstractContextManager[None]]]:
    """What goes on beside the sends to the first broker."""
    yield QUIET, contextlib.nullcontext()
    yield "scrapes", beside(scrape, SCRAPE_SECONDS)
    yield "syncs", syncs(f"{folder}/beside")
    yield "slow reader", slow_reader()
    yield "cold reader", beside(lambda: read_cold(f"{folder}/broker"), 0.0)


def lengthen() -> None:
    """Make the log long, and keep it so."""
    keep(0)
    link = Link(PORT)
    make_topic(link, "Long", 4)
    request = send("Long", 0, os.urandom(LARGE_BYTES))
    link.ask_many((request for _ in range(LARGE)), 4)


def keep(size: int) -> None:
    """Have the broker delete log files beyond so many bytes; 0: none."""
    body = f"fileReservedBytes={size}".encode()
    answer = Link(PORT).ask(Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=body))
    assert answer.code == 0, answer.remark


@contextlib.contextmanager
def deletion() -> Iterator[None]:
    """Have most of the log deleted in the first second."""
    keep(2 * LOG_FILE_BYTES)
    yield


def paced(server: Server, options: argparse.Namespace) -> Figures:
    """The sends."""
    numbers = server.port, options.size, 256, 0, 1.0, options.seconds, options.steady
    return run_load(server, "wires", *numbers)


@attrs.define
class Tries:
    """A client of a set that sends each message when it is due, one at a time, and to the other brokers when
    one does not take it."""

    ports: tuple[int, ...]
    size: int
    _wire: Rmq | None = None
    _turn: int = 0

    def send(self) -> None:
        """Have one message taken. Raises TimeoutError if no broker takes it for long."""
        until = time.monotonic() + TRIES_SECONDS
        while time.monotonic() < until:
            try:
                if self._wire is None:
                    self._wire = Rmq(self.ports[self._turn % len(self.ports)], self.size, 0)
                    self._wire.sock.settimeout(1.0)
                self._wire.sock.sendall(self._wire.requests[0])
                while not self._wire.answered(data := self._wire.sock.recv(1 << 16)):
                    if not data:
                        raise ConnectionError("hung up")
                return
            except (OSError, ValueError):
                if self._wire:
                    self._wire.sock.close()
                self._wire, self._turn = None, self._turn + 1
                time.sleep(0.02)
        raise TimeoutError("no broker took the message")


def election(folder: str, options: argparse.Namespace) -> Figures:
    """Sends to a set, 100 a second, whose master is killed: latencies from when each was due."""
    pause, found = 0.01, Histogram()
    with rmq_set(folder, SET_PORT, least=2) as server:
        tries = Tries(server.ports, options.size)
        tries.send()
        time.sleep(3.0)  # all are in sync
        tries.send()
        start, before, seconds = time.perf_counter(), server.cpu_seconds(), 10.0 + options.seconds
        is_killed = False
        for number in range(int(seconds / pause)):
            due = start + number * pause
            if (left := due - time.perf_counter()) > 0:
                time.sleep(left)
            if not is_killed and number * pause >= options.seconds / 2:
                is_killed = True
                server.process.kill()
            tries.send()
            found.add((time.perf_counter() - due) * 1e6)
        cpu = server.cpu_seconds() - before
        return Figures(found.count / seconds, cpu / found.count * 1e6, latencies(found), server.memory_mib())


def rows(options: argparse.Namespace) -> list[Row]:
    """All rows."""
    results: dict[tuple[str, str], list[Figures]] = {}
    scraped = {"plugins": "metrics", "metricsPort": str(METRICS_PORT)}
    short = {"mappedFileSizeCommitLog": str(LOG_FILE_BYTES), "cleanResourceInterval": "1000"}
    with tempfile.TemporaryDirectory(prefix="rmq-peers-", ignore_cleanup_errors=True) as folder:
        with rmq("rmq", f"{folder}/broker", PORT, CACHE, scraped) as server:
            link = Link(PORT)
            make_topic(link, "Many", QUEUES)
            link.ask_many((send("Many", queue) for queue in range(QUEUES)), 256)
            fill(options.backlog or 100_000)
            for number in range(-1, options.rounds):
                for name, disturbance in disturbances(folder):
                    with disturbance:
                        _add(results, number, name, paced(server, options))
        with rmq("rmq", f"{folder}/short", PORT, CACHE, short) as server:
            for number in range(options.rounds):
                lengthen()
                before = len(list(pathlib.Path(folder, "short", "commitlog").iterdir()))
                with deletion():
                    _add(results, number, "retention", paced(server, options))
                left = len(list(pathlib.Path(folder, "short", "commitlog").iterdir()))
                tell("retention: files of the log before and after", before, left)
        for name, collects in (("the same, by itself", False), ("collections", True)):
            with full(f"{folder}/full{collects:d}", collects=collects) as server:
                for number in range(-1, options.rounds):
                    _add(results, number, name, paced(server, options))
        try:
            _add(results, 0, "election", election(f"{folder}/set", options))
        except TimeoutError as error:
            tell("election", "failed:", error)
    return rows_of(SECTION, results, QUIET)


def _add(results: dict[tuple[str, str], list[Figures]], number: int, name: str, figures: Figures) -> None:
    tell(SECTION.name, name, figures)
    if number >= 0:
        results.setdefault((WORK, name), []).append(figures)
