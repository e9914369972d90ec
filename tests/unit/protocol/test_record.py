"""Records, batches, properties, checksums and compression, against what RocketMQ 4.9.7 wrote."""

from __future__ import annotations

import base64
import builtins
import hashlib
import ipaddress
import json
import struct
import tracemalloc
import zlib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.errors import CorruptRecord, LocalProtocolError, RemoteProtocolError
from rmq.message import StoredMessage
from rmq.protocol import record as codec
from rmq.protocol.codes import SYS_BORNHOST_V6, SYS_COMPRESSED, SYS_STOREHOST_V6, CompressionType
from rmq.protocol.properties import decode_properties, encode_properties
from rmq.protocol.record import (
    BLANK_MAGIC,
    MESSAGE_MAGIC,
    Record,
    compress,
    compressed_flag,
    crc32,
    decode_batch,
    decode_record,
    decode_records,
    decompress,
    encode_batch,
    encode_record,
    host_bytes,
    host_text,
    record_size,
)

V4 = bytes.fromhex("7f00000100002a9f")
V6 = bytes.fromhex("20010db8000000000000000000000001" + "00002a9f")


def load(golden: Path, name: str) -> Any:
    return json.loads((golden / name).read_text())


def hosts(text: str) -> str:
    """The vectors' "ip port" as we write it."""
    ip, port = text.split()
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


# --- vectors ---


def test_captured_messages(golden: Path) -> None:
    vectors = load(golden, "message_codec.json")["messages"]
    assert len(vectors) == 8
    for vector in vectors:
        want = vector["decoded"]
        message = decode_record(bytes.fromhex(vector["hex"]), check_crc=False)
        assert (message.topic, message.queue_id, message.queue_offset) == (
            want["topic"],
            want["queue_id"],
            want["queue_offset"],
        )
        assert (message.physical_offset, message.size, message.flag, message.sys_flag) == (
            want["phy_offset"],
            want["store_size"],
            want["flag"],
            want["sys_flag"],
        )
        assert (message.born_timestamp, message.store_timestamp) == (
            want["born_timestamp"],
            want["store_timestamp"],
        )
        assert (message.reconsume_times, message.prepared_transaction_offset) == (
            want["reconsume_times"],
            want["prepared_transaction_offset"],
        )
        assert (message.body, message.properties) == (base64.b64decode(want["body_b64"]), want["properties"])
        assert (message.born_host, message.store_host) == (
            hosts(vector["born_host"]),
            hosts(vector["store_host"]),
        )
        assert message.offset_message_id == want["msg_id"]


def rebuilt(message: StoredMessage, stored_body: bytes, properties: str) -> bytes:
    again = Record(
        message.topic,
        message.queue_id,
        stored_body,
        properties,
        message.flag,
        message.sys_flag,
        message.born_timestamp,
        host_bytes(message.born_host),
        message.reconsume_times,
        message.prepared_transaction_offset,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        store_timestamp=message.store_timestamp,
    )
    return encode_record(again, host_bytes(message.store_host))


def properties_text(data: bytes) -> str:
    """The last field of a record: found from its end, since the fields before it have other lengths."""
    for length in range(len(data) - 2):
        at = len(data) - length - 2
        if data[at:].startswith(length.to_bytes(2, "big")):
            text = data[at + 2 :]
            if length == 0 or b"\x01" in text:
                return text.decode()
    raise AssertionError("no properties")


def test_captured_messages_are_written_back_byte_for_byte(golden: Path) -> None:
    for vector in load(golden, "message_codec.json")["messages"]:
        data = bytes.fromhex(vector["hex"])
        message = decode_record(data, check_crc=False)
        stored = decode_record(data, check_crc=False, decompressed=False).body
        again = bytearray(rebuilt(message, stored, properties_text(data)))
        again[8:12] = bytes(4)  # Java was not asked for a CRC in these vectors
        assert bytes(again) == data


@pytest.fixture(scope="module")
def stored_log(golden: Path) -> tuple[dict[str, Any], dict[int, bytes]]:
    files = {int(path.name): path.read_bytes() for path in (golden / "store" / "commitlog").iterdir()}
    return load(golden, "store/expected.json"), files


