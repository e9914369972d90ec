"""Questions of an administrator to running consumers, passed on by the broker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from rmq.broker.membership.client_requests import CALL_SECONDS, STATUS_SECONDS
from rmq.message import MessageQueue
from rmq.protocol.auth.signature import Credentials, Prover, signed
from rmq.protocol.bodies import ConsumerData, GetConsumerStatusBody, HeartbeatData, SubscriptionData
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
)
from rmq.protocol.record import decode_record

from ..rig import START, Rig, Wire, send

MANAGER = Credentials("manager", "admin-secret-1")
QUEUE = MessageQueue("Orders", "wire-a", 0)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def consumer(rig: Rig, client_id: str = "c@1", peer: str = "10.0.0.5:5000") -> Wire:
    wire = Wire(peer)
    data = ConsumerData("billing", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")
    data.subscription_data_set.append(SubscriptionData("Orders", "*"))
    body = HeartbeatData(client_id, consumer_data_set=[data]).to_json()
    rig.ask(Command.request(RequestCode.HEART_BEAT, None, body), wire=wire)
    return wire


def running_info(client_id: str = "c@1") -> Command:
    header = GetConsumerRunningInfoRequestHeader("billing", client_id, True)
    return Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)


def tell(rig: Rig, wire: Wire, answer: Command) -> list[Command]:
    rig.broker.on_response(answer, wire)  # type: ignore[arg-type]
    return rig.wire.take()


def test_running_info_comes_from_the_client(rig: Rig) -> None:
    wire = consumer(rig)
    request = running_info()
    assert rig.ask(request) == []
    (asked,) = wire.take()
    assert (asked.code, asked.is_oneway, dict(asked.ext)) == (307, False, dict(request.ext))
    (answer,) = tell(rig, wire, asked.reply(0, "well", {"x": "1"}, b'{"properties":{}}'))
    assert (answer.opaque, answer.code, answer.remark) == (request.opaque, 0, "well")
    assert (dict(answer.ext), answer.body) == ({"x": "1"}, b'{"properties":{}}')


@pytest.mark.parametrize("sign", [partial(signed, credentials=MANAGER), Prover(MANAGER, lambda: START)])
def test_a_consumer_does_not_see_who_signed_what_it_is_asked(
    rig: Rig, sign: Callable[[Command], Command]
) -> None:
    """With RocketMQ's signature of an administrator it could delete topics, at any server of the cluster."""
    stored = rig.one(send())
    wire = consumer(rig)
    header = ConsumeMessageDirectlyResultRequestHeader("billing", "c@1", stored.ext["msgId"])
    consume = Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
    assert rig.ask(sign(running_info()), sign(consume)) == []
    info, direct = wire.take()
    assert dict(info.ext) == dict(running_info().ext)
    assert dict(direct.ext) == {**consume.ext, "brokerName": "wire-a"}


def test_two_clients_are_asked_each_for_itself(rig: Rig) -> None:
    first, second = consumer(rig), consumer(rig, "c@2", "10.0.0.5:5001")
    first.take()
    rig.ask(running_info("c@2"))
    assert first.take() == []
    assert [command.code for command in second.take()] == [307]


def test_a_client_that_is_not_online(rig: Rig) -> None:
    consumer(rig)
    answer = rig.one(running_info("c@9"))
    assert (answer.code, answer.remark) == (1, "The Consumer <billing> <c@9> not online")


def test_a_client_that_is_silent_or_goes(rig: Rig) -> None:
    wire = consumer(rig)
    rig.ask(running_info())
    rig.broker.steps.deadlines(rig.seconds + CALL_SECONDS)
    (answer,) = rig.wire.take()
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
    rig.ask(running_info())
    rig.broker.on_close(wire)  # type: ignore[arg-type]
    (answer,) = rig.wire.take()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "c@1" in (answer.remark or "")


def test_a_message_is_consumed_directly(rig: Rig) -> None:
    stored = rig.one(send(body=b"again"))
    wire = consumer(rig)
    header = ConsumeMessageDirectlyResultRequestHeader("billing", "c@1", stored.ext["msgId"])
    request = Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
    assert rig.ask(request) == []
    (asked,) = wire.take()
    assert asked.ext["brokerName"] == "wire-a"
    assert asked.ext["msgId"] == stored.ext["msgId"]
    assert decode_record(asked.body).body == b"again"
    (answer,) = tell(rig, wire, asked.reply(body=b'{"consumeResult":"CR_SUCCESS"}'))
    assert (answer.opaque, answer.body) == (request.opaque, b'{"consumeResult":"CR_SUCCESS"}')


@pytest.mark.parametrize("message_id", ["nonsense", "0A00000900002A9F00000000000F0000"])
def test_a_message_that_is_not_there_is_not_consumed(rig: Rig, message_id: str) -> None:
    wire = consumer(rig)
    wire.take()
    header = ConsumeMessageDirectlyResultRequestHeader("billing", "c@1", message_id)
    answer = rig.one(Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert message_id in (answer.remark or "")
    assert wire.take() == []


def status(client: str | None = None) -> Command:
    header = GetConsumerStatusRequestHeader("Orders", "billing", client)
    return Command.request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)


