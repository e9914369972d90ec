"""The two ways of docs/spark.md to a cluster, on a master and a worker of Spark's own on loopback.

No process of the cluster has rmq: what its tasks import they have from what was submitted. A job reads a
topic of a real broker and the files of its store, and writes to topics, also by a stream.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from rmq.client import blocking
from rmq.message import Message, MessageQueue
from rmq.spark.runtime import java_home
from tests.interop.rocketmq import ROOT, Process, Processes, answers, free_port, wait_until
from tests.interop.spark.spark_cluster import MASTER, WORKER, spark_home

pytest.importorskip("pyspark")

pytestmark = pytest.mark.interop

JOB = pathlib.Path(__file__).with_name("spark_job.py")
COUNT = 2000
QUICK = ("--conf", "spark.sql.shuffle.partitions=2")
OUTSIDE = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}


class Cluster:
    """A master and a worker, whose processes have the environment `env` and a Python without rmq."""

    def __init__(self, processes: Processes, folder: pathlib.Path, java: pathlib.Path) -> None:
        self.processes = processes
        self.folder = folder
        self.home = spark_home()
        self.env = {
            "JAVA_HOME": str(java),
            "PYTHONPATH": "",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        where = ("--host", "127.0.0.1", "--webui-port", "0")
        self.master = self._class(MASTER, *where, "--port", str(port))
        wait_until(lambda: answers(port) or self.master.child.poll() is not None, 60, "Spark's master")
        room = ("--cores", "2", "--memory", "1g", "--work-dir", str(folder / "work"))
        self.worker = self._class(WORKER, *where, *room, self.url)

    def _class(self, name: str, *arguments: str) -> Process:
        command = [str(self.home / "bin" / "spark-class"), name, *arguments]
        return self.processes.start(command, name.rpartition(".")[2], env=self.env)

    def submit(self, *arguments: str, python: str) -> dict[str, Any]:
        """Submit the job from our folder, with PYSPARK_PYTHON as given, and return its output."""
        sizes = ("--driver-memory", "512m", "--executor-memory", "512m", *QUICK)
        command = [str(self.home / "bin" / "spark-submit"), "--master", self.url, *sizes, *arguments]
        env = os.environ | self.env | {"PYSPARK_PYTHON": python}
        found = json.loads(run(command, cwd=self.folder, env=env).splitlines()[-1])
        assert isinstance(found, dict)
        return found


@pytest.fixture
def processes(tmp_path: pathlib.Path) -> Iterator[Processes]:
    with Processes(cast(Any, None), tmp_path) as started:
        yield started


@pytest.fixture
def cluster(processes: Processes, tmp_path: pathlib.Path) -> Iterator[Cluster]:
    with java_home() as java:
        started = Cluster(processes, tmp_path, java)
        yield started
        started.worker.stop()  # it stops its executors
        started.master.stop()


@pytest.fixture
def store(processes: Processes, tmp_path: pathlib.Path) -> tuple[str, str, str]:
    """A broker of ours with COUNT messages: its name server, its topic, the folder of its store."""
    names, folder = processes.rmq_namesrv(), tmp_path / "store"
    processes.rmq_broker(names, folder, brokerName="here")
    with blocking.connect(names) as client, client.producer("p") as producer:
        for topic in ("Orders", "OrdersCopy", "OrdersStream"):
            producer.send(Message(topic, b"first"))
        queue = MessageQueue("Orders", "here", 0)
        producer.send_batch([Message("Orders", b"m%d" % number) for number in range(COUNT)], queue=queue)
    return names, "Orders", str(folder)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)])
    (built,) = folder.glob("rmq-*.whl")
    return built


def test_rmq_goes_along_as_a_zip(
    cluster: Cluster, store: tuple[str, str, str], wheel: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    python = bare_python(tmp_path / "bare")
    assert not has_rmq(python)
    shutil.copy(wheel, tmp_path / "rmq.zip")
    found = cluster.submit("--py-files", "rmq.zip", str(JOB), *store, "register", python=python)
    check(found)
    executor = found["executor"]
    assert executor["folder"].startswith(str(tmp_path / "work"))
    assert executor["python"] == python
    assert executor["rmq"] == "./rmq.zip/rmq/message.py"


def test_a_packed_environment_goes_along(
    cluster: Cluster, store: tuple[str, str, str], wheel: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    env, packed = tmp_path / "environment", tmp_path / "environment.tar.gz"
    run([sys.executable, "-m", "venv", str(env)])
    run([str(env / "bin" / "pip"), "install", "-q", str(wheel), "pyarrow", "numpy", "venv-pack"])
    run([str(env / "bin" / "venv-pack"), "-q", "-p", str(env), "-o", str(packed)])
    print(f"{packed.stat().st_size / 1e6:.0f} MB packed")
    archive = ("--archives", "environment.tar.gz#environment")
    found = cluster.submit(*archive, str(JOB), *store, python="./environment/bin/python")
    check(found)
    executor = found["executor"]
    assert executor["folder"].startswith(str(tmp_path / "work"))
    assert executor["python"] == f"{executor['folder']}/environment/bin/python"
    assert executor["rmq"].startswith(f"{executor['folder']}/environment/lib/python")


def run(command: list[str], cwd: pathlib.Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command to its end, print its duration, and return its output."""
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env or OUTSIDE, timeout=300)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    print(f"{time.monotonic() - began:5.1f} s: {' '.join(command)[:150]}")
    return done.stdout


def bare_python(folder: pathlib.Path) -> str:
    """A Python that has what is installed here, but not rmq, though it be installed to be edited."""
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "installed.pth").write_text(f"{spark_home().parent}\n")  # .pth files there do not count
    return str(folder / "bin" / "python")


def has_rmq(python: str) -> bool:
    """True if this Python has rmq in the place where the cluster's processes would find it, with the packages
    that rmq needs."""
    run([python, "-c", "import pyarrow, pyspark, trio"])
    command = [python, "-c", "import rmq.message"]
    return subprocess.run(command, capture_output=True, env=OUTSIDE, cwd="/").returncode == 0


def check(found: dict[str, Any]) -> None:
    """The job has read and written each message, and its tasks ran in a process of the cluster."""
    bodies = sorted(["first", *(f"m{number}" for number in range(COUNT))])
    assert found["topic"] == bodies
    assert found["copies"] == sorted(["first", *bodies])
    assert found["stream"] == COUNT + 2
    assert found["store"] == found["both"] == COUNT + 1
    assert found["driver"]["pid"] != found["executor"]["pid"]
