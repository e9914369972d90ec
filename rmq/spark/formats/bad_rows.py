"""Rows that cannot be messages: their reasons, and letters that take their place in a dead letter topic."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen

from rmq.errors import ConfigError, InvalidName
from rmq.message import RESERVED_PROPERTIES, validate_topic
from rmq.protocol.properties import DLQ_ORIGIN_TOPIC, DLQ_REASON
from rmq.protocol.record import PROPERTIES_MAX
from rmq.spark.formats.encoding import KEY_PROPERTY, NO_TEXT, RowKeys, texts_of_properties

BODY_BYTES: Final = "rmqBodyBytes"
"""Property of a letter: the length of the row's body; absent for null."""
KEPT_BYTES: Final = 64 * 1024
"""Bytes of a body that go into a letter."""
_TEXTS: Final = ("tags", "keys", "shardingKey", "rowKey", "msgId")


@frozen
class BadRow:
    """A row that cannot be a message: its topic (empty: none), its key, and the reason."""

    topic: str
    key: str
    reason: str

    def __str__(self) -> str:
        return f"topic {self.topic or '(none)'}, key {self.key}: {self.reason}"


def reasons(batch: pa.RecordBatch, topic: str, most: int) -> list[str | None]:
    """For each row the reason why it cannot be a message, or None. `topic` is for rows without one, `most`
    the longest body in bytes."""
    found: list[str | None] = [None] * len(batch)

    def note(bad: pa.Array, reason: str) -> None:
        for at in np.flatnonzero(pc.fill_null(bad, False).to_numpy(zero_copy_only=False)):
            found[at] = found[at] or reason

    body = batch.column("body").cast(pa.binary())
    size = pc.binary_length(body)
    note(pc.is_null(body), "its body is null")
    note(pc.equal(size, 0), "its body is empty; RocketMQ takes messages of one byte or more")
    note(pc.greater(size, most), f"its body has more than {most} bytes (maxMessageBytes)")
    for name in _TEXTS:
        if name in batch.schema.names:
            bad = pc.match_substring_regex(batch.column(name), NO_TEXT)
            note(bad, f"its {name} have a character 0x00, 0x01 or 0x02")
    if "rowKey" in batch.schema.names:
        note(pc.fill_null(pc.equal(batch.column("rowKey"), ""), True), "its rowKey is empty")
    names = batch.column("topic").to_pylist() if "topic" in batch.schema.names else [None] * len(batch)
    wrong = {name: reason for name in {*names} if (reason := _wrong_topic(name or topic))}
    for at, name in enumerate(names):
        found[at] = found[at] or wrong.get(name)
    if "properties" in batch.schema.names:
        for at, properties in enumerate(batch.column("properties").to_pylist()):
            found[at] = found[at] or _wrong_properties(properties)
    good = np.array([reason is None for reason in found], bool)
    if good.any():
        some = batch.filter(pa.array(good))
        texts = texts_of_properties(some, RowKeys("x" * 80, 0, len(some)))
        long = pc.greater(pc.binary_length(texts), PROPERTIES_MAX).to_numpy(zero_copy_only=False)
        for at in np.flatnonzero(good)[long]:
            found[at] = f"its properties have more than {PROPERTIES_MAX} bytes"
    return found


def _wrong_topic(topic: str) -> str | None:
    if not topic:
        return "it has no topic"
    try:
        validate_topic(topic)
    except (InvalidName, ConfigError) as error:
        return f"its topic is invalid: {error}"
    return None


def _wrong_properties(properties: list[tuple[str, str | None]] | None) -> str | None:
    for name, value in properties or ():
        if name in RESERVED_PROPERTIES or name == KEY_PROPERTY:
            return f"its property {name} is RocketMQ's own"
        if any(mark in text for text in (name, value or "") for mark in "\x00\x01\x02"):
            return "a property has a character 0x00, 0x01 or 0x02"
    return None


def described(batch: pa.RecordBatch, at: int, reason: str, topic: str, number: str) -> BadRow:
    """A bad row by its own topic and key; `number` stands in for a missing key."""
    row = {
        name: batch.column(name)[at].as_py()
        for name in ("topic", "keys", "rowKey")
        if name in batch.schema.names
    }
    return BadRow(row.get("topic") or topic, row.get("keys") or row.get("rowKey") or number, reason)


def letters(batch: pa.RecordBatch, bad: list[BadRow], to: str, most: int) -> pa.RecordBatch:
    """Messages for the dead letter topic `to`, one for each row of `batch`: the begin of its body (the reason
    where there is none), its key, and the reason as a property. `most` is the longest body in bytes."""
    bodies, properties = [], []
    for body, one in zip(batch.column("body").cast(pa.binary()).to_pylist(), bad, strict=True):
        bodies.append((body or one.reason.encode())[: min(KEPT_BYTES, most)])
        marks = [(DLQ_ORIGIN_TOPIC, one.topic), (DLQ_REASON, one.reason[:1000])]
        if body is not None:
            marks.append((BODY_BYTES, str(len(body))))
        properties.append([(name, value) for name, value in marks if value])
    keys = [None if any(mark in one.key for mark in "\x00\x01\x02") else one.key[:1000] for one in bad]
    texts = pa.map_(pa.string(), pa.string())
    return pa.record_batch(
        {
            "body": pa.array(bodies, pa.binary()),
            "keys": pa.array(keys, pa.string()),
            "properties": pa.array(properties, texts),
            "topic": pa.array([to] * len(bad), pa.string()),
        }
    )
