"""Outbox: bytes that wait to be sent on one connection."""

from __future__ import annotations

from collections.abc import Sequence

from rmq.remoting.stream import Buffer

SMALL_BYTES = 16 * 1024
"""Copying less than this costs less than handing it to the kernel as a piece of its own."""


class Outbox:
    """A queue of buffers. Small ones are joined, large ones (pull replies) go out as they are, uncopied.

    `size` is the number of unsent bytes.
    """

    __slots__ = ("_buffers", "_packed", "size")

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []
        self._packed = 0  # how many of the first buffers are packed already
        self.size = 0

    def add(self, data: Buffer | Sequence[Buffer]) -> None:
        """Queue a buffer, or several in a row; they must not change until they are sent."""
        if isinstance(data, (bytes, bytearray, memoryview)):
            self._buffers.append(data)
            self.size += len(data)
        else:
            self._buffers.extend(data)
            self.size += sum(map(len, data))

    def pieces(self) -> list[Buffer]:
        """All that waits, as few pieces, in order. It stays queued until `drop` says that it was sent."""
        buffers = self._buffers
        fresh = len(buffers) - self._packed
        if fresh > 1:
            if self.size <= SMALL_BYTES:
                buffers[:] = [b"".join(buffers)]
            else:
                buffers[self._packed :] = _pack(buffers[self._packed :])
        self._packed = len(buffers)
        return buffers

    def drop(self, sent: int) -> None:
        """Forget the first `sent` bytes."""
        if sent == self.size:
            self._buffers.clear()
            self._packed = self.size = 0
            return
        self.size -= sent
        done = 0
        for buffer in self._buffers:
            if sent < len(buffer):
                break
            sent -= len(buffer)
            done += 1
        del self._buffers[:done]
        self._packed = max(0, self._packed - done)
        if sent:
            self._buffers[0] = memoryview(self._buffers[0])[sent:]

    def clear(self) -> None:
        self.drop(self.size)


def _pack(buffers: Sequence[Buffer]) -> list[Buffer]:
    packed: list[Buffer] = []
    run: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) < SMALL_BYTES:
            run.append(buffer)
            continue
        if run:
            packed.append(b"".join(run))
            run = []
        packed.append(buffer)
    if run:
        packed.append(b"".join(run))
    return packed
