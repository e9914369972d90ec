"""Description of the streams of a file, checked before anything runs.

Each part of a stream is a frozen class with `read(place, tree)`, which raises ConfigError that names the
stream and the option.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from attrs import field, fields, frozen

from rmq.config import java_key
from rmq.errors import ConfigError, InvalidName
from rmq.message import validate_group
from rmq.spark.jobs import checks
from rmq.spark.options import ConnectOptions, read_options, write_options

FILES_EVERY: Final = "1m"
MESSAGES_EVERY: Final = "1s"
"""Default time between batches, of sinks of files or tables, and of topics."""
COMPACT_AFTER: Final = 60
"""Default number of batches after which small files are merged."""
TABLES: Final = ("delta", "iceberg", "parquet")
"""Formats whose batches rmq writes, each once, when a stream has more steps than Spark's sink."""
CDC_FORMS: Final = ("canal", "debezium", "maxwell")
PARTS: Final = (
    "source", "decode", "cdc", "expectations", "dlq", "where", "select", "watermark", "dedup", "key", "order",
    "partition", "evolve", "compact", "to", "checkpoint", "every",
)  # fmt: skip
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_OWN_OF_SINKS: Final = ("format", "table", "mode")
_CONNECTION: Final = frozenset(java_key(one).lower() for one in fields(ConnectOptions))
"""Options of the source that a sink `rmq` has, too."""


@frozen(kw_only=True)
class Decode:
    """The conversion of bodies into values (see `rmq.spark.decoded`); the schema `infer` is that of a batch's
    bodies."""

    form: str = "json"
    schema: str
    message: str = ""
    framed: bool = False

    @classmethod
    def read(cls, place: str, tree: object) -> Self:
        """Check the part. Raises ConfigError."""
        known = ("form", "schema", "registry", "subject", "message", "framed")
        given = checks.mapping(place, tree, known)
        form = checks.choice(f"{place}.form", given.get("form"), ("json", "avro", "protobuf"), default="json")
        registry = given.get("registry")
        if (registry is None) == (given.get("schema") is None):
            raise ConfigError(
                f"{place}.schema", given.get("schema") or "", "a schema, or registry and subject"
            )
        if registry is not None:
            address = checks.text(f"{place}.registry", registry, "the URL of a schema registry").rstrip("/")
            subject = checks.text(f"{place}.subject", given.get("subject"), "the name of its subject")
            schema = f"{address}/subjects/{subject}/versions/latest"
            schema += "?format=serialized" if form == "protobuf" else ""
        else:
            schema = checks.text(f"{place}.schema", given["schema"], "a schema, a file, a URL or infer")
        if schema == "infer" and form != "json":
            raise ConfigError(f"{place}.schema", schema, f"a schema: infer is for json, not {form}")
        message = checks.text(f"{place}.message", given.get("message"), "a type of the schema", default="")
        if form == "protobuf" and not message:
            raise ConfigError(f"{place}.message", "", "the name of the message's type in the descriptor file")
        framed = checks.truth(f"{place}.framed", given.get("framed"), default=registry is not None)
        return cls(form=form, schema=schema, message=message, framed=framed)


@frozen(kw_only=True)
class Cdc:
    """Changes of a database's table: the envelope, and the columns of a row."""

    form: str
    schema: str
    table: str = ""
    """`database.table`; changes of other tables are ignored. Empty: all changes are of one table."""
    deletes: str = "mark"

    @classmethod
    def read(cls, place: str, tree: object) -> Self:
        """Check the part. Raises ConfigError."""
        given = checks.mapping(place, tree, ("form", "schema", "table", "deletes"))
        return cls(
            form=checks.choice(f"{place}.form", given.get("form"), CDC_FORMS),
            schema=checks.text(
                f"{place}.schema", given.get("schema"), "the columns of a row, as 'id long, name string'"
            ),
            table=checks.text(f"{place}.table", given.get("table"), "database.table", default=""),
            deletes=checks.choice(
                f"{place}.deletes", given.get("deletes"), ("mark", "remove"), default="mark"
            ),
        )


@frozen(kw_only=True)
class Expectation:
    """A condition on rows, and the consequence for rows that do not meet it: `keep` only counts."""

    name: str
    that: str
    otherwise: str = "keep"

    @classmethod
    def read(cls, place: str, name: str, tree: object) -> Self:
        """Check one expectation: an SQL condition, or `that` and `else`. Raises ConfigError."""
        given = checks.mapping(place, {"that": tree} if isinstance(tree, str) else tree, ("that", "else"))
        words = ("keep", "drop", "dlq", "fail")
        return cls(
            name=name,
            that=checks.text(f"{place}.that", given.get("that"), "an SQL condition"),
            otherwise=checks.choice(f"{place}.else", given.get("else"), words, default="keep"),
        )


