"""Quotas of accounts: messages and bytes a second, sent and received."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.admin.metrics_export import metrics_of
from rmq.broker.membership import quotas as module
from rmq.broker.membership.quotas import DEBT_SECONDS, HOLD_PULL_SECONDS, Quotas
from rmq.broker.tables.versioned import run_to_end
from rmq.doors import Appended, ReadRequest, TakeRequest
from rmq.errors import ResponseError, SystemBusy, for_code
from rmq.message import Message
from rmq.plugin import ACCOUNT, Hooks
from rmq.protocol.auth.quota import Quota, parse_quota
from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import Command
from tests.unit.broker.per_message.peers import Peer
from tests.unit.broker.rig import Rig, Wire, batch, pull, send


def metered(**limits: float) -> Rig:
    """A broker whose account `app` has a quota; the topic Orders is there."""
    rig = Rig()
    rig.topic("Orders")
    quota = Quota(**limits)
    rig.broker.use_plugins(
        Hooks(
            requests=(lambda peer, command: None,),
            quotas=(lambda account: quota if account == "app" else None,),
        )
    )
    return rig


def of(account: str) -> Wire:
    wire = Wire()
    wire.state[ACCOUNT] = account
    return wire


def pass_by(rig: Rig, seconds: float, wire: Wire) -> list[Command]:
    """Let the time pass, as the service would; what came over the connection meanwhile."""
    end = rig.seconds + seconds
    while (due := rig.broker.steps.deadlines(rig.seconds)) <= end:
        rig.let_pass(round(1000 * max(0.001, due - rig.seconds)))
    rig.let_pass(round(1000 * (end - rig.seconds)))
    rig.broker.steps.deadlines(rig.seconds)
    return wire.take()


def test_sends_beyond_the_quota_are_held_in_their_order() -> None:
    rig, wire = metered(produce_messages=10), of("app")
    sends = [send(body=b"%d" % number) for number in range(25)]
    answers = rig.ask(*sends, wire=wire)
    assert len(answers) == 11  # a second's worth, and the one that makes the debt
    later = pass_by(rig, 0.5, wire)
    assert len(later) == 5
    later += pass_by(rig, 1.0, wire)
    assert [one.opaque for one in (*answers, *later)] == [one.opaque for one in sends]
    assert {one.code for one in later} == {0}
    assert rig.bodies("Orders") == [b"%d" % number for number in range(25)]
    row = rig.broker.quotas.throttled["app", "produce"]
    assert (row.held, row.refused) == (14, 0)
    assert row.seconds == pytest.approx(sum(range(1, 15)) / 10)


def test_others_are_not_held() -> None:
    rig, wire = metered(produce_messages=1), of("app")
    rig.ask(*[send() for _ in range(3)], wire=wire)
    assert len(rig.ask(*[send() for _ in range(50)], wire=of("other"))) == 50
    assert len(rig.ask(*[send() for _ in range(50)], wire=Wire())) == 50


def test_a_send_that_would_be_held_for_too_long_is_refused_with_the_time_to_wait() -> None:
    rig, wire = metered(produce_messages=2), of("app")
    answers = rig.ask(*[send() for _ in range(10)], wire=wire)
    refused = [one for one in answers if one.code]
    assert {one.code for one in refused} == {ResponseCode.SYSTEM_BUSY}
    assert len(refused) == 3
    error = for_code(refused[0].code, refused[0].remark)
    assert isinstance(error, SystemBusy)
    assert error.wait_seconds == pytest.approx(2.5)
    assert "account app is over its quota to produce" in str(error)
    pass_by(rig, 2.0, wire)
    assert len(rig.bodies("Orders")) == 7


def test_batches_count_as_their_messages_and_bytes() -> None:
    rig, wire = metered(produce_messages=3), of("app")
    assert len(rig.ask(batch(bodies=(b"a", b"b", b"c", b"d", b"e")), wire=wire)) == 1
    assert rig.ask(send(), wire=wire) == []  # two beyond, of three a second
    assert pass_by(rig, 0.6, wire) == []
    assert len(pass_by(rig, 0.1, wire)) == 1
    rig, wire = metered(produce_bytes=1_000), of("app")
    assert len(rig.ask(send(body=bytes(1_500)), wire=wire)) == 1
    assert rig.ask(send(body=b"x"), wire=wire) == []
    assert len(pass_by(rig, 0.6, wire)) == 1


def test_what_a_consumer_got_beyond_its_quota_holds_its_next_pull() -> None:
    rig, wire = metered(consume_messages=10), of("app")
    for _ in range(60):
        rig.put("Orders")
    (first,) = rig.ask(pull(offset=0), wire=wire)
    assert first.ext["nextBeginOffset"] == "32"  # 22 beyond
    assert rig.ask(pull(offset=32), wire=wire) == []
    assert pass_by(rig, 2.1, wire) == []
    (second,) = pass_by(rig, 0.2, wire)
    assert second.ext["nextBeginOffset"] == "60"


def test_a_pull_is_not_held_for_longer_than_its_client_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, wire = metered(consume_bytes=100), of("app")
    rig.put("Orders", body=bytes(10_000))
    rig.ask(pull(offset=0), wire=wire)
    assert rig.ask(pull(offset=0), wire=wire) == []
    (answer,) = pass_by(rig, module.HOLD_PULL_SECONDS, wire)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert (answer.ext["nextBeginOffset"], answer.ext["maxOffset"]) == ("0", "1")


@given(
    start=st.floats(0, 1e7),
    rate=st.floats(0.1, 1e9),
    amounts=st.lists(st.integers(1, 10_000), min_size=1, max_size=5),
)
def test_after_its_wait_a_consumer_may_be_given_messages(
    start: float, rate: float, amounts: list[int]
) -> None:
    """Else its held pull is answered without messages when its time has come, and it asks again at once."""
    now = start
    quotas = Quotas(lambda: now, lambda peer: ("app", Quota(consume_messages=rate)))
    for count in amounts:
        quotas.consumed(of("app"), count, 0)
        for _ in range(1 + math.ceil(DEBT_SECONDS / HOLD_PULL_SECONDS)):
            now += quotas.consume_wait(of("app"))
        assert quotas.consume_wait(of("app")) == 0


def test_held_requests_go_with_their_connection() -> None:
    rig, wire = metered(produce_messages=1), of("app")
    rig.ask(*[send() for _ in range(3)], wire=wire)
    assert len(rig.broker.deferrals) == 1
    rig.broker.on_close(wire)  # type: ignore[arg-type]
    assert len(rig.broker.deferrals) == 0
    assert not any((rig.broker.metered._held, rig.broker.metered._held_bytes))


def test_more_bytes_than_may_be_held_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq.broker.consume.metered.HELD_BYTES", 1_500)
    rig, wire = metered(produce_messages=10), of("app")
    answers = rig.ask(*[send(body=bytes(1_000)) for _ in range(15)], wire=wire)
    assert sum(1 for one in answers if one.code == ResponseCode.SYSTEM_BUSY) == 3


def test_accounts_that_are_counted_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ACCOUNTS_MAX", 3)
    quota = Quota(1, 1, 1, 1)
    quotas = module.Quotas(lambda: 0.0, lambda peer: (str(peer), quota))
    for number in range(100):
        peer: Any = number
        quotas.produce(peer, 5, 5, most=9)
        quotas.produce(peer, 5, 5, most=9)
        quotas.consumed(peer, 5, 5)
    assert len(quotas._budgets) <= 6
    assert len(quotas.throttled) <= 6


def test_a_changed_quota_is_counted_while_as_many_accounts_as_possible_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ACCOUNTS_MAX", 2)
    table = {"app": Quota(produce_messages=10)}
    quotas = module.Quotas(
        lambda: 0.0, lambda peer: (str(peer), table.get(str(peer), Quota(consume_messages=1)))
    )
    app: Any = "app"
    quotas.produce(app, 1, 1)
    for number in range(7):
        peer: Any = number
        quotas.consumed(peer, 1, 1)
    table["app"] = Quota(produce_messages=10, produce_bytes=100)
    quotas.produce(app, 1, 500)
    with pytest.raises(SystemBusy, match="app is over its quota"):
        quotas.produce(app, 1, 1)


def test_a_debt_is_not_forgotten_for_accounts_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ACCOUNTS_MAX", 2)
    quotas = module.Quotas(lambda: 0.0, lambda peer: (str(peer), Quota(1, 1, 1, 1)))
    app: Any = "app"
    quotas.produce(app, 5, 5)
    for number in range(20):
        peer: Any = number
        quotas.produce(peer, 1, 1)
        with pytest.raises(SystemBusy, match="app is over its quota"):
            quotas.produce(app, 1, 1)
    assert quotas.throttled["app", "produce"].refused == 20


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("", None),
        ("produceMessages=1000", Quota(1000)),
        ("produceBytes=10m, consumeMessages=0.5,consumeBytes=2K", Quota(0, 10 << 20, 0.5, 2048)),
    ],
)
def test_quotas_are_read(text: str, quota: Quota | None) -> None:
    assert parse_quota(text) == quota


@pytest.mark.parametrize(
    "text", ["10", "produce=1", "produceBytes=0", "produceBytes=1,produceBytes=2", "x=1"]
)
def test_what_is_no_quota_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a second, above 0"):
        parse_quota(text)


def door(rig: Rig) -> Peer:
    peer = Peer(rig)
    peer.state[ACCOUNT] = "app"
    return peer


def open_to_all(rig: Rig) -> Rig:
    """The gates let doors in."""
    rig.broker.use_plugins(Hooks(quotas=rig.broker.hooks.quotas))
    return rig


def test_a_door_s_message_beyond_the_quota_is_refused_with_the_time_to_wait() -> None:
    """AMQP gives no credit then."""
    rig = open_to_all(metered(produce_messages=2))
    peer = door(rig)
    for _ in range(3):
        peer.append(Message("Orders", b"x"))
    with pytest.raises(SystemBusy, match="retry in 500 ms"):
        peer.append(Message("Orders", b"x"))
    rig.let_pass(600)
    peer.append(Message("Orders", b"x"))


def test_a_door_may_have_messages_held_until_their_time() -> None:
    """gRPC's clients would try again within milliseconds, three times, and give up."""
    rig = open_to_all(metered(produce_messages=2))
    peer = door(rig)
    found: list[Appended] = []
    for number in range(7):
        peer.append(Message("Orders", b"%d" % number), found.append, queue_id=0, holds=True)
    with pytest.raises(SystemBusy, match="retry in 2500 ms"):
        peer.append(Message("Orders", b"7"), found.append, holds=True)
    pass_by(rig, 0.0, Wire())
    assert len(found) == 3
    pass_by(rig, 2.1, Wire())
    assert [one.error for one in found] == [None] * 7
    assert rig.bodies("Orders") == [b"%d" % number for number in range(7)]
    row = rig.broker.quotas.throttled["app", "produce"]
    assert (row.held, row.refused) == (4, 1)
    assert not any((rig.broker.metered._held, rig.broker.metered._held_bytes))


