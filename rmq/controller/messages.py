"""Message: one message of a controller to another, as bytes."""

from __future__ import annotations

from typing import Final

import msgspec
from attrs import field, frozen

from rmq.controller.journal import Entry, Snapshot
from rmq.errors import RemoteProtocolError


@frozen
class Message:
    """One message of a member to another; which fields count depends on `kind`.

    `index` and `log_term` are the place in the log that it is about; `sent_at` is the leader's clock, which
    comes back in the answer. `is_learner`: the receiver is being made a member; None in messages of earlier
    versions. `is_blank`: the sender began with an empty folder, and no leader has made it a member since.
    """

    kind: str
    sender: str
    address: str
    term: int
    index: int = 0
    log_term: int = 0
    granted: bool = False
    commit: int = 0
    sent_at: float = 0.0
    entries: list[Entry] = field(factory=list)
    snapshot: Snapshot | None = None
    is_learner: bool | None = None
    is_blank: bool = False


_decoder: Final = msgspec.msgpack.Decoder(Message)


def decode(data: bytes) -> Message:
    """The message in these bytes. Raises RemoteProtocolError when there is none."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"no message of a controller: {error}") from None
