"""Java's broker, slave, client and mqadmin on our name server."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable

import pytest

from tests.interop.rocketmq import Process, Processes, cluster_text, free_port, wait_until

pytestmark = pytest.mark.interop


@pytest.fixture
def namesrv(processes: Processes, tmp_path: pathlib.Path) -> str:
    port = free_port()
    file = processes.write_settings(
        "namesrv", {"listenPort": str(port), "kvConfigPath": str(tmp_path / "kvConfig.json")}
    )
    processes.serve([sys.executable, "-m", "rmq.namesrv", "-c", str(file)], "rmq-namesrv", port)
    return f"127.0.0.1:{port}"


@pytest.fixture
def admin(processes: Processes, namesrv: str) -> Callable[..., str]:
    return lambda command, *arguments: processes.mqadmin(command, "-n", namesrv, *arguments)


def test_a_java_pair_registers_and_leaves(processes: Processes, namesrv: str, tmp_path: pathlib.Path) -> None:
    master = processes.java_broker(namesrv, tmp_path / "master", compressedRegister="true")
    slave = processes.java_broker(namesrv, tmp_path / "slave", brokerId="1", brokerRole="SLAVE")
    info = cluster_text(namesrv)
    assert f'0:"127.0.0.1:{master.port}",1:"127.0.0.1:{slave.port}"' in info
    processes.program("Produce", namesrv, "Made", "sync", "20", "m").finish()
    slave.stop()
    assert f'{{0:"127.0.0.1:{master.port}"}}' in cluster_text(namesrv)
    master.kill()
    wait_until(lambda: "interop-a" not in cluster_text(namesrv), 10, "the killed master is forgotten")


def test_mqadmin_changes_the_name_server(
    processes: Processes, namesrv: str, tmp_path: pathlib.Path, admin: Callable[..., str]
) -> None:
    broker: Process = processes.java_broker(namesrv, tmp_path / "store")
    address = f"127.0.0.1:{broker.port}"
    assert "success" in admin("updateTopic", "-b", address, "-t", "Made", "-r", "3", "-w", "3")
    assert f'0:"{address}"' in admin("topicRoute", "-t", "Made")
    assert "Made" in admin("topicList")
    assert address in admin("clusterList")

    # Before the order config: when that changes, the broker registers its topics anew, with permissions.
    assert "OK" in admin("wipeWritePerm", "-b", "interop-a")
    assert '"perm":4' in admin("topicRoute", "-t", "Made")
    assert "OK" in admin("addWritePerm", "-b", "interop-a")
    assert '"perm":6' in admin("topicRoute", "-t", "Made")

    assert "success" in admin("updateKvConfig", "-s", "ORDER_TOPIC_CONFIG", "-k", "Made", "-v", "interop-a:3")
    assert "orderMessageEnable" in admin("getNamesrvConfig")
    assert "success" in admin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    assert "interop-a:3" in admin("topicRoute", "-t", "Made")
    assert "Exception" in admin("updateNamesrvConfig", "-k", "kvConfigPath", "-v", "/tmp/x")
    assert "success" in admin("deleteKvConfig", "-s", "ORDER_TOPIC_CONFIG", "-k", "Made")
    assert "interop-a:3" not in admin("topicRoute", "-t", "Made")

    assert "success" in admin("deleteTopic", "-c", "DefaultCluster", "-t", "Made")
    assert "No topic route info" in admin("topicRoute", "-t", "Made")