@frozen(kw_only=True)
class Watermark:
    """The allowed delay of a row: `delay` behind the latest value of a column."""

    column: str
    delay_ms: int

    @classmethod
    def read(cls, place: str, tree: object) -> Self:
        """Check the part. Raises ConfigError."""
        given = checks.mapping(place, tree, ("column", "delay"))
        column = checks.text(f"{place}.column", given.get("column"), "a column", default="storeTimestamp")
        return cls(
            column=column, delay_ms=checks.milliseconds(f"{place}.delay", given.get("delay"), default="10m")
        )


@frozen(kw_only=True)
class Stream:
    """A stream: options of the source `rmq`, the steps on its rows, and its target."""

    name: str
    source: Mapping[str, str]
    checkpoint: str
    to: Mapping[str, str]
    """`format`, and `table` or the options of that format, `path` among them."""
    decode: Decode | None = None
    cdc: Cdc | None = None
    expectations: Sequence[Expectation] = ()
    dlq: str = ""
    """The group of the dead letters; empty: unreadable rows end the stream."""
    where: str = ""
    select: Sequence[str] = ()
    watermark: Watermark | None = None
    dedup: Sequence[str] = ()
    key: Sequence[str] = ()
    order: Sequence[str] = ()
    partition: Sequence[str] = ()
    evolve: str = "fail"
    compact: int = 0
    """Batches after which small files are merged; 0: never."""
    every_ms: int = 1000

    @property
    def target(self) -> str:
        """The table's name, or the path."""
        return self.to.get("table") or self.to.get("path", "")

    @property
    def by_batch(self) -> bool:
        """True if rmq writes the batches, and not a sink of Spark's."""
        steps = (self.decode, self.cdc, self.expectations, self.dlq, self.key, self.watermark)
        is_plain = not any(steps)
        return not is_plain or bool(self.compact) or self.evolve != "fail"


@frozen(kw_only=True)
class Jobs:
    """The content of a file: its streams, settings of Spark, and the targets of health, metrics and
    lineage."""

    streams: Sequence[Stream]
    spark: Mapping[str, str] = field(factory=dict)
    host: str = "127.0.0.1"
    port: int | None = None
    lineage: str = ""
    """URL of an OpenLineage backend, or a file; empty: none."""
    lineage_namespace: str = "rmq"


def read_jobs(tree: object, source: Mapping[str, str] | None = None) -> Jobs:
    """Check the content of a file. `source` are options of all sources and of sinks `rmq`, which the file
    overrides. Raises ConfigError that names the place."""
    root = checks.mapping("the file", tree, ("source", "spark", "serve", "lineage", "streams"))
    common = {**(source or {}), **checks.texts("source", root.get("source", {}))}
    streams = checks.mapping("streams", root.get("streams"))
    if not streams:
        raise ConfigError("streams", "", "at least one, by its name")
    serve = checks.mapping("serve", root.get("serve", {}), ("host", "port"))
    port = serve.get("port")
    if port is not None and (type(port) is not int or not 0 <= port <= 65535):
        raise ConfigError("serve.port", port, "a port, 0 for a free one")
    lineage = checks.mapping("lineage", root.get("lineage", {}), ("url", "file", "namespace"))
    if len({"url", "file"} & lineage.keys()) > 1:
        raise ConfigError("lineage.file", lineage["file"], "one of url and file")
    found = [_stream(str(name), one, common) for name, one in streams.items()]
    places = [one.checkpoint for one in found]
    if twice := {place for place in places if places.count(place) > 1}:
        raise ConfigError("checkpoint", min(twice), "a folder of each stream's own")
    return Jobs(
        streams=found,
        spark=checks.texts("spark", root.get("spark", {})),
        host=str(serve.get("host", "127.0.0.1")),
        port=port,
        lineage=str(lineage.get("url") or lineage.get("file") or ""),
        lineage_namespace=str(lineage.get("namespace", "rmq")),
    )


def _stream(name: str, tree: object, common: Mapping[str, str]) -> Stream:
    place = f"streams.{name}"
    if not _NAME.fullmatch(name):
        raise ConfigError(place, name, "a name of letters, digits, '_', '.' and '-'")
    given = checks.mapping(place, tree, PARTS)
    source = {**common, **checks.texts(f"{place}.source", given.get("source", {}))}
    to = checks.texts(f"{place}.to", given.get("to", {}))
    if not to.get("format"):
        raise ConfigError(
            f"{place}.to.format", "", "parquet, delta, iceberg, rmq or another format of Spark's"
        )
    with checks.placed(f"{place}.source"):
        read_options(source, streaming=True)
    if to["format"] == "rmq":
        to = {**connection_of(common), **to}
        with checks.placed(f"{place}.to"):
            write_options(sink_options(to))
    every = FILES_EVERY if to["format"] not in ("rmq", "console", "noop") else MESSAGES_EVERY
    select = given.get("select", ())
    if isinstance(select, str) or not all(isinstance(one, str) for one in select):
        raise ConfigError(f"{place}.select", select, "a list of SQL expressions")
    found = Stream(
        name=name,
        source=source,
        checkpoint=checks.text(f"{place}.checkpoint", given.get("checkpoint"), "a folder of its own"),
        to=to,
        where=str(given.get("where", "")),
        select=tuple(select),
        every_ms=checks.milliseconds(f"{place}.every", given.get("every"), default=every),
        **_steps(place, given),
    )
    _check_together(place, found)
    return found


