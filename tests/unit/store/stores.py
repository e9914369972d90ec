"""Small stores for tests: files of a few KiB, a clock that the test moves, records with keys and tags."""

from __future__ import annotations

from typing import Any

from rmq.message import tags_code
from rmq.protocol.properties import encode_properties
from rmq.protocol.record import Record, decode_records
from rmq.store.config import StoreConfig
from rmq.store.files.disk import Disk
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

ROOT = "/data/store"
START_MS = 1_795_253_354_000
HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


class Clock:
    """Wall time that stands still until a test moves it."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def small_config(root: str = ROOT, **settings: Any) -> StoreConfig:
    """Log files of 4 KiB, queue files of 10 units, index files of 19 entries."""
    small: dict[str, Any] = {
        "mapped_file_size_commit_log": 4096,
        "mapped_file_size_consume_queue": 200,
        "max_hash_slot_num": 16,
        "max_index_num": 20,
    }
    return StoreConfig(store_path_root_dir=root, **small | settings)


def make_store(disk: Disk | None = None, clock: Clock | None = None, **settings: Any) -> Store:
    """A store that is not loaded yet."""
    root, store_host = settings.pop("root", ROOT), settings.pop("store_host", HOST)
    steady = settings.pop("steady", None)
    return Store(
        disk if disk is not None else MemoryDisk(),
        small_config(root, **settings),
        store_host=store_host,
        now_ms=clock or Clock(),
        memory_bytes=1 << 30,
        clock=steady,
    )


def open_store(disk: Disk | None = None, clock: Clock | None = None, **settings: Any) -> Store:
    """A loaded store."""
    store = make_store(disk, clock, **settings)
    store.load()
    return store


def record(
    body: bytes | str = b"hello",
    topic: str = "Orders",
    queue_id: int = 0,
    *,
    tags: str | None = None,
    unique: str | None = None,
    keys: str = "",
    sys_flag: int = 0,
    **properties: str,
) -> Record:
    """A record as the broker makes it."""
    texts = {"TAGS": tags, "UNIQ_KEY": unique, "KEYS": keys or None, **properties}
    index_keys = ((unique,) if unique else ()) + tuple(keys.split())
    return Record(
        topic,
        queue_id,
        body.encode() if isinstance(body, str) else body,
        encode_properties(texts),
        sys_flag=sys_flag,
        born_timestamp=START_MS - 5,
        born_host=HOST,
        tags_code=tags_code(tags),
        keys=index_keys,
    )


def send(store: Store, *records: Record) -> None:
    """Put and commit."""
    for each in records:
        store.put(each)
    store.commit()


def fill(store: Store, count: int, **fields: Any) -> None:
    """Send `count` numbered messages, one commit each."""
    for number in range(count):
        send(store, record(f"message {number}", **fields))


def bodies(store: Store, topic: str = "Orders", queue_id: int = 0) -> list[bytes]:
    """The bodies of a whole queue, read as a consumer reads them."""
    found: list[bytes] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, offset, 32)
        assert result.next_queue_offset > offset, result
        messages = [message for buffer in result.buffers for message in decode_records(buffer)]
        assert [message.queue_offset for message in messages] == list(
            range(offset, result.next_queue_offset)
        ), "offsets are dense"
        found += [message.body for message in messages]
        offset = result.next_queue_offset
    return found
