"""A stream from two brokers into a topic on the same two, killed by SIGKILL again and again, while they are
killed and started again in turn. RMQ_SPARK_KILLS says how often (20).

Driver, Java and workers die at once, at any moment of a batch; the brokers keep what idempotent producers
have sent. Each message of the first topic is in the second in the end, and none more often.
"""

from __future__ import annotations

import os
import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest

from rmq.client import blocking
from tests.crash.spark.stream import BROKERS, Stream, campaign, stored
from tests.interop.rocketmq import Processes

pytest.importorskip("pyspark")

pytestmark = pytest.mark.crash

KILLS = int(os.environ.get("RMQ_SPARK_KILLS", "20"))
SEED = int(os.environ.get("RMQ_KILL_SEED", "1"))
OUT = "LakeOut"

JOB = """
import json, sys
from rmq.spark import session

given = json.loads(sys.argv[1])
spark = session("killed", master="local[2]", settings=given["settings"])
frame = spark.readStream.format("rmq").options(startingOffsets="earliest", **given["options"]).load()
options = {name: given["options"][name] for name in ("nameServer", "requireBrokers")}
writer = frame.select("body").writeStream.format("rmq").options(topic="LakeOut", exactlyOnce="true")
writer = writer.options(**options).option("checkpointLocation", given["checkpoint"])
if given["every"] is None:
    writer = writer.trigger(availableNow=True)
else:
    writer = writer.trigger(processingTime=f"{given['every']} seconds")
writer.start().awaitTermination()
spark.stop()
"""


@pytest.fixture
def processes(tmp_path: pathlib.Path) -> Iterator[Processes]:
    with Processes(cast(Any, None), tmp_path) as started:
        yield started


def test_a_stream_into_a_topic_that_is_killed_again_and_again_writes_every_message_once(
    processes: Processes, tmp_path: pathlib.Path
) -> None:
    stream = Stream(processes, tmp_path, JOB, of_brokers={"idempotentSendKeepTime": "3600000"})
    with blocking.connect(stream.namesrv) as client:
        client.admin.create_topic(OUT, queues=2)
    writers = campaign(stream, KILLS, SEED)
    read = Counter(stored(stream.namesrv).values())
    written = stored(stream.namesrv, OUT)
    bodies = Counter(written.values())
    lost, doubled = (read - bodies).total(), (bodies - read).total()
    print(
        f"seed {SEED}: {KILLS} kills, {read.total()} messages ({len(writers.acknowledged)} acknowledged),"
        f" {bodies.total()} written, {lost} lost, {doubled} doubled"
    )
    assert read.total() > 100 * KILLS
    assert {broker for broker, _, _ in written} == set(BROKERS)
    assert (lost, doubled) == (0, 0)
