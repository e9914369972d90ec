"""The JSON bodies against what Java writes and reads."""

from __future__ import annotations

import base64
import contextlib
import inspect
import json
import pathlib
import zlib
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.errors import RemoteProtocolError
from rmq.message import MessageQueue
from rmq.protocol import bodies
from rmq.protocol.fields import Body
from rmq.protocol.json import loads

CONFIG_FILES = {
    "topics": bodies.TopicConfigSerializeWrapper,
    "subscriptionGroup": bodies.SubscriptionGroupWrapper,
    "consumerOffset": bodies.ConsumerOffsetSerializeWrapper,
    "delayOffset": bodies.DelayOffsetSerializeWrapper,
}
# Java computes these from other fields when it writes and ignores them when it reads.
COMPUTED = {"consumeTimeStampStr", "minTimeStampStr", "maxTimeStampStr", "dead"}


@pytest.fixture
def quirks(golden: pathlib.Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((golden / "json_quirks.json").read_text())
    return content


def all_bodies() -> dict[str, type[Any]]:
    return {
        name: value
        for name, value in vars(bodies).items()
        if inspect.isclass(value) and issubclass(value, Body) and value is not Body
    }


def named(java_class: str) -> type[Any]:
    name = java_class.rpartition(".")[2].replace("ConsumerOffsetManager", "ConsumerOffsetSerializeWrapper")
    return all_bodies()[name]


def without_computed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_computed(item) for key, item in value.items() if key not in COMPUTED}
    return [without_computed(item) for item in value] if isinstance(value, list) else value


def test_what_java_writes_is_read_and_written_again_the_same(quirks: dict[str, Any]) -> None:
    assert len(quirks["bodies"]) == 25
    for vector in quirks["bodies"]:
        cls, text = named(vector["class"]), vector["java_json"]
        body = cls.from_json(text)
        if "Str" in text:
            assert loads(body.to_json()) == without_computed(loads(text))
        else:
            assert body.to_json().decode() == text
        strict = body.to_json(strict=True)
        assert cls.from_json(json.dumps(json.loads(strict))) == body
        assert json.loads(strict) == without_computed(loads(text))


def test_what_java_accepts_is_read_as_java_reads_it(quirks: dict[str, Any]) -> None:
    for vector in quirks["accept_tests"]:
        assert vector["accepted"]
        cls = named(vector["class"])
        assert (
            cls.from_json(vector["encoded_again"]).to_value().items()
            <= cls.from_json(vector["in"]).to_value().items()
        )


@pytest.mark.parametrize("name", CONFIG_FILES)
def test_the_config_files_survive(golden: pathlib.Path, name: str) -> None:
    raw = (golden / "store" / "config" / f"{name}.json").read_bytes()
    body: Body = CONFIG_FILES[name].from_json(raw)
    assert json.loads(body.to_json(strict=True)) == without_computed(loads(raw))
    assert CONFIG_FILES[name].from_json(body.to_json(strict=True)) == body
    assert body.to_value()[next(iter(body.to_value()))]


@pytest.mark.parametrize("name", sorted(all_bodies()))
def test_every_body_has_defaults_and_survives(name: str) -> None:
    cls = all_bodies()[name]
    empty = cls.from_json("{}")
    assert empty == cls()
    for strict in (False, True):
        assert cls.from_json(empty.to_json(strict=strict)) == empty
    assert cls.from_json(json.dumps({"unknown": [1], **dict.fromkeys(empty.to_value())})) == empty


@pytest.mark.parametrize("number", ["12", "13"])
def test_the_captured_registrations(golden: pathlib.Path, number: str) -> None:
    frame = json.loads(next((golden / "frames").glob(f"{number}_register_broker_*.json")).read_text())
    data, compressed = base64.b64decode(frame["body_b64"]), frame["ext_fields"]["compressed"] == "true"
    assert zlib.crc32(data) & 0x7FFF_FFFF == int(frame["ext_fields"]["bodyCrc32"])
    body = bodies.RegisterBrokerBody.decode(data, compressed=compressed)
    wrapper = body.topic_config_serialize_wrapper
    assert wrapper.data_version == bodies.DataVersion(1_700_000_000_000, 5)
    assert wrapper.topic_config_table["TopicTest"] == bodies.TopicConfig("TopicTest", 4, 8)
    # The compressed form has no place for the order flag.
    assert wrapper.topic_config_table["OrderTopic"] == bodies.TopicConfig(
        "OrderTopic", 8, 8, order=not compressed
    )
    assert body.encode(compressed=compressed) == data


names = st.text("abcXYZ09_%-", min_size=1, max_size=10)
topics = st.builds(bodies.TopicConfig, names, st.integers(0, 99), st.integers(0, 99), st.integers(0, 15))


