"""The client in programs that run the loop themselves, and open in one task what another task closes:
pytest-asyncio and IPython, as their users have them; and on uvloop. For web applications see
tests/unit/client/session/test_lifetime.py."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal

from rmq import embedded

ROOT = pathlib.Path(__file__).resolve().parents[3]
SECONDS = 120

SUITE = """
import pytest, pytest_asyncio
import rmq

@pytest_asyncio.fixture
async def client():
    async with rmq.connect() as client:
        yield client

@pytest_asyncio.fixture
async def producer(client):
    producer = await client.producer("suite").start()
    yield producer
    await producer.aclose()

@pytest_asyncio.fixture
async def consumer(client):
    async with client.consumer("suite-readers", {"T": "*"}, consume_from="first") as consumer:
        yield consumer

@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared():
    async with rmq.connect() as client, client.producer("shared") as producer:
        yield producer

pytestmark = pytest.mark.asyncio

@pytest.mark.parametrize("body", [b"one", b"two"])
async def test_sent_and_consumed(producer, consumer, body):
    await producer.send(rmq.Message("T", body))
    async for delivery in consumer:
        async with delivery as message:
            pass
        if message.body == body:
            break

async def test_that_fails(producer, consumer):
    assert (await producer.send(rmq.Message("T", b"three"))).status == "nothing of that kind"

@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("number", range(3))
async def test_a_fixture_of_the_module(shared, number):
    assert (await shared.send(rmq.Message("T", b"four"))).status == "SEND_OK"

@pytest.mark.asyncio(loop_scope="module")
async def test_the_loop(request):
    import asyncio
    assert LOOP in type(asyncio.get_running_loop()).__module__
"""
UVLOOP = """
import uvloop

def pytest_asyncio_loop_factories(config, item):
    return {"uvloop": uvloop.new_event_loop}
"""

CELLS = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell()
LOOP
for cell in (
    "import rmq",
    "client = await rmq.connect().start()",
    "producer = await client.producer('cells').start()\\n"
    "sent = [await producer.send(rmq.Message('T', b'note %d' % n)) for n in range(3)]",
    "consumer = await client.consumer('cell-readers', {'T': '*'}, consume_from='first').start()",
    "seen = []\\n"
    "async for delivery in consumer:\\n"
    "    async with delivery as message:\\n"
    "        seen.append(message.body)\\n"
    "    if len({body for body in seen if body.startswith(b'note')}) == 3: break",
    "await consumer.aclose()",
    "await producer.aclose(); await client.aclose()",
    "async with rmq.connect() as again, again.pull_consumer('looking') as puller:\\n"
    "    queues = await puller.message_queues('T')",
    "print('queues', len(queues), 'sent', [result.status for result in sent])",
):
    shell.run_cell(cell, store_history=False).raise_error()
"""
CELLS_ON_UVLOOP = """
import asyncio, uvloop
loop = uvloop.new_event_loop()
shell.loop_runner = loop.run_until_complete
"""


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(embedded.open(tmp_path_factory.mktemp("embedded"))) as made,
    ):
        portal.call(made.create_topic, "T", 2)
        yield made.namesrv_address


def python(folder: pathlib.Path, names: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process that knows the cluster from its environment."""
    places = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "IPYTHONDIR": str(folder)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **places, "PYTHONPATH": str(ROOT), "RMQ_NAMESRV_ADDR": names},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_fixtures_of_pytest_asyncio(loop: str, names: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pytest_asyncio")
    pytest.importorskip(loop)
    (tmp_path / "test_suite.py").write_text(f"LOOP = {loop!r}\n{SUITE}")
    (tmp_path / "conftest.py").write_text(UVLOOP if loop == "uvloop" else "")
    options = ("-q", "-p", "no:cacheprovider", "-c", "pytest.ini", "-W", "error::pytest.PytestWarning")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")

    done = python(tmp_path, names, "-m", "pytest", *options)

    assert "nothing of that kind" in done.stdout, done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("1 failed, 6 passed"), done.stdout
    assert "error" not in last


def test_the_clients_own_tests_on_uvloop() -> None:
    """The client's tests for both loops; with asyncio's own loop they are among the unit tests."""
    pytest.importorskip("uvloop")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "uvloop", "tests/unit/client"],
        cwd=ROOT,
        env={**os.environ, "RMQ_TEST_LOOPS": "uvloop"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert done.stdout.count(".") > 150


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_cells_of_ipython(loop: str, names: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("IPython")
    pytest.importorskip(loop)
    cells = CELLS.replace("LOOP", CELLS_ON_UVLOOP if loop == "uvloop" else "")

    done = python(tmp_path, names, "-c", cells)

    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("queues 2 sent ['SEND_OK', 'SEND_OK', 'SEND_OK']\n"), done.stdout
