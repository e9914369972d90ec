"""Name server and broker as processes: they start, serve, and end at a signal."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rmq.namesrv", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_name_server_cleanly(tmp_path: pathlib.Path, number: signal.Signals) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text(f"listenPort=0\nkvConfigPath={tmp_path}/kv.json\n")
    process = started("-c", str(file))
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("rmq name server listens on 127.0.0.1:")
        with socket.create_connection(("127.0.0.1", int(line.rpartition(":")[2])), timeout=10):
            process.send_signal(number)
            _, errors = process.communicate(timeout=20)
        assert (process.returncode, "Traceback" in errors) == (0, False)
    finally:
        process.kill()
        process.wait()


def test_a_broker_starts_serves_and_stops_cleanly(tmp_path: pathlib.Path) -> None:
    store = tmp_path / "store"
    arguments = ["--set", "listenPort=0", "--set", f"storePathRootDir={store}", "--set", "brokerName=p"]
    command = [sys.executable, "-m", "rmq.broker", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(6)]
        assert lines[0] == "rmq broker p of DefaultCluster is ready\n"
        port = int(lines[1].rsplit(":", 1)[1])
        socket.create_connection(("127.0.0.1", port), 5).close()
        second = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        assert second.returncode == 3
        assert "is locked by another broker" in second.stderr.splitlines()[-1]
        assert (store / "abort").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert not (store / "abort").exists()
    finally:
        process.kill()
        process.communicate()
