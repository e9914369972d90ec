"""The broker without its event loop: its parts put together, and the handlers of requests.

`handle` runs all requests of a chunk; `GroupCommit.commit_pending` then commits their messages to the store
with a single write, and only after that answers the senders and wakes the consumers that wait. Only the
store's writes block. No function reads a clock except by `now_ms` (wall time, for stamps) and `clock`
(seconds, for deadlines).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

from rmq.broker.admin.metrics_export import gauges_of
from rmq.broker.admin.parts import make_admin_parts
from rmq.broker.admin.pending_changes import PendingChanges
from rmq.broker.admin.registration import Registration
from rmq.broker.chunk.copied_log import CopiedLog
from rmq.broker.chunk.group_commit import Arrivals, Chunk, GroupCommit
from rmq.broker.chunk.plugin_appends import PluginAppends
from rmq.broker.chunk.steps import Deadlines, Steps
from rmq.broker.config import Settings
from rmq.broker.consume.metered import MeteredRequests
from rmq.broker.consume.readers import make_readers
from rmq.broker.decisions import Decisions
from rmq.broker.disk_work import DiskWork
from rmq.broker.error_responses import error_response, large_body_refusal, unsupported
from rmq.broker.membership.client_requests import ClientRequests, PendingRequests, RequestReply
from rmq.broker.membership.door_peers import DoorPeers
from rmq.broker.membership.quotas import Quotas
from rmq.broker.produce.writers import Writers, make_writers
from rmq.broker.replication.replica_state import TABLE_CODES, DeliveryProgress, ReplicaState, of_our_slave
from rmq.broker.replication.table_replication import LOCKS, OFFSETS, TableReceiver
from rmq.broker.role import Role, role_of
from rmq.broker.state import Tables, make_tables
from rmq.broker.tables.files import TableFiles
from rmq.broker.tables.histograms import Histograms
from rmq.broker.tables.versioned import Changes, OnReplicated, Slices, at_once, run_to_end
from rmq.broker.wakeups import Wakeups
from rmq.plugin import Hooks, PulledEvent
from rmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, RequestCode, ResponseCode
from rmq.protocol.command import SMALLEST_BODY_LIMIT, check_body
from rmq.remoting.endpoint import Endpoint
from rmq.remoting.limits import SENDS_OF_A_LOOK, MemoryBudget, turn_is_over
from rmq.server.deferred import DeferredCalls, DeferredSaves
from rmq.store.config import BrokerRole

if TYPE_CHECKING:
    from rmq.broker.config import BrokerConfig
    from rmq.broker.consume.long_polling import Reading, ReadRequest
    from rmq.broker.membership.members import MemberConnection
    from rmq.protocol.auth.server_auth import ServerAuth
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection
    from rmq.remoting.serving.acceptor import Acceptor
    from rmq.shares import Holding
    from rmq.store.store import Store

Handler = Callable[["Command", "Connection", int], "Command | None"]

SYSTEM_ERROR: Final = int(ResponseCode.SYSTEM_ERROR)
HEART_BEAT: Final = int(RequestCode.HEART_BEAT)
SEND: Final = int(RequestCode.SEND_MESSAGE_V2)


class Part(Protocol):
    """A part of the broker that serves requests."""

    def handlers(self) -> Mapping[RequestCode, Handler] | Mapping[int, Handler]:
        """The handlers by their request codes."""


class Progress(Protocol):
    """A table of places in queues."""

    def check_ends(self) -> None:
        """Correct the loaded places beyond the ends of queues."""


def _check_ends(*tables: Progress) -> None:
    for table in tables:
        table.check_ends()


def collected(parts: Iterable[Part], signed: Callable[[Handler], Handler]) -> dict[int, Handler]:
    """The handlers of all parts. `signed(handler)` has the responses of a slave's questions signed."""
    handlers: dict[int, Handler] = {}
    for part in parts:
        for code, handler in part.handlers().items():
            assert code not in handlers, code
            handlers[int(code)] = signed(handler) if code in TABLE_CODES else handler
    return handlers


