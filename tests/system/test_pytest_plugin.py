"""The fixtures in suites of users: each is run by the plug-in that it is written for, and by no other."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tomllib

import pytest

from tests.suites import PLUGIN, ROOT, run_suite

SUITE = """
import pytest
import rmq

MARKS

@pytest.fixture
def rmq_topics():
    return {"Orders": 2}


async def test_a_delay_of_two_hours(rmq_cluster, rmq_client):
    async with rmq_client.producer("shop") as producer:
        await producer.send(rmq.Message("Orders", b"late", delay_ms=7_200_000))
    await rmq_cluster.advance(7199)
    assert rmq_cluster.sent("Orders") == []
    await rmq_cluster.advance(2)
    (message,) = rmq_cluster.sent("Orders")
    assert message.body == b"late"


@pytest.mark.rmq_cluster("east", "west", topics={"Paid": 1})
async def test_a_consumer(rmq_client, rmq_cluster):
    assert [*rmq_cluster.brokers] == ["east", "west"]
    assert rmq_cluster.sent("Orders") == []  # each test has a cluster of its own
    async with rmq_client.producer("shop") as producer:
        await producer.send(rmq.Message("Paid", b"7"))
    async with rmq_client.consumer("billing", {"Paid": "*"}, consume_from="first") as consumer:
        async with await anext(consumer) as message:
            assert message.body == b"7"


async def test_a_client_alone(rmq_client):
    await rmq_client.ready(topics=["Orders"])
    await rmq_client.aclose()
"""
SCOPED = """
import asyncio
import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")
loops = set()


@pytest.mark.parametrize("number", [1, 2])
async def test_the_loop_of_a_module(rmq_cluster, rmq_client, number):
    loops.add(asyncio.get_running_loop())
    assert len(loops) == 1
    await rmq_cluster.advance(3600)
    await rmq_client.ready()
"""
BOTH_BACKENDS = """
@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param
"""
WITHOUT = {
    "asyncio": ["-p", "no:trio", "-p", "no:anyio"],
    "anyio": ["-p", "no:trio", "-p", "no:asyncio"],
    "trio": ["-p", "no:asyncio", "-p", "no:anyio"],
}
SUITES = {
    "asyncio, strict": ("pytestmark = pytest.mark.asyncio", WITHOUT["asyncio"], 3),
    "asyncio, auto": ("", [*WITHOUT["asyncio"], "-o", "asyncio_mode=auto"], 3),
    "anyio": (f"pytestmark = pytest.mark.anyio\n{BOTH_BACKENDS}", WITHOUT["anyio"], 6),
    "trio, marked": ("pytestmark = pytest.mark.trio", WITHOUT["trio"], 3),
    "trio, auto": ("", [*WITHOUT["trio"], "-o", "trio_mode=true"], 3),
    "all are there": ("pytestmark = pytest.mark.asyncio", [], 3),
}


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_passes(suite: str, tmp_path: pathlib.Path) -> None:
    runner = suite.partition(",")[0]
    pytest.importorskip({"anyio": "anyio", "trio": "pytest_trio"}.get(runner, "pytest_asyncio"))
    marks, options, passed = SUITES[suite]
    (tmp_path / "test_orders.py").write_text(SUITE.replace("MARKS", marks))
    done = run_suite(tmp_path, ["-W", "error::pytest.PytestUnraisableExceptionWarning", *options])
    assert (done.returncode, f"{passed} passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_tests_may_share_a_loop(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pytest_asyncio")
    (tmp_path / "test_scoped.py").write_text(SCOPED)
    done = run_suite(tmp_path, [])
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout


def test_a_test_that_nobody_runs_in_a_loop_is_told(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_plain.py").write_text("def test_plain(rmq_client): ...")
    done = run_suite(tmp_path, [])
    assert done.returncode == 1
    assert "are for asynchronous tests that pytest-asyncio, anyio or pytest-trio runs" in done.stdout


def test_pytest_finds_it_where_rmq_is_installed() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    assert points["pytest11"] == {"rmq": PLUGIN}


def test_it_loads_nothing_of_rmq_before_it_is_asked() -> None:
    program = f"import sys, {PLUGIN}; print([name for name in sys.modules if name.startswith('rmq')])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == str(["rmq", "rmq.testing", PLUGIN])
