"""The drills of docs/runbooks.md in which controllers decide who is master."""

from __future__ import annotations

import json
import pathlib
import shutil
import signal

import pytest

from tests.system.drill import Drill, Server, drill, until
from tests.system.running import SET, brokers_of_a_set, let_control, masters


def name_servers_that_control(run: Drill) -> list[Server]:
    """Three name servers, each of which is a controller too."""
    servers = [run.name_server(f"names-{number}", start=False) for number in (1, 2, 3)]
    for server in servers:
        let_control(run, server, servers)
        server.launch()
    for server in servers:
        until(server.is_ready, lambda: f"a name server is not ready: {server.said[-2000:]}")  # noqa: B023
    return servers


def wait_until_in_sync(run: Drill, *options: str) -> None:
    """Wait until two replicas are in sync, as `rmq controller status` shows it."""

    def is_so() -> bool:
        done = run.shell.run("controller", "status", *options, "-o", "json")
        rows = (
            json.loads(done.stdout) if done.stdout.startswith("[") else []
        )  # a dead controller is wrong, too
        return [row["in_sync"] for row in rows].count(True) == 2

    until(is_so, lambda: run.shell.run("controller", "status", *options).output)


def wait_for_master(run: Drill, server: Server) -> None:
    until(lambda: masters(run) == [server.address], lambda: f"not master: {server.said[-2000:]}")
    until(lambda: server.probe() == 200, lambda: f"the master is not ready: {server.said[-2000:]}")


@pytest.mark.runbooks
def test_failover_by_itself(tmp_path: pathlib.Path) -> None:
    with drill(tmp_path, "Failover by itself") as run:
        names = [run.name_server(f"names-{number}") for number in (1, 2, 3)]
        first = run.broker(SET, durability="replicated")
        second = run.slave(SET, durability="disk")
        traffic = run.load()
        run.wait_until_copied(SET)

        for server in names:
            let_control(run, server, names)
            server.end()
            server.start()
        run.repeat("controller", "status", "--all")
        first.settings["controllerAddr"] = second.settings["controllerAddr"] = run.namesrv
        for server in (first, second):
            server.end()
            server.start()
        wait_until_in_sync(run)
        run.repeat("controller", "status")
        run.repeat("doctor")
        traffic.go_on()

        for dying, living in ((first, second), (second, first)):
            dying.end(signal.SIGKILL)
            wait_for_master(run, living)
            traffic.go_on()
            dying.start()
            wait_until_in_sync(run)

        for server in (second, first):  # and a pair again
            server.end()
            del server.settings["controllerAddr"]
        first.start()
        second.start()
        run.rmq("cluster", "list")
        run.wait_until_copied(SET)
        traffic.go_on()
        run.check_nothing_is_lost()


@pytest.mark.runbooks
def test_hand_over_a_master(tmp_path: pathlib.Path) -> None:
    with drill(tmp_path, "Hand over a master") as run:
        name_servers_that_control(run)
        first, second = brokers_of_a_set(run, run.namesrv)
        traffic = run.load()
        wait_until_in_sync(run)
        run.repeat("controller", "status")
        run.rmq("broker", "handover", SET)
        wait_for_master(run, second)
        first.end()
        traffic.go_on()
        first.start()
        wait_until_in_sync(run)
        run.repeat("controller", "status")
        run.rmq("broker", "handover", SET)
        wait_for_master(run, first)
        traffic.go_on()
        run.repeat("doctor")
        traffic.stop()
        assert traffic.failures == []
        run.check_nothing_is_lost()


@pytest.mark.runbooks
def test_replace_a_controller(tmp_path: pathlib.Path) -> None:
    with drill(tmp_path, "Replace a controller") as run:
        run.name_server()
        old = [run.controller(f"controller-{number}", start=False) for number in (1, 2, 3)]
        addresses = [server.address for server in old]
        for server in old:
            server.settings["controllers"] = ";".join(addresses)
            server.launch()
        first, second = brokers_of_a_set(run, ";".join(addresses))
        traffic = run.load()
        wait_until_in_sync(run, "--controllers", ";".join(addresses))

        old[0].end(signal.SIGKILL)
        new = run.controller("controller-4", start=False)
        new.settings |= {"controllers": new.address, "controllerJoins": "true"}
        new.start()
        run.ran.append("rmq controller -c")
        run.rmq("controller", "add", new.address, "--controllers", ";".join(addresses))
        named = ";".join([*addresses[1:], new.address])
        run.rmq("controller", "drop", old[0].address, "--yes", "--controllers", named)
        run.repeat("controller", "status", "--all", "--controllers", named)
        traffic.go_on()

        # The new one is a controller like any other: with it and one of the old ones a master is elected.
        old[1].end(signal.SIGKILL)
        first.end(signal.SIGKILL)
        wait_for_master(run, second)
        traffic.go_on()
        first.settings["controllerAddr"] = named
        first.start()
        wait_until_in_sync(run, "--controllers", named)
        run.check_nothing_is_lost()


