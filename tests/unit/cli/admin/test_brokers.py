from __future__ import annotations

import re

import rmq
from tests.masters import Masters

from .conftest import Run


def test_status_of_one_broker_and_of_a_cluster(masters: Masters, mqadmin: Run) -> None:
    one = mqadmin("brokerStatus", "-b", masters.first).output
    assert re.search(r"^brokerVersionDesc +: V4_9_7$", one, re.M)
    assert re.search(r"^putTps +: ", one, re.M)

    whole = mqadmin("brokerStatus", "-c", "DefaultCluster").output.splitlines()
    assert {line.split()[0] for line in whole} == {masters.first, masters.second}


def test_settings_are_shown_and_changed(masters: Masters, mqadmin: Run) -> None:
    said = mqadmin("updateBrokerConfig", "-c", "DefaultCluster", "-k", "fileReservedTime", "-v", "49")
    assert f"update broker config success, {masters.second}" in said.output

    shown = mqadmin("getBrokerConfig", "-b", masters.second).output
    assert shown.startswith(f"============{masters.second}============")
    assert re.search(r"^fileReservedTime +=  49$", shown, re.M)
    whole = mqadmin("getBrokerConfig", "-c", "DefaultCluster").output
    assert f"============Master: {masters.first}============" in whole

    refused = mqadmin("updateBrokerConfig", "-b", masters.first, "-k", "storePathRootDir", "-v", "/x")
    assert refused.exit_code == 1
    assert "storePathRootDir" in refused.output


def test_consume_stats_of_a_broker(masters: Masters, mqadmin: Run) -> None:
    mqadmin("updateTopic", "-b", masters.first, "-t", "brokerstats", "-r", "1", "-w", "1")

    async def work(client: rmq.Client) -> None:
        async with client.producer("p") as producer:
            await producer.send(rmq.Message("brokerstats", b"x"))
        consumer = client.consumer("brokerstats", {"brokerstats": "*"}, consume_from="first")
        async with consumer, await anext(consumer):
            pass
        async with client.producer("p") as producer:
            await producer.send(rmq.Message("brokerstats", b"y"))

    masters.work(work)
    said = mqadmin("brokerConsumeStats", "-b", masters.first).output
    assert re.search(r"^brokerstats +brokerstats +embedded +0 +2 +1 +1 +\d{4}-", said, re.M)
    assert "Diff Total: " in said
    assert "brokerstats" not in mqadmin("brokerConsumeStats", "-b", masters.first, "-l", "2").output


def test_cleaning_says_success(masters: Masters, mqadmin: Run) -> None:
    for name in ("cleanExpiredCQ", "deleteExpiredCommitLog", "cleanUnusedTopic"):
        assert mqadmin(name).output == "success\n"
        assert mqadmin(name, "-b", masters.first).output == "success\n"
        assert mqadmin(name, "-c", "DefaultCluster").output == "success\n"


def test_units_of_a_queue(masters: Masters, mqadmin: Run) -> None:
    mqadmin("updateTopic", "-b", masters.first, "-t", "units", "-r", "1", "-w", "1")

    async def work(client: rmq.Client) -> None:
        async with client.producer("p") as producer:
            for _ in range(3):
                await producer.send(rmq.Message("units", b"x", tags="TagA"))

    masters.work(work)
    said = mqadmin("queryCq", "-t", "units", "-q", "0", "-i", "1", "-g", "nobody").output
    assert "Queue data: \nmax: 3, min: 0\n" in said
    assert re.findall(r"^idx: (\d+)$", said, re.M) == ["1", "2"]
    assert "ConsumeQueueData{physicOffset=" in said
    assert "Filter data: \nnobody@units is not online!" in said
    assert mqadmin("queryCq", "-t", "units", "-q", "7", "-i", "0").exit_code == 1


# --- clusters and name servers ---


