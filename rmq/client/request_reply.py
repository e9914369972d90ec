"""Request and reply: a producer asks by a message, a consumer of it answers, and the answer comes back to the
one that asked.

The question carries an id (CORRELATION_ID), the asker's client id (REPLY_TO_CLIENT) and how long it waits
(TTL). The answer is sent to the broker that the question came through; it pushes the answer over the
connection that the asker's heartbeat made known."""

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
"""The type of a message that is an answer."""


def question(client_id: str, timeout: float) -> dict[str, str]:
    """The properties that make a message a question."""
    return {
        PROPERTY_CORRELATION_ID: str(uuid.uuid4()),
        PROPERTY_REPLY_TO_CLIENT: client_id,
        PROPERTY_TTL: str(max(int(timeout * 1000), 1)),
    }


def answer(
    asked: StoredMessage, body: bytes, unique_id: str, config: ClientConfig
) -> tuple[Outgoing, MessageQueue]:
    """The answer to `asked`, and where to send it. Raises MessageIllegal when it is no question."""
    words = asked.properties
    cluster, to = words.get(PROPERTY_CLUSTER), words.get(PROPERTY_REPLY_TO_CLIENT)
    if not cluster or not to or PROPERTY_CORRELATION_ID not in words:
        raise MessageIllegal(
            remark=f"message {asked.message_id} is no question: only what `request` sent can be replied to"
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
class Replies:
    """The questions of a client that wait for an answer: by the id, who takes it."""

    waiting: dict[str, Callable[[StoredMessage], None]] = field(factory=dict)

    def pushed(self, request: Command, broker: str, now_ms: int, body_max: int | None = None) -> None:
        """A broker brings an answer. Raises CorruptRecord and RemoteProtocolError when it cannot be read."""
        header = request.read(ReplyMessageRequestHeader)
        properties = decode_properties(header.properties)
        properties[PROPERTY_REPLY_ARRIVE_TIME] = str(now_ms)
        take = self.waiting.get(properties.get(PROPERTY_CORRELATION_ID, ""))
        if take is None:
            log.warning("%s: an answer came that nobody waits for any more", broker)
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
