"""The lenient reader and the two writers."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmq.errors import LocalProtocolError, RemoteProtocolError
from rmq.protocol.json import MAX_DEPTH, ObjectKey, _Reader, dumps, dumps_java, loads

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a",-1:"b"}', {"0": "a", "-1": "b"}),
        ('{{"topic":"T","queueId":1}:5}', {'{"topic":"T","queueId":1}': 5}),
        ('{ { "a" : [ 1 , { "b" : 2 } ] } : { } }', {'{"a":[1,{"b":2}]}': {}}),
        ("{name:'it\\'s',b:\"\\u00e9\"}", {"name": "it's", "b": "é"}),
        ("{1:[],2:{},3:[[]]}", {"1": [], "2": {}, "3": [[]]}),
        (
            "{1:true,2:false,3:null,4:1.5e3,5:-7,6:Infinity}",
            dict(zip("123456", [True, False, None, 1500.0, -7, math.inf], strict=True)),
        ),
        ('\ufeff{"a":1}', {"a": 1}),
        ('{1:"a\tb\nc"}', {"1": "a\tb\nc"}),
        ("  7  ", 7),
        ("'x'", "x"),
    ],
)
def test_javas_json_is_read(text: str, value: Any) -> None:
    assert loads(text) == value
    assert loads(text.encode()) == value


def test_not_a_number_is_read() -> None:
    assert math.isnan(loads("{1:NaN}")["1"])
    assert math.isnan(loads('{"a":NaN}')["a"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "character 0"),
        ("{", "a value or key expected"),
        ("[1,]", "a value or key expected"),
        ("{1:2,}", "a value or key expected"),
        ("[1 2]", ", or ] expected"),
        ("{1:2 3:4}", ", or } expected"),
        ("{1}", ": expected"),
        ("{:1}", "a value or key expected"),
        ("{1:}", "a value or key expected"),
        ("[}", "a value or key expected"),
        ("{]", "a value or key expected"),
        ("{1:2:3}", ", or } expected"),
        ("{1:2}}", "text after the end"),
        ("[1][2]", "text after the end"),
        ("{1:word}", "'word' is no value"),
        ("{1:'open}", "unterminated string"),
        ('{"a', "unterminated string"),
        ("{1:0x10}", "is no value"),
        ("{{{1:2}:3}:4}", "an object key inside an object key"),
    ],
)
def test_nonsense_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match="bad JSON at") as caught:
        loads(text)
    assert reason in str(caught.value)


@pytest.mark.parametrize("pair", ["[]", "{}"])
def test_depth_is_bounded(pair: str) -> None:
    def nested(depth: int, key: str) -> str:
        opening = "[" if pair == "[]" else "{" + key
        return opening * depth + "0" + pair[1] * depth

    for key in ('"k":', "k:"):
        loads(nested(MAX_DEPTH, key))
        for depth in (MAX_DEPTH + 1, 100_000):
            with pytest.raises(RemoteProtocolError, match="deeper than 512"):
                loads(nested(depth, key))


def test_many_objects_are_not_taken_for_deep() -> None:
    assert len(loads(json.dumps([{"a": [1]}] * 2000))) == 2000


def test_object_keys_cannot_grow_without_bound() -> None:
    text = "{" * 400 + "1:2}" + ":3}" * 399
    with pytest.raises(RemoteProtocolError, match="object key inside"):
        loads(text)


def test_broken_text_becomes_replacement_characters() -> None:
    assert loads(b'{"a":"\xff"}') == {"a": "\ufffd"}
    assert loads('"\\ud800"') == "\ufffd"
    assert loads('"\\ud83d\\ude00"') == "😀"
    assert loads('{0:"\\udc00x"}') == {"0": "\ufffdx"}
    assert loads('"\\\\ud800"') == "\\ud800"


def test_every_java_body_is_read(golden: pathlib.Path) -> None:
    vectors = json.loads((golden / "json_quirks.json").read_text())
    assert {body["strict_json"] for body in vectors["bodies"]} == {True, False}
    for body in vectors["bodies"]:
        value = loads(body["java_json"])
        if body["strict_json"]:
            assert value == json.loads(body["java_json"])
        assert loads(dumps(value)) == value


@given(VALUES)
def test_strict_json_survives_a_round_trip(value: Any) -> None:
    # A lone surrogate cannot be written; Java writes a question mark too.
    text = dumps(value)
    assert loads(text) == json.loads(text)


@given(VALUES)
def test_the_lenient_reader_agrees_with_the_strict_one(value: Any) -> None:
    text = dumps(value).decode()
    assert loads(f"{{0:{text}}}") == {"0": json.loads(text)}


@given(st.dictionaries(st.integers(), VALUES))
def test_javas_form_can_be_read_back(value: dict[int, Any]) -> None:
    assert loads(dumps_java(value)) == loads(dumps(value))


PIECES = (
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "1",
    "-2",
    "007",
    " ",
    '"',
    "\\",
    '"x"',
    '"{1:"',
    "5:",
    "{3:4}",
    "'",
    "x",
    '{"brokerName":"a","queueId":0,"topic":"T"}',
    '{"brokerName":"a\t","queueId":-0,"topic":"T"}',
    '{"brokerName":"a","queueId":007,"topic":"T"}',
    '{"brokerName":"a","queueId":12,"topic":"x{}:,"}:',
)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@example('{1:"a,2:b",2:{"x{3:":[{4:5}]}}')
@example('{1:"\\",2:","}')
@example('{{"brokerName":"a","queueId":1,"topic":"T"} :5,{"brokerName":"b","queueId":-1,"topic":"é"}:{0:1}}')
@example('["x",{"brokerName":"a","queueId":1,"topic":"T"}:5]')
@example('{"a":{"brokerName":"a","queueId":1,"topic":"T"},"{\\"brokerName\\"":1}')
def test_numbers_and_queues_as_keys_are_read_as_the_lenient_reader_reads_them(text: str) -> None:
    """Such keys are put into quotes, and the strict reader reads them, much faster."""

    def outcome(read: Callable[[], Any]) -> object:
        try:
            return repr(read())
        except RemoteProtocolError:
            return RemoteProtocolError

    assert outcome(lambda: loads(text)) == outcome(lambda: _Reader(text).read())


@given(st.text() | st.text("{}[]:,'\"\\ud80 -.0123eEnulltrfas", max_size=30))
@example("[" * 513)
@example('"\\')
def test_any_text_is_a_value_or_a_protocol_error(text: str) -> None:
    with contextlib.suppress(RemoteProtocolError):
        loads(text)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_value_or_a_protocol_error(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        loads(data)


def test_writing_is_compact_and_plain() -> None:
    assert dumps({"a": [1, None, "é"], "0": 1.0}) == '{"a":[1,null,"é"],"0":1.0}'.encode()
    assert dumps("\ud800") == b'"?"'


def test_what_json_cannot_hold_is_refused() -> None:
    for value in (math.nan, math.inf, {1, 2}, object(), b"x"):
        with pytest.raises(LocalProtocolError, match="cannot write JSON"):
            dumps(value)
    with pytest.raises(LocalProtocolError):
        dumps_java({"a": object()})


def test_javas_form() -> None:
    value = {0: "a", "t": {ObjectKey('{"x":1}'): [1.5, math.nan, True, None, "é\n"]}, "e": [], "m": {}}
    assert dumps_java(value).decode() == '{0:"a","t":{{"x":1}:[1.5,null,true,null,"é\\n"]},"e":[],"m":{}}'
    assert json.loads(dumps({ObjectKey('{"x":1}'): 1})) == {'{"x":1}': 1}
