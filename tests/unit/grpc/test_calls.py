"""The bytes of open calls in the count of a connection."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("h2")

import h2.config
import h2.connection
import h2.events
from rmq_grpc import http2
from rmq_grpc.calls import CALL_BYTES, REQUEST_SECONDS, Call, Calls
from rmq_grpc.headers import DONE, HEAD
from rmq_grpc.http2 import USELESS, Http2

HEADERS = [
    (":method", "POST"),
    (":path", "/a/b"),
    (":scheme", "http"),
    (":authority", "a"),
    ("content-type", "application/grpc"),
]


class Stream:
    def __init__(self) -> None:
        self.held, self.since = 0, math.inf

    def send(self, data: bytes) -> None:
        pass

    def hold(self, count: int, since: float | None = None) -> None:
        self.held, self.since = count, math.inf if since is None else since


class Service:
    def begins(self, call: Call) -> bool:
        return True

    def handle(self, call: Call, message: bytes) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


def connected(clock: Callable[[], float]) -> tuple[Stream, Calls, h2.connection.H2Connection]:
    """A server's side of a connection, its calls, and a client that has begun."""
    stream = Stream()
    calls = Calls(stream, Service(), clock=clock, most_bytes=1000, soon=lambda call: call())  # type: ignore[arg-type]
    client = h2.connection.H2Connection(h2.config.H2Configuration())
    client.initiate_connection()
    return stream, calls, client


def test_calls_without_a_whole_request_count_until_they_end() -> None:
    now = 0.0
    stream, calls, client = connected(lambda: now)
    for number in range(50):
        client.send_headers(2 * number + 1, HEADERS)
    calls.feed(client.data_to_send())
    assert stream.held == 50 * CALL_BYTES
    client.send_data(1, b"\0\0\0\0\0")
    client.reset_stream(3)
    calls.feed(client.data_to_send())
    assert stream.held == 48 * CALL_BYTES
    now = REQUEST_SECONDS + 1
    calls.expire()
    assert stream.held == 0


def test_a_connection_owes_since_its_oldest_call_that_lacks_a_part() -> None:
    now = 0.0
    stream, calls, client = connected(lambda: now)
    now = 1.0
    client.send_headers(1, HEADERS)
    calls.feed(client.data_to_send())
    now = 2.0
    client.send_headers(3, HEADERS)
    calls.feed(client.data_to_send())
    assert stream.since == 1
    now = 3.0
    client.send_data(1, b"\0\0\0\0\0")  # whole
    calls.feed(client.data_to_send())
    assert stream.since == 2
    now = 4.0
    client.send_data(1, b"\0\0\0\0\x05ab")  # a part of the next message
    client.send_data(3, b"\0\0\0\0\0")
    calls.feed(client.data_to_send())
    assert (stream.held, stream.since) == (7, 4)
    now = 5.0
    client.send_data(1, b"cde")
    calls.feed(client.data_to_send())
    assert (stream.held, stream.since) == (0, math.inf)


def test_a_connection_owes_room_for_answers_since_it_granted_some_last() -> None:
    now = 1.0
    begun: list[Call] = []
    service = Service()
    service.begins = lambda call: not begun.append(call)  # type: ignore[method-assign, func-returns-value]
    stream = Stream()
    calls = Calls(stream, service, clock=lambda: now, most_bytes=1000, soon=lambda call: call())  # type: ignore[arg-type]
    client = h2.connection.H2Connection(h2.config.H2Configuration())
    client.initiate_connection()
    client.send_headers(1, HEADERS)
    client.send_data(1, b"\0\0\0\0\0")
    calls.feed(client.data_to_send())
    begun[0].send(bytes(200_000))
    assert stream.since == 1
    assert stream.held > 100_000
    now = 2.0
    client.increment_flow_control_window(50_000)
    calls.feed(client.data_to_send())
    assert stream.since == 1, "the call itself got no room"
    client.increment_flow_control_window(50_000, 1)
    calls.feed(client.data_to_send())
    assert stream.since == 2
    client.increment_flow_control_window(200_000)
    client.increment_flow_control_window(200_000, 1)
    calls.feed(client.data_to_send())
    assert (stream.held, stream.since) == (0, math.inf)


