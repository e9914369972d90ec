"""gRPC over HTTP/2 on a door's stream: calls come in, messages and a status go out.

HTTP/2 is the library h2's, which has no I/O of its own. This module holds the framing of gRPC (a byte for
compression, the length of the message in 4 bytes, the message), the flow control of the answers, and the
bounds on a peer: calls at a time, bytes of unfinished requests, answers that wait, and frames that only cost
work. A call has no task: its service is called with each message, and answers now or later.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from rmq.errors import RemoteProtocolError
from rmq_grpc.headers import DONE, HEAD, HeaderDecoder, Headers, checked
from rmq_grpc.http2 import USELESS, Http2
from rmq_grpc.plain import ANSWER_BYTES

if TYPE_CHECKING:
    from rmq.errors import RmqError
    from rmq.plugin import DoorStream
    from rmq_grpc.plain import PlainClient

log = logging.getLogger("rmq.grpc")

OK: Final = 0
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
"""Statuses of gRPC; OK also where the answer itself has the error."""

CALLS_MAX: Final = 1_000
"""Calls of one connection at a time."""
CALL_BYTES: Final = 2_048
"""Bytes that a call without a whole request counts in the memory budget."""
HEADER_BYTES: Final = 16 * 1024
"""Bytes of all headers of a call."""
WINDOW_BYTES: Final = 1 << 20
"""Bytes that a peer may send ahead on one call."""
CONNECTION_WINDOW_BYTES: Final = 8 << 20
REQUESTS_BYTES: Final = 32 << 20
"""Bytes of unfinished requests of one connection."""
ANSWERS_BYTES: Final = 32 << 20
"""Bytes of answers that wait for the peer's flow control."""
REQUEST_SECONDS: Final = 60.0
"""Seconds within which a request must be complete."""
CUT_SECONDS: Final = 1.0
"""Seconds for which the begin of a request waits for its rest as it came; then its call begins."""
STRIKES_MAX: Final = 2_000
STRIKES_SECONDS: Final = 10.0
"""Frames that only cost work (resets count as 10, pings and settings as 5), in so many seconds. Frames that
grant room count where they are more than two for a message that was sent, and pings where they are more
than one: gRPC's libraries measure the connection by a ping for data that comes. The priority that begins a
call, and the empty frame that ends one, belong to the call."""
_IDLE: Final = (h2.events.PriorityUpdated, h2.events.UnknownFrameReceived)
"""Events of frames that do nothing here."""
KNOWN_TIMEOUTS: Final = 256
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class Call:
    """One call: its method, its metadata, and the functions that answer it."""

    __slots__ = (
        "_connection",
        "_has_head",
        "_inflow",
        "_outbox",
        "_put",
        "_trailers",
        "began",
        "deadline",
        "has_begun",
        "is_over",
        "metadata",
        "method",
        "on_cancel",
        "stream_id",
    )

    def __init__(
        self, connection: Calls, stream_id: int, method: str, metadata: Mapping[str, str], now: float
    ) -> None:
        self.method = method
        self.metadata = metadata
        self.stream_id = stream_id
        self.began = now
        self.deadline = now + _timeout(metadata.get("grpc-timeout", ""))
        """Time on the host's clock after which the peer does not wait any more."""
        self.is_over = False
        """True if the call was answered or cancelled: nothing that is sent reaches the peer."""
        self.on_cancel: Callable[[], None] | None = None
        """Called when the peer cancels the call, or its connection ends."""
        self.has_begun = False
        self._connection = connection
        self._inflow = bytearray()
        self._outbox: bytes | bytearray = b""
        self._put = 0  # messages in the outbox since its bytes were sent last
        self._has_head = False
        self._trailers: Headers = DONE

    def send(self, *messages: bytes) -> None:
        """Send messages of the answer, soon."""
        if not self.is_over:
            self._connection.put(self, _framed(messages), len(messages))

    def answer(self, message: Any) -> None:
        """Answer the call by one protobuf message."""
        self.answer_by(message.SerializeToString())

    def answer_by(self, *messages: bytes) -> None:
        """Answer the call by encoded messages, the last ones."""
        if not self.is_over:
            self.is_over = True
            self._connection.put(self, _framed(messages), len(messages))

    def finish(self, status: int = OK, text: str = "") -> None:
        """End the call behind the messages that were sent, with a status of gRPC."""
        if not self.is_over:
            self.is_over = True
            self._connection.end(self, status, text)


