"""Pulls: the permission to read, the response, and the wait for a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from rmq.broker.consume.long_polling import TRIES_OF_A_QUEUE, TRIES_OF_A_TURN
from rmq.broker.filtering.subscription import VERSION_AHEAD_MS
from rmq.plugin import ACCOUNT
from rmq.protocol.bodies import (
    SubscriptionGroupConfig,
    TopicConfig,
)
from rmq.protocol.codes import (
    LITE_PULL_MESSAGE,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    ResponseCode,
)
from rmq.protocol.command import ROCKETMQ, Command
from rmq.protocol.record import decode_records
from rmq.store.config import BrokerRole
from tests.unit.broker.consume.pulling import heartbeat

from ..rig import START, Rig, Wire, pull, send

WAITING = PULL_SUBSCRIPTION | PULL_SUSPEND


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.broker.topics.update(TopicConfig("Orders", 4, 4))
    return rig


def fill(rig: Rig, tags: str, *, queue_id: int = 0) -> None:
    """Store one message for each letter, with that letter as its tag and its body."""
    answers = rig.ask(
        *(send(body=tag.encode(), properties=f"TAGS\x01{tag}", queue_id=queue_id) for tag in tags)
    )
    assert all(answer.code == 0 for answer in answers)


def bodies(answer: Command) -> str:
    return "".join(message.body.decode() for message in decode_records(answer.body))


def offsets(answer: Command) -> tuple[int, int, int]:
    """(next, min, max)"""
    return int(answer.ext["nextBeginOffset"]), int(answer.ext["minOffset"]), int(answer.ext["maxOffset"])


# --- what is found ---


@pytest.mark.parametrize("serialization", [0, ROCKETMQ])
def test_messages_are_found_with_their_offsets(rig: Rig, serialization: int) -> None:
    fill(rig, "abc")
    request = pull(offset=1)
    request.serialization = serialization
    answer = rig.one(request)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert bodies(answer) == "bc"
    assert offsets(answer) == (3, 0, 3)
    assert answer.ext["suggestWhichBrokerId"] == "0"


def test_a_lite_pull_of_rocketmq_5_is_a_pull(rig: Rig) -> None:
    """The request has another code; it finds messages, finds none, and waits for a message."""

    def lite(**fields: Any) -> Command:
        request = pull(**fields)
        request.code = LITE_PULL_MESSAGE
        return request

    fill(rig, "a")
    assert bodies(rig.one(lite())) == "a"
    assert rig.one(lite(offset=1)).code == ResponseCode.PULL_NOT_FOUND
    reader = Wire()
    assert rig.ask(lite(offset=1, sys_flag=WAITING), wire=reader) == []
    fill(rig, "b")
    (held,) = reader.take()
    assert bodies(held) == "b"


def test_what_is_acknowledged_in_a_chunk_is_found_in_the_next(rig: Rig) -> None:
    first, found = rig.ask(send(body=b"x"), pull()), rig.one(pull())
    assert sorted(answer.code for answer in first) == [0, ResponseCode.PULL_NOT_FOUND]
    assert bodies(found) == "x"


def test_a_pull_takes_no_more_than_asked_and_allowed() -> None:
    rig = Rig(store={"max_transfer_count_on_message_in_memory": 40})
    fill(rig, "abcdefghij" * 5)
    assert len(bodies(rig.one(pull(max_msg_nums=3)))) == 3
    assert len(bodies(rig.one(pull(max_msg_nums=10_000)))) == 40


def test_who_pulls_more_than_the_connection_takes_gets_less(rig: Rig) -> None:
    fill(rig, "abc")
    rig.wire.is_busy = True
    assert bodies(rig.one(pull())) == "a"
    rig.wire.is_busy = False
    assert bodies(rig.one(pull())) == "abc"


@pytest.mark.parametrize(
    ("offset", "code", "status", "next_offset"),
    [
        (3, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 3),
        (9, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 0),  # of another topic of this name
        (-1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
    ],
)
def test_offsets_outside_the_queue(rig: Rig, offset: int, code: int, status: str, next_offset: int) -> None:
    fill(rig, "abc")
    answer = rig.one(pull(offset=offset))
    assert (answer.code, answer.remark) == (code, status)
    assert offsets(answer) == (next_offset, 0, 3)


@pytest.mark.parametrize(
    ("offset", "code"), [(0, ResponseCode.PULL_NOT_FOUND), (5, ResponseCode.PULL_OFFSET_MOVED)]
)
def test_a_queue_that_never_held_anything(rig: Rig, offset: int, code: int) -> None:
    answer = rig.one(pull(offset=offset))
    assert (answer.code, answer.remark) == (code, "NO_MESSAGE_IN_QUEUE")
    assert offsets(answer) == (0, 0, 0)


def test_an_offset_out_of_range_leaves_an_event(rig: Rig) -> None:
    fill(rig, "abc")
    rig.one(pull(offset=9))
    (event,) = rig.messages("OFFSET_MOVED_EVENT")
    assert event.tags == "readers"
    assert event.body == (
        b'{"consumerGroup":"readers","messageQueue":{"brokerName":"wire-a","queueId":0,"topic":"Orders"},'
        b'"offsetNew":0,"offsetRequest":9}'
    )


def test_tags_select_by_their_codes(rig: Rig) -> None:
    fill(rig, "abcab")
    answer = rig.one(pull(subscription="a || c"))
    assert (bodies(answer), offsets(answer)) == ("aca", (5, 0, 5))
    answer = rig.one(pull(subscription="z"))
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert offsets(answer) == (5, 0, 5)


def test_sql_selects_by_properties_where_it_is_allowed() -> None:
    rig = Rig(enable_property_filter=True)
    rig.ask(*(send(body=b"%d" % number, properties=f"n\x01{number}") for number in range(5)))
    answer = rig.one(pull(subscription="n > 2", expression_type="SQL92"))
    assert bodies(answer) == "34"
    assert rig.one(pull(subscription="n >", expression_type="SQL92")).code == (
        ResponseCode.SUBSCRIPTION_PARSE_FAILED
    )


def test_a_reader_of_old_messages_is_pointed_to_a_slave() -> None:
    rig = Rig(slave_read_enable=True)
    rig.store._limits.memory = 0
    fill(rig, "abc")
    assert rig.one(pull()).ext["suggestWhichBrokerId"] == "1"
    assert rig.one(pull(offset=2)).ext["suggestWhichBrokerId"] == "1"
    rig.store._limits.memory = 1 << 40
    assert rig.one(pull()).ext["suggestWhichBrokerId"] == "0"


def test_a_pull_can_carry_an_offset_to_keep(rig: Rig) -> None:
    fill(rig, "abc")
    rig.one(pull(offset=2, sys_flag=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET, commit_offset=2))
    rig.one(pull(offset=2, commit_offset=1))
    assert rig.broker.offsets.get("readers", "Orders", 0) == 2


# --- refusals ---


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (pull("Missing"), ResponseCode.TOPIC_NOT_EXIST),
        (pull("../x"), ResponseCode.TOPIC_NOT_EXIST),
        (pull(queue_id=4), ResponseCode.SYSTEM_ERROR),
        (pull(queue_id=-1), ResponseCode.SYSTEM_ERROR),
        (pull(subscription="||"), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        (pull(subscription="a > 1", expression_type="SQL92"), ResponseCode.SYSTEM_ERROR),
        (pull(consumer_group="bad group"), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        (pull(sys_flag=0), ResponseCode.SUBSCRIPTION_NOT_EXIST),
    ],
)
def test_refusals(rig: Rig, request_: Command, code: int) -> None:
    answer = rig.one(request_)
    assert answer.code == code
    assert answer.remark


def test_permissions_of_broker_topic_and_group(rig: Rig) -> None:
    fill(rig, "a")
    rig.broker.topics.update(TopicConfig("Orders", 4, 4, 2))
    assert rig.one(pull()).code == ResponseCode.NO_PERMISSION
    rig.broker.topics.update(TopicConfig("Orders", 4, 4))
    rig.broker.groups.update(SubscriptionGroupConfig("readers", consume_enable=False))
    assert rig.one(pull()).code == ResponseCode.NO_PERMISSION
    assert Rig(broker_permission=2).one(pull()).code == ResponseCode.NO_PERMISSION


def test_an_unknown_group_where_groups_are_not_made() -> None:
    rig = Rig(auto_create_subscription_group=False)
    rig.one(send())
    answer = rig.one(pull())
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "updateSubGroup" in (answer.remark or "")


def test_the_groups_registered_subscription_counts_without_one_in_the_request(rig: Rig) -> None:
    fill(rig, "abab")
    rig.ask(heartbeat("readers", "Orders", "b", version=7))
    assert bodies(rig.one(pull(sys_flag=0, subscription=None, sub_version=7))) == "bb"
    answer = rig.one(pull(sys_flag=0, sub_version=8))
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    rig.ask(heartbeat("readers", "Orders", "a", version=8))
    assert bodies(rig.one(pull(sys_flag=0, sub_version=8))) == "aa"
    rig.broker.topics.update(TopicConfig("Other", 1, 1))
    assert rig.one(pull("Other", sys_flag=0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST


def test_a_version_from_the_future_keeps_nobody_out(rig: Rig) -> None:
    """The newest subscription of a group counts, so 2**63-1 would be the last one for ever."""
    fill(rig, "abab")
    rig.ask(heartbeat("readers", "Orders", "b", version=2**63 - 1))
    assert bodies(rig.one(pull(sys_flag=0, sub_version=2**63 - 1))) == "bb"
    rig.now_ms += 1
    rig.ask(heartbeat("readers", "Orders", "a", version=rig.now_ms))
    assert bodies(rig.one(pull(sys_flag=0, sub_version=rig.now_ms))) == "aa"
    late = rig.now_ms + VERSION_AHEAD_MS  # as far as a clock may be ahead
    assert rig.one(pull(sys_flag=0, sub_version=late)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    rig.ask(heartbeat("readers", "Orders", "b", version=late))
    rig.ask(heartbeat("readers", "Orders", "a", version=late - 1))
    assert bodies(rig.one(pull(sys_flag=0, sub_version=late))) == "bb"


def test_a_group_that_may_not_broadcast(rig: Rig) -> None:
    rig.broker.groups.update(SubscriptionGroupConfig("readers", consume_broadcast_enable=False))
    rig.ask(heartbeat("readers", "Orders", message_model="BROADCASTING"))
    assert rig.one(pull(sys_flag=0)).code == ResponseCode.NO_PERMISSION


def _leave(rig: Rig) -> None:
    group = rig.broker.clients.consumer_group("readers")
    assert group is not None
    for member in list(group.members):
        rig.clients.unregister(member, consumer_group="readers")


CHANGES: dict[str, tuple[Callable[[Rig], object], int]] = {
    "the group may not consume": (
        lambda rig: rig.broker.groups.update(SubscriptionGroupConfig("readers", consume_enable=False)),
        ResponseCode.NO_PERMISSION,
    ),
    "the topic may not be read": (
        lambda rig: rig.broker.topics.update(TopicConfig("Orders", 4, 4, 2)),
        ResponseCode.NO_PERMISSION,
    ),
    "the topic has no queue": (
        lambda rig: rig.broker.topics.update(TopicConfig("Orders", 0, 4)),
        ResponseCode.SYSTEM_ERROR,
    ),
    "the topic is deleted": (
        lambda rig: rig.broker.topics.delete("Orders"),
        ResponseCode.TOPIC_NOT_EXIST,
    ),
    "the broker may not be read": (
        lambda rig: rig.broker.settings.replace(
            evolve(rig.broker.config, broker_permission=2), rig.broker.settings.store
        ),
        ResponseCode.NO_PERMISSION,
    ),
    "its members have gone": (_leave, ResponseCode.SUBSCRIPTION_NOT_EXIST),
    "its members want another topic": (
        lambda rig: rig.ask(heartbeat("readers", "Other", version=8)),
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ),
    "its members broadcast, which it may not": (
        lambda rig: rig.ask(heartbeat("readers", "Orders", "a||b", version=7, message_model="BROADCASTING")),
        ResponseCode.NO_PERMISSION,
    ),
}


@pytest.mark.parametrize(("change", "code"), CHANGES.values(), ids=CHANGES)
def test_what_a_pull_found_is_used_by_the_next_and_no_longer_than_it_holds(
    rig: Rig, change: Callable[[Rig], object], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    plan = rig.broker.reader._plan
    monkeypatch.setattr(rig.broker.reader, "_plan", lambda *given: looked.append(given) or plan(*given))
    fill(rig, "abc")
    rig.broker.groups.update(SubscriptionGroupConfig("readers", consume_broadcast_enable=False))
    rig.ask(heartbeat("readers", "Orders", "a||b", version=7))
    request = {"sys_flag": 0, "subscription": None, "sub_version": 7}
    assert [bodies(rig.one(pull(**request))) for _ in range(3)] == ["ab"] * 3
    assert len(looked) == 1
    assert rig.one(pull(**request | {"sub_version": 8})).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    change(rig)
    assert rig.one(pull(**request)).code == code


def test_a_new_subscription_counts_for_the_next_pull(rig: Rig) -> None:
    fill(rig, "abc")
    for version, tags in ((7, "a"), (8, "b"), (9, "c||a")):
        rig.ask(heartbeat("readers", "Orders", tags, version=version))
        for _ in range(2):
            assert bodies(rig.one(pull(sys_flag=0, sub_version=7))) == "".join(sorted(tags.split("||")))


# --- waiting ---


def test_a_waiting_pull_is_answered_when_a_message_arrives(rig: Rig) -> None:
    reader = Wire()
    assert rig.ask(pull(sys_flag=WAITING), wire=reader) == []
    fill(rig, "x", queue_id=1)
    assert reader.take() == []
    fill(rig, "ab")
    (answer,) = reader.take()
    assert (answer.code, bodies(answer)) == (0, "ab")
    fill(rig, "c")
    assert reader.take() == []


def test_a_waiting_pull_is_answered_once_for_a_chunk_of_messages(rig: Rig) -> None:
    readers = [Wire() for _ in range(3)]
    for reader in readers:
        rig.ask(pull(sys_flag=WAITING), wire=reader)
    fill(rig, "abc")
    assert [[bodies(answer) for answer in reader.take()] for reader in readers] == [["abc"]] * 3


def test_a_pull_that_finds_nothing_in_time_is_told_so(rig: Rig) -> None:
    fill(rig, "abc")
    assert rig.ask(pull(offset=3, sys_flag=WAITING)) == []
    assert rig.broker.steps.deadlines(rig.seconds + 14.9) == rig.seconds + 15
    assert rig.wire.take() == []
    rig.broker.steps.deadlines(rig.seconds + 15)
    (answer,) = rig.wire.take()
    assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")
    assert offsets(answer) == (3, 0, 3)


def test_messages_that_the_filter_refuses_do_not_end_the_wait_and_are_not_looked_at_twice(rig: Rig) -> None:
    reader = Wire()
    assert rig.ask(pull(sys_flag=WAITING, subscription="a"), wire=reader) == []
    fill(rig, "zzz")
    fill(rig, "zz")
    assert reader.take() == []
    ((held,),) = rig.broker.parked_pulls._pulls.values()
    assert held.offset == 5
    fill(rig, "a")
    (answer,) = reader.take()
    assert (bodies(answer), offsets(answer)) == ("a", (6, 0, 6))


def test_a_filtered_wait_that_ends_goes_on_behind_what_it_has_seen(rig: Rig) -> None:
    reader = Wire()
    assert rig.ask(pull(sys_flag=WAITING, subscription="a"), wire=reader) == []
    fill(rig, "zzz")
    rig.broker.steps.deadlines(rig.seconds + 15)
    (answer,) = reader.take()
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert offsets(answer)[0] == 3


def test_a_group_disabled_meanwhile_is_refused_when_a_message_arrives(rig: Rig) -> None:
    reader = Wire()
    rig.ask(pull(sys_flag=WAITING), wire=reader)
    rig.broker.groups.update(SubscriptionGroupConfig("readers", consume_enable=False))
    fill(rig, "a")
    assert [answer.code for answer in reader.take()] == [ResponseCode.NO_PERMISSION]


def test_pulls_of_a_closed_connection_are_forgotten(rig: Rig) -> None:
    reader = Wire()
    rig.ask(pull(sys_flag=WAITING), wire=reader)
    rig.broker.on_close(reader)  # type: ignore[arg-type]
    fill(rig, "a")
    assert reader.take() == []
    assert rig.broker.parked_pulls.count == 0


def test_one_connection_cannot_take_all_the_room_for_waiting_pulls() -> None:
    rig = Rig(max_held_pulls_of_connection=3, max_held_pulls_of_account=5)
    rig.broker.topics.update(TopicConfig("Orders", 4, 4))
    first, second, third, other = Wire("10.0.0.1:1"), Wire("10.0.0.1:2"), Wire("10.0.0.1:3"), Wire()
    for wire in (first, second, third):
        wire.state[ACCOUNT] = "app"
    for _ in range(3):
        assert rig.ask(pull(sys_flag=WAITING), wire=first) == []
    refused = rig.one(pull(sys_flag=WAITING), wire=first)
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "maxHeldPullsOfConnection is 3" in (refused.remark or "")
    for _ in range(2):
        assert rig.ask(pull(sys_flag=WAITING), wire=second) == []
    refused = rig.one(pull(sys_flag=WAITING), wire=third)
    assert "maxHeldPullsOfAccount is 5" in (refused.remark or "")
    for _ in range(3):
        assert rig.ask(pull(sys_flag=WAITING), wire=other) == []  # without an account: a connection's limit
    rig.broker.on_close(first)  # type: ignore[arg-type]
    assert rig.ask(pull(sys_flag=WAITING), wire=third) == []


def test_long_expressions_of_waiting_pulls_count_and_are_given_back() -> None:
    rig = Rig()
    rig.broker.topics.update(TopicConfig("Orders", 4, 4))
    for text in ("TagA", " || ".join(f"Tag{number:05d}" for number in range(400))):
        wire = Wire()
        assert rig.ask(pull(sys_flag=WAITING | PULL_SUBSCRIPTION, subscription=text), wire=wire) == []
        assert rig.broker.parked_pulls.count == 1 + len(text) // 1024
        rig.broker.on_close(wire)  # type: ignore[arg-type]
        assert rig.broker.parked_pulls.count == 0


def test_pulls_that_wait_for_one_message_share_one_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(rig, "a")
    wires = [Wire(f"10.0.0.{number}:1") for number in range(4)]
    for number, wire in enumerate(wires):
        most = 32 if number < 3 else 5  # which is another read
        assert rig.ask(pull(offset=1, sys_flag=WAITING, max_msg_nums=most), wire=wire) == []
    filtered = Wire("10.0.0.9:1")
    assert rig.ask(pull(offset=1, sys_flag=WAITING, subscription="c"), wire=filtered) == []
    reads, get = [], rig.broker.store.get
    monkeypatch.setattr(rig.broker.store, "get", lambda *given: reads.append(given[5]) or get(*given))
    fill(rig, "b")
    assert [bodies(answer) for wire in wires for answer in wire.take()] == ["b"] * 4
    assert [given is None for given in reads] == [True, True, False]
    assert filtered.take() == []
    assert rig.broker.reader._shared_reads._last is None, "bytes of the log are not held for nothing"
    totals = rig.broker.stats.totals_out()
    assert [(count, size > 0) for _, count, size in totals] == [(4, True)]


def test_no_pull_waits_longer_than_the_setting_says(rig: Rig) -> None:
    assert rig.ask(pull(sys_flag=WAITING, suspend_timeout_millis=2**40)) == []
    assert rig.broker.steps.deadlines(rig.seconds) == rig.seconds + 30
    rig.broker.steps.deadlines(rig.seconds + 30)
    assert [answer.code for answer in rig.wire.take()] == [ResponseCode.PULL_NOT_FOUND]


def test_of_a_waiting_pull_neither_body_nor_header_text_is_kept(rig: Rig) -> None:
    reader = Wire()
    asked = pull(sys_flag=WAITING)
    asked.body = bytes(100_000)
    assert rig.ask(asked, wire=reader) == []
    ((held,),) = rig.broker.parked_pulls._pulls.values()
    assert (held.request.body, held.request._raw, dict(held.request.ext)) == (b"", b"", {})
    fill(rig, "a")
    (answer,) = reader.take()
    assert (answer.opaque, bodies(answer)) == (asked.opaque, "a")


def test_a_send_looks_at_a_bounded_number_of_waiting_pulls() -> None:
    rig = Rig()
    rig.broker.topics.update(TopicConfig("Orders", 4, 4))
    readers = [Wire(f"10.0.0.2:{port}") for port in range(300)]
    for reader in readers:
        assert rig.ask(pull(sys_flag=WAITING), wire=reader) == []
    fill(rig, "a")
    assert sum(bool(reader.received) for reader in readers) == TRIES_OF_A_QUEUE
    while rig.broker.steps.deadlines(rig.seconds) <= rig.seconds:
        pass
    assert all(bodies(answer) == "a" for reader in readers for answer in reader.take())
    assert rig.broker.parked_pulls.count == 0


def test_each_arrival_may_look_at_as_many_waiting_pulls_as_any_other() -> None:
    rig = Rig()
    rig.broker.topics.update(TopicConfig("Orders", 4, 4))
    for number in range(2 * TRIES_OF_A_TURN):
        reader = Wire()
        assert rig.ask(pull(offset=number, sys_flag=WAITING), wire=reader) == []
        fill(rig, "a")
        assert bodies(*reader.take()) == "a", "at once, without a step"


def test_without_long_polling_a_pull_waits_a_short_time_and_no_arrival_answers_it() -> None:
    rig = Rig(long_polling_enable=False)
    rig.broker.topics.update(TopicConfig("Orders", 4, 4))
    reader = Wire()
    assert rig.ask(pull(sys_flag=WAITING), wire=reader) == []
    fill(rig, "a")
    assert reader.take() == []
    rig.broker.steps.deadlines(rig.seconds + 1)
    assert [bodies(answer) for answer in reader.take()] == ["a"]


def test_too_many_waiting_pulls_are_refused_with_figures() -> None:
    rig = Rig(pull_thread_pool_queue_capacity=4)
    rig.broker.topics.update(TopicConfig("Orders", 4, 4))
    (answer,) = rig.ask(*(pull(sys_flag=WAITING) for _ in range(3)))
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "pulls wait for messages: 2 of 4 are taken by 10.0.0.1, 2 are free" in (answer.remark or "")


def test_the_offset_of_a_waiting_pull_is_kept_at_once(rig: Rig) -> None:
    fill(rig, "abc")
    rig.ask(pull(offset=3, sys_flag=WAITING | PULL_COMMIT_OFFSET, commit_offset=3))
    assert rig.broker.offsets.get("readers", "Orders", 0) == 3


def test_a_slave_neither_keeps_offsets_nor_corrects_them() -> None:
    rig = Rig(store={"broker_role": BrokerRole.SLAVE}, broker_id=1)
    rig.broker.topics.load(b'{"topicConfigTable":{"Orders":{"topicName":"Orders"}},"dataVersion":{}}')
    answer = rig.one(pull(offset=5, sys_flag=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET, commit_offset=5))
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert rig.broker.offsets.get("readers", "Orders", 0) == -1


def test_pulls_that_find_nothing_are_counted() -> None:
    rig = Rig()
    rig.one(send())
    rig.one(pull())
    assert float(rig.broker.stats.runtime(START + 1_000)["getMissTps"].split()[0]) == 0
    rig.one(pull(offset=1))  # answered at once
    assert rig.ask(pull(offset=1, sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND)) == []  # held
    assert float(rig.broker.stats.runtime(START + 1_000)["getMissTps"].split()[0]) == 2
