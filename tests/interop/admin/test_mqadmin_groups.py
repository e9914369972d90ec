"""mqadmin on groups, offsets and connections: consumers of both clients, on two masters."""

from __future__ import annotations

import pathlib

import pytest

from rmq.protocol import json
from tests.interop.cluster import Cluster, Start, bodies, name_of, rows, settings, wait_for_bodies
from tests.interop.rocketmq import MQADMIN, wait_until

pytestmark = pytest.mark.interop


def group_file(cluster: Cluster, broker: str) -> dict[str, dict[str, object]]:
    text = (cluster.folder / broker / "config" / "subscriptionGroup.json").read_bytes()
    table: dict[str, dict[str, object]] = json.loads(text)["subscriptionGroupTable"]
    return table


# --- groups ---


def test_update_sub_group_and_get_consumer_config(cluster: Cluster) -> None:
    options = ("-s", "false", "-r", "5", "-q", "2", "-m", "false", "-d", "true")
    said = cluster.admin("updateSubGroup", "-c", "DefaultCluster", "-g", "made", *options)
    for name in cluster.brokers:
        assert f"create subscription group to {cluster.address(name)} success." in said
        kept = group_file(cluster, name)["made"]
        assert (kept["consumeEnable"], kept["retryMaxTimes"], kept["retryQueueNums"]) == (False, 5, 2)

    said = cluster.admin("getConsumerConfig", "-g", "made")
    for name in cluster.brokers:
        assert f"DefaultCluster:{name}" in said
    shown = settings(said)
    assert (shown["groupName"], shown["consumeEnable"]) == ("made", "false")
    assert (shown["retryMaxTimes"], shown["retryQueueNums"]) == ("5", "2")


def test_delete_sub_group_with_its_offsets(cluster: Cluster) -> None:
    cluster.make_topic("Deleted")
    cluster.produce("Deleted", 8)
    consumer = cluster.java_consumer("Deleted", "deleted")
    wait_for_bodies(consumer, 8)
    cluster.wait_for_diff("deleted", 0)
    consumer.close_input()

    said = cluster.admin("deleteSubGroup", "-c", "DefaultCluster", "-g", "deleted", "-r", "true")
    for name in cluster.brokers:
        address = cluster.address(name)
        assert (
            f"delete subscription group [deleted] from broker [{address}] in cluster [DefaultCluster]" in said
        )
        assert "deleted" not in group_file(cluster, name)
        assert not rows(cluster.alone("brokerConsumeStats", "-b", address), "Deleted")
    assert "delete topic [%RETRY%deleted] from cluster [DefaultCluster] success." in said
    assert "%RETRY%deleted" not in cluster.admin("topicList").split()


# --- progress ---


def test_consumer_progress_counts_lag_and_speed(cluster: Cluster, start: Start) -> None:
    topic, group = name_of(start, "Progress"), name_of(start, "progress")
    cluster.make_topic(topic)
    cluster.produce(topic, 40)
    consumer = start(topic, group)
    wait_for_bodies(consumer, 40)
    (row,) = wait_until(lambda: rows(cluster.admin("consumerProgress"), group), 30, "the group", every=0.3)
    assert row[1:5] == ["1", "V4_9_7", "PUSH", "CLUSTERING"]

    def tps() -> float:
        said = cluster.admin("consumerProgress", "-g", group)
        return next((float(line.split()[-1]) for line in said.splitlines() if "Consume TPS" in line), 0.0)

    assert wait_until(tps, 40, "a speed") <= 40
    cluster.wait_for_diff(group, 0)
    shown = rows(cluster.admin("consumerProgress", "-g", group, "-s", "true"), topic)
    assert sorted((row[1], row[2]) for row in shown) == [
        (name, str(number)) for name in ("broker-a", "broker-b") for number in range(4)
    ]
    assert {tuple(row[3:5]) for row in shown} == {("5", "5")}
    ip = cluster.client_id(group).partition("@")[0]
    assert {row[5] for row in shown} == {ip}

    consumer.close_input()
    cluster.produce(topic, 12)
    assert cluster.diff(group) == 12


