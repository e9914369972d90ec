"""The vectorised decoder gives what decode_record gives, which is checked against Java's records."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, MapType, StringType, StructField, StructType

from rmq.errors import ConfigError, CorruptRecord
from rmq.protocol import engine
from rmq.protocol.codes import SYS_COMPRESSED
from rmq.protocol.record import Record
from rmq.spark.formats.records import decode_batch, record_starts
from rmq.spark.formats.schema import COLUMNS, arrow_schema, asked_schema, own_names, renamed, spark_schema
from tests.compiled import COMPILED
from tests.spark.records import MAGIC, V4, V6, encoded, records, rows_of


@pytest.fixture(autouse=True, scope="module", params=["pure", "compiled"])
def chosen_engine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test here is for both."""
    wanted = COMPILED if request.param == "compiled" else None
    if wanted is None and request.param == "compiled":
        pytest.skip("the compiled engine is not built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "compiled", wanted)
        yield


def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    batch.validate(full=True)
    found: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
    return found


def simple(**values: Any) -> Record:
    return Record(**{"topic": "T", "queue_id": 0, "body": b"body", "born_host": V4, **values})


def corrupt_at(data: bytes, starts: list[int], **options: Any) -> int:
    with pytest.raises(CorruptRecord) as caught:
        decode_batch(data, np.array(starts), broker_name="b", **options)
    return caught.value.offset


# --- rows ---


def test_the_records_that_java_wrote(golden: Path) -> None:
    count = 0
    for file in sorted((golden / "store" / "commitlog").iterdir()):
        data = file.read_bytes()
        starts = [at - 4 for at in range(len(data)) if data[at : at + 4] == MAGIC]

        found = decode_batch(data, np.array(starts), broker_name="golden-a", check_crc=True)
        assert rows(found) == rows_of(data, starts, "golden-a")
        count += len(starts)
    assert count == 182


@given(st.lists(records(), max_size=8), st.sampled_from([V4, V6]))
def test_any_records(made: list[Record], store_host: bytes) -> None:
    data, starts = encoded(made, store_host)

    found = decode_batch(data, np.array(starts), broker_name="ä", check_crc=True)
    assert rows(found) == rows_of(data, starts, "ä")
    assert found.schema.equals(arrow_schema())
    assert record_starts(data).tolist() == starts


@given(st.lists(records(), min_size=1, max_size=8), st.data())
def test_any_columns_and_any_records_in_any_order(made: list[Record], data: st.DataObject) -> None:
    content, starts = encoded(made)
    columns = data.draw(st.permutations(list(COLUMNS)))[: data.draw(st.integers(1, 18))]
    chosen = data.draw(st.lists(st.sampled_from(starts), max_size=12))

    found = decode_batch(
        memoryview(content), np.array(chosen, np.int64), arrow_schema(columns), broker_name="b"
    )
    expected = [{name: row[name] for name in columns} for row in rows_of(content, chosen, "b")]
    assert rows(found) == expected
    assert found.schema.equals(arrow_schema(columns))


def test_bodies_stay_compressed_on_request() -> None:
    packed = zlib.compress(b"body")
    data, starts = encoded([simple(body=packed, sys_flag=SYS_COMPRESSED), simple(body=packed)])

    found = decode_batch(data, np.array(starts), arrow_schema(["body"]), broker_name="b", decompress=False)
    assert found.column(0).to_pylist() == [packed, packed]


BAD = (
    simple(body=b"not zlib", sys_flag=SYS_COMPRESSED),
    simple(body=zlib.compress(bytes(17 << 20)), sys_flag=SYS_COMPRESSED),
    simple(body=zlib.compress(b"cut off")[:-3], sys_flag=SYS_COMPRESSED),
)


@pytest.mark.parametrize("most", [None, 1])
@pytest.mark.parametrize("bad", BAD, ids=["garbage", "grows", "cut"])
def test_a_body_that_cannot_be_read_is_null_or_raw_if_that_is_wanted(bad: Record, most: int | None) -> None:
    good = simple(body=zlib.compress(b"good"), sys_flag=SYS_COMPRESSED)
    data, starts = encoded([simple(), bad, good], V4)
    assert corrupt_at(data, starts) == starts[1]
    for how, body in (("null", None), ("raw", bad.body)):
        schema = arrow_schema(["queueId", "body"], nullable={"body"})
        at, found = 0, []
        while at < len(starts):
            batch = decode_batch(
                data, np.array(starts[at:]), schema, broker_name="b", on_bad_body=how, most=most
            )
            assert batch.num_rows > 0
            at += batch.num_rows
            found += [row["body"] for row in rows(batch)]
        assert found == [b"body", body, b"good"]


def test_only_the_body_may_be_null_then() -> None:
    fields = {field.name: field.nullable for field in spark_schema(nullable={"body"}).fields}
    assert [name for name, nullable in fields.items() if nullable] == ["body", "tags", "keys"]
    with pytest.raises(ConfigError, match="may be null"):
        asked_schema(StructType([StructField("body", BinaryType(), False)]), nullable={"body"})


def test_a_limit_counts_bodies_as_they_are_decompressed() -> None:
    packed = simple(body=zlib.compress(bytes(1000)), sys_flag=SYS_COMPRESSED)
    data, starts = encoded([simple(), packed, packed, simple(), packed, simple(body=bytes(900))])

    def lengths(first: int, most: int, columns: list[str]) -> list[int]:
        found = decode_batch(
            data, np.array(starts[first:]), arrow_schema(columns), broker_name="b", most=most
        )
        return (
            [len(body) for body in found.column("body").to_pylist()] if "body" in columns else found.num_rows
        )

    assert lengths(0, 2003, ["body"]) == [4, 1000]
    assert lengths(0, 2004, ["topic", "body"]) == [4, 1000, 1000, 4]
    assert lengths(1, 10, ["body"]) == [1000]  # one there is
    assert lengths(0, 10, ["keys"]) == 6  # bodies that nobody asks for stay as they are
    with pytest.raises(ValueError, match="ascending"):
        decode_batch(data, np.array(starts[::-1]), broker_name="b", most=10)


def test_many_different_names_and_a_repeated_one() -> None:
    text = "\x02".join([f"name{number}\x01{number}" for number in range(2000)] + ["name7\x01last"])
    data, starts = encoded([simple(properties=text), simple(), simple(properties=text)])

    assert rows(decode_batch(data, np.array(starts), broker_name="b")) == rows_of(data, starts, "b")


@given(st.lists(st.binary(max_size=24), min_size=1, max_size=5))
def test_texts_that_are_not_utf8(texts: list[bytes]) -> None:
    content, starts = encoded([simple(properties="p" * len(text)) for text in texts])
    data = bytearray(content)
    for text, end in zip(texts, [*starts[1:], len(data)], strict=True):
        data[end - len(text) : end] = text
    data[starts[0] + 93] = 0xFF  # the topic

    found = rows(decode_batch(bytes(data), np.array(starts), broker_name="b"))
    assert found == rows_of(bytes(data), starts, "b")
    assert found[0]["topic"] == "\ufffd"


def test_names_that_are_equal_as_text_are_one() -> None:
    data, starts = encoded([simple(properties="a!\x01b\x02a?\x01\xe4")])
    data = data.replace(b"!", b"\xff").replace(b"?", b"\xfe")

    found = rows(decode_batch(data, np.array(starts), broker_name="b"))
    assert found == rows_of(data, starts, "b")
    assert found[0]["properties"] == {"a\ufffd": "\xe4"}


def test_names_that_begin_alike_are_told_apart() -> None:
    text = "propertyA\x01a\x02propertyB\x01b\x02propertyC\x01c\x02propertyB\x01last"
    data, starts = encoded([simple(properties=text), simple(properties="a\x01b\x02ab\x01c")])

    found = rows(decode_batch(data, np.array(starts), broker_name="b"))
    assert found == rows_of(data, starts, "b")
    assert found[0]["properties"] == {"propertyA": "a", "propertyC": "c", "propertyB": "last"}


def test_headers_have_repeated_names_in_their_order() -> None:
    texts = ["a\x011\x02b\x012\x02a\x013", "", "c\x01\xe4"]
    data, starts = encoded([simple(properties=text) for text in texts])
    lists = [
        row["headers"] for row in rows(decode_batch(data, starts, arrow_schema(["headers"]), broker_name=""))
    ]
    pairs = [[(one["key"], one["value"]) for one in row] for row in lists]
    parts = StructType([StructField("key", StringType()), StructField("value", StringType())])
    asked = StructType([StructField("headers", ArrayType(parts))])
    found = decode_batch(data, starts, asked_schema(asked), broker_name="")
    assert found.schema.equals(to_arrow_schema(asked)), "as a schema in text says it"
    assert pairs == [[("a", "1"), ("b", "2"), ("a", "3")], [], [("c", "\xe4")]]


def test_a_schema_names_columns_in_any_case() -> None:
    fields = [("QUEUEID", IntegerType(), False), ("Body", BinaryType(), True)]
    asked = asked_schema(StructType([StructField(*field) for field in fields]))
    assert (asked.names, own_names(asked).names) == (["QUEUEID", "Body"], ["queueId", "body"])
    data, starts = encoded([simple()])
    (batch,) = renamed([decode_batch(data, starts, own_names(asked), broker_name="")], asked)
    assert batch.schema == asked
    with pytest.raises(ConfigError, match="each column once"):
        asked_schema(StructType([StructField("body", BinaryType()), StructField("BODY", BinaryType())]))


def test_times_that_microseconds_cannot_tell_are_cut() -> None:
    data, starts = encoded([simple(born_timestamp=(1 << 63) - 1), simple(born_timestamp=-(1 << 63))])

    found = decode_batch(data, np.array(starts), arrow_schema(["bornTimestamp"]), broker_name="b").column(0)
    most = (1 << 63) // 1000 * 1000
    assert found.view(pa.int64()).to_pylist() == [most, -most]
    assert timedelta(microseconds=most).days > 100_000_000


# --- damage ---


def test_damage_is_named_with_its_place() -> None:
    data, starts = encoded([simple(properties="a\x01b"), simple(properties="c\x01d"), simple()])
    second, end = starts[1], starts[2]
    for place, value in (
        (0, 1),  # size
        (4, 0),  # magic
        (84, 0x7F),  # body length
        (85, 0xFF),
        (92, 0xFF),  # topic length
        (end - second - 5, 9),  # properties length
    ):
        broken = bytearray(data)
        broken[second + place] = value
        assert corrupt_at(bytes(broken), starts) == second, place


def test_a_wrong_crc_is_seen_on_request() -> None:
    data, starts = encoded([simple(), simple()])
    broken = bytearray(data)
    broken[starts[1] + 90] ^= 1

    assert decode_batch(bytes(broken), np.array(starts), broker_name="b").num_rows == 2
    assert corrupt_at(bytes(broken), starts, check_crc=True) == starts[1]


def test_a_body_that_cannot_be_read_is_damage() -> None:
    data, starts = encoded([simple(), simple(body=b"no zlib", sys_flag=SYS_COMPRESSED)])

    assert corrupt_at(data, starts) == starts[1]
    assert decode_batch(data, np.array(starts), arrow_schema(["keys"]), broker_name="b").num_rows == 2


@pytest.mark.parametrize("start", [-1, 1, 1 << 40])
def test_a_place_without_a_record(start: int) -> None:
    data, _ = encoded([simple()])
    assert corrupt_at(data, [start]) == start


def test_a_record_inside_another_one() -> None:
    inner, _ = encoded([simple()])
    data, starts = encoded([simple(body=inner), simple()])
    assert corrupt_at(data, [starts[0], starts[0] + 88, starts[1]]) == starts[0] + 88


@given(st.lists(records(), min_size=1, max_size=3), st.integers(0, 1 << 20), st.integers(0, 255))
def test_any_changed_byte_gives_rows_or_the_error(made: list[Record], place: int, value: int) -> None:
    data, starts = encoded(made)
    broken = bytearray(data)
    broken[place % len(data)] = value
    try:
        decode_batch(bytes(broken), np.array(starts), broker_name="b", check_crc=True).validate(full=True)
    except CorruptRecord as error:
        refused = error.offset
    else:
        refused = 0
    assert refused in starts


# --- where records begin ---


@pytest.mark.parametrize("seed", range(3))
def test_each_of_many_records_is_found(seed: int) -> None:
    chance = random.Random(seed)
    made = [simple(body=chance.randbytes(chance.randrange(300))) for _ in range(3000)]
    data, starts = encoded(made)

    assert record_starts(data).tolist() == starts
    middle = starts[1000] + 1
    assert record_starts(data, starts[500], middle).tolist() == starts[500:1001]


def test_bodies_that_hold_records_do_not_mislead_the_search() -> None:
    inner, _ = encoded([simple() for _ in range(40)])
    data, starts = encoded([simple(body=inner[: number * 7]) for number in range(1200)])

    assert record_starts(data).tolist() == starts


def test_long_records_are_found_too() -> None:
    data, starts = encoded([simple(body=bytes(20_000)) for _ in range(200)])
    assert record_starts(data).tolist() == starts


@pytest.mark.parametrize("cut", [3, 2999])
def test_the_search_names_the_place_without_a_record(cut: int) -> None:
    data, starts = encoded([simple() for _ in range(3000)])
    broken = bytearray(data)
    broken[starts[cut] + 4] = 0

    for content in (bytes(broken), data[: starts[cut] + 20]):
        with pytest.raises(CorruptRecord) as caught:
            record_starts(content)
        assert caught.value.offset == starts[cut]
        assert record_starts(content, 0, starts[cut]).tolist() == starts[:cut]


# --- the schema ---


@pytest.mark.parametrize("nullable", [False, True])
def test_arrow_and_spark_mean_the_same_types(nullable: bool) -> None:
    ours = spark_schema(nullable=nullable)
    assert to_arrow_schema(ours, timezone="UTC").equals(arrow_schema(nullable=nullable))
    assert len(COLUMNS) == 18


def test_a_schema_asks_for_columns_in_its_order() -> None:
    assert asked_schema(spark_schema(["body", "topic"])).names == ["body", "topic"]


def test_a_schema_may_leave_open_what_is_null() -> None:
    # As Spark reads "topic string, properties map<string,string>".
    open_ones = StructType(
        [StructField("topic", StringType()), StructField("properties", MapType(StringType(), StringType()))]
    )
    data, starts = encoded([simple(properties="a\x01b")])

    found = decode_batch(data, np.array(starts), asked_schema(open_ones), broker_name="b")
    assert found.schema.equals(to_arrow_schema(open_ones))
    assert rows(found) == [{"topic": "T", "properties": {"a": "b"}}]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("bodies", StringType())], "bodies.*expected one of topic, brokerName"),
        ([("body", StringType())], "body = 'string': expected binary"),
        ([("topic", StringType())] * 2, "topic.*each column once"),
        ([("tags", StringType(), False)], "tags = 'not null'.*may be null"),
        ([], "at least one"),
    ],
)
def test_a_schema_of_other_columns_is_refused(fields: list[tuple[str, StringType]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        asked_schema(StructType([StructField(*field) for field in fields]))


def test_where_damage_is_reported_any_column_may_be_null() -> None:
    with pytest.raises(ConfigError, match="topic = 'not null'"):
        asked_schema(spark_schema(["topic"]), nullable=True)
    assert asked_schema(spark_schema(["topic"], nullable=True), nullable=True)[0].nullable