def offsets(offset: int) -> bytes:
    return GetConsumerStatusBody(message_queue_table={QUEUE: offset}).to_json()


def test_the_offsets_of_all_members_are_gathered(rig: Rig) -> None:
    wires = [consumer(rig, f"c@{number}", f"10.0.0.5:{number}") for number in range(3)]
    [wire.take() for wire in wires]
    request = status()
    assert rig.ask(request) == []
    asked = [wire.take()[0] for wire in wires]
    assert [one.code for one in asked] == [221, 221, 221]
    assert len({one.opaque for one in asked}) == 3
    assert dict(asked[0].ext) == {"topic": "Orders", "group": "billing"}
    assert tell(rig, wires[0], asked[0].reply(body=offsets(5))) == []
    assert tell(rig, wires[1], asked[1].reply(body=b"{nonsense")) == []
    rig.broker.steps.deadlines(rig.seconds + STATUS_SECONDS)
    (answer,) = rig.wire.take()
    assert (answer.opaque, answer.code) == (request.opaque, 0)
    assert GetConsumerStatusBody.from_json(answer.body).consumer_table == {"c@0": {QUEUE: 5}}


def test_the_offsets_of_one_member(rig: Rig) -> None:
    first, second = consumer(rig), consumer(rig, "c@2", "10.0.0.5:5001")
    first.take()
    second.take()
    rig.ask(status("c@2"))
    assert first.take() == []
    (asked,) = second.take()
    (answer,) = tell(rig, second, asked.reply(body=offsets(7)))
    assert GetConsumerStatusBody.from_json(answer.body).consumer_table == {"c@2": {QUEUE: 7}}


def test_the_offsets_of_nobody(rig: Rig) -> None:
    answer = rig.one(status())
    assert (answer.code, answer.remark) == (1, "No Any Consumer online in the consumer group: [billing]")
    consumer(rig)
    answer = rig.one(status("c@9"))
    assert GetConsumerStatusBody.from_json(answer.body).consumer_table == {}


def test_requests_on_their_way_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq.broker.membership.client_requests.ROWS_MAX", 4)
    rig = Rig()
    consumer(rig)
    rig.ask(running_info(), running_info())
    assert rig.one(running_info()).code == ResponseCode.SYSTEM_BUSY
    rig.broker.steps.deadlines(rig.seconds + CALL_SECONDS)
    rig.wire.take()
    assert rig.ask(running_info()) == []


def test_one_client_cannot_take_all_the_room_for_requests_on_their_way(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.broker.membership.client_requests.ROWS_OF_A_PEER", 3)
    consumer(rig)
    consumer(rig, "c@2", "10.0.0.5:5001")
    other = Wire("10.0.0.7:1")
    rig.ask(running_info(), running_info(), running_info())
    refused = rig.one(running_info("c@2"))  # this asker has three
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "for 10.0.0.1:40001" in (refused.remark or "")
    assert rig.ask(*[running_info("c@1")] * 2, wire=other) == []  # there is some room beside it
    refused = rig.one(running_info("c@1"), wire=other)
    assert "at 10.0.0.5:5000 2 of 6 are taken by 10.0.0.7, 1 are free" in (refused.remark or "")
    assert rig.ask(running_info("c@2"), wire=other) == []
    rig.broker.steps.deadlines(rig.seconds + CALL_SECONDS)
    rig.wire.take()
    assert rig.ask(running_info()) == []
    rig.broker.steps.deadlines(rig.seconds + 2 * CALL_SECONDS)
    pending = rig.broker.pending_requests
    assert (len(pending), pending._calls.bytes.used, pending._of_asker, pending._at) == (0, 0, {}, {})
    assert pending._rows == {}


def test_what_is_kept_of_requests_on_their_way_is_bounded_in_bytes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.broker.membership.client_requests.BYTES_OF_A_PEER", 1_000)
    consumer(rig)
    (sent,) = rig.ask(send("Orders", body=bytes(400)))
    header = ConsumeMessageDirectlyResultRequestHeader("billing", "c@1", sent.ext["msgId"])
    consume = Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
    assert rig.ask(consume) == []
    assert rig.one(consume).code == ResponseCode.SYSTEM_BUSY
    assert rig.ask(running_info()) == []


def test_steps_before_the_next_deadline_look_at_no_row(rig: Rig) -> None:
    consumer(rig)
    rig.ask(*(running_info() for _ in range(5)))
    deadline = rig.broker.pending_requests.step(rig.seconds + CALL_SECONDS - 1)
    rows, rig.broker.pending_requests._rows = rig.broker.pending_requests._rows, None  # type: ignore[assignment]
    assert rig.broker.pending_requests.step(deadline - 1) == deadline
    rig.broker.pending_requests._rows = rows
    assert rig.broker.pending_requests.step(deadline) > deadline
