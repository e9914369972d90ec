"""Servers that run as processes, and the brokers of a set."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

from tests.system.drill import Drill, Server

ROOT = pathlib.Path(__file__).resolve().parents[2]


class running_dev:
    """`rmq dev` on free ports for the length of a block; gives the addresses and the process."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def __enter__(self) -> tuple[list[str], subprocess.Popen[str]]:
        ports = ("--namesrv-port", "0", "--broker-port", "0", "--grpc-port", "0")
        command = [sys.executable, "-m", "rmq", "dev", *ports]
        env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(self.folder)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, cwd=self.folder, env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        addresses: list[str] = []
        for line in self.process.stdout:
            addresses += re.findall(r"^  (?:name server|broker) +(\S+)$", line)
            if line.startswith("  from Java"):
                return addresses, self.process
        raise AssertionError(f"rmq dev ended with {self.process.wait()}")

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def masters(run: Drill) -> list[str]:
    """The addresses of the masters that the name server knows."""
    done = run.shell.run("cluster", "list", "-o", "json")
    return [row["address"] for row in json.loads(done.stdout) if row["id"] == 0] if not done.exit_code else []


SET = "broker-a"


def let_control(run: Drill, server: Server, servers: list[Server]) -> None:
    server.settings["controllers"] = ";".join(one.address for one in servers)
    server.settings["controllerPath"] = str(run.folder / server.name / "controller")


def brokers_of_a_set(run: Drill, controllers: str) -> list[Server]:
    """The first master and a replica of a set."""
    master = run.broker(SET, controllerAddr=controllers, durability="replicated")
    replica = run.slave(SET, controllerAddr=controllers, flushDiskType="SYNC_FLUSH")
    return [master, replica]
