"""Consumers of the compatible client: results of callbacks, order, broadcasting, the end, pulls."""

from __future__ import annotations

import gc
import logging
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rmq.compat.rocketmq import exceptions
from rmq.compat.rocketmq.client import (
    ConsumeStatus,
    Message,
    MessageModel,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from tests.unit.compat.playing import SECONDS, gathering


def send(names: str, topic: str, *bodies: bytes, tags: str = "") -> None:
    producer = Producer("producers")
    producer.set_name_server_address(names)
    with producer:
        for body in bodies:
            message = Message(topic)
            message.set_body(body)
            message.set_tags(tags)
            producer.send_orderly_with_sharding_key(message, "one")


def reader(
    names: str, topic: str, callback: Callable[[ReceivedMessage], Any], **options: Any
) -> PushConsumer:
    consumer = PushConsumer(f"readers-of-{topic}", **options)
    consumer.set_name_server_address(names)
    consumer.subscribe(topic, callback)
    return consumer


@pytest.mark.parametrize("how", ["RECONSUME_LATER", "an exception", "a wrong result"])
def test_a_message_that_was_not_consumed_is_redelivered(
    names: str, topic: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMQ_SUSPEND_QUEUE_MS", "10")
    send(names, topic, b"once more")
    found, add, wait = gathering(2)

    def callback(message: ReceivedMessage) -> Any:
        add(message.reconsume_times)
        if message.reconsume_times:
            return ConsumeStatus.CONSUME_SUCCESS
        if how == "an exception":
            raise RuntimeError("not now")
        return ConsumeStatus.RECONSUME_LATER if how == "RECONSUME_LATER" else "done"

    # In order, as a redelivery is local then and comes at once; else the first delay is 10 s.
    with reader(names, topic, callback, orderly=True):
        assert wait()
    assert found == [0, 1]


def test_none_counts_as_consumed_with_one_warning(
    names: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(names, topic, b"1", b"2")
    found, add, wait = gathering(2)
    with caplog.at_level(logging.WARNING), reader(names, topic, lambda message: add(message.body)):
        assert wait()
    assert sorted(found) == [b"1", b"2"]
    assert [record.message for record in caplog.records if "returned None" in record.message] == [
        f"the callback of {topic} returned None, treated as CONSUME_SUCCESS; return a ConsumeStatus"
    ]


def test_each_topic_has_its_callback_and_expression(names: str, topic: str) -> None:
    send(names, topic, b"a", tags="wanted")
    send(names, topic, b"b", tags="other")
    send(names, topic + "-second", b"c")
    found, add, wait = gathering(2)
    consumer = reader(names, topic, lambda message: ConsumeStatus.RECONSUME_LATER)
    consumer.subscribe(topic, lambda message: add(("first", message.body)), "wanted || rare")
    consumer.subscribe(topic + "-second", lambda message: add(("second", message.body)))
    with consumer:
        assert wait()
    assert sorted(found) == [("first", b"a"), ("second", b"c")]


def test_order_and_broadcasting(
    names: str, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("RMQ_OFFSETS_DIR", str(tmp_path))
    bodies = [b"%d" % number for number in range(20)]
    send(names, topic, *bodies)
    found, add, wait = gathering(20)
    with reader(names, topic, lambda message: add(message.body), orderly=True):
        assert wait()
    assert found == bodies
    twice, add, wait = gathering(40)
    first = reader(names, topic, lambda message: add(message.body), message_model=MessageModel.BROADCASTING)
    second = reader(names, topic, lambda message: add(message.body))
    second.set_message_model(MessageModel.BROADCASTING)
    second.set_instance_name("second")
    first.set_instance_name("first")
    with first, second:  # each begins at the end, as it has no offset yet
        send(names, topic, *bodies)
        assert wait()
    assert sorted(twice) == sorted(bodies * 2)


def test_a_start_without_subscription_fails(names: str) -> None:
    consumer = PushConsumer("readers")
    consumer.set_name_server_address(names)
    with pytest.raises(exceptions.PushConsumerStartFailed, match="no subscription: call subscribe before"):
        consumer.start()


def test_settings_after_the_start_and_wrong_ones_are_refused(names: str, topic: str) -> None:
    consumer = reader(names, topic, lambda message: None)
    with pytest.raises(exceptions.RocketMQException, match="thread_count = 0: expected an int from 1"):
        consumer.set_thread_count(0)
    with pytest.raises(exceptions.RocketMQException, match="expected a MessageModel"):
        consumer.set_message_model(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a function of a message"):
        consumer.subscribe(topic, "callback")  # type: ignore[arg-type]
    consumer.set_thread_count(2)
    consumer.set_message_batch_max_size(16)
    with (
        consumer,
        pytest.raises(exceptions.RocketMQException, match="subscribe: the push consumer has started"),
    ):
        consumer.subscribe("Other", lambda message: None)


def test_a_consumer_that_the_program_dropped_goes_on(names: str, topic: str) -> None:
    found, add, wait = gathering(1)
    kept: list[PushConsumer] = []

    def callback(message: ReceivedMessage) -> ConsumeStatus:
        add(message.body)
        return ConsumeStatus.CONSUME_SUCCESS

    def start() -> None:
        reader(names, topic, callback).start()

    start()
    gc.collect()
    send(names, topic, b"still here")
    assert wait()
    kept += [one for one in gc.get_objects() if isinstance(one, PushConsumer) and one._client is not None]
    for one in kept:
        one.shutdown()
    assert found == [b"still here"]


def test_a_callback_may_end_its_consumer(names: str, topic: str) -> None:
    send(names, topic, b"last")
    ended = threading.Event()

    def callback(message: ReceivedMessage) -> ConsumeStatus:
        consumer.shutdown()
        ended.set()
        return ConsumeStatus.CONSUME_SUCCESS

    consumer = reader(names, topic, callback)
    consumer.start()
    assert ended.wait(SECONDS)
    consumer.shutdown()  # waits for the end that the callback began
    assert consumer._client is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_does_not_consume_and_the_parent_goes_on(names: str, topic: str) -> None:
    found, add, wait = gathering(1)
    consumer = reader(names, topic, lambda message: add((os.getpid(), message.body)))
    consumer.start()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            consumer.shutdown()  # nothing to end here
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    send(names, topic, b"for the parent")
    assert wait()
    consumer.shutdown()
    assert found == [(os.getpid(), b"for the parent")]


def test_pulls_of_all_queues(names: str, topic: str) -> None:
    send(names, topic, *(b"%d" % number for number in range(70)))
    consumer = PullConsumer("pullers")
    consumer.set_namesrv_addr(names)
    with pytest.raises(exceptions.PullConsumerFetchMQFailed, match="has not started"):
        next(consumer.pull(topic))
    with consumer:
        assert [message.body for message in consumer.pull(topic)] == [b"%d" % number for number in range(70)]
        assert list(consumer.pull(topic)) == []
        send(names, topic, b"later")
        assert [message.body for message in consumer.pull(topic, max_num=1)] == [b"later"]
        for queue in list(consumer.offset_table):
            consumer.set_message_queue_offset(queue, 0)
        assert len(list(consumer.pull(topic))) == 71
        with pytest.raises(exceptions.PullConsumerFetchMQFailed, match="Nowhere"):
            next(consumer.pull("Nowhere"))


PROGRAM = """
import sys
from rmq.compat.rocketmq.client import PushConsumer

def callback(message):
    print(message.body.decode(), flush=True)

consumer = PushConsumer(sys.argv[3])
consumer.set_name_server_address(sys.argv[1])
consumer.subscribe(sys.argv[2], callback)
consumer.start()
sys.stdin.readline()
"""


def test_a_program_may_end_without_a_shutdown(names: str, topic: str) -> None:
    send(names, topic, b"hello")
    command = [sys.executable, "-c", PROGRAM, names, topic, f"programs-{topic}"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hello\n"
        _, errors = process.communicate("\n", timeout=SECONDS)
    assert process.returncode == 0
    assert errors.splitlines() == [
        f"the callback of {topic} returned None, treated as CONSUME_SUCCESS; return a ConsumeStatus"
    ]
