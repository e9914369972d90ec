"""Journal of a member of the controllers: term, vote, log and snapshot on the disk.

The journal is a single file of frames: magic, size, CRC and number of the frame, and a `Frame` as
MessagePack. Each change is a single frame and a single sync, so that term, vote and entries change together
or not at all. Entries carry the index at which they begin, and replace earlier entries from this index on. A
next file begins when the file is full, when a snapshot was made, and when the journal is opened. The next
file begins with a frame that holds everything; the previous file is removed.

A frame that cannot be read ends the journal, as after a crash in the middle of a write: no promise depends on
such a frame. When a good frame follows the bad frame, the disk has lost a promise to other members, and the
journal refuses to open: such a member must be removed and added again. A crash leaves sectors of the last
frame as zeros, since each place of a file is written once. A last frame that cannot be read but lacks no
sector was complete, and other members may depend on it: the journal `is_doubtful` until its owner trusts it.

A frame names its format; a frame that holds everything also names the version of rmq that wrote it. A later
format may add fields under the same number if a reader that ignores the fields does nothing wrong. A frame
with a right CRC that this version cannot read comes from a later version. The journal then refuses to open
(`LaterFormat`), since its term, vote and entries count.
"""

from __future__ import annotations

import itertools
import logging
import zlib
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

import msgspec
from attrs import evolve, field, frozen

from rmq.errors import CorruptRecord, LaterFormat, StoreError
from rmq.server.process import VERSION
from rmq.store.files.disk import Disk, Segment

log = logging.getLogger("rmq.controller")

NOOP: Final = 0
"""An entry of a new leader, which commits all before it."""
COMMAND: Final = 1
"""An entry for the state machine."""
MEMBERS: Final = 2
"""An entry whose data are the members from it on."""

FILE_BYTES: Final = 1 << 20
"""Size of a file, unless its first frame needs more."""

FORMAT: Final = 1
"""The format of the frames that this version writes, and the highest format that it reads."""

_HEAD: Final = Struct(">4sIIQ")
_MAGIC: Final = b"rmqJ"
_NAME: Final = "journal-"
_SECTOR: Final = 512
"""Bytes that a disk writes as a unit: all of them or none."""


@frozen
class Entry:
    """An entry of the log: the term of its leader, its kind, its data."""

    term: int
    kind: int
    data: bytes = b""

    @property
    def members(self) -> dict[str, str]:
        """Id -> address, of an entry of members."""
        return msgspec.msgpack.decode(self.data, type=dict[str, str])


def members_entry(term: int, members: Mapping[str, str]) -> Entry:
    """An entry with these members."""
    return Entry(term, MEMBERS, msgspec.msgpack.encode(dict(members)))


@frozen
class Snapshot:
    """State after the log up to `index`, whose entry was of `term`, with the members of that time."""

    index: int = 0
    term: int = 0
    members: Mapping[str, str] = field(factory=dict)
    data: bytes = b""


@frozen
class Frame:
    """A change: the term and vote from now on, and the entries from index `first` on, when that is not 0. A
    frame with a snapshot holds everything, and names its writer, a version of rmq."""

    term: int
    vote: str
    first: int = 0
    entries: list[Entry] = field(factory=list)
    snapshot: Snapshot | None = None
    is_blank: bool = False
    format: int = FORMAT
    writer: str = ""
    doubtful: bool = False
    """True if the end of the journal may be lost, so that an earlier promise may be forgotten."""


@frozen
class _Origin:
    """The fields of a frame that every format has. Early journals have neither field."""

    format: int = 1
    writer: str = ""


_read_frame: Final = msgspec.msgpack.Decoder(Frame)
_read_origin: Final = msgspec.msgpack.Decoder(_Origin)


