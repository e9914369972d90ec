"""The hot functions: they must give what the general ones give, whatever was seen before."""

from __future__ import annotations

import json
import struct
from itertools import permutations
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.errors import RemoteProtocolError
from rmq.protocol import frames, header_binary, headers
from rmq.protocol.codes import LanguageCode
from rmq.protocol.command import JSON, ROCKETMQ, Command
from rmq.protocol.frames import Decoder, encode
from rmq.protocol.json import java_text

FORMS = [JSON, ROCKETMQ]


def request(serialization: int, opaque: int = 7) -> Command:
    return Command(310, opaque, serialization=serialization)


def decoded(frame: bytes) -> Command:
    (command,) = Decoder().feed(frame)
    return command


# --- replies ---


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("code", "remark", "body"),
    [(0, "FOUND", b"x" * 500), (19, "NO_MATCHED_MESSAGE", b""), (21, 'a "b"', b"")],
)
def test_the_head_of_a_pulls_answer(form: int, code: int, remark: str, body: bytes) -> None:
    head = frames.encode_pull_reply_head(request(form), code, remark, (1, 44, 0, 2**40), len(body))
    reply = decoded(head + body)
    assert (reply.code, reply.opaque, reply.flag, reply.remark) == (code, 7, 1, remark)
    assert (reply.body, reply.serialization) == (body, form)
    assert reply.read(headers.PullMessageResponseHeader) == headers.PullMessageResponseHeader(1, 44, 0, 2**40)


@pytest.mark.parametrize("form", FORMS)
def test_every_language_goes_over_the_wire(form: int, golden: Path) -> None:
    for language in LanguageCode:
        command = Command(105, 1, language=language.name, serialization=form)
        assert decoded(encode(command)).language == language.name
    captured = json.loads((golden / "codes.json").read_text())["enums"]["LanguageCode"]
    numbers = {
        name: entry["code"] if isinstance(entry, dict) else entry
        for name, entry in _members(captured).items()
    }
    assert {name: numbers[name] for name in ("JAVA", "CPP", "PYTHON", "GO")} == {
        "JAVA": 0,
        "CPP": 1,
        "PYTHON": 3,
        "GO": 9,
    }
    assert numbers == {language.name: int(language) for language in LanguageCode}


def _members(captured: dict[str, Any]) -> dict[str, Any]:
    values = captured.get("values", captured)
    return values if isinstance(values, dict) else {entry["name"]: entry for entry in values}


def test_a_large_frame_s_header_is_read_as_soon_as_it_is_there() -> None:
    """The header is read before the first byte behind it: a peer may wait for a refusal before it sends
    more."""
    frame = frames.encode(Command.request(10, {"a": "b"}, b"x" * 100_000))
    size = 8 + int.from_bytes(frame[5:8], "big")
    for at in (4, 8, size - 1, size):
        decoder = frames.Decoder(ask_from=10_000)
        assert decoder.feed(frame[:at]) == []
        assert (decoder.head is not None) == (at == size)


# --- binary headers seen before ---

ROOTS = {
    310: {"a": "G", "b": "T", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1700000000123", "h": "0"}
    | {"i": "KEYS\x01k", "j": "0", "k": "false", "m": "false"},
    11: {"consumerGroup": "G", "topic": "T", "queueId": "1", "queueOffset": "42", "maxMsgNums": "32"}
    | {"sysFlag": "2", "commitOffset": "40", "suspendTimeoutMillis": "15000", "subscription": "*"}
    | {"subVersion": "1", "expressionType": "TAG"},
    15: {"consumerGroup": "G", "topic": "T", "queueId": "1", "commitOffset": "40"},
}


def binary(code: int, ext: dict[str, str]) -> bytes:
    return encode(Command(code, 7, ext=ext, serialization=ROCKETMQ))[8:]


def outcome(header: bytes, *, general: bool) -> Any:
    """The values that the reader makes of a header, or the refusal."""
    try:
        command = header_binary._general(header, java_text) if general else header_binary.read_binary(header)
    except (RemoteProtocolError, struct.error, IndexError):
        return "no command"
    try:
        kind = headers.REQUEST_HEADERS.get(command.code) or headers.ResumeCheckHalfMessageRequestHeader
        value = attrs.astuple(command.read(kind))
    except RemoteProtocolError:
        value = "no header"
    return (
        command.code,
        command.opaque,
        command.language,
        command.version,
        command.remark,
        dict(command.ext),
        value,
    )


VALUES = st.sampled_from(
    ["", "0", "7", "-1", "g", "i", "x", "12345678901234567", "9" * 19, "9" * 30, "1.0", "\u0663", "true"]
)
TRICKS = st.sampled_from(
    ["\0\1g\0\0", "\0\1i\0\0", "\0\1g\0\0\0\x01", "queueOffset\0\0", "\0\x0ccommitOffset\0\0"]
)


@settings(max_examples=250)
@given(st.data())
def test_what_was_seen_does_not_change_what_is_read(data: st.DataObject) -> None:
    code = data.draw(st.sampled_from(sorted(ROOTS)))
    names = data.draw(st.permutations(sorted(ROOTS[code]))) if data.draw(st.booleans()) else list(ROOTS[code])
    ext = {name: ROOTS[code][name] for name in names}
    assert outcome(binary(code, ext), general=False) == outcome(binary(code, ext), general=True)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from([*names, "Signature"]))
        ext[name] = data.draw(VALUES | TRICKS)
        if data.draw(st.integers(0, 4)) == 0:
            del ext[name]
        header = bytearray(binary(code, ext))
        if data.draw(st.booleans()):
            header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
        assert outcome(bytes(header), general=False) == outcome(bytes(header), general=True)


