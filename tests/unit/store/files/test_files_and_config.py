"""Config files on disk, and the store's settings."""

from __future__ import annotations

import enum
import errno
import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from rmq.config import java_key, load
from rmq.errors import ConfigError, StoreError
from rmq.store.config import BrokerRole, Durability, FlushDiskType, StoreConfig, delay_table, physical_memory
from rmq.store.files.config_files import ConfigFiles
from rmq.store.files.disk import RealDisk
from rmq.testing.disk import MemoryDisk

from ..stores import open_store

FOLDER = "/data/store/config"
TOPICS = f"{FOLDER}/topics.json"


def test_a_file_keeps_the_version_before() -> None:
    disk = MemoryDisk()
    files = ConfigFiles(disk, FOLDER)
    assert files.load("topics") is None
    files.save("topics", b'{"a":1}')
    assert disk.list(FOLDER) == ["topics.json"]
    files.save("topics", b'{"a":2}')
    files.save("topics", b'{"a":3}')
    files.save("topics", b'{"a":3}')  # nothing new: the .bak stays
    assert disk.load(TOPICS) == b'{"a":3}'
    assert disk.load(TOPICS + ".bak") == b'{"a":2}'
    assert ConfigFiles(disk, FOLDER).load("topics") == b'{"a":3}'


