"""Records of the commit log, units of the consume queue, and what a batch is made of.

`build_record` and `build_batch` take the fields one by one, not an object: the call is what storing a message
costs. For the same reason the loop of `build_batch` is one function.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from struct import Struct
from struct import error as struct_error
from typing import Final

from rmq.errors import RemoteProtocolError
from rmq.protocol.text import java_text

_RECORD_V4 = Struct(">iIiiiqqiq8sq8siqi")
_RECORD = {
    (born, stored): Struct(f">iIiiiqqiq{born}sq{stored}siqi") for born in (8, 20) for stored in (8, 20)
}
_PROPERTIES_LENGTH = Struct(">h")
MESSAGE_MAGIC: Final = 0xDAA320A7
BLANK_MAGIC: Final = 0xCBD43194
NUL_IN_PROPERTIES: Final = (
    "the properties have the character NUL (0x00), which is what a power cut leaves of a page"
)
"""Why such properties are refused."""


def crc32(body: bytes) -> int:
    """The body checksum of a record: CRC-32 without its top bit."""
    return zlib.crc32(body) & 0x7FFF_FFFF


def build_record(
    size: int,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_at: int,
    born_host: bytes,
    stored_at: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: bytes,
    topic: bytes,
    properties: bytes,
) -> bytes:
    """One record of the commit log: its fields in their order. Times are ms, hosts have 8 or 20 bytes,
    `topic` comes after its length byte.
    """
    form = _RECORD_V4 if len(born_host) == 8 == len(store_host) else _RECORD[len(born_host), len(store_host)]
    head = form.pack(
        size,
        MESSAGE_MAGIC,
        zlib.crc32(body) & 0x7FFF_FFFF,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_at,
        born_host,
        stored_at,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        len(body),
    )
    return b"".join((head, body, topic, _PROPERTIES_LENGTH.pack(len(properties)), properties))


_BATCH_HEAD = Struct(">iiiii")
_SHARED = {
    (born, stored): (Struct(f">q{born}sq{stored}siq"), Struct(f">iIiiiqqi{28 + born + stored}si"))
    for born in (8, 20)
    for stored in (8, 20)
}
"""What the heads of a batch's records have in common, from the born time on, and such a head around it."""


def split_batch(body: bytes) -> list[tuple[int, bytes, str]]:
    """The messages of a batch body as (flag, body, properties text), which is read as Java reads what is not
    UTF-8. Raises RemoteProtocolError.
    """
    messages = []
    at, end = 0, len(body)
    try:
        while at < end:
            size, _, _, flag, length = _BATCH_HEAD.unpack_from(body, at)
            text_at = at + 20 + length
            text_length = _PROPERTIES_LENGTH.unpack_from(body, text_at)[0]
            stop = text_at + 2 + text_length
            if length < 0 or text_length < 0 or stop != at + size or stop > end:
                raise RemoteProtocolError(f"the message at byte {at} of a batch has inconsistent lengths")
            messages.append((flag, body[at + 20 : text_at], java_text(body[text_at + 2 : stop])))
            at = stop
    except struct_error as error:
        raise RemoteProtocolError(f"the message at byte {at} of a batch cannot be read: {error}") from None
    if any("\0" in text for _, _, text in messages):
        raise RemoteProtocolError(NUL_IN_PROPERTIES)
    return messages


def build_batch(
    batch: bytes,
    suffix: bytes,
    place: tuple[int, int, int, int],
    born: tuple[int, bytes],
    stored: tuple[int, bytes],
    reconsume_times: int,
    topic: bytes,
) -> tuple[list[bytes], list[int], list[int], list[bytes]]:
    """The records of a batch body, one after the other: their pieces, their physical offsets, their sizes,
    and the properties that they were sent with.

    Each record gets `suffix` after its properties, which may be no UTF-8: they are stored as they came, as
    Java does it. `place` = (queue id, queue offset, physical offset, sys
    flag) of the first; the rest as for `build_record`. Raises RemoteProtocolError.
    """
    queue_id, queue_offset, position, sys_flag = place
    born_at, born_host = born
    stored_at, store_host = stored
    shared_form, form = _SHARED[len(born_host), len(store_host)]
    shared = shared_form.pack(born_at, born_host, stored_at, store_host, reconsume_times, 0)
    pack, read, read_length, pack_length = (
        form.pack,
        _BATCH_HEAD.unpack_from,
        _PROPERTIES_LENGTH.unpack_from,
        _PROPERTIES_LENGTH.pack,
    )
    crc, fixed = zlib.crc32, form.size + len(topic) + 2
    suffix_after = b"\x02" + suffix
    middles: dict[int, bytes] = {}  # topic and length of the properties
    pieces: list[bytes] = []
    positions: list[int] = []
    sizes: list[int] = []
    texts: list[bytes] = []
    at, end = 0, len(batch)
    try:
        while at < end:
            size, _, _, flag, length = read(batch, at)
            text_at = at + 20 + length
            text_length = read_length(batch, text_at)[0]
            stop = text_at + 2 + text_length
            if length < 0 or text_length < 0 or stop != at + size or stop > end:
                raise RemoteProtocolError(f"the message at byte {at} of a batch has inconsistent lengths")
            body, text = batch[at + 20 : text_at], batch[text_at + 2 : stop]
            after = suffix if not text or text[-1] == 2 else suffix_after
            text_length += len(after)
            size = fixed + length + text_length
            head = pack(
                size,
                MESSAGE_MAGIC,
                crc(body) & 0x7FFF_FFFF,
                queue_id,
                flag,
                queue_offset,
                position,
                sys_flag,
                shared,
                length,
            )
            middle = middles.get(text_length)
            if middle is None:
                middle = middles[text_length] = topic + pack_length(text_length)
            pieces += (head, body, middle, text, after)
            positions.append(position)
            sizes.append(size)
            texts.append(text)
            queue_offset += 1
            position += size
            at = stop
    except struct_error as error:
        raise RemoteProtocolError(f"the message at byte {at} of a batch cannot be read: {error}") from None
    if 0 in b"".join(texts):
        raise RemoteProtocolError(NUL_IN_PROPERTIES)
    return pieces, positions, sizes, texts


def parse_properties(text: str) -> dict[str, str]:
    """The map of a properties text: name 0x01 value, joined by 0x02. A piece without both is dropped."""
    found = {}
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            found[name] = value
    return found


_QUEUE_UNIT = Struct(">qiq")


def encode_queue_units(units: Iterable[tuple[int, int, int]]) -> bytes:
    """Consume queue units of (physical offset, size, tags code), 20 bytes each."""
    pack = _QUEUE_UNIT.pack
    return b"".join([pack(*unit) for unit in units])
