"""The closed cluster, started once for each module of tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.closed.cluster import Closed, closed_cluster


@pytest.fixture(scope="session")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Closed]:
    """Four processes with profile=secure; see cluster.py."""
    with closed_cluster(tmp_path_factory.mktemp("closed")) as cluster:
        yield cluster
