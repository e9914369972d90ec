"""Records made at random, their bytes, and the rows that decode_record says they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from rmq.message import PROPERTY_KEYS, StoredMessage
from rmq.protocol.codes import CompressionType
from rmq.protocol.record import Record, compress, compressed_flag, decode_record, encode_record

V4 = bytes([10, 1, 2, 3]) + (10911).to_bytes(4, "big")
V6 = bytes(range(0x20, 0x30)) + (10911).to_bytes(4, "big")
MAGIC = 0xDAA320A7.to_bytes(4, "big")

_words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=12)
_names = st.one_of(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "a"]), _words)
_pieces = st.one_of(
    st.builds("{}\x01{}".format, _names, _words),
    st.sampled_from(["", "\x01", "name", "name\x01", "\x01value", "a\x01b\x01c", "a\x01\x01"]),
)
properties_texts = st.lists(_pieces, max_size=12).map("\x02".join)
_bodies = st.one_of(
    st.binary(max_size=40), st.just(MAGIC * 3), st.integers(0, 3000).map(lambda size: MAGIC + b"x" * size)
)
_times = st.integers(-(1 << 40), 1 << 43)


@st.composite
def records(draw: st.DrawFn) -> Record:
    body = draw(_bodies)
    sys_flag = draw(st.sampled_from([0, 0, 0, 8]))
    if draw(st.integers(0, 3)) == 0:
        kind = draw(st.sampled_from([CompressionType.ZLIB, CompressionType.LZ4, CompressionType.ZSTD]))
        body, sys_flag = compress(body, kind), sys_flag | compressed_flag(kind)
    number = st.integers(-(1 << 31), (1 << 31) - 1)
    return Record(
        draw(st.text("abcÄ%_", min_size=1, max_size=60)),
        draw(st.integers(0, 9)),
        body,
        draw(properties_texts),
        flag=draw(number),
        sys_flag=sys_flag,
        born_timestamp=draw(_times),
        born_host=draw(st.sampled_from([V4, V6])),
        reconsume_times=draw(number),
        prepared_transaction_offset=draw(st.integers(-(1 << 63), (1 << 63) - 1)),
        queue_offset=draw(st.integers(0, 1 << 50)),
        physical_offset=draw(st.integers(0, 1 << 62)),
        store_timestamp=draw(_times),
    )


def encoded(made: Sequence[Record], store_host: bytes = V4) -> tuple[bytes, list[int]]:
    """The records one after the other, and where each begins."""
    parts, starts, at = [], [], 0
    for record in made:
        parts.append(encode_record(record, store_host))
        starts.append(at)
        at += len(parts[-1])
    return b"".join(parts), starts


def time_of(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def row_of(message: StoredMessage, broker_name: str) -> dict[str, Any]:
    """The row of a message as the slow decoder gives it."""
    return {
        "topic": message.topic,
        "brokerName": broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "body": message.body,
        "tags": message.tags,
        "keys": message.properties.get(PROPERTY_KEYS),
        "msgId": message.message_id,
        "properties": message.properties,
        "bornTimestamp": time_of(message.born_timestamp),
        "storeTimestamp": time_of(message.store_timestamp),
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "preparedTransactionOffset": message.prepared_transaction_offset,
    }


def rows_of(data: bytes, starts: Sequence[int], broker_name: str) -> list[dict[str, Any]]:
    """The rows that decode_record gives."""
    return [row_of(decode_record(data, start), broker_name) for start in starts]
