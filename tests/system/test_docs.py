"""The programs of the pages run as they stand, beside `rmq dev`: each on asyncio, and in its form for trio.

A block that imports neither loop runs as part of both.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.docs.blocks import ROOT, blocks
from tests.suites import run_suite
from tests.system.running import running_dev

LOOPS = ("asyncio", "trio")

# What each program must have printed, page by page.
EXPECTED: dict[str, tuple[str, ...]] = {
    "README.md": (r"SEND_OK .*\n[^$]*created b'created'\npaid b'paid'\n",),
    "docs/tutorial.md": (
        r"^SEND_OK MessageQueue\(topic='Orders'",
        r"^$",
        r"(?:[0-9]+ [0-9]+ .*\n){500}",
        r"^\[b'created', b'paid', b'shipped'\]\n$",
        r"^rolled back: card refused\ncommitted: b'42'\n$",
        r"^b'by level 1: 1 s'\nb'at a time'\n$",
        r"^b'17 for hz'\n$",
        r"^Invoices \('7',\) 1\n1 sent again\nagain: b'no address'\n$",
        r"^Pub found by the message's id\n$",
        r"^20 notes\n$",
        r"^515 messages\n$",
    ),
    "docs/stopping.md": (r"^handled b'paid 42'\nall ended by themselves: True\n$",),
    "docs/logging.md": (
        r"ERROR rmq.client.delivery billing: attempt 1 of message \w+ of Orders \(queue . of \S+, offset 0, "
        r"tag paid, keys 42\) failed; redelivered in 0.1 s \(attempt 2 of 17\)\nTraceback",
    ),
    "docs/app.md": (r"^billed tea\ninvoice for 7\n$",),
    "docs/fastapi.md": (
        # The handler prints in a thread of its own, and unbuffered output comes in pieces.
        r"^(?=(.|\n)*packed)(?=(.|\n)*tea)(?=(.|\n)*<Resp)"
        r"(packed| |tea|<Response \[202 Accepted\]>|\n)+closed\n$",
        r"^<Response \[202 Accepted\]>\nclosed\n$",
    ),
    "docs/duplicates.md": (r"^(bill of 1[78]\n){2}\(2,\)\n$",),
    "docs/consumers.md": (r"^$", r"^(asked\n)+$", r"^$"),
    "docs/reference/errors.md": (r"^InvalidMessage; give up; .*\n$",),
    "docs/reference/admin.md": (r"^1\n$", r"^\[.*'Orders'.*\]\n$"),
}

# What runs around a program of a page, which stands at BLOCK.
GIVEN = """
from rmq.client import blocking

with blocking.connect("127.0.0.1:9876") as client:
    for topic in ("Orders", "Invoices"):
        client.admin.create_topic(topic, queues=8)

BLOCK
"""
CONSUMED = """
import rmq
from rmq.client import blocking

with blocking.connect("127.0.0.1:9876") as client, client.producer("shop") as producer:
    producer.send(rmq.Message("Orders", b"paid 42"))
    with client.consumer("billing", {"Orders": "*"}) as consumer:
        consumer.take(10).done()

BLOCK
"""
STOPS = """
import os, signal, threading
import rmq
from rmq.client import blocking

with blocking.connect("127.0.0.1:9876") as client, client.producer("shop") as producer:
    producer.send(rmq.Message("Orders", b"paid 42"))
threading.Timer(3, os.kill, (os.getpid(), signal.SIGTERM)).start()

BLOCK
"""
APPLICATION = f"""
{GIVEN}
import anyio

async def main():
    async with app:
        await app.send("Orders", Order(7, "tea"))
        await anyio.sleep(3)

anyio.run(main, backend="LOOP")
"""
SERVED = f"""
{GIVEN}
import time
from starlette.testclient import TestClient

with TestClient(web, backend="LOOP") as browser:
    print(browser.post("/orders", json={{"number": 7, "item": "tea"}}))
    time.sleep(3)
print("closed")
"""
FRAGMENT = """
import anyio, rmq

async def main():
    stopped = anyio.Event()
    stopped.set()

    async def handle(message):
        print("nothing was sent")

    class database:
        async def offset_of(queue):
            print("asked")
            return 0

    async with rmq.connect("127.0.0.1:9876") as client, anyio.create_task_group() as tasks:
        await client.admin.create_topic("Orders", queues=8)
        BLOCK

anyio.run(main, backend="LOOP")
"""
NOTEBOOK = """
import ast, asyncio, inspect

