"""The broker's metrics: durations are counted as they happen, all other figures are read from tables on
demand.

Figures are read in slices: a broker of 10,000 queues that 500 groups consume has 100,000 figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from rmq.broker.admin.places import crowded, place_metrics
from rmq.broker.admin.unread import unread
from rmq.broker.replication.replica_state import slave_names
from rmq.broker.tables.histograms import Histograms
from rmq.broker.tables.versioned import Slices
from rmq.message import SCHEDULE_TOPIC
from rmq.metrics import Histogram, Kind, Metric, connection_metrics, single
from rmq.remoting.serving.acceptor import descriptor_limit
from rmq.server.process import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmq.broker.admin.registration import Registration
    from rmq.broker.admin.topics_and_groups import Admin
    from rmq.broker.config import BrokerConfig
    from rmq.broker.consume.long_polling import ParkedPulls
    from rmq.broker.consume.per_message.deliveries import Deliveries
    from rmq.broker.delay.delay_levels import Schedule
    from rmq.broker.delay.timers import Timers
    from rmq.broker.disk_work import DiskWork
    from rmq.broker.membership.client_requests import PendingRequests
    from rmq.broker.membership.clients import Clients
    from rmq.broker.membership.door_peers import DoorPeers
    from rmq.broker.membership.quotas import Quotas
    from rmq.broker.produce.acks import Acknowledgement
    from rmq.broker.replication.replica_state import ReplicaState
    from rmq.broker.role import Role
    from rmq.broker.tables.groups import Groups
    from rmq.broker.tables.offsets import Offsets
    from rmq.broker.tables.stats import Stats
    from rmq.broker.tables.topics import Topics
    from rmq.broker.transactions import Transactions
    from rmq.remoting.limits import MemoryBudget
    from rmq.remoting.serving.acceptor import Acceptor
    from rmq.store.store import Store

Row = tuple[tuple[str, ...], float]
T = TypeVar("T")

QUEUES: Final = 50
"""So many queues with held pulls are named to an operator, those with the most."""
SCANS: Final = 250
"""So many queues, or rows, are looked at in one slice."""


class Measured(Protocol):
    """The parts of a broker that are measured."""

    store: Store
    stats: Stats
    topics: Topics
    groups: Groups
    offsets: Offsets
    clients: Clients
    parked_pulls: ParkedPulls
    deliveries: Deliveries
    acknowledgement: Acknowledgement
    transactions: Transactions
    schedule: Schedule
    timers: Timers
    pending_requests: PendingRequests
    registration: Registration
    admin: Admin
    replica: ReplicaState
    role: Role
    disk_work: DiskWork
    histograms: Histograms
    acceptors: Mapping[str, Acceptor]
    door_peers: DoorPeers
    budget: MemoryBudget
    quotas: Quotas
    connections: int

    @property
    def config(self) -> BrokerConfig:
        """The settings that hold now."""

    @property
    def is_slave(self) -> bool:
        """True if the broker copies the log of a master."""


def metrics_of(broker: Measured, *, queues: bool = False) -> Slices[list[Metric]]:
    """All metrics of a broker; `queues`: with rows for each queue beside the sums by topic.

    Sums of messages (kept, not consumed, delayed, in transactions) are of a set as a whole, and only its
    master has them: in the sum over all replicas each message would count several times. A master whose lease
    is over has none either, since another broker may be the master.
    """
    found: list[Metric] = []
    for metric in _traffic(broker):
        found.append(metric)
        yield
    counts = not broker.is_slave and broker.role.has_lease()
    found += yield from _queues(broker, queues, counts)
    if counts:
        found += yield from _lags(broker, queues)
        found += _waiting_messages(broker)
        yield
    parts = _server, _store, _replicas, _waiting, place_metrics, _clients, _deliveries, _throttled
    for part in parts:
        found += part(broker)
        yield
    found += _durations(broker.histograms)
    return found


def gauges_of(broker: Measured) -> dict[str, str]:
    """Rows of the runtime metrics that RocketMQ does not have."""
    return {
        "heldPulls": str(broker.parked_pulls.count),
        "takenMessages": str(broker.deliveries.out),
        "diskHangs": broker.disk_work.hangs(),
        "sendsWaitingForDisk": str(broker.acknowledgement.disk.acks),
        "sendsWaitingForSlave": str(broker.acknowledgement.slaves.acks),
        "sendsWaitingForTopic": str(broker.acknowledgement.waiting_for_topics),
        "slaves": str(len(broker.acknowledgement.replicas)),
        "openTransactions": str(broker.transactions.open_count),
        "timerMessages": str(len(broker.timers)),
        "requestsToClients": str(len(broker.pending_requests)),
        "subscriptionConflicts": str(broker.clients.conflicts.subscriptions),
        "clientIdConflicts": str(broker.clients.conflicts.client_ids),
        "conflictsTotal": str(broker.clients.conflicts.found),
        "slaveLag": _slave_lag(broker),
        "takesNoMessages": broker.store.ails,
        "descriptorLimit": str(descriptor_limit() or ""),
        "connectionsRefused": " ".join(
            f"{port}/{reason}={count}"
            for port, acceptor in broker.acceptors.items()
            for reason, count in sorted(acceptor.refused.items())
        ),
        "placesTaken": crowded(broker),
        "rmqVersion": VERSION,
        "certificateEnd": end.isoformat() if (end := broker.registration.certificate_end) else "",
        **broker.replica.rows(),
        **broker.schedule.metrics(),
    }


def _slave_lag(broker: Measured) -> str:
    """`1=0 2=1024`: the bytes of the log that each slave has not reported yet; -1 before its first report."""
    known = broker.acknowledgement.replicas.rows()
    names = slave_names(known, broker.replica.slave_ids)
    end = broker.store.max_physical_offset
    return " ".join(f"{names[peer]}={max(0, end - at) if at >= 0 else -1}" for peer, at in known.items())


def _server(broker: Measured) -> Iterator[Metric]:
    """Identity of this broker, the way its store was opened, and the name servers that know it."""
    config = broker.config
    row = (VERSION, config.broker_cluster_name, config.broker_name, str(config.broker_id))
    labels = ("version", "cluster", "broker", "broker_id")
    yield Metric(
        "build_info", "gauge", "Always 1; its labels have the version and the broker", [(row, 1)], labels
    )
    known = [((address,), float(is_known)) for address, is_known in broker.registration.known_by.items()]
    help = "1 while the name server has accepted the last registration"
    yield Metric("registered", "gauge", help, known, ("namesrv",))
    end = broker.registration.certificate_end
    help = "Expiry of the TLS certificate, in seconds since 1970; 0 without a certificate"
    yield single("certificate_end_seconds", "gauge", help, 0 if end is None else end.timestamp())
    opened = broker.store.recovery
    if opened is not None:
        help = "1 when the stop before this start was clean"
        yield single("recovery_clean", "gauge", help, float(opened.is_clean))
        yield single("recovery_seconds", "gauge", "How long the store took to open", opened.seconds)
        yield single("recovery_records", "gauge", "Records scanned to open the store", opened.records)


def _traffic(broker: Measured) -> Iterator[Metric]:
    """A metric at a time, so that each is a slice of its own."""
    stats, topic, pair = broker.stats, ("topic",), ("topic", "group")
    counter = partial(Metric, kind="counter")
    rows = [((t,), n) for t, n, _ in stats.totals_in()]
    yield counter("messages_in", help="Messages stored", rows=rows, labels=topic)
    rows = [((t,), size) for t, _, size in stats.totals_in()]
    yield counter("bytes_in", help="Bytes of stored messages", rows=rows, labels=topic)
    out = [(key, n) for key, n, _ in stats.totals_out()]
    yield counter("messages_out", help="Messages delivered to consumers", rows=out, labels=pair)
    out = [(key, size) for key, _, size in stats.totals_out()]
    yield counter("bytes_out", help="Bytes delivered to consumers", rows=out, labels=pair)
    back = [(key, n) for key, n, _ in stats.totals_sent_back()]
    yield counter("sent_back", help="Messages that consumers sent back", rows=back, labels=pair)
    yield single("pulls_empty", "counter", "Pulls that found nothing", stats.missed)
    yield single("sends_failed", "counter", "Messages that could not be written", stats.failed_puts)
    unsure = [((reason,), n) for reason, n in broker.acknowledgement.unsure.items()]
    help = "Stored messages acknowledged with a warning: the disk or a slave may lack them"
    yield counter("sends_unsure", help=help, rows=unsure, labels=("reason",))


def _throttled(broker: Measured) -> Iterator[Metric]:
    rows, seconds = list[Row](), list[Row]()
    for (account, kind), row in broker.quotas.throttled.items():
        rows += [((account, kind, "held"), float(row.held)), ((account, kind, "refused"), float(row.refused))]
        seconds.append(((account, kind), row.seconds))
    labels = ("account", "kind")
    help = "Requests of accounts over their quotas: held until their time, or refused"
    yield Metric("throttled_requests", "counter", help, rows, (*labels, "result"))
    help = "Seconds for which requests of accounts over their quotas were held"
    yield Metric("throttled_seconds", "counter", help, seconds, labels)


def _in_slices(rows: Iterable[T], do: Callable[[T], None]) -> Slices[None]:
    for count, row in enumerate(rows, 1):
        do(row)
        if count % SCANS == 0:
            yield


def _queues(broker: Measured, each: bool, counts: bool) -> Slices[list[Metric]]:
    store = broker.store
    lows: list[Row] = []
    highs: list[Row] = []
    kept: dict[str, int] = {}

    def look(queue: tuple[str, int]) -> None:
        topic, queue_id = queue
        low, high = max(0, store.min_offset(topic, queue_id)), max(0, store.max_offset(topic, queue_id))
        kept[topic] = kept.get(topic, 0) + max(0, high - low)
        if each:
            labels = topic, str(queue_id)
            lows.append((labels, low))
            highs.append((labels, high))

    yield from _in_slices(store.queues(), look)
    rows = [((topic,), count) for topic, count in kept.items()]
    found = []
    if counts:
        help = "Stored messages of a topic"
        found.append(Metric("topic_messages", "gauge", help, rows, ("topic",)))
    if each:
        names = ("topic", "queue")
        found += [
            Metric("queue_min_offset", "gauge", "Offset of the oldest message of a queue", lows, names),
            Metric("queue_max_offset", "gauge", "Offset that the next message gets", highs, names),
        ]
    return found


def _lags(broker: Measured, each: bool) -> Slices[list[Metric]]:
    store = broker.store
    sums: list[Row] = []
    rows: list[Row] = []
    looks = 0
    for topic, group in broker.offsets.pairs():
        total = 0
        offsets = broker.offsets.of(group, topic)
        # A queue without an offset counts too, and so does one that the topic lost when it was cut.
        for queue_id in {*offsets, *range(store.queue_end(topic))}:
            behind = unread(store, topic, queue_id, offsets.get(queue_id, 0))
            total += behind
            if each:
                rows.append(((group, topic, str(queue_id)), behind))
            looks += 1
            if looks % SCANS == 0:
                yield
        sums.append(((group, topic), total))
    help = "Stored messages that the group has not consumed yet"
    found = [Metric("consumer_lag_messages", "gauge", help, sums, ("group", "topic"))]
    if each:
        help = "Lag of the group in a queue"
        found.append(Metric("consumer_lag_queue_messages", "gauge", help, rows, ("group", "topic", "queue")))
    return found


def _store(broker: Measured) -> Iterator[Metric]:
    store = broker.store
    high, low, state = store.max_physical_offset, store.min_physical_offset, store.disk_state()
    rows: tuple[tuple[str, str, float], ...] = (
        ("commitlog_bytes", "Bytes of the log", high - low),
        ("commitlog_max_offset_bytes", "Physical offset of the log's end", high),
        ("commitlog_min_offset_bytes", "Physical offset of the log's first byte", low),
        (
            "commitlog_unflushed_bytes",
            "Bytes of the log that are not synced yet",
            max(0, high - store.flushed_offset),
        ),
        (
            "dispatch_behind_bytes",
            "Bytes of the log without queue units or index entries yet",
            max(0, store.dispatch_behind_bytes),
        ),
        ("disk_used_ratio", "Part of the store's disk that is used, 0 to 1", state.ratio),
        ("disk_free_bytes", "Free bytes of the store's disk", state.free_bytes),
        ("store_writable", "1 while the disk allows new messages", float(state.is_writable)),
    )
    for name, help, value in rows:
        yield single(name, "gauge", help, value)


def _replicas(broker: Measured) -> Iterator[Metric]:
    end = broker.store.max_physical_offset
    known = broker.acknowledgement.replicas.rows()
    names = slave_names(known, broker.replica.slave_ids)
    behind: list[Row] = [((names[peer],), max(0, end - at)) for peer, at in known.items() if at >= 0]
    yield single("slaves", "gauge", "Slaves that are connected", len(broker.acknowledgement.replicas))
    state = broker.replica
    help = "1 while this broker, a slave, follows its master"
    yield single("following_master", "gauge", help, float(state.is_following))
    help = "1 when this slave has stopped following its master and an operator must decide"
    yield single("replication_stopped", "gauge", help, float(bool(state.stopped)))
    yield Metric("slave_behind_bytes", "gauge", "Bytes that a slave has not acknowledged", behind, ("slave",))
    yield from broker.role.metrics()


def _waiting_messages(broker: Measured) -> Iterator[Metric]:
    levels: list[Row] = [
        ((str(level),), max(0, broker.store.max_offset(SCHEDULE_TOPIC, level - 1) - offset))
        for level, offset in broker.schedule.progress.items()
    ]
    yield Metric("delay_backlog_messages", "gauge", "Delayed messages not delivered yet", levels, ("level",))
    yield single(
        "transactions_pending", "gauge", "Half messages without a decision", broker.transactions.open_count
    )
    yield single("timer_messages", "gauge", "Messages that wait for their delivery time", len(broker.timers))


def _waiting(broker: Measured) -> Iterator[Metric]:
    rows: tuple[tuple[str, str, float], ...] = (
        ("held_pulls", "Pulls that wait for messages", broker.parked_pulls.count),
        ("sends_waiting_disk", "Acknowledgements that wait for a sync", broker.acknowledgement.disk.acks),
        ("sends_waiting_slave", "Acknowledgements that wait for a slave", broker.acknowledgement.slaves.acks),
        (
            "disk_waiting_seconds",
            "Age of the oldest sync that requests wait for",
            broker.disk_work.oldest()[0],
        ),
        (
            "subscription_conflicts",
            "Groups whose members subscribe differently",
            broker.clients.conflicts.subscriptions,
        ),
    )
    for name, help, value in rows:
        yield single(name, "gauge", help, value)


def _deliveries(broker: Measured) -> Iterator[Metric]:
    """Messages that are taken one by one."""
    figures, pair = broker.deliveries.figures(), ("group", "topic")
    gauge = partial(Metric, kind="gauge", labels=pair)
    rows = [((one.group, one.topic), float(one.leased)) for one in figures]
    yield gauge("taken_messages", help="Messages in flight: taken and not acknowledged", rows=rows)
    rows = [((one.group, one.topic), float(one.waiting)) for one in figures]
    yield gauge("retry_waiting_messages", help="Messages that wait for their next attempt", rows=rows)
    rows = [((one.group, one.topic), one.oldest_ms / 1000) for one in figures]
    yield gauge("oldest_taken_seconds", help="Age of the oldest message in flight", rows=rows)
    rows = [((one.group, one.topic), float(one.polls)) for one in figures]
    yield gauge("take_polls", help="Long polls of per-message delivery", rows=rows)
    help = "Messages that became dead letters after their last attempt"
    yield single("dead_letters", "counter", help, broker.deliveries.leases.dead_letters)


def _clients(broker: Measured) -> Iterator[Metric]:
    counts = broker.clients.counts()
    rows: list[Row] = [((kind, group), count) for kind, group, count in counts]
    yield Metric("clients", "gauge", "Members of a group that are connected", rows, ("kind", "group"))
    yield single("connections", "gauge", "Open connections", broker.connections)
    rows_of_tables: tuple[tuple[str, str, float], ...] = (
        ("topics", "Topics; see maxAutoCreatedTopics", len(broker.topics.table)),
        ("groups", "Groups; see maxAutoCreatedGroups", len(broker.groups.table)),
        ("offset_pairs", "Pairs of a topic and a group; see maxConsumerOffsets", len(broker.offsets)),
    )
    for name, help, value in rows_of_tables:
        yield single(name, "gauge", help, value)
    doors: list[Row] = [((name,), count) for name, count in broker.door_peers.connections.items()]
    help = "Open connections of a plug-in's protocol"
    yield Metric("door_connections", "gauge", help, doors, ("door",))
    yield from connection_metrics(broker.acceptors, broker.budget)


def _durations(histograms: Histograms) -> Iterator[Metric]:
    kind: Kind = "histogram"
    yield single(
        "send_write_seconds",
        kind,
        "Time from the arrival of a send until the log has the message",
        histograms.write.copy(),
    )
    yield single("flush_seconds", kind, "A sync of the log", histograms.flush.copy())
    yield single(
        "flush_wait_seconds", kind, "Time that acknowledgements waited for the disk", histograms.flush_wait
    )
    help = "Time that acknowledgements waited for a slave"
    yield single("replication_wait_seconds", kind, help, histograms.replication_wait.copy())
    help = "Delay of the event loop, ten times a second: lateness of a due task, or the length of a round"
    yield single("loop_lag_seconds", kind, help, histograms.loop_lag.copy())


def parts_text(broker: Measured) -> str:
    """Waiting requests and slow work, for an operator, a line each."""
    lines = [f"{name}  {value}" for name, value in gauges_of(broker).items() if value]
    lines.append(f"connections  {broker.connections}")
    for metric in _durations(broker.histograms):
        ((_, value),) = metric.rows
        if isinstance(value, Histogram) and (count := sum(value.counts)):
            slowest = max(at for at, times in enumerate(value.counts) if times)
            limit = str(value.limits[slowest]) if slowest < len(value.limits) else "more"
            mean = 1000 * value.total / count
            lines.append(f"{metric.name}  {count} times, {mean:.3f} ms on average, none over {limit} s")
    held = sorted(broker.parked_pulls.by_queue().items(), key=lambda row: -row[1])
    lines += (f"pulls held for {topic} queue {number}  {count}" for (topic, number), count in held[:QUEUES])
    if len(held) > QUEUES:
        lines.append(f"and for {len(held) - QUEUES} more queues")
    return "\n".join(lines)
