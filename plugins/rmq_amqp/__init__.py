"""AMQP 1.0 in the broker, as a plug-in: `plugins = amqp`; needs the extra `amqp`.

Programs of Jakarta Messaging (JMS) use a broker of AMQP 1.0 by the Qpid JMS client; so do clients of other
languages. They connect to a port of its own, `amqpPort` (5672 unless set; 0 for none), or to the port for
clients, where the broker recognizes AMQP by its first bytes. Both take plain connections, TLS and WebSocket.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import anyio

from rmq.errors import ConfigError
from rmq.plugin import Door, DoorHost, DoorStream, Host, Plugin

if TYPE_CHECKING:
    from rmq_amqp.connection import Connection

__all__ = ["AmqpPlugin"]

PORT_KEY: Final = "amqpPort"
PORT: Final = 5672
EXTERNAL_KEY: Final = "amqpExternal"
EXPIRED_KEY: Final = "amqpExpired"
EXPIRED: Final = ("drop", "dead-letter")
CONNECTIONS: Final = 10_000
IDLE_SECONDS: Final = 600.0


class AmqpPlugin(Plugin):
    """The door for clients of AMQP 1.0."""

    def __init__(self, config: Mapping[str, str], host: Host) -> None:
        super().__init__(config, host)
        # The engine is loaded on use: values, messages and logins work without the extra.
        from rmq_amqp.connection import Connection
        from rmq_amqp.shared import Shared

        self._serving = Connection
        self._port = _port(config.get(PORT_KEY, str(PORT)))
        expired = config.get(EXPIRED_KEY, EXPIRED[0]).strip()
        if expired not in EXPIRED:
            raise ConfigError(EXPIRED_KEY, expired, " or ".join(EXPIRED))
        external = config.get(EXTERNAL_KEY, "false").strip().lower()
        if external not in ("true", "false"):
            raise ConfigError(EXTERNAL_KEY, external, "true or false")
        self._shared = Shared(expired_are_dead=expired == EXPIRED[1], has_external=external == "true")

    def doors(self) -> list[Door]:
        """The port for AMQP, and its first bytes on the port for clients."""
        return [
            Door(
                name="amqp",
                port=self._port or None,
                first_bytes=b"AMQP",
                serve=self._serve,
                goodbye=_goodbye,
                connections=CONNECTIONS,
                websocket=True,
                subprotocols=("amqp",),
                idle_seconds=IDLE_SECONDS,
            )
        ]

    async def _serve(self, stream: DoorStream, host: DoorHost) -> None:
        """Serve one connection until its peer ends it."""
        number = self._shared.next_number()
        connection = self._serving(stream, host, self._shared, number, anyio.current_time)
        stream.state["amqp"] = connection
        await connection.serve()


def _goodbye(stream: DoorStream) -> bytes:
    connection: Connection = stream.state["amqp"]
    return connection.goodbye()


def _port(text: str) -> int:
    if not text.strip().isdecimal() or int(text) > 65_535:
        raise ConfigError(PORT_KEY, text, "a port from 0 to 65535")
    return int(text)
