"""Programs of rocketmq-client-python, moved by one import line, at the Java servers and beside its client."""

from __future__ import annotations

import pathlib

import pytest

from rmq.compat.rocketmq.client import (
    ConsumeStatus,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
)
from tests.interop.conftest import Servers
from tests.interop.rocketmq import Processes, wait_until
from tests.unit.compat import programs
from tests.unit.compat.playing import gathering, play, pulled

pytestmark = pytest.mark.interop

TOPIC = "Moved"


@pytest.fixture
def names(processes: Processes, tmp_path: pathlib.Path) -> str:
    """The address of a Java name server, with a Java broker that checks back soon."""
    servers = Servers(processes, "java")
    often = {"transactionCheckInterval": "1000", "transactionTimeOut": "1000"}
    servers.broker(tmp_path / "store", **often)
    return servers.namesrv


def test_moved_programs_at_java_servers(
    names: str, processes: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    processes.make_topic(names, TOPIC)
    play(programs.SENDING, names, TOPIC)
    sent = [b"body 0", b"body 1", b"body 2", b"in order"]
    assert pulled(names, TOPIC) == sent

    processes.program("Produce", names, TOPIC, "sync", "10", "java").finish()
    found, add, wait = gathering(14)
    play(programs.CONSUMING, names, TOPIC, group="moved-readers", got=add, wait=wait)
    assert len({one.body for one in found}) == 14
    assert set(sent) < {one.body for one in found}

    processes.make_topic(names, "MovedTransactions")
    committed, add, wait = gathering(2)
    consumer = PushConsumer("moved-auditors")
    consumer.set_name_server_address(names)

    def audit(message: ReceivedMessage) -> ConsumeStatus:
        add(message.body)
        return ConsumeStatus.CONSUME_SUCCESS

    consumer.subscribe("MovedTransactions", audit)
    with consumer:
        play(programs.TRANSACTIONS, names, "MovedTransactions", wait=wait)
    assert sorted(committed) == [b"COMMIT", b"UNKNOWN"]  # the second by the check-back
    assert "check: UNKNOWN" in capsys.readouterr().out


def test_a_java_consumer_gets_the_messages_of_a_moved_program(names: str, processes: Processes) -> None:
    processes.make_topic(names, TOPIC)
    consumer = processes.program("Consume", names, TOPIC, "java-readers")
    with_all = Message(TOPIC)
    with_all.set_keys("k1 k2")
    with_all.set_tags("tag")
    with_all.set_property("own", "value")
    with_all.set_body("text")
    producer = Producer("moved", compress_level=9)
    producer.set_name_server_address(names)
    with producer:
        assert producer.send_sync(with_all).status is SendStatus.OK
        large = Message(TOPIC)
        large.set_body("long " * 10_000 + "end")
        batch = [Message(TOPIC) for _ in range(3)]
        for one in batch:
            one.set_body("batch")
        assert producer.send_sync(large).status is SendStatus.OK
        assert producer.send_batch(batch).status is SendStatus.OK
        _, add, wait = gathering(20)
        for number in range(20):
            later = Message(TOPIC)
            later.set_body(f"async {number}")
            producer.send_async(later, add, None)
        assert wait()
        delayed = Message(TOPIC)
        delayed.set_body("delayed")
        delayed.set_delay_time_level(1)
        assert producer.send_orderly(delayed, 1).status is SendStatus.OK
    expected = {"text", "long " * 10_000 + "end", "batch", "delayed"} | {
        f"async {number}" for number in range(20)
    }
    wait_until(lambda: expected <= {row.get("body") for row in consumer.rows}, 60, "the messages")

    puller = PullConsumer("moved-pullers")
    puller.set_name_server_address(names)
    with puller:
        (found,) = list(puller.pull(TOPIC, "tag"))
    assert (found.tags, found.keys, found["own"], found.body) == (b"tag", b"k1 k2", b"value", b"text")
