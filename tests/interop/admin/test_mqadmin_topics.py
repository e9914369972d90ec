"""mqadmin on topics: what its ten commands print, and what they change on two masters."""

from __future__ import annotations

import json as strict

import pytest

from rmq.protocol import json
from tests.interop.cluster import Cluster, bodies, rows, wait_for_bodies
from tests.interop.rocketmq import wait_until

pytestmark = pytest.mark.interop


def route(cluster: Cluster, topic: str) -> dict[str, tuple[int, int, int]]:
    """Broker name -> (read queues, write queues, permission), from what topicRoute prints."""
    found = json.loads(cluster.admin("topicRoute", "-t", topic))
    addresses = {row["brokerName"]: row["brokerAddrs"] for row in found["brokerDatas"]}
    assert addresses == {
        row["brokerName"]: {"0": cluster.address(row["brokerName"])} for row in found["queueDatas"]
    }
    assert {row["cluster"] for row in found["brokerDatas"]} == {"DefaultCluster"}
    return {
        row["brokerName"]: (row["readQueueNums"], row["writeQueueNums"], row["perm"])
        for row in found["queueDatas"]
    }


def topic_file(cluster: Cluster, broker: str) -> dict[str, dict[str, object]]:
    """The broker's config/topics.json."""
    text = (cluster.folder / broker / "config" / "topics.json").read_bytes()
    table: dict[str, dict[str, object]] = json.loads(text)["topicConfigTable"]
    return table


def test_update_topic_in_the_cluster_and_on_one_broker(cluster: Cluster) -> None:
    said = cluster.admin("updateTopic", "-c", "DefaultCluster", "-t", "Made", "-r", "6", "-w", "5")
    for address in (cluster.a, cluster.b):
        assert f"create topic to {address} success." in said
    assert "TopicConfig [topicName=Made, readQueueNums=6, writeQueueNums=5, perm=RW-" in said
    assert route(cluster, "Made") == {"broker-a": (6, 5, 6), "broker-b": (6, 5, 6)}
    assert topic_file(cluster, "broker-a")["Made"]["writeQueueNums"] == 5

    said = cluster.admin("updateTopic", "-b", cluster.a, "-t", "Made", "-r", "8", "-w", "8", "-p", "4")
    assert f"create topic to {cluster.a} success." in said
    assert route(cluster, "Made") == {"broker-a": (8, 8, 4), "broker-b": (6, 5, 6)}


def test_update_topic_makes_an_ordered_topic(cluster: Cluster) -> None:
    said = cluster.admin("updateTopic", "-b", cluster.a, "-t", "Ordered", "-o", "true")
    assert "set broker orderConf. isOrder=true, orderConf=[broker-a:8]" in said
    said = cluster.admin("updateOrderConf", "-m", "get", "-t", "Ordered")
    assert "orderConf=[broker-a:8]" in said


def test_impossible_topics_are_refused(cluster: Cluster) -> None:
    said = cluster.admin("updateTopic", "-b", cluster.a, "-t", "SCHEDULE_TOPIC_XXXX")
    assert "conflict with system topic" in said
    said = cluster.admin("updateTopic", "-b", cluster.a, "-t", "../../etc/x")
    assert "success" not in said


def test_delete_topic_removes_route_settings_and_queue_files(cluster: Cluster) -> None:
    cluster.make_topic("Gone")
    cluster.produce("Gone", 16)
    queues = [cluster.folder / name / "consumequeue" / "Gone" for name in cluster.brokers]
    wait_until(lambda: all(folder.is_dir() for folder in queues), 20, "queue files")

    said = cluster.admin("deleteTopic", "-c", "DefaultCluster", "-t", "Gone")
    assert "delete topic [Gone] from cluster [DefaultCluster] success." in said
    assert "delete topic [Gone] from NameServer success." in said
    assert not [path for folder in queues for path in folder.rglob("*") if path.is_file()]
    assert "Gone" not in topic_file(cluster, "broker-a")
    assert "CODE: 17" in cluster.admin("topicRoute", "-t", "Gone")
    assert "No topic route info in name server for the topic: Gone" in cluster.admin(
        "topicRoute", "-t", "Gone"
    )


