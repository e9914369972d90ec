"""A broker of processes with the AMQP door."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import frozen

from tests.interop.rocketmq import wait_for_port
from tests.ports import free_ports

SECONDS = 60.0


@frozen
class Served:
    """The ports of a broker, its own for clients and that of the door, and its process."""

    clients: int
    amqp: int
    process: int

    @property
    def url(self) -> str:
        """The door as a URL."""
        return f"amqp://127.0.0.1:{self.amqp}"


@contextmanager
def served(folder: pathlib.Path, **settings: object) -> Iterator[Served]:
    """A broker for the length of the block."""
    port, _, amqp = free_ports(3)  # the one behind the broker's is for slaves
    lines = {
        "brokerName": "b",
        "listenPort": port,
        "storePathRootDir": folder / "store",
        "plugins": "amqp",
        "amqpPort": amqp,
    } | settings
    (folder / "broker.conf").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    with (folder / "broker.log").open("w") as log:
        command = [sys.executable, "-m", "rmq.broker", "-c", str(folder / "broker.conf")]
        child = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for_port(amqp)
        yield Served(port, amqp, child.pid)
    finally:
        child.terminate()
        child.wait(SECONDS)
