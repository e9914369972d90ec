"""TCP over plain non-blocking sockets.

trio's SocketStream costs 43 µs of CPU for an echo round trip, both ends together; waiting until readable and
calling the socket costs 21. This module does the latter on trio, and uses asyncio's reader functions on
asyncio.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from rmq.errors import PortInUse
from rmq.remoting.address import Address, is_literal, join_address
from rmq.remoting.loop import Loop, broken, closed, current_loop
from rmq.remoting.transports.stream import Buffer, ByteStream

if TYPE_CHECKING:
    import asyncio

if sys.platform == "linux":
    from fcntl import ioctl as _ioctl
    from termios import TIOCOUTQ as _OUTQ  # SIOCOUTQ: bytes that the peer has not acknowledged
else:
    _OUTQ = None

BACKLOG = 1024
IOV_MAX = 512
KEEPALIVE_PROBES = 3
"""Unanswered probes after which a connection is over, where the system has no TCP_USER_TIMEOUT."""
FILE_BYTES = 24 * 1024
"""Bytes from which on it costs less to name a file's bytes to the system than to copy them."""
_MORE = getattr(socket, "MSG_MORE", 0)
_CLOSED_ERRNO = errno.EBADF
_RESETS = struct.pack("ii", 1, 0)
_ENDS_IN_ORDER = struct.pack("ii", 0, 0)


@cache  # a server asks for each of its connections, always for the same
def keepalive_options(idle_seconds: float, unacknowledged_seconds: float) -> tuple[tuple[int, int, int], ...]:
    """Socket options of `Stream.keep_alive`, as level, option and value, where the system has them."""
    named: list[tuple[str, int]] = []
    if idle_seconds:
        idle = max(1, round(idle_seconds))
        apart = max(1, round(idle_seconds / KEEPALIVE_PROBES))
        named += [("TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE", idle)]
        named += [("TCP_KEEPINTVL", apart), ("TCP_KEEPCNT", KEEPALIVE_PROBES)]
    if unacknowledged_seconds:
        named.append(("TCP_USER_TIMEOUT", round(unacknowledged_seconds * 1000)))
    found = [(getattr(socket, name, -1), value) for name, value in named]
    options = [(socket.IPPROTO_TCP, option, value) for option, value in found if option >= 0]
    return ((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *options) if idle_seconds else tuple(options)


class TcpStream(ByteStream):
    """A connected socket. Made by `dial` and `TcpListener.accept`."""

    sends_now = True
    reads_now = True
    _ends_in_order = False
    """True if `aclose` takes back the effect of `reset_if_killed`."""

    def __init__(self, sock: socket.socket, loop: Loop | None = None, peer: str = "") -> None:
        """`peer` is the name of the other side, where it is known."""
        super().__init__()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self.descriptor = sock.fileno()
        self._loop = loop or current_loop()
        self.local = _name(sock.getsockname())
        try:
            self.peer = peer or _name(sock.getpeername())
        except OSError:  # the peer reset it early; the first read will report that
            self.peer = "?"

    async def _receive(self, max_bytes: int) -> bytes:
        while True:
            await self._loop.wait_readable(self._open_socket())
            data = self.receive_now(max_bytes)
            if data is not None:
                return data

    def receive_now(self, max_bytes: int) -> bytes | None:
        try:
            return self._socket.recv(max_bytes)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self._broken(error) from error

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        sock = self._open_socket()
        try:
            if len(buffers) == 1 and len(buffers[0]) < FILE_BYTES:
                return sock.send(buffers[0])
            if any(map(_is_of_file, buffers)):
                return self._send_files(sock, buffers)
            return sock.sendmsg(buffers[:IOV_MAX])
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._broken(error) from error

    def _send_files(self, sock: socket.socket, buffers: Sequence[Buffer]) -> int:
        """Send buffers as `send_now` does; the system sends large views of files, without a copy."""
        sent = 0
        before: list[Buffer] = []
        try:
            for buffer in buffers:
                if _is_of_file(buffer):
                    if before:
                        head = sock.sendmsg(before[:IOV_MAX], (), _MORE)
                        sent += head
                        if head < sum(map(len, before)):
                            return sent
                        before = []
                    taken: int = buffer.obj.send_to(self.descriptor, buffer)  # type: ignore[union-attr]
                    if taken >= 0:
                        sent += taken
                        if taken < len(buffer):
                            return sent
                        continue
                before.append(buffer)
            return sent + sock.sendmsg(before[:IOV_MAX]) if before else sent
        except (BlockingIOError, InterruptedError):
            return sent

    def unsent(self) -> int:
        if _OUTQ is None or self._is_closed:
            return -1
        try:
            return int.from_bytes(_ioctl(self._socket.fileno(), _OUTQ, bytes(4)), sys.byteorder)
        except OSError:
            return -1

    def reset_on_close(self) -> None:
        self._ends_in_order = False
        self._linger(_RESETS)

    def reset_if_killed(self) -> None:
        self._ends_in_order = True
        self._linger(_RESETS)

    def keep_alive(self, idle_seconds: float, unacknowledged_seconds: float) -> None:
        if self._is_closed:
            return
        with suppress(OSError):  # the peer has reset it: the first read will report that
            for level, option, value in keepalive_options(idle_seconds, unacknowledged_seconds):
                self._socket.setsockopt(level, option, value)

    def end_sending(self) -> None:
        if not self._is_closed:
            with suppress(OSError):  # it has ended already
                self._socket.shutdown(socket.SHUT_WR)

    def _linger(self, how: bytes) -> None:
        """Set the way in which the system closes the socket, also at the end of the process."""
        if not self._is_closed:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, how)

    async def _send(self, data: memoryview) -> None:
        await anyio.lowlevel.checkpoint()
        sent = self.send_now([data])
        while sent < len(data):
            await self._loop.wait_writable(self._open_socket())
            sent += self.send_now([data[sent:]])

    async def _wait_sendable(self) -> None:
        await self._loop.wait_writable(self._open_socket())

    async def aclose(self) -> None:
        """Close the socket; safe to repeat and when cancelled. Waiting tasks get ClosedResourceError."""
        self.close_now()
        await anyio.lowlevel.checkpoint()

    def close_now(self) -> bool:
        if not self._is_closed:
            if self._ends_in_order:
                self._linger(_ENDS_IN_ORDER)
            self._is_closed = True
            self._loop.notify_closing(self._socket)
            self._socket.close()
        return True

    def _open_socket(self) -> socket.socket:
        if self._is_closed:
            raise closed()
        return self._socket

    def _broken(self, error: OSError) -> Exception:
        if self._is_closed or error.errno == _CLOSED_ERRNO:
            return closed()
        return broken(os.strerror(error.errno) if error.errno else str(error))


