"""The shares of a broker's time and memory that the requests of one connection get at once."""

from __future__ import annotations

import itertools

import pytest
from attrs import evolve

from rmq.broker import broker
from rmq.errors import AccessDenied, ResponseError
from rmq.namesrv.config import NamesrvConfig
from rmq.namesrv.handlers import NameServer
from rmq.namesrv.kvconfigs import KvConfigs
from rmq.plugin import Hooks
from rmq.protocol import json
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import MAX_FRAME, MESSAGES, SMALLEST_BODY_LIMIT, Command, body_limit, check_body
from rmq.protocol.headers import RegisterBrokerRequestHeader
from rmq.remoting.limits import SENDS_OF_A_LOOK, TURN_REQUESTS
from rmq.store.files.segments import Segments

from ..rig import Rig, Wire, send

MESSAGE = 4 << 20


@pytest.fixture
def rig() -> Rig:
    return Rig()


def expensive(rig: Rig, seconds: float) -> None:
    """From now on each look at the clock finds that so much time has passed."""
    ticks = itertools.count()
    rig.broker.work_clock = lambda: next(ticks) * seconds


def test_an_ordinary_chunk_is_one_turn(rig: Rig) -> None:
    expensive(rig, 10e-6)
    requests = [send(body=b"%d" % number) for number in range(TURN_REQUESTS)]
    assert rig.broker.handle(requests, rig.wire) == TURN_REQUESTS  # type: ignore[arg-type]
    assert len(rig.wire.take()) == TURN_REQUESTS


def test_a_long_chunk_is_cut(rig: Rig) -> None:
    requests = [send(body=b"%d" % number) for number in range(TURN_REQUESTS + 5)]
    assert rig.broker.handle(requests, rig.wire) == TURN_REQUESTS  # type: ignore[arg-type]


def test_expensive_requests_end_a_turn(rig: Rig) -> None:
    expensive(rig, 0.0011)
    requests = [Command.request(RequestCode.GET_BROKER_RUNTIME_INFO) for _ in range(5)]
    assert rig.broker.handle(requests, rig.wire) == 2  # type: ignore[arg-type]
    assert [answer.opaque for answer in rig.wire.take()] == [request.opaque for request in requests[:2]]


