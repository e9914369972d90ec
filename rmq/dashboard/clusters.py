"""Clients of the clusters: a client for each cluster and account, opened on first use."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import anyio
import anyio.abc
from attrs import define, field

from rmq.client.client import Client, connect
from rmq.client.settings.target import Target
from rmq.dashboard.access.sessions import Identity
from rmq.dashboard.errors import UnknownCluster
from rmq.protocol.auth.signature import Credentials

log = logging.getLogger(__name__)

T = TypeVar("T")
Connect = Callable[[str, Target, "Credentials | None"], Client]

CLIENTS_MAX: Final = 64
IDLE_SECONDS: Final = 600.0
CACHED_MAX: Final = 512
REST: Final = 30.0
"""A value is kept so many times as long as its request took: watching a large cluster stays cheap."""
LONGEST_SECONDS: Final = 60.0
"""A value is kept no longer for that reason: on a busy machine requests take long, and brokers die."""


def connect_target(name: str, target: Target, credentials: Credentials | None) -> Client:
    """A client of a cluster, as an account or as none."""
    return connect(target.namesrv, credentials=credentials, tls=target.tls)


class Cache:
    """Answers of a cluster, kept for a moment: several viewers and refreshes ask the brokers once."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kept: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        self._locks: dict[Hashable, anyio.Lock] = {}
        self._changes = 0
        self.controllers: list[str] = []
        """The controllers that a broker has named last. They are asked while no broker answers, too."""

    async def get(
        self,
        key: Hashable,
        seconds: float,
        fetch: Callable[[], Awaitable[T]],
        *,
        rest: float = REST,
        longest: float = LONGEST_SECONDS,
    ) -> T:
        """The value of `key`, if it is not older than `seconds`; else the result of `fetch`, which a single
        caller calls while the rest waits. A value whose request took long is kept for `rest` times as long.
        Errors are not kept. `longest` bounds that."""
        lock = self._locks.setdefault(key, anyio.Lock())
        try:
            async with lock:
                found = self._kept.get(key)
                if found is not None and self._now() < found[0]:
                    value: T = found[1]
                    return value
                return await self.renew(key, seconds, fetch, rest=rest, longest=longest)
        finally:
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._locks.pop(key, None)

    async def renew(
        self,
        key: Hashable,
        seconds: float,
        fetch: Callable[[], Awaitable[T]],
        *,
        rest: float = REST,
        longest: float = LONGEST_SECONDS,
    ) -> T:
        """The result of `fetch`, kept as `get` keeps it."""
        began, changes = self._now(), self._changes
        value = await fetch()
        took = self._now() - began
        if changes != self._changes:
            return value  # it may be of the time before the change
        self._kept[key] = (self._now() + max(seconds, min(rest * took, longest)), value)
        self._kept.move_to_end(key)
        while len(self._kept) > CACHED_MAX:
            self._kept.popitem(last=False)
        return value

    def keep_controllers(self, addresses: list[str]) -> None:
        """Keep the controllers that a broker names."""
        self.controllers = addresses

    def clear(self) -> None:
        """Forget all but the controllers: something was changed."""
        self._changes += 1
        self._kept.clear()


@define(eq=False)
class Handle:
    """An open client, its cache, and how many requests use it."""

    client: Client
    cache: Cache
    target: Target
    credentials: Credentials | None = field(default=None, repr=False)
    scope: anyio.CancelScope = field(factory=anyio.CancelScope)
    users: int = 0
    used_at: float = 0.0

    def enter(self, now: float) -> None:
        """A request begins to use it."""
        self.users, self.used_at = self.users + 1, now

    def leave(self, now: float) -> None:
        """A request has ended."""
        self.users, self.used_at = self.users - 1, now


class Clusters:
    """The clusters by name, and the clients that are open. The clients' tasks run in `tasks`."""

    def __init__(
        self,
        targets: Mapping[str, Target],
        tasks: anyio.abc.TaskGroup,
        now: Callable[[], float],
        connect: Connect = connect_target,
    ) -> None:
        self.targets = targets
        self._tasks, self._now, self._connect = tasks, now, connect
        self._open: OrderedDict[Hashable, Handle] = OrderedDict()
        self._lock = anyio.Lock()

    @property
    def names(self) -> list[str]:
        """The names of the clusters; the first one is the default."""
        return list(self.targets)

    @asynccontextmanager
    async def use(self, name: str, identity: Identity) -> AsyncIterator[Handle]:
        """A client of the cluster with the identity's account, for the block. Raises UnknownCluster."""
        if name not in self.targets:
            raise UnknownCluster(name, self.names)
        handle = await self._opened(name, identity)
        handle.enter(self._now())
        try:
            yield handle
        finally:
            handle.leave(self._now())

    async def _opened(self, name: str, identity: Identity) -> Handle:
        target = self.targets[name]
        credentials = target.credentials if identity.own else identity.credentials
        key = (name, _fingerprint(credentials))
        async with self._lock:
            handle = self._open.get(key)
            if handle is None:
                handle = Handle(
                    self._connect(name, target, credentials), Cache(self._now), target, credentials
                )
                await self._tasks.start(self._run, key, handle)
                self._open[key] = handle
            self._open.move_to_end(key)
            self._close_idle(handle)
        return handle

    def _close_idle(self, kept: Handle) -> None:
        for key, handle in list(self._open.items()):
            is_old = self._now() - handle.used_at > IDLE_SECONDS
            if handle is not kept and not handle.users and (is_old or len(self._open) > CLIENTS_MAX):
                del self._open[key]
                handle.scope.cancel()

    async def _run(self, key: Hashable, handle: Handle, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Keep a client open. When its tasks fail, the next request opens another."""
        try:
            with handle.scope:
                async with handle.client:
                    task_status.started()
                    await anyio.sleep_forever()
        except Exception:
            log.exception("the client of a cluster has failed")
        finally:
            if self._open.get(key) is handle:
                del self._open[key]


def _fingerprint(credentials: Credentials | None) -> tuple[str, str]:
    if credentials is None:
        return ("", "")
    return credentials.access_key, hashlib.sha256(credentials.secret_key.encode()).hexdigest()
