"""decoded(): bodies of messages as values, by a schema in JSON, Avro or Protobuf; undecoded(): the unreadable
rows.

JSON and Avro are decoded by Spark's own expressions: no row goes through Python. For Protobuf see
`rmq.spark.formats.protobuf`.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

from rmq.errors import ConfigError
from rmq.message import dlq_topic, validate_group
from rmq.protocol.properties import DLQ_ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC, DLQ_REASON
from rmq.spark.pipelines.replay import own_properties

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

Form = Literal["json", "avro", "protobuf"]
Bad = Literal["null", "fail", "dlq"]

REASON: Final = "decodeError"
"""The column with the fault of a row, with bad="dlq"."""
REGISTRY_SECONDS: Final = 10.0
_UNREAD: Final = "_unread"
_VALUE: Final = "value"
_END: Final = "end"
_END_BYTE: Final = b"\x02"
"""The number 1 in Avro's encoding."""
_FRAME_BYTES: Final = 5


def decoded(
    frame: DataFrame,
    schema: str | StructType,
    *,
    form: Form = "json",
    bad: Bad = "null",
    message: str = "",
    framed: bool = False,
    into: str = "value",
) -> DataFrame:
    """The rows with one column more, `into`: the `body` as a value.

    `schema` is a Spark schema (a StructType, or text such as ``id long, amount double``) for `json`, an Avro
    schema for `avro`, the path of a descriptor file for `protobuf` (``protoc --include_imports
    --descriptor_set_out``), of which `message` names the type. Instead you can give the path of a file with
    the schema, or the URL of a schema registry whose answer has it as ``schema``
    (``https://host/subjects/orders-value/versions/latest``, for `protobuf` with ``?format=serialized``); the
    schema is read now, once. `framed`: each value follows the header that such a registry's clients write: a
    zero and a number, for `protobuf` also the place of the type in its file.

    `bad` decides about a body that does not fit the schema: `null`: its value is null; `fail`: the query
    fails and names topic, queue and offset; `dlq`: a column ``decodeError`` has the reason, null for good
    rows, from which `undecoded` makes dead letters. A null body is no fault.

    Avro needs Spark's own package in the session (``spark.jars.packages``: org.apache.spark:spark-avro_2.13
    of Spark's version), Protobuf the package `protobuf` in Python, here and at the workers (the extra
    ``protobuf``). Raises ConfigError without them, and for a schema that cannot be read.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    for key, given, known in (("form", form, get_args(Form)), ("bad", bad, get_args(Bad))):
        if given not in known:
            raise ConfigError(key, given, f"one of {', '.join(known)}")
    if taken := {into, *((REASON,) if bad == "dlq" else ())} & set(frame.columns):
        raise ConfigError("into", ", ".join(sorted(taken)), "a column that the rows do not have")
    try:
        found = frame.withColumn(into, _value(schema, form, message, framed))
    except (PySparkException, Py4JJavaError) as error:
        if form == "avro" and ("NOT_LOADED" in str(error) or "JavaPackage" in str(error)):
            package = "org.apache.spark:spark-avro_2.13 of this Spark's version in spark.jars.packages"
            raise ConfigError("form", form, package) from None
        reason = _reason(error).strip().splitlines()[0]
        raise ConfigError("schema", str(schema)[:200], f"a schema for {form} ({reason})") from None
    value, is_bad = _judged(F.col(into), form)
    is_bad = F.col("body").isNotNull() & is_bad
    why = F.lit(f"the body does not fit the {form} schema")
    if bad == "fail":
        place = F.format_string(
            "message %d of queue %d of %s, topic %s: %s", "queueOffset", "queueId", "brokerName", "topic", why
        )
        return found.withColumn(into, F.when(is_bad, F.raise_error(place)).otherwise(value))
    if bad == "dlq":
        found = found.withColumn(REASON, F.when(is_bad, why))
        is_bad = F.col(REASON).isNotNull()
    return found.withColumn(into, F.when(~is_bad, value))


def undecoded(frame: DataFrame, group: str) -> DataFrame:
    """The unreadable rows of `decoded` with bad="dlq", as dead letters of `group`: for the sink `rmq`, so
    that `dead_letters`, `rmq dlq` and `rmq spark resend` find them.

    In a stream write both within the same `foreachBatch`. The dead letter topic of the group must exist.
    Raises InvalidName for an invalid group.
    """
    from pyspark.sql import functions as F

    validate_group(group)
    place = F.format_string("undecoded/%s@%s-%d@%d", "topic", "brokerName", "queueId", "queueOffset")
    marks = F.create_map(
        F.lit(DLQ_ORIGIN_TOPIC), "topic", F.lit(DLQ_ORIGIN_MESSAGE_ID), "msgId", F.lit(DLQ_REASON), REASON
    )
    return frame.where(F.col(REASON).isNotNull()).select(
        "body",
        "tags",
        "keys",
        F.map_concat(own_properties("DLQ_"), marks).alias("properties"),
        F.lit(dlq_topic(group)).alias("topic"),
        place.alias("rowKey"),
        "msgId",
    )


def _value(schema: str | StructType, form: Form, message: str, framed: bool) -> Column:
    """The value that the schema makes of the body; `_judged` tells whether it is a value."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructType

    body = F.substring("body", _FRAME_BYTES + 1, 1 << 30) if framed else F.col("body")
    if form == "json":
        found = schema if isinstance(schema, StructType) else _struct(_text(schema))
        whole = StructType([*found.fields]).add(_UNREAD, StringType())
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _UNREAD}
        return F.from_json(body.cast("string"), whole, options)
    if not isinstance(schema, str):
        raise ConfigError("schema", type(schema).__name__, f"text, a file or a URL for {form}")
    if form == "avro":
        from pyspark.sql.avro.functions import from_avro

        return from_avro(F.concat(body, F.lit(_END_BYTE)), _ended(_text(schema)), {"mode": "PERMISSIVE"})
    if not message:
        raise ConfigError("message", "", "the name of the message's type in the descriptor file")
    return _protobuf(schema, message, framed)


