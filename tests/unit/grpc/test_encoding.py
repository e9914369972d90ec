"""Messages and acknowledgements that are written field by field are those that protobuf's library writes."""

from __future__ import annotations

import hashlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rmq_grpc import schema
from rmq_grpc.encoding import acknowledged, encode, received, sent, to_client, varint
from rmq_grpc.messages import SYSTEM_PROPERTIES, V2Message, put_ms
from rmq_grpc.statuses import status

from rmq.gateway import Sent
from rmq.message import StoredMessage
from rmq.plugin import TakenMessage

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
FULL = TEXTS.filter(bool)
TIMES = st.integers(-(1 << 40), 1 << 45)
KINDS = {"TRAN_MSG": "TRANSACTION", "DELAY": "DELAY", "TIMER_DELAY_SEC": "DELAY", "__SHARDINGKEY": "FIFO"}


def by_the_library(message: StoredMessage, handle: str, attempt: int, invisible_ms: int) -> Any:
    """The message, by one object for each part."""
    properties = message.properties
    made = V2Message(body=message.body)
    made.topic.name = message.topic
    made.user_properties.update({name: properties[name] for name in properties.keys() - SYSTEM_PROPERTIES})
    system = made.system_properties
    if tag := properties.get("TAGS"):
        system.tag = tag
    system.keys.extend(properties.get("KEYS", "").split())
    system.message_id = message.message_id
    system.body_digest.type = schema.enum("DigestType")["MD5"]
    system.body_digest.checksum = hashlib.md5(message.body).hexdigest().upper()
    system.body_encoding = schema.enum("Encoding")["IDENTITY"]
    kinds = [KINDS[name] for name in KINDS if name in properties]
    system.message_type = schema.enum("MessageType")[kinds[0] if kinds else "NORMAL"]
    put_ms(system.born_timestamp, int(properties.get("BORN_TIMESTAMP", message.born_timestamp)))
    system.born_host = properties.get("__BORNHOST") or message.born_host
    put_ms(system.store_timestamp, message.store_timestamp)
    system.store_host = message.store_host
    if handle:
        system.receipt_handle = handle
        put_ms(system.invisible_duration, invisible_ms)
    system.queue_id, system.queue_offset = message.queue_id, message.queue_offset
    system.delivery_attempt = attempt
    if group := properties.get("__SHARDINGKEY"):
        system.message_group = group
    if trace := properties.get("__TRACE_CONTEXT"):
        system.trace_context = trace
    if origin := properties.get("DLQ_ORIGIN_TOPIC"):
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = properties.get("DLQ_ORIGIN_MESSAGE_ID", "")
    return made


STORED = st.builds(
    StoredMessage,
    FULL,
    st.integers(0, 1 << 31 - 1),
    st.integers(0, 1 << 62),
    st.integers(0, 1 << 62),
    st.integers(1, 1 << 22),
    st.binary(max_size=300),
    st.dictionaries(FULL, FULL, max_size=3).flatmap(
        lambda own: st.fixed_dictionaries(
            {"UNIQ_KEY": FULL},
            optional={
                "TAGS": FULL,
                "KEYS": TEXTS,
                "TRAN_MSG": st.just("true"),
                "DELAY": st.just("3"),
                "TIMER_DELAY_SEC": st.just("9"),
                "BORN_TIMESTAMP": st.integers(1, 1 << 45).map(str),
                "__BORNHOST": FULL,
                "__SHARDINGKEY": FULL,
                "__TRACE_CONTEXT": FULL,
                "DLQ_ORIGIN_TOPIC": FULL,
                "DLQ_ORIGIN_MESSAGE_ID": FULL,
            },
        ).map(lambda words: {name: own[name] for name in own.keys() - SYSTEM_PROPERTIES} | words)
    ),
    born_timestamp=TIMES,
    born_host=TEXTS,
    store_timestamp=TIMES,
    store_host=TEXTS,
)


@given(STORED, TEXTS, st.integers(0, 1 << 20), st.integers(0, 1 << 40))
def test_a_message_is_that_of_the_library(
    message: StoredMessage, handle: str, attempt: int, invisible_ms: int
) -> None:
    data = encode(message, handle=handle, attempt=attempt, invisible_ms=invisible_ms)
    expected = by_the_library(message, handle, attempt, invisible_ms)
    assert V2Message.FromString(data) == expected
    assert len(data) == expected.ByteSize()  # of a map the order is not fixed
    (given,) = received([TakenMessage(message, handle, attempt)], invisible_ms)
    answer = schema.message("ReceiveMessageResponse").FromString(given)
    assert answer.WhichOneof("content") == "message"
    assert answer.message == expected


def test_a_message_without_a_handle_has_neither_a_lease_nor_a_delivery_time() -> None:
    system = to_client(StoredMessage("T", 0, 7, 0, 1, b"x", {"UNIQ_KEY": "id"})).system_properties
    assert not system.HasField("receipt_handle")
    assert not system.HasField("invisible_duration")
    assert not system.HasField("delivery_timestamp")
    assert system.queue_offset == 7


def test_a_message_of_a_time_names_that_time() -> None:
    properties = {"UNIQ_KEY": "id", "TIMER_DELIVER_MS": "1700000000123"}
    system = to_client(StoredMessage("T", 0, 0, 0, 1, b"x", properties)).system_properties
    assert (system.delivery_timestamp.seconds, system.delivery_timestamp.nanos) == (
        1_700_000_000,
        123_000_000,
    )
    assert system.message_type == schema.enum("MessageType")["DELAY"]


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5))
def test_an_answer_to_acknowledgements_is_that_of_the_library(texts: list[tuple[str, str]]) -> None:
    expected = schema.message("AckMessageResponse")(status=status())
    for message_id, handle in texts:
        expected.entries.add(message_id=message_id, receipt_handle=handle, status=status())
    assert acknowledged(texts) == expected.SerializeToString(deterministic=True)


OUTCOMES = st.builds(Sent, queue_offset=st.integers(-1, 1 << 62), transaction_id=TEXTS, recall_handle=TEXTS)


@given(st.lists(st.tuples(FULL, OUTCOMES), min_size=1, max_size=4))
def test_an_answer_to_stored_messages_is_that_of_the_library(stored: list[tuple[str, Sent]]) -> None:
    expected = schema.message("SendMessageResponse")(status=status())
    for message_id, outcome in stored:
        expected.entries.add(
            status=status(),
            message_id=message_id,
            transaction_id=outcome.transaction_id,
            offset=outcome.queue_offset,
            recall_handle=outcome.recall_handle,
        )
    assert sent(stored) == expected.SerializeToString(deterministic=True)


@given(st.integers(0, (1 << 64) - 1))
def test_a_number_is_written_seven_bits_at_a_time(number: int) -> None:
    data = varint(number)
    assert sum((byte & 127) << 7 * at for at, byte in enumerate(data)) == number
    assert all(byte & 128 for byte in data[:-1])
    assert not data[-1] & 128
