from __future__ import annotations

import json

from click.testing import CliRunner

import rmq
from rmq.cli.clusters.topic import topic
from tests.masters import Masters

from .conftest import Run


def test_update_topic_on_the_cluster_then_route_status_and_list(masters: Masters, mqadmin: Run) -> None:
    made = mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "Made", "-r", "3", "-w", "2")
    assert made.exit_code == 0, made.output
    assert f"create topic to {masters.first} success." in made.output
    assert f"create topic to {masters.second} success." in made.output
    assert "TopicConfig [topicName=Made, readQueueNums=3, writeQueueNums=2, perm=RW-" in made.output

    route = json.loads(mqadmin("topicRoute", "-t", "Made").output)
    assert {data["brokerName"] for data in route["brokerDatas"]} == {"embedded", "second"}
    columns = mqadmin("topicRoute", "-t", "Made", "-l").output.splitlines()
    assert columns[0].split()[:3] == ["#ClusterName", "#BrokerName", "#BrokerAddrs"]
    assert columns[-1].split() == ["Total:", "2", "6", "4"]

    status = mqadmin("topicStatus", "-t", "Made").output.splitlines()
    assert [line.split() for line in status[1:]] == [
        [name, str(queue), "0", "0"] for name in ("embedded", "second") for queue in (0, 1)
    ]
    assert mqadmin("topicClusterList", "-t", "Made").output == "DefaultCluster\n"
    assert "Made" in mqadmin("topicList").output.splitlines()
    listed = mqadmin("topicList", "-c").output
    assert ["DefaultCluster", "Made"] in [line.split() for line in listed.splitlines()]


def test_an_ordered_topic_is_written_down_at_the_name_servers(masters: Masters, mqadmin: Run) -> None:
    mqadmin("updateTopic", "-b", masters.first, "-t", "Ordered", "-w", "4", "-o", "true")
    assert "orderConf=[embedded:4]" in mqadmin("updateOrderConf", "-t", "Ordered", "-m", "get").output

    mqadmin("updateTopic", "-b", masters.second, "-t", "Ordered", "-w", "2", "-o", "true")
    got = mqadmin("updateOrderConf", "-t", "Ordered", "-m", "get").output
    assert "orderConf=[embedded:4;second:2]" in got

    put = mqadmin("updateOrderConf", "-t", "Ordered", "-m", "put", "-v", "embedded:1")
    assert put.output.startswith("update orderConf success.")
    assert mqadmin("updateOrderConf", "-t", "Ordered", "-m", "delete").exit_code == 0
    assert mqadmin("updateOrderConf", "-t", "Ordered", "-m", "get").exit_code == 1


def test_permission_changes_keep_the_queues(masters: Masters, mqadmin: Run) -> None:
    mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "Shut", "-r", "5", "-w", "3")

    said = mqadmin("updateTopicPerm", "-c", "DefaultCluster", "-t", "Shut", "-p", "4")

    assert f"update topic perm from 6 to 4 in {masters.first} success." in said.output
    configs = masters.work(lambda client: client.admin.topic_config("Shut"))
    shapes = {(one.read_queue_nums, one.write_queue_nums, one.perm) for one in configs.values()}
    assert shapes == {(5, 3, 4)}
    again = mqadmin("updateTopicPerm", "-b", masters.first, "-t", "Shut", "-p", "4")
    assert again.output == "new perm equals to the old one!\n"


def test_delete_topic_takes_it_from_brokers_and_name_servers(masters: Masters, mqadmin: Run) -> None:
    mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "Gone")

    said = mqadmin("deleteTopic", "-c", "DefaultCluster", "-t", "Gone")

    assert "delete topic [Gone] from cluster [DefaultCluster] success." in said.output
    assert "delete topic [Gone] from NameServer success." in said.output
    route = mqadmin("topicRoute", "-t", "Gone")
    assert route.exit_code == 1
    assert "no route for topic 'Gone'" in route.output
    assert "Gone" not in masters.work(lambda client: client.admin.topic_configs(masters.first))


def test_a_cut_that_hides_unread_messages_names_them_and_asks(masters: Masters, mqadmin: Run) -> None:
    mqadmin("updateTopic", "-b", masters.first, "-t", "Cut", "-r", "4", "-w", "4")

    async def read_half(client: rmq.Client) -> None:
        async with client.producer("p") as producer:
            for number in range(4):
                await producer.send(rmq.Message("Cut", b"%d" % number))
            async with client.consumer("cutters", {"Cut": "*"}, consume_from="first") as consumer:
                for _ in range(4):
                    async with await anext(consumer):
                        pass
            for number in range(4):
                await producer.send(rmq.Message("Cut", b"%d" % number))

    masters.work(read_half)
    named = "Hide 2 unread messages of group cutters in 2 queues?"
    words = "updateTopic", "-b", masters.first, "-t", "Cut", "-r", "2", "-w", "2"
    unasked = mqadmin(*words)
    assert (unasked.exit_code, named in unasked.output) == (1, True)
    modern = ["update", "Cut", "--queues", "2", "-b", masters.first, "-n", masters.namesrv]
    refused = CliRunner().invoke(topic, modern, input="n\n")
    assert (refused.exit_code, named in refused.output) == (1, True)

    def shape() -> tuple[int, int]:
        (config,) = masters.work(lambda client: client.admin.topic_config("Cut")).values()
        return config.read_queue_nums, config.write_queue_nums

    assert shape() == (4, 4)
    assert CliRunner().invoke(topic, modern, input="y\n").exit_code == 0
    assert shape() == (2, 2)
    progress = masters.work(lambda client: client.admin.consumer_progress("cutters", "Cut"))
    assert {row.message_queue.queue_id: row.lag for row in progress} == dict.fromkeys(range(4), 1)
    assert mqadmin(*words).exit_code == 1
    assert mqadmin(*words, "--yes").exit_code == 0


def test_allocate_shares_queues_out_as_members_would(mqadmin: Run) -> None:
    mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "Shares", "-r", "2", "-w", "2")

    said = mqadmin("allocateMQ", "-t", "Shares", "-i", "10.0.0.1,10.0.0.2")

    result = json.loads(said.output)["result"]
    assert [(q["brokerName"], q["queueId"]) for q in result["10.0.0.2"]] == [("second", 0), ("second", 1)]


def test_stats_of_a_topic_that_nobody_reads_say_so(masters: Masters, mqadmin: Run) -> None:
    mqadmin("updateTopic", "-b", masters.first, "-t", "Unread", "-r", "1", "-w", "1")

    async def send(client: rmq.Client) -> None:
        async with client.producer("p") as producer:
            for _ in range(3):
                await producer.send(rmq.Message("Unread", b"x"))

    masters.work(send)
    (line,) = mqadmin("statsAll", "-t", "Unread").output.splitlines()[1:]
    assert line.split()[0] == "Unread"
    assert line.split()[-1] == "NO_CONSUMER"
    assert "Unread" in mqadmin("statsAll").output


def test_a_cluster_that_is_not_there_fails_with_the_names_that_are(mqadmin: Run) -> None:
    said = mqadmin("updateTopic", "-c", "Nowhere", "-t", "X")

    assert said.exit_code != 0
    assert "DefaultCluster" in said.output
