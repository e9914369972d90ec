"""mqadmin on brokers, the cluster and the name server, and its exports: two masters, and a slave."""

from __future__ import annotations

import json as strict
import pathlib
import re
import time

import pytest

from rmq.config import parse_properties
from rmq.protocol import json
from tests.interop.cluster import SETTINGS, Cluster, rows, settings, wait_for_bodies
from tests.interop.rocketmq import Process, wait_until

pytestmark = pytest.mark.interop

CLUSTER = "DefaultCluster"


@pytest.fixture(scope="module")
def slave(cluster: Cluster) -> Process:
    """A slave of broker-a."""
    master = {"haMasterAddress": f"127.0.0.1:{cluster.brokers['broker-a'].port + 1}"}
    role = {"brokerName": "broker-a", "brokerId": "1", "brokerRole": "SLAVE"}
    return cluster.servers.broker(cluster.folder / "slave", **SETTINGS, **role, **master)


def status(cluster: Cluster, address: str) -> dict[str, str]:
    return settings(cluster.admin("brokerStatus", "-b", address))


# --- a broker's figures ---


def test_broker_status_counts_what_goes_through(cluster: Cluster) -> None:
    cluster.make_topic("Counted")
    before = status(cluster, cluster.a)
    consumer = cluster.java_consumer("Counted", "counted")
    cluster.produce("Counted", 40)
    wait_for_bodies(consumer, 40)
    now = status(cluster, cluster.a)

    def grown(key: str) -> int:
        return int(now[key]) - int(before[key])

    assert (now["brokerVersionDesc"], now["brokerVersion"]) == ("V4_9_7", "407")
    assert grown("msgPutTotalTodayNow") == grown("msgGetTotalTodayNow") == 20
    assert grown("commitLogMaxOffset") > 20 * 100
    assert float(now["putMessageAverageSize"]) > 100
    for key in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferedTps"):
        assert float(now[key].split()[0]) > 0, key
    counts = re.findall(r"\[[^]]*\]:(\d+)", now["putMessageDistributeTime"])
    assert len(counts) == 13
    assert sum(map(int, counts)) >= 20
    assert now["dispatchBehindBytes"] == "0"
    assert 0 < float(now["commitLogDiskRatio"]) < 1
    assert 0 < float(now["consumeQueueDiskRatio"]) < 1
    assert 0 < time.time() * 1000 - int(now["earliestMessageTimeStamp"]) < 600_000
    assert re.fullmatch(r"Total : [\d.]+ \w+, Free : [\d.]+ \w+\.", now["commitLogDirCapacity"])
    consumer.close_input()


def test_broker_status_shows_how_far_each_delay_level_is(cluster: Cluster) -> None:
    row = status(cluster, cluster.b)["scheduleMessageOffset_2"]
    assert re.fullmatch(r"\d+,\d+", row)


def test_broker_status_of_a_cluster(cluster: Cluster) -> None:
    said = cluster.admin("brokerStatus", "-c", CLUSTER)
    for address in (cluster.a, cluster.b):
        assert any(line.startswith(f"{address:<24}") for line in said.splitlines())


def test_broker_consume_stats(cluster: Cluster) -> None:
    cluster.make_topic("Consumed")
    cluster.produce("Consumed", 24)
    consumer = cluster.java_consumer("Consumed", "consuming")
    wait_for_bodies(consumer, 24)
    cluster.wait_for_diff("consuming", 0)
    consumer.close_input()
    cluster.produce("Consumed", 16, "more")
    said = cluster.alone("brokerConsumeStats", "-b", cluster.a)
    assert [row[1:7] for row in rows(said, "Consumed")] == [
        ["consuming", "broker-a", str(number), "5", "3", "2"] for number in range(4)
    ]
    assert int(said.split()[-1]) >= 8  # Diff Total
    assert not rows(cluster.alone("brokerConsumeStats", "-b", cluster.a, "-l", "3"), "Consumed")


def test_send_msg_status(cluster: Cluster) -> None:
    before = int(status(cluster, cluster.b)["msgPutTotalTodayNow"])
    said = cluster.admin("sendMsgStatus", "-b", "broker-b", "-c", "3", "-s", "10")
    assert len(re.findall(r"rt=\d+ms, SendResult=SendResult \[sendStatus=SEND_OK", said)) == 3
    assert int(status(cluster, cluster.b)["msgPutTotalTodayNow"]) == before + 4  # one to begin with


# --- a broker's settings ---


