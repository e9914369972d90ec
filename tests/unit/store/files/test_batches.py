"""A batch that is put at once is what its messages are, put one by one."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmq.errors import RemoteProtocolError
from rmq.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY, tags_code
from rmq.protocol.properties import (
    TagsAndKeys,
    decode_properties,
    encode_properties,
    index_keys,
    record_keys,
    unit_code,
)
from rmq.protocol.record import Record
from rmq.store.files.disk import Disk
from rmq.testing.disk import MemoryDisk

from ..stores import START_MS, bodies, open_store

SUFFIX = "CLUSTER\x01c"
SUFFIXES = st.sampled_from(
    [SUFFIX, f"TAGS\x01all\x02{SUFFIX}", f"KEYS\x01a b\x02UNIQ_KEY\x01one\x02{SUFFIX}"]
)
"""The properties that a batch was sent with as a whole count after those of each message."""
WORDS = st.text("abü_ 1", min_size=1, max_size=12)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        PROPERTY_UNIQUE_KEY: WORDS,
        PROPERTY_TAGS: WORDS,
        PROPERTY_KEYS: WORDS,
        "WAIT": st.just("true"),
        "XUNIQ_KEY": WORDS,
    },
)
MESSAGES = st.lists(
    st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=60), PROPERTIES, st.booleans()),
    min_size=1,
    max_size=12,
)


def text_of(properties: dict[str, str], closed: bool) -> str:
    text = encode_properties(properties).removesuffix("\x02")
    return text + "\x02" if closed and text else text


def packed(flag: int, body: bytes, text: str) -> bytes:
    tail = text.encode()
    size = 22 + len(body) + len(tail)
    head = b"".join(number.to_bytes(4, "big", signed=True) for number in (size, 0, 0, flag, len(body)))
    return head + body + len(tail).to_bytes(2, "big") + tail


def one_by_one(
    disk: Disk, messages: list[tuple[int, bytes, dict[str, str], bool]], host: bytes, suffix: str
) -> None:
    store = open_store(disk, mapped_file_size_commit_log=1 << 20)
    for flag, body, properties, closed in messages:
        text = text_of(properties, closed)
        whole = text + suffix if not text or closed else f"{text}\x02{suffix}"
        code = tags_code(decode_properties(whole).get(PROPERTY_TAGS))
        keys = record_keys(decode_properties(whole))
        store.put(Record("Orders", 1, body, whole, flag, 0, 7, host, 2, 0, code, keys))
    store.commit()
    store.close()


@given(MESSAGES, st.sampled_from([bytes(8), bytes(range(20))]), SUFFIXES)
def test_at_once_is_byte_for_byte_one_by_one(
    messages: list[tuple[int, bytes, dict[str, str], bool]], host: bytes, suffix: str
) -> None:
    expected, disk = MemoryDisk(), MemoryDisk()
    one_by_one(expected, messages, host, suffix)
    store = open_store(disk, mapped_file_size_commit_log=1 << 20)
    batch = b"".join(packed(flag, body, text_of(props, closed)) for flag, body, props, closed in messages)
    shared = Record("Orders", 1, b"", born_timestamp=7, born_host=host, reconsume_times=2)
    placed = store.put_batch(shared, batch, suffix.encode())
    assert placed is not None
    assert placed.queue_offset == 0
    assert len(placed.physical_offsets) == len(messages)
    store.commit()
    assert store.max_physical_offset == placed.size
    assert [store.unit("Orders", 1, n)[0] for n in range(len(messages))] == placed.physical_offsets  # type: ignore[index]
    store.close()
    for path in (*expected._files, *disk._files):
        if "checkpoint" not in path and "lock" not in path:
            assert disk.load(path) == expected.load(path), path


def test_a_batch_that_may_not_fit_the_file_is_left_to_single_puts() -> None:
    store = open_store(MemoryDisk(), mapped_file_size_commit_log=4096)
    batch = packed(0, bytes(900), "") * 5
    assert store.put_batch(Record("Orders", 0, b""), batch, b"") is None
    assert store.put_batch(Record("Orders", 0, b""), packed(0, b"a", "A\x01" + "x" * 9000), b"") is None
    assert not store.has_pending
    placed = store.put_batch(Record("Orders", 0, b""), packed(0, b"one", "") + packed(0, b"two", ""), b"")
    assert placed is not None
    store.commit()
    assert bodies(store) == [b"one", b"two"]
    assert store.message_time("Orders", 0, 1) == START_MS


@pytest.mark.parametrize(
    "batch",
    [
        b"\0",
        packed(0, b"a", "")[:-1],
        packed(0, b"a", "") + b"junk",
        packed(0, b"a", "A\x01b\0"),
    ],
)
def test_a_broken_batch_leaves_nothing(batch: bytes) -> None:
    store = open_store(MemoryDisk())
    with pytest.raises(RemoteProtocolError, match=r"of a batch|NUL"):
        store.put_batch(Record("Orders", 0, b""), packed(0, b"good", "") + batch, b"")
    assert not store.has_pending
    assert store.commit() == ()


KEYS = st.sampled_from(["", "A1", "A2", "ü", "x\x01y", "a b", "UNIQ_KEY\x01z"])
AROUND = st.sampled_from(
    [
        ("UNIQ_KEY\x01", ""),
        ("UNIQ_KEY\x01", "\x02TAGS\x01a"),
        ("UNIQ_KEY\x01", "\x02TAGS\x01b"),
        ("TAGS\x01a\x02UNIQ_KEY\x01", "\x02"),
        ("KEYS\x01a b\x02UNIQ_KEY\x01", ""),
        ("KEYS\x01\x02UNIQ_KEY\x01", ""),
        ("XUNIQ_KEY\x01", "\x02UNIQ_KEY\x01c"),
        ("UNIQ_KEY\x01c\x02UNIQ_KEY\x01", ""),
        ("TAGS\x01", ""),
        ("TAGS\x01a\x02TAGS\x01", ""),
        ("UNIQ_KEY\x01", "\x02UNIQ_KEY\x01"),
        ("", ""),
    ]
)


@given(st.lists(st.tuples(AROUND, KEYS, st.integers(1, 3)), max_size=8))
@example([(("UNIQ_KEY\x01", ""), "UNIQ_KEY\x01z", 1), (("UNIQ_KEY\x01", "\x02TAGS\x01a"), "a b", 1)])
def test_marks_of_all_are_those_of_each(texts: list[tuple[tuple[str, str], str, int]]) -> None:
    data = [f"{before}{key}{after}".encode() for (before, after), key, times in texts for _ in range(times)]
    maps = [decode_properties(one.decode()) for one in data]
    expected = [(tags_code(one.get(PROPERTY_TAGS)), record_keys(one)) for one in maps]
    assert [(unit_code(b"", one, 0, {}), index_keys(one)) for one in data] == expected
    marks = TagsAndKeys()
    for _ in range(2):
        codes, keys = marks.of_all(data)
        assert list(zip(codes, keys, strict=True)) == expected
