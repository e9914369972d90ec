"""OffsetMovedEvent: the message that tells RocketMQ's monitoring of a consumer that asked out of range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq.message import (
    OFFSET_MOVED_EVENT,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    tags_code,
)
from rmq.protocol import json
from rmq.protocol.properties import encode_properties
from rmq.protocol.record import Record

if TYPE_CHECKING:
    from rmq.protocol.headers import PullMessageRequestHeader


def offset_moved_event(
    header: PullMessageRequestHeader, next_offset: int, broker_name: str, *, now_ms: int, host: bytes
) -> Record:
    """The record for a pull that is sent on to `next_offset`; `host` is the broker's address in records."""
    group = header.consumer_group
    event = {
        "consumerGroup": group,
        "messageQueue": {"brokerName": broker_name, "queueId": header.queue_id, "topic": header.topic},
        "offsetNew": next_offset,
        "offsetRequest": header.queue_offset,
    }
    properties = {PROPERTY_TAGS: group, PROPERTY_KEYS: group, PROPERTY_DELAY_LEVEL: "0"}
    return Record(
        OFFSET_MOVED_EVENT,
        0,
        json.dumps(event),
        encode_properties(properties),
        born_timestamp=now_ms,
        born_host=host,
        tags_code=tags_code(group),
        keys=(group,),
    )
