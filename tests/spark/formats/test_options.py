"""Options: defaults, Kafka's words, and every mistake named before anything is read."""

from __future__ import annotations

import pathlib
import pickle
import re
import traceback

import attrs
import pytest
from pyspark_rmq import DefaultSource

from rmq.client.consume.subscription import Sql
from rmq.config import java_key
from rmq.errors import ConfigError, InvalidName
from rmq.message import MessageQueue
from rmq.spark.offsets import EARLIEST, LATEST
from rmq.spark.options import (
    ReadOptions,
    StoreOptions,
    WriteOptions,
    ending,
    read_options,
    starting,
    write_options,
)

GIVEN = {"nameServer": "127.0.0.1:9876", "topic": "Orders"}
ACL = {"accessKey": "reader", "secretKey": "hunter2-hunter2"}


def test_what_nobody_says() -> None:
    options = read_options(GIVEN, streaming=False)
    assert options.topics == ("Orders",)
    assert options.fail_on_data_loss
    assert options.expression == "*"
    assert not options.is_filtered
    assert options.group == "rmq-spark"
    assert (starting(options, streaming=False), ending(options)) == (EARLIEST, LATEST)
    assert starting(options, streaming=True) == LATEST
    assert options.credentials() is None
    assert options.tls_config() is None


def test_names_in_any_case_and_kafkas() -> None:
    options = read_options(
        {"NAMESERVER": "h:1", "subscribe": "A, B", "maxRecordsPerPartition": "10", "batchbytes": "2m"},
        streaming=False,
    )
    assert options.topics == ("A", "B")
    assert options.max_records_per_partition == 10
    assert options.batch_bytes == 2 << 20
    assert read_options({"nameServer": "h:1", "subscribePattern": "Or.*"}, streaming=False).topic_pattern


def test_filters() -> None:
    tags = read_options({**GIVEN, "filter": "paid || refunded"}, streaming=False)
    assert tags.tags == {"paid", "refunded"}
    assert tags.is_filtered
    sql = read_options({**GIVEN, "filterSql": "amount > 3"}, streaming=False)
    assert sql.expression == Sql("amount > 3")
    assert (sql.is_filtered, sql.tags) == (True, frozenset())


def test_times_are_ms_or_iso_text() -> None:
    for text, ms in (
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20+00:00", 1_700_000_000_000),
        ("2023-11-14 23:13:20.5+01:00", 1_700_000_000_500),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
    ):
        options = read_options({**GIVEN, "startingtimestamp": text, "endingTimestamp": text}, streaming=False)
        assert (options.starting_timestamp, options.ending_timestamp) == (ms, ms)


def test_times_of_each_queue() -> None:
    text = '{"T":{"a":{"0":1700000000000,"1":5}}}'
    given = {**GIVEN, "startingOffsetsByTimestamp": text, "startingOffsetsByTimestampStrategy": "error"}
    options = read_options(given, streaming=False)
    queues = [MessageQueue("T", "a", number) for number in (0, 1)]
    assert options.starting_times == dict(zip(queues, (1_700_000_000_000, 5), strict=True))
    assert (options.ending_times, options.timestamp_strategy) == (None, "error")


def test_settings_of_the_client_go_through() -> None:
    given = {**GIVEN, "client.sendmsgtimeout": "1234", "client.send_window": "7", "requestTimeoutMs": "9"}
    for options in (read_options(given, streaming=False), write_options(given)):
        config = options.client_config(mqClientApiTimeout=options.request_timeout_ms)
        assert (config.send_timeout_ms, config.send_window, config.request_timeout_ms) == (1234, 7, 9)
        assert hash(options)
    with pytest.raises(ConfigError, match=r"client.sendTimeout .*or sendMsgTimeout|expected sendMsgTimeout"):
        read_options({**GIVEN, "client.sendTimeout": "1"}, streaming=False)
    with pytest.raises(ConfigError, match="sendWindow"):
        read_options({**GIVEN, "client.sendWindow": "0"}, streaming=False)


def test_columns_are_those_of_the_schema() -> None:
    assert DefaultSource({**GIVEN, "Columns": "queueOffset, topic"}).schema().names == [
        "queueOffset",
        "topic",
    ]
    assert len(DefaultSource(GIVEN).schema().names) == 18
    for text, says in (("", "columns"), ("bodi", "schema column = 'bodi'")):
        with pytest.raises(ConfigError, match=says):
            DefaultSource({**GIVEN, "columns": text}).schema()


