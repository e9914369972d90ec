"""The programs of the pages run as they stand, beside `rmq dev`: each on asyncio, and in its form for trio.

A block that imports neither loop runs as part of both.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

from tests.system.test_demo import running_dev

ROOT = pathlib.Path(__file__).resolve().parents[2]
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
}


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.S)


def loops_of(program: str) -> set[str]:
    """The loops that a block is for."""
    named = {loop for loop in LOOPS if re.search(rf"^import {loop}$", program, re.M)}
    return named or set(LOOPS)


def programs(page: str, loop: str) -> list[str]:
    return [program for program in blocks(page) if loop in loops_of(program)]


@pytest.mark.parametrize("page", EXPECTED)
def test_each_program_comes_for_asyncio_first_and_then_for_trio(page: str) -> None:
    single = [loop for program in blocks(page) if len(loop := loops_of(program)) == 1]
    assert single == [{loop} for loop in LOOPS] * (len(single) // 2)


def shape(program: str) -> list[str]:
    """What a program says of rmq: the same in both forms."""
    return re.findall(r"(?:client|producer|consumer|puller|rmq|delivery|app)\.(\w+)", program)


@pytest.mark.parametrize("page", EXPECTED)
def test_both_forms_are_the_same_program(page: str) -> None:
    for first, second in zip(programs(page, "asyncio"), programs(page, "trio"), strict=True):
        assert sorted(shape(first)) == sorted(shape(second))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("page", EXPECTED)
def test_the_programs_of_a_page_run(page: str, loop: str, tmp_path: pathlib.Path) -> None:
    found = programs(page, loop)
    assert len(found) == len(EXPECTED[page])
    with running_dev(tmp_path) as (addresses, _):
        for program, expected in zip(found, EXPECTED[page], strict=True):
            assert "127.0.0.1:9876" in program
            here = program.replace("127.0.0.1:9876", addresses[0])
            done = subprocess.run(
                [sys.executable, "-c", here], cwd=ROOT, capture_output=True, text=True, timeout=60
            )
            assert (done.returncode, done.stderr) == (0, "")
            assert re.search(expected, done.stdout), done.stdout