def test_clone_group_offset(cluster: Cluster) -> None:
    cluster.make_topic("Cloned")
    cluster.produce("Cloned", 16)
    consumer = cluster.java_consumer("Cloned", "cloned")
    wait_for_bodies(consumer, 16)
    cluster.wait_for_diff("cloned", 0)
    consumer.close_input()

    said = cluster.admin("cloneGroupOffset", "-s", "cloned", "-d", "clone", "-t", "Cloned", "-o", "true")
    assert "clone group offset success. srcGroup[cloned], destGroup=[clone], topic[Cloned]" in said
    taker = cluster.java_consumer("Cloned", "clone")
    cluster.produce("Cloned", 8, "later")
    wait_for_bodies(taker, 8)
    assert all(body.startswith("later-") for body in bodies(taker))
    taker.close_input()


# --- offsets set by an administrator ---


def test_reset_offset_by_time_reaches_running_consumers(cluster: Cluster, start: Start) -> None:
    topic, group = name_of(start, "Reset"), name_of(start, "reset")
    cluster.make_topic(topic)
    cluster.produce(topic, 24)
    consumer = start(topic, group)
    wait_for_bodies(consumer, 24)
    cluster.wait_for_diff(group, 0)

    said = cluster.admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    assert f"specified group[{group}], topic[{topic}], force[true], timestamp(string)[0]" in said
    for name in cluster.brokers:
        assert [row[1:] for row in sorted(rows(said, name))] == [[str(number), "0"] for number in range(4)]
    got = wait_for_bodies(consumer, 48)
    assert sorted(got) == sorted([f"m-{number}" for number in range(24)] * 2)
    consumer.close_input()


def test_reset_offset_by_time_of_a_group_that_is_away(cluster: Cluster) -> None:
    cluster.make_topic("Away")
    cluster.produce("Away", 16)
    consumer = cluster.java_consumer("Away", "away")
    wait_for_bodies(consumer, 16)
    cluster.wait_for_diff("away", 0)
    consumer.close_input()

    said = cluster.admin("resetOffsetByTime", "-g", "away", "-t", "Away", "-s", "0")
    shown = [row for name in cluster.brokers for row in rows(said, name)]
    assert [row[2:] for row in shown] == [["2", "2", "0", "0"]] * 8, said
    assert cluster.diff("away") == 16
    said = cluster.admin("resetOffsetByTime", "-g", "away", "-t", "Away", "-s", "now")
    assert cluster.diff("away") == 0


def test_skip_accumulated_message(cluster: Cluster, start: Start) -> None:
    topic, group = name_of(start, "Skip"), name_of(start, "skip")
    cluster.make_topic(topic)
    consumer = start(topic, group)
    cluster.produce(topic, 16)
    wait_for_bodies(consumer, 16)
    cluster.wait_for_diff(group, 0)

    said = cluster.admin("skipAccumulatedMessage", "-g", group, "-t", topic)
    for name in cluster.brokers:
        assert [row[1:] for row in sorted(rows(said, name))] == [[str(number), "2"] for number in range(4)]
    consumer.close_input()
    cluster.produce(topic, 40, "skipped")
    assert cluster.diff(group) == 40
    cluster.admin("skipAccumulatedMessage", "-g", group, "-t", topic)
    assert cluster.diff(group) == 0


# --- connections ---


