"""rmq.broker.membership.clients: members of groups, and who is told when a group changes."""

from __future__ import annotations

import json

import pytest

from rmq.broker.config import BrokerConfig
from rmq.broker.membership import clients as module
from rmq.broker.membership.clients import SILENT_MS
from rmq.broker.membership.notices import APART_SECONDS
from rmq.errors import ResponseError
from rmq.message import MessageQueue, retry_topic
from rmq.protocol import bodies
from rmq.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    ProducerData,
    SubscriptionData,
)
from rmq.protocol.bodies import SubscriptionGroupConfig as GroupConfig
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from tests.unit.broker.membership.heartbeats import beat, consumer

from ..rig import START, Rig, Wire
from ..sessions import body_of, session

NOTICE = 40
CLOCK_MS = 100_000
"""What the clock that finds silent members says in the beginning."""


def told(line: Wire) -> list[str]:
    """The groups whose change the line was told since the last time."""
    taken = line.take()
    assert all(command.code == NOTICE for command in taken)
    return [command.ext["consumerGroup"] for command in taken]


def later(rig: Rig) -> None:
    """Let time pass until members have been told of all changes, and may be told at once of the next."""
    for _ in range(2):
        rig.let_pass(round(APART_SECONDS * 1000) + 1)
        rig.clients.notices.step(rig.seconds)


# --- coming ---


def test_a_new_member_is_told_at_once_and_so_are_the_others() -> None:
    rig, one, two = Rig(), Wire("h:1"), Wire("h:2")
    assert beat(rig, one, "c1", consumer("g", T="*")) == {"g"}
    assert told(one) == ["g"]
    later(rig)
    assert beat(rig, two, "c2", consumer("g", T="*")) == {"g"}
    assert told(one) == told(two) == ["g"]
    assert rig.clients.consumer_ids("g") == ["c1", "c2"]


def test_a_repeated_heartbeat_changes_nothing() -> None:
    rig, line = Rig(), Wire()
    beat(rig, line, "c1", consumer("g", T="*"))
    line.take()
    assert beat(rig, line, "c1", consumer("g", T="*")) == set()
    assert told(line) == []


def test_a_changed_set_of_topics_is_told_but_not_a_changed_expression() -> None:
    rig, line = Rig(), Wire()
    beat(rig, line, "c1", consumer("g", T="*"))
    line.take()
    later(rig)
    assert beat(rig, line, "c1", consumer("g", T="TagA")) == set()
    assert beat(rig, line, "c1", consumer("g", T="*", U="*")) == {"g"}
    later(rig)
    assert beat(rig, line, "c1", consumer("g", U="*")) == {"g"}
    assert told(line) == ["g", "g"]
    assert rig.clients.subscription("g", "T") is None
    assert rig.clients.groups_of("U") == {"g"}


def test_an_older_subscription_does_not_replace_a_newer_one() -> None:
    rig, line = Rig(), Wire()
    for version, text in ((5, "TagA"), (4, "TagB"), (6, "TagC"), (5, "TagD")):
        data = consumer("g")
        data.subscription_data_set = [SubscriptionData("T", text, sub_version=version)]
        beat(rig, line, "c1", data)
    known = rig.clients.subscription("g", "T")
    assert known is not None
    assert (known.sub_string, known.sub_version) == ("TagC", 6)


def test_a_repeated_subscription_stays_the_same_object() -> None:
    """Readers keep what they made of a subscription for as long as it is the same."""
    rig, line = Rig(), Wire()
    beat(rig, line, "c1", consumer("g", T="*"))
    known = rig.clients.subscription("g", "T")
    beat(rig, line, "c1", consumer("g", T="*"))
    assert rig.clients.subscription("g", "T") is known


def test_a_topic_counts_as_subscribed_until_members_say_otherwise() -> None:
    rig, line = Rig(), Wire()
    assert rig.clients.is_subscribed("g", "T")
    beat(rig, line, "c1", consumer("g"))
    assert rig.clients.is_subscribed("g", "T")
    beat(rig, line, "c1", consumer("g", U="*"))
    assert not rig.clients.is_subscribed("g", "T")
    assert rig.clients.is_subscribed("g", "U")


