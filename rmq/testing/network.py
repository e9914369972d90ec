"""MemoryNetwork: hosts and links without sockets, for tests in virtual time.

    network = MemoryNetwork(seed=7)
    network.latency = (0.001, 0.020)
    broker, client = network.host("10.0.0.1"), network.host("10.0.0.2")
    ... serve(broker, ["10.0.0.1:10911"], ...) ... Pool(client, ...)
    network.partition("10.0.0.1", "10.0.0.2")     # bytes wait, dials get no answer
    network.silence("10.0.0.1", "10.0.0.2")       # the same, for the bytes of the first host only
    network.heal()
    network.cut("10.0.0.1")                       # its connections break
    network.vanish("10.0.0.1")                    # they break at its end only
    network.black_hole("10.0.0.1")                # nothing passes on them any more; new connections work
    network.links["10.0.0.1", "10.0.0.2"] = Link(breaks=0.01, stalls=0.1)

All chance comes from the seed. Time is the loop's, so a virtual clock rules it. Streams behave as TCP does:
bytes keep their order, a full window stops the sender, a closed peer breaks the sender later.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import random
from collections import Counter, deque

import anyio
import anyio.lowlevel
from attrs import frozen

from rmq.errors import PortInUse
from rmq.remoting.address import join_address, split_address
from rmq.remoting.loop import Waiter, broken, closed, current_loop
from rmq.remoting.transports.stream import Buffer, ByteStream

WINDOW_BYTES = 64 * 1024
_OWN = ("127.0.0.1", "localhost", "0.0.0.0", "::", "::1")


@frozen
class Link:
    """A slow or lossy direction from a host to another.

    `latency` is as that of the network, whose own is used with None. `breaks` is the chance of each piece of
    bytes that the connection breaks at a byte of it: earlier bytes arrive. `stalls` is the chance that the
    piece stands still at a byte for `stall_seconds` (lowest, highest), with everything behind it; a dial,
    too.
    """

    latency: tuple[float, float] | None = None
    breaks: float = 0.0
    stalls: float = 0.0
    stall_seconds: tuple[float, float] = (0.2, 3.0)


class MemoryNetwork:
    """A network of named hosts. The object itself is the network of the host ``127.0.0.1``.

    `latency` is (lowest, highest) seconds for each piece of bytes, `chop` cuts the result of a receive at
    random places, `window` is the number of unread bytes that a connection takes. `links` are exceptions for
    the bytes of a host to another, each direction by itself. All may be changed at any time.
    """

    def __init__(self, seed: int = 0, *, chop: bool = False, window: int = WINDOW_BYTES) -> None:
        self.seed = seed
        self.latency = (0.0, 0.0)
        self.chop = chop
        self.window = window
        self.chance = random.Random(seed)
        self._listeners: dict[tuple[str, int], MemoryListener] = {}
        self._streams: dict[MemoryStream, None] = {}
        self.links: dict[tuple[str, str], Link] = {}
        self._silent: set[tuple[str, str]] = set()
        self._lives: Counter[str] = Counter()
        self._ports = itertools.count(49152)
        self._changed = _Change()

    def host(self, name: str) -> MemoryHost:
        """The network from the point of view of a host; `name` is the part of addresses before the colon."""
        return MemoryHost(self, name)

    async def dial(self, address: str) -> MemoryStream:
        return await self.host("127.0.0.1").dial(address)

    async def listen(self, address: str, *, held: bool = False) -> MemoryListener:
        return await self.host("127.0.0.1").listen(address, held=held)

    def partition(self, one: str, *others: str) -> None:
        """Block all bytes between `one` and `other` (default: every other host) until `heal`."""
        for other in others or self._hosts() - {one}:
            self._silent |= {(one, other), (other, one)}
        self._wake()

    def silence(self, one: str, *others: str) -> None:
        """Block all bytes of `one` to `other` (default: to any host) until `heal`. The other direction works;
        but no acknowledgement arrives, so that a full window stays full."""
        self._silent |= {(one, other) for other in others or self._hosts() - {one}}
        self._wake()

    def heal(self, one: str | None = None) -> None:
        """End all partitions (or those of a host), also those of a single direction; delayed bytes arrive
        now."""
        self._silent = set() if one is None else {way for way in self._silent if one not in way}
        self._wake()

    def cut(self, one: str | None = None, other: str | None = None) -> None:
        """Break the open connections (of one host, or between two): both ends get BrokenResourceError."""
        for stream in self._streams_of(one, other):
            stream.break_off()

    def _streams_of(self, one: str | None, other: str | None) -> list[MemoryStream]:
        hosts = {host for host in (one, other) if host is not None}
        return [stream for stream in self._streams if hosts <= {stream.local_host, stream.peer_host}]

    def black_hole(self, one: str | None = None, other: str | None = None) -> None:
        """Stop all bytes on the open connections (of a host, or between two). Neither end notices, and new
        connections work: as when NAT forgets them, or a virtual machine was moved."""
        for stream in self._streams_of(one, other):
            stream.lose()

    def vanish(self, one: str) -> None:
        """Remove the machine, as after a loss of power: its connections bring no more bytes, and other hosts
        notice their end at their next send. Its remaining tasks reach no host; the next life begins with
        another `host`."""
        self._lives[one] += 1
        for stream in list(self._streams):
            if stream.local_host == one:
                stream.vanish()
        for key in [key for key in self._listeners if key[0] == one]:
            self._listeners.pop(key).forget_offered()

    def open_at(self, host: str) -> int:
        """Number of open connections of a host; one to itself counts twice."""
        return sum(stream.local_host == host for stream in self._streams)

    def delay(self, source: str, target: str) -> float:
        """The delay of the next bytes of one host to another, in seconds."""
        link = self.links.get((source, target)) if self.links else None
        latency = self.latency if link is None or link.latency is None else link.latency
        return self.chance.uniform(*latency) if latency[1] else 0.0

    def is_silent(self, source: str, target: str) -> bool:
        """True if no bytes of one host reach another."""
        return bool(self._silent) and (source, target) in self._silent

    def _hosts(self) -> set[str]:
        listening = {host for host, _ in self._listeners}
        return listening.union(*({s.local_host, s.peer_host} for s in self._streams))

    def _wake(self) -> None:
        self._changed.notify()
        for stream in self._streams:
            stream.wake()

    async def _connect(self, source: str, host: str, port: int) -> MemoryStream:
        life = self._lives[source]
        await anyio.sleep(self.delay(source, host))
        for way in ((source, host), (host, source)) if self.links else ():
            link = self.links.get(way)
            if link is not None and link.stalls and self.chance.random() < link.stalls:
                await anyio.sleep(self.chance.uniform(*link.stall_seconds))
        while self.is_silent(source, host) or self.is_silent(host, source):
            await self._changed.wait()
        if self._lives[source] != life:
            await anyio.sleep_forever()
        listener = self._listeners.get((host, port))
        if listener is None or listener.is_held:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        client, server = self.pair((source, next(self._ports)), (host, port))
        listener.offer(server)
        return client

    def pair(
        self, one: tuple[str, int] = ("127.0.0.1", 1), other: tuple[str, int] = ("127.0.0.1", 2)
    ) -> tuple[MemoryStream, MemoryStream]:
        """Two ends of one connection, without a listener."""
        there, back = _Pipe(self, one[0], other[0]), _Pipe(self, other[0], one[0])
        ends = MemoryStream(self, one, other, back, there), MemoryStream(self, other, one, there, back)
        self._streams.update(dict.fromkeys(ends))
        return ends


class MemoryHost:
    """A MemoryNetwork from one host's point of view. Loopback addresses mean the host itself."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self._network = network
        self.name = name
        self._life = network._lives[name]

    def _has_ended(self) -> bool:
        return self._life != self._network._lives[self.name]

    async def dial(self, address: str) -> MemoryStream:
        target = split_address(address)
        if self._has_ended():
            await anyio.sleep_forever()
        return await self._network._connect(self.name, self._own(target.host), target.port)

    async def listen(self, address: str, *, held: bool = False) -> MemoryListener:
        await anyio.lowlevel.checkpoint()
        target = split_address(address)
        host, port = self._own(target.host), target.port or next(self._network._ports)
        if (host, port) in self._network._listeners:
            raise PortInUse(join_address(host, port))
        listener = MemoryListener(self._network, host, port, held=held)
        if not self._has_ended():
            self._network._listeners[host, port] = listener
        return listener

    def _own(self, host: str) -> str:
        return self.name if host in _OWN else host


