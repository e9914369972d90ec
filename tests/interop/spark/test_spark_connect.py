"""Spark Connect: a server on this machine, and a client of its own process with no Java session."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys
from collections import Counter

import pytest

from rmq.client import blocking
from rmq.message import Message
from rmq.spark.runtime import java_home
from tests.interop.spark.spark_cluster import environment_of, unpacked_home
from tests.spark.cluster import running
from tests.spark.writing.keeping import KEEPS, bodies

ROWS = 300
SECONDS = 900

JOB = """
import pathlib
import sys
import time

from pyspark.sql import SparkSession

KILLED = "killed before Spark knows"
LATE = "failed to connect back"  # a Python process of Spark took longer than 10 s to start
names, folder, run_id, broker = sys.argv[1:]
attempts = pathlib.Path(folder) / "attempts"
spark = SparkSession.builder.remote("local[2]").getOrCreate()
sink = {"nameServer": names, "exactlyOnce": "true", "topic": "Out", "requireBrokers": broker}

def take(frame, batch_id):
    given = dict(sink, runId=f"copies-{batch_id}") if run_id == "run" else sink
    frame.select("body").write.format("rmq").options(**given).mode("append").save()
    with attempts.open("a") as file:
        file.write(f"{batch_id}\\n")
    if len(attempts.read_text().split()) == 1:
        raise RuntimeError(KILLED)

def run():
    for attempt in range(10):
        try:
            return query()
        except Exception as error:
            failure = str(error)
            if LATE not in failure:
                break
        time.sleep(5 * attempt)  # the late process still starts, and would delay the next one
    return failure

def query():
    options = {"nameServer": names, "topic": "In", "startingOffsets": "earliest"}
    frame = spark.readStream.format("rmq").options(**options).load()
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", folder + "/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()

first = run() or ""
print("FIRST", first)
if run_id == "run":
    if KILLED not in first:
        sys.exit("the first run must end where it is killed")
    second = run()
    if second is not None:
        sys.exit("the second run failed: " + second)
spark.stop()
"""


@pytest.mark.interop
@pytest.mark.skipif(importlib.util.find_spec("grpc_status") is None, reason="needs pyspark[connect]")
@pytest.mark.parametrize("run_id", ["run", "none"])
def test_a_repeated_batch_is_stored_once_or_refused(tmp_path: pathlib.Path, run_id: str) -> None:
    with running(tmp_path / "cluster", settings=KEEPS) as cluster, java_home() as java:
        for topic in ("In", "Out"):
            cluster.make_topic(topic, 2)
        with blocking.connect(cluster.names) as client, client.producer("tests") as producer:
            producer.send_batch([Message("In", b"row %d" % n) for n in range(ROWS)])
        environment = environment_of(unpacked_home(tmp_path), java)
        program = [sys.executable, "-c", JOB, cluster.names, str(tmp_path), run_id, cluster.broker]
        done = subprocess.run(
            program, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, done.stdout + done.stderr
        stored = Counter(bodies(cluster.names, "Out"))
    if run_id == "run":
        assert (tmp_path / "attempts").read_text().split() == ["0", "0"]
        assert stored == Counter(f"row {n}" for n in range(ROWS))
    else:
        assert "a runId beside it" in done.stdout
        assert not stored
