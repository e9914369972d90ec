"""Producers of the compatible client: settings, errors, asynchronous and ordered sends, forks."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from wsgiref.simple_server import make_server

import pytest

from rmq.compat.rocketmq import exceptions, producers
from rmq.compat.rocketmq.client import (
    Message,
    Producer,
    SendResult,
    SendStatus,
    TransactionMQProducer,
    TransactionStatus,
)
from rmq.errors import NoRoute
from tests.unit.compat.playing import gathering, pulled


def message(topic: str, body: str | bytes = "body") -> Message:
    made = Message(topic)
    made.set_body(body)
    return made


def started(names: str) -> Producer:
    producer = Producer("producers")
    producer.set_name_server_address(names)
    producer.start()
    return producer


def test_all_bytes_of_a_body_are_sent(names: str, topic: str) -> None:
    with started(names) as producer:
        producer.send_sync(message(topic, b"before\0behind"))
        producer.send_oneway(message(topic, "gr\u00fcn"))
        again = message(topic, b"twice")
        first, second = producer.send_sync(again), producer.send_sync(again)

    assert first.msg_id != second.msg_id
    assert pulled(names, topic) == sorted([b"before\0behind", "gr\u00fcn".encode(), b"twice", b"twice"])


def test_batches_and_chosen_queues(names: str, topic: str) -> None:
    with started(names) as producer:
        result = producer.send_batch([message(topic, b"1"), message(topic, b"2")])
        assert (result.status, len(result.msg_id.split(","))) == (SendStatus.OK, 2)
        offsets = [producer.send_orderly(message(topic, b"x"), 2).offset for _ in range(3)]
        assert offsets[1:] == [offsets[0] + 1, offsets[0] + 2]
        asked: list[tuple[int, bytes, Any]] = []

        def choose(size: int, chosen: Any, arg: Any) -> int:
            asked.append((size, chosen.body, arg))
            return size if arg is None else 0

        producer.send_oneway_orderly(message(topic, b"y"), {"any": "value"}, choose)
        with pytest.raises(exceptions.ProducerSendOrderlyFailed, match="expected an int from 0 to"):
            producer.send_orderly(message(topic, b"z"), None, queue_selector=choose)
    assert [(body, arg) for _, body, arg in asked] == [(b"y", {"any": "value"}), (b"z", None)]


def test_asynchronous_sends_call_back(names: str, topic: str) -> None:
    found, add, wait = gathering(20)
    failures, add_failure, wait_for_failure = gathering(1)
    producer = started(names)
    for number in range(20):
        producer.send_async(message(topic, b"%d" % number), add, None)
    producer.send_async(message(topic, b""), None, add_failure)
    assert wait()
    assert wait_for_failure()
    producer.shutdown()

    assert {type(one) for one in found} == {SendResult}
    assert len({one.msg_id for one in found}) == 20
    (failure,) = failures
    assert isinstance(failure, exceptions.ProducerSendAsyncFailed)
    assert (failure.error, failure.type) == (13, "InvalidMessage")
    with pytest.raises(exceptions.ProducerException, match="has not started"):
        producer.send_async(message(topic), None, None)


def test_shutdown_waits_for_asynchronous_sends(names: str, topic: str) -> None:
    producer, found, failures = started(names), list[SendResult](), list[Exception]()
    for number in range(50):
        producer.send_async(message(topic, b"%d" % number), found.append, failures.append)
    producer.shutdown()

    assert failures == []
    assert len(found) == 50


def test_errors_have_the_old_names_and_say_what_happened(names: str, topic: str) -> None:
    producer = Producer("producers", timeout=200)
    with pytest.raises(exceptions.ProducerStartFailed, match="call set_name_server_address before start"):
        producer.start()
    with pytest.raises(exceptions.ProducerSendSyncFailed, match="has not started: call start"):
        producer.send_sync(message(topic))
    producer.set_name_server_address(names)
    with producer:
        with pytest.raises(exceptions.ProducerSendSyncFailed, match="body is empty"):
            producer.send_sync(Message(topic))
        with pytest.raises(exceptions.ProducerSendOnewayFailed, match="only letters"):
            producer.send_oneway(message("no topic"))
        with pytest.raises(TypeError, match="expected a Message, not str"):
            producer.send_sync("text")  # type: ignore[arg-type]
        for setter, value in (("set_group", "g"), ("set_timeout", 1), ("set_name_server_address", names)):
            with pytest.raises(exceptions.RocketMQException, match=f"{setter}: the producer has started"):
                getattr(producer, setter)(value)
        producer.start()  # once started: nothing
    producer.shutdown()
    producer.start()  # and it begins again
    assert producer.send_sync(message(topic)).status is SendStatus.OK
    producer.shutdown()


def test_wrong_settings_are_refused_where_they_are_made() -> None:
    producer = Producer("producers")
    with pytest.raises(exceptions.RocketMQException, match="host:port"):
        producer.set_name_server_address("nowhere")
    with pytest.raises(exceptions.RocketMQException, match="timeout = 0: expected an int from 1"):
        producer.set_timeout(0)
    with pytest.raises(exceptions.RocketMQException, match="compress_level = 10"):
        producer.set_compress_level(10)
    producer.set_compress_level(-1)
    with pytest.raises(TypeError, match="max_message_size = '1': expected an int, not str"):
        producer.set_max_message_size("1")  # type: ignore[arg-type]
    with pytest.raises(exceptions.RocketMQException, match=r"group_id = b'\\xff': expected text in UTF-8"):
        Producer(b"\xff")
    with pytest.raises(exceptions.RocketMQException, match="'KEYS' is set by set_keys"):
        Message("t").set_property("KEYS", "k")
    with pytest.raises(exceptions.RocketMQException, match="'UNIQ_KEY' is a property of RocketMQ's own"):
        Message("t").set_property("UNIQ_KEY", "k")


def test_the_cause_of_a_failure_is_the_error_of_the_client() -> None:
    producer = Producer("producers", timeout=50)
    producer.set_name_server_address("127.0.0.1:1")
    with producer, pytest.raises(exceptions.ProducerSendSyncFailed) as caught:
        producer.send_sync(message("Orders"))
    assert isinstance(caught.value.__cause__, NoRoute)
    assert "127.0.0.1:1" in str(caught.value)


def test_the_environment_and_a_domain_name_the_servers(
    names: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", names)
    with Producer("producers") as producer:
        producer.send_sync(message(topic, b"environment"))
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")

    def answer(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [names.encode() + b"\n"]

    with make_server("127.0.0.1", 0, answer) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        producer = Producer("producers")
        producer.set_name_server_domain(f"127.0.0.1:{server.server_port}/rocketmq/nsaddr")
        with producer:
            producer.send_sync(message(topic, b"domain"))
    with pytest.raises(exceptions.ProducerStartFailed, match="name server domain"):
        producer.start()  # it is asked again, and is gone

    assert pulled(names, topic) == [b"domain", b"environment"]


@pytest.mark.parametrize("result", ["raises", None, 7, True])
def test_a_wrong_end_of_a_local_execution_leaves_the_end_to_the_check_back(
    names: str, topic: str, result: object, caplog: pytest.LogCaptureFixture
) -> None:
    def execute(half: object, arg: object) -> Any:
        if result == "raises":
            raise RuntimeError("the database is away")
        return result

    producer = TransactionMQProducer("transactions", lambda half: TransactionStatus.UNKNOWN)
    producer.set_name_server_address(names)
    with producer:
        stored = producer.send_message_in_transaction(message(topic), execute)

    assert stored.status is SendStatus.OK
    if result is not True:  # an int of the enum, as in the old client: a rollback
        assert "UNKNOWN" in caplog.text
    with pytest.raises(TypeError, match="expected a function"):
        TransactionMQProducer("transactions", None)  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_producer_goes_on_in_parent_and_child_after_a_fork(names: str, topic: str) -> None:
    producer = started(names)
    producer.send_sync(message(topic, b"before"))
    pid = os.fork()
    if not pid:
        status = 1
        try:
            producer.send_sync(message(topic, b"child"))
            producer.shutdown()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    producer.send_sync(message(topic, b"parent"))
    producer.shutdown()

    assert pulled(names, topic) == [b"before", b"child", b"parent"]


def test_sends_of_many_threads(names: str, topic: str) -> None:
    with started(names) as producer, ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: producer.send_sync(message(topic)), range(80)))

    assert len({one.msg_id for one in found}) == 80


def test_a_callback_may_begin_the_next_send(names: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each callback held its own place among the sends in flight while it waited for one."""
    monkeypatch.setattr(producers, "ASYNC_SENDS", 1)
    producer, (found, add, wait) = started(names), gathering(5)

    def next_send(result: SendResult) -> None:
        add(result)
        if len(found) < 5:
            producer.send_async(message(topic), next_send, None)

    producer.send_async(message(topic), next_send, None)
    assert wait()
    producer.shutdown()


