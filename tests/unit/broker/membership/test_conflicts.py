"""Members that do not fit together: found, logged once, counted, told to the client, rejected if wanted."""

from __future__ import annotations

import logging

import pytest

from rmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import UnregisterClientRequestHeader

from ..rig import START, Rig, Wire


@pytest.fixture
def rig() -> Rig:
    return Rig()


def beat(
    rig: Rig,
    wire: Wire,
    client: str,
    *,
    kind: str = "TAG",
    model: str = "CLUSTERING",
    unit: bool = False,
    version: int = 1,
    **topics: str,
) -> Command:
    """A heartbeat of a member of the group g; its answer."""
    wanted = [
        SubscriptionData(topic, text, sub_version=version, expression_type=kind)
        for topic, text in topics.items()
    ]
    data = ConsumerData("g", "CONSUME_PASSIVELY", model, "CONSUME_FROM_LAST_OFFSET", wanted, unit)
    body = HeartbeatData(client, consumer_data_set=[data]).to_json()
    rig.let_pass(10)
    answers = rig.ask(Command.request(RequestCode.HEART_BEAT, None, body), wire=wire)
    (answer,) = [one for one in answers if one.is_response]
    return answer


def lines() -> tuple[Wire, Wire, Wire]:
    return Wire("h:1"), Wire("h:2"), Wire("h:3")


def figures(rig: Rig) -> tuple[str, ...]:
    table = rig.broker.admin.runtime(START)
    return tuple(table[name] for name in ("subscriptionConflicts", "clientIdConflicts", "conflictsTotal"))


def ids(rig: Rig) -> list[str]:
    return rig.broker.clients.consumer_ids("g")


# --- different subscriptions ---


def test_members_that_fit_hear_nothing(rig: Rig) -> None:
    one, two, _ = lines()
    for wire, client, version in ((one, "c1", 1), (two, "c2", 2), (one, "c1", 3)):
        answer = beat(rig, wire, client, T="a || b", version=version)
        assert (answer.code, dict(answer.ext)) == (0, {})
    assert figures(rig) == ("0", "0", "0")


def test_a_different_subscription_is_told_to_both_and_logged_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    one, two, three = lines()
    beat(rig, one, "c1", T="*")
    with caplog.at_level(logging.WARNING, "rmq.broker"):
        text = "subscribe differently, messages will be missed: "
        answer = beat(rig, two, "c2", T="a")
        assert answer.code == 0
        assert answer.ext["warning"] == (
            f"group g: c2 and c1 {text}{{'T': 'a'}} CLUSTERING and {{'T': '*'}} CLUSTERING"
        )
        assert text in beat(rig, one, "c1", T="*").ext["warning"]
        assert text in beat(rig, three, "c3", T="*").ext["warning"]
        beat(rig, two, "c2", T="a")
    assert caplog.text.count("subscribe differently") == 1
    assert figures(rig) == ("1", "0", "1")


@pytest.mark.parametrize(
    "other",
    [{"T": "*", "U": "*"}, {"U": "*"}, {"T": "*", "kind": "SQL92"}, {"T": "*", "model": "BROADCASTING"}],
)
def test_topics_kinds_and_models_count(rig: Rig, other: dict[str, str]) -> None:
    one, two, _ = lines()
    beat(rig, one, "c1", T="*")
    assert "warning" in beat(rig, two, "c2", **other).ext  # type: ignore[arg-type]


def test_the_retry_topic_of_the_group_does_not_count(rig: Rig) -> None:
    one, two, _ = lines()
    beat(rig, one, "c1", T="*", **{"%RETRY%g": "*"})
    assert "warning" not in beat(rig, two, "c2", T="*").ext


def test_a_conflict_ends_when_the_members_agree_or_go(rig: Rig) -> None:
    one, two, _ = lines()
    beat(rig, one, "c1", T="*")
    beat(rig, two, "c2", T="a")
    assert "warning" not in beat(rig, two, "c2", T="*", version=2).ext
    assert figures(rig) == ("0", "0", "1")
    beat(rig, two, "c2", T="b", version=3)
    assert figures(rig) == ("1", "0", "2")
    rig.one(
        Command.request(RequestCode.UNREGISTER_CLIENT, UnregisterClientRequestHeader("c2", None, "g")),
        wire=two,
    )
    assert figures(rig) == ("0", "0", "2")
    assert "warning" not in beat(rig, one, "c1", T="*").ext


