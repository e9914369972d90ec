"""The two readers of a heartbeat's JSON return the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.membership import heartbeat_json
from rmq.broker.membership.heartbeat_json import read_heartbeat
from rmq.errors import RemoteProtocolError
from rmq.protocol.bodies import HEARTBEAT_VALUES, ConsumerData, HeartbeatData, ProducerData, SubscriptionData

SUBSCRIPTION = {
    "classFilterMode": False,
    "codeSet": [-1_073_741_824, 7],
    "expressionType": "TAG",
    "subString": "a || b",
    "subVersion": 1_700_000_000_000,
    "tagsSet": ["a", "b"],
    "topic": "Orders",
}
CONSUMER = {
    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
    "consumeType": "CONSUME_PASSIVELY",
    "groupName": "billing",
    "messageModel": "CLUSTERING",
    "subscriptionDataSet": [SUBSCRIPTION],
    "unitMode": False,
}
HEARTBEAT = {"clientID": "one@7", "consumerDataSet": [CONSUMER], "producerDataSet": [{"groupName": "shop"}]}
OF_5X = {**HEARTBEAT, "heartbeatFingerprint": -3, "withoutSub": False}

ODD: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        1.0,
        1e3,
        1.5,
        2**31,
        -(2**31) - 1,
        2**63,
        2**70,
        "",
        "1",
        "0x1",
        " 1",
        "1.0",
    ),
    *("true", "TRUE", "null", "TAG", "\x00", "\t", "é", "😀", "\ud800", "\u2028", [], [None], [1], ["a"]),
    *([1, 1], ["a", "a"], [[]], [{}], {}, {"a": 1}, [SUBSCRIPTION, None], [CONSUMER, CONSUMER]),
]


def outcome(read: Any, body: bytes) -> Any:
    try:
        return read(body)
    except RemoteProtocolError as error:
        return str(error)


def same(body: bytes) -> Any:
    """The result of both readers."""
    found = outcome(read_heartbeat, body)
    lenient = outcome(lambda text: HeartbeatData.from_request(text, most=HEARTBEAT_VALUES), body)
    assert found == lenient
    assert repr(found) == repr(lenient)  # a flag is no number
    return found


@pytest.mark.parametrize("value", [HEARTBEAT, OF_5X, {}, {"clientID": "x", "producerDataSet": []}])
def test_what_clients_send_needs_no_lenient_reader(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps(value).encode()
    expected = same(body)
    monkeypatch.delattr(heartbeat_json, "_read_leniently")
    assert read_heartbeat(body) == expected


def test_the_parts_of_a_heartbeat_are_read() -> None:
    tags, codes = frozenset({"a", "b"}), frozenset({-1_073_741_824, 7})
    wanted = SubscriptionData("Orders", "a || b", tags, codes, 1_700_000_000_000, "TAG", False)
    consumer = ConsumerData(
        "billing", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", [wanted], False
    )
    expected = HeartbeatData("one@7", [ProducerData("shop")], [consumer])
    assert same(json.dumps(HEARTBEAT).encode()) == expected


def with_value(path: tuple[str, ...], value: Any) -> Any:
    """A heartbeat with another value at a place."""
    subscription, consumer, beat = dict(SUBSCRIPTION), dict(CONSUMER), dict(OF_5X)
    consumer["subscriptionDataSet"] = [subscription]
    beat["consumerDataSet"] = [consumer]
    parts = {"heartbeat": beat, "consumer": consumer, "subscription": subscription}
    parts[path[0]][path[1]] = value
    return beat


PLACES = [
    *(("heartbeat", name) for name in (*OF_5X, "other")),
    *(("consumer", name) for name in (*CONSUMER, "other")),
    *(("subscription", name) for name in (*SUBSCRIPTION, "other")),
]


@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_odd_values_are_read_as_ever(place: tuple[str, ...]) -> None:
    for value in ODD:
        text = json.dumps(with_value(place, value))
        same(text.encode())
        same(json.dumps(with_value(place, value), ensure_ascii=False).encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"null",
            b"[]",
            b"1",
            b'"x"',
            b"{",
            b"{}x",
            b"{} ",
            b" \n{}",
            b"\xef\xbb\xbf{}",
            b"{'clientID':'x'}",
        ),
        *(b'{"clientID":"a","clientID":"b"}', b'{"clientID":"a","clientID":null}', b'{"client\\u0049D":"a"}'),
        *(b'{"clientID":"\xff"}', b'{"clientID":"\xed\xa0\x80"}', b'{"clientID":"\\ud83d\\ude00"}'),
        *(b'{"clientID":"\\ud83d"}', b'{"clientID":"a\nb"}', b'{"clientID":"\\q"}', b'{"clientID":"\\/"}'),
        *(b'{"\xff":1}', b'{"x":"\xff"}', b'{"x":' + b"[" * 600 + b"]" * 600 + b"}", b"{clientID:1}"),
        *(b'{"heartbeatFingerprint":01}', b'{"heartbeatFingerprint":-0}', b'{"heartbeatFingerprint":NaN}'),
        b'{"consumerDataSet":[{"subscriptionDataSet":[{"subVersion":9223372036854775808}]}]}',
        b'{"producerDataSet":[' + b",".join([b"{}"] * 50_000) + b"]}",
        b'{"producerDataSet":[' + b",".join([b"{}"] * 70_000) + b"]}",
    ],
)
def test_odd_texts_are_read_as_ever(body: bytes) -> None:
    same(body)


VALUES = st.recursive(
    st.sampled_from(ODD) | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(list(SUBSCRIPTION)), inner),
    max_leaves=4,
)


@given(
    st.lists(st.tuples(st.sampled_from(PLACES), VALUES), max_size=3),
    st.integers(0, 400),
    st.binary(max_size=2),
)
def test_any_change_of_a_heartbeat_is_read_as_ever(
    changes: list[tuple[tuple[str, ...], Any]], at: int, cut: bytes
) -> None:
    """Values of other kinds at some places, and some bytes of the text replaced."""
    for place, value in changes:
        body = json.dumps(with_value(place, value)).encode()
        same(body)
        same(body[:at] + cut + body[at + len(cut) :])
