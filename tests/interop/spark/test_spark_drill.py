"""A drill on a Spark cluster of several workers, as processes: a lost executor, tasks that run twice at
once, a lost driver, a lost worker; each message is once in two topics and in files."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from rmq.client import blocking
from rmq.message import Message, MessageQueue
from rmq.protocol.bodies import TopicConfig
from rmq.spark.runtime import java_home
from tests.interop.rocketmq import ROOT, Process, Processes, answers, free_port, wait_until

pytest.importorskip("pyspark")

from tests.interop.spark.spark_cluster import MASTER, WORKER, spark_home

pytestmark = pytest.mark.interop

JOB = pathlib.Path(__file__).with_name("spark_drill_job.py")
COUNT, QUEUES, WORKERS = 8000, 4, 2
BROKER = "here"
STEP_SECONDS = 900
"""For a step of the drill: five virtual machines of Java start, on a busy machine."""
EXECUTOR = "CoarseGrainedExecutorBackend"
CONF = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
}


class Drill:
    """A master, workers, and a driver that can be killed."""

    def __init__(self, processes: Processes, folder: pathlib.Path, java: pathlib.Path, names: str) -> None:
        self._processes, self._folder, self._names = processes, folder, names
        self._home = spark_home()
        self._env = {
            "JAVA_HOME": str(java),
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._port = free_port()
        self.master = self._daemon(MASTER, "--port", str(self._port))
        wait_until(lambda: answers(self._port), STEP_SECONDS, "Spark's master")
        self.workers = [self.worker(number) for number in range(WORKERS)]

    def worker(self, number: int) -> Process:
        """Start a worker of one core."""
        room = ("--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / f"work-{number}"))
        return self._daemon(WORKER, *room, f"spark://127.0.0.1:{self._port}")

    def _daemon(self, name: str, *arguments: str) -> Process:
        where = ("--host", "127.0.0.1", "--webui-port", "0")
        command = [str(self._home / "bin" / "spark-class"), name, *where, *arguments]
        return self._processes.start(command, name.rpartition(".")[2], env=self._env)

    def submit(self) -> subprocess.Popen[str]:
        """Start the job; its driver is a group of processes of its own."""
        conf = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
        submit = [str(self._home / "bin" / "spark-submit"), "--master", f"spark://127.0.0.1:{self._port}"]
        command = [*submit, *conf, str(JOB), self._names, BROKER, str(self._folder / "out")]
        output = (self._folder / f"driver-{time.monotonic_ns()}.log").open("w")
        return subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            text=True,
            env=os.environ | self._env,
            start_new_session=True,
        )


def executors() -> list[int]:
    """The executors of this machine whose command names the drill's folder of rmq."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().split(b"\0")
            environment = (path / "environ").read_bytes()
        except OSError:
            continue
        if any(EXECUTOR in word.decode("latin-1") for word in command) and str(ROOT).encode() in environment:
            found.append(int(path.name))
    return found


def bodies(names: str, topic: str) -> Counter[str]:
    """The bodies of a topic."""
    found: Counter[str] = Counter()
    with blocking.connect(names) as client, client.pull_consumer("drill") as consumer:
        for queue in consumer.message_queues(topic):
            at, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while at < end:
                messages = consumer.pull(queue, at).messages
                found.update(message.body.decode() for message in messages)
                at = messages[-1].queue_offset + 1
    return found


@pytest.fixture
def processes(tmp_path: pathlib.Path) -> Iterator[Processes]:
    with Processes(cast(Any, None), tmp_path) as started:
        yield started


@pytest.fixture
def names(processes: Processes, tmp_path: pathlib.Path) -> str:
    """The name server of a broker with COUNT messages in the topic In."""
    found = processes.rmq_namesrv()
    processes.rmq_broker(found, tmp_path / "store", brokerName=BROKER, idempotentSendKeepTime="3600000")
    with blocking.connect(found) as client, client.producer("p") as producer:
        for topic in ("In", "Batches", "Stream"):
            client.admin.put_topic(TopicConfig(topic, QUEUES, QUEUES))
        for queue_id in range(QUEUES):
            numbers = range(queue_id, COUNT, QUEUES)
            messages = [Message("In", b"m%d" % number) for number in numbers]
            producer.send_batch(messages, queue=MessageQueue("In", BROKER, queue_id))
    return found


def test_each_message_is_there_once_whatever_is_lost(
    processes: Processes, names: str, tmp_path: pathlib.Path
) -> None:
    def done(count: int) -> Callable[[], bool]:
        return lambda: sum(bodies(names, "Batches").values()) >= count

    with java_home() as java:
        drill = Drill(processes, tmp_path, java, names)
        driver = drill.submit()
        try:
            wait_until(done(1), STEP_SECONDS, "the first rows")
            victims = executors()
            assert len(victims) == WORKERS
            os.kill(victims[0], signal.SIGKILL)
            wait_until(done(2500), STEP_SECONDS, "rows after an executor was lost")
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(60)
            driver = drill.submit()
            wait_until(done(4500), STEP_SECONDS, "rows after the driver was lost")
            drill.workers[0].child.kill()
            drill.workers.append(drill.worker(WORKERS))
            assert driver.wait(2 * STEP_SECONDS) == 0, "\n".join(
                path.read_text()[-3000:] for path in tmp_path.glob("driver*")
            )
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
            for one in (*drill.workers, drill.master):
                one.stop()
        expected = Counter(f"m{number}" for number in range(COUNT))
        for topic in ("Batches", "Stream"):
            found = bodies(names, topic)
            assert found == expected, f"{topic}: {sum(found.values())} of {COUNT}"
        said = "".join(path.read_text() for path in tmp_path.glob("driver-*"))
        assert f"rows {COUNT}" in said
        assert "as speculatable" in said, "the slow task was not run twice at once"
