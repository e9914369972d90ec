"""The secret of an account is in nothing that Spark prints: plans, progress, errors, warnings."""

from __future__ import annotations

import contextlib
import pathlib
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECRET = "hunter2-hunter2"
GIVEN = {
    "nameServer": "127.0.0.1:9",  # nobody listens
    "topic": "Orders",
    "accessKey": "reader",
    "secretKey": SECRET,
    "requestTimeoutMs": "200",
}
READ = {**GIVEN, "startingOffsets": "earliest", "pullTimeoutMs": "100"}
EXPLAINED = ("simple", "extended", "codegen", "cost", "formatted")


def plans(frame: DataFrame, capfd: Any) -> str:
    """All that Spark says of a frame before it is run."""
    for mode in EXPLAINED:
        with contextlib.suppress(PySparkException):  # some of them plan the read
            frame.explain(mode=mode)
    return str(capfd.readouterr().out) + str(frame._jdf.queryExecution().toString()) + repr(frame)


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + str(error) + repr(error)


def test_it_is_in_no_plan_and_no_error_of_a_read(spark: SparkSession, capfd: Any) -> None:
    frame = spark.read.format("rmq").options(**READ).load()
    assert "BatchScan rmq" in (shown := plans(frame.where("queueId = 1"), capfd))
    with pytest.raises(PySparkException, match=r"127\.0\.0\.1:9") as caught:
        frame.count()
    assert SECRET not in shown + text_of(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"secretkeys": SECRET},
        {"secretKeyFile": "/nowhere"},
        {"accessKey": ""},
        {"tlsCa": "/nowhere"},
        {"pullBatch": SECRET[:0]},
    ],
)
def test_it_is_in_no_error_of_wrong_options(spark: SparkSession, wrong: dict[str, str]) -> None:
    with pytest.raises(PySparkException, match="expected") as caught:
        spark.read.format("rmq").options(**{**READ, **wrong}).load().count()
    assert SECRET not in text_of(caught.value)


def test_it_is_in_no_error_of_a_write(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a",)], "body string").coalesce(1)
    given = {**GIVEN, "sendTimeoutMs": "200", "retries": "0"}
    with pytest.raises(PySparkException, match=r"127\.0\.0\.1:9") as caught:
        frame.write.format("rmq").options(**given).mode("append").save()
    assert SECRET not in text_of(caught.value)


def test_it_is_in_nothing_of_a_stream(spark: SparkSession, tmp_path: pathlib.Path, capfd: Any) -> None:
    rows = spark.readStream.format("rmq").options(**READ).load().select("body")
    out = rows.writeStream.format("rmq").options(**GIVEN).option("checkpointLocation", str(tmp_path))
    query = out.trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    query.explain(extended=True)
    shown = capfd.readouterr().out + repr(query.status) + repr(query.recentProgress)
    assert SECRET not in shown + text_of(caught.value) + plans(rows, capfd)
    assert not [
        file for file in tmp_path.rglob("*") if file.is_file() and SECRET in file.read_text("latin-1")
    ]
