"""Rows as messages: byte for byte what the one-by-one encoder makes, and what cannot be a message refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import Row, StructType

from rmq.errors import ConfigError, MessageIllegal
from rmq.protocol.properties import decode_properties
from rmq.protocol.record import decode_batch, encode_batch
from rmq.spark import sink
from rmq.spark.formats.encoding import (
    RowKeys,
    bodies,
    check_write_columns,
    chunks,
    encode,
    groups,
    keyed,
    keyed_schema,
    property_texts,
)

MAPS = pa.map_(pa.string(), pa.string())
text = st.text(st.characters(codec="utf-8", exclude_characters="\x00\x01\x02"), max_size=12)
names = text.filter(lambda name: name and name.upper() != name)  # RocketMQ's own are in capitals
# Empty values are left out: RocketMQ itself loses them.
rows = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(min_size=1, max_size=50),
            "tags": st.none() | text,
            "keys": st.none() | text,
            "properties": st.none() | st.dictionaries(names, text.filter(len), max_size=4),
            "delayLevel": st.none() | st.integers(0, 18),
            "shardingKey": st.none() | text,
        }
    ),
    min_size=1,
    max_size=30,
)


def batch_of(found: list[dict[str, Any]]) -> pa.RecordBatch:
    kinds = {"body": pa.binary(), "properties": MAPS, "delayLevel": pa.int32()}
    columns = {
        name: pa.array([_pairs(row[name]) for row in found], kinds.get(name, pa.string()))
        for name in found[0]
    }
    return pa.RecordBatch.from_pydict(columns)


def _pairs(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value


@given(rows, st.integers(0, 5), st.integers(100, 4000))
def test_columns_become_the_messages_that_one_by_one_encoding_makes(
    found: list[dict[str, Any]], skipped: int, most: int
) -> None:
    whole = batch_of(found)
    batch = whole.slice(min(skipped, len(whole) - 1))  # arrays that begin in the middle of their buffers
    mine = found[len(whole) - len(batch) :]
    keys = RowKeys("run/7/3", 40, len(batch))
    texts = property_texts(batch, keys)
    wire = b""
    for first, end, data in chunks(encode(bodies(batch, 1 << 22), texts), most):
        piece = data.to_pybytes()
        assert len(piece) <= most or end == first + 1
        wire += piece
    assert wire == encode_batch(
        (0, row["body"], str(text)) for row, text in zip(mine, texts.to_pylist(), strict=True)
    )
    for number, (row, (_, body, properties)) in enumerate(zip(mine, decode_batch(wire), strict=True)):
        expected = dict(row["properties"] or {})
        expected |= {"rmqSparkKey": f"run/7/3/{40 + number}", "WAIT": "true"}
        expected["UNIQ_KEY"] = keys.unique_ids()[number].as_py()
        for column, name in (("tags", "TAGS"), ("keys", "KEYS"), ("shardingKey", "__SHARDINGKEY")):
            if row[column]:
                expected[name] = row[column]
        if row["delayLevel"]:
            expected["DELAY"] = str(row["delayLevel"])
        assert body == row["body"]
        assert decode_properties(properties) == expected


def test_keys_are_the_same_again_and_differ_otherwise() -> None:
    ids = RowKeys("q/1/0", 65_530, 12).unique_ids().to_pylist()
    assert ids[6:] == RowKeys("q/1/0", 65_536, 6).unique_ids().to_pylist()
    assert all(len(one) == 32 and set(one) <= set("0123456789ABCDEF") for one in ids)
    others = RowKeys("q/2/0", 65_530, 12).unique_ids().to_pylist()
    assert len({*ids, *others}) == 24
    assert RowKeys("q/1/0", 9, 2).texts().to_pylist() == ["q/1/0/9", "q/1/0/10"]


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("body", [b"x", b""], "row 1 of the Arrow batch cannot be a message: the body is empty"),
        ("body", [b"x", None], "the body is empty"),
        ("tags", ["a\x01b", None], "0x00, 0x01 or 0x02"),
        ("properties", [[("a", "b\x02")], None], "0x00, 0x01 or 0x02"),
        ("properties", [[("a\0", "b")], None], "0x00, 0x01 or 0x02"),
        ("properties", [[("a", "\0")], None], "0x00, 0x01 or 0x02"),
        ("keys", ["a\0b", None], "0x00, 0x01 or 0x02"),
        ("properties", [[("TAGS", "b")], None], "TAGS are RocketMQ's own"),
        ("properties", [[("a", "b" * 40_000)], None], "more than 32767 bytes"),
    ],
)
def test_what_is_no_message_is_refused(column: str, values: list[Any], says: str) -> None:
    kind = {"body": pa.binary(), "properties": MAPS}.get(column, pa.string())
    columns = {"body": pa.array([b"a", b"b"]), column: pa.array(values, kind)}
    batch = pa.RecordBatch.from_pydict(columns)
    with pytest.raises(MessageIllegal, match=says):
        encode(bodies(batch, 1 << 22), property_texts(batch, RowKeys("r", 0, 2)))


def test_a_column_may_be_the_key() -> None:
    batch = pa.record_batch({"body": [b"a"], "order": ["7"], "keys": ["k"]})
    assert keyed(batch, "") is batch
    assert keyed(batch, "order").to_pylist() == [{"body": b"a", "keys": "k", "rowKey": "7"}]
    assert keyed(batch.drop_columns("order"), "keys").to_pylist() == [
        {"body": b"a", "keys": "k", "rowKey": "k"}
    ]
    schema = StructType().add("body", "binary").add("order", "string").add("keys", "string")
    for column in ("order", "keys"):
        assert keyed_schema(schema, column).fieldNames() == keyed(batch, column).schema.names
    assert keyed_schema(schema, "") == schema
    with pytest.raises(ConfigError, match=r"dedupeKey = 'id': .*they have body, order, keys"):
        keyed_schema(schema, "id")
    with pytest.raises(ConfigError, match="no rowKey beside it"):
        keyed_schema(StructType().add("order", "string").add("rowKey", "string"), "order")
    own = StructType().add("body", "binary").add("rowKey", "string")
    assert keyed_schema(own, "rowKey") == own


def test_rows_are_grouped_by_where_they_go() -> None:
    topic = pa.array(["A", "B", "A", None, "B"])
    queue = pa.array([1, 1, 2, None, 1], pa.int32())
    found = {values: members.tolist() for values, members in groups([topic, queue], 5)}
    assert found == {("A", 1): [0], ("B", 1): [1, 4], ("A", 2): [2], (None, None): [3]}
    ((none, members),) = groups([], 3)
    assert (none, members.tolist()) == ((), [0, 1, 2])
    assert isinstance(members, np.ndarray)


@pytest.mark.parametrize(
    ("schema", "topic", "says"),
    [
        ("body string, offset bigint", "T", "column = 'offset'"),
        ("body int", "T", "column body"),
        ("tags string", "T", "a column body"),
        ("body string", "", "an option topic"),
        ("body string, queueId int", "T", "queueId and brokerName together"),
        ("body string, properties map<string,int>", "T", "map<string,string>"),
    ],
)
def test_columns_are_checked(schema: str, topic: str, says: str, spark: Any) -> None:
    with pytest.raises(ConfigError, match=says):
        check_write_columns(StructType.fromDDL(schema), topic)
    assert check_write_columns(StructType.fromDDL("body string, properties map<string,string>"), "T")


def test_rows_of_an_older_spark_become_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.0 gives a stream's writer rows."""
    monkeypatch.setattr(sink, "ROWS_OF_A_BATCH", 2)
    schema = pa.schema(
        [("body", pa.binary()), ("tags", pa.string()), ("properties", pa.map_(pa.string(), pa.string()))]
    )
    rows = [Row(body=b"%d" % at, tags=None, properties={"a": str(at)} if at else None) for at in range(3)]
    batches = list(sink.batches_of(iter(rows), schema))
    assert [len(batch) for batch in batches] == [2, 1]
    assert all(batch.schema == schema for batch in batches)
    found = pa.Table.from_batches(batches).to_pylist()
    assert found[2] == {"body": b"2", "tags": None, "properties": [("a", "2")]}
    assert found[0]["properties"] is None


def test_a_batch_has_no_more_ids_than_fit_an_answer() -> None:
    """2,001 tiny messages made an answer whose header a client refuses."""
    made = pa.array([b"x"] * 2001, pa.binary())
    assert [(first, end) for first, end, _ in chunks(made, 1 << 19)] == [
        (0, 1000),
        (1000, 2000),
        (2000, 2001),
    ]