@pytest.mark.runbooks
def test_lost_controllers(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with drill(tmp_path, "Lost controllers") as run:
        run.name_server()
        controllers = [run.controller(f"controller-{number}", start=False) for number in (1, 2, 3)]
        named = ";".join(server.address for server in controllers)
        for server in controllers:
            server.settings["controllers"] = named
            server.launch()
        first, second = brokers_of_a_set(run, named)
        traffic = run.load()
        monkeypatch.setenv("RMQ_CONTROLLERS", named)
        wait_until_in_sync(run)

        # An old table comes back: it knows the first epoch, of which the second replica was no master yet.
        for server in controllers:
            server.end()
            shutil.copytree(run.folder / server.name, run.folder / f"{server.name}.old")
        for server in controllers:
            server.launch()
        wait_until_in_sync(run)
        first.end(signal.SIGKILL)
        wait_for_master(run, second)
        traffic.go_on()
        for server in controllers:
            server.end(signal.SIGKILL)
            shutil.rmtree(run.folder / server.name)
            (run.folder / f"{server.name}.old").rename(run.folder / server.name)
        for server in controllers:
            server.launch()
        first.launch()
        until(lambda: "knows" in second.said, lambda: second.said[-2000:])
        second.end()
        first.end()

        run.ran.append("rmq controller status")
        rows = json.loads(run.shell.run("controller", "status", "-o", "json").stdout)  # none of them lives
        numbers = [str(row["number"]) for row in rows]
        for number in reversed(numbers):  # the first one is master by that table

            def is_removed(number: str = number) -> bool:
                given = ("controller", "remove", SET, number, "--yes")
                return run.shell.run(*given).exit_code == 0

            until(is_removed, lambda: f"not removed: {numbers}")
        run.ran.append("rmq controller remove")
        files = [server.store / "config" / "controller.json" for server in (first, second)]
        before, after = (json.loads(file.read_text())["epoch"] for file in files)
        assert before < after, "the second one has the most"
        for file in files:
            file.unlink()
        second.settings |= {"brokerRole": "SYNC_MASTER", "brokerId": "0", "durability": "replicated"}
        del second.settings["flushDiskType"]
        del first.settings["durability"]
        first.settings |= {"brokerRole": "SLAVE", "brokerId": "1", "flushDiskType": "SYNC_FLUSH"}
        second.start()
        first.start()
        wait_until_in_sync(run)
        traffic.go_on()
        run.check_nothing_is_lost()


@pytest.mark.runbooks
def test_restore_a_set(tmp_path: pathlib.Path) -> None:
    with drill(tmp_path, "Restore a set") as run:
        name_servers_that_control(run)
        first, second = brokers_of_a_set(run, run.namesrv)
        other = run.broker("broker-b", controllerAddr=run.namesrv, durability="replicated")
        traffic = run.load()
        wait_until_replicas_are(run, 2, 1)
        backup = tmp_path / "backup"
        traffic.go_on()
        traffic.stop()
        run.shell.ok("backup", str(first.store), str(backup))
        for server in (first, second):
            server.end(signal.SIGKILL)
            shutil.rmtree(server.store)
        status = run.shell.run("controller", "status", "-o", "json")
        run.ran.append("rmq controller status")
        numbers = [str(row["number"]) for row in json.loads(status.stdout) if row["broker"] == SET]
        run.type("cp ", {"/backup/broker-a": backup, "/var/lib/rmq/broker": first.store})
        run.rmq("store", "check", str(first.store))
        first.launch()
        new: list[str] = []

        def is_known() -> bool:
            done = run.shell.run("controller", "status", "-o", "json")
            rows = json.loads(done.stdout) if done.stdout.startswith("[") else []
            new[:] = [str(row["number"]) for row in rows if row["broker"] == SET and row["lives"]]
            return len(new) == 1

        until(is_known, lambda: f"the restored broker is no replica: {first.said[-2000:]}")
        run.ran.append("rmq controller status")
        assert new[0] not in numbers
        run.repeat("controller", "elect", SET, new[0], "--unclean", "--yes")
        until(lambda: first.probe() == 200, lambda: f"the restored broker is no master: {first.said[-2000:]}")
        for number in numbers:
            run.rmq("controller", "remove", SET, number, "--yes")
        second.start()
        wait_until_replicas_are(run, 2, 1)
        run.ran.append("rmq controller status")
        run.repeat("doctor")
        assert other.probe() == 200
        run.check_nothing_is_lost()


def wait_until_replicas_are(run: Drill, *counts: int) -> None:
    """Wait until the sets, in their order, have these numbers of replicas, all in sync."""

    def is_so() -> bool:
        done = run.shell.run("controller", "status", "-o", "json")
        rows = json.loads(done.stdout) if done.stdout.startswith("[") else []
        sets = sorted({row["broker"] for row in rows})
        in_sync = [sum(row["in_sync"] is True for row in rows if row["broker"] == name) for name in sets]
        return in_sync == list(counts) and len(rows) == sum(counts)

    until(is_so, lambda: run.shell.run("controller", "status").output)
