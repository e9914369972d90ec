"""Slaves with either engine get the same copied bytes, and come to the same log, queues, index and errors.

The compiled engine reads plain records in runs; the other slave reads each record by itself.
"""

from __future__ import annotations

from random import Random
from types import ModuleType
from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.errors import CorruptRecord
from rmq.message import SCHEDULE_TOPIC, TIMER_TOPIC
from rmq.protocol.codes import SYS_COMMIT, SYS_COMPRESSED, SYS_PREPARED, SYS_ROLLBACK
from rmq.protocol.record import build_record, host_bits
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.files.commitlog import blank
from rmq.store.files.scan import Run, Scan
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk
from tests.compiled import COMPILED, HAS_COMPILED

ROOT = "/store"
START = 1_795_253_354_000
FILE = 4096
HOSTS = [bytes(range(8)), bytes(range(20))]
TOPICS = ["Orders"] * 9 + ["New1", "Größe", "a b~", "x" * 120, SCHEDULE_TOPIC, TIMER_TOPIC]
BAD_TOPICS = ["", ".", "..", "a/b", "a\0"]
KEY = b"UNIQ_KEY\x01AC11"
TEXTS = [b"", b"\x02", b"a", KEY, KEY + b"\x02TAGS\x01A", KEY + b"\x02KEYS\x01 a  b \x02", b"KEYS\x01 "]
TEXTS += [b"TAGS\x01A\x02TAGS\x01", b"TAGS\x01A\x02TAGS\x01B", b"xTAGS\x01A", KEY + b"\x02" + KEY + b"B"]
TEXTS += [
    "KEYS\x01é\x02TAGS\x01é".encode(),
    b"KEYS\x01\xff",
    KEY + b"\x02a\x01\0",
    b"DELAY\x013",
    b"DELAY\x01x",
]
TEXTS += [b"TIMER_OUT_MS\x011795253399000\x02TAGS\x01A", KEY + b"\x02pad\x01" + b"p" * 900]
FLAGS = [0] * 12 + [SYS_COMPRESSED, SYS_PREPARED, SYS_COMMIT, SYS_ROLLBACK]

MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(TOPICS),
        st.sampled_from([0, 0, 1, 7]),
        st.sampled_from([1] * 15 + [0, -1, 5]),  # the first queue offset, after that of the message before
        st.sampled_from(FLAGS),
        st.sampled_from(TEXTS),
        st.integers(0, 300),
        st.sampled_from([1, 1, 3, 20]),  # how many messages
        st.sampled_from([1, 1, 2, 3]),  # to how many queues in turn
    ),
    min_size=1,
    max_size=12,
)


def log_of(messages: list[tuple[Any, ...]], chance: Random, base: int = 0) -> bytes:
    """The log of a master that has taken these messages, from `base` on; one in a hundred is impossible."""
    data, offsets = bytearray(), dict[Any, int]()
    single = [
        (topic, queue_id + at % queues, step if at < queues else 1, *rest)
        for topic, queue_id, step, *rest, count, queues in messages
        for at in range(count)
    ]
    for number, (topic, queue_id, step, sys_flag, text, body_size) in enumerate(single):
        born, stored = chance.choice(HOSTS), chance.choice(HOSTS)
        if chance.random() < 0.01:
            topic, queue_id = chance.choice([*BAD_TOPICS, topic]), chance.choice([-1, queue_id])
        offset = max(0, offsets.get((topic, queue_id), chance.choice([-1, -1, 5])) + step)
        if not sys_flag & SYS_PREPARED:
            offsets[topic, queue_id] = offset
        name, body = topic.encode(), chance.randbytes(body_size)
        size = 91 - 16 + len(born) + len(stored) + len(name) + len(body) + len(text)
        left = FILE - len(data) % FILE  # `base` is the begin of a file
        if size + 8 > left:
            data += blank(left).ljust(left, b"\0")
        data += build_record(
            size,
            queue_id,
            number,
            offset,
            base + len(data),
            sys_flag | host_bits(born, stored),
            START - 3,
            born,
            START + number * 400 + chance.randrange(-900, 900),
            stored,
            0,
            0,
            body,
            bytes([len(name)]) + name,
            text,
        )
    return bytes(data)


def damaged(data: bytes, chance: Random) -> bytes:
    """The bytes with some that are others, or zeros."""
    changed = bytearray(data)
    for _ in range(chance.choice([0, 1, 1, 3])):
        at = chance.randrange(len(changed))
        if chance.random() < 0.7:
            changed[at] = chance.randrange(256)
        else:
            stop = min(at + chance.choice([2, 8, 100]), len(changed))
            changed[at:stop] = bytes(stop - at)
    return bytes(changed)


