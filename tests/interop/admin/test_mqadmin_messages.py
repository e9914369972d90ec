"""mqadmin on messages: nine commands that look for, send and consume them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.interop.cluster import Cluster, Start, name_of, rows, wait_for_bodies
from tests.interop.rocketmq import wait_until

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def sent(cluster: Cluster) -> list[dict[str, Any]]:
    """Messages m-0 … m-15 of the topic Found: with the keys m-0 … and the tags T0, T1, T2."""
    cluster.make_topic("Found")
    return cluster.produce("Found", 16)


def details(said: str) -> dict[str, str]:
    """The lines `Name:   value` of a message."""
    pairs = (line.partition(":") for line in said.splitlines())
    return {name: value.strip() for name, mark, value in pairs if mark}


def test_query_msg_by_id(cluster: Cluster, sent: list[dict[str, Any]]) -> None:
    row = sent[4]
    shown = details(cluster.admin("queryMsgById", "-i", row["offset_id"]))
    assert shown["OffsetID"] == row["offset_id"]
    assert (shown["Topic"], shown["Tags"], shown["Keys"]) == ("Found", "[T1]", "[m-4]")
    assert (shown["Queue ID"], shown["Queue Offset"]) == (str(row["queue"]), str(row["offset"]))
    assert shown["Store Host"] == cluster.address(row["broker"])
    assert f"UNIQ_KEY={row['id']}" in shown["Properties"]
    unknown = cluster.admin("queryMsgById", "-i", row["offset_id"][:16] + "0000000000FFFFFF")
    assert "can not find message by the offset" in unknown


def test_query_msg_by_id_says_who_consumed_it(cluster: Cluster) -> None:
    cluster.make_topic("Tracked")
    (row,) = cluster.produce("Tracked", 1)
    consumer = cluster.java_consumer("Tracked", "tracking")
    wait_for_bodies(consumer, 1)

    def track() -> bool:
        said = cluster.admin("queryMsgById", "-i", row["offset_id"])
        return "MessageTrack [consumerGroup=tracking, trackType=CONSUMED, exceptionDesc=null]" in said

    wait_until(track, 30, "the track", every=0.3)
    consumer.close_input()


def test_query_msg_by_id_hands_a_message_to_one_client(cluster: Cluster, start: Start) -> None:
    topic, group = name_of(start, "Handed"), name_of(start, "handed")
    cluster.make_topic(topic)
    (row,) = cluster.produce(topic, 1)
    consumer = start(topic, group)
    wait_for_bodies(consumer, 1)
    said = cluster.admin("queryMsgById", "-i", row["offset_id"], "-g", group, "-d", cluster.client_id(group))
    assert re.search(r"ConsumeMessageDirectlyResult \[.*consumeResult=CR_SUCCESS, remark=null, spent", said)
    assert wait_for_bodies(consumer, 2) == ["m-0", "m-0"]
    said = cluster.admin("queryMsgById", "-i", row["offset_id"], "-g", group, "-d", "nobody")
    assert f"The Consumer <{group}> <nobody> not online" in said
    consumer.close_input()


def test_query_msg_by_id_sends_a_message_again(cluster: Cluster) -> None:
    cluster.make_topic("Again", 1)
    (row,) = cluster.produce("Again", 1)
    said = cluster.admin("queryMsgById", "-i", row["offset_id"], "-s", "true")
    assert f"prepare resend msg. originalMsgId={row['offset_id']}" in said
    assert "sendStatus=SEND_OK" in said
    ends = [
        int(line[3])
        for name in cluster.brokers
        for line in rows(cluster.admin("topicStatus", "-t", "Again"), name)
    ]
    assert sum(ends) == 2


def test_query_msg_by_key(cluster: Cluster, sent: list[dict[str, Any]]) -> None:
    said = cluster.admin("queryMsgByKey", "-t", "Found", "-k", "m-7")
    row = sent[7]
    assert rows(said, row["id"]) == [[row["id"], str(row["queue"]), str(row["offset"])]]
    assert len(said.splitlines()) == 2
    assert "no message" in cluster.admin("queryMsgByKey", "-t", "Found", "-k", "nothing")


def test_query_msg_by_unique_key(cluster: Cluster, sent: list[dict[str, Any]]) -> None:
    row = sent[9]
    shown = details(cluster.alone("queryMsgByUniqueKey", "-t", "Found", "-i", row["id"]))
    assert (shown["Topic"], shown["Keys"], shown["Queue Offset"]) == ("Found", "[m-9]", str(row["offset"]))
    assert shown["Store Host"] == cluster.address(row["broker"])


def test_query_msg_by_unique_key_hands_a_message_to_one_client(cluster: Cluster, start: Start) -> None:
    topic, group = name_of(start, "Unique"), name_of(start, "unique")
    cluster.make_topic(topic)
    (row,) = cluster.produce(topic, 1)
    consumer = start(topic, group)
    wait_for_bodies(consumer, 1)
    client = ("-g", group, "-d", cluster.client_id(group))
    said = cluster.alone("queryMsgByUniqueKey", "-t", topic, "-i", row["id"], *client)
    assert "consumeResult=CR_SUCCESS" in said
    assert wait_for_bodies(consumer, 2) == ["m-0", "m-0"]
    consumer.close_input()


def test_query_msg_by_offset(cluster: Cluster, sent: list[dict[str, Any]]) -> None:
    row = sent[11]
    place = ("-b", row["broker"], "-i", str(row["queue"]), "-o", str(row["offset"]))
    shown = details(cluster.admin("queryMsgByOffset", "-t", "Found", *place))
    assert (shown["OffsetID"], shown["Keys"]) == (row["offset_id"], "[m-11]")
    assert "MAX_OFFSET=2" in shown["Properties"]


def test_query_msg_trace_by_id(cluster: Cluster) -> None:
    cluster.make_topic("Traced")
    processes, traced = cluster.processes, ("-Dtrace=true",)
    consumer = processes.program("Consume", cluster.namesrv, "Traced", "tracing", options=traced)
    arguments = ("Produce", cluster.namesrv, "Traced", "sync", "3", "m")
    row = processes.program(*arguments, options=traced).finish()[1]
    wait_for_bodies(consumer, 3)

    def trace() -> str:
        said = cluster.admin("queryMsgTraceById", "-i", row["id"])
        return said if rows(said, "Pub") and rows(said, "tracing") + rows(said, "Sub") else ""

    said = wait_until(trace, 60, "both traces", every=0.5)
    (published,) = rows(said, "Pub")
    assert published[1] == "interop-producer"
    assert published[-1] == "success"
    assert "#ConsumerGroup" in said
    assert [line for line in said.splitlines() if "success" in line and not line.startswith("Pub")]
    consumer.close_input()


def test_print_msg(cluster: Cluster, sent: list[dict[str, Any]]) -> None:
    said = cluster.admin("printMsg", "-t", "Found", "-d", "true")
    assert sorted(re.findall(r"BODY: (\S+)", said)) == sorted(row["sent"] for row in sent)
    assert said.count("minOffset=0, maxOffset=2, MessageQueue [topic=Found, brokerName=broker-") == 8
    said = cluster.admin("printMsg", "-t", "Found", "-d", "true", "-s", "T2")
    assert sorted(re.findall(r"BODY: (\S+)", said)) == sorted(f"m-{number}" for number in range(2, 16, 3))


def test_print_msg_by_queue(cluster: Cluster, sent: list[dict[str, Any]]) -> None:
    place = ("-t", "Found", "-a", "broker-b", "-i", "1")
    mine = [row["sent"] for row in sent if (row["broker"], row["queue"]) == ("broker-b", 1)]
    said = cluster.admin("printMsgByQueue", *place, "-p", "true", "-d", "true", "-f", "true")
    assert re.findall(r"BODY: (\S+)", said) == mine
    tags = dict(re.findall(r"Tag: (\S+)\s+Count: (\d+)", said))
    assert sum(map(int, tags.values())) == len(mine) == 2


def test_send_message(cluster: Cluster) -> None:
    cluster.make_topic("Sent")
    said = cluster.alone(
        "sendMessage", "-t", "Sent", "-p", "hello", "-k", "K", "-c", "TagX", "-b", "broker-b", "-i", "2"
    )
    ((_, queue, result, message_id),) = rows(said, "broker-b")
    assert (queue, result) == ("2", "SEND_OK")
    found = cluster.alone("queryMsgByUniqueKey", "-t", "Sent", "-i", message_id)
    assert "Sent" in found
    shown = details(found)
    assert (shown["Tags"], shown["Keys"], shown["Queue ID"]) == ("[TagX]", "[K]", "2")


def test_consume_message(cluster: Cluster, sent: list[dict[str, Any]]) -> None:
    said = cluster.alone("consumeMessage", "-t", "Found", "-b", "broker-a", "-i", "0", "-o", "1", "-c", "1")
    mine = [row["sent"] for row in sent if (row["broker"], row["queue"]) == ("broker-a", 0)]
    assert "Consume ok" in said
    assert re.findall(r"BODY: (\S+)", said) == mine[1:]
    said = cluster.alone("consumeMessage", "-t", "Found", "-g", "any")
    assert sorted(re.findall(r"BODY: (\S+)", said)) == sorted(row["sent"] for row in sent)
