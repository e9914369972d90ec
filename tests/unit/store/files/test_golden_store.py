"""A store that RocketMQ 4.9.7 wrote opens here: every message, unit and look-up is what Java found."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmq.protocol.record import decode_record, decode_records
from rmq.store.config import StoreConfig
from rmq.store.files.checkpoint import Checkpoint
from rmq.store.files.disk import RealDisk
from rmq.store.store import Store

SAME = (
    "queue_id flag queue_offset sys_flag body_crc topic tags reconsume_times prepared_transaction_offset "
    "born_timestamp born_host store_timestamp store_host"
)
FIELDS = {"physical_offset": "phy_offset", "size": "store_size"} | {name: name for name in SAME.split()}
FOLDERS = ("commitlog", "consumequeue", "index", "config")


@pytest.fixture(scope="module")
def expected(golden: Path) -> Any:
    return json.loads((golden / "store" / "expected.json").read_text())


@pytest.fixture
def folder(golden: Path, tmp_path: Path) -> Path:
    for name in FOLDERS:
        shutil.copytree(golden / "store" / name, tmp_path / name)
    shutil.copy(golden / "store" / "checkpoint", tmp_path)
    for path in tmp_path.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return tmp_path


def make(folder: Path) -> Store:
    config = StoreConfig(
        store_path_root_dir=str(folder),
        mapped_file_size_commit_log=65536,
        mapped_file_size_consume_queue=1000,
        max_hash_slot_num=500,
        max_index_num=200,
    )
    return Store(RealDisk(), config, store_host=bytes(8), now_ms=lambda: 1_795_253_400_000)


def check(store: Store, expected: Any) -> None:
    """Compare everything with what Java found."""
    while store.dispatch():
        pass
    check_messages(store, expected)
    check_queues(store, expected)
    for index_key, offsets in expected["index_lookup"]["result"].items():
        topic, _, key = index_key.partition("#")
        found = sorted(store._index.find(topic, key, 0, 1 << 60, 64))
        assert found == sorted(offsets), index_key


def check_messages(store: Store, expected: Any) -> None:
    last = expected["commitlog_files"][-1]
    assert store.max_physical_offset == last["start_offset"] + last["data_end_in_file"]
    assert len(expected["messages"]) == expected["message_count"] == 182
    for row in expected["messages"]:
        message = store.message(row["phy_offset"])
        assert message is not None
        assert hashlib.sha256(message.body).hexdigest() == row["body_sha256"]
        assert message.properties == row["properties"]
        assert message.offset_message_id == row["offset_msg_id"]
        assert message.message_id == row["uniq_key"] or row["uniq_key"] is None
        for ours, theirs in FIELDS.items():
            assert getattr(message, ours) == row[theirs], (ours, row["phy_offset"])


def check_queues(store: Store, expected: Any) -> None:
    assert {f"{topic}/{queue_id}" for topic, queue_id in store.queues()} == set(expected["consume_queues"])
    for name, queue in expected["consume_queues"].items():
        topic, _, text = name.rpartition("/")
        queue_id, units = int(text), queue["units"]
        assert store.min_offset(topic, queue_id) == 0
        assert store.max_offset(topic, queue_id) == len(units)
        for offset, physical, size, code in units:
            assert store.unit(topic, queue_id, offset) == (physical, size, code)
        check_reading(store, topic, queue_id, [unit[1] for unit in units])


def check_reading(store: Store, topic: str, queue_id: int, physical: list[int]) -> None:
    read: list[int] = []
    while len(read) < len(physical):
        result = store.get(topic, queue_id, len(read), 32)
        assert result.status == "FOUND"
        read += [message.physical_offset for buffer in result.buffers for message in decode_records(buffer)]
        assert result.next_queue_offset == len(read)
    assert read == physical
    assert store.get(topic, queue_id, len(read), 32).status == "OFFSET_OVERFLOW_ONE"


def test_it_opens_and_all_is_there(folder: Path, expected: Any) -> None:
    store = make(folder)
    recovery = store.load()
    assert recovery.is_clean
    assert recovery.cut is None
    check(store, expected)
    store.close()


def test_opening_and_closing_changes_no_byte(folder: Path, golden: Path) -> None:
    store = make(folder)
    store.load()
    while store.dispatch():
        pass
    store.close()
    assert not (folder / "abort").exists()
    for path in sorted(golden.joinpath("store").rglob("*")):
        name = path.relative_to(golden / "store")
        if path.is_file() and (name.parts[0] in FOLDERS or name.name == "checkpoint"):
            ours = (folder / name).read_bytes()
            if name.name == "checkpoint":
                ours = ours[:24].ljust(len(ours), b"\0")  # RocketMQ reads no more of it
            assert path.read_bytes() == ours, name


@pytest.mark.parametrize("lost", ["nothing", "consumequeue", "index", "checkpoint", "all of them"])
def test_after_a_crash_queues_and_index_are_made_again(folder: Path, expected: Any, lost: str) -> None:
    """Java's abort file says that the stop was not clean; units and entries come out equal to Java's."""
    (folder / "abort").touch()
    for name in ("consumequeue", "index", "checkpoint"):
        if lost in (name, "all of them"):
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    store = make(folder)
    recovery = store.load()
    assert not recovery.is_clean
    check(store, expected)
    store.close()
    again = make(folder)
    assert again.load().is_clean
    check(again, expected)
    again.close()


def test_the_files_made_again_are_java_s(folder: Path, golden: Path) -> None:
    """Queue files are equal byte for byte; index files but for their names, which are times of making."""
    for name in ("consumequeue", "index"):
        shutil.rmtree(folder / name)
    store = make(folder)
    store.load()
    while store.dispatch():
        pass
    store.close()
    for path in sorted((golden / "store" / "consumequeue").rglob("0*")):
        if path.is_file():
            name = path.relative_to(golden / "store")
            assert path.read_bytes() == (folder / name).read_bytes(), name
    theirs = [path.read_bytes() for path in sorted((golden / "store" / "index").iterdir())]
    ours = [path.read_bytes() for path in sorted((folder / "index").iterdir())]
    assert ours == theirs


def test_the_checkpoint_is_java_s(folder: Path, expected: Any) -> None:
    checkpoint = Checkpoint(RealDisk(), str(folder / "checkpoint"))
    assert checkpoint.log_ms == expected["checkpoint"]["physicMsgTimestamp"]
    assert checkpoint.queues_ms == expected["checkpoint"]["logicsMsgTimestamp"]
    assert checkpoint.index_ms == expected["checkpoint"]["indexMsgTimestamp"]
    assert checkpoint.replay_from_ms == expected["checkpoint"]["min_timestamp"]


def test_delayed_units_hold_the_due_time(folder: Path) -> None:
    store = make(folder)
    store.load()
    level_3 = store.unit("SCHEDULE_TOPIC_XXXX", 2, 0)
    assert level_3 is not None
    assert level_3[2] == store.message_time("SCHEDULE_TOPIC_XXXX", 2, 0) + 10_000
    store.close()


def test_records_are_the_same_bytes_as_a_pull_gives(folder: Path, expected: Any) -> None:
    store = make(folder)
    store.load()
    row = expected["messages"][40]
    view = store.read(row["phy_offset"])
    assert view is not None
    assert len(view) == row["store_size"]
    assert decode_record(view).physical_offset == row["phy_offset"]
    assert store.read(row["phy_offset"] + 1) is None
    assert store.read(-1) is None
    assert store.read(1 << 62) is None
    store.close()
