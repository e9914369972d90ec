"""rmq.broker.admin.consume_stats: lag, times, consumers of a topic, offsets cloned and reset."""

from __future__ import annotations

import json

import pytest

from rmq.message import MessageQueue
from rmq.protocol import bodies
from rmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData, SubscriptionGroupConfig
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command

from ..rig import START, Rig, Wire, aged
from ..sessions import body_of, session

GONE, OFFLINE = 17, 206


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "wire-a", queue_id)


def filled() -> Rig:
    """T has two queues with 4 and 2 messages, stored a second apart; g is at 3 in the first."""
    rig = Rig()
    rig.topic("T", 2)
    for number in range(6):
        rig.put("T", number // 4)
        rig.let_pass(1_000)
    rig.offsets.commit("g", "T", 0, 3)
    return rig


def join(rig: Rig, group: str, *topics: str, line: Wire | None = None, language: str = "JAVA") -> Wire:
    line = line or Wire()
    wanted = [SubscriptionData(topic, "*") for topic in topics]
    data = HeartbeatData("c1", [], [ConsumerData(group, subscription_data_set=wanted)])
    rig.clients.heartbeat(data, line, language, 407, rig.now_ms)
    line.received.clear()
    return line


# --- lag ---


def stats(rig: Rig, **header: str) -> bodies.ConsumeStats:
    reply = rig.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", **header})
    assert reply.code == 0
    return bodies.ConsumeStats.from_json(reply.body)


def test_lag_of_each_queue() -> None:
    rig = filled()
    rig.topic("U", 1)
    rig.offsets.commit("g", "U", 0, 0)
    rig.stats.get("g", "T", 60, 1)
    rig.stats.get("g", "U", 30, 1)
    for second in range(10_000, 70_000, 10_000):
        rig.stats.step(START + second)
    rig.let_pass(START + 60_000 - rig.now_ms)
    found = stats(rig)
    assert found.offset_table == {
        queue(0): bodies.OffsetWrapper(4, 3, START + 2_000),
        queue(1): bodies.OffsetWrapper(2, 0, 0),
        queue(0, "U"): bodies.OffsetWrapper(0, 0, 0),
    }
    assert found.consume_tps == 1.5


def test_lag_in_one_topic_or_in_all() -> None:
    rig = filled()
    rig.topic("U", 1)
    rig.offsets.commit("g", "U", 0, 0)
    rig.offsets.put("g", "Deleted", {0: 1})
    assert {one.topic for one in stats(rig).offset_table} == {"T", "U"}
    assert {one.topic for one in stats(rig, topic="U").offset_table} == {"U"}
    assert stats(rig, topic="Unknown").offset_table == {}
    assert stats(rig, consumerGroup="nobody").offset_table == {}


def test_topics_that_a_connected_group_left_do_not_count() -> None:
    rig = filled()
    join(rig, "g", "U")
    assert stats(rig).offset_table == {}


def test_lag_of_all_groups() -> None:
    rig = filled()
    rig.topic("Ordered", 1, order=True)
    rig.put("Ordered")
    rig.groups.get("g")
    rig.offsets.commit("g", "Ordered", 0, 0)
    reply = rig.call(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    found = bodies.ConsumeStatsList.from_json(reply.body)
    assert found.total_diff == 1 + 2 + 1
    assert found.broker_addr == "10.0.0.9:10911"
    rows = {group: row for one in found.consume_stats_list for group, row in one.items()}
    assert {one.topic for row in rows["g"] for one in row.offset_table} == {"T", "Ordered"}
    reply = rig.call(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"})
    assert bodies.ConsumeStatsList.from_json(reply.body).total_diff == 1


def test_who_consumes_a_topic() -> None:
    rig = filled()
    join(rig, "connected", "T")
    join(rig, "elsewhere", "U", line=Wire("h:2"))
    reply = rig.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
    assert json.loads(reply.body) == {"groupList": ["connected", "g"]}


def test_times_of_a_group() -> None:
    rig = filled()
    rig.let_pass(START + 10_000 - rig.now_ms)
    reply = rig.call(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "g"})
    spans = bodies.QueryConsumeTimeSpanBody.from_json(reply.body).consume_time_span_set
    assert spans == [
        bodies.QueueTimeSpan(queue(0), START, START + 3_000, START + 2_000, 7_000),
        bodies.QueueTimeSpan(queue(1), START + 4_000, START + 5_000, START + 4_000, 6_000),
    ]
    rig.offsets.commit("g", "T", 0, 4)
    reply = rig.call(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "g"})
    first = bodies.QueryConsumeTimeSpanBody.from_json(reply.body).consume_time_span_set[0]
    assert (first.consume_time_stamp, first.delay_time) == (START + 3_000, 0)
    assert rig.call(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "U", "group": "g"}).code == GONE


