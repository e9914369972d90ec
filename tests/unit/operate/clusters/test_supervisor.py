"""Several brokers as one service: what each has for its own, one log, one page of metrics."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from rmq.broker.config import BrokerConfig
from rmq.cli.local.services import broker
from rmq.config import from_options, load_all
from rmq.errors import ConfigError
from rmq.namesrv.config import NamesrvConfig
from rmq.operate import placement
from rmq.operate.supervisor import joined_metrics, members, name_server, relay
from rmq.remoting.transports.tls import TlsConfig
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


def test_the_name_server_beside_them_guards_itself_as_they_do() -> None:
    config = BrokerConfig(
        broker_name="b",
        broker_ip1="10.0.0.7",
        profile="secure",
        cluster_secret_file="/etc/secret",
        acl_enable=True,
        acl_file="/etc/acl.yml",
        plugins=("metrics",),
        listen_port=10911,
    )
    tls = TlsConfig(tls_cert_path="/etc/cert.pem", tls_key_password="no option")

    made = name_server(9877, config, StoreConfig(store_path_root_dir="/data"), tls)

    options = [text for key, value in made.own.items() for text in ("--set", f"{key}={value}")]
    loaded, its_tls = load_all((NamesrvConfig, TlsConfig), None, from_options(options[1::2]), made.secrets)
    assert (made.name, made.kind, made.core) == ("b-namesrv", "name server", -1)
    assert (loaded.listen_port, loaded.bind_address, loaded.plugins) == (9877, "0.0.0.0", ("metrics",))
    assert (loaded.profile, loaded.cluster_secret_file) == ("secure", "/etc/secret")
    assert (loaded.acl_enable, loaded.acl_file) == (True, "/etc/acl.yml")
    assert loaded.kv_config_path == "/data/namesrv/kvConfig.json"
    assert its_tls == tls
    assert "no option" not in " ".join(options)  # which everybody on the machine can read


@pytest.mark.parametrize(
    "arguments",
    [["--processes"], ["--processes", "0"], ["--processes", "2", "--with-namesrv"], ["--with-namesrv", "x"]],
)
def test_numbers_that_are_none_are_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(broker, [*arguments])

    assert result.exit_code == 2
    assert "is followed by a number from 1 to" in result.output


class Brokers:
    """An administrator's view of a cluster of five."""

    def __init__(self) -> None:
        self.changed: list[tuple[str, dict[str, str]]] = []

    async def cluster_info(self) -> Any:
        return SimpleNamespace(broker_addr_table=dict.fromkeys(["b-0", "b-1", "b-10", "b-2", "c-0"]))

    async def update_broker_config(self, changes: dict[str, str], *, broker: str) -> list[str]:
        self.changed.append((broker, changes))
        return [broker]


async def test_a_pattern_stands_for_the_brokers_it_fits_which_are_all_told_before_one_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin: Any = Brokers()
    waiting: list[str] = []

    async def emptied(admin: Any, broker: str, topic: str, seconds: float, tell: object) -> str:
        assert len(admin.changed) == 4
        assert seconds == 60
        waiting.append(broker)
        while len(waiting) < 4:
            await trio.lowlevel.checkpoint()  # for all at once
        return "" if broker != "b-2" else "group g has 3 messages left"

    monkeypatch.setattr(placement, "emptied", emptied)
    names = await placement.matching(admin, ["b-*", "b-0"])
    assert names == ["b-0", "b-1", "b-2", "b-10"]
    assert await placement.drain(admin, names, 60) == "b-2: group g has 3 messages left"
    assert admin.changed == [(name, {"brokerPermission": "4"}) for name in names]
    with pytest.raises(placement.NoSuchBroker, match=r"no broker is called d-\*"):
        await placement.matching(admin, ["d-*"])
