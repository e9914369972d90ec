"""Rows as messages on the wire, thousands at once: the bodies of batch sends, made of Arrow columns.

A message of a batch is `size, 0, 0, flag, body size, body, properties size, properties` (see
rmq.protocol.record.encode_batch, which encodes one message after the other). Joined element by element, the
columns' data buffer is the body of the batch itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from rmq.errors import ConfigError, MessageIllegal
from rmq.message import RESERVED_PROPERTIES
from rmq.protocol.properties import PROPERTY_SHARDING_KEY
from rmq.protocol.record import PROPERTIES_MAX

Array: TypeAlias = np.ndarray[Any, Any]

KEY_PROPERTY: Final = "rmqSparkKey"
"""A row's key: run/batch/partition/number, the same when a task is run again."""

_TEXT: Final = (StringType(),)
_NUMBER: Final = (IntegerType(), LongType(), ShortType())
WRITE_COLUMNS: Final[dict[str, tuple[DataType, ...]]] = {
    "body": (BinaryType(), StringType()),
    "topic": _TEXT,
    "tags": _TEXT,
    "keys": _TEXT,
    "properties": (MapType(StringType(), StringType()),),
    "queueId": _NUMBER,
    "brokerName": _TEXT,
    "delayLevel": _NUMBER,
    "shardingKey": _TEXT,
    "rowKey": _TEXT,
    "msgId": _TEXT,
}
"""Column -> the types it may have."""

_HEAD: Final = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")])
_HEX: Final = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), "S2")
_AROUND: Final = _HEAD.itemsize + 2


def check_write_columns(schema: StructType, topic: str) -> list[str]:
    """Check the columns of rows to write. Raises ConfigError for an unknown, wrong or missing one."""
    for found in schema.fields:
        allowed = WRITE_COLUMNS.get(found.name)
        if allowed is None:
            raise ConfigError("column", found.name, f"one of {', '.join(WRITE_COLUMNS)}")
        plain = MapType(StringType(), StringType()) if isinstance(found.dataType, MapType) else found.dataType
        if plain not in allowed or not _of_texts(found.dataType):
            expected = " or ".join(kind.simpleString() for kind in allowed)
            raise ConfigError(f"column {found.name}", found.dataType.simpleString(), expected)
    names: list[str] = schema.fieldNames()
    if "body" not in names:
        raise ConfigError("column body", "none", "a column body of strings or bytes")
    if "topic" not in names and not topic:
        raise ConfigError("topic", "", "an option topic, or a column topic")
    if "msgId" in names and "rowKey" not in names:
        raise ConfigError("column msgId", ", ".join(names), "a column rowKey beside it")
    if ("queueId" in names) != ("brokerName" in names):
        raise ConfigError("column queueId", ", ".join(names), "queueId and brokerName together, or neither")
    return names


def keyed_schema(schema: StructType, column: str) -> StructType:
    """The schema of `keyed` rows. Raises ConfigError."""
    if not column:
        return schema
    names = schema.fieldNames()
    if column not in names or ("rowKey" in names and column != "rowKey"):
        expected = f"a column of the rows and no rowKey beside it; they have {', '.join(names)}"
        raise ConfigError("dedupeKey", column, expected)
    kept = [field for field in schema.fields if field.name != column or column in WRITE_COLUMNS]
    return StructType([*kept, StructField("rowKey", schema[column].dataType)] if column != "rowKey" else kept)


def keyed(batch: pa.RecordBatch, column: str) -> pa.RecordBatch:
    """The rows with that column (empty: unchanged) as their `rowKey`; a column of the sink's stays, too."""
    if column in ("", "rowKey"):
        return batch
    kept = batch if column in WRITE_COLUMNS else batch.drop_columns(column)
    return kept.append_column("rowKey", batch.column(column))


def _of_texts(kind: DataType) -> bool:
    if not isinstance(kind, MapType):
        return True
    return kind.keyType == StringType() and kind.valueType == StringType()


class Keys(Protocol):
    """The keys of rows: as texts, and as ids in the form of RocketMQ's unique ids."""

    def texts(self) -> pa.Array: ...
    def unique_ids(self) -> pa.Array: ...


