"""rmq.broker.groups: the table of consumer groups and its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmq.broker.config import BrokerConfig
from rmq.broker.groups import SYSTEM_GROUPS
from rmq.broker.tables import drain
from rmq.errors import DiskFull
from rmq.protocol.bodies import SubscriptionGroupConfig as GroupConfig
from rmq.protocol.bodies import SubscriptionGroupWrapper
from rmq.protocol.codes import RequestCode, ResponseCode

from .desk import START, Desk

MANUAL = BrokerConfig(broker_name="b", auto_create_subscription_group=False)


def test_a_new_broker_has_the_groups_of_a_java_broker(golden: Path) -> None:
    captured = SubscriptionGroupWrapper.from_json(
        (golden / "store" / "config" / "subscriptionGroup.json").read_bytes()
    )
    made_there = {"golden_group", "golden_sql_group", "golden_retry_group"}
    expected = {
        name: config for name, config in captured.subscription_group_table.items() if name not in made_there
    }
    assert Desk().groups.table == expected
    assert set(SYSTEM_GROUPS) == set(expected)


def test_a_captured_file_loads_and_comes_back(golden: Path) -> None:
    desk = Desk()
    text = (golden / "store" / "config" / "subscriptionGroup.json").read_bytes()
    desk.groups.load(text)
    assert desk.groups.table["golden_group"] == GroupConfig("golden_group")
    assert desk.groups.data_version.counter == 3
    assert json.loads(desk.groups.to_json()) == json.loads(text)


def test_no_file_is_a_new_broker() -> None:
    desk = Desk()
    desk.groups.load(None)
    assert set(desk.groups.table) == set(SYSTEM_GROUPS)


def test_a_group_is_made_on_first_use_and_saved_later() -> None:
    desk = Desk()
    assert desk.groups.get("g") == GroupConfig("g")
    assert desk.groups.get("g") is desk.groups.get("g")
    assert desk.groups.data_version.counter == 1
    assert desk.saved["groups"].texts == []
    assert desk.groups.unsaved
    made = desk.groups.made
    text = drain(desk.groups.text())
    assert b'"g"' in text
    assert text == desk.groups.to_json()
    desk.groups.get("meanwhile")
    desk.groups.saved(made)
    assert desk.groups.unsaved
    desk.groups.saved(desk.groups.made)
    assert not desk.groups.unsaved


def test_without_auto_creation_only_system_groups_are_made() -> None:
    desk = Desk(MANUAL)
    assert desk.groups.get("g") is None
    assert desk.groups.get("CID_RMQ_SYS_x") is not None
    assert desk.groups.get("TOOLS_CONSUMER") is not None


@pytest.mark.parametrize("name", ["", "../x", "a b", "x" * 128])
def test_impossible_names_are_never_made(name: str) -> None:
    assert Desk().groups.get(name) is None


def test_an_update_is_saved_before_it_is_answered() -> None:
    desk = Desk(MANUAL)
    wanted = GroupConfig("g", consume_enable=False, retry_max_times=3)
    reply = desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=wanted.to_json())
    assert reply.code == 0
    assert desk.groups.get("g") == wanted
    saved = SubscriptionGroupWrapper.from_json(desk.saved["groups"].texts[-1])
    assert saved.subscription_group_table["g"] == wanted
    assert (saved.data_version.counter, saved.data_version.timestamp) == (1, START)


def test_an_update_that_cannot_be_saved_changes_nothing() -> None:
    desk = Desk(MANUAL)
    before = desk.groups.to_json()
    desk.saved["groups"].broken = DiskFull("full")
    with pytest.raises(DiskFull):
        desk.groups.update(GroupConfig("g"))
    with pytest.raises(DiskFull):
        desk.groups.delete("TOOLS_CONSUMER")
    assert desk.groups.to_json() == before


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GroupConfig("../x"), "not a valid name"),
        (GroupConfig(""), "it is empty"),
        (GroupConfig("g", retry_queue_nums=-1), "retryQueueNums"),
        (GroupConfig("g", retry_queue_nums=100_000), "retryQueueNums"),
    ],
)
def test_impossible_updates_are_refused(config: GroupConfig, reason: str) -> None:
    desk = Desk()
    reply = desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.to_json())
    assert reply.code == 1
    assert reason in (reply.remark or "")
    assert set(desk.groups.table) == set(SYSTEM_GROUPS)


def test_a_group_may_have_as_many_retry_queues_as_the_refusal_says() -> None:
    desk = Desk()
    wrong = GroupConfig("g", retry_queue_nums=100_000)
    reply = desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=wrong.to_json())
    most = int((reply.remark or "").rpartition(" ")[2])
    right = GroupConfig("g", retry_queue_nums=most)
    assert desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=right.to_json()).code == 0
    over = GroupConfig("g", retry_queue_nums=most + 1)
    assert desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=over.to_json()).code == 1


def test_all_groups_are_told() -> None:
    desk = Desk()
    reply = desk.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert reply.body == desk.groups.to_json()


@pytest.mark.parametrize("with_offsets", [False, True])
def test_deleting_a_group(with_offsets: bool) -> None:
    desk = Desk(MANUAL)
    desk.topic("T")
    for group in ("g", "h"):
        desk.groups.update(GroupConfig(group))
        desk.put("T")
        desk.offsets.commit(group, "T", 0, 1)
        desk.stats.send_back(group, "T")
    header = {"groupName": "g", "removeOffset": str(with_offsets).lower()}
    assert desk.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header).code == 0
    assert desk.groups.get("g") is None
    assert desk.groups.get("h") is not None
    assert desk.offsets.get("g", "T", 0) == (-1 if with_offsets else 1)
    assert desk.offsets.get("h", "T", 0) == 1
    assert desk.stats.windows("SNDBCK_PUT_NUMS", "T@g") is None
    assert b'"g"' not in desk.saved["groups"].texts[-1]


def test_deleting_a_group_that_is_not_there_is_no_error() -> None:
    desk = Desk(MANUAL)
    assert desk.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}).code == 0
    assert desk.saved["groups"].texts == []


def test_a_slave_refuses_changes() -> None:
    desk = Desk()
    desk.become_slave()
    update = desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=GroupConfig("g").to_json())
    delete = desk.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "TOOLS_CONSUMER"})
    assert (update.code, delete.code) == (1, 1)
    assert "master" in (update.remark or "")
    assert set(desk.groups.table) == set(SYSTEM_GROUPS)


def test_groups_made_on_first_use_have_a_limit_and_the_answer_names_it() -> None:
    desk = Desk(BrokerConfig(broker_name="b", max_auto_created_groups=len(SYSTEM_GROUPS) + 2))
    assert [desk.groups.exists(name) for name in ("a", "b", "c", "a")] == [True, True, False, True]
    error = desk.groups.unknown("c")
    assert error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "maxAutoCreatedGroups" in (error.remark or "")
    desk.groups.update(GroupConfig("c"))  # an administrator may
    desk.groups.delete("a")
    desk.groups.delete("b")
    assert desk.groups.exists("d")


def test_one_account_cannot_take_all_groups() -> None:
    desk = Desk(BrokerConfig(broker_name="b", max_auto_created_groups_of_account=2))
    assert [desk.groups.exists(name, "app") for name in ("a", "b", "c")] == [True, True, False]
    assert "account app has had 2 made" in (desk.groups.unknown("c", "app").remark or "")
    assert desk.groups.exists("c", "other")
    assert desk.groups.exists("d")  # without access control there are no accounts
    desk.groups.forget(["a"])
    assert desk.groups.exists("e", "app")


def test_the_text_is_that_of_the_table_whatever_became_of_it() -> None:
    desk = Desk()
    groups = desk.groups

    def check() -> None:
        as_values = SubscriptionGroupWrapper(groups.table, groups.data_version).to_json()
        assert groups.to_json() == drain(groups.text()) == as_values

    check()
    groups.get("one")
    groups.get("two")
    check()
    groups.update(GroupConfig("one", retry_max_times=3))
    check()
    groups.delete("two")
    check()
    groups.forget({"one"})
    check()
    groups.load(SubscriptionGroupWrapper({"other": GroupConfig("other")}, groups.data_version).to_json())
    assert b'"other"' in groups.to_json()
    check()