def test_the_group_has_what_its_last_member_announced() -> None:
    rig = Rig()
    data = consumer("g", T="*")
    data.message_model = "BROADCASTING"
    beat(rig, Wire("h:1"), "c1", consumer("g", T="*"))
    beat(rig, Wire("h:2"), "c2", data)
    group = rig.clients.consumer_group("g")
    assert group is not None
    assert (group.message_model, group.consume_type) == ("BROADCASTING", "CONSUME_PASSIVELY")
    assert group.consume_from_where == "CONSUME_FROM_LAST_OFFSET"


def test_heartbeat_makes_the_retry_topic() -> None:
    rig = Rig()
    rig.groups.update(GroupConfig("g", retry_queue_nums=3))
    unit = consumer("unit", T="*")
    unit.unit_mode = True
    beat(rig, Wire(), "c1", consumer("g", T="*"), unit)
    topic = rig.topics.get(retry_topic("g"))
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag) == (3, 3, 6, 0)
    topic = rig.topics.get(retry_topic("unit"))
    assert topic is not None
    assert (topic.read_queue_nums, topic.topic_sys_flag) == (1, 2)


def test_without_auto_creation_an_unknown_group_gets_no_retry_topic() -> None:
    rig = Rig(config=BrokerConfig(broker_name="b", auto_create_subscription_group=False))
    assert beat(rig, Wire(), "c1", consumer("g", T="*")) == {"g"}
    assert rig.topics.get(retry_topic("g")) is None
    assert rig.groups.table.get("g") is None


def test_one_client_on_two_connections_counts_once() -> None:
    rig, old, new = Rig(), Wire("h:1"), Wire("h:2")
    beat(rig, old, "c1", consumer("g", T="*"))
    beat(rig, new, "c1", consumer("g", T="*"))
    assert rig.clients.consumer_ids("g") == ["c1"]
    rig.clients.on_close(old)
    assert rig.clients.consumer_ids("g") == ["c1"]


@pytest.mark.parametrize("name", ["", "../../etc", "a b", "x" * 128])
def test_impossible_group_names_are_refused_whole(name: str) -> None:
    rig, line = Rig(), Wire()
    with pytest.raises(ResponseError, match="not a valid name"):
        beat(rig, line, "c1", consumer("good", T="*"), consumer(name, T="*"))
    assert rig.clients.consumer_group("good") is None
    assert rig.groups.table.get("good") is None


def test_groups_of_a_connection_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUPS_OF_A_CONNECTION", 2)
    rig, line = Rig(), Wire()
    beat(rig, line, "c1", consumer("g1"), ProducerData("p1"))
    beat(rig, line, "c1", consumer("g1"), ProducerData("p1"))
    with pytest.raises(ResponseError, match="at most 2"):
        beat(rig, line, "c1", ProducerData("p2"))
    assert rig.clients.producers("p2") == []


def test_members_of_all_groups_are_bounded() -> None:
    rig = Rig(config=BrokerConfig(broker_name="b", max_group_members=5))
    first, second = Wire(), Wire()
    beat(rig, first, "c1", consumer("g1", T="*"), ProducerData("p1"))
    beat(rig, second, "c2", consumer("g1", T="*"))
    with pytest.raises(ResponseError, match=r"maxGroupMembers. 3 of 5 are taken"):
        beat(rig, second, "c2", consumer("g1", T="*"), consumer("g2", T="*"))
    beat(rig, second, "c2", consumer("g1", T="*"))  # whoever is in stays
    rig.clients.on_close(first)  # type: ignore[arg-type]
    beat(rig, second, "c2", consumer("g1", T="*"), consumer("g2", T="*"), ProducerData("p"))
    rig.clients.on_close(second)  # type: ignore[arg-type]
    assert (rig.clients.shares.used, rig.clients._holders) == (0, {})


def test_subscriptions_of_a_heartbeat_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUBSCRIPTIONS_OF_A_HEARTBEAT", 2)
    rig, line = Rig(), Wire()
    beat(rig, line, "c1", consumer("g1", T="*"), consumer("g2", T="*"))
    with pytest.raises(ResponseError, match="3 subscriptions in one heartbeat, at most 2"):
        beat(rig, line, "c1", consumer("g1", T="*", U="*"), consumer("g3", T="*"))
    assert rig.clients.consumer_group("g3") is None


