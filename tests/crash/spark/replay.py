"""Runs of `rmq spark replay` that are killed."""

from __future__ import annotations

import json
import pathlib
import signal
from typing import Any

import trio

import rmq
from tests.crash.load import TOPIC
from tests.crash.spark.processes import signal_all, start_spark
from tests.interop.rocketmq import Process, Processes

TARGET = "KillTarget"
RUN_SECONDS = 900
RATE = 2000
AHEAD, AHEAD_UNLIMITED = 24_000, 60_000
"""The rows that a run has to send when it starts, with a rate and without one."""
TRIES = 4


class EndedEarly(Exception):
    """A run ended well before it could be killed."""


class Replay:
    """One run from TOPIC to TARGET, started and killed. `source` is the number of messages in TOPIC."""

    def __init__(
        self,
        processes: Processes,
        state: pathlib.Path,
        namesrv: str,
        puller: rmq.PullConsumer,
        producer: rmq.Producer,
    ) -> None:
        self.processes = processes
        self.state = state
        self.namesrv = namesrv
        self.puller = puller
        self.source = 0
        self._producer = producer

    async def write_ahead(self, rows: int) -> None:
        """Write messages to the source until the run lacks so many."""
        while self.source - (await self.length() - 1) < rows:
            numbers = range(self.source, self.source + 1000)
            await self._producer.send_batch([rmq.Message(TOPIC, b"%d-" % n + b"x" * 300) for n in numbers])
            self.source += 1000

    def start(self, *more: str) -> Process:
        given = ("--topic", TOPIC, "--to", TARGET, "--run", "killed", "--state", str(self.state))
        return start_spark(self.processes, self.namesrv, "replay", *given, "-o", "json", *more)

    async def finish(self) -> dict[str, Any]:
        """Run to the end, as fast as it goes; gives the summary."""
        process = self.start()
        await trio.to_thread.run_sync(process.child.wait, RUN_SECONDS)
        assert process.child.returncode == 0, process.said()
        found: dict[str, Any] = json.loads("".join(process.lines))
        return found

    async def length(self) -> int:
        """The number of messages in the target."""
        queues = await self.puller.message_queues(TARGET)
        return sum([await self.puller.max_offset(queue) for queue in queues])

    async def grown(self, process: Process, since: int, rows: int) -> None:
        """Wait until the target has got so many more. Raises EndedEarly."""
        with trio.fail_after(RUN_SECONDS):
            while await self.length() < since + rows:
                self.check_alive(process)
                await trio.sleep(0.01)

    def check_alive(self, process: Process) -> None:
        """Fail if the run failed. Raises EndedEarly if the run ended well."""
        status = process.child.poll()
        assert not status, process.said()
        if status == 0:
            raise EndedEarly(process.said())

    async def killed(self, rows: int, seconds: float, *more: str) -> None:
        """Run until so many are sent, and some seconds longer, then kill all of it. On a busy machine a run
        may send all its rows before this process sees the first of them: then another one with twice as many
        is killed."""
        ahead = AHEAD if more else AHEAD_UNLIMITED
        for attempt in range(TRIES):
            await self.write_ahead(ahead << attempt)
            try:
                return await self._killed(rows, seconds, *more)
            except EndedEarly as error:
                print(f"the run of {ahead << attempt} rows ended before its kill", flush=True)
                last = error
        raise last

    async def _killed(self, rows: int, seconds: float, *more: str) -> None:
        since, process = await self.length(), self.start(*more)
        try:
            if rows:
                await self.grown(process, since, rows)
            await trio.sleep(seconds)
            self.check_alive(process)
        finally:
            signal_all(process, signal.SIGKILL)
            process.kill()

    async def overtaken(self) -> dict[str, Any]:
        """Stop a run in the middle, have another one send the rest, and let the first go on before it is
        killed: as late as this no request comes out of a network. Gives the summary of the other."""
        since, process = await self.length(), self.start("--rate", str(RATE))
        try:
            await self.grown(process, since, RATE)
            signal_all(process, signal.SIGSTOP)
            done = await self.finish()
            end = await self.length()
            signal_all(process, signal.SIGCONT)
            await self.grown(process, end, 1)
        finally:
            signal_all(process, signal.SIGKILL)
            process.kill()
        return done