# --- offsets of several groups ---


def test_the_lowest_offsets_of_the_groups_of_a_topic() -> None:
    rig = filled()
    for group, offsets in (("g", {0: 3, 1: 2}), ("h", {0: 2, 1: 2}), ("out", {0: 0}), ("cmp", {0: 3, 1: 1})):
        rig.offsets.put(group, "T", offsets)
    header = {"topic": "T", "filterGroups": "out,none", "compareGroup": "cmp"}
    reply = rig.call(RequestCode.QUERY_CORRECTION_OFFSET, header)
    assert bodies.QueryCorrectionOffsetBody.from_json(reply.body).correction_offsets == {0: 2, 1: 1}
    header = {"topic": "T", "filterGroups": "out,cmp", "compareGroup": "cmp"}
    reply = rig.call(RequestCode.QUERY_CORRECTION_OFFSET, header)
    found = bodies.QueryCorrectionOffsetBody.from_json(reply.body).correction_offsets
    assert found == {0: 2, 1: 2**63 - 1}


def test_offsets_of_messages_that_are_gone_do_not_count() -> None:
    rig = aged()
    rig.offsets.put("slow", "T", {0: 0})
    rig.offsets.put("quick", "T", {0: 10})
    rig.store.clean(rig.now_ms)
    header = {"topic": "T", "compareGroup": "none"}
    reply = rig.call(RequestCode.QUERY_CORRECTION_OFFSET, header)
    assert bodies.QueryCorrectionOffsetBody.from_json(reply.body).correction_offsets == {0: 10}


def clone(rig: Rig, **more: str) -> int:
    return rig.call(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "new", **more}).code


def test_offsets_are_cloned_for_one_topic_or_all() -> None:
    rig = filled()
    rig.topic("U", 1)
    rig.offsets.put("g", "U", {0: 0})
    rig.offsets.put("g", "Deleted", {0: 0})
    assert clone(rig, topic="T") == 0
    assert rig.offsets.topics_of("new") == {"T"}
    assert clone(rig) == 0
    assert rig.offsets.topics_of("new") == {"T", "U"}
    assert rig.offsets.of("new", "T") == {0: 3}


@pytest.mark.parametrize("offline", ["true", "false"])
def test_a_topic_that_the_group_left_is_cloned_only_offline(offline: str) -> None:
    rig = filled()
    join(rig, "g", "U")
    clone(rig, offline=offline)
    assert rig.offsets.topics_of("new") == ({"T"} if offline == "true" else set())


def reset(rig: Rig, timestamp: int, force: bool = False, **more: str) -> Command:
    header = {"topic": "T", "group": "g", "timestamp": str(timestamp), "isForce": str(force).lower(), **more}
    return rig.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)


def test_a_reset_tells_each_member_where_to_go_on() -> None:
    rig = filled()
    lines = [join(rig, "g", "T", line=Wire(f"h:{port}")) for port in (1, 2)]
    for line in lines:
        line.received.clear()
    reply = reset(rig, START + 1_000)
    table = {queue(0): 1, queue(1): 0}
    assert (reply.code, bodies.ResetOffsetBody.from_json(reply.body).offset_table) == (0, table)
    for line in lines:
        (notice,) = line.received
        assert notice.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        assert (notice.ext["topic"], notice.ext["group"]) == ("T", "g")
        assert bodies.ResetOffsetBody.from_json(notice.body).offset_table == table
    assert rig.offsets.get("g", "T", 0) == 3  # the members commit what they took


