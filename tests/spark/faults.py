"""A store with every kind of message, and faults put into its files."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

from rmq.message import tags_code
from rmq.protocol.codes import CompressionType
from rmq.protocol.properties import encode_properties
from rmq.protocol.record import Record, compress, compressed_flag, encode_batch
from rmq.store.audit import rules
from rmq.store.files.disk import RealDisk
from rmq.store.files.scan import Scanned, parse
from rmq.store.store import Store
from tests.spark.records import V4, V6
from tests.unit.store.stores import Clock, make_store

UNIT: Final = 20
LOG_FILE: Final = 1 << 18
QUEUE_FILE: Final = 200 * UNIT
QUEUES: Final = 3
_UNIT: Final = Struct(">qiq")
TAGS: Final = ("paid", "refunded", "Größe", None)


class Fault(NamedTuple):
    """The expected report of an audit for a fault."""

    kind: str
    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    place: int


class StoreFiles:
    """The files of a store, to be damaged."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records = list(self._records())

    def _records(self) -> Iterator[Scanned]:
        for file in sorted((self.root / "commitlog").iterdir()):
            data, at = file.read_bytes(), 0
            while (record := parse(data, at, int(file.name) + at, check_crc=True)) is not None:
                yield record
                at += record.size

    def with_units(self) -> list[Scanned]:
        return [record for record in self.records if not record.sys_flag & 4]

    def write_log(self, place: int, data: bytes) -> None:
        path = self.root / "commitlog" / f"{place - place % LOG_FILE:020d}"
        _write(path, place % LOG_FILE, data)

    def read_log(self, place: int, size: int) -> bytes:
        with open(self.root / "commitlog" / f"{place - place % LOG_FILE:020d}", "rb") as file:
            file.seek(place % LOG_FILE)
            return file.read(size)

    def write_unit(self, record: Scanned, change: Callable[[int, int, int], tuple[int, int, int]]) -> None:
        path, at = self._unit(record.topic.decode(), record.queue_id, record.queue_offset)
        _write(path, at, _UNIT.pack(*change(*_UNIT.unpack(path.read_bytes()[at : at + UNIT]))))

    def append_unit(self, topic: str, queue_id: int, queue_offset: int, unit: tuple[int, int, int]) -> None:
        path, at = self._unit(topic, queue_id, queue_offset)
        if not path.exists():
            path.write_bytes(bytes(QUEUE_FILE))
        _write(path, at, _UNIT.pack(*unit))

    def _unit(self, topic: str, queue_id: int, queue_offset: int) -> tuple[Path, int]:
        at = queue_offset * UNIT
        folder = self.root / "consumequeue" / topic / str(queue_id)
        return folder / f"{at - at % QUEUE_FILE:020d}", at % QUEUE_FILE


