"""The cells of docs/spark_tutorial.md print what the page says, and the example runs."""

from __future__ import annotations

import pathlib
import re
import runpy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.cluster import Pair, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = pathlib.Path(__file__).resolve().parents[3]
CELL = re.compile(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", re.S)


@pytest.fixture
def pair(tmp_path: pathlib.Path) -> Iterator[Pair]:
    with running(tmp_path / "pair") as started:
        yield started


def test_the_cells_print_what_the_page_says(
    spark: SparkSession, pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = CELL.findall((ROOT / "docs" / "spark_tutorial.md").read_text("utf-8"))
    assert len(cells) >= 10
    names: dict[str, Any] = {}
    for program, expected in cells:
        exec(compile(program.replace("127.0.0.1:9876", pair.names), "cell", "exec"), names)
        assert capsys.readouterr().out.strip() == expected.strip(), program
    assert names["spark"] is spark


def test_the_example_runs(
    spark: SparkSession, pair: Pair, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "spark_archive.py"))
    example["send"](pair.names)
    example["archive"](spark, pair.names, str(tmp_path / "archive"))
    printed = capsys.readouterr().out
    assert "300 messages archived" in printed
    assert "0 more" in printed
    assert len(re.findall(r"(?m)^\d{4}-\d\d-\d\d (?:created|paid|shipped) ", printed)) >= 3