@pytest.mark.parametrize("broken", [b"", b'{"a":', b"\xff\xfe", b"[[[["])
def test_a_broken_file_is_answered_by_its_bak(broken: bytes, caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    ConfigFiles(disk, FOLDER).save("topics", b'{"a":1}')
    files = ConfigFiles(disk, FOLDER)
    files.save("topics", b'{"a":2}')
    disk.replace(TOPICS, broken)
    files = ConfigFiles(disk, FOLDER)
    assert files.load("topics") == b'{"a":1}'
    assert "the version before is used" in caplog.text
    files.save("topics", b'{"a":3}')
    assert disk.load(TOPICS + ".bak") == b'{"a":1}', "a broken file does not replace a good .bak"


def test_a_missing_file_is_answered_by_its_bak() -> None:
    disk = MemoryDisk()
    disk.replace(TOPICS + ".bak", b"{0:20}")  # Java's unquoted keys
    assert ConfigFiles(disk, FOLDER).load("topics") == b"{0:20}"


def test_a_text_that_comes_back_after_a_failed_write_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rename was done, and the sync of the folder behind it failed."""
    files = ConfigFiles(RealDisk(), str(tmp_path))
    files.save("topics", b'{"a":1}')
    folders: list[str] = []

    def sync(folder: str) -> None:
        folders.append(folder)
        if len(folders) == 2:  # the first is that of the .bak
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("rmq.files.sync_folder", sync)
    with pytest.raises(StoreError):
        files.save("topics", b'{"a":2}')
    files.save("topics", b'{"a":1}')
    assert files.load("topics") == b'{"a":1}'


def test_both_broken_is_an_error_that_says_what_to_do() -> None:
    disk = MemoryDisk()
    disk.replace(TOPICS, b"x")
    disk.replace(TOPICS + ".bak", b"x")
    with pytest.raises(StoreError, match="restore one from a backup, or remove both"):
        ConfigFiles(disk, FOLDER).load("topics")


def test_a_failed_save_keeps_the_file() -> None:
    disk = MemoryDisk()
    files = ConfigFiles(disk, FOLDER)
    files.save("topics", b'{"a":1}')
    disk.capacity = 0
    with pytest.raises(StoreError):
        files.save("topics", b'{"a":2}')
    assert files.load("topics") == b'{"a":1}'


def test_a_crash_at_any_step_leaves_one_whole_version() -> None:
    disk = MemoryDisk()
    files = ConfigFiles(disk, FOLDER)
    images = []
    disk.on_change = lambda: images.append(disk.image(len(images)))
    for number in range(5):
        files.save("topics", json.dumps({"a": number}).encode())
    assert len(images) == 9
    seen = [json.loads(ConfigFiles(image, FOLDER).load("topics") or b"")["a"] for image in images]
    assert seen == sorted(seen)


def test_real_files_have_no_leftovers(tmp_path: Path) -> None:
    files = ConfigFiles(RealDisk(), str(tmp_path))
    files.save("topics", b"{}")
    files.save("topics", b'{"a":1}')
    assert sorted(path.name for path in tmp_path.iterdir()) == ["topics.json", "topics.json.bak"]


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a.b"])
def test_names_stay_in_the_folder(name: str) -> None:
    with pytest.raises(StoreError, match="not the name"):
        ConfigFiles(MemoryDisk(), FOLDER).save(name, b"{}")


def test_the_store_reads_java_s_config_files(golden: Path) -> None:
    disk = MemoryDisk()
    for path in (golden / "store" / "config").iterdir():
        disk.replace(f"{FOLDER}/{path.name}", path.read_bytes())
    store = open_store(disk)
    for name in ("topics", "consumerOffset", "delayOffset", "subscriptionGroup", "consumerFilter"):
        assert store.config_text(name) == (golden / "store" / "config" / f"{name}.json").read_bytes()
    store.save_config("delayOffset", b'{"offsetTable":{}}')
    assert store.config_text("delayOffset") == b'{"offsetTable":{}}'


# ---- settings ----


def test_defaults_are_java_s(golden: Path) -> None:
    classes: Any = json.loads((golden / "defaults.json").read_text())["classes"]
    theirs = classes["MessageStoreConfig"]["defaults"]
    ours = StoreConfig()
    own = {
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
        "diskMinFreeBytes",
        "truncateDamagedLog",
        "durability",
        "haDivergedLog",
        "haCatchUpRate",
        "fileReservedBytes",
        # more for who asks for more; RocketMQ's clients ask for 32
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInMemory",
        "maxTransferBytesOnMessageInDisk",
        "maxTransferCountOnMessageInDisk",
    }
    compared = 0
    for field in attrs.fields(StoreConfig):
        key = java_key(field)
        value = getattr(ours, field.name)
        if key in own or key == "storePathRootDir":
            continue
        assert (value.name if isinstance(value, enum.Enum) else value) == theirs[key], key
        compared += 1
    assert compared > 30


def test_a_broker_conf_is_read(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(
        "storePathRootDir=/data/rmq\nflushDiskType=SYNC_FLUSH\nbrokerRole=SLAVE\nmappedFileSizeCommitLog=65536\n"
        "mappedFileSizeConsumeQueue=1001\nfileReservedTime=48\ncheckCRCOnRecover=false\n"
    )
    config = load(StoreConfig, path, environment={})
    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert config.broker_role is BrokerRole.SLAVE
    assert config.commit_log_path == "/data/rmq/commitlog"
    assert (config.mapped_file_size_commit_log, config.queue_file_size) == (65536, 1020)
    assert not config.check_crc_on_recover


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("deleteWhen", "24", "hours of the day"),
        ("deleteWhen", "04,05", "hours of the day"),
        ("messageDelayLevel", "1s  5s", "delays"),
        ("flushDiskType", "SOMETIMES", "ASYNC_FLUSH"),
        ("mappedFileSizeCommitLog", "100", "1024"),
        ("mappedFileSizeCommitLog", "4g", "2147483647"),
        ("diskMaxUsedSpaceRatio", "5", "10"),
        ("maxMessageSize", "big", "bytes"),
    ],
)
def test_wrong_values_are_named(key: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=key) as caught:
        load(StoreConfig, arguments={key: value}, environment={})
    assert expected in str(caught.value)


def test_delay_levels_are_java_s(golden: Path) -> None:
    vectors: Any = json.loads((golden / "delay.json").read_text())["vectors"]
    for row in vectors:
        if row["result"]["ok"]:
            table = {int(level): ms for level, ms in row["result"]["table_ms"].items()}
            assert delay_table(row["in"]) == table, row["in"]
        else:
            with pytest.raises(ValueError, match="not a number"):
                delay_table(row["in"])


@pytest.mark.parametrize(
    ("durability", "flush", "role"),
    [
        ("memory", FlushDiskType.ASYNC_FLUSH, BrokerRole.ASYNC_MASTER),
        ("disk", FlushDiskType.SYNC_FLUSH, BrokerRole.ASYNC_MASTER),
        ("replicated", FlushDiskType.SYNC_FLUSH, BrokerRole.SYNC_MASTER),
    ],
)
def test_durability_sets_flush_type_and_role(durability: str, flush: FlushDiskType, role: BrokerRole) -> None:
    config = load(StoreConfig, arguments={"durability": durability}, environment={})
    assert (config.flush_disk_type, config.broker_role, config.level) == (flush, role, durability)
    same = {"durability": durability, "flushDiskType": flush.name, "brokerRole": role.name}
    assert load(StoreConfig, arguments=same, environment={}) == config
    by_hand = StoreConfig(flush_disk_type=flush, broker_role=role)
    assert (by_hand.level, by_hand.durability) == (durability, None)


@pytest.mark.parametrize(
    ("durability", "key", "value"),
    [
        ("memory", "flushDiskType", "SYNC_FLUSH"),
        ("memory", "brokerRole", "SYNC_MASTER"),
        ("disk", "flushDiskType", "ASYNC_FLUSH"),  # the default, but written out
        ("disk", "brokerRole", "SYNC_MASTER"),
        ("replicated", "flushDiskType", "ASYNC_FLUSH"),
        ("replicated", "brokerRole", "ASYNC_MASTER"),
        ("replicated", "brokerRole", "SLAVE"),
    ],
)
def test_durability_and_a_setting_that_contradicts_it_are_refused(
    durability: str, key: str, value: str
) -> None:
    with pytest.raises(ConfigError, match=rf"durability = '{durability}'.*{key}={value}"):
        load(StoreConfig, arguments={"durability": durability, key: value}, environment={})


def test_a_slave_may_say_how_it_writes() -> None:
    config = StoreConfig(durability=Durability.disk, broker_role=BrokerRole.SLAVE)
    assert (config.flush_disk_type, config.level) == (FlushDiskType.SYNC_FLUSH, "disk")


def test_two_keys_allow_a_level_that_durability_does_not() -> None:
    assert StoreConfig(broker_role=BrokerRole.SYNC_MASTER).level == "replicated in memory"


@pytest.mark.parametrize(
    ("name", "text", "bounded"),
    [
        ("memory.max", "1048576", True),
        ("memory.max", "max", False),
        ("memory/memory.limit_in_bytes", "1048576", True),
        ("memory/memory.limit_in_bytes", "9223372036854771712", False),
    ],
)
def test_a_container_s_limit_is_the_memory_there_is(
    tmp_path: Path, name: str, text: str, bounded: bool
) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"{text}\n")
    assert (physical_memory(str(tmp_path)) == 1 << 20) is bounded
    assert physical_memory(str(tmp_path / "none")) > 1 << 24
