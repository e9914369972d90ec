"""The checkpoint file: up to which store times log, queues and index were synced. 4096 bytes, three numbers
at the start.
"""

from __future__ import annotations

from struct import Struct

from rmq.store.disk import Disk

SIZE = 4096
_TIMES = Struct(">qqq")
# Java's. Store times of several threads were not in order there, and a clock may be set back a little.
_MARGIN_MS = 3000


class Checkpoint:
    """Times are store times in ms; 0 means nothing is known."""

    def __init__(self, disk: Disk, path: str) -> None:
        existed = disk.exists(path) and disk.size(path) >= _TIMES.size
        self._segment = disk.open(path, SIZE, mapped=False)
        self.log_ms = self.queues_ms = self.index_ms = 0
        if existed:
            times = _TIMES.unpack(self._segment.read(0, _TIMES.size))
            self.log_ms, self.queues_ms, self.index_ms = times

    @property
    def replay_from_ms(self) -> int:
        """After a crash, files that start at or before this store time need no new scan."""
        return max(min(self.log_ms, self.queues_ms) - _MARGIN_MS, 0)

    def lower(self, most_ms: int) -> None:
        """Vouch for no record stored after that time. Raises StoreError."""
        times = self.log_ms, self.queues_ms, self.index_ms
        self.log_ms, self.queues_ms, self.index_ms = (min(known, most_ms) for known in times)
        if (self.log_ms, self.queues_ms, self.index_ms) != times:
            self.flush()

    def flush(self) -> None:
        """Write the times and sync. Raises StoreError."""
        self._segment.write(0, _TIMES.pack(self.log_ms, self.queues_ms, self.index_ms))
        self._segment.sync()

    def close(self) -> None:
        """Close the file."""
        self._segment.close()
