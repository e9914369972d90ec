"""Plain records as Arrow columns, by the compiled engine: the fast path of `rmq.spark.formats.records`.

The engine knows whole records with two IPv4 hosts, in UTF-8, whose bodies need no change. A batch with any
other record takes the slow path, which gives the same result for plain records and reports faults.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from rmq.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY
from rmq.protocol import engine
from rmq.protocol.codes import SYS_COMPRESSED, SYS_HOST_BITS
from rmq.protocol.record import FIELDS, MESSAGE_MAGIC, host_text, offset_of
from rmq.spark.formats.arrays import Array
from rmq.spark.formats.schema import COLUMNS, MORE_COLUMNS

_Texts: TypeAlias = tuple[bytes | None, int, bytes, bytes]

_SIZES: Final = {"i": 4, "I": 4, "q": 8, "8s": 8}
_FIELD_OF: Final = {
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "physicalOffset": "physical_offset",
    "bornTimestamp": "born_timestamp",
    "storeTimestamp": "store_timestamp",
    "bornHost": "born_host",
    "storeHost": "store_host",
    "reconsumeTimes": "reconsume_times",
    "sysFlag": "sys_flag",
    "flag": "flag",
    "preparedTransactionOffset": "prepared_transaction_offset",
}
_HOSTS: Final = {"bornHost", "storeHost"}
_TIMES: Final = {"bornTimestamp": 1000, "storeTimestamp": 1000}
"""Milliseconds, which Arrow has as microseconds."""
_PROPERTY_OF: Final = {
    "tags": (PROPERTY_TAGS.encode(), False),
    "keys": (PROPERTY_KEYS.encode(), False),
    "msgId": (PROPERTY_UNIQUE_KEY.encode(), True),
}
_TOPICS, _BODIES, _PAIRS, _UNREPEATED = 1, 2, 4, 8
_MASKS: Final = {
    "topic": _TOPICS,
    "body": _BODIES,
    "properties": _PAIRS | _UNREPEATED,
    "headers": _PAIRS,
}


def plain_batch(
    buffer: Array, starts: Array, schema: pa.Schema, *, broker_name: str, decompress: bool
) -> pa.RecordBatch | None:
    """A row for each record, as `rmq.spark.formats.records.decode_batch` makes them; None when that function
    must decode the batch, and without a compiled engine. `decompress`: true if records with compressed bodies
    are not plain."""
    if engine.compiled is None:
        return None
    numbers = [name for name in schema.names if name in _FIELD_OF]
    names = [name for name in schema.names if name in _PROPERTY_OF]
    mask = 0
    for name in schema.names:
        mask |= _MASKS.get(name, 0)
    found = engine.compiled.read_columns(
        buffer,
        np.ascontiguousarray(starts, np.int64).tobytes(),
        MESSAGE_MAGIC,
        SYS_HOST_BITS | (SYS_COMPRESSED if decompress else 0),
        [_NUMBERS[name] for name in numbers],
        mask,
        [_PROPERTY_OF[name] for name in names],
    )
    if found is None:
        return None
    fields, topics, bodies, pairs, values = found
    count = len(starts)
    columns: dict[str, pa.Array] = {
        name: _number(name, field) for name, field in zip(numbers, fields, strict=True)
    }
    columns |= {name: _texts(each, pa.string()) for name, each in zip(names, values, strict=True)}
    if topics is not None:
        columns["topic"] = _texts(topics, pa.string())
    if bodies is not None:
        columns["body"] = _texts(bodies, pa.binary())
    if pairs is not None:
        columns |= _pairs(count, *pairs)
    if "brokerName" in schema.names:
        columns["brokerName"] = pa.repeat(pa.scalar(broker_name, pa.string()), count)
    return pa.RecordBatch.from_arrays(
        [_as(columns[field.name], field.type) for field in schema], schema=schema
    )


def host_texts(hosts: Array) -> tuple[Array, list[str]]:
    """The texts of hosts of eight bytes each: for each host the number of its text, and the texts, each
    once."""
    found = pa.array(np.ascontiguousarray(hosts)).dictionary_encode()
    return found.indices.to_numpy(), [host_text(host.tobytes()) for host in found.dictionary.to_numpy()]


def _number(name: str, field: bytes) -> pa.Array:
    kind = COLUMNS[name][1]
    if name in _HOSTS:
        codes, texts = host_texts(np.frombuffer(field, np.uint64))
        return pa.array(texts, pa.string()).take(pa.array(codes))
    return pa.Array.from_buffers(kind, len(field) // _NUMBERS[name][1], [None, pa.py_buffer(field)])


def _texts(texts: _Texts, kind: pa.DataType) -> pa.Array:
    there, nulls, ends, content = texts
    buffers = [None if there is None else pa.py_buffer(there), pa.py_buffer(ends), pa.py_buffer(content)]
    return pa.Array.from_buffers(kind, len(ends) // 4 - 1, buffers, nulls)


def _pairs(count: int, ends: bytes, names: _Texts, values: _Texts) -> dict[str, pa.Array]:
    """The two columns with all properties, as maps and as lists."""
    keys, items = _texts(names, pa.string()), _texts(values, pa.string())
    offsets = pa.Array.from_buffers(pa.int32(), count + 1, [None, pa.py_buffer(ends)])
    form = MORE_COLUMNS["headers"][1]
    structs = pa.StructArray.from_arrays([keys, items], fields=list(form.value_type))
    return {
        "properties": pa.MapArray.from_arrays(offsets, keys, items, COLUMNS["properties"][1]),
        "headers": pa.ListArray.from_arrays(offsets, structs, form),
    }


def _as(column: pa.Array, form: pa.DataType) -> pa.Array:
    return column if column.type == form else column.cast(form)


def _number_of(name: str) -> tuple[int, int, int]:
    """(place in the record, bytes, factor), in the engine's form."""
    field = _FIELD_OF[name]
    return offset_of(field), _SIZES[dict(FIELDS)[field]], 0 if name in _HOSTS else _TIMES.get(name, 1)


_NUMBERS: Final = {name: _number_of(name) for name in _FIELD_OF}
