"""The endpoint of one who only asks: what it answers when the other side asks it something."""

from __future__ import annotations

from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import Command
from rmq.remoting.connection import Connection


class Stranger:
    """The endpoint of connections on which nobody should ask us anything: every request is refused."""

    def handle(self, requests: list[Command], connection: Connection) -> None:
        for request in requests:
            if not request.is_oneway:
                connection.reply(request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))

    def closed(self, connection: Connection) -> None: ...
