"""HTTP/2 of one connection: h2's, with a short way for the requests and answers that most calls have.

h2 makes an object of each frame and of each stream, and asks its state machine for each step: for the headers
and data of a request, and for the headers, data and trailers of a good answer, that is half of a short call.
`take_request` and `send_answer` read and write these frames at once, where h2's own state says that all of it
is allowed. A stream between the two is *brief*: h2 does not know it. Before h2 handles a frame, or sends an
answer step by step, it gets the brief streams in the state in which they would be. All other frames go to h2,
and all frames do if h2 lacks one of the parts that are not public.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import h2.config
import h2.connection
from h2.connection import AllowedStreamIDs, ConnectionState
from h2.events import Event, PingReceived, WindowUpdated
from h2.exceptions import ProtocolError
from h2.stream import H2Stream, StreamClosedBy, StreamState
from hyperframe.frame import WindowUpdateFrame

from rmq.errors import RemoteProtocolError
from rmq_grpc.headers import DONE_BLOCK, HEAD_BLOCK, HeaderEncoder, checked

_frame: Final = struct.Struct(">BHBBI").unpack_from
"""Length (in two parts), type, flags and stream of a frame."""
_HEADERS, _TRAILERS = b"\1\4", b"\1\5"
"""Types and flags of the frames: HEADERS that end their block, and that end the stream, too."""
_WITH_PRIORITY: Final = 0x24
_HEADERS_WHOLE: Final = (4, _WITH_PRIORITY)
"""Flags of HEADERS that end their block, and not the stream."""
_DATA, _LAST_DATA = b"\0\0", b"\0\1"
_EMPTY: Final = bytes(3) + _LAST_DATA
_WINDOW_UPDATE, _PING, _PONG = b"\0\0\4\x08", b"\0\0\x08\6\0", b"\0\0\x08\6\1"
"""Lengths, types and flags of small frames; the flags of the first do not matter."""
_WINDOW_MOST: Final = (1 << 31) - 1
_STREAM_MOST: Final = (1 << 31) - 1
_HEAD: Final = len(HEAD_BLOCK).to_bytes(3, "big") + _HEADERS
_DONE: Final = len(DONE_BLOCK).to_bytes(3, "big") + _TRAILERS
_OPEN: Final = ConnectionState.SERVER_OPEN
_PARTS: Final = (
    "_begin_new_stream",
    "_closed_streams",
    "_data_to_send",
    "_inbound_flow_control_window_manager",
    "_prepare_for_sending",
    "_terminate_connection",
    "incoming_buffer",
)
_PARTS_OF_STREAMS: Final = ("_initialize_content_length", "_track_content_length")
_decode_headers: Any = getattr(h2.connection, "_decode_headers", None)
USELESS: Final = Event()
"""In the place of an event, where a frame has none: it is late for its stream."""
STREAMS_KEPT: Final = 16
"""Streams that h2 keeps, above which its closed streams are dropped with each request."""
COUNTED_BYTES: Final = 64 * 1024
"""Bytes of requests that h2 counts together."""


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
        self._brief: dict[int, int] = {}  # streams that h2 does not know, with the room that was granted
        self._answered: list[int] = []  # the same, answered since the last request
        self._received = 0  # bytes of the windows, of which h2 does not know
        self._is_between = False  # h2 waits for no rest of a frame, nor of headers
        self._request_most = self._frame_most = self._streams_most = self._answer_room = 0

    @property
    def inbound_flow_control_window(self) -> int:
        """Same as h2's."""
        return super().inbound_flow_control_window - self._received

    def _receive_goaway_frame(self, frame: Any) -> tuple[list[Any], list[Any]]:
        return [], [USELESS]

    def _receive_rst_stream_frame(self, frame: Any) -> tuple[list[Any], list[Any]]:
        frames, events = super()._receive_rst_stream_frame(frame)
        return frames, events or [USELESS]

    def _receive_window_update_frame(self, frame: Any) -> tuple[list[Any], list[Any]]:
        frames, events = super()._receive_window_update_frame(frame)
        return frames, events or [WindowUpdated(stream_id=frame.stream_id, delta=frame.window_increment)]

    def receive_data(self, data: Any) -> list[Any]:
        """Same as h2's."""
        if not self._may_shorten:
            return super().receive_data(data)
        if self._received:
            self._count_received()
        for stream_id in self._answered:
            self._make_known(stream_id, is_answered=True)
        self._answered.clear()
        for stream_id in list(self._brief):
            self.reveal(stream_id)
        events = super().receive_data(data)
        buffer, settings = self.incoming_buffer, self.local_settings
        self._is_between = not (buffer._data or buffer._preamble_len or buffer._headers_buffer)
        self._frame_most = self.max_inbound_frame_size
        self._request_most = min(self._frame_most, settings.initial_window_size)
        self._streams_most = settings.max_concurrent_streams
        self._answer_room = self.remote_settings.initial_window_size
        return events

    def take_request(self, data: bytes, at: int) -> tuple[int, dict[str, str], int, int, int] | None:
        """The request that stands whole at a place in the peer's bytes: a frame with all of its headers, and
        a frame with all of its data. Its stream and headers, begin and end of its data, and its end; None
        where h2 must handle it. Raises h2's ProtocolError as `receive_data` does, and RemoteProtocolError as
        `checked`."""
        if not self._is_between:
            return None
        size = len(data)
        if size - at < 18:
            return None
        high, low, kind, flags, stream_id = _frame(data, at)
        block = at + 9
        middle = block + (high << 16) + low
        if kind != 1 or flags not in _HEADERS_WHOLE or middle + 9 > size:
            return None
        if flags == _WITH_PRIORITY:  # as Java's clients begin
            if data[block : block + 4] == data[at + 5 : block]:
                return None
            block += 5
        high, low, kind, flags, same_id = _frame(data, middle)
        begin, size = middle + 9, (high << 16) + low
        end = begin + size
        if kind or flags > 1 or same_id != stream_id:
            return None
        stop = end
        if not flags:  # an empty frame ends the request, as Node's clients do
            end += 9
            if data[end - 9 : end] != _EMPTY + data[at + 5 : at + 9]:
                return None
        window = self._inbound_flow_control_window_manager.current_window_size
        if (
            end > len(data)
            or not 0 < size <= self._request_most
            or size > window - self._received
            or not 0 < middle - block <= self._frame_most - 5
            or self.state_machine.state is not _OPEN
            or not stream_id & 1
            or not self.highest_inbound_stream_id < stream_id <= _STREAM_MOST
        ):
            return None
        if self._answered:
            for answered in self._answered:
                self._closed_streams[answered] = StreamClosedBy.SEND_END_STREAM
            self._answered.clear()
        known = len(self.streams)
        if known > STREAMS_KEPT:
            known = self.open_inbound_streams
        if known + len(self._brief) >= self._streams_most:
            return None
        try:
            encoded = _decode_headers(self.decoder, data[block:middle])
        except ProtocolError as error:
            self._terminate_connection(error.error_code)
            raise
        self.highest_inbound_stream_id = stream_id
        self._brief[stream_id] = 0
        try:
            headers = checked(encoded)
        except RemoteProtocolError:
            self._check_length(stream_id, encoded, size)  # h2 looks at it first
            raise
        if "content-length" in headers:
            self._check_length(stream_id, encoded, size)
        self._received += size
        if self._received >= COUNTED_BYTES:
            self._count_received()
        return stream_id, headers, begin, stop, end

    def is_cut(self, data: bytes, at: int) -> bool:
        """True if the bytes from a place on are the begin of a request that `take_request` may take when the
        rest has come: they end within the frame of its headers, or within that of its data."""
        end = len(data)
        if not self._is_between or self.state_machine.state is not _OPEN:
            return False
        if end - at < 9:
            return True
        high, low, kind, flags, stream_id = _frame(data, at)
        size = (high << 16) + low
        if kind != 1 or flags not in _HEADERS_WHOLE or size > self._frame_most:
            return False
        middle = at + 9 + size
        if end - middle < 9:
            return bool(end != middle)  # with all of its headers, and nothing else, a call begins
        high, low, kind, flags, same_id = _frame(data, middle)
        size = (high << 16) + low
        if kind or flags > 1 or same_id != stream_id or size > self._request_most:
            return False
        return bool(middle + 9 + size > end)

    def take_small(self, data: bytes, at: int) -> tuple[Event, int] | None:
        """The frame at a place in the peer's bytes that grants room, or is a ping: h2's event, and the end of
        the frame. None where h2 must handle it."""
        if not self._is_between or self.state_machine.state is not _OPEN:
            return None
        if data[at : at + 9] == _PING + bytes(4) and at + 17 <= len(data):
            self._data_to_send += _PONG + bytes(4) + data[at + 9 : at + 17]
            return PingReceived(ping_data=data[at + 9 : at + 17]), at + 17
        if data[at : at + 4] != _WINDOW_UPDATE or at + 13 > len(data):
            return None
        stream_id = int.from_bytes(data[at + 5 : at + 9], "big")
        increment = int.from_bytes(data[at + 9 : at + 13], "big")
        if stream_id in self._brief:
            room = self._answer_room + self._brief[stream_id] + increment
            if not 0 < increment <= room <= _WINDOW_MOST:
                return None
            self._brief[stream_id] += increment
        elif not stream_id:
            room = self.outbound_flow_control_window + increment
            if not 0 < increment <= room <= _WINDOW_MOST:
                return None
            self.outbound_flow_control_window = room
        else:
            return None
        return WindowUpdated(stream_id=stream_id, delta=increment), at + 13

    def _check_length(self, stream_id: int, headers: Any, size: int) -> None:
        """Raise h2's ProtocolError if a request has another length than it says."""
        stream = self._make_known(stream_id)
        try:
            stream._initialize_content_length(headers)
            stream._track_content_length(size, True)
        except ProtocolError as error:
            self._terminate_connection(error.error_code)
            raise

    def _count_received(self) -> None:
        """Let h2 count the bytes of requests, and grant the peer as many at times."""
        window = self._inbound_flow_control_window_manager
        window.window_consumed(self._received)
        increment = window.process_bytes(self._received)
        self._received = 0
        if increment:
            frame = WindowUpdateFrame(0)
            frame.window_increment = increment
            self._prepare_for_sending([frame])

    def reveal(self, stream_id: int) -> None:
        """Make a brief stream known to h2, before a call of h2 for this stream."""
        if stream_id in self._brief:
            self._make_known(stream_id)

    def _make_known(self, stream_id: int, *, is_answered: bool = False) -> Any:
        granted = self._brief.pop(stream_id, 0)
        highest, self.highest_inbound_stream_id = self.highest_inbound_stream_id, stream_id - 2
        stream = self._begin_new_stream(stream_id, AllowedStreamIDs.ODD)
        self.highest_inbound_stream_id = highest
        stream.outbound_flow_control_window += granted
        machine = stream.state_machine
        machine.client, machine.headers_received, machine.state = False, True, StreamState.HALF_CLOSED_REMOTE
        if is_answered:
            _close(machine)
        return stream

    def has_room(self, count: int, size: int) -> bool:
        """True if `count` brief streams may be answered at once, each by at most `size` bytes of data."""
        return (
            not self.encoder.table_size_changes
            and size <= min(self._answer_room, self.max_outbound_frame_size)
            and count * size <= self.outbound_flow_control_window
        )

    def send_answers(self, stream_ids: Sequence[int], frames: bytes, size: int) -> None:
        """Send whole answers of brief streams, after `has_room`: all their frames, `size` bytes of data among
        them."""
        self._data_to_send += frames
        self.outbound_flow_control_window -= size
        for stream_id in stream_ids:
            del self._brief[stream_id]
        self._answered += stream_ids

    def send_answer(self, stream_id: int, data: bytes | bytearray) -> bool:
        """Send a good answer as a whole: `HEAD`, data, `DONE`. False, with nothing done and the stream known
        to h2, if it cannot be sent now, or must be sent step by step."""
        size, stream = len(data), None
        if (granted := self._brief.get(stream_id)) is not None:
            room = self._answer_room + granted
        else:
            stream = self.streams.get(stream_id)
            if stream is None or not self._may_shorten:
                return False
            machine, room = stream.state_machine, stream.outbound_flow_control_window
            if machine.state is not StreamState.HALF_CLOSED_REMOTE or machine.headers_sent:
                return False
        if self.encoder.table_size_changes or size > min(room, self.outbound_flow_control_window):
            self.reveal(stream_id)
            return False
        number, most = stream_id.to_bytes(4, "big"), self.max_outbound_frame_size
        parts: list[Any] = [_HEAD, number, HEAD_BLOCK]
        whole = memoryview(data)
        for at in range(0, size, most):
            piece = whole[at : at + most]
            parts += (len(piece).to_bytes(3, "big"), _DATA, number, piece)
        parts += (_DONE, number, DONE_BLOCK)
        self._data_to_send += b"".join(parts)
        self.outbound_flow_control_window -= size
        if stream is None:
            del self._brief[stream_id]
            self._answered.append(stream_id)
        else:
            stream.outbound_flow_control_window -= size
            _close(machine)
        return True


def _close(machine: Any) -> None:
    """Put the state of a stream behind the end of its answer."""
    machine.headers_sent = machine.trailers_sent = True
    machine.state, machine.stream_closed_by = StreamState.CLOSED, StreamClosedBy.SEND_END_STREAM
