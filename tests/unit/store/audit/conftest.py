"""A store that RocketMQ wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder(golden: Path, tmp_path: Path) -> Path:
    """A copy of the store that RocketMQ wrote, which a test may change."""
    root = tmp_path / "store"
    shutil.copytree(golden / "store", root)
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return root
