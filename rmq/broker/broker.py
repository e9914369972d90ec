"""The broker without its event loop: the parts, who answers which request, and the end of every chunk.

`handle` runs all requests of a chunk and then `settle`s: what they put into the store is committed with one
write, and only then are its senders answered and the consumers woken that wait for it. Nothing here blocks
but the store's writes; nothing reads a clock but through `now_ms` (wall time, for stamps) and `clock`
(seconds, for deadlines).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Final

from rmq.broker.admin import Admin
from rmq.broker.client_calls import ClientCalls
from rmq.broker.clients import Clients
from rmq.broker.figures import Timings
from rmq.broker.filter_table import FilterTable
from rmq.broker.groups import Groups
from rmq.broker.locks import Locks
from rmq.broker.offsets import Offsets
from rmq.broker.progress import Progress
from rmq.broker.pull import Pull
from rmq.broker.query import Query
from rmq.broker.recall import Recall
from rmq.broker.registration import Registration
from rmq.broker.relay import Relay
from rmq.broker.replicas import Replicas
from rmq.broker.reply import Reply
from rmq.broker.schedule import Schedule
from rmq.broker.send import Send
from rmq.broker.stats import Stats
from rmq.broker.timer import Timers
from rmq.broker.topics import Topics
from rmq.broker.transaction import Transactions
from rmq.broker.waits import Waits
from rmq.errors import DiskFull, RemoteProtocolError, ResponseError, StoreError, for_code
from rmq.message import (
    OFFSET_MOVED_EVENT,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    tags_code,
)
from rmq.plugin import Hooks, PulledEvent, StoredEvent
from rmq.protocol import json
from rmq.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from rmq.protocol.record import Record, encode_properties
from rmq.store.config import BrokerRole

if TYPE_CHECKING:
    from rmq.broker.config import BrokerConfig
    from rmq.figures import Histogram
    from rmq.protocol.cluster import ClusterGate
    from rmq.protocol.command import Command
    from rmq.protocol.headers import PullMessageRequestHeader
    from rmq.remoting.connection import Connection
    from rmq.store.config import StoreConfig
    from rmq.store.reader import GetResult
    from rmq.store.store import Arrival, Store

Handler = Callable[["Command", "Connection", int], "Command | None"]

BUSY_SECONDS_MAX: Final = 1.0
"""How long sends are refused at most after a slow write, before the next one shows whether the disk is back.
"""
RETRY_MS: Final = 1_000
SLAVE_IDLE_MS: Final = 60_000
"""A slave delivers no delayed message and checks no transaction: its master does, and it copies that."""

SYSTEM_ERROR: Final = int(ResponseCode.SYSTEM_ERROR)
_UNAVAILABLE: Final = int(ResponseCode.SERVICE_NOT_AVAILABLE)
_BUSY: Final = int(ResponseCode.SYSTEM_BUSY)
SLAVE_CODES: Final = frozenset(
    (
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.VIEW_MESSAGE_BY_ID,
    )
)
"""What a slave asks its master by requests."""
_NOT_NOW: Final = "service not available now: "

log = logging.getLogger("rmq.broker")


class Broker:
    """One broker over an opened store: what connections hand their requests to (an Endpoint).

    `address` is what clients are told, `ha_address` what slaves are told, `store_host` the same in records.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        *,
        address: str,
        ha_address: str,
        store_host: bytes,
        now_ms: Callable[[], int],
        clock: Callable[[], float],
        chance: Random | None = None,
    ) -> None:
        self.config = config
        self.store = store
        self.now_ms = now_ms
        self.clock = clock
        self.hooks = Hooks()
        self.cluster: ClusterGate | None = None
        self.timings = Timings()
        self.connections = 0
        self.reput_wanted: Callable[[], None] = lambda: None
        self.register_wanted: Callable[[], None] = lambda: None
        self.flush_wanted: Callable[[], None] = lambda: None
        self._to_save: dict[str, bytes] = {}
        self._handling = False
        self._connection: Connection | None = None  # whose chunk is being handled
        self.store_host = store_host
        self._chance = chance or Random()
        self._closed_to_sends: tuple[int, str] | None = None
        self._chunk_at = 0.0  # when its handling began
        self._busy_until = 0.0
        self._complain_at = 0.0
        self._busy_ms = 0.0
        if store.config.broker_role is BrokerRole.SLAVE:
            self._closed_to_sends = _UNAVAILABLE, f"{_NOT_NOW}this broker is a slave; send to its master"
        self._make_tables(store.config)
        self._make_parts(store.config)
        self._make_callers(address)
        self.registration = Registration(config, self.topics, address=address, ha_address=ha_address)
        self._load()
        self._handlers = self._collect_handlers()

    def _make_tables(self, store_config: StoreConfig) -> None:
        config, store, now_ms = self.config, self.store, self.now_ms
        slave = store_config.broker_role is BrokerRole.SLAVE
        self.stats = Stats(now_ms(), cluster=config.broker_cluster_name)
        self.waits = Waits(self.clock)
        self.replicas = Replicas(store_config.ha_slave_fallbehind_max)
        self.replicas.moved = self.waits.replicas.reached
        self.waits.flush.waited = self._noted(self.timings.flush_wait)
        self.waits.replicas.waited = self._noted(self.timings.replication_wait)
        self.topics = Topics(config, save=lambda data: store.save_config("topics", data), now_ms=now_ms)
        self.groups = Groups(
            config, lambda data: store.save_config("subscriptionGroup", data), now_ms, slave=slave
        )
        self.offsets = Offsets(
            self.topics, store, lambda data: self._save_later("consumerOffset", data), slave=slave
        )
        self.clients = Clients(config, groups=self.groups, topics=self.topics)
        self.filters = FilterTable(config, now_ms)
        self.clients.announced, self.clients.emptied = self.filters.register, self.filters.unregister
        self.locks = Locks()

    def _make_parts(self, store_config: StoreConfig) -> None:
        config, store = self.config, self.store
        self.schedule = Schedule(store_config.message_delay_level, store, self._commit)
        self.timers = Timers(store, self._commit)
        self.timers.rescheduled = lambda: self.schedule.rescheduled()
        self.transactions = Transactions(
            config,
            store,
            self.offsets,
            host=self.store_host,
            ask=self._ask_producer,
            commit=self._commit,
        )
        self.send = Send(
            config,
            store_config,
            store,
            store_host=self.store_host,
            topics=self.topics,
            groups=self.groups,
            stats=self.stats,
            waits=self.waits,
            transactions=self.transactions,
            timers=self.timers,
            replicas=self.replicas,
            chance=self._chance,
        )
        self.pull = Pull(
            config,
            store_config,
            store,
            topics=self.topics,
            groups=self.groups,
            clients=self.clients,
            filters=self.filters,
            offsets=self.offsets,
            stats=self.stats,
            waits=self.waits,
        )
        self.pull.moved = self._offset_moved
        self.recall = Recall(
            config, timers=self.timers, topics=self.topics, store_host=self.store_host, put=self.send.put
        )
        self.query = Query(store, self.clients, self.filters)
        self.admin = Admin(config, store, topics=self.topics, offsets=self.offsets, stats=self.stats)
        self.progress = Progress(
            config,
            store,
            topics=self.topics,
            groups=self.groups,
            clients=self.clients,
            offsets=self.offsets,
            stats=self.stats,
        )
        self._wire()

    def _make_callers(self, address: str) -> None:
        """The parts that ask clients and wait for their answers."""
        self.relay = Relay(self.clock)
        self.relay.rescheduled = lambda: self.waits.rescheduled()
        self.client_calls = ClientCalls(self.config, self.store, self.clients, self.relay)
        self.replies = Reply(
            self.config,
            self.clients,
            self.relay,
            address=address,
            store=self.send.send,
            later=self._run_late,
        )

    def _wire(self) -> None:
        self.topics.changed = self._topics_changed
        self.admin.settle = self.settle
        self.admin.changed = self.reconfigure
        self.admin.gauges = self._gauges
        self.admin.delay_offsets = lambda: json.dumps_java({"offsetTable": self.schedule.progress})

    def _load(self) -> None:
        """Read the tables from the store's config files. Raises StoreError, RemoteProtocolError."""
        read = self.store.config_text
        self.topics.load(read("topics"))
        self.groups.load(read("subscriptionGroup"))
        self.offsets.load(read("consumerOffset"))
        self.schedule.load(read("delayOffset"))
        self.timers.load(read("timerProgress"))
        self.filters.load(read("consumerFilter"))
        self.transactions.load(self.now_ms())

    def _collect_handlers(self) -> dict[int, Handler]:
        handlers: dict[int, Handler] = {}
        parts = (
            self.send,
            self.pull,
            self.groups,
            self.offsets,
            self.clients,
            self.locks,
            self.transactions,
            self.query,
            self.admin,
            self.progress,
            self.client_calls,
            self.replies,
            self.recall,
        )
        for part in parts:
            for code, handler in part.handlers().items():
                assert code not in handlers, code
                handlers[int(code)] = handler
        return handlers

    def use_plugins(self, hooks: Hooks) -> None:
        """Call these hooks from now on. Raises PluginRefused when they answer what the broker does."""
        self._handlers = hooks.completing(self._handlers)
        self.hooks = hooks
        self.pull.observe = self._pulled if hooks.pulled else None
        self.send.keeps_records = bool(hooks.stored)

    # ---- requests ----

    def handle(self, requests: list[Command], connection: Connection) -> None:
        """Run the requests of one chunk, commit what they put, and answer."""
        now, self._chunk_at = self.now_ms(), self.clock()
        self._handling, self._connection = True, connection
        self.send.refusal = self._why_refuse(now)
        handlers = self._handlers
        for request in requests:
            handler = handlers.get(request.code)
            try:
                if self.hooks.requests and not self._of_our_slave(request):
                    self.hooks.admit(connection, request)
                if handler is None:
                    raise _unsupported(request)
                response = handler(request, connection, now)
            except Exception as error:
                response = _error_response(request, error)
            if response is not None:
                self._respond(request, response, connection)
        self.settle()
        self._handling, self._connection = False, None

    def _of_our_slave(self, request: Command) -> bool:
        """Whether a server of this cluster asks for what slaves copy: it needs no account then."""
        cluster = self.cluster
        return cluster is not None and request.code in SLAVE_CODES and cluster.vouches(request)

    def _respond(self, request: Command, response: Command, connection: Connection) -> None:
        if not request.flag & FLAG_ONEWAY:
            connection.reply(response)
        if self.hooks.responses:
            self.hooks.observe(self.hooks.responses, connection, request, response)

    def opened(self, connection: Connection) -> None:
        """A peer has come."""
        self.connections += 1

    def closed(self, connection: Connection) -> None:
        """A connection has ended: forget its polls and its clients."""
        self.connections -= 1
        self.waits.closed(connection)
        self.clients.closed(connection)
        self.relay.closed(connection)

    def answered(self, response: Command, connection: Connection) -> None:
        """A client has answered a request of ours."""
        self.relay.answered(response, connection)

    def _run_late(self, handler: Handler, request: Command, connection: Connection) -> None:
        """Run a handler outside the chunk that its request came in, and answer."""
        now, self._chunk_at = self.now_ms(), self.clock()
        self._handling, self._connection = True, connection
        self.send.refusal = self._why_refuse(now)
        try:
            response = handler(request, connection, now)
        except Exception as error:
            response = _error_response(request, error)
        if response is not None:
            self._respond(request, response, connection)
        self.settle()
        self._handling, self._connection = False, None

    # ---- the end of a chunk ----

    def settle(self) -> None:
        """Commit what was put, answer its senders, wake who waits for it. For those who put outside a chunk
        too.

        A write that fails is answered with its cause; nobody is told success.
        """
        while self.store.pending:
            with suppress(StoreError):  # its senders have been told, and the log says it
                self._commit()

    def _commit(self) -> None:
        """Commit now, in the middle of a chunk as well. Raises StoreError; then nobody was told success."""
        began = self.clock()
        arrivals: Sequence[Arrival] = ()
        try:
            arrivals = self.store.commit()
            self.topics.persist()
        except StoreError as error:
            self._not_written(error)
            self._arrived(arrivals)
            raise
        self._written(self.clock() - began)
        self._arrived(arrivals)
        self.replicas.grown()
        self.reput_wanted()

    def _written(self, seconds: float) -> None:
        """Answer the senders and count."""
        config = self.store.config
        if seconds * 1000 > config.os_page_cache_busy_time_out_mills:
            log.warning("a write took %.0f ms", seconds * 1000)
            self._busy_until = self.clock() + min(seconds, BUSY_SECONDS_MAX)
            self._busy_ms = seconds * 1000
        tallies, connection = self.send.tallies, self._connection
        if not tallies:
            return
        records = self.send.records() if self.hooks.stored else []
        if connection is not None:
            self.send.acknowledge(connection)
            if self.waits.flush.awaited >= 0:
                self.flush_wanted()
        self.send.tallies = {}
        count = 0
        for topic, tally in tallies.items():
            self.stats.put(topic, tally.count, tally.size)
            count += tally.count
            if self.hooks.stored:
                mine = [record for record in records if record.topic == topic]
                event = StoredEvent(topic, tally.count, tally.size, connection, mine, self.store_host)
                self.hooks.observe(self.hooks.stored, event)
        self.stats.stored(seconds * 1000, count)
        self.timings.write.observe(self.clock() - self._chunk_at, count)

    def _not_written(self, error: StoreError) -> None:
        code, remark = _refusal_of(error)
        now = self.clock()
        if now >= self._complain_at:  # a full disk refuses every chunk: once a second is enough
            self._complain_at = now + 1
            log.error("messages were not stored: %s", error)
        self.stats.failed_puts += sum(tally.count for tally in self.send.tallies.values())
        self.send.tallies = {}
        if self._connection is not None:
            self.send.refuse(self._connection, code, remark)
        self.transactions.load(self.now_ms())

    def _arrived(self, arrivals: Sequence[Arrival]) -> None:
        """Wake who waits for these queues, once for each queue."""
        held = self.waits.held
        for topic, queue_id, next_offset in arrivals:
            if held:
                self.waits.arrived(topic, queue_id, next_offset)
            if topic == SCHEDULE_TOPIC:
                self.schedule.arrived(queue_id, self.now_ms())
            elif topic == TIMER_TOPIC:
                self.timers.arrived(next_offset)

    # ---- whether sends are taken ----

    def _why_refuse(self, now: int) -> tuple[int, str] | None:
        """Why no message is taken now, as (code, remark); None when all is well."""
        if self._closed_to_sends is not None:
            return self._closed_to_sends
        disk = self.store.disk_state()
        if not disk.writable:
            return _UNAVAILABLE, f"{_NOT_NOW}{disk.reason}"
        config = self.config
        if now < config.start_accept_send_request_time_stamp:
            return (
                SYSTEM_ERROR,
                f"broker unable to service, until {config.start_accept_send_request_time_stamp}",
            )
        return self._why_busy() if config.broker_fast_failure_enable else None

    def _why_busy(self) -> tuple[int, str] | None:
        parked, capacity = (
            self.waits.flush.acks + self.waits.replicas.acks,
            self.config.send_thread_pool_queue_capacity,
        )
        if parked >= capacity:
            return _BUSY, (
                f"[OVERLOAD]system busy, start flow control for a while: {parked} sends wait for the disk, "
                f"sendThreadPoolQueueCapacity is {capacity}"
            )
        if self._busy_until and self.clock() < self._busy_until:
            limit = self.store.config.os_page_cache_busy_time_out_mills
            return _BUSY, (
                f"[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while: the last write took "
                f"{self._busy_ms:.0f} ms, osPageCacheBusyTimeOutMills is {limit}"
            )
        return None

    def stop_sends(self) -> None:
        """The broker stops: refuse messages from now on, so that their producers go elsewhere."""
        self._closed_to_sends = _UNAVAILABLE, f"{_NOT_NOW}this broker is stopping"

    # ---- what the service's loops call ----

    def step_waits(self, now: float) -> float:
        """Answer the waiting requests that are due; returns the next deadline, of `clock`."""
        deadline = min(self.waits.step(now), self.relay.step(now))
        self.settle()
        return deadline

    def flushed(self, position: int) -> None:
        """The log is on the medium up to `position`."""
        self.waits.flush.reached(position)

    def step_schedule(self) -> int:
        """Deliver the delayed messages that are due; returns when to come again, in ms of wall time."""
        now = self.now_ms()
        if self.is_slave:
            return now + SLAVE_IDLE_MS
        try:
            return min(self.schedule.step(now), self.timers.step(now))
        except StoreError as error:
            log.error("delayed messages cannot be delivered now: %s", error)
            return now + RETRY_MS
        finally:
            self.settle()

    def step_transactions(self) -> int:
        """Go on with the check-back of half messages; returns when to come again, in ms of wall time."""
        now = self.now_ms()
        if self.is_slave:
            return now + SLAVE_IDLE_MS
        try:
            return self.transactions.step(now)
        except StoreError as error:
            log.error("half messages cannot be checked now: %s", error)
            return now + RETRY_MS
        finally:
            self.settle()

    def expire(self) -> int:
        """Drop silent clients and stale locks, take samples; returns when to come again, in ms."""
        now = self.now_ms()
        return min(self.clients.expire(now), self.locks.expire(now), self.stats.step(now))

    def clean(self) -> None:
        """Remove expired files."""
        try:
            report = self.store.clean(self.now_ms())
        except StoreError as error:
            log.error("expired files cannot be removed: %s", error)
            return
        if report.log_files:
            log.info("%d files of the log removed (%s)", report.log_files, report.reason)

    def saves(self) -> dict[str, bytes]:
        """The config files that have changed, by name; `store.save_config` writes them, in any thread."""
        for part in (self.topics, self.groups):
            try:
                part.persist()
            except StoreError as error:
                log.error("a table cannot be saved: %s", error)
        self.offsets.persist()
        if self.schedule.dirty:
            self._to_save["delayOffset"] = self.schedule.to_json()
        if self.timers.dirty:
            self._to_save["timerProgress"] = self.timers.to_json()
        self.filters.clean()
        if self.filters.dirty:
            self._to_save["consumerFilter"] = self.filters.to_json()
        saves, self._to_save = self._to_save, {}
        return saves

    def not_saved(self, saves: dict[str, bytes]) -> None:
        """These could not be written: give them again next time, unless there is something newer."""
        self._to_save = {**saves, **self._to_save}

    def _save_later(self, name: str, data: bytes) -> None:
        self._to_save[name] = data

    # ---- a slave ----

    @property
    def is_slave(self) -> bool:
        """Whether this broker copies another's log."""
        return self.store.config.broker_role is BrokerRole.SLAVE

    def append_raw(self, physical_offset: int, data: memoryview) -> None:
        """Append bytes of the master's log, and wake who waits for what is in them. Raises StoreError."""
        arrivals = self.store.append_raw(physical_offset, data)
        self._arrived(arrivals)
        self.reput_wanted()

    def truncate(self, physical_offset: int) -> None:
        """Cut the log where the master's differs from it. Raises StoreError."""
        self.store.truncate(physical_offset)

    def copy_table(self, name: str, body: bytes) -> None:
        """Take a table of the master's, by the name of its file. Raises RemoteProtocolError, StoreError."""
        parts: dict[str, Topics | Groups | Offsets | Schedule] = {
            "topics": self.topics,
            "subscriptionGroup": self.groups,
            "consumerOffset": self.offsets,
            "delayOffset": self.schedule,
        }
        part = parts[name]
        before = part.to_json()
        part.load(body)
        after = part.to_json()
        if after != before:
            self._save_later(name, after)
            if name == "topics":
                self._topics_changed()

    # ---- for the parts and the plugins ----

    def _noted(self, histogram: Histogram) -> Callable[[float, int], None]:
        return lambda since, times: histogram.observe(self.clock() - since, times)

    def put(self, record: Record) -> None:
        """Store a record of our own; it is readable when the present chunk ends. Raises StoreError."""
        self.store.put(record)
        if not self._handling:
            self._commit()
            self.settle()

    def reconfigure(self, config: BrokerConfig, store_config: StoreConfig) -> None:
        """Take new values of the settings that may change at run time."""
        self.config = config
        self.store.configure(store_config)
        self.send.configure(config, store_config)
        self.pull.configure(config, store_config)
        self.filters.config = config
        self.clients.conflicts.reject = config.reject_subscription_conflicts
        for part in (self.topics, self.groups, self.clients, self.transactions, self.replies, self.recall):
            part.config = config
        self.progress.config = self.registration.config = config
        self.register_wanted()  # name servers are told the broker's permission with its topics

    def _gauges(self) -> dict[str, str]:
        """Rows of the runtime figures that RocketMQ does not have."""
        return {
            "heldPulls": str(self.waits.held),
            "sendsWaitingForDisk": str(self.waits.flush.acks),
            "sendsWaitingForSlave": str(self.waits.replicas.acks),
            "slaves": str(len(self.replicas)),
            "openTransactions": str(self.transactions.open_count),
            "timerMessages": str(len(self.timers)),
            "requestsToClients": str(len(self.relay)),
            "subscriptionConflicts": str(self.clients.conflicts.subscriptions),
            "clientIdConflicts": str(self.clients.conflicts.client_ids),
            "conflictsTotal": str(self.clients.conflicts.found),
            **self.schedule.figures(),
        }

    def _topics_changed(self) -> None:
        self.send.topics_changed()
        self.register_wanted()

    def _ask_producer(self, group: str, request: Command) -> bool:
        """Send a check-back to some live producer of the group; whether there is one."""
        members = [member for member in self.clients.producers(group) if not member.connection.closed]
        if not members:
            return False
        self._chance.choice(members).connection.notify(request)
        return True

    def _offset_moved(self, header: PullMessageRequestHeader, next_offset: int) -> None:
        """Leave a message that a consumer asked out of range, as RocketMQ's monitoring expects."""
        queue = {
            "brokerName": self.config.broker_name,
            "queueId": header.queue_id,
            "topic": header.topic,
        }
        event = {
            "consumerGroup": header.consumer_group,
            "messageQueue": queue,
            "offsetNew": next_offset,
            "offsetRequest": header.queue_offset,
        }
        group = header.consumer_group
        properties = {PROPERTY_TAGS: group, PROPERTY_KEYS: group, PROPERTY_DELAY_LEVEL: "0"}
        record = Record(
            OFFSET_MOVED_EVENT,
            0,
            json.dumps(event),
            encode_properties(properties),
            born_timestamp=self.now_ms(),
            born_host=self.store_host,
            tags_code=tags_code(group),
            keys=(group,),
        )
        try:
            self.store.put(record)
        except StoreError as error:
            log.warning("the event of a moved offset is lost: %s", error)

    def _pulled(self, header: PullMessageRequestHeader, result: GetResult, connection: Connection) -> None:
        event = PulledEvent(
            header.topic, header.consumer_group, header.queue_id, result.count, result.size, connection
        )
        self.hooks.observe(self.hooks.pulled, event)


def _unsupported(request: Command) -> ResponseError:
    return for_code(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")


def _error_response(request: Command, error: Exception) -> Command:
    """The answer to a request that failed. What nobody expected is logged with its traceback."""
    if isinstance(error, ResponseError):
        return request.reply(error.code, error.remark)
    if isinstance(error, StoreError):
        return request.reply(*_refusal_of(error))
    if isinstance(error, RemoteProtocolError):
        return request.reply(SYSTEM_ERROR, str(error))
    log.error("request %r failed: %s", request, error, exc_info=error)
    return request.reply(SYSTEM_ERROR, f"{type(error).__name__}: {error}")


def _refusal_of(error: StoreError) -> tuple[int, str]:
    """A failed write as (code, remark): the producer may try another broker, and reads why."""
    what = "the disk is full: " if isinstance(error, DiskFull) else ""
    return _UNAVAILABLE, f"{_NOT_NOW}{what}{error}"