def test_get_broker_config(cluster: Cluster) -> None:
    shown = settings(cluster.admin("getBrokerConfig", "-b", cluster.a))
    assert (shown["brokerName"], shown["brokerId"], shown["brokerRole"]) == ("broker-a", "0", "ASYNC_MASTER")
    assert shown["enablePropertyFilter"] == "true"
    said = cluster.admin("getBrokerConfig", "-c", CLUSTER)
    assert f"Master: {cluster.a}" in said
    assert f"Master: {cluster.b}" in said


def test_update_broker_config_outlives_a_restart(cluster: Cluster) -> None:
    said = cluster.admin("updateBrokerConfig", "-c", CLUSTER, "-k", "transactionCheckMax", "-v", "7")
    for address in (cluster.a, cluster.b):
        assert f"update broker config success, {address}" in said
    assert settings(cluster.admin("getBrokerConfig", "-b", cluster.b))["transactionCheckMax"] == "7"
    kept = parse_properties(cluster.config_file("broker-b").read_text())
    assert (kept["transactionCheckMax"], kept["brokerName"]) == ("7", "broker-b")
    cluster.restart("broker-b")
    assert settings(cluster.admin("getBrokerConfig", "-b", cluster.b))["transactionCheckMax"] == "7"


@pytest.mark.parametrize(
    "key", ["storePathRootDir", "storePathCommitLog", "configStorePath", "namesrvAddr", "plugins"]
)
def test_update_broker_config_refuses_paths_and_code(cluster: Cluster, key: str) -> None:
    said = cluster.admin("updateBrokerConfig", "-b", cluster.a, "-k", key, "-v", "/tmp/x")
    assert "CODE: 1  DESC: nothing was changed: " in said
    assert "success" not in said
    assert "/tmp/x" not in cluster.config_file("broker-a").read_text()


# --- cleaning ---


