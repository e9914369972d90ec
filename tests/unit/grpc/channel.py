"""A gRPC client over any network, as small as its tests need."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import h2.config
import h2.connection
import h2.events
import h2.exceptions
from rmq_grpc import schema

from rmq.remoting.network import Network
from rmq.remoting.transports.stream import Stream


class CallOf:
    """One call: the messages that have come, and its end."""

    def __init__(self, channel: Channel, stream_id: int, answer: Any) -> None:
        self.stream_id = stream_id
        self.messages: list[Any] = []
        self.trailers: dict[str, str] | None = None
        self.reset: int | None = None
        self.changed = anyio.Event()
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.ends = False
        self._channel = channel
        self._answer = answer

    @property
    def is_over(self) -> bool:
        return self.trailers is not None or self.reset is not None

    @property
    def status(self) -> int:
        assert self.trailers is not None, f"reset by {self.reset}"
        return int(self.trailers["grpc-status"])

    def take(self, data: bytes) -> None:
        self.inbox += data
        while len(self.inbox) >= 5:
            size = int.from_bytes(self.inbox[1:5], "big")
            if len(self.inbox) < 5 + size:
                break
            self.messages.append(self._answer.FromString(bytes(self.inbox[5 : 5 + size])))
            del self.inbox[: 5 + size]

    def woken(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def until(self, count: int | None = None) -> list[Any]:
        """The messages, once there are so many, or at the end of the call."""
        while not self.is_over and (count is None or len(self.messages) < count):
            await self.changed.wait()
        return self.messages

    async def send(self, message: Any, *, ends: bool = False) -> None:
        data = message if isinstance(message, bytes) else framed(message)
        self.outbox += data
        self.ends = ends
        await self._channel.push(self)

    async def cancel(self) -> None:
        """Give the call up; a connection that the server has ended meanwhile has no calls."""
        if not self._channel.is_closed:
            self._channel.h2.reset_stream(self.stream_id, 8)
            await self._channel.flush()


def framed(message: Any, flag: int = 0) -> bytes:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return bytes((flag,)) + len(data).to_bytes(4, "big") + data


class Channel:
    """One connection."""

    def __init__(self, stream: Stream, client_id: str) -> None:
        self.stream = stream
        self.client_id = client_id
        self.is_closed = False
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(config)
        self.calls: dict[int, CallOf] = {}
        self._sending = anyio.Lock()

    async def flush(self) -> None:
        async with self._sending:
            data = self.h2.data_to_send()
            if data:
                await self.stream.send_all(data)

    async def push(self, call: CallOf) -> None:
        while call.outbox:
            window = self.h2.local_flow_control_window(call.stream_id)
            room = min(window, self.h2.max_outbound_frame_size)
            if room <= 0:
                break
            self.h2.send_data(call.stream_id, bytes(call.outbox[:room]))
            del call.outbox[:room]
        if not call.outbox and call.ends:
            call.ends = False
            self.h2.end_stream(call.stream_id)
        await self.flush()

    async def run(self) -> None:
        """Read until the end."""
        while data := bytes(await self.stream.receive_some(65_536)):
            events = self.h2.receive_data(data)
            self.is_closed |= any(isinstance(event, h2.events.ConnectionTerminated) for event in events)
            for event in events:
                stream_id = getattr(event, "stream_id", None)
                call = self.calls.get(stream_id) if stream_id else None
                if isinstance(event, h2.events.DataReceived):
                    assert call is not None
                    call.take(event.data)
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, (h2.events.TrailersReceived, h2.events.ResponseReceived)):
                    assert call is not None
                    headers = {str(name): str(value) for name, value in event.headers}
                    if "grpc-status" in headers or headers.get(":status", "200") != "200":
                        call.trailers = headers
                elif isinstance(event, h2.events.StreamReset) and call is not None and not call.is_over:
                    call.reset = int(event.error_code)
                elif isinstance(event, (h2.events.WindowUpdated, h2.events.RemoteSettingsChanged)):
                    for one in self.calls.values():
                        if one.outbox:
                            await self.push(one)
                if call is not None:
                    call.woken()
            await self.flush()
        self.is_closed = True
        for call in self.calls.values():
            if not call.is_over:
                call.reset = -1
            call.woken()

    async def begin(self, method: str, *, path: str = "", waits: bool = False, **metadata: str) -> CallOf:
        """Begin a call; its messages follow. With `waits` the headers wait for the first message, as those of
        most clients do."""
        name = "TelemetryCommand" if method == "Telemetry" else f"{method}Response"
        stream_id = self.h2.get_next_available_stream_id()
        call = self.calls[stream_id] = CallOf(self, stream_id, schema.message(name))
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path or f"/{schema.SERVICE}/{method}",
            ":authority": "broker",
            "content-type": "application/grpc",
            "te": "trailers",
            "x-mq-client-id": self.client_id,
        }
        headers |= {name.replace("_", "-"): value for name, value in metadata.items()}
        self.h2.send_headers(stream_id, [(name, value) for name, value in headers.items() if value])
        if not waits:
            await self.flush()
        return call

    async def ask(
        self, method: str, request: Any = None, *, seconds: float = 60, **metadata: str
    ) -> list[Any]:
        """Make a call, and return the messages of its answer. Its status must be 0."""
        call = await self.begin(method, waits=True, **metadata)
        await call.send(request or schema.message(f"{method}Request")(), ends=True)
        with anyio.fail_after(60):
            messages = await call.until()
        assert call.status == 0, call.trailers
        return messages

    async def one(self, method: str, request: Any = None, **metadata: str) -> Any:
        """Same as `ask`, for a call whose response is one message."""
        (answer,) = await self.ask(method, request, **metadata)
        return answer


@asynccontextmanager
async def channel(network: Network, address: str, client_id: str = "client@1") -> AsyncIterator[Channel]:
    """A connection for the length of the block."""
    stream = await network.dial(address)
    one = Channel(stream, client_id)
    one.h2.initiate_connection()
    one.h2.increment_flow_control_window(16 << 20)
    await one.flush()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        try:
            yield one
        finally:
            tasks.cancel_scope.cancel()
    await stream.aclose()
