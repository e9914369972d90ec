"""A hot copy of a store that is written to, what it costs the next time, and stores that are made of it."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import shutil

import pytest
from click.testing import CliRunner

from rmq.cli.local.backup import backup_command
from rmq.cli.local.store import store as store_commands
from rmq.errors import StoreError
from rmq.operate.copies.backup import back_up, paced, seed, verify
from rmq.store.files.disk import RealDisk
from rmq.store.store import Store
from tests.unit.store.stores import open_store, record

FREE = paced(0)


def opened(folder: pathlib.Path) -> Store:
    return open_store(RealDisk(), root=str(folder))


def fill(store: Store, first: int, count: int) -> None:
    for number in range(first, first + count):
        store.put(record(f"body {number}" + "x" * 300))
        store.commit()


def saved(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    return folder, folder / "commitlog"


def log_bytes(store: Store) -> bytes:
    low, high = store.min_physical_offset, store.max_physical_offset
    data = b""
    while low + len(data) < high:
        data += bytes(store.read_raw(low + len(data), min(1024, high - low - len(data))))
    return data


def test_a_store_on_a_copy_of_a_hot_backup_has_each_byte(tmp_path: pathlib.Path) -> None:
    store, target = opened(tmp_path / "store"), tmp_path / "backup"
    fill(store, 0, 50)
    store.save_config("consumerOffset", b'{"offsetTable": {}}')

    result = back_up(*saved(tmp_path / "store"), target, FREE)

    assert result.end == store.max_physical_offset
    expected = log_bytes(store)
    fill(store, 50, 5)  # nothing of that is in it
    shutil.copytree(target, tmp_path / "restored")
    restored = opened(tmp_path / "restored")
    assert log_bytes(restored) == expected
    assert restored.max_offset("Orders", 0) == 50
    offsets = tmp_path / "restored" / "config" / "consumerOffset.json"
    assert offsets.read_bytes() == b'{"offsetTable": {}}'
    fill(restored, 50, 1)
    assert restored.max_offset("Orders", 0) == 51
    restored.close()
    store.close()


def test_the_next_time_only_what_is_new_is_copied(tmp_path: pathlib.Path) -> None:
    store, target = opened(tmp_path / "store"), tmp_path / "backup"
    fill(store, 0, 100)
    first = back_up(*saved(tmp_path / "store"), target, FREE)
    fill(store, 100, 30)
    pieces: list[int] = []

    second = back_up(*saved(tmp_path / "store"), target, pieces.append)

    assert first.copied > 5
    assert second.kept >= first.copied - 1
    assert sum(pieces) <= 5 * 4096
    assert list(verify(target)) == []
    assert second.end == store.max_physical_offset
    store.close()


def test_a_copy_that_broke_off_is_gone_on_with(tmp_path: pathlib.Path) -> None:
    store, target = opened(tmp_path / "store"), tmp_path / "backup"
    fill(store, 0, 100)
    left = [5]

    def breaks_off(count: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        back_up(*saved(tmp_path / "store"), target, breaks_off)
    result = back_up(*saved(tmp_path / "store"), target, FREE)

    assert result.kept == 4
    assert list(verify(target)) == []
    store.close()


def test_what_retention_removed_leaves_the_backup(tmp_path: pathlib.Path) -> None:
    store, target = opened(tmp_path / "store"), tmp_path / "backup"
    fill(store, 0, 100)
    back_up(*saved(tmp_path / "store"), target, FREE)
    first = sorted((tmp_path / "store" / "commitlog").iterdir())[0]
    first.unlink()

    back_up(*saved(tmp_path / "store"), target, FREE)

    assert not (target / "commitlog" / first.name).exists()
    assert list(verify(target)) == []
    store.close()


def test_records_that_are_half_written_are_not_in_it(tmp_path: pathlib.Path) -> None:
    store, target = opened(tmp_path / "store"), tmp_path / "backup"
    fill(store, 0, 3)
    end = store.max_physical_offset
    store.close()
    log = tmp_path / "store" / "commitlog" / f"{0:020}"
    data = bytearray(log.read_bytes())
    data[end + 40 : end + 400] = data[40:400]  # the middle of a record whose first bytes were not there yet
    log.write_bytes(data)

    result = back_up(*saved(tmp_path / "store"), target, FREE)

    copy = (target / "commitlog" / log.name).read_bytes()
    assert result.end == end
    assert copy == bytes(data[:end]) + bytes(len(data) - end)


def test_damage_in_a_backup_is_told(tmp_path: pathlib.Path) -> None:
    store, target = opened(tmp_path / "store"), tmp_path / "backup"
    fill(store, 0, 50)
    store.close()
    back_up(*saved(tmp_path / "store"), target, FREE)
    file = sorted((target / "commitlog").iterdir())[1]
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)

    name = f"commitlog/{file.name}"
    assert list(verify(target)) == [f"{name} differs from what was copied"]
    result = CliRunner().invoke(backup_command, ["--verify", str(target)])
    assert (result.exit_code, f"{name} differs" in result.output) == (1, True)
    with pytest.raises(StoreError, match="damaged"):
        seed(target, *saved(tmp_path / "slave"), FREE)


def test_a_folder_of_another_log_or_of_something_else_is_left_alone(tmp_path: pathlib.Path) -> None:
    for name, text in (("one", "a"), ("other", "b")):
        store = opened(tmp_path / name)
        store.put(record(text))
        store.commit()
        store.close()
    target = tmp_path / "backup"
    back_up(*saved(tmp_path / "one"), target, FREE)

    with pytest.raises(StoreError, match="another log"):
        back_up(*saved(tmp_path / "other"), target, FREE)
    with pytest.raises(StoreError, match="is not empty"):
        back_up(*saved(tmp_path / "one"), tmp_path / "other", FREE)
    assert list(verify(target)) == []


def test_a_backup_in_the_folder_of_the_store_is_refused(tmp_path: pathlib.Path) -> None:
    opened(tmp_path / "store").close()
    fresh, log = saved(tmp_path / "store")
    log.mkdir(exist_ok=True)
    with pytest.raises(StoreError, match="on another disk"):
        back_up(fresh, log, fresh / "backup", FREE)
    with pytest.raises(StoreError, match="on another disk"):
        back_up(fresh, log, log / ".." / "commitlog" / "x", FREE)
    assert not (fresh / "backup").exists()


def test_what_is_not_yet_written_of_a_log_file_takes_no_room(tmp_path: pathlib.Path) -> None:
    store = open_store(RealDisk(), root=str(tmp_path / "store"), mapped_file_size_commit_log=8 << 20)
    fill(store, 0, 3)
    back_up(*saved(tmp_path / "store"), tmp_path / "backup", FREE)
    store.close()
    (copied,) = (tmp_path / "backup" / "commitlog").iterdir()
    assert copied.stat().st_size == 8 << 20
    assert copied.stat().st_blocks * 512 <= 2 << 20
    assert list(verify(tmp_path / "backup")) == []


def test_a_disk_that_is_full_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = opened(tmp_path / "store")
    fill(store, 0, 1)
    store.close()
    monkeypatch.setattr(os, "fsync", full)
    done = CliRunner().invoke(backup_command, [str(tmp_path / "store"), str(tmp_path / "backup")])
    assert done.exit_code == 1
    assert f"No space left on device: '{tmp_path / 'backup'}'" in done.output


def test_a_slave_is_seeded_with_the_log_and_without_the_masters_own_settings(tmp_path: pathlib.Path) -> None:
    store, target, slave = opened(tmp_path / "store"), tmp_path / "backup", tmp_path / "slave"
    fill(store, 0, 50)
    store.save_config("replication", b'{"logId":"x","leader":"y","leads":true,"acknowledged":null}')
    (tmp_path / "store" / "config" / "broker.properties").write_text("brokerPermission=4\n")
    (tmp_path / "store" / "config" / "controller.json").write_text("{}")
    expected = log_bytes(store)
    store.close()
    back_up(*saved(tmp_path / "store"), target, FREE)

    result = CliRunner().invoke(store_commands, ["seed", str(target), str(slave)])

    assert result.exit_code == 0, result.output
    assert not (slave / "config" / "broker.properties").exists()
    assert not (target / "config" / "controller.json").exists()  # it lacks what came since
    state = json.loads((slave / "config" / "replication.json").read_bytes())
    assert state == {"logId": "x", "leader": "y", "leads": False, "acknowledged": None}
    seeded = opened(slave)
    assert log_bytes(seeded) == expected
    seeded.close()
    with pytest.raises(StoreError, match="is not empty"):
        seed(target, *saved(slave), FREE)


def test_a_rate_is_kept() -> None:
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    pace = paced(1000, lambda: now[0], sleep)
    for _ in range(50):
        pace(100)

    assert now[0] == pytest.approx(105.0)
