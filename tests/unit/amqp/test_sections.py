"""Sections of a message: values that messages share are decoded once, and are nobody else's."""

from __future__ import annotations

import sys
import uuid

import pytest
from rmq_amqp import sections
from rmq_amqp.messages import encoded, to_client, to_store
from rmq_amqp.sections import DATA, SEQUENCE, VALUE, Sections, build, parse
from rmq_amqp.values import Byte, Described, Int, Malformed, Symbol, ULong, decode, encode

from rmq.message import StoredMessage


def message(number: int = 0) -> bytes:
    made = Sections(kind=DATA, body=b"b", durable=True, priority=7, message_id=f"ID:{number}", to="Orders")
    made.annotations = {Symbol("x-opt-jms-dest"): Byte(1)}
    return build(made)


def test_messages_of_a_producer_share_what_is_decoded_and_nothing_else() -> None:
    sections._repeated.cache_clear()
    for number in range(100):
        read = parse(message(number))
        assert (read.durable, read.priority, read.message_id) == (True, 7, f"ID:{number}")
        assert read.annotations == {Symbol("x-opt-jms-dest"): Byte(1)}
        read.annotations["mine"] = number
    assert sections._repeated.cache_info().misses == 2


@pytest.mark.parametrize("size", range(1, len(message())))
def test_a_message_that_is_cut_is_malformed_or_shorter(size: int) -> None:
    try:
        read = parse(message()[:size])
    except Malformed:
        return
    assert read.body is None, "only a section that is whole is read"


@pytest.mark.parametrize(
    "data",
    [
        b"\xc0\x04\x01\xa1\x05a",  # a text that ends behind its list
        b"\xc0\x03\x01\xa1\x05",
        b"\xc0\x02\x01\xa1",
        b"\xc0\x04\x01\xa1\x01\xff",  # no UTF-8
        b"\xc0\x01\x01",  # a list without its value
    ],
)
def test_a_list_whose_values_do_not_fit_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode(data + bytes(8))


def test_nulls_and_texts_of_a_list_are_read_as_by_themselves() -> None:
    values = [None, "", "é" * 100, "long" * 100, None, Symbol("s"), 5, True, None]
    assert decode(encode(values)) == (values, len(encode(values)))


@pytest.mark.parametrize(
    "properties",
    [
        {"JMSXGroupSeq": "4294967296"},
        {"JMSReplyTo": "Answers", "JMS_AMQP_ReplyToType": "300"},
        {"JMS_AMQP_Types": "yJMSType", "JMSType": "\xe9"},
        {"JMS_AMQP_Types": "lJMS_AMQP_ContentEncoding", "JMS_AMQP_ContentEncoding": "1"},
        {"JMS_AMQP_Body": "map"},
        {"colour": "\ud800"},
    ],
)
def test_any_message_of_another_producer_can_be_given(properties: dict[str, str]) -> None:
    """Each of them ended the connection of every consumer that got it."""
    body = b"[" * 100_000
    stored = StoredMessage("T", 0, 0, 0, 1, body, {"UNIQ_KEY": "k", **properties})
    sections = parse(encoded(stored, 2, "Orders", 0, 1_000))
    assert (sections.kind, sections.body, sections.message_id) == (DATA, body, "k")
    assert (sections.to, sections.delivery_count) == ("Orders", 1)
    own = {name: text for name, text in properties.items() if text != "\ud800"} or {"colour": "?"}
    assert sections.properties == own


@pytest.mark.parametrize(
    ("field", "code", "place"), [("priority", 0x70, 1), ("ttl", 0x70, 2), ("group_sequence", 0x73, 11)]
)
def test_a_number_that_fits_no_field_is_malformed(field: str, code: int, place: int) -> None:
    data = bytes((0, 0x53, code)) + encode([*[None] * place, 1 << 32])
    with pytest.raises(Malformed, match=f"the field {field} of a message is out of its range"):
        parse(data)


class Part(bytes):
    """Bytes that nobody may copy for each further part."""

    def __add__(self, other: object) -> bytes:
        raise AssertionError("a copy for each part")


class Parts(list[object]):
    """Same for a list."""

    def __add__(self, other: object) -> list[object]:  # type: ignore[override]
        raise AssertionError("a copy for each part")


@pytest.mark.parametrize("code", [DATA, SEQUENCE])
def test_many_parts_of_a_body_are_joined_without_a_copy_for_each(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """8 MiB of short parts stopped the broker for half a minute."""
    read = sections.decode

    def spied(data: bytes, at: int = 0) -> tuple[object, int]:
        value, end = read(data, at)
        return (Part(value) if isinstance(value, bytes) else Parts(value)), end

    monkeypatch.setattr(sections, "decode", spied)
    part = b"x" if code == DATA else ["x"]
    found = parse((bytes((0, 0x53, code)) + encode(part)) * 5)
    assert (found.kind, found.body) == (code, part * 5)
    assert type(found.body) is not bytearray


@pytest.mark.parametrize("kind", ["described", "uuid"])
def test_keys_of_a_map_with_the_same_hash_are_few(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Each was compared with all before it: a single message stopped the broker."""
    compared = [0]
    equal = Described.__eq__

    def counted(one: Described, other: object) -> bool:
        compared[0] += 1
        return equal(one, other)

    monkeypatch.setattr(Described, "__eq__", counted)
    modulus = sys.hash_info.modulus
    if kind == "described":
        data = encode({Described(ULong(1), number): None for number in range(3_000)})
        compared[0] = 0
        assert len(decode(data)[0]) == 3_000
        assert compared[0] < 3_000
    else:
        keys = [uuid.UUID(int=1 + number * modulus) for number in range(200)]
        assert len(set(map(hash, keys))) == 1
        with pytest.raises(Malformed, match="same hash"):
            decode(encode(dict.fromkeys(keys)))
        assert len(decode(encode({uuid.UUID(int=number): 1 for number in range(200)}))[0]) == 200


@pytest.mark.parametrize("kind", [VALUE, SEQUENCE])
def test_a_map_or_stream_of_many_types_fits_into_a_message(kind: int) -> None:
    """The types of its values were a property, and properties have 32,767 bytes."""
    numbers = [Int(number) for number in range(40_000)]
    body = dict(zip(map(str, numbers), numbers, strict=True)) if kind == VALUE else numbers
    stored = to_store(Sections(kind, body, message_id="ID:1"), "T", 1, "client")
    assert sum(map(len, stored.properties.values())) < 1_000
    got = to_client(StoredMessage("T", 0, 0, 0, 0, stored.body, stored.properties), 1, "T", 0, 1)
    assert (got.kind, got.body) == (kind, body)
