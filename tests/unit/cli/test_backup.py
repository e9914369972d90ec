"""A hot copy of a store that is written to, what it costs the next time, and stores that are made of it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pathlib
import shutil
import stat
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from rmq.cli.local.backup import backup_command
from rmq.cli.local.store import store as store_commands
from rmq.errors import StoreError
from rmq.operate.copies import backup
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
    assert list(verify(target)) == [f"{name} differs from the copied file"]
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


def modes(folder: pathlib.Path) -> set[tuple[bool, int]]:
    """Kind (folder or file) and mode of a folder and of all its contents."""
    return {(one.is_dir(), stat.S_IMODE(one.stat().st_mode)) for one in (folder, *folder.rglob("*"))}


def chmod(folder: pathlib.Path, of_folders: int, of_files: int) -> None:
    for one in (folder, *folder.rglob("*")):
        one.chmod(of_folders if one.is_dir() else of_files)


@pytest.mark.parametrize(
    ("given", "copied"),
    [((0o700, 0o600), (0o700, 0o600)), ((0o755, 0o644), (0o700, 0o600)), ((0o750, 0o640), (0o750, 0o640))],
)
def test_a_copy_is_open_to_no_more_users_than_the_store(
    tmp_path: pathlib.Path, given: tuple[int, int], copied: tuple[int, int]
) -> None:
    store = opened(tmp_path / "store")
    fill(store, 0, 20)
    store.save_config("replication", b'{"logId":"x","leader":"y","leads":true,"acknowledged":null}')
    store.close()
    chmod(tmp_path / "store", *given)
    before = os.umask(0)
    try:
        back_up(*saved(tmp_path / "store"), tmp_path / "backup", FREE)
        seed(tmp_path / "backup", *saved(tmp_path / "slave"), FREE)
    finally:
        os.umask(before)
    for folder in ("backup", "slave"):
        allowed = {(True, copied[0]), (False, copied[1]), (False, 0o600)}
        assert modes(tmp_path / folder) <= allowed, folder
        assert (True, copied[0]) in modes(tmp_path / folder)


def test_a_backup_of_an_earlier_version_is_closed_to_other_users(tmp_path: pathlib.Path) -> None:
    store, target = opened(tmp_path / "store"), tmp_path / "backup"
    fill(store, 0, 20)
    back_up(*saved(tmp_path / "store"), target, FREE)
    table = json.loads((target / "backup.json").read_text())
    for row in table["files"].values():
        row.pop("reach")
        assert row.pop("is_full") in (True, False)
    whole = hashlib.sha256((target / "commitlog" / f"{0:020}").read_bytes()).hexdigest()
    table["files"][f"commitlog/{0:020}"]["sha256"] = whole
    (target / "backup.json").write_text(json.dumps(table))
    chmod(target, 0o755, 0o644)
    back_up(*saved(tmp_path / "store"), target, FREE)
    store.close()
    assert list(verify(target)) == []
    assert modes(target) == {(True, 0o700), (False, 0o600)}


def test_only_what_is_there_is_read(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a log file of 1 GiB with some MB: a backup, its check, the next one and a slave made of it."""
    read = 0
    pieces = backup.data_pieces

    def counted(*where: Any) -> Iterator[tuple[int, bytes]]:
        nonlocal read
        for at, piece in pieces(*where):
            read += len(piece)
            yield at, piece

    monkeypatch.setattr(backup, "data_pieces", counted)
    store = open_store(RealDisk(), root=str(tmp_path / "store"), mapped_file_size_commit_log=1 << 30)
    fill(store, 0, 3_000)
    store.flush()
    for _ in range(2):
        back_up(*saved(tmp_path / "store"), tmp_path / "backup", FREE)
    assert list(verify(tmp_path / "backup")) == []
    seed(tmp_path / "backup", *saved(tmp_path / "slave"), FREE)
    size = store.max_physical_offset
    assert size > 1 << 20
    store.close()
    assert read < 8 * size
    assert _used(tmp_path / "slave") < 2 * size
    (tmp_path / "backup" / "commitlog" / f"{0:020}").open("r+b").truncate(1 << 29)
    assert len(list(verify(tmp_path / "backup"))) == 1


def test_what_stands_behind_the_end_of_a_copied_log_is_damage(tmp_path: pathlib.Path) -> None:
    store, target = opened(tmp_path / "store"), tmp_path / "backup"
    fill(store, 0, 3)
    back_up(*saved(tmp_path / "store"), target, FREE)
    store.close()
    (copied,) = (target / "commitlog").iterdir()
    with copied.open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"x")
    assert list(verify(target)) == [f"commitlog/{copied.name} differs from the copied file"]


def _used(folder: pathlib.Path) -> int:
    return sum(one.stat().st_blocks * 512 for one in folder.rglob("*"))


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


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "config/../../x", "commitlog/../x", "config/..", "config/a\\b", "abort"]
)
def test_a_backup_names_no_file_outside_of_itself(tmp_path: pathlib.Path, name: str) -> None:
    store, target = opened(tmp_path / "store"), tmp_path / "backup"
    fill(store, 0, 5)
    back_up(*saved(tmp_path / "store"), target, FREE)
    manifest = json.loads((target / backup.MANIFEST).read_bytes())
    manifest["files"][name] = {"size": 0, "sha256": hashlib.sha256(b"").hexdigest()}
    (target / backup.MANIFEST).write_text(json.dumps(manifest))
    other = tmp_path / "x"
    other.write_bytes(b"of somebody else")
    mode = other.stat().st_mode
    with pytest.raises(StoreError, match="none of a backup"):
        back_up(*saved(tmp_path / "store"), target, FREE)
    with pytest.raises(StoreError, match="none of a backup"):
        list(verify(target))
    with pytest.raises(StoreError, match="none of a backup"):
        seed(target, tmp_path / "slave", tmp_path / "slave" / "commitlog", FREE)
    assert (other.read_bytes(), other.stat().st_mode) == (b"of somebody else", mode)
    assert not (tmp_path / "slave").exists()
    store.close()


def test_a_full_file_whose_end_was_written_again_is_copied_again(tmp_path: pathlib.Path) -> None:
    """A replica that follows a new master cuts off the end of its log, and writes another end."""
    store, target = opened(tmp_path / "store"), tmp_path / "backup"
    fill(store, 0, 100)
    back_up(*saved(tmp_path / "store"), target, FREE)
    full = sorted((tmp_path / "store" / "commitlog").iterdir())[0]
    store.close()
    data = bytearray(full.read_bytes())
    data[-20:] = bytes(reversed(data[-20:])) if any(data[-20:]) else b"\1" * 20
    full.write_bytes(data)
    back_up(*saved(tmp_path / "store"), target, FREE)
    assert (target / "commitlog" / full.name).read_bytes() == data
    assert list(verify(target)) == []


def test_a_file_that_retention_removes_meanwhile_fails_no_backup(tmp_path: pathlib.Path) -> None:
    store, target = opened(tmp_path / "store"), tmp_path / "backup"
    fill(store, 0, 100)
    folder, log = saved(tmp_path / "store")
    back_up(folder, log, target, FREE)
    store.close()
    names = sorted(path.name for path in log.iterdir())
    (log / names[0]).unlink()
    manifest = backup.Manifest.load(target)
    assert manifest is not None
    backup._same_log(log, target, manifest, names)
    (log / names[1]).write_bytes(b"another log")
    with pytest.raises(StoreError, match="another log"):
        backup._same_log(log, target, manifest, names)
