"""Other clients of AMQP 1.0 and JMS on our door: each sends and receives.

JMS 2.0 (Qpid JMS 1.x, javax.jms), Spring's JmsTemplate with a listener container, qpid-proton's client, rhea
for Node, and go-amqp.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.interop.amqp.broker import Served, served
from tests.interop.amqp.jms_program import HERE as JMS
from tests.interop.amqp.jms_program import compiled, libraries
from tests.interop.amqp.programs import said

pytest.importorskip("proton", reason="needs the extra amqp: pip install 'rmq[amqp]'")
pytestmark = pytest.mark.interop

HERE = pathlib.Path(__file__).parent
COUNT = 50


@pytest.fixture
def broker(tmp_path: pathlib.Path) -> Iterator[Served]:
    with served(tmp_path) as one:
        yield one


def test_jms_2(request: pytest.FixtureRequest, broker: Served) -> None:
    folder = libraries(request, "jms-1", JMS / "one" / "pom.xml")
    source = (JMS / "RoundTrip.java").read_text("utf-8").replace("jakarta.jms", "javax.jms")
    (folder / "RoundTrip.java").write_text(source, "utf-8")
    subprocess.run(["javac", "-cp", "lib/*", "RoundTrip.java"], cwd=folder, check=True)
    assert said(["java", "-cp", f"{folder}/lib/*:{folder}", "RoundTrip", broker.url]) == "ok a table 5"


def test_spring(request: pytest.FixtureRequest, broker: Served) -> None:
    program = compiled(request, "Spring", "jms-spring", "spring/pom.xml")
    assert said([*program, broker.url]) == "ok 100 10 0 by the template null"


def test_proton(broker: Served) -> None:
    line = said([sys.executable, str(HERE / "proton_client.py"), f"127.0.0.1:{broker.amqp}", str(COUNT)])
    assert line.split() == ["ok", *(f"{number}proton" for number in range(COUNT))]


def test_rhea(request: pytest.FixtureRequest, broker: Served) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("needs Node and npm")
    folder = pathlib.Path(request.config.cache.mkdir("rhea")).resolve()
    for name in ("package.json", "client.js"):
        shutil.copy(HERE / "rhea" / name, folder)
    if not (folder / "node_modules" / "rhea").exists():
        subprocess.run([npm, "install", "--no-audit", "--no-fund"], cwd=folder, check=True)
    line = said([node, "client.js", str(broker.amqp), str(COUNT)], folder)
    assert line.split() == ["ok", *(f"{number}rhea" for number in range(COUNT))]


def test_go_amqp(request: pytest.FixtureRequest, broker: Served) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs Go")
    folder = pathlib.Path(request.config.cache.mkdir("go-amqp")).resolve()
    for name in ("go.mod", "main.go"):
        shutil.copy(HERE / "go" / name, folder)
    environment = os.environ | {"GOFLAGS": "-mod=mod"}
    subprocess.run([go, "build", "-o", "client", "."], cwd=folder, check=True, env=environment)
    line = said([str(folder / "client"), broker.url, str(COUNT)])
    expected = {f"m{number}/{number}/{int(number == 0)}" for number in range(COUNT)}
    assert line.startswith("ok ")
    assert sorted(line.split()[1:]) == sorted(expected)
