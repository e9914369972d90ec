"""Re-drive: reads the dead letters of a group and sends the chosen ones to their topics again.

A message that is sent again keeps its id and carries, in the property DLQ_REDRIVE_KEY, which letter it was.
Before each send the brokers of the topic are asked for messages of that id that carry it: so a run that was
interrupted can simply be started again, and one letter is not sent twice. That rests on the brokers' index
of messages (messageIndexEnable, on by default) and on one run at a time. A message whose acknowledgement was
lost may still be stored twice, as with each send.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import anyio
from attrs import define

from rmq.client.letters import (
    ALL_LETTERS,
    PROPERTY_SHARDING_KEY,
    DeadLetter,
    Letters,
    Redriven,
    is_there,
    message_again,
    read_letter,
)
from rmq.client.namespace import wrapped
from rmq.client.outgoing import pack
from rmq.client.producer import Producer
from rmq.client.reading import read_topic
from rmq.client.session import Session
from rmq.errors import (
    ConfigError,
    InvalidName,
    LocalProtocolError,
    NoRoute,
    QueryNotFound,
    ResponseError,
    RmqError,
)
from rmq.message import StoredMessage, dlq_topic, validate_group
from rmq.protocol.codes import RequestCode
from rmq.protocol.headers import QueryMessageRequestHeader
from rmq.protocol.record import decode_records

SENDER = "CLIENT_INNER_PRODUCER"
FOREVER_MS = (1 << 63) - 1
INDEX_STEP_MS = 1000
"""The index knows when messages were stored in whole seconds."""
COPIES = 64
"""Messages of one id that a broker is asked for."""

Progress = Callable[[Redriven], object]


class _Sender(Producer):
    """Sends outside of any block, and messages that have their id already. Observers are not told."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, SENDER)
        self._open = True

    async def send_again(self, letter: DeadLetter, topic: str) -> None:
        message, extra = message_again(letter, topic)
        outgoing = pack(message, letter.message_id, self._session.config, extra=extra)
        await self._send(outgoing, None, extra.get(PROPERTY_SHARDING_KEY))


@define
class Redrive:
    """The dead letters of one group."""

    session: Session
    group: str

    def __attrs_post_init__(self) -> None:
        validate_group(self.group)

    async def letters(self, chosen: Letters = ALL_LETTERS, limit: int = 1000) -> list[DeadLetter]:
        """The first `limit` letters that are meant, queue by queue, each in the order of their death.

        None when the group has no dead letters. Raises NoPermission when their topic may not be read, and as
        `PullConsumer.pull`. Cancelled: nothing has happened."""
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
        """Send the letters that are meant again, each to its own topic or all to `to`.

        At most `rate` a second; `progress` is called after each. Letters that come while it runs are left
        alone. What only one letter has, such as a topic that is gone, is counted as its failure; when no
        broker can be reached or takes anything, the run ends with that error. Cancelled, or ended by an
        error: what is sent is sent; the next run goes on behind it. Raises as `letters` and `Producer.send`.
        """
        if rate is not None and rate <= 0:
            raise ConfigError("rate", rate, "more than 0 messages a second")
        done, sender, next_at = Redriven(), _Sender(self.session), self.session.now()
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

    async def _one(self, letter: DeadLetter, sender: _Sender, topic: str, done: Redriven) -> None:
        try:
            if await self._is_sent(letter, topic):
                done.already += 1
            else:
                await sender.send_again(letter, topic)
                done.sent += 1
        except (NoRoute, ResponseError, InvalidName, LocalProtocolError) as error:
            done.failed.append((letter.message_id, error))
        except RmqError as error:
            error.add_note(f"{done.sent} messages were sent again before; run it once more to go on")
            raise

    def _read(self, chosen: Letters) -> AsyncGenerator[StoredMessage]:
        topic = dlq_topic(wrapped(self.session.config.namespace, self.group))
        return read_topic(self.session, topic, chosen.since_ms)

    async def _is_sent(self, letter: DeadLetter, topic: str) -> bool:
        """Ask all brokers of the topic whether they have it."""
        session = self.session
        full = wrapped(session.config.namespace, topic)
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
