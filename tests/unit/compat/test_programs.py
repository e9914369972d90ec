"""Programs of rocketmq-client-python, moved by one import line."""

from __future__ import annotations

import pytest

from rmq.compat.rocketmq import client as compat
from rmq.compat.rocketmq import exceptions
from tests.unit.compat import programs
from tests.unit.compat.playing import gathering, play, pulled


def test_a_program_that_sends(names: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    play(programs.SENDING, names, topic)

    assert pulled(names, topic) == [b"body 0", b"body 1", b"body 2", b"in order"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" id:")[0] for line in lines] == [f"status: {compat.SendStatus.OK!s}"] * 4


def test_a_program_that_consumes(names: str, topic: str) -> None:
    play(programs.SENDING, names, topic)
    found, add, wait = gathering(4)

    play(programs.CONSUMING, names, topic, group=f"readers-of-{topic}", got=add, wait=wait)

    by_body = {one.body: one for one in found}
    assert sorted(by_body) == [b"body 0", b"body 1", b"body 2", b"in order"]
    one = by_body[b"body 1"]
    assert (one.topic, one.tags, one.keys, one["property"]) == (topic, b"sample", b"key-1", b"test")
    assert (one.reconsume_times, one.delay_time_level, one.get_property("none")) == (0, 0, b"")
    assert one.get_property(compat.MessageProperty.KEYS) == b"key-1"
    assert one.queue_offset >= 0
    assert one.commit_log_offset >= 0
    assert one.store_size > len(one.body)
    assert min(one.store_timestamp, one.born_timestamp) > 0
    assert (str(one), bytes(one)) == ("body 1", b"body 1")
    assert repr(one) == f"<ReceivedMessage topic={topic!r} id={one.id!r} body=b'body 1'>"


def test_a_program_with_transactions(names: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, add, wait = gathering(1)
    consumer = compat.PushConsumer(f"readers-of-{topic}")
    consumer.set_name_server_address(names)

    def callback(message: compat.ReceivedMessage) -> compat.ConsumeStatus:
        add(message.body)
        return compat.ConsumeStatus.CONSUME_SUCCESS

    consumer.subscribe(topic, callback)
    with consumer:
        play(programs.TRANSACTIONS, names, topic, wait=wait)

    assert found == [b"COMMIT"]
    out = capsys.readouterr().out
    assert [
        f"local: {line.split()[-1]} {name}" in out
        for line, name in zip(
            [line for line in out.splitlines() if line.startswith("status")],
            ["COMMIT", "ROLLBACK", "UNKNOWN"],
            strict=True,
        )
    ] == [True] * 3


def test_the_names_of_2_0_and_0_4_are_there() -> None:
    old = (
        *("SendStatus", "Message", "ReceivedMessage", "Producer", "PushConsumer", "TransactionMQProducer"),
        *("TransactionStatus", "ConsumeStatus", "SendResult", "MessageModel", "MessageProperty"),
        *("RecvMessage", "PullConsumer", "hashing_queue_selector"),
    )
    assert set(old) == set(compat.__all__)
    assert [int(one) for one in compat.MessageModel] == [0, 1]
    assert compat.MessageModel.BROADCASTING == 0
    assert [one.name for one in compat.SendStatus] == [
        *("OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE")
    ]
    errors = [one for one in vars(exceptions).values() if isinstance(one, type)]
    assert all(issubclass(one, exceptions.RocketMQException) for one in errors)
    assert len(errors) == 14