def files(folder: pathlib.Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def test_expired_files_of_log_and_queues_are_removed(cluster: Cluster) -> None:
    cluster.make_topic("Filled")
    cluster.produce("Filled", 1600, "m", "4000")
    store = cluster.folder / "broker-a"
    wait_until(lambda: files(store / "commitlog") >= 4, 20, "files of the log")
    wait_until(lambda: files(store / "consumequeue" / "Filled") >= 8, 20, "files of the queues")
    cluster.admin("updateBrokerConfig", "-b", cluster.a, "-k", "fileReservedTime", "-v", "0")

    assert cluster.admin("deleteExpiredCommitLog", "-b", cluster.a).strip() == "success"
    assert cluster.admin("cleanExpiredCQ", "-b", cluster.a).strip() == "success"
    wait_until(lambda: files(store / "commitlog") <= 2, 40, "files of the log are gone")
    wait_until(lambda: files(store / "consumequeue" / "Filled") <= 4, 40, "files of the queues are gone")
    shown = rows(cluster.admin("topicStatus", "-t", "Filled"), "broker-a")
    assert all(int(row[2]) > 100 and int(row[3]) == 200 for row in shown), shown
    assert int(status(cluster, cluster.a)["commitLogMinOffset"]) >= 3 << 20
    assert files(cluster.folder / "broker-b" / "commitlog") >= 4
    cluster.admin("updateBrokerConfig", "-b", cluster.a, "-k", "fileReservedTime", "-v", "72")


def test_cleaning_the_whole_cluster(cluster: Cluster) -> None:
    for command in ("cleanExpiredCQ", "deleteExpiredCommitLog", "cleanUnusedTopic"):
        assert cluster.admin(command, "-c", CLUSTER).strip() == "success", command


def test_clean_unused_topic_removes_queues_without_a_topic(cluster: Cluster) -> None:
    cluster.make_topic("Unused")
    cluster.produce("Unused", 8)
    store = cluster.folder / "broker-b"
    folder = store / "consumequeue" / "Unused"

    def forget() -> None:
        for path in (store / "config" / "topics.json", store / "config" / "topics.json.bak"):
            saved = json.loads(path.read_bytes())
            saved["topicConfigTable"].pop("Unused", None)
            path.write_text(strict.dumps(saved))

    cluster.restart("broker-b", forget)
    assert files(folder) == 4
    assert cluster.admin("cleanUnusedTopic", "-b", cluster.b).strip() == "success"
    assert not folder.exists() or not files(folder)
    assert files(store / "consumequeue" / "Filled") > 0


# --- the cluster ---


def test_cluster_list_with_a_slave(cluster: Cluster, slave: Process) -> None:
    listed = {(row[1], row[2]): row for row in rows(cluster.admin("clusterList"), CLUSTER)}
    assert set(listed) == {("broker-a", "0"), ("broker-a", "1"), ("broker-b", "0")}
    assert listed["broker-a", "1"][3] == f"127.0.0.1:{slave.port}"
    for name in cluster.brokers:
        row = listed[name, "0"]
        assert row[3:5] == [cluster.address(name), "V4_9_7"]
        assert re.fullmatch(r"\d+\.\d\d\(0,0ms\)", row[5])
        assert re.fullmatch(r"\d+\.\d\d\(0,0ms\)", row[6])
        assert row[7] == "0"
        assert 0 <= float(row[8]) < 1
        assert 0 < float(row[9]) < 1
    assert cluster.admin("clusterList").startswith("#Cluster Name")


def test_cluster_list_of_totals(cluster: Cluster) -> None:
    cluster.make_topic("Totals")

    def into_today() -> dict[str, int]:
        shown = rows(cluster.admin("clusterList", "-m"), CLUSTER)
        assert all(row[2:4] == ["0", "0"] for row in shown)  # yesterday
        return {name: max(int(row[4]) for row in shown if row[1] == name) for name in cluster.brokers}

    before = into_today()
    cluster.produce("Totals", 16)
    assert into_today() == {name: count + 8 for name, count in before.items()}


def test_cluster_rt_measures_each_broker(cluster: Cluster) -> None:
    arguments = ("-n", cluster.namesrv, "-a", "3", "-i", "1", "-c", CLUSTER)
    said = cluster.processes.mqadmin_for(6, "clusterRT", *arguments)
    measured = rows(said, CLUSTER)
    assert {row[1] for row in measured} == {"broker-a", "broker-b"}
    assert all(float(row[2]) >= 0 and row[3:] == ["3", "0"] for row in measured), said


def test_check_msg_send_rt(cluster: Cluster) -> None:
    cluster.make_topic("Probed")
    said = cluster.admin("checkMsgSendRT", "-t", "Probed", "-a", "8", "-s", "16")
    sent = [row for name in cluster.brokers for row in rows(said, name)]
    assert sorted((row[0], row[1]) for row in sent) == [
        (name, str(number)) for name in ("broker-a", "broker-b") for number in range(4)
    ]
    assert {row[2] for row in sent} == {"true"}
    assert re.search(r"Avg RT: \d+\.\d\d", said)
    assert all(row[3] == "1" for row in rows(cluster.admin("topicStatus", "-t", "Probed"), "broker-a"))


def test_query_cq_shows_units_subscription_and_filter(cluster: Cluster) -> None:
    cluster.make_topic("Units", 1)
    cluster.produce("Units", 8)
    queue = ("-t", "Units", "-q", "0", "-i", "1", "-c", "2", "-b", cluster.a)
    said = cluster.admin("queryCq", *queue)
    assert "max: 4, min: 0" in said
    assert [line for line in said.splitlines() if line.startswith("idx: ")] == ["idx: 1", "idx: 2"]
    assert len(re.findall(r"ConsumeQueueData\{physicOffset=\d+, physicSize=\d+, tagsCode=265\d,", said)) == 2

    assert "nobody@Units is not online!" in cluster.admin("queryCq", *queue, "-g", "nobody")
    consumer = cluster.processes.program("ConsumeSql", cluster.namesrv, "Units", "filtering", "a > 3")
    wait_until(lambda: "filtering" in cluster.admin("topicList", "-c"), 20, "the group is there")
    said = cluster.admin("queryCq", *queue, "-g", "filtering")
    assert '"expressionType":"SQL92"' in said
    assert '"subString":"a > 3"' in said
    assert '"expression":"a > 3"' in said.partition("Filter data:")[2]
    consumer.kill()


# --- the name server ---


def permission(cluster: Cluster, topic: str) -> dict[str, int]:
    route = json.loads(cluster.admin("topicRoute", "-t", topic))
    return {row["brokerName"]: row["perm"] for row in route["queueDatas"]}


def test_wipe_and_add_write_perm(cluster: Cluster) -> None:
    cluster.make_topic("Wiped")
    count = r"write perm of broker\[broker-b\] in name server\[127\.0\.0\.1:\d+\] OK, [1-9]\d*"
    assert re.search(f"wipe {count}", cluster.admin("wipeWritePerm", "-b", "broker-b"))
    assert permission(cluster, "Wiped") == {"broker-a": 6, "broker-b": 4}
    assert {row["broker"] for row in cluster.produce("Wiped", 8)} == {"broker-a"}
    assert re.search(f"add {count}", cluster.admin("addWritePerm", "-b", "broker-b"))
    assert permission(cluster, "Wiped") == {"broker-a": 6, "broker-b": 6}
    assert {row["broker"] for row in cluster.produce("Wiped", 8)} == {"broker-a", "broker-b"}


def test_update_and_delete_kv_config(cluster: Cluster) -> None:
    said = cluster.admin("updateKvConfig", "-s", "SPACE", "-k", "key", "-v", "value")
    assert "create or update kv config to namespace success." in said
    assert strict.loads(cluster.kv_file.read_text())["configTable"]["SPACE"] == {"key": "value"}
    said = cluster.admin("deleteKvConfig", "-s", "SPACE", "-k", "key")
    assert "delete kv config from namespace success." in said
    assert not strict.loads(cluster.kv_file.read_text())["configTable"].get("SPACE")


def test_get_and_update_namesrv_config(cluster: Cluster) -> None:
    shown = settings(cluster.admin("getNamesrvConfig"))
    assert (shown["listenPort"], shown["orderMessageEnable"]) == (cluster.namesrv.partition(":")[2], "false")
    said = cluster.admin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    assert f"update name server config success![{cluster.namesrv}]" in said
    assert "orderMessageEnable : true" in said
    shown = settings(cluster.admin("getNamesrvConfig"))
    assert shown["orderMessageEnable"] == "true"
    kept = parse_properties(pathlib.Path(shown["configStorePath"]).read_text())
    assert kept["orderMessageEnable"] == "true"


@pytest.mark.parametrize("key", ["kvConfigPath", "configStorePath", "productNamesrvAddr"])
def test_update_namesrv_config_refuses_paths(cluster: Cluster, key: str) -> None:
    said = cluster.admin("updateNamesrvConfig", "-k", key, "-v", "/tmp/x")
    assert "CODE: 16" in said
    assert "success" not in said
    assert settings(cluster.admin("getNamesrvConfig"))[key] != "/tmp/x"


# --- exports ---


def test_export_metadata(cluster: Cluster) -> None:
    cluster.make_topic("Exported", 4)
    cluster.admin("updateSubGroup", "-c", CLUSTER, "-g", "exported", "-r", "5")
    out = cluster.folder / "metadata"
    said = cluster.admin("exportMetadata", "-c", CLUSTER, "-f", str(out))
    assert f"export {out}/metadata.json success" in said
    written = strict.loads((out / "metadata.json").read_text())
    assert written["topicConfigTable"]["Exported"]["writeQueueNums"] == 8  # of both brokers together
    assert written["subscriptionGroupTable"]["exported"]["retryMaxTimes"] == 5
    assert "TBW102" not in written["topicConfigTable"]

    cluster.admin("exportMetadata", "-b", cluster.a, "-t", "-f", str(out))
    topics = strict.loads((out / "topic.json").read_text())["topicConfigTable"]
    assert topics["Exported"]["writeQueueNums"] == 4
    cluster.admin("exportMetadata", "-b", cluster.a, "-g", "-f", str(out))
    groups = strict.loads((out / "subscriptionGroup.json").read_text())["subscriptionGroupTable"]
    assert groups["exported"]["retryMaxTimes"] == 5


def test_export_configs(cluster: Cluster, slave: Process) -> None:
    out = cluster.folder / "configs"
    said = cluster.admin("exportConfigs", "-c", CLUSTER, "-f", str(out))
    assert f"export {out}/configs.json success" in said
    written = strict.loads((out / "configs.json").read_text())
    assert written["clusterScale"] == {"namesrvSize": 1, "masterBrokerSize": 2, "slaveBrokerSize": 1}
    shown = written["brokerConfigs"]["broker-a"]
    assert (shown["brokerRole"], shown["fileReservedTime"], shown["useTLS"]) == (
        "ASYNC_MASTER",
        "72",
        "false",
    )


def test_export_metrics(cluster: Cluster) -> None:
    cluster.make_topic("Measured")
    consumer = cluster.java_consumer("Measured", "measured")
    cluster.produce("Measured", 40)
    wait_for_bodies(consumer, 40)
    out = cluster.folder / "metrics"
    said = cluster.admin("exportMetrics", "-c", CLUSTER, "-f", str(out))
    assert f"export {out}/metrics.json success" in said
    written = strict.loads((out / "metrics.json").read_text())
    for name in cluster.brokers:
        report = written["evaluateReport"][name]
        assert report["runtimeVersion"] == {"rocketmqVersion": "V4_9_7", "clientInfo": ["JAVA%V4_9_7"]}
        assert report["runtimeQuota"]["tps"]["normalInTps"] > 0
        assert report["runtimeQuota"]["tps"]["normalOutTps"] > 0
        assert 0 < float(report["runtimeQuota"]["diskRatio"]["commitLogDiskRatio"]) < 1
        assert int(report["runtimeEnv"]["cpuNum"]) > 0
    assert written["totalData"]["totalTps"]["totalNormalInTps"] > 0
    consumer.close_input()
