"""Connections of doors: their streams, and the server that runs a door's `serve` for each.

A connection has two tasks: the door's own, which reads, and a task that sends. The bytes that wait in either
direction count in the process's memory budget, and the same limits hold as for clients.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, NoReturn, Protocol

import anyio
import anyio.abc
import anyio.lowlevel
import attrs

from rmq.doors import Door, DoorHost
from rmq.errors import AccessDenied, RemoteProtocolError, ResponseError
from rmq.remoting.limits import (
    PATIENCE_SECONDS,
    SMALL_BYTES,
    UNPROVED_FACTOR,
    Limits,
    MemoryBudget,
    patience,
)
from rmq.remoting.loop import Wakeup, current_loop, disconnect_errors, disconnect_or_close_errors
from rmq.remoting.poller import Poller
from rmq.remoting.serving.acceptor import Acceptor, Guest
from rmq.remoting.transports.stream import Listener, Stream, close_at_once

log = logging.getLogger(__name__)

PIECE_BYTES = 64 * 1024
"""Bytes that are sent at once: a peer that takes them has not stalled."""


class DoorConnection:
    """The `rmq.doors.DoorStream` of one peer. `first` are bytes that were already read. `poller` reads the
    stream where it can."""

    def __init__(
        self,
        door: Door,
        stream: Stream,
        first: bytes,
        limits: Limits,
        budget: MemoryBudget,
        poller: Poller | None = None,
    ) -> None:
        self._door = door
        self.peer_address, self.local_address = stream.peer, stream.local
        self.certificate_name = stream.certificate_name
        self.state: dict[str, Any] = {}
        self.is_closed = False
        self.reason = ""
        self.has_proved = False
        """True if its peer has shown that it speaks the protocol."""
        self._stream = stream
        self._limits = limits
        self._budget = budget
        self._poller = poller if poller is not None and stream.reads_now else None
        self._take: Callable[[bytes], None] = _dropped
        self._is_at_end = False  # the poller has read all of the stream
        self._received = bytearray(first)
        self._partial_since = math.inf  # begin of the wait for the rest of a unit
        self._outbox: list[bytes] = []
        self._unsent = 0
        self._held_by_door = 0
        self._door_since = math.inf  # begin of the peer's debt for the bytes that the door holds
        self._now = current_loop().now
        self._active_at = self._taken_at = self._now()
        self._written = Wakeup()
        self._room = anyio.Event()
        self._is_empty = anyio.Event()
        self._scope = anyio.CancelScope()
        self._account()

    @property
    def is_busy(self) -> bool:
        """True if many bytes wait to be sent."""
        return self._unsent > self._limits.pause_bytes

    # ---- reading ----

    async def receive(self, most: int = 65_536) -> bytes:
        """Same as `rmq.doors.DoorStream.receive`."""
        if not self._received:
            await self._fill(most)
        else:
            await anyio.lowlevel.checkpoint()
        return self._taken(min(most, len(self._received)), 0)

    async def receive_each(self, take: Callable[[bytes], None]) -> None:
        """Same as `rmq.doors.DoorStream.receive_each`."""
        poller, self._take = self._poller, take
        while True:
            if poller is not None and poller.is_running and not self._received:
                await poller.attend(self._stream.descriptor, self._on_readable)
                if self._is_at_end:
                    return
            data = await self.receive()  # also where a read must wait: for the peer, or for memory
            if not data:
                return
            take(data)

    def _on_readable(self) -> bool:
        """Read now, and pass the bytes on; False when the task must go on."""
        if self.is_closed:  # and the task has not run since
            return False
        now = self._now()
        if self._unsent > self._limits.pause_bytes or self._is_slow(now, PATIENCE_SECONDS):
            return False
        data = self._stream.receive_now(PIECE_BYTES)
        if data is None:
            return True
        self._active_at = now
        if not data:
            self._is_at_end = True
            return False
        self._take(data)
        return not self.is_closed

    async def receive_exactly(self, count: int) -> bytes:
        """Same as `rmq.doors.DoorStream.receive_exactly`."""
        if count > self._limits.frame_bytes:
            raise RemoteProtocolError(f"{count} bytes at once are more than {self._limits.frame_bytes}")
        while len(self._received) < count:
            if not await self._fill():
                raise RemoteProtocolError(f"the peer ended {count - len(self._received)} bytes too soon")
        await anyio.lowlevel.checkpoint()
        return self._taken(count, 0)

    async def receive_until(self, separator: bytes, most: int) -> bytes | None:
        """Same as `rmq.doors.DoorStream.receive_until`."""
        looked = 0
        while (at := self._received.find(separator, looked)) < 0:
            looked = max(0, len(self._received) - len(separator) + 1)
            if len(self._received) > most:
                raise RemoteProtocolError(f"{separator!r} does not come within {most} bytes")
            if not await self._fill():
                if self._received:
                    raise RemoteProtocolError(f"the peer ended before {separator!r}")
                return None
        if at > most:
            raise RemoteProtocolError(f"{separator!r} does not come within {most} bytes")
        await anyio.lowlevel.checkpoint()
        return self._taken(at, len(separator))

    async def _fill(self, most: int = PIECE_BYTES) -> bool:
        """Read more bytes; return whether any came."""
        if self._unsent > self._limits.pause_bytes:
            await self.drain()
        if self._is_slow(self._now(), PATIENCE_SECONDS):
            await self._budget.relief()
        if self._received and self._partial_since == math.inf:
            self._partial_since = self._now()
        data = await self._stream.receive_some(most)
        self._active_at = self._now()
        self._received += data
        self._account()
        return bool(data)

    def _taken(self, count: int, more: int) -> bytes:
        data = bytes(self._received[:count])
        del self._received[: count + more]
        self._partial_since = math.inf
        self._account()
        return data

    # ---- writing ----

    def write(self, data: bytes) -> None:
        """Same as `rmq.doors.DoorStream.write`."""
        if self.is_closed or not data:
            return
        if not self._unsent:
            self._taken_at = self._now()
        self._outbox.append(data)
        self._unsent += len(data)
        if self._unsent > self._limits.outbox_bytes:
            self.abort(f"its peer does not read: {self._unsent} bytes wait")
            return
        self._written.set()
        self._account()

    def send(self, data: bytes) -> None:
        """Same as `rmq.doors.DoorStream.send`."""
        if self._unsent or not self._stream.sends_now or self.is_closed or not data:
            self.write(data)
            return
        try:
            sent = self._stream.send_now((data,))
        except disconnect_or_close_errors() as error:
            self.abort(f"lost: {error}")
            return
        self._active_at = self._now()
        if sent < len(data):
            self.write(data[sent:])

    async def drain(self) -> None:
        """Same as `rmq.doors.DoorStream.drain`."""
        while self._unsent > self._limits.pause_bytes and not self.is_closed:
            if self._room.is_set():  # another task of the door may wait, too
                self._room = anyio.Event()
            await self._room.wait()

    def hold(self, count: int, since: float | None = None) -> None:
        """Same as `rmq.doors.DoorStream.hold`."""
        if self.is_closed:
            return
        if not count:
            self._door_since = math.inf
        elif since is not None:
            self._door_since = since
        elif not self._held_by_door:
            self._door_since = self._now()
        if count != self._held_by_door:
            self._held_by_door = count
            self._account()

    async def _send(self) -> None:
        try:
            while True:
                await self._written.wait()
                while self._outbox:
                    data, self._outbox = memoryview(b"".join(self._outbox)), []
                    for at in range(0, len(data), PIECE_BYTES):
                        piece = data[at : at + PIECE_BYTES]
                        await self._stream.send_all(piece)
                        self._active_at = self._taken_at = self._now()
                        self._unsent = max(0, self._unsent - len(piece))
                        self._account()
                        if self._unsent <= self._limits.pause_bytes:
                            self._room.set()
                self._is_empty.set()
        except disconnect_or_close_errors() as error:
            self.abort(f"lost: {error}")

    # ---- the end ----

    def close(self, reason: str = "closed by this side") -> None:
        """Same as `rmq.doors.DoorStream.close`."""
        if not self.is_closed:
            self.is_closed, self.reason = True, reason
            self._room.set()
            self._scope.cancel()

    def abort(self, reason: str) -> None:
        """End the connection at once, and drop the held state."""
        log.warning("closing %s: %s", self.peer_address, reason)
        self.close(reason)
        self._outbox.clear()
        self._received.clear()
        self._unsent = self._held_by_door = 0
        self._door_since = math.inf
        self._is_empty.set()
        self._account()

    def finish(self, reason: str) -> None:
        """Close the connection as `close` does, behind the door's last bytes for the peer."""
        if self._door.goodbye is not None and not self.is_closed:
            try:
                self.write(self._door.goodbye(self))
            except Exception as error:
                log.error(
                    "door %s cannot close its connections in order: %s",
                    self._door.name,
                    error,
                    exc_info=error,
                )
        self.close(reason)

    def expire(self, now: float) -> float:
        """End the connection if it waits too long for its peer; return the time of the next check."""
        limits = self._limits
        if self.is_closed:
            return math.inf
        if now - self._partial_since >= limits.frame_seconds:
            self.abort(f"a request was not complete after {limits.frame_seconds:g} s")
        elif self._is_slow(now, self._patience):
            self.abort(f"a request was not complete after {self._patience:g} s, while others need the memory")
        elif self._unsent and now - self._taken_at >= limits.stall_seconds:
            self.abort(f"its peer took nothing for {limits.stall_seconds:g} s")
        elif now - self._active_at >= limits.idle_seconds:
            self.close(f"idle for {limits.idle_seconds:g} s")
            log.info("closing %s: %s", self.peer_address, self.reason)
        else:
            return min(self._partial_since + limits.frame_seconds, self._active_at + limits.idle_seconds)
        return math.inf

    def waste(self, now: float) -> float:
        """Seconds for which a request is incomplete, or the peer took nothing, as in `Connection.waste`."""
        since = min(self._partial_since, self._door_since, self._taken_at if self._unsent else math.inf)
        seconds = max(now - since, 0.0) * (1.0 if self.has_proved else UNPROVED_FACTOR)
        return (seconds if self._held > SMALL_BYTES else seconds / 1000) + self._held * 1e-12

    def _is_slow(self, now: float, seconds: float) -> bool:
        """True if the peer holds many bytes, and owes their rest for longer than `seconds`, while memory is
        tight."""
        since = min(self._partial_since, self._door_since)
        return self._held > SMALL_BYTES and self._budget.is_tight and now - since > seconds

    @property
    def _patience(self) -> float:
        return patience(is_proved=self.has_proved)

    @property
    def _held(self) -> int:
        return self._unsent + len(self._received) + self._held_by_door

    def _account(self) -> None:
        self._budget.hold(self, self._held)

    async def run(self, host: DoorHost) -> None:
        """Serve the peer until the door returns or the connection ends; send the outbox, and close. Errors of
        the door are logged. Cancelled: the same."""
        try:
            async with anyio.create_task_group() as tasks:
                sending = anyio.CancelScope(shield=True)
                tasks.start_soon(self._sending, sending)
                try:
                    with self._scope:
                        await self._served(host)
                finally:
                    self.close("the door closed it")
                    with anyio.move_on_after(self._limits.linger_seconds, shield=True):
                        while self._unsent:
                            self._is_empty = anyio.Event()
                            await self._is_empty.wait()
                    sending.cancel()
        finally:
            self._outbox.clear()
            self._received.clear()
            self._unsent = self._held_by_door = 0
            self._account()
            with anyio.move_on_after(self._limits.linger_seconds, shield=True) as closing:
                await self._stream.aclose()
            if closing.cancelled_caught:
                await close_at_once(self._stream)

    async def _sending(self, scope: anyio.CancelScope) -> None:
        with scope:
            await self._send()

    async def _served(self, host: DoorHost) -> None:
        door = self._door
        try:
            await door.serve(self, host)
        except (RemoteProtocolError, AccessDenied, ResponseError) as error:
            log.warning("closing %s at door %s: %s", self.peer_address, door.name, error)
        except disconnect_or_close_errors() as error:
            log.debug("%s at door %s: %s", self.peer_address, door.name, error)
        except Exception as error:
            text = "closing %s: door %s failed: %s"
            log.error(text, self.peer_address, door.name, error, exc_info=error)


