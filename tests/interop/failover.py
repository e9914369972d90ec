"""Clients of other languages beside ours while masters of a set are killed, as tests/system/failover.py does.

    python -m tests.interop.failover --size 3 --kills 20 --pauses 10 --clients java,go

A producer of each language sends all the time, and a push consumer of each takes everything. What any
producer was told is stored must be in the log in the end, and at these consumers. Clients look for a new
master only when they ask for routes. `--poll-ms` is how often those of Java and Node do so
(`pollNameServerInterval`); 0 leaves them as they are, at 30 s. Go's client has no such setting; with
`--new-ms` its program makes a new producer when sends have failed for so long.
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
"""How long after the last fault the consumers may take for what they have not got yet."""
FAILOVER_MS = 2000
"""A shorter time without writes or reads is none of a failover, as a lease is 3 s, but of a busy machine."""
TOLERANCE_MS = 100
"""A pause begins with the last answer, which may be as much older than the fault."""
LANGUAGES = {"java": "Java", "go": "Go", "node": "Node"}


class Clients:
    """See the module. `languages` of `LANGUAGES`; `poll_ms` and `new_ms` as the options, 0 for none."""

    def __init__(
        self,
        processes: Processes,
        languages: Sequence[str] = ("java",),
        *,
        threads: int = 2,
        poll_ms: int = 1000,
        new_ms: int = 0,
    ) -> None:
        self._processes, self._languages, self._threads = processes, languages, threads
        self._options = {name: value for name, value in (("poll", poll_ms), ("new", new_ms)) if value}
        self._producers: dict[str, Job] = {}
        self._consumers: dict[str, Job] = {}

    def start(self, namesrv: str, topic: str) -> None:
        """Begin to send and to consume."""
        for language in self._languages:
            driver, more = Driver(self._processes, namesrv, language), self._options
            group = f"gatherers-{language}"
            self._consumers[language] = driver.do("gather", group=group, topic=topic, **more)
            self._producers[language] = driver.do("pour", topic=topic, threads=self._threads, **more)

    async def have_begun(self) -> None:
        """Return when each consumer has got something. One that begins while there is no master says what it
        subscribes to half a minute later."""
        for consumer in self._consumers.values():
            await consumer.until(_has_all(consumer, 1), "message")

    async def end(self, report: Report, stored: Callable[[], Awaitable[set[str]]]) -> None:
        """Send no more; add to the report what was acknowledged, and what the consumers did not get of it."""
        for language, producer in self._producers.items():
            await producer.stop()
            await producer.done()
            mine = [body for bodies in producer.told("acknowledged") for body in bodies]
            name = LANGUAGES[language]
            assert mine, f"no {name} producer was ever answered"
            (pauses,) = producer.told("pauses")
            _add(report, f"{name} without writes", pauses)
            (failed,) = producer.told("failed")
            for whys in producer.told("why"):
                print(*(f"{name}: a send failed: {why}\n" for why in whys), sep="", end="")
            print(f"{name}: {len(mine)} acknowledged, {failed} sends failed, pauses {_lengths(pauses)}")
            report.acknowledged += mine
        count = len(await stored())
        for language, consumer in self._consumers.items():
            await consumer.until(_has_all(consumer, count), f"{count} messages", END_SECONDS)
            await consumer.stop()
            await consumer.done()
            (pauses,) = consumer.told("pauses")
            print(f"{LANGUAGES[language]}: pauses of reads {_lengths(pauses)}")
            _add(report, f"{LANGUAGES[language]} without reads", pauses)
            (late,) = consumer.told("late")
            print(f"{LANGUAGES[language]}: messages late by {sorted(late)}")
            report.others[f"{LANGUAGES[language]} late"] = _of_failovers(late)
            got = {body for bodies in consumer.told("got") for body in bodies}
            where = f"at the {LANGUAGES[language]} consumer"
            report.lost += [f"{text} {where}" for text in report.acknowledged if text not in got]


def _lengths(pauses: Sequence[Sequence[int]]) -> list[int]:
    return sorted(length for _, length in pauses)


def _add(report: Report, name: str, pauses: Sequence[Sequence[int]]) -> None:
    """Add pauses, each its end and its length in ms. One in which more than one fault fell is none of a
    failover, but of all of them."""
    of_one: list[int] = []
    of_more: list[int] = []
    for ended, length in pauses:
        began = ended - length - TOLERANCE_MS
        faults = sum(began <= 1000 * at <= ended for at in report.struck)
        (of_more if faults > 1 else of_one).append(length)
    report.others[name] = _of_failovers(of_one)
    if of_more:
        report.others[f"{name} over several faults"] = _of_failovers(of_more)


def _of_failovers(pauses: Sequence[int]) -> list[float]:
    """In seconds, those that a failover may have made; else the longest."""
    return [pause / 1000 for pause in pauses if pause >= FAILOVER_MS] or [max(pauses, default=0) / 1000]


def _has_all(consumer: Job, count: int) -> Callable[[], bool]:
    return lambda: max(consumer.told("count"), default=0) >= count


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, and say what came out; the status is 1 when something was lost."""
    parser = argparse.ArgumentParser("python -m tests.interop.failover")
    add_options(parser)
    parser.add_argument("--clients", default="java", help="java, go and node, with commas")
    parser.add_argument("--poll-ms", type=int, default=1000)
    parser.add_argument("--new-ms", type=int, default=0)
    parser.add_argument("--kit", type=pathlib.Path, default=pathlib.Path(".rocketmq"), help="folder of jars")
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)
    java = Java(options.kit.resolve())
    java.folder.mkdir(parents=True, exist_ok=True)
    java.prepare()
    status = in_network("tests.interop.failover", given, options)
    if status is not None:
        return status
    own = "clients", "poll_ms", "new_ms", "kit"
    settings = {name: value for name, value in vars(options).items() if name not in own}
    with tempfile.TemporaryDirectory(prefix="rmq-failover-") as folder:
        path = pathlib.Path(folder)
        with Processes(java, path / "java") as processes:
            languages = options.clients.split(",")
            clients = Clients(processes, languages, poll_ms=options.poll_ms, new_ms=options.new_ms)
            report = trio.run(lambda: run(path, **settings, beside=clients))
    print(report.text(), *report.lost[:10], sep="\n")
    return 1 if report.lost else 0


if __name__ == "__main__":
    sys.exit(main())