def _steps(place: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a stream that are steps on its rows."""
    parts = {name: tree for name, tree in given.items() if tree is not None}
    expectations = checks.mapping(f"{place}.expectations", parts.get("expectations", {}))
    dlq = parts.get("dlq")
    group = ""
    if dlq is not None:
        tree = checks.mapping(f"{place}.dlq", {"group": dlq} if isinstance(dlq, str) else dlq, ("group",))
        group = checks.text(f"{place}.dlq.group", tree.get("group"), "a consumer group")
        try:
            validate_group(group)
        except InvalidName as error:
            raise ConfigError(f"{place}.dlq.group", group, f"the name of a group ({error})") from None
    is_upsert = bool(parts.get("key"))
    names = {
        name: checks.names(f"{place}.{name}", parts.get(name), "a list of columns or expressions")
        for name in ("dedup", "key", "order", "partition")
    }
    return {
        "decode": Decode.read(f"{place}.decode", parts["decode"]) if "decode" in parts else None,
        "cdc": Cdc.read(f"{place}.cdc", parts["cdc"]) if "cdc" in parts else None,
        "expectations": [
            Expectation.read(f"{place}.expectations.{name}", str(name), tree)
            for name, tree in expectations.items()
        ],
        "dlq": group,
        "watermark": Watermark.read(f"{place}.watermark", parts["watermark"])
        if "watermark" in parts
        else None,
        "evolve": checks.choice(
            f"{place}.evolve", parts.get("evolve"), ("fail", "add", "widen"), default="fail"
        ),
        "compact": checks.count(
            f"{place}.compact", parts.get("compact"), default=COMPACT_AFTER if is_upsert else 0
        ),
        **names,
    }


def _check_together(place: str, stream: Stream) -> None:
    """Raise ConfigError for parts of a stream that do not fit each other."""
    kind = stream.to["format"]
    if stream.cdc and stream.decode:
        raise ConfigError(f"{place}.decode", stream.decode.form, "none beside cdc, which has a schema")
    if stream.cdc and not stream.key:
        raise ConfigError(f"{place}.key", "", "the columns of the table's primary key, since there is cdc")
    if stream.key and kind not in TABLES:
        raise ConfigError(
            f"{place}.key", ", ".join(stream.key), f"a target of {', '.join(TABLES)}, not {kind}"
        )
    if stream.order and not stream.key:
        raise ConfigError(f"{place}.order", ", ".join(stream.order), "a key beside it")
    if stream.dedup and stream.watermark is None:
        expected = "a watermark beside it: without one all keys are kept for ever"
        raise ConfigError(f"{place}.dedup", ", ".join(stream.dedup), expected)
    if stream.watermark and stream.decode and stream.decode.schema == "infer":
        raise ConfigError(f"{place}.decode.schema", "infer", "a schema, since there is a watermark")
    if any(one.otherwise == "dlq" for one in stream.expectations) and not stream.dlq:
        raise ConfigError(f"{place}.dlq", "", "a group for the rows of expectations with else: dlq")
    if stream.by_batch and kind not in (*TABLES, "rmq"):
        expected = f"{', '.join((*TABLES, 'rmq'))}: other sinks take no stream with these steps"
        raise ConfigError(f"{place}.to.format", kind, expected)
    if (stream.compact or stream.evolve != "fail") and kind not in TABLES:
        raise ConfigError(f"{place}.compact", stream.compact, f"a target of {', '.join(TABLES)}, not {kind}")
    if stream.by_batch and kind in TABLES and not stream.target:
        raise ConfigError(f"{place}.to.path", "", "a path, or a table for delta and iceberg")
    if kind == "iceberg" and stream.by_batch and "table" not in stream.to:
        raise ConfigError(f"{place}.to.table", "", "the name of the Iceberg table")
    if stream.by_batch and stream.to.get("mode", "append") != "append":
        raise ConfigError(f"{place}.to.mode", stream.to["mode"], "append")


def connection_of(source: Mapping[str, str]) -> dict[str, str]:
    """The options of a source that a sink `rmq` to the same cluster has, too."""
    return {key: value for key, value in source.items() if key.lower() in _CONNECTION}


def sink_options(to: Mapping[str, str]) -> dict[str, str]:
    """The options in `Stream.to` for the sink itself."""
    return {name: value for name, value in to.items() if name not in _OWN_OF_SINKS}


def names_of(jobs: Jobs) -> list[dict[str, str]]:
    """The streams as rows for display."""
    return [
        {
            "name": one.name,
            "topic": one.source.get("topic", one.source.get("topicPattern", "")),
            "to": _target(one.to),
        }
        for one in jobs.streams
    ]


def _target(to: Mapping[str, str]) -> str:
    place = next((to[name] for name in ("table", "path", "topic") if to.get(name)), "")
    return f"{to['format']} {place}".strip()
