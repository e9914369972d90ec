"""A commit log of any size that holds what makes records hard to read.

Some thousand different records, one after the other, are written again and again; what is a record's own (its
places in the log and in its queue, its unique key) is written into each copy. Each file begins with another
record and ends with a blank: in every second file one of 8 bytes, the shortest. The last file is not full.
"""

from __future__ import annotations

import pathlib
import random
import zlib
from typing import Any

import numpy as np
from attrs import frozen

from rmq.protocol.codes import CompressionType
from rmq.protocol.record import BLANK_MAGIC, MESSAGE_MAGIC, Record, compress, compressed_flag, encode_record

RECORDS = 16_000
BLANK_MIN = 8
LARGE = 1 << 20
BODY_AT = 88  # of a record with two IPv4 hosts
UNIQUE = "UNIQ_KEY\x01C000020210265FFD2B27690857"
UNNUMBERED = "00000000"
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def host(address: str, port: int) -> bytes:
    return bytes.fromhex(address) + port.to_bytes(4, "big")


V4 = host("7f000001", 10911)
HOSTS = (
    V4,
    host("0a010203", 65535),
    host("00000000", 0),
    host("20010db8000000000000000000000001", 10911),
    host("20010db8000000010000000000000000", 10911),
    host("fe800000000000000a00000000000001", 65535),
    host("2122232425262728292a2b2c2d2e2f30", 1),
    host("00000000000000000000000000000001", 10909),
)
TOPICS = ("TopicTest", "Order-1_a", "%RETRY%group", "SCHEDULE_TOPIC_XXXX", "Bestellung-Ä", "T", "a" * 127)
PROPERTIES = (
    "",
    "k\x01v",
    "TAGS\x01TagA",
    "TAGS\x01first\x02KEYS\x01one\x02TAGS\x01last\x02KEYS\x01two three",
    "a\x01b\x01c\x02\x01value\x02name\x01\x02name\x02\x02\x02z\x01end\x02",
    "\x02\x02TAGS\x01\x02KEYS\x01\x02",
    "\x01",
    "\x01\x01\x02x\x01\x01",
    "TAGS\x01Größe\x02schlüssel\x01wert — ß\x02\U0001f600\x01🚀\x02\uffee\x01日本語\x02é\x01e\u0301",
    "zero\x01\x00\x02nine\x01\t\n\r \x7f\x02replaced\x01\ufffd",
    "UNIQ_KEY\x01not-a-number\x02UNIQ_KEY\x01short\x02PGROUP\x01g\x02TRAN_MSG\x01true\x02WAIT\x01false",
    "\x02".join(f"p{number}\x01{number * number}" for number in range(40)),
)
SYS_FLAGS = (0, 0, 2, 4, 8, 12, 64, 128, 2 | 8)
TIMES = (0, -1, 1, -62_135_596_800_000, 1_795_253_354_123, 1_795_253_354_999, 1 << 43)
INTS = (0, 0, 1, 16, -1, (1 << 31) - 1, -(1 << 31))
LONGS = (0, 0, -1, 1 << 40, (1 << 63) - 1, -(1 << 63))
PACKED = (
    (CompressionType.ZLIB, 1),  # what clients before 4.9.5 say
    *((kind, compressed_flag(kind)) for kind in CompressionType),
)


# --- the records ---


@frozen
class Template:
    """Records in `data`, which begin at `starts` (the last is the end).

    `numbered`: which of them end with the number in a unique key. `nesting`: which have a body made of whole
    records; those begin at `nested`.
    """

    data: Any
    starts: Any
    numbered: Any
    nesting: list[int]
    nested: Any

    def place(self, base: int, count: int) -> None:
        """Make the first byte's physical offset `base`, and number the records from `count` on."""
        starts = self.starts[:-1]
        numbers = count + np.arange(len(starts))
        self._write(starts + 20, numbers.astype(">i8"))
        self._write(starts + 28, (starts + base).astype(">i8"))
        digits = (numbers[self.numbered, None] >> np.arange(28, -4, -4)) & 15
        self._write(self.starts[1:][self.numbered] - 8, _HEX[digits])
        # The records in bodies say that they are where they are, so that this does not give them away.
        self._write(self.nested + 28, (self.nested + base).astype(">i8"))
        for row in self.nesting:
            at = int(starts[row]) + BODY_AT
            size = int.from_bytes(self.data[at - 4 : at].tobytes(), "big")
            crc = zlib.crc32(self.data[at : at + size]) & 0x7FFF_FFFF
            self._write(starts[[row]] + 8, np.array([crc], ">i4"))

    def _write(self, places: Any, values: Any) -> None:
        content = values.view(np.uint8).reshape(len(places), -1)
        self.data[places[:, None] + np.arange(content.shape[1])] = content


