"""What a dead letter tells of its life: where it came from, how often it was tried, and why it was given up.

The first two names are RocketMQ 5.x's. A consumer may give its reason in the header field `reason` of
CONSUMER_SEND_MSG_BACK; RocketMQ's own brokers ignore that field.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Final

from rmq.message import PROPERTY_ORIGIN_MESSAGE_ID, PROPERTY_RETRY_TOPIC, PROPERTY_UNIQUE_KEY

DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
DLQ_RECONSUME_TIMES: Final = "DLQ_RECONSUME_TIMES"
DLQ_REASON: Final = "DLQ_REASON"
DLQ_REDRIVE_KEY: Final = "DLQ_REDRIVE_KEY"
"""In a message that was sent from the dead letters to a topic again: which letter it was."""
REASON: Final = "reason"
"""The header field."""

REASON_LENGTH_MAX: Final = 500

_ONE_LINE: Final = dict.fromkeys(range(32), " ")


def reason_of(error: BaseException | None) -> str:
    """What a consumer says of the error that a message ended with; empty without one."""
    if error is None:
        return ""
    text = "".join(traceback.format_exception_only(error)).strip()  # also of errors that cannot be printed
    return _shortened(text.encode("utf-8", "backslashreplace").decode())


def _shortened(reason: str) -> str:
    return reason.translate(_ONE_LINE)[:REASON_LENGTH_MAX]


def life_of(properties: Mapping[str, str], times: int, reason: str = "") -> dict[str, str]:
    """The properties that make a dead letter of a message that was tried `times` times.

    One that was a dead letter before keeps its first origin.
    """
    unique = properties.get(PROPERTY_UNIQUE_KEY) or properties.get(PROPERTY_ORIGIN_MESSAGE_ID)
    life = {
        DLQ_ORIGIN_TOPIC: properties.get(DLQ_ORIGIN_TOPIC) or properties.get(PROPERTY_RETRY_TOPIC),
        DLQ_ORIGIN_MESSAGE_ID: properties.get(DLQ_ORIGIN_MESSAGE_ID) or unique,
        DLQ_RECONSUME_TIMES: str(times),
        DLQ_REASON: _shortened(reason),
    }
    return {name: value for name, value in life.items() if value}
