"""QUERY_ASSIGNMENT and the modes of groups: which queues a consumer gets that asks a broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from trio.testing import MockClock

import rmq
from rmq.broker.admin.assignments import pop_queues, shared
from rmq.errors import ResponseError
from rmq.message import MessageQueue
from rmq.protocol import codes
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.testing.cluster import Cluster
from tests.unit.broker.rig import Rig

GROUP, TOPIC = "workers", "Orders"
QUEUES = [MessageQueue(TOPIC, broker, number) for broker in "ab" for number in range(3)]


def question(client_id: str = "c1", topic: str = TOPIC, strategy: str = "AVG", **more: str) -> bytes:
    told = {"clientId": client_id, "consumerGroup": GROUP, "strategyName": strategy, "topic": topic}
    return json.dumps({"messageModel": "CLUSTERING", **told, **more}).encode()


def mode(mode: str = "POP", share: int = 0) -> bytes:
    told = {"consumerGroup": GROUP, "mode": mode, "popShareQueueNum": share, "topic": TOPIC}
    return json.dumps(told).encode()


def heartbeat(client_id: str) -> bytes:
    group = {
        "groupName": GROUP,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [{"topic": TOPIC, "subString": "*", "subVersion": 1}],
    }
    return json.dumps({"clientID": client_id, "producerDataSet": [], "consumerDataSet": [group]}).encode()


def places(body: bytes) -> list[tuple[str, int, str]]:
    """Broker, queue and mode of each assignment."""
    found = json.loads(body)["messageQueueAssignments"]
    return [(one["messageQueue"]["brokerName"], one["messageQueue"]["queueId"], one["mode"]) for one in found]


# ---- who gets what ----


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE"])
def test_all_queues_are_shared_out(strategy: str) -> None:
    members = ["c1", "c2", "c3", "c4"]
    found = [queue for one in members for queue in shared(QUEUES, members, one, strategy)]
    assert sorted(found, key=str) == sorted(QUEUES, key=str)
    assert shared(QUEUES, members, "stranger", strategy) == []


def test_a_strategy_that_there_is_not_is_refused() -> None:
    with pytest.raises(ResponseError, match="AVG_BY_CIRCLE"):
        shared(QUEUES, ["c1"], "c1", "MACHINE_ROOM")


def test_members_that_pop_get_all_queues_of_each_broker() -> None:
    found = pop_queues(QUEUES, ["c1", "c2"], "c2", 0, "AVG")
    assert [(one.broker_name, one.queue_id) for one in found] == [("a", -1), ("b", -1)]
    assert pop_queues([], [], "c1", 0, "AVG") == []


def test_members_that_pop_share_queues_with_those_behind_them() -> None:
    members = [f"c{number}" for number in range(6)]
    found = {one: pop_queues(QUEUES, members, one, 2, "AVG") for one in members}
    assert found["c0"] == QUEUES[:3]
    assert found["c5"] == [QUEUES[5], QUEUES[0], QUEUES[1]]
    many = [f"c{number}" for number in range(8)]
    assert pop_queues(QUEUES, many, "c7", 2, "AVG") == [QUEUES[1]]


# ---- one broker ----


def test_a_broker_without_name_servers_shares_out_its_own_queues() -> None:
    rig = Rig()
    rig.topic(TOPIC, 4)
    for name in ("c1", "c2"):
        rig.call(RequestCode.HEART_BEAT, None, heartbeat(name))
    assert json.loads(rig.call(codes.QUERY_ASSIGNMENT, None, question("c3")).body) == {}
    found = places(rig.call(codes.QUERY_ASSIGNMENT, None, question("c2")).body)
    assert found == [("wire-a", 2, "PULL"), ("wire-a", 3, "PULL")]
    every = places(rig.call(codes.QUERY_ASSIGNMENT, None, question("c2", messageModel="BROADCASTING")).body)
    assert len(every) == 4
    assert rig.call(codes.SET_MESSAGE_REQUEST_MODE, None, mode()).code == 0
    assert places(rig.call(codes.QUERY_ASSIGNMENT, None, question("c2")).body) == [("wire-a", -1, "POP")]
    missing = rig.call(codes.QUERY_ASSIGNMENT, None, question("c2", topic="None"))
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST


def test_all_modes_are_told_and_a_rollback_is_refused() -> None:
    rig = Rig()
    rig.topic(TOPIC, 4)
    empty = rig.call(codes.GET_ALL_MESSAGE_REQUEST_MODE, None, b"")
    assert json.loads(empty.body) == {"messageRequestModeMap": {}}
    rig.call(codes.SET_MESSAGE_REQUEST_MODE, None, mode(share=3))
    told = json.loads(rig.call(codes.GET_ALL_MESSAGE_REQUEST_MODE, None, b"").body)["messageRequestModeMap"]
    assert told == {TOPIC: {GROUP: json.loads(mode(share=3))}}
    pop_rollback = 200_056  # it moves RocketMQ's own check points: there are none here
    assert rig.call(pop_rollback, None, b"").code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


# ---- several brokers ----


async def ask(client: rmq.Client, address: str, body: bytes) -> Command:
    return await client._entered().pool.call(address, Command.request(codes.QUERY_ASSIGNMENT, None, body), 10)


async def test_a_broker_tells_the_queues_of_all_brokers(autojump_clock: MockClock) -> None:
    async with Cluster("a", "b", topics={TOPIC: 2}) as running, running.connect() as client:
        pool: Any = client._entered().pool
        address = running["a"].address
        await pool.call(address, Command.request(RequestCode.HEART_BEAT, None, heartbeat("c1")), 10)
        answer = await ask(client, address, question())
        assert places(answer.body) == [(name, number, "PULL") for name in "ab" for number in range(2)]
        await pool.call(address, Command.request(codes.SET_MESSAGE_REQUEST_MODE, None, mode()), 10)
        assert places((await ask(client, address, question())).body) == [("a", -1, "POP"), ("b", -1, "POP")]
        missing = await ask(client, address, question(topic="None"))
        assert missing.code == ResponseCode.TOPIC_NOT_EXIST


async def test_an_old_route_holds_while_no_name_server_answers(autojump_clock: MockClock) -> None:
    async with Cluster("a", "b", topics={TOPIC: 1}) as running, running.connect() as client:
        pool: Any = client._entered().pool
        address = running["a"].address
        await pool.call(address, Command.request(codes.SET_MESSAGE_REQUEST_MODE, None, mode()), 10)
        first = places((await ask(client, address, question())).body)
        await running.advance(30)
        running.name_servers[0].hook(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda request: None)
        again = places((await ask(client, address, question())).body)
        assert first == again == [("a", -1, "POP"), ("b", -1, "POP")]