Turn = Callable[[Callable[[], None]], None]
Request = tuple[int, dict[str, str], int, int, int]
"""Stream and headers of a request, begin and end of its data, and its end in the bytes that were read."""


def _at_once(work: Callable[[], None]) -> None:
    work()


class Service(Protocol):
    """The methods behind the calls of one connection."""

    def begins(self, call: Call) -> bool:
        """True if a method of this name exists; else the call is answered UNIMPLEMENTED."""

    def handle(self, call: Call, message: bytes) -> None:
        """Take one message of a call. An exception ends the call with INTERNAL and is logged."""

    def plain(self, headers: Mapping[str, str]) -> PlainClient | None:
        """The client whose request may be a plain send, by its headers; None for other requests."""

    def now_ms(self) -> int:
        """Wall time in ms."""

    def refused(self, call: Call, error: RmqError) -> None:
        """Answer a plain send that is not known to be stored."""

    def half_closed(self, call: Call) -> None:
        """Note that the peer sends no more messages on this call."""


class Calls:
    """The calls of one connection. `clock` gives seconds, `most_bytes` bounds one request. `soon(call)` calls
    a function at the end of this round of the loop, so that its answers leave together."""

    def __init__(
        self,
        stream: DoorStream,
        service: Service,
        *,
        clock: Callable[[], float],
        most_bytes: int,
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self._stream = stream
        self._service = service
        self._clock = clock
        self._most_bytes = most_bytes
        self._soon = soon
        self._is_feeding = False
        self._due: dict[int, Call] = {}  # their answers are not given to h2 yet
        self._open: dict[int, Call] = {}
        self._waiting: dict[int, Call] = {}  # whose answers wait for the peer's flow control
        self._waiting_since = math.inf  # when the peer granted room for an answer last
        self._unfinished: dict[int, float] = {}  # calls without the rest of a message: since when
        self._request_bytes = self._answer_bytes = self._incomplete = 0
        self._strikes, self._strikes_since = 0, clock()
        self._grants = 0  # frames that grant room: those of a peer that reads, one of the call's, one of all
        self._pings = 0  # pings: those of a peer that reads
        self._cut = b""  # the begin of a request, whose rest may come with the next read
        self._cut_since = math.inf  # when this begin came
        self._is_late = False  # the begin goes to h2, as its rest has not come
        self._priority: Any = None  # that of the call which begins
        self._plain: PlainClient | None = None  # the client of the plain sends that are not stored yet
        self._run: list[Request] = []  # these sends
        self._run_data = b""  # the bytes that have brought them
        self._is_stopping = False
        self._h2 = connection = Http2()
        codes = h2.settings.SettingCodes
        connection.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                codes.MAX_CONCURRENT_STREAMS: CALLS_MAX,
                codes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
                codes.MAX_HEADER_LIST_SIZE: HEADER_BYTES,
                codes.MAX_FRAME_SIZE: 16_384,
            },
        )
        connection.decoder = HeaderDecoder(HEADER_BYTES)
        connection.initiate_connection()
        connection.increment_flow_control_window(CONNECTION_WINDOW_BYTES - 65_535)
        self._flush()

    # ---- bytes ----

    def feed(self, data: bytes, turn: Turn = _at_once) -> None:
        """Take bytes of the peer. Raises RemoteProtocolError when they are not HTTP/2, or cost too much.
        `turn` is that of the host: the answers that come in it leave together."""
        self._is_feeding = True
        if self._cut:
            data, self._cut = self._cut + data, b""
        try:
            turn(partial(self._feed, data))
        finally:
            self._is_feeding = False
        self._flush()
        if not self._waiting:
            self._hold()
        if self._strikes > STRIKES_MAX:
            self._h2.close_connection(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            self._flush()
            raise RemoteProtocolError(f"{self._strikes} useless frames within {STRIKES_SECONDS:g} s")

    def _feed(self, data: bytes) -> None:
        try:
            at, connection = 0, self._h2
            while at < len(data):
                if (request := connection.take_request(data, at)) is not None:
                    at = request[4]
                    if not self._take_plain(data, request):
                        self._on_whole_request(data, *request[:4])
                elif (small := connection.take_small(data, at)) is not None:
                    event, at = small
                    self._take(event)
                elif not self._is_late and connection.is_cut(data, at):
                    if at or self._cut_since == math.inf:
                        self._cut_since = self._clock()
                    self._cut = data[at:]
                    break
                else:
                    self._store_run()
                    for event in connection.receive_data(data[at:]):
                        self._take(event)
                    break
            if not self._cut:
                self._cut_since = math.inf
            self._store_run()
        except h2.exceptions.ProtocolError as error:
            self._store_run()
            self._flush()  # it says why
            raise RemoteProtocolError(f"HTTP/2: {error or type(error).__name__}") from None
        except RemoteProtocolError:
            self._store_run()
            self._h2.close_connection(h2.errors.ErrorCodes.PROTOCOL_ERROR)
            self._flush()
            raise

    def _flush(self) -> None:
        """Send the answers, as far as the peer's flow control allows."""
        while self._due:
            due, self._due = self._due, {}
            for call in due.values():
                self._push(call)
        if self._waiting:
            self._hold()
        data = self._h2.data_to_send()
        if data:
            self._stream.send(data)

    def _flush_soon(self) -> None:
        if not self._is_feeding:  # which ends by a flush
            self._soon(self._flush)

    def _take(self, event: Any) -> None:
        if isinstance(event, h2.events.DataReceived):
            self._on_data(event)
        elif isinstance(event, h2.events.RequestReceived):
            self._on_request(event.stream_id, event.headers, event.priority_updated)
        elif isinstance(event, h2.events.StreamEnded):
            call = self._open.get(event.stream_id)
            if call is not None and not call.is_over:
                self._end_of_request(call)
        elif isinstance(event, h2.events.StreamReset):
            self._strike(10)
            self._forget(self._open.get(event.stream_id), is_cancelled=True)
        elif isinstance(event, h2.events.WindowUpdated):
            if self._grants > 0:
                self._grants -= 1
            else:
                self._strike(1)
            self._on_window(event.stream_id)
        elif isinstance(event, h2.events.RemoteSettingsChanged):
            self._strike(5)
            self._on_window(0)
        elif isinstance(event, h2.events.PingReceived):
            if self._pings > 0:
                self._pings -= 1
            else:
                self._strike(5)
        elif event is USELESS or (isinstance(event, _IDLE) and event is not self._priority):
            self._strike(1)

    def _strike(self, count: int) -> None:
        now = self._clock()
        if now - self._strikes_since > STRIKES_SECONDS:
            self._strikes, self._strikes_since = 0, now
        self._strikes += count

    # ---- plain sends ----

    def _take_plain(self, data: bytes, request: Request) -> bool:
        """Take a plain send into the run of its client; False for any other request, after the run before
        it was stored."""
        stream_id, headers, begin, stop, _ = request
        client = None if self._is_stopping else self._service.plain(headers)
        if self._plain is not None and client is not self._plain:
            self._store_run()
        if client is not None:
            size = stop - begin - 5
            if (
                size > 0
                and not data[begin]
                and size == int.from_bytes(data[begin + 1 : begin + 5], "big") <= self._most_bytes
                and client.take(data, begin + 5, stop, stream_id, self._service.now_ms())
            ):
                self._plain = client
                self._run.append(request)
                self._run_data = data
                return True
        if self._plain is not None:
            self._store_run()
        return False

    def _store_run(self) -> None:
        """Store the plain sends that were taken, and answer them."""
        client = self._plain
        if client is None:
            return
        self._plain = None
        run, data, connection = self._run, self._run_data, self._h2
        self._run, self._run_data = [], b""
        outcome = None
        if connection.has_room(len(run), ANSWER_BYTES):
            outcome = client.store()
        else:
            client.drop()
        if isinstance(outcome, tuple):
            connection.send_answers([request[0] for request in run], *outcome)
            self._grants += 2 * len(run)
            self._pings += len(run)
            return
        for request in run:
            if outcome is None:
                self._on_whole_request(data, *request[:4])
            else:
                self._service.refused(self._begin(*request[:2]), outcome)

    # ---- requests ----

    def _on_whole_request(
        self, data: bytes, stream_id: int, headers: dict[str, str], begin: int, stop: int
    ) -> None:
        call = self._begin(stream_id, headers)
        if call.is_over:
            return
        body = data[begin:stop]
        size = len(body) - 5
        if size >= 0 and not body[0] and size == int.from_bytes(body[1:5], "big") <= self._most_bytes:
            self._serve(call, body[5:])
        else:
            self._unfinished[call.stream_id] = call.began
            self._take_bytes(call, body)
        if not call.is_over:
            self._end_of_request(call)

    def _on_request(self, stream_id: int, encoded: Any, priority: Any) -> None:
        headers = checked(encoded)
        self._priority = priority
        call = self._begin(stream_id, headers)
        if not call.is_over:
            self._unfinished[stream_id] = call.began

    def _begin(self, stream_id: int, headers: dict[str, str]) -> Call:
        """The call of a request, which is over if the request is refused."""
        call = Call(self, stream_id, headers.get(":path", ""), headers, self._clock())
        self._open[stream_id] = call
        self._incomplete += 1
        kind = headers.get("content-type", "")
        if headers.get(":method") != "POST" or not kind.startswith("application/grpc"):
            self._refuse_http(call, kind)
        elif self._is_stopping:
            call.finish(UNAVAILABLE, "the broker is stopping")
        elif not self._service.begins(call):
            call.finish(UNIMPLEMENTED, f"there is no method {call.method}")
        return call

    def _refuse_http(self, call: Call, kind: str) -> None:
        """Answer a request that is not gRPC's: a browser's, a probe's."""
        call.is_over = True
        text = f"this port speaks gRPC, not {kind or 'plain HTTP'}\n".encode()
        self._try(self._answer_http, call.stream_id, text)
        self._forget(call)

    def _answer_http(self, stream_id: int, text: bytes) -> None:
        self._h2.reveal(stream_id)
        has_room = self._h2.local_flow_control_window(stream_id) >= len(text)
        headers = [(":status", "415")]
        if has_room:
            headers += [("content-type", "text/plain"), ("content-length", str(len(text)))]
        self._h2.send_headers(stream_id, headers, end_stream=not has_room)
        if has_room:
            self._h2.send_data(stream_id, text, end_stream=True)

    def _on_data(self, event: Any) -> None:
        if event.flow_controlled_length:
            self._acknowledge(event.flow_controlled_length, event.stream_id)
        elif event.stream_ended is None:
            self._strike(5)
        call = self._open.get(event.stream_id)
        if call is not None and not call.is_over:
            self._take_bytes(call, event.data)

    def _take_bytes(self, call: Call, data: bytes) -> None:
        call._inflow += data
        self._request_bytes += len(data)
        while not call.is_over and (message := self._next_message(call)) is not None:
            self._unfinished.pop(call.stream_id, None)
            self._serve(call, message)
        if call._inflow and call.stream_id in self._open:
            self._unfinished.setdefault(call.stream_id, self._clock())
        if self._request_bytes > REQUESTS_BYTES and not call.is_over:
            call.finish(RESOURCE_EXHAUSTED, f"{REQUESTS_BYTES} bytes of unfinished requests wait already")

    def _hold(self) -> None:
        """Count the held bytes, and the time since when the peer owes the rest of them."""
        count = self._request_bytes + self._answer_bytes + CALL_BYTES * self._incomplete + len(self._cut)
        since = min(self._cut_since, next(iter(self._unfinished.values()), math.inf))
        if self._waiting:
            since = min(since, self._waiting_since)
        self._stream.hold(count, since)

    def _acknowledge(self, count: int, stream_id: int) -> None:
        try:
            self._h2.acknowledge_received_data(count, stream_id)
        except h2.exceptions.StreamClosedError:
            self._h2.increment_flow_control_window(count)

    def _next_message(self, call: Call) -> bytes | None:
        buffer = call._inflow
        if len(buffer) < 5:
            return None
        size = int.from_bytes(buffer[1:5], "big")
        if size > self._most_bytes:
            call.finish(RESOURCE_EXHAUSTED, f"a message of {size} bytes is longer than {self._most_bytes}")
            return None
        if len(buffer) < 5 + size:
            return None
        flag, message = buffer[0], bytes(buffer[5 : 5 + size])
        del buffer[: 5 + size]
        self._request_bytes -= 5 + size
        if not flag:
            return message
        return self._decompressed(call, message)

    def _decompressed(self, call: Call, message: bytes) -> bytes | None:
        encoding = call.metadata.get("grpc-encoding", "identity")
        if encoding not in ("gzip", "deflate"):
            call.finish(UNIMPLEMENTED, f"messages compressed by {encoding} are refused; use gzip")
            return None
        unpacking = zlib.decompressobj(47)
        try:
            data = unpacking.decompress(message, self._most_bytes + 1)
        except zlib.error as error:
            call.finish(INVALID_ARGUMENT, f"the message cannot be decompressed: {error}")
            return None
        if len(data) > self._most_bytes:
            call.finish(RESOURCE_EXHAUSTED, f"the message is longer than {self._most_bytes} bytes")
            return None
        return data

    def _serve(self, call: Call, message: bytes) -> None:
        self._incomplete -= not call.has_begun
        call.has_begun = True
        try:
            self._service.handle(call, message)
        except Exception as error:
            log.error("%s: %s failed: %s", self._stream.peer_address, call.method, error, exc_info=error)
            call.finish(INTERNAL, f"{type(error).__name__}: see the log of the broker")

    def _end_of_request(self, call: Call) -> None:
        if call._inflow or not call.has_begun:
            call.finish(INVALID_ARGUMENT, "the request ended before its message was complete")
        else:
            self._service.half_closed(call)

    # ---- answers ----

    def put(self, call: Call, data: bytes, count: int) -> None:
        """Send bytes of an answer, which are so many messages, soon, as far as the peer's flow control
        allows."""
        call._outbox += data
        call._put += count
        self._answer_bytes += len(data)
        self._due[call.stream_id] = call
        if self._answer_bytes > ANSWERS_BYTES:
            self._stream.close(f"the peer does not read responses: {self._answer_bytes} bytes wait")
        self._flush_soon()

    def end(self, call: Call, status: int, text: str) -> None:
        """End a call, behind its answers that wait."""
        if call.stream_id not in self._open:
            return
        if status or text:
            call._trailers = (("grpc-status", str(status)),)
            if text:
                call._trailers += (("grpc-message", _percent(text)),)
        self._due[call.stream_id] = call
        self._flush_soon()

    def _try(self, send: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Send on a stream that the peer may have reset."""
        try:
            send(*args, **kwargs)
        except h2.exceptions.ProtocolError as error:
            log.debug("%s: an answer is dropped: %s", self._stream.peer_address, error)

    def _push(self, call: Call) -> None:
        """Give h2 the answers of a call, as far as the peer's flow control allows."""
        outbox, stream_id = call._outbox, call.stream_id
        if stream_id not in self._open:
            return
        if not call._has_head:
            call._has_head = True
            is_whole = call.is_over and outbox and call._trailers is DONE
            if is_whole and self._h2.send_answer(stream_id, outbox):
                self._grants += 2 * call._put
                self._pings += call._put
                self._forget(call)
                return
            self._h2.reveal(stream_id)
            if call.is_over and not outbox:  # no message was sent: headers and trailers are one frame
                self._try(self._h2.send_headers, stream_id, [*HEAD, *call._trailers], end_stream=True)
                self._forget(call)
                return
            self._try(self._h2.send_headers, stream_id, list(HEAD))
        size = len(outbox)
        if outbox and not isinstance(outbox, bytearray):
            outbox = call._outbox = bytearray(outbox)
        try:
            while outbox:
                room = min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size)
                if room <= 0:
                    if not self._waiting or len(outbox) < size:
                        self._waiting_since = self._clock()
                    self._waiting[stream_id] = call
                    return
                piece = bytes(outbox[:room])
                del outbox[:room]
                self._answer_bytes -= len(piece)
                self._h2.send_data(stream_id, piece)
                count, call._put = max(1, call._put), 0
                self._grants += 2 * count
                self._pings += count
        except h2.exceptions.ProtocolError as error:
            log.debug("%s: an answer is dropped: %s", self._stream.peer_address, error)
            self._forget(call)
            return
        self._waiting.pop(stream_id, None)
        if call.is_over:
            self._try(self._h2.send_headers, stream_id, list(call._trailers), end_stream=True)
            self._forget(call)

    def _on_window(self, stream_id: int) -> None:
        if stream_id:
            call = self._waiting.get(stream_id)
            if call is not None:
                self._push(call)
            return
        for call in list(self._waiting.values()):
            self._push(call)

    # ---- ends ----

    def _forget(self, call: Call | None, *, is_cancelled: bool = False) -> None:
        if call is None or self._open.pop(call.stream_id, None) is None:
            return
        self._waiting.pop(call.stream_id, None)
        self._unfinished.pop(call.stream_id, None)
        self._request_bytes -= len(call._inflow)
        self._answer_bytes -= len(call._outbox)
        self._incomplete -= not call.has_begun
        call._inflow.clear()
        call._outbox = b""
        was_over, call.is_over = call.is_over, True
        if is_cancelled and not was_over and call.on_cancel is not None:
            call.on_cancel()

    def expire(self) -> None:
        """End calls with a request that is not complete in time."""
        now = self._clock()
        if now - self._cut_since > CUT_SECONDS:
            self._is_late = True
            try:
                self.feed(b"")
            except RemoteProtocolError as error:
                self._stream.close(str(error))
            finally:
                self._is_late = False
        for call in list(self._open.values()):
            if not call.has_begun and not call.is_over and now - call.began > REQUEST_SECONDS:
                call.finish(DEADLINE_EXCEEDED, f"the request was not complete after {REQUEST_SECONDS:g} s")
        self._hold()

    def closed(self) -> None:
        """Give up the calls of a connection that has ended."""
        self._cut, self._cut_since = b"", math.inf
        for call in list(self._open.values()):
            self._forget(call, is_cancelled=True)

    def goodbye(self) -> bytes:
        """Bytes that end the connection gracefully: the peer sends its calls to another server."""
        self._is_stopping = True
        for call in list(self._open.values()):
            call.finish(UNAVAILABLE, "the broker is stopping")
        self._flush()
        if self._h2.state_machine.state is not h2.connection.ConnectionState.CLOSED:
            self._h2.close_connection()
        data: bytes = self._h2.data_to_send()
        return data


def _framed(messages: Sequence[bytes]) -> bytes:
    """Messages in gRPC's frames, uncompressed."""
    parts: list[bytes] = []
    for message in messages:
        parts += (len(message).to_bytes(5, "big"), message)
    return b"".join(parts)


@lru_cache(KNOWN_TIMEOUTS)
def _timeout(text: str) -> float:
    """Seconds of a `grpc-timeout`; infinite without one."""
    if len(text) < 2 or text[-1] not in _UNITS or not text[:-1].isdecimal() or len(text) > 9:
        return math.inf
    return int(text[:-1]) * _UNITS[text[-1]]


def _percent(text: str) -> str:
    """The form of `grpc-message`: printable ASCII, the rest as percent signs and hex."""
    data = text.encode("utf-8", "replace")[:2_000]
    return "".join(chr(byte) if 32 <= byte < 127 and byte != 37 else f"%{byte:02X}" for byte in data)
