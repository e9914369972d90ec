"""No order of HTTP/2 frames, and no damage to them, breaks the calls of a gRPC connection or its accounts.

`nox -s fuzz` gives RMQ_FUZZ_FRAMES of them (10,000,000) from RMQ_FUZZ_SEED (1) on; a small share runs always.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

pytest.importorskip("h2")

from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from rmq_grpc.calls import ANSWERS_BYTES, CALL_BYTES, CALLS_MAX, REQUEST_SECONDS, REQUESTS_BYTES, Call, Calls
from rmq_grpc.http2 import Http2

from rmq.errors import RemoteProtocolError

FRAMES = int(os.environ.get("RMQ_FUZZ_FRAMES", "10_000_000"))
SEED = int(os.environ.get("RMQ_FUZZ_SEED", "1"))
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAMES_OF_A_CONNECTION = 40
HEADERS = [
    [(":method", "POST"), (":path", "/s/m"), (":scheme", "http"), (":authority", "a")],
    [(":method", "GET"), (":path", "/s/m"), (":scheme", "http"), (":authority", "a")],
]
MORE = [
    ("content-type", "application/grpc"),
    ("content-type", "text/html"),
    ("grpc-timeout", "1S"),
    ("grpc-timeout", "99999999999H"),
    ("grpc-encoding", "gzip"),
    ("x", "y" * 20_000),
    (":path", "/twice"),
    ("te", "trailers"),
    ("connection", "close"),
]


class Stream:
    """A door's stream without a network."""

    peer_address = "10.0.0.1:1"

    def __init__(self) -> None:
        self.held = 0
        self.is_closed = False

    def send(self, data: bytes) -> None:
        """Drop the bytes."""

    def hold(self, count: int, since: float | None = None) -> None:
        """Keep the count."""
        self.held = count

    def close(self, reason: str = "") -> None:
        """Note the end."""
        self.is_closed = True