def test_a_door_s_message_that_was_held_is_refused_later_when_the_broker_refuses_it() -> None:
    rig = open_to_all(metered(produce_messages=1))
    peer = door(rig)
    found: list[Appended] = []
    for _ in range(2):
        peer.append(Message("Orders", b"x"), found.append, holds=True)
    peer.append(Message("Orders", bytes(5 << 20)), found.append, holds=True)
    pass_by(rig, 1.5, Wire())
    assert [one.error is None for one in found] == [True, True, False]
    assert (found[2].message_id, found[2].queue_offset) == ("", -1)
    assert "maxMessageSize" in str(found[2].error)


def test_a_door_s_messages_that_are_held_go_with_its_connection() -> None:
    rig = open_to_all(metered(produce_messages=1))
    peer = door(rig)
    for _ in range(4):
        peer.append(Message("Orders", b"x"), queue_id=0, holds=True)
    assert rig.broker.metered._held_bytes == 2
    rig.broker.on_door_open("test")
    rig.broker.on_door_close("test", peer)
    pass_by(rig, 5.0, Wire())
    assert len(rig.bodies("Orders")) == 2
    assert not any((rig.broker.metered._held, rig.broker.metered._held_bytes))


def test_a_door_s_consumer_beyond_its_quota_is_given_nothing_for_a_while() -> None:
    rig = open_to_all(metered(consume_messages=2))
    for _ in range(4):
        rig.put("Orders")
    peer = door(rig)
    request = TakeRequest("readers", "Orders", from_first=True, max_msg_nums=3)
    assert len(peer.take(request)) == 3
    assert peer.take(request) == []
    peer.hold_take(request, peer.found.append, 10.0)
    pass_by(rig, 0.4, Wire())
    assert peer.found == []
    pass_by(rig, 0.2, Wire())
    assert [len(one) for one in peer.found if not isinstance(one, ResponseError)] == [1]


