"""Receipt handles: the texts by which consumers name messages that they have taken.

The form is that of RocketMQ 5.x: `start taken invisible revive type broker queue offset [position]`, numbers
and the name of the broker with spaces between. `start` is the first offset of the batch that was taken,
`taken` the wall time of the take in ms, `invisible` the length of the lease in ms. The broker finds the rest
of a batch by these values, and keeps nothing for each handle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmq.errors import ResponseError, for_code
from rmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from attrs import frozen
else:
    from rmq.lazy_attrs import frozen


HANDLES_OF_A_REQUEST: Final = 10_000


@frozen
class Handle:
    """The parts of a handle. Times are in ms of wall time."""

    start: int
    taken_ms: int
    invisible_ms: int
    broker_name: str
    queue_id: int
    offset: int

    @property
    def ends_ms(self) -> int:
        """The time at which the lease ends."""
        return self.taken_ms + self.invisible_ms

    def __str__(self) -> str:
        return handle_text(
            self.start, self.taken_ms, self.invisible_ms, self.broker_name, self.queue_id, self.offset
        )


def lease_length(taken_ms: int, now_ms: int, invisible_ms: int) -> int:
    """The length of a lease in ms, counted from `taken_ms`, so that the lease ends `invisible_ms` after now.

    `taken_ms` may be a little after now, as no two leases of a message have the same; and far after now when
    the clock was set back: then the length is `invisible_ms`, as a length is never negative.
    """
    length = now_ms + invisible_ms - taken_ms
    return length if length > 0 else invisible_ms


def handle_text(
    start: int,
    taken_ms: int,
    invisible_ms: int,
    broker_name: str,
    queue_id: int,
    offset: int,
    position: int = 0,
) -> str:
    """The text of a handle."""
    return f"{handle_head(start, taken_ms, invisible_ms, broker_name, queue_id)}{offset} {position}"


def handle_head(start: int, taken_ms: int, invisible_ms: int, broker_name: str, queue_id: int) -> str:
    """The text of a handle up to the offset, which is the same for all messages of a lease."""
    return f"{start} {taken_ms} {invisible_ms} 0 0 {broker_name} {queue_id} "


def parse_handle(text: str) -> Handle:
    """Read a handle. Raises ResponseError(MESSAGE_ILLEGAL) for any other text."""
    words = text.split(" ")
    try:
        start, taken, invisible = int(words[0]), int(words[1]), int(words[2])
        queue_id, offset = int(words[6]), int(words[7])
        if min(start, queue_id, offset, invisible) < 0 or max(start, taken, invisible, offset) >= 1 << 62:
            raise ValueError
    except (ValueError, IndexError):
        raise for_code(
            ResponseCode.MESSAGE_ILLEGAL, f"{text[:100]!r} is not a receipt handle of this broker"
        ) from None
    return Handle(start, taken, invisible, words[5], queue_id, offset)


def check_count(count: int) -> None:
    """Raises ResponseError(MESSAGE_ILLEGAL) for more handles than one request may have."""
    if count > HANDLES_OF_A_REQUEST:
        raise for_code(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{count} receipt handles in one request, at most {HANDLES_OF_A_REQUEST} are allowed",
        )


def lease_ended(handle: Handle, why: str) -> ResponseError:
    """The refusal of a handle whose holder has lost the message."""
    return for_code(
        ResponseCode.NO_MESSAGE,
        f"the receipt handle of message {handle.offset} in queue {handle.queue_id} is not valid: {why}",
    )
