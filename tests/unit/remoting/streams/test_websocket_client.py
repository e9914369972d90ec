"""The client's WebSocket on asyncio, against wsproto as the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    Request,
    TextMessage,
)

from rmq.remoting.loop import broken, closed
from rmq.remoting.transports.stream import Stream
from rmq.remoting.transports.websocket_client import MESSAGE_BYTES, WebSocketClientStream, connect_websocket
from rmq.testing import MemoryNetwork
from rmq.testing.clock import virtual_time

Broken, Closed = type(broken("")), type(closed())


class Server:
    """The other end: what it heard, and what it says."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.protocol = WSConnection(ConnectionType.SERVER)
        self.heard: list[Event] = []

    async def run(self) -> None:
        with suppress(Broken, Closed):
            await self._listen()

    async def _listen(self) -> None:
        while data := await self.stream.receive_some():
            self.protocol.receive_data(bytes(data))
            for event in self.protocol.events():
                self.heard.append(event)
                if isinstance(event, Request):
                    await self.say(AcceptConnection())
                elif isinstance(event, CloseConnection) and self.protocol.state.name == "REMOTE_CLOSING":
                    await self.say(event.response())

    async def say(self, *events: Event) -> None:
        await self.stream.send_all(b"".join(map(self.protocol.send, events)))

    @property
    def body(self) -> bytes:
        return b"".join(bytes(one.data) for one in self.heard if isinstance(one, BytesMessage))


Scenario = Callable[[WebSocketClientStream, Server], Awaitable[None]]
Play = Callable[[Scenario], None]


@pytest.fixture
def in_memory() -> Play:
    """Play a scenario in virtual time."""
    return play


def play(scenario: Scenario) -> None:
    async def main() -> None:
        with virtual_time():
            client, far = MemoryNetwork(seed=1).pair()
            server = Server(far)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.run)
                with anyio.fail_after(1000):
                    await scenario(await connect_websocket(client, "127.0.0.1:1"), server)
                tasks.cancel_scope.cancel()

    anyio.run(main, backend="asyncio")


def test_bytes_go_both_ways(in_memory: Play) -> None:
    async def scenario(stream: WebSocketClientStream, server: Server) -> None:
        data = bytes(range(256)) * 1000
        await stream.send_all(data)
        await anyio.sleep(1)
        assert server.body == data
        assert (
            len([one for one in server.heard if isinstance(one, BytesMessage)]) >= len(data) / MESSAGE_BYTES
        )
        await server.say(BytesMessage(data=b"abc"), BytesMessage(data=b"def"))
        assert [await stream.receive_some(2) for _ in range(3)] == [b"ab", b"cd", b"ef"]
        assert (stream.peer, stream.local) == (stream._stream.peer, stream._stream.local)

    in_memory(scenario)


def test_pings_are_answered_also_while_others_send(in_memory: Play) -> None:
    async def scenario(stream: WebSocketClientStream, server: Server) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.send_all, b"x" * 1_000_000)
            for number in range(5):
                await server.say(Ping(payload=b"%d" % number))
            await server.say(BytesMessage(data=b"end"))
            assert await stream.receive_some() == b"end"
        await anyio.sleep(1)
        pongs = [bytes(one.payload) for one in server.heard if isinstance(one, Pong)]
        assert pongs == [b"%d" % number for number in range(5)]
        assert server.body == b"x" * 1_000_000

    in_memory(scenario)


@pytest.mark.parametrize(("code", "clean"), [(1000, True), (1001, True), (1002, False), (1011, False)])
def test_an_end_with_an_error_is_no_clean_end(in_memory: Play, code: int, clean: bool) -> None:
    async def scenario(stream: WebSocketClientStream, server: Server) -> None:
        await server.say(BytesMessage(data=b"x"), CloseConnection(code=code, reason="why"))
        assert await stream.receive_some() == b"x"
        for _ in range(2):
            if clean:
                assert await stream.receive_some() == b""
            else:
                with pytest.raises(Broken, match="why"):
                    await stream.receive_some()
        with pytest.raises(Broken, match="has closed"):
            await stream.send_all(b"y")

    in_memory(scenario)


@pytest.mark.parametrize("end", ["text", "nonsense", "hangs up"])
def test_a_server_that_breaks_the_protocol(in_memory: Play, end: str) -> None:
    async def scenario(stream: WebSocketClientStream, server: Server) -> None:
        if end == "text":
            await server.say(TextMessage(data="hello"))
        elif end == "nonsense":
            await server.stream.send_all(b"\xff" * 50)
        else:
            await server.stream.aclose()
        with pytest.raises(Broken):
            await stream.receive_some()

    in_memory(scenario)


def test_closing_says_so_and_ends_whoever_reads(in_memory: Play) -> None:
    async def scenario(stream: WebSocketClientStream, server: Server) -> None:
        async def read() -> None:
            with pytest.raises(Closed):
                await stream.receive_some()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.sleep(1)
            await stream.aclose()
        await stream.aclose()
        await anyio.sleep(1)
        assert [one.code for one in server.heard if isinstance(one, CloseConnection)][:1] == [1000]
        for call in (stream.receive_some(), stream.send_all(b"x"), stream.wait_send_all_might_not_block()):
            with pytest.raises(Closed):
                await call

    in_memory(scenario)


def test_a_server_that_does_not_close_is_not_waited_for(in_memory: Play) -> None:
    async def scenario(stream: WebSocketClientStream, server: Server) -> None:
        server.protocol = WSConnection(ConnectionType.SERVER)  # it has forgotten all
        began = anyio.current_time()
        await stream.aclose()
        assert anyio.current_time() - began <= 5

    async def main() -> None:
        with virtual_time():
            client, far = MemoryNetwork(seed=1).pair()
            server = Server(far)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.run)
                stream = await connect_websocket(client, "127.0.0.1:1")
                tasks.cancel_scope.cancel()
            await scenario(stream, server)

    anyio.run(main, backend="asyncio")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "refused with HTTP status 403"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "not a WebSocket handshake"),
        (b"HTTP/1.1 101 Switching\r\nX: \xff\xfe\r\n\r\n", "not a WebSocket handshake"),
        (b"", "hung up"),
    ],
)
def test_a_handshake_that_fails(answer: bytes, reason: str) -> None:
    async def main() -> None:
        client, far = MemoryNetwork(seed=1).pair()

        async def refuse() -> None:
            await far.receive_some()
            if answer:
                await far.send_all(answer)
            await far.aclose()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refuse)
            with pytest.raises(Broken, match=reason):
                await connect_websocket(client, "127.0.0.1:1")

    anyio.run(main, backend="asyncio")
