"""The compose files and the Helm chart, started: each command as the image's user, root read-only, in a
network of their own, until all are ready and a message goes through."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence

import pytest
import yaml

from tests.system.chart import containers as of_chart
from tests.system.containers import (
    DEPLOY,
    PATIENCE_SECONDS,
    PLACE,
    Container,
    Network,
    build_context,
    dockerfile,
    make_secrets,
    network,
    python_of_others,
    why_not,
)

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


def of_compose(name: str) -> list[Container]:
    services = yaml.safe_load((DEPLOY / "compose" / f"{name}.yaml").read_text())["services"]
    return [Container(host, one["command"], one.get("environment", {})) for host, one in services.items()]


def run_all(
    folder: pathlib.Path,
    containers: list[Container],
    *,
    secure: bool = False,
    published: str = "",
    installed: str = "",
    killed: Sequence[str] = (),
) -> None:
    """Start the containers, send and read a message as a client beside them, and stop them. With `killed`,
    pods of sets: read and send once more after these pods were killed."""
    names = [one for one in containers if one.command[0] == "namesrv"]
    advertised = [one.environment.get("RMQ_BROKER_IP1", one.name) for one in containers]
    hosts = [one.name for one in containers]
    aliases = {told: one.name for told, one in zip(advertised, containers, strict=True) if told not in hosts}
    names_of = {name: host for name, host in aliases.items() if "." in name}
    with network(folder, hosts, names_of, published, installed) as net:
        environment = {"RMQ_NAMESRV_ADDR": ";".join(f"{one.name}:9876" for one in names)}
        if secure:
            secret = make_secrets(net, ["localhost", *hosts, *aliases])
            environment |= {"RMQ_ACCESS_KEY": "manager", "RMQ_SECRET_KEY": secret}
            environment["RMQ_NAMESRV_ADDR"] = f"tls://{environment['RMQ_NAMESRV_ADDR']}"
        processes = {one.name.partition(".")[0]: net.start(one) for one in containers}
        net.wait_until_ready()
        if published:
            net.run("-c", health_check())
        brokers = sum(one.command[0] == "broker" for one in containers)
        tls = ["--tls-ca", f"{PLACE}/secrets/ca.pem"] if secure else []
        send_and_read(net, brokers, environment, tls)
        if killed:
            net.run("-m", "rmq", "doctor", *tls, **environment)
        for pod in killed:
            processes[pod].kill()
        if killed:
            read_after_election(net, environment, tls)
        signalled = {-signal.SIGKILL: len(killed)} if killed else {}
        assert net.stop() == {0: len(containers) - len(killed)} | signalled, net.logs()
        net.check_logs()


def health_check() -> str:
    """The program of the image's HEALTHCHECK."""
    (line,) = [line for line in dockerfile() if line.startswith("HEALTHCHECK")]
    *_, code = json.loads(line.partition("CMD ")[2])
    return str(code)


def send_and_read(net: Network, brokers: int, environment: dict[str, str], tls: list[str]) -> None:
    def rmq(*arguments: str) -> str:
        return net.run("-m", "rmq", *arguments, *tls, **environment)

    end = time.monotonic() + PATIENCE_SECONDS
    while (found := rmq("cluster", "list")).count("rmq 0.1") != brokers:  # ready: known to one name server
        assert time.monotonic() < end, (found, net.logs())
    rmq("topic", "create", "Orders")
    rmq("pub", "Orders", "paid 42")
    assert "paid 42" in rmq("sub", "Orders", "--group", "readers", "--from", "earliest", "--max", "1")


def read_after_election(net: Network, environment: dict[str, str], tls: list[str]) -> None:
    """Other masters have the message that was sent, and take another one."""

    def rmq(*arguments: str) -> str:
        return net.run("-m", "rmq", *arguments, *tls, **environment)

    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            rmq("pub", "Orders", "paid 43")
            break
        except AssertionError:
            assert time.monotonic() < end, net.logs()
    with pytest.raises(AssertionError) as caught:
        rmq("doctor")
    _, found, *_ = caught.value.args[0]
    assert "is dead" in found, found
    read = rmq("sub", "Orders", "--group", "later", "--from", "earliest", "--max", "2")
    assert all(body in read for body in ("paid 42", "paid 43")), (read, net.logs())


def test_the_secure_cluster_of_compose(tmp_path: pathlib.Path) -> None:
    run_all(tmp_path, of_compose("secure"), secure=True)


def test_the_cluster_of_the_chart(tmp_path: pathlib.Path) -> None:
    run_all(tmp_path, list(of_chart("default")))


@pytest.mark.packages
def test_the_development_servers_of_compose(tmp_path: pathlib.Path) -> None:
    """Clients beside them are told 127.0.0.1, where an engine publishes the broker's ports."""
    run_all(tmp_path, of_compose("dev"), published="broker")


@pytest.mark.packages
def test_the_cluster_of_compose(tmp_path: pathlib.Path) -> None:
    run_all(tmp_path, of_compose("cluster"))


@pytest.mark.packages
def test_the_set_with_controllers_of_compose(tmp_path: pathlib.Path) -> None:
    """Name servers that are controllers too, and brokers whose master they elect."""
    run_all(tmp_path, of_compose("failover"))


@pytest.mark.packages
def test_the_secure_cluster_of_the_chart(tmp_path: pathlib.Path) -> None:
    run_all(tmp_path, list(of_chart("secure")), secure=True)


@pytest.mark.packages
def test_the_sets_with_controllers_of_the_chart(tmp_path: pathlib.Path) -> None:
    """Three name servers that are controllers too, and two sets of three replicas, under `profile=secure`."""
    founders = [f"one-rmq-set-{number}-0" for number in range(2)]
    run_all(tmp_path, list(of_chart("failover")), secure=True, killed=founders)


@pytest.fixture
def open_folder() -> Iterator[pathlib.Path]:
    """A folder that other users may look into, other than pytest's."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="rmq-image-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.packages
def test_the_steps_of_the_dockerfile_make_what_runs(
    tmp_path: pathlib.Path, open_folder: pathlib.Path
) -> None:
    """Do the steps of the build stage by hand in another folder, and run the development servers from
    there."""
    (context := tmp_path / "context").mkdir()
    build_context(context)
    (step,) = [line.removeprefix("RUN ") for line in dockerfile() if "pip install" in line]
    before, mark, after = step.partition("python -m venv /opt/rmq && ")
    assert "--mount=type=secret,id=ca,required=false" in before, "which is the engine's, not the shell's"
    step = mark + after
    step = step.replace("python", python_of_others(), 1).replace("/opt/rmq", f"{open_folder}/rmq")
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(["sh", "-c", step], cwd=context, check=True, env=plain, timeout=600)
    (run := tmp_path / "run").mkdir()
    run_all(run, of_compose("dev"), published="broker", installed=f"{open_folder}/rmq/bin/python")