class MemoryListener:
    """A listening port of a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, host: str, port: int, *, held: bool = False) -> None:
        self._network = network
        self.is_held = held
        self._key = (host, port)
        self._offered: deque[MemoryStream] = deque()
        self._changed = _Change()
        self._is_closed = False

    @property
    def address(self) -> str:
        return join_address(*self._key)

    def offer(self, stream: MemoryStream) -> None:
        self._offered.append(stream)
        self._changed.notify()

    async def accept(self) -> MemoryStream:
        self.is_held = False
        await anyio.lowlevel.checkpoint()
        while not self._offered:
            if self._is_closed:
                raise closed("the listener is closed")
            await self._changed.wait()
        return self._offered.popleft()

    async def aclose(self) -> None:
        if self._network._listeners.get(self._key) is self:
            del self._network._listeners[self._key]
        self._is_closed = True
        for stream in self.forget_offered():
            stream.break_off()
        self._changed.notify()
        await anyio.lowlevel.checkpoint()

    def forget_offered(self) -> list[MemoryStream]:
        """Remove this end of the connections that no task has accepted; return them."""
        offered = list(self._offered)
        self._offered.clear()
        for stream in offered:
            self._network._streams.pop(stream, None)
        return offered


class _Change:
    """Wakes all tasks that wait for a change."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[Waiter] = []

    def notify(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.resolve(None)

    async def wait(self) -> None:
        waiter = current_loop().waiter()
        self._waiters.append(waiter)
        try:
            await waiter.wait()
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)


