"""Messages that read themselves are the same as those that are read at once."""

from __future__ import annotations

import copy
import json
import pathlib
import pickle
import struct
import tracemalloc

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.client.config import ClientConfig
from rmq.client.consume.message_view import (
    FoundMessage,
    PulledMessage,
    compiled_kind,
    found_messages,
    limited,
    read_messages,
    to_original_topic,
)
from rmq.client.consume.pull import PullTemplate
from rmq.errors import CorruptRecord, RemoteProtocolError
from rmq.message import MessageQueue, StoredMessage
from rmq.protocol.bodies import SubscriptionData
from rmq.protocol.command import Command
from rmq.protocol.properties import decode_properties
from rmq.protocol.record import Record, compress, compressed_flag, decode_record, encode_record
from tests.compiled import COMPILED, HAS_COMPILED

FIELDS = [field.name for field in attrs.fields(StoredMessage) if field.name != "broker_name"]
V4, V6 = bytes([10, 0, 0, 1, 0, 0, 0x2A, 0x9F]), bytes(15) + bytes([1, 0, 0, 0x2A, 0x9F])


def record(
    offset: int = 5, *, born: bytes = V4, stored: bytes = V4, body: bytes = b"body", **more: int
) -> bytes:
    made = Record("Topic", 3, body, "KEYS\x01k\x02TAGS\x01t", born_host=born, **more)
    made.queue_offset, made.physical_offset, made.store_timestamp = offset, 1 << 40, 1_700_000_000_000
    return encode_record(made, stored)


def one(data: bytes) -> PulledMessage:
    (message,), complete = read_messages(data, "a")
    assert complete
    return message


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("born", [V4, V6])
@pytest.mark.parametrize("stored", [V4, V6])
def test_each_part_can_be_asked_for_first(name: str, born: bytes, stored: bytes) -> None:
    data = record(born=born, stored=stored, flag=9, reconsume_times=2, prepared_transaction_offset=7)
    whole = decode_record(data)
    message = one(data)
    assert getattr(message, name) == getattr(whole, name)
    assert all(getattr(message, field) == getattr(whole, field) for field in FIELDS)


def test_it_reads_what_java_wrote(golden: pathlib.Path) -> None:
    vectors = json.loads((golden / "message_codec.json").read_text())["messages"]
    for vector in vectors:
        data = bytearray.fromhex(vector["hex"])
        whole = decode_record(bytes(data), check_crc=False)
        plain = decode_record(bytes(data), check_crc=False, decompressed=False)
        # These vectors have no CRC.
        struct.pack_into(">i", data, 8, __import__("zlib").crc32(plain.body) & 0x7FFFFFFF)
        message = one(bytes(data))
        for field in set(FIELDS) - {"body_crc"}:
            assert getattr(message, field) == getattr(whole, field), field
        assert message.message_id == whole.message_id


def test_it_is_a_stored_message_in_every_respect() -> None:
    message = one(record())
    assert isinstance(message, StoredMessage)
    assert message.keys == ("k",)
    assert message.tags == "t"
    assert message.broker_name == "a"
    assert "body=b'body'" in repr(message)
    assert attrs.evolve(one(record()), reconsume_times=4).body == b"body"
    for double in (copy.copy(one(record())), pickle.loads(pickle.dumps(one(record())))):
        assert (double.body, double.topic, double.reconsume_times) == (b"body", "Topic", 0)
    with pytest.raises(AttributeError, match="no attribute 'bodi'"):
        message.bodi  # type: ignore[attr-defined]  # noqa: B018


def packed(size: int, offset: int = 5) -> bytes:
    """A record whose body of zeros is compressed."""
    return record(offset, body=compress(bytes(size)), sys_flag=compressed_flag())


def test_a_body_may_grow_to_the_clients_limit_and_not_further() -> None:
    ((message,), _) = read_messages(packed(1000), "a", kind=limited(1000))
    for double in (message, copy.copy(message), pickle.loads(pickle.dumps(message))):
        assert (double.topic, double.body) == ("Topic", bytes(1000))
    ((message,), _) = read_messages(packed(1001), "a", kind=limited(1000))
    with pytest.raises(RemoteProtocolError, match=r"over 1000 bytes .*offset 5 .*max_body_size"):
        message.body  # noqa: B018
    assert limited(1000) is limited(1000)


