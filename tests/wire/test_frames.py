"""Frames: every captured command decodes to the captured values, and back; nothing else than
RemoteProtocolError comes of any other bytes."""

from __future__ import annotations

import base64
import json
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq.errors import RemoteProtocolError
from rmq.protocol import headers
from rmq.protocol.command import JSON, MAX_FRAME, ROCKETMQ, Command
from rmq.protocol.frames import Decoder, encode, split_frames
from rmq.protocol.json import java_text

VECTORS = Path(__file__).parents[1] / "golden" / "frames"
NAMES = sorted(path.stem for path in VECTORS.glob("[0-9]*.json"))
FORMS = {"hex_json": JSON, "hex_json_netty": JSON, "hex_rocketmq": ROCKETMQ, "hex_rocketmq_netty": ROCKETMQ}


def vector(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text())
    return loaded


FRAMES = [
    (name, form, bytes.fromhex(vector(name)[form]))
    for name in NAMES
    for form in FORMS
    if form in vector(name)
]
FRAME_IDS = [f"{name}-{form}" for name, form, _ in FRAMES]


def values(command: Command) -> tuple[Any, ...]:
    return (
        command.code,
        command.opaque,
        command.flag,
        command.language,
        command.version,
        command.remark,
        dict(command.ext),
        bytes(command.body),
        command.serialization,
    )


def expected(captured: dict[str, Any], serialization: int) -> tuple[Any, ...]:
    return (
        captured["code"],
        captured["opaque"],
        captured["flag"],
        captured["language"],
        captured["version"],
        captured["remark"],
        captured["ext_fields"] or {},
        base64.b64decode(captured["body_b64"] or ""),
        serialization,
    )


def decode(frame: bytes) -> Command:
    (command,) = Decoder().feed(frame)
    return command


def test_all_vectors_are_here() -> None:
    assert len(NAMES) == 37
    assert len(FRAMES) == 80


@pytest.mark.parametrize(("name", "form", "frame"), FRAMES, ids=FRAME_IDS)
def test_decoded_as_captured(name: str, form: str, frame: bytes) -> None:
    assert values(decode(frame)) == expected(vector(name), FORMS[form])


@pytest.mark.parametrize(("name", "form", "frame"), FRAMES, ids=FRAME_IDS)
def test_encoded_back(name: str, form: str, frame: bytes) -> None:
    again = encode(decode(frame))
    assert values(decode(again)) == expected(vector(name), FORMS[form])
    if FORMS[form] == ROCKETMQ:
        assert again == frame
    else:
        length, word = struct.unpack_from(">iI", again)
        assert length == len(again) - 4
        assert json.loads(again[8 : 8 + word]) == json.loads(vector(name)["json_header_text"])


@pytest.mark.parametrize(("name", "form", "frame"), FRAMES, ids=FRAME_IDS)
def test_byte_by_byte(name: str, form: str, frame: bytes) -> None:
    decoder = Decoder()
    for at in range(len(frame) - 1):
        assert decoder.feed(frame[at : at + 1]) == []
    (command,) = decoder.feed(frame[-1:])
    assert values(command) == expected(vector(name), FORMS[form])


# Requests by the class of their header; a response's class depends on the request that it answers.
RESPONSE_CLASSES = {
    "05": headers.SendMessageResponseHeader,
    "06": headers.SendMessageResponseHeader,
    "09": headers.PullMessageResponseHeader,
    "10": headers.PullMessageResponseHeader,
    "14": headers.RegisterBrokerResponseHeader,
    "24": headers.QueryConsumerOffsetResponseHeader,
}


def header_class(name: str, captured: dict[str, Any]) -> Any:
    if captured["flag"] & 1:
        return RESPONSE_CLASSES.get(name[:2])
    return headers.REQUEST_HEADERS.get(captured["code"])


TYPED = [
    (kind, captured, frame)
    for name, form, frame in FRAMES
    if (captured := vector(name))["ext_fields"]
    and (kind := header_class(name, captured)) is not None
    and "quote" not in captured["ext_fields"]  # the vector with foreign fields
]


