"""rmq.broker.admin.query: messages by time, offset and key."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import evolve

from rmq.broker.admin import query as module
from rmq.message import PROPERTY_UNIQUE_KEY
from rmq.protocol import record as record_module
from rmq.protocol.bodies import ConsumeQueueData, ConsumerData, HeartbeatData, SubscriptionData
from rmq.protocol.bodies import QueryConsumeQueueResponseBody as UnitsBody
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.record import compress, compressed_flag, decode_records
from rmq.store.files import index

from ..rig import START, Rig, Wire
from ..sessions import session

NOT_FOUND = 22
FOREVER = 2**63 - 1


def filled() -> Rig:
    """Six messages in queue 1 of T, stored a second apart."""
    rig = Rig()
    rig.topic("T")
    for number in range(6):
        rig.put("T", 1, f"body {number}".encode(), keys=("all", f"key-{number}"))
        rig.let_pass(1_000)
    return rig


def offset(rig: Rig, code: int, **more: object) -> str:
    header = {"topic": "T", "queueId": "1", **{key: str(value) for key, value in more.items()}}
    reply = rig.call(code, header)
    assert reply.code == 0
    return reply.ext.get("offset") or reply.ext["timestamp"]


def test_ends_and_times_of_a_queue() -> None:
    rig = filled()
    assert offset(rig, RequestCode.GET_MAX_OFFSET) == "6"
    assert offset(rig, RequestCode.GET_MIN_OFFSET) == "0"
    assert offset(rig, RequestCode.GET_EARLIEST_MSG_STORETIME) == str(START)
    assert offset(rig, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=START + 2_000) == "2"
    assert offset(rig, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=0) == "0"
    assert offset(rig, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=FOREVER) == "5"


def test_a_queue_without_messages() -> None:
    rig = filled()
    assert offset(rig, RequestCode.GET_MAX_OFFSET, queueId=2) == "0"
    assert offset(rig, RequestCode.GET_MIN_OFFSET, queueId=2) == "0"
    assert offset(rig, RequestCode.GET_EARLIEST_MSG_STORETIME, queueId=2) == "-1"
    assert offset(rig, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queueId=2, timestamp=1) == "0"


def test_a_message_by_its_offset() -> None:
    rig = filled()
    physical = rig.put("T", 0, b"wanted")
    reply = rig.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(physical)})
    assert reply.code == 0
    assert [message.body for message in decode_records(reply.body)] == [b"wanted"]
    refused = rig.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(physical + 1)})
    assert (refused.code, refused.remark) == (1, f"can not find message by the offset, {physical + 1}")
    assert rig.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "-1"}).code == 1


def find(
    rig: Rig, key: str, topic: str = "T", most: int = 64, unique: str = "false", **times: int
) -> Command:
    header = {
        "topic": topic,
        "key": key,
        "maxNum": str(most),
        "beginTimestamp": str(times.get("begin", 0)),
        "endTimestamp": str(times.get("end", FOREVER)),
        "_UNIQUE_KEY_QUERY": unique,
    }
    return rig.call(RequestCode.QUERY_MESSAGE, header)


def bodies(reply: Command) -> list[str]:
    return [message.body.decode() for message in decode_records(reply.body)]


def test_messages_by_key() -> None:
    rig = filled()
    reply = find(rig, "key-2")
    assert (reply.code, bodies(reply)) == (0, ["body 2"])
    assert reply.ext["indexLastUpdateTimestamp"] == str(START + 5_000)
    assert int(reply.ext["indexLastUpdatePhyoffset"]) > 0
    assert len(bodies(find(rig, "all"))) == 6
    assert len(bodies(find(rig, "all", most=2))) == 2
    assert len(bodies(find(rig, "all", begin=START + 1_000, end=START + 3_000))) == 3


@pytest.mark.parametrize(
    "wanted",
    [
        {"key": "other"},
        {"key": "key-1", "topic": "U"},
        {"key": "key-1", "end": 1},
        {"key": "all", "most": -1},
    ],
)
def test_nothing_found(wanted: dict[str, Any]) -> None:
    reply = find(filled(), **wanted)
    assert (reply.code, reply.body) == (NOT_FOUND, b"")
    assert reply.remark == "can not find message, maybe time range not correct"
    assert "indexLastUpdateTimestamp" in reply.ext


def test_a_message_with_another_key_of_the_same_hash_is_left_out() -> None:
    rig = Rig()
    rig.topic("T")
    rig.put("T", keys=("AaAa",))
    rig.put("T", keys=("BBBB",), body=b"wanted")
    assert len(rig.store.lookup("T", "BBBB", 9, 0, FOREVER).physical_offsets) == 1
    assert bodies(find(rig, "BBBB")) == ["wanted"]


def test_a_message_of_another_topic_of_the_same_hash_is_left_out() -> None:
    rig = Rig()
    for topic in ("AaAa", "BBBB"):
        rig.topic(topic)
        rig.put(topic, keys=("k",), body=topic.encode())
    assert len(rig.store.lookup("BBBB", "k", 9, 0, FOREVER).physical_offsets) == 1
    assert bodies(find(rig, "k", "BBBB")) == ["BBBB"]


def test_messages_with_other_keys_of_the_same_hash_hide_none() -> None:
    """64 of them to a topic of one's own hid the messages of others."""
    rig = Rig(store={"max_index_num": 10_000})
    for topic in ("AaAa", "BBBB"):
        rig.topic(topic)
    for number in range(10):
        rig.put("AaAa", keys=("k",), body=b"%d" % number)
    for _ in range(300):
        rig.put("BBBB", keys=("k",))
    answer = find(rig, "k", "AaAa", most=10)
    assert bodies(answer) == [str(number) for number in range(10)]
    assert answer.remark is None
    assert bodies(find(rig, "k", "AaAa", most=3)) == ["7", "8", "9"]


