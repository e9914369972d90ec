"""Request and reply: the answer reaches who asked, and who answered learns whether it did."""

from __future__ import annotations

import pytest

from rmq.broker.membership.client_requests import PUSH_SECONDS
from rmq.broker.wakeups import Wakeups
from rmq.protocol.bodies import HeartbeatData, ProducerData
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import ReplyMessageRequestHeader, UnregisterClientRequestHeader
from rmq.protocol.properties import decode_properties

from ..rig import ADDRESS, START, Rig, Wire, send

TOPIC = "WireCluster_REPLY_TOPIC"
PROPERTIES = "UNIQ_KEY\x01AC12\x02REPLY_TO_CLIENT\x01asker@1\x02CORRELATION_ID\x01c-7\x02MSG_TYPE\x01reply"


@pytest.fixture
def requester() -> Wire:
    return Wire("10.0.0.7:40007")


@pytest.fixture
def rig(requester: Wire) -> Rig:
    return online(Rig(), requester)


def online(rig: Rig, requester: Wire) -> Rig:
    body = HeartbeatData("asker@1", [ProducerData("askers")]).to_json()
    assert rig.one(Command.request(RequestCode.HEART_BEAT, None, body), wire=requester).code == 0
    return rig


def reply(code: int = RequestCode.SEND_REPLY_MESSAGE_V2, properties: str = PROPERTIES) -> Command:
    return send(TOPIC, b"17", code=code, properties=properties)


def tell(rig: Rig, requester: Wire, pushed: Command, code: int = 0, remark: str | None = None) -> None:
    """The asker answers what was pushed to it."""
    rig.broker.on_response(pushed.reply(code, remark), requester)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_an_answer_is_pushed_to_who_asked(rig: Rig, requester: Wire, code: int) -> None:
    rig.now_ms += 50
    assert rig.ask(reply(code)) == []
    (pushed,) = requester.take()
    assert (pushed.code, pushed.is_oneway, pushed.body) == (326, False, b"17")
    header = pushed.read(ReplyMessageRequestHeader)
    assert (header.topic, header.producer_group, header.queue_id) == (TOPIC, "producers", 0)
    assert (header.born_host, header.store_host) == (rig.wire.peer_address, ADDRESS)
    assert (header.born_timestamp, header.store_timestamp) == (START - 5, START + 50)
    assert decode_properties(header.properties) == {
        **decode_properties(PROPERTIES),
        "PUSH_REPLY_TIME": str(START + 50),
    }


def test_the_sender_is_told_once_the_asker_has_it(rig: Rig, requester: Wire) -> None:
    request = reply()
    rig.ask(request)
    assert rig.bodies(TOPIC) == []
    tell(rig, requester, requester.take()[0])
    (answer,) = rig.wire.take()
    assert (answer.opaque, answer.code, answer.ext["queueOffset"]) == (request.opaque, 0, "0")
    assert answer.ext["msgId"] == "0A00000900002A9F0000000000000000"
    assert rig.bodies(TOPIC) == [b"17"]


def test_without_storing_the_answer_has_no_id(requester: Wire) -> None:
    rig = online(Rig(store_reply_message_enable=False), requester)
    rig.ask(reply())
    tell(rig, requester, requester.take()[0])
    (answer,) = rig.wire.take()
    assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"]) == (0, "0", "0")
    assert rig.bodies(TOPIC) == []


def test_an_asker_that_refuses_is_an_error_but_the_answer_is_kept(rig: Rig, requester: Wire) -> None:
    request = reply()
    rig.ask(request)
    tell(rig, requester, requester.take()[0], ResponseCode.SYSTEM_ERROR, "no such request")
    (answer,) = rig.wire.take()
    assert (answer.opaque, answer.code) == (request.opaque, ResponseCode.SYSTEM_ERROR)
    assert answer.remark == "push reply message to asker@1 fail: code 1, no such request"
    assert rig.bodies(TOPIC) == [b"17"]


def test_an_asker_that_is_not_here(requester: Wire) -> None:
    rig = Rig()
    answer = rig.one(reply())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "push reply message fail, channel of <asker@1> not found."
    assert rig.bodies(TOPIC) == [b"17"]


def test_an_answer_to_nobody(rig: Rig) -> None:
    answer = rig.one(reply(properties="UNIQ_KEY\x01AC12"))
    assert (answer.code, answer.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")


def test_an_asker_that_is_silent(requester: Wire) -> None:
    rung: list[None] = []
    rig = online(Rig(given={"wake": Wakeups(deadlines=lambda: rung.append(None))}), requester)
    assert not rung
    rig.ask(reply())
    assert rung, "the loop that ends requests on their way must be woken"
    deadline = rig.seconds + PUSH_SECONDS
    assert rig.broker.steps.deadlines(deadline - 0.001) == deadline
    assert rig.wire.take() == []
    rig.broker.steps.deadlines(deadline)
    (answer,) = rig.wire.take()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "within 10 s" in (answer.remark or "")
    tell(rig, requester, requester.take()[0])  # too late
    assert rig.wire.take() == []
    assert rig.bodies(TOPIC) == [b"17"]


def test_an_asker_that_goes_away(rig: Rig, requester: Wire) -> None:
    rig.ask(reply())
    rig.broker.on_close(requester)  # type: ignore[arg-type]
    (answer,) = rig.wire.take()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert len(rig.broker.pending_requests) == 0


def test_only_the_asker_can_say_that_it_has_it(rig: Rig, requester: Wire) -> None:
    rig.ask(reply())
    (pushed,) = requester.take()
    tell(rig, Wire("10.0.0.8:1"), pushed)
    assert rig.wire.take() == []


def test_the_connection_of_the_latest_heartbeat_counts(rig: Rig) -> None:
    again = Wire("10.0.0.7:40009")
    online(rig, again)
    rig.ask(reply())
    assert [command.code for command in again.take()] == [326]


def test_an_asker_that_closes_one_of_its_producers_gets_answers_by_the_others(
    rig: Rig, requester: Wire
) -> None:
    body = HeartbeatData("asker@1", [ProducerData("askers"), ProducerData("others")]).to_json()
    assert rig.one(Command.request(RequestCode.HEART_BEAT, None, body), wire=requester).code == 0
    leaves = UnregisterClientRequestHeader("asker@1", "others", None)
    assert rig.one(Command.request(RequestCode.UNREGISTER_CLIENT, leaves), wire=requester).code == 0
    assert rig.ask(reply()) == []
    (pushed,) = requester.take()
    assert pushed.body == b"17"
    leaves = UnregisterClientRequestHeader("asker@1", "askers", None)
    assert rig.one(Command.request(RequestCode.UNREGISTER_CLIENT, leaves), wire=requester).code == 0
    assert "channel of <asker@1> not found" in str(rig.one(reply()).remark)
