"""The client on a system that lacks what Linux has: modules, signals, options of sockets, calls of `os`.

A process loads Python's own modules and the event loops as on Linux, takes these names away, says that
the platform is Windows, and only then imports rmq. It cannot show the event loops of Windows and macOS.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rmq.testing.cluster import Cluster
from tests.unit.client.world import served_in_a_thread

LACKING = """
import asyncio, concurrent.futures, importlib.abc, multiprocessing, os, signal, socket, ssl, subprocess, sys
import tempfile, threading, urllib.request, wsgiref.simple_server
import anyio, anyio.from_thread, anyio._backends._asyncio, anyio._backends._trio, click, cryptography.x509
import rich.console, trio, trio.testing, yaml, _pytest.pathlib

MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "syslog", "tty", "pty"}

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in MODULES:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())
for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGKILL", "SIGSTOP", "SIGCHLD", "SIGALRM",
             "SIGPIPE"):
    for module in (signal, sys.modules["_signal"]):
        vars(module).pop(name, None)
for name in ("fork", "register_at_fork", "pread", "pwrite", "pwritev", "fdatasync", "posix_fallocate",
             "getuid", "geteuid", "getgid", "O_DIRECTORY", "O_CLOEXEC", "O_NOFOLLOW", "sched_getaffinity",
             "statvfs", "sendfile", "posix_fadvise", "uname", "getloadavg"):
    vars(os).pop(name, None)
for name in ("SO_REUSEPORT", "TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "MSG_MORE",
             "MSG_NOSIGNAL", "SO_PEERCRED", "TCP_QUICKACK", "TCP_CORK"):
    vars(socket).pop(name, None)
sys.platform = "win32"
"""
CLIENT = """
import rmq
from rmq.client import admin, app, blocking
from rmq.compat.rocketmq.client import ConsumeStatus, Message, Producer, PushConsumer

names, loop = sys.argv[1:]

async def main():
    async with rmq.connect(names) as client:
        await client.admin.create_topic("Systems-" + loop)
        async with client.producer("systems") as producer:
            await producer.send(rmq.Message("Systems-" + loop, b"async", keys=["k"]))
        topics = {"Systems-" + loop: "*"}
        async with client.consumer("systems-" + loop, topics, consume_from="first") as consumer:
            async with await anext(consumer) as message:
                print(message.body.decode())

anyio.run(main, backend=loop)
with blocking.connect(names, backend=loop) as client:
    with client.producer("systems") as producer:
        for number in range(20):
            producer.send(rmq.Message("Systems-" + loop, b"blocking"))
    topics = {"Systems-" + loop: "*"}
    with client.consumer("c-" + loop, topics, consume_from="first", broadcasting=True) as consumer:
        print(consumer.queues != [])
producer = Producer("systems")
producer.set_name_server_address(names)
with producer:
    message = Message("Systems-" + loop)
    message.set_body("compat")
    print(producer.send_sync(message).status.name)
found = threading.Event()
consumer = PushConsumer("compat-" + loop)
consumer.set_name_server_address(names)
consumer.subscribe("Systems-" + loop, lambda message: found.set() or ConsumeStatus.CONSUME_SUCCESS)
with consumer:
    print(found.wait(60))
"""
TESTING = """
import rmq
from rmq.testing import Cluster

async def main():
    async with Cluster("a", topics={"Orders": 2}) as cluster, cluster.connect() as client:
        async with client.producer("p") as producer:
            print((await producer.send(rmq.Message("Orders", b"x"))).status)

trio.run(main)
from rmq.cli import command
from rmq.errors import StoreError
from rmq.store.files.disk import RealDisk
import rmq.cli.messages.pub, rmq.cli.messages.sub, rmq.cli.clusters.topic, rmq.cli.local.app
import rmq.dashboard.folders
try:
    RealDisk().lock("store/lock")
except StoreError as error:
    print(error)
"""
ARCHIVE = """
from rmq.errors import ConfigError
from rmq.spark.pipelines.archive_folder import ArchiveFolder

try:
    ArchiveFolder("archive").__enter__()
except ConfigError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def names() -> Iterator[str]:
    """The name server address of a cluster in memory, over sockets."""
    with served_in_a_thread(Cluster("broker-a")) as world:
        yield world.names


def run(program: str, home: pathlib.Path, *arguments: str) -> str:
    """The output of a program on such a system."""
    done = subprocess.run(
        [sys.executable, "-c", LACKING + program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={"RMQ_OFFSETS_DIR": str(home), "RMQ_ENGINE": "auto"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_the_client_sends_and_consumes_without_what_linux_has(
    names: str, loop: str, tmp_path: pathlib.Path
) -> None:
    assert run(CLIENT, tmp_path, names, loop).split() == ["async", "True", "OK", "True"]
    (client,) = tmp_path.iterdir()
    assert not set(client.name) & set('<>:"/\\|?*')


def test_a_cluster_in_memory_runs_and_a_store_on_files_says_that_it_does_not(tmp_path: pathlib.Path) -> None:
    first, *rest = run(TESTING, tmp_path).splitlines()
    assert first == "SEND_OK"
    assert rest == [
        "store/lock: a broker does not run on Windows, which lacks the locks and writes of its store:"
        " use WSL or a container"
    ]


def test_the_archive_of_spark_is_imported_and_says_that_it_needs_file_locks(tmp_path: pathlib.Path) -> None:
    said = run(ARCHIVE, tmp_path)
    assert "a system with file locks: use WSL or a container" in said
