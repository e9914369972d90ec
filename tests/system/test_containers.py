"""The compose files and the Helm chart, started: each command as the image's user, root read-only, in a
network of their own, until all are ready and a message goes through."""

from __future__ import annotations

import pathlib
import time

import pytest
import yaml

from tests.system.chart import containers as of_chart
from tests.system.containers import (
    DEPLOY,
    PATIENCE_SECONDS,
    PLACE,
    Container,
    Network,
    make_secrets,
    network,
    why_not,
)

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


def of_compose(name: str) -> list[Container]:
    services = yaml.safe_load((DEPLOY / "compose" / f"{name}.yaml").read_text())["services"]
    return [Container(host, one["command"], one.get("environment", {})) for host, one in services.items()]


def run_all(
    folder: pathlib.Path, containers: list[Container], *, secure: bool = False, published: str = ""
) -> None:
    """Starts them, sends and reads a message as a client beside them, and stops them."""
    names = [one for one in containers if one.command[0] == "namesrv"]
    advertised = [one.environment.get("RMQ_BROKER_IP1", one.name) for one in containers]
    hosts = [one.name for one in containers]
    aliases = {told: one.name for told, one in zip(advertised, containers, strict=True) if told not in hosts}
    names_of = {name: host for name, host in aliases.items() if "." in name}
    with network(folder, hosts, names_of, published) as net:
        environment = {"RMQ_NAMESRV_ADDR": ";".join(f"{one.name}:9876" for one in names)}
        if secure:
            secret = make_secrets(net, ["localhost", *hosts, *aliases])
            environment |= {"RMQ_ACCESS_KEY": "manager", "RMQ_SECRET_KEY": secret}
            environment["RMQ_NAMESRV_ADDR"] = f"tls://{environment['RMQ_NAMESRV_ADDR']}"
        for one in containers:
            net.start(one)
        net.wait_until_ready()
        send_and_read(net, environment, tls=["--tls-ca", f"{PLACE}/secrets/ca.pem"] if secure else [])
        assert net.stop() == {0: len(containers)}, net.logs()
        net.check_logs()


def send_and_read(net: Network, environment: dict[str, str], tls: list[str]) -> None:
    def rmq(*arguments: str) -> str:
        return net.run("-m", "rmq", *arguments, *tls, **environment)

    brokers = sum("broker" in name for name in net.addresses) + sum(
        "slave-" in name for name in net.addresses
    )
    end = time.monotonic() + PATIENCE_SECONDS
    while (found := rmq("cluster", "list")).count("rmq 0.1") != brokers:  # ready: known to one name server
        assert time.monotonic() < end, (found, net.logs())
    rmq("topic", "create", "Orders")
    rmq("pub", "Orders", "paid 42")
    assert "paid 42" in rmq("sub", "Orders", "--group", "readers", "--from", "earliest", "--max", "1")


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
def test_the_secure_cluster_of_the_chart(tmp_path: pathlib.Path) -> None:
    run_all(tmp_path, list(of_chart("secure")), secure=True)
