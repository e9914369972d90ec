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
from tests.system.drill import Drill, until
from tests.system.test_failover_runbooks import brokers_of_a_set, let_control

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