@pytest.mark.parametrize("ends_apart", [False, True])
def test_a_request_that_two_reads_bring_is_taken_whole(
    ends_apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the bytes are cut, but behind the headers: there a call begins."""
    stream, calls, client = connected(lambda: 0.0)
    handled: list[bytes] = []
    calls._service.handle = lambda call, message: handled.append(message)  # type: ignore[method-assign]
    client.send_headers(1, HEADERS, end_stream=True)
    calls.feed(client.data_to_send())
    of_h2: list[int] = []
    receive = Http2.receive_data

    def noted(connection: Http2, data: bytes) -> list[Any]:
        of_h2.append(len(data))
        return receive(connection, data)

    monkeypatch.setattr(Http2, "receive_data", noted)
    stream_id = 3
    for cut in range(1, 200):
        client.send_headers(stream_id, HEADERS)
        head = len(client._data_to_send)
        client.send_data(stream_id, b"\0\0\0\0\x64" + bytes(100), end_stream=not ends_apart)
        if ends_apart:
            client.end_stream(stream_id)
        data = client.data_to_send()
        if not cut < len(data):
            break
        of_h2.clear()
        calls.feed(data[:cut])
        if cut < len(data) - 9:
            assert (stream.held, stream.since) == ((cut, 0.0) if cut != head else (CALL_BYTES, 0.0))
        calls.feed(data[cut:])
        assert handled.pop() == bytes(100)
        if not ends_apart:
            assert bool(of_h2) == (cut == head)
        stream_id += 2
        client.streams.clear()
    assert cut > 100


def test_a_call_begins_though_the_rest_of_its_request_is_late() -> None:
    now = 0.0
    stream, calls, client = connected(lambda: now)
    begun: list[str] = []
    calls._service.begins = lambda call: not begun.append(call.method)  # type: ignore[func-returns-value, method-assign]
    client.send_headers(1, HEADERS, end_stream=True)
    calls.feed(client.data_to_send())
    begun.clear()
    client.send_headers(3, HEADERS)
    client.send_data(3, b"\0\0\0\0\x64" + bytes(100), end_stream=True)
    data = client.data_to_send()
    calls.feed(data[:-7])
    assert not begun
    now = 0.5
    calls.expire()
    assert not begun
    now = 10.0
    calls.expire()
    assert begun == ["/a/b"]
    assert stream.held == CALL_BYTES
    now = 11.0 + REQUEST_SECONDS
    calls.expire()
    assert stream.held == 0


@pytest.mark.parametrize("size", [1, 16_384, 40_000])
def test_a_whole_answer_is_what_h2_sends_step_by_step(size: int) -> None:
    said = []
    for is_whole in (True, False):
        server = Http2()
        client = h2.connection.H2Connection(h2.config.H2Configuration())
        client.initiate_connection()
        names = {":method": "POST", ":scheme": "http", ":path": "/a", ":authority": "b"}
        for stream_id in (1, 3):
            client.send_headers(stream_id, list(names.items()), end_stream=True)
        server.initiate_connection()
        server.receive_data(client.data_to_send())
        server.data_to_send()
        for stream_id in (1, 3):
            room = server.local_flow_control_window(stream_id)
            done = server.send_answer(stream_id, bytes(size)) if is_whole else False
            assert done is (is_whole and size <= room)
            if not done and size <= room:
                server.send_headers(stream_id, list(HEAD))
                for at in range(0, size, 16_384):
                    server.send_data(stream_id, bytes(min(16_384, size - at)))
                server.send_headers(stream_id, list(DONE), end_stream=True)
        said.append((server.data_to_send(), server.outbound_flow_control_window, server.open_inbound_streams))
        client.increment_flow_control_window(10, 1)  # late, for a stream that has ended
        client.reset_stream(3)
        late = server.receive_data(client.data_to_send())
        assert len(late) == 2
        assert isinstance(late[0], h2.events.WindowUpdated)
        assert late[1] is USELESS or size > room
    assert said[0] == said[1]


def test_an_answer_is_sent_step_by_step_to_a_peer_that_still_sends() -> None:
    server = Http2()
    client = h2.connection.H2Connection(h2.config.H2Configuration())
    client.initiate_connection()
    client.send_headers(1, [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "b")])
    server.initiate_connection()
    server.receive_data(client.data_to_send())
    assert not server.send_answer(1, b"x")
    assert not server.send_answer(3, b"x")


@pytest.mark.parametrize("missing", ["_decode_headers", "_begin_new_stream", "_track_content_length"])
def test_an_h2_that_lacks_a_part_does_everything_itself(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "_decode_headers":
        monkeypatch.setattr(http2, missing, None)
    elif missing == "_begin_new_stream":
        monkeypatch.setattr(http2, "_PARTS", (missing, "not_there"))
    else:
        monkeypatch.setattr(http2, "_PARTS_OF_STREAMS", (missing, "not_there"))
    begun: list[Call] = []
    service = Service()
    service.begins = lambda call: not begun.append(call)  # type: ignore[method-assign, func-returns-value]
    calls = Calls(Stream(), service, clock=lambda: 1.0, most_bytes=1000, soon=lambda call: call())  # type: ignore[arg-type]
    client = h2.connection.H2Connection(h2.config.H2Configuration())
    client.initiate_connection()
    client.send_headers(1, HEADERS)
    client.send_data(1, b"\0\0\0\0\1x", end_stream=True)
    data = client.data_to_send()
    assert not any(calls._h2.take_request(data, at) for at in range(len(data)))
    calls.feed(data)
    assert len(begun) == 1
    assert not calls._h2.send_answer(1, b"x")


def test_a_peer_is_granted_as_many_bytes_as_its_whole_requests_had() -> None:
    client = h2.connection.H2Connection(h2.config.H2Configuration())
    client.initiate_connection()
    stream = Stream()
    stream.send = client.receive_data  # type: ignore[method-assign, assignment]
    calls = Calls(stream, Service(), clock=lambda: 1.0, most_bytes=10_000, soon=lambda call: call())  # type: ignore[arg-type]
    calls.feed(client.data_to_send())
    window, size = client.outbound_flow_control_window, 9_995
    for stream_id in range(1, 2 * window // 5_000, 2):
        client.send_headers(stream_id, HEADERS)
        client.send_data(stream_id, size.to_bytes(5, "big") + bytes(size), end_stream=True)
        calls.feed(client.data_to_send())
        calls._open[stream_id].answer_by(b"")
        assert client.outbound_flow_control_window == calls._h2.inbound_flow_control_window
    assert client.outbound_flow_control_window >= window // 2 - size
