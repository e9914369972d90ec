"""The 18 columns of a message, in Spark's and in Arrow's types.

A reader may ask for any of them in any order with `.schema(...)`; only those are decoded. That is how columns
are pruned: Spark does not tell a Python data source which ones a query uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
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

_MAP = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))

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
    "properties": (MapType(StringType(), StringType(), valueContainsNull=False), _MAP),
    "bornTimestamp": _TIME,
    "storeTimestamp": _TIME,
    "bornHost": _STRING,
    "storeHost": _STRING,
    "reconsumeTimes": _INT,
    "sysFlag": _INT,
    "flag": _INT,
    "preparedTransactionOffset": _LONG,
}
"""Name -> (Spark's type, Arrow's type)."""

MAY_BE_NULL: Final = frozenset({"tags", "keys"})
"""The columns that a message may lack. That the others are never null saves Spark a look at each value."""


def spark_schema(
    columns: Iterable[str] | None = None, *, nullable: Collection[str] | bool = False
) -> StructType:
    """The schema of these columns in this order, of all by default; `nullable`: any of them may be null, or
    those that are named.

    Raises ConfigError.
    """
    return StructType(
        [
            StructField(name, _types(name)[0], _may_be_null(name, nullable))
            for name in (COLUMNS if columns is None else columns)
        ]
    )


def arrow_schema(
    columns: Iterable[str] | None = None, *, nullable: Collection[str] | bool = False
) -> pa.Schema:
    """The same as Arrow has it: what Spark demands of record batches, to the letter. Raises ConfigError."""
    return asked_schema(spark_schema(columns, nullable=nullable), nullable=nullable)


def asked_schema(schema: StructType, *, nullable: Collection[str] | bool = False) -> pa.Schema:
    """The Arrow form of a schema that a user asked for; `nullable`: any column may turn out to be null, or
    those that are named.

    Raises ConfigError at a name or type that is not ours, and where a column is said to be never null that
    may be.
    """
    names: list[str] = schema.fieldNames()
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated or not names:
        raise ConfigError("schema", ", ".join(repeated), "each column once, and at least one")
    return pa.schema([_asked_field(field, _may_be_null(field.name, nullable)) for field in schema.fields])


def _may_be_null(name: str, nullable: Collection[str] | bool) -> bool:
    return name in MAY_BE_NULL or (nullable if isinstance(nullable, bool) else name in nullable)


def _asked_field(field: StructField, nullable: bool) -> pa.Field:
    expected, arrow = _types(field.name)
    asked = field.dataType
    if asked.simpleString() != expected.simpleString():
        raise ConfigError(f"schema column {field.name}", asked.simpleString(), expected.simpleString())
    if nullable and not field.nullable:
        raise ConfigError(f"schema column {field.name}", "not null", "a column that may be null")
    if isinstance(asked, MapType) and asked.valueContainsNull:
        arrow = pa.map_(pa.string(), pa.string())
    return pa.field(field.name, arrow, field.nullable)


def _types(name: str) -> tuple[DataType, pa.DataType]:
    try:
        return COLUMNS[name]
    except KeyError:
        raise ConfigError("schema column", name, f"one of {', '.join(COLUMNS)}") from None