def _dropped(data: bytes) -> None:
    pass


class Visitor(DoorHost, Protocol):
    """The host of a connection, as its server uses it."""

    def closed(self) -> None:
        """Forget the state of a connection that has ended."""


Accept = Callable[..., AbstractAsyncContextManager[tuple[Stream, bytes]]]
"""`accept.accept_stream` with the server's TLS contexts, limits and rules for upgrades."""


class DoorServer:
    """The connections of a broker's doors. `visitor(door, connection)` makes the host of each, `accept` the
    stream of a peer that came to a door's own port.

    `counts` are the connections by door.
    """

    def __init__(
        self,
        doors: Sequence[Door],
        visitor: Callable[[Door, DoorConnection], Visitor],
        *,
        accept: Accept,
        limits: Limits,
        budget: MemoryBudget,
    ) -> None:
        self._doors = [door for door in doors if door.first_bytes]
        self._visitor = visitor
        self._limits = limits
        self._accept = accept
        self._budget = budget
        self._poller: Poller | None = None
        self._open: dict[DoorConnection, None] = {}
        self.counts = {door.name: 0 for door in doors}

    def read_by(self, poller: Poller) -> None:
        """Read connections by a poller from now on, where their doors take bytes as they come."""
        self._poller = poller

    @property
    def has_websocket(self) -> bool:
        """True if a door on the port for clients takes WebSockets."""
        return any(door.websocket for door in self._doors)

    @property
    def subprotocols(self) -> list[str]:
        """The subprotocols of WebSockets on the port for clients."""
        return [name for door in self._doors if door.websocket for name in door.subprotocols]

    def speaks(self, byte: int) -> bool:
        """True if a door's connections begin with this byte on the port for clients."""
        return any(door.first_bytes[0] == byte for door in self._doors)

    async def serve(self, door: Door, raw: Stream, guest: Guest) -> None:
        """Serve one peer that came to the door's own port."""
        raw.keep_alive(self._limits.keepalive_seconds, self._limits.unacknowledged_seconds)
        upgrades = door.websocket
        try:
            async with self._accept(
                raw,
                on_first=guest.speaks,
                speaks=lambda byte: True,
                upgrades=upgrades,
                subprotocols=door.subprotocols,
            ) as (stream, first):
                await self._converse(door, stream, first, guest)
        except RemoteProtocolError as error:
            log.warning("closing %s at door %s: %s", raw.peer, door.name, error)
        except disconnect_errors() as error:
            log.debug("%s at door %s: %s", raw.peer, door.name, error)

    async def converse(
        self, stream: Stream, first: bytes, guest: Guest, *, is_upgraded: bool = False
    ) -> None:
        """Serve one peer that came to the port for clients, with `is_upgraded` by a WebSocket. Raises
        RemoteProtocolError when no door that the peer may use begins with its first bytes."""
        doors = [door for door in self._doors if door.websocket or not is_upgraded]
        with anyio.move_on_after(self._limits.handshake_seconds):
            while not any(map(first.startswith, (one.first_bytes for one in doors))):
                if not any(one.first_bytes.startswith(first) for one in doors):
                    break
                more = bytes(await stream.receive_some(PIECE_BYTES))
                if not more:
                    break
                first += more
        for door in doors:
            if first.startswith(door.first_bytes):
                await self._converse(door, stream, first, guest)
                return
        raise RemoteProtocolError(f"the first bytes {first[:16]!r} belong to no door of this port")

    async def _converse(self, door: Door, stream: Stream, first: bytes, guest: Guest) -> None:
        connection = DoorConnection(door, stream, first, self._limits_of(door), self._budget, self._poller)
        guest.watch(lambda: connection.has_proved)
        host = self._visitor(door, connection)
        self._open[connection] = None
        self.counts[door.name] += 1
        try:
            await connection.run(host)
        finally:
            self.counts[door.name] -= 1
            del self._open[connection]
            host.closed()

    def _limits_of(self, door: Door) -> Limits:
        if door.idle_seconds is None:
            return self._limits
        return attrs.evolve(self._limits, idle_seconds=door.idle_seconds)

    async def expire(self) -> NoReturn:
        """Close connections that are idle or stuck: a single task checks all connections."""
        while True:
            await anyio.sleep(self._limits.stall_scan_seconds)
            now = anyio.current_time()
            for connection in list(self._open):
                connection.expire(now)

    def stop(self, reason: str) -> None:
        """Say goodbye to all peers and end their connections, behind the responses."""
        for connection in list(self._open):
            connection.finish(reason)


async def serve_doors(
    server: DoorServer,
    ports: Sequence[tuple[Door, Listener, Acceptor]],
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Serve doors at their own ports: door, listener and acceptor of each. Cancelled: the listeners and all
    connections are closed."""
    try:
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(server.expire)
            for door, listener, acceptor in ports:
                nursery.start_soon(acceptor.run, listener, partial(server.serve, door), nursery)
            task_status.started()
    finally:
        for _, listener, _ in ports:
            with anyio.CancelScope(shield=True):
                await listener.aclose()
    raise AssertionError("unreachable: the tasks above end only by an error or by cancellation")
