"""Dead letters as values: their history, their selection, and the message for another send. Pure.

Brokers of rmq record origin, reason and times (`rmq.protocol.properties`); a letter of RocketMQ 4.9's own
broker has the topic, the id and the times, and no reason.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import anyio
from attrs import field

from rmq.client.produce.outgoing import pack
from rmq.client.produce.sender import Sender
from rmq.client.reading.pull_consumer import read_topic
from rmq.client.session.session import Session
from rmq.errors import (
    ConfigError,
    InvalidName,
    LocalProtocolError,
    NoRoute,
    QueryNotFound,
    ResponseError,
    RmqError,
    check_callable,
    check_number,
    check_type,
)
from rmq.message import (
    PROPERTY_RETRY_TOPIC,
    PROPERTY_UNIQUE_KEY,
    RESERVED_PROPERTIES,
    Message,
    StoredMessage,
    dlq_topic,
    validate_group,
    with_namespace,
    without_namespace,
)
from rmq.protocol.codes import RequestCode
from rmq.protocol.headers import QueryMessageRequestHeader
from rmq.protocol.properties import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    DLQ_REASON,
    DLQ_RECONSUME_TIMES,
    DLQ_REDRIVE_KEY,
    PROPERTY_SHARDING_KEY,
)
from rmq.protocol.record import decode_records

if TYPE_CHECKING:
    from attrs import define, frozen
else:
    from rmq.lazy_attrs import define, frozen

_OF_THE_BROKER: Final = ("DLQ_", "TIMER_", "__")


@frozen
class DeadLetter:
    """A message that a group has given up.

    `topic` is its original topic, empty when the broker has not recorded it; `message_id` is the id that its
    producer knows; `times` is the number of deliveries, `reason` the last consumer's reason.
    """

    message: StoredMessage
    topic: str
    message_id: str
    times: int
    reason: str

    @property
    def died_at_ms(self) -> int:
        """The time at which it became a dead letter, in ms since 1970."""
        return self.message.store_timestamp

    @property
    def key(self) -> str:
        """Its place among the dead letters; the same in each run."""
        message = self.message
        return f"{message.topic}@{message.broker_name}-{message.queue_id}-{message.queue_offset}"


def read_letter(message: StoredMessage, namespace: str = "") -> DeadLetter:
    """The dead letter in a message of a dead letter topic."""
    given = message.properties
    topic = given.get(DLQ_ORIGIN_TOPIC) or given.get(PROPERTY_RETRY_TOPIC) or ""
    times = given.get(DLQ_RECONSUME_TIMES, "")
    return DeadLetter(
        message,
        without_namespace(namespace, topic),
        given.get(DLQ_ORIGIN_MESSAGE_ID) or message.message_id,
        int(times) if times.isdecimal() else message.reconsume_times,
        given.get(DLQ_REASON, ""),
    )


def _as_set(ids: Iterable[str]) -> frozenset[str]:
    return frozenset(ids)


@frozen
class Letters:
    """Selection of dead letters: those that meet all conditions; without conditions, all.

    `ids` are message ids, the producer's or of the place among the dead letters. `since_ms` and `until_ms`
    bound the time of death, the second exclusive. `where(letter)` is a condition of your own. Raises
    InvalidType, ConfigError.
    """

    ids: frozenset[str] = field(default=frozenset(), converter=_as_set)
    since_ms: int | None = None
    until_ms: int | None = None
    where: Callable[[DeadLetter], bool] | None = None

    def __attrs_post_init__(self) -> None:
        for name in ("since_ms", "until_ms"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0)
        if self.where is not None:
            check_callable("where", self.where, "a function of a dead letter", is_awaited=False)

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
    """All ids of a letter: its producer's, its own, and its place in the broker's log."""
    return letter.message_id, letter.message.message_id, letter.message.offset_message_id


def message_again(letter: DeadLetter, topic: str) -> tuple[Message, dict[str, str]]:
    """The message to send to `topic`, and the properties beside the application's own: the message keeps its
    id, and names its letter. Raises LocalProtocolError without a topic."""
    if not topic:
        raise LocalProtocolError(
            f"dead letter {letter.message_id} does not name its original topic: give `topic`"
        )
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
    """True if one of these messages is a copy of that letter."""
    return any(message.properties.get(DLQ_REDRIVE_KEY) == key for message in found)


@define
class Redriven:
    """Progress of a re-drive. `looked_at` counts all letters read, `sent` the letters sent again, `already`
    letters of an earlier run; `failed` has the ids and errors of all other letters."""

    looked_at: int = 0
    sent: int = 0
    already: int = 0
    failed: list[tuple[str, RmqError]] = field(factory=list)


# Re-drive: reads the dead letters of a group and sends the chosen ones to their topics again.

GROUP: Final = "CLIENT_INNER_PRODUCER"
"""The producer group that sends dead letters again; Java's clients use it, too."""
FOREVER_MS = (1 << 63) - 1
INDEX_STEP_MS = 1000
"""Resolution of the index: it keeps store times in whole seconds."""
COPIES = 64
"""Messages of one id in a query to a broker."""

