"""The bench of a module, which its tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A `Bench` of the test's module, over a folder of its own; its store is closed at the end."""
    bench = request.module.Bench(tmp_path)
    yield bench
    bench.store.close()