@pytest.mark.parametrize(("kind", "captured", "frame"), TYPED)
def test_typed_header_equals_the_general_decoder(kind: Any, captured: dict[str, Any], frame: bytes) -> None:
    short = captured["code"] in (310, 320) and not captured["flag"] & 1
    ext = captured["ext_fields"]
    plain = headers.decode_send_v2(ext) if short else headers.decode(kind, ext)
    typed = decode(frame).read(kind)
    for field in attrs.fields(kind):
        ours, theirs = getattr(typed, field.name), getattr(plain, field.name)
        assert (ours, type(ours)) == (theirs, type(theirs)), field.name


@settings(max_examples=50)
@given(data=st.data())
def test_any_order_and_any_cuts(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(FRAMES), min_size=1, max_size=8))
    stream = b"".join(frame for _, _, frame in chosen)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    decoder = Decoder()
    commands = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        commands += decoder.feed(stream[start:stop])
    assert [values(command) for command in commands] == [
        expected(vector(name), FORMS[form]) for name, form, _ in chosen
    ]
    assert decoder.buffered == 0


# --- what is not a frame ---


def json_frame(header: bytes, body: bytes = b"", kind: int = JSON) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


BAD_LENGTHS = {
    "zero": (struct.pack(">iI", 0, 0), "0 bytes"),
    "one": (struct.pack(">iI", 1, 0), "1 bytes"),
    "negative": (struct.pack(">iI", -5, 0), "-5"),
    "most negative": (struct.pack(">iI", -(2**31), 0), "-2147483648"),
    "far over the limit": (struct.pack(">iI", 4 * MAX_FRAME + 1, 0), "67108865"),
    "header longer than the frame": (struct.pack(">iI", 20, 17) + bytes(16), "17 bytes"),
    "header far longer than the frame": (struct.pack(">iI", 20, 0xFFFFFF) + bytes(16), "16777215"),
}


def feed_bytewise(decoder: Decoder, data: bytes) -> list[Command]:
    return [command for at in range(len(data)) for command in decoder.feed(data[at : at + 1])]


