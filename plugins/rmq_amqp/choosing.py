"""Choosing: the messages that a consumer gets, by its selector, by their groups and by the connection
behind."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

from rmq.message import PROPERTY_TAGS, PROPERTY_UNIQUE_KEY, Message, StoredMessage
from rmq.protocol.properties import PROPERTY_SHARDING_KEY
from rmq_amqp import messages, typed_texts

if TYPE_CHECKING:
    from rmq_amqp.selectors import Selector

BUCKETS: Final = 1_024
"""Number of buckets: message groups of one bucket go to the same consumer."""

_NAMES: Final = {
    "JMSXGroupID": PROPERTY_SHARDING_KEY,
    messages.MESSAGE_ID: PROPERTY_UNIQUE_KEY,
}
_NUMBERS: Final = frozenset(
    {
        messages.PRIORITY,
        messages.TIMESTAMP,
        messages.EXPIRATION,
        messages.DELIVERY_TIME,
        messages.GROUP_SEQUENCE,
    }
)


def value_of(message: Message | StoredMessage, types: dict[str, str], name: str) -> Any:
    """The value of a header or property of a message, for selectors."""
    properties = message.properties
    text = properties.get(_NAMES.get(name, name))
    if name == messages.TYPE and text is None:
        text = properties.get(PROPERTY_TAGS)
    if text is None:
        return None
    if name in _NUMBERS:
        return int(text) if text.isdecimal() and len(text) < 19 else None
    letter = types.get(name)
    value = text if letter is None else typed_texts.or_text(letter, text)
    return value if isinstance(value, (str, int, float)) else None


class Choice:
    """The choice of one consumer."""

    def __init__(self, selector: Selector | None, hidden_client: str = "") -> None:
        self._selector = selector
        self._hidden_client = hidden_client

    @property
    def terms(self) -> tuple[str, str]:
        """The selector's text and the hidden client, to compare with those of another consumer."""
        return "" if self._selector is None else self._selector.text, self._hidden_client

    @property
    def is_all(self) -> bool:
        """True if all messages are chosen."""
        return self._selector is None and not self._hidden_client

    def __call__(self, message: Message | StoredMessage) -> bool:
        """True if the consumer gets a message."""
        if self._hidden_client and message.properties.get(messages.CLIENT) == self._hidden_client:
            return False
        if self._selector is None:
            return True
        types = typed_texts.split(message.properties.get(messages.TYPES, ""))
        return self._selector.selects(lambda name: value_of(message, types, name))


class GroupOwners:
    """The consumers of a queue that have its message groups: each group goes to one consumer until the
    consumer ends."""

    def __init__(self) -> None:
        self.version = 0
        self.consumers = 0
        self.is_active = False
        """True if the queue has had a message of a group."""
        self._owners: dict[int, object] = {}

    def claim(self, group: str, consumer: object) -> bool:
        """True if a group is a consumer's; a group without a consumer becomes this consumer's."""
        self.is_active = True
        bucket = zlib.crc32(group.encode()) % BUCKETS
        return self._owners.setdefault(bucket, consumer) is consumer

    def release(self, consumer: object) -> None:
        """Release the groups of a consumer that has ended: they may become another consumer's."""
        mine = [bucket for bucket, owner in self._owners.items() if owner is consumer]
        for bucket in mine:
            del self._owners[bucket]
        if mine:
            self.version += 1


class QueueChooser:
    """The chooser of a consumer of a queue: the choice of the consumer, and its message groups."""

    def __init__(self, choice: Choice, owners: GroupOwners) -> None:
        self._choice = choice
        self._owners = owners

    @property
    def version(self) -> int:
        """Same as `rmq.doors.Chooser.version`."""
        return self._owners.version

    @property
    def is_needed(self) -> bool:
        """True if a message might be refused."""
        return self._owners.is_active or not self._choice.is_all

    def __call__(self, message: StoredMessage) -> bool:
        """True if the consumer takes a message."""
        if not self._choice(message):
            return False
        group = message.properties.get(PROPERTY_SHARDING_KEY)
        return group is None or self._owners.claim(group, self)

    def took(self, message: StoredMessage) -> None:
        """Note a message that was taken without a choice: its group becomes this consumer's."""
        group = message.properties.get(PROPERTY_SHARDING_KEY)
        if group is not None:
            self._owners.claim(group, self)

    def end(self) -> None:
        """Note the end of the consumer."""
        self._owners.release(self)
