"""The dashboard over a large cluster: the time of pages, its memory, and the broker's CPU for being watched.

    python benchmarks/dashboard_scale.py          # 1,000 topics, 500 groups, 10,000 queues, 2,000 clients

It starts a cluster and the dashboard as processes of their own, and prints a row for each page, and the share
of a core that the broker takes before, while and after it is watched by the dashboard with two open pages.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

import rmq
from rmq.message import MessageQueue
from rmq.operate.several import ask_each
from rmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.frames import encode

TICKS = os.sysconf("SC_CLK_TCK")
SETTINGS = ("maxConnections=10000", "maxConnectionsPerAddress=10000", "maxNewConnectionsPerAddress=100000")
PAGES = (
    "",
    "/topics",
    "/topics?search=topic-09",
    "/topics?page=20",
    "/topics/topic-0500",
    "/topics/topic-0500/edit",
    "/topics/topic-0500/delete",
    "/topics/topic-0500/send",
    "/topics/topic-0500/tail",
    "/new-topic",
    "/groups",
    "/groups?sort=name&page=10",
    "/groups/group-0250",
    "/groups/group-0250/edit",
    "/groups/group-0250/delete",
    "/groups/group-0250/reset",
    "/groups/group-0250/copy",
    "/groups/group-0250/check",
    "/groups/group-0250/member?client_id=10.9.0.1@250",
    "/groups/group-0250/times?topic=topic-0500",
    "/messages?topic=topic-0500",
    "A MESSAGE",
    "/messages?topic=topic-0001&text=needle",
    "/messages?topic=topic-0500&key=none",
    "/dead-letters",
    "/dead-letters?group=group-0250",
    "/dead-letters?group=group-0250&reason=needle",
    "/brokers",
    "/brokers/embedded",
    "/brokers/embedded?show=settings",
    "/brokers/embedded/setting?name=fileReservedTime",
    "/delayed",
    "/delayed/messages",
    "/transactions",
    "/transactions/open",
    "/name-servers?topic=topic-0500",
    "/accounts",
    "/controllers",
    "/streams",
    "/jobs",
    "/changes",
)
OPEN = ("", "/groups")
"""Pages that are open while the broker is watched: they load themselves again."""
REFRESH_SECONDS = 5.0
LETTERS = 2000
HAY = 100_000
"""Messages of a topic in which a search finds nothing."""


@contextmanager
def started(arguments: Sequence[str], shown: str) -> Iterator[tuple[Any, str]]:
    """A process of `rmq`; yields it, and what its output has in the group of `shown`."""
    command = [sys.executable, "-m", "rmq", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(shown, line):
                yield process, found[1]
                break
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def cpu_seconds(pid: int) -> float:
    """The processor time of a process until now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mib(pid: int, name: str = "VmRSS") -> float:
    """The memory of a process; `VmHWM` is the most that it had."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+)", text)[1]) / 1024


async def fill(namesrv: str, sizes: argparse.Namespace) -> None:
    """Topics with queues and messages, groups with offsets."""
    per_topic = sizes.queues // sizes.topics
    async with rmq.connect(namesrv) as client:
        broker = (await client.admin.broker_addresses())[0]
        names = [f"topic-{number:04}" for number in range(sizes.topics)]
        await ask_each(names, lambda name: client.admin.create_topic(name, broker=broker, queues=per_topic))
        async with client.producer("scale") as producer:
            for name in names:
                await producer.send_batch([rmq.Message(name, b"x" * 100) for _ in range(20)])
            for _ in range(HAY // 100):
                await producer.send_batch([rmq.Message(names[1], b"x" * 100) for _ in range(100)])
        for number in range(sizes.groups):
            group = f"group-{number:04}"
            await client.admin.create_group(group, broker=broker)
            topics = [names[(2 * number + step) % len(names)] for step in (0, 1)]
            async with client.pull_consumer(group) as consumer:
                for topic in topics:
                    for queue in range(per_topic):
                        await consumer.commit(MessageQueue(topic, "embedded", queue), 0)
        dead = "%DLQ%group-0250"
        await client.admin.create_topic(dead, broker=broker, queues=1)
        async with client.producer("scale") as producer:
            for _ in range(LETTERS // 100):
                letters = [rmq.Message(dead, b"x" * 100) for _ in range(100)]
                await producer.send_batch(letters)


async def attend(broker: str, sizes: argparse.Namespace, ready: trio.Event) -> None:
    """Clients of their own connections, members of the groups, which say again and again that they live."""
    streams = []
    for number in range(sizes.clients):
        group = number % sizes.groups
        subscriptions = [SubscriptionData(f"topic-{(2 * group) % sizes.topics:04}", "*")]
        member = ConsumerData(
            f"group-{group:04}", "CONSUME_PASSIVELY", "CLUSTERING", subscription_data_set=subscriptions
        )
        data = HeartbeatData(f"10.9.0.1@{number}", consumer_data_set=[member])
        frame = encode(Command.request(RequestCode.HEART_BEAT, body=data.to_json()))
        host, _, port = broker.rpartition(":")
        stream = await trio.open_tcp_stream(host, int(port))
        streams.append((stream, frame))
    while True:
        for stream, frame in streams:
            await stream.send_all(frame)
            await stream.receive_some(65536)
        ready.set()
        await trio.sleep(30)


class Viewer:
    """A browser that has logged in by the printed link. `text` is the page that was loaded last."""

    def __init__(self, link: str) -> None:
        self.base, self.text = link.partition("/login")[0], ""
        self._http = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        self._http.open(f"{link}&next=/healthz", timeout=60).close()

    def load(self, path: str) -> tuple[float, int, int]:
        """The time of a page, its size, its status."""
        began = time.perf_counter()
        try:
            opened = self._http.open(f"{self.base}/c/default{path}", timeout=60)
        except urllib.error.HTTPError as error:  # the page of a member that does not answer
            opened = error
        with opened as answer:
            self.text = answer.read().decode()
            return time.perf_counter() - began, len(self.text), answer.status

    def message(self) -> str:
        """The path of the first message of the list that was loaded last."""
        return html.unescape(re.search(r'href="/c/default(/messages/show[^"]*)"', self.text)[1])


async def measure(viewer: Viewer, dashboard: int) -> None:
    """Print the table of pages."""
    slowest = 0.0
    for path in (*PAGES, *PAGES):  # the first time nothing is known yet
        path = viewer.message() if path == "A MESSAGE" else path
        clock = cpu_seconds(dashboard)
        took, size, status = await trio.to_thread.run_sync(viewer.load, path)
        slowest, used = max(slowest, took), cpu_seconds(dashboard) - clock
        print(
            f"{took:6.3f} s, {used:.2f} of it computing  {size / 1024:7.1f} KiB  {status}  {path or '/'}",
            flush=True,
        )
    most = memory_mib(dashboard, "VmHWM")
    print(
        f"slowest page {slowest:.3f} s; memory {memory_mib(dashboard):.0f} MiB, at most {most:.0f}",
        flush=True,
    )


async def watch(viewer: Viewer) -> None:
    """Keep pages open."""
    while True:
        for path in OPEN:
            await trio.to_thread.run_sync(viewer.load, path)
        await trio.sleep(REFRESH_SECONDS)


async def share_of(pid: int, seconds: float, when: str) -> float:
    """The share of a core that a process takes for so long."""
    began, clock = cpu_seconds(pid), time.monotonic()
    await trio.sleep(seconds)
    share = (cpu_seconds(pid) - began) / (time.monotonic() - clock)
    print(f"broker {when}: {share:.2%} of a core", flush=True)
    return share


async def run(sizes: argparse.Namespace, folder: str) -> None:
    """The whole measurement."""
    flags = [part for setting in SETTINGS for part in ("--set", setting)]
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--no-dashboard")
    with started(("dev", "--data-dir", folder, *ports, *flags), r"name server +(\S+)") as (cluster, namesrv):
        async with rmq.connect(namesrv) as client:
            with trio.fail_after(30):
                while not (brokers := await client.admin.broker_addresses()):
                    await trio.sleep(0.1)
        began = time.monotonic()
        await fill(namesrv, sizes)
        print(f"filled in {time.monotonic() - began:.0f} s", flush=True)
        async with trio.open_nursery() as nursery:
            ready = trio.Event()
            nursery.start_soon(attend, brokers[0], sizes, ready)
            await ready.wait()
            before = await share_of(cluster.pid, sizes.seconds, "before it is watched")
            options = ("-n", namesrv, "--port", "0", "--login-link")
            with started(("dashboard", *options), r"to change +(\S+)") as (pages, link):
                viewer = await trio.to_thread.run_sync(Viewer, link)
                await measure(viewer, pages.pid)
                async with trio.open_nursery() as watching:
                    watching.start_soon(watch, viewer)
                    watched = await share_of(cluster.pid, 2 * sizes.seconds, "while watched")
                    watching.cancel_scope.cancel()
            after = await share_of(cluster.pid, sizes.seconds, "after it was watched")
            nursery.cancel_scope.cancel()
        print(f"being watched costs the broker {watched - (before + after) / 2:.2%} of a core")


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (
        ("topics", 1000),
        ("groups", 500),
        ("queues", 10_000),
        ("clients", 2000),
        ("seconds", 60),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    with tempfile.TemporaryDirectory() as folder:
        trio.run(run, parser.parse_args(), folder)


if __name__ == "__main__":
    main()
