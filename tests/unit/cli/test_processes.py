"""Several brokers as one service: what each has for its own, one log, one page of metrics."""

from __future__ import annotations

import logging

import pytest

from rmq.broker.config import BrokerConfig
from rmq.cli.processes import joined_metrics, members, relay
from rmq.errors import ConfigError
from rmq.store.config import StoreConfig


def test_each_process_has_its_own_name_ports_folders_and_core() -> None:
    config = BrokerConfig(broker_name="b", listen_port=10911)
    store = StoreConfig(store_path_root_dir="/data", store_path_commit_log="/fast")

    made = members(3, config, store, [4, 7])

    assert [(one.name, one.core, one.own["listenPort"]) for one in made] == [
        ("b-0", 4, "10911"),
        ("b-1", 7, "10921"),
        ("b-2", 4, "10931"),
    ]
    for one in made:
        assert one.own["brokerName"] == one.name
        assert one.own["storePathRootDir"] == f"/data/{one.name}"
        assert one.own["storePathCommitLog"] == f"/fast/{one.name}"
        assert one.own["configStorePath"] == f"/data/{one.name}/config/broker.properties"


def test_ports_that_do_not_fit_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="listenPort"):
        members(2, BrokerConfig(listen_port=0), StoreConfig(), [])
    with pytest.raises(ConfigError, match="listenPort"):
        members(3, BrokerConfig(listen_port=65520), StoreConfig(), [])
    with pytest.raises(ConfigError, match="haMasterAddress"):
        members(2, BrokerConfig(), StoreConfig(ha_master_address="10.0.0.1:10912"), [])


def test_the_metrics_of_all_are_one_page_with_one_head_each() -> None:
    page = (
        '# HELP rmq_a A\n# TYPE rmq_a gauge\nrmq_a {}\n# TYPE rmq_h histogram\nrmq_h_bucket{{le="+Inf"}} {}\n'
    )

    text = joined_metrics({"b-0": page.format(1, 2), "b-1": page.format(3, 4)})

    assert text.splitlines() == [
        "# HELP rmq_a A",
        "# TYPE rmq_a gauge",
        'rmq_a{process="b-0"} 1',
        'rmq_a{process="b-1"} 3',
        "# TYPE rmq_h histogram",
        'rmq_h_bucket{process="b-0",le="+Inf"} 2',
        'rmq_h_bucket{process="b-1",le="+Inf"} 4',
    ]


def test_lines_of_all_come_into_one_log_with_level_name_and_trace(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    relay("b-1", '{"level": "ERROR", "logger": "rmq.store", "message": "100 % full", "trace": "| a\\n| b"}')
    relay("b-0", "no object")
    relay("b-0", '{"level": "DEBUG", "logger": "rmq.store", "message": "too much"}')

    assert [(one.name, one.levelname, one.getMessage(), one.exc_text) for one in caplog.records] == [
        ("rmq.store", "ERROR", "[b-1] 100 % full", "a\nb"),
        ("rmq.broker", "INFO", "[b-0] no object", None),
    ]
