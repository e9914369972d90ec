"""rmq.broker.tables.groups: the table of consumer groups and its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmq.broker.config import BrokerConfig
from rmq.broker.tables.groups import SYSTEM_GROUPS
from rmq.broker.tables.versioned import run_to_end
from rmq.errors import DiskFull
from rmq.protocol.bodies import SubscriptionGroupConfig as GroupConfig
from rmq.protocol.bodies import SubscriptionGroupWrapper
from rmq.protocol.codes import RequestCode, ResponseCode

from ..rig import START, Rig

MANUAL = BrokerConfig(broker_name="b", auto_create_subscription_group=False)


def test_a_new_broker_has_the_groups_of_a_java_broker(golden: Path) -> None:
    captured = SubscriptionGroupWrapper.from_json(
        (golden / "store" / "config" / "subscriptionGroup.json").read_bytes()
    )
    made_there = {"golden_group", "golden_sql_group", "golden_retry_group"}
    expected = {
        name: config for name, config in captured.subscription_group_table.items() if name not in made_there
    }
    assert Rig().groups.table == expected
    assert set(SYSTEM_GROUPS) == set(expected)


def test_a_captured_file_loads_and_comes_back(golden: Path) -> None:
    rig = Rig()
    text = (golden / "store" / "config" / "subscriptionGroup.json").read_bytes()
    rig.groups.load(text)
    assert rig.groups.table["golden_group"] == GroupConfig("golden_group")
    assert rig.groups.data_version.counter == 3
    assert json.loads(rig.groups.to_json()) == json.loads(text)


def test_no_file_is_a_new_broker() -> None:
    rig = Rig()
    rig.groups.load(None)
    assert set(rig.groups.table) == set(SYSTEM_GROUPS)


def test_a_group_is_made_on_first_use_and_saved_later() -> None:
    rig = Rig()
    assert rig.groups.get("g") == GroupConfig("g")
    assert rig.groups.get("g") is rig.groups.get("g")
    assert rig.groups.data_version.counter == 1
    assert rig.saved("subscriptionGroup") is None
    assert rig.groups.unsaved
    made = rig.groups.made
    text = run_to_end(rig.groups.text())
    assert b'"g"' in text
    assert text == rig.groups.to_json()
    rig.groups.get("meanwhile")
    rig.groups.saved(made)
    assert rig.groups.unsaved
    rig.groups.saved(rig.groups.made)
    assert not rig.groups.unsaved


def test_without_auto_creation_only_system_groups_are_made() -> None:
    rig = Rig(config=MANUAL)
    assert rig.groups.get("g") is None
    assert rig.groups.get("CID_RMQ_SYS_x") is not None
    assert rig.groups.get("TOOLS_CONSUMER") is not None


@pytest.mark.parametrize("name", ["", "../x", "a b", "x" * 128])
def test_impossible_names_are_never_made(name: str) -> None:
    assert Rig().groups.get(name) is None


def test_an_update_is_saved_before_it_is_answered() -> None:
    rig = Rig(config=MANUAL)
    wanted = GroupConfig("g", consume_enable=False, retry_max_times=3)
    reply = rig.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=wanted.to_json())
    assert reply.code == 0
    assert rig.groups.get("g") == wanted
    saved = SubscriptionGroupWrapper.from_json(rig.saved("subscriptionGroup") or b"")
    assert saved.subscription_group_table["g"] == wanted
    assert (saved.data_version.counter, saved.data_version.timestamp) == (1, START)


def test_an_update_that_cannot_be_saved_changes_nothing() -> None:
    rig = Rig(config=MANUAL)
    before = rig.groups.to_json()
    rig.fill_disk()
    with pytest.raises(DiskFull):
        rig.groups.update(GroupConfig("g"))
    with pytest.raises(DiskFull):
        rig.groups.delete("TOOLS_CONSUMER")
    assert rig.groups.to_json() == before


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
    rig = Rig()
    reply = rig.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.to_json())
    assert reply.code == 1
    assert reason in (reply.remark or "")
    assert set(rig.groups.table) == set(SYSTEM_GROUPS)


def test_a_group_may_have_as_many_retry_queues_as_the_refusal_says() -> None:
    rig = Rig()
    wrong = GroupConfig("g", retry_queue_nums=100_000)
    reply = rig.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=wrong.to_json())
    most = int((reply.remark or "").rpartition(" ")[2])
    right = GroupConfig("g", retry_queue_nums=most)
    assert rig.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=right.to_json()).code == 0
    over = GroupConfig("g", retry_queue_nums=most + 1)
    assert rig.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=over.to_json()).code == 1


def test_all_groups_are_told() -> None:
    rig = Rig()
    reply = rig.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert reply.body == rig.groups.to_json()


@pytest.mark.parametrize("with_offsets", [False, True])
def test_deleting_a_group(with_offsets: bool) -> None:
    rig = Rig(config=MANUAL)
    rig.topic("T")
    for group in ("g", "h"):
        rig.groups.update(GroupConfig(group))
        rig.put("T")
        rig.offsets.commit(group, "T", 0, 1)
        rig.stats.send_back(group, "T")
    header = {"groupName": "g", "removeOffset": str(with_offsets).lower()}
    assert rig.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, header).code == 0
    assert rig.groups.get("g") is None
    assert rig.groups.get("h") is not None
    assert rig.offsets.get("g", "T", 0) == (-1 if with_offsets else 1)
    assert rig.offsets.get("h", "T", 0) == 1
    assert rig.stats.windows("SNDBCK_PUT_NUMS", "T@g") is None
    assert b'"g"' not in (rig.saved("subscriptionGroup") or b"")


def test_deleting_a_group_that_is_not_there_is_no_error() -> None:
    rig = Rig(config=MANUAL)
    assert rig.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}).code == 0
    assert rig.saved("subscriptionGroup") is None


def test_a_slave_refuses_changes() -> None:
    rig = Rig()
    rig.become_slave()
    update = rig.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=GroupConfig("g").to_json())
    delete = rig.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "TOOLS_CONSUMER"})
    assert (update.code, delete.code) == (1, 1)
    assert "master" in (update.remark or "")
    assert set(rig.groups.table) == set(SYSTEM_GROUPS)


def test_groups_made_on_first_use_have_a_limit_and_the_answer_names_it() -> None:
    rig = Rig(config=BrokerConfig(broker_name="b", max_auto_created_groups=len(SYSTEM_GROUPS) + 2))
    assert [rig.groups.exists(name) for name in ("a", "b", "c", "a")] == [True, True, False, True]
    error = rig.groups.unknown("c")
    assert error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "maxAutoCreatedGroups" in (error.remark or "")
    rig.groups.update(GroupConfig("c"))  # an administrator may
    rig.groups.delete("a")
    rig.groups.delete("b")
    assert rig.groups.exists("d")


def test_one_account_cannot_take_all_groups() -> None:
    rig = Rig(config=BrokerConfig(broker_name="b", max_auto_created_groups_of_account=2))
    app, other = ("account app",), ("account other",)
    assert [rig.groups.exists(name, app) for name in ("a", "b", "c")] == [True, True, False]
    assert "account app has had 2 made" in (rig.groups.unknown("c", app).remark or "")
    assert rig.groups.exists("c", other)
    assert rig.groups.exists("d")  # without access control there are no accounts
    rig.groups.forget(["a"])
    assert rig.groups.exists("e", app)


def test_the_text_is_that_of_the_table_whatever_became_of_it() -> None:
    rig = Rig()
    groups = rig.groups

    def check() -> None:
        as_values = SubscriptionGroupWrapper(groups.table, groups.data_version).to_json()
        assert groups.to_json() == run_to_end(groups.text()) == as_values

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