class Service:
    """Answers at once, later or never, as it is drawn."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.open: list[Call] = []

    def begins(self, call: Call) -> bool:
        """Know most methods."""
        call.on_cancel = lambda: None
        return self._random.random() < 0.9

    def handle(self, call: Call, message: bytes) -> None:
        """Answer, wait, or fail."""
        match self._random.randrange(4):
            case 0:
                call.send(bytes(self._random.choice([0, 10, 100_000])))
                call.finish()
            case 1:
                call.send(b"more")
                self.open.append(call)
            case 2:
                call.finish(7, "no \N{SNOWMAN}")
            case _:
                self.open.append(call)

    def plain(self, headers: Mapping[str, str]) -> None:
        """No request is a plain send."""

    def now_ms(self) -> int:
        raise AssertionError("no request is a plain send")

    def refused(self, call: Call, error: Exception) -> None:
        raise AssertionError("no request is a plain send")

    def half_closed(self, call: Call) -> None:
        """End the call."""
        call.finish()

    def later(self) -> None:
        """Answer a call that waits, whatever has become of its stream."""
        if self.open:
            call = self.open.pop(self._random.randrange(len(self.open)))
            call.send(bytes(self._random.choice([1, 50_000])))
            call.finish()


def frame(random: Random, encoder: Encoder) -> Frame:
    """A frame that a peer could mean, on one of few streams."""
    stream_id = random.choice([1, 1, 3, 3, 5, 7, 9, 11, 2, 0])
    flags: list[str] = []
    made: Any
    match random.randrange(12):
        case 0 | 1 | 2 | 3:
            headers = random.choice(HEADERS) + random.sample(MORE, random.choice([0, 1, 1, 1, 2, 3]))
            made = HeadersFrame(1, encoder.encode(headers))
            flags = ["END_HEADERS"] * (random.random() < 0.9) + ["END_STREAM"] * (random.random() < 0.2)
        case 4 | 5 | 6:
            size = random.choice([0, 1, 5, 100, 5_000_000])
            whole = bytes((random.choice([0, 0, 0, 1, 9]),)) + size.to_bytes(4, "big") + bytes(min(size, 100))
            made = DataFrame(1, whole[: random.choice([0, 3, 200, 200, 200])])
            flags = ["END_STREAM"] * (random.random() < 0.3)
        case 7:
            made = RstStreamFrame(1, error_code=random.randrange(14))
        case 8:
            made = WindowUpdateFrame(1, window_increment=random.choice([0, 1, 65_535, 2**31 - 1]))
        case 9:
            made = SettingsFrame(
                0, {random.randrange(9): random.choice([0, 1, 16_384, 2**31 - 1, 2**32 - 1])}
            )
        case 10:
            made = random.choice([PingFrame(0, bytes(8)), GoAwayFrame(0), PriorityFrame(1)])
        case _:
            made = ContinuationFrame(1, encoder.encode(MORE[:1]))
            flags = ["END_HEADERS"]
    for flag in flags:
        made.flags.add(flag)
    if made.stream_id:
        made.stream_id = stream_id
    return made  # type: ignore[no-any-return]


def converse(random: Random) -> None:
    """One connection from its beginning to its end."""
    stream, service, now = Stream(), Service(random), [0.0]
    calls = Calls(stream, service, clock=lambda: now[0], most_bytes=1_000_000, soon=lambda call: call())  # type: ignore[arg-type]
    encoder = Encoder()
    data = bytearray(PREFACE + SettingsFrame(0).serialize())
    try:
        for _ in range(FRAMES_OF_A_CONNECTION):
            piece = bytearray(frame(random, encoder).serialize())
            if random.random() < 0.03:
                piece[random.randrange(len(piece))] = random.randrange(256)
            data += piece
            if random.random() < 0.6:  # others come in the same read
                size = random.choice([len(data), len(data), random.randrange(len(data) + 1)])
                calls.feed(bytes(data[:size]))
                del data[:size]
                assert 0 <= stream.held <= REQUESTS_BYTES + 2 * ANSWERS_BYTES + CALL_BYTES * CALLS_MAX
            if random.random() < 0.2:
                service.later()
            if random.random() < 0.05:
                now[0] += REQUEST_SECONDS
                calls.expire()
    except RemoteProtocolError:
        pass  # the connection ends
    else:
        if random.random() < 0.5:
            calls.goodbye()
    calls.closed()
    service.later()
    calls.expire()
    assert stream.held == 0


class Steady(Service):
    """Answers at once, by the number of the stream."""

    def begins(self, call: Call) -> bool:
        return call.stream_id % 10 != 9

    def handle(self, call: Call, message: bytes) -> None:
        if call.stream_id % 3:
            call.send(message + bytes(20_000 * (call.stream_id % 3 - 1)))
        call.finish(0 if call.stream_id % 4 else 7)


def whole_request(random: Random, encoder: Encoder, stream_id: int) -> bytes:
    """A request in two frames, of which some have what only h2 can tell of."""
    headers = [*HEADERS[0], MORE[0], *random.sample(MORE[2:], random.choice([0, 0, 0, 1]))]
    message = bytes(random.choice([0, 1, 100, 9_000]))
    data = b"\0" + len(message).to_bytes(4, "big") + message
    if random.random() < 0.2:
        headers.append(("content-length", str(len(data) + random.choice([0, 0, 1]))))
    head = HeadersFrame(stream_id, encoder.encode(headers))
    body = DataFrame(stream_id, data if random.random() < 0.9 else b"")
    head.flags.add("END_HEADERS")
    body.flags.add("END_STREAM")
    if random.random() < 0.1:
        body.flags.add("PADDED")
        body.pad_length = 10
    if random.random() < 0.1:
        head.flags.add("PRIORITY")
        head.depends_on = random.choice([0, 0, stream_id])
    both = bytearray(head.serialize())
    if random.random() < 0.1:
        body.flags.remove("END_STREAM")
        both += body.serialize()
        body = DataFrame(stream_id, b"")
        body.flags.add("END_STREAM")
    both += body.serialize()
    if random.random() < 0.05:
        both[random.randrange(len(both))] = random.randrange(256)
    return bytes(both)


def told(seed: int, *, by_h2: bool, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The answers of a connection, and its end."""
    random, said = Random(seed), list[object]()
    stream = Stream()
    stream.send = said.append  # type: ignore[method-assign, assignment]
    with monkeypatch.context() as patch:
        if by_h2:
            patch.setattr(Http2, "take_request", lambda *_: None)
            patch.setattr(Http2, "take_small", lambda *_: None)
            patch.setattr(Http2, "send_answer", lambda *_: False)
        calls = Calls(
            stream,  # type: ignore[arg-type]
            Steady(random),
            clock=lambda: 0.0,
            most_bytes=1_000_000,
            soon=lambda call: call(),
        )
        encoder, stream_id = Encoder(), 1
        try:
            calls.feed(PREFACE + SettingsFrame(0).serialize())
            for _ in range(30):
                if random.random() < 0.8:
                    data = whole_request(random, encoder, stream_id)
                    stream_id += random.choice([2, 2, 2, 4, 0])
                else:
                    data = frame(random, encoder).serialize()
                cut = random.choice([len(data), len(data), random.randrange(len(data) + 1)])
                calls.feed(data[:cut])
                if cut < len(data):
                    calls.feed(data[cut:])
        except RemoteProtocolError as error:
            said.append(str(error))
        else:
            said += [calls._h2.inbound_flow_control_window, calls._h2.outbound_flow_control_window]
        calls.closed()
    return said


def test_whole_requests_and_answers_are_what_h2_makes_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(SEED, SEED + 150):
        ours = told(seed, by_h2=False, monkeypatch=monkeypatch)
        assert ours == told(seed, by_h2=True, monkeypatch=monkeypatch), seed


def fuzz(seed: int, count: int) -> None:
    """Run so many connections."""
    for number in range(seed, seed + count):
        try:
            converse(Random(number))
        except Exception as error:
            raise AssertionError(f"seed {number}: {error!r}") from error


def test_any_order_of_frames_ends_in_order() -> None:
    fuzz(SEED, 120)


@pytest.mark.campaign
def test_any_order_of_frames_ends_in_order_many_times() -> None:
    fuzz(SEED, FRAMES // FRAMES_OF_A_CONNECTION // 10)