def make_template() -> Template:
    chance = random.Random(7)
    inner = encode_record(Record("Nested", 1, b"not a message of this log", "TAGS\x01no"), V4)
    parts, numbered, nesting, nested, at = [], [], [], [], 0
    for number in range(RECORDS):
        record, store_host = make_record(number, chance)
        copies = LARGE // len(inner) if number == 5000 else number % 1000 == 7
        if copies:
            record.body, record.sys_flag, record.born_host, store_host = inner * copies, 0, V4, V4
            nesting.append(number)
            nested += [at + BODY_AT + place for place in range(0, len(record.body), len(inner))]
        parts.append(encode_record(record, store_host))
        numbered.append(record.properties.endswith(UNNUMBERED))
        at += len(parts[-1])
    starts = np.cumsum([0, *map(len, parts)])
    data = np.frombuffer(b"".join(parts), np.uint8).copy()
    return Template(data, starts, np.array(numbered), nesting, np.array(nested))


def make_record(number: int, chance: random.Random) -> tuple[Record, bytes]:
    body, sys_flag = make_body(number, chance)
    record = Record(
        chance.choice(TOPICS), chance.randrange(16), body, make_properties(number, chance),
        flag=chance.choice(INTS), sys_flag=sys_flag | chance.choice(SYS_FLAGS),
        born_timestamp=chance.choice(TIMES) + number, born_host=chance.choice(HOSTS),
        store_timestamp=chance.choice(TIMES) + number, reconsume_times=chance.choice(INTS),
        prepared_transaction_offset=chance.choice(LONGS),
    )  # fmt: skip
    return record, chance.choice(HOSTS)


def make_properties(number: int, chance: random.Random) -> str:
    if number % 4000 == 11:
        return "long\x01" + "x" * 32762
    if number % 2:
        return chance.choice(PROPERTIES)
    return f"TAGS\x01Tag{number % 5}\x02KEYS\x01order-{number}\x02WAIT\x01true\x02{UNIQUE}{UNNUMBERED}"


def make_body(number: int, chance: random.Random) -> tuple[bytes, int]:
    """A body as it is stored, and the flags that say how."""
    if number == 10_000:
        return compress(b"0123456789abcdef" * (LARGE // 16)), compressed_flag()
    if number == 15_000:
        return chance.randbytes(LARGE), 0
    if number % 20 == 3:
        kind, flags = chance.choice(PACKED)
        return compress(f"{number} grüßt ".encode() * chance.randrange(1, 400), kind), flags
    if number % 50 == 5:
        return b"", chance.choice((0, compressed_flag(), 1 | 7 << 8))
    if number % 50 == 6:
        return MESSAGE_MAGIC.to_bytes(4, "big") * chance.randrange(1, 20), 0
    if number % 50 == 9:
        return "日本語 🚀 ß".encode() * 5, 0
    return chance.randbytes(chance.randrange(1, 600)), 0


# --- the files ---


def make_store(folder: pathlib.Path, size: int, file_size: int) -> int:
    """A store of `size` bytes in full files and of one more file; gives the number of its records."""
    (folder / "commitlog").mkdir(parents=True)
    template = make_template()
    count = 0
    for number, base in enumerate(range(0, size + file_size, file_size)):
        is_last = base >= size
        with open(folder / "commitlog" / f"{base:020d}", "wb") as file:
            room = file_size * 3 // 4 if is_last else file_size - BLANK_MIN
            count = write_records(file, template, base, room, count)
            if number % 2 == 0 and not is_last:
                count += write_filler(file, base, room, count)
            if not is_last:
                left = file_size - file.tell()
                file.write(left.to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big"))
            file.truncate(file_size)
    return count


def write_records(file: Any, template: Template, base: int, room: int, count: int) -> int:
    """Write records as long as they fit; gives `count` and their number."""
    starts = template.starts
    first = count % RECORDS
    while True:
        at = file.tell()
        end = int(np.searchsorted(starts, starts[first] + room - at, "right")) - 1
        template.place(base + at - int(starts[first]), count - first)
        file.write(template.data[starts[first] : starts[end]].data)
        count += end - first
        if end < RECORDS:
            return count
        first = 0


def write_filler(file: Any, base: int, room: int, count: int) -> int:
    """Fill the room with a record when it is large enough for one; gives their number."""
    record = Record("Filler", 0, b"", queue_offset=count, physical_offset=base + file.tell())
    left = room - file.tell() - len(encode_record(record, V4))
    if left < 0:
        return 0
    record.body = bytes(left)
    file.write(encode_record(record, V4))
    return 1
