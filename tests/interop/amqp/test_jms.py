"""Qpid's JMS client on our broker's AMQP door: the scenarios of jms/Scenarios.java, one test for each.

`nox -s amqp` runs this. All scenarios run in one JVM, and a broker of processes serves them. The same program
runs on ActiveMQ Artemis, as a reference: what it expects is no invention of this project.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.interop.amqp.jms_program import compiled, libraries
from tests.interop.rocketmq import wait_for_port
from tests.ports import free_ports

pytest.importorskip("proton", reason="needs the extra amqp: pip install 'rmq[amqp]'")
pytestmark = pytest.mark.interop

HERE = pathlib.Path(__file__).parents[1] / "jms"
SECONDS = 60.0
RUN_SECONDS = 1_200.0
SCENARIOS = re.findall(r'ALL\.put\("(\w+)"', (HERE / "Scenarios.java").read_text("utf-8"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of processes; the URL of its AMQP door."""
    folder = tmp_path_factory.mktemp("amqp")
    port, _, amqp = free_ports(3)  # the one behind the broker's is for slaves
    (folder / "broker.conf").write_text(
        f"brokerName=b\nlistenPort={port}\nstorePathRootDir={folder}/store\nplugins=amqp\namqpPort={amqp}\n"
    )
    with (folder / "broker.log").open("w") as log:
        command = [sys.executable, "-m", "rmq.broker", "-c", str(folder / "broker.conf")]
        child = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for_port(amqp)
        yield f"amqp://127.0.0.1:{amqp}"
    finally:
        child.terminate()
        child.wait(SECONDS)


@pytest.fixture(scope="module")
def scenarios(request: pytest.FixtureRequest) -> list[str]:
    """The command that runs scenarios with Jakarta Messaging 3.1."""
    return compiled(request, "Scenarios")


def run(scenarios: list[str], url: str) -> dict[str, str]:
    """The result of each scenario: `ok`, or the reason of its failure."""
    command = [*scenarios, url, *SCENARIOS]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS)
    found = {}
    for line in ran.stdout.splitlines():
        word, _, rest = line.partition(" ")
        name, _, said = rest.partition(" ")
        found[name] = word if word == "ok" else said
    return found


@pytest.fixture(scope="module")
def results(scenarios: list[str], broker: str) -> dict[str, str]:
    """The results on our broker."""
    return run(scenarios, broker)


@pytest.fixture
def artemis(request: pytest.FixtureRequest, scenarios: list[str], tmp_path: pathlib.Path) -> Iterator[str]:
    """The URL of an embedded Artemis."""
    folder = libraries(request, "artemis", HERE / "artemis" / "pom.xml")
    shutil.copy(HERE / "artemis" / "Artemis.java", folder)
    subprocess.run([str(shutil.which("javac")), "-cp", "lib/*", "Artemis.java"], cwd=folder, check=True)
    (port,) = free_ports(1)
    command = [scenarios[0], "-Xmx512m", "-cp", f"{folder}/lib/*:{folder}", "Artemis", str(port)]
    with (tmp_path / "artemis.log").open("w") as log:
        child = subprocess.Popen([*command, str(tmp_path)], stdout=log, stderr=log)
    try:
        wait_for_port(port)
        yield f"amqp://127.0.0.1:{port}"
    finally:
        child.kill()
        child.wait()


OTHERWISE_IN_ARTEMIS = {"temporary_queue_ends_with_its_connection"}
"""Artemis makes a queue again that is sent to."""


def test_artemis_agrees(scenarios: list[str], artemis: str) -> None:
    found = run(scenarios, artemis)
    assert {name for name in SCENARIOS if found.get(name) != "ok"} <= OTHERWISE_IN_ARTEMIS, found


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_of_jakarta_messaging(results: dict[str, str], name: str) -> None:
    assert results.get(name, "it did not run") == "ok"
