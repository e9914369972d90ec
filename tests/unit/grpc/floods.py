"""Bytes of HTTP/2 peers that want to cost more than they pay: endless pieces, each a few frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    ExtensionFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from rmq_grpc import schema

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WINDOW = (1 << 31) - 1
Flood = Callable[[], Iterator[bytes]]


def frame(made: Frame, *flags: str) -> bytes:
    """The bytes of a frame with flags."""
    for flag in flags:
        made.flags.add(flag)
    return bytes(made.serialize())


def hello(window: int = 65_535) -> bytes:
    """The beginning of a connection; `window` is what each answer may have before the peer grants more."""
    return PREFACE + frame(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: window}))


def headers(encoder: Encoder, method: str, *more: tuple[str, str], client_id: str = "flood") -> bytes:
    """The header block of a call."""
    return encoder.encode(
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/{schema.SERVICE}/{method}"),
            (":authority", "b"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("x-mq-client-id", client_id),
            *more,
        ],
        huffman=False,
    )


def begin(encoder: Encoder, stream_id: int, method: str, *flags: str) -> bytes:
    """The frame that begins a call."""
    return frame(HeadersFrame(stream_id, headers(encoder, method)), "END_HEADERS", *flags)


def message(stream_id: int, made: object, *flags: str) -> bytes:
    """The frame of a message."""
    data = made.SerializeToString()  # type: ignore[attr-defined]
    return frame(DataFrame(stream_id, b"\0" + len(data).to_bytes(4, "big") + data), *flags)


def streams() -> Iterator[int]:
    """Numbers of streams."""
    return iter(range(1, 1 << 31, 2))


def open_streams() -> Iterator[bytes]:
    """Calls that begin and never go on."""
    encoder = Encoder()
    yield hello()
    for stream_id in streams():
        yield begin(encoder, stream_id, "SendMessage")


def unanswered_polls() -> Iterator[bytes]:
    """Calls that wait for messages, as many as there may be and more."""
    encoder = Encoder()
    asked = schema.message("ReceiveMessageRequest")(batch_size=32)
    asked.group.name, asked.message_queue.topic.name = "Flooding", "Orders"
    asked.invisible_duration.seconds, asked.long_polling_timeout.seconds = 30, 20
    yield hello()
    for stream_id in streams():
        yield begin(encoder, stream_id, "ReceiveMessage") + message(stream_id, asked, "END_STREAM")


def long_headers() -> Iterator[bytes]:
    """Calls with more headers than there may be."""
    encoder = Encoder()
    yield hello()
    for stream_id in streams():
        block = headers(encoder, "SendMessage", *((f"x-{number}", "y" * 1_000) for number in range(20)))
        yield frame(HeadersFrame(stream_id, block), "END_HEADERS", "END_STREAM")


def header_bomb() -> Iterator[bytes]:
    """Headers that are short as they are sent, and long once they are decoded."""
    encoder = Encoder()
    yield hello()
    block = headers(encoder, "SendMessage", ("x-bomb", "y" * 3_900))
    yield frame(HeadersFrame(1, block), "END_HEADERS", "END_STREAM")
    index = bytes((0x80 | 62,))  # the header that was added last
    for stream_id in range(3, 1 << 31, 2):
        yield frame(HeadersFrame(stream_id, index * 16_000), "END_HEADERS", "END_STREAM")


def continuations() -> Iterator[bytes]:
    """A call whose headers never end."""
    encoder = Encoder()
    yield hello() + frame(HeadersFrame(1, headers(encoder, "SendMessage")))
    while True:
        yield frame(ContinuationFrame(1, encoder.encode([("x", "y" * 1_000)], huffman=False)))


def empty_continuations() -> Iterator[bytes]:
    """The same of frames without a byte of headers."""
    yield hello() + frame(HeadersFrame(1, headers(Encoder(), "SendMessage")))
    while True:
        yield frame(ContinuationFrame(1, b"")) * 64


def large_messages() -> Iterator[bytes]:
    """Calls whose messages are long, and never whole."""
    encoder = Encoder()
    yield hello()
    for stream_id in streams():
        size = (8 << 20).to_bytes(4, "big")
        yield begin(encoder, stream_id, "SendMessage") + frame(DataFrame(stream_id, b"\0" + size + bytes(9)))
        for _ in range(62):
            yield frame(DataFrame(stream_id, bytes(16_384)))


def pings() -> Iterator[bytes]:
    """Pings, which are to be answered."""
    yield hello()
    while True:
        yield frame(PingFrame(0, bytes(8))) * 32


def settings() -> Iterator[bytes]:
    """Settings, which are to be answered."""
    yield hello()
    for number in range(1 << 30):
        changed = {SettingsFrame.INITIAL_WINDOW_SIZE: 65_535 + number % 2}
        yield frame(SettingsFrame(0, changed)) * 8


def empty_settings() -> Iterator[bytes]:
    """Settings that set nothing."""
    yield hello()
    while True:
        yield frame(SettingsFrame(0)) * 32


def resets() -> Iterator[bytes]:
    """Calls that end as soon as they have begun (rapid reset)."""
    encoder = Encoder()
    asked = schema.message("QueryRouteRequest")()
    asked.topic.name = "Orders"
    yield hello()
    for stream_id in streams():
        call = begin(encoder, stream_id, "QueryRoute") + message(stream_id, asked, "END_STREAM")
        yield call + frame(RstStreamFrame(stream_id, error_code=8))


def bad_frames() -> Iterator[bytes]:
    """Calls that the server has to reset, since their frames are wrong."""
    encoder = Encoder()
    yield hello()
    for stream_id in streams():
        yield begin(encoder, stream_id, "QueryRoute") + frame(WindowUpdateFrame(stream_id, WINDOW))


def empty_data() -> Iterator[bytes]:
    """Frames of a call without a byte."""
    yield hello() + begin(Encoder(), 1, "SendMessage")
    while True:
        yield frame(DataFrame(1, b"")) * 64


def priorities() -> Iterator[bytes]:
    """Priorities of streams that are not there."""
    yield hello()
    for stream_id in streams():
        yield frame(PriorityFrame(stream_id, depends_on=0, stream_weight=1))


def windows() -> Iterator[bytes]:
    """Windows that grow by a byte."""
    yield hello()
    while True:
        yield frame(WindowUpdateFrame(0, 1)) * 64


def _late(made: Frame) -> Iterator[bytes]:
    """Frames for a call that has ended."""
    yield hello() + begin(Encoder(), 1, "Nothing", "END_STREAM")
    while True:
        yield frame(made) * 64


def late_windows() -> Iterator[bytes]:
    """Room for the answer of a call that has ended."""
    return _late(WindowUpdateFrame(1, 1))


def late_resets() -> Iterator[bytes]:
    """Resets of a call that has ended."""
    return _late(RstStreamFrame(1, error_code=8))


def late_windows_in_pieces() -> Iterator[bytes]:
    """The same, where no read ends with a frame."""
    whole = frame(WindowUpdateFrame(1, 1)) * 64
    yield hello() + begin(Encoder(), 1, "Nothing", "END_STREAM") + whole[:5]
    while True:
        yield whole[5:] + whole[:5]


def goodbyes() -> Iterator[bytes]:
    """Goodbyes of a peer that stays."""
    yield hello()
    while True:
        yield frame(GoAwayFrame(0)) * 64


def unknown() -> Iterator[bytes]:
    """Frames of a kind that nobody knows."""
    yield hello()
    while True:
        yield frame(ExtensionFrame(0x77, 0, body=b"x")) * 64


def _routes(window: int) -> Iterator[bytes]:
    encoder = Encoder()
    asked = schema.message("QueryRouteRequest")()
    asked.topic.name = "Orders"
    yield hello(window) + frame(WindowUpdateFrame(0, WINDOW - 65_535))
    for stream_id in streams():
        yield begin(encoder, stream_id, "QueryRoute") + message(stream_id, asked, "END_STREAM")


def window_zero() -> Iterator[bytes]:
    """Calls for whose answers there is no window."""
    return _routes(0)


def no_reading() -> Iterator[bytes]:
    """Calls whose answers may come, and are never read from the connection."""
    return _routes(WINDOW)


def many_clients() -> Iterator[bytes]:
    """Calls each of which is another client's."""
    encoder = Encoder()
    asked = schema.message("HeartbeatRequest")(client_type=1)
    yield hello(WINDOW) + frame(WindowUpdateFrame(0, WINDOW - 65_535))
    for stream_id in streams():
        block = headers(encoder, "Heartbeat", client_id=f"client-{stream_id}")
        begun = frame(HeadersFrame(stream_id, block), "END_HEADERS")
        yield begun + message(stream_id, asked, "END_STREAM")


def members(name: str, count: int) -> Iterator[bytes]:
    """Telemetry calls that stay open, each of another client with a group of its own."""
    encoder = Encoder()
    yield hello()
    for place, stream_id in zip(range(count), streams(), strict=False):
        block = headers(encoder, "Telemetry", client_id=f"{name}-{place}")
        asked = schema.message("TelemetryCommand")()
        settings = asked.settings
        settings.client_type = 4  # a simple consumer
        settings.subscription.group.name = f"Group-{name}-{place}"
        one = settings.subscription.subscriptions.add()
        one.topic.name, one.expression.expression, one.expression.type = "Orders", "*", 1
        yield frame(HeadersFrame(stream_id, block), "END_HEADERS") + message(stream_id, asked)


FLOODS: dict[str, Flood] = {
    flood.__name__: flood
    for flood in (
        open_streams,
        unanswered_polls,
        long_headers,
        header_bomb,
        continuations,
        empty_continuations,
        large_messages,
        pings,
        settings,
        empty_settings,
        resets,
        bad_frames,
        empty_data,
        priorities,
        windows,
        late_windows,
        late_resets,
        late_windows_in_pieces,
        goodbyes,
        unknown,
        window_zero,
        no_reading,
        many_clients,
    )
}