def test_a_header_seen_before_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ext = ROOTS[310] | {"b": "OnlyHere", "AccessKey": "me", "Signature": "s1="}
    assert outcome(binary(310, ext), general=False) == outcome(binary(310, ext), general=True)
    monkeypatch.setattr(header_binary, "_general", None)
    again = header_binary.read_binary(
        binary(310, ext | {"g": "1800000000000", "i": "KEYS\x01other", "Signature": "s22="})
    )
    assert again.header.born_timestamp == 1_800_000_000_000
    assert again.header.properties == "KEYS\x01other"
    assert again.header.topic == "OnlyHere"


@pytest.mark.parametrize(("name", "field"), [("g", "born_timestamp"), ("h", "flag")])
def test_of_a_name_that_stands_twice_the_last_counts(name: str, field: str) -> None:
    first = binary(310, ROOTS[310])
    entry = b"\0\1" + name.encode() + b"\0\0\0\1" + b"5"
    ext_length = struct.unpack_from(">i", first, 17)[0]
    header = first[:17] + struct.pack(">i", ext_length + len(entry)) + first[21:] + entry
    for _ in range(3):
        command = header_binary.read_binary(header)
        assert getattr(command.read(headers.SendMessageRequestHeader), field) == 5


def test_bytes_after_the_fields_mean_nothing() -> None:
    header = binary(310, ROOTS[310]) + b"\0\1g\0\0\0\1" + b"5"
    for _ in range(3):
        command = header_binary.read_binary(header)
        assert command.read(headers.SendMessageRequestHeader).born_timestamp == 1_700_000_000_123


def test_a_response_code_is_no_request_code() -> None:
    """A response may have the code 10 or 11, too: FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE."""
    for _ in range(3):
        response = Command(11, 7, 1, ROOTS[11], serialization=ROCKETMQ)
        assert decoded(encode(response)).header is None


def test_a_value_may_not_reach_over_the_end_of_a_known_header() -> None:
    ext = {name: text for name, text in ROOTS[310].items() if name not in "jkm"}
    header = binary(310, ext)
    assert outcome(header, general=False) == outcome(header, general=True)
    at = header.index(b"KEYS") - 1
    for length in (7, 8, 200):
        longer = header[:at] + bytes([length]) + header[at + 1 :]
        with pytest.raises(RemoteProtocolError):
            header_binary.read_binary(longer)


def test_memory_of_what_was_seen_is_bounded() -> None:
    seen = header_binary._TEMPLATES[15]
    for number in range(5000):
        header_binary.read_binary(binary(15, ROOTS[15] | {"topic": f"Topic{number}"}))
    assert len(seen.orders) <= 4
    assert all(len(known) <= 2048 for known in seen.orders.values())
    before = sum(map(len, seen.orders.values()))
    header_binary.read_binary(binary(15, ROOTS[15] | {"topic": "x" * 100_000}))
    assert sum(map(len, seen.orders.values())) == before
    sends = header_binary._TEMPLATES[310]
    for number in range(2000):
        ext = ROOTS[310] | {"b": f"T{number}" + "x" * 700, "i": "p" * 30_000}
        header_binary.read_binary(binary(310, ext))
    held = [value for known in sends.orders.values() for values in known.values() for value in values]
    assert sum(len(value) for value in held if isinstance(value, str)) < 1 << 20
    names = [part for known in sends.orders.values() for parts in known for part in parts]
    assert 0 < sum(map(len, names)) <= 1 << 20
    for number in range(2000):
        decoded(encode(Command(105, 1, ext={f"name{number}": ""}, serialization=ROCKETMQ)))
    assert len(header_binary._NAMES) <= 1024
    assert len(header_binary._KEYS) <= 1024
    for order in permutations(("queueOffset", "commitOffset", "Signature")):
        header_binary.read_binary(binary(11, dict.fromkeys(order, "1") | ROOTS[11]))
        assert 1 <= len(header_binary._TEMPLATES[11].orders) <= 4


def test_few_frames_that_cannot_be_read_are_refused_at_once() -> None:
    """A chunk of 124 held all other peers up for 22 ms."""
    pieces = []
    for number in range(124):
        header = b'{"code":310,"opaque":%d,"extFields":{"a":' % number + b"[" * 2000
        pieces.append(struct.pack(">iI", 4 + len(header), len(header)) + header)
    good = Command.request(1, None, b"good")
    decoder = Decoder()
    data, commands, refused = b"".join(pieces) + encode(good), [], []
    while data or decoder.has_more:
        commands += decoder.feed(data)
        data = b""
        assert len(decoder.refused) <= frames.REFUSED_AT_ONCE
        refused += [response.opaque for response in decoder.refused]
        decoder.refused.clear()
    assert refused == list(range(124))
    assert [command.body for command in commands] == [b"good"]
    assert decoder.buffered == 0
