"""The drills of docs/runbooks.md: each section on real processes, under traffic, which loses nothing.

Those that wait for clients with old routes take half a minute or more and are for `nox -s runbooks`.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import signal
import subprocess
import urllib.request
from importlib import metadata

import pytest

from tests.system.drill import PAGE, TOPIC, Drill, Server, drill, until
from tests.system.running import masters

TESTED_ELSEWHERE = {"Java in and out": "tests/interop/servers/test_runbook.py"}
DRILLS = ("test_runbooks.py", "test_failover_runbooks.py", "test_balance.py")


def test_every_section_has_its_drill() -> None:
    sections = set(re.findall(r"^## (.+)$", PAGE.read_text("utf-8"), re.MULTILINE))
    here = pathlib.Path(__file__)
    code = "".join(here.with_name(name).read_text("utf-8") for name in DRILLS)
    drills = set(re.findall(r'drill\(tmp_path, "([^"]+)"\)', code))
    assert drills | TESTED_ELSEWHERE.keys() == sections
    for file in TESTED_ELSEWHERE.values():
        assert (here.parents[2] / file).is_file()


def has_table(server: Server, name: str, words: str) -> bool:
    """True if a server has saved this table."""
    file = server.store / "config" / f"{name}.json"
    return file.exists() and words in file.read_text()


def restart(run: Drill, server: Server) -> None:
    """A service manager's restart, and the waiting that the page asks for."""
    server.end()
    server.start()
    run.rmq("cluster", "list")
    if (slave := run.servers.get("broker-a-slave")) is not None and slave.process is not None:
        run.wait_until_copied("broker-a")


@pytest.mark.runbooks
def test_rolling_restart(tmp_path: pathlib.Path) -> None:
    with drill(tmp_path, "Rolling restart") as run:
        run.name_server("names-1")
        run.name_server("names-2")
        run.broker("broker-a", brokerRole="SYNC_MASTER")
        run.slave("broker-a")
        run.broker("broker-b")
        traffic = run.load()
        for name in ("names-1", "names-2", "broker-a-slave", "broker-a", "broker-b"):
            restart(run, run.servers[name])
            traffic.go_on()
        run.repeat("doctor")
        traffic.stop()
        assert traffic.failures == []
        run.check_nothing_is_lost()


@pytest.mark.runbooks
def test_drain(tmp_path: pathlib.Path) -> None:
    with drill(tmp_path, "Drain") as run:
        run.name_server()
        broker = run.broker("broker-a")
        run.broker("broker-b")
        traffic = run.load()
        run.rmq("broker", "drain", "broker-a", "--yes")
        at = ends(run, "broker-a")
        broker.end()
        traffic.go_on()
        broker.start()
        traffic.go_on()
        assert ends(run, "broker-a") == at, "it stays drained over a restart"
        run.rmq("broker", "undrain", "broker-a")
        until(lambda: ends(run, "broker-a") > at, lambda: "nothing is sent to it again")
        traffic.stop()
        assert traffic.failures == []
        run.check_nothing_is_lost()


def ends(run: Drill, broker: str) -> int:
    """The number of messages of the topic that a broker has taken."""
    rows = run.shell.rows("topic", "stats", TOPIC)
    return sum(row["max_offset"] for row in rows if row["broker"] == broker)


@pytest.mark.runbooks
def test_add_a_broker(tmp_path: pathlib.Path) -> None:
    with drill(tmp_path, "Add a broker") as run:
        run.name_server()
        run.broker("broker-a")
        traffic = run.load()
        run.shell.ok("group", "create", "auditors")
        file = str(tmp_path / "cluster.yaml")
        run.rmq("export", file, "--no-offsets")
        run.broker("broker-b")
        assert "broker-b" in run.rmq("import", file, "--dry-run")
        run.rmq("import", file, "--yes")
        until(
            lambda: "broker-b" in run.rmq("topic", "route", TOPIC),
            lambda: "the new broker is not in the route",
        )
        until(lambda: ends(run, "broker-b") > 0, lambda: "nothing is sent to it")
        assert "auditors" in run.shell.ok("group", "list")
        traffic.stop()
        assert traffic.failures == []
        run.check_nothing_is_lost()


@pytest.mark.runbooks
def test_move_a_topic(tmp_path: pathlib.Path) -> None:
    with drill(tmp_path, "Move a topic") as run:
        run.name_server()
        run.broker("broker-a")
        traffic = run.load()
        run.broker("broker-b")
        run.rmq("cluster", "plan")
        run.rmq("topic", "move", TOPIC, "--from", "broker-a", "--to", "broker-b", "--yes")
        at = ends(run, "broker-a")
        traffic.go_on()
        assert ends(run, "broker-a") == at
        assert ends(run, "broker-b") > 0
        perms = {row["broker"]: row["perm"] for row in run.rows("topic", "route", TOPIC)}
        assert perms == {"broker-a": "r", "broker-b": "rw"}
        traffic.stop()
        assert traffic.failures == []
        run.check_nothing_is_lost()