def test_a_callback_that_sends_does_not_hold_up_shutdown(names: str, topic: str) -> None:
    """The pool of threads was behind the lock that `shutdown` has while it waits for callbacks."""
    arrived, gate, go, ending, ended = (threading.Event() for _ in range(5))
    errors: list[Exception] = []

    class Room:
        """The room of sends in flight, full until the gate opens."""

        def acquire(self) -> None:
            arrived.set()
            gate.wait(20)

        def release(self) -> None:
            pass

    def send_late(result: SendResult) -> None:
        go.wait(20)
        try:
            producer.send_async(message(topic), None, None)
        except exceptions.ProducerException as error:
            errors.append(error)

    def waits_for_callbacks() -> None:
        ending.set()
        wait_for_callbacks()

    def end() -> None:
        producer.shutdown()
        ended.set()

    producer = started(names)
    wait_for_callbacks, producer._end = producer._end, waits_for_callbacks  # type: ignore[method-assign]
    producer._room = Room()  # type: ignore[assignment]
    gate.set()
    producer.send_async(message(topic), send_late, None)
    gate.clear()
    arrived.clear()
    go.set()
    assert arrived.wait(20)
    threading.Thread(target=end, daemon=True).start()
    assert ending.wait(20)
    gate.set()
    assert ended.wait(20)
    assert len(errors) == 1