@frozen
class RowKeys:
    """The keys of a task's rows: `prefix` is run/batch/partition, and rows are numbered from `first` on."""

    prefix: str
    first: int
    count: int

    def texts(self) -> pa.Array:
        """run/batch/partition/number."""
        numbers = pa.array(np.arange(self.first, self.first + self.count)).cast(pa.string())
        return pc.binary_join_element_wise(self.prefix, numbers, "/")

    def unique_ids(self) -> pa.Array:
        """32 hexadecimal digits for the key, in the form of RocketMQ's unique ids."""
        digest = hashlib.md5(self.prefix.encode(), usedforsecurity=False).hexdigest()[:24].upper()
        numbers = np.arange(self.first, self.first + self.count).astype(">u4")
        digits = _HEX[numbers.view(np.uint8)].view("S8")
        texts = _fixed(digits.view(np.uint8).reshape(self.count, 8)).cast(pa.string())
        return pc.binary_join_element_wise(digest, texts, "")


@frozen
class ColumnKeys:
    """Keys of the rows themselves: `rowKey`, and `msgId` or an id made from the key."""

    batch: pa.RecordBatch

    def texts(self) -> pa.Array:
        found = _plain(self.batch.column("rowKey"), "rowKey")
        _refuse(pc.is_null(found), "its rowKey is empty")
        return found

    def unique_ids(self) -> pa.Array:
        made = [hashlib.md5(text.as_py().encode(), usedforsecurity=False) for text in self.texts()]
        found = pa.array([one.hexdigest().upper() for one in made], pa.string())
        if "msgId" in self.batch.schema.names:
            found = pc.coalesce(_plain(self.batch.column("msgId"), "msgId"), found)
        return found


class RowRefused(MessageIllegal):
    """A row that cannot be a message."""


def bodies(batch: pa.RecordBatch, most: int) -> pa.Array:
    """The bodies as bytes. Raises RowRefused for a row without a body, or with more than `most` bytes."""
    found = batch.column("body").cast(pa.binary())
    sizes = pc.fill_null(pc.binary_length(found), 0)
    _refuse(pc.equal(sizes, 0), "the body is empty; RocketMQ needs at least one byte")
    _refuse(pc.greater(sizes, most), f"the body has more than {most} bytes (maxMessageBytes)")
    return found


def property_texts(batch: pa.RecordBatch, keys: Keys) -> pa.Array:
    """The property text of each row. Raises RowRefused for properties that cannot be encoded."""
    found = texts_of_properties(batch, keys)
    sizes = pc.binary_length(found)
    _refuse(pc.greater(sizes, PROPERTIES_MAX), f"its properties have more than {PROPERTIES_MAX} bytes")
    return found


def texts_of_properties(batch: pa.RecordBatch, keys: Keys) -> pa.Array:
    """The property text of each row, of any length. Raises RowRefused for properties that cannot be
    encoded."""
    names = set(batch.schema.names)
    parts = [
        _pair("UNIQ_KEY", keys.unique_ids()),
        pa.scalar("WAIT\x01true"),
        _pair(KEY_PROPERTY, keys.texts()),
    ]
    for column, name in (("keys", "KEYS"), ("tags", "TAGS"), ("shardingKey", PROPERTY_SHARDING_KEY)):
        if column in names:
            parts.append(_pair(name, _plain(batch.column(column), column)))
    if "delayLevel" in names:
        levels = batch.column("delayLevel").cast(pa.int32())
        levels = pc.if_else(pc.greater(levels, 0), levels, None)
        parts.append(_pair("DELAY", levels.cast(pa.string())))
    if "properties" in names:
        parts.append(_map_texts(batch.column("properties")))
    return pc.binary_join_element_wise(*parts, "\x02", null_handling="skip")


def encode(body: pa.Array, properties: pa.Array) -> pa.Array:
    """The messages of a batch send: their bytes one after the other are its body."""
    properties = properties.cast(pa.binary())
    body_sizes = pc.binary_length(body).to_numpy(zero_copy_only=False)
    property_sizes = pc.binary_length(properties).to_numpy(zero_copy_only=False)
    heads = np.zeros(len(body), _HEAD)
    heads["size"] = _AROUND + body_sizes + property_sizes
    heads["body"] = body_sizes
    lengths = property_sizes.astype(">u2")
    return pc.binary_join_element_wise(
        _fixed(heads.view(np.uint8).reshape(-1, _HEAD.itemsize)),
        body,
        _fixed(lengths.view(np.uint8).reshape(-1, 2)),
        properties,
        b"",
    )


