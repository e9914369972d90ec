"""Changes of a database's table in the envelopes of Canal, Debezium and Maxwell, as rows.

A change has the columns of the table's row, `rmq_deleted`, and `rmq_order`: numbers that order the changes of
a key, in whatever order they arrive. Canal and Maxwell write texts or JSON of their own types, which are cast
to the columns of the schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmq.errors import ConfigError
from rmq.spark.jobs.spec import Cdc

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

DELETED: Final = "rmq_deleted"
ORDER: Final = "rmq_order"
"""The name of the column; Iceberg reserves _deleted for itself."""
ERROR: Final = "decodeError"
_ENVELOPES: Final = {
    "canal": (
        "type string, database string, table string, es bigint, ts bigint, id bigint, isDdl boolean,"
        " data array<map<string,string>>"
    ),
    "maxwell": (
        "type string, database string, table string, ts bigint, xid bigint, xoffset bigint,"
        " data map<string,string>"
    ),
    "debezium": (
        "op string, ts_ms bigint, before map<string,string>, after map<string,string>,"
        " source struct<db:string,schema:string,table:string,ts_ms:bigint,lsn:bigint,pos:bigint,row:bigint>"
    ),
}
_CHANGES: Final = {
    "canal": ("INSERT", "UPDATE", "DELETE"),
    "maxwell": ("insert", "update", "delete", "bootstrap-insert"),
    "debezium": ("c", "u", "d", "r"),
}


def changes(frame: DataFrame, cdc: Cdc) -> DataFrame:
    """The changes in the bodies of messages: a row for each, with the columns of the message, those of the
    table's row in `value`, `rmq_deleted`, `rmq_order`, and `decodeError`, the reason why a body is no change
    (null for changes). Other statements, and other tables, are left out."""
    from pyspark.sql import functions as F

    schema = row_schema(cdc.schema)
    envelope = F.from_json(F.col("body").cast("string"), _ENVELOPES[cdc.form])
    if cdc.form == "debezium":  # with the schema, or without (schemas.enable=false)
        wrapped = F.from_json(F.col("body").cast("string"), f"payload struct<{_fields('debezium')}>")
        envelope = F.coalesce(wrapped["payload"], envelope)
    found = frame.withColumn("_envelope", envelope)
    kind = F.col("_envelope")["op" if cdc.form == "debezium" else "type"]
    found = found.withColumn("_kind", kind).withColumn("_known", kind.isin(*_CHANGES[cdc.form]))
    found = found.where(F.col("_kind").isNull() | (F.col("_known") & _of_table(cdc)))
    found = found.select("*", F.posexplode_outer(_rows(cdc.form)).alias("_at", "_row"))
    texts = F.col("_row")
    value = F.struct(*[_cast(texts, schema, name).alias(name) for name in schema.fieldNames()])
    wrong = F.lit(None).cast("string")
    for name in reversed(schema.fieldNames()):
        is_wrong = texts[name].isNotNull() & _cast(texts, schema, name).isNull()
        wrong = F.when(is_wrong, F.lit(f"{name} is no {schema[name].dataType.simpleString()}")).otherwise(
            wrong
        )
    reason = F.when(F.col("_kind").isNull(), F.lit(f"the body is no change of {cdc.form}"))
    reason = reason.when(F.col("_row").isNull(), F.lit("the change has no row")).otherwise(wrong)
    is_deleted = F.lower("_kind").isin("delete", "d")
    order = F.array(*[F.coalesce(one.cast("bigint"), F.lit(0)) for one in _order(cdc.form)])
    return found.select(
        *frame.columns,
        value.alias("value"),
        F.coalesce(is_deleted, F.lit(False)).alias(DELETED),
        order.alias(ORDER),
        reason.alias(ERROR),
    )


def row_schema(text: str) -> StructType:
    """The columns of a table's row. Raises ConfigError."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        found = StructType.fromDDL(text)
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            "cdc.schema", text[:200], f"columns, as 'id long, name string' ({reason})"
        ) from None
    assert isinstance(found, StructType)
    return found


def _fields(form: str) -> str:
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(_ENVELOPES[form])
    assert isinstance(found, StructType)
    return ",".join(f"{one.name}:{one.dataType.simpleString()}" for one in found.fields)


def _of_table(cdc: Cdc) -> Column:
    from pyspark.sql import functions as F

    if not cdc.table:
        return F.lit(True)
    envelope = F.col("_envelope")
    if cdc.form == "debezium":
        source = envelope["source"]
        by_database = F.concat_ws(".", source["db"], source["table"]) == cdc.table
        return by_database | (F.concat_ws(".", source["schema"], source["table"]) == cdc.table)
    return F.concat_ws(".", envelope["database"], envelope["table"]) == cdc.table


def _rows(form: str) -> Column:
    """The rows of an envelope: Canal's has several."""
    from pyspark.sql import functions as F

    envelope = F.col("_envelope")
    if form == "canal":
        return envelope["data"]
    if form == "maxwell":
        return F.array(envelope["data"])
    return F.array(F.when(F.col("_kind") == "d", envelope["before"]).otherwise(envelope["after"]))


def _order(form: str) -> list[Column]:
    """The order of a change: the database's time and position, then the place in the topic and in the
    envelope."""
    from pyspark.sql import functions as F

    envelope = F.col("_envelope")
    first = {
        "canal": lambda: [envelope["es"], envelope["id"]],
        "maxwell": lambda: [envelope["ts"], envelope["xid"], envelope["xoffset"]],
        "debezium": lambda: [
            F.coalesce(envelope["source"]["ts_ms"], envelope["ts_ms"]),
            F.coalesce(envelope["source"]["lsn"], envelope["source"]["pos"]),
            envelope["source"]["row"],
        ],
    }[form]()
    return [*first, F.unix_millis("storeTimestamp"), F.col("queueOffset"), F.col("_at")]


def _cast(texts: Column, schema: StructType, name: str) -> Column:
    """A value of a row, from its text in the envelope."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BooleanType, MapType, StructType, TimestampType

    kind, found = schema[name].dataType, texts[name]
    if isinstance(kind, (StructType, ArrayType, MapType)):
        return F.from_json(found, kind.simpleString())
    if isinstance(kind, BooleanType):
        return F.when(found.isin("1", "true", "TRUE"), F.lit(True)).when(
            found.isin("0", "false", "FALSE"), F.lit(False)
        )
    if isinstance(kind, TimestampType):  # Debezium has numbers: ms since 1970
        by_number = F.timestamp_millis(found.try_cast("bigint"))
        return F.when(found.rlike("^-?[0-9]{9,16}$"), by_number).otherwise(found.try_cast(kind))
    return found.try_cast(kind)
