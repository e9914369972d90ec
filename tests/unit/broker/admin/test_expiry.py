"""Groups that nobody uses go again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rmq.broker.admin import expiry as module
from rmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionGroupConfig
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command

from ..rig import Rig, Wire, pull, send

DAY = 86_400_000


def beat(rig: Rig, *groups: str, wire: Wire | None = None) -> Wire:
    wire = wire or Wire()
    consumers = [ConsumerData(group, message_model="CLUSTERING") for group in groups]
    body = HeartbeatData("c@1", consumer_data_set=consumers).to_json()
    (answer,) = (
        one
        for one in rig.ask(Command.request(RequestCode.HEART_BEAT, None, body), wire=wire)
        if one.is_response
    )
    assert answer.code == 0
    return wire


def let_pass(rig: Rig, ms: int) -> None:
    """Let the time pass, as the service would."""
    end = rig.now_ms + ms
    while rig.now_ms < end:
        rig.now_ms = min(end, max(rig.now_ms + 1, rig.broker.expiry.step(rig.now_ms)))
    rig.broker.expiry.step(rig.now_ms)


def leave(rig: Rig, wire: Wire) -> None:
    rig.broker.on_close(wire)  # type: ignore[arg-type]


def saved(rig: Rig, name: str) -> Any:
    return json.loads(rig.broker.files.unsaved()[name])


def test_a_group_that_was_never_used_is_removed_with_its_retry_topic() -> None:
    rig = Rig()
    leave(rig, beat(rig, "idle"))
    version = rig.broker.topics.data_version
    rig.broker.files.unsaved()
    let_pass(rig, DAY - 1)
    assert "idle" in rig.broker.groups.table
    let_pass(rig, module.PASS_MS)
    assert "idle" not in rig.broker.groups.table
    assert "%RETRY%idle" not in rig.broker.topics.table
    assert rig.broker.topics.data_version != version  # name servers and slaves are told
    files = rig.broker.files.unsaved()
    assert "%RETRY%idle" not in json.loads(files["topics"])["topicConfigTable"]
    assert "idle" not in json.loads(files["subscriptionGroup"])["subscriptionGroupTable"]
    beat(rig, "idle")
    assert "%RETRY%idle" in rig.broker.topics.table


def test_groups_are_looked_at_though_the_clock_was_set_back() -> None:
    rig = Rig()
    rig.broker.expiry.step(rig.now_ms)
    leave(rig, beat(rig, "idle"))
    rig.now_ms -= 30 * DAY
    let_pass(rig, DAY + 2 * module.PASS_MS)
    assert "idle" not in rig.broker.groups.table


def test_groups_that_are_used_or_set_up_stay() -> None:
    rig = Rig()
    connected = beat(rig, "connected")
    leave(rig, beat(rig, "committed", "retrying", "idle"))
    rig.broker.groups.update(SubscriptionGroupConfig("set", retry_max_times=3))
    rig.one(send())
    rig.broker.offsets.commit("committed", "Orders", 0, 1)
    rig.one(send("%RETRY%retrying"))
    let_pass(rig, 3 * DAY)
    assert {"connected", "committed", "retrying", "set", "TOOLS_CONSUMER"} <= rig.broker.groups.table.keys()
    assert "idle" not in rig.broker.groups.table
    leave(rig, connected)
    let_pass(rig, 3 * DAY)
    assert "connected" not in rig.broker.groups.table


def test_the_time_begins_anew_when_somebody_comes() -> None:
    rig = Rig()
    leave(rig, beat(rig, "rare"))
    let_pass(rig, DAY - module.PASS_MS)
    wire = beat(rig, "rare")
    let_pass(rig, 2 * module.PASS_MS)
    leave(rig, wire)
    let_pass(rig, DAY - module.PASS_MS)
    assert "rare" in rig.broker.groups.table


@pytest.mark.parametrize(
    "settings", [{"unused_group_time_mills": 0}, {"auto_create_subscription_group": False}]
)
def test_groups_stay_where_they_are_not_made_again(settings: dict[str, Any]) -> None:
    rig = Rig(**settings)
    rig.broker.groups.update(SubscriptionGroupConfig("idle"))
    let_pass(rig, 3 * DAY)
    assert "idle" in rig.broker.groups.table


def test_a_step_looks_at_a_bounded_number_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUPS_OF_A_STEP", 10)
    rig = Rig()
    for number in range(100):
        assert rig.broker.groups.exists(f"g{number}")
    looks: list[str] = []
    expiry = rig.broker.expiry
    unused = expiry._is_unused
    monkeypatch.setattr(expiry, "_is_unused", lambda group: looks.append(group) or unused(group))  # type: ignore[func-returns-value]
    steps = 0
    while (again := expiry.step(rig.now_ms)) - rig.now_ms < module.PASS_MS:
        steps += 1
        assert len(looks) <= 10 * steps
        rig.now_ms = again
    assert len(looks) == len(set(looks)) == len(rig.broker.groups.table)


def test_a_flood_of_groups_ends_at_the_limits_and_the_broker_recovers_from_it() -> None:
    """60,000 of them, each with a retry topic, took the broker off its name servers for good."""
    rig = Rig(max_auto_created_groups=60, max_auto_created_topics=60)
    for start in range(0, 500, 50):
        leave(rig, beat(rig, *(f"g{number}" for number in range(start, start + 50))))
    assert 30 < len(rig.broker.groups.table) < 40  # the rest is for others
    assert 15 < len(rig.broker.topics.table) <= 30
    answer = rig.one(pull(consumer_group="late"))
    assert "maxAutoCreatedGroups" in (answer.remark or "")
    let_pass(rig, 2 * DAY)
    assert len(rig.broker.groups.table) < 10
    assert len(rig.broker.topics.table) < 10
    rig.one(send())
    assert rig.one(pull(consumer_group="late")).code == 0
