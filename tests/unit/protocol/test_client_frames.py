"""Frames of a client: the compiled engine makes the same of them as Python."""

from __future__ import annotations

import json
from random import Random
from struct import Struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.client.produce import outgoing as outgoing_module
from rmq.client.produce.outgoing import Outgoing, SendTemplate
from rmq.errors import RemoteProtocolError
from rmq.message import MessageQueue
from rmq.protocol.command import JSON, Command
from rmq.protocol.frames import Decoder, Framed, encode, split_frames
from rmq.protocol.header_binary import OTHER
from tests.compiled import COMPILED, HAS_COMPILED

pytestmark = HAS_COMPILED

_LENGTHS = Struct(">iI")
ANSWER: dict[str, Any] = {
    "code": 0,
    "extFields": {"msgId": "7F00", "queueId": "3", "queueOffset": "12", "TRACE_ON": "true"},
    "flag": 1,
    "language": "JAVA",
    "opaque": 7,
    "serializeTypeCurrentRPC": "JSON",
    "version": 407,
}
ODD_HEADERS = (
    b"",
    b"{",
    b"{}",
    b"[1]",
    b'{"code":0',
    b'{"code":0}',
    b'{"code":0,"flag":1}x',
    b'{"code":0,"flag":1,}',
    b'{"code":0,"flag":1 }',
    b'{ "code":0,"flag":1}',
    b'{"code":00,"flag":1}',
    b'{"code":-0,"flag":1}',
    b'{"code":1.0,"flag":1}',
    b'{"code":"1","flag":1}',
    b'{"code":2147483648,"flag":1}',
    b'{"code":0,"code":1,"flag":1}',
    b'{"code":0,"flag":1,"extFields":null}',
    b'{"code":0,"flag":1,"extFields":{}}',
    b'{"code":0,"flag":1,"extFields":{"a":1}}',
    b'{"code":0,"flag":1,"extFields":{"a":"b"',
    b'{"code":0,"flag":1,"extFields":{"a":"b",}}',
    b'{"code":0,"flag":1,"extFields":{"a":"b","a":"c"}}',
    b'{"code":0,"flag":1,"extFields":[]}',
    b'{"code":0,"flag":1,"remark":null}',
    b'{"code":0,"flag":1,"remark":"a\\u0001b"}',
    b'{"code":0,"flag":1,"remark":"\x01"}',
    b'{"code":0,"flag":1,"remark":"\xc3\xa4"}',
    b'{"code":0,"flag":1,"remark":"\xff"}',
    b'{"code":0,"flag":1,"language":3}',
    b'{"code":0,"flag":1,"language":"\x7f"}',
    b'{"code":0,"flag":1,"other":"x"}',
    b'{"code":0,"flag":1,"":"x"}',
    b'{"code":11,"flag":1,"extFields":{"a":"b"}}',
    b'{"code":310,"flag":1}',
    b'{"flag":1,"code":10}',
    b'{"code":5,"flag":0}',
)


def frame(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    return _LENGTHS.pack(4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def seen(commands: list[Command]) -> list[Any]:
    found = []
    for one in commands:
        rest = (one.code, one.opaque, one.flag, one.body, one.remark, one.language, one.version)
        try:
            ext: Any = one.ext
        except RemoteProtocolError as error:
            ext = str(error)
        found.append((*rest, one.serialization, ext))
    return found


def both(data: bytes, max_frame: int = 1 << 20, max_header: int = 1 << 16, most: int = 1000) -> None:
    assert COMPILED is not None
    reader = COMPILED.AnswerReader(Command, OTHER, JSON)
    results: list[Any] = []
    for split in (split_frames, reader.split):
        try:
            commands, consumed, *_ = split(data, max_frame, max_header, most)
            results.append((seen(commands), consumed))
        except RemoteProtocolError as error:
            results.append(str(error))
    assert results[0] == results[1]


@pytest.mark.parametrize("header", ODD_HEADERS)
def test_headers_that_are_not_plain_are_pythons(header: bytes) -> None:
    both(frame(header, b"body"))
    plain = encode(Command(0, 1, 1, {"queueId": "1"}, b"x"))
    both(plain + frame(header) + plain)


@given(st.integers(0, 1 << 32))
def test_answers_in_any_form_and_cut_anywhere(seed: int) -> None:
    chance = Random(seed)
    data = b""
    for _ in range(chance.randrange(1, 6)):
        header = dict(ANSWER) | {
            "opaque": chance.randrange(-5, 1 << 31),
            "code": chance.choice([0, 19, -1, 11]),
        }
        header["flag"] = chance.choice([1, 1, 1, 0, 3])
        if chance.random() < 0.3:
            header["remark"] = chance.choice(["FOUND", "", 'a "quote"', "é", "x" * 300])
        for name in [name for name in header if name != "code" and chance.random() < 0.1]:
            del header[name]
        items = list(header.items())
        if chance.random() < 0.3:
            chance.shuffle(items)
        text = json.dumps(dict(items), separators=(",", ":"), ensure_ascii=chance.random() < 0.5)
        data += frame(text.encode(), chance.randbytes(chance.choice([0, 3, 200])))
        if chance.random() < 0.2:
            data += encode(Command(5, 9, 1, {"a": "b"}, b"binary", serialization=1))
    both(data)
    both(data[: chance.randrange(len(data) + 1)])
    both(data, most=chance.randrange(1, 4))
    both(data, max_frame=chance.choice([4, 150, 300]))
    both(data, max_header=chance.choice([10, 150]))
    at = chance.randrange(len(data))
    both(data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :])


def test_a_decoder_takes_it_in_place_of_lanes() -> None:
    assert COMPILED is not None
    decoder = Decoder(1 << 20, lanes=COMPILED.AnswerReader(Command, OTHER, JSON))
    data = b"".join(encode(Command(0, number, 1, {"queueId": str(number)}, b"x")) for number in range(3))
    found = [one for at in range(len(data)) for one in decoder.feed(data[at : at + 1])]
    assert [(one.opaque, one.ext, one.body) for one in found] == [
        (number, {"queueId": str(number)}, b"x") for number in range(3)
    ]


_TEXTS = st.one_of(
    st.text(alphabet=st.characters(min_codepoint=0, max_codepoint=0x7F), max_size=40),
    st.text(alphabet='ab\x01\x02"\\é', max_size=40),
)


@given(
    _TEXTS, st.integers(-(2**31), 2**31 - 1), st.integers(0, 1 << 60), st.booleans(), st.binary(max_size=9)
)
def test_a_sends_frame_has_the_same_bytes(
    properties: str, flag: int, now_ms: int, is_batch: bool, body: bytes
) -> None:
    assert COMPILED is not None
    queue = MessageQueue("T", "broker-ä", 3)
    outgoing = Outgoing("T", body, abs(flag) & 31, flag, properties, "ID", is_batch)
    frames = []
    with pytest.MonkeyPatch.context() as patch:
        for engine in (None, COMPILED.frame_send):
            patch.setattr(outgoing_module, "_frame_send", engine)
            patch.setattr(outgoing_module, "next_opaque", lambda: 77)
            made = SendTemplate('g"1', "4").framed(outgoing, queue, now_ms)
            assert isinstance(made, Framed)
            frames.append(made.frame)
    assert frames[0] == frames[1]
