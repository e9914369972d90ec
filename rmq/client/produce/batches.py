"""Batches: single sends joined into requests, and the result of each message.

Only messages that fit a batch are taken: see `Batches.takes`. A batch is sent as `send_batch` does, at most
`BATCH_BYTES` in a request. If a broker refuses a batch because of a single message, or takes no batches at
all, the messages are sent singly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rmq.client.config import ClientConfig
from rmq.client.produce.outgoing import BATCH, SEND, Outgoing
from rmq.client.produce.sender import Sender
from rmq.client.session.results import SendResult
from rmq.errors import MessageIllegal, RequestCodeNotSupported, check_type
from rmq.message import RESERVED_PROPERTIES, RETRY_PREFIX, Message, MessageQueue
from rmq.protocol import engine
from rmq.protocol.record import decode_batch, encode_batch

if TYPE_CHECKING:
    from rmq.protocol import _engine

BATCH_BYTES: Final = 128 * 1024
"""Longest bodies and properties of one request: a larger request would keep a broker's other senders waiting
for more than 0.1 ms."""

BatchKey = tuple[str, bool, MessageQueue | None, str | None]
"""Common values of the messages of a batch: topic, `wait_store`, and the target queue."""


def batch_key(
    message: Message, outgoing: Outgoing, queue: MessageQueue | None, sharding_key: str | None
) -> BatchKey:
    """The key of a message. Raises InvalidType for a queue or a sharding key of a wrong type."""
    if queue is not None:
        check_type("queue", queue, MessageQueue, "an rmq.MessageQueue")
    elif sharding_key is not None:
        check_type("sharding_key", sharding_key, str, "text")
    return outgoing.topic, message.wait_store, queue, sharding_key


class BatchBody:
    """The body of a batch send, which grows to `most` bytes, or to the size of its first message. The body of
    the compiled engine also takes plain messages without encoding."""

    def __init__(self, most: int) -> None:
        self.count = 0
        """Number of messages in it."""
        self._most = most
        self._size = 0
        self._parts: list[bytes] = []

    def add(self, message: Message, unique_id: str) -> int:
        """Add a message unencoded. Return the bytes in the batch, 0 without room for the message, -1 when
        Python must check and encode it first."""
        return -1

    def add_encoded(self, message: bytes) -> int:
        """Add an encoded message of `encode_batch`. Return the bytes in the batch, 0 without room for the
        message."""
        if self.count and self._size + len(message) > self._most:
            return 0
        self._parts.append(message)
        self._size += len(message)
        self.count += 1
        return self._size

    def take(self) -> bytes:
        """Take the whole content; the batch is empty afterwards."""
        body = b"".join(self._parts)
        self._parts.clear()
        self._size = self.count = 0
        return body


def new_body(topic: str, wait_store: bool, config: ClientConfig) -> BatchBody | _engine.BatchBody:
    """An empty body, for messages of a topic."""
    if engine.compiled is None or config.namespace:
        return BatchBody(BATCH_BYTES)
    body_most = min(BATCH_BYTES, config.max_message_size + 1, config.compress_over or BATCH_BYTES)
    body: _engine.BatchBody = engine.compiled.BatchBody(
        Message, RESERVED_PROPERTIES, topic, wait_store, body_most, BATCH_BYTES
    )
    return body


class Batches:
    """The batches of one producer."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.are_known = True
        """False once a broker has answered that it does not know such requests."""

    def takes(self, message: Message, outgoing: Outgoing) -> bool:
        """True if a message may go in a batch: not delayed, not of a retry topic, without system flags
        (compressed, prepared), and not large."""
        return (
            self.are_known
            and not (message.is_delayed or outgoing.sys_flag)
            and outgoing.code == SEND
            and len(outgoing.body) < BATCH_BYTES
            and not outgoing.topic.startswith(RETRY_PREFIX)
        )

    async def send(self, key: BatchKey, outgoing: Outgoing) -> list[tuple[int, SendResult | Exception]]:
        """Send a message, or several joined by `joined`, in a single request if possible. For each request
        return the number of its messages, in order, and its result or error. Raises only cancellation: the
        messages may or may not be stored in that case."""
        *_, queue, sharding_key = key
        count = outgoing.unique_id.count(",") + 1
        try:
            return [(count, await self._sender.send(outgoing, queue, sharding_key))]
        except (MessageIllegal, RequestCodeNotSupported) as error:
            if isinstance(error, RequestCodeNotSupported):
                self.are_known = False
            if count == 1:
                return [(1, error)]
            # No message of it is stored.
            return [outcome for one in _taken_apart(outgoing) for outcome in await self.send(key, one)]
        except Exception as error:
            return [(count, error)]


def joined(key: BatchKey, flag: int, body: bytes, unique_ids: Sequence[str]) -> Outgoing:
    """A request of messages with the same key. `body` is the result of `encode_batch`."""
    topic, wait_store, *_ = key
    wait = "WAIT\x01true" if wait_store else "WAIT\x01false"
    together = Outgoing(topic, body, 0, flag, wait, ",".join(unique_ids), is_batch=True, code=BATCH)
    return together if len(unique_ids) > 1 else _taken_apart(together)[0]


def encoded(outgoing: Outgoing) -> bytes:
    """A message in the form of a batch."""
    return encode_batch([(outgoing.flag, outgoing.body, outgoing.properties)])


def _taken_apart(outgoing: Outgoing) -> list[Outgoing]:
    ids = outgoing.unique_id.split(",")
    return [
        Outgoing(outgoing.topic, body, 0, flag, text, unique_id)
        for unique_id, (flag, body, text) in zip(ids, decode_batch(outgoing.body), strict=True)
    ]
