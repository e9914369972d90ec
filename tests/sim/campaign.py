"""Many seeds of the simulations, spread over processes, and their sums by kind.

Each process gets one seed at a time and answers with what it saw. A seed that fails is told at once, with how
to run it again. A process that dies in a seed, or does not come to its end in `LIMIT_SECONDS` of real time,
is told the same way, and another takes its place.
"""

from __future__ import annotations

import gc
import itertools
import logging
import math
import multiprocessing
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Final, Protocol, TextIO

from attrs import define, field, frozen

LIMIT_SECONDS: Final = 600.0
"""Of real time for one seed, which takes some seconds: in more it has no end."""
LINE_SECONDS: Final = 60.0
"""How often a line tells progress where there is no terminal."""
BAR_SECONDS: Final = 0.5
"""How often the bar is drawn where there is one."""
_BAR: Final = 30


class Simulated(Protocol):
    """One seed of a simulation."""

    now: float
    """Simulated seconds that have passed."""
    accepted: int
    """Entries and messages that were acknowledged."""
    counts: Any
    """How often there was each fault: a mapping."""

    def run(self) -> None:
        """Run the simulation. Raises an error if a rule is broken."""


class Kind(Protocol):
    """A kind of simulation: a class, which other processes find by its name."""

    kind: str

    def of(self, seed: int) -> Simulated:
        """The simulation of a seed."""


@frozen
class Result:
    """The result of one seed."""

    kind: str
    seed: int
    simulated_s: float = 0.0
    core_s: float = 0.0
    accepted: int = 0
    faults: Mapping[str, int] = {}
    error: str = ""

    def again(self) -> str:
        """The command that runs this seed again."""
        return f"python -m tests.sim --kind {self.kind} --seeds {self.seed}:{self.seed + 1}"


@define
class Sums:
    """Of one kind, or of all."""

    seeds: int = 0
    failed: int = 0
    simulated_s: float = 0.0
    core_s: float = 0.0
    accepted: int = 0
    faults: Counter[str] = field(factory=Counter)

    def add(self, result: Result) -> None:
        """Count one seed."""
        self.seeds += 1
        self.failed += bool(result.error)
        self.simulated_s += result.simulated_s
        self.core_s += result.core_s
        self.accepted += result.accepted
        self.faults.update(result.faults)

    @property
    def hours(self) -> float:
        """Hours that clusters ran in simulated time."""
        return self.simulated_s / 3600

    def line(self, name: str) -> str:
        """A row of the table that `HEAD` heads."""
        faults = self.faults.total()
        return (
            f"{name:<12}{self.seeds:>9}{self.hours:>15.1f}{faults:>10}{self.accepted:>14}{self.failed:>8}"
            f"{self.core_s:>14.0f}"
        )


HEAD: Final = (
    f"{'kind':<12}{'seeds':>9}{'cluster-hours':>15}{'faults':>10}{'acknowledged':>14}{'failed':>8}"
    f"{'core seconds':>14}"
)


def rows(report: str) -> dict[str, list[str]]:
    """The table of a report: seeds, cluster-hours, faults, acknowledged and failed, by kind."""
    _, *lines = report[report.index("kind ") :].splitlines()
    return {row[0]: row[1:6] for row in map(str.split, lines) if len(row) == 7}


def seeds_in_turn(kinds: Mapping[Kind, int], first: int, last: int) -> Iterator[tuple[Kind, int]]:
    """The seeds `first` to `last` (not included) of each kind, in turn: of each so many as the mapping says,
    and again. A kind that is done leaves its place to the others."""
    left = {kind: iter(range(first, last)) for kind in kinds}
    while left:
        for kind in list(left):
            some = list(itertools.islice(left[kind], kinds[kind]))
            if not some:
                del left[kind]
            for seed in some:
                yield kind, seed


def run_seed(kind: Kind, seed: int) -> Result:
    """Run one seed to its end, or to its error."""
    began, simulation, error = time.process_time(), kind.of(seed), ""
    try:
        simulation.run()
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    return Result(
        kind.kind,
        seed,
        simulation.now,
        time.process_time() - began,
        simulation.accepted,
        dict(simulation.counts),
        error,
    )


def _work(orders: Connection) -> None:
    """A process: run the seeds that it is given until nobody is there any more."""
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()  # what was imported stays
    try:
        orders.send(None)
        while True:
            orders.send(run_seed(*orders.recv()))
    except (EOFError, OSError):
        pass