class Journal:
    """Open the journal in a folder, or create it with the first members `members`.

    When a method raises StoreError, the state in memory may differ from the disk: the member must stop.
    Raises CorruptRecord for a damaged journal, LaterFormat for a journal of a later version.
    """

    def __init__(
        self, disk: Disk, folder: str, members: Mapping[str, str], *, file_bytes: int = FILE_BYTES
    ) -> None:
        self._disk = disk
        self._file_bytes = file_bytes
        self._folder = folder
        self._number = 0
        self._sequence = 0
        self._position = 0
        self._segment: Segment | None = None
        self.term = 0
        self.vote = ""
        self.is_blank = not members
        """True if it began with an empty folder. A member that existed before has then lost its promises."""
        self.snapshot = Snapshot(members=dict(members))
        self.entries: list[Entry] = []
        self.is_doubtful = False
        """A frame is lost that others may rely on: a term, a vote, entries."""
        self._load()

    # ---- reading ----

    @property
    def base(self) -> int:
        """The index of the last entry that only the snapshot has."""
        return self.snapshot.index

    @property
    def last(self) -> int:
        """The index of the last entry; 0 when the log was always empty."""
        return self.snapshot.index + len(self.entries)

    def term_at(self, index: int) -> int:
        """The term of an existing entry, or of the snapshot's last entry."""
        assert self.base <= index <= self.last, (self.base, index, self.last)
        return self.snapshot.term if index == self.base else self.entries[index - self.base - 1].term

    def entry(self, index: int) -> Entry:
        """The entry at an existing index."""
        assert self.base < index <= self.last, (self.base, index, self.last)
        return self.entries[index - self.base - 1]

    def slice(self, first: int, most: int, most_bytes: int) -> list[Entry]:
        """Entries from index `first` on, within both limits, but at least the first existing entry."""
        found: list[Entry] = []
        for entry in self.entries[first - self.base - 1 : first - self.base - 1 + most]:
            most_bytes -= len(entry.data)
            if found and most_bytes < 0:
                break
            found.append(entry)
        return found

    def members(self) -> tuple[int, Mapping[str, str]]:
        """The index of the last entry of members, committed or not, and these members."""
        for number in range(len(self.entries) - 1, -1, -1):
            if self.entries[number].kind == MEMBERS:
                return self.base + 1 + number, self.entries[number].members
        return self.base, self.snapshot.members

    # ---- writing: on the disk when a method returns ----

    def save(self, term: int, vote: str) -> None:
        """Save a term and the vote in this term ("": no vote yet)."""
        self.term, self.vote = term, vote
        self._write(Frame(term, vote, is_blank=self.is_blank, doubtful=self.is_doubtful))

    def doubt(self, is_doubtful: bool, term: int, vote: str) -> None:
        """Save a term, and whether the journal is doubtful in it."""
        self.is_doubtful = is_doubtful
        self.save(term, vote)

    def begin(self) -> None:
        """End the state "blank": a leader has made this member a new member."""
        self.is_blank = False
        self.save(self.term, self.vote)

    def append(self, first: int, entries: Sequence[Entry]) -> None:
        """Put entries from index `first` on, in place of earlier entries from there on."""
        assert self.base < first <= self.last + 1, (self.base, first, self.last)
        del self.entries[first - self.base - 1 :]
        self.entries += entries
        kept = Frame(self.term, self.vote, is_blank=self.is_blank, doubtful=self.is_doubtful)
        self._write(evolve(kept, first=first, entries=list(entries)))

    def compact(self, index: int, data: bytes) -> None:
        """Replace the entries up to `index` by the snapshot `data`."""
        members = self.snapshot.members
        for number in range(self.base + 1, index + 1):
            entry = self.entry(number)
            members = entry.members if entry.kind == MEMBERS else members
        term = self.term_at(index)
        self.entries = self.entries[index - self.base :]
        self.snapshot = Snapshot(index, term, members, data)
        self._next_file()

    def install(self, snapshot: Snapshot) -> None:
        """Install a snapshot of another member. Keep our entries behind the snapshot if they continue it."""
        known = self.base <= snapshot.index <= self.last
        goes_on = known and self.term_at(snapshot.index) == snapshot.term
        self.entries = self.entries[snapshot.index - self.base :] if goes_on else []
        self.snapshot = snapshot
        self._next_file()

    def close(self) -> None:
        """Close the file. Nothing may be written afterwards."""
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    # ---- files ----

    def _write(self, frame: Frame) -> None:
        data = self._encode(frame)
        assert self._segment is not None, "the journal is closed"
        if self._position + len(data) > self._segment.size:
            self._next_file()
            return
        self._segment.write(self._position, data)
        self._segment.sync()
        self._position += len(data)

    def _encode(self, frame: Frame) -> bytes:
        self._sequence += 1
        data = msgspec.msgpack.encode(frame)
        return _HEAD.pack(_MAGIC, len(data), _crc(self._sequence, data), self._sequence) + data

    def _next_file(self) -> None:
        """Begin a file with all that the journal holds, and remove the previous file."""
        whole = Frame(
            *(self.term, self.vote, self.base + 1, self.entries, self.snapshot),
            is_blank=self.is_blank,
            writer=VERSION,
            doubtful=self.is_doubtful,
        )
        data = self._encode(whole)
        old, path = self._segment, self._path(self._number)
        self._number += 1
        self._disk.remove(self._path(self._number))  # the rest of a file after a crash
        segment = self._disk.open(
            self._path(self._number), max(self._file_bytes, 2 * len(data)), mapped=False
        )
        segment.write(0, data)
        segment.sync()
        self._segment, self._position = segment, len(data)
        if old is not None:
            old.close()
            self._disk.remove(path)

    def _path(self, number: int) -> str:
        return f"{self._folder}/{_NAME}{number:010d}"

    def _load(self) -> None:
        names = [name for name in self._disk.list(self._folder) if name.startswith(_NAME)]
        numbers = sorted((int(name[len(_NAME) :]) for name in names), reverse=True)
        found = next((number for number in numbers if self._load_file(number)), 0)
        # No other member depends on the first file before its first frame is written; a later file begins
        # with all that the file before it had.
        if not found and numbers and numbers[0] > 1:
            raise _damaged(self._path(numbers[0]), 0, "the first frame cannot be read, and it is needed")
        # Before a term there is nothing to keep, and the first file is begun again: its one frame may not be
        # on the medium, and then a power cut would leave the start of a second file, without the first.
        has_begun = self.term or self.last or self.is_doubtful
        self._number = found if has_begun else 0
        # All that was read is written again: after a failed sync the system still shows bytes that are not on
        # the medium, and no later sync would bring them to it.
        self._next_file()
        for number in numbers:
            if number != self._number:
                self._disk.remove(self._path(number))

    def _load_file(self, number: int) -> bool:
        """Read a file; False when the file never had a complete frame. Raises CorruptRecord, LaterFormat."""
        path = self._path(number)
        segment = self._disk.open(path, self._disk.size(path), mapped=False)
        try:
            data = segment.copy(0, segment.size)
        finally:
            segment.close()
        at = sequence = 0
        writer = ""
        while (found := _frame_at(data, at, sequence)) is not None:
            body, sequence, size = found
            frame = _decoded(path, at, body, writer)
            writer = writer or frame.writer
            if at == 0 and frame.snapshot is None:
                raise _damaged(path, 0, "the file does not begin with a whole state")
            self._take(frame)
            at += size
        again = data.find(_MAGIC, at + 1)
        while again >= 0:
            if _frame_at(data, again, sequence) is not None:
                raise CorruptRecord(
                    path, at, f"a frame is damaged, the one at {again} is good: remove this member"
                )
            again = data.find(_MAGIC, again + 1)
        self._sequence = sequence
        if at and _was_whole(data, at):
            log.error("%s: the last frame, at %d, is damaged and is dropped", path, at)
            self.is_doubtful = True
        return at > 0

    def _take(self, frame: Frame) -> None:
        self.term, self.vote = frame.term, frame.vote
        self.is_blank, self.is_doubtful = frame.is_blank, frame.doubtful
        if frame.snapshot is not None:
            self.snapshot, self.entries = frame.snapshot, list(frame.entries)
        elif frame.first:
            if not self.base < frame.first <= self.last + 1:
                raise StoreError(f"{self._folder}: entries from {frame.first} on do not follow {self.last}")
            del self.entries[frame.first - self.base - 1 :]
            self.entries += frame.entries


