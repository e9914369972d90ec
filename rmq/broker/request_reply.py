"""Request and reply: a consumer's answer goes straight to the producer that asked.

The asker is named by the property REPLY_TO_CLIENT. Its answer is pushed over the connection on which its
producers are known; whoever answers is told success only once the asker has taken it, and an error when it
has gone. The answer is stored in the cluster's reply topic as well, unless storeReplyMessageEnable is off.
All of this is RocketMQ 4.9's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from rmq.errors import ResponseError, RmqError, for_code
from rmq.message import PROPERTY_PUSH_REPLY_TIME, PROPERTY_REPLY_TO_CLIENT
from rmq.protocol.codes import FLAG_ONEWAY, SYS_OF_SENDERS, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
)
from rmq.protocol.properties import decode_properties, encode_properties

if TYPE_CHECKING:
    from rmq.broker.client_requests import PendingRequests
    from rmq.broker.clients import Clients
    from rmq.broker.config import Settings
    from rmq.remoting.connection import Connection


Handler = Callable[[Command, "Connection", int], Command | None]
Later = Callable[[Handler, Command, "Connection"], None]

PUSH_SECONDS: Final = 10.0
"""How long an asker may take to say that it has the answer."""

log = logging.getLogger("rmq.broker")


class RequestReply:
    """Handles SEND_REPLY_MESSAGE (324, 325).

    `store(request, connection, now)` puts a message and acknowledges it later. `later(handler, request,
    connection)` runs a handler by itself, after its chunk. `address` is this broker's.
    """

    def __init__(
        self,
        settings: Settings,
        clients: Clients,
        pending: PendingRequests,
        *,
        address: str,
        store: Handler,
        later: Later,
    ) -> None:
        self._settings = settings
        self._clients = clients
        self._pending = pending
        self._address = address
        self._store = store
        self._later = later

    def handlers(self) -> dict[int, Handler]:
        """What this part answers."""
        return {
            RequestCode.SEND_REPLY_MESSAGE: self._on_reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self._on_reply,
        }

    def _on_reply(self, request: Command, connection: Connection, now_ms: int) -> Command | None:
        header = request.read(SendMessageRequestHeader)
        properties = decode_properties(header.properties)
        asker = properties.get(PROPERTY_REPLY_TO_CLIENT)
        if asker is None:
            remark = f"reply message properties[{PROPERTY_REPLY_TO_CLIENT}] is null"
            self._not_pushed(request, connection, now_ms, remark=remark)
        to = self._clients.producer_connection(asker)
        if to is None or to.is_closed:
            remark = f"push reply message fail, channel of <{asker}> not found."
            self._not_pushed(request, connection, now_ms, remark=remark)
        properties[PROPERTY_PUSH_REPLY_TIME] = str(now_ms)
        pushed = self._pushed(header, encode_properties(properties), connection, now_ms)
        command = Command.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed, request.body)

        def answered(answer: Command | RmqError) -> None:
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                self._later(self._pushed_well, request, connection)
                return
            log.warning("reply to %s at %s is not taken: %s", asker, to.peer_address, _why(answer))
            remark = f"push reply message to {asker} fail: {_why(answer)}"
            self._later(partial(self._not_pushed, remark=remark), request, connection)

        self._pending.call(to, command, PUSH_SECONDS, answered, connection)
        return None

    def _pushed_well(self, request: Command, connection: Connection, now_ms: int) -> Command | None:
        if self._settings.broker.store_reply_message_enable:
            return self._store(request, connection, now_ms)
        header = request.read(SendMessageRequestHeader)
        return request.reply(header=SendMessageResponseHeader("0", max(header.queue_id, 0), 0))

    def _not_pushed(self, request: Command, connection: Connection, now_ms: int, *, remark: str) -> NoReturn:
        """Store it all the same; then raise the ResponseError that tells that it did not arrive."""
        if self._settings.broker.store_reply_message_enable:
            silent = Command(
                request.code,
                request.opaque,
                request.flag | FLAG_ONEWAY,
                request.ext,
                request.body,
                serialization=request.serialization,
                header=request.header,
            )
            with suppress(ResponseError):
                self._store(silent, connection, now_ms)
        raise for_code(ResponseCode.SYSTEM_ERROR, remark)

    def _pushed(
        self, header: SendMessageRequestHeader, properties: str, connection: Connection, now_ms: int
    ) -> ReplyMessageRequestHeader:
        return ReplyMessageRequestHeader(
            header.producer_group,
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            header.queue_id,
            header.sys_flag & SYS_OF_SENDERS,
            header.born_timestamp,
            header.flag,
            properties,
            header.reconsume_times,
            header.unit_mode,
            born_host=connection.peer_address,
            store_host=self._address,
            store_timestamp=now_ms,
        )


def _why(answer: Command | RmqError) -> str:
    return str(answer) if isinstance(answer, RmqError) else f"code {answer.code}, {answer.remark}"