def test_single_queues() -> None:
    options = read_options({"nameServer": "h:1", "assign": '{"T":{"broker-a":[2,0]}}'}, streaming=False)
    assert options.queues == (MessageQueue("T", "broker-a", 2), MessageQueue("T", "broker-a", 0))
    assert options.topics == ("T",)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"startingOffset": "earliest"}, r"option startingOffset =.*expected startingOffsets"),
        ({"header": "true"}, "expected an option of rmq: nameServer, "),
        ({"path": "Orders"}, r"option path = 'Orders': expected the topic as an option"),
        ({"kafka.bootstrap.servers": "h:9092"}, "the option nameServer"),
        ({"nameServer": "localhost"}, "nameServer = 'localhost': expected host:port"),
        ({"groupId": "a/b"}, "group 'a/b'"),
        ({"startingTimestamp": "-5"}, "at least 0"),
        ({"endingTimestamp": "-5"}, "at least 0"),
        ({"startingTimestamp": "10", "endingTimestamp": "9"}, r"endingTimestamp = 9.*\(10\) on"),
        ({"minPartitions": "1000000"}, "minPartitions"),
        ({"pushdown": "yes"}, "true or false"),
        ({"nameServer": ""}, "nameServer"),
        ({"topicPattern": "a.*"}, "exactly one"),
        ({"topic": ""}, "exactly one"),
        ({"topic": "", "topicPattern": "("}, "regular expression"),
        ({"topic": "", "assign": '{"T":{"a":["0"]}}'}, "assign"),
        ({"topic": "", "assign": "T"}, "assign"),
        ({"startingOffsets": "late"}, "earliest, latest, or JSON"),
        ({"startingOffsets": "{"}, "startingOffsets"),
        ({"startingOffsets": "latest"}, "a batch ends there"),
        ({"startingOffsets": '{"T":{"a":{"0":-1}}}'}, "a batch ends there"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        ({"endingOffsets": '{"T":{"a":{"0":-2}}}'}, "a batch begins there"),
        ({"startingOffsets": "group"}, "groupId"),
        ({"startingOffsets": "earliest", "startingTimestamp": "5"}, "startingTimestamp"),
        ({"startingTimestamp": "5", "startingOffsetsByTimestamp": '{"T":{"a":{"0":1}}}'}, "beside it"),
        ({"endingOffsetsByTimestamp": '{"T":1}'}, "endingOffsetsByTimestamp"),
        ({"timestampStrategy": "never"}, "timestampStrategy"),
        ({"startingTimestamp": "yesterday"}, "whole number of ms"),
        ({"filter": "a", "filterSql": "b"}, "only one"),
        ({"filter": "||"}, "filter"),
        ({"maxOffsetsPerTrigger": "5"}, "a batch has no triggers"),
        ({"failOnDataLoss": "no"}, "true or false"),
        ({"pullBatch": "0"}, "pullBatch"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"accessKey": "a"}, "secretKey"),
        ({**ACL, "secretKeyFile": "/x"}, "only one"),
        ({"tlsCa": "/x"}, "true, since other TLS"),
    ],
)
def test_mistakes_in_a_batch(more: dict[str, str], says: str) -> None:
    with pytest.raises((ConfigError, InvalidName), match=says):
        read_options({**GIVEN, **more}, streaming=False)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, "stateLocation or groupId"),
        ({"startingOffsets": "latest"}, "stateLocation or groupId"),
        ({"startingOffsets": '{"T":{"a":{"0":-1}}}'}, "stateLocation or groupId"),
        ({"startingTimestamp": "1000"}, "stateLocation or groupId"),
        ({"startingOffsetsByTimestamp": '{"T":{"a":{"0":1}}}'}, "stateLocation or groupId"),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, "no end"),
        ({"startingOffsets": "earliest", "endingTimestamp": "5"}, "no end"),
        ({"startingOffsets": "earliest", "pushdown": "true"}, "batches only"),
        (
            {"startingOffsets": "earliest", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "minOffsetsPerTrigger = 9: expected at most 8",
        ),
    ],
)
def test_mistakes_in_a_stream(more: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_options({**GIVEN, **more}, streaming=True)


def test_a_topic_name_is_checked() -> None:
    with pytest.raises(InvalidName, match="bad name"):
        read_options({**GIVEN, "topic": "bad name"}, streaming=False)


def test_the_secret_is_in_no_text(tmp_path: pathlib.Path) -> None:
    options = read_options({**GIVEN, **ACL}, streaming=False)
    assert pickle.loads(pickle.dumps(options)).credentials() == options.credentials()
    assert "hunter2" not in repr(options) + str(options) + repr(options.credentials())
    for wrong in ({"topic": ""}, {"secretkey2": ACL["secretKey"]}, {"tlsCa": "/x"}, {"pullBatch": "x"}):
        with pytest.raises(ConfigError) as caught:
            read_options({**GIVEN, **ACL, **wrong}, streaming=False)
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    file = tmp_path / "secret"
    file.write_text("from-a-file\n")
    given = {**GIVEN, "accessKey": "reader", "secretKeyFile": str(file)}
    credentials = read_options(given, streaming=False).credentials()
    assert credentials is not None
    assert credentials.secret_key == "from-a-file"
    file.unlink()
    with pytest.raises(ConfigError, match="secretKeyFile"):
        read_options(given, streaming=False).credentials()


@pytest.mark.parametrize(
    "names",
    [
        [java_key(field) for field in attrs.fields(ReadOptions)],
        [java_key(field) for field in attrs.fields(WriteOptions)],
        [java_key(field) for field in attrs.fields(StoreOptions)],
    ],
)
def test_every_option_is_in_the_tables(names: list[str]) -> None:
    page = (pathlib.Path(__file__).parents[3] / "docs" / "spark.md").read_text("utf-8")
    first = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    described = set(re.findall("`([A-Za-z]+)`", "".join(first)))
    assert set(names) - described == set()


def test_options_of_a_write() -> None:
    options = write_options({**GIVEN, "sendBatchBytes": "1m", "checkpointLocation": "/tmp/x"})
    assert (options.topic, options.send_batch_bytes, options.require_send_ok) == ("Orders", 1 << 20, False)
    with pytest.raises(ConfigError, match="option startingOffsets"):
        write_options({**GIVEN, "startingOffsets": "earliest"})
    with pytest.raises(ConfigError, match="runId"):
        write_options({**GIVEN, "runId": "a/b"})
    with pytest.raises(ConfigError, match="sendBatchBytes"):
        write_options({**GIVEN, "sendBatchBytes": "5m"})
    with pytest.raises(InvalidName, match="group 'a b'"):
        write_options({**GIVEN, "producerGroup": "a b"})
