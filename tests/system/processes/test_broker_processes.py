"""`rmq broker --processes 2`: real processes under one supervisor."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.ports import free_ports

PATIENCE = 120.0


def until(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def page(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())
    except OSError:
        return ""


@contextmanager
def service(
    folder: pathlib.Path, ports: list[int], first: int, *more: str
) -> Iterator[subprocess.Popen[bytes]]:
    conf = folder / "broker.conf"
    lines = [
        "brokerName=b",
        f"listenPort={first}",
        f"storePathRootDir={folder}/store",
        f"metricsPort={ports[0]}",
        f"logFile={folder}/log",
        "plugins=metrics",
        "mappedFileSizeCommitLog=1048576",
    ]
    conf.write_text("\n".join(lines))
    command = [sys.executable, "-m", "rmq", "broker", "--processes", "2", *more, "-c", str(conf)]
    with open(folder / "out", "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def pids(supervisor: int) -> dict[str, int]:
    """The brokers by their names, as the system knows them."""
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            status, words = (entry / "status").read_text(), (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        names = [word.decode() for word in words if word.startswith(b"brokerName=b-")]
        if names and f"PPid:\t{supervisor}\n" in status:
            found[names[-1].partition("=")[2]] = int(entry.name)
    return found


def test_two_brokers_start_die_come_back_and_stop_as_one_service(tmp_path: pathlib.Path) -> None:
    ports = free_ports(1)
    first = free_ports(10)[2]

    with service(tmp_path, ports, first) as process:
        until(lambda: page(ports[0], "/ready") == "ready\n", "both are ready")
        up = {'rmq_process_up{process="b-0"} 1', 'rmq_process_up{process="b-1"} 1'}
        until(lambda: up <= set(page(ports[0], "/metrics").splitlines()), "both give their metrics")
        text = page(ports[0], "/metrics")
        kinds = re.findall(r"^# TYPE (\S+)", text, re.M)
        assert len(kinds) == len(set(kinds)) > 10
        before = pids(process.pid)
        assert sorted(before) == ["b-0", "b-1"]
        cores = sorted(os.sched_getaffinity(0))
        for number, name in enumerate(sorted(before)):
            assert os.sched_getaffinity(before[name]) == {cores[number % len(cores)]}

        os.kill(before["b-1"], signal.SIGKILL)
        until(lambda: pids(process.pid).get("b-1", before["b-1"]) != before["b-1"], "it is started again")
        until(lambda: page(ports[0], "/ready") == "ready\n", "both are ready again")
        assert pids(process.pid)["b-0"] == before["b-0"]

        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert pids(process.pid) == {}
        log = (tmp_path / "log").read_text()
        assert "broker b-1 ended with -9" in log
        assert "[b-0] " in log
        assert "[b-1] " in log
        for name in ("b-0", "b-1"):
            assert (tmp_path / "store" / name / "checkpoint").is_file()
            assert not (tmp_path / "store" / name / "abort").exists()


def rmq(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rmq", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)


def topics(folder: pathlib.Path) -> dict[str, bool]:
    """The brokers that have saved the topic Fresh."""
    files = {name: folder / "store" / name / "config" / "topics.json" for name in ("b-0", "b-1")}
    return {name: file.exists() and '"Fresh"' in file.read_text() for name, file in files.items()}


def stored(folder: pathlib.Path, namesrv: str) -> list[int]:
    """Messages of Fresh at each broker."""
    answer = rmq("topic", "stats", "Fresh", "-n", namesrv, "-o", "json")
    assert answer.returncode == 0, answer.stderr
    counts = {"b-0": 0, "b-1": 0}
    for row in json.loads(answer.stdout):
        counts[row["broker"]] += row["messages"]
    return list(counts.values())


def test_a_name_server_beside_them_topics_at_all_and_drained_together(tmp_path: pathlib.Path) -> None:
    ports, first = free_ports(2), free_ports(10)[2]
    namesrv = f"127.0.0.1:{ports[1]}"

    with service(tmp_path, ports, first, "--with-namesrv", str(ports[1])) as process:
        until(lambda: page(ports[0], "/ready") == "ready\n", "all three are ready")
        assert 'rmq_namesrv_brokers{process="b-namesrv"} 2' in page(ports[0], "/metrics")

        sent = rmq("pub", "Fresh", "first", "-n", namesrv)
        assert sent.returncode == 0, sent.stderr
        until(lambda: all(topics(tmp_path).values()), "the topic of the first send is at both")
        more = rmq("pub", "Fresh", "text", "--count", "64", "-n", namesrv)
        assert more.returncode == 0, more.stderr
        counts = stored(tmp_path, namesrv)
        assert sum(counts) == 65
        assert min(counts) > 20, counts

        drained = rmq("broker", "drain", "b-*", "-n", namesrv, "--yes", "--no-wait")
        assert drained.returncode == 0, drained.stderr
        assert "b-0 b-1 are drained" in drained.stdout
        assert rmq("pub", "Fresh", "no", "-n", namesrv).returncode != 0
        assert rmq("broker", "undrain", "b-*", "-n", namesrv).returncode == 0
        until(lambda: rmq("pub", "Fresh", "yes", "-n", namesrv).returncode == 0, "taken again")
        assert "no broker is called c-*" in rmq("broker", "drain", "c-*", "-n", namesrv, "--yes").stderr

        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        log = (tmp_path / "log").read_text()
        assert "is not told that the broker stops" not in log  # the name server ends after the brokers
        assert "[b-namesrv] " in log
    until(lambda: not listens(ports[1]), "the name server has ended too")


def listens(port: int) -> bool:
    with socket.socket() as end:
        return end.connect_ex(("127.0.0.1", port)) == 0


def test_a_name_server_that_cannot_listen_ends_the_service(tmp_path: pathlib.Path) -> None:
    ports, first = free_ports(1), free_ports(10)[2]

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with service(tmp_path, ports, first, "--with-namesrv", str(port)) as process:
            assert process.wait(PATIENCE) == 3


def test_brokers_stop_when_their_supervisor_was_killed(tmp_path: pathlib.Path) -> None:
    ports, first = free_ports(1), free_ports(10)[2]

    with service(tmp_path, ports, first) as process:
        until(lambda: page(ports[0], "/ready") == "ready\n", "both are ready")
        process.kill()
        process.wait()
        stores = [tmp_path / "store" / name / "abort" for name in ("b-0", "b-1")]
        until(lambda: not any(store.exists() for store in stores), "both stop cleanly")
