"""`rmq store compare`: replicas' logs in the part that all have, of folders and of digests."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rmq.cli import command
from rmq.store.audit import compare
from rmq.store.files.disk import RealDisk

from ..stores import Clock, fill, open_store

NAMES = ("a", "b")


@pytest.fixture
def replicas(tmp_path: Path) -> Path:
    """Two folders with the same log."""
    master = open_store(RealDisk(), Clock(), root=str(tmp_path / "a"))
    fill(master, 150, tags="t")
    slave = open_store(RealDisk(), Clock(), root=str(tmp_path / "b"))
    slave.append_raw(0, master.read_raw(0, 1 << 20))
    while slave.max_physical_offset < master.max_physical_offset:
        at = slave.max_physical_offset
        slave.append_raw(at, bytes(master.read_raw(at, 1 << 20)))
    for store in (master, slave):
        store.close()
    return tmp_path


def run(*arguments: object) -> tuple[int, str]:
    said = CliRunner().invoke(command, ["store", "compare", *map(str, arguments)])
    return said.exit_code, said.output.replace("\n", " ")


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def newest(folder: Path) -> Path:
    return max((folder / "commitlog").iterdir())


def test_replicas_that_are_the_same(replicas: Path) -> None:
    status, said = run(replicas / "a", replicas / "b")
    assert status == 0
    assert "are the same from 0 to" in said


def test_the_first_difference_is_named(replicas: Path) -> None:
    path = sorted((replicas / "b" / "commitlog").iterdir())[1]
    overwrite(path, 2000, b"\xff")
    overwrite(path, 3000, b"\xff")
    status, said = run(replicas / "a", replicas / "b")
    assert status == 1
    assert f"DIFFER at {4096 + 2000}, in the record at" in said
    assert "(Orders/0/" in said


def test_a_log_that_lost_its_end_is_named(replicas: Path) -> None:
    path = newest(replicas / "b")
    data = path.read_bytes()
    path.write_bytes(data[: len(data.rstrip(b"\0")) - 300].ljust(len(data), b"\0"))
    status, said = run(replicas / "a", replicas / "b")
    assert status == 1
    assert f"{replicas / 'b'} ENDS at" in said
    assert f"bytes that {replicas / 'a'} has" in said


def test_digests_stand_for_a_folder_on_another_machine(
    replicas: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "PIECE", 1000)
    digests = replicas / "digests"
    assert run(replicas / "b", "--write-digests", digests)[0] == 0
    assert run(replicas / "a", digests)[0] == 0
    overwrite(sorted((replicas / "a" / "commitlog").iterdir())[1], 2000, b"\xff")
    for pair in ((replicas / "a", digests), (digests, replicas / "a")):
        status, said = run(*pair)
        assert status == 1
        assert "DIFFER from 6096 to 7096, in the record at" in said


def test_what_cannot_be_compared_is_said(replicas: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no digests")
    assert run(replicas / "a", tmp_path / "text")[0] == 2
    assert run(replicas / "a")[0] == 2
    big = open_store(RealDisk(), root=str(tmp_path / "big"), mapped_file_size_commit_log=8192)
    fill(big, 3)
    big.close()
    status, said = run(replicas / "a", tmp_path / "big")
    assert status == 2
    assert "not replicas of each other" in said
