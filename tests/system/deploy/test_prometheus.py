"""A real Prometheus scrapes real servers: each rule and panel of deploy/ is evaluated on what they say."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.ports import free_ports
from tests.system.containers import DEPLOY
from tests.system.drill import TOPIC, Drill, Server, until
from tests.system.running import brokers_of_a_set, let_control

pytestmark = [
    pytest.mark.packages,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus here (Debian's package)"),
]
JOINED = "rmq_commitlog_min_offset_bytes * on (instance, process) group_left (broker_id) rmq_build_info"
"""Of the rule on a slave's log: one row for each broker."""


RARE = {
    "Refusals",
    "Sent back to be consumed again",
    "Given up (dead letters)",
    "Connections refused",
    "Brokers that are missing or refused",
    "Stored, and not as safe as asked",
}
"""Panels of what does not happen here."""


def panels() -> Iterator[tuple[str, str]]:
    """All panels' titles and expressions, for all values of their variables."""
    for file in sorted(DEPLOY.glob("grafana/*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                yield panel["title"], re.sub(r"\$\w+", ".*", target["expr"])


@contextmanager
def prometheus(folder: pathlib.Path, targets: list[str]) -> Iterator[str]:
    """One that scrapes every second; where it answers."""
    table = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DEPLOY / "prometheus" / "alerts.yaml")],
        "scrape_configs": [{"job_name": "rmq", "static_configs": [{"targets": targets}]}],
    }
    (file := folder / "prometheus.yml").write_text(yaml.safe_dump(table))
    (port,) = free_ports(1)
    words = [f"--config.file={file}", f"--storage.tsdb.path={folder}/tsdb"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            ["prometheus", *words, f"--web.listen-address=127.0.0.1:{port}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def asked(url: str, path: str, **query: str) -> Any:
    """The data of an answer; None while it does not answer."""
    try:
        with urllib.request.urlopen(
            f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=30
        ) as got:
            answer = json.load(got)
    except (urllib.error.URLError, ConnectionError):
        return None
    assert answer["status"] == "success", answer
    return answer["data"]


def rows(url: str, expression: str) -> list[Any]:
    found = asked(url, "query", query=expression)
    return [] if found is None else list(found["result"])


def test_rules_and_panels_are_evaluated_on_real_servers(tmp_path: pathlib.Path) -> None:
    run = Drill(tmp_path, "")
    try:
        names = run.name_server(start=False)
        let_control(run, names, [names])
        names.start()
        master, slave = brokers_of_a_set(run, names.address)
        targets = [f"127.0.0.1:{server.settings['metricsPort']}" for server in (names, master, slave)]
        with prometheus(tmp_path, targets) as url:
            traffic = run.load()
            until(lambda: len(rows(url, 'up{job="rmq"} == 1')) == 3, lambda: "not all are scraped")
            assert run.read(wanted=len(traffic.stored))

            for title, expression in panels():
                if title in RARE:
                    rows(url, expression)  # evaluated, if there is nothing to see
                else:
                    until(lambda asked=expression: rows(url, asked), lambda title=title: f"{title} is empty")

            def states() -> dict[str, tuple[str, str]]:
                (group,) = asked(url, "rules")["groups"]
                return {rule["name"]: (rule["health"], rule["state"]) for rule in group["rules"]}

            until(lambda: {health for health, _ in states().values()} == {"ok"}, lambda: str(states()))

            def raised() -> set[str]:
                return {name for name, (_, state) in states().items() if state != "inactive"}

            # Nothing is wrong, but perhaps busy; a replica may just have come into sync.
            until(lambda: raised() <= {"RmqLoopLags"}, lambda: str(raised()))
            assert len({row["metric"]["broker_id"] for row in rows(url, JOINED)}) == 2
            slave.end()
            until(lambda: states()["RmqDown"][1] == "pending", lambda: "nobody notices that one is away")
    finally:
        run.stop()


def alerts(url: str) -> set[str]:
    """The alerts that are raised, or will be in a while."""
    return {row["metric"]["alertname"] for row in rows(url, "ALERTS")} - {"RmqLoopLags"}


def figure(url: str, expression: str) -> float | None:
    found = rows(url, expression)
    return float(found[0]["value"][1]) if found else None


def address(server: Server) -> str:
    return f"127.0.0.1:{server.settings['metricsPort']}"


LAG = f'sum by (group) (rmq_consumer_lag_messages{{group="g", topic="{TOPIC}"}})'
LEGENDS = re.compile(r"{{(\w+)}}")


def send_to_a_group_that_is_away(run: Drill, url: str) -> int:
    """Send some messages, and wait until all are the lag of a group without members; return their number."""
    traffic = run.load()
    traffic.go_on(100)
    traffic.stop()
    sent = len(traffic.stored)
    run.shell.ok("group", "create", "g")
    run.shell.ok("group", "reset", "g", TOPIC, "--to", "earliest", "--yes")
    until(lambda: figure(url, LAG) == sent, lambda: f"{figure(url, LAG)}, and {sent} were sent")
    return sent


def legends(url: str) -> Iterator[tuple[str, list[str]]]:
    """All panels' targets, each with the legends of its rows."""
    for file in sorted(DEPLOY.glob("grafana/*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                found = rows(url, re.sub(r"\$\w+", ".*", target["expr"]))
                words = target["legendFormat"]
                yield (
                    f"{panel['title']}: {target['expr']}",
                    [LEGENDS.sub(lambda name: row["metric"].get(name[1], ""), words) for row in found],  # noqa: B023
                )


def test_panels_and_lag_of_masters_without_slaves_with_two_and_of_processes(tmp_path: pathlib.Path) -> None:
    run = Drill(tmp_path, "")
    try:
        names = run.name_server()
        two = run.broker("b", start=False)
        two.options = ("--processes", "2")
        two.start()
        alone, master = run.broker("alone"), run.broker("a")
        slaves = [
            run.broker(f"a-{number}", brokerName="a", brokerRole="SLAVE", brokerId=str(number))
            for number in (1, 2)
        ]
        targets = [address(server) for server in (names, two, alone, master, *slaves)]
        with prometheus(tmp_path, targets) as url:
            until(lambda: len(rows(url, 'up{job="rmq"} == 1')) == 6, lambda: "not all are scraped")
            sent = send_to_a_group_that_is_away(run, url)
            assert figure(url, f'sum(rmq_topic_messages{{topic="{TOPIC}"}})') == sent
            assert (
                figure(url, f'sum(max_over_time(rmq_consumer_lag_messages{{topic="{TOPIC}"}}[1m]))') == sent
            )

            copied = 'count(rmq_slave_behind_bytes{slave=~"[12]"} == 0)'
            until(lambda: figure(url, copied) == 2, lambda: "slaves do not come near")
            for title, found in legends(url):
                assert len(set(found)) == len(found), f"{title} does not tell its rows apart: {found}"
            assert len(rows(url, "rmq_disk_used_ratio")) == 6, "two processes, and four more brokers"
            until(lambda: not alerts(url), lambda: str(alerts(url)))
            # The rule looks at what there was at full minutes.
            known = "max(max_over_time(rmq_slaves[6h:1m])) == 2"
            until(lambda: rows(url, known), lambda: str(rows(url, "rmq_slaves")))
            slaves[1].end()
            until(lambda: "RmqSlaveGone" in alerts(url), lambda: str(alerts(url)))
    finally:
        run.stop()


def test_a_failover_moves_no_figure_of_a_group_and_raises_nothing_for_good(tmp_path: pathlib.Path) -> None:
    run = Drill(tmp_path, "")
    try:
        names = run.name_server(start=False)
        let_control(run, names, [names])
        names.start()
        master, slave = brokers_of_a_set(run, names.address)
        with prometheus(tmp_path, [address(server) for server in (names, master, slave)]) as url:
            sent = send_to_a_group_that_is_away(run, url)
            until(lambda: not alerts(url), lambda: str(alerts(url)))
            run.shell.ok("broker", "handover", master.settings["brokerName"])
            until(
                lambda: rows(url, f'rmq_build_info{{instance="{address(slave)}", broker_id="0"}}'),
                lambda: "the replica is not shown as the master",
            )
            until(lambda: figure(url, LAG) == sent, lambda: f"{figure(url, LAG)}, and {sent} were sent")
            until(lambda: not alerts(url), lambda: str(alerts(url)))
            seen = asked(url, "query", query=f"({LAG})[5m:1s]")["result"]
            assert {float(value) for _, value in seen[0]["values"]} <= {float(sent), 0.0}
    finally:
        run.stop()