ROWS_MAX: Final = 1000
"""Messages of a batch. A broker answers with the ids of all of them in a header: 33 bytes each, and rmq's
client refuses headers of more than 64 KiB."""


def chunks(messages: pa.Array, most: int) -> list[tuple[int, int, pa.Buffer]]:
    """(first row, end row, bytes) of batches of up to `most` bytes and ROWS_MAX rows, or of one message that
    is longer."""
    offsets = _offsets(messages)
    found: list[tuple[int, int, pa.Buffer]] = []
    data = messages.buffers()[2]
    at = 0
    while at < len(messages):
        end = int(np.searchsorted(offsets, offsets[at] + most, "right")) - 1
        end = min(max(end, at + 1), at + ROWS_MAX)
        found.append((at, end, data.slice(int(offsets[at]), int(offsets[end] - offsets[at]))))
        at = end
    return found


def groups(columns: Sequence[pa.Array], count: int) -> list[tuple[tuple[Any, ...], Array]]:
    """(values, numbers of the rows) for each combination of values that rows have in these columns."""
    code = np.zeros(count, np.int64)
    encoded = [pc.dictionary_encode(column, null_encoding="encode") for column in columns]
    for one in encoded:
        code = code * max(len(one.dictionary), 1) + one.indices.to_numpy(zero_copy_only=False)
    _, firsts, members = np.unique(code, return_index=True, return_inverse=True)
    return [
        (tuple(one[int(first)].as_py() for one in encoded), np.flatnonzero(members == number))
        for number, first in enumerate(firsts)
    ]


NO_TEXT = r"[\x00-\x02]"  # separators, and a character that brokers refuse as it looks like a lost page

# --- parts ---


def _pair(name: str, values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(f"{name}\x01", values, "")


def _plain(values: pa.Array, column: str) -> pa.Array:
    """Texts without separators; empty ones count as none."""
    _refuse(pc.match_substring_regex(values, NO_TEXT), f"its {column} have a character 0x00, 0x01 or 0x02")
    return pc.if_else(pc.equal(values, ""), None, values)


def _map_texts(maps: pa.Array) -> pa.Array:
    """name 0x01 value, joined by 0x02; null for an empty map. Names of RocketMQ's own are refused."""
    offsets = np.frombuffer(maps.buffers()[1], np.int32)[maps.offset : maps.offset + len(maps) + 1]
    low, high = int(offsets[0]), int(offsets[-1])
    names, values = maps.keys[low:high], maps.items[low:high]
    bad = pc.or_(
        pc.match_substring_regex(names, NO_TEXT),
        pc.fill_null(pc.match_substring_regex(values, NO_TEXT), False),
    )
    _refuse(bad, "a property has a character 0x00, 0x01 or 0x02", unit="property")
    own = pc.is_in(names, value_set=pa.array(sorted({*RESERVED_PROPERTIES, KEY_PROPERTY})))
    if pc.any(own).as_py():
        found = ", ".join(sorted(set(names.filter(own).to_pylist()))[:5])
        raise RowRefused(
            remark=f"the property names {found} are RocketMQ's own: leave them out with map_filter, and"
            " use the columns tags, keys, delayLevel and shardingKey"
        )
    pairs = pc.binary_join_element_wise(names, values, "\x01")
    lists = pa.ListArray.from_arrays(pa.array(offsets - low, pa.int32()), pairs)
    lists = pc.if_else(maps.is_valid(), lists, None) if maps.null_count else lists
    texts = pc.binary_join(lists, "\x02")
    return pc.if_else(pc.equal(texts, ""), None, texts)


def _refuse(bad: Any, what: str, unit: str = "row") -> None:
    if pc.any(bad).as_py():
        at = pc.index(bad, True).as_py()
        raise RowRefused(remark=f"{unit} {at} of the Arrow batch cannot be a message: {what}")


def _fixed(rows: Array) -> pa.Array:
    """The rows of a table of bytes, as bytes of one length each."""
    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int32) * width
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _offsets(messages: pa.Array) -> Array:
    found = np.frombuffer(messages.buffers()[1], np.int32)
    return found[messages.offset : messages.offset + len(messages) + 1].astype(np.int64)