def test_cluster_list(masters: Masters, mqadmin: Run) -> None:
    lines = mqadmin("clusterList").output.splitlines()
    assert lines[0].startswith("#Cluster Name")
    rows = [line.split()[:5] for line in lines[1:]]
    assert rows == [
        ["DefaultCluster", "embedded", "0", masters.first, "V4_9_7"],
        ["DefaultCluster", "second", "0", masters.second, "V4_9_7"],
    ]
    more = mqadmin("clusterList", "-m", "-i", "1", "--rounds", "2").output.splitlines()
    assert [line.split()[:2] for line in more if line.startswith("D")] == [
        ["DefaultCluster", "embedded"],
        ["DefaultCluster", "second"],
    ] * 2


def test_write_permission_of_a_broker(masters: Masters, mqadmin: Run) -> None:
    mqadmin("updateTopic", "-b", masters.second, "-t", "wiped")

    wiped = mqadmin("wipeWritePerm", "-b", "second").output
    assert re.fullmatch(
        rf"wipe write perm of broker\[second\] in name server\[{masters.namesrv}\] OK, \d+\n", wiped
    )
    assert '"perm": 4' in mqadmin("topicRoute", "-t", "wiped").output
    added = mqadmin("addWritePerm", "-b", "second").output
    assert added.startswith("add write perm of broker[second] in name server[")
    assert '"perm": 6' in mqadmin("topicRoute", "-t", "wiped").output


def test_values_and_settings_of_name_servers(masters: Masters, mqadmin: Run) -> None:
    said = mqadmin("updateKvConfig", "-s", "ns", "-k", "key", "-v", "value").output
    assert said == "create or update kv config to namespace success.\n"
    assert masters.work(lambda client: client.admin.kv_config("ns", "key")) == "value"
    assert mqadmin("deleteKvConfig", "-s", "ns", "-k", "key").output.startswith("delete kv config")
    assert masters.work(lambda client: client.admin.kv_config("ns", "key")) is None

    shown = mqadmin("getNamesrvConfig").output
    assert shown.startswith(f"============{masters.namesrv}============")
    assert re.search(r"^orderMessageEnable +=  false$", shown, re.M)
    changed = mqadmin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    assert changed.output == (
        f"update name server config success![{masters.namesrv}]\norderMessageEnable : true\n"
    )
    assert re.search(r"^orderMessageEnable +=  true$", mqadmin("getNamesrvConfig").output, re.M)
    mqadmin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false")
    refused = mqadmin("updateNamesrvConfig", "-k", "kvConfigPath", "-v", "/x")
    assert refused.exit_code == 1


# --- probes ---


def test_probes_send_and_time(masters: Masters, mqadmin: Run) -> None:
    mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "probed", "-r", "1", "-w", "1")

    status = mqadmin("sendMsgStatus", "-b", "embedded", "-c", "3").output.splitlines()
    assert len(status) == 3
    assert all("SendResult [sendStatus=SEND_OK" in line for line in status)

    checked = mqadmin("checkMsgSendRT", "-t", "probed", "-a", "4").output.splitlines()
    assert [line.split()[:3] for line in checked[1:-1]] == [
        ["embedded", "0", "true"],
        ["second", "0", "true"],
    ] * 2
    assert checked[-1].startswith("Avg RT: ")

    times = mqadmin("clusterRT", "-a", "2", "--rounds", "1").output.splitlines()
    assert [line.split()[:2] + line.split()[3:] for line in times[1:]] == [
        ["DefaultCluster", "embedded", "2", "0"],
        ["DefaultCluster", "second", "2", "0"],
    ]
    log = mqadmin("clusterRT", "-a", "1", "--rounds", "1", "-p", "true", "-m", "hz").output
    assert re.search(r"\|hz\|DefaultCluster\|second\|\d+$", log, re.M)
    assert mqadmin("clusterRT", "-c", "Nowhere", "--rounds", "1").exit_code != 0
