"""A broker process with a door, killed by SIGKILL: no acknowledged message may be lost."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import trio

from rmq.remoting.network import TcpNetwork
from tests.ports import free_ports

from .lines import PACKAGE, Line

ROOT = pathlib.Path(__file__).resolve().parents[2]
STARTED_SECONDS = 60.0


class Process:
    """A broker in a process of its own, with the package on its path."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.port, listen = free_ports(2)
        self.file = folder / "broker.conf"
        self.log = folder / "log"
        settings = {
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": listen,
            "haEnable": "false",
            "vipChannelEnabled": "false",
            "autoCreateTopicEnable": "true",
            "storePathRootDir": folder / "store",
            "mappedFileSizeCommitLog": 1 << 22,
            "plugins": "line",
            "linePort": self.port,
        }
        self.file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), "utf-8")

    def start(self) -> None:
        path = os.pathsep.join([str(PACKAGE), str(ROOT), str(ROOT / "plugins")])
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rmq.broker", "-c", str(self.file)],
                env={**os.environ, "PYTHONPATH": path},
                stdout=log,
                stderr=log,
            )

    def end(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        return self._process.wait(60)

    async def dial(self) -> Line:
        """A connection, once the broker serves."""
        with trio.fail_after(STARTED_SECONDS):
            while True:
                assert self._process.poll() is None, self.log.read_text("utf-8", "replace")
                try:
                    return await Line.dial(TcpNetwork(), f"127.0.0.1:{self.port}")
                except OSError:
                    await trio.sleep(0.05)  # a port says nothing when it opens


async def read_all(line: Line) -> None:
    try:
        while await line.read():
            pass
    except trio.BrokenResourceError:
        pass


async def test_what_was_acknowledged_outlives_kill_9(tmp_path: pathlib.Path) -> None:
    broker = Process(tmp_path)
    broker.start()
    try:
        writer = await broker.dial()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, writer)
            sent = 0
            with trio.fail_after(60):
                while len(writer.said) < 500:
                    await writer.send(*(f"PUB Orders {number}" for number in range(sent, sent + 50)))
                    sent += 50
                    while len(writer.said) < sent - 200:  # on a busy machine: no more than it can read back
                        await trio.sleep(0.01)
            assert broker.end(signal.SIGKILL) == -signal.SIGKILL
        acknowledged = sum(answer.startswith("OK ") for answer in writer.said)
        assert acknowledged >= 500
        assert not any(answer.startswith("ERR") for answer in writer.said)

        broker.start()
        reader = await broker.dial()
        assert await reader.ask("SUB readers Orders") == "OK"
        bodies: set[int] = set()
        seen = 0
        with trio.fail_after(60):
            while not bodies >= set(range(acknowledged)):
                news, seen = reader.messages()[seen:], len(reader.messages())
                bodies |= {int(body) for _, _, body in news}
                if news:
                    await reader.send(*(f"ACK Orders {queue} {offset}" for queue, offset, _ in news))
                else:
                    assert await reader.read()
        assert await reader.ask("PING") == "PONG"
        assert broker.end(signal.SIGTERM) == 0
        await read_all(reader)
        assert reader.said[-1] == "BYE"
    finally:
        if broker._process.poll() is None:
            broker.end(signal.SIGKILL)
