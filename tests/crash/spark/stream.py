"""A stream of Spark over two brokers that is killed by SIGKILL again and again, while the brokers are killed
and started again in turn, and producers that write all the while."""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping

from rmq.client import blocking
from rmq.errors import RmqError
from rmq.message import Message
from tests.crash.spark.processes import QUICK_JAVA, batches_in, signal_all
from tests.interop.rocketmq import Process, Processes
from tests.ports import free_ports

BROKERS = ("one", "two")
TOPIC = "Lake"
START_SECONDS = 900
PULL = 1024


def plain_body(number: int) -> bytes:
    """A text that begins with the number."""
    return b"%d-" % number + b"x" * (number % 300)


class Writers:
    """Producers that send batches of 20 messages to both brokers until stopped, `pause` seconds apart;
    `acknowledged` are the bodies of stored messages. `body` makes the body of a number."""

    def __init__(
        self, namesrv: str, body: Callable[[int], bytes] = plain_body, *, pause: float = 0.05
    ) -> None:
        self.namesrv = namesrv
        self._body, self._pause = body, pause
        self.acknowledged: list[bytes] = []
        self.refused = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writers:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.join(120)

    def _run(self) -> None:
        number = 0
        with blocking.connect(self.namesrv) as client, client.producer("writers") as producer:
            while not self._stopped.wait(self._pause):
                bodies = [self._body(n) for n in range(number, number + 20)]
                number += 20
                try:
                    producer.send_batch([Message(TOPIC, body) for body in bodies])
                    self.acknowledged += bodies
                except (RmqError, TimeoutError):
                    self.refused += 1


class Stream:
    """The job, started and killed, and the brokers beside it."""

    def __init__(
        self,
        processes: Processes,
        folder: pathlib.Path,
        job: str,
        *,
        settings: Mapping[str, str] | None = None,
        of_brokers: Mapping[str, str] | None = None,
    ) -> None:
        self.processes = processes
        self.folder = folder
        self._job = job
        self._of_brokers = of_brokers or {}
        self.namesrv = processes.rmq_namesrv()
        self._ports = dict(zip(BROKERS, free_ports(8)[::4], strict=True))
        self.brokers = {name: self._broker(name) for name in BROKERS}
        self.checkpoint = folder / "checkpoint"
        self.settings = {
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            **(settings or {}),
        }

    def _broker(self, name: str) -> Process:
        settings = {"brokerName": name, "listenPort": str(self._ports[name]), **self._of_brokers}
        return self.processes.rmq_broker(self.namesrv, self.folder / name, **settings)

    def restart(self, name: str, seconds: float) -> None:
        """Kill a broker, and start it again some seconds later."""
        self.brokers[name].kill()
        time.sleep(seconds)
        self.brokers[name] = self._broker(name)

    def start(self, *, every: float | None, **more: object) -> Process:
        options = {"nameServer": self.namesrv, "topic": TOPIC, "requireBrokers": ",".join(BROKERS)}
        given = {
            "settings": self.settings,
            "options": options | {name: str(value) for name, value in more.items()},
            "checkpoint": str(self.checkpoint),
            "every": every,
        }
        plugins = pathlib.Path(__file__).parents[3] / "plugins"
        path = os.pathsep.join([str(plugins.parent), str(plugins)])
        command = [sys.executable, "-c", self._job, json.dumps(given)]
        return self.processes.start(command, "stream", env={"PYTHONPATH": path, **QUICK_JAVA})

    def steps(self) -> int:
        """Batches that are planned, and those that are finished."""
        return batches_in(self.checkpoint / "offsets") + batches_in(self.checkpoint / "commits")

    def killed_after(self, steps: int, seconds: float, broker: str, away: float) -> None:
        """Run until the checkpoint has got so many steps on, with a broker killed and started on the way, and
        some seconds longer; then kill all of it."""
        began, process = self.steps(), self.start(every=0.1, maxOffsetsPerTrigger=400)
        deadline = time.monotonic() + START_SECONDS
        supervise = threading.Thread(target=self.restart, args=(broker, away))
        try:
            while self.steps() < began + steps:
                if (
                    process.child.poll() is not None
                ):  # Java waits 10 s for a worker, which is too short at times
                    assert "to connect back" in process.said(), process.said()
                    process = self.start(every=0.1, maxOffsetsPerTrigger=400)
                assert time.monotonic() < deadline, process.said()
                if self.steps() > began and not supervise.ident:
                    supervise.start()
                time.sleep(0.02)
            time.sleep(seconds)
        finally:
            signal_all(process, signal.SIGKILL)
            process.kill()
            if not supervise.ident:
                supervise.start()
            supervise.join(120)


def campaign(stream: Stream, kills: int, seed: int) -> Writers:
    """Kill the stream so often, and each time one of the brokers, while producers write; then have it take
    what is left. Returns the producers."""
    chance = random.Random(seed)
    with blocking.connect(stream.namesrv) as client:
        client.admin.create_topic(TOPIC, queues=2)
    with Writers(stream.namesrv) as writers:
        for number in range(kills):
            steps = 1 if number == 0 else chance.randint(2, 8)
            broker = BROKERS[number % 2]
            stream.killed_after(steps, chance.random(), broker, chance.uniform(0, 3))
            sent = len(writers.acknowledged)
            print(f"kill {number + 1}, broker {broker}: {stream.steps()} steps, {sent} sent", flush=True)
    last = stream.start(every=None, maxOffsetsPerTrigger=100_000)
    last.child.wait(600)
    assert last.child.returncode == 0, last.said()
    return writers


def stored(namesrv: str, topic: str = TOPIC) -> dict[tuple[str, int, int], bytes]:
    """The contents of the topic: (broker, queue, offset) and body of each message."""
    found = {}
    with blocking.connect(namesrv) as client, client.pull_consumer("auditors") as consumer:
        for queue in consumer.message_queues(topic):
            at, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while at < end:
                for message in consumer.pull(queue, at, max_messages=PULL).messages:
                    found[queue.broker_name, queue.queue_id, message.queue_offset] = message.body
                    at = message.queue_offset + 1
    return found
