"""Sending again on real Spark against a real broker: each row once for a run, marked, kept, at a rate."""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from rmq.client import blocking
from rmq.errors import ConfigError
from rmq.message import Message
from rmq.spark import Run, count_letters, dead_letters, replay, resend
from rmq.spark.pipelines.progress import JobProgress, lag_of
from rmq.spark.sink import RateLimiter
from tests.spark.cluster import Pair, running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running(tmp_path_factory.mktemp("pair")) as started:
        yield started


def read(spark: SparkSession, pair: Pair, topic: str) -> DataFrame:
    return spark.read.format("rmq").options(**pair.options(topic)).load()


def bodies(rows: list[Any]) -> Counter[str]:
    return Counter(bytes(row.body).decode() for row in rows)


def numbers(count: int) -> Counter[str]:
    return Counter(f"b{number}" for number in range(count))


def test_a_run_sends_each_row_once_however_often_it_is_started(
    spark: SparkSession, pair: Pair, tmp_path: pathlib.Path
) -> None:
    for topic in ("From", "To"):
        pair.make_topic(topic, 2)
    pair.send("From", 100, tags="paid", keys=("k1", "k2"), properties={"amount": "7", "__SHARDINGKEY": "s"})
    rows = read(spark, pair, "From")
    seen: list[JobProgress] = []
    half = replay(rows.where("queueId = 0"), pair.options("To"), Run("r1", tmp_path), watch=seen.append)
    assert (half.sent, half.already) == (50, 0)
    rest = replay(rows, pair.options("To"), Run("r1", tmp_path))  # as after a crash in the middle
    assert (rest.run_id, rest.sent, rest.already) == ("r1", 50, 50)
    (tmp_path / "r1.json").unlink()
    assert replay(rows, pair.options("To"), Run("r1")).sent == 0

    found = read(spark, pair, "To").collect()
    assert bodies(found) == numbers(100)
    assert len({row.queueId for row in found}) == 1  # by their sharding key
    one = next(row for row in found if bytes(row.body) == b"b3")
    assert (one.tags, one.keys, one.properties["amount"]) == ("paid", "k1 k2", "7")
    assert one.properties["rmqSparkKey"] == f"r1/From@{pair.broker}-1-1"
    assert len({row.msgId for row in found}) == 100
    order = [bytes(row.body) for row in sorted(found, key=lambda row: row.queueOffset)]
    assert [body for body in order if int(body[1:]) % 2] == [b"b%d" % n for n in range(1, 100, 2)]

    other = replay(read(spark, pair, "To"), pair.options("From"), Run("r2"), kept=["keys"])
    assert (other.sent, other.already) == (100, 0)
    copies = [row for row in read(spark, pair, "From").collect() if "rmqSparkKey" in row.properties]
    assert bodies(copies) == numbers(100)
    assert {(row.tags, row.keys, row.properties.get("amount")) for row in copies} == {(None, "k1 k2", None)}


def test_a_rate_keeps_the_order_of_storing(spark: SparkSession, pair: Pair) -> None:
    for topic in ("Slow", "Paced"):
        pair.make_topic(topic, 2)
    for number in range(0, 100, 20):
        pair.send("Slow", 20, first=number)
    done = replay(read(spark, pair, "Slow"), pair.options("Paced"), Run(rate=5000))
    assert (done.sent, done.already) == (100, 0)
    assert bodies(read(spark, pair, "Paced").collect()) == numbers(100)


