"""The message record: the same bytes in the commit log and in the body of a pull's response.

Big-endian: the fields of `FIELDS`, the body, the topic after its length (1 byte), the properties after theirs
(2 bytes). A host is an IPv4 or IPv6 address and a 4-byte port, according to two bits of the sys flag. A
reader of some fields only, such as a scan of the log, takes their form from this module (`part`,
`offset_of`). Checked against records of RocketMQ 4.9.7.

`build_record` and `build_batch` take the fields as arguments, not as an object: the call is the cost of
storing a message. For the same reason the loop of `build_batch` is a single function. These two and
`decode_batch` have compiled counterparts: functions over buffers, without an object for each message.
"""

from __future__ import annotations

import importlib
import ipaddress
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from struct import Struct, calcsize
from struct import error as struct_error
from typing import Any, Final

from attrs import define

from rmq.errors import CorruptRecord, LocalProtocolError, RemoteProtocolError, RmqError
from rmq.message import (
    PROPERTY_TAGS,
    StoredMessage,
    tags_code,
)
from rmq.protocol.codes import (
    SYS_BORNHOST_V6,
    SYS_COMPRESSED,
    SYS_COMPRESSION_MASK,
    SYS_HOST_BITS,
    SYS_STOREHOST_V6,
    CompressionType,
)
from rmq.protocol.json import JAVA, java_text
from rmq.protocol.properties import decode_properties, encode_properties, record_keys

# --- layout ---

FIELDS: Final = (
    ("size", "i"),
    ("magic", "I"),
    ("crc", "i"),  # of the body
    ("queue_id", "i"),
    ("flag", "i"),
    ("queue_offset", "q"),
    ("physical_offset", "q"),
    ("sys_flag", "i"),
    ("born_timestamp", "q"),
    ("born_host", "8s"),
    ("store_timestamp", "q"),
    ("store_host", "8s"),
    ("reconsume_times", "i"),
    ("prepared_transaction_offset", "q"),
    ("body_size", "i"),
)
"""Names and struct codes of the fields before the body; a host has 20 bytes instead when it is IPv6."""
MESSAGE_MAGIC: Final = 0xDAA320A7
BLANK_MAGIC: Final = 0xCBD43194
"""The magic of the record that closes a file of the log, which consists of its length and this."""

HOST_BITS: Final = (0, SYS_BORNHOST_V6, SYS_STOREHOST_V6, SYS_HOST_BITS)
"""Combinations of the two host bits of a sys flag; the layout depends on nothing else."""


def _codes(hosts: int) -> list[str]:
    long = {"born_host": hosts & SYS_BORNHOST_V6, "store_host": hosts & SYS_STOREHOST_V6}
    return ["20s" if long.get(name) else code for name, code in FIELDS]


def part(*names: str, hosts: int = 0) -> Struct:
    """A reader of these fields of a record, in order; it skips all other fields, and its size is the end of
    the last field. `hosts` are the host bits of the record's sys flag."""
    form, passed = ">", 0
    for (name, _), code in zip(FIELDS, _codes(hosts), strict=True):
        if name in names:
            form += f"{passed}x{code}" if passed else code
            passed = 0
        else:
            passed += calcsize(f">{code}")
    return Struct(form)


def parts(*names: str) -> dict[int, Struct]:
    """`part` for each combination of host bits."""
    return {hosts: part(*names, hosts=hosts) for hosts in HOST_BITS}


def offset_of(name: str, hosts: int = 0) -> int:
    """The offset of a field in a record with these host bits."""
    names = [known for known, _ in FIELDS]
    return calcsize(">" + "".join(_codes(hosts)[: names.index(name)]))


def host_bits(born_host: bytes, store_host: bytes) -> int:
    """The bits of the sys flag for these hosts."""
    return (SYS_BORNHOST_V6 if len(born_host) == 20 else 0) | (
        SYS_STOREHOST_V6 if len(store_host) == 20 else 0
    )


_HEAD = parts(*dict(FIELDS))
_HEAD_V4: Final = _HEAD[0]
_SYS_FLAG = part("sys_flag")
_BODY_SIZE = parts("body_size")
_PROPERTIES_LENGTH = Struct(">h")

FIXED_SIZE: Final = _HEAD_V4.size + 3
assert FIXED_SIZE == 91  # as in RocketMQ: files and peers depend on it
"""Bytes of a record beside body, topic and properties, with two IPv4 hosts: the shortest that can be. An IPv6
host takes 12 more; the three are the lengths of topic and properties."""
PROPERTIES_MAX: Final = 32767
BODY_MAX: Final = 16 * 1024 * 1024
"""Bytes that a compressed body may grow to without a setting: four times the largest message of a broker."""


