"""The journal of per-message delivery: records of finished messages, in a system topic.

A turn of the loop writes one record for all messages that it has finished. A record begins with a version and
with the journal offset from which a start reads: the begin of the newest whole snapshot. Operations follow:

| operation | fields | meaning |
|---|---|---|
| ROW | id, base, group, topic, queue | names a queue of a group; messages below `base` are finished |
| DONE | id, frontier, start, mask | these messages are finished |
| NOTE | id, frontier, start, mask, attempts, available | failed attempts, and time of the next delivery |
| RESET | id, base | the group goes on at `base`: nothing from there on is finished |
| GONE | id | the row is forgotten |
| COMMIT | count, offsets | these half messages are committed, together with the rest of the record |

`frontier` is the offset before which all messages were taken at least once. An operation on an id that no ROW
has named is older than the snapshot, which includes it. The last record of the log decides. So a log that was
cut, or that another replica continues, needs no other file.

COMMIT is the last operation of its record. It has the queue offset and the physical offset of each half
message; the op messages show which half messages still need work after a start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as struct_error
from typing import Final

from rmq.errors import CorruptRecord

JOURNAL_TOPIC: Final = "rmq_sys_delivery_journal"
"""A name that RocketMQ treats as a system topic, which no client may send to."""

VERSION: Final = 1
_HEAD: Final = Struct(">BQ")
_ROW: Final = Struct(">BIqHHI")
_DONE: Final = Struct(">BIqqH")
_NOTE: Final = Struct(">BIqqHHq")
_RESET: Final = Struct(">BIq")
_REMOVED: Final = Struct(">BI")
_COMMIT: Final = Struct(">BI")
_HALF: Final = Struct(">QQ")
_ROW_CODE, _DONE_CODE, _NOTE_CODE, _RESET_CODE, _REMOVED_CODE, _COMMIT_CODE = 1, 2, 3, 4, 5, 6

MASK_BITS: Final = 65_535 * 8
ATTEMPTS_MAX: Final = 65_535


def head(first: int) -> bytes:
    """The begin of a record; a start reads the journal from offset `first` on."""
    return _HEAD.pack(VERSION, first)


def first_of(body: bytes) -> int:
    """The journal offset from which a start reads. Raises CorruptRecord."""
    try:
        version, first = _HEAD.unpack_from(body)
    except struct_error as error:
        raise CorruptRecord("delivery journal", 0, str(error)) from None
    if version != VERSION:
        raise CorruptRecord("delivery journal", 0, f"version {version} is not {VERSION}")
    return int(first)


def row(row_id: int, base: int, group: str, topic: str, queue_id: int) -> bytes:
    """Name a queue of a group."""
    names = group.encode(), topic.encode()
    return _ROW.pack(_ROW_CODE, row_id, base, len(names[0]), len(names[1]), queue_id) + names[0] + names[1]


def done(row_id: int, frontier: int, start: int, mask: int) -> bytes:
    """The record that finishes messages."""
    size = (mask.bit_length() + 7) // 8
    return _DONE.pack(_DONE_CODE, row_id, frontier, start, size) + mask.to_bytes(size, "big")


def note(row_id: int, frontier: int, start: int, mask: int, attempts: int, available_ms: int) -> bytes:
    """Record the number of attempts of messages, and the time of their next delivery."""
    size = (mask.bit_length() + 7) // 8
    attempts = min(attempts, ATTEMPTS_MAX)
    fixed = _NOTE.pack(_NOTE_CODE, row_id, frontier, start, size, attempts, available_ms)
    return fixed + mask.to_bytes(size, "big")


def reset(row_id: int, base: int) -> bytes:
    """The record that moves the group to `base`."""
    return _RESET.pack(_RESET_CODE, row_id, base)


def removed(row_id: int) -> bytes:
    """The record that removes a row."""
    return _REMOVED.pack(_REMOVED_CODE, row_id)


def commit(halves: Sequence[tuple[int, int]]) -> bytes:
    """The record that commits half messages, each as (queue offset, physical offset)."""
    return _COMMIT.pack(_COMMIT_CODE, len(halves)) + b"".join(_HALF.pack(*half) for half in halves)


class Replay:
    """Functions that a reader of the journal calls, one for each operation."""

    def __init__(
        self,
        *,
        row: Callable[[int, int, str, str, int], None],
        done: Callable[[int, int, int, int], None],
        note: Callable[[int, int, int, int, int, int], None],
        reset: Callable[[int, int], None],
        removed: Callable[[int], None],
        commit: Callable[[list[tuple[int, int]]], None],
    ) -> None:
        self._row = row
        self._done = done
        self._note = note
        self._reset = reset
        self._removed = removed
        self._commit = commit

    def read(self, body: bytes) -> None:
        """Call the functions of a Replay for the operations of one record. Raises CorruptRecord."""
        first_of(body)
        at = _HEAD.size
        try:
            while at < len(body):
                at = self._next(body, at)
        except (struct_error, UnicodeDecodeError) as error:
            raise CorruptRecord("delivery journal", at, str(error)) from None
        if at != len(body):
            raise CorruptRecord("delivery journal", at, "the last operation is cut")

    def _next(self, body: bytes, at: int) -> int:
        code = body[at]
        if code == _DONE_CODE:
            _, row_id, frontier, start, size = _DONE.unpack_from(body, at)
            at += _DONE.size + size
            self._done(row_id, frontier, start, int.from_bytes(body[at - size : at], "big"))
        elif code == _NOTE_CODE:
            _, row_id, frontier, start, size, attempts, available_ms = _NOTE.unpack_from(body, at)
            at += _NOTE.size + size
            mask = int.from_bytes(body[at - size : at], "big")
            self._note(row_id, frontier, start, mask, attempts, available_ms)
        elif code == _ROW_CODE:
            _, row_id, base, group_size, topic_size, queue_id = _ROW.unpack_from(body, at)
            middle = at + _ROW.size + group_size
            at = middle + topic_size
            group = body[middle - group_size : middle].decode()
            self._row(row_id, base, group, body[middle:at].decode(), queue_id)
        elif code == _RESET_CODE:
            _, row_id, base = _RESET.unpack_from(body, at)
            at += _RESET.size
            self._reset(row_id, base)
        elif code == _REMOVED_CODE:
            _, row_id = _REMOVED.unpack_from(body, at)
            at += _REMOVED.size
            self._removed(row_id)
        elif code == _COMMIT_CODE:
            _, count = _COMMIT.unpack_from(body, at)
            start = at + _COMMIT.size
            at = start + count * _HALF.size
            self._commit(list(_HALF.iter_unpack(body[start:at])))
        else:
            raise CorruptRecord("delivery journal", at, f"operation {code} is not known")
        return at
