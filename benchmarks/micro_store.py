"""What the store costs: CPU per message and key, recovery, memory and descriptors with 10,000 queues.

    python -m benchmarks.micro_store [FOLDER]

Files go under FOLDER (default: the temporary folder) and are removed. CPU is user and system time of this
process, writes into the page cache included; where it says so, the best of several parts.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable

from rmq.protocol.record import Record
from rmq.store.config import StoreConfig
from rmq.store.files.disk import RealDisk
from rmq.store.store import Store

CHUNK = 64
PART = 6400
BODY = bytes(range(128))


def open_store(folder: str, **settings: object) -> Store:
    config = StoreConfig(store_path_root_dir=folder, **settings)  # type: ignore[arg-type]
    return Store(RealDisk(), config, store_host=bytes(8), now_ms=lambda: time.time_ns() // 1_000_000)


def records(first: int, count: int, queues: int) -> list[Record]:
    topics = [f"Topic{number:05d}" for number in range(max(queues // 4, 1))]
    made = []
    for number in range(first, first + count):
        key = f"C000020210265FFD2B27690857{number:08X}"
        topic, queue_id = topics[number // 4 % len(topics)], number % 4 if queues > 1 else 0
        text = f"TAGS\x01{'hit' if number % 100 == 7 else 'miss'}\x02UNIQ_KEY\x01{key}\x02WAIT\x01true"
        made.append(
            Record(topic, queue_id, BODY, text, born_host=bytes(8), tags_code=number % 100, keys=(key,))
        )
    return made


def report(name: str, value: float, unit: str) -> None:
    print(f"{name:58} {value:10.3f} {unit}")


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """CPU and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def index_all(store: Store) -> None:
    while store.dispatch():
        pass


def send_all(store: Store, batch: list[Record]) -> None:
    for first in range(0, len(batch), CHUNK):
        for record in batch[first : first + CHUNK]:
            store.put(record)
        store.commit()


def writing(folder: str, queues: int, messages: int) -> tuple[float, float]:
    """Median CPU µs a message of put + commit, and of indexing; the folder keeps the messages, not closed."""
    store = open_store(folder)
    store.load()
    gc.collect()
    gc.freeze()  # as a broker does after its start
    put, dispatch = [], []
    for first in range(0, messages, PART):
        batch = records(first, PART, queues)
        put.append(timed(lambda batch=batch: send_all(store, batch))[0])
        dispatch.append(timed(lambda: index_all(store))[0])
    gc.unfreeze()
    label = f"{queues} queue{'s' if queues > 1 else ''}"
    cost = sorted(put)[len(put) // 2] / PART * 1e6, sorted(dispatch)[len(put) // 2] / PART * 1e6
    report(f"put + commit, 128 B, chunks of {CHUNK}, {label}", cost[0], "us/message")
    report(f"index, one key a message, {label}", cost[1], "us/key")
    if queues > 1:
        report("  memory of the process", resident_mib(), "MiB")
        report("  open descriptors", len(os.listdir("/proc/self/fd")), "")
    else:
        report("flush of one commit", sorted(flushes(store))[25] * 1e6, "us wall, median")
    store.abandon()
    return cost


def flushes(store: Store) -> list[float]:
    times = []
    for number in range(50):
        send_all(store, records(number, 1, 1))
        times.append(timed(store.flush)[1])
    return times


def resident_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def recovery(folder: str, label: str) -> Store:
    store = open_store(folder)
    cpu, wall = timed(store.load)
    found = store.max_physical_offset / (1 << 20)
    report(f"recovery after kill -9, {label}: {found:.0f} MiB", wall, "s")
    report("  CPU", cpu * 1e6 / max(found * (1 << 20) / 300, 1), "us/message (about)")
    cpu, _ = timed(lambda: index_all(store))
    store.close()
    again = open_store(folder)
    report(f"start after a clean stop, {label}", timed(again.load)[1], "s")
    return again


def reading(store: Store, messages: int) -> None:
    def pull() -> None:
        offset = 0
        while (result := store.get("Topic00000", 0, offset, 32)).count:
            offset = result.next_queue_offset

    def pull_one() -> None:
        for offset in range(10_000):
            store.get("Topic00000", 0, offset, 1)

    def scan() -> None:
        offset, nothing = 0, frozenset[int]().__contains__
        while offset < messages:
            offset = store.get("Topic00000", 0, offset, 32, None, nothing).next_queue_offset

    pull()
    report("get, 32 messages", min(timed(pull)[0] for _ in range(5)) / messages * 32e6, "us/get")
    report("get, 1 message", min(timed(pull_one)[0] for _ in range(5)) / 10_000 * 1e6, "us/get")
    report("tag filter, nothing matches", messages / min(timed(scan)[0] for _ in range(5)) / 1e6, "M units/s")


def main() -> None:
    folder = tempfile.mkdtemp(prefix="rmq-store-", dir=sys.argv[1] if len(sys.argv) > 1 else None)
    try:
        one = writing(f"{folder}/one", 1, 640_000)
        store = recovery(f"{folder}/one", "640,000 messages")
        reading(store, 640_000)
        store.abandon()
        many = writing(f"{folder}/many", 10_000, 640_000)
        recovery(f"{folder}/many", "10,000 queues").abandon()
        report("cost of 10,000 queues against one, put + commit + index", sum(many) / sum(one), "x")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
