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


class Decoder:
    """Collects bytes and gives commands: `feed` as much or as little as there is.

    Holds at most one unfinished frame. The work is linear in the bytes fed, however they are cut.
    """

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.max_frame = max_frame
        self.buffered = 0
        """Bytes of the unfinished frame that are held."""
        self._pieces: list[bytes | bytearray] = []  # of the unfinished frame
        self._wanted = 0  # bytes that it has in all; 8 while its length is unknown

    def feed(self, data: bytes) -> list[Command]:
        """The commands that `data` completes.

        Raises RemoteProtocolError, which ends the connection: the stream cannot be read any further.
        """
        if data.__class__ is not bytes:
            data = bytes(data)  # a WebSocket gives bytearrays; the engine keeps slices as keys
        if self._pieces:
            self._add(data)
            if self.buffered < self._wanted:
                return []
            # One join, however many pieces there are: a large frame is copied once.
            data = b"".join(self._pieces)
            self._pieces.clear()
            self.buffered = 0
        commands, consumed = engine.split_frames(data, self.max_frame)
        if consumed < len(data):
            self._keep(data[consumed:])
        return commands

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
        self._wanted = max(8, engine.frame_size(rest, 0)) if len(rest) >= 4 else 8