class _AsyncioTcpStream(TcpStream):
    """A TcpStream on asyncio, whose loop calls a function when a socket is readable. Registering the function
    for each wait costs 30 µs, so it stays registered. It reads at once, or the loop would call it once more
    before the task has its turn."""

    def __init__(self, sock: socket.socket, loop: Loop | None = None, peer: str = "") -> None:
        super().__init__(sock, loop, peer)
        from asyncio import get_running_loop  # the caller has loaded it

        self._running = get_running_loop()
        self._is_registered = False
        self._reading: asyncio.Future[bytes] | None = None
        self._max_bytes = 0
        self._unseen: bytes | None = None  # read for a task that was cancelled at that moment

    async def _receive(self, max_bytes: int) -> bytes:
        if self._unseen is not None:
            await anyio.lowlevel.checkpoint()
            data, self._unseen = self._unseen[:max_bytes], self._unseen[max_bytes:] or None
            return data
        sock = self._open_socket()
        if not self._is_registered:
            self._running.add_reader(sock, self._on_readable)
            self._is_registered = True
        self._max_bytes = max_bytes
        future = self._reading = self._running.create_future()
        try:
            received: bytes = await future
            return received
        except anyio.get_cancelled_exc_class():
            if future.done() and not future.cancelled() and future.exception() is None:
                self._unseen = future.result()
            raise
        finally:
            self._reading = None

    def _on_readable(self) -> None:
        future = self._reading
        if future is None or future.done():  # no task waits: the loop would call it without end
            self._unregister()
            return
        try:
            future.set_result(self._socket.recv(self._max_bytes))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            failure = self._broken(error)
            failure.__cause__ = error
            future.set_exception(failure)

    def _unregister(self) -> None:
        if self._is_registered:
            self._is_registered = False
            self._running.remove_reader(self._socket)

    def close_now(self) -> bool:
        if not self._is_closed:
            self._unregister()
            if self._reading is not None and not self._reading.done():
                self._reading.set_exception(closed())
        return super().close_now()