def test_consumer_connection(cluster: Cluster, start: Start) -> None:
    topic, group = name_of(start, "Joined"), name_of(start, "joined")
    cluster.make_topic(topic)
    cluster.produce(topic, 1)
    consumer = start(topic, group)
    wait_for_bodies(consumer, 1)
    said = cluster.admin("consumerConnection", "-g", group)
    (row,) = rows(said, cluster.client_id(group))
    assert row[1].startswith("127.0.0.1:")
    assert row[3] == "V4_9_7"
    assert rows(said, topic) == [[topic, "*"]]
    assert rows(said, f"%RETRY%{group}") == [[f"%RETRY%{group}", "*"]]
    for line in (
        "CONSUME_PASSIVELY",
        "MessageModel: CLUSTERING",
        "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET",
    ):
        assert line in said
    consumer.close_input()
    assert "not online" in cluster.admin("consumerConnection", "-g", group)


def test_producer_connection_and_all_producers(cluster: Cluster) -> None:
    cluster.make_topic("Produced")
    cluster.produce("Produced", 1)
    consumer = cluster.java_consumer("Produced", "produced")  # a Java client's own producer group
    wait_for_bodies(consumer, 1)
    client_id = cluster.client_id("produced")

    said = cluster.admin("producerConnection", "-g", "CLIENT_INNER_PRODUCER", "-t", "Produced")
    (line,) = [line for line in said.splitlines() if client_id in line]
    assert "127.0.0.1:" in line
    assert "JAVA" in line
    said = cluster.admin("producer", "-b", cluster.a)
    (line,) = [line for line in said.splitlines() if client_id in line]
    assert "producer group (CLIENT_INNER_PRODUCER) instance" in line
    assert "language=JAVA, version=407" in line
    consumer.close_input()
    assert "not exist" in cluster.admin("producerConnection", "-g", "nobody", "-t", "Produced")


# --- what is inside a consumer ---


def test_consumer_status_with_stacks(cluster: Cluster, start: Start) -> None:
    topic, group = name_of(start, "Inside"), name_of(start, "inside")
    cluster.make_topic(topic)
    cluster.produce(topic, 16)
    consumer = start(topic, group)
    wait_for_bodies(consumer, 16)
    client_id = cluster.client_id(group)

    said = cluster.admin("consumerStatus", "-g", group)
    (row,) = [row for row in rows(said, "1") if row[1] == client_id]
    assert "Same subscription in the same group of consumer" in said
    assert "Rebalance OK" in said
    written = pathlib.Path(cluster.admin.process.log.parent) / row[3]
    assert f"001 Topic: %RETRY%{group}" in written.read_text()

    said = cluster.admin("consumerStatus", "-g", group, "-i", client_id, "-s")
    shown = settings(said)
    assert shown["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert shown["PROP_CLIENT_VERSION"] == "V4_9_7"
    offsets = [row for row in rows(said, topic) if len(row) == 4]
    assert sorted(row[1:] for row in offsets) == [
        [name, str(number), "2"] for name in ("broker-a", "broker-b") for number in range(4)
    ]
    assert said.count("ProcessQueueInfo [commitOffset=2") == 8
    (rates,) = [row for row in rows(said, topic) if len(row) == 7]
    assert all(float(rate) >= 0 for rate in rates[1:])
    assert "#Consumer jstack#" in said
    stack = "TASK: " if start == cluster.rmq_consumer else "ConsumeMessageThread"
    assert stack in said.partition("#Consumer jstack#")[2]
    consumer.close_input()


def test_start_monitoring_consumes_the_events_of_moved_offsets(cluster: Cluster) -> None:
    command = cluster.processes.java.command(
        MQADMIN, "startMonitoring", "-n", cluster.namesrv, home=cluster.processes.home
    )
    monitor = cluster.processes.start(command, "monitor")

    def subscribes() -> list[list[str]]:
        return rows(cluster.admin("consumerConnection", "-g", "__MONITOR_CONSUMER"), "OFFSET_MOVED_EVENT")

    assert wait_until(subscribes, 30, "the monitor's connection", every=0.3) == [["OFFSET_MOVED_EVENT", "*"]]
    assert monitor.child.poll() is None
    monitor.kill()
