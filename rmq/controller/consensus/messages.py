"""Message: one message of a controller to another, as bytes."""

from __future__ import annotations

import math
from typing import Final

import msgspec
from attrs import evolve, field, frozen

from rmq.controller.consensus.journal import Entry, Snapshot
from rmq.errors import RemoteProtocolError

TERMS_AHEAD: Final = 1 << 32
"""Terms by which another member may be ahead: at most one election a second begins."""
PLACE_MAX: Final = (1 << 63) - 1 - TERMS_AHEAD
"""The highest term, index or commit that is accepted: a member can write higher numbers, too."""
NAME_MAX: Final = 512

EARLIER_KINDS: Final = {
    "ask": "pre_vote",
    "asked": "pre_vote_resp",
    "vote": "request_vote",
    "voted": "request_vote_resp",
    "append": "append_entries",
    "appended": "append_entries_resp",
    "install": "install_snapshot",
}
"""Kinds that earlier versions send -> Raft's names, which this version sends. Members of both versions work
together, so that controllers can be upgraded and rolled back one at a time."""
LATER_KINDS: Final = {today: earlier for earlier, today in EARLIER_KINDS.items()}


@frozen
class Message:
    """One message of a member to another; which fields count depends on `kind`.

    `index` and `log_term` are the message's place in the log; `sent_at` is the leader's clock, which the
    answer repeats. `is_learner`: the receiver is being made a member; None in messages of earlier versions.
    `is_blank`: the sender began with an empty folder, and no leader has made it a member since.
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

    def check(self, term: int) -> None:
        """Raises RemoteProtocolError for numbers that no member has, seen from a member of `term`: they would
        stay in the journals."""
        numbers = (self.term, self.index, self.log_term, self.commit)
        if not 0 <= min(numbers) <= max(numbers) <= PLACE_MAX or self.term > term + TERMS_AHEAD:
            raise RemoteProtocolError(
                f"a message of {self.sender[:80]!r} in term {self.term}, which no member can have reached:"
                f" this one is in term {term}"
            )
        if not math.isfinite(self.sent_at) or max(len(self.sender), len(self.address)) > NAME_MAX:
            raise RemoteProtocolError(f"a message of {self.sender[:80]!r} that no controller sends")


_decoder: Final = msgspec.msgpack.Decoder(Message)


def in_present_kinds(message: Message) -> Message:
    """The message with the present names of kinds."""
    kind = EARLIER_KINDS.get(message.kind)
    return message if kind is None else evolve(message, kind=kind)


def encode(message: Message, *, to_earlier: bool = False) -> bytes:
    """Encode a message; `to_earlier`: for a member of an earlier version, which knows the earlier kinds."""
    if to_earlier:
        message = evolve(message, kind=LATER_KINDS.get(message.kind, message.kind))
    return msgspec.msgpack.encode(message)


def decode(data: bytes) -> Message:
    """Decode a message. Raises RemoteProtocolError for bytes that are no message."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"no message of a controller: {error}") from None