@define
class Record:
    """A message on its way into the store. The store fills the last four fields.

    `body` is as it is stored (maybe compressed), `properties` is the text form, `born_host` the address of 4
    or 16 bytes followed by 4 bytes of port, `keys` the keys for the index (the unique key first).
    """

    topic: str
    queue_id: int
    body: bytes
    properties: str = ""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    tags_code: int = 0
    keys: tuple[str, ...] = ()
    queue_offset: int = 0
    physical_offset: int = 0
    store_timestamp: int = 0
    size: int = 0


NUL_IN_PROPERTIES: Final = (
    "the properties have the character NUL (0x00), which is what a power cut leaves of a page"
)
"""The reason to refuse such properties."""


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
    `topic` follows its length byte."""
    form = _HEAD_V4 if len(born_host) == 8 == len(store_host) else _HEAD[host_bits(born_host, store_host)]
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


def _shared_forms(hosts: int) -> tuple[Struct, Struct]:
    codes = _codes(hosts)
    shared = Struct(f">{''.join(codes[8:14])}")
    return shared, Struct(f">{''.join(codes[:8])}{shared.size}s{codes[14]}")


_SHARED = {hosts: _shared_forms(hosts) for hosts in HOST_BITS}
"""The part that the heads of a batch's records have in common, from the born time on, and a head around
it."""


def decode_batch(body: bytes) -> list[tuple[int, bytes, str]]:
    """The messages of a batch body as (flag, body, properties text); bytes that are not UTF-8 are read as
    Java reads them. Raises RemoteProtocolError."""
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
    """The records of a batch body, in order: their pieces, their physical offsets, their sizes, and their
    sent properties.

    Each record gets `suffix` after its properties, which may be no UTF-8: they are stored unchanged, as by
    Java. `place` = (queue id, queue offset, physical offset, sys flag) of the first record; the rest as for
    `build_record`. Raises RemoteProtocolError.
    """
    queue_id, queue_offset, position, sys_flag = place
    born_at, born_host = born
    stored_at, store_host = stored
    shared_form, form = _SHARED[host_bits(born_host, store_host)]
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


def record_size(record: Record, store_host: bytes) -> int:
    """Bytes that `record` takes in the log."""
    return (
        FIXED_SIZE
        - 16
        + len(record.born_host)
        + len(store_host)
        + len(record.body)
        + len(record.topic.encode())
        + len(record.properties.encode())
    )


def encode_record(record: Record, store_host: bytes) -> bytes:
    """The record's bytes. The host bits of the sys flag are set for these hosts.

    Raises LocalProtocolError when topic or properties are too long for their length fields.
    """
    topic, properties = record.topic.encode(), record.properties.encode()
    if len(topic) > 127 or len(properties) > PROPERTIES_MAX:
        raise LocalProtocolError(
            f"topic of {len(topic)} or properties of {len(properties)} bytes are too long"
        )
    sys_flag = record.sys_flag & ~SYS_HOST_BITS | host_bits(record.born_host, store_host)
    return build_record(
        record_size(record, store_host),
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        sys_flag,
        record.born_timestamp,
        record.born_host,
        record.store_timestamp,
        store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
        record.body,
        bytes([len(topic)]) + topic,
        properties,
    )


def decode_record(
    buffer: bytes | memoryview,
    at: int = 0,
    *,
    check_crc: bool = True,
    decompressed: bool = True,
    body_max: int | None = None,
) -> StoredMessage:
    """The message that begins at byte `at` of `buffer`.

    A compressed body is decompressed (see `decompress`), unless `decompressed` is False. In texts U+FFFD
    replaces bytes that are not UTF-8, as in RocketMQ. Raises CorruptRecord when the bytes are not a whole
    record or its CRC is wrong.
    """
    try:
        form = _HEAD_V4
        fields = form.unpack_from(buffer, at)
        if fields[7] & SYS_HOST_BITS:
            form = _HEAD[fields[7] & SYS_HOST_BITS]
            fields = form.unpack_from(buffer, at)
        size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag = fields[:8]
        length = fields[14]
        body_at = at + form.size
        topic_at = body_at + length
        properties_at = topic_at + 1 + buffer[topic_at]
        end = properties_at + 2 + _PROPERTIES_LENGTH.unpack_from(buffer, properties_at)[0]
        topic = str(buffer[topic_at + 1 : properties_at], "utf-8", JAVA)
        properties = str(buffer[properties_at + 2 : end], "utf-8", JAVA)
    except (struct_error, IndexError) as error:
        raise CorruptRecord("record", at, str(error)) from None
    if magic != MESSAGE_MAGIC or end != at + size or end > len(buffer) or length < 0 or at < 0:
        raise CorruptRecord("record", at, f"size {size}, magic {magic:#x} and lengths do not agree")
    body = bytes(buffer[body_at:topic_at])
    if check_crc and crc != zlib.crc32(body) & 0x7FFF_FFFF:
        raise CorruptRecord("record", at, f"the body's CRC is not {crc}")
    if sys_flag & SYS_COMPRESSED and decompressed:
        body = decompress(body, sys_flag, body_max)
    return StoredMessage(
        topic,
        queue_id,
        queue_offset,
        physical_offset,
        size,
        body,
        decode_properties(properties),
        flag,
        sys_flag,
        crc,
        fields[8],
        host_text(fields[9]),
        fields[10],
        host_text(fields[11]),
        fields[12],
        fields[13],
    )


def property_bytes(record: bytes | memoryview) -> bytes:
    """The properties of a record as bytes, without decoding other parts. Raises CorruptRecord when the record
    is too short."""
    try:
        (sys_flag,) = _SYS_FLAG.unpack_from(record)
        form = _BODY_SIZE[sys_flag & SYS_HOST_BITS]
        topic_at = form.size + form.unpack_from(record)[0]
        start = topic_at + 3 + record[topic_at]
        (size,) = _PROPERTIES_LENGTH.unpack_from(record, start - 2)
        return bytes(record[start : start + size])
    except (struct_error, IndexError) as error:
        raise CorruptRecord("record", 0, str(error)) from None


def decode_records(buffer: bytes | memoryview, *, decompressed: bool = True) -> list[StoredMessage]:
    """The messages of a pull's answer, all in memory. Raises CorruptRecord."""
    messages = []
    at, end = 0, len(buffer)
    while at < end:
        message = decode_record(buffer, at, decompressed=decompressed)
        messages.append(message)
        at += message.size
    return messages


