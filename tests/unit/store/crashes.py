"""Stores that have crashed or were stopped, for the tests of recovery."""

from __future__ import annotations

from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

from .stores import ROOT, Clock, fill, open_store

LOG = f"{ROOT}/commitlog/{0:020d}"


def log_file(number: int, size: int = 4096) -> str:
    return f"{ROOT}/commitlog/{number * size:020d}"


def expected_bodies(count: int) -> list[bytes]:
    return [f"message {number}".encode() for number in range(count)]


def saved(count: int, clock: Clock | None = None) -> tuple[MemoryDisk, Store]:
    """A disk whose store holds `count` messages, all synced, and the store, left open."""
    disk = MemoryDisk()
    store = open_store(disk, clock)
    fill(store, count)
    store.flush()
    return disk, store


# ---- queues that do not fit the log ----


def queue_files(disk: MemoryDisk, queue_id: int = 0) -> list[str]:
    folder = f"{ROOT}/consumequeue/Orders/{queue_id}"
    return [f"{folder}/{name}" for name in disk.list(folder)]
