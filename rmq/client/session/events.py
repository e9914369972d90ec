"""Events around a client's messages, as values for monitoring. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

from rmq.message import MessageQueue

if TYPE_CHECKING:
    from attrs import frozen
else:
    from rmq.lazy_attrs import frozen


@frozen
class Connected:
    """A connection to a name server or a broker exists."""

    address: str


@frozen
class Disconnected:
    """A connection has ended, or could not be made; further failed attempts are not reported."""

    address: str
    cause: str


@frozen
class Assigned:
    """The queues of a consumer have changed: `taken` are new, `given_up` are no longer its own. Queues of the
    group's retry topic are left out."""

    group: str
    taken: tuple[MessageQueue, ...] = ()
    given_up: tuple[MessageQueue, ...] = ()


@frozen
class Stalled:
    """A consumer makes no progress: for `seconds`, a message has been with its handler, or the oldest
    unfinished message of its queue has waited, for this `reason`:

        handler     its handler, or its delivery's block, has not ended
        unfinished  it was taken by iteration and neither consumed in `async with delivery` nor `done`
        untaken     the queue's window is full, no task takes the message, and no other is finished either

    `unfinished` is the number of pulled and unfinished messages of the queue. `message_id` and `keys` are
    given while the message is in memory. The event as text has the remedy.
    """

    group: str
    queue: MessageQueue
    queue_offset: int
    reason: Literal["handler", "unfinished", "untaken"]
    seconds: float
    unfinished: int
    is_full: bool
    message_id: str = ""
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        queue = self.queue
        named = f" {self.message_id}" + (f", keys {' '.join(self.keys)}" if self.keys else "")
        place = f"offset {self.queue_offset} of {queue.topic}, queue {queue.queue_id} of {queue.broker_name}"
        message = f"message{named} ({place})" if self.message_id else f"the message at {place}"
        full = f"; the client stopped pulling the queue: {self.unfinished} messages are not acknowledged"
        what = {
            "handler": f"the handler of {message} has not ended for {self.seconds:g} s",
            "unfinished": (
                f"{message} was taken {self.seconds:g} s ago and is not acknowledged: handle the "
                "message inside `async with delivery`, or call `delivery.done()`"
            ),
            "untaken": (
                f"no handler has taken {message} for {self.seconds:g} s: all handlers are busy, "
                "or the consumer is not iterated"
            ),
        }[self.reason]
        return f"{self.group}: {what}{full if self.is_full else ''}"


Event: TypeAlias = Connected | Disconnected | Assigned | Stalled
OnEvent: TypeAlias = Callable[[Event], object]