def _stream(sock: socket.socket, loop: Loop, peer: str = "") -> TcpStream:
    """The stream of a socket, in the fastest form for the running loop."""
    if loop.name == "asyncio" and sys.platform != "win32":  # whose loop has no add_reader
        return _AsyncioTcpStream(sock, loop, peer)
    return TcpStream(sock, loop, peer)


class TcpListener:
    """A listening socket; `held`: begins to listen with the first accept."""

    def __init__(self, sock: socket.socket, *, held: bool = False) -> None:
        self._socket = sock
        self._is_held = held
        self._is_closed = False
        self._loop = current_loop()
        self._address = _name(sock.getsockname())

    @property
    def address(self) -> str:
        return self._address

    async def accept(self) -> TcpStream:
        await anyio.lowlevel.checkpoint()  # of many that come at once most are there already: no other wait
        while True:
            if self._is_closed:
                raise closed("the listener is closed")
            if self._is_held:
                self._is_held = False
                self._listen()
            try:
                sock, sockaddr = self._socket.accept()
            except BlockingIOError:
                await self._loop.wait_readable(self._socket)
                continue
            except (InterruptedError, ConnectionAbortedError):
                continue
            try:
                return _stream(sock, self._loop, _name(sockaddr))
            except OSError:  # it has ended already: nothing to serve
                sock.close()

    def _listen(self) -> None:
        """Begin to listen. Raises PortInUse: two processes can bind a port before either of them listens."""
        try:
            self._socket.listen(BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(self._address) from error
            raise

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._loop.notify_closing(self._socket)
            self._socket.close()
        await anyio.lowlevel.checkpoint()


async def dial(address: Address) -> TcpStream:
    """Connect to the first of the host's addresses that answers; raises the OSError of the last address that
    did not.

    A literal IP address is never looked up. Cancelled: the socket is closed.
    """
    error: OSError | None = None
    for family, kind, proto, _, sockaddr in await _resolve(address):
        try:
            return await _connect(family, kind, proto, sockaddr)
        except OSError as failure:
            error = failure
    raise error or OSError(f"{address.host} has no address")


async def listen(address: Address, *, held: bool = False) -> TcpListener:
    """Bind and listen on an address; port 0 takes any free port. Raises PortInUse, OSError. `held`: see
    `Network.listen`."""
    family, kind, proto, _, sockaddr = (await _resolve(address, passive=True))[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setblocking(False)
        if sys.platform != "win32":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(sockaddr)
        if not held:
            sock.listen(BACKLOG)
        return TcpListener(sock, held=held)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(str(address)) from error
        raise
    except BaseException:
        sock.close()
        raise


async def _resolve(address: Address, *, passive: bool = False) -> list[tuple[Any, ...]]:
    flags = socket.AI_PASSIVE if passive else 0
    if is_literal(address.host):  # no thread, no look-up
        flags |= socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        host = address.host.encode()  # Python first checks a text for IDNA
        return list(socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM, flags=flags))
    found = await anyio.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    return list(found)


async def _connect(family: int, kind: int, proto: int, sockaddr: Any) -> TcpStream:
    loop = current_loop()
    sock = socket.socket(family, kind, proto)
    try:
        sock.setblocking(False)
        code = sock.connect_ex(sockaddr)
        if code in (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY):
            await loop.wait_writable(sock)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        return _stream(sock, loop)
    except BaseException:
        sock.close()
        raise


def _is_of_file(buffer: Buffer) -> bool:
    """True if a buffer is a large view of a file that the system can send by itself."""
    return len(buffer) >= FILE_BYTES and isinstance(buffer, memoryview) and hasattr(buffer.obj, "send_to")


def _name(sockaddr: Any) -> str:
    return join_address(sockaddr[0], sockaddr[1])
