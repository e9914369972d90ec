"""The 18 columns of a message, in Spark's and in Arrow's types.

A reader may request any of them in any order, and in any case, with `.schema(...)`; only requested columns
are decoded, and of these, in a batch, only the columns that the query uses (see `narrowing`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
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

_HEADERS = ArrayType(
    StructType([StructField("key", StringType(), False), StructField("value", StringType(), False)]), False
)
_HEADERS_ARROW = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.string(), False)]),
        False,
    )
)

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

MORE_COLUMNS: Final[dict[str, tuple[DataType, pa.DataType]]] = {"headers": (_HEADERS, _HEADERS_ARROW)}
"""Columns only for schemas that name them: `headers` has the properties in their order, with all values of a
repeated name."""

_OWN_NAMES: Final = {name.lower(): name for name in (*COLUMNS, *MORE_COLUMNS)}

MAY_BE_NULL: Final = frozenset({"tags", "keys"})
"""The columns that a message may lack. Columns that are never null save Spark a check of each value."""


def spark_schema(
    columns: Iterable[str] | None = None, *, nullable: Collection[str] | bool = False
) -> StructType:
    """The schema of these columns in this order, of all by default; `nullable`: true if any column may be
    null, or the names of these columns.

    Raises ConfigError.
    """
    return StructType(
        [
            StructField(_own_name(name), _types(name)[0], _may_be_null(name, nullable))
            for name in (COLUMNS if columns is None else columns)
        ]
    )


def arrow_schema(
    columns: Iterable[str] | None = None, *, nullable: Collection[str] | bool = False
) -> pa.Schema:
    """The same in Arrow's types, exactly as Spark demands of record batches. Raises ConfigError."""
    return asked_schema(spark_schema(columns, nullable=nullable), nullable=nullable)


def asked_schema(schema: StructType, *, nullable: Collection[str] | bool = False) -> pa.Schema:
    """The Arrow form of a user's schema; `nullable`: true if any column may be null, or the names of these
    columns.

    Raises ConfigError for an unknown name or type, and for a column that is declared as never null and may be
    null.
    """
    names: list[str] = schema.fieldNames()
    lowered = [name.lower() for name in names]
    repeated = sorted({name for name in names if lowered.count(name.lower()) > 1})
    if repeated or not names:
        raise ConfigError("schema", ", ".join(repeated), "each column once, and at least one")
    return pa.schema([_asked_field(field, _may_be_null(field.name, nullable)) for field in schema.fields])


def own_names(schema: pa.Schema) -> pa.Schema:
    """The schema with the column names of this module: users may write them in any case."""
    return pa.schema([field.with_name(_own_name(field.name)) for field in schema])


def renamed(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches with the column names of `schema`, which differ only in case."""
    for batch in batches:
        yield batch if batch.schema.names == schema.names else batch.rename_columns(schema.names)


def _own_name(name: str) -> str:
    return _OWN_NAMES.get(name.lower(), name)


def _may_be_null(name: str, nullable: Collection[str] | bool) -> bool:
    name = _own_name(name)
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
    if isinstance(asked, ArrayType):
        arrow = _nullable_as(asked, arrow)
    return pa.field(field.name, arrow, field.nullable)


def _nullable_as(asked: ArrayType, arrow: pa.DataType) -> pa.DataType:
    """The list of `headers` with the nullability of the user's schema: in a schema in text all parts may be
    null."""
    parts = asked.elementType
    assert isinstance(parts, StructType)
    fields = [pa.field(part.name, pa.string(), part.nullable) for part in parts.fields]
    return pa.list_(pa.field("element", pa.struct(fields), asked.containsNull))


def _types(name: str) -> tuple[DataType, pa.DataType]:
    try:
        return {**COLUMNS, **MORE_COLUMNS}[_own_name(name)]
    except KeyError:
        raise ConfigError("schema column", name, f"one of {', '.join((*COLUMNS, *MORE_COLUMNS))}") from None
