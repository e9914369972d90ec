"""Values of the compatible client, and the checks of arguments that all of its modules share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from rmq.client.session.results import SendResult as ClientResult
from rmq.compat.rocketmq.exceptions import RocketMQException
from rmq.errors import RmqError

Text: TypeAlias = str | bytes
"""Types of names and bodies, as in the old client: text, and bytes in UTF-8."""


class SendStatus(IntEnum):
    """The safety of a stored message."""

    OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3


class TransactionStatus(IntEnum):
    """The end of a transaction, as the result of a check-back or a local execution."""

    COMMIT = 0
    ROLLBACK = 1
    UNKNOWN = 2


class ConsumeStatus(IntEnum):
    """Result of a callback: the message is acknowledged, or redelivered."""

    CONSUME_SUCCESS = 0
    RECONSUME_LATER = 1


class MessageModel(IntEnum):
    """Way in which a group shares messages: each member gets a part of them, or each gets all."""

    BROADCASTING = 0
    CLUSTERING = 1


class SendResult(NamedTuple):
    """A stored message: `status`, its id, and its offset in its queue."""

    status: SendStatus
    msg_id: str
    offset: int


_STATUS: Final = {
    "SEND_OK": SendStatus.OK,
    "FLUSH_DISK_TIMEOUT": SendStatus.FLUSH_DISK_TIMEOUT,
    "FLUSH_SLAVE_TIMEOUT": SendStatus.FLUSH_SLAVE_TIMEOUT,
    "SLAVE_NOT_AVAILABLE": SendStatus.SLAVE_NOT_AVAILABLE,
}


def result_of(result: ClientResult) -> SendResult:
    """The client's result in the form of this package."""
    return SendResult(_STATUS[result.status], result.message_id, result.queue_offset)


def text(name: str, value: Text) -> str:
    """Return `value` as text. Raises TypeError, and RocketMQException for bytes that are not UTF-8."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise RocketMQException(f"{name} = {value!r:.100}: expected text in UTF-8") from error
    raise TypeError(f"{name} = {value!r:.100}: expected text, not {type(value).__name__}")


def number(name: str, value: int, least: int, most: int) -> int:
    """Return `value`. Raises TypeError, and RocketMQException for a number out of its bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} = {value!r:.100}: expected an int, not {type(value).__name__}")
    if not least <= value <= most:
        raise RocketMQException(f"{name} = {value}: expected an int from {least} to {most}")
    return value


@contextmanager
def failing(kind: type[RocketMQException]) -> Iterator[None]:
    """Turns errors of the client into exceptions of `kind`, with the same text."""
    try:
        yield
    except RmqError as error:
        raise kind(str(error)) from error
