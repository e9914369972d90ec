"""The pictures in docs/images are what the reports show now."""

from __future__ import annotations

import pathlib
import runpy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_the_pictures_are_current(spark: SparkSession, tmp_path: pathlib.Path) -> None:
    made = runpy.run_path(str(ROOT / "docs" / "reference" / "make_pictures.py"))["pictures"](spark, tmp_path)
    there = (ROOT / "docs" / "images").glob("*.svg")  # "drawn-": of make_drawings.py, see test_links.py
    found = {path.name: path.read_text("utf-8") for path in there if not path.name.startswith("drawn-")}
    assert found == made, "run docs/reference/make_pictures.py"