def decode_readable(
    buffer: bytes | memoryview, on_damage: Callable[[StoredMessage | None, RmqError], None], most: int
) -> tuple[list[StoredMessage], list[StoredMessage]]:
    """The messages of a pull's answer, without those that cannot be read: a damaged body, or one that cannot
    be decompressed, which any producer may send. `on_damage` is called for each of them, with the message as
    sent; with None for bytes that are no record: the reader goes on behind the size that they name, if any.

    The bodies have `most` bytes in all, and one body more: the messages behind are returned apart, as sent,
    since a few bytes may be a thousand times as many once they are decompressed.
    """
    messages: list[StoredMessage] = []
    left: list[StoredMessage] = []
    at, end = 0, len(buffer)
    while at < end:
        fits = most >= 0
        try:
            message = decode_record(buffer, at, decompressed=fits)
            if fits:
                messages.append(message)
                most -= len(message.body)
            else:
                left.append(message)
        except (CorruptRecord, RemoteProtocolError, LocalProtocolError) as error:
            try:
                message = decode_record(buffer, at, check_crc=False, decompressed=False)
            except CorruptRecord:
                on_damage(None, error)
                size = int.from_bytes(buffer[at : at + 4], "big")
                if not FIXED_SIZE <= size <= end - at:
                    break
                at += size
                continue
            on_damage(message, error)
        at += message.size
    return messages, left


def encode_batch(messages: Iterable[tuple[int, bytes, str]]) -> bytes:
    """The body of a batch send from (flag, body, properties text)."""
    parts = []
    for flag, body, text in messages:
        properties = text.encode()
        if len(properties) > PROPERTIES_MAX:
            raise LocalProtocolError(f"properties of {len(properties)} bytes are over {PROPERTIES_MAX}")
        size = 22 + len(body) + len(properties)
        parts += [_BATCH_HEAD.pack(size, 0, 0, flag, len(body)), body]
        parts += [len(properties).to_bytes(2, "big"), properties]
    return b"".join(parts)


# --- compression ---

_BY_BITS: Final = {0: CompressionType.ZLIB} | {int(kind) << 8: kind for kind in CompressionType}


def compress(body: bytes, kind: CompressionType = CompressionType.ZLIB, level: int = 5) -> bytes:
    """The body compressed. Raises LocalProtocolError when the library for `kind` is not installed."""
    if kind is CompressionType.ZLIB:
        return zlib.compress(body, level)
    codec = _codec(kind)
    packed: bytes = (
        codec.compress(body) if kind is CompressionType.LZ4 else codec.ZstdCompressor(level=3).compress(body)
    )
    return packed


