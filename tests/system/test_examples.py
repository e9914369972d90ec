"""Every example, on trio and on asyncio, runs against one embedded system, and ends by itself; tests/spark
has those with Spark.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest
import trio

from rmq import embedded

FOLDER = pathlib.Path(__file__).parents[2] / "examples"
ELSEWHERE = ("command_line", "spark_archive", "spark_state")
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.stem not in ELSEWHERE)
SAYS = {
    "app": "invoice 1: 20",
    "batch": "1000 in all",
    "broadcast": "bob: news 2",
    "consumer": "paid order 9",
    "delayed": "at a time",
    "ordered": "4 created paid packed shipped",
    "producer": "sent 100 more",
    "replay": "replayed 10",
    "request_reply": "sh 23",
    "sql_filter": "sale 19 190 hz",
    "transactional": "42: rolled back: no money",
}
SECONDS = 90.0
AT_ONCE = 3


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
async def test_all_run(loop: str, tmp_path: pathlib.Path) -> None:
    outputs: dict[str, str] = {}
    limiter = trio.CapacityLimiter(AT_ONCE)

    async def run(example: pathlib.Path, address: str) -> None:
        async with limiter:
            done = await trio.run_process(
                [sys.executable, str(example), address, "--loop", loop],
                capture_stdout=True,
                stderr=subprocess.STDOUT,
                check=False,
            )
        outputs[example.stem] = done.stdout.decode()
        assert done.returncode == 0, f"{example.name}: {outputs[example.stem]}"

    async with embedded.open(tmp_path) as system:
        with trio.fail_after(SECONDS):
            async with trio.open_nursery() as nursery:
                for example in EXAMPLES:
                    nursery.start_soon(run, example, system.namesrv_address)
    assert {name: text in outputs[name] for name, text in SAYS.items()} == dict.fromkeys(SAYS, True)
    assert not [name for name, output in outputs.items() if "recalled" in output or "never mind" in output]


def test_none_is_missing() -> None:
    assert {example.stem for example in EXAMPLES} == set(SAYS)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_each_runs_on_both_loops(example: pathlib.Path) -> None:
    assert not re.search(r"\b(trio|asyncio)\.", example.read_text("utf-8"))
