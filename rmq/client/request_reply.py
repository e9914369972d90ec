"""Request and reply: a producer sends a request message, a consumer of it replies, and the reply comes back
to the producer.

The request carries an id (CORRELATION_ID), the producer's client id (REPLY_TO_CLIENT) and how long it waits
(TTL). The reply is sent to the broker that the request came through; the broker pushes it over the connection
that the producer's heartbeat made known."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Final

from attrs import define, field

from rmq.client.config import ClientConfig
from rmq.client.outgoing import Outgoing, pack
from rmq.errors import MessageIllegal
from rmq.message import (
    PROPERTY_CLUSTER,
    PROPERTY_CORRELATION_ID,
    PROPERTY_MESSAGE_TYPE,
    PROPERTY_REPLY_ARRIVE_TIME,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_TTL,
    REPLY_TOPIC_POSTFIX,
    Message,
    MessageQueue,
    StoredMessage,
)
from rmq.protocol.codes import SYS_COMPRESSED, RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import ReplyMessageRequestHeader
from rmq.protocol.properties import decode_properties
from rmq.protocol.record import decompress

log = logging.getLogger(__name__)

REPLY: Final = "reply"
"""The type of a message that is a reply."""


def request_properties(client_id: str, timeout: float) -> dict[str, str]:
    """The properties that make a message a request."""
    return {
        PROPERTY_CORRELATION_ID: str(uuid.uuid4()),
        PROPERTY_REPLY_TO_CLIENT: client_id,
        PROPERTY_TTL: str(max(int(timeout * 1000), 1)),
    }


def reply_to(
    asked: StoredMessage, body: bytes, unique_id: str, config: ClientConfig
) -> tuple[Outgoing, MessageQueue]:
    """The reply to `asked`, and where to send it. Raises MessageIllegal when it is no request."""
    words = asked.properties
    cluster, to = words.get(PROPERTY_CLUSTER), words.get(PROPERTY_REPLY_TO_CLIENT)
    if not cluster or not to or PROPERTY_CORRELATION_ID not in words:
        raise MessageIllegal(
            remark=f"message {asked.message_id} is no request: only what `request` sent can be replied to"
        )
    extra = {
        PROPERTY_MESSAGE_TYPE: REPLY,
        PROPERTY_CORRELATION_ID: words[PROPERTY_CORRELATION_ID],
        PROPERTY_REPLY_TO_CLIENT: to,
        PROPERTY_TTL: words.get(PROPERTY_TTL, "0"),
    }
    queue = MessageQueue(f"{cluster}_{REPLY_TOPIC_POSTFIX}", asked.broker_name, 0)
    outgoing = pack(
        Message(queue.topic, body),
        unique_id,
        config,
        extra=extra,
        code=RequestCode.SEND_REPLY_MESSAGE_V2,
    )
    return outgoing, queue


@define
class PendingRequests:
    """The requests of a client that wait for a reply: by the correlation id, who takes it."""

    takers: dict[str, Callable[[StoredMessage], None]] = field(factory=dict)

    def on_reply(self, request: Command, broker: str, now_ms: int, body_max: int | None = None) -> None:
        """A broker pushes a reply. Raises CorruptRecord and RemoteProtocolError when it cannot be read."""
        header = request.read(ReplyMessageRequestHeader)
        properties = decode_properties(header.properties)
        properties[PROPERTY_REPLY_ARRIVE_TIME] = str(now_ms)
        take = self.takers.get(properties.get(PROPERTY_CORRELATION_ID, ""))
        if take is None:
            log.warning("%s: a reply came that nobody waits for any more", broker)
            return
        body = request.body
        if header.sys_flag & SYS_COMPRESSED:
            body = decompress(body, header.sys_flag, body_max)
        message = StoredMessage(
            header.topic,
            header.queue_id,
            0,
            0,
            len(request.body),
            body,
            properties,
            flag=header.flag,
            sys_flag=header.sys_flag & ~SYS_COMPRESSED,
            born_timestamp=header.born_timestamp,
            born_host=header.born_host.lstrip("/"),
            store_timestamp=header.store_timestamp,
            store_host=header.store_host.lstrip("/"),
            reconsume_times=header.reconsume_times or 0,
        )
        take(message)
