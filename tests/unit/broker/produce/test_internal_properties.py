"""Properties that brokers give their values to mean nothing when a sender brings them."""

from __future__ import annotations

import pytest

from rmq.message import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import ConsumerSendMsgBackRequestHeader
from rmq.protocol.properties import INTERNAL_PROPERTIES
from rmq.protocol.record import encode_batch

from ..rig import START, Rig, batch, send

FORGED = dict.fromkeys(INTERNAL_PROPERTIES, "0") | {"REAL_TOPIC": "Secret", "TIMER_OUT_MS": str(START - 1)}


@pytest.fixture
def rig() -> Rig:
    return Rig()


def text(**properties: str) -> str:
    return "\x02".join(f"{name}\x01{value}" for name, value in properties.items())


def step_to(rig: Rig, now_ms: int) -> None:
    rig.now_ms = now_ms
    while rig.broker.steps.schedule() <= now_ms:
        pass


def test_they_are_taken_out_of_what_is_stored(rig: Rig) -> None:
    assert rig.one(send(properties=text(UNIQ_KEY="A", mine="1", **FORGED))).code == 0
    (message,) = rig.messages("Orders")
    assert message.properties == {"UNIQ_KEY": "A", "mine": "1", "CLUSTER": "WireCluster"}


@pytest.mark.parametrize(
    ("wish", "topic", "queue_id"),
    [
        ({"DELAY": "1"}, SCHEDULE_TOPIC, 0),
        ({"TIMER_DELIVER_MS": str(START + 1000)}, TIMER_TOPIC, 0),
        ({"TRAN_MSG": "true", "PGROUP": "producers"}, TRANS_HALF_TOPIC, 0),
    ],
)
def test_messages_on_a_detour_go_where_they_were_sent(
    rig: Rig, wish: dict[str, str], topic: str, queue_id: int
) -> None:
    assert rig.one(send(properties=text(UNIQ_KEY="A", **wish, **FORGED), queue_id=2)).code == 0
    (stored,) = rig.messages(topic, queue_id)
    assert (stored.properties["REAL_TOPIC"], stored.properties["REAL_QID"]) == ("Orders", "2")
    kept = INTERNAL_PROPERTIES.intersection(stored.properties) - {"REAL_TOPIC", "REAL_QID"}
    assert kept == ({"TIMER_OUT_MS"} if topic == TIMER_TOPIC else set())
    step_to(rig, START + 2000)
    assert len(rig.messages("Orders", 2)) == (topic != TRANS_HALF_TOPIC)
    assert rig.messages("Secret") == []


def test_a_delivered_message_that_is_sent_on_with_a_new_time_waits_for_that(rig: Rig) -> None:
    rig.one(send(properties=text(UNIQ_KEY="A", TIMER_DELAY_SEC="1")))
    step_to(rig, START + 1000)
    (message,) = rig.messages("Orders")
    assert "TIMER_OUT_MS" in message.properties
    rig.one(send("Next", properties=text(**message.properties)))
    assert rig.messages("Next") == []
    step_to(rig, START + 2000)
    assert len(rig.messages("Next")) == 1


def test_nobody_recalls_by_a_send(rig: Rig) -> None:
    rig.one(send(properties=text(UNIQ_KEY="A", TIMER_DELIVER_MS=str(START + 1000))))
    for key in ("Orders+A", "Orders_A", "A"):
        forged = text(UNIQ_KEY="B", TIMER_DELIVER_MS=str(START + 1000), TIMER_DEL_UNIQKEY=key)
        answer = rig.one(send(properties=forged))
        assert (answer.code, "TIMER_DEL_UNIQKEY" in (answer.remark or "")) == (
            ResponseCode.MESSAGE_ILLEGAL,
            True,
        )
    step_to(rig, START + 1000)
    assert rig.bodies("Orders") == [b"hello"]


def test_in_a_batch_they_mean_nothing(rig: Rig) -> None:
    rig.one(send(properties=text(UNIQ_KEY="A", TIMER_DELIVER_MS=str(START + 1000))))
    names = text(TIMER_DEL_UNIQKEY="Orders+A", TIMER_DELIVER_MS=str(START + 1000), DELAY="1", **FORGED)
    assert rig.one(_batch(names)).code == 0
    assert rig.bodies("Orders") == [b"in a batch"]
    header = ConsumerSendMsgBackRequestHeader(rig.messages("Orders")[0].physical_offset, "g", 1)
    assert rig.one(Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == 0
    step_to(rig, START + 2000)
    assert rig.bodies("Orders") == [b"in a batch", b"hello"]
    assert rig.bodies("%RETRY%g") == [b"in a batch"]


def _batch(names: str) -> Command:
    request = batch()
    request.body = encode_batch([(0, b"in a batch", names)])
    return request


def test_a_transactional_message_that_is_consumed_again_is_no_half_message(rig: Rig) -> None:
    properties = text(UNIQ_KEY="A", TRAN_MSG="true", PGROUP="producers", RETRY_TOPIC="Orders", DELAY="1")
    assert rig.one(send("%RETRY%g", properties=properties, reconsume_times=1)).code == 0
    assert rig.one(send("%RETRY%g", b"dead", properties=properties, reconsume_times=99)).code == 0
    assert rig.messages(TRANS_HALF_TOPIC) == []
    step_to(rig, START + 1000)
    assert rig.bodies("%RETRY%g") == [b"hello"]
    assert rig.bodies("%DLQ%g") == [b"dead"]


def test_a_message_that_comes_back_for_the_first_time_comes_from_where_it_lies(rig: Rig) -> None:
    rig.one(send(properties=text(UNIQ_KEY="A", RETRY_TOPIC="Secret")))
    header = ConsumerSendMsgBackRequestHeader(rig.messages("Orders")[0].physical_offset, "g", 1)
    rig.one(Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header))
    step_to(rig, START + 1000)
    (again,) = rig.messages("%RETRY%g")
    assert again.properties["RETRY_TOPIC"] == "Orders"
    header = ConsumerSendMsgBackRequestHeader(again.physical_offset, "g", 1)
    rig.one(Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header))
    step_to(rig, START + 5000)
    assert rig.messages("%RETRY%g")[1].properties["RETRY_TOPIC"] == "Orders"
