"""Addresses: ``host:port`` with an optional scheme, IPv6 hosts in brackets."""

from __future__ import annotations

import ipaddress

import attrs

from rmq.errors import ConfigError

SCHEMES = ("tcp", "tls", "ws", "wss")
_EXPECTED = "host:port or [IPv6]:port, with or without tcp://, tls://, ws:// or wss:// in front"


@attrs.frozen
class Address:
    """Host, port and protocol of a peer.

    `scheme` is ``tcp``, ``tls``, ``ws`` or ``wss``; `host` has no brackets; `port` 0 means "any free port" to
    a listener.
    """

    host: str
    port: int
    scheme: str = "tcp"

    @property
    def is_tls(self) -> bool:
        """True if the scheme asks for TLS."""
        return self.scheme in ("tls", "wss")

    @property
    def is_websocket(self) -> bool:
        """True if the scheme asks for WebSocket."""
        return self.scheme in ("ws", "wss")

    @property
    def is_literal(self) -> bool:
        """True if the host is an IP address, so that no name has to be looked up."""
        return is_literal(self.host)

    @property
    def plain(self) -> str:
        """The address without its scheme."""
        return join_address(self.host, self.port)

    def __str__(self) -> str:
        return self.plain if self.scheme == "tcp" else f"{self.scheme}://{self.plain}"


def split_address(text: str) -> Address:
    """Read an address. Raises ConfigError for an invalid address. Does not look names up."""
    scheme, mark, rest = text.strip().rpartition("://")
    scheme = scheme.lower() if mark else "tcp"
    host, colon, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        valid = is_literal(host) and ":" in host
    else:
        valid = bool(host) and ":" not in host and "/" not in host
    if not (
        valid and colon and scheme in SCHEMES and port.isascii() and port.isdigit() and int(port) < 65536
    ):
        raise ConfigError("address", text, _EXPECTED)
    return Address(host, int(port), scheme)


def with_scheme(text: str, scheme: str) -> str:
    """The address with `scheme` in front, unless it has a scheme."""
    return text if "://" in text else f"{scheme}://{text}"


def join_address(host: str, port: int) -> str:
    """The text form of a host and a port; IPv6 hosts get brackets, scope ids stay."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_before(address: str) -> str:
    """The same host at the port before: the port for requests of a RocketMQ broker that hands out its log at
    `address`."""
    at = split_address(address)
    return join_address(at.host, at.port - 1)


def is_literal(host: str) -> bool:
    """True if `host` is an IP address, so that no name has to be looked up."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
