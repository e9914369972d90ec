"""Faults in random turn around Spark: kills of Spark, of a broker, of a master whose slave is behind, brokers
that hang, and kills of Spark while a broker is away; under producers that write all the while."""

from __future__ import annotations

import json
import pathlib
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

from attrs import define, field, frozen

from rmq.client import blocking
from rmq.errors import RmqError
from tests.crash.spark.job import EACH, GROUP, IN, OUT
from tests.crash.spark.processes import QUICK_JAVA, batches_in, signal_all
from tests.crash.spark.stream import Writers
from tests.interop.rocketmq import Process, Processes, wait_until
from tests.ports import free_ports

REPLICATED, SINGLE = BROKERS = ("one", "two")
"""A master with a slave, and a master alone."""
LETTERS = f"%DLQ%{GROUP}"
STEP_SECONDS = 900
EVERY_SECONDS = 2.0
"""From one batch of a stream to the next."""
CUT_OFF = {"haMasterAddress": "127.0.0.1:1"}
KEEPS = {"idempotentSendKeepTime": "86400000"}
WRITE_PAUSE = 0.2
"""Seconds between two batches of the producers: an hour of faults gives some 300,000 messages to compare."""


def body(number: int) -> bytes:
    """The body of a message: JSON, of which each tenth one cannot be read."""
    if number % 10 == 9:
        return b"no json %d" % number
    return json.dumps({"n": number, "text": "x" * (number % 300)}).encode()


def is_good(one: bytes) -> bool:
    return one.startswith(b"{")


@frozen
class Difference:
    """The rows of one place that are missing in another place, and the rows that are in it too often."""

    lost: int
    doubled: int


def difference(expected: Counter[Hashable], found: Counter[Hashable]) -> Difference:
    """Compare what should be in a place with what is there; what should not be there at all is doubled."""
    return Difference((expected - found).total(), (found - expected).total())


class Brokers:
    """A set of a master and a slave, and a master alone, as processes that can be killed and stopped."""

    def __init__(self, processes: Processes, folder: pathlib.Path) -> None:
        self._processes, self._folder = processes, folder
        self.namesrv = processes.rmq_namesrv()
        self._ports = dict(zip(("one", "two", "slave"), free_ports(12)[::4], strict=True))
        self.masters = {name: self._master(name) for name in BROKERS}
        self.slave = self._slave()

    def _master(self, name: str) -> Process:
        return self._broker(name, {"brokerName": name})

    def _slave(self, **more: str) -> Process:
        role = {"brokerName": REPLICATED, "brokerRole": "SLAVE", "brokerId": "1"}
        return self._broker("slave", {**role, **more})

    def _broker(self, name: str, settings: Mapping[str, str]) -> Process:
        ports = {"listenPort": str(self._ports[name])}
        return self._processes.rmq_broker(self.namesrv, self._folder / name, **settings, **ports, **KEEPS)

    def kill(self, name: str) -> None:
        """Kill a master."""
        self.masters[name].kill()

    def start(self, name: str) -> None:
        """Start a master that was killed."""
        self.masters[name] = self._master(name)

    def hang(self, name: str, seconds: float) -> None:
        """Have a master do nothing for some seconds, with its connections open."""
        process = self.masters[name].child
        process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            process.send_signal(signal.SIGCONT)

    def leave_slave_behind(self, seconds: float) -> int:
        """Start the slave again without a connection to its master, have producers write for some seconds,
        and kill the master; return how many messages the slave lacks."""
        self.slave.kill()
        self.slave = self._slave(**CUT_OFF)
        time.sleep(seconds)
        before = self._end()
        self.kill(REPLICATED)
        return before - self._end()

    def end_of_slave_alone(self) -> None:
        """Start the master, and the slave with its connection."""
        self.start(REPLICATED)
        self.slave.kill()
        self.slave = self._slave()

    def _end(self) -> int:
        """The number of messages of the set according to the replica that answers."""
        with blocking.connect(self.namesrv) as client, client.pull_consumer("auditors") as consumer:

            def end() -> int:
                try:
                    queues = [q for q in consumer.message_queues(IN) if q.broker_name == REPLICATED]
                    return sum(consumer.max_offset(queue) for queue in queues)
                except RmqError:  # the route still names the master that was killed
                    return 0

            found: int = wait_until(end, STEP_SECONDS, f"a replica of {REPLICATED}")
            return found


