"""Peers that flood the gRPC door: another client on another connection goes on, and memory stays bounded."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
import trio

pytest.importorskip("h2")

from hpack import Encoder
from hyperframe.frame import DataFrame, HeadersFrame, PingFrame, WindowUpdateFrame
from rmq_grpc.calls import Call, Calls
from trio.testing import MockClock

from rmq.broker import door_client
from rmq.errors import RemoteProtocolError
from rmq.proxy import cluster as proxy_cluster
from rmq.testing.network import MemoryNetwork
from tests.unit.grpc.calls import (
    PORT,
    acking,
    client,
    cluster,
    message,
    received,
    receiving,
    request,
    sending,
    word,
)
from tests.unit.grpc.floods import FLOODS, Flood, frame, headers, hello, streams

HELD_MAX = 80 << 20
"""Bytes that one connection may make the broker hold: 32 MiB of requests, as much of answers, and more."""
PIECES = 2_200
GROWTH_MAX = 48 << 20
SERVED = ("large_messages", "no_reading", "many_clients")
"""Floods each of whose calls is answered or refused, by answers that this stream takes."""


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_another_client_goes_on(autojump_clock: MockClock, flood: Flood) -> None:
    async with cluster() as running, client(running, "honest") as honest:
        broker: Any = running["a"].server
        assert isinstance(running.network, MemoryNetwork)
        network = running.network.host("10.0.9.9")
        address = f"{running['a'].address.partition(':')[0]}:{PORT}"

        async def attack() -> None:
            stream = await network.dial(address)
            try:
                for _, piece in zip(range(PIECES), flood(), strict=False):
                    with anyio.move_on_after(5) as patience:
                        await stream.send_all(piece)
                    if patience.cancelled_caught:
                        break  # the broker does not read on
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the broker has cut the peer off
            await anyio.sleep(30)
            await stream.aclose()

        held = 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attack)
            for number in range(20):
                sent = message(b"%d" % number, message_id=f"M{number}")
                assert word(await honest.one("SendMessage", sending(sent))) == "OK"
                status, got = await received(honest, receiving())
                assert (status, [one.body for one in got]) == ("OK", [b"%d" % number])
                handle = got[0].system_properties.receipt_handle
                assert word(await honest.one("AckMessage", acking(handle))) == "OK"
                held = max(held, broker.budget.held)
                assert held < HELD_MAX, flood.__name__
                await anyio.sleep(0.2)
            tasks.cancel_scope.cancel()
        await anyio.sleep(120)
        assert broker.budget.held < 100_000, "a connection that has ended holds nothing"


async def test_clients_that_share_connections_find_no_place_beyond_the_budget(
    door: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three addresses take what they can; a client from a fourth address still finds a place."""
    settings = {"connection_buffer_bytes": 32 << 20}
    for module in (door_client, proxy_cluster):
        monkeypatch.setattr(module, "DOOR_CLIENT_BYTES", (32 << 20) // 16)
    let_in: dict[str, int] = {}
    async with cluster(**settings) as running, AsyncExitStack() as stack:
        for address in ("10.0.8.2", "10.0.8.3", "10.0.8.4", "10.0.8.5"):
            one = await stack.enter_async_context(client(running, host=address))
            words = []
            for number in range(16):
                asked = request("Heartbeat", client_type=3, group="G")
                one.client_id = f"{address}-{number}"
                words.append(word(await one.one("Heartbeat", asked)))
            assert set(words) == {"OK", "TOO_MANY_REQUESTS"}
            let_in[address] = words.count("OK")
    assert list(let_in.values()) == [8, 4, 2, 1]


class Stream:
    """A door's stream whose peer takes all that is written."""

    peer_address = "10.0.0.1:1"

    def __init__(self) -> None:
        self.held = 0
        self.is_closed = False

    def send(self, data: bytes) -> None:
        pass

    def hold(self, count: int, since: float | None = None) -> None:
        self.held = count

    def close(self, reason: str = "") -> None:
        self.is_closed = True


class Service:
    """Answers no call."""

    def begins(self, call: Call) -> bool:
        return True

    def handle(self, call: Call, message: bytes) -> None:
        if not call.method.endswith("ReceiveMessage"):
            call.send(bytes(100_000))
            call.finish()

    def plain(self, headers: Mapping[str, str]) -> None:
        """No request is a plain send."""

    def now_ms(self) -> int:
        raise AssertionError("no request is a plain send")

    def refused(self, call: Call, error: Exception) -> None:
        raise AssertionError("no request is a plain send")

    def half_closed(self, call: Call) -> None:
        pass


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_what_a_flood_makes_a_connection_keep_is_bounded(flood: Flood) -> None:
    stream = Stream()
    calls = Calls(stream, Service(), clock=lambda: 0.0, most_bytes=8 << 20, soon=lambda call: call())  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _, piece in zip(range(PIECES), flood(), strict=False):
            try:
                calls.feed(piece)
            except RemoteProtocolError:
                stream.close()
            if stream.is_closed:
                break
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < GROWTH_MAX, f"{grown} bytes"
    assert grown < 2 * stream.held + (3 << 20), f"{grown} bytes are kept, and {stream.held} are counted"
    assert stream.is_closed == (flood.__name__ not in SERVED)
    calls.closed()
    calls.expire()
    assert stream.held == 0


CALLS = 3_000


def test_a_peer_that_measures_the_connection_at_each_answer_is_served() -> None:
    """The frames of gRPC's libraries for one call after the other: Java's begins with a priority, Node's ends
    by an empty frame, and all of them send a ping when data has come."""
    stream, encoder = Stream(), Encoder()
    calls = Calls(stream, Answering(), clock=lambda: 0.0, most_bytes=8 << 20, soon=lambda call: call())  # type: ignore[arg-type]
    calls.feed(hello())
    for _, stream_id in zip(range(CALLS), streams(), strict=False):
        block = headers(encoder, "AckMessage")
        begun = HeadersFrame(stream_id, block, depends_on=0, stream_weight=15)
        calls.feed(
            frame(begun, "END_HEADERS", "PRIORITY")
            + frame(DataFrame(stream_id, bytes(5)))
            + frame(DataFrame(stream_id), "END_STREAM")
        )
        calls.feed(frame(PingFrame(0, bytes(8))) + frame(WindowUpdateFrame(0, window_increment=5)))
    assert not stream.is_closed
    pings = frame(PingFrame(0, bytes(8))) * 1_000
    with pytest.raises(RemoteProtocolError, match="useless frames"):
        calls.feed(pings)


class Answering(Service):
    """Answers each call by a short message."""

    def handle(self, call: Call, message: bytes) -> None:
        call.send(b"done")
        call.finish()
