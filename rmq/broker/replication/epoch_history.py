"""Epochs of a master's log, sent to a slave in parts: a log may have any number of epochs.

The first note of a master has the newest `PART` epochs, and `earlierEpochs` when the log has more. The slave
requests earlier parts, by a word of 8 bytes each, until it has all epochs. A slave of an earlier version does
not request earlier parts: it may then cut more of its log than necessary, but keeps nothing that differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from rmq.controller.epochs import Epochs, as_epochs
from rmq.errors import RemoteProtocolError

PART: Final = 2_000
"""Epochs in one note: at most 25 kB while offsets are below a terabyte; a slave takes notes of 64 KiB."""
EPOCHS_MAX: Final = 500_000
"""Epochs that a slave takes from its master."""
_WORD: Final = Struct(">q")
_BEFORE: Final = -(1 << 61)
"""And an epoch: asks for the epochs before that one. As a question for a record it would be for an offset
that no log reaches."""
_EPOCHS: Final = 1 << 48


def ask_before(epoch: int) -> bytes:
    """The word by which a slave requests the epochs before `epoch`."""
    return _WORD.pack(_BEFORE + epoch)


def asked_before(word: int) -> int | None:
    """The epoch in such a word; None for any other word."""
    return word - _BEFORE if _BEFORE <= word < _BEFORE + _EPOCHS else None


def part(epochs: Epochs, before: int | None = None) -> dict[str, Any]:
    """The fields of a note: the newest epochs, or the newest before `before`."""
    rest = epochs if before is None else tuple(one for one in epochs if one[0] < before)
    more = {"earlierEpochs": True} if len(rest) > PART else {}
    return {"epochs": [*map(list, rest[-PART:])], **more}


def has_earlier(note: Mapping[str, Any]) -> bool:
    """True if the log has epochs before the first epoch of a note."""
    return note.get("earlierEpochs") is True


def with_earlier(epochs: Epochs, note: Mapping[str, Any]) -> Epochs:
    """The epochs of a note, in front of the known later epochs. Raises RemoteProtocolError."""
    try:
        earlier = as_epochs(note["epochs"])
        if not earlier or len(earlier) + len(epochs) > EPOCHS_MAX:
            raise ValueError(f"{len(earlier)} epochs before {len(epochs)}, of at most {EPOCHS_MAX}")
        as_epochs(earlier[-1:] + epochs[:1])
        return earlier + epochs
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"the master's epochs cannot be read: {error!r}") from None
