"""Requests that cannot be read, or are too long: each is refused alone, and the stream goes on behind it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable

import pytest

from rmq.errors import RemoteProtocolError
from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import JSON, MAX_FRAME, ROCKETMQ, Command
from rmq.protocol.damaged import EDGE_BYTES
from rmq.protocol.frames import Decoder, encode
from tests.unit.broker.rig import send

KIB = 1024
GOOD = Command.request(105, {"topic": "T"})
CUTS = [1, 7, 8, 9, 1000, 10**9]


def frame(header: bytes, body: bytes = b"", kind: int = JSON) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def java(code: int, opaque: int, text: str = "x", flag: int = 0) -> bytes:
    """A header as fastjson writes it: its members in the order of the alphabet."""
    fields = {"code": code, "extFields": {"i": text}, "flag": flag, "language": "JAVA", "opaque": opaque}
    return json.dumps({**fields, "version": 407}, ensure_ascii=False, separators=(",", ":")).encode()


def go(code: int, opaque: int, text: str = "x") -> bytes:
    """JSON in the form of encoding/json: members in the order of their declaration."""
    fields = {"code": code, "language": "GO", "version": 317, "opaque": opaque, "flag": 0, "remark": ""}
    return json.dumps({**fields, "extFields": {"i": text}}, separators=(",", ":")).encode()


def fed(decoder: Decoder, data: bytes, cut: int) -> list[Command]:
    found: list[Command] = []
    for at in range(0, len(data), cut):
        found += decoder.feed(data[at : at + cut])
        while decoder.has_more:
            found += decoder.feed(b"")
    return found


def answers(decoder: Decoder) -> list[tuple[int, int]]:
    assert all(answer.is_response for answer in decoder.refused)
    return [(answer.opaque, answer.code) for answer in decoder.refused]


LONG = {
    "Java": java(310, 77, "性" * 20_000),
    "Go": go(310, 77, "x" * 60_000),
    "opaque inside a text": java(310, 77, '","opaque":1,"x":"' + "x" * 60_000),
    "just too long": java(310, 77, "x" * (50 * KIB + 1 - len(java(310, 77, "")))),
}


@pytest.mark.parametrize("header", LONG.values(), ids=LONG)
@pytest.mark.parametrize("cut", CUTS)
def test_a_long_header_of_a_send_is_answered_13(header: bytes, cut: int) -> None:
    decoder = Decoder(max_header=50 * KIB)
    data = encode(GOOD) + frame(header, b"body" * 1000) + encode(GOOD)
    assert len(fed(decoder, data, cut)) == 2
    assert answers(decoder) == [(77, ResponseCode.MESSAGE_ILLEGAL)]
    assert f"a header of {len(header)} bytes is over the limit of 51200" in str(decoder.refused[0].remark)
    assert decoder.buffered == 0


def test_a_long_header_is_not_kept() -> None:
    decoder = Decoder(max_header=KIB)
    header = java(310, 7, "x" * 1_000_000)
    data = frame(header)
    for at in range(0, len(data) - 1, 10_000):
        assert decoder.feed(data[at : at + 10_000][: len(data) - 1 - at]) == []
        assert decoder.buffered <= EDGE_BYTES
    assert not decoder.refused  # its number comes at the end
    decoder.feed(data[-1:])
    assert answers(decoder) == [(7, 13)]


@pytest.mark.parametrize("cut", CUTS)
def test_a_long_binary_header_is_answered(cut: int) -> None:
    long = Command(310, 5, 0, {"i": "x" * 60_000}, b"body", serialization=ROCKETMQ)
    other = Command(34, 6, 0, {"i": "x" * 60_000}, serialization=ROCKETMQ)
    decoder = Decoder(max_header=50 * KIB)
    assert len(fed(decoder, encode(long) + encode(other) + encode(GOOD), cut)) == 1
    assert answers(decoder) == [(5, 13), (6, 1)]  # 13 is of messages
    assert {answer.serialization for answer in decoder.refused} == {ROCKETMQ}


def test_a_oneway_request_gets_no_answer() -> None:
    decoder = Decoder(max_header=KIB)
    assert len(decoder.feed(frame(java(310, 7, "x" * 2000, flag=2)) + encode(GOOD))) == 1
    assert not decoder.refused


def test_a_response_that_is_too_long_ends_the_connection() -> None:
    """The response is no request: its caller must learn that it will not arrive."""
    with pytest.raises(RemoteProtocolError, match="over the limit of 1024"):
        Decoder(max_header=KIB).feed(frame(java(0, 7, "x" * 2000, flag=1)))


def test_a_long_header_without_a_number_ends_the_connection() -> None:
    with pytest.raises(RemoteProtocolError, match="over the limit of 1024"):
        Decoder(max_header=KIB).feed(frame(b"x" * 2000))


@pytest.mark.parametrize("cut", [1000, 1 << 16])
def test_a_frame_that_is_too_long_is_read_and_answered(cut: int) -> None:
    decoder = Decoder(max_frame=100_000)
    assert len(fed(decoder, frame(java(310, 7), bytes(300_000)) + encode(GOOD), cut)) == 1
    assert answers(decoder) == [(7, 13)]
    assert "over the limit of 100000" in str(decoder.refused[0].remark)


DAMAGED = {
    "no code": (b'{"opaque":7}', True),
    "code behind the fields": (b'{"extFields":{"a":NaN},"code":10,"opaque":7}', True),
    "cut off": (b'{"code":310,"opaque":7,"extFields":{"a":"x"', True),
    "code text": (b'{"code":"ten","opaque":7}', True),
    "a number out of range": (b'{"code":105,"opaque":7,"extFields":{"a":1e999}}', True),
    "not utf-8 between texts": (b'{"code":310,"opaque":7,\xff"extFields":{"a":"x"}}', True),
    "no opaque": (b'{"code":310,"extFields":{"a":"x"', False),
    "opaque too big": (b'{"code":310,"opaque":9999999999}', False),
    "not json": (b"hello", False),
    "empty": (b"", False),
}


@pytest.mark.parametrize(("header", "is_known"), DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("cut", CUTS)
def test_a_header_that_is_no_json(header: bytes, is_known: bool, cut: int) -> None:
    decoder = Decoder()
    data = encode(GOOD) + frame(header, b"body") + encode(GOOD)
    if is_known:
        assert len(fed(decoder, data, cut)) == 2
        assert answers(decoder) == [(7, ResponseCode.SYSTEM_ERROR)]
    else:
        with pytest.raises(RemoteProtocolError):
            fed(decoder, data, cut)


def test_the_number_0() -> None:
    decoder = Decoder()
    assert decoder.feed(frame(b'{"code":310,"extFields":[1],"opaque":0}')) == []
    assert answers(decoder) == [(0, 1)]


def test_a_binary_header_whose_fields_do_not_fit() -> None:
    header = struct.pack(">hBhiiii", 310, 0, 407, 9, 0, 0, 100)
    decoder = Decoder()
    assert len(decoder.feed(frame(header, kind=ROCKETMQ) + encode(GOOD))) == 1
    assert answers(decoder) == [(9, 1)]
    assert "fields of 100 bytes" in str(decoder.refused[0].remark)
    with pytest.raises(RemoteProtocolError):  # too short for a number
        Decoder().feed(frame(header[:8], kind=ROCKETMQ))


def test_a_damaged_header_of_a_large_frame_is_refused_before_its_body_comes() -> None:
    decoder = Decoder(ask_from=1000)
    data = frame(b'{"opaque":7}', bytes(5000)) + encode(GOOD)
    assert decoder.feed(data[:100]) == []
    assert answers(decoder) == [(7, 1)]
    assert decoder.head is None
    assert len(decoder.feed(data[100:])) == 1


def many(count: int) -> Iterable[bytes]:
    for number in range(count):
        yield encode(GOOD)
        yield frame(b'{"code":310,"opaque":%d,"extFields":' % number, b"b")


@pytest.mark.parametrize("most", [3, 1 << 30])
def test_many_damaged_requests_among_good_ones(most: int) -> None:
    decoder = Decoder(most=most)
    assert len(fed(decoder, b"".join(many(50)), 333)) == 50
    assert answers(decoder) == [(number, 1) for number in range(50)]


def test_runs_of_plain_sends_are_kept_beside_damage() -> None:
    """With the compiled engine too, whose lanes know nothing of damage."""
    engine = pytest.importorskip("rmq.protocol._engine")
    sends = [encode(send("T", b"x" * 10)) for _ in range(4)]
    decoder = Decoder(MAX_FRAME, lanes=engine.Lanes((), b"\x7f\0\0\1\0\0*\x9f", 0, 0, 0))
    data = sends[0] + sends[1] + frame(b'{"code":310,"opaque":7,') + sends[2] + sends[3]
    found = decoder.feed(data)
    assert len(found) == 4
    assert answers(decoder) == [(7, 1)]


def test_the_work_is_linear() -> None:
    """A chunk of damage is not split again for each damaged frame."""
    seen = 0

    class Counted(bytes):
        def __getitem__(self, key: object) -> bytes:  # type: ignore[override]
            nonlocal seen
            got = bytes.__getitem__(self, key)  # type: ignore[call-overload]
            seen += len(got)
            return got  # type: ignore[no-any-return]

    data = b"".join(many(1000))
    decoder, at, refused = Decoder(), 0, 0
    while at < len(data):
        _, stop, _ = decoder._split_damaged(Counted(data[at:]))
        at, refused = at + stop, refused + len(decoder.refused)
        decoder.refused.clear()
    assert refused == 1000
    assert seen < 4 * len(data)
