"""rmq.files: what is replaced is never half there, and never readable by more than before."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rmq.files import replace_file, settings_saver


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_replaced_file_keeps_its_permissions_and_a_link_stays_one(tmp_path: Path) -> None:
    secret, link = tmp_path / "real" / "broker.conf", tmp_path / "broker.conf"
    secret.parent.mkdir()
    secret.write_text("brokerName=a\n")
    secret.chmod(0o600)
    link.symlink_to(secret)
    save = settings_saver(str(link))
    assert save is not None
    save({"brokerName": "b"})
    assert link.is_symlink()
    assert (secret.read_text(), mode_of(secret)) == ("brokerName=b\n", 0o600)


def test_the_permissions_that_are_asked_for_hold_from_the_first_byte_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "new" / "key", []
    path.parent.mkdir()
    (path.parent / "key.new").write_text("of a crash")  # and readable by all
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append(os.fstat(fd).st_mode & 0o777), sync(fd))[1])
    replace_file(path, b"secret", mode=0o600)
    assert (seen[0], mode_of(path), path.read_bytes()) == (0o600, 0o600, b"secret")


def test_what_fails_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "topics.json"
    replace_file(path, b"old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["topics.json"]
