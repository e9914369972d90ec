"""The units of deploy/systemd under a real systemd: a user's own, in namespaces of its own.

It runs services as no other user (User=, Group=), and cannot hide /home and parts of /proc; the rest is as
shipped: readiness, watchdog (3 s), reload, restarts, descriptors, a read-only system.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from attrs import frozen

from tests.ports import free_ports
from tests.system.containers import DEPLOY, PLACE, SHARED, why_not
from tests.system.drill import PATIENCE_SECONDS, until

SYSTEMD = "/lib/systemd/systemd"
UNITS = ("rmq-namesrv", "rmq-broker", "rmq-proxy")
CHANGED = ("User=", "Group=", "ProtectHome=", "ProtectKernelTunables=")
BOOT = f"""
set -e
ulimit -n 1048576 || true  # a user's systemd gives no more than it has
mount -t tmpfs none /run; mkdir -p /run/systemd/system
mount -t tmpfs none {PLACE}; mkdir -p {PLACE}/run {PLACE}/home/.config/systemd/user; chmod 700 {PLACE}/run
cp "$0"/*.service {PLACE}/home/.config/systemd/user/
cp "$0"/rmq "$0"/*.conf {PLACE}/
env -i PATH="$PATH" HOME={PLACE}/home XDG_RUNTIME_DIR={PLACE}/run {SYSTEMD} --user --unit=basic.target &
wait
"""

pytestmark = [
    pytest.mark.packages,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
    pytest.mark.skipif(not pathlib.Path(SYSTEMD).exists(), reason="no systemd here"),
]


IS_IN_TMP = any(pathlib.Path(path).is_relative_to("/tmp") for path in (sys.executable, DEPLOY))
"""Whether this checkout or its interpreter lies where units with PrivateTmp see nothing."""


@frozen
class Systemd:
    """One that runs; `pid` is of the first process in its namespaces."""

    pid: int

    def inside(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command where it is."""
        spaces = ["nsenter", f"--mount=/proc/{self.pid}/ns/mnt", f"--pid=/proc/{self.pid}/ns/pid"]
        environment = {"PATH": os.environ["PATH"], "HOME": f"{PLACE}/home", "XDG_RUNTIME_DIR": f"{PLACE}/run"}
        return subprocess.run(
            [*spaces, *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_SECONDS,
        )

    def ctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.inside("systemctl", "--user", *words)

    def show(self, unit: str, name: str) -> str:
        return self.ctl("show", unit, "--property", name, "--value").stdout.strip()

    def log(self, unit: str) -> str:
        """The log file of the service."""
        return self.inside("cat", f"{PLACE}/home/.config/log/rmq/{unit}.log").stdout


def open_files(manager: Systemd, pid: str) -> str:
    """The limit of a process's open files."""
    (limit,) = re.findall(
        r"^Max open files +\d+ +(\d+)", manager.inside("cat", f"/proc/{pid}/limits").stdout, re.MULTILINE
    )
    return str(limit)


@contextmanager
def systemd(folder: pathlib.Path) -> Iterator[Systemd]:
    """One with the units in `folder`, until the end, when all that it started is killed."""
    process = subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", BOOT, folder],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        until(lambda: children.read_text().split(), lambda: "the namespaces are not made")
        made = Systemd(int(children.read_text().split()[0]))
        until(
            lambda: made.ctl("is-system-running").stdout.strip() in ("running", "degraded"),
            lambda: f"it does not start: {made.ctl('is-system-running')}",
        )
        yield made
    finally:
        process.kill()
        process.wait()


def write_units(folder: pathlib.Path) -> None:
    """Units and settings as shipped, at free ports and in folders that the user's systemd names."""
    ports = free_ports(9)
    more = {
        "rmq-namesrv": {"listenPort": ports[0], "metricsPort": ports[1]},
        "rmq-broker": {
            "namesrvAddr": f"127.0.0.1:{ports[0]}",
            "listenPort": ports[4],
            "haListenPort": ports[5],
            "metricsPort": ports[6],
        },
        "rmq-proxy": {
            "namesrvAddr": f"127.0.0.1:{ports[0]}",
            "listenPort": ports[7],
            "metricsPort": ports[8],
        },
    }
    (folder / "rmq").write_text(
        f"#!/bin/sh\nexport PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={SHARED['PYTHONPATH']}\n"
        f'exec {sys.executable} -m rmq "$@"\n'
    )
    (folder / "rmq").chmod(0o755)
    for unit in UNITS:
        service = unit.removeprefix("rmq-")
        lines = (DEPLOY / "systemd" / f"{unit}.service").read_text().splitlines()
        kept = [line for line in lines if not line.startswith(CHANGED)]
        assert len(lines) - len(kept) == len(CHANGED)
        text = "\n".join(kept).replace("WatchdogSec=30", "WatchdogSec=3").replace("/etc/rmq/", f"{PLACE}/")
        if IS_IN_TMP:
            text = text.replace("PrivateTmp=yes\n", "")
        (folder / f"{unit}.service").write_text(text.replace("/opt/rmq/bin/rmq", f"{PLACE}/rmq") + "\n")
        settings = (DEPLOY / "systemd" / f"{service}.conf").read_text()
        settings = re.sub(r"/var/log/rmq/\w+", f"{PLACE}/home/.config/log/rmq/{unit}", settings)
        settings = settings.replace("/var/lib/rmq", f"{PLACE}/home/.config/rmq")
        for name, value in more[unit].items():
            settings = re.sub(rf"^{name}=.*\n", "", settings, flags=re.MULTILINE) + f"{name}={value}\n"
        (folder / f"{service}.conf").write_text(settings)


def test_systemd_starts_watches_reloads_and_stops_the_units(tmp_path: pathlib.Path) -> None:
    write_units(tmp_path)
    with systemd(tmp_path) as manager:
        for unit in UNITS:
            done = manager.ctl("start", unit)  # returns when it has said that it is ready
            assert done.returncode == 0, (done, manager.log(unit))
            assert (manager.show(unit, "SubState"), manager.show(unit, "StatusText")) == ("running", "ready")
            files = {open_files(manager, "1"), open_files(manager, manager.show(unit, "MainPID"))}
            assert len(files) == 1, "as many as may be given here"

        manager.inside("sh", "-c", f"echo fileReservedTime=48 >> {PLACE}/broker.conf")
        assert manager.ctl("reload", "rmq-broker").returncode == 0
        until(lambda: "fileReservedTime is 48 now" in manager.log("rmq-broker"), lambda: "no reload")

        first = manager.show("rmq-broker", "MainPID")
        manager.ctl(
            "kill", "--signal", str(int(signal.SIGSTOP)), "rmq-broker"
        )  # its loop does not run any more
        until(lambda: manager.show("rmq-broker", "NRestarts") == "1", lambda: "the watchdog does not bite")
        until(lambda: manager.show("rmq-broker", "StatusText") == "ready", lambda: manager.log("rmq-broker"))
        assert manager.show("rmq-broker", "MainPID") != first

        for unit in reversed(UNITS):
            assert manager.ctl("stop", unit).returncode == 0
            assert (manager.show(unit, "ActiveState"), manager.show(unit, "Result")) == (
                "inactive",
                "success",
            )

        manager.inside("sh", "-c", f"echo flushDiskType=SOMETIMES >> {PLACE}/broker.conf")
        assert manager.ctl("start", "rmq-broker").returncode != 0
        until(lambda: manager.show("rmq-broker", "ActiveState") == "failed", lambda: "it is started again")
        assert manager.show("rmq-broker", "ExecMainStatus") == "2"
