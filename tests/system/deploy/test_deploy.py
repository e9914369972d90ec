"""The files under deploy/: what they name exists, settings are taken, commands run as another user."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import yaml

pytest.importorskip("prometheus_client")

from rmq_metrics import MetricsPlugin
from rmq_metrics.process import ProcessMetrics

from rmq.broker import __main__ as broker
from rmq.broker.config import BrokerConfig
from rmq.broker.plugin_host import plugin_host
from rmq.broker.replication.failover.replica_manager import ReplicaIdentity, ReplicaManager
from rmq.broker.tables.versioned import run_to_end
from rmq.config import describe, is_loopback
from rmq.controller.requests import ControllerRequests
from rmq.metrics import Metric, text_of
from rmq.namesrv import __main__ as namesrv
from rmq.namesrv.config import NamesrvConfig
from rmq.namesrv.handlers import NameServer
from rmq.namesrv.host import plugin_host as namesrv_host
from rmq.namesrv.kvconfigs import KvConfigs
from rmq.proxy import __main__ as proxy
from rmq.proxy.config import ProxyConfig
from rmq.store.config import StoreConfig
from rmq.testing.disk import MemoryDisk
from tests.system.containers import DEPLOY, SHARED, USER, dockerfile, image_environment, python_of_others
from tests.unit.broker.rig import Rig

DASHBOARDS = sorted(DEPLOY.glob("grafana/*.json"))
COMPOSE = sorted(DEPLOY.glob("compose/*.yaml"))
SERVICES = {"broker": broker, "namesrv": namesrv, "proxy": proxy}


def metrics() -> list[Metric]:
    """The metrics of a broker, of a name server and of their parts for controllers."""
    server = NameServer(NamesrvConfig(), now_ms=lambda: 0, kv_configs=KvConfigs(lambda data: None))
    file = ReplicaIdentity(MemoryDisk(), "/store", Random(1))
    control = ReplicaManager(
        BrokerConfig(), file, address="a:10911", ha_address="a:10912", is_founder=True, clock=lambda: 0.0
    )
    return [
        *control.metrics(),
        *ControllerRequests(lambda: 0.0).metrics(),
        *MetricsPlugin({}, plugin_host(Rig().broker)).metrics(),
        *MetricsPlugin({}, namesrv_host(server, lambda: 0)).metrics(),
    ]


def metric_names() -> set[str]:
    """All that a scrape of a broker or a name server may show, as Prometheus knows it."""
    text = run_to_end(text_of(metrics())) + ProcessMetrics().text()
    names = set(re.findall(r"^# TYPE (\S+)", text.decode(), re.MULTILINE))
    return names | {f"{name}{end}" for name in names for end in ("_bucket", "_sum", "_count")}


def expressions() -> Iterator[tuple[str, str]]:
    """Expressions, each with its place."""
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{file.stem}: {panel['title']}", target["expr"]


def test_alerts_and_dashboards_name_metrics_that_there_are() -> None:
    known, seen = metric_names(), 0
    for where, expression in expressions():
        for name in re.findall(r"\b(?:rmq|process)_\w+", re.sub(r'"[^"]*"', "", expression)):
            assert name in known, f"{where} asks for {name}"
            seen += 1
    assert seen > 25


def test_labels_in_expressions_are_those_of_the_metrics() -> None:
    labels: dict[str, set[str]] = {}
    for metric in metrics():
        labels.setdefault(metric.name, {"instance", "job", "le"}).update(metric.labels)
    for where, expression in expressions():
        for name, matchers in re.findall(r"\brmq_(\w+)\{([^}]*)\}", expression):
            base = re.sub(r"_(total|bucket|sum|count)$", "", name)
            assert set(re.findall(r"(\w+)=~?\"", matchers)) <= labels[base], where


def test_dashboards_have_ids_of_their_own_and_the_variables_that_they_use() -> None:
    tables = [json.loads(file.read_text()) for file in DASHBOARDS]
    assert len({table["uid"] for table in tables}) == len(tables) == 4
    for table in tables:
        ids = [panel["id"] for panel in table["panels"]]
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in table["panels"]]
        assert len(set(ids)) == len(set(places)) == len(ids)
        used = set(re.findall(r"\$\{?(\w+)", json.dumps(table["panels"])))
        assert used == {variable["name"] for variable in table["templating"]["list"]}


def test_panels_tell_the_processes_of_an_instance_apart() -> None:
    """`rmq broker --processes 2` is one instance whose rows have the label `process`."""
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                assert "on (instance) " not in target["expr"], panel["title"]
                if "{{instance}}" in target["legendFormat"] and " by (" not in target["expr"]:
                    assert "{{instance}} {{process}}" in target["legendFormat"], panel["title"]


def test_every_alert_says_how_bad_and_what() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here (Debian's package prometheus)"
)


@needs_promtool
def test_promtool_takes_the_alerts() -> None:
    subprocess.run(["promtool", "check", "rules", DEPLOY / "prometheus" / "alerts.yaml"], check=True)


BUSY = {'rmq_loop_lag_seconds_bucket{le="0.1"}': "0x60", 'rmq_loop_lag_seconds_bucket{le="+Inf"}': "0+9x60"}
BUILDS = {
    'rmq_build_info{instance="m", cluster="c", broker="a", broker_id="0"}': "1x60",
    'rmq_build_info{instance="s", cluster="c", broker="a", broker_id="1"}': "1x60",
    'rmq_build_info{instance="n"}': "1x60",
}
MASTER_LOG = 'rmq_commitlog_min_offset_bytes{instance="m"}'
SLAVE_LOG = 'rmq_commitlog_min_offset_bytes{instance="s"}'
REFUSED = 'rmq_refusals_total{request="SEND_MESSAGE", reason="%s"}'
SERIES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "RmqDown": ({'up{job="rmq"}': "0x60"}, {'up{job="rmq"}': "1x60"}),
    "RmqNotRegistered": (
        {'rmq_registered{process="1"}': "0x60", 'rmq_registered{process="2"}': "1x60"},
        {'rmq_registered{namesrv="1"}': "0x60", 'rmq_registered{namesrv="2"}': "1x60"},
    ),
    "RmqRefusesMessages": ({"rmq_store_writable": "0x60"}, {"rmq_store_writable": "1x60"}),
    "RmqDiskFills": ({"rmq_disk_used_ratio": "0.8x60"}, {"rmq_disk_used_ratio": "0.7x60"}),
    "RmqSlaveStopped": ({"rmq_replication_stopped": "1x60"}, {"rmq_replication_stopped": "0x60"}),
    "RmqSlaveLags": (
        {'rmq_slave_behind_bytes{slave="1"}': "100000000x60"},
        {'rmq_slave_behind_bytes{slave="1"}': "1000000x60"},
    ),
    "RmqSlaveLacksOldMessages": (
        BUILDS | {MASTER_LOG: "4096x60", SLAVE_LOG: "8192x60"},
        BUILDS | {MASTER_LOG: "4096x60", SLAVE_LOG: "4096x60"},
    ),
    "RmqSlaveFollowsNot": (
        BUILDS | {'rmq_following_master{instance="s"}': "0x60", 'rmq_following_master{instance="m"}': "0x60"},
        BUILDS | {'rmq_following_master{instance="s"}': "1x60", 'rmq_following_master{instance="m"}': "0x60"},
    ),
    "RmqSlaveNotLinked": (
        BUILDS | {'rmq_slaves{instance="m"}': "0x60", 'rmq_slaves{instance="s"}': "0x60"},
        BUILDS | {'rmq_slaves{instance="m"}': "1x60", 'rmq_slaves{instance="s"}': "0x60"},
    ),
    "RmqSlaveGone": (
        BUILDS | {'rmq_slaves{instance="m"}': "2x10 1x50", 'rmq_slaves{instance="s"}': "0x60"},
        # The slave has become the master; a slave of its own comes first.
        BUILDS | {'rmq_slaves{instance="m"}': "1x10 0x50", 'rmq_slaves{instance="s"}': "0x10 1x50"},
    ),
    "RmqSendsNotReplicated": (
        {'rmq_sends_unsure_total{reason="SLAVE_NOT_AVAILABLE"}': "0+5x60"},
        {'rmq_sends_unsure_total{reason="SLAVE_NOT_AVAILABLE"}': "7x60"},
    ),
    "RmqDiskHangs": ({"rmq_disk_waiting_seconds": "9x60"}, {"rmq_disk_waiting_seconds": "1x60"}),
    "RmqNoControllerLeads": (
        {f'rmq_controller_leading{{job="rmq", instance="{one}"}}': "0x60" for one in "ab"},
        {'rmq_controller_leading{instance="a"}': "0x60", 'rmq_controller_leading{instance="b"}': "1x60"},
    ),
    "RmqControllerStopped": (
        {"rmq_controller_stopped": "0x20 1x40"},
        {"rmq_controller_stopped": "0x60", "rmq_controller_leading": "0x60"},
    ),
    "RmqBrokerMissing": (
        {'rmq_namesrv_missing{cluster="c", broker="a"}': "1x60"},
        {'rmq_namesrv_missing{cluster="c", broker="a"}': "1x20 0x40", "rmq_namesrv_brokers": "3x60"},
    ),
    "RmqBrokerRefused": (
        {'rmq_namesrv_refused{cluster="c", broker="a"}': "1x60"},
        {'rmq_namesrv_refused{cluster="c", broker="a"}': "1x20 0x40"},
    ),
    "RmqSetRefuses": ({"rmq_set_refusing": "1x60"}, {"rmq_set_refusing": "0x60"}),
    "RmqSetWithoutMaster": (
        {"rmq_controller_sets_without_master": "1x60", "rmq_controller_leading": "1x60"},
        {"rmq_controller_sets_without_master": "1x60", "rmq_controller_leading": "0x60"},
    ),
    "RmqUncleanElection": (
        {'rmq_controller_elections_total{kind="unclean"}': "0+1x60"},
        {
            'rmq_controller_elections_total{kind="clean"}': "0+1x60",
            'rmq_controller_elections_total{kind="unclean"}': "1x60",
        },
    ),
    "RmqReplicaNotInSync": (
        {"rmq_set_in_sync": "1x60", "rmq_set_replicas": "2x60"},
        {"rmq_set_in_sync": "3x60", "rmq_set_replicas": "3x60"},
    ),
    "RmqControllersSilent": (
        {"rmq_set_controllers_silent_seconds": "20+60x60"},
        {"rmq_set_controllers_silent_seconds": "0x60"},
    ),
    "RmqGroupLags": (
        {f'rmq_consumer_lag_messages{{group="g", topic="{topic}"}}': "60000x60" for topic in "ab"},
        {f'rmq_consumer_lag_messages{{group="{group}", topic="t"}}': "60000x60" for group in "gh"},
    ),
    "RmqDeadLetters": (
        {'rmq_messages_in_total{topic="%DLQ%g"}': "0+1x60"},
        {'rmq_messages_in_total{topic="%DLQ%g"}': "7x60", 'rmq_messages_in_total{topic="T"}': "0+1x60"},
    ),
    "RmqLoopLags": (
        BUSY | {'rmq_loop_lag_seconds_bucket{le="1"}': "0+9x60"},
        BUSY | {next(iter(BUSY)): "0+9x60"},
    ),
    "RmqRefusals": ({REFUSED % "SYSTEM_BUSY": "0+600x60"}, {REFUSED % "TOPIC_NOT_EXIST": "0+600x60"}),
    "RmqCertificateEnds": (
        {"rmq_certificate_end_seconds": "86400x60"},
        {"rmq_certificate_end_seconds": "0x60", 'rmq_certificate_end_seconds{instance="b"}': "8640000x60"},
    ),
    "RmqHandshakesFail": (
        {'rmq_handshakes_failed_total{port="clients"}': "0+60x60"},
        {'rmq_handshakes_failed_total{port="clients"}': "0+1x60"},
    ),
    "RmqDescriptorsFew": (
        {'process_max_fds{job="rmq"}': "256x60"},
        {'process_max_fds{job="rmq"}': "65536x60", 'process_max_fds{job="node"}': "256x60"},
    ),
    "RmqDescriptors": (
        {"process_open_fds": "900x60", "process_max_fds": "1000x60"},
        {"process_open_fds": "700x60", "process_max_fds": "1000x60"},
    ),
}
"""For each alert: metrics, from the first of January 1970 on and a value a minute, on which it is raised
after half an hour, and others on which it is not."""


@needs_promtool
def test_each_alert_is_raised_when_it_should_be(tmp_path: pathlib.Path) -> None:
    rules = DEPLOY / "prometheus" / "alerts.yaml"
    (group,) = yaml.safe_load(rules.read_text())["groups"]
    assert {rule["alert"] for rule in group["rules"]} == SERIES.keys()
    tests = [
        {
            "name": f"{name}, {'raised' if count else 'quiet'}",
            "interval": "1m",
            "input_series": [{"series": one, "values": values} for one, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)',
                    "eval_time": "30m",
                    "exp_samples": [{"labels": "{}", "value": count}],
                }
            ],
        }
        for name, both in SERIES.items()
        for count, series in zip((1, 0), both, strict=True)
    ]
    (file := tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": [str(rules)], "tests": tests}))
    subprocess.run(["promtool", "test", "rules", file], check=True)


# --- containers ---


def taken(command: list[str], caplog: pytest.LogCaptureFixture) -> tuple[Any, ...]:
    """The settings that a command of a service asks for; none may be unknown."""
    module = SERVICES[command[0]]
    caplog.clear()
    found: tuple[Any, ...] = module.settings(module.parse(command[1:]))
    assert "not known" not in caplog.text
    return found


@pytest.mark.parametrize("file", COMPOSE, ids=lambda file: file.stem)
def test_compose_files_fit(
    file: pathlib.Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = yaml.safe_load(file.read_text())
    services = table["services"]
    for service in services.values():
        assert (file.parent / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert service["image"] == "${RMQ_IMAGE:-rmq}", "or an image that was built before is built again"
        assert service["read_only"] is True
        assert set(service.get("depends_on", ())) <= services.keys()
        if service["command"][0] == "proxy":  # keeps nothing
            assert [one.partition(":")[0] for one in service["tmpfs"]] == ["/tmp", "/data"]
            assert "uid=" not in str(service["tmpfs"]), "podman has no such option"
        else:
            (volume,) = service["volumes"]
            assert volume.partition(":")[::2] == (volume.partition(":")[0], "/data")
            assert volume.partition(":")[0] in table["volumes"]
        monkeypatch.undo()
        for name, value in service.get("environment", {}).items():
            monkeypatch.setenv(name, "compat" if name == "RMQ_PROFILE" else value)
        if "RMQ_PROXY_SECRET_FILE" in service.get("environment", {}):
            monkeypatch.setenv("RMQ_ACL_ENABLE", "true")  # as the profile has it
            monkeypatch.setattr(proxy, "account_of_proxy", lambda config: None)  # the file is made later
        config = taken(service["command"], caplog)[0]
        if isinstance(config, (BrokerConfig, ProxyConfig)):
            hosts = re.findall(r"([^:;]+):9876", config.namesrv_addr)
            assert hosts
            assert set(hosts) <= services.keys()
    volumes = [service["volumes"][0] for service in services.values() if "volumes" in service]
    assert len(set(volumes)) == len(volumes), "one store, one owner"


@pytest.mark.skipif(
    shutil.which("check-jsonschema") is None, reason="no check-jsonschema here (nox -s packages)"
)
@pytest.mark.parametrize("file", COMPOSE, ids=lambda file: file.stem)
def test_compose_s_schema_takes_the_files(file: pathlib.Path) -> None:
    subprocess.run(["check-jsonschema", "--builtin-schema", "vendor.compose-spec", file], check=True)


def test_the_image_is_of_a_user_that_is_not_root_and_knows_its_settings() -> None:
    lines = dockerfile()
    assert f"USER {USER}:{USER}" in lines
    assert sum(line.startswith("FROM ") for line in lines) == 2
    classes = (BrokerConfig, StoreConfig, NamesrvConfig, ProxyConfig)
    names = {one.name for cls in classes for one in describe(cls)}
    for name in image_environment():
        assert not name.startswith("RMQ_") or name.removeprefix("RMQ_").lower() in names, name
    (probe,) = [line for line in lines if line.startswith("HEALTHCHECK")]
    assert f":{image_environment()['RMQ_METRICS_PORT']}/ready" in probe


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="no hadolint here (nox -s packages)")
def test_hadolint_takes_the_dockerfile() -> None:
    subprocess.run(["hadolint", DEPLOY / "docker" / "Dockerfile"], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run commands as another user")
@pytest.mark.parametrize("service", ["namesrv", "broker"])
def test_the_commands_run_as_the_image_s_user_and_write_below_data_only(service: str) -> None:
    if not (python := python_of_others()):
        pytest.skip("another user may run no interpreter here")
    data = pathlib.Path(tempfile.mkdtemp(prefix="rmq-deploy-"))
    try:
        data.chmod(0o755)
        os.chown(data, USER, USER)
        settings = {
            name: value.replace("/data", str(data))
            for name, value in image_environment().items()
            if name.startswith(("RMQ_", "PYTHON", "HOME"))
        } | {"RMQ_METRICS_ADDRESS": "127.0.0.1", "RMQ_METRICS_PORT": "0", "RMQ_LISTEN_PORT": "0"}
        process = subprocess.Popen(
            [python, "-m", "rmq", service],
            env={**SHARED, **settings},
            cwd=data,
            user=USER,
            group=USER,
            extra_groups=[],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        said = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert said.startswith("rmq "), errors
        assert process.returncode == 0
        assert all(json.loads(line)["level"] in ("INFO", "WARNING") for line in errors.splitlines())
    finally:
        shutil.rmtree(data)


# --- systemd ---


@pytest.mark.parametrize("service", ["namesrv", "broker", "proxy"])
def test_settings_of_units_are_known(service: str, caplog: pytest.LogCaptureFixture) -> None:
    file = DEPLOY / "systemd" / f"{service}.conf"
    config = taken([service, "-c", str(file)], caplog)[0]
    assert config.plugins == (("grpc", "metrics") if service == "proxy" else ("metrics",))
    assert is_loopback(config.bind_address or config.broker_ip1), "until somebody says who may come in"
    unit = (DEPLOY / "systemd" / f"rmq-{service}.service").read_text()
    assert f"rmq {service} -c /etc/rmq/{service}.conf\n" in unit
    for line in ("Type=notify", "LimitNOFILE=1048576", "WatchdogSec=30", "ProtectSystem=strict"):
        assert f"{line}\n" in unit
    assert config.log_file.startswith("/var/log/rmq/"), "LogsDirectory=rmq"


needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")


def complaints(folder: pathlib.Path, service: str) -> list[str]:
    """Complaints of systemd about a unit and its additions, with users and programs of this machine."""
    name = f"rmq-{service}.service"
    unit = (DEPLOY / "systemd" / name).read_text()
    unit = re.sub(r"ExecStart=\S+", f"ExecStart={sys.executable}", unit).replace("User=rmq", "User=root")
    (folder / name).write_text(unit.replace("Group=rmq", "Group=root"))
    command = ["systemd-analyze", "verify", "--man=no", folder / name]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line for line in told.stderr.splitlines() if name in line]


@needs_systemd
@pytest.mark.parametrize("service", ["namesrv", "broker", "proxy"])
def test_systemd_takes_the_units(service: str, tmp_path: pathlib.Path) -> None:
    assert not complaints(tmp_path, service)


@needs_systemd
def test_systemd_takes_what_the_runbook_adds_for_a_java_broker_s_folder(tmp_path: pathlib.Path) -> None:
    page = (DEPLOY.parent / "docs" / "runbooks.md").read_text()
    (added,) = re.findall(r"^```ini\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (folder := tmp_path / "rmq-broker.service.d").mkdir()
    file = folder / "override.conf"
    file.write_text(added.replace("/opt/rmq/bin/rmq", sys.executable).replace("=rocketmq", "=root"))
    assert not complaints(tmp_path, "broker")
    file.write_text(added.replace("ProtectHome", "ProtectHouse").replace("/opt/rmq/bin/rmq", sys.executable))
    assert complaints(tmp_path, "broker"), "it is read"
