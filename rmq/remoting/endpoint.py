"""Endpoint: the callbacks of connections. Broker, NameServer and the client's endpoint implement it."""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol

from rmq.errors import LocalProtocolError
from rmq.protocol.codes import FLAG_RESPONSE, ResponseCode
from rmq.protocol.command import Command

if TYPE_CHECKING:
    from rmq.protocol._engine import AnswerReader, Lanes
    from rmq.remoting.connection import Connection

log = logging.getLogger(__name__)


class Endpoint(Protocol):
    """The callbacks of connections; subclasses override the callbacks that they need.

    An endpoint serves many connections, all on the same event loop. No callback may block. An exception of a
    callback ends only the connection of that call; any exception except RemoteProtocolError is a bug and is
    logged with its traceback.
    """

    asks_early: bool = False
    """True if `on_head` is called as soon as more than 64 KiB of a frame wait and its header is complete: for
    endpoints whose headers distinguish strangers from other peers."""
    lanes: Lanes | AnswerReader | None = None
    """Options of the compiled engine: with lanes, a run of plain sends is handed over as one value; a reader
    of responses is for an endpoint that sends requests."""

    def on_open(self, connection: Connection) -> None:
        """Note a peer that a server has accepted; called before its first request. Not called for dialled
        connections."""
        return

    @abstractmethod
    def handle(self, requests: list[Command], connection: Connection) -> int | None:
        """Answer the requests of a chunk, by `connection.reply` or `write`, now or later.

        Return the number of requests taken, at least 1, when other connections should have their turn before
        the rest; None: all.
        """

    def begin_round(self) -> None:
        """Begin a round: until `end_round`, which comes before any task has its turn, the chunks of several
        connections are handed over. Work that costs as much for a single chunk as for all may wait until
        `end_round`."""
        return

    def end_round(self) -> None:
        """Do the work that is left for the end of a round, after all its chunks. Never raises."""
        return

    def on_head(self, head: Command, body_bytes: int, connection: Connection) -> Command | None:
        """Decide about the body of a frame of more than `limits.ask_bytes`, of which only the header has
        come: None accepts the body, a response refuses it, so that the body is read and dropped."""
        return None

    def on_response(self, response: Command, connection: Connection) -> None:
        """Take a response that no `call` waits for: to a request sent by `notify`, or a late one."""
        log.debug("%s: late response to request %d", connection.peer_address, response.opaque)

    def on_close(self, connection: Connection) -> None:
        """The connection has ended; called once for each that ran."""
        return


class ClientOnlyEndpoint(Endpoint):
    """The endpoint of connections that serve no requests: every request is refused."""

    def handle(self, requests: list[Command], connection: Connection) -> None:
        """Answer that no request is supported."""
        for request in requests:
            if not request.is_oneway:
                connection.reply(request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))


def unsendable(response: Command, error: LocalProtocolError) -> Command:
    """The SYSTEM_ERROR that is sent in place of a response that has no frame."""
    remark = f"the answer cannot be sent: {ascii(str(error))[1:-1][:1000]}"
    return Command(
        ResponseCode.SYSTEM_ERROR,
        response.opaque,
        FLAG_RESPONSE,
        remark=remark,
        serialization=response.serialization,
    )
