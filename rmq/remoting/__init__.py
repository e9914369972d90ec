"""Connections over TCP, TLS, WebSocket or memory: one interface, told apart on one port by the first byte."""

from rmq.remoting.address import Address, join_address, split_address
from rmq.remoting.connection import Connection
from rmq.remoting.endpoint import Endpoint, RefusingEndpoint
from rmq.remoting.limits import Limits
from rmq.remoting.network import Network, TcpNetwork, open_stream
from rmq.remoting.pool import Pool
from rmq.remoting.server import Acceptor, open_listeners, serve, serve_listeners
from rmq.remoting.stream import Listener, Stream
from rmq.remoting.tls import TlsConfig

__all__ = [
    "Acceptor",
    "Address",
    "Connection",
    "Endpoint",
    "Limits",
    "Listener",
    "Network",
    "Pool",
    "RefusingEndpoint",
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
