"""The file `abort`: present while a store is open, so that the next start recognises a stop that was not
clean.

RocketMQ's file is empty, or holds a process id. Ours also holds the end of the synced log, for the recovery
after a crash: the checkpoint is written once a minute and holds times, this file is written after every sync
of the log. The file itself is not synced, so after a power cut its offset may be too low, and never too high.
"""

from __future__ import annotations

import zlib
from struct import Struct

from rmq.errors import StoreError
from rmq.store.files.disk import Disk, Segment

_FORM = Struct(">8sq")
_CRC = Struct(">I")
_MAGIC = b"rmqSYNCD"
SIZE = _FORM.size + _CRC.size
ALL = (1 << 63) - 1
"""The whole log, whatever its length."""


class AbortFile:
    """The file while a store is open. `is_clean`: the last stop was clean. `synced`: the physical offset
    before which everything was synced for certain; 0 when that is not known.

    The file is made when a recovery has succeeded, so a start that is refused leaves none.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._segment: Segment | None = None
        self._is_remade = False
        data = disk.load(path)
        self.is_clean = data is None
        self.synced = ALL if data is None else synced_in(data)

    def changing(self) -> None:
        """The recovery begins to write without syncing at once. Raises StoreError."""
        if self.is_clean and self._segment is None:
            self._disk.replace(self._path, mark_of(ALL))  # never without what it says
            self._segment = self._disk.open(self._path, SIZE, mapped=False)

    def remaking(self) -> None:
        """The recovery begins to remove files that it makes again: from now on the stop counts as not clean,
        until the recovery ends. Raises StoreError."""
        self.changing()
        self._is_remade = True

    def refused(self) -> None:
        """The recovery has failed, and its writes are synced: a clean stop stays clean. Raises StoreError."""
        if self.is_clean and self._segment is not None and not self._is_remade:
            self.remove()

    def opened(self, synced: int) -> None:
        """The recovery has succeeded, the log is synced up to there. Raises StoreError."""
        if self._segment is None:
            if not self.is_clean and self._disk.size(self._path) != SIZE:
                self._disk.replace(self._path, bytes(SIZE))  # at no time is there none
            self._make(synced)
        self.note(synced)

    def _make(self, synced: int) -> None:
        self._segment = self._disk.open(self._path, SIZE, mapped=False)
        if synced or not self.is_clean:  # a new file says nothing, and takes no space
            self._segment.write(0, mark_of(synced))
        self._segment.sync()
        self.synced = synced

    def note(self, synced: int) -> None:
        """The log was synced up to `position`. Thread-safe for a single syncing thread; a failed write is
        harmless."""
        segment = self._segment
        if segment is not None and synced != self.synced:
            try:
                segment.write(0, mark_of(synced))
            except StoreError:
                return
            self.synced = synced

    def lower(self, synced: int) -> None:
        """The log is about to be cut at `position`: later bytes there are not synced. Raises StoreError."""
        if self._segment is not None and synced < self.synced:
            self._segment.write(0, mark_of(synced))
            self._segment.sync()
            self.synced = synced

    def remove(self) -> None:
        """Everything is synced and queued: the stop is clean. Raises StoreError."""
        self.close()
        self._disk.remove(self._path)

    def close(self) -> None:
        """Close the file without a change."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()


def mark_of(synced: int) -> bytes:
    """The content of the abort file."""
    row = _FORM.pack(_MAGIC, synced)
    return row + _CRC.pack(zlib.crc32(row))


def synced_in(data: bytes) -> int:
    """The offset in the content of the file; 0 for RocketMQ's file and for a damaged file."""
    if len(data) != SIZE or not data.startswith(_MAGIC) or _CRC.unpack(data[-4:])[0] != zlib.crc32(data[:-4]):
        return 0
    synced: int = _FORM.unpack_from(data)[1]
    return max(synced, 0)
