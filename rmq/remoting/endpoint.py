"""Endpoint: who answers the requests that come on a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import Command

if TYPE_CHECKING:
    from rmq.remoting.connection import Connection


class Endpoint(Protocol):
    """Who answers the requests of a connection: broker, name server, client.

    It may have a method `answered(response, connection)` too: responses to requests that it sent by `notify`
    and not by `call` are handed to it, before the requests of the same chunk. And `opened(connection)`, which
    a server calls before any request of a peer. And `admits(head, body_bytes, connection)`: whether the body
    of a command whose header is here shall be taken; None, or the response that refuses it. It is asked for
    frames of more than `limits.ask_bytes`.
    """

    def handle(self, requests: list[Command], connection: Connection) -> int | None:
        """Answer the requests of one chunk, by `connection.reply` or `write`, now or later.

        Returns how many of them it took, at least one, when others shall have their turn before the rest is
        handed over; None: all.
        Must not block. An exception ends this connection and no other; one other than RemoteProtocolError is
        a bug and is logged with its traceback.
        """

    def closed(self, connection: Connection) -> None:
        """The connection has ended; called once for each that ran."""


class RefusingEndpoint:
    """The endpoint of connections on which nobody should ask us anything: every request is refused."""

    def handle(self, requests: list[Command], connection: Connection) -> None:
        for request in requests:
            if not request.is_oneway:
                connection.reply(request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))

    def closed(self, connection: Connection) -> None: ...
