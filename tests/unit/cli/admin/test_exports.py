from __future__ import annotations

import json
import pathlib

from tests.masters import Masters

from .conftest import Run


def test_exports_are_json_files(masters: Masters, mqadmin: Run, tmp_path: pathlib.Path) -> None:
    mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "exported", "-r", "2", "-w", "2")
    mqadmin("updateSubGroup", "-c", "DefaultCluster", "-g", "exported")
    folder = ("-f", str(tmp_path / "out"))

    said = mqadmin("exportMetadata", "-c", "DefaultCluster", *folder)
    assert said.output == f"export {tmp_path / 'out' / 'metadata.json'} success\n"
    whole = json.loads((tmp_path / "out" / "metadata.json").read_text("utf-8"))
    assert whole["topicConfigTable"]["exported"]["readQueueNums"] == 4
    assert "exported" in whole["subscriptionGroupTable"]

    mqadmin("exportMetadata", "-b", masters.first, "-t", *folder)
    topics = json.loads((tmp_path / "out" / "topic.json").read_text("utf-8"))
    assert topics["topicConfigTable"]["exported"]["readQueueNums"] == 2
    assert "subscriptionGroupTable" not in topics
    mqadmin("exportMetadata", "-b", masters.first, "-g", *folder)
    assert "topicConfigTable" not in json.loads((tmp_path / "out" / "subscriptionGroup.json").read_text())

    mqadmin("exportConfigs", "-c", "DefaultCluster", *folder)
    configs = json.loads((tmp_path / "out" / "configs.json").read_text("utf-8"))
    assert configs["clusterScale"]["masterBrokerSize"] == 2
    assert configs["brokerConfigs"]["second"]["brokerClusterName"] == "DefaultCluster"

    mqadmin("exportMetrics", "-c", "DefaultCluster", *folder)
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text("utf-8"))
    assert metrics["evaluateReport"]["embedded"]["runtimeQuota"]["groupSize"] >= 1
    assert set(metrics["totalData"]) == {"totalTps", "totalOneDayNum"}

    assert mqadmin("exportConfigs", "-c", "Nowhere", *folder).exit_code != 0
