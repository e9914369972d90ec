"""Any sequence of sends, syncs, faults, power cuts, kills, restarts and expiry, against a model."""

from __future__ import annotations

from attrs import define
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rmq.errors import StoreError
from rmq.protocol.record import Record, decode_records
from rmq.store.config import StoreConfig
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

ROOT = "/data/store"
PREPARED = 4
QUEUES = [("Orders", 0), ("Orders", 1), ("%RETRY%billing", 0)]
HOUR_MS = 3_600_000


@define
class Sent:
    """A committed message: where it must be."""

    queue: tuple[str, int]
    queue_offset: int
    start: int
    end: int
    body: bytes
    key: str
    has_unit: bool


class StoreMachine(RuleBasedStateMachine):
    """`sent` is what the log holds, in order; the first `flushed` bytes of it survive anything."""

    @initialize(seed=st.integers(0, 1 << 32), log_size=st.sampled_from([1024, 4096, 16384]))
    def begin(self, seed: int, log_size: int) -> None:
        self.disk = MemoryDisk(seed)
        self.log_size = log_size
        self.now_ms = 1_795_253_354_000
        self.sent: list[Sent] = []
        self.pending: list[Sent] = []
        self.flushed = 0
        self.next = dict.fromkeys(QUEUES, 0)
        self.count = 0
        self.open()

    def open(self) -> None:
        config = StoreConfig(
            store_path_root_dir=ROOT,
            mapped_file_size_commit_log=self.log_size,
            mapped_file_size_consume_queue=100,
            max_hash_slot_num=8,
            max_index_num=10,
            file_reserved_time=72,
            delete_when=";".join(map(str, range(24))),
        )
        self.store = Store(
            self.disk, config, store_host=bytes(8), now_ms=lambda: self.now_ms, memory_bytes=1 << 40
        )
        self.store.load()

    # ---- sending ----

    @rule(
        queue=st.sampled_from(QUEUES),
        size=st.integers(0, 600),
        sys_flag=st.sampled_from([0, 0, 0, 8, PREPARED]),
    )
    def put(self, queue: tuple[str, int], size: int, sys_flag: int) -> None:
        self.put_one(queue, size, sys_flag)

    @rule(queue=st.sampled_from(QUEUES), count=st.integers(5, 25))
    def put_many(self, queue: tuple[str, int], count: int) -> None:
        for _ in range(count):
            self.put_one(queue, 10, 0)

    def put_one(self, queue: tuple[str, int], size: int, sys_flag: int) -> None:
        self.count += 1
        body, key = b"%d:" % self.count + b"x" * size, f"KEY{self.count:06d}"
        record = Record(*queue, body, f"UNIQ_KEY\x01{key}", sys_flag=sys_flag, keys=(key,))
        self.store.put(record)
        plain = sys_flag != PREPARED
        start, end = record.physical_offset, record.physical_offset + record.size
        assert record.queue_offset == (self.next[queue] if plain else 0)
        self.next[queue] += plain
        self.pending.append(Sent(queue, record.queue_offset, start, end, body, key, plain))

    @rule()
    def commit(self) -> None:
        arrivals = self.store.commit()
        grown = {sent.queue for sent in self.pending if sent.has_unit}
        assert {(topic, queue_id): end for topic, queue_id, end in arrivals} == {
            q: self.next[q] for q in grown
        }
        self.sent += self.pending
        self.pending = []

    @precondition(lambda self: self.pending)
    @rule(operation=st.sampled_from(["write", "full"]))
    def commit_fails(self, operation: str) -> None:
        before = self.store.max_physical_offset
        if operation == "write":
            self.disk.fail("write", "commitlog")
        else:
            self.disk.capacity = 0
        try:
            self.store.commit()
        except StoreError:
            self.pending = []
            self.renumber()
            assert self.store.max_physical_offset == before
        else:  # all pages were there already
            self.sent += self.pending
            self.pending = []
        self.disk.heal()
        self.disk.capacity = None

    def renumber(self) -> None:
        for queue in QUEUES:
            offsets = [sent.queue_offset for sent in self.sent if sent.queue == queue and sent.has_unit]
            self.next[queue] = offsets[-1] + 1 if offsets else self.store.max_offset(*queue)

    # ---- syncing and deferred work ----

    @rule()
    def flush(self) -> None:
        self.flushed = self.store.flush()
        assert (
            self.flushed == self.store.max_physical_offset >= max((sent.end for sent in self.sent), default=0)
        )

    @rule(limit=st.integers(1, 30))
    def dispatch(self, limit: int) -> None:
        self.store.dispatch(limit)

    @rule()
    def checkpoint(self) -> None:
        self.store.flush_queues()
        self.store.flush_checkpoint()

    @rule(step_ms=st.sampled_from([1, 500, 4000, 20_000, -2000]))
    def wait(self, step_ms: int) -> None:
        self.now_ms += step_ms

    @rule(hours=st.integers(1, 100))
    def expire(self, hours: int) -> None:
        self.now_ms += hours * HOUR_MS
        self.store.clean(self.now_ms)
        self.sent = [sent for sent in self.sent if sent.start >= self.store.min_physical_offset]

    # ---- ends and beginnings ----

    def survivors(self) -> None:
        """After a start: a prefix of what was committed, and at least what was flushed."""
        end = self.store.max_physical_offset
        assert end >= self.flushed
        assert all(sent.end <= end or sent.start >= end for sent in self.sent), "no half of a record"
        self.sent = [sent for sent in self.sent if sent.end <= end]
        self.pending = []
        self.renumber()

    @rule()
    def power_cut(self) -> None:
        self.disk.crash()
        self.open()
        self.survivors()
        self.flushed = self.store.max_physical_offset

    @rule()
    def kill(self) -> None:
        before = len(self.sent)
        self.store.abandon()
        self.disk = self.disk.copy()
        self.open()
        self.survivors()
        assert len(self.sent) == before
        self.flushed = self.store.max_physical_offset

    @rule()
    def restart(self) -> None:
        before = len(self.sent)
        self.store.close()
        self.disk.crash()
        self.open()
        self.survivors()
        assert len(self.sent) == before
        self.flushed = self.store.max_physical_offset

    # ---- what must always hold ----

    @invariant()
    def every_queue_reads_as_sent(self) -> None:
        for topic, queue_id in QUEUES:
            expected = [sent for sent in self.sent if sent.queue == (topic, queue_id) and sent.has_unit]
            assert self.store.max_offset(topic, queue_id) - self.store.min_offset(topic, queue_id) == len(
                expected
            )
            found: list[tuple[int, bytes]] = []
            offset = self.store.min_offset(topic, queue_id)
            while offset < self.store.max_offset(topic, queue_id):
                result = self.store.get(topic, queue_id, offset, 32)
                assert result.status == "FOUND"
                messages = [message for buffer in result.buffers for message in decode_records(buffer)]
                found += [(message.queue_offset, message.body) for message in messages]
                offset = result.next_queue_offset
            assert found == [(sent.queue_offset, sent.body) for sent in expected]

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def a_key_is_found(self, data: st.DataObject) -> None:
        while self.store.dispatch():
            pass
        sent = data.draw(st.sampled_from(self.sent))
        found = self.store.query(sent.queue[0], sent.key, 10, 0, 1 << 60)
        assert [message.body for message in found] == [sent.body]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.abandon()


TestStore = StoreMachine.TestCase
TestStore.settings = settings(TestStore.settings, stateful_step_count=40, max_examples=150)
