"""What a dead letter tells of its life: where it came from, how often it was tried, and why it was given up.

The first two names are RocketMQ 5.x's. A consumer may give its reason in the header field `reason` of
CONSUMER_SEND_MSG_BACK; RocketMQ's own brokers ignore that field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq.message import PROPERTY_ORIGIN_MESSAGE_ID, PROPERTY_RETRY_TOPIC, PROPERTY_UNIQUE_KEY

DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
DLQ_RECONSUME_TIMES: Final = "DLQ_RECONSUME_TIMES"
DLQ_REASON: Final = "DLQ_REASON"
REASON: Final = "reason"
"""The header field."""

REASON_LENGTH_MAX: Final = 500

_ONE_LINE: Final = dict.fromkeys(range(32), " ")


def life_of(properties: Mapping[str, str], times: int, reason: str = "") -> dict[str, str]:
    """The properties that make a dead letter of a message that was tried `times` times.

    One that was a dead letter before keeps its first origin.
    """
    unique = properties.get(PROPERTY_UNIQUE_KEY) or properties.get(PROPERTY_ORIGIN_MESSAGE_ID)
    life = {
        DLQ_ORIGIN_TOPIC: properties.get(DLQ_ORIGIN_TOPIC) or properties.get(PROPERTY_RETRY_TOPIC),
        DLQ_ORIGIN_MESSAGE_ID: properties.get(DLQ_ORIGIN_MESSAGE_ID) or unique,
        DLQ_RECONSUME_TIMES: str(times),
        DLQ_REASON: reason.translate(_ONE_LINE)[:REASON_LENGTH_MAX],
    }
    return {name: value for name, value in life.items() if value}