@pytest.mark.parametrize(("frame", "words"), BAD_LENGTHS.values(), ids=BAD_LENGTHS)
def test_impossible_lengths(frame: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        Decoder().feed(frame)
    with pytest.raises(RemoteProtocolError, match=words):
        feed_bytewise(Decoder(), frame)


@pytest.mark.parametrize("length", [4 * MAX_FRAME + 1, 2**31 - 1, -1, 0])
def test_a_bad_length_is_seen_in_the_first_four_bytes(length: int) -> None:
    with pytest.raises(RemoteProtocolError):
        Decoder().feed(struct.pack(">i", length))
    good = encode(Command.request(105, {"topic": "T"}))
    with pytest.raises(RemoteProtocolError):
        Decoder().feed(good + struct.pack(">i", length))


def test_the_limit_itself_is_allowed() -> None:
    frame = json_frame(b'{"code":1,"opaque":2}', bytes(1000))
    limit = len(frame) - 4
    assert len(Decoder(limit).feed(frame)) == 1
    decoder = Decoder(limit - 1)
    assert decoder.feed(frame) == []
    assert f"limit of {limit - 1}" in str(decoder.refused[0].remark)


@pytest.mark.parametrize("kind", [2, 3, 0x16, 0x47, 255])
def test_an_unknown_serialization_type(kind: int) -> None:
    with pytest.raises(RemoteProtocolError, match=rf"serialization type {kind}\b"):
        Decoder().feed(json_frame(b'{"code":1}', kind=kind))


BAD_JSON = {
    "empty": b"",
    "not json": b"hello",
    "cut off": b'{"code":310,"extFields":{"a":"x"',
    "an array": b"[1,2]",
    "a number": b"17",
    "null": b"null",
    "no code": b'{"opaque":1}',
    "code null": b'{"code":null,"opaque":1}',
    "code text": b'{"code":"ten","opaque":1}',
    "code an object": b'{"code":{},"opaque":1}',
    "code a list": b'{"code":[1],"opaque":1}',
    "code too big": b'{"code":2147483648,"opaque":1}',
    "opaque too big": b'{"code":310,"opaque":99999999999}',
    "opaque far too big": b'{"code":1,"opaque":' + b"9" * 10_000 + b"}",
    "opaque text far too big": b'{"code":1,"opaque":"' + b"9" * 10_000 + b'"}',
    "opaque a fraction": b'{"code":105,"opaque":1.5}',
    "flag infinite": b'{"code":1,"opaque":1,"flag":1e999}',
    "extFields a list": b'{"code":310,"opaque":1,"extFields":[1]}',
    "extFields a text": b'{"code":310,"opaque":1,"extFields":"x"}',
    "not utf-8 between texts": b'{"code":310,"opaque":1,\xff"extFields":{"a":"x"}}',
    "a malformed character that eats the quote": '{"code":310,"opaque":1,"extFields":{"a":"功"}}'.encode(
        "big5"
    ),
    "not a number": b'{"code":105,"opaque":1,"extFields":{"a":NaN}}',
    "a number out of range": b'{"code":105,"opaque":1,"extFields":{"a":1e999}}',
    "utf-16": '{"code":1}'.encode("utf-16"),
    "200,000 arrays": b'{"code":310,"extFields":' + b"[" * 200_000,
    "200,000 objects": b'{"code":310,"extFields":' + b'{"a":' * 200_000,
    "200,000 closed arrays": b'{"code":1,"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "200,000 bare": b"[" * 200_000,
}


@pytest.mark.parametrize("header", BAD_JSON.values(), ids=BAD_JSON)
def test_unreadable_json_headers(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"header|extFields") as caught:
        split_frames(json_frame(header), MAX_FRAME)
    assert len(str(caught.value)) < 1000


OTHER_CLIENTS = {
    "numbers in extFields": (
        b'{"code":310,"extFields":{"a":"g","b":"T","c":"TBW102","d":4,"e":2,"f":0,"g":170,"h":0,"k":false},"opaque":7}',
        {"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "170", "h": "0", "k": "false"},
    ),
    "extFields null": (b'{"code":310,"extFields":null,"opaque":7}', {}),
    "a null field": (b'{"code":105,"extFields":{"topic":null,"x":"1"},"opaque":7}', {"x": "1"}),
    "a true field": (b'{"code":105,"extFields":{"x":true},"opaque":7}', {"x": "true"}),
    "any order": (b'{"opaque":7,"extFields":{"x":"1"},"version":1,"code":105}', {"x": "1"}),
    "blanks": (b' { "code" : 105 ,\n"opaque" : 7 , "extFields" : { "x" : "1" } } ', {"x": "1"}),
    "unknown members": (b'{"code":105,"opaque":7,"more":{"a":[1]},"extFields":{"x":"1"}}', {"x": "1"}),
    "numbers as text": (
        b'{"code":"105","opaque":"7","flag":"0","version":"3","extFields":{"x":"1"}}',
        {"x": "1"},
    ),
    "numbers with a point": (b'{"code":105.0,"opaque":7.0,"extFields":{"x":1.5}}', {"x": "1.5"}),
    "nulls": (
        b'{"code":105,"opaque":7,"flag":null,"version":null,"language":null,"remark":null,"extFields":{"x":"1"}}',
        {"x": "1"},
    ),
}


@pytest.mark.parametrize(("header", "ext"), OTHER_CLIENTS.values(), ids=OTHER_CLIENTS)
def test_headers_of_other_clients(header: bytes, ext: dict[str, str]) -> None:
    command = decode(json_frame(header, b"body"))
    assert command.code in (105, 310)
    assert (command.opaque, command.flag, command.remark) == (7, 0, None)
    assert (dict(command.ext), bytes(command.body)) == (ext, b"body")
    assert isinstance(command.language, str)
    assert isinstance(command.version, int)


def test_numbers_in_the_fields_of_a_send() -> None:
    command = decode(json_frame(OTHER_CLIENTS["numbers in extFields"][0]))
    header = command.read(headers.SendMessageRequestHeader)
    assert (header.topic, header.queue_id, header.born_timestamp, header.unit_mode) == ("T", 2, 170, False)


@pytest.mark.parametrize(
    ("language", "name"),
    [(b'"GO"', "GO"), (b"3", "PYTHON"), (b"99", "OTHER"), (b'"COBOL"', "COBOL"), (b"[]", "OTHER")],
)
@pytest.mark.parametrize("code", [b"105", b"310"])
def test_languages(language: bytes, name: str, code: bytes) -> None:
    ext = b'{"a":"g","b":"T","c":"TBW102","d":"4","e":"2","f":"0","g":"1","h":"0","topic":"T"}'
    command = decode(
        json_frame(b'{"code":' + code + b',"extFields":' + ext + b',"language":' + language + b',"opaque":7}')
    )
    assert command.language == name
    command.serialization = ROCKETMQ
    assert decode(encode(command)).language in (name, "OTHER")


def test_fields_that_a_typed_header_does_not_know_are_kept() -> None:
    """An ACL signature stands beside the fields of the header."""
    captured = vector("02_send_message_v2")
    header = json.loads(captured["json_header_text"])
    header["extFields"] |= {"AccessKey": "rocketmq2", "Signature": "x="}
    command = decode(json_frame(json.dumps(header, separators=(",", ":")).encode(), b"b"))
    assert command.ext == header["extFields"]
    assert command.read(headers.SendMessageRequestHeader).topic == "TopicTest"
    assert decode(encode(command)).ext == header["extFields"]


def binary_header(
    *, remark: bytes = b"", ext: bytes = b"", remark_length: int | None = None, ext_length: int | None = None
) -> bytes:
    head = struct.pack(">hBhii", 105, 0, 407, 7, 0)
    head += struct.pack(">i", len(remark) if remark_length is None else remark_length) + remark
    return head + struct.pack(">i", len(ext) if ext_length is None else ext_length) + ext


def entry(key: bytes, value: bytes, key_length: int | None = None, value_length: int | None = None) -> bytes:
    return (
        struct.pack(">H", len(key) if key_length is None else key_length)
        + key
        + struct.pack(">i", len(value) if value_length is None else value_length)
        + value
    )


BAD_BINARY = {
    "empty": b"",
    "one byte": b"\0",
    "head cut off": bytes(16),
    "no ext length": struct.pack(">hBhiii", 105, 0, 407, 7, 0, 0),
    "negative remark": binary_header(remark_length=-1),
    "remark over the end": binary_header(remark=b"abc", remark_length=100),
    "remark far over the end": binary_header(remark_length=2**31 - 1),
    "negative ext": binary_header(ext_length=-1),
    "ext over the end": binary_header(ext=entry(b"a", b"1"), ext_length=100),
    "key over the end": binary_header(ext=entry(b"topic", b"T", key_length=600)),
    "key length 65535": binary_header(ext=entry(b"topic", b"T", key_length=65535)),
    "value over the end": binary_header(ext=entry(b"topic", b"T", value_length=2)),
    "value far over the end": binary_header(ext=entry(b"a", b"T", value_length=2**31 - 1)),
    "negative value": binary_header(ext=entry(b"topic", b"T", value_length=-1)),
    "negative value of a short key": binary_header(ext=entry(b"a", b"T", value_length=-1)),
    "entry cut off": binary_header(ext=entry(b"topic", b"T")[:-3]),
    "rest of one byte": binary_header(ext=entry(b"a", b"T") + b"\0"),
}


@pytest.mark.parametrize(("name", "header"), BAD_BINARY.items(), ids=BAD_BINARY)
def test_unreadable_binary_headers(name: str, header: bytes) -> None:
    words = {
        "negative remark": "a remark of -1 bytes",
        "remark far over the end": "a remark of 2147483647 bytes",
    }
    words |= {"negative ext": "fields of -1 bytes", "ext over the end": "fields of 100 bytes"}
    with pytest.raises(RemoteProtocolError, match=words.get(name, "header")):
        split_frames(json_frame(header, kind=ROCKETMQ), MAX_FRAME)


FOREIGN = {
    "GBK": "标签".encode("gbk"),
    "Latin-1": "café".encode("latin-1"),
    "CESU-8": b"\xed\xa0\xbd\xed\xb8\x80",
    "cut off": "中".encode()[:2],
}


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("code", [105, 310])
def test_texts_that_are_not_utf_8_are_read_as_java_reads_them(code: int, foreign: bytes) -> None:
    text = java_text(foreign)
    assert "\ufffd" in text
    short = (
        b'"a":"g","b":"T","c":"TBW102","d":"4","e":"2","f":"0","g":"1","h":"0","i":"TAGS\\u0001%b"' % foreign
    )
    header = b'{"code":%d,"extFields":{%b,"%b":"%b"},"opaque":7,"remark":"%b","x":"%b"}'
    command = decode(json_frame(header % (code, short, *[foreign] * 4), b"b"))
    assert (command.ext["i"], command.ext[text], command.remark, command.body) == (
        f"TAGS\x01{text}",
        text,
        text,
        b"b",
    )
    ext = entry(b"i", b"TAGS\x01" + foreign) + entry(foreign, foreign) + entry(b"b", b"T")
    command = decode(json_frame(binary_header(remark=foreign, ext=ext), b"b", kind=ROCKETMQ))
    assert (command.ext["i"], command.ext[text], command.remark) == (f"TAGS\x01{text}", text, text)
    assert java_text(foreign).encode() == decode(encode(command)).ext[text].encode()


def test_half_a_surrogate_pair_is_a_question_mark_as_java_writes_it() -> None:
    for code in (105, 310):
        header = (
            b'{"code":%d,"opaque":7,"extFields":{"a":"x\\ud800y\\udc00\\uD83D\\uDE00","b\\uDFFF":"z"}}' % code
        )
        assert decode(json_frame(header)).ext == {"a": "x?y?😀", "b?": "z"}


def test_binary_texts_of_any_kind() -> None:
    ext = (
        entry(b"", b"v")
        + entry(b"k", b"")
        + entry("键".encode(), "值".encode())
        + entry(b"k" * 300, b"x" * 70_000)
    )
    command = decode(json_frame(binary_header(remark="备注".encode(), ext=ext), b"b", kind=ROCKETMQ))
    assert dict(command.ext) == {"": "v", "k": "", "键": "值", "k" * 300: "x" * 70_000}
    assert (command.remark, command.body) == ("备注", b"b")


def test_a_binary_language_that_nobody_knows() -> None:
    header = bytearray(binary_header())
    header[2] = 250
    assert decode(json_frame(bytes(header), kind=ROCKETMQ)).language == "OTHER"


SMALL = [frame for _, _, frame in FRAMES if len(frame) < 1500]


@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damaged_frames_give_commands_or_one_kind_of_error(data: st.DataObject) -> None:
    frame = bytearray(data.draw(st.sampled_from(SMALL)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(frame) - 1)))
        how = data.draw(st.sampled_from(["flip", "set", "cut", "insert", "word"]))
        if how == "flip" and frame:
            frame[at] ^= 1 << data.draw(st.integers(0, 7))
        elif how == "set" and frame:
            frame[at] = data.draw(st.integers(0, 255))
        elif how == "cut":
            del frame[at : at + data.draw(st.integers(1, 4))]
        elif how == "insert":
            frame[at:at] = data.draw(st.binary(min_size=1, max_size=4))
        else:
            frame[at : at + 4] = struct.pack(">i", data.draw(st.integers(-(2**31), 2**31 - 1)))
    if data.draw(st.booleans()) and len(frame) > 4:
        frame[:4] = struct.pack(">i", len(frame) - 4)  # so that the damage reaches the header
    with suppress(RemoteProtocolError):
        for command in Decoder().feed(bytes(frame)):
            look_at(command)


def look_at(command: Command) -> None:
    """Do what every part may do with a command that came in."""
    repr(command)
    assert command.is_response in (True, False)
    encode(command)
    assert values(decode(encode(command)))[:3] == (command.code, command.opaque, command.flag)
    kind = headers.REQUEST_HEADERS.get(command.code)
    if kind is not None:
        command.read(kind)


@settings(max_examples=150)
@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    for kind in (JSON, ROCKETMQ):
        with suppress(RemoteProtocolError):
            for command in Decoder().feed(json_frame(data, b"x", kind)):
                look_at(command)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=150)
