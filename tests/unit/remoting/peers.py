"""Endpoints and raw peers for the tests of connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from rmq.remoting import Connection, Limits
from rmq.remoting.endpoint import Endpoint
from rmq.remoting.limits import MemoryBudget
from rmq.remoting.transports.stream import Stream
from rmq.testing import MemoryNetwork

CODE = 9999


def request(body: bytes = b"", *, oneway: bool = False) -> Command:
    return Command.request(CODE, {"key": "value"}, body, oneway=oneway)


class Echo(Endpoint):
    """Answers each request with its body; keeps the chunks and the closed connections."""

    def __init__(self) -> None:
        self.chunks: list[list[bytes]] = []
        self.closed: list[Connection] = []

    def handle(self, requests: list[Command], connection: Connection) -> None:
        self.chunks.append([request.body for request in requests])
        for request in requests:
            if not request.is_oneway:
                connection.reply(request.reply(body=request.body))

    def on_close(self, connection: Connection) -> None:
        self.closed.append(connection)

    @property
    def bodies(self) -> list[bytes]:
        return [body for chunk in self.chunks for body in chunk]


class Silent(Echo):
    """Keeps requests and answers none."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Command] = []
        self.connection: Connection | None = None

    def handle(self, requests: list[Command], connection: Connection) -> None:
        self.requests += requests
        self.connection = connection


class Custom(Echo):
    """Calls a function for each request."""

    def __init__(self, answer: Callable[[Command, Connection], None]) -> None:
        super().__init__()
        self._answer = answer

    def handle(self, requests: list[Command], connection: Connection) -> None:
        for request in requests:
            self._answer(request, connection)


class RawPeer:
    """The other end of a connection, as bytes."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._decoder = Decoder()
        self._commands: list[Command] = []

    async def send(self, *commands: Command) -> None:
        await self.stream.send_all(b"".join(map(encode, commands)))

    async def receive(self, count: int = 1) -> list[Command]:
        while len(self._commands) < count:
            data = await self.stream.receive_some()
            assert data, "the connection ended"
            self._commands += self._decoder.feed(data)
        taken, self._commands = self._commands[:count], self._commands[count:]
        return taken

    async def ended(self) -> bool:
        """Wait until the other side has closed; whether it did so without sending more."""
        try:
            return not await self.stream.receive_some()
        except trio.BrokenResourceError:
            return True


@attrs.frozen
class Link:
    """A running connection, its endpoint, and the raw peer at the other end."""

    connection: Connection
    endpoint: Echo
    peer: RawPeer
    network: MemoryNetwork
    ended: trio.Event


@asynccontextmanager
async def linked(
    endpoint: Echo | None = None,
    *,
    limits: Limits | None = None,
    network: MemoryNetwork | None = None,
    budget: MemoryBudget | None = None,
) -> AsyncIterator[Link]:
    """A connection over memory, running until the end of the block."""
    network = network or MemoryNetwork(seed=1)
    ours, theirs = network.pair()
    endpoint = endpoint or Echo()
    connection = Connection(ours, endpoint, limits=limits, budget=budget)
    link = Link(connection, endpoint, RawPeer(theirs), network, trio.Event())

    async def run() -> None:
        await connection.run()
        link.ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await wait_all_tasks_blocked()  # it reads now, whatever the order in which tasks began
        yield link
        nursery.cancel_scope.cancel()
