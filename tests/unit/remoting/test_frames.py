"""Our own conformance test: frames over every transport, however the bytes are cut and whoever vanishes."""

from __future__ import annotations

import random

import pytest
import trio

from rmq.errors import ConnectionLost
from rmq.protocol.frames import encode
from rmq.remoting import Connection
from rmq.remoting.transports.stream import Stream
from rmq.remoting.transports.tls import TlsContexts

from .peers import Echo, RawPeer, Silent, request
from .transports import Maker


@pytest.fixture
async def pair(transport: Maker, tls: TlsContexts, nursery: trio.Nursery) -> tuple[Stream, Stream]:
    return await transport(nursery, tls)


async def test_frames_cut_at_random_places(pair: tuple[Stream, Stream], nursery: trio.Nursery) -> None:
    client, server = pair
    echo, chance = Echo(), random.Random(7)
    nursery.start_soon(Connection(server, echo).run)
    peer = RawPeer(client)
    requests = [request(chance.randbytes(chance.choice((0, 1, 100, 5000)))) for _ in range(200)]
    data = b"".join(map(encode, requests))

    async def send() -> None:
        at = 0
        while at < len(data):
            size = chance.choice((1, 3, 50, 1000, 20_000))
            await client.send_all(data[at : at + size])
            at += size

    nursery.start_soon(send)
    responses = await peer.receive(len(requests))
    assert [r.opaque for r in responses] == [r.opaque for r in requests]
    assert [r.body for r in responses] == [r.body for r in requests]
    assert echo.bodies == [r.body for r in requests]
    nursery.cancel_scope.cancel()


async def test_frames_one_byte_at_a_time(pair: tuple[Stream, Stream], nursery: trio.Nursery) -> None:
    client, server = pair
    nursery.start_soon(Connection(server, Echo()).run)
    requests = [request(b"one"), request(b""), request(b"three")]

    async def send() -> None:
        for byte in b"".join(map(encode, requests)):
            await client.send_all(bytes([byte]))

    nursery.start_soon(send)
    responses = await RawPeer(client).receive(3)
    assert [r.body for r in responses] == [b"one", b"", b"three"]
    nursery.cancel_scope.cancel()


async def test_large_requests_one_way_and_small_ones_the_other(
    pair: tuple[Stream, Stream], nursery: trio.Nursery
) -> None:
    client, server = (Connection(stream, Echo()) for stream in pair)
    nursery.start_soon(client.run)
    nursery.start_soon(server.run)
    done = []

    async def call(connection: Connection, body: bytes) -> None:
        assert (await connection.call(request(body), 30)).body == body
        done.append(connection)

    async with trio.open_nursery() as calls:
        for number in range(8):
            calls.start_soon(call, client, bytes([number]) * 700_000)
            calls.start_soon(call, server, bytes([number]) * 1000)
    assert len(done) == 16
    nursery.cancel_scope.cancel()


async def test_a_cancelled_call_leaves_the_others_alone(
    pair: tuple[Stream, Stream], nursery: trio.Nursery
) -> None:
    client, server = Connection(pair[0], Echo()), Connection(pair[1], silent := Silent())
    nursery.start_soon(client.run)
    nursery.start_soon(server.run)
    first, second = request(b"first"), request(b"second")
    answers = []

    async def keep() -> None:
        answers.append(await client.call(second, 30))

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as calls:
            calls.start_soon(client.call, first, 30)
            nursery.start_soon(keep)
            while len(silent.requests) < 2:
                await trio.lowlevel.checkpoint()
            scope.cancel()
    for late in silent.requests:
        server.reply(late.reply(body=late.body))
    while not answers:
        await trio.lowlevel.checkpoint()
    assert answers[0].body == b"second"
    third = client.call(request(b"third"), 30)
    nursery.start_soon(_answer_next, server, silent, 3)
    assert (await third).body == b"third"
    nursery.cancel_scope.cancel()


async def _answer_next(server: Connection, silent: Silent, count: int) -> None:
    while len(silent.requests) < count:
        await trio.lowlevel.checkpoint()
    server.reply(silent.requests[-1].reply(body=silent.requests[-1].body))


async def test_cancelled_in_the_middle_of_a_frame(pair: tuple[Stream, Stream]) -> None:
    peer, echo = RawPeer(pair[0]), Echo()
    server = Connection(pair[1], echo)
    async with trio.open_nursery() as serving:
        serving.start_soon(server.run)
        await pair[0].send_all(encode(request(b"whole")) + encode(request(b"half"))[:20])
        await peer.receive()
        serving.cancel_scope.cancel()
    assert echo.closed == [server]
    assert server.is_closed
    assert await peer.ended()


@pytest.mark.parametrize("gracefully", [True, False])
async def test_a_peer_that_vanishes_in_the_middle_of_a_frame(
    pair: tuple[Stream, Stream], nursery: trio.Nursery, gracefully: bool
) -> None:
    client, echo = pair[0], Echo()
    server = Connection(pair[1], echo)

    async def vanish() -> None:
        await client.send_all(encode(request(b"whole")) + encode(request(b"half"))[:20])
        await RawPeer(client).receive()
        await (client.aclose() if gracefully else trio.aclose_forcefully(client))

    nursery.start_soon(vanish)
    with trio.fail_after(60):
        await server.run()
    assert echo.bodies == [b"whole"]
    assert echo.closed == [server]
    with pytest.raises(ConnectionLost):
        await server.call(request(), 1)
    nursery.cancel_scope.cancel()


async def test_calls_in_flight_end_when_the_peer_vanishes(
    pair: tuple[Stream, Stream], nursery: trio.Nursery
) -> None:
    client = Connection(pair[0], Echo())
    nursery.start_soon(client.run)
    lost = []

    async def call() -> None:
        with pytest.raises(ConnectionLost) as error:
            await client.call(request(), 30)
        lost.append(error.value.address)

    async with trio.open_nursery() as calls:
        for _ in range(3):
            calls.start_soon(call)
        await RawPeer(pair[1]).receive(3)
        await trio.aclose_forcefully(pair[1])
    assert lost == [client.peer_address] * 3
    nursery.cancel_scope.cancel()
