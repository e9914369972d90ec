"""Bodies as values, by a schema."""

from __future__ import annotations

import http.server
import json
import pathlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from rmq.client import blocking
from rmq.errors import ConfigError
from rmq.message import Message, MessageQueue
from rmq.spark import dead_letters, decoded, undecoded
from tests.spark.cluster import Pair, running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id long, name string"
BODIES = [b'{"id":1,"name":"a"}', b'{"id":2}', b'{"id":"x"}', b"no json", b'{"id":5,"more":[1]}']


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running(tmp_path_factory.mktemp("broker")) as opened:
        opened.make_topic("Json", 1)
        opened.make_topic("%DLQ%readers", 1)
        with blocking.connect(opened.names) as client, client.producer("tests") as producer:
            queue = MessageQueue("Json", opened.broker, 0)
            producer.send_batch([Message("Json", body, tags="t") for body in BODIES], queue=queue)
        yield opened


@pytest.fixture
def frame(spark: SparkSession, pair: Pair) -> DataFrame:
    return spark.read.format("rmq").options(**pair.options("Json")).load()


def values(frame: DataFrame) -> list[Any]:
    rows = frame.orderBy("queueOffset").select("value").collect()
    return [row.value if row.value is None else row.value.asDict() for row in rows]


GOOD = [{"id": 1, "name": "a"}, {"id": 2, "name": None}, None, None, {"id": 5, "name": None}]


def test_json_by_text_file_and_registry(frame: DataFrame, tmp_path: pathlib.Path) -> None:
    assert values(decoded(frame, SCHEMA)) == GOOD
    path = tmp_path / "schema.ddl"
    path.write_text(SCHEMA)
    assert values(decoded(frame, str(path))) == GOOD
    wide = ", ".join([SCHEMA, *(f"column_{number} string" for number in range(300))])
    assert len(values(decoded(frame, wide))) == len(GOOD), "longer than a path may be"

    class Registry(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"id": 7, "schema": SCHEMA}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert (
            values(decoded(frame, f"http://127.0.0.1:{server.server_port}/subjects/x/versions/latest"))
            == GOOD
        )
        server.shutdown()
    with pytest.raises(ConfigError, match="a registry's answer"):
        decoded(frame, "http://127.0.0.1:1/x")


def test_a_body_that_does_not_fit_fails_the_query_on_request(frame: DataFrame) -> None:
    with pytest.raises(
        PySparkException, match=r"message [23] of queue 0 of \S+, topic Json: the body does not fit"
    ):
        decoded(frame, SCHEMA, bad="fail").select("value").collect()


def test_what_does_not_fit_becomes_dead_letters(spark: SparkSession, pair: Pair, frame: DataFrame) -> None:
    found = decoded(frame, SCHEMA, bad="dlq")
    assert values(found) == GOOD
    letters = undecoded(found, "readers")
    for _ in range(2):  # a batch that comes again sends letters with the ids that they had
        letters.write.format("rmq").options(nameServer=pair.names).mode("append").save()
    kept = dead_letters(spark, {"nameServer": pair.names}, ["readers"]).dropDuplicates(["msgId"])
    rows = kept.orderBy("body").collect()
    assert [(bytes(row.body), row.tags, row.group, row.originTopic) for row in rows] == [
        (b"no json", "t", "readers", "Json"),
        (b'{"id":"x"}', "t", "readers", "Json"),
    ]
    assert {row.reason for row in rows} == {"the body does not fit the json schema"}
    assert {row.originId for row in rows} == {row.msgId for row in rows}


def test_wrong_words_are_refused(frame: DataFrame) -> None:
    for more, says in (
        ({"form": "xml"}, "form = 'xml'.*json, avro, protobuf"),
        ({"bad": "skip"}, "bad = 'skip'.*null, fail, dlq"),
        ({"into": "body"}, "into = 'body'"),
        ({"schema": "id longlong"}, "a schema for json"),
        ({"form": "avro", "schema": '"long"'}, "org.apache.spark:spark-avro"),
        ({"form": "protobuf", "message": ""}, "message"),
    ):
        with pytest.raises(ConfigError, match=says):
            decoded(frame, **{"schema": SCHEMA, **more})  # type: ignore[arg-type]