def test_a_heartbeat_of_a_closed_connection_leaves_nothing() -> None:
    rig, line = Rig(), Wire()
    line.is_closed = True
    assert beat(rig, line, "c1", consumer("g", T="*"), ProducerData("p")) == set()
    assert rig.clients.consumer_group("g") is None
    assert rig.clients.producers("p") == []


# --- leaving ---


def test_those_who_stay_are_told_of_those_who_leave() -> None:
    rig, one, two, three = Rig(), Wire("h:1"), Wire("h:2"), Wire("h:3")
    for line in (one, two, three):
        beat(rig, line, line.peer_address, consumer("g", T="*"), ProducerData("p"))
    later(rig)
    for line in (one, two, three):
        line.take()
    rig.clients.unregister(two, consumer_group="g")
    assert [told(line) for line in (one, two, three)] == [["g"], [], ["g"]]
    assert len(rig.clients.producers("p")) == 3
    later(rig)
    rig.clients.on_close(one)
    assert [told(line) for line in (one, two, three)] == [[], [], ["g"]]
    assert [member.client_id for member in rig.clients.producers("p")] == ["h:2", "h:3"]
    rig.clients.on_close(three)
    assert rig.clients.consumer_group("g") is None
    assert rig.clients.groups_of("T") == set()


def test_those_who_stay_are_not_told_while_the_broker_stops() -> None:
    rig, one, two = Rig(), Wire("h:1"), Wire("h:2")
    for line in (one, two):
        beat(rig, line, line.peer_address, consumer("g", T="*"))
    for line in (one, two):
        line.take()
    rig.clients.notices.fall_silent()
    rig.clients.on_close(one)
    later(rig)
    assert told(two) == []


def test_leaving_twice_is_nothing() -> None:
    rig, one, two = Rig(), Wire("h:1"), Wire("h:2")
    beat(rig, one, "c1", consumer("g", T="*"))
    beat(rig, two, "c2", consumer("g", T="*"))
    rig.clients.unregister(two, consumer_group="g", producer_group="p")
    one.take()
    rig.clients.unregister(two, consumer_group="g")
    rig.clients.on_close(two)
    assert told(one) == []


def test_nothing_is_left_of_those_who_left() -> None:
    rig, line = Rig(), Wire()
    beat(rig, line, "c1", consumer("g", T="*"), ProducerData("p"))
    rig.clients.on_close(line)
    assert not rig.clients._consumers
    assert not rig.clients._producers
    assert not rig.clients._of_connection


def test_silent_members_are_dropped_and_their_connections_closed() -> None:
    rig, silent, lively = Rig(), Wire("h:1"), Wire("h:2")
    beat(rig, silent, "c1", consumer("g", T="*"), ProducerData("p"))
    beat(rig, lively, "c2", consumer("g", T="*"))
    beat(rig, lively, "c2", consumer("g", T="*"), now=START + 100_000)
    rig.clients.expire(CLOCK_MS + SILENT_MS)
    assert rig.clients.consumer_ids("g") == ["c1", "c2"]
    later(rig)
    lively.take()
    assert rig.clients.expire(CLOCK_MS + SILENT_MS + 1) > CLOCK_MS + SILENT_MS + 1
    assert rig.clients.consumer_ids("g") == ["c2"]
    assert rig.clients.producers("p") == []
    assert (silent.is_closed, lively.is_closed) == (True, False)
    assert told(lively) == ["g"]


def test_many_silent_members_are_dropped_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKS", 2)
    rig, lines = Rig(), [Wire(f"h:{number}") for number in range(5)]
    for line in lines:
        beat(rig, line, line.peer_address, consumer("g", T="*"))
    late = CLOCK_MS + SILENT_MS + 1
    beat(rig, lines[3], "h:3", consumer("g", T="*"), now=START + SILENT_MS)
    assert rig.clients.expire(late) == late
    assert [line.is_closed for line in lines] == [True, True, False, False, False]
    rig.clients.on_close(lines[2])  # it leaves before it is looked at
    assert rig.clients.expire(late) == late
    assert rig.clients.expire(late) > late
    assert [line.is_closed for line in lines] == [True, True, False, False, True]
    assert rig.clients.consumer_ids("g") == ["h:3"]


