"""ProxyPeer: the `rmq.doors.DoorHost` of a proxy's peer, which has accounts and a gateway, and no messages of
its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rmq.errors import for_code
from rmq.protocol.codes import ResponseCode
from rmq.proxy.gateway import ClusterGateway
from rmq.server.door_host import ServerDoorPeer, ServerOfDoors

if TYPE_CHECKING:
    from rmq.plugin import Peer
    from rmq.proxy.cluster import ProxiedCluster
    from rmq.remoting.serving.doors import DoorConnection
    from rmq.shares import Holders


class ProxyPeer(ServerDoorPeer):
    """A connection, or with `first` a further client of the connection."""

    def __init__(
        self,
        cluster: ProxiedCluster,
        server: ServerOfDoors,
        door: str,
        stream: DoorConnection,
        first: ProxyPeer | None = None,
    ) -> None:
        super().__init__(server, door, stream)
        if first is not None:
            self.state = dict(stream.state)
        self._cluster = cluster
        self._door = door
        self._connection = stream
        self._first = first
        self._others: dict[ProxyPeer, Holders] = {}
        self._is_ended = False
        self._gateway = ClusterGateway(cluster, self)

    @property
    def is_closed(self) -> bool:
        """True if the client has ended."""
        return self._is_ended or self._connection.is_closed

    @property
    def holders(self) -> Holders:
        """The holders of the client's shares."""
        return self._server.holders_of(self)

    @property
    def peer(self) -> Peer:
        """The peer, for its account."""
        return self

    def leader(self) -> None:
        """None: a proxy takes messages for all masters. See `rmq.doors.DoorHost.leader`."""

    def gateway(self) -> ClusterGateway:
        """Same as `rmq.gateway.GatewayHost.gateway`."""
        return self._gateway

    def another_client(self) -> Self:
        """Same as `rmq.doors.DoorHost.another_client`."""
        first = self._first or self
        holders, shares = first.holders, self._cluster.clients
        if full := shares.full(holders):
            remark = f"of the clients that share connections (connectionBufferBytes) {full}"
            raise for_code(ResponseCode.SYSTEM_BUSY, remark)
        shares.add(holders)
        other = type(self)(self._cluster, self._server, self._door, self._connection, first)
        first._others[other] = holders
        return other

    def end_client(self) -> None:
        """Same as `rmq.doors.DoorHost.end_client`."""
        if self._first is not None and not self._is_ended:
            self._cluster.clients.give(self._first._others.pop(self))
            self.closed()

    def closed(self) -> None:
        """Forget the state of a connection or a client on it that has ended."""
        for other in list(self._others):
            other.end_client()
        self._is_ended = True
        super().closed()
        self._gateway.end()
