"""The text of consumerOffset.json, in slices: `{"offsetTable":{"topic@group":{0:5,1:7},…}}`.

Some hundred thousand offsets are usual where there are many groups, and the table is saved every few seconds:
the general writer and reader of Java's JSON are ten times slower than these, and neither can pause.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Final

from rmq.broker.slices import Slices
from rmq.protocol.bodies import ConsumerOffsetSerializeWrapper

SLICE_OFFSETS: Final = 2_000
"""So many offsets are written or read in one slice, and one topic of one group more."""

Table = dict[str, dict[int, int]]

_HEAD: Final = re.compile(r'\s*\{\s*"offsetTable"\s*:\s*\{')
_ENTRY: Final = re.compile(r'\s*"([^"\\]*)"\s*:\s*\{([-0-9:,"\s]*)\}\s*(,?)')
_TAIL: Final = re.compile(r"\s*\}\s*\}\s*\Z")
_LONG: Final = 1 << 63


def encode(table: Mapping[str, Mapping[int, int]]) -> Slices[bytes]:
    """The text of a table. A value may be replaced meanwhile, if the table keeps its keys."""
    pieces, rows, count = [b'{"offsetTable":{'], list[str](), 0
    separator = ""
    for key, queues in table.items():
        numbers = ",".join([f"{queue_id}:{offset}" for queue_id, offset in queues.items()])
        rows.append(f"{separator}{encode_basestring(key)}:{{{numbers}}}")
        separator = ","
        count += len(queues) + 1
        if count >= SLICE_OFFSETS:
            pieces.append("".join(rows).encode("utf-8", "replace"))
            rows, count = [], 0
            yield
    pieces.append(f"{''.join(rows)}}}}}".encode("utf-8", "replace"))
    return b"".join(pieces)


def decode(data: bytes) -> Slices[Table]:
    """The table of a text. One that has more in it than offsets is read at once, by the general reader, which
    raises RemoteProtocolError."""
    text = data.decode("utf-8", "replace")
    head = _HEAD.match(text)
    at = -1 if head is None else head.end()
    table: Table = {}
    count, more = 0, head is not None
    while more and (entry := _ENTRY.match(text, at)) is not None:
        key, numbers, comma = entry.groups()
        queues = _queues(numbers)
        if queues is None:
            break
        table[key] = queues
        at, more = entry.end(), bool(comma)
        count += len(queues) + 1
        if count >= SLICE_OFFSETS:
            count = 0
            yield
    if head is not None and (not more or at == head.end()) and _TAIL.match(text, at) is not None:
        return table
    return ConsumerOffsetSerializeWrapper.from_json(data).offset_table


def _queues(text: str) -> dict[int, int] | None:
    """Queue id -> offset of `0:5,"1":7`; None for what is no such text."""
    if not text or text.isspace():
        return {}
    queues = {}
    try:
        for pair in text.replace('"', "").split(","):
            queue_id, offset = pair.split(":")
            queues[int(queue_id)] = int(offset)
    except ValueError:
        return None
    return queues if all(-_LONG <= number < _LONG for number in queues.values()) else None
