"""Our broker beside Apache RocketMQ 4.9.7: the same load, seconds apart, on the same core.

    python -m benchmarks.side_by_side [--rounds 3] [--seconds 4] [--work NAME ...] [--sync-flush] [--write]

The broker under test is pinned to core 1, the load to core 0. Both brokers are warmed with every work; then
each round runs every work on both, the order of the two rotated from round to round. Reported are the medians
over the rounds of the ratio of the two rates (each pair of one round) and of the broker's own CPU time for a
message (user + system, /proc/PID/stat, over the measured part). Rates by themselves move with the machine and
are shown only for scale; on a machine that others use too, --realtime keeps them out. With --write the table
goes into docs/design/performance.md, between its markers. With --against FOLDER the code of that
checkout runs too, and how the two differ is reported.
"""

from __future__ import annotations

import argparse
import datetime
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from statistics import median

import attrs
import pytest

from tests.interop.rocketmq import Java, Process, Processes, wait_until

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "design" / "performance.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
TICKS = os.sysconf("SC_CLK_TCK")
KINDS = ("rmq", "java")
OTHER = "other"  # the checkout that is compared with

# Both brokers as they come, but for refusals by time, which a full window brings about on a slow machine.
SETTINGS = {
    "mappedFileSizeCommitLog": str(1 << 30),
    "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
    "osPageCacheBusyTimeOutMills": "10000",
}


@attrs.frozen
class Work:
    """One kind of load: a name for the table and the arguments of its client."""

    name: str
    text: str
    client: str  # "pipelined", "pulls" or "java"
    arguments: tuple[str, ...]
    latency: bool = False


WORKS = (
    Work("json-128", "pipelined client, JSON header, 128 B", "pipelined", ("json", "128", "1024", "1", "0")),
    Work("json-1k", "pipelined client, JSON header, 1 KB", "pipelined", ("json", "1024", "1024", "1", "0")),
    Work(
        "binary-128",
        "pipelined client, binary header, 128 B",
        "pipelined",
        ("binary", "128", "1024", "1", "0"),
    ),
    Work(
        "batch-128", "pipelined client, batches of 32 x 128 B", "pipelined", ("json", "128", "64", "1", "32")
    ),
    Work("w-4", "C client, 4 in flight, 128 B", "pipelined", ("json", "128", "4", "1", "0")),
    Work("w-32", "C client, 32 in flight, 128 B", "pipelined", ("json", "128", "32", "1", "0")),
    Work("c-32", "C client, 32 connections x 1 in flight", "pipelined", ("json", "128", "1", "32", "0")),
    Work("c-100", "C client, 100 connections x 16 in flight", "pipelined", ("json", "128", "16", "100", "0")),
    Work("one", "C client, one at a time, 128 B", "pipelined", ("json", "128", "1", "1", "0"), latency=True),
    Work("pull-1", "C client, pulls of 1 x 1 KB, one at a time", "pulls", ("1", "1"), latency=True),
    Work("pull-32", "C client, pulls of 32 x 1 KB, one at a time", "pulls", ("32", "1"), latency=True),
    Work("pull-32-8", "C client, pulls of 32 x 1 KB, 8 in flight", "pulls", ("32", "8")),
    Work("pull-256", "C client, pulls of 256 x 1 KB, one at a time", "pulls", ("256", "1"), latency=True),
    Work("sync-1", "Java client, sync, 1 thread, 128 B", "java", ("sync", "128", "1")),
    Work("sync-32", "Java client, sync, 32 threads, 128 B", "java", ("sync", "128", "32")),
    Work("async", "Java client, async, 128 B", "java", ("async", "128", "1")),
    Work("push", "Java push consumer, backlog of 200,000 x 1 KB", "java", ("push", "200000")),
    Work("pull", "Java pull consumer, backlog of 200,000 x 1 KB", "java", ("pull", "200000")),
)
BACKLOGS = ("push", "pull", "pull-1", "pull-32", "pull-32-8", "pull-256")
"""Works that read what was written before."""
PULLED = 100_000
"""Messages that the C client's pulls read round and round."""


@attrs.frozen
class Figures:
    """What one run of one work gave."""

    rate: float
    cpu_us: float  # the broker's, for a message
    p50_us: float


@attrs.frozen
class Target:
    """A running broker and its name server."""

    kind: str
    namesrv: str
    broker: Process
    port: int


