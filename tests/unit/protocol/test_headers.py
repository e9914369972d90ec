"""The header classes against the facts of RocketMQ 4.9.7, and their text forms."""

from __future__ import annotations

import inspect
import json
import pathlib
import types
import typing
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.errors import RemoteProtocolError
from rmq.protocol import headers
from rmq.protocol.fields import Int32, Int64, java_name

JAVA_TYPES = {
    "String": str,
    "Integer": Int32,
    "int": Int32,
    "Long": Int64,
    "long": Int64,
    "Boolean": bool,
    "boolean": bool,
    "List": str,
}
BESIDE = {"MSG_REGION", "TRACE_ON", "_UNIQUE_KEY_QUERY"}
NOBODY_S = {
    "CheckTransactionStateResponseHeader",
    "EndTransactionResponseHeader",
    "GetAllTopicConfigResponseHeader",
    "GetBrokerClusterAclConfigResponseHeader",
    "GetConsumerListByGroupResponseHeader",
    "RegisterFilterServerResponseHeader",
    "RegisterOrderTopicRequestHeader",
    "RpcRequestHeader",
    "UnregisterClientResponseHeader",
    "UpdateConsumerOffsetResponseHeader",
    "ViewMessageResponseHeader",
}
"""Headers of Java that are empty, that 4.9.7 does not send, or that are of requests nobody serves here."""
EXAMPLES: dict[Any, Any] = {str: "text", Int32: 7, Int64: 1_700_000_000_000, bool: True}


@pytest.fixture
def facts(golden: pathlib.Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((golden / "headers.json").read_text())
    return content


def classes() -> dict[str, type[Any]]:
    return {
        name: value
        for name, value in vars(headers).items()
        if inspect.isclass(value) and attrs.has(value) and not name.startswith("Recall")  # of 5.x
    }


def kind_of(cls: type[Any], field: str) -> Any:
    hint = typing.get_type_hints(cls, include_extras=True)[field]
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint


def is_own(field: attrs.Attribute[Any]) -> bool:
    """True if this is a field of ours, which Java ignores and may leave out."""
    return java_name(field) == headers.TOPIC_CREATED_MS and field.default is None


def filled(cls: type[Any]) -> Any:
    return cls(**{field.name: EXAMPLES[kind_of(cls, field.name)] for field in attrs.fields(cls)})


def test_there_is_a_class_for_every_header(facts: dict[str, Any]) -> None:
    # The one-letter form is no class of its own: it is another spelling of SendMessageRequestHeader.
    java = set(facts["versions"]["4.9.7"]["headers"])
    assert set(classes()) == java - {"SendMessageRequestHeaderV2"} - NOBODY_S
    assert len(java) == 81
    assert java >= NOBODY_S


def test_every_field_has_name_type_and_order_of_java(facts: dict[str, Any]) -> None:
    for name, cls in classes().items():
        expected = facts["versions"]["4.9.7"]["headers"][name]["fields"]
        found = [
            (java_name(field), kind_of(cls, field.name)) for field in attrs.fields(cls) if not is_own(field)
        ]
        assert found == [(field["name"], JAVA_TYPES[field["type"]]) for field in expected], name


def test_a_missing_field_is_refused_exactly_when_java_has_no_value_for_it(facts: dict[str, Any]) -> None:
    for name, cls in classes().items():
        ext = headers.encode(filled(cls))
        for field in facts["versions"]["4.9.7"]["headers"][name]["fields"]:
            short = {key: value for key, value in ext.items() if key != field["name"]}
            if field["not_null"] and "default" not in field:
                with pytest.raises(RemoteProtocolError, match=f"{name}: field {field['name']} is missing"):
                    headers.decode(cls, short)
            else:
                headers.decode(cls, short)


def test_defaults_are_those_of_java(facts: dict[str, Any]) -> None:
    for name, cls in classes().items():
        for field in facts["versions"]["4.9.7"]["headers"][name]["fields"]:
            ours = next(known for known in attrs.fields(cls) if java_name(known) == field["name"])
            if ours.default is not attrs.NOTHING and not ours.metadata.get("required"):
                text = None if ours.default is None else str(ours.default).lower()
                assert text == field.get("default"), (name, field["name"])


def test_every_code_has_the_headers_of_java(facts: dict[str, Any]) -> None:
    by_code = facts["versions"]["4.9.7"]["by_code"]
    assert set(headers.REQUEST_HEADERS) == {entry["code"] for entry in by_code.values()}
    for entry in by_code.values():
        cls = headers.REQUEST_HEADERS[entry["code"]]
        names = [name.removesuffix("V2") for name in entry["request_header"] or [None] if name]
        assert ([cls.__name__] if cls else []) == names, entry


def test_every_class_survives_a_round_trip() -> None:
    for cls in classes().values():
        value = filled(cls)
        assert headers.decode(cls, headers.encode(value)) == value


def test_the_hot_classes_are_built_by_position() -> None:
    for cls in (
        headers.SendMessageRequestHeader,
        headers.PullMessageRequestHeader,
        headers.UpdateConsumerOffsetRequestHeader,
    ):
        names = [field.name for field in attrs.fields(cls)]
        value = cls(*range(len(names)))  # type: ignore[arg-type]
        assert [getattr(value, name) for name in names] == list(range(len(names)))
        assert not hasattr(value, "__dict__")


def test_numbers_may_be_numbers_or_texts_and_flags_have_any_case() -> None:
    ext = {"topic": "T", "group": 5, "timestamp": 12, "isForce": "TRUE", "future": "x"}
    value = headers.decode(headers.ResetOffsetRequestHeader, ext)
    assert value == headers.ResetOffsetRequestHeader("T", "5", 12, True)
    # Anything but "true" is false, as in Java; some C++ clients send 0.
    for text in ("false", "False", "0", "1", "", "yes"):
        assert headers.decode(headers.ResetOffsetRequestHeader, ext | {"isForce": text}).is_force is False


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "is not a number"),
        ("", "is not a number"),
        ("1_0", "is not a number"),
        ("1.5", "is not a number"),
        ("9" * 5000, "is not a number"),
        ("2147483648", "is outside 32 bits"),
        (-(2**31) - 1, "is outside 32 bits"),
        ([1], "is not a number"),
    ],
)
def test_an_unreadable_number_is_refused_with_its_field(text: Any, reason: str) -> None:
    ext = {"topic": "T", "queueId": text}
    with pytest.raises(RemoteProtocolError, match=f"GetMaxOffsetRequestHeader: field queueId {reason}"):
        headers.decode(headers.GetMaxOffsetRequestHeader, ext)