def compressed_flag(kind: CompressionType = CompressionType.ZLIB) -> int:
    """The sys flag bits that mark a body as compressed by `kind`."""
    return SYS_COMPRESSED | int(kind) << 8


def decompress(body: bytes, sys_flag: int, body_max: int | None = None) -> bytes:
    """The plain body; an empty body is empty, whatever its flags say (as in RocketMQ's decoder). Raises
    RemoteProtocolError for a body that is damaged, of unknown kind or over `body_max` bytes (BODY_MAX)."""
    if not body:
        return body
    kind = _BY_BITS.get(sys_flag & SYS_COMPRESSION_MASK)
    if kind is None:
        raise RemoteProtocolError(f"compression type {(sys_flag & SYS_COMPRESSION_MASK) >> 8} is not known")
    try:
        most = BODY_MAX if body_max is None else body_max
        plain, whole = _OPEN[kind](body, most)
    except (zlib.error, RuntimeError, EOFError) as error:
        raise RemoteProtocolError(f"the {kind.name} body cannot be read: {error}") from None
    if len(plain) > most:
        raise RemoteProtocolError(f"the {kind.name} body of {len(body)} bytes grows over {most} bytes")
    if not whole:
        raise RemoteProtocolError(f"the {kind.name} body is cut off")
    return plain


def _open_zlib(body: bytes, most: int) -> tuple[bytes, bool]:
    """The plain bytes, at most one more than allowed, and whether the stream ended within them."""
    stream = zlib.decompressobj()
    return stream.decompress(body, most + 1), stream.eof


def _open_lz4(body: bytes, most: int) -> tuple[bytes, bool]:
    stream = _codec(CompressionType.LZ4).LZ4FrameDecompressor()
    return stream.decompress(body, most + 1), stream.eof


def _open_zstd(body: bytes, most: int) -> tuple[bytes, bool]:
    codec = _codec(CompressionType.ZSTD)
    stream = codec.ZstdDecompressor().decompressobj()
    parts, at, room = [], 0, most
    try:
        # It has no limit of its own, so it gets at most as many blocks at a time as there is room for.
        while at < len(body) and room >= 0 and not stream.eof:
            step = max(_ZSTD_BLOCK, room // _ZSTD_OPEN_BLOCK * _ZSTD_BLOCK)
            parts.append(stream.decompress(body[at : at + step]))
            at, room = at + step, room - len(parts[-1])
    except codec.ZstdError as error:
        raise RuntimeError(str(error)) from None
    return b"".join(parts), stream.eof


_ZSTD_BLOCK: Final = 4
_ZSTD_OPEN_BLOCK: Final = 128 * 1024
"""The least size of a block that is not empty, and the most that it can hold (RFC 8878, 3.1.1.2)."""


_OPEN: Final = {
    CompressionType.ZLIB: _open_zlib,
    CompressionType.LZ4: _open_lz4,
    CompressionType.ZSTD: _open_zstd,
}


def _codec(kind: CompressionType) -> Any:
    name = "lz4.frame" if kind is CompressionType.LZ4 else "zstandard"
    try:
        return importlib.import_module(name)
    except ImportError:
        raise LocalProtocolError(
            f"a body is compressed by {kind.name}: install the codecs extra, pip install 'rmq[codecs]'"
        ) from None


# --- hosts ---


@lru_cache(maxsize=4096)
def host_text(host: bytes) -> str:
    """ "ip:port" or "[ip]:port" of 8 or 20 bytes."""
    address = ipaddress.ip_address(bytes(host[:-4]))
    port = int.from_bytes(host[-4:], "big", signed=True)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


@lru_cache(maxsize=4096)
def host_bytes(text: str) -> bytes:
    """8 or 20 bytes of "ip:port". Raises LocalProtocolError when it is not a literal address."""
    host, _, port = text.rpartition(":")
    try:
        return ipaddress.ip_address(host.strip("[]")).packed + int(port).to_bytes(4, "big")
    except (ValueError, OverflowError):
        raise LocalProtocolError(f"{text!r} is not an IP address with a port") from None


def record_of(
    message: StoredMessage, topic: str, queue_id: int, properties: Mapping[str, str], code: int | None = None
) -> Record:
    """A record that stores `message` again, in another place; its body must be in its stored form.

    `code` is the tags code, by default that of the TAGS property.
    """
    return Record(
        topic,
        queue_id,
        message.body,
        encode_properties(properties),
        message.flag,
        message.sys_flag,
        message.born_timestamp,
        host_bytes(message.born_host),
        message.reconsume_times,
        0,
        tags_code(properties.get(PROPERTY_TAGS)) if code is None else code,
        record_keys(properties),
    )