def test_update_topic_perm_closes_a_topic_to_senders(cluster: Cluster) -> None:
    cluster.make_topic("Closed")
    said = cluster.admin("updateTopicPerm", "-b", cluster.a, "-t", "Closed", "-p", "4")
    assert f"update topic perm from 6 to 4 in {cluster.a} success." in said
    assert "perm=R--" in said
    assert route(cluster, "Closed") == {"broker-a": (4, 4, 4), "broker-b": (4, 4, 6)}
    assert {row["broker"] for row in cluster.produce("Closed", 8)} == {"broker-b"}

    said = cluster.admin("updateTopicPerm", "-c", "DefaultCluster", "-t", "Closed", "-p", "6")
    assert f"to 6 in {cluster.a} success." in said
    assert {perm for _, _, perm in route(cluster, "Closed").values()} == {6}


def test_topic_status_shows_each_queue(cluster: Cluster) -> None:
    cluster.make_topic("Status", 3)
    cluster.produce("Status", 24)
    said = cluster.admin("topicStatus", "-t", "Status")
    for name in cluster.brokers:
        assert [row[1:4] for row in rows(said, name)] == [[str(queue), "0", "4"] for queue in range(3)]
        assert all(len(row[4]) == 10 and ":" in row[5] for row in rows(said, name)), said  # a date and a time


def test_topic_cluster_list(cluster: Cluster) -> None:
    cluster.make_topic("Where")
    assert cluster.admin("topicClusterList", "-t", "Where").split() == ["DefaultCluster"]
    assert "CODE: 17" in cluster.admin("topicClusterList", "-t", "Nowhere")


def test_topic_list_with_and_without_groups(cluster: Cluster) -> None:
    cluster.make_topic("Listed")
    cluster.produce("Listed", 8)
    consumer = cluster.java_consumer("Listed", "listing")
    wait_for_bodies(consumer, 8)

    listed = cluster.admin("topicList").split()
    assert {"Listed", "%RETRY%listing", "TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "broker-b"} <= set(
        listed
    )
    assert ["DefaultCluster", "Listed", "listing"] in rows(cluster.admin("topicList", "-c"), "DefaultCluster")
    consumer.close_input()


def test_update_order_conf_puts_gets_and_deletes(cluster: Cluster) -> None:
    value = "broker-a:4;broker-b:4"
    said = cluster.admin("updateOrderConf", "-m", "put", "-t", "InOrder", "-v", value)
    assert f"update orderConf success. topic=[InOrder], orderConf=[{value}]" in said
    kept = strict.loads(cluster.kv_file.read_text())["configTable"]["ORDER_TOPIC_CONFIG"]
    assert kept["InOrder"] == value
    said = cluster.admin("updateOrderConf", "-m", "get", "-t", "InOrder")
    assert f"get orderConf success. topic=[InOrder], orderConf=[{value}]" in said

    assert "delete orderConf success." in cluster.admin("updateOrderConf", "-m", "delete", "-t", "InOrder")
    kept = strict.loads(cluster.kv_file.read_text())["configTable"]["ORDER_TOPIC_CONFIG"]
    assert "InOrder" not in kept
    assert "No config item" in cluster.admin("updateOrderConf", "-m", "get", "-t", "InOrder")


def test_allocate_mq_shares_all_queues_out(cluster: Cluster) -> None:
    cluster.make_topic("Shared")
    said = cluster.admin("allocateMQ", "-t", "Shared", "-i", "10.0.0.1,10.0.0.2,10.0.0.3")
    shares = strict.loads(said)["result"]
    assert sorted(len(queues) for queues in shares.values()) == [2, 3, 3]
    taken = sorted((queue["brokerName"], queue["queueId"]) for queues in shares.values() for queue in queues)
    assert taken == [(name, number) for name in ("broker-a", "broker-b") for number in range(4)]


def test_stats_all_moves_with_the_traffic(cluster: Cluster) -> None:
    cluster.make_topic("Busy")
    consumer = cluster.java_consumer("Busy", "busy")
    cluster.produce("Busy", 40)
    wait_for_bodies(consumer, 40)

    def figures() -> list[str] | None:
        (row,) = rows(cluster.admin("statsAll", "-t", "Busy"), "Busy")
        group, lag, into, out, day_in, day_out = row[1:]
        moved = (group, day_in, day_out) == ("busy", "40", "40") and float(into) > 0 and float(out) > 0
        return row if moved and lag == "0" else None

    wait_until(figures, 90, "statsAll shows the traffic", every=0.5)
    assert len(bodies(consumer)) == 40
    consumer.close_input()
    active = cluster.admin("statsAll", "-a")
    assert rows(active, "Busy")
    assert not rows(active, "TBW102")
