"""Folders of a store that are volumes of their own, or links to one: they can not be renamed or moved."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq.errors import StoreError
from rmq.store.audit.audit import check
from rmq.store.config import BrokerRole
from rmq.store.files.disk import RealDisk
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

from ..stores import ROOT, Clock, bodies, fill, open_store


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than `tmp_path`, where there is one."""
    place = next((one for one in ("/dev/shm", "/run", "/var/tmp") if _is_other(one, tmp_path)), str(tmp_path))
    with tempfile.TemporaryDirectory(dir=place) as folder:
        yield Path(folder)


def _is_other(folder: str, than: Path) -> bool:
    return os.access(folder, os.W_OK) and os.stat(folder).st_dev != than.stat().st_dev


def remove_left(store: Store) -> list[str]:
    """Remove what retention has taken out, as a service does."""
    removed = []
    while (path := store.retention.path) is not None:
        store.disk.remove(path)
        store.retention.removed(path)
        removed.append(path)
    return removed


def queues_in_files(store: Store, clock: Clock) -> None:
    clock.now_ms += 10_000
    store.dispatch()


def test_a_topic_is_deleted_whose_queues_lie_on_another_volume(tmp_path: Path, volume: Path) -> None:
    (tmp_path / "consumequeue").symlink_to(volume, target_is_directory=True)
    clock = Clock()
    store = open_store(RealDisk(), clock, root=str(tmp_path))
    fill(store, 49)
    fill(store, 5, topic="Other")
    queues_in_files(store, clock)
    store.remove_topic("Orders")
    assert not (volume / "Orders").exists()
    assert [topic for topic, _ in store.queues()] == ["Other"]
    fill(store, 3)
    assert bodies(store) == [b"message 0", b"message 1", b"message 2"]
    store.close()

    again = open_store(RealDisk(), clock, root=str(tmp_path))
    assert len(bodies(again)) == 3
    assert sorted(topic for topic, _ in again.queues()) == ["Orders", "Other"]
    assert len(remove_left(again)) == 1
    assert [path for path in volume.rglob("*") if "topic-" in path.name] == []
    assert (tmp_path / "consumequeue").is_symlink()
    again.close()


def test_queues_that_cannot_be_moved_at_all_are_removed_where_they_are() -> None:
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    fill(store, 49)
    queues_in_files(store, clock)
    disk.fail("move", "consumequeue/Orders", times=2)
    store.remove_topic("Orders")
    assert not disk.exists(f"{ROOT}/consumequeue/Orders")
    fill(store, 2)
    assert len(bodies(open_store(disk.copy(), clock))) == 2


def test_a_topic_whose_files_stay_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    fill(store, 49)
    queues_in_files(store, clock)
    disk.fail("move", "consumequeue/Orders", times=2)

    def refuse(path: str) -> None:
        raise StoreError(f"{path} is busy")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "remove", refuse)
        with pytest.raises(StoreError, match="busy"):
            store.remove_topic("Orders")
    assert len(bodies(store)) == 49
    fill(store, 1)
    assert store.max_offset("Orders", 0) == 50
    store.remove_topic("Orders")
    assert list(store.queues()) == []


@pytest.mark.parametrize("linked", ["commitlog", "consumequeue", "index", "all"])
def test_a_log_is_set_aside_in_a_store_of_several_volumes(tmp_path: Path, volume: Path, linked: str) -> None:
    names = ["commitlog", "consumequeue", "index"] if linked == "all" else [linked]
    for name in names:
        (volume / name).mkdir()
        (tmp_path / name).symlink_to(volume / name, target_is_directory=True)
    clock, master = Clock(), open_store()
    fill(master, 120)
    slave = open_store(RealDisk(), clock, root=str(tmp_path), broker_role=BrokerRole.SLAVE)
    copy(master, slave)
    queues_in_files(slave, clock)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()}
    folder = Path(slave.set_aside())
    assert folder == (tmp_path / "commitlog" if "commitlog" in names else tmp_path / "aside") / folder.name
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept
    assert all((tmp_path / name).is_symlink() for name in names)
    assert (slave.max_physical_offset, list(slave.queues())) == (0, [])
    copy(master, slave)
    assert bodies(slave) == bodies(master)
    with pytest.raises(StoreError, match="an earlier log is kept in"):
        slave.set_aside()
    slave.close()
    again = open_store(RealDisk(), clock, root=str(tmp_path))
    assert bodies(again) == bodies(master)
    again.close()


