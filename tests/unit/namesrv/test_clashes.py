"""A broker registers under a name that another connection holds: the holder is asked whether it lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmq.namesrv.clashes import ANSWER_MS, WAITING_MAX
from rmq.namesrv.config import NamesrvConfig
from rmq.namesrv.handlers import NameServer
from rmq.namesrv.kvconfigs import KvConfigs
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from rmq.protocol.headers import GetRouteInfoRequestHeader
from tests.unit.namesrv.host import broker, registration, route_of


class Peer:
    """A connection as the name server sees it."""

    def __init__(self, address: str) -> None:
        self.peer_address = address
        self.replies: list[Command] = []
        self.questions: list[Command] = []
        self.closed_because = ""

    def reply(self, response: Command) -> None:
        self.replies += Decoder().feed(encode(response))

    def notify(self, command: Command) -> None:
        self.questions += Decoder().feed(encode(command))

    def close(self, reason: str) -> None:
        self.closed_because = reason


class Host:
    """A name server whose clock and connections the test holds."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.deadlines = 0
        self.server = NameServer(
            NamesrvConfig(),
            now_ms=lambda: self.now_ms,
            kv_configs=KvConfigs(lambda data: None),
            on_deadline=self.due_earlier,
        )
        self.holder = Peer("10.0.0.1:5555")
        self.newcomer = Peer("10.0.0.2:5555")

    def due_earlier(self) -> None:
        self.deadlines += 1

    def register(self, peer: Peer, address: str, **header: Any) -> list[Command]:
        """Register broker a over a connection; returns the answers that came at once."""
        body = registration("T")
        request = Command.request(
            RequestCode.REGISTER_BROKER, broker(body, broker_addr=address, **header), body
        )
        return self.handle(request, peer)

    def handle(self, request: Command, peer: Peer) -> list[Command]:
        peer.replies.clear()
        self.server.handle(Decoder().feed(encode(request)), peer)  # type: ignore[arg-type]
        return list(peer.replies)

    def answer(self, peer: Peer) -> None:
        """A broker answers as RocketMQ's does."""
        response = peer.questions.pop().reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        self.server.on_response(response, peer)  # type: ignore[arg-type]

    def master(self) -> str:
        request = Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader("T"))
        return route_of(self.handle(request, Peer("10.0.0.3:1"))[0]).broker_datas[0].broker_addrs[0]


@pytest.fixture
def host() -> Host:
    host = Host()
    assert [one.code for one in host.register(host.holder, "10.0.0.1:10911")] == [0]
    assert host.register(host.newcomer, "10.0.0.2:10911") == []
    assert len(host.holder.questions) == 1
    assert host.deadlines == 1
    return host


def test_a_holder_that_answers_keeps_its_name(host: Host) -> None:
    host.answer(host.holder)
    (refusal,) = host.newcomer.replies
    assert refusal.code == ResponseCode.SYSTEM_ERROR
    assert "broker a id 0 is 10.0.0.1:10911" in str(refusal.remark)
    host.now_ms += ANSWER_MS
    host.server.step(host.now_ms)
    assert host.master() == "10.0.0.1:10911"
    assert not host.holder.closed_because


def test_a_silent_holder_loses_its_name_after_three_seconds(host: Host) -> None:
    assert host.server.step(host.now_ms) == host.now_ms + ANSWER_MS
    host.now_ms += ANSWER_MS - 1
    host.server.step(host.now_ms)
    assert host.newcomer.replies == []
    assert host.master() == "10.0.0.1:10911"
    host.now_ms += 1
    host.server.step(host.now_ms)
    assert [one.code for one in host.newcomer.replies] == [0]
    assert host.master() == "10.0.0.2:10911"
    assert "did not answer" in host.holder.closed_because


def test_an_address_that_another_broker_holds_is_asked_for_as_well() -> None:
    host = Host()
    host.register(host.holder, "10.0.0.1:10911")
    assert host.register(host.newcomer, "10.0.0.1:10911", broker_name="b") == []
    host.now_ms += ANSWER_MS
    host.server.step(host.now_ms)
    assert [one.code for one in host.newcomer.replies] == [0]
    assert list(host.server.routes.broker_addr_table) == ["b"]


@pytest.mark.parametrize(
    "speak",
    [
        lambda host: host.register(host.holder, "10.0.0.1:10911"),
        lambda host: host.register(host.holder, "10.0.0.1:10911", ha_server_addr="10.0.0.1:9"),
    ],
)
def test_a_holder_that_registers_meanwhile_lives(host: Host, speak: Callable[[Host], object]) -> None:
    host.now_ms += 1
    speak(host)
    assert [one.code for one in host.newcomer.replies] == [ResponseCode.SYSTEM_ERROR]
    assert host.master() == "10.0.0.1:10911"


def test_a_holder_that_leaves_meanwhile_makes_room(host: Host) -> None:
    host.server.on_close(host.holder)  # type: ignore[arg-type]
    assert [one.code for one in host.newcomer.replies] == [0]
    assert host.master() == "10.0.0.2:10911"


def test_a_newcomer_that_leaves_is_not_registered(host: Host) -> None:
    host.server.on_close(host.newcomer)  # type: ignore[arg-type]
    host.now_ms += ANSWER_MS
    host.server.step(host.now_ms)
    assert host.newcomer.replies == []
    assert host.server.routes.broker_live_table == {}


def test_a_holder_is_asked_once_for_many_newcomers(host: Host) -> None:
    others = [Peer(f"10.0.1.{number}:1") for number in range(WAITING_MAX)]
    at_once = [bool(host.register(peer, f"{peer.peer_address}0911")) for peer in others]
    assert at_once == [False] * (WAITING_MAX - 1) + [True], "so many wait, the others are refused"
    assert len(host.holder.questions) == 1
    host.answer(host.holder)
    assert all(peer.replies[0].code == ResponseCode.SYSTEM_ERROR for peer in (host.newcomer, *others))


def test_no_address_has_all_places_of_registrations_that_wait(host: Host) -> None:
    crowd = [Peer(f"10.0.1.1:{port}") for port in range(1, WAITING_MAX + 1)]
    at_once = [bool(host.register(peer, f"10.0.1.1:{number}")) for number, peer in enumerate(crowd, 20_000)]
    assert at_once.count(False) == WAITING_MAX // 2, "half of the places; others are refused at once"
    assert host.register(Peer("10.0.1.2:1"), "10.0.1.2:10911") == [], "another address waits"
    for peer in crowd:
        host.server.on_close(peer)  # type: ignore[arg-type]
    assert host.register(Peer("10.0.1.1:999"), "10.0.1.1:10911") == [], "places are given back"


def test_a_newcomer_that_asks_again_gets_an_answer_to_each_request(host: Host) -> None:
    host.register(host.newcomer, "10.0.0.2:10911")
    assert [one.code for one in host.newcomer.replies] == [ResponseCode.SYSTEM_ERROR]
    host.newcomer.replies.clear()
    host.now_ms += ANSWER_MS
    host.server.step(host.now_ms)
    assert [one.code for one in host.newcomer.replies] == [0]


def test_a_late_answer_changes_nothing(host: Host) -> None:
    host.now_ms += ANSWER_MS
    host.server.step(host.now_ms)
    host.answer(host.holder)
    assert host.master() == "10.0.0.2:10911"
