"""Pages over HTTP: probes are answered beside strangers, browsers are told nothing by another's name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from rmq.remoting.transports.stream import Stream
from rmq.remoting.transports.websocket_policy import WebSocketAccess
from rmq.server.health import Health
from rmq.server.http import Answer, Asked, Page, health_pages
from rmq.server.pages import PAGES, PEERS, serve
from rmq.testing import MemoryNetwork

SERVER = "10.0.0.9:5557"
TOKEN = b"a-token-of-20-letters"


@asynccontextmanager
async def serving(token: bytes = b"", **more: Page) -> AsyncIterator[MemoryNetwork]:
    network, health = MemoryNetwork(), Health(store="it is being opened")
    pages = health_pages(health, token) | {f"/{name}": page for name, page in more.items()}
    listener = await network.host("10.0.0.9").listen(SERVER)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve, listener, pages, WebSocketAccess(hosts=["broker-a"])))
        yield network
        nursery.cancel_scope.cancel()


async def ended(stream: Stream) -> bytes:
    said = b""
    with suppress(trio.BrokenResourceError):
        while data := await stream.receive_some():
            said += data
    return said


async def get(network: MemoryNetwork, host: str, path: str = "/healthz", *lines: str) -> bytes:
    stream = await network.host(host).dial(SERVER)
    request = "\r\n".join([f"GET {path} HTTP/1.1", *(lines or ("Host: x",)), "", ""])
    await stream.send_all(request.encode())
    with trio.fail_after(2):
        return await ended(stream)


async def test_probes_are_answered_beside_silent_connections(autojump_clock: MockClock) -> None:
    """16 of them had all places for 10 s each: Kubernetes restarted every pod."""
    async with serving() as network:
        streams = [await network.host(f"10.0.0.{1 + number % 3}").dial(SERVER) for number in range(60)]
        for _ in range(20):
            assert b" 200 " in await get(network, "10.0.1.1")
            assert b" 200 " in await get(network, "10.0.0.1")  # from one of their addresses, too
            streams += [await network.host(f"10.0.0.{1 + number}").dial(SERVER) for number in range(3)]
        with trio.fail_after(2.1):
            for one in streams:
                await ended(one)


async def test_half_a_request_has_two_seconds(autojump_clock: MockClock) -> None:
    async with serving() as network:
        stream = await network.host("10.0.0.1").dial(SERVER)
        await stream.send_all(b"GET /healthz HTTP/1.1\r\nHos")
        began = trio.current_time()
        assert await ended(stream) == b""
        assert trio.current_time() - began == pytest.approx(2)


async def test_pages_that_take_long_leave_room_for_probes(autojump_clock: MockClock) -> None:
    async def slow(asked: Asked) -> Answer:
        await trio.sleep(5)
        return Answer(b"slow\n")

    async with serving(slow=slow) as network, trio.open_nursery() as nursery:
        statuses = []

        async def ask(number: int) -> None:
            stream = await network.host(f"10.0.0.{number}").dial(SERVER)
            await stream.send_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
            statuses.append((await ended(stream))[9:12])

        for number in range(1, PEERS + 1):
            nursery.start_soon(ask, number)
            await trio.sleep(0.01)
        assert b" 200 " in await get(network, "10.0.1.1")
        await trio.sleep(6)
        assert statuses.count(b"200") == PAGES
        assert set(statuses) == {b"200", b"503"}


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (("Host: evil.example", "User-Agent: Mozilla/5.0"), b"421"),
        (("Host: evil.example:5557", "Sec-Fetch-Mode: cors"), b"421"),
        (("Host: evil.example", "Origin: http://evil.example"), b"421"),
        (("Host: broker-a:5557", "User-Agent: Mozilla/5.0"), b"200"),
        (("Host: 10.0.0.9:5557", "User-Agent: Mozilla/5.0"), b"200"),
        (("Host: localhost", "User-Agent: Mozilla/5.0"), b"200"),
        (("Host: rmq.monitoring.svc:5557", "User-Agent: Prometheus/2.45"), b"200"),
    ],
)
async def test_a_browser_that_knows_the_server_by_another_name_is_told_nothing(
    autojump_clock: MockClock, lines: tuple[str, ...], status: bytes
) -> None:
    async with serving() as network:
        assert (await get(network, "10.0.0.1", "/healthz", *lines)).split()[1] == status


async def test_what_lacks_is_told_to_those_who_bring_the_token(autojump_clock: MockClock) -> None:
    async with serving(TOKEN) as network:
        without = await get(network, "10.0.0.1", "/ready")
        assert without.endswith(b"\r\n\r\nnot ready\n")
        assert b" 503 " in without
        bearer = f"Authorization: Bearer {TOKEN.decode()}"
        assert b"store: it is being opened" in await get(network, "10.0.0.1", "/ready", "Host: x", bearer)
    async with serving() as network:
        assert b"store: it is being opened" in await get(network, "10.0.0.1", "/ready")
