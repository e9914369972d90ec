"""The contents of brokers' memory in the simulation when all faults are healed and clients have gone.

Nothing waits any more: no send, no transaction, no request to a client. A master has one link of each
follower. And no table of a broker, wherever it is, has more entries than a set with three topics and a
handful of clients needs: it has taken some hundred messages, so what keeps an entry for each shows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from rmq.broker.admin.metrics_export import gauges_of
from tests.sim.real_brokers.broker_traffic import Violation

if TYPE_CHECKING:
    from rmq.broker.broker import Broker
    from tests.sim.real_brokers.brokers import Set

NOTHING_WAITS: Final = (
    *("sendsWaitingForDisk", "sendsWaitingForSlave", "sendsWaitingForTopic"),
    *("openTransactions", "requestsToClients", "timerMessages"),
)
HELD_PULLS: Final = 8
ENTRIES: Final = 256
"""Of one table; so many looks at the end of its log a master keeps."""
REMEMBERED: Final = ("._done", "._done_in_order")
"""The last 20,000 transactions that have ended, so that each ends once."""
STREAMS: Final = 40
"""Connections of one machine, both ends of those to itself."""
_OURS: Final = ("rmq.broker.", "rmq.remoting.", "rmq.controller.")


def waiting(broker: Broker) -> dict[str, str]:
    """The parts of a master that wait for something."""
    gauges = gauges_of(broker)
    return {name: gauges[name] for name in NOTHING_WAITS if int(gauges[name])}


def check_memory(found: Set) -> None:
    """Check the memory of the brokers. Raises Violation."""
    for node in found.nodes:
        broker = node.broker
        assert broker is not None
        if not broker.is_slave and waiting(broker):
            raise Violation(f"{node.host}: at the end there waits {waiting(broker)}")
        gauges = gauges_of(broker)
        if int(gauges["heldPulls"]) > HELD_PULLS:
            raise Violation(f"{node.host} has {gauges['heldPulls']} held pulls")
        if int(gauges["slaves"]) != (0 if broker.is_slave else len(found.nodes) - 1):
            raise Violation(f"{node.host} has links of {gauges['slaves']} slaves")
        for path, size in sizes(broker):
            if size > ENTRIES and not path.endswith(REMEMBERED):
                raise Violation(f"{node.host}: {path} has {size} entries")
        if (streams := found.network.open_at(node.host)) > STREAMS:
            raise Violation(f"{node.host} has {streams} connections")


def sizes(broker: Broker) -> Iterator[tuple[str, int]]:
    """The sizes of all tables that a broker has, with the way to each."""
    seen: set[int] = set()
    left: list[tuple[str, Any]] = [("broker", broker)]
    while left:
        path, value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (dict, list, deque, set, frozenset)):
            yield path, len(value)
            entries = value.values() if isinstance(value, Mapping) else value
            left += [(f"{path}[]", one) for one in entries]
        elif type(value).__module__.startswith(_OURS):
            left += [(f"{path}.{name}", one) for name, one in _attributes(value)]


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if name != "__weakref__" and hasattr(value, name):
                yield name, getattr(value, name)
