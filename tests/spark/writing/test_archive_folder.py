"""The folder of an archive, killed at each step: a batch is there whole after the next run, never twice."""

from __future__ import annotations

import os
import pathlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from rmq.errors import ConfigError
from rmq.spark.pipelines import archive_folder as folder_module
from rmq.spark.pipelines.archive import crowds
from rmq.spark.pipelines.archive_folder import ArchiveFolder, ArchiveInUse

PLACE = pathlib.Path("date=2026-11-21", "topic=Orders")
PATCHED = ("os.rename", "os.link", "os.replace", "shutil.rmtree")


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it but the test."""


def stage(folder: ArchiveFolder, *rows: str) -> list[tuple[pathlib.Path, int]]:
    """Files "written" aside; the content stands for the rows."""
    staged = folder.aside() / PLACE
    staged.mkdir(parents=True)
    for number, row in enumerate(rows):
        (staged / f"part-{number}.parquet").write_text(row)
    return [(path, 1) for path in sorted(staged.iterdir())]


def rows_of(path: pathlib.Path) -> Counter[str]:
    """The rows that a reader of the folder finds now."""
    return Counter(
        word for file in path.glob("date=*/topic=*/*.parquet") for word in file.read_text().split()
    )


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Call it with n: the n-th change of the file system from now on is the last; 0 ends that."""
    left = [0]

    def guarded(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **more: object) -> object:
            if left[0]:
                left[0] -= 1
                if not left[0]:
                    raise Killed
            return function(*arguments, **more)

        return call

    for name in PATCHED:
        module = {"os": os, "shutil": shutil}[name.split(".")[0]]
        monkeypatch.setattr(module, name.split(".")[1], guarded(getattr(module, name.split(".")[1])))
    monkeypatch.setattr(folder_module, "exchange", guarded(folder_module.exchange))

    def arm(number: int) -> None:
        left[0] = number

    yield arm
    left[0] = 0


@pytest.mark.parametrize("step", range(1, 8))
def test_a_batch_is_all_there_or_comes_again(
    tmp_path: pathlib.Path, killed_at: Callable[[int], None], step: int
) -> None:
    with ArchiveFolder(tmp_path) as folder:
        folder.publish("q-0", stage(folder, "a", "b"))
        files = stage(folder, "c", "d", "e")
        killed_at(step)
        with suppress(Killed):
            folder.publish("q-1", files)
        killed_at(0)
        assert max(rows_of(tmp_path).values()) == 1
    with ArchiveFolder(tmp_path) as folder:
        if not folder.has("q-1"):  # as the query does, when Spark brings the batch again
            assert rows_of(tmp_path) == Counter("ab")
            folder.publish("q-1", stage(folder, "c", "d", "e"))
        assert rows_of(tmp_path) == Counter("abcde")
        assert not (folder.own / "staging").exists() or not list((folder.own / "staging").rglob("*.parquet"))


def test_a_batch_that_was_merged_before_its_end_was_noted_is_not_added_again(tmp_path: pathlib.Path) -> None:
    with ArchiveFolder(tmp_path) as folder:
        published = folder.publish("q-0", stage(folder, "a", "b"))
        merged = [path for path, _ in stage(folder, "a b")]
        folder.replace(tmp_path / PLACE, [tmp_path / file.place for file in published], merged)
    with ArchiveFolder(tmp_path) as folder:
        assert folder.has("q-0")
        assert rows_of(tmp_path) == Counter("ab")
        assert len(list((tmp_path / PLACE).iterdir())) == 1


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("step", range(1, 8))
def test_merged_files_replace_the_others_at_one_stroke(
    tmp_path: pathlib.Path,
    killed_at: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    atomic: bool,
) -> None:
    if not atomic:
        monkeypatch.setattr(folder_module, "exchange", lambda one, other: False)
    with ArchiveFolder(tmp_path) as folder:
        published = folder.publish("q-0", stage(folder, "a", "b", "c"))
        old = [tmp_path / file.place for file in published[:2]]
        merged = [path.rename(path.with_name("merged.parquet")) for path, _ in stage(folder, "a b")]
        killed_at(step)
        with suppress(Killed):
            folder.replace(tmp_path / PLACE, old, merged)
        killed_at(0)
        assert rows_of(tmp_path) == Counter("abc") or (not atomic and not rows_of(tmp_path))
    with ArchiveFolder(tmp_path):
        assert rows_of(tmp_path) == Counter("abc")
        assert not (tmp_path / "_rmq" / "replaced").exists()


def test_one_process_at_a_time(tmp_path: pathlib.Path) -> None:
    with ArchiveFolder(tmp_path), pytest.raises(ArchiveInUse, match="in use"), ArchiveFolder(tmp_path):
        pass
    with ArchiveFolder(tmp_path):
        pass


def test_a_folder_with_other_things_is_left_alone(tmp_path: pathlib.Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="an empty or new folder"), ArchiveFolder(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_only_files_of_about_one_size_are_merged_while_an_archive_runs() -> None:
    sizes = {f"small{n}": 1000 + n for n in range(5)} | {"medium": 90_000, "big": 3_000_000}
    paths = {pathlib.Path(name): size for name, size in sizes.items()}
    small = [pathlib.Path(f"small{n}") for n in range(5)]
    assert crowds(paths, 5, 2_000_000, tiers=True) == [small]
    assert crowds(paths, 6, 2_000_000, tiers=True) == []
    assert crowds(paths, 2, 2_000_000, tiers=False) == [[pathlib.Path("medium"), *small]]
