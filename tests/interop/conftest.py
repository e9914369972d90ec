"""Fixtures of the interop tests: the Java kit once a session, a set of processes for each test."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.interop.driver import PROGRAMS, Missing
from tests.interop.rocketmq import Java, Process, Processes

if TYPE_CHECKING:
    from tests.interop.cluster import Cluster


@pytest.fixture(scope="session")
def java(request: pytest.FixtureRequest) -> Java:
    """The Java side, fetched and compiled once; kept in pytest's cache folder between runs.

    RMQ_INTEROP_VERSION names another release, such as 5.3.3: then the same tests run with its client.
    """
    version = os.environ.get("RMQ_INTEROP_VERSION", "4.9.7")
    kit = Java(pathlib.Path(request.config.cache.mkdir(f"rocketmq-{version}")).resolve(), version)
    kit.prepare()
    return kit


@pytest.fixture(scope="session")
def java5(request: pytest.FixtureRequest) -> Java:
    """The same of RocketMQ 5.3.3."""
    kit = Java(pathlib.Path(request.config.cache.mkdir("rocketmq-5.3.3")).resolve(), "5.3.3")
    kit.prepare()
    return kit


def program(language: str, java: Java) -> list[str]:
    """Make the driver of Go or Node; if its tools are missing, skip the test with the reason."""
    try:
        return PROGRAMS[language](java.folder)
    except Missing as why:
        pytest.skip(str(why))


@pytest.fixture
def processes(java: Java, tmp_path: pathlib.Path) -> Iterator[Processes]:
    """Start processes for one test, and stop the processes that are left."""
    with Processes(java, tmp_path) as started:
        yield started


@pytest.fixture
def five(java5: Java, tmp_path: pathlib.Path) -> Iterator[Processes]:
    """The same of RocketMQ 5.3.3."""
    with Processes(java5, tmp_path) as started:
        yield started


class Servers:
    """A name server and a broker of one kind; `kind` is "rmq" or "java"."""

    def __init__(self, processes: Processes, kind: str) -> None:
        self.processes = processes
        self.kind = kind
        self.namesrv = processes.java_namesrv() if kind == "java" else processes.rmq_namesrv()

    @classmethod
    def chosen(cls, processes: Processes) -> Servers:
        """Our servers; with RMQ_INTEROP_SERVERS=java the Java ones, to prove a test right on the original."""
        return cls(processes, os.environ.get("RMQ_INTEROP_SERVERS", "rmq"))

    def broker(self, store: pathlib.Path, **settings: str) -> Process:
        """Start a broker of this kind over `store`."""
        start = self.processes.java_broker if self.kind == "java" else self.processes.rmq_broker
        return start(self.namesrv, store, **settings)


@pytest.fixture
def servers(processes: Processes) -> Servers:
    """The servers of `Servers.chosen`."""
    return Servers.chosen(processes)


@pytest.fixture
def broker(servers: Servers, tmp_path: pathlib.Path) -> Process:
    """A broker, registered with the name server of `servers`."""
    return servers.broker(tmp_path / "store")


@pytest.fixture(scope="module")
def cluster(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two masters, shared by the tests of a module; see tests/interop/cluster.py."""
    from tests.interop.cluster import Cluster

    folder = tmp_path_factory.mktemp("cluster")
    with Processes(java, folder, broker_heap="256m") as started:
        yield Cluster(started, folder, os.environ.get("RMQ_INTEROP_SERVERS", "rmq"))


@pytest.fixture(params=["java", "rmq"])
def start(request: pytest.FixtureRequest, cluster: Cluster) -> Callable[[str, str], Process]:
    """Start a consumer of a topic in a group: with the Java client, and with ours."""
    return cluster.java_consumer if request.param == "java" else cluster.rmq_consumer


StartBroker = Callable[[pathlib.Path], Process]