@pytest.mark.parametrize(
    ("timestamp", "force", "expected"),
    [(START + 3_500, False, 3), (START + 3_500, True, 4), (-1, False, 3), (-1, True, 4), (0, False, 0)],
)
def test_a_reset_goes_forward_only_by_force(timestamp: int, force: bool, expected: int) -> None:
    rig = filled()
    join(rig, "g", "T")
    table = bodies.ResetOffsetBody.from_json(reset(rig, timestamp, force).body).offset_table
    assert table[queue(0)] == expected


@pytest.mark.parametrize(
    ("after", "expected"),
    [(-1, 0), (0, 0), (1, 1), (400, 1), (500, 1), (501, 21), (899, 21), (900, 21), (901, 22)],
)
def test_a_reset_begins_with_the_first_message_of_that_ms_or_later(after: int, expected: int) -> None:
    rig = Rig()
    rig.topic("T", 1)
    for at in [0, *[500] * 20, 900]:
        rig.let_pass(START + at - rig.now_ms)
        rig.put("T", 0)
    rig.offsets.commit("g", "T", 0, 22)
    join(rig, "g", "T")
    table = bodies.ResetOffsetBody.from_json(reset(rig, START + after, True).body).offset_table
    assert table[queue(0)] == expected


def test_a_cpp_member_gets_a_list() -> None:
    rig = filled()
    line = join(rig, "g", "T", language="CPP")
    reset(rig, START)
    rows = json.loads(line.received[0].body)["offsetTable"]
    assert rows[0] == {"brokerName": "wire-a", "offset": 0, "queueId": 0, "topic": "T"}


def test_resets_that_cannot_be() -> None:
    rig = filled()
    offline = reset(rig, START)
    assert offline.code == OFFLINE
    assert "Consumer not online" in (offline.remark or "")
    join(rig, "g", "T")
    assert "no topic" in (reset(rig, START, topic="U").remark or "")
    rig.topic("U")
    assert "not exist" in (reset(rig, START, topic="U").remark or "")


def test_a_group_that_was_made_and_has_not_consumed_may_be_set_to_a_place() -> None:
    """The administrator stores its offsets then, as for any group without members."""
    rig = filled()
    rig.topic("U")
    assert "not exist" in (reset(rig, START, topic="U", group="made").remark or "")
    rig.groups.update(SubscriptionGroupConfig("made"))
    assert reset(rig, START, topic="U", group="made").code == OFFLINE


def test_the_captured_questions_of_an_administrator() -> None:
    rig = Rig()
    for group in ("wire_lite_group", "wire_order_group", "wire_push_group"):
        rig.topic(f"%RETRY%{group}", 1)
        rig.offsets.put(group, f"%RETRY%{group}", {0: 0})
    rig.topic("WireTopic")
    for group in ("wire_lite_group", "wire_order_group", "wire_push_group"):
        rig.offsets.put(group, "WireTopic", {0: 0, 1: 0, 2: 0, 3: 0})
    seen = []
    for exchange in session("6_mqadmin"):
        if exchange.code not in rig.progress.handlers() or exchange.code == RequestCode.GET_TOPIC_STATS_INFO:
            continue  # the ends of queues are looked at in test_admin
        expected = exchange.response
        assert expected is not None
        response = rig.answer(exchange.command(), Wire())
        assert (response.code, bool(response.body)) == (expected["code"], expected["body_len"] > 0)
        seen.append(exchange.code)
        if exchange.code == RequestCode.QUERY_TOPIC_CONSUME_BY_WHO:
            assert response.body == body_of(expected)
        else:
            ours, theirs = (
                bodies.ConsumeStats.from_json(body) for body in (response.body, body_of(expected))
            )
            assert ours.offset_table.keys() == theirs.offset_table.keys()
    assert seen == [RequestCode.GET_CONSUME_STATS, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO]