def test_every_message_of_the_captured_store(stored_log: Any) -> None:
    expected, files = stored_log
    assert len(expected["messages"]) == 182
    for want in expected["messages"]:
        message = decode_record(files[int(want["file"])], want["pos_in_file"])
        for ours, theirs in {
            "physical_offset": "phy_offset",
            "size": "store_size",
            "body_crc": "body_crc",
            "queue_id": "queue_id",
            "flag": "flag",
            "queue_offset": "queue_offset",
            "sys_flag": "sys_flag",
            "born_timestamp": "born_timestamp",
            "born_host": "born_host",
            "store_timestamp": "store_timestamp",
            "store_host": "store_host",
            "reconsume_times": "reconsume_times",
            "prepared_transaction_offset": "prepared_transaction_offset",
            "topic": "topic",
            "properties": "properties",
            "tags": "tags",
            "offset_message_id": "offset_msg_id",
        }.items():
            assert getattr(message, ours) == want[theirs], (want["phy_offset"], ours)
        assert hashlib.sha256(message.body).hexdigest() == want["body_sha256"]
        if want["uniq_key"]:
            assert message.message_id == want["uniq_key"]


def test_every_message_of_the_captured_store_is_written_back(stored_log: Any) -> None:
    expected, files = stored_log
    for want in expected["messages"]:
        at, size = want["pos_in_file"], want["store_size"]
        data = files[int(want["file"])][at : at + size]
        stored = decode_record(data, decompressed=False)
        assert hashlib.sha256(stored.body).hexdigest() == want["stored_body_sha256"]
        assert rebuilt(stored, stored.body, properties_text(data)) == data


def test_the_body_of_a_pull(golden: Path) -> None:
    body = base64.b64decode(load(golden, "frames/09_pull_response_found.json")["body_b64"])
    messages = decode_records(body)
    assert [message.queue_offset for message in messages] == [41, 42]
    assert [message.keys for message in messages] == [("k1",), ("k2",)]
    assert decode_records(memoryview(body)) != []
    assert decode_records(b"") == []


def test_batches(golden: Path) -> None:
    vectors = load(golden, "message_codec.json")["batches"]
    assert vectors
    for vector in vectors:
        data = bytes.fromhex(vector["hex"])
        decoded = decode_batch(data)
        assert [
            (flag, base64.b64encode(body).decode(), decode_properties(text)) for flag, body, text in decoded
        ] == [(item["flag"], item["body_b64"], item["properties"]) for item in vector["messages"]]
        assert encode_batch(decoded) == data


def test_properties(golden: Path) -> None:
    vectors = load(golden, "properties.json")
    for vector in vectors["encode"]:
        assert encode_properties(vector["map"]) == vector["string"]
        assert decode_properties(vector["string"]) == vector["decoded_again"]
    for vector in vectors["decode"]:
        assert decode_properties(vector["string"]) == vector["map"]


def test_checksums(golden: Path) -> None:
    for vector in load(golden, "crc.json")["vectors"]:
        assert crc32(base64.b64decode(vector["body_b64"])) == vector["body_crc"]


def test_magics() -> None:
    assert MESSAGE_MAGIC == 0xDAA320A7
    assert BLANK_MAGIC == 0xCBD43194


# --- records of our own ---

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
HOSTS = st.sampled_from([V4, V6])
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.builds(
    Record,
    topic=TEXT,
    queue_id=INT32,
    body=st.binary(max_size=40),
    properties=st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=5),
        st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=5),
        max_size=3,
    ).map(encode_properties),
    flag=INT32,
    sys_flag=st.sampled_from([0, 2, 4, 8, 12]),
    born_timestamp=INT64,
    born_host=HOSTS,
    reconsume_times=INT32,
    prepared_transaction_offset=INT64,
    queue_offset=INT64,
    physical_offset=INT64,
    store_timestamp=INT64,
)