def test_messages_of_a_query_do_not_keep_their_bodies() -> None:
    """64 of them, each a thousandth of its body, took 1.5 GB."""
    data = b"".join(packed(1 << 20, offset) for offset in (9, 3, 3, 7))
    tracemalloc.start()
    try:
        found = found_messages(data, "a", FoundMessage)
        assert [message.queue_offset for message in found] == [9, 3, 3, 7]
        assert [len(message.body) for message in found] == [1 << 20] * 4
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
    changed = attrs.evolve(found[0], body=b"x")
    assert (changed.body, changed.keys) == (b"x", ("k",))


@pytest.mark.parametrize("cut", [1, 50, 100])
def test_a_damaged_answer_to_a_query(cut: int) -> None:
    with pytest.raises(CorruptRecord, match="no message begins here"):
        found_messages(record() + record()[:-cut], "a", FoundMessage)


def test_attributes_can_be_set() -> None:
    message = one(record())
    message.body = b"other"
    message.reconsume_times = 7
    assert (message.body, message.reconsume_times) == (b"other", 7)


def test_a_retried_message_gets_its_topic_back() -> None:
    made = Record("%RETRY%g", 0, b"x", "RETRY_TOPIC\x01Orders")
    message = one(encode_record(made, V4))
    to_original_topic(message)
    assert message.topic == "Orders"
    plain = one(record())
    to_original_topic(plain)
    assert plain.topic == "Topic"


def test_several_in_a_row() -> None:
    data = b"".join(record(offset, body=b"%d" % offset) for offset in (3, 4, 9))
    messages, complete = read_messages(data, "a")
    assert complete
    assert [(m.queue_offset, m.body) for m in messages] == [(3, b"3"), (4, b"4"), (9, b"9")]
    assert sum(message.size for message in messages) == len(data)


@pytest.mark.parametrize(
    "rest",
    [
        record(6)[:-1],
        b"\0" * 200,
        record(5),
        struct.pack(">i", 1 << 30) + record(6)[4:],
        struct.pack(">i", 10) + record(6)[4:],
    ],
)
def test_what_is_whole_is_given_and_the_rest_is_told_of(rest: bytes) -> None:
    messages, complete = read_messages(record(5) + rest, "a")
    assert [message.queue_offset for message in messages] == [5]
    assert not complete


def test_nonsense_is_an_error() -> None:
    with pytest.raises(CorruptRecord, match="the answer of a: damaged record at offset 0"):
        read_messages(b"nonsense", "a")
    assert read_messages(b"", "a") == ([], True)


def test_a_damaged_body_is_found_when_it_is_read() -> None:
    data = bytearray(record())
    data[88] ^= 1
    with pytest.raises(CorruptRecord, match="CRC"):
        one(bytes(data)).body  # noqa: B018
    assert one(bytes(data)).topic == "Topic"


@given(at=st.integers(8, len(record()) - 1), value=st.integers(0, 255), name=st.sampled_from(FIELDS))
def test_damage_gives_a_value_or_the_right_error(at: int, value: int, name: str) -> None:
    data = bytearray(record())
    data[at] = value
    try:
        messages, _ = read_messages(bytes(data), "a")
        for message in messages:
            getattr(message, name)
    except CorruptRecord:
        pass