@given(
    st.sampled_from([10, 11, 15, 105, 310, 320]),
    st.dictionaries(
        st.sampled_from(["opaque", "flag", "language", "version", "remark", "extFields"]), JSON_VALUES
    ),
    st.dictionaries(st.sampled_from([*"abcdefghijklmn", "topic", "queueId", "consumerGroup"]), JSON_VALUES),
)
def test_headers_of_any_shape(code: int, members: dict[str, Any], ext: dict[str, Any]) -> None:
    for header in ({"code": code, **members}, {"code": code, "extFields": ext, **members}):
        text = json.dumps(header, separators=(",", ":"))
        with suppress(RemoteProtocolError):
            for command in Decoder().feed(json_frame(text.encode())):
                look_at(command)


NUMBER_TEXTS = (
    "1|0|-1| 1|1 |1.0|1e3|+1|-0|01|0x1|1_0||\u0663|99999999999|2147483648|-2147483649|9223372036854775808"
)
WORDS = "true|TRUE|True|false|yes|null|None|T"
NOT_TEXT = (1, -1, 0, 5.0, 5.5, 2**31, 2**63, True, False, None)
FIELD_VALUES = [*NUMBER_TEXTS.split("|"), "9" * 30, *WORDS.split("|"), *NOT_TEXT]
SEND_EXT = vector("02_send_message_v2")["ext_fields"]
HOT = {310: SEND_EXT, 320: SEND_EXT}
HOT |= {
    int(vector(name)["code"]): vector(name)["ext_fields"]
    for name in ("01_send_message_v1", "07_pull_request")
}
HOT |= {15: vector("22_update_consumer_offset")["ext_fields"]}


