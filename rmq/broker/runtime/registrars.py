"""Registration at name servers: a task for each registers at once, each period, and when topics change.

The setting `namesrvAddr` may change while the broker runs: a new name server gets a task, and a removed name
server is informed that the broker leaves. The routes that the broker wants to know come from the same name
servers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, NoReturn

import anyio
import anyio.abc

from rmq.broker.broker import Broker
from rmq.config import parse_addresses
from rmq.errors import (
    ConnectFailed,
    ConnectionLost,
    RemoteProtocolError,
    RequestTimeout,
    ResponseError,
    StoreError,
)
from rmq.protocol.bodies import TopicRouteData
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import GetRouteInfoRequestHeader
from rmq.remoting.loop import Wakeup, exponential_backoff
from rmq.remoting.pool import Pool
from rmq.server.health import Health

NAME_SERVERS: Final = "name servers"
"""The part of a broker's health that its registration is."""
NOT_TRIED: Final = "not registered yet"
NO_LEASE: Final = "not registered: the controllers have given this master no lease yet"
AWAY_SECONDS: Final = 4.0
"""Longest time between two tries at a name server that is away: clients do not find this broker meanwhile."""
LEASE_SECONDS: Final = 0.1
"""Time between two checks for the lease that the master of a set with controllers needs to register."""
STOP_SECONDS: Final = 3.0
"""Time that name servers have to hear that the broker leaves."""
READY_SECONDS: Final = 3.0
"""Time that the start waits for the first registration."""
LOOKUP_SECONDS: Final = 1.0
"""For a route from one name server; RocketMQ's consumers wait 3 s for the answer that needs it."""
EXPECTED = (ConnectFailed, ConnectionLost, RequestTimeout, RemoteProtocolError, ResponseError)
"""Errors of a name server after which it is tried again."""

log = logging.getLogger("rmq.broker")