def test_a_search_that_ends_early_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "LOOKS_MAX", 50)
    rig = Rig(store={"max_index_num": 10_000})
    for topic in ("AaAa", "BBBB"):
        rig.topic(topic)
    rig.put("AaAa", keys=("k",))
    for _ in range(49):
        rig.put("BBBB", keys=("k",))
    assert len(bodies(find(rig, "k", "AaAa"))) == 1
    rig.put("BBBB", keys=("k",))
    answer = find(rig, "k", "AaAa")
    assert answer.code == NOT_FOUND
    assert "not all messages that may have this key were looked at" in (answer.remark or "")
    rig.put("AaAa", keys=("k",))
    answer = find(rig, "k", "AaAa")
    assert len(bodies(answer)) == 1
    assert "not all" in (answer.remark or "")


def test_unique_keys_have_their_own_limit() -> None:
    rig = Rig(store={"default_query_max_num": 2})
    rig.topic("T")
    for _ in range(3):
        rig.put("T", properties={PROPERTY_UNIQUE_KEY: "ID1"}, index=("ID1",))
    assert len(bodies(find(rig, "ID1", most=1, unique="true"))) == 2
    assert len(bodies(find(rig, "ID1", most=1))) == 1


def test_the_answer_fits_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.topic("T")
    for _ in range(3):
        rig.put("T", keys=("k",), body=bytes(400))
    monkeypatch.setattr(module, "ANSWER_BYTES", 1_200)
    assert len(bodies(find(rig, "k"))) == 2
    monkeypatch.setattr(module, "ANSWER_BYTES", 100)
    assert len(bodies(find(rig, "k"))) == 1


def units(rig: Rig, **more: object) -> Command:
    header = {"topic": "T", "queueId": "1", "index": "0", "count": "2"}
    return rig.call(
        RequestCode.QUERY_CONSUME_QUEUE, header | {key: str(value) for key, value in more.items()}
    )


def test_a_query_decompresses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """229 bytes of question over 64 bodies, each compressed a thousandfold, stopped everybody for 17 s."""
    rig = filled()
    body = compress(bytes(100_000))
    for _ in range(3):
        rig.put("T", body=body, keys=("bomb",), sys_flag=compressed_flag())
    opened: list[int] = []
    monkeypatch.setattr(record_module, "decompress", lambda body, *rest: opened.append(len(body)) or b"")  # type: ignore[func-returns-value]
    answer = find(rig, "bomb")
    assert len(answer.body) > 3 * len(body)
    assert opened == []


def test_units_of_a_queue() -> None:
    rig = filled()
    body = UnitsBody.from_json(units(rig, index=4, count=9).body)
    unit = rig.store.unit("T", 1, 4)
    assert unit is not None
    assert (body.min_queue_index, body.max_queue_index, len(body.queue_data)) == (0, 6, 2)
    assert body.queue_data[0] == ConsumeQueueData(
        *unit, rmq_store_timestamp=rig.store.message_time("T", 1, 4)
    )
    beyond = units(rig, index=6)
    assert (beyond.code, beyond.remark) == (0, "Index 6 of 1@T is not exist!")
    unknown = units(rig, queueId=3)
    assert (unknown.code, unknown.remark) == (1, "3@T is not exist!")


def test_units_of_one_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNITS_MAX", 3)
    assert len(UnitsBody.from_json(units(filled(), count=2**31 - 1).body).queue_data) == 3


def test_units_with_the_subscription_of_a_group() -> None:
    rig = filled()
    body = UnitsBody.from_json(units(rig, consumerGroup="g").body)
    assert (body.subscription_data, body.filter_data) == (None, "g@T is not online!")
    wanted = SubscriptionData("T", "TagA")
    data = HeartbeatData("c", [], [ConsumerData("g", subscription_data_set=[wanted])])
    rig.clients.heartbeat(data, Wire(), "JAVA", 407, START)
    body = UnitsBody.from_json(units(rig, consumerGroup="g").body)
    assert (body.subscription_data, body.filter_data) == (wanted, "null")


def test_units_with_the_sql_filter_of_a_group() -> None:
    rig = filled()
    rig.settings.replace(evolve(rig.config, enable_property_filter=True), rig.store.config)
    wanted = SubscriptionData("T", "a > 3", expression_type="SQL92", sub_version=7)
    data = HeartbeatData("c", [], [ConsumerData("g", subscription_data_set=[wanted])])
    rig.filters.register("g", [wanted])
    rig.clients.heartbeat(data, Wire(), "JAVA", 407, START)
    body = UnitsBody.from_json(units(rig, consumerGroup="g").body)
    shown = json.loads(body.filter_data or "")
    assert (shown["expression"], shown["expressionType"], shown["clientVersion"]) == ("a > 3", "SQL92", 7)


def test_the_captured_queries_of_an_administrator() -> None:
    """The header fields of each answer are those that a Java broker gives."""
    rig = Rig()
    rig.topic("WireTopic")
    rig.put("WireTopic", keys=("key-1",))
    seen = set()
    for exchange in session("6_mqadmin"):
        if exchange.code in rig.query.handlers():
            response = rig.answer(exchange.command(), Wire())
            assert exchange.response is not None
            assert response.code == exchange.response["code"]
            assert response.ext.keys() == (exchange.response.get("ext") or {}).keys()
            assert len(decode_records(response.body)) == 1
            seen.add(exchange.code)
    assert seen == {12, 33}