@attrs.define
class Slave:
    """A slave with an engine, and what it told."""

    compiled: ModuleType | None
    indexes: bool
    disk: MemoryDisk = attrs.Factory(MemoryDisk)
    errors: list[str] = attrs.Factory(list)
    store: Store = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        config = StoreConfig(
            store_path_root_dir=ROOT,
            mapped_file_size_commit_log=FILE,
            mapped_file_size_consume_queue=200,
            max_hash_slot_num=8,
            max_index_num=40,
            message_index_enable=self.indexes,
            broker_role=BrokerRole.SLAVE,
        )
        self.store = Store(
            self.disk,
            config,
            store_host=bytes(8),
            now_ms=lambda: START + 30_000,
            memory_bytes=1 << 30,
            compiled=self.compiled,
        )
        self.store.load()

    def take(self, at: int, data: bytes) -> dict[tuple[str, int], int]:
        """Append bytes; return the queues that grew, and their ends."""
        try:
            return {(topic, queue_id): end for topic, queue_id, end in self.store.append_raw(at, data)}
        except CorruptRecord as error:
            self.errors.append(str(error))
            return {}

    def state(self) -> Any:
        """What the store has now, in files and in memory."""
        store = self.store
        queues = store._queues
        return (
            store.max_physical_offset,
            store._raw_position,
            store._raw_whole,
            store._log.timestamp,
            {
                key: (one.start, one.next, bytes(one.units(one.start, 99)))
                for key, one in queues.table.items()
            },
            [(one.topic, one.queue_id, one.gathered_since_ms) for one in queues._gathered],
            queues._gathered_bytes,
            len(store._reput),
            self.errors,
        )

    def files(self) -> dict[str, bytes | None]:
        return {path: self.disk.load(path) for path in sorted(self.disk._files) if "checkpoint" not in path}


@HAS_COMPILED
@settings(max_examples=150)
@given(
    MESSAGES,
    st.integers(1, 3000),
    st.sampled_from([0, FILE << 30]),
    st.booleans(),
    st.integers(0, (1 << 32) - 1).map(Random),
)
def test_slaves_come_to_the_same(
    messages: list[Any], most: int, base: int, indexes: bool, chance: Random
) -> None:
    good = log_of(messages, chance, base)
    first = damaged(good, chance)
    slaves = [Slave(None, indexes), Slave(COMPILED, indexes)]
    for data in (first, good):  # after damage the master sends the same place again
        while (at := max(base, slaves[0].store.max_physical_offset)) < base + len(data):
            piece = data[at - base : at - base + chance.randrange(1, most + 1)]
            told = [slave.take(at, piece) for slave in slaves]
            assert told[0] == told[1]
            assert slaves[0].state() == slaves[1].state()
            if slaves[0].errors and slaves[0].store.max_physical_offset <= at:
                break
            if chance.random() < 0.05:
                for slave in slaves:
                    slave.store.cut_partial()
                break
            if chance.random() < 0.1:
                limit = chance.choice([1, 3, 1000])
                assert len({slave.store.dispatch(limit) for slave in slaves}) == 1
    for slave in slaves:
        while slave.store.dispatch(1000):
            pass
        slave.store.close()
    assert slaves[0].files() == slaves[1].files()


@HAS_COMPILED
def test_plain_records_are_one_run_and_rare_ones_end_it() -> None:
    plain, delayed = ("Orders", 0, 1, 0, KEY, 5), (SCHEDULE_TOPIC, 2, 1, 0, b"DELAY\x013", 5)
    slave = Slave(COMPILED, indexes=True)
    data = log_of(
        [(*plain, 9, 1), (*delayed, 1, 1), *[(*plain, 1, 1), ("New1", 1, 1, 0, b"", 5, 1, 1)] * 2], Random(1)
    )
    slave.take(0, data)
    runs = list(Scan(slave.store._log.segments, 0, stop=len(data)).runs(COMPILED, with_rows=True))
    first, rare, last = runs
    assert isinstance(first, Run)
    assert not isinstance(rare, Run)
    assert isinstance(last, Run)
    assert [(topic, count) for topic, _, _, count, _ in first.queues] == [("Orders", 9)]
    assert rare.topic == SCHEDULE_TOPIC.encode()
    assert [(topic, count) for topic, _, _, count, _ in last.queues] == [("Orders", 2), ("New1", 2)]
    assert last.rows is not None
    assert last.rows.records == 2
    assert last.end == len(data)
