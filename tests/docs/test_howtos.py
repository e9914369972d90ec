"""The programs of docs/howto run against a cluster in memory: on asyncio, on trio, and without async."""

from __future__ import annotations

import pathlib
import re
import runpy
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

import rmq
from rmq import embedded
from rmq.testing import Cluster
from tests.unit.client.world import served_in_a_thread

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "howto"
SITE = runpy.run_path(str(ROOT / "docs" / "make_site.py"))

PRINTS = {
    "ordering.md": "0 b'created'\n1 b'paid'\n2 b'shipped'\n",
    "exactly_once.md": "2 bills\n",
    "timeouts_and_retries.md": "stored\n",
    "scheduled_messages.md": "b'in ten seconds'\nb'in two hours'\n",
    "request_reply.md": "b'17 for tea'\n",
    "typed_bodies.md": "billed tea\n",
    "throughput.md": "2000\n",
    "observability.md": "b'tea'\n",
    "java_clusters.md": "SEND_OK\n",
    "from_kafka.md": "[b'tea']\n",
    "from_rabbitmq.md": "paid b'tea'\n",
    "from_nats.md": "b'tea'\n",
}
"""What the asynchronous program of a page prints."""
BLOCKING = {
    "ordering.md",
    "exactly_once.md",
    "java_clusters.md",
    "from_kafka.md",
    "from_rabbitmq.md",
    "observability.md",
}
"""Pages whose program has a blocking form and ends without waiting; type checkers see the other forms."""
WITHOUT_ASYNC = {"django.md", "workers.md", "../from_client_python.md"}
NEEDS = {"observability.md": "opentelemetry"}


def program(page: str) -> str:
    (found,) = re.findall(r"```python\n(.*?)```", (FOLDER / page).read_text("utf-8"), re.S)
    return str(found)


def test_each_page_has_a_test() -> None:
    with_program = {page.name for page in FOLDER.glob("*.md") if "```python" in page.read_text("utf-8")}
    assert with_program == PRINTS.keys() | WITHOUT_ASYNC - {"../from_client_python.md"}


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("page", PRINTS)
def test_the_program_of_a_page_runs(
    page: str, loop: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    written = program(page)
    made = written if loop == "asyncio" else SITE["as_trio"](written)
    assert made is not None, "the program has no form for trio: see as_trio in docs/make_site.py"
    main = f"{loop}.run({'main()' if loop == 'asyncio' else 'main'})"
    assert made.endswith(f"\n{main}\n")

    async def run() -> None:
        async with Cluster("a", idempotent_send_keep_time=60_000) as cluster:

            def connect(address: object, **options: Any) -> rmq.Client:
                return cluster.connect(**options)

            monkeypatch.setattr("rmq.connect", connect)
            monkeypatch.setattr("rmq.client.app.connect", connect)
            names: dict[str, Any] = {"__name__": page.removesuffix(".md")}
            exec(compile(made.removesuffix(f"{main}\n"), page, "exec"), names)
            with anyio.fail_after(3 * 3600):  # in virtual time
                await names["main"]()

    anyio.run(run, backend=loop)
    assert capsys.readouterr().out == PRINTS[page]


@pytest.fixture
def address() -> Iterator[str]:
    """The name server of a cluster for programs without async, in a thread."""
    with served_in_a_thread(Cluster("a", idempotent_send_keep_time=60_000)) as world:
        yield world.names


@pytest.mark.parametrize("page", sorted(BLOCKING))
def test_the_blocking_form_of_a_program_runs(
    page: str, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    made = SITE["as_blocking"](program(page))
    assert made is not None, "the program has no blocking form: see as_blocking in docs/make_site.py"
    made, count = re.subn(r"blocking\.connect\([^,)]*", f"blocking.connect({address!r}", made)
    assert count > 0
    exec(compile(made, page, "exec"), {"__name__": page.removesuffix(".md")})
    assert capsys.readouterr().out == PRINTS[page]


@pytest.mark.parametrize("page", sorted(WITHOUT_ASYNC))
async def test_the_program_without_async_runs(
    page: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with embedded.open(tmp_path) as system:
        made = program(page).replace("127.0.0.1:9876", system.namesrv_address)
        ends = {
            "django.md": "order_placed(7)\nproducer().close()\n",
            "workers.md": "order_placed(7)\nclose()\n",
        }
        code = compile(made + ends.get(page, ""), page, "exec")
        await anyio.to_thread.run_sync(exec, code, {"__name__": "page"})
    if page not in ends:
        assert capsys.readouterr().out == "SEND_OK\nb'tea'\n"
