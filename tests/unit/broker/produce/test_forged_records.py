"""A body may hold bytes that look like a record of its own place in the log: nobody takes them for one."""

from __future__ import annotations

import pytest

from rmq.broker.plugin_host import plugin_host
from rmq.message import offset_message_id
from rmq.protocol.bodies import ConsumerData, HeartbeatData
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
    ViewMessageRequestHeader,
)
from rmq.protocol.properties import encode_properties
from rmq.protocol.record import Record, encode_record, host_bytes

from ..rig import ADDRESS, START, Rig, Wire, send

BODY_AT = 88
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
HOST = host_bytes(ADDRESS)


def forged(at: int, topic: str, queue_offset: int, **properties: str) -> bytes:
    """The bytes of a record of that place, as a sender makes them up."""
    record = Record(topic, 0, b"forged", encode_properties(properties), born_timestamp=START, born_host=HOST)
    record.queue_offset, record.physical_offset, record.store_timestamp = queue_offset, at, START
    return encode_record(record, HOST)


def send_forged(rig: Rig, topic: str, queue_offset: int, **properties: str) -> int:
    """Send a body with a forged record at its start; returns where that lies."""
    at = rig.store.max_physical_offset + BODY_AT
    assert rig.one(send("Mine", forged(at, topic, queue_offset, **properties) + b"rest")).code == 0
    record = rig.store.read(at)
    if queue_offset < 0:
        assert record is None, "no record has such an offset"
    else:
        assert record is not None, "magic, place and lengths fit"
        assert b"forged" in bytes(record)
    return at


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.one(send())
    return rig


@pytest.mark.parametrize("topic", ["Orders", "Mine", "Nowhere"])
@pytest.mark.parametrize("queue_offset", [0, 1, -1, 1 << 40])
def test_a_forged_record_is_not_shown_and_belongs_to_no_topic(
    rig: Rig, topic: str, queue_offset: int
) -> None:
    at = send_forged(rig, topic, queue_offset)
    view = Command.request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(at))
    answer = rig.one(view)
    assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b"")
    assert "can not find message by the offset" in (answer.remark or "")
    assert plugin_host(rig.broker).topic_of(at) is None
    real = rig.store.unit("Mine", 0, 0)
    assert real is not None
    assert plugin_host(rig.broker).topic_of(real[0]) == "Mine"
    assert (
        rig.one(Command.request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(real[0]))).code == 0
    )


def test_a_forged_record_is_not_given_back(rig: Rig) -> None:
    at = send_forged(rig, "Orders", 0)
    header = ConsumerSendMsgBackRequestHeader(at, "billing", 0)
    answer = rig.one(Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert rig.bodies("SCHEDULE_TOPIC_XXXX", 2) == []


def test_a_forged_half_message_ends_no_transaction(rig: Rig) -> None:
    """The end would be that of another half message, which has the same queue offset."""
    half = "UNIQ_KEY\x01AC7\x02TRAN_MSG\x01true\x02PGROUP\x01payers"
    assert rig.one(send("Pay", b"paid", properties=half)).code == 0
    at = send_forged(rig, HALF, 0, PGROUP="mine", REAL_TOPIC="Mine", REAL_QID="0")
    end = EndTransactionRequestHeader("mine", 0, at, 8, msg_id="AC7")
    answer = rig.one(Command.request(RequestCode.END_TRANSACTION, end))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    real = rig.store.unit(HALF, 0, 0)
    assert real is not None
    end = EndTransactionRequestHeader("payers", 0, real[0], 8, msg_id="AC7")
    assert rig.one(Command.request(RequestCode.END_TRANSACTION, end)).code == 0
    assert rig.bodies("Pay") == [b"paid"]


def test_a_forged_half_message_is_not_put_back(rig: Rig) -> None:
    at = send_forged(rig, "TRANS_CHECK_MAX_TIME_TOPIC", 0, PGROUP="mine", REAL_TOPIC="Mine", REAL_QID="0")
    header = ResumeCheckHalfMessageRequestHeader(msg_id=offset_message_id(HOST, at))
    answer = rig.one(Command.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, header))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert rig.bodies(HALF) == []


def test_a_forged_record_is_given_to_no_consumer(rig: Rig) -> None:
    member = Wire("10.0.0.7:40007")
    beat = HeartbeatData("c@1", [], [ConsumerData("readers")])
    rig.ask(Command.request(RequestCode.HEART_BEAT, None, beat.to_json()), wire=member)
    header = ConsumeMessageDirectlyResultRequestHeader(
        "readers", "c@1", offset_message_id(HOST, send_forged(rig, "Orders", 0))
    )
    answer = rig.one(Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert member.take() == []
