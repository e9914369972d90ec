"""decoded() by Avro schemas, with Spark's own package; `nox -s decode_avro` fetches it."""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import struct
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from rmq.client import blocking
from rmq.message import Message, MessageQueue
from tests.spark.cluster import Pair, running

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.interop

MAY_FETCH = bool(os.environ.get("RMQ_DECODE_AVRO"))
"""Whether the package of this Spark's version may be fetched."""

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "amount", "type": "double"},
    ],
}
ROWS = [(1, "a", 2.5), (-70_000, None, 0.0), (3, "ü", -1e300)]
WANTED: list[Any] = [{"id": number, "name": name, "amount": amount} for number, name, amount in ROWS]


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def avro(number: int, name: str | None, amount: float) -> bytes:
    text = b"\x00" if name is None else b"\x02" + varint(len(name.encode()) * 2) + name.encode()
    return varint((number << 1) ^ (number >> 63)) + text + struct.pack("<d", amount)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    if not MAY_FETCH:
        pytest.skip("RMQ_DECODE_AVRO is not set: this needs spark-avro from Maven Central")
    import pyspark

    from rmq.spark import session

    package = f"org.apache.spark:spark-avro_2.13:{pyspark.__version__}"
    started = session("avro", master="local[2]", settings={"spark.jars.packages": package})
    yield started
    started.stop()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = {
        "Avro": [avro(*row) for row in ROWS],
        "Framed": [b"\0\0\0\0\x07" + avro(*row) for row in ROWS],
    }
    with running(tmp_path_factory.mktemp("broker")) as opened:
        for topic, bodies in made.items():
            opened.make_topic(topic, 1)
            opened.make_topic(f"{topic}-bad", 1)
            with blocking.connect(opened.names) as client, client.producer("tests") as producer:
                for name, more in ((topic, []), (f"{topic}-bad", [b"\xff" * 40])):
                    queue = MessageQueue(name, opened.broker, 0)
                    producer.send_batch([Message(name, body) for body in bodies + more], queue=queue)
        yield opened


def values(frame: DataFrame) -> list[Any]:
    rows = frame.orderBy("queueOffset").select("value").collect()
    return [row.value if row.value is None else row.value.asDict() for row in rows]


def ways(topic: str) -> dict[str, Any]:
    """The arguments of `decoded` for a topic."""
    return {"schema": json.dumps(AVRO), "form": "avro", "framed": topic == "Framed"}


@pytest.mark.parametrize("topic", ["Avro", "Framed"])
def test_bodies_become_values(spark: SparkSession, pair: Pair, topic: str) -> None:
    from pyspark.errors import PySparkException

    from rmq.spark import decoded, undecoded

    def frame(name: str) -> DataFrame:
        return spark.read.format("rmq").options(**pair.options(name)).load()

    print(f"Spark {spark.version}: {topic}")
    how = ways(topic)
    assert values(decoded(frame(topic), bad="fail", **how)) == WANTED
    assert values(decoded(frame(f"{topic}-bad"), **how)) == [*WANTED, None]
    with pytest.raises(PySparkException, match=rf"message 3 of queue 0 of \S+, topic {topic}-bad: the body"):
        decoded(frame(f"{topic}-bad"), bad="fail", **how).select("value").collect()
    letters = decoded(frame(f"{topic}-bad"), bad="dlq", **how)
    assert values(letters) == [*WANTED, None]
    (letter,) = undecoded(letters, "readers").collect()
    assert bytes(letter.body) == b"\xff" * 40
    assert letter.properties["DLQ_REASON"] == f"the body does not fit the {how['form']} schema"


def test_a_value_that_is_null_and_one_with_bytes_after_it(spark: SparkSession) -> None:
    from rmq.spark import decoded

    bodies = [b"\x00", b"\x02\x02a", b"\x02\x02ab", b"\x05", None]
    frame = spark.createDataFrame([(bytearray(body) if body else None,) for body in bodies], "body binary")
    found = decoded(frame, '["null","string"]', form="avro", bad="dlq").collect()
    assert [row.value for row in found] == [None, "a", None, None, None]
    assert [row.decodeError is None for row in found] == [True, True, False, False, True]
    (row,) = decoded(frame.limit(1), '"boolean"', form="avro").collect()
    assert row.value is False


def test_a_schema_of_a_registry_or_a_file(spark: SparkSession, pair: Pair, tmp_path: pathlib.Path) -> None:
    from rmq.errors import ConfigError
    from rmq.spark import decoded

    frame = spark.read.format("rmq").options(**pair.options("Framed")).load()
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(AVRO, indent=1))
    assert values(decoded(frame, str(path), form="avro", framed=True)) == WANTED

    class Registry(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"id": 7, "schema": json.dumps(AVRO)}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/subjects/orders-value/versions/latest"
        assert values(decoded(frame, url, form="avro", framed=True)) == WANTED
        server.shutdown()
    with pytest.raises(ConfigError, match="a schema for avro"):
        decoded(frame, '{"type":"recordd"}', form="avro")