async def run(cells):
    names = {}
    for number, cell in enumerate(cells):
        value = eval(compile(cell, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if inspect.isawaitable(value):
            await value
        if "client.close()" in cell:
            print("closed")

asyncio.run(run(CELLS))
"""
AROUND = {
    "docs/stopping.md": (STOPS,),
    "docs/app.md": (APPLICATION,),
    "docs/duplicates.md": (GIVEN,),
    "docs/fastapi.md": (SERVED, SERVED),
    "docs/consumers.md": (FRAGMENT,) * 3,
    "docs/reference/admin.md": (CONSUMED, CONSUMED),
}


def whole(page: str, number: int, program: str, loop: str) -> str:
    """The program that is run for a program of a page."""
    around = AROUND[page][number] if page in AROUND else "BLOCK"
    if around is FRAGMENT:
        program = program.replace("    ...\n", "    await anyio.sleep(1)\n").replace("\n", "\n        ")
    return around.replace("BLOCK", program).replace("LOOP", loop)


RUN_SECONDS = 180
"""For a program, on a machine with much else to do."""
PATIENT = {"RMQ_SEND_TIMEOUT_MS": "30000", "RMQ_REQUEST_TIMEOUT_MS": "30000"}
"""There a broker may take longer to answer than the settings of the pages allow, which are the usual ones."""


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program as a process."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | PATIENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )


NEEDS = {"docs/fastapi.md": ("fastapi", "httpx2")}
"""What must be installed for the programs of a page."""
LOGS = {"docs/logging.md"}
"""Pages whose programs log."""


def loops_of(program: str) -> set[str]:
    """The loops that a block is for."""
    named = {loop for loop in LOOPS if re.search(rf"^import {loop}$", program, re.M)}
    return named or set(LOOPS)


def programs(page: str, loop: str) -> list[str]:
    """The programs of a page; a block for a file `test_*.py` is none."""
    found = [program for program in blocks(page) if not program.startswith("# test_")]
    return [program for program in found if loop in loops_of(program)]


@pytest.mark.parametrize("page", EXPECTED)
def test_each_program_comes_for_asyncio_first_and_then_for_trio(page: str) -> None:
    single = [loop for program in blocks(page) if len(loop := loops_of(program)) == 1]
    assert single == [{loop} for loop in LOOPS] * (len(single) // 2)


def shape(program: str) -> list[str]:
    """The statements of a program about rmq: equal in both forms."""
    return re.findall(r"(?:client|producer|consumer|puller|rmq|delivery|app)\.(\w+)", program)


@pytest.mark.parametrize("page", EXPECTED)
def test_both_forms_are_the_same_program(page: str) -> None:
    for first, second in zip(programs(page, "asyncio"), programs(page, "trio"), strict=True):
        assert sorted(shape(first)) == sorted(shape(second))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("page", EXPECTED)
def test_the_programs_of_a_page_run(page: str, loop: str, tmp_path: pathlib.Path) -> None:
    for name in NEEDS.get(page, ()):
        pytest.importorskip(name)
    found = programs(page, loop)
    assert len(found) == len(EXPECTED[page])
    with running_dev(tmp_path) as (addresses, _):
        for number, (program, expected) in enumerate(zip(found, EXPECTED[page], strict=True)):
            complete = whole(page, number, program, loop)
            assert "127.0.0.1:9876" in complete
            here = complete.replace("127.0.0.1:9876", addresses[0])
            done = run(here)
            assert (done.returncode, "" if page in LOGS else done.stderr) == (0, "")
            said = done.stderr if page in LOGS else done.stdout
            assert re.search(expected, said), said


def test_the_cells_of_the_page_on_notebooks_run(tmp_path: pathlib.Path) -> None:
    cells = blocks("docs/notebooks.md")
    assert len(cells) == 8
    with running_dev(tmp_path) as (addresses, _):
        here = [cell.replace("127.0.0.1:9876", addresses[0]) for cell in cells]
        done = run(NOTEBOOK.replace("CELLS", repr(here)))
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.split("closed\n")
    assert sorted(first.splitlines()) == [f"note {number}" for number in range(5)]
    assert second.count("\n") == 4


RUNNERS = {"asyncio": ["-p", "no:trio"], "trio": ["-p", "no:asyncio", "-o", "trio_mode=true"]}


def write_settings(page: str, folder: pathlib.Path) -> None:
    """What the page says about pytest-asyncio, as the settings of the project in a folder."""
    (settings,) = blocks(page, "toml")
    (folder / "pyproject.toml").write_text(settings)


@pytest.mark.parametrize("loop", LOOPS)
def test_the_tests_of_the_page_on_testing_pass(loop: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip(f"pytest_{loop}")
    found = programs("docs/testing.md", loop)
    assert len(found) == 3
    for number, program in enumerate(found):
        (tmp_path / f"test_block_{number}.py").write_text(program)
    if loop == "asyncio":
        write_settings("docs/testing.md", tmp_path)
    done = run_suite(tmp_path, RUNNERS[loop])
    assert (done.returncode, "3 passed" in done.stdout, done.stderr) == (0, True, ""), done.stdout


def test_the_test_of_the_page_on_fastapi_passes(tmp_path: pathlib.Path) -> None:
    for name in ("fastapi", "httpx2", "pytest_asyncio"):
        pytest.importorskip(name)
    first, _, test = blocks("docs/fastapi.md")
    for program in (first, test):
        (tmp_path / program.splitlines()[0].removeprefix("# ")).write_text(program)
    write_settings("docs/fastapi.md", tmp_path)
    done = run_suite(tmp_path, RUNNERS["asyncio"])
    assert (done.returncode, "1 passed" in done.stdout, done.stderr) == (0, True, ""), done.stdout


def test_the_page_on_testing_has_the_same_test_for_both_loops() -> None:
    first, second = (
        [block for block in blocks("docs/testing.md") if loops_of(block) == {loop}] for loop in LOOPS
    )
    (asyncio_form,), (trio_form,) = first, second
    as_trio = asyncio_form.replace("import asyncio", "import trio")
    assert as_trio.replace("asyncio.get_running_loop().time", "trio.current_time") == trio_form