@given(RECORDS, HOSTS, st.binary(max_size=9))
def test_what_is_written_is_read(record: Record, store_host: bytes, before: bytes) -> None:
    data = encode_record(record, store_host)
    assert len(data) == record_size(record, store_host)
    message = decode_record(before + data + b"more", len(before))
    assert (message.topic, message.queue_id, message.body) == (record.topic, record.queue_id, record.body)
    assert encode_properties(message.properties) == record.properties
    assert (message.flag, message.queue_offset) == (record.flag, record.queue_offset)
    assert (message.born_timestamp, message.store_timestamp) == (
        record.born_timestamp,
        record.store_timestamp,
    )
    assert (message.born_host, message.store_host) == (host_text(record.born_host), host_text(store_host))
    assert message.reconsume_times == record.reconsume_times
    assert message.prepared_transaction_offset == record.prepared_transaction_offset
    assert (message.physical_offset, message.size) == (record.physical_offset, len(data))
    assert message.body_crc == crc32(record.body)
    assert message.sys_flag & ~48 == record.sys_flag
    assert message.sys_flag & 48 == (16 if len(record.born_host) == 20 else 0) | (
        32 if len(store_host) == 20 else 0
    )


def test_too_long_texts_are_not_written() -> None:
    assert encode_record(Record("t" * 127, 0, b"", "a\x01" + "x" * 32765), V4)
    with pytest.raises(LocalProtocolError, match="128"):
        encode_record(Record("t" * 128, 0, b""), V4)
    with pytest.raises(LocalProtocolError, match="32768"):
        encode_record(Record("t", 0, b"", "x" * 32768), V4)
    with pytest.raises(LocalProtocolError, match="32768"):
        encode_batch([(0, b"", "x" * 32768)])


GOOD = encode_record(Record("Topic", 1, b"some body", "TAGS\x01a\x02k\x01v"), V4)


def test_a_record_cut_anywhere_is_corrupt() -> None:
    for length in range(len(GOOD)):
        with pytest.raises(CorruptRecord):
            decode_record(GOOD[:length])
        with pytest.raises(CorruptRecord):
            decode_record(memoryview(GOOD)[:length])


@pytest.mark.parametrize("at", [-1, -len(GOOD), len(GOOD), len(GOOD) + 1, 1 << 40])
def test_a_place_outside_the_buffer_is_corrupt(at: int) -> None:
    with pytest.raises(CorruptRecord):
        decode_record(GOOD, at)


def test_a_wrong_magic_is_corrupt() -> None:
    with pytest.raises(CorruptRecord, match="magic"):
        decode_record(GOOD[:4] + struct.pack(">I", BLANK_MAGIC) + GOOD[8:])


def test_a_negative_body_length_is_corrupt() -> None:
    """Lengths that agree with each other: the last byte of the body's length is the topic's length."""
    data = struct.pack(">iIiiiqqiq8sq8siqi", 345, MESSAGE_MAGIC, 0, 0, 0, 0, 0, 0, 0, V4, 0, V4, 0, 0, -1)
    with pytest.raises(CorruptRecord, match="lengths"):
        decode_record(data + b"t" * 255 + bytes(2))


def test_a_wrong_checksum_is_seen() -> None:
    damaged = bytearray(GOOD)
    damaged[GOOD.index(b"some body")] ^= 1
    with pytest.raises(CorruptRecord, match="CRC"):
        decode_record(bytes(damaged))
    assert decode_record(bytes(damaged), check_crc=False).body == b"rome body"