class Registrars:
    """The tasks that keep name servers informed about one broker. `changed` rings when topics change."""

    def __init__(self, broker: Broker, health: Health, changed: Wakeup) -> None:
        self._broker = broker
        self._registration = broker.registration
        self._health = health
        self._reasons: dict[str, str] = {}  # why a name server did not take the last registration
        self._wakeups: dict[str, Wakeup] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._changed = changed
        self._ready = Wakeup()
        self._tried: set[str] = set()

    def _targets(self) -> list[str]:
        return parse_addresses(self._broker.config.namesrv_addr, "namesrvAddr")

    async def start(self, nursery: anyio.abc.TaskGroup, pool: Pool) -> None:
        """Start a task for each name server; return when one has taken the registration, when all have been
        tried, or after `READY_SECONDS`. The tasks end with the nursery."""
        pool.watch(self._on_link)
        self._broker.settings.watch(self._changed.set)
        self._follow(nursery, pool)
        nursery.start_soon(self._follow_settings, nursery, pool)
        if self._scopes:
            await self._ready.wait(anyio.current_time() + READY_SECONDS)

    async def leave(self, pool: Pool) -> None:
        """Unregister at all name servers, for at most `STOP_SECONDS`."""
        await self._leave(pool, list(self._scopes))

    async def _leave(self, pool: Pool, addresses: Iterable[str]) -> None:
        with anyio.move_on_after(STOP_SECONDS):
            async with anyio.create_task_group() as nursery:
                for address in addresses:
                    nursery.start_soon(self._unregister, pool, address)

    async def _follow_settings(self, nursery: anyio.abc.TaskGroup, pool: Pool) -> NoReturn:
        while True:
            await self._changed.wait()
            dropped = self._follow(nursery, pool)
            for wakeup in self._wakeups.values():
                wakeup.set()
            await self._leave(pool, dropped)

    def _follow(self, nursery: anyio.abc.TaskGroup, pool: Pool) -> list[str]:
        """Start tasks of new name servers, end tasks of dropped ones; returns the dropped addresses."""
        targets = self._targets()
        for address in targets:
            if address not in self._scopes:
                self._scopes[address], self._wakeups[address] = anyio.CancelScope(), Wakeup()
                self._registration.known_by[address] = False
                nursery.start_soon(self._scoped, self._scopes[address], pool, address)
        dropped = [address for address in self._scopes if address not in targets]
        for address in dropped:
            self._scopes.pop(address).cancel()
            del self._wakeups[address]
            self._reasons.pop(address, None)
            self._registration.known_by.pop(address, None)
        if dropped:
            self._judge()
        return dropped

    async def _scoped(self, scope: anyio.CancelScope, pool: Pool, address: str) -> None:
        with scope:
            await self._keep_registered(pool, address, self._wakeups[address])

    async def _keep_registered(self, pool: Pool, address: str, wakeup: Wakeup) -> NoReturn:
        registration = self._registration
        failures, force = 0, True
        while True:
            await self._lease()
            try:
                await self._register(pool, address, force=force)
            except EXPECTED as error:
                level = logging.WARNING if not failures else logging.DEBUG
                log.log(level, "name server %s does not take the registration: %s", address, error)
                failures += 1
                self._reasons[address] = str(error)
            else:
                self._reasons.pop(address, None)
                if failures or address not in self._tried:
                    log.info("registered at name server %s", address)
                failures = 0
            self._note(address, registered=not failures)
            await anyio.sleep(registration.pause)
            period = registration.period
            pause = min(period, exponential_backoff(1.0, failures, AWAY_SECONDS)) if failures else period
            changed = await wakeup.wait(anyio.current_time() + pause)
            force = changed or bool(failures) or self._broker.config.force_register

    async def _lease(self) -> None:
        """Wait until a master of a set with controllers has its lease: else routes lead to another one."""
        while not self._broker.role.has_lease():
            if self._health.lacking.get(NAME_SERVERS) == NOT_TRIED:
                self._health.lacks(NAME_SERVERS, NO_LEASE)
            await anyio.sleep(LEASE_SECONDS)

    def _on_link(self, address: str, cause: object) -> None:
        """Register at once where a connection has ended: that name server has forgotten this broker."""
        wakeup = self._wakeups.get(address)
        if cause is not None and wakeup is not None:
            wakeup.set()

    def _note(self, address: str, *, registered: bool) -> None:
        self._registration.known_by[address] = registered
        self._tried.add(address)
        self._judge()
        if registered or self._tried.issuperset(self._scopes):
            self._ready.set()

    def _judge(self) -> None:
        known = self._registration.known_by
        if any(known.values()) or not known:
            if self._health.lacking.get(NAME_SERVERS, NOT_TRIED) not in (NOT_TRIED, NO_LEASE):
                log.info("ready: a name server has taken the registration")
            self._health.has(NAME_SERVERS)
        else:
            why = "; ".join(f"{one}: {reason}" for one, reason in self._reasons.items())
            text = f"registered at none of {', '.join(known)}"
            self._health.lacks(NAME_SERVERS, f"{text} ({why})" if why else text)

    async def _register(self, pool: Pool, address: str, *, force: bool) -> None:
        registration = self._registration
        seconds = self._broker.config.register_broker_timeout_mills / 1000
        if not force:
            answer = await pool.call(address, registration.query_version(), seconds)
            if not registration.is_stale(answer):
                return
        answer = await pool.call(address, registration.register(), seconds)
        try:
            registration.registered(answer, take_order=address == next(iter(self._scopes), None))
        except StoreError as error:
            log.error("the order of topics cannot be saved: %s", error)

    async def _unregister(self, pool: Pool, address: str) -> None:
        try:
            await pool.call(address, self._registration.unregister(), STOP_SECONDS)
        except EXPECTED as error:
            log.info("cannot unregister at name server %s: %s", address, error)


async def answer_assignments(broker: Broker, pool: Pool, pending: Wakeup) -> NoReturn:
    """Query the awaited routes, until cancelled."""
    while True:
        await pending.wait()
        for topic in broker.assignments.awaited_topics():
            broker.assignments.routed(topic, await _route(broker, pool, topic))


async def _route(broker: Broker, pool: Pool, topic: str) -> TopicRouteData | None:
    """The route of a topic; None when no name server has it, or none answers."""
    for address in parse_addresses(broker.config.namesrv_addr, "namesrvAddr"):
        header = GetRouteInfoRequestHeader(topic)
        request = broker.registration.sign(Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header))
        try:
            response = await pool.call(address, request, LOOKUP_SECONDS)
            if response.code == ResponseCode.SUCCESS:
                return TopicRouteData.from_json(response.body)
        except EXPECTED as error:
            log.info("name server %s gives no route of %s: %s", address, topic, error)
    return None
