"""The number of batches that a checkpoint has had."""

from __future__ import annotations

import pathlib

from tests.crash.spark.processes import batches_in


def test_batches_are_counted_though_spark_deletes_old_files(tmp_path: pathlib.Path) -> None:
    assert batches_in(tmp_path / "commits") == 0
    (tmp_path / "commits").mkdir()
    for number in range(100, 250):
        (tmp_path / "commits" / str(number)).touch()
        (tmp_path / "commits" / f".{number}.crc").touch()
    assert batches_in(tmp_path / "commits") == 250