class _Pipe:
    """A direction of a connection: pieces of bytes with their times of arrival."""

    def __init__(self, network: MemoryNetwork, source: str, target: str) -> None:
        self._network = network
        self._ends = (source, target)
        self._back = (target, source)
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._changed = _Change()
        self.size = 0  # bytes that the sender knows not to be read
        self._unheard = 0  # bytes that were read; the sender has not heard of that
        self.eof_at = math.inf  # time at which the receiver learns that the sender closed
        self.broken = False
        self.torn = False  # breaks where the pieces end
        self.unread = False  # the receiver closed: no task will read
        self.is_lost = False  # sent bytes arrive nowhere, and the sender is not informed

    def wake(self) -> None:
        self._changed.notify()

    @property
    def room(self) -> int:
        """The number of bytes that the window takes."""
        if self._unheard and not self._is_unheard:
            self.size -= self._unheard
            self._unheard = 0
        return max(0, self._network.window - self.size)

    @property
    def is_refused(self) -> bool:
        """True if the sender is informed that no task will read."""
        return self.unread and not self._is_unheard

    @property
    def is_over(self) -> bool:
        """True if the receiver has had all bytes that came before the connection broke."""
        return self.torn and not self._pieces and not self._is_silent

    @property
    def _is_silent(self) -> bool:
        return self.is_lost or self._network.is_silent(*self._ends)

    @property
    def _is_unheard(self) -> bool:
        return self.is_lost or self._network.is_silent(*self._back)

    def lose(self) -> None:
        self.is_lost = True
        self._pieces.clear()

    def put(self, data: memoryview) -> int:
        """Take as many bytes as the window has room for."""
        count = min(len(data), self.room)
        if self.is_lost:
            self.size += count
        elif count > 0:
            arrival = current_loop().now() + self._network.delay(*self._ends)
            link = self._network.links.get(self._ends) if self._network.links else None
            if link is None:
                self._pieces.append((arrival, bytes(data[:count])))
            else:
                self._pieces += self._on(link, arrival, bytes(data[:count]))
            self.size += count
            self.wake()
        return count

    def _on(self, link: Link, arrival: float, data: bytes) -> list[tuple[float, bytes]]:
        """The pieces into which a link divides the bytes."""
        chance, parts = self._network.chance, [(arrival, data)]
        if link.stalls and chance.random() < link.stalls:
            at, late = chance.randrange(len(data)), chance.uniform(*link.stall_seconds)
            parts = [(arrival, data[:at]), (arrival + late, data[at:])]
        if link.breaks and chance.random() < link.breaks:
            self.torn = True
            at = chance.randrange(len(data))
            parts = [(parts[0][0], data[:at])]
        return [part for part in parts if part[1]]

    def finish(self) -> None:
        self.eof_at = min(self.eof_at, current_loop().now() + self._network.delay(*self._ends))
        self.wake()

    def take(self, max_bytes: int) -> bytes | None:
        """The bytes that have arrived; None: none yet; ``b""``: the end."""
        if self._is_silent:
            return None
        now = current_loop().now()
        if not self._pieces:
            return b"" if self.eof_at <= now and not self.torn else None
        arrival, data = self._pieces[0]
        if arrival > now:
            return None
        self._pieces.popleft()
        if len(data) < max_bytes and self._pieces:
            data += self._arrived(max_bytes - len(data), now)
        count = min(max_bytes, len(data))
        if self._network.chop:
            count = self._network.chance.randint(1, count)
        if count < len(data):
            self._pieces.appendleft((arrival, data[count:]))
        if self._is_unheard:
            self._unheard += count
        else:
            self.size -= count
        self.wake()
        return data[:count]

    def _arrived(self, most: int, now: float) -> bytes:
        """Pieces behind the first that have arrived, too: up to `most` bytes, and the last one whole."""
        found: list[bytes] = []
        while most > 0 and self._pieces and self._pieces[0][0] <= now:
            found.append(self._pieces.popleft()[1])
            most -= len(found[-1])
        return b"".join(found)

    async def change(self) -> None:
        """Wait for a change, or for the arrival of the next piece."""
        due = self._pieces[0][0] if self._pieces else self.eof_at
        if due == math.inf or self._is_silent or due <= current_loop().now():
            await self._changed.wait()
        else:
            with anyio.CancelScope(deadline=due):
                await self._changed.wait()


