"""Session: the common state of a client's producers and consumers, and the loops that keep it fresh.

client ├ pool        a connection to each server: reader and writer
       ├ heartbeat   30 s, and at once when a group joins, a broker appears, a connection is lost or back;
       │             every half second to brokers that do not answer
       └ routes      30 s, and at once on failure
"""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, Protocol

import anyio
import anyio.abc
import anyio.to_thread
from attrs import define, field

from rmq.client.config import ClientConfig
from rmq.client.session.events import Connected, Disconnected, Event, OnEvent
from rmq.client.session.health import ConsumerHealth
from rmq.client.session.observer import Observers
from rmq.client.session.requests import (
    Brokers,
    HeartbeatWarnings,
    NameServers,
    group_count,
    heartbeat_parts,
    no_route,
)
from rmq.client.session.routes import (
    MISSING_MOST,
    BrokerHealth,
    Rotation,
    Route,
    RouteRequest,
    RouteTable,
    is_unknown,
    keep_rows,
)
from rmq.client.session.window import Windows
from rmq.clock import wall_clock_ms
from rmq.errors import (
    NETWORK_ERRORS,
    NoRoute,
    RemoteProtocolError,
    ResponseError,
    RmqError,
    ServiceNotAvailable,
    StrayCancellation,
    SystemBusy,
    Unreachable,
)
from rmq.message import (
    AUTO_CREATE_TOPIC,
    PROPERTY_CORRELATION_ID,
    PROPERTY_REPLY_ARRIVE_TIME,
    RETRY_PREFIX,
    MessageQueue,
    StoredMessage,
    UniqueIds,
)
from rmq.protocol.bodies import ConsumerData, ConsumerRunningInfo, HeartbeatData, ProducerData
from rmq.protocol.codes import SYS_COMPRESSED
from rmq.protocol.command import Command
from rmq.protocol.headers import ReplyMessageRequestHeader
from rmq.protocol.properties import decode_properties
from rmq.protocol.record import decompress
from rmq.remoting.cancellation import as_failure
from rmq.remoting.connection import Connection
from rmq.remoting.endpoint import Endpoint
from rmq.remoting.loop import Waiter, Wakeup, current_loop, unwrap_groups
from rmq.remoting.pool import Pool

log = logging.getLogger("rmq.client.session")

AWAY_SECONDS = 0.5
"""Seconds between heartbeats to a broker that does not answer: they notice its return."""
LEAST_PAUSE_SECONDS = 0.2
"""Shortest pause between two rounds of route requests or of heartbeats, however many fail."""

HEARTBEAT_GROUPS = 200
"""Groups in one request of a heartbeat; brokers of rmq take 256 at most (maxGroupsOfHeartbeat)."""
HEARTBEAT_WAIT_SECONDS = 0.35
"""Seconds for which a leaving member waits for a heartbeat in flight."""

PASSING = (SystemBusy, ServiceNotAvailable)
"""Refusals that do not name the refused group."""


