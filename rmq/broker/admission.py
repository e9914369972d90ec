"""Which peers a broker lets in, and what of its machine they may use, by its settings."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from rmq.remoting.acceptor import Acceptor
from rmq.remoting.limits import Limits
from rmq.remoting.websocket import WebSocketAccess

if TYPE_CHECKING:
    from rmq.broker.config import BrokerConfig

HA_SHARE: Final = 0.125
"""How much of the descriptors that connections may have links to slaves may take."""


def acceptors(config: BrokerConfig) -> dict[str, Acceptor]:
    """Who lets clients in, and who slaves."""
    return {
        "clients": Acceptor(config.max_connections, config.max_connections_per_address),
        "slaves": Acceptor(config.ha_max_connections, share=HA_SHARE),
    }


def client_limits(config: BrokerConfig) -> Limits:
    """The bounds of a client's connection."""
    return Limits(idle_seconds=config.server_channel_max_idle_time_seconds)


def web_socket_access(config: BrokerConfig) -> WebSocketAccess:
    """Which WebSocket upgrades are taken."""
    own = (config.broker_ip1, config.broker_ip2, config.bind_address, socket.gethostname())
    return WebSocketAccess(
        origins=config.web_socket_origins, hosts=config.web_socket_hosts, own=[name for name in own if name]
    )
