"""Our servers, a client of ours, and a process of clients in another language."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator, Iterator

import pytest

import rmq
from tests.interop.rocketmq import Java
from tests.interop.sides import Beside, beside, client_of


@pytest.fixture(scope="module", params=["go", "node"])
def language(request: pytest.FixtureRequest) -> str:
    """The language of the other clients; a module may choose one."""
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def cluster(language: str, java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    """Servers for the tests of a module, with the process of the other clients."""
    with beside(language, java, tmp_path_factory) as made:
        yield made


@pytest.fixture
async def client(cluster: Beside, tmp_path: pathlib.Path) -> AsyncIterator[rmq.Client]:
    """A client of ours."""
    async with client_of(cluster, offsets_dir=str(tmp_path)) as made:
        yield made