Progress = Callable[[Redriven], object]


@define
class Redrive:
    """The dead letters of one group."""

    session: Session
    group: str

    def __attrs_post_init__(self) -> None:
        validate_group(self.group)

    async def letters(self, chosen: Letters = ALL_LETTERS, limit: int = 1000) -> list[DeadLetter]:
        """The first `limit` selected letters, queue by queue, each in the order of their death.

        None when the group has no dead letters. Raises NoPermission when their topic may not be read, and as
        `PullConsumer.pull`. Cancelled: nothing changes.
        """
        check_type("letters", chosen, Letters, "an rmq.Letters")
        found: list[DeadLetter] = []
        async with aclosing(self._read(chosen)) as reading:
            async for message in reading:
                if len(found) >= limit:
                    break
                letter = read_letter(message, self.session.config.namespace)
                if letter in chosen:
                    found.append(letter)
        return found

    async def run(
        self,
        chosen: Letters = ALL_LETTERS,
        *,
        to: str | None = None,
        rate: float | None = None,
        progress: Progress | None = None,
    ) -> Redriven:
        """Send the selected letters again, each to its own topic or all to `to`.

        At most `rate` a second; `progress` is called after each. Letters that come during the run are
        ignored. A failure of a single letter, such as a deleted topic, is counted; when no broker can be
        reached or takes messages, the run ends with that error. Cancelled, or ended by an error: sent letters
        stay sent; the next run continues behind them. Raises as `letters` and `Producer.send`.
        """
        check_type("letters", chosen, Letters, "an rmq.Letters")
        if rate is not None:
            check_number("rate", rate, 0, whole=False)
        if rate == 0:
            raise ConfigError("rate", rate, "more than 0 messages a second")
        done, sender, next_at = Redriven(), Sender(self.session, GROUP), self.session.now()
        async with aclosing(self._read(chosen)) as reading:
            async for message in reading:
                done.looked_at += 1
                letter = read_letter(message, self.session.config.namespace)
                if letter not in chosen:
                    continue
                if rate is not None:
                    await anyio.sleep(max(next_at - self.session.now(), 0))
                    next_at = max(next_at, self.session.now() - 1) + 1 / rate
                await self._one(letter, sender, to or letter.topic, done)
                if progress is not None:
                    progress(done)
        return done

    async def _one(self, letter: DeadLetter, sender: Sender, topic: str, done: Redriven) -> None:
        try:
            if await self._is_sent(letter, topic):
                done.already += 1
            else:
                message, extra = message_again(letter, topic)
                # It has its id already, and observers are not called.
                outgoing = pack(message, letter.message_id, self.session.config, extra=extra)
                await sender.send(outgoing, sharding_key=extra.get(PROPERTY_SHARDING_KEY))
                done.sent += 1
        except (NoRoute, ResponseError, InvalidName, LocalProtocolError) as error:
            done.failed.append((letter.message_id, error))
        except RmqError as error:
            error.add_note(
                f"{done.sent} messages were resent before the failure; run the same call to continue"
            )
            raise

    def _read(self, chosen: Letters) -> AsyncGenerator[StoredMessage]:
        topic = dlq_topic(with_namespace(self.session.config.namespace, self.group))
        return read_topic(self.session, topic, chosen.since_ms)

    async def _is_sent(self, letter: DeadLetter, topic: str) -> bool:
        """True if a broker of the topic has a copy of the letter."""
        session = self.session
        full = with_namespace(session.config.namespace, topic)
        if not full:
            return False
        rotation = await session.rotation(full, session.brokers.timeout, create=True)
        for name in rotation.route.brokers:
            found = session.routes.reader(name)
            if found is not None and is_there(letter.key, await self._copies(found[1], full, letter)):
                return True
        return False

    async def _copies(self, address: str, topic: str, letter: DeadLetter) -> list[StoredMessage]:
        begin = max(letter.died_at_ms - INDEX_STEP_MS, 0)
        header = QueryMessageRequestHeader(topic, letter.message_id, COPIES, begin, FOREVER_MS)
        try:
            answer = await self.session.brokers.call(address, RequestCode.QUERY_MESSAGE, header)
        except QueryNotFound:
            return []
        return decode_records(answer.body, decompressed=False)