class MemoryStream(ByteStream):
    """One end of a connection of a MemoryNetwork."""

    sends_now = True

    def __init__(
        self,
        network: MemoryNetwork,
        local: tuple[str, int],
        peer: tuple[str, int],
        incoming: _Pipe,
        outgoing: _Pipe,
    ) -> None:
        super().__init__()
        self.local, self.peer = join_address(*local), join_address(*peer)
        self.local_host, self.peer_host = local[0], peer[0]
        self._network = network
        self._has_vanished = False
        self._incoming = incoming
        self._outgoing = outgoing

    async def _receive(self, max_bytes: int) -> bytes:
        await anyio.lowlevel.checkpoint()
        while True:
            self._check_open(self._incoming)
            data = self._incoming.take(max_bytes)
            if data is not None:
                return data
            if self._incoming.is_over:
                raise broken("the connection broke")
            await self._incoming.change()

    def send_now(self, buffers: list[Buffer] | tuple[Buffer, ...]) -> int:  # type: ignore[override]
        sent = 0
        for buffer in buffers:
            with memoryview(buffer) as view:
                taken = self._put(view)
            sent += taken
            if taken < len(buffer):
                break
        return sent

    def _put(self, view: memoryview) -> int:
        self._check_open(self._outgoing)
        if self._outgoing.torn:
            raise broken("the connection broke")
        if self._outgoing.is_refused:
            raise broken("the peer closed the connection")
        count = self._outgoing.put(view)
        if self._outgoing.torn:
            self._incoming.broken = True
            self._incoming.wake()
        return count

    async def _send(self, data: memoryview) -> None:
        await anyio.lowlevel.checkpoint()
        sent = self._put(data)
        while sent < len(data):
            await self._outgoing.change()
            sent += self._put(data[sent:])

    async def _wait_sendable(self) -> None:
        await anyio.lowlevel.checkpoint()
        self._check_open(self._outgoing)
        while not (self._outgoing.room or self._outgoing.is_refused or self._outgoing.torn):
            await self._outgoing.change()
            self._check_open(self._outgoing)

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._network._streams.pop(self, None)
            if not self._has_vanished:
                self._outgoing.finish()
            self._incoming.unread = True
            self._incoming.wake()
        await anyio.lowlevel.checkpoint()

    def break_off(self) -> None:
        """Break both directions at once, as a reset does."""
        for pipe in (self._incoming, self._outgoing):
            pipe.broken = True
            pipe.wake()

    def lose(self) -> None:
        """Let no bytes arrive any more, in either direction."""
        self._incoming.lose()
        self._outgoing.lose()

    def vanish(self) -> None:
        """Break the connection at this end, without informing the peer."""
        self._has_vanished = self._incoming.unread = True
        self.wake()

    def wake(self) -> None:
        self._incoming.wake()
        self._outgoing.wake()

    def _check_open(self, pipe: _Pipe) -> None:
        if self._is_closed:
            raise closed("this side closed the stream")
        if pipe.broken or self._has_vanished:
            raise broken("the connection was cut")
