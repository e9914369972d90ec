"""Taken messages that the compiled engine writes for gRPC's clients are Python's, to the byte."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("h2")

from hypothesis import given, settings
from hypothesis import strategies as st
from rmq_grpc import encoding
from rmq_grpc.messages import SYSTEM_PROPERTIES

from rmq import gateway
from rmq.broker import doors
from rmq.broker.consume.per_message.taking import Handed
from rmq.errors import RmqError
from rmq.plugin import TakenMessage
from rmq.protocol.codes import POP_MESSAGE, SYS_COMPRESSED
from rmq.protocol.command import Command
from rmq.protocol.pop import PopMessageResponseHeader
from rmq.protocol.record import MESSAGE_MAGIC, Record, decode_record, encode_record
from rmq.proxy import takes
from tests.compiled import COMPILED, HAS_COMPILED

pytestmark = HAS_COMPILED

RUNS = int(os.environ.get("RMQ_ENGINE_RUNS", "300"))
PLAIN = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40)
USUAL = ("TAGS", "KEYS", "UNIQ_KEY", "own")
HANDLES = st.sampled_from(["POP_CK\x017 1 2 0 0 b 0 0 9", "POP_CK\x010 1 2 3 1 c 0 5"])
NAMES = PLAIN | st.sampled_from(sorted(SYSTEM_PROPERTIES)) | st.sampled_from(USUAL)
VALUES = PLAIN | st.sampled_from(["true", "3", "1700000000123", "0", "a b  c ", " "]) | st.text(max_size=5)
PIECES = st.lists(st.tuples(NAMES, VALUES).map("\x01".join) | st.text(max_size=9) | HANDLES, max_size=8)
HOSTS = st.integers(0, 9).flatmap(
    lambda number: st.binary(min_size=(size := 4 if number else 16), max_size=size)
)
PORTS = st.integers(0, 65_535).map(lambda port: port.to_bytes(4, "big"))
TIMES = st.integers(-(1 << 50), 1 << 50) | st.integers(1_700_000_000_000, 1_800_000_000_000)

TOPICS = PLAIN | st.text(min_size=1, max_size=20)


@st.composite
def stored(draw: Callable[..., Any], topics: st.SearchStrategy[str] = TOPICS) -> bytes:
    """The bytes of a record, plain or not."""
    body, is_packed = draw(st.binary(max_size=300)), draw(st.integers(0, 9)) == 0
    text = "\x02".join(["UNIQ_KEY\x01id"] * draw(st.booleans()) + draw(PIECES)) + "\x02" * draw(st.booleans())
    record = Record(
        draw(topics),
        draw(st.integers(0, 1 << 20)),
        zlib.compress(body) if is_packed else body,
        text,
        sys_flag=SYS_COMPRESSED if is_packed else 0,
        queue_offset=draw(st.sampled_from([0, 5]) | st.integers(0, 1 << 50)),
        physical_offset=draw(st.integers(0, 1 << 50)),
        reconsume_times=draw(st.integers(0, 20)),
        born_timestamp=draw(TIMES),
        born_host=draw(HOSTS) + draw(PORTS),
        store_timestamp=draw(TIMES),
    )
    return encode_record(record, draw(HOSTS) + draw(PORTS))


def writer() -> Any:
    assert COMPILED is not None
    return encoding._make_writer(COMPILED)


def by_python(one: TakenMessage, invisible_ms: int) -> bytes:
    """The message that Python writes."""
    (made,) = encoding.received([TakenMessage(one.message, one.handle, one.attempt)], invisible_ms)
    return made


@settings(max_examples=RUNS)
@given(stored(), PLAIN | st.just(""), st.integers(1, 1 << 20), st.integers(0, 1 << 40))
def test_a_message_of_the_engine_is_that_of_python(
    data: bytes, handle: str, attempt: int, invisible_ms: int
) -> None:
    assert COMPILED is not None
    plain, end = COMPILED.plain_records(data, MESSAGE_MAGIC)
    made = writer().message(data, 0, handle, attempt, invisible_ms)
    if not plain:
        assert end == 0
        return
    message = decode_record(data)
    assert plain == [(0, message.queue_offset, message.physical_offset, len(message.body))]
    assert end == len(data)
    if made is not None:
        assert made == by_python(TakenMessage(message, handle, attempt), invisible_ms)


@pytest.mark.parametrize(
    "texts",
    [
        [],
        ["TAGS\x01red", "KEYS\x01one two", "own\x011", "WAIT\x01true"],
        ["__SHARDINGKEY\x01g", "BORN_TIMESTAMP\x011700000000000", "__BORNHOST\x01here", "PGROUP\x01T"],
        ["KEYS\x01" + " ".join("abcdefgh" * 1000)],
        ["own\x01" + "v" * 8_000, *(f"n{number}\x01{number}" for number in range(40))],
    ],
)
def test_usual_messages_are_written_by_the_engine(texts: list[str]) -> None:
    host = bytes((127, 0, 0, 1, 0, 0, 42, 159))
    made = writer()
    for body in (b"", b"x", bytes(range(256)) * 16):
        text = "\x02".join(["UNIQ_KEY\x01id", *texts])
        times = {"born_timestamp": 1_700_000_000_001, "store_timestamp": 1_700_000_000_002}
        record = Record("Orders", 3, body, text, born_host=host, queue_offset=5, **times)
        data = b"behind" + encode_record(record, host)
        given = made.message(data, 6, "a handle", 2, 60_000)
        assert given == by_python(TakenMessage(decode_record(data, 6), "a handle", 2), 60_000)


@settings(max_examples=RUNS)
@given(st.lists(stored(), min_size=1, max_size=5), st.data())
def test_damaged_records_are_left_to_python(records: list[bytes], data: st.DataObject) -> None:
    assert COMPILED is not None
    whole = bytearray(b"".join(records))
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    kept = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    plain, end = COMPILED.plain_records(kept, MESSAGE_MAGIC)
    at, made = 0, writer()
    for place, queue_offset, physical_offset, size in plain:
        message = decode_record(kept, place)
        assert place == at
        found = message.queue_offset, message.physical_offset, len(message.body)
        assert found == (queue_offset, physical_offset, size)
        at += message.size
        given = made.message(kept, place, "h", 1, 1)
        if given is not None:
            assert given == by_python(TakenMessage(message, "h", 1), 1)
    assert at == end
    for place in range(0, len(kept), 7):  # anything else is at least no harm
        made.message(kept, place, "h", 1, 1)


def told(one: TakenMessage) -> Any:
    """The message, or the error in its place."""
    try:
        return one.handle, one.attempt, repr(one.message)
    except RmqError as error:
        return one.handle, one.attempt, repr(error)


@given(st.lists(stored(), min_size=1, max_size=6), st.integers(0, 5), st.integers(0, 1_000))
def test_a_take_gives_the_same_messages_by_both_engines(
    records: list[bytes], damaged: int, room: int
) -> None:
    made = [bytearray(one) for one in records]
    if damaged < len(made):
        made[damaged][90] ^= 1
    handed = [Handed(7, 0, 1, 3, 1_000, 60_000, [b"".join(made)], 1)]

    def taken(compiled: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gateway.engine, "compiled", compiled)
            patch.setattr(doors, "PLAIN_BYTES", room)
            messages, left, unreadable = doors.taken_messages(handed, "b")
            return [told(one) for one in messages], left, unreadable

    assert taken(COMPILED) == taken(None)


@given(st.lists(stored(st.sampled_from("TTTO")), min_size=1, max_size=3), st.integers(0, 300))
def test_a_take_through_a_proxy_gives_the_same_messages_by_both_engines(
    records: list[bytes], room: int
) -> None:
    assert by_proxy(records, room, COMPILED) == by_proxy(records, room, None)


@pytest.mark.parametrize("topics", ["TT", "TO", "OT"])
@pytest.mark.parametrize("room", [0, 50, 150, 300])
def test_a_proxy_gives_no_more_than_there_is_room_for_and_names_the_topic(topics: str, room: int) -> None:
    host = bytes((127, 0, 0, 1, 0, 0, 42, 159))
    records = [encode_record(Record(topic, 0, bytes(100), "UNIQ_KEY\x01id"), host) for topic in topics]
    messages, left = by_proxy(records, room, COMPILED)
    assert (messages, left) == by_proxy(records, room, None)
    assert len(messages) == (1 if room < 100 else 2)


def by_proxy(records: list[bytes], room: int, compiled: Any) -> Any:
    """The messages that a proxy takes with this engine, and the handles of those that are too many."""
    header = PopMessageResponseHeader(1_000, 60_000, 0, 0, start_offset_info="0 7 3")
    response = Command.request(POP_MESSAGE).reply(0, header=header, body=b"".join(records))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway.engine, "compiled", compiled)
        patch.setattr(takes, "PLAIN_BYTES", room)
        messages, left = takes._messages_of(response, "b", "T")
        for one in messages:
            one.message.broker_name = "b"
        return [told(one) for one in messages], left


def test_a_proxy_names_a_message_of_a_rocketmq_broker_by_the_handle_in_it() -> None:
    host = bytes((127, 0, 0, 1, 0, 0, 42, 159))
    text = "UNIQ_KEY\x01id\x02POP_CK\x010 1 2 3 1 c 0 5"
    records = [encode_record(Record("T", 0, b"x", text, queue_offset=5), host)]
    messages, _ = by_proxy(records, 300, COMPILED)
    assert messages == by_proxy(records, 300, None)[0]
    assert messages[0][0] == "0 1 2 3 1 c 0 5 0"