@given(st.lists(topics), st.integers(0, 2**62), st.lists(st.text(max_size=5)))
def test_both_forms_of_a_registration_carry_the_same(
    configs: list[bodies.TopicConfig], counter: int, servers: list[str]
) -> None:
    servers = [server.encode("utf-8", "replace").decode() for server in servers]
    table = {topic.topic_name: topic for topic in configs}
    wrapper = bodies.TopicConfigSerializeWrapper(table, bodies.DataVersion(1, counter))
    body = bodies.RegisterBrokerBody(wrapper, servers)
    for compressed in (False, True):
        assert (
            bodies.RegisterBrokerBody.decode(body.encode(compressed=compressed), compressed=compressed)
            == body
        )


def test_a_compressed_registration_is_read_with_care() -> None:
    good = bodies.RegisterBrokerBody().encode(compressed=True)
    plain = zlib.decompress(good)
    bad = {
        "cannot be unpacked": b"no deflate",
        "cut short": good[:-6],
        "unpacks to more": zlib.compress(bytes(bodies.MAX_INFLATED + 1)),
        "past the end": zlib.compress(plain[:-2]),
        "five words": zlib.compress(plain[: plain.index(b"\0\0\0\0")] + b"\0\0\0\1\0\0\0\3a 1"),
    }
    for reason, data in bad.items():
        with pytest.raises(RemoteProtocolError, match=reason):
            bodies.RegisterBrokerBody.decode(data, compressed=True)
    with pytest.raises(RemoteProtocolError, match="past the end"):
        bodies.RegisterBrokerBody.decode(zlib.compress(b"\xff\xff\xff\xff{}"), compressed=True)


@given(st.binary(max_size=60), st.booleans())
def test_a_registration_of_rubbish_is_a_protocol_error(data: bytes, packed: bool) -> None:
    for compressed in (False, True):
        with contextlib.suppress(RemoteProtocolError):
            bodies.RegisterBrokerBody.decode(zlib.compress(data) if packed else data, compressed=compressed)


@pytest.mark.parametrize(
    ("cls", "text", "reason"),
    [
        (bodies.TopicList, "[]", "TopicList: a JSON object expected"),
        (
            bodies.TopicList,
            '{"topicList":"abc"}',
            "TopicList: field topicList cannot be read .a list expected",
        ),
        (bodies.KVTable, '{"table":[1]}', "KVTable: field table .*a map expected"),
        (
            bodies.TopicConfigSerializeWrapper,
            '{"topicConfigTable":{"T":{"perm":"x"}}}',
            "TopicConfig: field perm",
        ),
        (bodies.DataVersion, '{"counter":[]}', "DataVersion: field counter"),
        (bodies.ConsumerData, '{"consumeType":9}', "ConsumerData: field consumeType .*ConsumeType"),
        (bodies.LockBatchRequestBody, '{"mqSet":[5]}', "field mqSet .*is not a message queue"),
        (bodies.LockBatchRequestBody, '{"mqSet":[{"queueId":[]}]}', "LockBatchRequestBody: field mqSet"),
        (bodies.TopicStatsTable, '{"offsetTable":{"nonsense":{}}}', "bad JSON"),
        (bodies.HeartbeatData, "{{}", "bad JSON"),
    ],
)
def test_a_wrong_shape_is_refused_with_its_field(cls: type[Body], text: str, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        cls.from_json(text)


SHAPES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(all_bodies())), st.data())
def test_any_shape_is_a_body_or_a_protocol_error(name: str, data: st.DataObject) -> None:
    cls = all_bodies()[name]
    keys = list(cls().to_value()) + [field.name for field in attrs.fields(cls)]
    value = data.draw(st.dictionaries(st.sampled_from(keys), SHAPES))
    try:
        body = cls.from_value(value)
    except RemoteProtocolError:
        return
    body.to_json()


def test_an_enum_may_come_as_its_ordinal() -> None:
    body = bodies.ConsumerData.from_json('{"consumeType":1,"messageModel":0,"consumeFromWhere":4}')
    assert body.consume_type == "CONSUME_PASSIVELY"
    assert body.message_model == "BROADCASTING"
    assert body.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"


def test_queues_as_keys_are_read_in_both_forms() -> None:
    queue = MessageQueue("T", "broker-a", 1)
    body = bodies.ResetOffsetBody({queue: 5})
    java, strict = body.to_json(), body.to_json(strict=True)
    assert java == b'{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"T"}:5}}'
    assert json.loads(strict)["offsetTable"].popitem()[1] == 5
    assert bodies.ResetOffsetBody.from_json(java) == bodies.ResetOffsetBody.from_json(strict) == body


def test_sets_are_written_in_order() -> None:
    data = bodies.SubscriptionData("T", "A || B", frozenset({"B", "A"}), frozenset({66, 65}))
    assert data.to_value()["tagsSet"] == ["A", "B"]
    assert data.to_value()["codeSet"] == [65, 66]


def test_a_data_version_goes_on() -> None:
    assert bodies.DataVersion(5, 7).following(9) == bodies.DataVersion(9, 8)
