"""A real cluster for the command line: a name server and two masters, each a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.system.shell import SMALL, Shell, service


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A name server and the masters broker-a and broker-b of DefaultCluster, and a shell that finds them."""
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        names = stack.enter_context(service(folder, r"listens on (\S+)$", "namesrv", "--set", "listenPort=0"))
        for name in ("broker-a", "broker-b"):
            own = (f"brokerName={name}", "listenPort=0", f"storePathRootDir={folder / name}", *SMALL)
            options = [part for text in own for part in ("--set", text)]
            stack.enter_context(service(folder, r"clients use +(\S+)", "broker", "-n", names, *options))
        yield Shell(folder, names)
