"""The broker's metrics: durations are counted when they happen, the others read from tables on demand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attrs import Factory, define

from rmq.message import SCHEDULE_TOPIC
from rmq.metrics import Histogram, Kind, Metric, connection_metrics, single

if TYPE_CHECKING:
    from rmq.broker.broker import Broker


Row = tuple[tuple[str, ...], float]


def metrics_of(broker: Broker) -> Iterator[Metric]:
    """All metrics of a broker. Costs a look-up for each queue and each offset of a group."""
    yield from _traffic(broker)
    yield from _queues(broker)
    yield from _store(broker)
    yield from _replicas(broker)
    yield from _waiting(broker)
    yield from _clients(broker)
    yield from _durations(broker.histograms)


def gauges_of(broker: Broker) -> dict[str, str]:
    """Rows of the runtime metrics that RocketMQ does not have."""
    return {
        "heldPulls": str(broker.held_pulls.count),
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
        **broker.replica.rows(),
        **broker.schedule.metrics(),
    }


def _traffic(broker: Broker) -> Iterator[Metric]:
    stats = broker.stats
    into, out, back = stats.totals_in(), stats.totals_out(), stats.totals_sent_back()
    pair = ("topic", "group")
    yield Metric("messages_in", "counter", "Messages stored", [((t,), n) for t, n, _ in into], ("topic",))
    yield Metric(
        "bytes_in", "counter", "Bytes of stored messages", [((t,), s) for t, _, s in into], ("topic",)
    )
    yield Metric("messages_out", "counter", "Messages handed out", [(key, n) for key, n, _ in out], pair)
    yield Metric("bytes_out", "counter", "Bytes handed out", [(key, s) for key, _, s in out], pair)
    yield Metric(
        "sent_back", "counter", "Messages that consumers sent back", [(k, n) for k, n, _ in back], pair
    )
    yield single("pulls_empty", "counter", "Pulls that found nothing", stats.missed)
    yield single("sends_failed", "counter", "Messages that could not be written", stats.failed_puts)


def _queues(broker: Broker) -> Iterator[Metric]:
    store = broker.store
    lows: list[Row] = []
    highs: list[Row] = []
    for topic, queue_id in store.queues():
        labels = topic, str(queue_id)
        lows.append((labels, max(0, store.min_offset(topic, queue_id))))
        highs.append((labels, max(0, store.max_offset(topic, queue_id))))
    names = ("topic", "queue")
    yield Metric("queue_min_offset", "gauge", "Offset of the oldest message of a queue", lows, names)
    yield Metric("queue_max_offset", "gauge", "Offset that the next message gets", highs, names)
    lags: list[Row] = []
    for topic, group in broker.offsets.pairs():
        for queue_id, offset in broker.offsets.of(group, topic).items():
            behind = store.max_offset(topic, queue_id) - max(offset, store.min_offset(topic, queue_id), 0)
            lags.append(((group, topic, str(queue_id)), max(0, behind)))
    help = "Messages of a queue that the group has not consumed yet and that are still there"
    yield Metric("consumer_lag_messages", "gauge", help, lags, ("group", "topic", "queue"))
    levels: list[Row] = [
        ((str(level),), max(0, store.max_offset(SCHEDULE_TOPIC, level - 1) - offset))
        for level, offset in broker.schedule.progress.items()
    ]
    yield Metric("delay_backlog_messages", "gauge", "Delayed messages not delivered yet", levels, ("level",))


def _store(broker: Broker) -> Iterator[Metric]:
    store = broker.store
    high, low, state = store.max_physical_offset, store.min_physical_offset, store.disk_state()
    rows: tuple[tuple[str, str, float], ...] = (
        ("commitlog_bytes", "Bytes of the log", high - low),
        ("commitlog_max_offset_bytes", "Physical offset of the log's end", high),
        (
            "commitlog_unflushed_bytes",
            "Bytes of the log that are not synced yet",
            max(0, high - store.flushed_offset),
        ),
        (
            "dispatch_behind_bytes",
            "Bytes of the log that queues and index lack",
            max(0, store.dispatch_behind_bytes),
        ),
        ("disk_used_ratio", "Part of the store's disk that is used, 0 to 1", state.ratio),
        ("disk_free_bytes", "Free bytes of the store's disk", state.free_bytes),
        ("store_writable", "1 when messages are taken, as far as the disk goes", float(state.is_writable)),
    )
    for name, help, value in rows:
        yield single(name, "gauge", help, value)


def _replicas(broker: Broker) -> Iterator[Metric]:
    end = broker.store.max_physical_offset
    behind: list[Row] = [
        ((peer,), max(0, end - at)) for peer, at in broker.acknowledgement.replicas.rows().items() if at >= 0
    ]
    yield single("slaves", "gauge", "Slaves that are connected", len(broker.acknowledgement.replicas))
    state = broker.replica
    help = "1 while this broker, a slave, follows its master"
    yield single("following_master", "gauge", help, float(state.is_following))
    help = "1 when this slave has stopped following its master and an operator must decide"
    yield single("replication_stopped", "gauge", help, float(bool(state.stopped)))
    yield Metric("slave_behind_bytes", "gauge", "Bytes that a slave has not acknowledged", behind, ("slave",))


def _waiting(broker: Broker) -> Iterator[Metric]:
    rows: tuple[tuple[str, str, float], ...] = (
        ("held_pulls", "Pulls that wait for messages", broker.held_pulls.count),
        ("sends_waiting_disk", "Acknowledgements that wait for a sync", broker.acknowledgement.disk.acks),
        ("sends_waiting_slave", "Acknowledgements that wait for a slave", broker.acknowledgement.slaves.acks),
        ("transactions_pending", "Half messages without an end", broker.transactions.open_count),
        ("timer_messages", "Messages that wait for their delivery time", len(broker.timers)),
        (
            "subscription_conflicts",
            "Groups whose members subscribe differently",
            broker.clients.conflicts.subscriptions,
        ),
    )
    for name, help, value in rows:
        yield single(name, "gauge", help, value)


def _clients(broker: Broker) -> Iterator[Metric]:
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
    yield from connection_metrics(broker.acceptors, broker.budget)


def _durations(histograms: Histograms) -> Iterator[Metric]:
    kind: Kind = "histogram"
    yield single(
        "send_write_seconds", kind, "From a send's arrival until it is in the log", histograms.write.copy()
    )
    yield single("flush_seconds", kind, "A sync of the log", histograms.flush.copy())
    yield single(
        "flush_wait_seconds", kind, "How long acknowledgements waited for the disk", histograms.flush_wait
    )
    help = "How long acknowledgements waited for a slave"
    yield single("replication_wait_seconds", kind, help, histograms.replication_wait.copy())


@define
class Histograms:
    """What is counted when it happens; all other metrics are read from the tables when somebody looks."""

    write: Histogram = Factory(Histogram)
    """From a send's arrival until it is in the log, for each message."""
    flush: Histogram = Factory(Histogram)
    """A sync of the log."""
    flush_wait: Histogram = Factory(Histogram)
    """How long an acknowledgement waited for the disk."""
    replication_wait: Histogram = Factory(Histogram)
    """How long an acknowledgement waited for a slave."""
