"""HTTP/2 of one connection: h2's, with a short way for the answers that most calls get.

h2 makes an object of each frame and asks its state machine for each step of an answer: with the headers, the
data and the trailers of a good answer that is a quarter of a short call. `send_answer` writes these frames at
once, where h2's own state says that all of it may be sent now, and leaves that state as h2 would.
"""

from __future__ import annotations

from typing import Any

import h2.config
import h2.connection
from h2.stream import StreamClosedBy, StreamState

from rmq_grpc.headers import DONE, HEAD, HeaderEncoder, block_of

_HEADERS, _TRAILERS = b"\1\4", b"\1\5"
"""Types and flags of the frames: HEADERS that end their block, and that end the stream, too."""
_DATA = b"\0\0"
_HEAD_BLOCK, _DONE_BLOCK = block_of(HEAD), block_of(DONE)


class Http2(h2.connection.H2Connection):
    """h2's connection, but one that goes on after the peer's GOAWAY: a client that is closing sends it first,
    then ends its calls, and waits for their statuses. h2 takes GOAWAY for the end of all."""

    def __init__(self) -> None:
        config = h2.config.H2Configuration(
            client_side=False,
            header_encoding=None,  # `headers.checked` decodes and checks those of requests
            validate_inbound_headers=False,
            normalize_inbound_headers=False,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        super().__init__(config)
        self.encoder = HeaderEncoder()

    def _receive_goaway_frame(self, frame: Any) -> tuple[list[Any], list[Any]]:
        return [], []

    def send_answer(self, stream_id: int, data: bytes) -> bool:
        """Send a good answer as a whole: `HEAD`, data, `DONE`. False, with nothing done, where it cannot be
        sent now, or has to be sent step by step."""
        stream = self.streams.get(stream_id)
        if stream is None or self.encoder.table_size_changes:
            return False
        machine, size = stream.state_machine, len(data)
        room = min(stream.outbound_flow_control_window, self.outbound_flow_control_window)
        if machine.state is not StreamState.HALF_CLOSED_REMOTE or machine.headers_sent or size > room:
            return False
        number, most = stream_id.to_bytes(4, "big"), self.max_outbound_frame_size
        parts = [len(_HEAD_BLOCK).to_bytes(3, "big"), _HEADERS, number, _HEAD_BLOCK]
        for at in range(0, size, most):
            piece = data[at : at + most]
            parts += (len(piece).to_bytes(3, "big"), _DATA, number, piece)
        parts += (len(_DONE_BLOCK).to_bytes(3, "big"), _TRAILERS, number, _DONE_BLOCK)
        self._data_to_send += b"".join(parts)
        stream.outbound_flow_control_window -= size
        self.outbound_flow_control_window -= size
        machine.headers_sent = machine.trailers_sent = True
        machine.state, machine.stream_closed_by = StreamState.CLOSED, StreamClosedBy.SEND_END_STREAM
        return True
