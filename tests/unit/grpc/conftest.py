"""The door that a test is for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.grpc.calls import DOOR


@pytest.fixture(params=["broker", "proxy"])
def door(request: pytest.FixtureRequest) -> Iterator[str]:
    """The door that a test is for: the broker's, and the proxy's."""
    token = DOOR.set(request.param)
    yield request.param
    DOOR.reset(token)