class Job:
    """The streams, started and killed."""

    def __init__(
        self,
        processes: Processes,
        folder: pathlib.Path,
        namesrv: str,
        streams: Sequence[str],
        settings: Mapping[str, str],
    ) -> None:
        self._processes = processes
        self._folder = folder
        self._streams = streams
        room = {
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.codegen.wholeStage": "false",  # classes of few rows do not pay
        }
        self.settings = {**room, **settings}
        self._given = {
            "settings": self.settings,
            "namesrv": namesrv,
            "brokers": BROKERS,
            "folder": str(folder),
            "streams": streams,
        }
        self.ended: list[str] = []
        """Why streams failed, of those that did not end by a kill."""
        self._process = self._start(every=EVERY_SECONDS, most=4000)

    def _start(self, *, every: float | None, most: int) -> Process:
        text = json.dumps({**self._given, "every": every, "most": most})
        command = [sys.executable, "-m", "tests.crash.spark.job", text]
        return self._processes.start(command, "spark", env=QUICK_JAVA)

    def kill(self) -> None:
        """Kill driver, Java and workers at once."""
        signal_all(self._process, signal.SIGKILL)
        self._process.kill()

    def restart(self) -> None:
        self._process = self._start(every=EVERY_SECONDS, most=4000)

    def supervise(self) -> None:
        """Start the streams again if one has failed."""
        if self._process.child.poll() is not None:
            ended = [line for line in self._process.lines if " ended: " in line]
            self.ended.append(ended[0] if ended else self._process.said())
            print(f"a stream failed: {self.ended[-1][:600]}", flush=True)
            self.kill()
            self.restart()

    def is_started(self) -> bool:
        """True if the streams of the present process have begun."""
        self.supervise()
        return "started" in self._process.lines

    def batches(self) -> list[int]:
        """The number of finished batches of each stream."""
        return [batches_in(self._folder / "checkpoints" / name / "commits") for name in self._streams]

    def await_batches(self) -> None:
        """Wait until each stream has done one more batch."""
        aims = [count + 1 for count in self.batches()]

        def is_there() -> bool:
            self.supervise()
            return all(count >= aim for count, aim in zip(self.batches(), aims, strict=True))

        try:
            wait_until(is_there, STEP_SECONDS, "a batch of each stream", every=0.1)
        except TimeoutError as error:
            raise AssertionError(f"{self.batches()} of {aims}: {self._process.said()}") from error

    def finish(self) -> None:
        """Kill the streams, and have them take what is left: in several runs, as Spark 4.1 ends one after the
        batch that was interrupted."""
        self.kill()
        before: list[int] = []
        while self.batches() != before:
            before = self.batches()
            last = self._start(every=None, most=100_000)
            last.child.wait(2 * STEP_SECONDS)
            assert last.child.returncode == 0, last.said()


@define
class Faults:
    """The faults, by name. `count` of them are made in random turn, each kind about equally often."""

    brokers: Brokers
    job: Job
    chance: random.Random
    made: Counter[str] = field(factory=Counter)
    behind: int = 0
    """How many messages the slave lacked, over all times that it was alone."""

    def make(self, count: int) -> None:
        """Make faults; after each one all streams go on before the next one comes."""
        order: list[str] = []
        for number in range(count):
            if not order:
                order = list(self._kinds())
                self.chance.shuffle(order)
            self.job.await_batches()
            time.sleep(self.chance.uniform(0, 1.5))
            kind = order.pop()
            said = self._kinds()[kind]()
            self.made[kind] += 1
            print(
                f"fault {number + 1}, {kind}: {said}; batches {self.job.batches()},"
                f" {len(self.job.ended)} streams failed",
                flush=True,
            )
        self.job.await_batches()

    def _kinds(self) -> dict[str, Callable[[], str]]:
        return {
            "Spark killed": self._spark,
            "broker killed": self._broker,
            "broker hangs": self._hang,
            "slave answers": self._slave,
            "Spark killed, broker away": lambda: self._broker(with_spark=True),
            "Spark killed, slave answers": lambda: self._slave(with_spark=True),
        }

    def _spark(self) -> str:
        self.job.kill()
        self.job.restart()
        return "started again"

    def _hang(self) -> str:
        name, seconds = self.chance.choice(BROKERS), self.chance.uniform(1, 12)
        self.brokers.hang(name, seconds)
        return f"{name} for {seconds:.1f} s"

    def _broker(self, *, with_spark: bool = False) -> str:
        name = self.chance.choice(BROKERS)
        if with_spark:
            self.job.kill()
        self.brokers.kill(name)
        seconds = self._away(with_spark)
        self.brokers.start(name)
        return f"{name} for {seconds:.1f} s"

    def _slave(self, *, with_spark: bool = False) -> str:
        if with_spark:
            self.job.kill()
        lacks = self.brokers.leave_slave_behind(self.chance.uniform(0.5, 2))
        self.behind += lacks
        seconds = self._away(with_spark)
        self.brokers.end_of_slave_alone()
        return f"{lacks} messages behind, for {seconds:.1f} s"

    def _away(self, with_spark: bool) -> float:
        """Let some seconds pass; after a kill of Spark they begin when its streams do."""
        if with_spark:
            self.job.restart()
            wait_until(self.job.is_started, STEP_SECONDS, "the streams")
        seconds = self.chance.uniform(0.5, 6)
        time.sleep(seconds)
        return seconds


def make_topics(namesrv: str) -> None:
    with blocking.connect(namesrv) as client:
        for topic in (IN, OUT, EACH, LETTERS):
            client.admin.create_topic(topic, queues=2)


def writers(namesrv: str) -> Writers:
    """The producers of the campaign."""
    return Writers(namesrv, body, pause=WRITE_PAUSE)
