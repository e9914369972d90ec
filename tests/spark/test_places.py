"""Places of messages, by which a stream knows them again: asked for without the messages."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import pytest

from rmq.client import blocking
from rmq.message import Message
from rmq.protocol.bodies import QueryConsumeQueueResponseBody
from rmq.spark.cluster import Cluster
from rmq.spark.options import read_options
from tests.spark.cluster import running

BIG = 500_000


def test_a_plan_pulls_no_bodies_and_others_brokers_give_the_same_places(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "pair") as pair:
        pair.make_topic("Big", 4)
        with blocking.connect(pair.names) as client, client.producer("tests") as producer:
            for number in range(8):
                producer.send(Message("Big", random.Random(number).randbytes(BIG)))
        options = read_options(pair.options("Big", startingOffsets="earliest"), streaming=True)
        pulled: list[int] = []
        with Cluster(options) as cluster:
            bounds = cluster.bounds(cluster.queues())
            offsets = {queue: most for queue, (_, most) in bounds.items() if most}
            consumer: Any = cluster._consumer
            pull = consumer.pull_raw

            async def counted(*arguments: Any, **more: Any) -> Any:
                answer = await pull(*arguments, **more)
                pulled.append(len(answer.body))
                return answer

            monkeypatch.setattr(consumer, "pull_raw", counted)
            found = cluster.places(offsets)
            assert (len(found), pulled) == (len(offsets), [])
            # Brokers of others do not tell when a message was stored.
            read = QueryConsumeQueueResponseBody.from_json.__func__  # type: ignore[attr-defined]

            def without_times(kind: Any, body: bytes) -> Any:
                return read(kind, body.replace(b"rmqStoreTimestamp", b"other"))

            monkeypatch.setattr(QueryConsumeQueueResponseBody, "from_json", classmethod(without_times))
            assert cluster.places(offsets) == found
            assert len(pulled) == len(offsets)
            assert min(pulled) > BIG
            assert cluster.places(dict.fromkeys(offsets, 1000)) == {}
