"""Connections over TCP, TLS, WebSocket or memory: a single interface, and a single port, by the first
byte."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rmq.remoting.address import Address, join_address, split_address
from rmq.remoting.connection import Connection
from rmq.remoting.endpoint import ClientOnlyEndpoint, Endpoint
from rmq.remoting.limits import Limits
from rmq.remoting.network import Network, TcpNetwork, open_stream
from rmq.remoting.pool import Pool
from rmq.remoting.transports.stream import Listener, Stream
from rmq.remoting.transports.tls import TlsConfig

if TYPE_CHECKING:
    from rmq.remoting.serving.acceptor import Acceptor
    from rmq.remoting.serving.server import open_listeners, serve, serve_listeners

__all__ = [
    "Acceptor",
    "Address",
    "ClientOnlyEndpoint",
    "Connection",
    "Endpoint",
    "Limits",
    "Listener",
    "Network",
    "Pool",
    "Stream",
    "TcpNetwork",
    "TlsConfig",
    "join_address",
    "open_listeners",
    "open_stream",
    "serve",
    "serve_listeners",
    "split_address",
]


def __getattr__(name: str) -> Any:
    """Names for servers, which clients do not load: they need trio."""
    if name not in ("Acceptor", "open_listeners", "serve", "serve_listeners"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module("rmq.remoting.serving.server"), name)
    return value
