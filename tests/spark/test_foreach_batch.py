"""Writes inside of foreachBatch: a batch that comes again stores each row once, whatever is written and how
often, letters too."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark import InheritableThread
from pyspark.errors import PySparkException

from rmq.client import blocking
from rmq.message import Message, MessageQueue
from rmq.spark import decoded, idempotent, register, undecoded
from rmq.spark.idempotent import MicroBatch, label_of, note_write, read_notes
from tests.spark.cluster import Pair, running
from tests.spark.writing.keeping import KEEPS, bodies

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOOD, BAD = 300, 8


@pytest.fixture
def pair(tmp_path: pathlib.Path) -> Iterator[Pair]:
    with running(tmp_path / "pair", settings=KEEPS) as started:
        for topic in ("In", "Out", "Ticks", "%DLQ%readers"):
            started.make_topic(topic, 2)
        with blocking.connect(started.names) as client, client.producer("tests") as producer:
            texts = [f'{{"id": {n}}}' for n in range(GOOD)] + [f"no json {n}" for n in range(BAD)]
            for queue_id in (0, 1):
                messages = [Message("In", text.encode()) for text in texts[queue_id::2]]
                producer.send_batch(messages, queue=MessageQueue("In", started.broker, queue_id))
        yield started


def test_a_batch_that_comes_again_stores_each_row_once(
    spark: SparkSession, pair: Pair, tmp_path: pathlib.Path
) -> None:
    sink = {"nameServer": pair.names, "exactlyOnce": "true", "requireBrokers": pair.broker}
    attempts: list[int] = []

    def tick(rows: DataFrame, name: str = "") -> None:
        if name:
            register(spark)
        ticks = rows.selectExpr("'tick' as body").write.format("rmq")
        ticks.options(**sink, topic="Ticks", writeName=name).mode("append").save()

    def take(frame: DataFrame, batch_id: int) -> None:
        """The recipe of docs/spark.md; and more writes of equal rows, two of them in parallel, none of which
        is taken for another."""
        attempts.append(batch_id)
        rows = decoded(frame, "id long", bad="dlq").persist()
        good = rows.where("decodeError is null")
        good.select("body").write.format("rmq").options(**sink, topic="Out").mode("append").save()
        for _ in range(2):
            tick(good)
        threads = [InheritableThread(target=tick, args=(good, name)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        undecoded(rows, "readers").write.format("rmq").options(**sink).mode("append").save()
        rows.unpersist()
        if len(attempts) == 1:
            raise RuntimeError("killed before Spark knows")

    def run() -> None:
        frame = (
            spark.readStream.format("rmq").options(**pair.options("In", startingOffsets="earliest")).load()
        )
        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "cp"))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    with pytest.raises(PySparkException, match="killed before Spark knows"):
        run()
    run()
    assert attempts == [0, 0]
    wanted = Counter(f'{{"id": {n}}}' for n in range(GOOD))
    assert Counter(bodies(pair.names, "Out")) == wanted
    assert Counter(bodies(pair.names, "%DLQ%readers")) == Counter(f"no json {n}" for n in range(BAD))
    assert len(bodies(pair.names, "Ticks")) == 4 * GOOD


def test_the_number_of_a_write_is_noted_for_one_attempt(tmp_path: pathlib.Path) -> None:
    def batch(attempt: str) -> MicroBatch:
        local = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "3", "spark.jobGroup.id": attempt}
        found = MicroBatch.of(local.get)
        assert found is not None
        return found

    assert MicroBatch.of({}.get) is None
    first, second = batch("run-1"), batch("run-2")
    label = label_of("Out", "", "{}")
    for count in (1, 2):
        note_write(tmp_path, first, label)
        assert read_notes(tmp_path) == {first.attempt: {label: count}}
    (tmp_path / "torn.json").write_text("{")
    note_write(tmp_path, second, label)
    assert read_notes(tmp_path) == {second.attempt: {label: 1}}


def test_writes_that_end_at_the_same_time_are_both_noted(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = MicroBatch("q", "3", "q/3/run-1")
    there = idempotent.replace_file

    def replace(path: pathlib.Path, data: bytes) -> None:
        monkeypatch.setattr(idempotent, "replace_file", there)
        note_write(tmp_path, batch, "letters")  # ends while the other is about to be noted
        there(path, data)

    monkeypatch.setattr(idempotent, "replace_file", replace)
    note_write(tmp_path, batch, "rows")
    assert read_notes(tmp_path) == {batch.attempt: {"rows": 1, "letters": 1}}