# --- one id, two clients ---


def test_two_living_clients_with_one_id_are_told(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    one, two, _ = lines()
    with caplog.at_level(logging.WARNING, "rmq.broker"):
        beat(rig, one, "c1", T="*")
        assert "warning" not in beat(rig, two, "c1", T="*").ext, "the first one may be gone"
        warning = beat(rig, one, "c1", T="*").ext["warning"]
        assert warning.startswith("group g: client id c1 is used by two clients, at h:1 and h:2")
        assert "warning" in beat(rig, two, "c1", T="*").ext
        beat(rig, one, "c1", T="*")
    assert caplog.text.count("is used by two clients") == 1
    assert figures(rig) == ("0", "1", "1")


def test_a_client_that_comes_again_by_a_new_connection_is_no_conflict(rig: Rig) -> None:
    old, new, _ = lines()
    beat(rig, old, "c1", T="*")
    for _ in range(3):
        assert "warning" not in beat(rig, new, "c1", T="*").ext
    rig.broker.on_close(old)  # type: ignore[arg-type]
    assert figures(rig) == ("0", "0", "0")


def test_the_end_of_one_of_the_two_ends_the_conflict(rig: Rig) -> None:
    one, two, _ = lines()
    for wire in (one, two, one, two):
        beat(rig, wire, "c1", T="*")
    rig.broker.on_close(one)  # type: ignore[arg-type]
    assert "warning" not in beat(rig, two, "c1", T="*").ext
    assert figures(rig) == ("0", "0", "1")


# --- rejected ---


def test_a_member_that_does_not_fit_is_not_let_in() -> None:
    rig = Rig(reject_subscription_conflicts=True)
    one, two, _ = lines()
    assert beat(rig, one, "c1", T="*").code == 0
    answer = beat(rig, two, "c2", T="a")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "c2 and c1 subscribe differently" in (answer.remark or "")
    assert "rejectSubscriptionConflicts" in (answer.remark or "")
    assert ids(rig) == ["c1"]
    subscription = rig.broker.clients.subscription("g", "T")
    assert subscription is not None
    assert subscription.sub_string == "*"
    assert beat(rig, two, "c2", T="*").code == 0
    assert beat(rig, two, "c2", T="a").code == ResponseCode.SYSTEM_ERROR
    assert ids(rig) == ["c1"], "it has left: its queues go to who stays"


def test_who_is_not_let_in_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(reject_subscription_conflicts=True)
    one, two, _ = lines()
    beat(rig, one, "c1", T="*")
    for _ in range(3):
        beat(rig, two, "c2", T="a")
    assert caplog.text.count("c2 is refused") == 1
    assert rig.broker.clients.conflicts.found == 1
    assert beat(rig, two, "c2", T="*").code == 0
    beat(rig, two, "c2", T="a")
    assert caplog.text.count("c2 is refused") == 2


def test_the_later_of_two_with_one_id_is_turned_out() -> None:
    rig = Rig(reject_subscription_conflicts=True)
    one, two, _ = lines()
    for wire in (one, two, one):
        assert beat(rig, wire, "c1", T="*").code == 0
    assert beat(rig, two, "c1", T="*").code == ResponseCode.SYSTEM_ERROR
    assert beat(rig, one, "c1", T="*").code == 0
    assert list(rig.broker.clients.consumer_group("g").members) == [one]  # type: ignore[union-attr]


def test_rejection_can_be_turned_on_while_running(rig: Rig) -> None:
    one, two, _ = lines()
    beat(rig, one, "c1", T="*")
    change = Command.request(RequestCode.UPDATE_BROKER_CONFIG, None, b"rejectSubscriptionConflicts=true")
    assert rig.one(change).code == 0
    assert beat(rig, two, "c2", T="a").code == ResponseCode.SYSTEM_ERROR


# --- unit mode ---


def test_unit_mode_is_ignored_and_said_so(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    one, _, _ = lines()
    with caplog.at_level(logging.WARNING, "rmq.broker"):
        answer = beat(rig, one, "c1@unit", T="*", unit=True)
        assert answer.ext["warning"] == "group g: unit mode is ignored by this broker"
        beat(rig, one, "c1@unit", T="*", unit=True)
    assert caplog.text.count("unit mode is ignored") == 1
    assert ids(rig) == ["c1@unit"]
