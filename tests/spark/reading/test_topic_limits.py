"""A store's files without a broker: messages that limits of their topics gave up are left out, as there."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq.broker.tables.offsets import encode_offsets
from rmq.broker.tables.versioned import run_to_end
from rmq.errors import StoreError
from rmq.protocol.codes import RETENTION_GROUP
from rmq.store.files.disk import RealDisk
from tests.spark.reading.stores import FILE, Row, log_bytes, read, simple, write_store
from tests.unit.store.stores import open_store

FLOORS = {0: 5, 1: 12}
"""First offsets of topic T, which has two queues; U has no limits."""


def save(root: Path, rows: dict[str, dict[int, int]], name: str = "consumerOffset.json") -> None:
    """Write the table as a broker does."""
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / name).write_bytes(run_to_end(encode_offsets(rows)))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_store(tmp_path, [simple(number, topic="TU"[number % 4 // 2]) for number in range(60)])
    save(tmp_path, {f"T@{RETENTION_GROUP}": FLOORS, "T@readers": {0: 3}, f"Gone@{RETENTION_GROUP}": {7: 9}})
    return tmp_path


def places(rows: list[Row]) -> list[tuple[str, int, int]]:
    return sorted((row["topic"], row["queueId"], row["queueOffset"]) for row in rows)


def readable(root: Path) -> list[tuple[str, int, int]]:
    """The messages that a broker with these limits gives to consumers."""
    store = open_store(RealDisk(), root=str(root), mapped_file_size_commit_log=FILE)
    for queue_id, first in FLOORS.items():
        store.give_up_before("T", queue_id, first)
    found = [
        (topic, queue_id, offset)
        for topic in "TU"
        for queue_id in range(2)
        for offset in range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))
    ]
    store.close()
    return found


@pytest.mark.parametrize("via", ["commitlog", "consumequeue"])
def test_rows_are_those_that_the_broker_gives(store: Path, via: str) -> None:
    found = places(read(store, topic="T,U", via=via))
    assert found == readable(store)
    assert len(found) == 60 - 5 - 12
    assert places(read(store, topic="T", via=via)) == [one for one in found if one[0] == "T"]


@pytest.mark.parametrize("via", ["commitlog", "consumequeue"])
def test_all_rows_are_there_when_they_are_asked_for(store: Path, via: str) -> None:
    assert len(read(store, topic="T,U", via=via, topicLimits="false")) == 60


def test_the_log_s_own_folder_has_its_store_s_limits(store: Path) -> None:
    assert len(read(store / "commitlog", chunkBytes=1_000)) == 43


def test_the_version_before_is_read_when_the_file_is_broken(store: Path) -> None:
    save(store, {f"T@{RETENTION_GROUP}": {0: 5}}, "consumerOffset.json.bak")
    (store / "config" / "consumerOffset.json").write_bytes(b'{"offsetTable":{')
    assert len(read(store)) == 55
    (store / "config" / "consumerOffset.json.bak").unlink()
    with pytest.raises(StoreError, match=r"consumerOffset\.json and its \.bak are broken"):
        read(store)
    assert len(read(store, topicLimits="false")) == 60


def test_nothing_is_changed(store: Path) -> None:
    before = log_bytes(store), (store / "config" / "consumerOffset.json").read_bytes()
    read(store)
    assert (log_bytes(store), (store / "config" / "consumerOffset.json").read_bytes()) == before
