"""Any delivery time, and the recall of a scheduled message: what RocketMQ 5.x added to the protocol for them.

A producer names the time by a property; the answer to its send carries a handle, which RECALL_MESSAGE takes
back as long as the message has not been delivered.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from attrs import define, frozen

from rmq.errors import RemoteProtocolError

RECALL_MESSAGE: Final = 370
"""The request's code."""
ILLEGAL_OPERATION: Final = 604
"""Answer code: the handle is no handle, or its time has passed."""

PROPERTY_DELIVER_MS: Final = "TIMER_DELIVER_MS"
"""When to deliver, in ms since 1970."""
PROPERTY_DELAY_MS: Final = "TIMER_DELAY_MS"
PROPERTY_DELAY_SEC: Final = "TIMER_DELAY_SEC"
RECALL_HANDLE: Final = "recallHandle"
"""The header field of a send's answer."""


@define
class RecallMessageRequestHeader:
    """Header of RECALL_MESSAGE (370)."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


@define
class RecallMessageResponseHeader:
    """Header of the answer to RECALL_MESSAGE (370): the unique key of the message."""

    msg_id: str


@frozen
class RecallHandle:
    """What names a scheduled message: its topic, broker, delivery time (ms) and unique key."""

    topic: str
    broker_name: str
    deliver_ms: int
    unique_key: str

    def __str__(self) -> str:
        """The text that clients hold: base64 of the four, after the version."""
        words = f"v1 {self.topic} {self.broker_name} {self.deliver_ms} {self.unique_key}"
        return base64.urlsafe_b64encode(words.encode()).decode()

    @classmethod
    def parse(cls, text: str) -> RecallHandle:
        """The handle of its text. Raises RemoteProtocolError."""
        try:
            version, topic, broker_name, deliver_ms, unique_key = (
                base64.b64decode(text, altchars=b"-_", validate=True).decode().split(" ")[:5]
            )
            handle = cls(topic, broker_name, int(deliver_ms), unique_key)
        except (ValueError, binascii.Error):
            version, handle = "", None
        if version != "v1" or handle is None:
            raise RemoteProtocolError("recall handle is invalid")
        return handle
