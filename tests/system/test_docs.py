"""The programs in README.md and docs/tutorial.md run as they stand, beside `rmq dev`."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

from tests.system.test_demo import running_dev

ROOT = pathlib.Path(__file__).resolve().parents[2]

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


def programs(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.S)


@pytest.mark.parametrize("page", EXPECTED)
def test_the_programs_of_a_page_run(page: str, tmp_path: pathlib.Path) -> None:
    found = programs(page)
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
