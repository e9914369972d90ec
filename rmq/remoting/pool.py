"""Pool: a connection for each address, dialled on first use and again, with back-off, after a loss.

Runs on trio and on asyncio.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from contextvars import copy_context
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

import anyio
import anyio.abc
import attrs

from rmq.errors import ConfigError, ConnectFailed
from rmq.protocol.command import Command
from rmq.remoting.address import with_scheme
from rmq.remoting.connection import Connection
from rmq.remoting.endpoint import Endpoint
from rmq.remoting.limits import Limits
from rmq.remoting.loop import (
    asyncio_loop,
    check_loop,
    current_loop,
    exponential_backoff,
    running_loop,
    unwrap_groups,
)
from rmq.remoting.network import Network, open_stream
from rmq.remoting.transports.stream import Stream
from rmq.remoting.transports.tls import TlsConfig, TlsContexts

if TYPE_CHECKING:
    from rmq.remoting.asyncio_loop import AsyncioPoller

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 1.0
"""Longest pause between two dials: callers that wait for a peer notice its return within it."""
HEALTHY_SECONDS = 1.0
FORGET_SECONDS = 600.0
"""Seconds without a connection or a dial after which an address is forgotten: brokers come and go, and a
process may run for a year."""


def _ignore(address: str, cause: object) -> None:
    """No listener: changes of connections are ignored."""


@attrs.define(eq=False)
class _Link:
    """State of an address."""

    address: str
    connection: Connection | None = None
    dialled: anyio.Event | None = None  # there while a dial goes on
    failures: int = 0
    error: object = None
    was_open: bool = False  # there was a connection before the error
    retry_at: float = -1.0
    reported: Connection | None = None  # the connection that the watcher knows of
    ended_at: float = -math.inf  # the end of the last connection or dial

    def is_unused(self, now: float) -> bool:
        """True if nobody has dialled the address for long."""
        is_idle = self.connection is None and self.dialled is None
        return is_idle and now - self.ended_at > FORGET_SECONDS


class Pool:
    """Connections by address. `async with Pool(...) as pool:` or, with a task group of the caller, `await
    tasks.start(pool.run)`; in both cases all tasks of the pool end with the block."""

    def __init__(
        self,
        network: Network,
        endpoint: Endpoint,
        *,
        tls: TlsConfig | None = None,
        limits: Limits | None = None,
        chance: random.Random | None = None,
        scheme: str = "",
    ) -> None:
        """`chance` spreads the pauses between failed dials, so that many clients do not come back at once.
        `scheme` is the scheme of addresses without one (routes hold no schemes); without `scheme`,
        `tls_enable` decides."""
        self._network = network
        self._endpoint = endpoint
        self._tls = TlsContexts(tls or TlsConfig())
        self._scheme = scheme or self._tls.config.scheme
        # Clients do not drop the connection to a broker that reads nothing for a while; their calls time out.
        self._limits = limits or Limits(stall_seconds=math.inf)
        self._chance = chance or random.Random()
        self._links: dict[str, _Link] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._loop: object | None = None
        self._now: Callable[[], float] = lambda: 0.0
        self._poller: AsyncioPoller | None = None
        self._context = copy_context()
        self._on_change: Callable[[str, object], None] = _ignore

    def watch(self, on_change: Callable[[str, object], None]) -> None:
        """Call `on_change` with an address and None for a new connection, and with the cause when it has
        ended or could not be made; further failures are not reported."""
        self._on_change = on_change

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Own the connections until cancelled. An exception from the endpoint ends one connection."""
        assert self._tasks is None, "a pool runs once"
        self._loop = running_loop()
        self._now = current_loop().now
        poller = current_loop().poller
        self._poller = None if poller is None else poller()
        self._context = copy_context()
        try:
            with unwrap_groups():
                async with anyio.create_task_group() as self._tasks:
                    task_status.started()
                    await self._expire()
        finally:
            self._tasks = None

    async def call(self, address: str, command: Command, timeout: float) -> Command:
        """Send a request to `address` and return its response, whatever its code, within `timeout` seconds in
        all.

        Raises ConnectFailed (nothing was sent), ConnectionLost and RequestTimeout (the server may have
        carried the request out).
        """
        link = self._links.get(address)
        connection = link.connection if link is not None else None
        if connection is None or connection.is_closed:
            began = self._now()
            connection = await self.connection(address, timeout)
            timeout -= self._now() - began
        return await connection.call(command, timeout)

    def ready(self, address: str) -> Connection | None:
        """The open connection to `address` when it takes another request without waiting, else None."""
        link = self._links.get(address)
        connection = None if link is None else link.connection
        if connection is None or connection.is_closed or connection.is_busy:
            return None
        if asyncio_loop() is not self._loop:  # or this is trio, whose calls fail when its run has ended
            check_loop(self._loop, "the client")
        return connection

    async def notify(self, address: str, command: Command, timeout: float = 3.0) -> None:
        """Send a one-way request to `address`. Returns when the request is in the outbox. Raises
        ConnectFailed."""
        connection = await self.connection(address, timeout)
        await connection.room()
        connection.notify(command)

    async def connection(self, address: str, timeout: float = 3.0) -> Connection:
        """The connection to `address`, dialled now if missing; callers share a dial.

        Raises ConnectFailed: the address is invalid, the dial failed or takes longer than `timeout`, or the
        last dial failed so recently that the next must wait. Cancelled: the dial continues for other callers.
        """
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = _Link(address)
        connection = link.connection
        if connection is None or connection.is_closed:
            check_loop(self._loop, "the client")
            with anyio.move_on_after(timeout) as scope:
                await self._dialled(link)
            if scope.cancelled_caught:
                raise ConnectFailed(address, f"no connection within {timeout:g} s")
            connection = link.connection
            if connection is None or connection.is_closed:
                ended = "" if connection is None else connection.reason  # while its stream is being closed
                cause = ended or link.error or "the pool is closing"
                raise ConnectFailed(address, cause, was_open=bool(ended) or link.was_open)
        return connection

    def state(self, address: str) -> tuple[bool, int, str]:
        """True if a connection exists, the number of failed attempts in a row, and the last error or reason
        of its end; "" when unknown."""
        link = self._links.get(address)
        if link is None:
            return False, 0, ""
        connection = link.connection
        is_connected = connection is not None and not connection.is_closed
        return is_connected, link.failures, "" if link.error is None else str(link.error)

    def close(self, address: str) -> None:
        """Close the connection to `address`, if any; the next call dials again."""
        link = self._links.get(address)
        if link is not None and link.connection is not None:
            link.connection.close()

    async def _dialled(self, link: _Link) -> None:
        if self._tasks is None:
            raise ConnectFailed(link.address, "the pool is not running")
        if link.dialled is None:
            if self._now() < link.retry_at:
                return
            link.dialled = anyio.Event()
            if link.connection is not None:  # its task has not reached its end yet
                self._report_lost(link, link.connection)
            link.connection = None
            # In the context of our own tasks: the connection outlives the call that needs it first.
            self._context.copy().run(self._tasks.start_soon, self._keep, link)
        await link.dialled.wait()

    async def _keep(self, link: _Link) -> None:
        """Dial, and serve the connection until it ends."""
        connection: Connection | None = None
        began = self._now()
        try:
            async with self._open(link.address) as stream:
                connection = link.connection = Connection(
                    stream,
                    self._endpoint,
                    limits=self._limits,
                    signer=self.signer(),
                    poller=self._poller,
                )
                self._end_dial(link)
                began = self._now()
                link.reported = connection
                self._on_change(link.address, None)
                await connection.run()
            self._report_lost(link, connection)
            link.error, link.was_open = connection.reason, True
            lasted = self._now() - began > HEALTHY_SECONDS and not connection.fell_silent
            if connection.has_received or lasted:
                link.failures = 0
            else:  # accepted and dropped at once, as by a full server: back off as after a refusal
                self._failed(link, connection.reason)
        except ConnectFailed as error:
            self._not_made(link, error.cause)
        except ConfigError as error:  # the address or the TLS files: an error of the caller, not of the pool
            self._not_made(link, error)
        finally:
            link.ended_at = self._now()
            if connection is None:
                self._end_dial(link)
            elif link.connection is connection:
                link.connection = None

    def signer(self) -> Callable[[Command], Command] | None:
        """The signer of a new connection's requests, or None."""
        return None

    def _open(self, address: str) -> AbstractAsyncContextManager[Stream]:
        target = with_scheme(address, self._scheme)
        return open_stream(self._network, target, tls=self._tls, limits=self._limits)

    def _report_lost(self, link: _Link, connection: Connection) -> None:
        if link.reported is connection:
            link.reported = None
            self._on_change(link.address, connection.reason or "it was closed")

    def _not_made(self, link: _Link, cause: object) -> None:
        link.was_open = False
        self._failed(link, cause)
        if link.failures == 1:
            self._on_change(link.address, cause)

    def _failed(self, link: _Link, cause: object) -> None:
        pause = exponential_backoff(FIRST_PAUSE_SECONDS, link.failures, LONGEST_PAUSE_SECONDS)
        link.failures += 1
        level = logging.DEBUG if link.failures > 1 and str(link.error) == str(cause) else logging.INFO
        link.error = cause
        link.retry_at = self._now() + pause * self._chance.uniform(0.5, 1.0)
        log.log(level, "no connection to %s, %d failure(s) in a row: %s", link.address, link.failures, cause)

    def _end_dial(self, link: _Link) -> None:
        if link.dialled is not None:
            link.dialled.set()
            link.dialled = None

    async def _expire(self) -> NoReturn:
        at = self._now() + self._limits.scan_seconds
        while True:
            await anyio.sleep_until(at)
            now = self._now()
            links = list(self._links.values())
            for link in links:
                if link.is_unused(now):
                    del self._links[link.address]
            at = self._limits.scan_at(now, [one.connection.expire(now) for one in links if one.connection])

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        self._stack.enter_context(unwrap_groups())
        self._owner = await self._stack.enter_async_context(anyio.create_task_group())
        await self._owner.start(self.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._owner.cancel_scope.cancel()
        return await self._stack.__aexit__(kind, error, trace)
