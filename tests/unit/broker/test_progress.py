"""rmq.broker.progress: lag, times, consumers of a topic, offsets cloned and reset."""

from __future__ import annotations

import json

import pytest

from rmq.message import MessageQueue
from rmq.protocol import bodies
from rmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command

from .desk import START, Desk, Line, aged, body_of, session

GONE, OFFLINE = 17, 206


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "wire-a", queue_id)


def filled() -> Desk:
    """T has two queues with 4 and 2 messages, stored a second apart; g is at 3 in the first."""
    desk = Desk()
    desk.topic("T", 2)
    for number in range(6):
        desk.put("T", number // 4)
        desk.clock.now += 1_000
    desk.offsets.commit("g", "T", 0, 3)
    return desk


def join(desk: Desk, group: str, *topics: str, line: Line | None = None, language: str = "JAVA") -> Line:
    line = line or Line()
    wanted = [SubscriptionData(topic, "*") for topic in topics]
    data = HeartbeatData("c1", [], [ConsumerData(group, subscription_data_set=wanted)])
    desk.clients.heartbeat(data, line, language, 407, desk.clock.now)
    line.sent.clear()
    return line


# --- lag ---


def stats(desk: Desk, **header: str) -> bodies.ConsumeStats:
    reply = desk.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", **header})
    assert reply.code == 0
    return bodies.ConsumeStats.from_json(reply.body)


def test_lag_of_each_queue() -> None:
    desk = filled()
    desk.topic("U", 1)
    desk.offsets.commit("g", "U", 0, 0)
    desk.stats.get("g", "T", 60, 1)
    desk.stats.get("g", "U", 30, 1)
    for second in range(10_000, 70_000, 10_000):
        desk.stats.step(START + second)
    desk.clock.now = START + 60_000
    found = stats(desk)
    assert found.offset_table == {
        queue(0): bodies.OffsetWrapper(4, 3, START + 2_000),
        queue(1): bodies.OffsetWrapper(2, 0, 0),
        queue(0, "U"): bodies.OffsetWrapper(0, 0, 0),
    }
    assert found.consume_tps == 1.5


def test_lag_in_one_topic_or_in_all() -> None:
    desk = filled()
    desk.topic("U", 1)
    desk.offsets.commit("g", "U", 0, 0)
    desk.offsets.put("g", "Deleted", {0: 1})
    assert {one.topic for one in stats(desk).offset_table} == {"T", "U"}
    assert {one.topic for one in stats(desk, topic="U").offset_table} == {"U"}
    assert stats(desk, topic="Unknown").offset_table == {}
    assert stats(desk, consumerGroup="nobody").offset_table == {}


def test_topics_that_a_connected_group_left_do_not_count() -> None:
    desk = filled()
    join(desk, "g", "U")
    assert stats(desk).offset_table == {}


def test_lag_of_all_groups() -> None:
    desk = filled()
    desk.topic("Ordered", 1, order=True)
    desk.put("Ordered")
    desk.groups.get("g")
    desk.offsets.commit("g", "Ordered", 0, 0)
    reply = desk.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    found = bodies.ConsumeStatsList.from_json(reply.body)
    assert found.total_diff == 1 + 2 + 1
    assert found.broker_addr == "10.0.0.9:10911"
    rows = {group: row for one in found.consume_stats_list for group, row in one.items()}
    assert {one.topic for row in rows["g"] for one in row.offset_table} == {"T", "Ordered"}
    reply = desk.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"})
    assert bodies.ConsumeStatsList.from_json(reply.body).total_diff == 1


def test_who_consumes_a_topic() -> None:
    desk = filled()
    join(desk, "connected", "T")
    join(desk, "elsewhere", "U", line=Line("h:2"))
    reply = desk.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
    assert json.loads(reply.body) == {"groupList": ["connected", "g"]}


def test_times_of_a_group() -> None:
    desk = filled()
    desk.clock.now = START + 10_000
    reply = desk.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "g"})
    spans = bodies.QueryConsumeTimeSpanBody.from_json(reply.body).consume_time_span_set
    assert spans == [
        bodies.QueueTimeSpan(queue(0), START, START + 3_000, START + 2_000, 7_000),
        bodies.QueueTimeSpan(queue(1), START + 4_000, START + 5_000, START + 4_000, 6_000),
    ]
    desk.offsets.commit("g", "T", 0, 4)
    reply = desk.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "g"})
    first = bodies.QueryConsumeTimeSpanBody.from_json(reply.body).consume_time_span_set[0]
    assert (first.consume_time_stamp, first.delay_time) == (START + 3_000, 0)
    assert desk.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "U", "group": "g"}).code == GONE


# --- offsets of several groups ---


def test_the_lowest_offsets_of_the_groups_of_a_topic() -> None:
    desk = filled()
    for group, offsets in (("g", {0: 3, 1: 2}), ("h", {0: 2, 1: 2}), ("out", {0: 0}), ("cmp", {0: 3, 1: 1})):
        desk.offsets.put(group, "T", offsets)
    header = {"topic": "T", "filterGroups": "out,none", "compareGroup": "cmp"}
    reply = desk.ask(RequestCode.QUERY_CORRECTION_OFFSET, header)
    assert bodies.QueryCorrectionOffsetBody.from_json(reply.body).correction_offsets == {0: 2, 1: 1}
    header = {"topic": "T", "filterGroups": "out,cmp", "compareGroup": "cmp"}
    reply = desk.ask(RequestCode.QUERY_CORRECTION_OFFSET, header)
    found = bodies.QueryCorrectionOffsetBody.from_json(reply.body).correction_offsets
    assert found == {0: 2, 1: 2**63 - 1}


