"""The broker without its event loop: its parts, the handlers of requests, and the end of every chunk.

`handle` runs all requests of a chunk; `commit_pending` then commits their messages to the store with a single
write, and only after that answers the senders and wakes the consumers that wait. Only the store's writes
block. No function reads a clock except by `now_ms` (wall time, for stamps) and `clock` (seconds, for
deadlines).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from rmq.broker.admin.assignments import Assignments
from rmq.broker.admin.config_requests import ConfigRequests
from rmq.broker.admin.consume_stats import ConsumeProgress, SlicedAnswers
from rmq.broker.admin.expiry import Expiry
from rmq.broker.admin.metrics_export import gauges_of
from rmq.broker.admin.pending_changes import PendingChanges, as_it_is
from rmq.broker.admin.query import Query
from rmq.broker.admin.registration import Registration
from rmq.broker.admin.topic_retention import TopicRetention
from rmq.broker.admin.topics_and_groups import Admin
from rmq.broker.config import Settings
from rmq.broker.consume.metered import MeteredRequests
from rmq.broker.consume.per_message.deliveries import Deliveries
from rmq.broker.consume.per_message.pop_requests import PopRequests
from rmq.broker.consume.pull import Pull
from rmq.broker.consume.read import Reader
from rmq.broker.decisions import Decisions
from rmq.broker.delay.delay_levels import Schedule
from rmq.broker.delay.recall import Recall
from rmq.broker.delay.timers import Timers
from rmq.broker.disk_work import DiskWork
from rmq.broker.error_responses import error_response, large_body_refusal, not_written, unsupported
from rmq.broker.filtering.filters import FilterTable
from rmq.broker.membership.check_back import CheckBack
from rmq.broker.membership.client_requests import ClientRequests, PendingRequests, RequestReply
from rmq.broker.membership.clients import Clients
from rmq.broker.membership.quotas import Quotas
from rmq.broker.produce.acks import Acknowledgement
from rmq.broker.produce.admission import FlowControl
from rmq.broker.produce.append import Append, OwnWrites, stored_events
from rmq.broker.produce.delivery_records import DeliveryRecords
from rmq.broker.produce.idempotent import IdempotentSends
from rmq.broker.produce.send import Send
from rmq.broker.replication.replica_state import TABLE_CODES, DeliveryProgress, ReplicaState, of_our_slave
from rmq.broker.replication.table_replication import LOCKS, OFFSETS, TableReceiver
from rmq.broker.role import Role, role_of
from rmq.broker.state import Tables
from rmq.broker.tables.files import TableFiles
from rmq.broker.tables.groups import Groups
from rmq.broker.tables.histograms import Histograms
from rmq.broker.tables.offsets import Offsets
from rmq.broker.tables.queue_locks import Locks
from rmq.broker.tables.stats import Stats
from rmq.broker.tables.topics import Topics
from rmq.broker.tables.versioned import Changes, OnReplicated, Slices, at_once, response_when, run_to_end
from rmq.broker.transactions import Transactions
from rmq.broker.wakeups import Wakeups
from rmq.errors import StoreError
from rmq.message import SCHEDULE_TOPIC, TIMER_TOPIC
from rmq.plugin import Hooks, PulledEvent
from rmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, RequestCode, ResponseCode
from rmq.protocol.command import SMALLEST_BODY_LIMIT, check_body
from rmq.remoting.endpoint import Endpoint
from rmq.remoting.limits import SENDS_OF_A_LOOK, MemoryBudget, turn_is_over
from rmq.server.deferred import DeferredCalls, DeferredSaves
from rmq.shares import Shares
from rmq.store.config import BrokerRole

if TYPE_CHECKING:
    from rmq.broker.config import BrokerConfig
    from rmq.broker.consume.long_polling import Reading, Wanted
    from rmq.broker.membership.members import MemberConnection
    from rmq.message import Message
    from rmq.plugin import OnAppended, Peer
    from rmq.protocol.auth.server_auth import ServerAuth
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection
    from rmq.remoting.serving.acceptor import Acceptor
    from rmq.shares import Holders, Holding
    from rmq.store.reader import GetResult
    from rmq.store.store import Arrival, Store

Handler = Callable[["Command", "Connection", int], "Command | None"]

RETRY_MS: Final = 1_000
SLAVE_IDLE_MS: Final = 60_000
"""How long a slave's delivery and check-back sleep: its master does both, and the slave copies that."""

