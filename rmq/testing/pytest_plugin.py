"""The plug-in of pytest: fixtures `rmq_cluster` and `rmq_client` for asynchronous tests.

They open and close in the loop of the test, under any runner: pytest-asyncio (strict or auto, any loop
scope), anyio (both backends) or pytest-trio. Time is virtual from the cluster's start to its end.

    @pytest.mark.rmq_cluster("broker-a", "broker-b", topics={"Orders": 4})
    async def test_orders(rmq_cluster, rmq_client): ...

The mark takes the arguments of `Cluster`; the fixture `rmq_topics`, which a conftest.py may define, gives
topics to tests without a mark. Only pytest is loaded before a test requests a cluster.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from rmq.client.client import Client
    from rmq.testing.cluster import Cluster

MARK: Final = "rmq_cluster"
BROKER: Final = "broker-a"
"""The default broker of a cluster."""
LOOP_SCOPES: Final = ("function", "class", "module", "package", "session")
"""The scopes of loops that tests of pytest-asyncio may share; its fixtures must use the same."""


def pytest_configure(config: pytest.Config) -> None:
    """Make fixtures for each installed plug-in: each marks asynchronous fixtures in its own way."""
    config.addinivalue_line(
        "markers", f"{MARK}(*brokers, topics={{}}, ...): what rmq_cluster is, as rmq.testing.Cluster takes it"
    )
    made = ModuleType("rmq_fixtures")
    for name in ("rmq_cluster", "rmq_client"):
        setattr(made, f"_{name}_anyio", pytest.fixture(_function(name, "anyio")))
    with suppress(ImportError):
        if config.pluginmanager.has_plugin("asyncio"):
            import pytest_asyncio

            for scope in LOOP_SCOPES:
                for name in ("rmq_cluster", "rmq_client"):
                    function = _function(name, f"asyncio_{scope}")
                    fixture = pytest_asyncio.fixture(function, loop_scope=scope)
                    setattr(made, f"_{name}_asyncio_{scope}", fixture)
    with suppress(ImportError):
        if config.pluginmanager.has_plugin("trio"):
            import pytest_trio

            for name in ("rmq_cluster", "rmq_client"):
                setattr(made, f"_{name}_trio", pytest_trio.trio_fixture(_function(name, "trio")))
    config.pluginmanager.register(made, "rmq_fixtures")


@pytest.fixture
def rmq_topics() -> Mapping[str, int]:
    """Topics of the cluster with their queues on each broker, where the test's mark names none."""
    return {}


@pytest.fixture
def rmq_cluster(request: pytest.FixtureRequest) -> Cluster:
    """A cluster in memory and in virtual time, for one test: see `rmq.testing.Cluster`."""
    made: Cluster = _of_the_runner(request, "rmq_cluster")
    return made


@pytest.fixture
def rmq_client(request: pytest.FixtureRequest) -> Client:
    """A client of `rmq_cluster`, open."""
    made: Client = _of_the_runner(request, "rmq_client")
    return made


def _of_the_runner(request: pytest.FixtureRequest, name: str) -> Any:
    return request.getfixturevalue(f"_{name}_{_runner(request)}")


def _runner(request: pytest.FixtureRequest) -> str:
    """The runner of the test, and the scope of its loop."""
    node, has = request.node, request.config.pluginmanager.has_plugin
    if node.get_closest_marker("trio") is not None and has("trio"):
        return "trio"
    if "anyio_backend" in request.fixturenames:
        return "anyio"
    mark = node.get_closest_marker("asyncio")
    if mark is None or not has("asyncio"):
        pytest.fail(
            "the fixtures of rmq are for asynchronous tests that pytest-asyncio, anyio or pytest-trio "
            "runs: this test is not asynchronous, or not marked so",
            pytrace=False,
        )
    scope = mark.kwargs.get("loop_scope") or mark.kwargs.get("scope")
    return f"asyncio_{scope or request.config.getini('asyncio_default_test_loop_scope')}"


def _function(name: str, runner: str) -> Any:
    """The function of one of the fixtures."""
    if name == "rmq_cluster":

        async def cluster(
            request: pytest.FixtureRequest, rmq_topics: Mapping[str, int]
        ) -> AsyncIterator[Cluster]:
            async with _cluster(request, rmq_topics) as made:
                yield made

        return cluster

    async def client(**given: Cluster) -> AsyncIterator[Client]:
        (cluster,) = given.values()
        async with cluster.connect() as made:
            yield made

    # pytest goes by the names of arguments: this one is the cluster of the same runner.
    known = inspect.Parameter(f"_rmq_cluster_{runner}", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    client.__signature__ = inspect.Signature([known])  # type: ignore[attr-defined]
    return client


def _cluster(request: pytest.FixtureRequest, topics: Mapping[str, int]) -> Cluster:
    from rmq.testing.cluster import Cluster

    mark = request.node.get_closest_marker(MARK)
    brokers, settings = (mark.args, mark.kwargs) if mark is not None else ((), {})
    return Cluster(*(brokers or (BROKER,)), **{"topics": topics, **settings})