class _Job:
    """A process that runs one seed at a time."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_work, args=(there,), daemon=True)
        # Ctrl-C goes to all processes of a terminal: it is for the first of them. Blocked, not ignored: one
        # that comes now is for this process as soon as the new one has what it inherits.
        resource_tracker.ensure_running()  # whose start would let signals through again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()
        self.order: tuple[Kind, int] | None = None
        self.began = math.inf
        """When its seed began; the first does when all is imported."""
        self.is_ready = False

    def give(self, order: tuple[Kind, int]) -> None:
        """Let it run a seed."""
        self.order = order
        if self.is_ready:
            self.began = time.monotonic()
        with suppress(OSError):  # it has died: `result` says so
            self.pipe.send(order)

    def result(self, limit_s: float) -> Result | None:
        """The result of the worker's seed; None as long as it runs."""
        assert self.order is not None
        kind, seed = self.order
        try:
            while self.pipe.poll():
                found: Result | None = self.pipe.recv()
                if found is not None:
                    return found
                self.is_ready, self.began = True, time.monotonic()
        except (EOFError, OSError):
            self.process.join()
            return Result(kind.kind, seed, error=f"its process died, exit code {self.process.exitcode}")
        if time.monotonic() - self.began > limit_s:
            self.end()
            return Result(kind.kind, seed, error=f"no end after {limit_s:g} s of real time")
        return None

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Campaign:
    """Seeds of some kinds on `jobs` processes, until `hours` of real time are over or no seed is left.

    `kinds` are kinds and how many of their seeds come in turn. What fails is printed to `out`, progress goes
    to `progress`: a bar where that is a terminal, else a line a minute.
    """

    def __init__(
        self,
        kinds: Mapping[Kind, int],
        first: int,
        last: int,
        *,
        hours: float,
        jobs: int,
        limit_s: float = LIMIT_SECONDS,
        out: Callable[[str], None] = print,
        progress: TextIO = sys.stderr,
    ) -> None:
        self.sums = {kind.kind: Sums() for kind in kinds}
        self.total = Sums()
        self.failed: list[Result] = []
        self._orders = seeds_in_turn(kinds, first, last)
        self._all = len(kinds) * (last - first)
        self._seconds = hours * 3600
        self._size = jobs
        self._jobs: list[_Job] = []
        self._limit_s = limit_s
        self._out = out
        self._progress = progress
        self._is_terminal = progress.isatty()
        self._began = self._shown = time.monotonic()

    def run(self) -> bool:
        """Run them; False when Ctrl-C ended it before."""
        try:
            while self._fill():
                every = BAR_SECONDS if self._is_terminal else LINE_SECONDS
                wait([job.pipe for job in self._jobs], min(every, self._limit_s, 1.0))
                for job in list(self._jobs):
                    result = job.result(self._limit_s)
                    if result is not None:
                        self._ended(job, result)
                if time.monotonic() - self._shown >= every:
                    self._show()
            return True
        except KeyboardInterrupt:
            return False
        finally:
            for job in self._jobs:
                job.end()
            if self._is_terminal:
                self._show()
                print(file=self._progress)

    def _fill(self) -> bool:
        """Give seeds to processes that have none; whether any has one."""
        for job in [job for job in self._jobs if job.order is None]:
            order = self._next()
            if order is not None:
                job.give(order)
            else:
                self._jobs.remove(job)
                job.end()
        while len(self._jobs) < self._size and (order := self._next()) is not None:
            self._jobs.append(_Job())
            self._jobs[-1].give(order)
        return bool(self._jobs)

    def _next(self) -> tuple[Kind, int] | None:
        is_over = time.monotonic() - self._began > self._seconds
        return None if is_over else next(self._orders, None)

    def _ended(self, job: _Job, result: Result) -> None:
        job.order = None
        if not job.process.is_alive():
            self._jobs.remove(job)
            job.end()
        self.sums[result.kind].add(result)
        self.total.add(result)
        if result.error:
            self.failed.append(result)
            clear = "\n" if self._is_terminal else ""
            self._out(f"{clear}{result.kind}, seed {result.seed}: {result.error}\nagain: {result.again()}")

    def _show(self) -> None:
        self._shown = time.monotonic()
        passed, total = self._shown - self._began, self.total
        text = f"{total.seeds} seeds, {total.hours:.1f} cluster-hours, {total.failed} failed"
        if self._is_terminal:
            share = min(1.0, max(total.seeds / max(self._all, 1), passed / self._seconds))
            bar = "#" * int(share * _BAR)
            print(f"\r[{bar:<{_BAR}}] {text}", end="", file=self._progress, flush=True)
        else:
            print(f"{passed / 60:.0f} min: {text}", file=self._progress, flush=True)

    def report(self) -> str:
        """The table of sums, the faults by number, and the seeds that failed."""
        passed = time.monotonic() - self._began
        lines = [HEAD, *(sums.line(kind) for kind, sums in self.sums.items())]
        if len(self.sums) > 1:
            lines.append(self.total.line("all"))
        lines += [f"in {passed:.0f} s, {self._size} at a time; faults:"]
        lines += [f"{count:>9} {name}" for name, count in self.total.faults.most_common()]
        if self.failed:
            lines += ["failed:", *(f"  {one.again()}  # {one.error:.200}" for one in self.failed)]
        return "\n".join(lines)
