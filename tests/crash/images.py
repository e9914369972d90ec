"""Power cuts at every write and sync of a seeded run, and what each must leave.

A run sends, syncs, saves and restarts on a `MemoryDisk`. Before each sync and after each change of the disk
several images are made: what a power cut at that moment may leave, with a random part of the 4 KiB pages that
were not synced. Each image is recovered and compared with what producers had been told by then.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

from attrs import define, field

from rmq.errors import RmqError, StoreError
from rmq.protocol.record import Record, decode_records
from rmq.store.config import StoreConfig
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

from .ledger import Ledger, Lost, Promise

ROOT = "/data/store"
QUEUES = [("Orders", 0), ("Orders", 1), ("Bills", 0)]
START_MS = 1_795_253_354_000
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 20_480,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 8,
    "max_index_num": 40,
}


DISK = "disk"
"""The only machine of these runs."""


@define
class Saved:
    """The saved texts of a config file, and the one that is or was being saved."""

    saved: list[bytes] = field(factory=list)
    saving: bytes = b""


def open_store(disk: MemoryDisk, now_ms: int) -> Store:
    config = StoreConfig(store_path_root_dir=ROOT, **SETTINGS)
    store = Store(disk, config, store_host=bytes(8), now_ms=lambda: now_ms, memory_bytes=1 << 40)
    store.load()
    return store


def read_all(store: Store, queue: tuple[str, int]) -> list[bytes]:
    """A queue as a consumer reads it. Raises Lost when its offsets are not dense."""
    found: list[bytes] = []
    if store.min_offset(*queue) != 0:
        raise Lost(f"{queue} begins at {store.min_offset(*queue)}")
    while len(found) < store.max_offset(*queue):
        result = store.get(*queue, len(found), 32)
        messages = [message for buffer in result.buffers for message in decode_records(buffer)]
        offsets = [message.queue_offset for message in messages]
        if not offsets or offsets != list(range(len(found), len(found) + len(offsets))):
            raise Lost(f"{queue} at {len(found)}: {result.status} {offsets}")
        found += [message.body for message in messages]
    return found


@define
class Campaign:
    """One seeded run, of which `images` are made at most, `per_boundary` at each boundary."""

    seed: int
    images: int
    per_boundary: int = 3
    made: int = 0
    boundaries: int = 0
    ledger: Ledger = field(factory=Ledger)
    config: Saved = field(factory=Saved)
    now_ms: int = START_MS
    _chance: random.Random = field(init=False)
    _disk: MemoryDisk = field(init=False)
    _store: Store = field(init=False)

    def run(self) -> None:
        """Make and check the images. Raises Lost, with the seed and the number of the image."""
        self._chance = random.Random(self.seed)
        self._disk = MemoryDisk(self.seed)
        self._disk.on_change = self._boundary
        self._disk.on_sync = lambda path: self._boundary()
        self._open()
        while self.made < self.images:
            self._step()

    def _open(self) -> None:
        self._store = open_store(self._disk, self.now_ms)
        self._store._now_ms = lambda: self.now_ms
        # The disk itself never loses power, so a restart finds all; it counts as synced from here on.
        self._compare(self._store, Promise.WRITTEN)
        self.ledger.synced(DISK)

    # ---- what happens ----

    def _step(self) -> None:
        self.now_ms += self._chance.choice([0, 1, 20, 700, 4000])
        kinds = [self._send] * 8 + [self._flush] * 4 + [self._checkpoint, self._save, self._dispatch]
        rare = [self._restart, self._kill, self._failed_write, self._failed_sync]
        rare.append(self._failed_sync_of_queues)
        self._chance.choice([*kinds * 3, *rare])()

    def _put(self) -> list[tuple[bytes, int]]:
        put = []
        for _ in range(self._chance.randrange(1, 5)):
            queue = self._chance.choice(QUEUES)
            number = len(self.ledger)
            body = b"%d-%d:" % (number, self.now_ms) + b"x" * self._chance.choice([0, 50, 900, 6000])
            key = f"KEY{number:06d}"
            record = Record(*queue, body, f"UNIQ_KEY\x01{key}", keys=(key,))
            self._store.put(record)
            self.ledger.sending(body, queue)
            put.append((body, record.queue_offset))
        return put

    def _send(self) -> None:
        put = self._put()
        self._store.commit()
        for body, offset in put:
            self.ledger.acknowledged(body, {DISK: Promise.WRITTEN}, offset)

    def _flush(self) -> None:
        count = len(self.ledger)
        self._store.flush()
        self.ledger.synced(DISK, count)

    def _checkpoint(self) -> None:
        self._store.dispatch()
        self._store.flush_queues()
        self._store.flush_checkpoint()

    def _dispatch(self) -> None:
        self._store.dispatch(5)

    def _save(self) -> None:
        self.config.saving = b'{"saved":%d}' % self.now_ms + b" " * self._chance.choice([0, 5000])
        self._store.save_config("consumerOffset", self.config.saving)
        self.config.saved.append(self.config.saving)

    def _restart(self) -> None:
        self._flush()
        self._store.close()
        self._open()

    def _kill(self) -> None:
        self._store.abandon()
        self._open()

    def _failed_write(self) -> None:
        put = self._put()
        self._disk.fail("write", "commitlog")
        try:
            self._store.commit()
        except StoreError:
            for body, _ in put:
                self.ledger.refused(body)
        else:
            for body, offset in put:
                self.ledger.acknowledged(body, {DISK: Promise.WRITTEN}, offset)
        self._disk.heal()

    def _failed_sync(self) -> None:
        self._send()
        self._disk.fail("sync", "commitlog")
        try:
            self._flush()
        except StoreError:
            self._disk.heal()
            self._chance.choice([self._mend, self._kill])()
        self._disk.heal()

    def _mend(self) -> None:
        self._store.mend()
        self.ledger.synced(DISK)

    def _failed_sync_of_queues(self) -> None:
        self._disk.fail("sync", self._chance.choice(["consumequeue", "index"]))
        with suppress(StoreError):
            self._checkpoint()
        self._disk.heal()

    # ---- what must be left ----

    def _boundary(self) -> None:
        self.boundaries += 1
        for _ in range(self.per_boundary):
            if self.made < self.images:
                self._image(self._chance.random())

    def _image(self, seed: float) -> None:
        self.made += 1
        image = self._disk.image(seed)
        try:
            store = open_store(image, self.now_ms)
            self._compare(store, Promise.SYNCED)
            if self.made % 8 == 0:
                self._again(store, image)
            store.abandon()
        except (RmqError, AssertionError, ArithmeticError, LookupError, ValueError) as error:
            raise Lost(f"seed {self.seed}, image {self.made}: {type(error).__name__}: {error}") from error

    def _compare(self, store: Store, least: Promise) -> None:
        found = {queue: list(enumerate(read_all(store, queue))) for queue in QUEUES}
        self.ledger.check(DISK, found, self.now_ms, least=least)
        text, told = store.config_text("consumerOffset"), self.config
        if text != told.saving and text not in told.saved[-1:] and (text is not None or told.saved):
            raise Lost(f"the config file is {text!r}")

    def _again(self, store: Store, image: MemoryDisk) -> None:
        """Send after the recovery, sync, and cut the power once more."""
        expected = {queue: read_all(store, queue) for queue in QUEUES}
        for queue in QUEUES:
            store.put(Record(*queue, b"again", ""))
            expected[queue].append(b"again")
        store.commit()
        store.flush()
        image.crash()
        second = open_store(image, self.now_ms)
        for queue in QUEUES:
            if read_all(second, queue) != expected[queue]:
                raise Lost(f"{queue} after a second cut")
        second.abandon()


def campaign(seed: int, images: int, run_images: int = 400) -> tuple[int, int]:
    """Run with seeds from `seed` on until this number of images was checked; return (images, boundaries)."""
    made = boundaries = 0
    while made < images:
        run = Campaign(seed, min(run_images, images - made))
        run.run()
        made += run.made
        boundaries += run.boundaries
        seed += 1
    return made, boundaries
