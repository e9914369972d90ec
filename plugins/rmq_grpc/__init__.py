"""gRPC in the broker, as a plug-in: `plugins = grpc`; needs the extra `grpc`.

RocketMQ's official clients of the 5.x line speak gRPC (the service `apache.rocketmq.v2.MessagingService`) to
a proxy that stands beside or in front of the brokers. With this plug-in the broker answers them itself: on a
port of its own, `grpcPort` (8081 unless set; 0 for none), and on the port for clients, where the broker
recognizes gRPC by its first bytes. Both take plain connections and TLS, by `tlsMode`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

import anyio
import sniffio
import trio

from rmq.errors import ConfigError, ResponseError
from rmq.plugin import Door, DoorHost, DoorStream, Host, Plugin
from rmq_grpc.calls import Calls
from rmq_grpc.service import Session

__all__ = ["GrpcPlugin"]

log = logging.getLogger("rmq.grpc")

PORT_KEY: Final = "grpcPort"
PORT: Final = 8081
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CONNECTIONS: Final = 10_000
IDLE_SECONDS: Final = 600.0
SCAN_SECONDS: Final = 10.0
REQUEST_BYTES: Final = 8 << 20
"""The longest request: one message may have 4 MiB."""


class GrpcPlugin(Plugin):
    """The door for RocketMQ's 5.x clients."""

    def __init__(self, config: Mapping[str, str], host: Host) -> None:
        super().__init__(config, host)
        self._port = _port(config.get(PORT_KEY, str(PORT)))

    def doors(self) -> list[Door]:
        """The port for gRPC, and its first bytes on the port for clients."""
        return [
            Door(
                name="grpc",
                port=self._port or None,
                first_bytes=PREFACE[:14],
                serve=self._serve,
                goodbye=lambda stream: stream.state["grpc"].goodbye(),
                connections=CONNECTIONS,
                idle_seconds=IDLE_SECONDS,
            )
        ]

    async def _serve(self, stream: DoorStream, host: DoorHost) -> None:
        """Serve one connection until its peer ends it.

        A slave ends it before the first frame: libraries of gRPC try the next of several addresses only when
        a connection fails before the server's first frame.
        """
        leader = host.leader()
        if leader is not None:
            where = f"its master is {leader}" if leader else "no master of its set is known"
            log.debug("closing %s: this broker is a slave, %s", stream.peer_address, where)
            return
        clock = trio.current_time if sniffio.current_async_library() == "trio" else anyio.current_time
        session = Session(host, stream, clock)
        calls = Calls(stream, session, clock=clock, most_bytes=REQUEST_BYTES, soon=host.soon)
        stream.state["grpc"] = calls
        host.defer(SCAN_SECONDS, partial(self._scan, calls, session, host, stream))
        try:
            await stream.receive_each(lambda data: calls.feed(data, host.turn))
        finally:
            calls.closed()
            session.closed()

    def _scan(self, calls: Calls, session: Session, host: DoorHost, stream: DoorStream) -> None:
        """Look at the calls and clients of a connection, and again later, whatever happens: without it their
        leases end, and their messages come again."""
        try:
            calls.expire()
            session.renew()
        finally:
            try:
                host.defer(SCAN_SECONDS, partial(self._scan, calls, session, host, stream))
            except ResponseError as error:
                stream.close(f"the leases of its messages cannot be renewed: {error}")


def _port(text: str) -> int:
    if not text.strip().isdecimal() or int(text) > 65_535:
        raise ConfigError(PORT_KEY, text, "a port from 0 to 65535")
    return int(text)