def test_numbers_have_javas_range() -> None:
    for number in (-(2**31), 2**31 - 1):
        header = headers.decode(headers.GetMaxOffsetRequestHeader, {"topic": "T", "queueId": str(number)})
        assert header.queue_id == number
    for number in (-(2**63), 2**63 - 1):
        assert headers.decode(headers.GetMaxOffsetResponseHeader, {"offset": str(number)}).offset == number
    with pytest.raises(RemoteProtocolError, match="offset is outside 64 bits"):
        headers.decode(headers.GetMaxOffsetResponseHeader, {"offset": str(2**63)})


def test_encoding_leaves_none_out_and_writes_javas_texts() -> None:
    value = headers.GetRouteInfoRequestHeader("T", True)
    assert headers.encode(value) == {"topic": "T", "acceptStandardJsonOnly": "true"}
    assert headers.encode(headers.GetRouteInfoRequestHeader("T")) == {"topic": "T"}
    assert headers.encode(headers.GetAllProducerInfoRequestHeader()) == {}


SEND = headers.SendMessageRequestHeader(
    "g", "T", "TBW102", 4, 1, 0, 1_700_000_000_000, 3, "p", 2, True, False, 16, "b"
)


def test_the_short_names_are_those_of_java(facts: dict[str, Any]) -> None:
    long, short = headers.encode(SEND), headers.encode_send_v2(SEND)
    names = facts["SendMessageRequestHeaderV2_short_names"]
    assert {names[key].split()[0]: value for key, value in short.items()} == long
    assert headers.decode_send_v2(short) == SEND


def test_a_bad_short_header_names_the_long_field() -> None:
    short = headers.encode_send_v2(SEND)
    del short["b"]
    with pytest.raises(RemoteProtocolError, match="field topic is missing"):
        headers.decode_send_v2(short)
    with pytest.raises(RemoteProtocolError, match="field queueId is not a number"):
        headers.decode_send_v2(headers.encode_send_v2(SEND) | {"e": "one"})


def test_the_captured_requests_decode_and_encode_to_the_same_texts(golden: pathlib.Path) -> None:
    seen = 0
    for path in sorted((golden / "frames").glob("[0-9]*.json")):
        frame = json.loads(path.read_text())
        name, ext = frame.get("header_class"), frame.get("ext_fields")
        if not name or ext is None:
            continue
        if name == "SendMessageRequestHeaderV2":
            ours = headers.encode_send_v2(headers.decode_send_v2(ext))
        else:
            ours = headers.encode(headers.decode(getattr(headers, name), ext))
        # Three fields are set beside the header.
        assert ours == {key: ext[key] for key in ext.keys() - BESIDE}, path.name
        seen += 1
    assert seen > 20


TEXTS = st.one_of(
    st.none(), st.text(max_size=8), st.integers(), st.booleans(), st.lists(st.integers(), max_size=2)
)


@given(st.sampled_from(sorted(classes())), st.data())
def test_decoding_rubbish_only_raises_protocol_errors(name: str, data: st.DataObject) -> None:
    cls = classes()[name]
    names = [java_name(field) for field in attrs.fields(cls)]
    ext = data.draw(st.dictionaries(st.sampled_from(names) if names else st.text(max_size=3), TEXTS))
    try:
        value = headers.decode(cls, ext)
    except RemoteProtocolError:
        return
    assert headers.decode(cls, headers.encode(value)) == value
