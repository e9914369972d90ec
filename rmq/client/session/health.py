"""Health: the state of a client, at once and from memory; `check_ready` asks the servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import anyio

from rmq.client.session.events import Stalled
from rmq.errors import AccessDenied, NoPermission, NoRoute, RmqError, Unreachable
from rmq.message import AUTO_CREATE_TOPIC, MessageQueue
from rmq.remoting.loop import unwrap_groups

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.client.session.session import Session
else:
    from rmq.lazy_attrs import frozen


@frozen
class ServerHealth:
    """State of a name server or a broker. `failures` is the number of failed attempts to connect in a row,
    `error` the reason of the last connection's end, or the reason why no connection exists. A server that was
    not needed yet is not connected either."""

    address: str
    is_connected: bool
    failures: int
    error: str


@frozen
class ConsumerHealth:
    """State of a consumer: its queues, its pulled and unfinished messages (`unfinished`, `bytes`), messages
    with handlers (`in_flight`), its stalls, and the reasons why topics give no messages or it consumes
    nothing (`problems`). `workers` is the number of tasks that call its handler now: 0 without `run`."""

    group: str
    queues: tuple[MessageQueue, ...]
    unfinished: int
    bytes: int
    in_flight: int
    stalls: tuple[Stalled, ...]
    problems: tuple[str, ...]
    workers: int = 0


@frozen
class Health:
    """State of a client; `problems` are all faults in words, and empty when all is well."""

    client_id: str
    name_servers: tuple[ServerHealth, ...]
    brokers: tuple[ServerHealth, ...]
    producers: tuple[str, ...]
    consumers: tuple[ConsumerHealth, ...]
    problems: tuple[str, ...]

    @property
    def is_healthy(self) -> bool:
        """True if there is no problem."""
        return not self.problems


def health_of(session: Session, ended: str = "") -> Health:
    """See `Client.health`. `ended` tells how the client's background tasks have ended, "" while they run."""
    name_servers = _servers(session, session.name_servers.addresses)
    brokers = _servers(session, session.routes.addresses(slaves=True))
    consumers = tuple(member.health() for member in session.members.values())
    problems = [f"broker {_failure_of(one)}" for one in brokers if _is_failing(one)]
    if all(_is_failing(one) for one in name_servers):
        problems.insert(0, f"no name server can be reached: {'; '.join(map(_failure_of, name_servers))}")
    for consumer in consumers:
        problems += [*consumer.problems, *map(str, consumer.stalls)]
    if ended:
        problems.insert(0, f"the client's background tasks have ended: {ended}")
    return Health(
        session.client_id, name_servers, brokers, tuple(session.producers), consumers, tuple(problems)
    )


def _servers(session: Session, addresses: Iterable[str]) -> tuple[ServerHealth, ...]:
    return tuple(ServerHealth(address, *session.pool.state(address)) for address in addresses)


def _is_failing(server: ServerHealth) -> bool:
    return server.failures > 0 and not server.is_connected


def _failure_of(server: ServerHealth) -> str:
    return f"{server.address}: {server.error}"


FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0


async def until_ready(session: Session, topics: Iterable[str], timeout: float) -> None:
    """See `Client.ready`."""
    deadline = session.now() + timeout
    pause = FIRST_PAUSE_SECONDS
    named = list(topics)
    while True:
        try:
            return await _check_ready(session, named, max(deadline - session.now(), 0.001))
        except (AccessDenied, NoPermission):
            raise
        except RmqError:
            if session.now() + pause >= deadline:
                raise
        await anyio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def _check_ready(session: Session, topics: list[str], timeout: float) -> None:
    timeout = min(timeout, session.brokers.timeout)
    if not topics and not session.members:
        await _ask_name_server(session, timeout)
    for topic in topics:
        rotation = session.routes.get(topic)
        if rotation is None:
            rotation = await session.rotation(topic, timeout)
        for broker in rotation.route.brokers:
            found = session.routes.reader(broker)
            if found is not None:
                await session.pool.connection(found[1], timeout)
    for member in session.members.values():
        session.check_admitted(member.group)
        member.check_ready()


async def _ask_name_server(session: Session, timeout: float) -> None:
    """True if a server answers, with any response."""
    try:
        await session.name_servers.route(AUTO_CREATE_TOPIC, timeout)
    except Unreachable:
        raise
    except NoRoute as error:
        if error.refused:
            raise


async def lag_of(session: Session, places: Iterable[tuple[MessageQueue, int]]) -> dict[MessageQueue, int]:
    """Number of messages in each queue from an offset on. Raises as `Consumer.lag`."""
    lags: dict[MessageQueue, int] = {}

    async def ask(queue: MessageQueue, offset: int) -> None:
        lags[queue] = max(0, await session.brokers.max_offset(queue) - offset)

    with unwrap_groups():
        async with anyio.create_task_group() as tasks:
            for queue, offset in places:
                tasks.start_soon(ask, queue, offset)
    return dict(sorted(lags.items()))