def _protobuf(schema: str, message: str, framed: bool) -> Column:
    from pyspark.sql import functions as F

    try:
        from rmq.spark.formats.protobuf import description_of, reader, schema_of

        description = description_of(_bytes(schema))
    except ImportError:
        raise ConfigError("form", "protobuf", "json or avro until `pip install 'rmq[protobuf]'`") from None
    read = reader(description, message, framed=framed)
    return F.udf(read, schema_of(description, message), useArrow=False)("body")


def _judged(found: Column, form: Form) -> tuple[Column, Column]:
    """The value from a result of `_value`, and whether the body does not fit the schema."""
    if form == "json":
        # The parser puts unreadable text into a field of its own, which users do not need.
        return found.dropFields(_UNREAD), found.isNull() | found[_UNREAD].isNotNull()
    if form == "avro":
        return found[_VALUE], ~found[_END].eqNullSafe(1)
    return found, found.isNull()


def _ended(schema: str) -> str:
    """The Avro schema of a value and a number behind it: Spark turns unreadable bytes into a record of nulls,
    which may also be a value; the number proves that a value was read, and that it ended with the body."""
    try:
        value = json.loads(schema)
    except ValueError:
        value = schema.strip().strip('"')
    fields = [{"name": _VALUE, "type": value}, {"name": _END, "type": "long"}]
    return json.dumps({"type": "record", "name": "rmq_ended", "fields": fields})


def _reason(error: Exception) -> str:
    """Spark's reason, or the reason below Java's error."""
    cause = getattr(error, "java_exception", None)
    if cause is None:
        return str(error)
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.getMessage())


def _struct(text: str) -> StructType:
    from pyspark.sql.types import StructType

    if text.lstrip().startswith("{"):
        return StructType.fromJson(json.loads(text))
    found = StructType.fromDDL(text)
    assert isinstance(found, StructType)
    return found


def _text(schema: str) -> str:
    """The schema's text, possibly from a file or a registry. Raises ConfigError."""
    if schema.startswith(("http://", "https://")):
        try:
            with urllib.request.urlopen(schema, timeout=REGISTRY_SECONDS) as answer:
                found = json.load(answer)["schema"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError("schema", schema, f"a registry's answer with `schema` ({error!r})") from None
        return found if isinstance(found, str) else json.dumps(found)
    if _is_file(schema):
        return Path(schema).read_text("utf-8")
    return schema


def _is_file(text: str) -> bool:
    """True if a text is the path of a file, and no schema: a schema may be too long for a path."""
    try:
        return "\n" not in text and Path(text).is_file()
    except (OSError, ValueError):
        return False


def _bytes(schema: str) -> bytes:
    """The content of a file, or the answer of a registry. Raises ConfigError."""
    if schema.startswith(("http://", "https://")):
        return _text(schema).encode()
    try:
        return Path(schema).read_bytes()
    except OSError as error:
        raise ConfigError("schema", schema, f"a descriptor file ({error.strerror})") from None