def test_a_door_s_take_that_was_held_can_be_ended() -> None:
    rig = open_to_all(metered(consume_messages=1))
    for _ in range(9):
        rig.put("Orders")
    peer = door(rig)
    request = TakeRequest("readers", "Orders", from_first=True, max_msg_nums=3)
    peer.take(request)
    end = peer.hold_take(request, peer.found.append, 60.0)
    end()
    pass_by(rig, 5.0, Wire())
    assert peer.found == []


def test_a_door_s_read_beyond_the_quota_finds_nothing_yet() -> None:
    rig = open_to_all(metered(consume_messages=1))
    for _ in range(9):
        rig.put("Orders")
    peer = door(rig)
    request = ReadRequest("readers", "Orders", 0, 0, 3)
    assert len(peer.read(request).messages) == 3
    found: list[Any] = []
    assert (peer.read(request).messages, peer.read(request).next_offset) == ([], 0)
    peer.hold(request, found.append, 1.0)
    pass_by(rig, 1.5, Wire())
    assert [one.messages for one in found] == [[]]
    peer.hold(request, found.append, 5.0)
    pass_by(rig, 1.0, Wire())
    assert len(found[1].messages) == 3


def test_metrics_name_the_accounts_that_wait() -> None:
    rig, wire = metered(produce_messages=2), of("app")
    rig.ask(*[send() for _ in range(10)], wire=wire)
    found = {metric.name: metric.rows for metric in run_to_end(metrics_of(rig.broker))}
    assert found["throttled_requests"] == [
        (("app", "produce", "held"), 4.0),
        (("app", "produce", "refused"), 3.0),
    ]
    assert found["throttled_seconds"][0][0] == ("app", "produce")
