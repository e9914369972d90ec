"""Name server and broker as processes: they start, serve, and end at a signal."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

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


def log_lines(file: pathlib.Path, words: str) -> list[dict[str, str]]:
    """The lines of a log as JSON, once one has these words."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        if any(words in line["message"] for line in lines):
            return lines
        time.sleep(0.01)
    raise AssertionError(f"{words!r} does not come: {lines}")


def test_signals_reload_settings_reopen_the_log_and_write_what_goes_on(tmp_path: pathlib.Path) -> None:
    log, conf = tmp_path / "broker.log", tmp_path / "broker.conf"
    settings = [
        "listenPort=0",
        "brokerName=p",
        f"storePathRootDir={tmp_path}/store",
        f"logFile={log}",
        "logFormat=json",
        "namesrvAddr=127.0.0.1:1",
        "fileReservedTime=72",
    ]
    conf.write_text("\n".join(settings))
    process = subprocess.Popen(
        [sys.executable, "-m", "rmq.broker", "-c", str(conf)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        why = "name servers: registered at none of 127.0.0.1:1"
        assert first.startswith(
            f"rmq broker p of DefaultCluster answers, but is NOT READY ({why} (127.0.0.1:1: "
        )
        assert "cannot connect" in first
        process.send_signal(signal.SIGUSR2)  # does nothing
        lines = log_lines(log, "NOT READY")
        assert lines[0].keys() == {"time", "level", "logger", "message"}
        assert lines[0]["time"].endswith("Z")
        log.rename(tmp_path / "old.log")
        settings[-1] = "fileReservedTime=48\nlistenPort=5"
        conf.write_text("\n".join(settings))
        process.send_signal(signal.SIGHUP)
        messages = [line["message"] for line in log_lines(log, "fileReservedTime is 48 now")]
        assert "fileReservedTime is 48 now, and was 72" in messages
        assert "these settings differ from the file's and need a restart: listenPort" in messages
        for number in (signal.SIGUSR1, signal.SIGQUIT):
            process.send_signal(number)
            log_lines(log, f"{number.name}: the stacks of all tasks are written to {log}.dump")
            dump = pathlib.Path(f"{log}.dump").read_text()
            for words in ("rmq.broker.runtime.service", "heldPulls  0", "loop_lag_seconds", why, "rmq-flush"):
                assert words in dump
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("service", ["namesrv", "broker"])
def test_systemd_is_told_that_it_is_ready_lives_and_stops(tmp_path: pathlib.Path, service: str) -> None:
    """The notifications are those of the units in deploy/systemd: Type=notify and WatchdogSec."""
    path = str(tmp_path / "notify")
    settings = ["listenPort=0", "haEnable=false", f"storePathRootDir={tmp_path}/store"]
    if service == "namesrv":
        settings = ["listenPort=0", f"kvConfigPath={tmp_path}/kv.json"]
    given = [word for line in settings for word in ("--set", line)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asked:
        asked.bind(path)
        asked.settimeout(60)
        process = subprocess.Popen(
            [sys.executable, "-m", "rmq", service, *given],
            env=os.environ | {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "300000"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            told: list[str] = []
            while "READY=1" not in told or told[told.index("READY=1") :].count("WATCHDOG=1") < 2:
                told += asked.recv(4096).decode().splitlines()
            assert "STOPPING=1" not in told
            assert told.index("READY=1") > told.index("WATCHDOG=1", 1), "not in its first words: it starts"
            process.send_signal(signal.SIGTERM)
            while "STOPPING=1" not in told:
                told += asked.recv(4096).decode().splitlines()
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("service", ["namesrv", "broker"])
def test_systemd_is_not_told_that_a_server_is_ready_which_cannot_listen(
    tmp_path: pathlib.Path, service: str
) -> None:
    path = str(tmp_path / "notify")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asked,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        asked.bind(path)
        asked.setblocking(False)
        settings = [f"listenPort={taken.getsockname()[1]}", "haEnable=false"]
        settings += [f"storePathRootDir={tmp_path}/store", f"kvConfigPath={tmp_path}/kv.json"]
        given = [word for line in settings for word in ("--set", line)]
        done = subprocess.run(
            [sys.executable, "-m", "rmq", service, *given],
            env=os.environ | {"NOTIFY_SOCKET": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 3
        told = asked.recv(4096).decode()
        assert told.startswith("STATUS=port: " if service == "namesrv" else "STATUS=store: "), told
        with contextlib.suppress(BlockingIOError):
            while told := asked.recv(4096).decode():
                assert "READY=1" not in told
