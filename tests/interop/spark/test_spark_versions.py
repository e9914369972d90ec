"""The work of every Spark from 4.0 on with a topic; `nox -s spark_versions` brings the Sparks."""

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


def test_a_run_for_what_is_there_takes_all_of_it(tmp_path: pathlib.Path) -> None:
    """Also when one that was killed has left a batch begun, and a batch is smaller than what is there. Spark
    4.0 and 4.1 end such a query after one batch."""
    from rmq.spark import archive_table, read_jobs, read_table, run_once, session

    spark = session("ends", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    with running(tmp_path / "broker") as pair:
        for topic in ("In", "Out"):
            pair.make_topic(topic, 2)
        options = pair.options("In", startingOffsets="earliest", maxOffsetsPerTrigger="50")
        checkpoint, table = tmp_path / "checkpoint", str(tmp_path / "table")
        job = {
            "source": options,
            "select": ["body"],
            "to": {"format": "rmq", **pair.options("Out")},
            "checkpoint": str(tmp_path / "job"),
        }
        total = 0
        for round_number in range(2):
            pair.send("In", 320, first=total, queues=2)
            total += 320
            for path in (checkpoint, tmp_path / "job"):
                if commits := sorted(path.glob("commits/[0-9]*"), key=lambda one: int(one.name)):
                    commits[-1].unlink()  # as a kill before it was written leaves it
                    commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)
            archive_table(spark, options, table, to="parquet", checkpoint=str(checkpoint))
            ran = run_once(spark, read_jobs({"streams": {"copy": job}}), tell=print)
            assert not ran.errors
            whole = read_table(spark, table, to="parquet")
            assert (whole.count(), whole.select("body").distinct().count()) == (total, total), round_number
            out = spark.read.format("rmq").options(**pair.options("Out")).load()
            assert out.select("body").distinct().count() == total, round_number
    spark.stop()
