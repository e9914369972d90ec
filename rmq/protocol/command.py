"""Commands and their frames: bytes <-> `Command`.

A frame is a 4-byte length (of what follows), 4 bytes of which the first is the serialization type and the
other three the header's length, the header (JSON, or RocketMQ's binary form) and the body. A reply uses the
serialization of its request. `Decoder` takes bytes as they come and gives whole commands.
"""

from __future__ import annotations

from rmq.protocol import engine
from rmq.protocol.frame import JSON, MAX_FRAME, ROCKETMQ, SEND_V2_CODES, Command, next_opaque

__all__ = ["JSON", "MAX_FRAME", "ROCKETMQ", "SEND_V2_CODES", "Command", "Decoder", "encode", "next_opaque"]


def encode(command: Command) -> bytes:
    """The whole frame of `command`, in its own serialization."""
    return engine.encode_frame(command)


class Decoder:
    """Collects bytes and gives commands: `feed` as much or as little as there is.

    Holds at most one unfinished frame. The work is linear in the bytes fed, however they are cut.
    """

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.max_frame = max_frame
        self._partial = bytearray()
        self._wanted = 0  # bytes that the unfinished frame has in all; 0 while its length is unknown

    @property
    def buffered(self) -> int:
        """Bytes of the unfinished frame that are held."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[Command]:
        """The commands that `data` completes.

        Raises RemoteProtocolError, which ends the connection: the stream cannot be read any further.
        """
        if data.__class__ is not bytes:
            data = bytes(data)  # a WebSocket gives bytearrays; the engine keeps slices as keys
        partial = self._partial
        if not partial:
            commands, consumed = engine.split_frames(data, self.max_frame)
            if consumed < len(data):
                self._keep(data, consumed)
            return commands
        partial += data
        if len(partial) < self._wanted or len(partial) < 8:
            return []
        whole = bytes(partial)
        commands, consumed = engine.split_frames(whole, self.max_frame)
        partial.clear()
        self._keep(whole, consumed)
        return commands

    def _keep(self, data: bytes, start: int) -> None:
        self._partial += memoryview(data)[start:]
        self._wanted = engine.frame_size(data, start) if len(data) - start >= 4 else 0
