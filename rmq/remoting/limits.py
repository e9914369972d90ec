"""What one connection, and one server, may use."""

from __future__ import annotations

import attrs

KIB = 1024
MIB = 1024 * KIB


@attrs.frozen(kw_only=True)
class Limits:
    """Bounds of connections. Every one ends in a logged reason, never in growth."""

    frame_bytes: int = 16 * MIB
    """The longest frame that is accepted; a longer one ends its connection before it is read."""
    receive_bytes: int = 256 * KIB
    """The most that is read, and therefore handled, at once: the unit of fairness between connections."""
    pause_bytes: int = 256 * KIB
    """Unsent bytes of responses past which a peer is not read from until it has read them."""
    outbox_bytes: int = 64 * MIB
    """Unsent bytes past which a connection is closed: its peer asks but does not read."""
    busy_bytes: int = 4 * MIB
    """Unsent bytes past which new calls wait for room before they are encoded."""
    in_flight: int = 65_535
    """Calls of one connection that wait for a response; more of them wait for room."""
    connections: int = 20_000
    """Connections of one server; one more is accepted and closed at once."""
    connections_per_address: int = 0
    """Those of one address, or of one IPv6 network of 64 bits; 0: half of `connections`."""
    idle_seconds: float = 120.0
    """A connection on which no byte moved for so long is closed (Java: channelMaxIdleTimeSeconds)."""
    frame_seconds: float = 60.0
    """A frame that has begun must be complete within this time."""
    handshake_seconds: float = 10.0
    """For a TLS handshake, and for a WebSocket upgrade, once each has begun."""
    connect_seconds: float = 3.0
    """For name lookup, connecting and handshakes of a dial together (Java: connectTimeoutMillis)."""
    linger_seconds: float = 1.0
    """How long a closing connection may take to send what is in its outbox and to say goodbye."""

    @property
    def scan_seconds(self) -> float:
        """How often owners look for idle connections: they live at most a twelfth longer than allowed."""
        return min(self.idle_seconds / 12, self.frame_seconds / 6)