def test_seed_a_slave(tmp_path: pathlib.Path) -> None:
    with drill(tmp_path, "Seed a slave") as run:
        run.name_server()
        master = run.broker("broker-a")
        run.load()
        run.fill(1000, 4000)
        assert len(list((master.store / "commitlog").iterdir())) > 3
        slave = run.slave("broker-a")
        run.rmq("cluster", "list")
        run.wait_until_copied("broker-a")
        until(lambda: has_table(slave, "topics", TOPIC), lambda: "the slave has no topics")
        run.repeat("doctor")
        slave.end()
        check_that_a_shorter_log_is_told_of(run, master, slave)
        shutil.rmtree(slave.store)
        copy = tmp_path / "copy"
        run.rmq("backup", str(master.store), str(copy))
        run.rmq("store", "seed", str(copy), str(slave.store))
        end = max(int(path.name) for path in (copy / "commitlog").iterdir())
        slave.start()
        run.rmq("cluster", "list")
        run.wait_until_copied("broker-a")
        (*_, begun) = re.findall(r"following master \S+ from (\d+)", slave.said)
        assert int(begun) >= end > 0, "it copies what came since"
        assert run.traffic is not None
        run.traffic.stop()
        run.wait_until_copied("broker-a")
        master.end(signal.SIGKILL)
        run.check_nothing_is_lost()  # by the slave


def check_that_a_shorter_log_is_told_of(run: Drill, master: Server, slave: Server) -> None:
    """A slave without the oldest file, as RocketMQ's new ones are: metrics and doctor tell of it."""
    min(file for file in (slave.store / "commitlog").iterdir() if file.name.isdecimal()).unlink()
    assert run.shell.run("store", "repair", "--accept-start", str(slave.store)).exit_code == 0
    slave.start()
    run.wait_until_copied("broker-a")
    assert begins(slave) == begins(master) + int(slave.settings["mappedFileSizeCommitLog"])
    found = run.shell.run("doctor")
    assert found.exit_code == 1
    assert "its log begins 1 MiB after its master's" in found.stdout
    slave.end()


def begins(server: Server) -> int:
    """The begin of a broker's log, by its metrics."""
    with urllib.request.urlopen(
        f"http://127.0.0.1:{server.settings['metricsPort']}/metrics", timeout=60
    ) as got:
        (row,) = re.findall(r"^rmq_commitlog_min_offset_bytes (\S+)$", got.read().decode(), re.MULTILINE)
    return int(float(row))


def test_failover(tmp_path: pathlib.Path) -> None:
    with drill(tmp_path, "Failover") as run:
        names = run.name_server()
        old = run.broker("broker-a", durability="replicated")
        new = run.slave("broker-a", durability="disk")
        traffic = run.load()
        run.wait_until_copied("broker-a")
        until(lambda: has_table(new, "topics", TOPIC), lambda: "the slave has no topics")
        old.end(signal.SIGKILL)
        new.end()
        del new.settings["brokerRole"]
        new.settings |= {"durability": "replicated", "brokerId": "0"}
        new.start()
        assert masters(run) == [new.address]
        run.rmq("cluster", "list")
        traffic.go_on()

        # Name server and old master start again, and the new one is the last to be heard.
        names.end(signal.SIGKILL)
        assert new.process is not None
        new.process.send_signal(signal.SIGSTOP)
        try:
            names.start()
            old.launch()
            until(lambda: f"start {old.address} as its slave" in old.said, lambda: f"not told: {old.said}")
            assert old.probe() == 503
        finally:
            new.process.send_signal(signal.SIGCONT)
        until(lambda: masters(run) == [new.address], lambda: "the new master does not come back")
        traffic.go_on()
        assert masters(run) == [new.address]
        old.end()

        old.settings |= {
            "brokerRole": "SLAVE",
            "brokerId": "1",
            "haDivergedLog": "aside",
            "durability": "disk",
        }
        old.start()
        run.rmq("cluster", "list")
        run.wait_until_copied("broker-a")
        run.repeat("doctor")
        traffic.stop()
        run.check_nothing_is_lost()


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root may make a small disk"
)
def test_disk_full(tmp_path: pathlib.Path) -> None:
    with drill(tmp_path, "Disk full") as run:
        run.name_server()
        broker = run.broker("broker-a", start=False)
        (store := broker.store).mkdir()
        mount = 'mount -t tmpfs -o size=64m none "$0" && exec "$@"'
        broker.before = ("unshare", "--mount", "sh", "-c", mount, str(store))
        broker.start()
        assert broker.process is not None
        inside = ["nsenter", f"--mount=/proc/{broker.process.pid}/ns/mnt"]
        traffic = run.load()
        subprocess.run([*inside, "fallocate", "-l", "58M", f"{store}/of-others"], check=True)
        until(lambda: "NO MESSAGES ARE TAKEN" in broker.said, lambda: "it takes messages on a full disk")
        run.ran.append("rmq doctor")
        found = run.shell.run("doctor")
        assert found.exit_code == 1
        assert "its disk is 9" in found.stdout
        stored = len(traffic.stored)
        assert run.read("readers", stored).keys() >= set(traffic.stored[:stored]), "what is there is read on"
        run.rmq("broker", "config", "set", "fileReservedTime=24", "--broker", "broker-a")
        run.rmq("broker", "clean", "--logs", "--broker", "broker-a", "--yes")
        assert broker.probe() == 200, "consumers are served"
        subprocess.run([*inside, "mount", "-o", "remount,size=256m", str(store)], check=True)
        until(lambda: "messages are taken again" in broker.said, lambda: "it takes no messages again")
        traffic.go_on()
        run.check_nothing_is_lost()


