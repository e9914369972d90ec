"""Commands and their frames: bytes <-> `Command`.

A frame is a 4-byte length (of what follows), 4 bytes of which the first is the serialization type and the
other three the header's length, the header (JSON, or RocketMQ's binary form) and the body. A reply uses the
serialization of its request. `Decoder` takes bytes as they come and gives whole commands.
"""

from __future__ import annotations

from typing import Final

from rmq.protocol import engine
from rmq.protocol.frame import JSON, MAX_FRAME, ROCKETMQ, SEND_V2_CODES, Command, next_opaque

__all__ = ["JSON", "MAX_FRAME", "ROCKETMQ", "SEND_V2_CODES", "Command", "Decoder", "encode", "next_opaque"]


def encode(command: Command) -> bytes:
    """The whole frame of `command`, in its own serialization."""
    return engine.encode_frame(command)


_SMALL_BYTES: Final = 4096
_NO_LIMIT: Final = 0x7FFF_FFFF


class Decoder:
    """Collects bytes and gives commands: `feed` as much or as little as there is.

    Holds at most one unfinished frame. The work is linear in the bytes fed, however they are cut. `feed`
    gives at most `most` commands; `more` says that it may have stopped there, and goes on when it is fed
    nothing. The header of an unfinished frame of more than `ask_from` bytes is shown in `head` before its
    body is collected.
    """

    def __init__(
        self,
        max_frame: int = MAX_FRAME,
        *,
        max_header: int = _NO_LIMIT,
        most: int = _NO_LIMIT,
        ask_from: int = _NO_LIMIT,
    ) -> None:
        self.max_frame = max_frame
        self.max_header = max_header
        self.buffered = 0
        """Bytes of the unfinished frame that are held."""
        self.more = False
        self.head: Command | None = None
        """A command whose body is on its way, to be taken or `skip`ped; whoever looks sets it to None."""
        self.head_body = 0
        """How long that body is."""
        self._most = most
        self._ask_from = ask_from
        self._pieces: list[bytes | bytearray] = []  # of the unfinished frame
        self._wanted = 0  # bytes that it needs to be looked at again: all, or those of its header
        self._unread = 0  # bytes of a skipped frame that are still to come

    def feed(self, data: bytes) -> list[Command]:
        """The commands that `data` completes.

        Raises RemoteProtocolError, which ends the connection: the stream cannot be read any further.
        """
        if data.__class__ is not bytes:
            data = bytes(data)  # a WebSocket gives bytearrays; the engine keeps slices as keys
        if self._unread:
            skipped = min(self._unread, len(data))
            self._unread -= skipped
            data = data[skipped:]
        self.more = False
        if self._pieces:
            self._add(data)
            if self.buffered < self._wanted:
                return []
            # One join, however many pieces there are: a large frame is copied once.
            data = b"".join(self._pieces)
            self._pieces.clear()
            self.buffered = 0
        commands, consumed = engine.split_frames(data, self.max_frame, self.max_header, self._most)
        if consumed < len(data):
            self._keep(data[consumed:])
            self.more = len(commands) >= self._most
        return commands

    def skip(self) -> None:
        """Drop the unfinished frame, also what of it is still to come."""
        self._unread = max(0, engine.frame_size(b"".join(self._pieces), 0) - self.buffered)
        self._pieces.clear()
        self.buffered = 0

    def clear(self) -> None:
        """Drop the unfinished frame; nothing can be fed after it."""
        self._pieces.clear()
        self.buffered = 0

    def _add(self, data: bytes) -> None:
        if len(data) < _SMALL_BYTES:  # else a peer could make us hold an object for each byte
            if self._pieces[-1].__class__ is not bytearray:
                self._pieces.append(bytearray())
            self._pieces[-1] += data
        else:
            self._pieces.append(data)
        self.buffered += len(data)

    def _keep(self, rest: bytes) -> None:
        self._pieces.append(rest)
        self.buffered = len(rest)
        if len(rest) < 8:
            self._wanted = 8
            return
        self._wanted = max(8, engine.frame_size(rest, 0))
        if self._wanted > max(self._ask_from, len(rest)):
            head = engine.head_size(rest)
            if len(rest) < head:
                self._wanted = head
            else:
                self.head, self.head_body = engine.read_head(rest)
