from __future__ import annotations

import pathlib

import pytest

from tests.system.shell import Shell


@pytest.fixture
def shell(tmp_path: pathlib.Path) -> Shell:
    """A person without a cluster."""
    return Shell(tmp_path)