@settings(max_examples=250)
@given(st.data())
def test_damage_gives_a_message_or_corrupt_record(data: st.DataObject) -> None:
    damaged = bytearray(GOOD + GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        if data.draw(st.booleans()):
            damaged[at] = data.draw(st.integers(0, 255))
        else:
            damaged[at : at + 4] = struct.pack(">i", data.draw(INT32))
    with suppress(CorruptRecord, RemoteProtocolError):
        decode_record(bytes(damaged), check_crc=False)
    with suppress(CorruptRecord, RemoteProtocolError):
        assert len(decode_records(bytes(damaged))) <= 2


def test_a_blank_is_not_a_message() -> None:
    with pytest.raises(CorruptRecord, match="magic"):
        decode_record(struct.pack(">iI", 200, BLANK_MAGIC) + bytes(192))


BATCH = encode_batch([(1, b"one", "a\x011"), (2, b"two", "")])


def test_a_batch_cut_between_messages_is_shorter_elsewhere_an_error() -> None:
    first = len(encode_batch([(1, b"one", "a\x011")]))
    for length in range(1, len(BATCH)):
        if length == first:
            assert decode_batch(BATCH[:length]) == [(1, b"one", "a\x011")]
        else:
            with pytest.raises(RemoteProtocolError, match="batch"):
                decode_batch(BATCH[:length])


def test_a_batch_whose_sizes_do_not_agree() -> None:
    for size in (0, 24, 26, -1):
        with pytest.raises(RemoteProtocolError, match="inconsistent"):
            decode_batch(struct.pack(">i", size) + BATCH[4:])


@given(st.data())
def test_a_damaged_batch_gives_messages_or_an_error(data: st.DataObject) -> None:
    damaged = bytearray(BATCH)
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at : at + 4] = struct.pack(">i", data.draw(INT32 | st.integers(-30, 60)))
    with suppress(RemoteProtocolError):
        decode_batch(bytes(damaged))


def test_a_batch_of_negative_length_does_not_loop() -> None:
    with pytest.raises(RemoteProtocolError):
        decode_batch(struct.pack(">iiiiih", 0, 0, 0, 0, -22, 0) + bytes(40))


# --- compression ---