def test_setting_the_wall_clock_makes_nobody_silent() -> None:
    rig, wire = Rig(), Wire()
    body = HeartbeatData("c1", [ProducerData("p")], [consumer("g", T="*")]).to_json()
    rig.ask(Command.request(RequestCode.HEART_BEAT, body=body), wire=wire)
    for step_ms in (SILENT_MS + 1, -10 * SILENT_MS):
        rig.now_ms += step_ms
        assert rig.broker.steps.expire() <= rig.now_ms + module.SCAN_MS
        assert rig.broker.clients.consumer_ids("g") == ["c1"]
    rig.seconds += SILENT_MS / 1000 + 1
    rig.broker.steps.expire()
    assert rig.broker.clients.consumer_ids("g") == []


def test_ever_new_client_ids_of_one_connection_leave_little() -> None:
    rig, one, other = Rig(), Wire("h:1"), Wire("h:2")
    now = START
    for number in range(50):
        producers = [ProducerData("p"), ProducerData(f"p{number % 2}")]
        data = HeartbeatData(f"c{number}", producers, [consumer("g", T="*")])
        for line in (one, other, one):
            now += 5
            beat(rig, line, data.client_id, *data.consumer_data_set, *producers, now=now)
            rig.clients.warning(data, line)  # type: ignore[arg-type]
    assert rig.clients.conflicts.found == 50
    assert rig.clients.conflicts.client_ids == 1
    assert len(rig.clients._ids._live) <= 2
    for line in (one, other):
        rig.clients.on_close(line)  # type: ignore[arg-type]
    assert len(rig.clients._ids._live) == 0
    assert rig.clients.conflicts.client_ids == 0


def test_a_group_that_a_client_no_longer_names_expires_alone() -> None:
    rig, line = Rig(), Wire()
    beat(rig, line, "c1", consumer("g", T="*"), consumer("h", T="*"))
    beat(rig, line, "c1", consumer("h", T="*"), now=START + 100_000)
    rig.clients.expire(CLOCK_MS + SILENT_MS + 1)
    assert rig.clients.consumer_group("g") is None
    assert rig.clients.consumer_ids("h") == ["c1"]
    assert not line.is_closed


@pytest.mark.parametrize("where", ["broker", "group"])
def test_notices_can_be_switched_off(where: str) -> None:
    rig = Rig(config=BrokerConfig(broker_name="b", notify_consumer_ids_changed_enable=where != "broker"))
    rig.groups.update(GroupConfig("g", notify_consumer_ids_changed_enable=where != "group"))
    one, two = Wire("h:1"), Wire("h:2")
    beat(rig, one, "c1", consumer("g", T="*"))
    beat(rig, two, "c2", consumer("g", T="*"))
    rig.clients.on_close(two)
    assert one.take() == two.take() == []


# --- requests ---


def heartbeat_body(client_id: str, *data: ConsumerData) -> bytes:
    return HeartbeatData(client_id, [ProducerData("p")], list(data)).to_json()


def test_the_list_of_consumers() -> None:
    rig, line = Rig(), Wire()
    header = {"consumerGroup": "g"}
    refused = rig.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    assert (refused.code, refused.remark) == (1, "no consumer for this group, g")
    rig.call(RequestCode.HEART_BEAT, body=heartbeat_body("c1", consumer("g", T="*")), wire=line)
    listed = rig.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    assert (listed.code, json.loads(listed.body)) == (0, {"consumerIdList": ["c1"]})


