"""Machines with cables: network namespaces on a bridge, in a network of their own that leads nowhere else.

A process that waits for a connection to a machine whose cable is out hears nothing at all, as in a data
centre, where a proxy or a closed port would answer. Needs Linux, root and `ip`, and a process that was
started by `in_a_network_of_its_own`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

SWITCH: Final = "10.77.0.1"
"""The address of whoever is at the switch: the campaign itself."""


def lacks() -> str:
    """The programs that are missing for machines; empty if none is."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return "there is no ip, unshare or nsenter"
    tried = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "switch", "type", "bridge"],
        capture_output=True,
        check=False,
    )
    return tried.stderr.decode().strip() if tried.returncode else ""


def in_a_network_of_its_own(module: str, arguments: Sequence[str]) -> list[str]:
    """The command that runs a module where it can make machines."""
    return ["unshare", "--net", sys.executable, "-m", module, *arguments]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Switch:
    """The switch with the cables of all machines."""

    def __init__(self) -> None:
        self._machines: list[Machine] = []
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "switch", "type", "bridge")
        _ip("addr", "add", f"{SWITCH}/24", "dev", "switch")
        _ip("link", "set", "switch", "up")

    def machine(self) -> Machine:
        """One more machine, whose cable is in."""
        found = Machine(len(self._machines) + 2)
        self._machines.append(found)
        return found

    def close(self) -> None:
        """End all machines; their processes keep the network until they end."""
        for one in self._machines:
            one.close()


class Machine:
    """One of them: `prefix` before a command has it run there, `host` is its address."""

    def __init__(self, number: int) -> None:
        self.host = f"10.77.0.{number}"
        self._cable = f"cable{number}"
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        self._holder.stdout.readline()  # its namespace is there
        self.prefix = ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net"]
        names = "type", "veth", "peer", "name", "eth0", "netns", str(self._holder.pid)
        _ip("link", "add", self._cable, *names)
        _ip("link", "set", self._cable, "master", "switch", "up")
        for words in (
            ("addr", "add", f"{self.host}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            self._own(*words)

    def _own(self, *words: str) -> None:
        subprocess.run([*self.prefix, "ip", *words], check=True)

    def pull_cable(self) -> None:
        """Stop all traffic of a machine, without a notice to any side."""
        _ip("link", "set", self._cable, "down")

    def plug_in(self) -> None:
        """Put the cable of a machine in again."""
        _ip("link", "set", self._cable, "up")

    def drop(self, host: str) -> None:
        """Lose all packets to a host: no connection to it goes on, and none begins."""
        self._own("route", "add", "blackhole", f"{host}/32")

    def take(self, host: str) -> None:
        """Deliver packets to a host again."""
        self._own("route", "del", "blackhole", f"{host}/32")

    def close(self) -> None:
        """End the network of a machine with its processes."""
        self._holder.kill()
        self._holder.wait()
