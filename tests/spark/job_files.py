"""Files of streams, and the messages that they read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from rmq.client import blocking
from rmq.message import Message, MessageQueue
from rmq.spark import read_jobs, run_once
from rmq.spark.jobs.run import Ran
from tests.spark.cluster import Pair

ATTEMPTS = 5


def send(pair: Pair, topic: str, *bodies: object) -> None:
    """Send values as JSON, and texts as they are, to the first queue of a topic."""
    pair.make_topic(topic, 1)
    texts = [body if isinstance(body, str) else json.dumps(body) for body in bodies]
    with blocking.connect(pair.names) as client, client.producer("tests") as producer:
        producer.send_batch(
            [Message(topic, text.encode()) for text in texts], queue=MessageQueue(topic, pair.broker, 0)
        )


def run_file(spark: SparkSession, file: Mapping[str, Any]) -> Ran:
    """Run the streams of a file once; and again where Spark's Python workers took longer than 10 s to start,
    as on a busy machine: the limit is Spark's, and no setting."""
    for _ in range(ATTEMPTS):
        ran = run_once(spark, read_jobs(file), tell=lambda line: None)
        if not any("failed to connect back" in error for error in ran.errors.values()):
            break
    return ran


CANAL = {"database": "shop", "table": "orders", "isDdl": False}


def canal(kind: str, es: int, *data: dict[str, Any]) -> dict[str, Any]:
    return {**CANAL, "type": kind, "es": es, "ts": es, "id": es, "data": list(data)}


def debezium(op: str, at: int, before: Any, after: Any) -> dict[str, Any]:
    source = {"db": "shop", "table": "orders", "ts_ms": at, "pos": at}
    return {"payload": {"op": op, "ts_ms": at, "before": before, "after": after, "source": source}}


def maxwell(kind: str, at: int, data: dict[str, Any]) -> dict[str, Any]:
    return {"database": "shop", "table": "orders", "type": kind, "ts": at, "xid": at, "data": data}


def row(number: int, name: str, *, texts: bool = False) -> dict[str, Any]:
    return {"id": str(number) if texts else number, "name": name}


FORMS: dict[str, list[list[Any]]] = {
    "canal": [
        [
            canal("INSERT", 10, row(1, "a", texts=True), row(2, "b", texts=True)),
            {**CANAL, "type": "ALTER", "isDdl": True, "es": 11, "data": None},
            canal("UPDATE", 20, row(1, "a2", texts=True)),
            {**canal("INSERT", 21, row(9, "other", texts=True)), "table": "payments"},
        ],
        [
            canal("DELETE", 40, row(2, "b", texts=True)),
            canal("UPDATE", 15, row(1, "late", texts=True)),
            canal("UPDATE", 30, row(2, "late", texts=True)),
            canal("INSERT", 50, row(3, "c", texts=True)),
        ],
    ],
    "debezium": [
        [
            debezium("r", 10, None, row(1, "a")),
            debezium("c", 10, None, row(2, "b"))["payload"],
            debezium("u", 20, row(1, "a"), row(1, "a2")),
        ],
        [
            debezium("d", 40, row(2, "b"), None),
            debezium("u", 15, None, row(1, "late")),
            debezium("u", 30, None, row(2, "late")),
            debezium("c", 50, None, row(3, "c")),
        ],
    ],
    "maxwell": [
        [
            maxwell("bootstrap-insert", 10, row(1, "a")),
            maxwell("insert", 10, row(2, "b")),
            maxwell("update", 20, row(1, "a2")),
            {"type": "table-create", "database": "shop", "table": "orders", "ts": 1},
        ],
        [
            maxwell("delete", 40, row(2, "b")),
            maxwell("update", 15, row(1, "late")),
            maxwell("update", 30, row(2, "late")),
            maxwell("insert", 50, row(3, "c")),
        ],
    ],
}
