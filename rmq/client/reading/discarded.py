"""Discarded half messages: producers gave no decision in all check-backs; the broker keeps such messages in
TRANS_CHECK_MAX_TIME_TOPIC. This module reads that topic, and starts the check-backs of its messages again."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from rmq.client.reading.pull_consumer import read_topic
from rmq.client.session.session import Session
from rmq.errors import NoRoute
from rmq.message import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    TRANS_CHECK_MAX_TIME_TOPIC,
    StoredMessage,
    without_namespace,
)
from rmq.protocol.codes import RequestCode
from rmq.protocol.headers import ResumeCheckHalfMessageRequestHeader

if TYPE_CHECKING:
    from attrs import frozen
else:
    from rmq.lazy_attrs import frozen


@frozen
class DiscardedHalf:
    """A half message that the broker has given up: its producer `group`, its `topic`, and the number of
    check-backs (`checks`)."""

    message: StoredMessage
    group: str
    topic: str
    checks: int

    @property
    def offset_message_id(self) -> str:
        """The id for `resume`: the message's place in the broker's log."""
        return self.message.offset_message_id

    @property
    def discarded_at_ms(self) -> int:
        """The time at which the broker gave the message up, in ms since 1970."""
        return self.message.store_timestamp


def read_discarded(message: StoredMessage, namespace: str = "") -> DiscardedHalf:
    """The half message in a message of TRANS_CHECK_MAX_TIME_TOPIC."""
    given = message.properties
    checks = given.get(PROPERTY_TRANSACTION_CHECK_TIMES, "")
    return DiscardedHalf(
        message,
        without_namespace(namespace, given.get(PROPERTY_PRODUCER_GROUP, "")),
        without_namespace(namespace, given.get(PROPERTY_REAL_TOPIC, "")),
        int(checks) if checks.isdecimal() else 0,
    )


async def discarded_halves(session: Session, limit: int) -> list[DiscardedHalf]:
    """See `Client.discarded_transactions`."""
    found: list[DiscardedHalf] = []
    async with aclosing(read_topic(session, TRANS_CHECK_MAX_TIME_TOPIC)) as reading:
        async for message in reading:
            if len(found) >= limit:
                break
            found.append(read_discarded(message, session.config.namespace))
    return found


async def resume(session: Session, half: DiscardedHalf) -> None:
    """See `Client.resume_transaction`."""
    broker = half.message.broker_name
    if session.routes.master(broker) is None:
        await session.refresh(TRANS_CHECK_MAX_TIME_TOPIC)
    address = session.routes.master(broker)
    if address is None:
        raise NoRoute(
            TRANS_CHECK_MAX_TIME_TOPIC, session.name_servers.addresses, f"no master of {broker} is known"
        )
    header = ResumeCheckHalfMessageRequestHeader(half.offset_message_id)
    await session.brokers.call(address, RequestCode.RESUME_CHECK_HALF_MESSAGE, header)