class Broker(Endpoint):
    """A broker over an opened store: the endpoint of its clients' connections.

    `address` and `ha_address` are the addresses for clients and slaves. `work_clock` (seconds) measures work,
    if a cheaper clock than `clock` exists. `server_auth` checks signatures of the cluster's servers, `sign`
    signs our requests to them. `acceptors` let peers in, by the names of their ports; `budget` bounds the
    bytes that peers may make the broker hold.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        *,
        address: str,
        ha_address: str,
        now_ms: Callable[[], int],
        clock: Callable[[], float],
        work_clock: Callable[[], float] | None = None,
        chance: Random | None = None,
        wake: Wakeups | None = None,
        server_auth: ServerAuth | None = None,
        sign: Callable[[Command], Command] | None = None,
        acceptors: Mapping[str, Acceptor] | None = None,
        budget: MemoryBudget | None = None,
        role: Role | None = None,
        disk_work: DiskWork | None = None,
    ) -> None:
        self.settings = Settings(config, store.config)
        self.role = role or role_of(store.config)
        self.store = store
        self.settings.derive(lambda: store.configure(self.settings.store))
        self.now_ms = now_ms
        self.clock, self.work_clock = clock, work_clock or clock
        self.disk_work = disk_work or DiskWork(clock)
        self.wake = wake or Wakeups()
        self.hooks = Hooks()
        self.server_auth = server_auth
        self.histograms = Histograms()
        self.connections = 0
        self.acceptors: Mapping[str, Acceptor] = acceptors or {}
        self.budget = budget or MemoryBudget()
        self.chunk = Chunk()
        self.deadlines = Deadlines(self.wake.deadlines)
        self._chance = chance or Random()
        self.files = TableFiles(store)
        replicated = self._when_replicated if self.role.awaits_replicas else None
        respond, wake, holders_of = self._respond, self.wake, self.settings.holders_of
        self.changes = PendingChanges(self.files, respond, wake.new_topics, replicated, holders_of)
        self.deferred_saves = DeferredSaves(respond, error_response, wake.deferred_saves, holders_of)
        tables = self.tables = self._make_tables()
        self.topics, self.groups, self.offsets = tables.topics, tables.groups, tables.offsets
        self.clients, self.filters = tables.clients, tables.filters
        self.stats, self.locks = tables.stats, tables.locks
        writers = self._make_writers(tables)
        self._make_readers(tables, writers)
        self._make_admin(tables)
        self._make_callers(address)
        self._make_ends(tables, writers)
        self.delivery = DeliveryProgress(self.schedule, self.timers, self.offsets)
        take_progress = self.delivery.take
        save = self.wake.new_topics or self.group_commit.save_topics
        self.followed = TableReceiver(self.files, tables, store, self.delivery, self._on_topics_change, save)
        self.replica = ReplicaState(
            store, address=address, chance=self._chance, take_progress=take_progress, role=self.role
        )
        self.copied_log = CopiedLog(store, self.followed, self.replica, self.arrivals.arrived, self.wake)
        sign = sign or (lambda command: command)
        self.registration = Registration(
            self.settings,
            self.topics,
            address=address,
            ha_address=ha_address,
            sign=sign,
            epoch=self.role.epoch,
        )
        self.settings.watch(self.wake.register)  # they are told the permission
        self._load()
        readers = self.pull, self.offsets, self.clients, self.locks, self.query, self.admin, self.progress
        senders = self.send, self.idempotent, self.transactions, self.recall
        callers = self.client_requests, self.request_reply
        of_5x = self.pop_requests, self.config_requests, self.assignments
        self.handlers = collected((*readers, *senders, *callers, *of_5x), self.replica.signed)

    @property
    def config(self) -> BrokerConfig:
        """The broker's settings that hold now."""
        return self.settings.broker

    def _make_tables(self) -> Tables:
        waits = self.role.awaits_replicas
        return make_tables(
            self.settings,
            self.store,
            self.role,
            save=self.files.save,
            now_ms=self.now_ms,
            clock=self.clock,
            on_deadline=self.deadlines.add,
            on_topics_change=self._on_topics_change,
            on_groups_change=self._wake_slaves,
            when_offsets_replicated=partial(self._when_replicated, OFFSETS) if waits else at_once,
            when_locks_replicated=partial(self._when_replicated, LOCKS) if waits else at_once,
        )

    def _make_writers(self, tables: Tables) -> Writers:
        """The parts that store messages."""
        writers = make_writers(
            self.settings,
            self.store,
            tables,
            self.role,
            clock=self.clock,
            chance=self._chance,
            histograms=self.histograms,
            wake=self.wake,
            hooks=lambda: self.hooks,
            on_deadline=self.deadlines.add,
            commit=self._commit,
            commit_pending=self._commit_pending,
            sender=lambda: self.chunk.connection,
        )
        self.own_writes = writers.own_writes
        self.schedule, self.timers = writers.schedule, writers.timers
        self.acknowledgement = writers.acknowledgement
        self.transactions = writers.transactions
        self.flow, self.append, self.send = writers.flow, writers.append, writers.send
        self.idempotent, self.recall = writers.idempotent, writers.recall
        return writers

    def _make_readers(self, tables: Tables, writers: Writers) -> None:
        """The parts that give messages to consumers."""
        records = writers.delivery_records
        readers = make_readers(
            self.settings,
            self.store,
            tables,
            self.role,
            now_ms=self.now_ms,
            clock=self.clock,
            on_deadline=self.deadlines.add,
            on_pulled=self._on_pulled,
            put=self.own_writes.put,
            put_delivery=records.put,
            give_up=records.put_dead_letter,
            commit_soon=self.commit_soon,
            linked=self.acknowledgement.replicas.numbers,
        )
        self.readers = readers
        self.reader, self.deliveries = readers.reader, readers.deliveries
        self.parked_pulls = self.reader.parked_pulls
        self.pop_requests, self.pull = readers.pop_requests, readers.pull
        self.decisions = Decisions(
            self.store,
            self.transactions,
            self.deliveries,
            role=self.role,
            clock=self.clock,
            now_ms=self.now_ms,
            on_deadline=self.deadlines.add,
            commit_soon=self.commit_soon,
        )

    def _make_admin(self, tables: Tables) -> None:
        """The parts that serve operators, and the housekeeping."""
        parts = make_admin_parts(
            self.settings,
            self.store,
            tables,
            self.role,
            changes=self.changes,
            deferred_saves=self.deferred_saves,
            gauges=self._gauges,
            delay_offsets=lambda: self.schedule.progress,
            commit_pending=self._commit_pending,
            on_deleted=self._on_topic_deleted,
            respond=self._respond,
            is_slave=lambda: self.is_slave,
            wake=self.wake,
            clock=self.clock,
        )
        self.query, self.admin, self.config_requests = parts.query, parts.admin, parts.config_requests
        self.assignments, self.sliced_answers = parts.assignments, parts.sliced_answers
        self.progress, self.expiry = parts.progress, parts.expiry
        self.topic_retention = parts.topic_retention

    def _make_callers(self, address: str) -> None:
        """The parts that ask clients and wait for their answers."""
        self.pending_requests = PendingRequests(self.clock, self.deadlines.add, self.settings.holders_of)
        self.deferrals = DeferredCalls(self.clock, self.deadlines.add)
        self.quotas = Quotas(self.clock, lambda peer: self.hooks.quota_of(peer))
        self.metered = MeteredRequests(
            self.quotas, self.store, self.deferrals, self.settings.holders_of, self.run_late
        )
        self.door_peers = DoorPeers()
        self.client_requests = ClientRequests(self.settings, self.store, self.clients, self.pending_requests)
        self.request_reply = RequestReply(
            self.settings,
            self.clients,
            self.pending_requests,
            address=address,
            store=self.send.send,
            later=self.run_late,
        )

    def _make_ends(self, tables: Tables, writers: Writers) -> None:
        """The end of each chunk, and the steps of the loops."""
        self.arrivals = Arrivals(self.parked_pulls, self.deliveries, self.schedule, self.timers, self.now_ms)
        self.group_commit = GroupCommit(
            self.store,
            self.chunk,
            self.files,
            tables,
            writers,
            self.deliveries,
            self.decisions,
            self.arrivals,
            histograms=self.histograms,
            wake=self.wake,
            clock=self.clock,
            work_clock=self.work_clock,
        )
        self.plugin_appends = PluginAppends(
            self.store,
            self.chunk,
            self.append,
            self.group_commit,
            commit_soon=self.commit_soon,
            now_ms=self.now_ms,
            work_clock=self.work_clock,
        )
        waiting = self.parked_pulls, self.acknowledgement, self.pending_requests, self.deferrals
        self.steps = Steps(
            self.deadlines,
            waiting=[part.step for part in (*waiting, self.deliveries, self.decisions, self.clients.notices)],
            delayed=(self.schedule.step, self.timers.step),
            check_back=self.transactions.step,
            expiring=(self.clients.expire, self.locks.expire, self.expiry.step),
            sample=self.stats.step,
            commit_pending=self.group_commit.commit_pending,
            is_slave=lambda: self.is_slave,
            now_ms=self.now_ms,
            clock=self.clock,
        )

    def _load(self) -> None:
        """Read the tables from the store's config files. Raises StoreError, RemoteProtocolError."""
        self.files.load(
            is_slave=self.is_slave,
            versioned={"topics": self.topics, "subscriptionGroup": self.groups},
            large={"consumerOffset": self.offsets, "consumerFilter": self.filters},
            copied={"consumerOffset": self.offsets},
            small={"delayOffset": self.schedule, "timerProgress": self.timers, "replication": self.replica},
        )
        self.replica.begin()
        if not self.is_slave:
            _check_ends(self.offsets, self.schedule, self.timers)
        self.topic_retention.apply()
        if not self.is_slave:
            self.deliveries.load()
        self.transactions.load(self.now_ms())
        self.decisions.load()

    def use_handlers(self, handlers: dict[int, Handler]) -> None:
        """Serve requests by these handlers from now on."""
        self.handlers = handlers

    def use_plugins(self, hooks: Hooks) -> None:
        """Call these hooks from now on. Raises PluginRefused when a hook claims a request code of the
        broker."""
        self.handlers = hooks.completing(self.handlers)
        self.hooks = hooks
        self.group_commit.use_plugins(hooks)
        self.asks_early = bool(hooks.heads)

    # ---- requests ----

    def handle(self, requests: list[Command], connection: Connection) -> int:
        """Run requests of a chunk for a turn, commit their messages, and answer; return the number of
        requests."""
        now, clock = self.now_ms(), self.work_clock
        began = clock()
        self.chunk.begin(connection, began)
        self.append.look(now)
        handlers, hooks = self.handlers, self.hooks
        sends, gates, total, count = handlers.get(SEND), hooks.requests, len(requests), 0
        try:
            for request in requests:
                count += 1
                handler = handlers.get(request.code)
                try:
                    if handler is not sends:
                        if len(request.body) > SMALLEST_BODY_LIMIT:
                            check_body(request.code, len(request.body), self.store.config.max_message_size)
                        if request.code == HEART_BEAT:
                            self.clients.check_size(request.body)
                    if gates and not of_our_slave(self.server_auth, request):
                        hooks.admit(connection, request)
                        if hooks.quotas and handler and self.metered.holds(request, handler, connection):
                            continue
                    if handler is None:
                        raise unsupported(request)
                    response = handler(request, connection, now)
                except Exception as error:
                    response = error_response(request, error)
                if response is not None:
                    self._respond(request, response, connection)
                # A look at the clock is felt beside a send, and what sends cost is bounded by their bytes.
                if handler is sends and count % SENDS_OF_A_LOOK:
                    continue
                if count < total and turn_is_over(clock() - began, count):
                    break
            self.group_commit.commit_pending()
        except BaseException:
            self.group_commit.forget()
            raise
        finally:
            self.chunk.end()
        return count

    def on_head(self, head: Command, body_bytes: int, connection: Connection) -> Command | None:
        """Decide by the header whether a large body may come: None, or the refusal."""
        if head.flag & FLAG_RESPONSE:
            return None if self.pending_requests.expects(head, connection) else head.reply(SYSTEM_ERROR)
        message_bytes = self.store.config.max_message_size
        return large_body_refusal(head, body_bytes, connection, self.handlers, message_bytes, self.hooks)

    def _respond(self, request: Command, response: Command, connection: Connection) -> None:
        if not request.flag & FLAG_ONEWAY:
            connection.reply(response)
        if self.hooks.responses:
            self.hooks.observe(self.hooks.responses, connection, request, response)

    def on_open(self, connection: Connection) -> None:
        """A peer has come."""
        self.connections += 1

    def on_close(self, connection: Connection) -> None:
        """A connection has ended: forget its pulls, its clients and its requests."""
        self.metered.on_close(connection)
        self._forget_peer(connection)

    def _forget_peer(self, peer: MemberConnection) -> None:
        self.connections -= 1
        self.parked_pulls.on_close(peer)
        self.deliveries.on_close(peer)
        self.clients.on_close(peer)
        self.pending_requests.on_close(peer)

    def on_door_open(self, door: str) -> None:
        """A peer has come to a door."""
        self.connections += 1
        self.door_peers.opened(door)

    def on_door_close(self, door: str, peer: MemberConnection) -> None:
        """A connection of a door has ended: forget its reads, its memberships and its calls."""
        self.door_peers.closed(door)
        self.metered.on_close(peer)
        self._forget_peer(peer)

    def on_response(self, response: Command, connection: Connection) -> None:
        """A client has answered a request of ours."""
        self.pending_requests.on_response(response, connection)

    def run_late(self, handler: Handler, request: Command, connection: Connection) -> None:
        """Run a handler outside the chunk that its request came in, and answer."""
        now = self.now_ms()
        self.chunk.begin(connection, self.work_clock())
        self.append.look(now)
        try:
            try:
                response = handler(request, connection, now)
            except Exception as error:
                response = error_response(request, error)
            if response is not None:
                self._respond(request, response, connection)
            self.group_commit.commit_pending()
        finally:
            self.chunk.end()
            self.group_commit.forget()

    # ---- what the service's loops call ----

    def on_synced(self, position: int) -> None:
        """The log is on the medium up to `position`."""
        self.acknowledgement.synced(position)
        self.wake.follower()

    def saves(self) -> dict[str, bytes]:
        """The texts of all config files to be written, by name, made at once: for tests without a service."""
        return {**self.files.unsaved(), **run_to_end(self.saving())}

    def saving(self) -> Slices[dict[str, bytes]]:
        """The config files to be written, by name, in slices; see `TableFiles.changed`."""
        self.filters.clean()
        return (yield from self.files.changed())

    # ---- a slave ----

    @property
    def flush_awaited(self) -> int:
        """The physical offset up to which a sync is awaited; -1 when none is."""
        return max(self.replica.flush_awaited, self.acknowledgement.disk.awaited)

    @property
    def is_slave(self) -> bool:
        """True if this broker copies another's log."""
        return self.store.config.broker_role is BrokerRole.SLAVE

    # ---- for the parts and the plugins ----

    def _when_replicated(self, table: str, changes: Changes, peer: Holding, on_done: OnReplicated) -> bool:
        return self.acknowledgement.rows.wait(table, changes, peer, on_done)

    def commit_soon(self) -> None:
        """Request a commit of the pending messages: by the current chunk, or in the next round of the
        loop."""
        if self.chunk.connection is None:
            self.steps.commit_soon()

    def _commit(self) -> None:
        self.group_commit.commit()

    def _commit_pending(self) -> None:
        self.group_commit.commit_pending()

    def _on_topics_change(self) -> None:
        self.append.topics_changed()
        self.wake.register()
        self._wake_slaves()

    def _on_topic_deleted(self, topic: str, queue_ids: Collection[int]) -> None:
        self.parked_pulls.finish_where(lambda pull: pull.header.topic == topic)
        self.deliveries.arrived(topic)
        self.progress.topic_deleted(topic, queue_ids)

    def _gauges(self) -> Mapping[str, str]:
        return gauges_of(self)

    def _wake_slaves(self) -> None:
        self.acknowledgement.replicas.grown()

    def _on_pulled(self, request: ReadRequest, count: int, size: int, reading: Reading) -> None:
        if self.hooks.quotas:
            self.quotas.consumed(reading, count, size)
        if self.hooks.pulled:
            seconds = self.work_clock() - self.chunk.began
            place = request.topic, request.consumer_group, request.queue_id
            event = PulledEvent(*place, count, size, reading, seconds)
            self.hooks.observe(self.hooks.pulled, event)
