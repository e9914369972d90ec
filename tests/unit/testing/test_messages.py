"""Messages made by hand for tests of handlers."""

from __future__ import annotations

import pytest

import rmq
from rmq import testing
from rmq.message import tags_code


def bill(message: rmq.StoredMessage) -> str:
    return f"{message.body.decode()} {message.tags} {message.keys} {message.reconsume_times}"


def test_a_handler_gets_what_it_would_get_of_a_broker() -> None:
    message = testing.message(b"42", tags="paid", keys=["7", "8"], reconsume_times=2, topic="Orders")
    assert bill(message) == "42 paid ('7', '8') 2"
    assert message.topic == "Orders"
    assert tags_code(message.tags) == tags_code("paid")
    assert message.message_id != testing.message(b"42").message_id
    assert message.message_queue == rmq.MessageQueue("Orders", "broker-a", 0)
    assert message.offset_message_id
    assert testing.message(properties={"a": "b"}, timestamp_ms=5).properties["a"] == "b"
    assert testing.message(timestamp_ms=5).born_timestamp == 5


async def test_it_is_the_message_that_a_cluster_gives(autojump_clock: object) -> None:
    async with (
        testing.Cluster("broker-a", topics={"Orders": 1}) as cluster,
        cluster.connect() as client,
        client.producer("shop") as producer,
    ):
        await producer.send(rmq.Message("Orders", b"42", tags="paid", keys=["7"], properties={"a": "b"}))
        (sent,) = cluster.sent("Orders")
    made = testing.message(b"42", topic="Orders", tags="paid", keys=["7"], properties={"a": "b"})
    assert bill(made) == bill(sent)
    assert made.properties.keys() - sent.properties.keys() == set()
    assert {**sent.properties, "UNIQ_KEY": ""}.items() >= {**made.properties, "UNIQ_KEY": ""}.items()
    assert made.body_crc == sent.body_crc


def test_what_no_message_may_have_is_refused() -> None:
    with pytest.raises(TypeError, match="tags"):
        testing.message(b"", tags=5)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="no attribute 'mesage'"):
        _ = testing.mesage  # type: ignore[attr-defined]