def cpu_seconds(pid: int) -> float:
    """User + system time of a process so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Bench:
    """The clients, the targets and the rounds. `other` is the folder of the checkout to compare with."""

    def __init__(
        self,
        processes: Processes,
        folder: pathlib.Path,
        warm: float,
        seconds: float,
        other: str | None,
        flush: str = "ASYNC_FLUSH",
    ) -> None:
        self.processes = processes
        self.settings = SETTINGS | {"flushDiskType": flush}
        self.other = other
        self.folder = folder
        self.warm = warm
        self.seconds = seconds
        self.pipelined = folder / "pipelined"
        source = HERE / "load" / "pipelined.c"
        subprocess.run(["cc", "-O2", "-o", str(self.pipelined), str(source)], check=True)

    def start(self, kind: str) -> tuple[Target, float]:
        """Starts a name server (core 0) and a broker (core 1); returns them and the start's seconds."""
        processes = self.processes
        processes.pin = "0"
        namesrv = processes.java_namesrv() if kind == "java" else processes.rmq_namesrv()
        processes.pin = "1"
        store = self.folder / f"store-{kind}-{len(processes.started)}"
        start = processes.java_broker if kind == "java" else processes.rmq_broker
        with pytest.MonkeyPatch.context() as patch:
            if kind == OTHER:
                places = os.pathsep.join((str(self.other), os.path.join(self.other or "", "plugins")))
                patch.setattr("tests.interop.rocketmq.PYTHON_PATH", places)
            broker = start(namesrv, store, brokerName=f"bench-{kind}", **self.settings)
        processes.pin = "0"
        return Target(kind, namesrv, broker, broker.port), broker.seconds_to_port

    def run(self, work: Work, target: Target, warm: float, seconds: float) -> Figures:
        """Runs one work against one broker."""
        load = self.processes.start(self.command(work, target, warm, seconds), f"load-{work.name}")
        wait_until(lambda: load.rows or load.child.poll() is not None, warm + 120, f"{work.name} measuring")
        cpu = cpu_seconds(target.broker.pid)
        load.child.wait(seconds + 150)
        cpu = cpu_seconds(target.broker.pid) - cpu
        result = load.finish()[-1]
        return Figures(result["rate"], cpu / max(result["messages"], 1) * 1e6, result["p50_us"])

    def command(self, work: Work, target: Target, warm: float, seconds: float) -> list[str]:
        times = (f"{warm}", f"{seconds}")
        topic = f"bench-{work.name}"
        if work.client == "pipelined":
            serialization, size, window, connections, batch = work.arguments
            address = ("127.0.0.1", str(target.port))
            arguments = (*address, serialization, size, window, connections, *times, batch, topic)
            return [str(self.pipelined), *arguments]
        if work.client == "pulls":
            most, window = work.arguments
            address = ("127.0.0.1", str(target.port))
            arguments = (*address, "pull", most, window, "1", *times, "0", topic, str(PULLED // 4))
            return [str(self.pipelined), *arguments]
        if work.name in BACKLOGS:
            arguments = (target.namesrv, work.name, topic, work.arguments[1])
        else:
            mode, size, threads = work.arguments
            arguments = (target.namesrv, mode, topic, size, threads, *times)
        java = self.processes.java
        return java.command("Load", *arguments, home=self.processes.home, heap="512m")

    def fill(self, target: Target, work: Work) -> None:
        """Writes the backlog that a consumer reads."""
        address = ("127.0.0.1", str(target.port))
        arguments = (
            *address,
            "json",
            "1024",
            "256",
            "1",
            "0",
            "120",
            "0",
            f"bench-{work.name}",
            str(PULLED) if work.client == "pulls" else work.arguments[1],
        )
        self.processes.start([str(self.pipelined), *arguments], "fill").finish(130)

    def rounds(
        self, works: Sequence[Work], targets: Sequence[Target], count: int
    ) -> Iterator[tuple[Work, str, Figures]]:
        """Warms both brokers with all works, then yields the figures round by round, the order rotated."""
        for work in works:
            for target in targets:
                if work.name in BACKLOGS:
                    self.fill(target, work)
                self.run(work, target, 1, self.warm)
        for number in range(count):
            for work in works:
                for target in targets if number % 2 == 0 else targets[::-1]:
                    yield work, target.kind, self.run(work, target, 1, self.seconds)


def idle_figures(bench: Bench, kind: str, count: int) -> tuple[float, float]:
    """Medians: seconds from a broker's start until its port answers; its RSS in MiB 5 s later."""
    seconds, memory = [], []
    for _ in range(count):
        target, took = bench.start(kind)
        time.sleep(5)
        seconds.append(took)
        memory.append(rss_mib(target.broker.pid))
        for process in bench.processes.started[-2:]:
            process.kill()
    return median(seconds), median(memory)


def table(
    works: Sequence[Work], results: dict[tuple[str, str], list[Figures]], idle: dict[str, tuple[float, float]]
) -> str:
    """The Markdown table of ours and Java's."""
    lines = [
        "| work | rate, rmq ÷ Java | CPU µs a message: rmq | Java | messages/s: rmq | Java |",
        "|---|---|---|---|---|---|",
    ]
    for work in works:
        ours, java = (results[work.name, kind] for kind in KINDS)
        ratio = median(a.rate / b.rate for a, b in zip(ours, java, strict=True))
        cpu = [median(one.cpu_us for one in run) for run in (ours, java)]
        rate = [median(one.rate for one in run) for run in (ours, java)]
        text = work.text
        if work.latency:
            text += " (p50 {:.0f} µs ÷ {:.0f} µs)".format(
                *(median(one.p50_us for one in run) for run in (ours, java))
            )
        lines.append(
            f"| {text} | {ratio:.2f} | {cpu[0]:.1f} | {cpu[1]:.1f} | {rate[0]:,.0f} | {rate[1]:,.0f} |"
        )
    if idle:
        lines += ["", "| | rmq | Java |", "|---|---|---|"]
        lines.append(f"| start until the port answers | {idle['rmq'][0]:.2f} s | {idle['java'][0]:.2f} s |")
        lines.append(f"| resident memory, idle | {idle['rmq'][1]:.0f} MiB | {idle['java'][1]:.0f} MiB |")
    return "\n".join(lines)


def difference(works: Sequence[Work], results: dict[tuple[str, str], list[Figures]]) -> str:
    """The Markdown table of this checkout and the other: medians of each round's ratios."""
    lines = ["| work | CPU a message, this ÷ other | rate, this ÷ other |", "|---|---|---|"]
    for work in works:
        pairs = list(zip(results[work.name, "rmq"], results[work.name, OTHER], strict=True))
        cpu = median(this.cpu_us / other.cpu_us for this, other in pairs)
        rate = median(this.rate / other.rate for this, other in pairs)
        lines.append(f"| {work.text} | {cpu:.3f} | {rate:.3f} |")
    return "\n".join(lines)


def conditions(rounds: int, seconds: float, flush: str, *, realtime: bool) -> str:
    """One line on where and how the figures were taken."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr.split('"')[
        1
    ]
    today = datetime.date.today().isoformat()
    return (
        f"Taken {today}: {os.cpu_count()} CPUs, Python {platform.python_version()}, Java {java} "
        f"(1 GiB heap), {flush}, {rounds} rounds of {seconds:g} s"
        f"{', at real-time priority' if realtime else ''}; medians."
    )


def write_page(text: str) -> None:
    """Puts the generated part into docs/design/performance.md."""
    page = PAGE.read_text("utf-8")
    head, rest = page.split(BEGIN)
    tail = rest.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", "utf-8")


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument(
        "--warm", type=float, default=6, help="seconds of warm-up of each broker with each work"
    )
    parser.add_argument("--work", nargs="*", choices=[work.name for work in WORKS], help="only these")
    parser.add_argument(
        "--realtime", action="store_true", help="brokers and loads before all other processes (needs root)"
    )
    parser.add_argument("--sync-flush", action="store_true", help="SYNC_FLUSH at both brokers")
    parser.add_argument("--no-idle", action="store_true", help="leave start time and memory out")
    parser.add_argument("--write", action="store_true", help="put the table into docs/design/performance.md")
    parser.add_argument("--against", metavar="FOLDER", help="another checkout of ours to compare with")
    return parser.parse_args(arguments)


def main() -> None:
    chosen = options()
    if chosen.realtime:  # children inherit it
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    works = [work for work in WORKS if not chosen.work or work.name in chosen.work]
    cache = HERE.parent / ".pytest_cache" / "d" / "rocketmq-4.9.7"
    java = Java(cache)
    java.prepare(HERE / "load" / "Load.java")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="rmq-bench-"))
    try:
        with Processes(java, folder, broker_heap="1g") as processes:
            flush = "SYNC_FLUSH" if chosen.sync_flush else "ASYNC_FLUSH"
            bench = Bench(processes, folder, chosen.warm, chosen.seconds, chosen.against, flush)
            text = measure(bench, works, chosen)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(text)
    if chosen.write:
        write_page(text)


def measure(bench: Bench, works: Sequence[Work], chosen: argparse.Namespace) -> str:
    """Takes all figures and returns the Markdown."""
    idle = {} if chosen.no_idle else {kind: idle_figures(bench, kind, 3) for kind in KINDS}
    targets = [bench.start(kind)[0] for kind in (*KINDS, OTHER)[: 3 if chosen.against else 2]]
    results: dict[tuple[str, str], list[Figures]] = {}
    for work, kind, figures in bench.rounds(works, targets, chosen.rounds):
        results.setdefault((work.name, kind), []).append(figures)
        said = f"{figures.rate:10,.0f}/s {figures.cpu_us:7.2f} µs  p50 {figures.p50_us:.0f} µs"
        print(f"{work.name:12} {kind:5} {said}", file=sys.stderr)
    how = conditions(chosen.rounds, chosen.seconds, bench.settings["flushDiskType"], realtime=chosen.realtime)
    found = [how, table(works, results, idle)]
    if chosen.against:
        print(difference(works, results))
    return "\n\n".join(found)


if __name__ == "__main__":
    main()
