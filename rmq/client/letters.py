"""Dead letters as values: what each tells of its life, which of them are meant, and the message that is sent
again. Pure.

Our broker notes origin, reason and times (`rmq.protocol.deadletter`); of a letter that RocketMQ 4.9's own
broker wrote, the topic, the id and the times are known, and there is no reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from attrs import define, field, frozen

from rmq.client.namespace import unwrapped
from rmq.errors import LocalProtocolError, RmqError
from rmq.message import (
    PROPERTY_RETRY_TOPIC,
    PROPERTY_UNIQUE_KEY,
    RESERVED_PROPERTIES,
    Message,
    StoredMessage,
)
from rmq.protocol.deadletter import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    DLQ_REASON,
    DLQ_RECONSUME_TIMES,
    DLQ_REDRIVE_KEY,
)

PROPERTY_SHARDING_KEY: Final = "__SHARDINGKEY"
"""What Alibaba's clients note of an ordered message."""

_OF_THE_BROKER: Final = ("DLQ_", "TIMER_", "__")


@frozen
class DeadLetter:
    """A message that a group has given up.

    `topic` is where it came from, empty when nobody has noted it; `message_id` is the id that its producer
    knows; `times` is how often it was tried, `reason` what the last consumer said.
    """

    message: StoredMessage
    topic: str
    message_id: str
    times: int
    reason: str

    @property
    def died_at_ms(self) -> int:
        """When it became a dead letter, in ms since 1970."""
        return self.message.store_timestamp

    @property
    def key(self) -> str:
        """Its place among the dead letters; the same in each run."""
        message = self.message
        return f"{message.topic}@{message.broker_name}-{message.queue_id}-{message.queue_offset}"


def read_letter(message: StoredMessage, namespace: str = "") -> DeadLetter:
    """What a message of a dead letter topic tells."""
    words = message.properties
    topic = words.get(DLQ_ORIGIN_TOPIC) or words.get(PROPERTY_RETRY_TOPIC) or ""
    times = words.get(DLQ_RECONSUME_TIMES, "")
    return DeadLetter(
        message,
        unwrapped(namespace, topic),
        words.get(DLQ_ORIGIN_MESSAGE_ID) or message.message_id,
        int(times) if times.isdecimal() else message.reconsume_times,
        words.get(DLQ_REASON, ""),
    )


def _as_set(ids: Iterable[str]) -> frozenset[str]:
    return frozenset(ids)


@frozen
class Letters:
    """Which dead letters are meant: those that meet all conditions; without any, all.

    `ids` are message ids, the producer's or of the place among the dead letters. `since_ms` and `until_ms`
    bound when they died, the second exclusive. `where(letter)` is a condition of your own.
    """

    ids: frozenset[str] = field(default=frozenset(), converter=_as_set)
    since_ms: int | None = None
    until_ms: int | None = None
    where: Callable[[DeadLetter], bool] | None = None

    def __contains__(self, letter: DeadLetter) -> bool:
        if self.ids and self.ids.isdisjoint(ids_of(letter)):
            return False
        if self.since_ms is not None and letter.died_at_ms < self.since_ms:
            return False
        if self.until_ms is not None and letter.died_at_ms >= self.until_ms:
            return False
        return self.where is None or self.where(letter)


ALL_LETTERS: Final = Letters()


def ids_of(letter: DeadLetter) -> tuple[str, ...]:
    """All ids that somebody may call it by."""
    return letter.message_id, letter.message.message_id, letter.message.offset_message_id


def message_again(letter: DeadLetter, topic: str) -> tuple[Message, dict[str, str]]:
    """The message to send to `topic`, and the properties beside the application's own: the message keeps its
    id, and names the letter that it was. Raises LocalProtocolError when there is no topic."""
    if not topic:
        raise LocalProtocolError(f"nobody has noted where {letter.message_id} came from: say to which topic")
    stored = letter.message
    own = {
        name: value
        for name, value in stored.properties.items()
        if name not in RESERVED_PROPERTIES and not name.startswith(_OF_THE_BROKER)
    }
    message = Message(
        topic, stored.body, tags=stored.tags, keys=stored.keys, properties=own, flag=stored.flag
    )
    extra = {
        PROPERTY_UNIQUE_KEY: letter.message_id,
        DLQ_ORIGIN_TOPIC: letter.topic,
        DLQ_ORIGIN_MESSAGE_ID: letter.message_id,
        DLQ_REDRIVE_KEY: letter.key,
        PROPERTY_SHARDING_KEY: stored.properties.get(PROPERTY_SHARDING_KEY, ""),
    }
    return message, {name: value for name, value in extra.items() if value}


def is_there(key: str, found: Iterable[StoredMessage]) -> bool:
    """Whether one of these messages was that letter."""
    return any(message.properties.get(DLQ_REDRIVE_KEY) == key for message in found)


@define
class Redriven:
    """How far a re-drive is. `looked_at` counts all letters that were read, `sent` those that were sent
    again, `already` those that an earlier run had sent; `failed` has the ids and errors of the others."""

    looked_at: int = 0
    sent: int = 0
    already: int = 0
    failed: list[tuple[str, RmqError]] = field(factory=list)