def test_a_crash_while_a_log_moves_file_by_file_leaves_all_of_it() -> None:
    master = open_store()
    fill(master, 120)
    disk = MemoryDisk()
    slave = open_store(disk, broker_role=BrokerRole.SLAVE)
    copy(master, slave)
    slave.flush()
    slave.flush_checkpoint()
    kept = {name: disk.load(f"{ROOT}/commitlog/{name}") for name in disk.list(f"{ROOT}/commitlog")}
    images: list[MemoryDisk] = []
    disk.on_change = lambda: images.append(disk.image(len(images)))
    disk.fail("move", f"{ROOT}/commitlog")
    assert slave.set_aside() == f"{ROOT}/commitlog/aside"
    assert len(images) > len(kept)
    for image in images:
        names = {path.rpartition("/")[2]: path for path in image._files if "/commitlog/" in path}
        assert {name: image.load(path) for name, path in names.items() if name in kept} == kept
        again = open_store(image, broker_role=BrokerRole.SLAVE)
        if again.max_physical_offset:
            again.truncate(again.min_physical_offset)


def copy(master: Store, slave: Store) -> None:
    position = slave.max_physical_offset
    while position < master.max_physical_offset:
        data = bytes(master.read_raw(position, 5000))
        slave.append_raw(position, data)
        position += len(data)


class _Volume(RealDisk):
    """A disk on which only root may look into `lost+found`."""

    def list(self, folder: str) -> list[str]:
        if folder.endswith("lost+found"):
            raise StoreError(f"{folder}: Permission denied")
        return super().list(folder)


def test_the_system_s_folder_of_a_volume_is_passed_over(tmp_path: Path) -> None:
    """An ext4 volume has a folder `lost+found` that belongs to root."""
    disk, root = _Volume(), str(tmp_path)
    store = open_store(disk, root=root)
    fill(store, 30)
    store.close()
    (tmp_path / "consumequeue" / "lost+found" / "7").mkdir(parents=True)
    os.makedirs(os.path.join(os.fsencode(tmp_path), b"consumequeue", b"\xff\xfe", b"0"))
    (tmp_path / "consumequeue" / ("long" * 40) / "0").mkdir(parents=True)
    again = open_store(disk, root=root)
    assert (list(again.queues()), len(bodies(again))) == ([("Orders", 0)], 30)
    again.close()
    report = check(disk, root)
    assert not report.findings, report.findings


def test_a_topic_whose_folder_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    disk = MemoryDisk()
    open_store(disk).close()
    listed = disk.list

    def refuse(folder: str) -> list[str]:
        if folder.endswith("consumequeue"):
            return ["Orders"]
        if folder.endswith("Orders"):
            raise StoreError(f"{folder}: Permission denied")
        return listed(folder)

    disk.list = refuse  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="Permission denied"):
        open_store(disk)


@pytest.mark.parametrize("is_link", [False, True])
def test_the_content_of_a_volume_is_removed_without_the_system_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_link: bool
) -> None:
    volume, folder = tmp_path / "volume", tmp_path / "volume"
    (volume / "lost+found").mkdir(parents=True)
    (volume / "Orders" / "0").mkdir(parents=True)
    (volume / "file").touch()
    if is_link:
        folder = tmp_path / "link"
        folder.symlink_to(volume, target_is_directory=True)
    monkeypatch.setattr("os.path.ismount", lambda path: str(path) == str(volume))
    RealDisk().remove(str(folder))
    assert [path.name for path in volume.iterdir()] == ["lost+found"]


# ---- files that are deleted under a running broker ----


@pytest.mark.parametrize("how", ["file", "folder", "moved away", "replaced"])
def test_a_log_that_is_deleted_while_it_is_open_takes_nothing_more(tmp_path: Path, how: str) -> None:
    root = tmp_path / "store"
    store = open_store(RealDisk(), root=str(root))
    fill(store, 60)
    assert store.flush() == store.max_physical_offset
    newest = max((root / "commitlog").iterdir())
    if how == "file":
        newest.unlink()
    elif how == "folder":
        shutil.rmtree(root)
    elif how == "moved away":
        root.rename(tmp_path / "elsewhere")
    else:
        shutil.copy(newest, tmp_path / "copy")
        (tmp_path / "copy").rename(newest)
    flushed = store.flushed_offset
    fill(store, 1)
    for again in (store.flush, store.mend, store.flush):
        with pytest.raises(StoreError, match="DELETED OR REPLACED"):
            again()
    assert store.flushed_offset == flushed
    assert "DELETED" in store.ails
    with pytest.raises(StoreError, match="DELETED"):
        fill(store, 1)
    assert len(bodies(store)) == 61, "what is in memory can be consumed"
    store.abandon()


def test_files_that_retention_removes_are_not_missed(tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(RealDisk(), clock, root=str(tmp_path), file_reserved_time=1)
    for _ in range(10):
        fill(store, 20)
        clock.now_ms += 3_600_000
        store.clean(clock.now_ms, asked=True)
        store.flush()
    assert store.min_physical_offset > 0
    store.close()
