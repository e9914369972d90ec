"""Gateway: messaging with per-message delivery, as one client of a door uses it.

The calls of a door run on this interface, which has two implementations: a broker's own
(`rmq.broker.door_gateway`), and a cluster's behind a proxy (`rmq.proxy.gateway`).

No function blocks. Each reports its outcome to the given function, once, in the event loop, and perhaps
before it returns; never after the client has ended. AccessDenied is raised at once for a call that the
client's account is not allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast

from rmq.protocol import engine
from rmq.protocol.record import MESSAGE_MAGIC, decode_readable

if TYPE_CHECKING:
    from logging import Logger

    from attrs import frozen

    from rmq.doors import (
        DeliverySettings,
        DoorHost,
        OnCheck,
        OnQuestion,
        TakenMessage,
        TakeRequest,
        TopicView,
    )
    from rmq.errors import RmqError
    from rmq.message import Message, StoredMessage
    from rmq.protocol._engine import CallSends, SendRun
else:
    from rmq.lazy_attrs import frozen

PLAIN_BYTES: Final = 8 << 20
"""Bytes of bodies that a read or a take gives at once, and one body more: compressed they may be few."""


@frozen
class TopicAtBroker:
    """The part of a topic that one broker has."""

    broker_name: str
    view: TopicView


@frozen
class Sent:
    """Outcome of a send. `error` is None when the message is as safe as the settings require; with an error
    and `is_stored` the message is stored, but its safety is not known.

    `transaction_id` names a half message, `recall_handle` a message that waits for its time.
    """

    error: Exception | None = None
    is_stored: bool = True
    queue_offset: int = -1
    transaction_id: str = ""
    recall_handle: str = ""


OnTopic = Callable[["Sequence[TopicAtBroker] | Exception"], None]
"""Called with the parts of a topic, at least one, or with the reason for having none."""
OnSettings = Callable[["DeliverySettings | Exception"], None]
OnSent = Callable[[Sent], None]
OnEnded = Callable[["Exception | None"], None]
OnName = Callable[["str | Exception"], None]
OnReceived = Callable[["Sequence[TakenMessage] | Exception"], None]
"""Called with the messages of a receive; when the time of the receive is over there are none."""
OnOutcomes = Callable[[Sequence["Exception | None"]], None]
"""Called with the outcome of each handle, in their order; None is success."""


class PlainSends(Protocol):
    """The short way for sends that the compiled engine reads from a door's bytes. Everything that is not
    plain goes by `Gateway.send`, which has the rules."""

    def reader(self, reserved: Collection[str]) -> CallSends:
        """Reads requests; no property of an application may have a name of `reserved`."""

    @property
    def turn(self) -> int:
        """The number of the next message, by which the queues of a topic take turns."""

    def learn(self, topic: str) -> None:
        """Let further messages to a topic go the short way, after one was stored by `Gateway.send`."""

    def store(self, run: SendRun) -> RmqError | bool:
        """Store the messages of a run. True: all are as safe as the settings require. False: nothing was
        done, and each message must go by `Gateway.send`. An error: none is known to be stored."""


class Gateway(Protocol):
    """Messaging for one client of a door; the module has the rules. `handles` name received messages;
    `Exception` is an RmqError."""

    plain: PlainSends | None
    """The short way for plain sends, if the server has one."""

    def topic(self, name: str, on_topic: OnTopic) -> None:
        """Ask for a topic's parts. The outcome is TopicNotExist without any."""

    def delivery_settings(self, group: str, on_settings: OnSettings) -> None:
        """Ask for the settings of a group's per-message delivery."""

    def send(self, message: Message, choose: Callable[[int], int] | None, on_sent: OnSent) -> None:
        """Store a message. `choose` picks one of so many writable queues, in the order of their brokers and
        numbers; None: they take turns. A half message has the properties TRAN_MSG and PGROUP. Raises
        InvalidMessage and any refusal that needs no broker."""

    def produce(self, topic: str, client_id: str, on_check: OnCheck) -> None:
        """Become a producer of a topic: `on_check` gets half messages of the topic whose end is not known."""

    def end_transaction(
        self, topic: str, transaction_id: str, message_id: str, commits: bool | None, on_done: OnEnded
    ) -> None:
        """Commit or roll back a half message; None: the producer has not decided."""

    def recall(self, topic: str, handle: str, on_recalled: OnName) -> None:
        """Take back a message that waits for its time; the outcome is its unique key."""

    def join(
        self, group: str, client_id: str, subscriptions: Mapping[str, str], on_question: OnQuestion
    ) -> None:
        """Become a member of a group; a second call replaces the subscriptions."""

    def receive(
        self, broker: str, request: TakeRequest, on_taken: OnReceived, seconds: float
    ) -> Callable[[], None]:
        """Take messages at a broker, or with an empty name at any, as soon as there are any; none after
        `seconds`. Never calls `on_taken` before it returns. Returns a function that ends the wait without a
        call. Messages that the client holds at its end are given back."""

    def acknowledge(self, group: str, topic: str, handles: Sequence[str], on_done: OnOutcomes) -> None:
        """Acknowledge messages: no consumer of the group gets them again. Outcomes are as those of
        `rmq.doors.DoorHost.acknowledge`."""

    def extend(self, group: str, topic: str, handle: str, invisible_ms: int, on_extended: OnName) -> None:
        """Renew the lease of a message: redeliver it `invisible_ms` after now, not before. The outcome is the
        new handle."""

    def release(self, group: str, topic: str, handles: Sequence[str]) -> None:
        """Give back messages that no application has seen: they are redelivered at once, without a counted
        attempt. No outcome is reported: a message that cannot be given back is redelivered when its lease
        ends."""

    def dead_letter(self, group: str, topic: str, handles: Sequence[str], on_done: OnOutcomes) -> None:
        """Make messages dead letters of the group now."""


class GatewayHost(Protocol):
    """The part of a door's host that gives the gateway."""

    def gateway(self) -> Gateway:
        """The gateway of this client."""


def gateway_of(host: DoorHost) -> Gateway:
    """The gateway of a client, by its host. Raises ResponseError if the server stores no messages."""
    return cast(GatewayHost, host).gateway()


def readable(
    records: bytes | memoryview, log: Logger, most: int
) -> tuple[list[StoredMessage], list[StoredMessage]]:
    """The messages in records, and those that are too many at once, as `decode_readable`; without those that
    cannot be read, which the log names."""
    return decode_readable(records, partial(_log_unreadable, log), most)


def plain_records(records: bytes, room: int) -> tuple[Sequence[tuple[int, int, int, int]], int]:
    """The records from the first on that clients get as they are stored: of each the place, the queue offset,
    the physical offset and the bytes of the body; and the place behind them. None if their bodies have more
    bytes than `room`, and without the compiled engine."""
    if engine.compiled is None:
        return [], 0
    found: tuple[list[tuple[int, int, int, int]], int] = engine.compiled.plain_records(records, MESSAGE_MAGIC)
    return found if sum(size for _, _, _, size in found[0]) <= room else ([], 0)


def _log_unreadable(log: Logger, message: StoredMessage | None, error: RmqError) -> None:
    place = (
        "" if message is None else f"{message.topic} queue {message.queue_id}, offset {message.queue_offset}"
    )
    log.error("a message is given to no client of a door: %s: %s", place, error)
