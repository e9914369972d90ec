"""Records of a commit log or of a pull's response as Arrow columns, many at once.

The result is that of `rmq.protocol.record.decode_record` (its module describes the form of a record),
but for thousands of records with a fixed number of numpy and Arrow calls:

- the fixed fields are gathered by position into an array of structures;
- texts and bodies are copied together (`rmq.spark.formats.arrays`);
- properties are split at their two separators, which a scan finds for all records
  (`rmq.spark.formats.properties`);
- records are found by their sizes, from several places at the same time.

Only compressed bodies are looped over, and all bodies when their CRC is checked. With the
compiled engine `rmq.spark.formats.plain_records` does all this for plain records, and this module does the
rest.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable, Iterator
from functools import cached_property
from math import isqrt
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen

from rmq.errors import CorruptRecord, RemoteProtocolError
from rmq.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY
from rmq.protocol import engine
from rmq.protocol.codes import SYS_BORNHOST_V6, SYS_COMPRESSED, SYS_HOST_BITS, SYS_STOREHOST_V6
from rmq.protocol.record import FIELDS, FIXED_SIZE, MESSAGE_MAGIC, decompress, host_text, offset_of, part
from rmq.spark.formats.arrays import Array, at_every_byte, decode_utf8, gather, offsets_and_bytes, take_bytes
from rmq.spark.formats.plain_records import host_texts, plain_batch
from rmq.spark.formats.properties import Properties
from rmq.spark.formats.schema import COLUMNS, MORE_COLUMNS, arrow_schema

Data: TypeAlias = bytes | memoryview | Array

MAGIC: Final = re.compile(re.escape(MESSAGE_MAGIC.to_bytes(4, "big")))
"""Pattern of the magic: a record may begin four bytes before each match."""

_TYPES: Final = {"i": ">i4", "I": ">u4", "q": ">i8", "8s": "=u8"}
HEAD: Final = np.dtype([(name, _TYPES[code]) for name, code in FIELDS])
"""The fixed fields of a record; hosts as their eight bytes are. An IPv6 host takes 12 bytes more, which moves
the fields behind it."""

_TIME: Final = np.dtype(">i8")
_HOST: Final = np.dtype("=u8")
_TAIL: Final = np.dtype([(name, _TYPES[code]) for name, code in FIELDS[-3:]])
_WIDER: Final = 12  # further bytes of an IPv6 host
_OFFSETS_END: Final = 1 << 31  # Arrow's offsets are 32-bit numbers
_HEX: Final = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), np.uint16)


Take: TypeAlias = Callable[[Array], tuple[Any, int]]

log = logging.getLogger(__name__)


def decode_batch(
    data: Data,
    starts: Array,
    schema: pa.Schema | None = None,
    *,
    broker_name: str,
    decompress: bool = True,
    check_crc: bool = False,
    on_bad_body: str = "fail",
    most: int | None = None,
) -> pa.RecordBatch:
    """A row for each record of `data` that begins at a position in `starts`, in order.

    With `most` the result may have fewer rows, but at least a row: as many as have plain bodies of so many
    bytes. `starts` must ascend in this case. `schema` has the columns to make (see
    `rmq.spark.formats.schema`), by default all. Of several properties with the same name the last counts.
    Times out of range for microseconds are cut to the nearest. Raises CorruptRecord with the position of the
    first record that is incomplete, whose CRC is wrong (if checked) or whose body cannot be decompressed,
    unless `on_bad_body` is "null" or
    "raw", which replaces the body; LocalProtocolError when a codec is not installed.
    """
    buffer = as_bytes(data)
    starts = np.asarray(starts, np.int64)
    schema = arrow_schema() if schema is None else schema
    options: dict[str, Any] = {
        "broker_name": broker_name,
        "decompress": decompress,
        "check_crc": check_crc,
        "on_bad_body": on_bad_body,
        "most": most,
    }
    if len(starts) == 0:
        return pa.RecordBatch.from_pylist([], schema=schema)
    if (np.diff(starts) <= 0).any():
        if most is not None:
            raise ValueError("a limit needs ascending starts")
        order, places = np.unique(starts, return_inverse=True)
        return decode_batch(data, order, schema, **options).take(pa.array(places))
    if starts[-1] - starts[0] >= _OFFSETS_END >> 1 and len(starts) > 1:
        half = len(starts) // 2
        if most is not None:
            return decode_batch(data, starts[:half], schema, **options)
        parts = [decode_batch(data, part, schema, **options) for part in (starts[:half], starts[half:])]
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
    opened = decompress and "body" in schema.names
    if not check_crc:
        batch = plain_batch(buffer, starts, schema, broker_name=broker_name, decompress=opened)
        if batch is not None:
            return batch
    records = Records(buffer, starts, broker_name, decompress=opened, on_bad_body=on_bad_body)
    if check_crc:
        records.check_crc()
    fitting = records.open_bodies(most)
    if fitting < len(starts):
        records = records.first(fitting)
    return pa.RecordBatch.from_arrays(
        [records.column(field.name, field.type) for field in schema], schema=schema
    )


def as_bytes(data: Data) -> Array:
    """The bytes as an array, not copied."""
    return data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)


class Records:
    """Some records of `buffer`, at ascending `starts`, with the parts for their columns.

    Raises CorruptRecord like decode_batch: in the constructor if lengths do not fit, else when a column is
    read.
    """

    def __init__(
        self,
        buffer: Array,
        starts: Array,
        broker_name: str,
        *,
        decompress: bool = True,
        on_bad_body: str = "fail",
    ) -> None:
        self._buffer = buffer
        self._opened: dict[int, bytes] = {}
        self._starts = starts
        self._broker_name = broker_name
        self._decompress = decompress
        self._on_bad_body = on_bad_body
        self._bad: set[int] = set()  # rows whose bodies are null
        self._refuse(
            (starts < 0) | (starts > len(buffer) - FIXED_SIZE), "less than a record's bytes are left here"
        )
        self.head = head = gather(buffer, HEAD, starts)
        size = head["size"].astype(np.int64)
        self._refuse(
            (head["magic"] != MESSAGE_MAGIC) | (size < FIXED_SIZE) | (starts + size > len(buffer)),
            "size and magic are not those of a whole record",
        )
        inside = np.append(False, starts[1:] < (starts + size)[:-1])
        self._refuse(inside, "it begins inside the record before")
        # The places below count from the first record, in the bytes up to the end of the last.
        first, last = int(starts[0]), int(starts[-1] + size[-1])
        self._bytes = buffer[first:last]
        self._at = at = starts - first
        self._lay_out(at, at + size)

    def _lay_out(self, at: Array, end: Array) -> None:
        """Find the places of all parts; each length is checked before it is used."""
        self._born_host_at = at + _offset("born_host")
        self._store_host_at = at + _offset("store_host")
        self._body_at = at + HEAD.itemsize
        wide = np.flatnonzero(self.head["sys_flag"] & SYS_HOST_BITS)
        if len(wide):
            self._widen(wide, end)
        self._body = self.head["body_size"].astype(np.int64)
        topic_at = self._body_at + self._body
        self._refuse((self._body < 0) | (topic_at + 3 > end), "the body is longer than the record")
        self._topic = self._bytes[topic_at].astype(np.int64)
        self._topic_at = topic_at + 1
        properties_at = self._topic_at + self._topic
        self._refuse(properties_at + 2 > end, "the topic is longer than the record")
        self._text = at_every_byte(self._bytes, np.dtype(">i2"))[properties_at].astype(np.int64)
        self._text_at = properties_at + 2
        self._refuse(self._text_at + self._text != end, "size and lengths do not agree")

    def _widen(self, rows: Array, end: Array) -> None:
        """Read the fields that IPv6 hosts have moved, in the heads of these rows."""
        sys_flag = self.head["sys_flag"]
        self._store_host_at += _WIDER * ((sys_flag & SYS_BORNHOST_V6) != 0)
        self._body_at = self._store_host_at + _HOST.itemsize + _TAIL.itemsize
        self._body_at += _WIDER * ((sys_flag & SYS_STOREHOST_V6) != 0)
        self._refuse(self._body_at + 3 > end, "the record is too short for its hosts")
        store_host_at = self._store_host_at[rows]
        self.head["store_timestamp"][rows] = gather(self._bytes, _TIME, store_host_at - _TIME.itemsize)
        self.head["store_host"][rows] = gather(self._bytes, _HOST, store_host_at)
        tail = gather(self._bytes, _TAIL, self._body_at[rows] - _TAIL.itemsize)
        for name in _TAIL.names or ():
            self.head[name][rows] = tail[name]

    def _refuse(self, bad: Array, reason: str) -> None:
        if bad.any():
            raise CorruptRecord("record", int(self._starts[int(np.argmax(bad))]), reason)

    def column(self, name: str, form: pa.DataType | None = None) -> pa.Array:
        """A column by its name in the schema, in another form of its type when one is given."""
        found = _BUILDERS[name](self)
        return found if form is None or found.type == form else found.cast(form)

    def check_crc(self) -> None:
        """Compare each stored body with its CRC."""
        self._refuse(~self.crc_matches(), "the body's CRC is wrong")

    def crc_matches(self) -> Array:
        """For each record: true if its stored body has the CRC in the record."""
        view = self._bytes.data
        begins, ends = self._body_at.tolist(), (self._body_at + self._body).tolist()
        found = [zlib.crc32(view[begin:end]) for begin, end in zip(begins, ends, strict=True)]
        matches: Array = (np.array(found, np.int64) & 0x7FFF_FFFF) == self.head["crc"]
        return matches

    # --- columns ---

    def topics(self) -> pa.Array:
        return decode_utf8(take_bytes(self._bytes, self._topic_at, self._topic))

    def broker_names(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._broker_name, pa.string()), len(self._at))

    def number(self, name: str) -> pa.Array:
        """A field of the head."""
        found = self.head[name]
        return pa.array(found.astype(found.dtype.newbyteorder("=")))

    def time(self, milliseconds: Array) -> pa.Array:
        """Milliseconds as Spark's timestamps."""
        most = np.iinfo(np.int64).max // 1000
        times = np.clip(milliseconds.astype(np.int64), -most, most) * 1000
        return pa.array(times).view(COLUMNS["bornTimestamp"][1])

    def store_times(self) -> pa.Array:
        return self.time(self.head["store_timestamp"])

    def born_hosts(self) -> pa.Array:
        return self._hosts("born_host", self._born_host_at, SYS_BORNHOST_V6)

    def store_hosts(self) -> pa.Array:
        return self._hosts("store_host", self._store_host_at, SYS_STOREHOST_V6)

    def _hosts(self, name: str, at: Array, v6: int) -> pa.Array:
        """The texts of hosts. Few differ, so each text is made once."""
        codes, texts = host_texts(self.head[name])
        wide = np.flatnonzero(self.head["sys_flag"] & v6)
        if len(wide):
            longer = take_bytes(self._bytes, at[wide], _HOST.itemsize + _WIDER).dictionary_encode()
            codes = codes.copy()
            codes[wide] = longer.indices.to_numpy() + len(texts)
            texts += [host_text(host) for host in longer.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(pa.array(codes))

    def bodies(self) -> pa.Array:
        self.open_bodies(None)
        if not self._opened:
            return take_bytes(self._bytes, self._body_at, self._body)
        view = self._bytes.data
        begins, ends = self._body_at.tolist(), (self._body_at + self._body).tolist()
        # Each decompressed body is dropped once it is copied: a single one may be as big as all others.
        parts = [
            self._opened.pop(row) if row in self._opened else view[begin:end]
            for row, (begin, end) in enumerate(zip(begins, ends, strict=True))
        ]
        offsets = pa.array(np.cumsum([0, *map(len, parts)])).cast(pa.int32())
        content = [None, offsets.buffers()[1], pa.py_buffer(b"".join(parts))]
        bodies = pa.Array.from_buffers(pa.binary(), len(parts), content)
        bad = sorted(row for row in self._bad if row < len(parts))
        if not bad:
            return bodies
        there = np.ones(len(parts), bool)
        there[bad] = False
        return pc.if_else(pa.array(there), bodies, pa.scalar(None, pa.binary()))

    def open_bodies(self, most: int | None) -> int:
        """Decompress bodies until all have `most` bytes; returns the number of records, at least 1."""
        packed = (self.head["sys_flag"] & SYS_COMPRESSED) != 0
        rows = np.flatnonzero(packed).tolist() if self._decompress else []
        # The part of each body in the sum of the stored ones.
        grown, stored = 0, np.cumsum(self._body)
        for row in rows:
            if row not in self._opened:
                self._opened[row] = self._plain(row, int(self.head["sys_flag"][row]))
            grown += len(self._opened[row]) - int(self._body[row])
            if most is not None and row > 0 and stored[row] + grown > most:
                del self._opened[row]
                return row
        return len(self._at)

    def first(self, count: int) -> Records:
        """The first records alone, with the bodies that are decompressed already."""
        found = Records(
            self._buffer,
            self._starts[:count],
            self._broker_name,
            decompress=self._decompress,
            on_bad_body=self._on_bad_body,
        )
        found._opened, found._bad = self._opened, self._bad
        return found

    def _plain(self, row: int, sys_flag: int) -> bytes:
        begin = int(self._body_at[row])
        packed = self._bytes[begin : begin + int(self._body[row])].tobytes()
        try:
            return decompress(packed, sys_flag)
        except RemoteProtocolError as error:
            if self._on_bad_body == "fail":
                raise CorruptRecord("record", int(self._starts[row]), str(error)) from None
            offset = int(self.head["queue_offset"][row])
            log.warning(
                "the body of the message at queue offset %d of a queue of %s is given as %s: %s",
                offset,
                self._broker_name,
                self._on_bad_body,
                error,
            )
        if self._on_bad_body == "raw":
            return packed
        self._bad.add(row)
        return b""

    def message_ids(self) -> pa.Array:
        """The producer's unique id, or the id made from storing host and physical offset."""
        unique = self.property(PROPERTY_UNIQUE_KEY)
        missing = np.flatnonzero(unique.is_null())
        if len(missing) == 0:
            return unique
        wide = (self.head["sys_flag"][missing] & SYS_STOREHOST_V6) != 0
        hosts = take_bytes(self._bytes, self._store_host_at[missing], _HOST.itemsize + _WIDER * wide)
        offsets = self.head["physical_offset"][missing]
        each = pa.py_buffer(np.arange(len(missing) + 1, dtype=np.int32) * 8)
        places = pa.Array.from_buffers(
            pa.binary(), len(missing), [None, each, pa.py_buffer(offsets.tobytes())]
        )
        ids = _hex(pc.binary_join_element_wise(hosts, places, b""))
        return pc.replace_with_mask(unique, unique.is_null(), ids)

    # --- properties ---

    @cached_property
    def _properties(self) -> Properties:
        return Properties(self._bytes, self._text_at, self._text)

    def property(self, name: str) -> pa.Array:
        """The values of a property, null where a record has none."""
        return self._properties.values_of(name)

    def properties(self) -> pa.Array:
        """All properties as maps."""
        offsets, names, values = self._properties.unrepeated()
        return pa.MapArray.from_arrays(pa.array(offsets), names, values, COLUMNS["properties"][1])

    def headers(self) -> pa.Array:
        """All properties as lists, also properties with repeated names."""
        found = self._properties
        struct = MORE_COLUMNS["headers"][1].value_type
        pairs = pa.StructArray.from_arrays([found.names, found.values], fields=list(struct))
        return pa.ListArray.from_arrays(pa.array(found.offsets), pairs).cast(MORE_COLUMNS["headers"][1])


def _offset(name: str) -> int:
    """The begin of a field in the head."""
    assert HEAD.fields is not None
    return int(HEAD.fields[name][1])


def _hex(values: pa.Array) -> pa.Array:
    """The bytes as upper-case hex."""
    ends, content = offsets_and_bytes(values)
    digits = _HEX[content]
    return pa.Array.from_buffers(
        pa.string(), len(values), [None, pa.py_buffer(ends * 2), pa.py_buffer(digits)]
    )


_BUILDERS: Final[dict[str, Callable[[Records], pa.Array]]] = {
    "topic": Records.topics,
    "brokerName": Records.broker_names,
    "queueId": lambda records: records.number("queue_id"),
    "queueOffset": lambda records: records.number("queue_offset"),
    "physicalOffset": lambda records: records.number("physical_offset"),
    "body": Records.bodies,
    "tags": lambda records: records.property(PROPERTY_TAGS),
    "keys": lambda records: records.property(PROPERTY_KEYS),
    "msgId": Records.message_ids,
    "properties": Records.properties,
    "headers": Records.headers,
    "bornTimestamp": lambda records: records.time(records.head["born_timestamp"]),
    "storeTimestamp": Records.store_times,
    "bornHost": Records.born_hosts,
    "storeHost": Records.store_hosts,
    "reconsumeTimes": lambda records: records.number("reconsume_times"),
    "sysFlag": lambda records: records.number("sys_flag"),
    "flag": lambda records: records.number("flag"),
    "preparedTransactionOffset": lambda records: records.number("prepared_transaction_offset"),
}


# --- number of records at once ---


@frozen
class Batch:
    """The number of records that are decoded together: at most `rows`, and `size` bytes unless a record is
    longer."""

    rows: int
    size: int

    def cut(self, places: Array) -> Iterator[slice]:
        """The parts of records that begin at these ascending places, in bytes."""
        at = 0
        while at < len(places):
            fits = int(np.searchsorted(places, places[at] + self.size))
            end = max(min(at + self.rows, fits), at + 1)
            yield slice(at, end)
            at = end


def each_fitting(starts: Array, take: Take) -> Iterator[Any]:
    """The results of `take` for the records at these ascending places, in as many calls as needed. A
    CorruptRecord of `take` is raised after the results of all earlier records."""
    room = len(starts)
    while len(starts):
        try:
            found, taken = take(starts[:room])
        except CorruptRecord as error:
            yield from each_fitting(starts[starts < error.offset], take)
            raise
        yield found
        # If few fit, few are tried: each try looks at all that it is given.
        starts, room = starts[taken:], 2 * taken


# --- begins of records ---
#
# A record's size leads to the next one, so records make a chain, which the compiled engine follows step by
# step. To follow it with few numpy calls, a search for the magic finds many places to begin from, and all
# these chains take their steps together. A chain must arrive at exactly the place where the next one began:
# this proves that the place was a record's begin, and not a body with the magic. If a chain does not arrive,
# the bytes are searched again, one record after the other.


_PAIR: Final = part("size", "magic")
_PAIRS: Final = np.dtype(">u8")  # size and magic as one number
_FIRST: Final = 64  # records that are read one after the other, to know their size
_FEW: Final = 2048  # records up to which reading one after the other is faster
_LONG: Final = 8192  # bytes of a record from which on the search for magics costs more than it saves


def record_starts(data: Data, at: int = 0, end: int | None = None) -> Array:
    """The positions of the records that follow each other from `at` on and begin before `end`.

    The last may reach past `end`, not past `data`. Raises CorruptRecord with the position at which no whole
    record begins. Only sizes and magics are looked at.
    """
    buffer = as_bytes(data)
    stop = len(buffer) if end is None else end
    starts, reached = find_records(buffer, at, stop)
    if reached < stop:
        raise CorruptRecord("record", reached, "size and magic are not those of a whole record")
    return starts


def find_records(buffer: Array, at: int, end: int) -> tuple[Array, int]:
    """The positions of the records that follow each other from `at` on and begin before `end`, and the
    position after the last.

    The last position is below `end` where no whole record begins. Only sizes and magics are looked at.
    """
    if engine.compiled is not None:
        places, reached = engine.compiled.find_records(buffer, at, end, MESSAGE_MAGIC, FIXED_SIZE)
        return np.frombuffer(places, np.int64), reached
    return _found_by_chains(buffer, at, end)


def _found_by_chains(buffer: Array, at: int, end: int) -> tuple[Array, int]:
    first, reached = _one_by_one(buffer, at, end, _FIRST)
    if reached >= end or len(first) < _FIRST:
        return first, reached
    mean = (reached - at) // _FIRST
    count = (end - reached) // mean
    begins = None
    if count > _FEW and mean < _LONG:
        # A step of all chains costs ten times as much as finding a place to begin: this number has the least
        # sum.
        begins = _begins(buffer, reached, end, mean * isqrt(count // 10))
    rest = _together(buffer, begins, end) if begins is not None else None
    if rest is None:
        rest = _one_by_one(buffer, reached, end, len(buffer))
    return np.concatenate((first, rest[0])), rest[1]


def _one_by_one(buffer: Array, at: int, end: int, most: int) -> tuple[Array, int]:
    view = buffer.data
    found: list[int] = []
    last = len(buffer) - FIXED_SIZE
    while at < end and at <= last and len(found) < most:
        size, magic = _PAIR.unpack_from(view, at)
        if magic != MESSAGE_MAGIC or size < FIXED_SIZE or at + size > len(view):
            break
        found.append(at)
        at += size
    return np.array(found, np.int64), at


def _begins(buffer: Array, at: int, end: int, stride: int) -> Array:
    """Places to begin chains from, the first being `at`; other places may be false."""
    begins = [at]
    view = buffer.data
    found = MAGIC.search(view, at + stride, end)
    while found is not None:
        begins.append(found.start() - 4)
        found = MAGIC.search(view, found.end() + stride, end)
    return np.array(begins, np.int64)


def _together(buffer: Array, begins: Array, end: int) -> tuple[Array, int] | None:
    """Follow all chains; None when a chain does not arrive at the begin of the next."""
    pairs = at_every_byte(buffer, _PAIRS)
    last = len(buffer) - FIXED_SIZE
    at, stop = begins, np.append(begins[1:], end)
    steps, reached = [], end
    while len(at):
        found = pairs[np.minimum(at, last)].astype(np.uint64)
        after = at + (found >> np.uint64(32)).astype(np.int64)
        good = (found & np.uint64(0xFFFF_FFFF)) == MESSAGE_MAGIC
        good &= (after >= at + FIXED_SIZE) & (after <= len(buffer)) & (at <= last)
        # Only the last chain may end at bytes that are no record, or go past its stop.
        if (~good | (after > stop))[stop != end].any():
            return None
        if stop[-1] == end:
            reached = int(after[-1] if good[-1] else at[-1])
        steps.append(at[good])
        going = good & (after < stop)
        at, stop = after[going], stop[going]
    return np.sort(np.concatenate(steps)), reached


_QUEUE_OFFSET: Final = offset_of("queue_offset")


def queue_offsets(data: Data, starts: Array) -> Array:
    """The queue offsets of the records that begin at `starts`."""
    everywhere = at_every_byte(as_bytes(data), np.dtype(">i8"))
    found: Array = everywhere[starts + _QUEUE_OFFSET].astype(np.int64)
    return found
