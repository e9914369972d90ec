"""Clients that know nothing of UTF-8: tags in GBK are stored and found as RocketMQ stores and finds them."""

from __future__ import annotations

import pytest

from rmq.protocol.command import JSON, ROCKETMQ, Command
from rmq.protocol.frames import Decoder, encode
from rmq.protocol.json import java_text
from rmq.protocol.record import decode_records

from ..rig import Rig, batch, pull, send

TAG = "订单".encode("gbk")
MARK = "~" * len(TAG)


def foreign(command: Command, serialization: int = JSON) -> Command:
    """The command as the broker reads it from a client that put `TAG` where the mark stands."""
    command.serialization = serialization
    frame = encode(command)
    assert frame.count(MARK.encode()) == 1
    (read,) = Decoder().feed(frame.replace(MARK.encode(), TAG))
    return read


def ask(rig: Rig, command: Command) -> Command:
    rig.broker.handle([command], rig.wire)  # type: ignore[arg-type]
    (answer,) = rig.wire.take()
    return answer


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_tag_in_gbk_is_stored_as_java_stores_it_and_filters(serialization: int) -> None:
    rig = Rig()
    for _ in range(2):
        sent = ask(rig, foreign(send(properties=f"UNIQ_KEY\x01U\x02TAGS\x01{MARK}"), serialization))
        assert sent.code == 0
    ask(rig, send(properties="TAGS\x01Other"))
    stored = rig.messages("Orders")
    assert [message.properties.get("TAGS") for message in stored] == [java_text(TAG)] * 2 + ["Other"]
    raw = bytes(rig.store.read_raw(0, rig.store.max_physical_offset))
    assert raw.count(b"TAGS\x01" + java_text(TAG).encode()) == 2
    found = ask(rig, foreign(pull(subscription=MARK), serialization))
    assert [message.queue_offset for message in decode_records(found.body)] == [0, 1]


@pytest.mark.parametrize("record_by_record", [False, True])
def test_a_batch_with_texts_in_gbk_is_taken(record_by_record: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    request = batch(bodies=[b"a", b"b"])
    request.body = request.body.replace(b"TagB", TAG)
    if record_by_record:
        monkeypatch.setattr(rig.store, "put_batch", lambda *arguments: None)
    assert ask(rig, request).code == 0
    assert [message.properties["TAGS"] for message in rig.messages("Orders")] == [java_text(TAG)] * 2
    raw = bytes(rig.store.read_raw(0, rig.store.max_physical_offset))
    kept = java_text(TAG).encode() if record_by_record else TAG  # as they came, as Java keeps batches
    assert raw.count(b"TAGS\x01" + kept) == 2
    found = ask(rig, foreign(pull(subscription=MARK)))
    assert [message.queue_offset for message in decode_records(found.body)] == [0, 1]
