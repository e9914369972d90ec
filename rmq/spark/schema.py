"""The 18 columns of a message, in Spark's and in Arrow's types.

A reader may ask for any of them in any order with `.schema(...)`; only those are decoded. That is how columns
are pruned: Spark does not tell a Python data source which ones a query uses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rmq.errors import ConfigError

_STRING = (StringType(), pa.string())
_INT = (IntegerType(), pa.int32())
_LONG = (LongType(), pa.int64())
_TIME = (TimestampType(), pa.timestamp("us", tz="UTC"))

COLUMNS: Final[dict[str, tuple[DataType, pa.DataType]]] = {
    "topic": _STRING,
    "brokerName": _STRING,
    "queueId": _INT,
    "queueOffset": _LONG,
    "physicalOffset": _LONG,
    "body": (BinaryType(), pa.binary()),
    "tags": _STRING,
    "keys": _STRING,
    "msgId": _STRING,
    "properties": (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string())),
    "bornTimestamp": _TIME,
    "storeTimestamp": _TIME,
    "bornHost": _STRING,
    "storeHost": _STRING,
    "reconsumeTimes": _INT,
    "sysFlag": _INT,
    "flag": _INT,
    "preparedTransactionOffset": _LONG,
}
"""Name -> (Spark's type, Arrow's type). Each column may be null in the types; only tags and keys ever are."""


def spark_schema(columns: Iterable[str] | None = None) -> StructType:
    """The schema of these columns in this order, of all by default. Raises ConfigError."""
    return StructType([StructField(name, _types(name)[0]) for name in _chosen(columns)])


def arrow_schema(columns: Iterable[str] | None = None) -> pa.Schema:
    """The same as Arrow has it: what Spark demands of record batches, to the letter. Raises ConfigError."""
    return pa.schema([pa.field(name, _types(name)[1]) for name in _chosen(columns)])


def check_columns(schema: StructType) -> list[str]:
    """The names of a schema that a user asked for. Raises ConfigError at a name or type that is not ours."""
    for found in schema.fields:
        expected = _types(found.name)[0]
        if found.dataType != expected:
            asked = found.dataType.simpleString()
            raise ConfigError(f"schema column {found.name}", asked, expected.simpleString())
        if not found.nullable:
            raise ConfigError(f"schema column {found.name}", "not null", "a column that may be null")
    names: list[str] = schema.fieldNames()
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated or not names:
        raise ConfigError("schema", ", ".join(repeated), "each column once, and at least one")
    return names


def _chosen(columns: Iterable[str] | None) -> Iterable[str]:
    return COLUMNS if columns is None else columns


def _types(name: str) -> tuple[DataType, pa.DataType]:
    try:
        return COLUMNS[name]
    except KeyError:
        raise ConfigError("schema column", name, f"one of {', '.join(COLUMNS)}") from None