def test_the_lists_of_connections() -> None:
    rig, line = Rig(), Wire("h:7")
    rig.call(RequestCode.HEART_BEAT, body=heartbeat_body("c1", consumer("g", T="TagA")), wire=line)
    reply = rig.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
    consumers = bodies.ConsumerConnection.from_json(reply.body)
    assert consumers.connection_set == [bodies.Connection("c1", "h:7", "PYTHON", 407)]
    assert consumers.subscription_table["T"].sub_string == "TagA"
    assert (consumers.message_model, consumers.consume_type) == ("CLUSTERING", "CONSUME_PASSIVELY")
    reply = rig.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})
    assert bodies.ProducerConnection.from_json(reply.body).connection_set == consumers.connection_set
    table = bodies.ProducerTableInfo.from_json(rig.call(RequestCode.GET_ALL_PRODUCER_INFO).body)
    assert table.data == {"p": [bodies.ProducerInfo("c1", "h:7", "PYTHON", 407, START)]}


def test_groups_that_are_not_there() -> None:
    rig = Rig()
    reply = rig.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
    assert (reply.code, reply.remark) == (206, "the consumer group[g] not online")
    reply = rig.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})
    assert (reply.code, reply.remark) == (1, "the producer group[p] not exist")


def check(rig: Rig, text: str, kind: str) -> int:
    wanted = SubscriptionData("T", text, expression_type=kind)
    body = bodies.CheckClientRequestBody("c1", "g", wanted).to_json()
    return rig.call(RequestCode.CHECK_CLIENT_CONFIG, body=body).code


def test_expressions_are_checked() -> None:
    sql = Rig(config=BrokerConfig(broker_name="b", enable_property_filter=True))
    assert [check(sql, "a > 1", "SQL92"), check(sql, "a >", "SQL92"), check(sql, "TagA", "TAG")] == [0, 23, 0]
    plain = Rig()
    assert [check(plain, "a > 1", "SQL92"), check(plain, "TagA", "TAG")] == [1, 0]
    assert plain.call(RequestCode.CHECK_CLIENT_CONFIG, body=b"{}").code == 0


@pytest.mark.parametrize("name", ["2_ordered_consumer", "3_push_consumer", "6_mqadmin"])
def test_the_captured_sessions_are_answered_alike(name: str) -> None:
    """Codes, bodies and the order of notices and answers equal those that a Java broker gave."""
    rig, lines, seen = Rig(), dict[int, Wire](), set()
    for exchange in session(name):
        if exchange.code not in rig.clients.handlers():
            continue
        line = lines.setdefault(exchange.request["conn"], Wire())
        expected = exchange.response
        assert expected is not None
        response = rig.answer(exchange.command(), line)
        seen.add(exchange.code)
        assert response.code == expected["code"]
        if expected["code"]:
            assert response.remark == expected["remark"]
        if exchange.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            assert response.body == body_of(expected)
        if exchange.code == RequestCode.HEART_BEAT:
            notices = [(command.code, dict(command.ext)) for command in line.take()]
            assert notices == [(notice["code"], notice["ext"]) for notice in exchange.notices]
    assert seen
    assert not rig.clients._of_connection


@pytest.mark.parametrize("name", ["c\nforged", "c\x1b[2J", "c\u202e", "c" * 256, "\x9b"])
@pytest.mark.parametrize("where", ["client", "producer", "consumer", "topic"])
def test_names_that_cannot_be_printed_or_have_no_end_are_refused(name: str, where: str) -> None:
    """Such names would be in logs, in responses to other clients and in tables."""
    rig = Rig()
    names = {"client": "c1", "producer": "p", "consumer": "g", "topic": "T"} | {where: name}
    data = ConsumerData(names["consumer"], subscription_data_set=[SubscriptionData(names["topic"], "*")])
    beat = HeartbeatData(names["client"], [ProducerData(names["producer"])], [data])
    answer = rig.one(Command.request(RequestCode.HEART_BEAT, None, beat.to_json()))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "is not a valid name" in (answer.remark or "")
    assert (answer.remark or "").isprintable()
    assert len(answer.remark or "") < 1000
    assert rig.broker.clients.counts() == []
    if where != "producer":
        queue = MessageQueue(names["topic"], "b", 0)
        lock = LockBatchRequestBody(names["consumer"], names["client"], frozenset({queue}))
        for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            assert rig.one(Command.request(code, None, lock.to_json())).code == ResponseCode.SYSTEM_ERROR
