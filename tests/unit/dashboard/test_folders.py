"""The folder of exports: private, gone at the end, and cleared away after a dashboard that was killed."""

from __future__ import annotations

import os
import pathlib
import stat
import subprocess
import sys

import pytest

pytest.importorskip("starlette")

from rmq.dashboard.folders import EMPTY_SECONDS, PREFIX, exports_folder

KILLED = """
import os, pathlib, signal, sys
from rmq.dashboard.folders import exports_folder

with exports_folder(pathlib.Path(sys.argv[1])) as folder:
    (folder / "export").write_text("private")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folder_is_private_and_goes_at_the_end(tmp_path: pathlib.Path) -> None:
    with exports_folder(tmp_path) as folder:
        (folder / "export").write_text("private")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_dashboard_goes_at_the_next_start_and_that_of_a_living_one_stays(
    tmp_path: pathlib.Path,
) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    (left,) = tmp_path.iterdir()
    assert done.returncode == -9
    assert (left / "export").exists()

    with exports_folder(tmp_path) as living:
        assert not left.exists()
        with exports_folder(tmp_path):
            assert living.exists()


def test_what_is_not_a_leftover_of_ours_stays(tmp_path: pathlib.Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "lock").touch()
    link = tmp_path / f"{PREFIX}link"
    link.symlink_to(kept)
    shared = tmp_path / f"{PREFIX}shared"
    shared.mkdir()
    shared.chmod(0o755)
    (shared / "lock").touch()
    begun = tmp_path / f"{PREFIX}begun"
    begun.mkdir(mode=0o700)
    old = tmp_path / f"{PREFIX}old"
    old.mkdir(mode=0o700)
    os.utime(old, (0, 0))
    unknown = tmp_path / f"{PREFIX}unknown"
    unknown.mkdir(mode=0o700)
    (unknown / "something").touch()
    os.utime(unknown, (0, 0))

    with exports_folder(tmp_path):
        assert (kept / "lock").exists()
        assert link.is_symlink()
        assert shared.exists()
        assert begun.exists(), f"younger than {EMPTY_SECONDS} s: its dashboard may be starting"
        assert unknown.exists()
        assert not old.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder to another user")
def test_the_folder_of_another_user_stays(tmp_path: pathlib.Path) -> None:
    other = tmp_path / f"{PREFIX}other"
    other.mkdir(mode=0o700)
    (other / "lock").touch()
    os.chown(other, 12345, 12345)

    with exports_folder(tmp_path):
        assert other.exists()