MODULES = {CompressionType.LZ4: "lz4", CompressionType.ZSTD: "zstandard", CompressionType.ZLIB: "zlib"}
KINDS = [
    pytest.param(kind, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed"))
    for kind, name in MODULES.items()
]


@pytest.mark.parametrize("kind", KINDS)
def test_compressed_bodies(kind: CompressionType) -> None:
    body = b"the same again and again " * 400
    packed = compress(body, kind)
    assert len(packed) < len(body) // 4
    assert decompress(packed, compressed_flag(kind)) == body
    assert decompress(compress(b"", kind), compressed_flag(kind)) == b""


def test_zlib_is_what_a_flag_without_a_kind_means() -> None:
    assert decompress(zlib.compress(b"x"), 1) == b"x"
    assert compressed_flag() == 769


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(RemoteProtocolError, match="type 5"):
        decompress(b"x", 1 | 5 << 8)


@pytest.mark.parametrize("flags", [1, *map(compressed_flag, MODULES), 1 | 5 << 8])
def test_an_empty_body_is_empty_whatever_its_flags_say(flags: int) -> None:
    record = Record("T", 0, b"", sys_flag=flags, born_host=V4)
    assert decode_record(encode_record(record, V4)).body == b""


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_compressed_body(kind: CompressionType) -> None:
    packed = compress(bytes(range(256)) * 30, kind)
    for broken in (
        b"\0",
        packed[:-1],
        packed[: len(packed) // 2],
        packed[:5],
        b"\xff" * 40,
        b"plain" + packed,
    ):
        with pytest.raises(RemoteProtocolError, match=kind.name):
            decompress(broken, compressed_flag(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_may_not_grow_without_bound(kind: CompressionType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "BODY_MAX", 1000)
    assert len(decompress(compress(bytes(1000), kind), compressed_flag(kind))) == 1000
    for size in (1001, 5_000_000):
        with pytest.raises(RemoteProtocolError, match="1000 bytes"):
            decompress(compress(bytes(size), kind), compressed_flag(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_that_grows_is_not_held_in_memory(
    kind: CompressionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "BODY_MAX", 1000)
    packed = compress(bytes(100_000_000), kind)
    tracemalloc.start()
    with suppress(RemoteProtocolError):
        decompress(packed, compressed_flag(kind))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000_000


def test_blocks_of_a_bomb_are_opened_only_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """zstandard's stream has no limit; blocks of one repeated byte are the smallest that can be."""
    pytest.importorskip("zstandard")
    monkeypatch.setattr(codec, "BODY_MAX", 1 << 20)
    head = struct.pack("<IBB", 0xFD2FB528, 0, 7 << 3)  # windows of 128 KiB
    block, last = struct.pack("<I", 1 << 20 | 2)[:3] + b"a", struct.pack("<I", 1 << 20 | 3)[:3] + b"a"
    fits = head + block * 7 + last
    assert decompress(fits, compressed_flag(CompressionType.ZSTD)) == b"a" * (1 << 20)
    tracemalloc.start()
    with pytest.raises(RemoteProtocolError, match="grows over"):
        decompress(head + block * 10_000 + last, compressed_flag(CompressionType.ZSTD))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 << 20


@pytest.mark.parametrize("kind", [CompressionType.LZ4, CompressionType.ZSTD])
def test_without_the_extra_the_error_says_what_to_install(
    kind: CompressionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name.split(".")[0] in ("lz4", "zstandard"):
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr("importlib.import_module", without)
    with pytest.raises(LocalProtocolError, match=r"rmq\[codecs\]"):
        compress(b"", kind)
    with pytest.raises((LocalProtocolError, RemoteProtocolError), match=r"rmq\[codecs\]"):
        decompress(b"x", compressed_flag(kind))


# --- hosts ---


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("127.0.0.1:10911", V4),
        ("[2001:db8::1]:10911", V6),
        ("0.0.0.0:0", bytes(8)),
    ],
)
def test_hosts(text: str, data: bytes) -> None:
    assert host_bytes(text) == data
    assert host_text(data) == text


@pytest.mark.parametrize(
    "text", ["", "localhost:1", "127.0.0.1", "127.0.0.1:", "1.2.3:4", "127.0.0.1:x", "127.0.0.1:-1"]
)
def test_what_is_not_a_host(text: str) -> None:
    with pytest.raises(LocalProtocolError, match="IP address with a port"):
        host_bytes(text)


@given(st.ip_addresses(), st.integers(0, 65535))
def test_any_host(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    data = address.packed + port.to_bytes(4, "big")
    if getattr(address, "scope_id", None) is None:
        assert host_bytes(host_text(data)) == data


@pytest.mark.parametrize("hosts", codec.HOST_BITS)
def test_parts_of_a_record_are_those_of_the_whole(hosts: int) -> None:
    """Scans and views read some fields only; all take the layout from one table."""
    whole = Record("T", 3, b"body", "a\x011", flag=-5, sys_flag=hosts | SYS_COMPRESSED, born_timestamp=2**40)
    whole.born_host = bytes(range(20 if hosts & SYS_BORNHOST_V6 else 8))
    whole.queue_offset, whole.physical_offset, whole.store_timestamp = 7, 2**33, 2**41
    whole.reconsume_times, whole.prepared_transaction_offset = 4, 2**34
    store_host = bytes(range(1, 21 if hosts & SYS_STOREHOST_V6 else 9))
    data = encode_record(whole, store_host)
    names = [name for name, _ in codec.FIELDS]
    values = dict(zip(names, codec.parts(*names)[hosts].unpack_from(data), strict=True))
    for name in names:
        form = codec.part(name, hosts=hosts)
        (alone,) = form.unpack_from(data)
        assert alone == values[name], name
        if name not in ("magic", "crc", "size", "body_size", "sys_flag", "store_host"):
            assert alone == getattr(whole, name), name
        at = codec.offset_of(name, hosts)
        assert form.unpack(bytes(at) + data[at : form.size]) == (alone,), name  # it is there and nowhere else
    assert (values["size"], values["magic"], values["body_size"]) == (len(data), MESSAGE_MAGIC, 4)
    assert (values["sys_flag"], values["store_host"]) == (hosts | SYS_COMPRESSED, store_host)
    assert codec.property_bytes(memoryview(data)) == b"a\x011"


def test_places_in_a_record() -> None:
    """The places are those that RocketMQ's own code names by number."""
    places = {"magic": 4, "physical_offset": 28, "sys_flag": 36, "born_timestamp": 40, "store_timestamp": 56}
    assert {name: codec.offset_of(name) for name in places} == places
    assert codec.offset_of("store_timestamp", SYS_BORNHOST_V6) == 68