def test_restore(tmp_path: pathlib.Path) -> None:
    with drill(tmp_path, "Restore") as run:
        run.name_server()
        master = run.broker("broker-a")
        slave = run.slave("broker-a")
        traffic = run.load()
        backup = tmp_path / "backup"
        run.rmq("backup", str(master.store), str(backup))  # the first of many
        assert run.read("early", wanted=20)
        until(lambda: has_table(master, "consumerOffset", "@early"), lambda: "offsets are not saved")
        traffic.stop()
        run.rmq("backup", str(master.store), str(backup))
        run.rmq("backup", "--verify", str(backup))
        for server in (slave, master):  # and then both folders are gone
            server.end(signal.SIGKILL)
            shutil.rmtree(server.store)
        run.type("cp ", {"/backup/broker-a": backup, "/var/lib/rmq/broker": master.store})
        run.rmq("store", "check", str(master.store))
        master.start()
        assert run.rows("group", "lag", "early")
        slave.start()
        run.rmq("cluster", "list")
        run.wait_until_copied("broker-a")
        run.repeat("doctor")
        run.check_nothing_is_lost()


@pytest.mark.runbooks
def test_upgrade_and_roll_back(tmp_path: pathlib.Path) -> None:
    with drill(tmp_path, "Upgrade and roll back") as run:
        new = install(tmp_path / "built", "0.2.0")
        run.name_server()
        master = run.broker("broker-a", brokerRole="SYNC_MASTER")
        slave = run.slave("broker-a")
        run.broker("broker-b")
        traffic = run.load()
        for version, servers in (("0.2.0", (slave, master)), ("0.1.0", (master, slave))):
            for server in servers:
                machine = tmp_path / f"opt-{server.name}"
                if not machine.exists():
                    machine.mkdir()
                    (machine / "rmq-0.2.0").symlink_to(new)
                    (machine / "rmq-0.1.0").symlink_to(PAGE.parents[1])
                run.type(f"sudo ln -sfn /opt/rmq-{version}", {"/opt": machine})
                server.python_path = python_path((machine / "rmq").resolve())
                restart(run, server)
                traffic.go_on()
                expected = {str(new) in one.python_path for one in (master, slave)}
                kinds = {"0.2.0" in row["kind"] for row in of_broker_a(run)}
                assert kinds == expected
        traffic.stop()
        assert traffic.failures == []
        run.check_nothing_is_lost()


def of_broker_a(run: Drill) -> list[dict[str, str]]:
    return [row for row in run.shell.rows("cluster", "list") if row["broker"] == "broker-a"]


def python_path(folder: pathlib.Path) -> str:
    """The path on which a process finds the rmq of this folder."""
    return f"{folder}{os.pathsep}{folder / 'plugins'}"


def install(folder: pathlib.Path, version: str) -> pathlib.Path:
    """A later version of rmq, as far as anybody can tell; its folder."""
    root = PAGE.parents[1]
    for name in ("rmq", "plugins"):
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (entries,) = {point.dist for point in metadata.entry_points(group="rmq.plugins")}
    assert entries is not None
    (about := folder / f"rmq-{version}.dist-info").mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: rmq\nVersion: {version}\n")
    (about / "entry_points.txt").write_text(entries.read_text("entry_points.txt") or "")
    return folder


@pytest.mark.runbooks
def test_replace_a_name_server(tmp_path: pathlib.Path) -> None:
    with drill(tmp_path, "Replace a name server") as run:
        first = run.name_server("names-1")
        run.name_server("names-2")
        run.broker("broker-a")
        run.broker("broker-b")
        traffic = run.load()
        first.end(signal.SIGKILL)
        shutil.rmtree(tmp_path / "names-1", ignore_errors=True)
        traffic.go_on()
        first.start()
        only_it = run.shell.__class__(run.folder, first.address)
        until(
            lambda: len(only_it.rows("cluster", "list")) == 2,
            lambda: "brokers do not register at the new one",
        )
        run.servers["names-2"].end(signal.SIGKILL)
        traffic.go_on()
        run.servers["names-2"].start()
        run.rmq("cluster", "list")
        run.repeat("doctor")
        traffic.stop()
        assert traffic.failures == []
        run.check_nothing_is_lost()
