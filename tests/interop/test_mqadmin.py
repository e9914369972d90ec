"""The Java project's own mqadmin against our servers; asserted on what it prints."""

from __future__ import annotations

import pytest

from rmq.protocol import json
from tests.interop.conftest import Servers
from tests.interop.rocketmq import Process, Processes

pytestmark = pytest.mark.interop


def broker_address(processes: Processes, servers: Servers) -> str:
    (line,) = [line for line in cluster_lines(processes, servers) if "interop-a" in line]
    return line.split()[3]


def cluster_lines(processes: Processes, servers: Servers) -> list[str]:
    return processes.mqadmin("clusterList", "-n", servers.namesrv).splitlines()


@pytest.mark.usefixtures("broker")
def test_cluster_list_names_the_broker(processes: Processes, servers: Servers) -> None:
    lines = cluster_lines(processes, servers)

    assert any(line.startswith("#Cluster Name") for line in lines), lines
    (line,) = [line for line in lines if line.startswith("DefaultCluster")]
    cluster, name, broker_id, address, version, *_ = line.split()
    assert (cluster, name, broker_id, version) == ("DefaultCluster", "interop-a", "0", "V4_9_7")
    assert address.startswith("127.0.0.1:")


@pytest.mark.usefixtures("broker")
def test_update_topic_route_and_status(processes: Processes, servers: Servers) -> None:
    address = broker_address(processes, servers)
    said = processes.mqadmin(
        "updateTopic", "-n", servers.namesrv, "-b", address, "-t", "Made", "-r", "6", "-w", "5"
    )
    assert f"create topic to {address} success." in said
    assert "topicName=Made, readQueueNums=6, writeQueueNums=5, perm=RW-" in said

    route = json.loads(processes.mqadmin("topicRoute", "-n", servers.namesrv, "-t", "Made"))
    assert [(row["brokerName"], row["cluster"]) for row in route["brokerDatas"]] == [
        ("interop-a", "DefaultCluster")
    ]
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": address}
    (queues,) = route["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (6, 5, 6)

    processes.program("Produce", servers.namesrv, "Made", "sync", "50", "m").finish()
    written = dict.fromkeys([("interop-a", queue) for queue in range(5)], (0, 10))
    assert topic_status(processes, servers, "Made") == written


def topic_status(
    processes: Processes, servers: Servers, topic: str
) -> dict[tuple[str, int], tuple[int, int]]:
    """Runs topicStatus: (broker name, queue id) -> (minimum, maximum offset)."""
    said = processes.mqadmin("topicStatus", "-n", servers.namesrv, "-t", topic)
    rows = [line.split() for line in said.splitlines() if line.startswith("interop-a")]
    return {(row[0], int(row[1])): (int(row[2]), int(row[3])) for row in rows}


@pytest.mark.usefixtures("broker")
def test_update_topic_for_the_cluster_is_listed(processes: Processes, servers: Servers) -> None:
    said = processes.mqadmin("updateTopic", "-n", servers.namesrv, "-c", "DefaultCluster", "-t", "Everywhere")
    assert "success" in said

    listed = processes.mqadmin("topicList", "-n", servers.namesrv).split()
    assert "Everywhere" in listed


@pytest.mark.usefixtures("broker")
def test_a_topic_that_is_not_there_is_said_so(processes: Processes, servers: Servers) -> None:
    said = processes.mqadmin("topicRoute", "-n", servers.namesrv, "-t", "Nowhere")

    assert "CODE: 17" in said
    assert "No topic route info in name server for the topic: Nowhere" in said


def test_consumer_progress_counts_what_is_left(
    processes: Processes, servers: Servers, broker: Process
) -> None:
    processes.program("Produce", servers.namesrv, "Lag", "sync", "20", "m").finish()
    consumer = processes.program("Consume", servers.namesrv, "Lag", "lag")
    while len([row for row in consumer.rows if "body" in row]) < 20:
        assert consumer.child.poll() is None
    consumer.close_input()
    processes.program("Produce", servers.namesrv, "Lag", "sync", "12", "more").finish()

    said = processes.mqadmin("consumerProgress", "-n", servers.namesrv, "-g", "lag")

    assert "Diff Total: 12" in said
    assert broker.child.poll() is None
