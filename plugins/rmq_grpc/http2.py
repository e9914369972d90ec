"""HTTP/2 of one connection: h2's, with a short way for the requests and answers that most calls have.

h2 makes an object of each frame and asks its state machine for each step: for the headers and data of a
request, and for the headers, data and trailers of a good answer, that is half of a short call. `take_request`
and `send_answer` read and write these frames at once, where h2's own state says that all of it is allowed,
and leave that state as h2 would. All other frames go to h2, and all frames do if h2 lacks one of the parts
that are not public.
"""

from __future__ import annotations

from typing import Any, Final

import h2.config
import h2.connection
from h2.connection import AllowedStreamIDs, ConnectionState
from h2.exceptions import ProtocolError
from h2.stream import H2Stream, StreamClosedBy, StreamState
from hyperframe.frame import WindowUpdateFrame

from rmq_grpc.headers import DONE_BLOCK, HEAD_BLOCK, HeaderEncoder

_HEADERS, _TRAILERS = b"\1\4", b"\1\5"
"""Types and flags of the frames: HEADERS that end their block, and that end the stream, too."""
_DATA, _LAST_DATA = b"\0\0", b"\0\1"
_PARTS: Final = (
    "_begin_new_stream",
    "_data_to_send",
    "_inbound_flow_control_window_manager",
    "_prepare_for_sending",
    "_terminate_connection",
    "incoming_buffer",
)
_PARTS_OF_STREAMS: Final = ("_initialize_content_length", "_track_content_length")
_decode_headers: Any = getattr(h2.connection, "_decode_headers", None)


class Http2(h2.connection.H2Connection):
    """h2's connection, but one that continues after the peer's GOAWAY: a client that is closing sends it
    first, then ends its calls, and waits for their statuses. h2 takes GOAWAY for the end of all."""

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
        self._may_shorten = (
            _decode_headers is not None
            and all(hasattr(self, name) for name in _PARTS)
            and all(hasattr(H2Stream, name) for name in _PARTS_OF_STREAMS)
        )

    def _receive_goaway_frame(self, frame: Any) -> tuple[list[Any], list[Any]]:
        return [], []

    def take_request(self, data: bytes, at: int) -> tuple[int, Any, bytes, int] | None:
        """The request that stands whole at a place in the peer's bytes: a frame with all of its headers, and
        a frame with all of its data. Its stream, headers, data and end; None where h2 must handle it. Raises
        h2's ProtocolError as `receive_data` does."""
        if not self._may_shorten:
            return None
        buffer = self.incoming_buffer
        middle = at + 9 + int.from_bytes(data[at : at + 3], "big")
        end = middle + 9 + int.from_bytes(data[middle : middle + 3], "big")
        size, most = end - middle - 9, self.max_inbound_frame_size
        if (
            data[at + 3 : at + 5] != _HEADERS
            or data[middle + 3 : middle + 5] != _LAST_DATA
            or data[at + 5 : at + 9] != data[middle + 5 : middle + 9]
            or end > len(data)
            or not 0
            < size
            <= min(most, self.inbound_flow_control_window, self.local_settings.initial_window_size)
            or middle - at - 9 > most
            or buffer._data
            or buffer._preamble_len
            or buffer._headers_buffer
            or self.state_machine.state is not ConnectionState.SERVER_OPEN
        ):
            return None
        stream_id = int.from_bytes(data[at + 5 : at + 9], "big")
        if stream_id <= self.highest_inbound_stream_id or not stream_id & 1 or stream_id >> 31:
            return None
        if self.open_inbound_streams >= self.local_settings.max_concurrent_streams:
            return None
        try:
            headers = _decode_headers(self.decoder, data[at + 9 : middle])
            stream = self._begin_new_stream(stream_id, AllowedStreamIDs.ODD)
            stream._initialize_content_length(headers)
            stream._track_content_length(size, True)
        except ProtocolError as error:
            self._terminate_connection(error.error_code)
            raise
        machine = stream.state_machine
        machine.client, machine.headers_received = False, True
        machine.state = StreamState.HALF_CLOSED_REMOTE
        window = self._inbound_flow_control_window_manager
        window.window_consumed(size)
        if increment := window.process_bytes(size):
            frame = WindowUpdateFrame(0)
            frame.window_increment = increment
            self._prepare_for_sending([frame])
        return stream_id, headers, data[middle + 9 : end], end

    def send_answer(self, stream_id: int, data: bytes) -> bool:
        """Send a good answer as a whole: `HEAD`, data, `DONE`. False, with nothing done, if it cannot be sent
        now, or must be sent step by step."""
        stream = self.streams.get(stream_id)
        if stream is None or self.encoder.table_size_changes or not self._may_shorten:
            return False
        machine, size = stream.state_machine, len(data)
        room = min(stream.outbound_flow_control_window, self.outbound_flow_control_window)
        if machine.state is not StreamState.HALF_CLOSED_REMOTE or machine.headers_sent or size > room:
            return False
        number, most = stream_id.to_bytes(4, "big"), self.max_outbound_frame_size
        parts = [len(HEAD_BLOCK).to_bytes(3, "big"), _HEADERS, number, HEAD_BLOCK]
        for at in range(0, size, most):
            piece = data[at : at + most]
            parts += (len(piece).to_bytes(3, "big"), _DATA, number, piece)
        parts += (len(DONE_BLOCK).to_bytes(3, "big"), _TRAILERS, number, DONE_BLOCK)
        self._data_to_send += b"".join(parts)
        stream.outbound_flow_control_window -= size
        self.outbound_flow_control_window -= size
        machine.headers_sent = machine.trailers_sent = True
        machine.state, machine.stream_closed_by = StreamState.CLOSED, StreamClosedBy.SEND_END_STREAM
        return True
