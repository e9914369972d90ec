"""Messages, names, ids and Java's string hash, against the values that Java gave."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import message as words
from rmq.errors import InvalidName, LocalProtocolError
from rmq.message import (
    Message,
    MessageQueue,
    StoredMessage,
    UniqueIds,
    java_hash,
    offset_message_id,
    parse_offset_message_id,
    tags_code,
    validate_group,
    validate_topic,
    with_properties,
)


def load(golden: Path, name: str) -> Any:
    return json.loads((golden / name).read_text())


def stored(**changes: Any) -> StoredMessage:
    values: dict[str, Any] = {
        "topic": "T",
        "queue_id": 1,
        "queue_offset": 2,
        "physical_offset": 3,
        "size": 4,
        "body": b"body",
        "properties": {},
        "store_host": "127.0.0.1:10911",
    }
    return StoredMessage(**(values | changes))


# --- words ---


def test_property_names_are_rocketmqs(golden: Path) -> None:
    java = load(golden, "codes.json")["constants"]["MessageConst"]["values"]
    ours = {value for name, value in vars(words).items() if name.startswith("PROPERTY_")}
    assert ours <= {value for value in java.values() if isinstance(value, str)}
    assert java["KEY_SEPARATOR"] == words.KEY_SEPARATOR


def test_system_topics_are_rocketmqs(golden: Path) -> None:
    java = load(golden, "codes.json")["constants"]["TopicValidator"]["values"]
    assert set(java["SYSTEM_TOPIC_SET"]) == words.SYSTEM_TOPICS
    assert set(java["NOT_ALLOWED_SEND_TOPIC_SET"]) == words.NOT_SENDABLE_TOPICS
    assert java["SYSTEM_TOPIC_PREFIX"] == words.SYSTEM_TOPIC_PREFIX
    assert java["TOPIC_MAX_LENGTH"] == words.NAME_LENGTH_MAX


def test_prefixes() -> None:
    assert words.retry_topic("g") == "%RETRY%g"
    assert words.dlq_topic("g") == "%DLQ%g"


@pytest.mark.parametrize("name", ["T", "a-b_c|d%9", "%RETRY%group", "x" * 120])
def test_good_names(name: str) -> None:
    assert validate_topic(name) == name
    assert validate_group(name) == name
    assert validate_topic("x" * 127)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        ("x" * 128, "127"),
        ("../etc", "letters"),
        ("a/b", "letters"),
        ("a b", "letters"),
        ("a\n", "letters"),
        ("müll", "letters"),
        ("a.b", "letters"),
        ("a\x00", "letters"),
    ],
)
def test_bad_names(name: str, reason: str) -> None:
    with pytest.raises(InvalidName, match=reason) as caught:
        validate_topic(name)
    assert caught.value.kind == "topic"
    with pytest.raises(InvalidName, match=reason.replace("127", "120")) as caught:
        validate_group(name)
    assert caught.value.kind == "group"


# --- values ---


def test_queues_are_ordered_and_hashable() -> None:
    queues = [MessageQueue("b", "x", 0), MessageQueue("a", "y", 1), MessageQueue("a", "y", 0)]
    assert sorted(queues) == [queues[2], queues[1], queues[0]]
    assert len({*queues, MessageQueue("a", "y", 0)}) == 3
    with pytest.raises(AttributeError):
        queues[0].queue_id = 5  # type: ignore[misc]


def test_keys_may_be_a_text_or_a_list() -> None:
    assert Message("T", b"", keys="a b").keys == ("a", "b")
    assert Message("T", b"", keys=["a", "b"]).keys == ("a", "b")
    assert Message("T", b"").keys == ()


def test_each_message_has_properties_of_its_own() -> None:
    first, second = Message("T", b""), Message("T", b"")
    first.properties["a"] = "1"
    assert second.properties == {}


def test_properties_to_send() -> None:
    message = Message("T", b"", tags="paid", keys=["1", "2"], properties={"a": "b"}, delay_level=3)
    assert with_properties(message, {"UNIQ_KEY": "ID"}) == {
        "a": "b",
        "KEYS": "1 2",
        "TAGS": "paid",
        "DELAY": "3",
        "WAIT": "true",
        "UNIQ_KEY": "ID",
    }
    assert with_properties(Message("T", b"", wait_store=False), {}) == {"WAIT": "false"}
    assert message.properties == {"a": "b"}


def test_stored_message_reads_its_properties() -> None:
    message = stored(properties={"TAGS": "t", "KEYS": "a  b", "UNIQ_KEY": "ID", "DELAY": "4"})
    assert (message.tags, message.keys, message.message_id, message.delay_level) == ("t", ("a", "b"), "ID", 4)
    assert message.message_queue == MessageQueue("T", "", 1)
    bare = stored()
    assert (bare.tags, bare.keys, bare.delay_level) == (None, (), 0)
    assert bare.message_id == bare.offset_message_id == "7F00000100002A9F0000000000000003"
    assert stored(properties={"DELAY": "soon"}).delay_level == 0


# --- ids ---


def test_offset_message_ids(golden: Path) -> None:
    for vector in load(golden, "msgid.json")["offset_ids"]:
        ip = vector["ip"]
        host = f"[{ip}]" if ":" in ip else ip
        message = stored(store_host=f"{host}:{vector['port']}", physical_offset=vector["offset"])
        assert message.offset_message_id == vector["message_id"]
        address, offset = parse_offset_message_id(vector["message_id"])
        assert (address, offset) == (f"{host}:{vector['port']}", vector["offset"])
        assert parse_offset_message_id(vector["message_id"].lower()) == (address, offset)


def test_offset_message_id_of_bytes() -> None:
    assert offset_message_id(b"\x7f\x00\x00\x01\x00\x00\x2a\x9f", 1) == "7F00000100002A9F0000000000000001"


@pytest.mark.parametrize(
    "text", ["", "7F", "zz", "7F00000100002A9F000000000000000G", "00" * 15, "00" * 20, "é" * 32]
)
def test_what_is_not_an_offset_message_id(text: str) -> None:
    with pytest.raises(LocalProtocolError, match="32 or 56 hex digits"):
        parse_offset_message_id(text)


@pytest.fixture
def utc() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_unique_ids_have_javas_form(golden: Path) -> None:
    vectors = load(golden, "msgid.json")
    for vector in vectors["uniq_ids_created_ipv4_host"] + vectors["uniq_ids_created_ipv6_host"]:
        text = vector["id"]
        width = 16 if ":" in vector["ip"] else 4
        ids = UniqueIds(
            bytes.fromhex(text[: 2 * width]),
            vector["pid"],
            lambda moment=vector["time_from_id_ms"]: moment,
            bytes.fromhex(vector["classloader_hash_hex"]),
        )
        made = [ids.next() for _ in range(int(vector["counter_hex"], 16) + 1)]
        assert made[-1] == text


@pytest.mark.usefixtures("utc")
def test_unique_ids_count_round_and_follow_the_month() -> None:
    now = 1_701_388_799_999  # the last millisecond of November 2023
    ids = UniqueIds(b"\x7f\x00\x00\x01", 70_000, lambda: now, b"\0\0\0\0")
    first = ids.next()
    assert first == "7F000001" + f"{70_000 & 0xFFFF:04X}" + "00000000" + f"{30 * 86_400_000 - 1:08X}" + "0000"
    now += 1
    assert ids.next()[-20:] == "00000001" + "000000000001", "other bytes, as the milliseconds begin again"
    for _ in range(65_534):
        last = ids.next()
    assert last.endswith("FFFF")
    assert ids.next()[-12:] == "000000000000"
    assert ids.next()[-12:] == "000000010001", "the counter has had all its values in this millisecond"
    now -= 1
    assert ids.next()[-12:] == "000000010002"


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize("back", [1, 3_600_000, 40 * 86_400_000])
def test_unique_ids_do_not_repeat_when_the_clock_goes_back(back: int) -> None:
    """The counter alone told the ids of such a time from those made at it before."""
    now = 1_701_388_799_000
    ids = UniqueIds(b"\x7f\x00\x00\x01", 1, lambda: now, b"\0\0\0\0")
    made = set()
    for turn in range(3):
        for _ in range(70_000):
            made.add(ids.next())
            now += 1
        now -= back + 70_000 * (turn % 2)
    assert len(made) == 210_000
    times = sorted(made)
    now += 2 * back + 500_000
    assert ids.next() > times[-1]


def test_two_makers_of_a_process_differ() -> None:
    one, two = (UniqueIds(b"\x7f\x00\x00\x01", 1, lambda: 0) for _ in range(2))
    assert one.next() != two.next()


# --- Java's string hash ---


def test_tags_codes(golden: Path) -> None:
    vectors = load(golden, "tagscode.json")["vectors"]
    assert len(vectors) == 200
    for vector in vectors:
        assert java_hash(vector["s"]) == vector["hashCode"], vector
        assert tags_code(vector["s"]) == vector["tagsCode"]
    assert tags_code(None) == tags_code("") == 0


def test_index_keys(golden: Path) -> None:
    for vector in load(golden, "index_hash.json")["vectors"]:
        assert java_hash(vector["index_key"]) == vector["java_hash"], vector


@given(st.text(st.characters(), max_size=40) | st.text("ab", min_size=500, max_size=1500))
def test_hash_is_the_sum_over_utf16_units(text: str) -> None:
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    assert java_hash(text) == (value - 0x1_0000_0000 if value >= 0x8000_0000 else value)


def test_codes_of_long_tags_are_not_remembered() -> None:
    words._code_of_short.cache_clear()
    assert tags_code("x" * 30_000) == java_hash("x" * 30_000)
    assert words._code_of_short.cache_info().currsize == 0
    assert tags_code("TagA") == java_hash("TagA")
    assert words._code_of_short.cache_info().currsize == 1


def test_a_group_leaves_room_for_the_name_of_its_retry_topic() -> None:
    """With 121 to 127 characters it was taken, and could never have a message again."""
    assert validate_topic(words.retry_topic(validate_group("g" * 120)))
    with pytest.raises(InvalidName, match="121 characters, at most 120"):
        validate_group("g" * 121)


@pytest.mark.parametrize("port", [-1, 65536, 1 << 30])
def test_a_unique_id_is_no_offset_id(port: int) -> None:
    """A unique id has the same length: in the place of the port it has a process and a number."""
    text = (bytes([10, 0, 0, 1]) + struct.pack(">iq", port, 7)).hex()
    with pytest.raises(LocalProtocolError, match="unique id"):
        parse_offset_message_id(text)