def read_or_error(command: Command, kind: Any) -> Any:
    try:
        header = command.read(kind)
    except RemoteProtocolError:
        return "error"
    return [(field.name, getattr(header, field.name)) for field in attrs.fields(kind)]


def variants(ext: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """`ext` with one field missing or of another value."""
    for name in ext:
        yield {other: text for other, text in ext.items() if other != name}
        for value in FIELD_VALUES:
            yield ext | {name: value}


@pytest.mark.parametrize("code", sorted(HOT))
def test_the_fast_path_reads_what_the_general_one_reads(code: int) -> None:
    """The same header once as Java orders its members, once in another order: the values must be equal."""
    kind = headers.REQUEST_HEADERS[code]
    for ext in variants(HOT[code] | ({"l": "16", "n": "broker"} if "a" in HOT[code] else {})):
        members = {"extFields": ext, "flag": 0, "language": "JAVA", "opaque": 7, "version": 407}
        fast, general = (
            read_or_error(decode(json_frame(json.dumps(text, separators=(",", ":")).encode())), kind)
            for text in ({"code": code, **members}, {**members, "code": code})
        )
        assert fast == general, ext


# --- memory and time ---


def test_never_more_than_one_unfinished_frame_is_held() -> None:
    frame = json_frame(b'{"code":310,"opaque":1}', bytes(1_000_000))
    decoder = Decoder()
    stream = frame * 3
    most = commands = 0
    for at in range(0, len(stream), 60_001):
        commands += len(decoder.feed(stream[at : at + 60_001]))
        most = max(most, decoder.buffered)
    assert commands == 3
    assert most < len(frame)


def test_a_length_alone_takes_no_memory() -> None:
    decoder = Decoder()
    tracemalloc.start()
    decoder.feed(struct.pack(">iI", MAX_FRAME, 100))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_many_small_pieces_cost_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte of an unfinished frame is looked at once: they are split only when a frame is whole."""
    from rmq.protocol import frames

    asked: list[int] = []
    split = frames.split_frames

    def counting(data: bytes, *arguments: Any) -> Any:
        asked.append(len(data))
        return split(data, *arguments)

    monkeypatch.setattr(frames, "split_frames", counting)
    frame = json_frame(b'{"code":105,"opaque":1}', bytes(100_000))
    decoder = Decoder()
    commands = [command for at in range(0, len(frame), 10) for command in decoder.feed(frame[at : at + 10])]
    assert len(commands) == 1
    assert sum(asked) < 2 * len(frame) + 1000
