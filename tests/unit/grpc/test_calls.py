"""What open calls count among the bytes that a connection holds."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("h2")

import h2.config
import h2.connection
from rmq_grpc.calls import CALL_BYTES, REQUEST_SECONDS, Call, Calls

HEADERS = [
    (":method", "POST"),
    (":path", "/a/b"),
    (":scheme", "http"),
    (":authority", "a"),
    ("content-type", "application/grpc"),
]


class Stream:
    def __init__(self) -> None:
        self.held = 0

    def write(self, data: bytes) -> None:
        pass

    def hold(self, count: int) -> None:
        self.held = count


class Service:
    def begins(self, call: Call) -> bool:
        return True

    def handle(self, call: Call, message: bytes) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


def test_calls_without_a_whole_request_count_until_they_end() -> None:
    now = 0.0
    stream = Stream()
    calls = Calls(stream, Service(), clock=lambda: now, most_bytes=1000)  # type: ignore[arg-type]
    client = h2.connection.H2Connection(h2.config.H2Configuration())
    client.initiate_connection()
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