def _write(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


# --- the store ---


def new_store(root: Path, clock: Clock, *, store_host: bytes = V4) -> Store:
    store = make_store(
        RealDisk(), clock, root=str(root), store_host=store_host,
        mapped_file_size_commit_log=LOG_FILE, mapped_file_size_consume_queue=QUEUE_FILE,
    )  # fmt: skip
    store.load()
    return store


def make_messages(root: Path, count: int, chance: random.Random) -> None:
    """A store that was closed, of about `count` messages of all kinds; its second half was stored by IPv6."""
    clock = Clock()
    for part, host in enumerate((V4, V6)):
        store = new_store(root, clock, store_host=host)
        for number in range(part * count // 2, (part + 1) * count // 2):
            clock.now_ms += 7
            _put(store, number, chance)
            store.commit()
        store.close()
    name_topics(root, *(each.name for each in (root / "consumequeue").iterdir()))


def name_topics(root: Path, *topics: str, **begins: int) -> None:
    """Write topics.json with these topics, and with `begins` those that were made at a physical offset."""
    (root / "config").mkdir(exist_ok=True)
    rows: dict[str, Any] = {topic: {"topicName": topic} for topic in topics}
    rows |= {topic: {"topicName": topic, "creation": {"logOffset": at}} for topic, at in begins.items()}
    table = {"topicConfigTable": rows}
    (root / "config" / "topics.json").write_text(json.dumps(table))


def _put(store: Store, number: int, chance: random.Random) -> None:
    queue_id = number % QUEUES
    tags = chance.choice(TAGS)
    body = chance.randbytes(chance.randrange(1, 90))
    texts = {"UNIQ_KEY": f"id{number}", "TAGS": tags}
    made = Record("Orders", queue_id, body, born_host=chance.choice([V4, V6]))
    made.tags_code = tags_code(tags)
    kind = number % 8
    if kind == 1:
        made.sys_flag, made.topic = chance.choice([4, 12]), "Half"
    elif kind == 2:
        made.sys_flag, made.prepared_transaction_offset = 8, 17
    elif kind == 3:
        made.topic = "SCHEDULE_TOPIC_XXXX"
        texts["DELAY"] = str(chance.choice([1, 3, 18, 99]))
    elif kind == 4:
        made.body, made.sys_flag = (
            compress(body * 9, CompressionType.ZLIB),
            compressed_flag(CompressionType.ZLIB),
        )
    elif kind == 5:
        messages = [(0, body, encode_properties({"TAGS": tags})) for _ in range(3)]
        shared = Record("Batched", queue_id, b"", born_host=V4)
        if store.put_batch(shared, encode_batch(messages), b"") is not None:
            return
    made.properties = encode_properties(texts)
    store.put(made)


# --- the faults ---


def inject(root: Path, count: int, chance: random.Random, kinds: Sequence[str] | None = None) -> set[Fault]:
    """Put `count` faults of these kinds, or all, into a store, each at another message."""
    kinds = kinds or _KINDS
    files = StoreFiles(root)
    chosen = chance.sample(files.with_units(), count)
    places = {record.position for record in files.records}
    ends = _queue_ends(files)
    found = set()
    for number, record in enumerate(chosen):
        topic, queue = record.topic.decode(), record.queue_id
        kind = kinds[number % len(kinds)]
        fault = Fault(kind, topic, queue, record.queue_offset, record.position)
        if kind == rules.EXTRA:
            offset = ends[topic, queue]
            ends[topic, queue] += 1
            place = chance.choice(
                [record.position, record.position + 1, files.records[-1].position + 999_999]
            )
            files.append_unit(topic, queue, offset, (place, record.size, 0))
            fault = Fault(kind, topic, queue, offset, place)
        elif kind == rules.WRONG_PLACE:
            place = chance.choice([record.position + 3, chance.choice(files.records).position, -5, 1 << 50])
            place = place if place != record.position else 7
            files.write_unit(record, lambda _, size, code, place=place: (place, size, code))
            fault = fault._replace(place=place)
        else:
            _INJECT[kind](files, record, chance)
        found.add(fault)
    assert len(found) == count
    assert len(places) == len(files.records)
    return found


def _queue_ends(files: StoreFiles) -> dict[tuple[str, int], int]:
    ends: dict[tuple[str, int], int] = {}
    for record in files.with_units():
        ends[record.topic.decode(), record.queue_id] = record.queue_offset + 1
    return ends


def _lose(files: StoreFiles, record: Scanned, chance: random.Random) -> None:
    lost = chance.choice([(0, 0, 0), (0, 0x7FFFFFFF, 0)])
    files.write_unit(record, lambda place, size, code: lost)


def _resize(files: StoreFiles, record: Scanned, chance: random.Random) -> None:
    by = chance.choice([1, -1, 4096])
    files.write_unit(record, lambda place, size, code: (place, size + by, code))


def _retag(files: StoreFiles, record: Scanned, chance: random.Random) -> None:
    by = chance.choice([1, -1, 1 << 32])
    files.write_unit(record, lambda place, size, code: (place, size, code + by))


def _flip(files: StoreFiles, record: Scanned, chance: random.Random) -> None:
    wide = 12 * bool(record.sys_flag & 16) + 12 * bool(record.sys_flag & 32)
    place = record.position + 88 + wide  # the first byte of the body
    byte = files.read_log(place, 1)[0]
    files.write_log(place, bytes([byte ^ 1 << chance.randrange(8)]))


def _move(files: StoreFiles, record: Scanned, chance: random.Random) -> None:
    wrong = record.queue_offset + chance.choice([1, -1, 1000])
    files.write_log(record.position + 20, wrong.to_bytes(8, "big", signed=True))


_INJECT: Final[dict[str, Callable[[StoreFiles, Scanned, random.Random], None]]] = {
    rules.MISSING: _lose,
    rules.WRONG_SIZE: _resize,
    rules.WRONG_CODE: _retag,
    rules.BAD_CRC: _flip,
    rules.WRONG_RECORD: _move,
}
_KINDS: Final = (*_INJECT, rules.EXTRA, rules.WRONG_PLACE)
