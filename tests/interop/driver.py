"""Many Java clients in one JVM (java/Driver.java), each a `Job` that tells what happens to it.

So are those of Go and Node: the programs in go/ and node/ are told in the same way what to do, and tell the
same. They are made in a folder beside the jars, never in the tree.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import trio

from tests.interop.rocketmq import HERE, Process, Processes

SECONDS = 60.0


class Missing(Exception):
    """Raised if this machine lacks a program that a driver needs; the message names the program."""


def go_program(kit: pathlib.Path) -> list[str]:
    """Compile go/ with RocketMQ's Go client into `kit`; return the command that runs it."""
    if shutil.which("go") is None:
        raise Missing("needs Go (go.dev), which fetches RocketMQ's client by its module proxy")
    kit.mkdir(parents=True, exist_ok=True)
    program = kit / "go-driver"
    subprocess.run(["go", "build", "-o", program, "."], cwd=HERE / "go", check=True)
    return [str(program)]


def node_program(kit: pathlib.Path) -> list[str]:
    """Fetch `ali-ons`, the Node client of RocketMQ 4, into `kit`; return the command that runs
    node/driver.js."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise Missing("needs Node and npm")
    folder = kit / "node"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = (HERE / "node" / "package.json").read_text("utf-8")
    kept = folder / "package.json"
    if not kept.exists() or kept.read_text("utf-8") != wanted or not (folder / "node_modules").is_dir():
        kept.write_text(wanted, "utf-8")
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True)
    shutil.copy(HERE / "node" / "driver.js", folder)
    return ["node", str(folder / "driver.js")]


PROGRAMS: dict[str, Callable[[pathlib.Path], list[str]]] = {"go": go_program, "node": node_program}


class Driver:
    """The process of the clients; `namesrv` is the cluster that they use, `language` java, go or node.

    Raises `Missing` when the language's tools are not here.
    """

    def __init__(self, processes: Processes, namesrv: str, language: str = "java") -> None:
        self.process: Process
        if language == "java":
            self.process = processes.program("Driver", namesrv)
        else:
            command = PROGRAMS[language](processes.java.folder)
            home = {"HOME": str(processes.home)}  # where Go's client keeps offsets of broadcasts
            self.process = processes.start([*command, namesrv], f"{language}-driver", env=home)
        self._numbers = itertools.count()

    def do(self, what: str, **options: Any) -> Job:
        """Let a client begin; see Driver.java for what there is."""
        name = f"{what}-{next(self._numbers)}"
        self.tell({"do": what, "id": name, **options})
        return Job(self, name)

    def tell(self, todo: dict[str, Any]) -> None:
        assert self.process.child.stdin is not None
        self.process.child.stdin.write(json.dumps(todo).encode() + b"\n")
        self.process.child.stdin.flush()


class Job:
    """One client."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self.name = name

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the driver's output so far."""
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