InThread = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a function that may wait for the disk."""


async def in_thread(work: Callable[[], None]) -> None:
    """Run a function in a worker thread. Cancelled: the function runs on."""
    await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


class Member(Protocol):
    """A consumer of the client, as brokers and administrators see it."""

    group: str

    def describe(self) -> ConsumerData:
        """Content for the heartbeat."""

    def rebalance_soon(self) -> None:
        """Note that the members of its group have changed."""

    def reconnected(self) -> None:
        """Note that a lost connection to a broker is back."""

    def running_info(self) -> ConsumerRunningInfo:
        """State for an administrator."""

    def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """Continue from these offsets."""

    def consume_directly(self, request: Command, connection: Connection) -> Command | None:
        """Consume one message that an administrator sends, and answer; None: the answer follows later."""

    def health(self) -> ConsumerHealth:
        """State for the application."""

    def check_ready(self) -> None:
        """Raise the obstacle between the member and its share of the queues."""

    async def lag(self) -> dict[MessageQueue, int]:
        """Number of unconsumed messages in its queues. Raises RmqError."""


@define
class PendingRequests:
    """The requests of a client that wait for a reply, by their correlation ids."""

    _waiters: dict[str, Waiter] = field(factory=dict)

    @contextmanager
    def expected(self, correlation_id: str) -> Iterator[Waiter]:
        """A waiter that gets the reply as a StoredMessage. A reply after the block is dropped."""
        waiter = self._waiters[correlation_id] = current_loop().waiter()
        try:
            yield waiter
        finally:
            del self._waiters[correlation_id]

    def on_reply(self, request: Command, broker: str, now_ms: int, body_max: int | None = None) -> None:
        """Handle a reply that a broker pushes. Raises CorruptRecord and RemoteProtocolError when it cannot be
        read."""
        header = request.read(ReplyMessageRequestHeader)
        properties = decode_properties(header.properties)
        properties[PROPERTY_REPLY_ARRIVE_TIME] = str(now_ms)
        waiter = self._waiters.get(properties.get(PROPERTY_CORRELATION_ID, ""))
        if waiter is None:
            log.warning("%s: ignored a late reply to a request", broker)
            return
        body = request.body
        if header.sys_flag & SYS_COMPRESSED:
            body = decompress(body, header.sys_flag, body_max)
        message = StoredMessage(
            header.topic,
            header.queue_id,
            0,
            0,
            len(request.body),
            body,
            properties,
            flag=header.flag,
            sys_flag=header.sys_flag & ~SYS_COMPRESSED,
            born_timestamp=header.born_timestamp,
            born_host=header.born_host.lstrip("/"),
            store_timestamp=header.store_timestamp,
            store_host=header.store_host.lstrip("/"),
            reconsume_times=header.reconsume_times or 0,
        )
        waiter.resolve(message)


@define
class _Joining:
    """Members that are announced to the brokers together."""

    groups: set[str]
    over: anyio.Event = field(factory=anyio.Event)
    is_done: bool = False


class Session:
    """The common state of a client's producers and consumers; the module names its loops. Made in a running
    event loop; `run` owns its tasks."""

    def __init__(
        self,
        pool: Callable[[Endpoint], Pool],
        endpoint: Callable[[Session], Endpoint],
        name_servers: list[str],
        client_id: str,
        config: ClientConfig,
        *,
        unique_ids: UniqueIds,
        chance: random.Random,
        now_ms: Callable[[], int] = wall_clock_ms,
        persistent_name: str = "",
        observers: Observers | None = None,
        on_event: OnEvent | None = None,
        in_thread: InThread = in_thread,
    ) -> None:
        """`endpoint(session)` answers the requests of brokers; `pool(endpoint)` makes its connections.
        `on_event` is called with events around the messages. `in_thread` runs a function that may wait for
        the disk."""
        self.config = config
        self.client_id = client_id
        self.observers = observers or Observers()
        self.persistent_name = persistent_name or client_id
        """The name for files on this host, the same from one run to the next."""
        self.in_thread = in_thread
        self.now_ms = now_ms
        self.now: Callable[[], float] = current_loop().now
        self.unique_ids = unique_ids
        self.chance = chance
        self._on_event = on_event
        self.send_retries = Counter[str]()
        """Topic -> retries of sends."""
        self.pool = pool(endpoint(self))
        self.pool.watch(self._on_connection)
        self.routes = RouteTable(lambda: chance.randrange(1 << 16))
        self.health = BrokerHealth()
        self.windows = Windows(config.send_window)
        self.name_servers = NameServers(self.pool, name_servers, chance.randrange(len(name_servers)))
        timeout = config.request_timeout_ms / 1000
        self.brokers = Brokers(self.pool, self.routes, self.name_servers, timeout, config.namespace)
        self.producers: dict[str, Any] = {}
        self.members: dict[str, Member] = {}
        self.pending_requests = PendingRequests()
        self.is_replying = False
        """True if a producer has replied to a request."""
        self.tasks: anyio.abc.TaskGroup | None = None
        """For tasks that end with the client, while it runs."""
        self.has_ended = False
        """True once the client was closed, or its tasks have failed: no request can be made any more."""
        self._users = 0
        self._departure = Wakeup()
        self._route_requests: dict[str, RouteRequest] = {}
        self.searches: dict[str, RouteRequest] = {}
        """Topics whose routes senders wait for."""
        self._unrefreshed: dict[str, str] = {}
        """Topic -> the reason why its route was not renewed."""
        self.watchers: set[Callable[[str], None]] = set()
        """Called with each topic whose route is forgotten."""
        self._stale: dict[str, None] = {}
        self._refresh_now = Wakeup()
        self._warnings = HeartbeatWarnings()
        self._refusals: dict[str, ResponseError] = {}  # refusals of the last heartbeat, by group
        self._silent: set[str] = set()  # addresses that did not answer the last heartbeat
        self._back = anyio.Event()  # one of these addresses has answered
        self._introduced: dict[str, set[str]] = {}  # producer groups that a broker knows by this connection
        self._lost: set[str] = set()  # addresses whose connection was lost and is not back
        self._heartbeat_now = Wakeup()
        self._heartbeat_lock = anyio.Lock()
        self._joining: _Joining | None = None  # the heartbeat that new members wait for

    def begin_replying(self) -> None:
        """Note that a producer replies to a request."""
        self.is_replying = True

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Only a bug ends it with an error."""
        try:
            async with anyio.create_task_group() as tasks:
                self.tasks = tasks
                await tasks.start(self.pool.run)
                tasks.start_soon(self._keep_heartbeats)
                tasks.start_soon(self._keep_routes)
                for observer in self.observers.all:
                    observer.attach(self)
                    tasks.start_soon(observer.run)
                task_status.started()
        finally:
            self.tasks, self.has_ended = None, True
        raise StrayCancellation("a background task of the client was cancelled")  # and the group swallowed it

    # --- brokers to send to ---

    def connection(self, broker: str) -> Connection | None:
        """The open connection to a broker's master that takes another request now, if any."""
        address = self.routes.master(broker)
        return None if address is None else self.pool.ready(address)

    def emit(self, event: Event) -> None:
        """Call `on_event`; an error of it is logged."""
        if self._on_event is not None:
            try:
                copy_context().run(self._on_event, event)
            except BaseException as error:
                failure = as_failure(error)
                if failure is None:
                    raise
                log.error("the on_event callback failed", exc_info=failure)

    def _on_connection(self, address: str, cause: object) -> None:
        if cause is None:
            self.emit(Connected(address))
            if address in self._lost:  # with the connection a broker forgets its producers
                self._lost.discard(address)
                self.heartbeat_soon()
                for member in self.members.values():
                    member.reconnected()
        else:
            self._introduced.pop(address, None)
            self._lost.add(address)
            self.emit(Disconnected(address, str(cause)))

    def has_lost(self, address: str) -> bool:
        """True if the last connection to `address` was lost or failed: a broker may have moved."""
        return address in self._lost

    # --- groups -----------------------------------------------------------------------------------

    def arrive(self) -> None:
        """Note that a producer or a consumer begins to use the session."""
        self._users += 1

    def depart(self) -> None:
        """Note that a producer or a consumer no longer uses the session."""
        self._users -= 1
        self._departure.set()

    async def departures(self) -> None:
        """Wait until no producer or consumer uses the session any more."""
        while self._users:
            await self._departure.wait()

    # --- routes -----------------------------------------------------------------------------------

    async def rotation(self, topic: str, timeout: float, *, create: bool = False) -> Rotation:
        """The route of `topic`, from memory or else from a name server.

        With `create`, an unknown topic gets the route of topics that brokers create on the first send, where
        brokers do that. Raises NoRoute. Cancelled: other callers that wait for the same response query again.
        """
        found = self.routes.get(topic)
        if found is None:
            await self.refresh(topic, timeout, create=create)
            found = self.routes.get(topic)
            assert found is not None
        return found

    async def refresh(self, topic: str, timeout: float = 0.0, *, create: bool = False) -> None:
        """Ask the name servers for a route now; many callers share one request. Raises NoRoute, and the old
        route stays."""
        while (pending := self._route_requests.get(topic)) is not None:
            await pending.over.wait()
            if pending.error is not None and not (create and pending.may_create(pending.error)):
                raise pending.error.with_traceback(None)
            if pending.is_done:
                return
        pending = self._route_requests[topic] = RouteRequest(creates=create)
        try:
            await self._ask(topic, timeout or self.brokers.timeout, create)
            pending.is_done = True
        except RmqError as error:
            pending.error = error
            raise
        finally:
            del self._route_requests[topic]
            pending.over.set()

    async def _ask(self, topic: str, timeout: float, create: bool) -> None:
        try:
            route = Route.of(topic, await self.name_servers.route(topic, timeout))
        except NoRoute as error:
            if not (create and is_unknown(error)):
                raise
            route = await self._default_route(topic, timeout)
        before, masters = self.routes.addresses(slaves=True), self.routes.masters()
        if self.routes.put(route):
            log.info("route of %s: %d queues on %s", topic, len(route.publish_queues), list(route.brokers))
            for broker_name, _ in self.routes.masters() - masters:  # registered again, maybe elsewhere
                self.health.clear(broker_name)
            if self.routes.addresses(slaves=True) != before:
                self.heartbeat_soon()

    async def _default_route(self, topic: str, timeout: float) -> Route:
        """The route by which a broker creates a topic on its first message; the error is that of the
        topic."""
        try:
            data = await self.name_servers.route(AUTO_CREATE_TOPIC, timeout)
        except Unreachable:
            raise
        except NoRoute as error:
            raise no_route(topic, error.asked, _detail(error)) from None
        route = Route.of(AUTO_CREATE_TOPIC, data)
        return route.renamed(topic, self.config.default_topic_queue_nums)

    def refresh_soon(self, topic: str) -> None:
        """Let the routes' loop ask for this topic now."""
        self._stale[topic] = None
        self._refresh_now.set()

    async def _keep_routes(self) -> None:
        interval = self.config.poll_name_server_interval_ms / 1000
        due, ended = self.now() + interval, -math.inf
        while True:
            await self._refresh_now.wait(due)
            await self._rest_after(ended)
            topics, self._stale = list(self._stale), {}
            if ended_all := self.now() >= due:
                topics = self.routes.topics()
                due = self.now() + interval
            for topic in topics:
                await self._try_refresh(topic)
            if ended_all:
                self._forget()
            ended = self.now()

    def _forget(self) -> None:
        """Forget topics and brokers that are gone: they come and go beside a process that runs for a year."""
        routes = self.routes
        for topic in routes.surplus(self.now()):
            routes.remove(topic)
            log.info("forgot the route of %s, which no name server knows any more", topic)
            for watcher in [*self.watchers]:
                watcher(topic)
        addresses, brokers, topics = (
            set(routes.addresses(slaves=True)),
            routes.broker_names(),
            routes.topics(),
        )
        self._lost &= addresses
        self.brokers.leaving.keep(addresses)
        keep_rows(self._introduced, addresses)
        self._warnings.keep(addresses, self.members)
        self.health.keep(brokers)
        self.windows.keep(brokers)
        known = {*topics, *_last(self._unrefreshed), *_last(self.send_retries)}
        keep_rows(self._unrefreshed, known)
        keep_rows(self.send_retries, known)

    async def _rest_after(self, ended: float) -> None:
        """Sleep until the least pause after the begin of a round is over."""
        pause = ended + LEAST_PAUSE_SECONDS - self.now()
        if pause > 0:
            await anyio.sleep(pause)

    async def _try_refresh(self, topic: str) -> None:
        try:
            await self.refresh(topic)
        except (NoRoute, RemoteProtocolError, ResponseError) as error:
            # A name server that has just started has no routes yet: the known route stays.
            if isinstance(error, NoRoute) and is_unknown(error):
                self.routes.note_missing(topic, self.now())
            if self._unrefreshed.get(topic) != (reason := str(error)):
                self._unrefreshed[topic] = reason  # logged once, not every 30 s
                log.info("kept the former route of %s: %s", topic, error)
        else:
            self._unrefreshed.pop(topic, None)

    # --- heartbeat --------------------------------------------------------------------------------

    def heartbeat_soon(self) -> None:
        """Let the heartbeat's loop send to all brokers now."""
        self._heartbeat_now.set()

    async def rest(self, seconds: float) -> None:
        """Sleep for so long, or until a broker that was away is back and has our heartbeat."""
        with anyio.move_on_after(seconds):
            await self._back.wait()

    async def heartbeat(self, *, silent: bool = False) -> None:
        """Send a heartbeat to all known brokers, or to those that did not answer the last. Brokers that do
        not answer are logged, and get the next heartbeat. For a refusal see `check_admitted`."""
        with unwrap_groups():
            await self._heartbeat_all(silent)

    async def join(self, group: str) -> None:
        """Announce a new member to all known brokers, in a heartbeat with other new members; see `heartbeat`.
        Cancelled: the other members are announced nevertheless."""
        while True:
            together = self._joining
            if together is None:
                together = self._joining = _Joining({group})
                try:
                    with unwrap_groups():
                        await self._heartbeat_all(False, together)
                    together.is_done = True
                    return
                finally:
                    if self._joining is together:
                        self._joining = None
                    together.over.set()
            together.groups.add(group)
            await together.over.wait()
            if together.is_done:
                return

    async def _heartbeat_all(self, silent: bool, joining: _Joining | None = None) -> None:
        async with self._heartbeat_lock:
            if joining is not None:
                self._joining = None  # members that come from now on are not in this heartbeat
            addresses = self.routes.addresses(slaves=bool(self.members))
            self._silent.intersection_update(addresses)
            if silent:
                addresses = [address for address in addresses if address in self._silent]
            elif joining is None:
                self._refusals.clear()
            else:
                for group in joining.groups:
                    self._refusals.pop(group, None)
            # A broker keeps the groups that a heartbeat does not name. Naming all in each, while a hundred
            # consumers begin, would cost the square of their number.
            data = HeartbeatData(
                client_id=self.client_id,
                producer_data_set=[ProducerData(group) for group in self.producers if joining is None],
                consumer_data_set=[
                    member.describe()
                    for group, member in self.members.items()
                    if joining is None or group in joining.groups
                ],
            )
            if not data.producer_data_set and not data.consumer_data_set:
                return
            parts = heartbeat_parts(data, HEARTBEAT_GROUPS)
            async with anyio.create_task_group() as tasks:
                for address in addresses:
                    tasks.start_soon(self._heartbeat_to, address, parts)

    async def announce_producer(self, group: str, brokers: Iterable[str]) -> None:
        """Announce to these brokers that `group` produces over the present connections, if they can be
        reached: brokers push replies and check-backs to them. A broker that did not answer the last heartbeat
        is not waited for again."""
        addresses = {self.routes.master(broker) for broker in brokers} - self._silent
        if any(group not in self._introduced.get(address, ()) for address in addresses if address):
            await self.heartbeat()

    def check_admitted(self, group: str) -> None:
        """Raise the ResponseError with which a broker refused this consumer group at the last heartbeat."""
        refusal = self._refusals.get(group)
        if refusal is not None and not isinstance(refusal, PASSING):
            raise refusal

    async def _heartbeat_to(self, address: str, parts: Iterable[HeartbeatData]) -> None:
        """Send the parts of a heartbeat to a broker, as long as it answers. A part that the broker refuses is
        sent in halves, so that all groups but the refused ones are admitted."""
        waiting = list(reversed(list(parts)))
        while waiting:
            data = waiting.pop()
            try:
                is_refused = await self._send_heartbeat(address, data)
            except NETWORK_ERRORS as error:
                level = logging.DEBUG if address in self._silent else logging.WARNING
                log.log(level, "heartbeat failed: %s", error)
                self._silent.add(address)
                return
            if is_refused:
                waiting += reversed(heartbeat_parts(data, (group_count(data) + 1) // 2))

    async def _send_heartbeat(self, address: str, data: HeartbeatData) -> bool:
        """Announce groups to a broker; return whether it refuses several of them, of which others may be
        admitted."""
        try:
            self._warnings.note(address, data, await self.brokers.heartbeat(address, data))
            if address not in self._lost:
                known = self._introduced.setdefault(address, set())
                # Without producers that have left meanwhile.
                known.update(
                    one.group_name for one in data.producer_data_set if one.group_name in self.producers
                )
            if address in self._silent:  # back again
                self._silent.discard(address)
                self.health.clear(self.routes.name_of(address))
                self._back.set()
                self._back = anyio.Event()
        except ResponseError as error:
            if group_count(data) > 1 and not isinstance(error, PASSING):
                return True
            self._warnings.note(address, data, f"heartbeat refused: {error}")
            self._refusals.update({one.group_name: error for one in data.consumer_data_set})
        return False

    async def _keep_heartbeats(self) -> None:
        interval = self.config.heartbeat_interval_ms / 1000
        due, ended = self.now() + interval, -math.inf
        while True:
            early = min(due, self.now() + AWAY_SECONDS) if self._silent else due
            has_rung = await self._heartbeat_now.wait(early)
            await self._rest_after(ended)
            if has_rung or self.now() >= due:
                await self.heartbeat()
                due = self.now() + interval
            else:
                await self.heartbeat(silent=True)
            ended = self.now()

    async def leave(self, *, producer: str | None = None, consumer: str | None = None) -> None:
        """Leave a group: report to all brokers, and remove the group from the heartbeat, which would join it
        again."""
        with unwrap_groups(), self.brokers.leaving.going_on():
            await self._leave_all(producer, consumer)

    async def _leave_all(self, producer: str | None, consumer: str | None) -> None:
        self.producers.pop(producer or "", None)
        self.members.pop(consumer or "", None)
        self._forget_group(producer, consumer)
        has_lock = False
        try:
            # A heartbeat in flight would join the group again. A heartbeat that a broker does not answer is
            # not waited for: that broker forgets the client with its connection.
            hangs = self.brokers.leaving.silent and self._heartbeat_lock.statistics().locked
            with anyio.move_on_after(HEARTBEAT_WAIT_SECONDS):
                if not hangs:
                    await self._heartbeat_lock.acquire()
                    has_lock = True
            self._forget_group(producer, consumer)  # a heartbeat in flight has noted it again
            async with anyio.create_task_group() as tasks:
                for address in self.routes.addresses(slaves=consumer is not None):
                    tasks.start_soon(self._leave, address, producer, consumer)
        finally:
            if has_lock:
                self._heartbeat_lock.release()
            if consumer is not None and consumer not in self.members:
                self.routes.remove(RETRY_PREFIX + consumer)

    def _forget_group(self, producer: str | None, consumer: str | None) -> None:
        """Forget what is known of a group: a producer of the group that comes is announced again."""
        if producer is not None:
            for known in self._introduced.values():
                known.discard(producer)
        if consumer is not None:
            self._refusals.pop(consumer, None)

    async def _leave(self, address: str, producer: str | None, consumer: str | None) -> None:
        try:
            await self.brokers.unregister(address, self.client_id, producer=producer, consumer=consumer)
        except (*NETWORK_ERRORS, ResponseError) as error:
            log.info("unregistering failed: %s", error)


def _last(topics: Iterable[str]) -> list[str]:
    """The topics that came last, without a route: most are mistakes of an application."""
    return list(topics)[-MISSING_MOST:]


def _detail(error: NoRoute) -> str:
    return str(error).partition(": ")[2]
