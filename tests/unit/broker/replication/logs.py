"""Logs of masters and slaves."""

from __future__ import annotations

from typing import Any

from rmq.broker.runtime.replication_handshake import Guard
from rmq.broker.runtime.replication_loops import Follower
from rmq.remoting.loop import Wakeup
from rmq.remoting.transports.tls import TlsConfig, TlsContexts
from rmq.server.health import Health
from rmq.testing.network import MemoryNetwork

from ..rig import Rig


def follower_of(rig: Rig, pool: Any) -> Follower:
    guard = Guard(TlsContexts(TlsConfig()))
    return Follower(rig.broker, MemoryNetwork(1), pool, guard, grown=Wakeup(), health=Health())
