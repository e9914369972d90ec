"""Records of a commit log or of a pull's answer as Arrow columns, many at once.

What is decoded is what `rmq.protocol.record.decode_record` decodes (the form of a record is described there),
but for thousands of records with a fixed number of numpy and Arrow calls:

- the fixed fields are gathered by position into arrays of structures;
- a text or body is a slot of an Arrow array that lies over the bytes as they are: its offsets alternate
  between the ends of what is wanted and of the gap that follows; `take` of every other slot copies it;
- properties are split at their two separators, which a scan finds for all records together.

Only compressed bodies are looped over, and all bodies when their CRC is checked.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq.errors import CorruptRecord, RemoteProtocolError
from rmq.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY
from rmq.protocol.codes import SYS_BORNHOST_V6, SYS_COMPRESSED, SYS_STOREHOST_V6
from rmq.protocol.record import FIXED_SIZE, MESSAGE_MAGIC, decompress, host_text
from rmq.spark.schema import COLUMNS, arrow_schema
from rmq.spark.walk import every, gather, walk

Array: TypeAlias = np.ndarray[Any, Any]
Data: TypeAlias = bytes | memoryview | Array

HEAD: Final = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">u4"),
        ("crc", ">i4"),
        ("queueId", ">i4"),
        ("flag", ">i4"),
        ("queueOffset", ">i8"),
        ("physicalOffset", ">i8"),
        ("sysFlag", ">i4"),
        ("bornTimestamp", ">i8"),
    ]
)
_TAIL: Final = np.dtype([("reconsumeTimes", ">i4"), ("preparedTransactionOffset", ">i8"), ("body", ">i4")])
_HOST: Final = 8
_WIDER: Final = 12  # bytes that an IPv6 host takes more
_OFFSETS_END: Final = 1 << 31  # Arrow's offsets are 32-bit numbers
_HEX: Final = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), np.uint16)


def decode_batch(
    data: Data,
    starts: Array,
    columns: Sequence[str] | None = None,
    *,
    broker_name: str,
    decompress: bool = True,
    check_crc: bool = False,
    most: int | None = None,
) -> pa.RecordBatch:
    """One row for each record of `data` that begins at a position in `starts`, in their order.

    With `most` there may be fewer rows, one at least: those whose bodies have so many bytes when plain.
    `starts` must ascend then.

    `columns` are names of `rmq.spark.schema.COLUMNS`, all by default. The last of several properties with one
    name counts. Times too far away for microseconds are cut to the nearest that fits. Raises CorruptRecord,
    which names the position of the first record that is not whole, whose CRC is wrong (when asked for) or
    whose texts or body cannot be read; LocalProtocolError when a codec is not installed.
    """
    buffer = as_bytes(data)
    starts = np.asarray(starts, np.int64)
    names = list(COLUMNS if columns is None else columns)
    options: dict[str, Any] = {
        "broker_name": broker_name,
        "decompress": decompress,
        "check_crc": check_crc,
        "most": most,
    }
    if len(starts) == 0:
        return pa.RecordBatch.from_pylist([], schema=arrow_schema(names))
    if (np.diff(starts) <= 0).any():
        if most is not None:
            raise ValueError("a limit needs ascending starts")
        order, places = np.unique(starts, return_inverse=True)
        return decode_batch(data, order, names, **options).take(pa.array(places))
    if starts[-1] - starts[0] >= _OFFSETS_END >> 1 and len(starts) > 1:
        half = len(starts) // 2
        if most is not None:
            return decode_batch(data, starts[:half], names, **options)
        parts = [decode_batch(data, part, names, **options) for part in (starts[:half], starts[half:])]
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
    records = Records(buffer, starts, broker_name, decompress=decompress and "body" in names)
    if check_crc:
        records.check_crc()
    fitting = records.open_bodies(most)
    if fitting < len(starts):
        records = records.first(fitting)
    return pa.RecordBatch.from_arrays([records.column(name) for name in names], schema=arrow_schema(names))


def record_starts(data: Data, at: int = 0, end: int | None = None) -> Array:
    """The positions of the records that follow each other from `at` on and begin before `end`.

    The last may reach past `end`, not past `data`. Raises CorruptRecord with the position at which no whole
    record begins. Only sizes and magics are looked at.
    """
    buffer = as_bytes(data)
    stop = len(buffer) if end is None else end
    starts, reached = walk(buffer, at, stop)
    if reached < stop:
        raise CorruptRecord("record", reached, "size and magic are not those of a whole record")
    return starts


def as_bytes(data: Data) -> Array:
    """The bytes as an array, not copied."""
    return data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)


class Records:
    """Some records of `buffer`, at ascending `starts`, and what their columns are made of.

    Raises CorruptRecord like decode_batch: when made if lengths do not fit, else when a column is asked for.
    """

    def __init__(self, buffer: Array, starts: Array, broker_name: str, *, decompress: bool = True) -> None:
        self._buffer = buffer
        self._opened: dict[int, bytes] = {}
        self._starts = starts
        self._broker_name = broker_name
        self._decompress = decompress
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
        # What follows counts from the first record, in the bytes up to the end of the last.
        first, last = int(starts[0]), int(starts[-1] + size[-1])
        self._bytes = buffer[first:last]
        self._at = at = starts - first
        self._lay_out(at, at + size)

    def _lay_out(self, at: Array, end: Array) -> None:
        """Find the places of everything; each length is checked before it is used."""
        sys_flag = self.head["sysFlag"]
        self._born_host = _HOST + _WIDER * ((sys_flag & SYS_BORNHOST_V6) != 0)
        self._store_host = _HOST + _WIDER * ((sys_flag & SYS_STOREHOST_V6) != 0)
        self._stored_at = at + HEAD.itemsize + self._born_host
        tail_at = self._stored_at + 8 + self._store_host
        self._body_at = tail_at + _TAIL.itemsize
        self._refuse(self._body_at + 3 > end, "the record is too short for its hosts")
        self.tail = gather(self._bytes, _TAIL, tail_at)
        self._body = self.tail["body"].astype(np.int64)
        topic_at = self._body_at + self._body
        self._refuse((self._body < 0) | (topic_at + 3 > end), "the body is longer than the record")
        self._topic = self._bytes[topic_at].astype(np.int64)
        self._topic_at = topic_at + 1
        properties_at = self._topic_at + self._topic
        self._refuse(properties_at + 2 > end, "the topic is longer than the record")
        self._text = every(self._bytes, np.dtype(">i2"))[properties_at].astype(np.int64)
        self._text_at = properties_at + 2
        self._refuse(self._text_at + self._text != end, "size and lengths do not agree")

    def _refuse(self, bad: Array, reason: str) -> None:
        if bad.any():
            raise CorruptRecord("record", int(self._starts[int(np.argmax(bad))]), reason)

    def column(self, name: str) -> pa.Array:
        """A column by its name in the schema."""
        return _BUILDERS[name](self)

    def check_crc(self) -> None:
        """Compare each body, as it is stored, with its CRC."""
        self._refuse(~self.crc_matches(), "the body's CRC is wrong")

    def crc_matches(self) -> Array:
        """For each record whether its body, as it is stored, has the CRC that the record says."""
        view = self._bytes.data
        begins, ends = self._body_at.tolist(), (self._body_at + self._body).tolist()
        found = [zlib.crc32(view[begin:end]) for begin, end in zip(begins, ends, strict=True)]
        matches: Array = (np.array(found, np.int64) & 0x7FFF_FFFF) == self.head["crc"]
        return matches

    # --- columns ---

    def topics(self) -> pa.Array:
        return self._text_of(_slots(self._bytes, self._topic_at, self._topic), "the topic")

    def broker_names(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._broker_name, pa.string()), len(self._at))

    def number(self, fields: Array, name: str) -> pa.Array:
        """A field of the head or tail."""
        found = fields[name]
        return pa.array(found.astype(found.dtype.newbyteorder("=")))

    def time(self, milliseconds: Array) -> pa.Array:
        """Milliseconds as Spark's timestamps."""
        most = np.iinfo(np.int64).max // 1000
        times = np.clip(milliseconds.astype(np.int64), -most, most) * 1000
        return pa.array(times).view(COLUMNS["bornTimestamp"][1])

    def store_times(self) -> pa.Array:
        return self.time(every(self._bytes, np.dtype(">i8"))[self._stored_at])

    def hosts(self, at: Array, size: Array) -> pa.Array:
        """The texts of hosts. There are few different ones, so each is made once."""
        found = _slots(self._bytes, at, size).dictionary_encode()
        texts = [host_text(host) for host in found.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(found.indices)

    def born_hosts(self) -> pa.Array:
        return self.hosts(self._at + HEAD.itemsize, self._born_host)

    def store_hosts(self) -> pa.Array:
        return self.hosts(self._stored_at + 8, self._store_host)

    def bodies(self) -> pa.Array:
        self.open_bodies(None)
        if not self._opened:
            return _slots(self._bytes, self._body_at, self._body)
        view = self._bytes.data
        begins, ends = self._body_at.tolist(), (self._body_at + self._body).tolist()
        # Each opened body is let go once it is copied: a single one may be as big as all others.
        parts = [
            self._opened.pop(row) if row in self._opened else view[begin:end]
            for row, (begin, end) in enumerate(zip(begins, ends, strict=True))
        ]
        offsets = pa.array(np.cumsum([0, *map(len, parts)])).cast(pa.int32())
        content = [None, offsets.buffers()[1], pa.py_buffer(b"".join(parts))]
        return pa.Array.from_buffers(pa.binary(), len(parts), content)

    def open_bodies(self, most: int | None) -> int:
        """Decompress bodies until all have `most` bytes; gives the number of records, one at least."""
        packed = (self.head["sysFlag"] & SYS_COMPRESSED) != 0
        rows = np.flatnonzero(packed).tolist() if self._decompress else []
        # What each body adds to the sum of the stored ones.
        grown, stored = 0, np.cumsum(self._body)
        for row in rows:
            if row not in self._opened:
                self._opened[row] = self._plain(row, int(self.head["sysFlag"][row]))
            grown += len(self._opened[row]) - int(self._body[row])
            if most is not None and row > 0 and stored[row] + grown > most:
                del self._opened[row]
                return row
        return len(self._at)

    def first(self, count: int) -> Records:
        """The first records alone, with what is decompressed already."""
        found = Records(self._buffer, self._starts[:count], self._broker_name, decompress=self._decompress)
        found._opened = self._opened
        return found

    def _plain(self, row: int, sys_flag: int) -> bytes:
        begin = int(self._body_at[row])
        try:
            return decompress(self._bytes[begin : begin + int(self._body[row])].tobytes(), sys_flag)
        except RemoteProtocolError as error:
            raise CorruptRecord("record", int(self._starts[row]), str(error)) from None

    def message_ids(self) -> pa.Array:
        """The producer's unique id, or the id made of storing host and physical offset."""
        unique = self.property(PROPERTY_UNIQUE_KEY)
        missing = np.flatnonzero(unique.is_null())
        if len(missing) == 0:
            return unique
        hosts = _slots(self._bytes, (self._stored_at + 8)[missing], self._store_host[missing])
        offsets = self.head["physicalOffset"][missing]
        each = pa.py_buffer(np.arange(len(missing) + 1, dtype=np.int32) * 8)
        places = pa.Array.from_buffers(
            pa.binary(), len(missing), [None, each, pa.py_buffer(offsets.tobytes())]
        )
        ids = _hex(pc.binary_join_element_wise(hosts, places, b""))
        return pc.replace_with_mask(unique, unique.is_null(), ids)

    # --- properties ---

    @cached_property
    def _pieces(self) -> _Pieces:
        return _Pieces(self._bytes, self._text_at, self._text)

    def property(self, name: str) -> pa.Array:
        """The values of one property, null where a record has none."""
        return self._text_of(self._pieces.values_of(name), f"the property {name}")

    def properties(self) -> pa.Array:
        """All properties as maps."""
        offsets, names, values = self._pieces.unrepeated()
        keys = self._text_of(names, "a property's name", offsets)
        items = self._text_of(values, "a property", offsets)
        return pa.MapArray.from_arrays(pa.array(offsets), keys, items)

    def _text_of(self, found: pa.Array, what: str, offsets: Array | None = None) -> pa.Array:
        """`found` as text. `offsets`: where each row's values begin, when it has several."""
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            wrong = next(place for place, value in enumerate(found.to_pylist()) if not _is_text(value))
        row = wrong if offsets is None else int(np.searchsorted(offsets, wrong, "right")) - 1
        raise CorruptRecord("record", int(self._starts[row]), f"{what} is not UTF-8")


class _Pieces:
    """The pieces of properties texts that have a name and a value, of all records in one sequence.

    Each text is taken with the byte before it, which becomes a separator: so each piece begins with one. A
    name ends at the first 0x01 of its piece; pieces without name or value are dropped.
    """

    def __init__(self, buffer: Array, at: Array, size: Array) -> None:
        texts = _slots(buffer, at - (size > 0), size + (size > 0))
        _, offsets, content = texts.buffers()
        ends = np.frombuffer(offsets, np.int32)[: len(at) + 1]
        joined = np.frombuffer(content, np.uint8)[: ends[-1]].copy() if content else np.empty(0, np.uint8)
        joined[ends[:-1][size > 0]] = 2
        self._joined = joined
        self._split(joined)
        self.offsets = np.searchsorted(self._begins, ends).astype(np.int32)

    def _split(self, joined: Array) -> None:
        places = np.flatnonzero((joined - np.uint8(1)) < 2)
        opens = joined[places] == 2
        at = np.flatnonzero(opens)
        begins = places[at]
        names_end = np.append(places, len(joined))[at + 1]
        ends = np.append(begins[1:], len(joined))
        named = ~np.append(opens, True)[at + 1]
        good = named & (names_end > begins + 1) & (ends > names_end + 1)
        self._begins, self._names_end, self._ends = begins[good], names_end[good], ends[good]

    @cached_property
    def rows(self) -> Array:
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @cached_property
    def names(self) -> pa.Array:
        return _slots(self._joined, self._begins + 1, self._names_end - self._begins - 1)

    @cached_property
    def values(self) -> pa.Array:
        return _slots(self._joined, self._names_end + 1, self._ends - self._names_end - 1)

    @cached_property
    def _encoded(self) -> tuple[pa.Array, Array]:
        """The different names, and the number of each piece's name among them."""
        found = self.names.dictionary_encode()
        return found.dictionary, found.indices.to_numpy()

    def values_of(self, name: str) -> pa.Array:
        """For each record the last value under `name`, or null."""
        different, codes = self._encoded
        chosen = np.flatnonzero(codes == different.index(pa.scalar(name.encode(), pa.binary())).as_py())
        places = np.full(len(self.offsets) - 1, -1, np.int64)
        places[self.rows[chosen]] = chosen
        return self.values.take(pa.array(places, mask=places < 0))

    def unrepeated(self) -> tuple[Array, pa.Array, pa.Array]:
        """Offsets, names and values of maps in which the last of several equal names counts."""
        different, codes = self._encoded
        numbers = self.rows * max(len(different), 1) + codes
        ordered = np.sort(numbers)
        if not (ordered[1:] == ordered[:-1]).any():
            return self.offsets, self.names, self.values
        last = len(numbers) - 1 - np.unique(numbers[::-1], return_index=True)[1]
        kept = pa.array(np.sort(last))
        offsets = np.searchsorted(np.sort(last), self.offsets).astype(np.int32)
        return offsets, self.names.take(kept), self.values.take(kept)


def _slots(buffer: Array, at: Array, size: Array) -> pa.Array:
    """A copy of the bytes at ascending places that do not overlap, one value each."""
    count = len(at)
    if count == 0:
        return pa.array([], pa.binary())
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = at
    offsets[1::2] = at + size
    content = [None, pa.py_buffer(offsets), pa.py_buffer(buffer)]
    return pa.Array.from_buffers(pa.binary(), 2 * count - 1, content).take(
        pa.array(np.arange(0, 2 * count, 2, dtype=np.int64))
    )


def _hex(values: pa.Array) -> pa.Array:
    """The bytes as upper-case hex."""
    _, offsets, content = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[: len(values) + 1]
    digits = _HEX[np.frombuffer(content, np.uint8)[: ends[-1]]]
    return pa.Array.from_buffers(
        pa.string(), len(values), [None, pa.py_buffer(ends * 2), pa.py_buffer(digits)]
    )


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False


_BUILDERS: Final[dict[str, Callable[[Records], pa.Array]]] = {
    "topic": Records.topics,
    "brokerName": Records.broker_names,
    "queueId": lambda records: records.number(records.head, "queueId"),
    "queueOffset": lambda records: records.number(records.head, "queueOffset"),
    "physicalOffset": lambda records: records.number(records.head, "physicalOffset"),
    "body": Records.bodies,
    "tags": lambda records: records.property(PROPERTY_TAGS),
    "keys": lambda records: records.property(PROPERTY_KEYS),
    "msgId": Records.message_ids,
    "properties": Records.properties,
    "bornTimestamp": lambda records: records.time(records.head["bornTimestamp"]),
    "storeTimestamp": Records.store_times,
    "bornHost": Records.born_hosts,
    "storeHost": Records.store_hosts,
    "reconsumeTimes": lambda records: records.number(records.tail, "reconsumeTimes"),
    "sysFlag": lambda records: records.number(records.head, "sysFlag"),
    "flag": lambda records: records.number(records.head, "flag"),
    "preparedTransactionOffset": lambda records: records.number(records.tail, "preparedTransactionOffset"),
}