def test_offsets_of_messages_that_are_gone_do_not_count() -> None:
    desk = aged()
    desk.offsets.put("slow", "T", {0: 0})
    desk.offsets.put("quick", "T", {0: 10})
    desk.store.clean(desk.clock.now)
    header = {"topic": "T", "compareGroup": "none"}
    reply = desk.ask(RequestCode.QUERY_CORRECTION_OFFSET, header)
    assert bodies.QueryCorrectionOffsetBody.from_json(reply.body).correction_offsets == {0: 10}


def clone(desk: Desk, **more: str) -> int:
    return desk.ask(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "new", **more}).code


def test_offsets_are_cloned_for_one_topic_or_all() -> None:
    desk = filled()
    desk.topic("U", 1)
    desk.offsets.put("g", "U", {0: 0})
    desk.offsets.put("g", "Deleted", {0: 0})
    assert clone(desk, topic="T") == 0
    assert desk.offsets.topics_of("new") == {"T"}
    assert clone(desk) == 0
    assert desk.offsets.topics_of("new") == {"T", "U"}
    assert desk.offsets.of("new", "T") == {0: 3}


@pytest.mark.parametrize("offline", ["true", "false"])
def test_a_topic_that_the_group_left_is_cloned_only_offline(offline: str) -> None:
    desk = filled()
    join(desk, "g", "U")
    clone(desk, offline=offline)
    assert desk.offsets.topics_of("new") == ({"T"} if offline == "true" else set())


def reset(desk: Desk, timestamp: int, force: bool = False, **more: str) -> Command:
    header = {"topic": "T", "group": "g", "timestamp": str(timestamp), "isForce": str(force).lower(), **more}
    return desk.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)


def test_a_reset_tells_each_member_where_to_go_on() -> None:
    desk = filled()
    lines = [join(desk, "g", "T", line=Line(f"h:{port}")) for port in (1, 2)]
    for line in lines:
        line.sent.clear()
    reply = reset(desk, START + 1_000)
    table = {queue(0): 1, queue(1): 0}
    assert (reply.code, bodies.ResetOffsetBody.from_json(reply.body).offset_table) == (0, table)
    for line in lines:
        (notice,) = line.sent
        assert notice.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        assert (notice.ext["topic"], notice.ext["group"]) == ("T", "g")
        assert bodies.ResetOffsetBody.from_json(notice.body).offset_table == table
    assert desk.offsets.get("g", "T", 0) == 3  # the members commit what they took


@pytest.mark.parametrize(
    ("timestamp", "force", "expected"),
    [(START + 3_500, False, 3), (START + 3_500, True, 4), (-1, False, 3), (-1, True, 4), (0, False, 0)],
)
def test_a_reset_goes_forward_only_by_force(timestamp: int, force: bool, expected: int) -> None:
    desk = filled()
    join(desk, "g", "T")
    table = bodies.ResetOffsetBody.from_json(reset(desk, timestamp, force).body).offset_table
    assert table[queue(0)] == expected


@pytest.mark.parametrize(
    ("after", "expected"),
    [(-1, 0), (0, 0), (1, 1), (400, 1), (500, 1), (501, 21), (899, 21), (900, 21), (901, 22)],
)
def test_a_reset_begins_with_the_first_message_of_that_ms_or_later(after: int, expected: int) -> None:
    desk = Desk()
    desk.topic("T", 1)
    for at in [0, *[500] * 20, 900]:
        desk.clock.now = START + at
        desk.put("T", 0)
    desk.offsets.commit("g", "T", 0, 22)
    join(desk, "g", "T")
    table = bodies.ResetOffsetBody.from_json(reset(desk, START + after, True).body).offset_table
    assert table[queue(0)] == expected


def test_a_cpp_member_gets_a_list() -> None:
    desk = filled()
    line = join(desk, "g", "T", language="CPP")
    reset(desk, START)
    rows = json.loads(line.sent[0].body)["offsetTable"]
    assert rows[0] == {"brokerName": "wire-a", "offset": 0, "queueId": 0, "topic": "T"}


def test_resets_that_cannot_be() -> None:
    desk = filled()
    offline = reset(desk, START)
    assert offline.code == OFFLINE
    assert "Consumer not online" in (offline.remark or "")
    join(desk, "g", "T")
    assert "no topic" in (reset(desk, START, topic="U").remark or "")
    desk.topic("U")
    assert "not exist" in (reset(desk, START, topic="U").remark or "")


def test_the_captured_questions_of_an_administrator() -> None:
    desk = Desk()
    for group in ("wire_lite_group", "wire_order_group", "wire_push_group"):
        desk.topic(f"%RETRY%{group}", 1)
        desk.offsets.put(group, f"%RETRY%{group}", {0: 0})
    desk.topic("WireTopic")
    for group in ("wire_lite_group", "wire_order_group", "wire_push_group"):
        desk.offsets.put(group, "WireTopic", {0: 0, 1: 0, 2: 0, 3: 0})
    seen = []
    for exchange in session("6_mqadmin"):
        if exchange.code not in desk.progress.handlers() or exchange.code == RequestCode.GET_TOPIC_STATS_INFO:
            continue  # the ends of queues are looked at in test_admin
        expected = exchange.response
        assert expected is not None
        response = desk.answer(exchange.command(), Line())
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