def test_messages_before_the_offset_that_was_asked_for_are_left_out() -> None:
    """Brokers may send the whole batch of which a part was asked for."""
    queue = MessageQueue("T", "a", 0)
    form = PullTemplate("g", queue, SubscriptionData(topic="T", sub_string="*"), config=ClientConfig())
    body = b"".join(record(number) for number in range(4))
    ext = {"nextBeginOffset": "4", "suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "4"}
    for asked, left in ((0, [0, 1, 2, 3]), (2, [2, 3])):
        answer = form.answer(Command(0, 1, 1, ext, body), asked, "a:1")
        assert [message.queue_offset for message in answer.messages] == left


def test_properties_and_topic_can_be_set() -> None:
    message = one(record())
    message.properties = {"TAGS": "other"}
    message.topic = "Another"
    assert (message.tags, message.topic, message.body) == ("other", "Another", b"body")
    assert message.properties is message.properties, "what was read once is kept"


@pytest.mark.parametrize("name", ["topic", "properties"])
def test_a_topic_s_length_that_leads_out_of_the_record_is_damage(name: str) -> None:
    data = bytearray(record())
    at = data.index(b"\x05Topic")
    data[at] = 250
    with pytest.raises(CorruptRecord):
        getattr(one(bytes(data)), name)
    data[at] = 5
    assert getattr(one(bytes(data)), name) == getattr(decode_record(record()), name)


# The compiled engine's way of reading against the one in Python.

TEXTS = (
    "UNIQ_KEY\x01{}",
    "TAGS\x01t\x02UNIQ_KEY\x01{}\x02WAIT\x01true",
    "UNIQ_KEY\x01{}\x02TAGS\x01\xe9",
    "UNIQ_KEY\x01{0}\x02UNIQ_KEY\x01{0}",
    "NO_UNIQ_KEY\x01{}",
    "{}",
    "",
)
IDS = ("7F0000010001", "7F0000010002", "", "\xe9", "a\x01b", "a\x02b", "x" * 300, "\x7f", " ")
PACKED = compress(b"packed", level=5)
BODIES = (
    (b"b", 0),
    (b"body" * 300, 0),
    (b"", 0),
    (PACKED, compressed_flag()),
    (b"not packed", compressed_flag()),
)


def varied(offset: int, text: str, body: tuple[bytes, int], born: bytes, stored: bytes) -> bytes:
    made = Record("Topic", 3, body[0], text, born_host=born, sys_flag=body[1])
    made.queue_offset, made.physical_offset, made.store_timestamp = offset, 1 << 40, 1_700_000_000_000
    return encode_record(made, stored)


records = st.builds(
    varied,
    st.sampled_from((1, 2, 3, 3, 1 << 40)),
    st.builds(str.format, st.sampled_from(TEXTS), st.sampled_from(IDS)),
    st.sampled_from(BODIES),
    st.sampled_from((V4, V4, V6)),
    st.sampled_from((V4, V4, V6)),
)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """A pull's answer, here and there damaged, and cut off."""
    data = bytearray(b"".join(draw(st.lists(records, min_size=1, max_size=6))))
    for at, value in draw(
        st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=3)
    ):
        data[at] = value
    return bytes(data[: draw(st.one_of(st.just(len(data)), st.integers(0, len(data))))])


SCANS = ("body", "properties", "message_id", "tags", "keys", "topic", "body_crc", "store_host", "body")


def looked_at(data: bytes, kind: type[PulledMessage], looks: list[str]) -> list[object]:
    seen: list[object] = []
    try:
        messages, is_whole = read_messages(data, "a", None, kind)
    except CorruptRecord as error:
        return [str(error)]
    seen.append(is_whole)
    for message in messages:
        seen.append((message.queue_offset, message.size, message.broker_name, message.window))
        for name in looks:
            try:
                seen.append(getattr(message, name))
            except (CorruptRecord, RemoteProtocolError) as error:
                seen.append((type(error), str(error)))
    return seen


@HAS_COMPILED
@given(data=answers(), looks=st.permutations(SCANS))
def test_the_compiled_engine_reads_the_same(data: bytes, looks: list[str]) -> None:
    assert COMPILED is not None
    kinds = limited(1 << 20, PulledMessage), limited(1 << 20, compiled_kind(COMPILED, PulledMessage))
    pure, compiled = (looked_at(data, kind, looks) for kind in kinds)
    assert compiled == pure


@HAS_COMPILED
def test_a_message_that_the_compiled_engine_read_is_one_like_others() -> None:
    assert COMPILED is not None
    kind = compiled_kind(COMPILED, PulledMessage)
    text = "TAGS\x01t\x02UNIQ_KEY\x01{}\x02WAIT\x01true"
    data = b"".join(varied(at, text.format(f"ID{at}"), (b"%d" % at, 0), V4, V4) for at in range(4))
    messages, _ = read_messages(data, "a", None, kind)
    assert [one.properties for one in messages] == [
        decode_properties(text.format(f"ID{at}")) for at in range(4)
    ]
    first, second, third, fourth = messages
    first.properties["TAGS"] = "changed"
    assert second.tags == "t"
    third.body, third.properties = b"mine", {"UNIQ_KEY": "mine"}
    assert (third.body, third.message_id) == (b"mine", "mine")
    for again in (copy.copy(fourth), pickle.loads(pickle.dumps(fourth))):
        assert (again.body, again.message_id, again.queue_offset) == (b"3", "ID3", 3)
    with pytest.raises(AttributeError):
        fourth.no_such_thing  # noqa: B018
    for wrong in (5, None, StoredMessage("T", 0, 0, 0, 0, b"", {})):
        with pytest.raises(TypeError):
            vars(kind)["body"].fget(wrong)
    with pytest.raises(AttributeError):
        COMPILED.PulledReader(StoredMessage, None, "UNIQ_KEY", 0)
    bare = kind.__new__(kind)
    for name in ("body", "properties", "message_id"):
        with pytest.raises(AttributeError):
            getattr(bare, name)
