"""What every Spark from 4.0 on must do with a topic; `nox -s spark_versions` brings the Sparks."""

from __future__ import annotations

import pathlib

import pytest

from tests.spark.cluster import running

pytest.importorskip("pyspark")

pytestmark = pytest.mark.interop


def test_batches_and_streams(tmp_path: pathlib.Path) -> None:
    import pyspark

    from rmq.spark import session

    print(f"Spark {pyspark.__version__}")
    spark = session("versions", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    with running(tmp_path / "broker") as pair:
        for topic in ("In", "Out"):
            pair.make_topic(topic, 4)
        pair.send("In", 100, queues=4, tags="x")
        frame = spark.read.format("rmq").options(**pair.options("In")).load()
        assert frame.where("queueOffset >= 5 and tags = 'x'").count() == 80
        nothing = {"nameServer": pair.names, "topicPattern": "None.*", "requireTopics": "false"}
        assert spark.read.format("rmq").options(**nothing).load().count() == 0
        rows = spark.readStream.format("rmq").options(**pair.options("In", startingOffsets="earliest"))
        copies = spark.read.format("rmq").options(**pair.options("Out")).load()

        def copy() -> None:
            made = rows.load().select("body", "tags")
            out = made.writeStream.format("rmq").options(**pair.options("Out"))
            out = out.option("checkpointLocation", str(tmp_path / "checkpoint"))
            out.trigger(availableNow=True).start().awaitTermination()

        copy()
        assert copies.count() == 100
        copy()
        assert spark.read.format("rmq").options(**pair.options("Out")).load().count() == 100
        pair.send("In", 60, first=100, queues=4)
        copy()
        found = spark.read.format("rmq").options(**pair.options("Out")).load().select("body").collect()
        assert sorted(bytes(row.body) for row in found) == sorted(b"b%d" % at for at in range(160))
    spark.stop()
