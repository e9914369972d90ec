"""Sessions of Java clients with a Java broker, played to ours: ordered consumers; and names with a
namespace."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq.message import MessageQueue
from rmq.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    SubscriptionData,
)
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import ConsumerSendMsgBackRequestHeader
from rmq.protocol.record import decode_records
from tests.unit.broker.wire import Session, command_of, wire_rig

from ..rig import Rig, Wire, pull, send


@pytest.fixture
def filled(golden: Path) -> Rig:
    """A broker that has what the captured producer sent."""
    rig = wire_rig()
    for line in Session(golden / "wire_sessions" / "1_producer_send.jsonl").lines:
        if line["dir"] == "c2s" and line["code"] in (310, 320):
            rig.ask(command_of(line), wire=Wire())
    rig.now_ms += 1000
    rig.broker.steps.schedule()
    return rig


def test_a_java_ordered_consumers_session(filled: Rig, golden: Path) -> None:
    """Heartbeats, locks, pulls, offsets and the end; every answer equals the Java broker's."""
    session = Session(golden / "wire_sessions" / "2_ordered_consumer.jsonl")
    java, compared = session.answers(), 0
    start_ms = filled.now_ms
    for line in session.lines:
        if line["dir"] != "c2s":
            continue
        filled.now_ms = start_ms + line["t"]
        request = command_of(line)
        for answer in filled.ask(request):
            if not answer.is_response:
                assert answer.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
                continue
            expected = java[answer.opaque]
            compared += 1
            assert (answer.code, answer.remark) == (expected["code"], expected.get("remark")), line
            assert dict(answer.ext) == (expected.get("ext") or {}), line
            check_body(request, answer, command_of(expected))
    assert compared == len(java)
    assert (
        filled.broker.parked_pulls.count == 5
    )  # a long poll for each queue, which the captured broker did not answer
    assert filled.broker.locks.holder("wire_order_group", MessageQueue("WireTopic", "wire-a", 0), 0) is None
    offsets = [filled.broker.offsets.get("wire_order_group", "WireTopic", queue_id) for queue_id in range(4)]
    assert offsets == [3, 1, 2, 1]


def check_body(request: Command, answer: Command, expected: Command) -> None:
    if request.code == RequestCode.LOCK_BATCH_MQ:
        assert LockBatchResponseBody.from_json(answer.body) == LockBatchResponseBody.from_json(expected.body)
    elif request.code == RequestCode.PULL_MESSAGE and expected.body:
        ours, javas = decode_records(answer.body), decode_records(expected.body)
        assert [(one.body, one.tags, one.queue_offset) for one in ours] == [
            (one.body, one.tags, one.queue_offset) for one in javas
        ]
    else:
        assert bool(answer.body) == bool(expected.body)


def test_an_ordered_consumer_takes_over_when_the_other_is_silent(filled: Rig) -> None:
    queue = MessageQueue("WireTopic", "wire-a", 1)

    def lock(client: str) -> set[MessageQueue]:
        body = LockBatchRequestBody("g", client, frozenset({queue})).to_json()
        answer = filled.one(Command.request(RequestCode.LOCK_BATCH_MQ, None, body))
        return set(LockBatchResponseBody.from_json(answer.body).lock_ok_mq_set)

    assert lock("one") == {queue}
    filled.let_pass(20_000)
    assert lock("two") == set()
    assert lock("one") == {queue}
    filled.let_pass(60_000)
    assert lock("two") == set()
    filled.let_pass(1)
    assert lock("two") == {queue}
    assert lock("one") == set()


# --- namespaces: a prefix of names, nothing more ---


def test_two_namespaces_have_topics_and_groups_of_their_own() -> None:
    rig = Rig()
    for name in ("a", "b"):
        assert rig.one(send(f"{name}%Orders", name.encode())).code == 0
        wanted = [SubscriptionData(f"{name}%Orders", "*", sub_version=1)]
        data = ConsumerData(f"{name}%billing", "CONSUME_PASSIVELY", "CLUSTERING", None, wanted)
        body = HeartbeatData(f"{name}@1", consumer_data_set=[data]).to_json()
        rig.ask(Command.request(RequestCode.HEART_BEAT, None, body), wire=Wire(f"h:{name}"))
        got = rig.one(pull(f"{name}%Orders", consumer_group=f"{name}%billing", sys_flag=0))
        (message,) = decode_records(got.body)
        assert message.body == name.encode()
        header = ConsumerSendMsgBackRequestHeader(message.physical_offset, f"{name}%billing", 1)
        assert rig.one(Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == 0
    rig.now_ms += 1000
    rig.broker.steps.schedule()
    assert rig.bodies("%RETRY%a%billing") == [b"a"]
    assert rig.bodies("%RETRY%b%billing") == [b"b"]
    assert rig.broker.clients.consumer_ids("a%billing") == ["a@1"]
