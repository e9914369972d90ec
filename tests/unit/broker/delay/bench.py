"""A store with timers, and a clock to set."""

from __future__ import annotations

from pathlib import Path

from rmq.broker.delay.timer_records import deliver_time
from rmq.broker.delay.timers import Timers
from rmq.errors import StoreError
from rmq.message import TIMER_TOPIC, StoredMessage
from rmq.protocol.headers import RecallHandle
from rmq.protocol.record import Record, decode_record
from rmq.shares import NOBODY, Holders
from rmq.store.config import StoreConfig
from rmq.store.files.disk import RealDisk
from rmq.store.store import Store

START = 1_800_000_000_000


HOST = bytes(8)


DAY = 86_400_000


class Bench:
    """A store whose clock the test sets, and the timers over it."""

    def __init__(self, folder: Path) -> None:
        self.now = START
        self.folder = folder
        self.fail: StoreError | None = None
        self.saved: bytes | None = None
        self.woken: list[int] = []
        self.open()

    def open(self) -> None:
        config = StoreConfig(
            store_path_root_dir=str(self.folder),
            mapped_file_size_commit_log=1 << 20,
            mapped_file_size_consume_queue=200_000,
        )
        self.store = Store(RealDisk(), config, store_host=HOST, now_ms=lambda: self.now)
        self.store.load()
        self.timers = Timers(
            self.store,
            self.commit,
            lambda: self.woken.append(self.now),
            put=lambda record: self.store.put(record),
            limit=2000,
        )
        self.timers.load(self.saved)

    def put(self, record: Record) -> None:
        self.store.put(record)

    def commit(self) -> None:
        if self.fail is not None:
            self.store._rollback()
            raise self.fail
        for topic, _, next_offset in self.store.commit():
            if topic == TIMER_TOPIC:
                self.timers.arrived(next_offset)

    def send(self, body: bytes, due_ms: int, maker: Holders = NOBODY) -> RecallHandle:
        key = "K" + body[:9].decode()
        record = Record("Real", 3, body, born_timestamp=self.now, keys=(key,))
        self.timers.take(record, {"UNIQ_KEY": key, "TAGS": "T"}, due_ms, "", maker)
        self.store.put(record)
        self.commit()
        return RecallHandle("Real", "broker-a", due_ms, key)

    def at(self, now_ms: int) -> int:
        """Do all that is due at a time, step by step; returns when the next step is."""
        self.now = now_ms
        while (due := self.timers.step(now_ms)) <= now_ms:
            pass
        return due

    def delivered(self) -> list[bytes]:
        return [message.body for message in self.messages()]

    def messages(self) -> list[StoredMessage]:
        found = []
        for offset in range(self.store.max_offset("Real", 3)):
            unit = self.store.unit("Real", 3, offset)
            assert unit is not None
            data = self.store.read(unit[0])
            assert data is not None
            found.append(decode_record(data))
        return found

    def restart(self) -> None:
        self.store.close()
        self.open()


HOUR = 3_600_000


def send_delayed(bench: Bench, body: bytes, seconds: int) -> RecallHandle:
    key = "K" + body[:9].decode()
    properties = {"UNIQ_KEY": key, "TIMER_DELAY_SEC": str(seconds)}
    due_ms = deliver_time(properties, bench.now)
    assert due_ms is not None
    record = Record("Real", 3, body, born_timestamp=bench.now, keys=(key,))
    bench.timers.take(record, properties, due_ms)
    bench.store.put(record)
    bench.commit()
    return RecallHandle("Real", "broker-a", due_ms, key)