@pytest.mark.parametrize("rate", [3, 150, 20_000])
def test_the_pace_is_the_rate(rate: int) -> None:
    now = [100.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = RateLimiter(rate, clock=lambda: now[0], sleep=sleep)
    count = 0
    while count < rate * 20:
        pace.wait(pace.step)
        count += pace.step
        now[0] += 0.01 / rate  # the send itself
    assert count / (now[0] - 100.0) == pytest.approx(rate, rel=0.05)
    now[0] += 60  # the broker was away: what was missed is not sent all at once
    slept.clear()
    for _ in range(40):
        pace.wait(pace.step)
    assert sum(slept) >= 40 * pace.step / rate - 1 - 2 * pace.step / rate


def test_what_makes_no_run_is_said_so(spark: SparkSession, pair: Pair) -> None:
    rows = spark.createDataFrame([], "body binary")
    with pytest.raises(ConfigError, match="an option topic"):
        replay(rows, {"nameServer": pair.names})
    with pytest.raises(ConfigError, match="some of tags, keys, properties"):
        replay(rows, pair.options("To"), kept=["flag"])
    with pytest.raises(ConfigError, match="run id"):
        Run("../up")
    with pytest.raises(ConfigError, match="or 0 for no limit"):
        Run(rate=-1)


def letters(pair: Pair, group: str, count: int, **life: str) -> None:
    topic = f"%DLQ%{group}"
    with blocking.connect(pair.names) as client, client.producer("tests") as producer:
        for number in range(count):
            properties = {f"DLQ_{name}": value for name, value in life.items()} | {"mine": "1"}
            message = Message(topic, b"b%d" % number, tags="t", keys=("k",), properties=properties)
            producer.send(message)


def test_dead_letters_are_counted_and_chosen_ones_sent_once(
    spark: SparkSession, pair: Pair, tmp_path: pathlib.Path
) -> None:
    for topic in ("Orders", "Mails", "%DLQ%billing", "%DLQ%mailing"):
        pair.make_topic(topic, 1)
    letters(pair, "billing", 7, ORIGIN_TOPIC="Orders", REASON="Timeout", RECONSUME_TIMES="16")
    letters(pair, "billing", 3, ORIGIN_TOPIC="Orders", REASON="KeyError: 'x'", RECONSUME_TIMES="2")
    letters(pair, "mailing", 5, ORIGIN_TOPIC="Mails", REASON="Timeout", RECONSUME_TIMES="16")
    letters(pair, "mailing", 2, ORIGIN_TOPIC="Gone", REASON="Timeout")
    letters(pair, "mailing", 1)
    options = {"nameServer": pair.names}
    found = dead_letters(spark, options)
    counted = count_letters(found, "day").collect()
    by_kind: Counter[tuple[Any, ...]] = Counter()
    for row in counted:
        by_kind[row.group, row.originTopic, row.tags, row.reason, row.times] += row.letters
    assert by_kind == {
        ("billing", "Orders", "t", "Timeout", 16): 7,
        ("billing", "Orders", "t", "KeyError: 'x'", 2): 3,
        ("mailing", "Mails", "t", "Timeout", 16): 5,
        ("mailing", "Gone", "t", "Timeout", 0): 2,
        ("mailing", None, "t", "", 0): 1,
    }
    assert all(row.first <= row.last for row in counted)
    assert dead_letters(spark, options, ["billing"]).count() == 10

    some = resend(
        found.where("reason = 'Timeout' and group = 'billing' and queueOffset < 4"), options, Run("r1")
    )
    assert (some.sent, some.already, some.left_out) == (4, 0, 0)
    done = resend(found.where("reason = 'Timeout' or originTopic is null"), options, Run("r1", tmp_path))
    assert (done.sent, done.already, done.left_out) == (8, 4, 3)
    assert resend(found.where("reason = 'Timeout'"), options, Run("r1", tmp_path)).sent == 0
    none = resend(found.where("group = 'nobody'"), options, Run("r1"))
    assert (none.run_id, none.sent, none.left_out) == ("r1", 0, 0)
    assert resend(found.where("originTopic is null"), options).left_out == 1
    again = read(spark, pair, "Orders").collect()
    assert bodies(again) == numbers(7)
    assert bodies(read(spark, pair, "Mails").collect()) == numbers(5)
    old = {row.msgId for row in found.where("group = 'billing' and reason = 'Timeout'").collect()}
    assert {row.msgId for row in again} == old
    for row in again:
        assert (row.tags, row.keys, row.properties["mine"]) == ("t", "k", "1")
        assert row.properties["rmqSparkKey"] == f"r1/{row.properties['DLQ_REDRIVE_KEY']}"
        assert row.properties["DLQ_ORIGIN_TOPIC"] == "Orders"
        assert "DLQ_REASON" not in row.properties


def test_an_error_of_a_send_comes_out(spark: SparkSession, pair: Pair) -> None:
    pair.make_topic("Empty", 2)
    pair.send("Empty", 3)
    rows = read(spark, pair, "Empty").selectExpr("* except (body)", "cast('' as binary) as body")
    with pytest.raises(PySparkException, match=r"topic To, key .*its body is empty"):
        replay(rows, pair.options("To"))


def test_the_lag_in_the_progress_of_a_query() -> None:
    def at(first: int, second: int) -> str:
        return json.dumps({"v": 1, "topics": {"T": {"b": {"0": first, "1": second}}}})

    assert lag_of(at(1, 2), at(5, 2)) == 4
    assert lag_of("null", at(5, 2)) == lag_of(None, None) == lag_of("None", at(5, 2)) == lag_of("{", "{") == 0
    assert lag_of(str(json.loads(at(1, 2))), str(json.loads(at(5, 2)))) == 4  # as Spark 4.1 has them
