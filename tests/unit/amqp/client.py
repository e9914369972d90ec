"""A client of AMQP 1.0 over any network: qpid-proton's client side without its own I/O."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from rmq_amqp import sasl, values
from rmq_amqp.sections import Sections, build, parse

from rmq.remoting.network import Network
from rmq.remoting.transports.stream import Stream

proton: Any = pytest.importorskip("proton", reason="needs the extra amqp: pip install 'rmq[amqp]'")

SECONDS = 600.0
ACCEPTED = 0x24


class Broken(Exception):
    """The server has refused the login or ended the connection."""


class Client:
    """One connection."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.transport = proton.Transport()
        self.connection = proton.Connection()
        self.collector = proton.Collector()
        self.connection.collect(self.collector)
        self.transport.bind(self.connection)
        self.is_over = False
        self.changed = anyio.Event()
        self.events: list[str] = []
        self._sending = anyio.Lock()

    async def login(self, mechanism: str, user: str, secret: str) -> None:
        """Log in by SASL; the server's words must be the right ones."""
        response = {"PLAIN": f"\0{user}\0{secret}", "EXTERNAL": user}.get(mechanism, "guest").encode()
        await self.stream.send_all(sasl.SASL_HEADER)
        inbox = await self._read(8, b"")
        assert inbox[:8] == sasl.SASL_HEADER
        inbox = inbox[8:]
        offered, inbox = await self._frame(inbox)
        assert offered.descriptor == sasl.MECHANISMS
        self.mechanisms = values.symbols(offered.value[0])
        fields: list[object] = [sasl.Symbol(mechanism), response, "broker"]
        await self.stream.send_all(sasl.frame(sasl.INIT, fields))
        outcome, inbox = await self._frame(inbox)
        if outcome.value[0] != sasl.OK:
            raise Broken(f"the login is refused by {outcome.value[0]}")
        assert not inbox

    async def _read(self, count: int, inbox: bytes) -> bytes:
        while len(inbox) < count:
            data = bytes(await self.stream.receive_some(65_536))
            if not data:
                raise Broken("the server has ended the connection")
            inbox += data
        return inbox

    async def _frame(self, inbox: bytes) -> tuple[Any, bytes]:
        inbox = await self._read(8, inbox)
        size = int.from_bytes(inbox[:4], "big")
        inbox = await self._read(size, inbox)
        return sasl.read_frame(inbox[:size]), inbox[size:]

    async def flush(self) -> None:
        """Send what the engine has."""
        async with self._sending:
            parts = []
            while (size := self.transport.pending()) > 0:
                data = self.transport.peek(size)
                self.transport.pop(len(data))
                parts.append(bytes(data))
            if parts:
                await self.stream.send_all(b"".join(parts))

    async def run(self) -> None:
        """Read until the end."""
        try:
            while data := bytes(await self.stream.receive_some(65_536)):
                while data:
                    room = self.transport.capacity()
                    self.transport.push(data[:room])
                    data = data[room:]
                while (event := self.collector.peek()) is not None:
                    self.events.append(event.type.name)
                    del self.events[:-100]
                    self.collector.pop()
                await self.flush()
                self._woken()
        except anyio.BrokenResourceError:
            pass
        self.is_over = True
        self._woken()

    def _woken(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def until(self, holds: Callable[[], Any]) -> Any:
        """Send, and wait until this holds; returns its value."""
        await self.flush()
        with anyio.fail_after(SECONDS):
            while not (value := holds()):
                if self.is_over:
                    raise Broken(f"the connection has ended: {self.connection.remote_condition}")
                await self.changed.wait()
        return value

    async def open(self, container: str, **named: Any) -> None:
        """Open the connection."""
        self.connection.container = container
        for name, value in named.items():
            setattr(self.connection, name, value)
        self.connection.open()
        await self.until(lambda: self.connection.state & proton.Endpoint.REMOTE_ACTIVE)

    async def session(self) -> Any:
        """Begin a session."""
        session = self.connection.session()
        session.open()
        await self.until(lambda: session.state & proton.Endpoint.REMOTE_ACTIVE)
        return session

    async def attached(self, link: Any) -> Any:
        """Attach a link. Raises Broken with the condition when it is refused."""
        link.open()
        await self.until(lambda: not link.state & proton.Endpoint.REMOTE_UNINIT)
        if link.remote_target.type == link.remote_source.type == proton.Terminus.UNSPECIFIED:
            await self.until(lambda: link.state & proton.Endpoint.REMOTE_CLOSED)
        if link.state & proton.Endpoint.REMOTE_CLOSED:
            raise Broken(f"{link.remote_condition.name}: {link.remote_condition.description}")
        return link

    async def producer(self, session: Any, address: str | None, name: str = "producer") -> Producer:
        """Attach a producer; without an address each message names its own."""
        link = session.sender(name)
        if address is not None:
            link.target.address = address
        link.target.type = proton.Terminus.TARGET
        link.source.type = proton.Terminus.SOURCE
        return Producer(self, await self.attached(link))

    async def consumer(
        self, session: Any, address: str, name: str = "consumer", *, credit: int = 100, **named: Any
    ) -> Consumer:
        """Attach a consumer."""
        link = session.receiver(name)
        link.source.address = address
        link.target.type = proton.Terminus.TARGET
        for key, value in named.items():
            if key == "capabilities":
                link.source.capabilities.put_object([proton.symbol(word) for word in value])
            elif key == "filters":
                link.source.filter.put_object(value)
            elif key == "durable":
                link.source.durability = 2
                link.source.expiry_policy = proton.Terminus.EXPIRE_NEVER
            else:
                setattr(link, key, value)
        await self.attached(link)
        consumer = Consumer(self, link)
        if credit:
            link.flow(credit)
            await self.flush()
        return consumer


class Producer:
    """A link to send on."""

    def __init__(self, client: Client, link: Any) -> None:
        self.client = client
        self.link = link

    async def send(self, message: Sections | bytes, *, settled: bool = False) -> Any:
        """Send a message; returns its delivery, once it has an outcome."""
        await self.client.until(lambda: self.link.credit > 0)
        delivery = self.link.delivery(self.link.delivery_tag())
        self.link.stream(message if isinstance(message, bytes) else build(message))
        self.link.advance()
        if settled:
            delivery.settle()
            await self.client.flush()
            return delivery
        await self.client.until(lambda: delivery.remote_state or delivery.settled)
        return delivery


class Consumer:
    """A link to receive on."""

    def __init__(self, client: Client, link: Any) -> None:
        self.client = client
        self.link = link

    def _next(self) -> tuple[Any, Sections] | None:
        delivery = self.link.current
        if delivery is None or not delivery.readable or delivery.partial:
            return None
        data = b""
        while part := self.link.recv(65_536):
            data += bytes(part)
        self.link.advance()
        return delivery, parse(data)

    async def receive(self) -> tuple[Any, Sections]:
        """The next message, and its delivery."""
        found: tuple[Any, Sections] = await self.client.until(self._next)
        return found

    async def settle(self, delivery: Any, state: int = ACCEPTED) -> None:
        """Settle a delivery by an outcome."""
        delivery.update(state)
        delivery.settle()
        await self.client.flush()

    async def drained(self) -> int:
        """Give the peer's credit up at once; returns how many messages have come meanwhile."""
        self.link.drain_mode = True
        await self.client.until(lambda: self.link.credit - self.link.queued <= 0)
        self.link.drain_mode = False
        return int(self.link.queued)


@asynccontextmanager
async def connected(
    network: Network,
    address: str,
    container: str = "client",
    *,
    mechanism: str = "ANONYMOUS",
    user: str = "",
    secret: str = "",
    **named: Any,
) -> AsyncIterator[Client]:
    """A connection for the length of the block."""
    stream = await network.dial(address)
    one = Client(stream)
    try:
        await one.login(mechanism, user, secret)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.run)
            await one.open(container, **named)
            try:
                yield one
            finally:
                tasks.cancel_scope.cancel()
    finally:
        await stream.aclose()
