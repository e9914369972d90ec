"""Records, good or damaged: the compiled engine reads the same as Python."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.errors import CorruptRecord
from rmq.protocol import engine
from rmq.protocol.codes import SYS_COMPRESSED
from rmq.protocol.record import FIXED_SIZE, MESSAGE_MAGIC, Record
from rmq.spark.formats.plain_records import plain_batch
from rmq.spark.formats.records import Records, _found_by_chains
from rmq.spark.formats.schema import COLUMNS, MORE_COLUMNS, arrow_schema
from tests.compiled import COMPILED, HAS_COMPILED
from tests.spark.records import V4, V6, encoded, records

pytestmark = HAS_COMPILED
SEEDS = int(os.environ.get("RMQ_ENGINE_SEEDS", "8"))
ALL = arrow_schema([*COLUMNS, *MORE_COLUMNS])
PLAIN = Record("T", 3, b"body", "KEYS\x01k\x02UNIQ_KEY\x01C0A8\x02a\x01b", born_host=V4, queue_offset=7)


@pytest.fixture(autouse=True, scope="module")
def compiled() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "compiled", COMPILED)
        yield


def by_hand(data: bytes, starts: Sequence[int], schema: pa.Schema, *, decompress: bool) -> pa.RecordBatch:
    """The batch that decode_batch makes without the engine."""
    made = Records(np.frombuffer(data, np.uint8), np.array(starts), "b", decompress=decompress)
    return pa.RecordBatch.from_arrays([made.column(one.name, one.type) for one in schema], schema=schema)


def plain(
    data: bytes, starts: Sequence[int], schema: pa.Schema, *, decompress: bool
) -> pa.RecordBatch | None:
    buffer = np.frombuffer(data, np.uint8)
    return plain_batch(buffer, np.array(starts, np.int64), schema, broker_name="b", decompress=decompress)


def check(data: bytes, starts: Sequence[int], schema: pa.Schema, *, decompress: bool = True) -> bool:
    """The engine gives the same, or nothing, which it must where the other refuses; whether it gave it."""
    try:
        expected = by_hand(data, starts, schema, decompress=decompress)
    except CorruptRecord:
        assert plain(data, starts, schema, decompress=decompress) is None
        return False
    found = plain(data, starts, schema, decompress=decompress)
    if found is None:
        return False
    found.validate(full=True)
    assert found.equals(expected, check_metadata=True)
    assert [column.null_count for column in found] == [column.null_count for column in expected]
    return True


# What no other way than the short one gives: each is held against the long one by `check`.
PLAIN_ONES = {
    "as clients send": PLAIN,
    "nothing in it": Record("T", 0, b"", "", born_host=V4),
    "no unique key": evolve(PLAIN, properties="TAGS\x01x", physical_offset=0x1234_5678_9ABC),
    "other scripts": evolve(PLAIN, topic="Bestellung_ä", properties="KEYS\x01ключ\x02ä\x01😀"),
    "the last of two counts, when no map is made": evolve(PLAIN, properties="KEYS\x01a\x02KEYS\x01b"),
    "broken properties": evolve(PLAIN, properties="a\x02\x01b\x02c\x01\x02d\x01e\x01f\x02\x02\x01\x01"),
    "names that begin alike": evolve(PLAIN, properties="a\x01b\x02ab\x01c\x02abc\x01d\x02ab \x01e"),
    "borders of numbers": evolve(
        PLAIN, queue_id=-1, flag=-(1 << 31), queue_offset=(1 << 63) - 1, born_timestamp=-(1 << 63)
    ),
    "far times": evolve(PLAIN, born_timestamp=(1 << 63) - 1, store_timestamp=(1 << 63) // 1000),
    "a body that looks like a record": evolve(PLAIN, body=MESSAGE_MAGIC.to_bytes(4, "big") * 40),
}


@pytest.mark.parametrize("made", PLAIN_ONES.values(), ids=PLAIN_ONES)
def test_a_plain_record_goes_the_short_way(made: Record) -> None:
    data, starts = encoded([PLAIN, made, evolve(PLAIN, properties="")])
    bare = arrow_schema([name for name in COLUMNS if name != "properties"])
    assert check(data, starts, bare)
    assert check(data, starts, ALL) == ("KEYS\x01a" not in made.properties)


RARE_ONES = {
    "IPv6": (evolve(PLAIN, born_host=V6), ALL),
    "compressed": (evolve(PLAIN, sys_flag=SYS_COMPRESSED), arrow_schema(["queueId"])),
    "not UTF-8": (evolve(PLAIN, properties="KEYS\x01%%"), arrow_schema(["tags"])),
    "a name twice": (evolve(PLAIN, properties="a\x01b\x02a\x01c"), arrow_schema(["properties"])),
    "65 names": (
        evolve(PLAIN, properties="\x02".join(f"{number}\x01v" for number in range(65))),
        arrow_schema(["properties"]),
    ),
}


@pytest.mark.parametrize(("made", "schema"), RARE_ONES.values(), ids=RARE_ONES)
def test_a_rare_record_takes_all_the_long_way(made: Record, schema: pa.Schema) -> None:
    data, starts = encoded([PLAIN, made])
    data = data.replace(b"%%", b"\xff\xfe")
    assert plain(data, starts, schema, decompress=True) is None
    assert by_hand(data, starts, schema, decompress=False).num_rows == 2


def test_what_nobody_asks_for_is_not_looked_at() -> None:
    data, starts = encoded([PLAIN, evolve(PLAIN, properties="KEYS\x01%%\x02a\x01b\x02a\x01c")])
    data = data.replace(b"%%", b"\xff\xfe")
    assert check(data, starts, arrow_schema(["topic", "body", "queueOffset", "bornHost"]))
    data, starts = encoded([PLAIN, evolve(PLAIN, sys_flag=SYS_COMPRESSED)])
    assert check(data, starts, arrow_schema(["body", "properties"]), decompress=False)


def test_two_topics_that_are_utf8_only_together_are_not() -> None:
    data, starts = encoded([evolve(PLAIN, topic="%%"), evolve(PLAIN, topic="$$")])
    data = data.replace(b"%%", b"a\xc3").replace(b"$$", b"\xa4b")
    assert plain(data, starts, arrow_schema(["topic"]), decompress=True) is None


@settings(max_examples=25 * SEEDS)
@given(st.lists(records(), min_size=1, max_size=8), st.sampled_from([V4, V4, V4, V6]), st.data())
def test_any_records_and_any_damage(made: list[Record], host: bytes, data: st.DataObject) -> None:
    content, starts = encoded(made, host)
    names = data.draw(st.permutations([*COLUMNS, *MORE_COLUMNS]))[: data.draw(st.integers(1, 19))]
    bytes_of = bytearray(content)
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.sampled_from(starts)) + data.draw(st.integers(0, FIXED_SIZE + 40))
        if at < len(bytes_of):
            bytes_of[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xC3, 0xFF]))
    if data.draw(st.integers(0, 5)) == 0:
        del bytes_of[data.draw(st.integers(0, len(bytes_of))) :]
    check(bytes(bytes_of), starts, arrow_schema(names), decompress=data.draw(st.booleans()))


def test_properties_longer_than_a_record_can_say() -> None:
    data, starts = encoded([evolve(PLAIN, properties="k\x01" + "v" * 0x7FFD)])
    assert check(data, starts, ALL)
    size = len(data) + 1
    longer = size.to_bytes(4, "big") + data[4:-0x8001] + b"\x80\x00" + data[-0x7FFF:] + b"v"
    assert not check(longer, starts, ALL)


@pytest.mark.parametrize("starts", [[0, 0], [5], [-4], [1 << 62], [-(1 << 62)]])
def test_places_where_no_record_is(starts: list[int]) -> None:
    data, _ = encoded([PLAIN])
    assert plain(data, starts, ALL, decompress=True) is None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_records_are_found_where_chains_find_them(seed: int) -> None:
    chance = random.Random(seed)
    made = [evolve(PLAIN, body=chance.randbytes(chance.randrange(60))) for _ in range(chance.randrange(90))]
    content, starts = encoded(made)
    for _ in range(60):
        data = bytearray(content)
        if chance.random() < 0.7 and data:
            at = min(chance.choice(starts) + chance.randrange(8), len(data) - 1)
            data[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
        begin = chance.choice([*starts, 0, len(data), len(data) - 3, chance.randrange(len(data) + 1)])
        end = chance.randrange(len(data) + 2)
        buffer = np.frombuffer(bytes(data), np.uint8)
        expected, reached = _found_by_chains(buffer, begin, end)
        assert COMPILED is not None
        places, found = COMPILED.find_records(buffer, begin, end, MESSAGE_MAGIC, FIXED_SIZE)
        assert (np.frombuffer(places, np.int64).tolist(), found) == (expected.tolist(), reached)
