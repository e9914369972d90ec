"""Tools for tests of programs that use rmq: a cluster in memory, virtual time, messages for handlers.

    async with testing.Cluster("broker-a", topics={"Orders": 4}) as cluster, cluster.connect() as client:
        ...
        await cluster.advance(7200)
        assert cluster.sent("Orders")

    await handle(testing.message(b"paid 42", tags="paid"))

For pytest, `pytest_plugin` has the fixtures `rmq_cluster` and `rmq_client`. rmq's own tests use the same
cluster.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq.testing.clock import virtual_time as virtual_time
    from rmq.testing.cluster import Cluster as Cluster
    from rmq.testing.messages import message as message
    from rmq.testing.network import Link as Link
    from rmq.testing.network import MemoryHost as MemoryHost
    from rmq.testing.network import MemoryListener as MemoryListener
    from rmq.testing.network import MemoryNetwork as MemoryNetwork
    from rmq.testing.network import MemoryStream as MemoryStream

_HOMES = {
    "Cluster": "cluster",
    "Link": "network",
    "MemoryHost": "network",
    "MemoryListener": "network",
    "MemoryNetwork": "network",
    "MemoryStream": "network",
    "message": "messages",
    "virtual_time": "clock",
}
"""Modules that are loaded on first use: the pytest plug-in is loaded wherever rmq is installed."""

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rmq.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"rmq.testing.{_HOMES[name]}"), name)
    return value
