"""A running system over sockets, which programs with blocking calls can use."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from anyio.from_thread import start_blocking_portal

from rmq import embedded

_NUMBERS = count()


@pytest.fixture(scope="package")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server address of a system that lives as long as the tests of this folder."""
    folder = tmp_path_factory.mktemp("embedded")
    with (
        start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(embedded.open(folder)) as made,
    ):
        yield made.namesrv_address


@pytest.fixture
def topic() -> str:
    """The name of a topic that no other test has."""
    return f"Compat-{next(_NUMBERS)}"
