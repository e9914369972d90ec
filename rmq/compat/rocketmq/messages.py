"""Message, for sends, and ReceivedMessage, for callbacks."""

from __future__ import annotations

from enum import Enum
from typing import Final

from rmq import message as client
from rmq.compat.rocketmq.exceptions import RocketMQException
from rmq.compat.rocketmq.values import Text, number, text

_BY_SETTER: Final = {
    client.PROPERTY_KEYS: "set_keys",
    client.PROPERTY_TAGS: "set_tags",
    client.PROPERTY_DELAY_LEVEL: "set_delay_time_level",
}
MOST_LEVELS: Final = 1000
"""Levels of delay that a broker may have; the client's `max_delay_level` refuses levels over 18."""


class Message:
    """A message to send. It may be sent again, also by another producer; each send gives it an id."""

    def __init__(self, topic: Text) -> None:
        self._topic = text("topic", topic)
        self._keys = ""
        self._tags = ""
        self._body = b""
        self._properties: dict[str, str] = {}
        self._delay_level = 0

    def set_keys(self, keys: Text) -> None:
        """Set the keys by which the message can be found, separated by blanks."""
        self._keys = text("keys", keys)

    def set_tags(self, tags: Text) -> None:
        """Set the tag by which consumers can filter."""
        self._tags = text("tags", tags)

    def set_body(self, body: Text) -> None:
        """Set the body; text is encoded in UTF-8. All bytes are sent, also behind a zero byte."""
        if not isinstance(body, (str, bytes)):
            raise TypeError(f"body = {body!r:.100}: expected bytes or text, not {type(body).__name__}")
        self._body = body.encode("utf-8") if isinstance(body, str) else body

    def set_property(self, key: Text | Enum, value: Text) -> None:
        """Set a property. Raises RocketMQException for a name that RocketMQ keeps for itself."""
        name = text("key", key.value if isinstance(key, Enum) else key)
        if name in _BY_SETTER:
            raise RocketMQException(f"set_property: {name!r} is set by {_BY_SETTER[name]}")
        if name in client.RESERVED_PROPERTIES:
            raise RocketMQException(f"set_property: {name!r} is a property of RocketMQ's own: choose another")
        self._properties[name] = text(name, value)

    def set_delay_time_level(self, delay_time_level: int) -> None:
        """Delay the delivery by one of the broker's delays: 1 is 1 s, 18 is 2 h; 0 is no delay."""
        self._delay_level = number("delay_time_level", delay_time_level, 0, MOST_LEVELS)

    def packed(self) -> client.Message:
        """The message as the client's `Message`, for a send. Raises InvalidMessage."""
        return client.Message(
            self._topic,
            self._body,
            tags=self._tags or None,
            keys=self._keys,
            properties=dict(self._properties),
            delay_level=self._delay_level,
        )


def check_message(message: Message) -> Message:
    """Return `message`. Raises TypeError for any other type."""
    if not isinstance(message, Message):
        raise TypeError(f"message = {message!r:.100}: expected a Message, not {type(message).__name__}")
    return message


class ReceivedMessage:
    """A message for a callback. Body, tags, keys and properties are bytes, as in the old client. The program
    may keep it after the callback has returned."""

    def __init__(self, stored: client.StoredMessage) -> None:
        self._stored = stored

    @property
    def topic(self) -> str:
        """The topic of the message."""
        return self._stored.topic

    @property
    def tags(self) -> bytes:
        """Its tag; empty without one."""
        return self.get_property(client.PROPERTY_TAGS)

    @property
    def keys(self) -> bytes:
        """Its keys, separated by blanks; empty without any."""
        return self.get_property(client.PROPERTY_KEYS)

    @property
    def body(self) -> bytes:
        """The body."""
        return self._stored.body

    @property
    def id(self) -> str:
        """The id in `msg_id` of the send's result."""
        return self._stored.message_id

    @property
    def delay_time_level(self) -> int:
        """The delay level of the send; 0 without one."""
        return self._stored.delay_level

    @property
    def queue_id(self) -> int:
        """The number of its queue."""
        return self._stored.queue_id

    @property
    def reconsume_times(self) -> int:
        """The number of earlier, failed deliveries."""
        return self._stored.reconsume_times

    @property
    def store_size(self) -> int:
        """Bytes of its record in the commit log."""
        return self._stored.size

    @property
    def born_timestamp(self) -> int:
        """The time of its send, in ms since 1970."""
        return self._stored.born_timestamp

    @property
    def store_timestamp(self) -> int:
        """The time of its storage, in ms since 1970."""
        return self._stored.store_timestamp

    @property
    def queue_offset(self) -> int:
        """Its offset in its queue."""
        return self._stored.queue_offset

    @property
    def commit_log_offset(self) -> int:
        """Its offset in the commit log, in bytes."""
        return self._stored.physical_offset

    @property
    def prepared_transaction_offset(self) -> int:
        """The offset of its half message in the commit log; 0 without a transaction."""
        return self._stored.prepared_transaction_offset

    def get_property(self, prop: Text | Enum) -> bytes:
        """A property; empty without one of that name."""
        name = text("prop", prop.value if isinstance(prop, Enum) else prop)
        return self._stored.properties.get(name, "").encode("utf-8")

    def __getitem__(self, key: Text | Enum) -> bytes:
        return self.get_property(key)

    def __str__(self) -> str:
        return self.body.decode("utf-8")

    def __bytes__(self) -> bytes:
        return self.body

    def __repr__(self) -> str:
        return f"<ReceivedMessage topic={self.topic!r} id={self.id!r} body={self.body!r}>"


RecvMessage = ReceivedMessage
"""The name in version 0.4."""
