"""Java clients beside ours while masters of a set are killed: the campaign of tests/system/failover.py.

    python -m tests.interop.failover --size 3 --kills 20 --pauses 10

A Java producer sends all the time, and a Java push consumer takes everything. What either producer was told
is stored must be in the log in the end, and at the Java consumer. `--poll-ms` is how often the Java clients
ask for routes (`pollNameServerInterval`, 30,000 by default): they look nowhere else for a new master.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence

import trio

from tests.interop.driver import Driver, Job
from tests.interop.rocketmq import Java, Processes
from tests.system.failover import Report, add_options, in_network, run

END_SECONDS = 180.0
"""How long after the last fault the Java consumer may take for what it has not got yet."""


class JavaClients:
    """See the module. `poll_ms`: how often they ask for routes."""

    def __init__(self, processes: Processes, *, threads: int = 2, poll_ms: int = 1000) -> None:
        self._processes, self._threads, self._poll_ms = processes, threads, poll_ms
        self._producer: Job | None = None
        self._consumer: Job | None = None

    def start(self, namesrv: str, topic: str) -> None:
        """Begin to send and to consume."""
        driver = Driver(self._processes, namesrv)
        self._consumer = driver.do("gather", group="gatherers", topic=topic, poll=self._poll_ms)
        self._producer = driver.do("pour", topic=topic, threads=self._threads, poll=self._poll_ms)

    async def end(self, report: Report, stored: Callable[[], Awaitable[set[str]]]) -> None:
        """Send no more; add to the report what was acknowledged, and what the consumer did not get of it."""
        producer, consumer = self._producer, self._consumer
        assert producer is not None
        assert consumer is not None
        await producer.stop()
        await producer.done()
        mine = [body for bodies in producer.told("acknowledged") for body in bodies]
        assert mine, "no Java producer was ever answered"
        (pauses,) = producer.told("pauses")
        report.others["Java without writes"] = [pause / 1000 for pause in pauses]
        (failed,) = producer.told("failed")
        print(f"Java: {len(mine)} acknowledged, {failed} sends failed")
        report.acknowledged += mine
        count = len(await stored())
        await consumer.until(lambda: consumer.told("count")[-1] >= count, f"{count} messages", END_SECONDS)
        await consumer.stop()
        await consumer.done()
        got = {body for bodies in consumer.told("got") for body in bodies}
        report.lost += [f"{text} at the consumer" for text in report.acknowledged if text not in got]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, and say what came out; the status is 1 when something was lost."""
    parser = argparse.ArgumentParser("python -m tests.interop.failover")
    add_options(parser)
    parser.add_argument("--poll-ms", type=int, default=1000)
    parser.add_argument("--kit", type=pathlib.Path, default=pathlib.Path(".rocketmq"), help="folder of jars")
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)
    java = Java(options.kit.resolve())
    java.folder.mkdir(parents=True, exist_ok=True)
    java.prepare()
    status = in_network("tests.interop.failover", given, options)
    if status is not None:
        return status
    settings = {name: value for name, value in vars(options).items() if name not in ("poll_ms", "kit")}
    with tempfile.TemporaryDirectory(prefix="rmq-failover-") as folder:
        path = pathlib.Path(folder)
        with Processes(java, path / "java") as processes:
            clients = JavaClients(processes, poll_ms=options.poll_ms)
            report = trio.run(lambda: run(path, **settings, beside=clients))
    print(report.text(), *report.lost[:10], sep="\n")
    return 1 if report.lost else 0


if __name__ == "__main__":
    sys.exit(main())
