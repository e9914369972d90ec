"""Many Java clients in one JVM (java/Driver.java), each a `Job` that tells what happens to it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import trio

from tests.interop.rocketmq import Process, Processes

SECONDS = 60.0


class Driver:
    """The JVM; `namesrv` is the cluster that its clients use."""

    def __init__(self, processes: Processes, namesrv: str) -> None:
        self.process: Process = processes.program("Driver", namesrv)
        self._numbers = itertools.count()

    def do(self, what: str, **options: Any) -> Job:
        """Let a Java client begin; see Driver.java for what there is."""
        name = f"{what}-{next(self._numbers)}"
        self.tell({"do": what, "id": name, **options})
        return Job(self, name)

    def tell(self, todo: dict[str, Any]) -> None:
        assert self.process.child.stdin is not None
        self.process.child.stdin.write(json.dumps(todo).encode() + b"\n")
        self.process.child.stdin.flush()


class Job:
    """One Java client."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self.name = name

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What it has told so far."""
        return [row for row in self._driver.process.rows if row.get("for") == self.name]

    def told(self, key: str) -> list[Any]:
        """The values under `key`, in their order."""
        return [row[key] for row in self.rows if key in row]

    @property
    def bodies(self) -> list[str]:
        """Of the messages that it has got."""
        return self.told("body")

    async def until(self, condition: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
        """Wait for something that it tells."""
        with trio.move_on_after(seconds):
            while not condition():
                assert not self.told("error"), self.told("error")
                await trio.sleep(0.02)
            return
        told = f"{self.rows[-20:]} {self._driver.process.said()}"
        raise AssertionError(f"{self.name}: no {what}: {told[-3000:]}")

    async def done(self) -> list[dict[str, Any]]:
        """Wait until a client that ends by itself has ended; all that it told."""
        await self.until(lambda: self.told("done"), "end")
        return self.rows

    async def stop(self) -> None:
        """End a client that does not end by itself."""
        self._driver.tell({"do": "stop", "id": self.name})
        await self.until(lambda: self.told("stopped"), "stop")
