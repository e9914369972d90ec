"""`rmq spark run` as a process: streams of a file, until SIGTERM."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import yaml

pytest.importorskip("pyspark")

from tests.spark.cluster import counting, running
from tests.spark.reading.streams import file_of

SECONDS = 240


@pytest.mark.long
def test_the_command_runs_streams_until_sigterm(tmp_path: pathlib.Path) -> None:
    with running(tmp_path / "pair") as pair, counting(pair) as count:
        for topic in ("RunFiles", "RunIn", "RunOut"):
            pair.make_topic(topic, 1)
        pair.send("RunIn", 15, queues=1)
        before = count("RunOut")
        file = tmp_path / "jobs.yaml"
        file.write_text(yaml.safe_dump(file_of(pair, tmp_path, port=0), sort_keys=False))
        command = [sys.executable, "-m", "rmq", "spark", "run", str(file), "--master", "local[2]"]
        checked = subprocess.run(
            [*command, "--check", "-o", "json"], capture_output=True, text=True, timeout=SECONDS, check=True
        )
        assert [row["name"] for row in json.loads(checked.stdout)] == ["files", "copies"]
        with (tmp_path / "said").open("wb") as said:
            process = subprocess.Popen(
                command, stdout=said, stderr=said, env={**os.environ, "PYTHONUNBUFFERED": "1"}
            )
        try:
            began = time.monotonic()
            while count("RunOut") < before + 15:
                assert process.poll() is None, (tmp_path / "said").read_text()
                assert time.monotonic() < began + SECONDS, (tmp_path / "said").read_text()
                time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 0, (tmp_path / "said").read_text()
        finally:
            process.kill()
            process.wait()
        lines = (tmp_path / "said").read_text().splitlines()
        assert {"files: started", "copies: started", "stopping"} <= set(lines)
