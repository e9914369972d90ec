"""Copying the log from a master to its slaves: both ends of the wire, as bytes and offsets.

The protocol is RocketMQ 4.9's, on a port of its own. The slave reports how far its log reaches: 8 bytes. The
master answers with frames: 8 bytes of physical offset, 4 bytes of size, raw log bytes; size 0 is a heartbeat.
The first report opens the copying; 0 asks for the newest log file from its start. Every later report
acknowledges what the slave has.

Nothing here does I/O: the caller moves the bytes and tells the time (seconds of a clock that never runs
back).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final

from rmq.errors import RemoteProtocolError

if TYPE_CHECKING:
    from rmq.store.store import Store

REPORT: Final = Struct(">q")
FRAME: Final = Struct(">qi")

SLAVE_FRAME_MAX: Final = 4 * 1024 * 1024
"""Bytes of a frame that a slave takes; Java's slave reads into a buffer of that size."""


class MasterSession:
    """The master's end of one slave's link.

    `acknowledged` is how far the slave's log reaches by its own word, -1 before its first report.
    """

    def __init__(
        self, store: Store, now: float, *, heartbeat_s: float = 5.0, silence_s: float = 20.0
    ) -> None:
        self._store = store
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._frame_bytes = min(store.config.ha_transfer_batch_size, SLAVE_FRAME_MAX - FRAME.size)
        self._partial = b""
        self._next = -1  # physical offset of the next byte to send
        self._sent_at = now
        self._heard_at = now
        self.acknowledged = -1

    @property
    def position(self) -> int:
        """Physical offset of the next byte to send; -1 until the slave has reported."""
        return self._next

    def received(self, data: bytes, now: float) -> None:
        """Take bytes of the slave.

        Raises RemoteProtocolError for an offset that the slave cannot have: one below zero, or above what
        was sent to it. A forged acknowledgement would make a send count as replicated.
        """
        self._heard_at = now
        data = self._partial + data
        whole = len(data) - len(data) % REPORT.size
        self._partial = data[whole:]
        for at in range(0, whole, REPORT.size):
            self._reported(REPORT.unpack_from(data, at)[0])

    def _reported(self, offset: int) -> None:
        if self._next < 0:
            self._open(offset)
        elif not 0 <= offset <= self._next:
            raise RemoteProtocolError(f"the slave acknowledges {offset}, but only {self._next} was sent")
        self.acknowledged = max(self.acknowledged, offset)

    def _open(self, offset: int) -> None:
        low, high = self._store.min_physical_offset, self._store.max_physical_offset
        if not 0 <= offset <= high:
            raise RemoteProtocolError(f"the slave's log reaches {offset}, ours only {high}: it must be cut")
        if offset == 0:
            offset = high - high % self._store.config.mapped_file_size_commit_log
        if offset < low:
            raise RemoteProtocolError(f"the slave's log reaches {offset}, ours begins at {low}: copy it anew")
        self._next = offset

    def frame(self, now: float, most: int | None = None) -> bytes:
        """The next frame to send: log bytes when there are some, a heartbeat when one is due, else nothing.

        `most` bounds the physical offset that may be sent, for a master that sends only what is on its disk.
        """
        if self._next < 0:
            return b""
        limit = self._store.max_physical_offset if most is None else most
        if limit > self._next:
            body = self._store.read_raw(self._next, min(self._frame_bytes, limit - self._next))
            head = FRAME.pack(self._next, len(body))
            self._next += len(body)
            self._sent_at = now
            return head + body
        if now - self._sent_at >= self._heartbeat_s:
            self._sent_at = now
            return FRAME.pack(self._next, 0)
        return b""

    def is_silent(self, now: float) -> bool:
        """Whether the slave said nothing for so long that its link must end."""
        return now - self._heard_at > self._silence_s


class SlaveSession:
    """The slave's end: checks that frames follow its log, and says what to report.

    `append(physical_offset, data)` writes log bytes; `reach()` is how far the log reaches.
    """

    def __init__(
        self,
        append: Callable[[int, memoryview], object],
        reach: Callable[[], int],
        now: float,
        *,
        heartbeat_s: float = 5.0,
        silence_s: float = 20.0,
    ) -> None:
        self._append = append
        self._reach = reach
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._partial = bytearray()
        self._heard_at = now
        self._reported_at = -heartbeat_s + now
        self._reported = -1

    def received(self, data: bytes, now: float) -> int:
        """Take bytes of the master; returns how many log bytes were written.

        Raises RemoteProtocolError for a frame that does not follow the log's end, and StoreError when it
        cannot be written; the link must end then.
        """
        self._heard_at = now
        partial = self._partial
        partial += data
        at = written = 0
        view = memoryview(partial)
        try:
            while len(partial) - at >= FRAME.size:
                offset, size = FRAME.unpack_from(partial, at)
                if not 0 <= size <= SLAVE_FRAME_MAX:
                    raise RemoteProtocolError(f"the master sends a frame of {size} bytes")
                stop = at + FRAME.size + size
                if stop > len(partial):
                    break
                self._check(offset)
                if size:
                    self._append(offset, view[at + FRAME.size : stop])
                    written += size
                at = stop
        finally:
            view.release()
        del partial[:at]
        return written

    def _check(self, offset: int) -> None:
        reach = self._reach()
        if reach not in (0, offset):
            raise RemoteProtocolError(f"the master sends from {offset}, our log reaches {reach}")

    def report(self, now: float) -> bytes:
        """The report to send: at once after the log has grown, else every heartbeat."""
        reach = self._reach()
        if reach == self._reported and now - self._reported_at < self._heartbeat_s:
            return b""
        self._reported, self._reported_at = reach, now
        return REPORT.pack(reach)

    def is_silent(self, now: float) -> bool:
        """Whether the master said nothing for so long that the link must end."""
        return now - self._heard_at > self._silence_s
