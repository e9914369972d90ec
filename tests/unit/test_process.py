"""Memory that a server frees goes back to the system, after any load."""

from __future__ import annotations

import pathlib
import socket
import subprocess
import sys

import pytest

from rmq.server.health import Health
from rmq.server.process import Supervisor

HELD = """
import sys
from rmq.server.process import return_large_blocks

def mib():
    text = open("/proc/self/status").read()
    return int(text.split("RssAnon:")[1].split()[0]) / 1024

if "return" in sys.argv:
    return_large_blocks()
once = b"x" * (8 << 20)
del once
before = mib()
answers, kept = [], []
for _ in range(20):
    answers.append(b"x" * (2 << 20))
    kept.append(b"x" * 5000)
del answers
print(mib() - before)
"""


def held_mib(*words: str) -> float:
    run = subprocess.run([sys.executable, "-c", HELD, *words], capture_output=True, text=True, check=True)
    return float(run.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it in /proc")
def test_memory_between_answers_of_some_mebibytes_is_given_back() -> None:
    assert held_mib("return") < 4


# --- systemd ---


def test_systemd_is_told_how_a_server_is(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asked:
        asked.bind(path)
        asked.setblocking(False)
        health = Health()
        health.lacks("store", "it is being opened: log, 40 %")
        supervisor = Supervisor({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "1500000"})
        assert (supervisor.is_asking, supervisor.period) == (True, 0.5)

        def told() -> list[str]:
            supervisor.report(health)
            return asked.recv(4096).decode().split("\n")

        waits = "EXTEND_TIMEOUT_USEC=30000000"
        assert told() == ["WATCHDOG=1", "STATUS=store: it is being opened: log, 40 %", waits]
        assert told() == ["WATCHDOG=1", waits]
        health.has("store")
        assert told() == ["WATCHDOG=1", "STATUS=ready", "READY=1"]
        assert told() == ["WATCHDOG=1"]
        supervisor.stopping()
        assert asked.recv(4096) == b"STOPPING=1"
    supervisor.report(health)  # nobody is there any more: no error


def test_without_systemd_nothing_is_told() -> None:
    supervisor = Supervisor({})
    assert not supervisor.is_asking
    supervisor.report(Health())