def test_the_clock_is_looked_at_after_some_sends_and_after_any_other_request(rig: Rig) -> None:
    expensive(rig, 0.0011)
    requests = [send(body=b"%d" % number) for number in range(3 * SENDS_OF_A_LOOK)]
    assert rig.broker.handle(requests, rig.wire) == 2 * SENDS_OF_A_LOOK  # type: ignore[arg-type]
    expensive(rig, 1)
    requests[3] = Command.request(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert rig.broker.handle(requests, rig.wire) == 4  # type: ignore[arg-type]


def test_expensive_sends_end_a_turn_with_their_answers(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages of a turn are committed and answered in the turn; the other requests are untouched."""
    monkeypatch.setattr(broker, "SENDS_OF_A_LOOK", 1)
    expensive(rig, 0.0011)
    requests = [send(body=b"%d" % number) for number in range(5)]
    assert rig.broker.handle(requests, rig.wire) == 2  # type: ignore[arg-type]
    assert [answer.opaque for answer in rig.wire.take()] == [request.opaque for request in requests[:2]]
    assert rig.bodies("Orders", 0) + rig.bodies("Orders", 1) + rig.bodies("Orders", 2) + rig.bodies(
        "Orders", 3
    ) == [b"0", b"1"]
    assert rig.broker.handle(requests[2:], rig.wire) == 2  # type: ignore[arg-type]
    assert rig.broker.handle(requests[4:], rig.wire) == 1  # type: ignore[arg-type]
    assert [answer.opaque for answer in rig.wire.take()] == [request.opaque for request in requests[2:]]


def test_a_name_server_gives_turns_too() -> None:
    ticks = itertools.count()
    server = NameServer(
        NamesrvConfig(),
        now_ms=lambda: 0,
        kv_configs=KvConfigs(lambda data: None),
        clock=lambda: next(ticks) * 0.0011,
    )
    requests = [Command.request(RequestCode.GET_BROKER_CLUSTER_INFO) for _ in range(5)]
    wire = Wire()
    assert server.handle(requests, wire) == 2  # type: ignore[arg-type]
    assert [answer.opaque for answer in wire.take()] == [request.opaque for request in requests[:2]]


# --- bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        (RequestCode.SEND_MESSAGE, MESSAGE + (64 << 10)),
        (RequestCode.SEND_BATCH_MESSAGE, MESSAGE + (64 << 10)),
        (RequestCode.HEART_BEAT, 512 << 10),
        (RequestCode.LOCK_BATCH_MQ, 256 << 10),
        (RequestCode.GET_TOPIC_STATS_INFO, 256 << 10),
        (RequestCode.REGISTER_BROKER, MAX_FRAME),
    ],
)
def test_how_long_a_body_may_be(code: int, limit: int) -> None:
    assert body_limit(code, MESSAGE) == limit
    check_body(code, limit, MESSAGE)
    with pytest.raises(ResponseError, match=f"{limit + 1} bytes, {limit} are the most") as error:
        check_body(code, limit + 1, MESSAGE)
    wanted = ResponseCode.MESSAGE_ILLEGAL if code in MESSAGES else ResponseCode.SYSTEM_ERROR
    assert error.value.code == wanted


def test_nothing_shorter_than_the_least_limit_need_be_looked_at() -> None:
    assert min(body_limit(code, 1) for code in RequestCode) >= SMALLEST_BODY_LIMIT


def test_a_long_heartbeat_is_refused_and_not_read(rig: Rig) -> None:
    request = Command.request(RequestCode.HEART_BEAT, None, b"[" * (600 << 10))
    answer = rig.one(request)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "are the most" in (answer.remark or "")


def beat(count: int, name: bytes = b'"groupName"') -> Command:
    groups = b",".join(b'{%s:"g%d","subscriptionDataSet":[]}' % (name, number) for number in range(count))
    return Command.request(RequestCode.HEART_BEAT, None, b'{"clientID":"c","consumerDataSet":[%s]}' % groups)


def answered(rig: Rig, request: Command) -> Command:
    """The answer, among what members of groups are told."""
    return next(answer for answer in rig.ask(request) if answer.is_response)


def test_groups_of_a_heartbeat_are_counted_before_anybody_reads_it(rig: Rig) -> None:
    """40 us a group: 6,100 of them held all others up for 74 ms, and were refused then."""
    asked: list[int] = []
    rig.broker.use_plugins(Hooks(requests=(lambda connection, command: asked.append(command.code),)))
    answer = rig.one(beat(257))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "257 groups, maxGroupsOfHeartbeat of this broker is 256" in (answer.remark or "")
    assert not asked
    assert rig.broker.clients.consumer_group("g1") is None
    assert answered(rig, beat(256)).code == ResponseCode.SUCCESS
    assert asked == [RequestCode.HEART_BEAT]
    settings = rig.broker.settings
    settings.replace(evolve(settings.broker, max_groups_of_heartbeat=300), settings.store)
    assert answered(rig, beat(257)).code == ResponseCode.SUCCESS


def test_values_of_a_heartbeat_are_counted_before_it_is_read(rig: Rig) -> None:
    codes = b",".join(b"1" for _ in range(256 * 40))
    body = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","x":[%s]}]}' % codes
    answer = rig.one(Command.request(RequestCode.HEART_BEAT, None, body))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "values of JSON, 10240 are the most" in (answer.remark or "")


@pytest.mark.parametrize(
    "code", [RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ]
)
def test_what_is_no_strict_json_is_read_only_while_short(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Java's reader takes such texts; ours needs 3 us a value for them: 188 ms for a body of 240 kB."""
    loose = b"{clientID:'c',clientId:'c',consumerGroup:'g',x:[%s]}"
    assert answered(rig, Command.request(code, None, loose % (b"1," * 900 + b"1"))).code == 0
    monkeypatch.setattr(json._Reader, "_token", lambda reader: pytest.fail("it was read"))
    answer = rig.one(Command.request(code, None, loose % (b"1," * 1_100 + b"1")))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "no strict JSON" in (answer.remark or "")


def test_a_name_server_does_not_read_long_loose_texts_either() -> None:
    server = NameServer(NamesrvConfig(), now_ms=lambda: 0, kv_configs=KvConfigs(lambda data: None))
    header = RegisterBrokerRequestHeader("b", "127.0.0.1:1", "c", "127.0.0.1:2", 0)
    request = Command.request(RequestCode.REGISTER_BROKER, header, b"{x:[%s]}" % (b"1," * 1_100 + b"1"))
    wire = Wire()
    server.handle([request], wire)  # type: ignore[arg-type]
    assert "no strict JSON" in (wire.take()[0].remark or "")


def test_many_groups_that_join_together_take_few_lines_of_the_log(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """Lines cost more than all else that a new group needs."""
    with caplog.at_level("INFO"):
        answered(rig, beat(200))
    assert len(caplog.records) <= 6
    assert "and consumers of 195 more groups: g5, g6, " in caplog.text


def refusal(rig: Rig, head: Command, size: int) -> int | None:
    answer = rig.broker.on_head(head, size, rig.wire)  # type: ignore[arg-type]
    return None if answer is None else answer.code


def test_large_bodies_are_refused_by_their_header(rig: Rig) -> None:
    assert refusal(rig, Command.request(RequestCode.HEART_BEAT), 15 << 20) == ResponseCode.SYSTEM_ERROR
    assert refusal(rig, send(), 3 << 20) is None
    assert refusal(rig, send(), 5 << 20) == ResponseCode.MESSAGE_ILLEGAL
    assert refusal(rig, Command.request(9999), 2 << 20) == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_a_large_response_is_taken_when_somebody_waits_for_it(rig: Rig) -> None:
    request = Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert refusal(rig, request.reply(), 2 << 20) is not None
    rig.broker.pending_requests.call(rig.wire, request, 3, lambda answer: None, Wire())  # type: ignore[arg-type]
    assert refusal(rig, request.reply(), 2 << 20) is None
    other = Wire("10.0.0.8:1")
    assert rig.broker.on_head(request.reply(), 2 << 20, other) is not None  # type: ignore[arg-type]


def test_gates_see_the_header_of_a_large_body(rig: Rig) -> None:
    def gate(peer: object, command: Command) -> None:
        raise AccessDenied(remark="nobody")

    rig.broker.use_plugins(Hooks(heads=(gate,)))
    assert refusal(rig, send(), 3 << 20) == ResponseCode.NO_PERMISSION
    assert rig.one(send()).code == ResponseCode.SUCCESS  # a gate for whole requests is another one


def test_after_a_bug_while_writing_nobody_is_told_success_for_what_was_lost(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit in the middle of a chunk fails by what is no StoreError; the chunk goes on."""
    rig.one(send(body=b"first"))
    write = Segments.write

    def fail(*_: object) -> None:
        monkeypatch.setattr(Segments, "write", write)
        raise MemoryError

    monkeypatch.setattr(Segments, "write", fail)
    rig.broker.handlers[9999] = lambda request, connection, now: rig.broker.group_commit.commit()
    lost, kept = send(body=b"lost"), send(body=b"kept")
    answers = rig.ask(lost, Command.request(9999), kept)
    assert [answer.code for answer in answers if answer.opaque == kept.opaque] == [0]
    assert lost.opaque not in [answer.opaque for answer in answers]
    assert rig.bodies("Orders") == [b"first", b"kept"]
    assert rig.ask(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), wire=Wire()) != []
    assert rig.wire.take() == []