def _damaged(path: str, at: int, reason: str) -> CorruptRecord:
    error = CorruptRecord(path, at, reason)
    error.hint = (
        "this controller has lost entries that the others rely on: remove its folder and let it join again"
    )
    return error


def _crc(sequence: int, data: bytes) -> int:
    return zlib.crc32(data, sequence & 0xFFFF_FFFF)


def _frame_at(data: bytes, at: int, after: int) -> tuple[bytes, int, int] | None:
    """Number, body and size of the frame at a position, if the frame is complete and its number is above
    `after`."""
    if at + _HEAD.size > len(data):
        return None
    magic, size, crc, sequence = _HEAD.unpack_from(data, at)
    body = data[at + _HEAD.size : at + _HEAD.size + size]
    if magic != _MAGIC or sequence <= after or len(body) != size or crc != _crc(sequence, body):
        return None
    return body, sequence, _HEAD.size + size


def _was_whole(data: bytes, at: int) -> bool:
    """True if the bytes behind the last good frame are a complete frame that was changed, rather than parts
    of a frame or nothing. A part that was never written is zeros, and the last byte of a frame is not zero.
    """
    end = len(data.rstrip(b"\0"))
    if end < at + _HEAD.size:
        return False
    magic, size, crc, sequence = _HEAD.unpack_from(data, at)
    if crc == _crc(sequence, data[at + _HEAD.size : end]):
        return True  # but for its size, or its magic
    if magic == _MAGIC and at + _HEAD.size + size <= len(data):
        end = max(end, at + _HEAD.size + size)
    bounds = [at, *range(at - at % _SECTOR + _SECTOR, end, _SECTOR), end]
    parts = itertools.pairwise(bounds)
    return data[end - 1] != 0 and all(any(data[start:stop]) for start, stop in parts)


def _decoded(path: str, at: int, body: bytes, writer: str) -> Frame:
    """The frame in a whole body; `writer` is the version that wrote the file. Raises LaterFormat."""
    origin = _Origin()
    try:
        origin = _read_origin.decode(body)
        if origin.format <= FORMAT:
            return _read_frame.decode(body)
        what = f"the frame at {at} has format {origin.format}, rmq {VERSION} reads formats up to {FORMAT}"
    except msgspec.MsgspecError as error:
        what = f"the frame at {at} is whole, and rmq {VERSION} cannot read it ({error})"
    raise LaterFormat(path, what, origin.writer or writer)