SYSTEM_ERROR: Final = int(ResponseCode.SYSTEM_ERROR)
HEART_BEAT: Final = int(RequestCode.HEART_BEAT)
SEND: Final = int(RequestCode.SEND_MESSAGE_V2)

log = logging.getLogger("rmq.broker")


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
        self._connection: Connection | None = None  # whose chunk is being handled
        self._chance = chance or Random()
        self._chunk_at = self._next_warning_at = (
            0.0  # when its handling began; from when on to complain again
        )
        self._next_deadline = math.inf  # when `step_deadlines` is to be called
        self.files = TableFiles(store)
        agreed = self._agreed if self.role.awaits_replicas else as_it_is
        respond, wake, holders_of = self._respond, self.wake, self.settings.holders_of
        self.changes = PendingChanges(self.files, respond, wake.new_topics, agreed, holders_of)
        self.deferred_saves = DeferredSaves(respond, error_response, wake.deferred_saves, holders_of)
        tables = self._make_tables()
        self._make_writers(tables)
        self._make_readers(tables)
        self._make_callers(address)
        self.delivery = DeliveryProgress(self.schedule, self.timers, self.offsets)
        take_progress = self.delivery.take
        save = self.wake.new_topics or self.save_topics
        self.followed = TableReceiver(self.files, tables, store, self.delivery, self._on_topics_change, save)
        self.replica = ReplicaState(
            store, address=address, chance=self._chance, take_progress=take_progress, role=self.role
        )
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
        self.handlers = self._collect_handlers()

    @property
    def config(self) -> BrokerConfig:
        """The broker's settings that hold now."""
        return self.settings.broker

    def _make_tables(self) -> Tables:
        settings, store, now_ms = self.settings, self.store, self.now_ms
        self.stats = Stats(now_ms(), cluster=self.config.broker_cluster_name)
        save = self.files.save
        self.topics = Topics(
            settings,
            save=partial(save, "topics"),
            now_ms=now_ms,
            on_change=self._on_topics_change,
            log_end=lambda: store.max_physical_offset,
            log_start=lambda: store.min_physical_offset,
            first_record=self._first_record,
        )
        self.groups = Groups(
            settings, save=partial(save, "subscriptionGroup"), now_ms=now_ms, on_change=self._tell_slaves
        )
        waits = self.role.awaits_replicas
        self.offsets = Offsets(
            settings,
            self.topics,
            store,
            group_exists=self.groups.exists,
            role=self.role,
            when_replicated=partial(self._when_replicated, OFFSETS) if waits else at_once,
        )
        self.filters = FilterTable(settings, now_ms, self.clock)
        self.clients = Clients(
            settings, groups=self.groups, topics=self.topics, filters=self.filters, clock=self.clock
        )
        self.locks = Locks(
            self.clock,
            settings.holders_of,
            role=self.role,
            when_replicated=partial(self._when_replicated, LOCKS) if waits else at_once,
        )
        tables = self.topics, self.groups, self.offsets, self.clients, self.filters, self.stats, self.locks
        return Tables(*tables)

    def _make_writers(self, tables: Tables) -> None:
        """The parts that store messages."""
        settings, store = self.settings, self.store
        self.own_writes = OwnWrites(store, self.topics, self.clock)
        put = self.own_writes.put
        self.schedule = Schedule(
            store.config.message_delay_level, store, self._commit, self.wake.schedule, self.clock, put
        )
        self.timers = Timers(store, self._commit, on_earlier=self.wake.schedule, put=put)
        self.acknowledgement = Acknowledgement(
            settings,
            store,
            self.topics,
            self.role,
            clock=self.clock,
            histograms=self.histograms,
            on_deadline=self._on_deadline,
            on_sync_wanted=self.wake.flush,
        )
        check_back = CheckBack(self.clients, self._chance, lambda: self.hooks)
        self.transactions = Transactions(
            settings,
            store,
            self.offsets,
            host=store.store_host,
            ask=check_back.ask,
            may_act_for=self._may_act_for,
            put=put,
            commit=self._commit,
            answer=self.acknowledgement.answer,
        )
        self.flow = FlowControl(
            settings, store, self.acknowledgement, self.clock, self.role, lambda: self._connection
        )
        self.append = Append(
            settings,
            store,
            tables,
            own=self.own_writes,
            acknowledgement=self.acknowledgement,
            timers=self.timers,
            prepare=self.transactions.prepare,
            gate=self.flow.refusal,
            chance=self._chance,
            keeps_records=lambda: bool(self.hooks.stored),
        )
        self.send = Send(
            settings,
            store,
            tables,
            append=self.append,
            acknowledgement=self.acknowledgement,
            timers=self.timers,
            chance=self._chance,
        )
        self.idempotent = IdempotentSends(
            settings,
            store,
            self.acknowledgement,
            send=self.send.send,
            commit_pending=self.commit_pending,
            commit=self._commit,
        )
        self.recall = Recall(
            settings,
            timers=self.timers,
            topics=self.topics,
            store_host=store.store_host,
            put=self.send.put,
            may_act_for=self._may_act_for,
        )

    def _make_readers(self, tables: Tables) -> None:
        """The parts that read messages and tables."""
        settings, store = self.settings, self.store
        self.reader = Reader(
            settings,
            store,
            tables,
            now_ms=self.now_ms,
            clock=self.clock,
            on_deadline=self._on_deadline,
            on_pulled=self._on_pulled,
            put=self.own_writes.put,
            role=self.role,
        )
        self.parked_pulls = self.reader.parked_pulls
        records = DeliveryRecords(self.topics, self.own_writes, self.append, self.acknowledgement)
        self.deliveries = Deliveries(
            settings,
            store,
            tables,
            self.reader,
            role=self.role,
            clock=self.clock,
            now_ms=self.now_ms,
            on_deadline=self._on_deadline,
            commit_soon=self.commit_soon,
            put=records.put,
            give_up=records.put_dead_letter,
        )
        self.decisions = Decisions(
            store,
            self.transactions,
            self.deliveries,
            role=self.role,
            clock=self.clock,
            now_ms=self.now_ms,
            on_deadline=self._on_deadline,
            commit_soon=self.commit_soon,
        )
        self.pop_requests = PopRequests(settings, self.deliveries, self.now_ms)
        replicas = self.acknowledgement.replicas
        place = self.role.read_preference(lambda: settings.broker.read_at_slaves, replicas.numbers)
        self.pull = Pull(settings, tables, self.reader, place=place)
        self.query = Query(store, self.clients, self.filters, role=self.role)
        self.admin = Admin(
            settings,
            store,
            tables,
            role=self.role,
            changes=self.changes,
            deferred_saves=self.deferred_saves,
            commit_pending=self.commit_pending,
            gauges=partial(gauges_of, self),
            delay_offsets=lambda: self.schedule.progress,
            on_deleted=self._on_topic_deleted,
            wake_clean=self.wake.clean,
        )
        self.config_requests = ConfigRequests(settings, tables, self.changes)
        self.assignments = Assignments(
            settings,
            tables,
            self.clients,
            clock=self.clock,
            respond=self._respond,
            on_wanted=self.wake.routes,
        )
        self.sliced_answers = SlicedAnswers(self.wake.sliced_answers, settings.holders_of)
        self.progress = ConsumeProgress(settings, store, tables, self.sliced_answers)
        self.expiry = Expiry(settings, store, tables)
        self.topic_retention = TopicRetention(
            settings, store, self.topics, self.offsets, role=self.role, is_slave=lambda: self.is_slave
        )
        self._members_at = 0

    def _make_callers(self, address: str) -> None:
        """The parts that ask clients and wait for their answers."""
        self.pending_requests = PendingRequests(self.clock, self._on_deadline, self.settings.holders_of)
        self.deferrals = DeferredCalls(self.clock, self._on_deadline)
        self.quotas = Quotas(self.clock, lambda peer: self.hooks.quota_of(peer))
        self.metered = MeteredRequests(
            self.quotas, self.store, self.deferrals, self.settings.holders_of, self.run_late
        )
        self.door_connections: dict[str, int] = {}
        self.door_sends = Shares(0)
        self.door_clients = Shares(0)
        """Messages of doors that wait to be acknowledged."""
        self.client_requests = ClientRequests(self.settings, self.store, self.clients, self.pending_requests)
        self.request_reply = RequestReply(
            self.settings,
            self.clients,
            self.pending_requests,
            address=address,
            store=self.send.send,
            later=self.run_late,
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
            self.offsets.check_ends()
        self.topic_retention.apply()
        if not self.is_slave:
            self.deliveries.load()
        self.transactions.load(self.now_ms())
        self.decisions.load()

    def _collect_handlers(self) -> dict[int, Handler]:
        handlers: dict[int, Handler] = {}
        readers = self.pull, self.offsets, self.clients, self.locks, self.query, self.admin, self.progress
        writers = self.send, self.idempotent, self.transactions, self.recall
        callers = self.client_requests, self.request_reply
        of_5x = self.pop_requests, self.config_requests, self.assignments
        for part in (*readers, *writers, *callers, *of_5x):
            for code, handler in part.handlers().items():
                assert code not in handlers, code
                handlers[int(code)] = self.replica.signed(handler) if code in TABLE_CODES else handler
        return handlers

    def use_handlers(self, handlers: dict[int, Handler]) -> None:
        """Serve requests by these handlers from now on."""
        self.handlers = handlers

    def use_plugins(self, hooks: Hooks) -> None:
        """Call these hooks from now on. Raises PluginRefused when a hook claims a request code of the
        broker."""
        self.handlers = hooks.completing(self.handlers)
        self.hooks = hooks
        self.asks_early = bool(hooks.heads)

    # ---- requests ----

    def handle(self, requests: list[Command], connection: Connection) -> int:
        """Run requests of a chunk for a turn, commit their messages, and answer; return the number of
        requests."""
        now, clock = self.now_ms(), self.work_clock
        began = self._chunk_at = clock()
        self._connection = connection
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
            self.commit_pending()
        except BaseException:
            self._forget()
            raise
        finally:
            self._connection = None
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
        self.door_connections[door] = self.door_connections.get(door, 0) + 1

    def on_door_close(self, door: str, peer: MemberConnection) -> None:
        """A connection of a door has ended: forget its reads, its memberships and its calls."""
        self.door_connections[door] -= 1
        self.metered.on_close(peer)
        self._forget_peer(peer)

    def on_response(self, response: Command, connection: Connection) -> None:
        """A client has answered a request of ours."""
        self.pending_requests.on_response(response, connection)

    def run_late(self, handler: Handler, request: Command, connection: Connection) -> None:
        """Run a handler outside the chunk that its request came in, and answer."""
        now, self._chunk_at = self.now_ms(), self.work_clock()
        self._connection = connection
        self.append.look(now)
        try:
            try:
                response = handler(request, connection, now)
            except Exception as error:
                response = error_response(request, error)
            if response is not None:
                self._respond(request, response, connection)
            self.commit_pending()
        finally:
            self._connection = None
            self._forget()

    # ---- the end of a chunk ----

    def _forget(self) -> None:
        """Drop the pending batch without answers."""
        self.append.take_counts()
        self.acknowledgement.forget()

    def commit_pending(self) -> None:
        """Commit the pending messages, answer their senders, and wake the consumers of their queues; also for
        parts that put messages outside a chunk. After a failure all senders get the cause, and none gets
        success."""
        while self.store.has_pending or self.deliveries.has_pending:
            try:
                if self.deliveries.has_pending:
                    self.deliveries.ledger.write()
                self._commit()
            except StoreError:
                continue  # its senders have been told, and the log says it

    def _commit(self) -> None:
        """Commit now, also in the middle of a chunk. Raises StoreError, without success for any sender."""
        clock = self.work_clock
        began = clock()
        try:
            arrivals = self.store.commit()
        except StoreError as error:
            self._not_written(error)
            raise
        except BaseException:  # of a bug: it is not written either, so nobody may be told success by the next
            self._forget()
            raise
        self._written(clock() - began)
        if self.topics.unsaved:
            (self.wake.new_topics or self.save_topics)()
        self._arrived(arrivals)
        self.acknowledgement.replicas.grown()
        self.wake.reput()

    def _written(self, seconds: float) -> None:
        """Answer the senders and count."""
        self.flow.wrote(seconds)
        if self.deliveries.ledger.is_writing:
            self.deliveries.ledger.written()
        self.decisions.written()
        (counts, plugin_counts), connection = self.append.take_counts(), self._connection
        if self.acknowledgement.calls:
            self.acknowledgement.calls_committed()
        if not counts and not plugin_counts:
            return
        records = self.acknowledgement.records() if self.hooks.stored else []
        if connection is not None:
            self.acknowledgement.committed(connection)
        total = self.append.count_stored(counts)
        if plugin_counts:  # without an event: a plug-in may answer it by a message
            total += self.append.count_stored(plugin_counts)
        if self.hooks.stored:
            for event in stored_events(counts, records, connection, self.store.store_host):
                self.hooks.observe(self.hooks.stored, event)
        self.stats.stored(seconds * 1000, total)
        self.histograms.write.observe(self.work_clock() - self._chunk_at, total)

    def _not_written(self, error: StoreError) -> None:
        code, remark = not_written(error)
        now = self.clock()
        if now >= self._next_warning_at:  # a full disk refuses every chunk: once a second is enough
            self._next_warning_at = now + 1
            log.error("messages were not stored: %s", error)
        self.append.count_failed()
        if self._connection is not None:
            self.acknowledgement.refused(self._connection, code, remark)
        self.acknowledgement.calls_refused(code, remark)
        self.deliveries.ledger.written(is_written=False)
        self.transactions.rolled_back()
        self.decisions.rolled_back()

    def _arrived(self, arrivals: Sequence[Arrival]) -> None:
        """Wake the waiting reads of these queues, once for each queue."""
        held, takes = self.parked_pulls.count, len(self.deliveries.polls)
        if held:
            self.parked_pulls.turn()
        for topic, queue_id, next_offset in arrivals:
            if held:
                self.parked_pulls.arrived(topic, queue_id, next_offset)
            if takes:
                self.deliveries.arrived(topic)
            if topic == SCHEDULE_TOPIC:
                self.schedule.arrived(queue_id, self.now_ms())
            elif topic == TIMER_TOPIC:
                self.timers.arrived(next_offset)

    # ---- what the service's loops call ----

    def step_deadlines(self, now: float) -> float:
        """Answer the waiting requests that are due; returns the next deadline, of `clock`."""
        self._next_deadline = math.inf  # whoever begins to wait meanwhile says so by `_on_deadline`
        waiting = self.parked_pulls, self.acknowledgement, self.pending_requests, self.deferrals
        parts = *waiting, self.deliveries, self.decisions
        steps = [part.step(now) for part in parts]
        self._next_deadline = min(self._next_deadline, *steps)
        self.commit_pending()
        return self._next_deadline

    def _may_act_for(self, peer: Peer, account: str) -> bool:
        return self.hooks.may_act_for(peer, account)

    def _on_deadline(self, deadline: float) -> None:
        """Have `step_deadlines` called by `deadline`."""
        if deadline < self._next_deadline:
            self._next_deadline = deadline
            self.wake.deadlines()

    def read_on(self) -> None:
        """Consumers may read further than before."""
        self.reader.read_on()
        self.deliveries.read_on()

    def fall_silent(self) -> None:
        """The broker stops soon: no read that waits is answered until `finish_last`."""
        self.parked_pulls.fall_silent()
        self.deliveries.polls.fall_silent()

    def finish_last(self) -> None:
        """Answer the reads that are answered at a stop."""
        self.deliveries.polls.finish_last()
        self.parked_pulls.finish_last()

    def save_topics(self) -> None:
        """Save created topics at once: the loop waits for the disk."""
        made = self.topics.made
        try:
            run_to_end(self.files.saving("topics"))()
        except StoreError as error:
            self.acknowledgement.topics_not_saved(error)
        else:
            self.topics.saved(made)
            self.acknowledgement.topics_saved()

    def on_synced(self, position: int) -> None:
        """The log is on the medium up to `position`."""
        self.acknowledgement.synced(position)
        self.wake.follower()

    def step_schedule(self) -> int:
        """Deliver the delayed messages that are due; returns when to come again, in ms of wall time."""
        parts = self.schedule, self.timers
        return self._step(
            lambda now: min(part.step(now) for part in parts), "delayed messages cannot be delivered"
        )

    def step_transactions(self) -> int:
        """Check back the half messages that are due; returns when to come again, in ms of wall time."""
        return self._step(self.transactions.step, "half messages cannot be checked")

    def _step(self, step: Callable[[int], int], failure: str) -> int:
        now = self.now_ms()
        if self.is_slave:
            return now + SLAVE_IDLE_MS
        try:
            return step(now)
        except StoreError as error:
            log.error("%s now: %s", failure, error)
            return now + RETRY_MS
        finally:
            self.commit_pending()

    def expire(self) -> int:
        """Drop silent members and expired locks, sample metrics; returns when to come again, in wall ms."""
        now = self.now_ms()
        clock = round(self.clock() * 1000)
        if clock >= self._members_at:
            parts = self.clients.expire(clock), self.locks.expire(clock), self.expiry.step(clock)
            self._members_at = min(parts)
        return min(self._members_at - clock + now, self.stats.step(now))

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
        """Whether this broker copies another's log."""
        return self.store.config.broker_role is BrokerRole.SLAVE

    def append_raw(self, physical_offset: int, data: memoryview) -> None:
        """Append bytes of the master's log, and wake the pulls that wait for them. Raises StoreError."""
        for at, part in self.followed.parts(physical_offset, data):
            arrivals = self.store.append_raw(at, part)
            self.followed.settle()
            self._arrived(arrivals)
        self.wake.reput()
        if self.replica.flushes_copies:
            self.wake.flush()

    def _first_record(self, topic: str) -> int | None:
        """Where the first record of a topic lies; None when its queues have none."""
        store, queues = self.store, range(self.store.queue_end(topic))
        units = (store.unit(topic, number, store.min_offset(topic, number)) for number in queues)
        return min((unit[0] for unit in units if unit is not None), default=None)

    def unlisted_topics(self) -> list[str]:
        """The topics that have queues in the store and no row in the table."""
        return sorted({topic for topic, _ in self.store.queues()} - self.topics.table.keys())

    # ---- for the parts and the plugins ----

    def append_message(self, message: Message, on_done: OnAppended | None = None) -> None:
        """As `rmq.plugin.Host.put`."""
        self.append.look(self.now_ms())
        self.append.message(message, self.now_ms(), on_done)
        if self._connection is None:
            with nullcontext() if on_done is None else suppress(StoreError):
                self._commit()
            self.commit_pending()

    def _when_replicated(self, table: str, changes: Changes, peer: Holding, on_done: OnReplicated) -> bool:
        return self.acknowledgement.rows.wait(table, changes, peer, on_done)

    def _agreed(
        self, table: str, request: Command, connection: Connection, response: Command
    ) -> Command | None:
        changes = self.files.versioned[table].changes
        wait = partial(self._when_replicated, table)
        return response_when(wait, changes, request, connection, response)

    def append_soon(
        self, message: Message, on_done: OnAppended, maker: Holders, *, queue_id: int | None, account: str
    ) -> None:
        """Store a message of a door's peer, with others of this round of the loop. Raises as
        `rmq.plugin.Host.put`. A topic that is made for it counts as its makers'.
        """
        if not self.store.has_pending:
            self._chunk_at = self.work_clock()
        now = self.now_ms()
        self.append.look(now)
        self.append.message(message, now, on_done, maker, queue_id=queue_id, account=account)
        self.commit_soon()

    def commit_soon(self) -> None:
        """Have what was put committed: by the chunk that is handled now, or in the next round of the loop."""
        if self._connection is None:
            self._on_deadline(self.clock())

    def _on_topics_change(self) -> None:
        self.append.topics_changed()
        self.wake.register()
        self._tell_slaves()

    def _on_topic_deleted(self, topic: str, queue_ids: Collection[int]) -> None:
        self.parked_pulls.finish_where(lambda pull: pull.header.topic == topic)
        self.deliveries.arrived(topic)
        self.progress.topic_deleted(topic, queue_ids)

    def _tell_slaves(self) -> None:
        self.acknowledgement.replicas.grown()

    def _on_pulled(self, wanted: Wanted, result: GetResult, reading: Reading) -> None:
        if self.hooks.quotas:
            self.quotas.consumed(reading, result.count, result.size)
        if self.hooks.pulled:
            seconds = self.work_clock() - self._chunk_at
            place = wanted.topic, wanted.consumer_group, wanted.queue_id
            event = PulledEvent(*place, result.count, result.size, reading, seconds)
            self.hooks.observe(self.hooks.pulled, event)
