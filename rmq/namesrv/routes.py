"""RouteTable: live brokers and their topics; five tables under RocketMQ's own names.

The tables are plain values: time comes in as `now_ms` (any clock that only goes forward), a connection as an
opaque `source` that is compared by identity. A change is made as a whole, or refused with a reason. Bounds
are in `RouteLimits`; a broker that would exceed a bound is refused.

This table is stricter than the Java name server: a broker that claims a name and id, or an address, of
another live broker is refused instead of replacing that broker silently; see `register`.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, Final

from attrs import define, evolve, frozen

from rmq.errors import SystemFailure
from rmq.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicList,
    TopicRouteData,
)
from rmq.protocol.codes import MASTER_ID, PERM_READ, PERM_WRITE, TOPIC_UNIT, TOPIC_UNIT_SUB
from rmq.shares import NOBODY, Holders, Shares

log = logging.getLogger("rmq.namesrv")

EXPIRY_MS: Final = 120_000
"""Silence after which a broker is removed."""
CLASH_MS: Final = 60_000
"""Time after its last sign of life for which a broker keeps its name, id and address against another broker.
Brokers register every 10 to 60 s."""
SHOWN_TOPICS: Final = 20
"""Names in a line of the log."""
UNREGISTERED: Final = "it unregistered"
"""The reason for a broker that was stopped gracefully."""

_NAME: Final = re.compile(r"[^\x00-\x20\x7f;:,\"'{}\\/]{1,127}")
_TOPIC: Final = re.compile(r"[^\x00-\x20\x7f\"'\\/]{1,255}")
_ADDRESS: Final = re.compile(
    r"(?:[0-9A-Za-z_.-]{1,253}|\[[0-9A-Fa-f:.%a-z]{2,64}\]|[0-9A-Fa-f:]{2,45}):\d{1,5}"
)


@frozen
class RouteLimits:
    """Limits of the tables."""

    brokers: int = 10_000
    queue_entries: int = 1_000_000  # pairs of a topic and a broker name
    filter_servers: int = 64  # of one broker
    topics_of_broker: int = 100_000  # of one broker name
    brokers_of_source: int = 32  # registered over one connection


@frozen
class Registration:
    """The identity of a broker."""

    cluster: str
    broker_name: str
    broker_id: int
    broker_addr: str
    ha_server_addr: str = ""
    epoch: int = 0
    """True for a master that controllers have elected: it replaces any earlier master."""


@frozen
class Registered:
    """A slave's response to its registration: its master; empty for a master, and without a master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@define
class BrokerLiveInfo:
    """A registered broker; `digest` is that of its last whole body."""

    registration: Registration
    data_version: DataVersion
    source: Any
    last_update_ms: int
    digest: bytes = b""


class Clash(SystemFailure):
    """A registration whose name or address another live broker, `held`, has."""

    def __init__(self, held: BrokerLiveInfo, text: str) -> None:
        super().__init__(None, text)
        self.held = held


def _ignore_leaving(broker: Registration, why: str, writable: Sequence[str]) -> None:
    return


class RouteTable:
    """The tables of brokers, their topics and clusters. Queries give copies, so that callers may keep them.
    `holders_of(source)` gives the names under which the brokers of a connection, and their topics, count.
    `on_left` is called for each broker that leaves, with the reason and, when it was the master, the topics
    that took messages there."""

    def __init__(
        self,
        limits: RouteLimits | None = None,
        holders_of: Callable[[Any], Holders] = lambda source: NOBODY,
        on_left: Callable[[Registration, str, Sequence[str]], None] = _ignore_leaving,
    ) -> None:
        self.limits = limits or RouteLimits()
        self._holders_of = holders_of
        self._on_left = on_left
        self.expiry_ms = EXPIRY_MS
        self.topic_queue_table: dict[str, dict[str, QueueData]] = {}
        self.broker_addr_table: dict[str, BrokerData] = {}
        self.cluster_addr_table: dict[str, set[str]] = {}
        self.broker_live_table: dict[str, BrokerLiveInfo] = {}
        self.filter_server_table: dict[str, list[str]] = {}
        self.changes = 0
        """Goes up whenever topics, brokers or clusters may have changed."""
        self._last_masters: dict[str, str] = {}  # of sets with controllers that have no master now
        self._brokers = Shares(self.limits.brokers)
        self._entries = Shares(self.limits.queue_entries)
        self._makers: dict[str, Holders] = {}  # of a broker name that has topics
        self._topics_of: Counter[str] = Counter()  # of a broker name
        self._brokers_of: Counter[Any] = Counter()  # of a source

    # Registration and removal of brokers.

    def register(
        self,
        broker: Registration,
        body: RegisterBrokerBody,
        source: Any,
        now_ms: int,
        digest: bytes = b"",
        *,
        is_whole: bool = False,
    ) -> Registered:
        """Take in a broker and, from a master whose data version changed, its topics. With `is_whole` the
        list of topics is complete: topics outside the list leave the routes. Without it, the topics are
        added.

        Raises SystemFailure, with nothing changed, for malformed names or address, for a name of another
        cluster, and at a limit; Clash when another live broker holds the same name and id or the same
        address. A known broker of the name may take the id of another: a slave that became master.
        """
        # All checks come first: after them no step may fail, or the five tables would not fit each other.
        self._check(broker, body, source, now_ms)
        held = self.broker_live_table.get(broker.broker_addr)
        if held is not None and _identity(held.registration) != _identity(broker):
            self._remove(broker.broker_addr, "it registered under another name")
            held = None
        first = self._place(broker)
        wrapper = body.topic_config_serialize_wrapper
        # For a slave only the version was taken, not the topics.
        changed = (
            held is None
            or held.registration.broker_id != MASTER_ID
            or held.data_version != wrapper.data_version
        )
        if broker.broker_id == MASTER_ID and (changed or first):
            if is_whole:
                self._keep_topics(
                    broker.broker_name, {t.topic_name for t in wrapper.topic_config_table.values()}
                )
            self._take_topics(broker.broker_name, wrapper.topic_config_table.values(), source)
        self._follow(held.source if held is not None else None, source)
        self.broker_live_table[broker.broker_addr] = BrokerLiveInfo(
            broker, wrapper.data_version, source, now_ms, digest
        )
        self._take_filter_servers(broker.broker_addr, body.filter_server_list)
        if held is None:
            log.info("broker registered: %s", broker)
        return self._master_of(broker)

    def renew(self, broker: Registration, digest: bytes, source: Any, now_ms: int) -> Registered | None:
        """Repeat a registration, known by the digest of its body; None when the digest is new."""
        held = self.broker_live_table.get(broker.broker_addr)
        if held is None or held.digest != digest or held.registration != broker:
            return None
        self._follow(held.source, source)
        held.source, held.last_update_ms = source, now_ms
        return self._master_of(broker)

    def unregister(self, broker: Registration) -> bool:
        """Forget a broker; false when it is not known under this name and address."""
        held = self.broker_live_table.get(broker.broker_addr)
        if held is None or _identity(held.registration) != _identity(broker):
            return False
        if held.registration.broker_id != broker.broker_id:
            return False  # another replica that has this address by mistake, or the master before the change
        self._remove(broker.broker_addr, UNREGISTERED)
        return True

    def touch(self, broker_addr: str, now_ms: int) -> None:
        """Note a sign of life of a broker."""
        if held := self.broker_live_table.get(broker_addr):
            held.last_update_ms = now_ms

    def data_version(self, broker_addr: str) -> DataVersion | None:
        """The known version of the broker's topics."""
        held = self.broker_live_table.get(broker_addr)
        return held.data_version if held else None

    def source_closed(self, source: Any) -> list[BrokerLiveInfo]:
        """Forget the brokers that last registered over this connection; returns them."""
        return self._remove_where(lambda held: held.source is source, "its connection closed")

    def expire(self, now_ms: int) -> list[BrokerLiveInfo]:
        """Forget the brokers that were silent for longer than `expiry_ms`; returns them."""
        return self._remove_where(
            lambda held: held.last_update_ms + self.expiry_ms < now_ms,
            f"it was silent for {self.expiry_ms} ms",
        )

    def next_expiry_ms(self, now_ms: int) -> int:
        """The earliest time at which a broker may have been silent for too long, after `now_ms`."""
        last = min((held.last_update_ms for held in self.broker_live_table.values()), default=now_ms)
        return min(last, now_ms) + self.expiry_ms + 1

    def _remove_where(self, condition: Callable[[BrokerLiveInfo], bool], why: str) -> list[BrokerLiveInfo]:
        removed = [held for held in self.broker_live_table.values() if condition(held)]
        for held in removed:
            self._remove(held.registration.broker_addr, why)
        return removed

    # Checks before a registration.

    def _check(self, broker: Registration, body: RegisterBrokerBody, source: Any, now_ms: int) -> None:
        _check_words(broker)
        _check_topics(body.topic_config_serialize_wrapper.topic_config_table)
        if len(body.filter_server_list) > self.limits.filter_servers:
            raise SystemFailure(None, f"more than {self.limits.filter_servers} filter servers of one broker")
        self._check_address(broker, source, now_ms)
        self._check_id(broker, source, now_ms)
        self._check_room(broker, source, body.topic_config_serialize_wrapper.topic_config_table)

    def _check_address(self, broker: Registration, source: Any, now_ms: int) -> None:
        held = self.broker_live_table.get(broker.broker_addr)
        if held is None or _identity(held.registration) == _identity(broker):
            return
        if self._defends(held, source, now_ms):
            other = held.registration
            raise Clash(
                held,
                f"address {broker.broker_addr} belongs to live broker {other.broker_name} of cluster"
                f" {other.cluster}; check brokerIP1 and listenPort of {broker.broker_name}",
            )

    def _check_id(self, broker: Registration, source: Any, now_ms: int) -> None:
        data = self.broker_addr_table.get(broker.broker_name)
        if data is None:
            return
        holder = data.broker_addrs.get(broker.broker_id, broker.broker_addr)
        if holder != broker.broker_addr and broker.broker_addr not in data.broker_addrs.values():
            held = self.broker_live_table.get(holder)
            is_newer = held is not None and broker.epoch > held.registration.epoch
            if held is not None and not is_newer and self._defends(held, source, now_ms):
                raise Clash(
                    held,
                    f"broker {broker.broker_name} id {broker.broker_id} is {holder}, heard"
                    f" {now_ms - held.last_update_ms} ms ago; give {broker.broker_addr} another brokerName or"
                    " brokerId, or stop the other one",
                )
        others = set(data.broker_addrs.values()) - {holder, broker.broker_addr}
        if data.cluster != broker.cluster and others:
            raise SystemFailure(
                None,
                f"broker name {broker.broker_name} belongs to cluster {data.cluster}, not {broker.cluster}",
            )

    @staticmethod
    def _defends(held: BrokerLiveInfo, source: Any, now_ms: int) -> bool:
        return held.source is not source and now_ms - held.last_update_ms < CLASH_MS

    def _check_room(self, broker: Registration, source: Any, topics: Iterable[str]) -> None:
        held = self.broker_live_table.get(broker.broker_addr)
        holders = self._holders_of(source)
        if held is None and (full := self._brokers.full(holders)):
            raise SystemFailure(None, f"no more brokers may register: {full}, see maxBrokers")
        moves = held is None or held.source is not source
        if moves and self._brokers_of[source] >= self.limits.brokers_of_source:
            most = self.limits.brokers_of_source
            raise SystemFailure(None, f"{most} brokers have registered over this connection, no more may")
        if broker.broker_id != MASTER_ID:
            return
        table, name = self.topic_queue_table, broker.broker_name
        new = sum(1 for topic in topics if name not in table.get(topic, ()))
        if full := self._entries.full(self._makers.get(name, holders), new):
            raise SystemFailure(None, f"no more topics may register: {full}, see maxQueueEntries")
        count = self._topics_of[name] + new
        if count > self.limits.topics_of_broker:
            most = self.limits.topics_of_broker
            raise SystemFailure(None, f"broker {name} would have {count} topics, maxTopicsOfBroker is {most}")

    # Changes after the checks.

    def _follow(self, before: Any, source: Any) -> None:
        """Move a broker from one connection's list to another's; either connection may be None."""
        if before is source:
            return
        if source is not None:
            self._brokers_of[source] += 1
            self._brokers.add(self._holders_of(source))
        if before is not None:
            assert self._brokers_of[before] > 0, "each broker counts for one connection"
            self._brokers_of[before] -= 1
            self._brokers.give(self._holders_of(before))
            if not self._brokers_of[before]:
                del self._brokers_of[before]

    def _place(self, broker: Registration) -> bool:
        """Enter a broker's address; return true when the name had no broker of that id."""
        self.changes += 1
        data = self.broker_addr_table.get(broker.broker_name)
        if data is None:
            data = self.broker_addr_table[broker.broker_name] = BrokerData(broker.cluster, broker.broker_name)
        elif data.cluster != broker.cluster:
            self._leave_cluster(data.cluster, broker.broker_name)
            data.cluster = broker.cluster
        self.cluster_addr_table.setdefault(broker.cluster, set()).add(broker.broker_name)
        for broker_id, address in list(data.broker_addrs.items()):
            if address == broker.broker_addr and broker_id != broker.broker_id:
                del data.broker_addrs[broker_id]
                self._note_last_master(broker_id, self.broker_live_table.get(address))
        if broker.broker_id == MASTER_ID:
            self._last_masters.pop(broker.broker_name, None)
        before = data.broker_addrs.get(broker.broker_id)
        data.broker_addrs[broker.broker_id] = broker.broker_addr
        assert len(set(data.broker_addrs.values())) == len(data.broker_addrs), (
            "an address can have only one id"
        )
        if before is not None and before != broker.broker_addr:
            log.info("broker moved from %s: %s", before, broker)
            removed = self.broker_live_table.pop(before, None)
            if removed is not None:
                self._follow(removed.source, None)
            self.filter_server_table.pop(before, None)
        return before is None

    def _take_topics(self, broker_name: str, topics: Iterable[TopicConfig], source: Any) -> None:
        for topic in topics:
            queues = self.topic_queue_table.setdefault(topic.topic_name, {})
            if broker_name not in queues:
                self._entries.add(self._makers.setdefault(broker_name, self._holders_of(source)))
                self._topics_of[broker_name] += 1
            queues[broker_name] = QueueData(
                broker_name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag
            )

    def _keep_topics(self, broker_name: str, topics: Set[str]) -> None:
        """Take the broker out of the routes of all other topics."""
        table = self.topic_queue_table
        removed = [topic for topic, queues in table.items() if broker_name in queues and topic not in topics]
        if removed:
            log.info("broker %s has no topic any more of: %s", broker_name, ", ".join(removed[:SHOWN_TOPICS]))
            self._drop_queues(broker_name, removed)

    def _take_filter_servers(self, broker_addr: str, servers: list[str]) -> None:
        if servers:
            self.filter_server_table[broker_addr] = list(servers)
        else:
            self.filter_server_table.pop(broker_addr, None)

    def _master_of(self, broker: Registration) -> Registered:
        if broker.broker_id == MASTER_ID:
            return Registered()
        master = self.broker_addr_table[broker.broker_name].broker_addrs.get(MASTER_ID)
        held = self.broker_live_table.get(master) if master else None
        return Registered(held.registration.ha_server_addr, master) if held else Registered()

    def _remove(self, broker_addr: str, why: str) -> None:
        held = self.broker_live_table.pop(broker_addr)
        self._follow(held.source, None)
        self.changes += 1
        self.filter_server_table.pop(broker_addr, None)
        log.info("broker removed because %s: %s", why, held.registration)
        name = held.registration.broker_name
        self._on_left(held.registration, why, self._writable(held.registration))
        data = self.broker_addr_table[name]
        del data.broker_addrs[held.registration.broker_id]
        self._note_last_master(held.registration.broker_id, held)
        if not data.broker_addrs:
            self._last_masters.pop(name, None)
            del self.broker_addr_table[name]
            self._leave_cluster(data.cluster, name)
            self._drop_queues(name, list(self.topic_queue_table))

    def _writable(self, broker: Registration) -> list[str]:
        """The topics that take messages at a master."""
        if broker.broker_id != MASTER_ID:
            return []
        name = broker.broker_name
        return [
            topic
            for topic, queues in self.topic_queue_table.items()
            if name in queues and queues[name].perm & PERM_WRITE
        ]

    def _note_last_master(self, broker_id: int, held: BrokerLiveInfo | None) -> None:
        """Note that a master has left its set."""
        if broker_id == MASTER_ID and held is not None and held.registration.epoch:
            self._last_masters[held.registration.broker_name] = held.registration.broker_addr

    def _leave_cluster(self, cluster: str, broker_name: str) -> None:
        names = self.cluster_addr_table[cluster]
        names.discard(broker_name)
        if not names:
            del self.cluster_addr_table[cluster]

    def _drop_queues(self, broker_name: str, topics: Iterable[str]) -> None:
        self.changes += 1
        for topic in topics:
            queues = self.topic_queue_table.get(topic, {})
            if queues.pop(broker_name, None) is not None:
                self._entries.give(self._makers[broker_name])
                self._topics_of[broker_name] -= 1
                if not queues:
                    del self.topic_queue_table[topic]
        if not self._topics_of[broker_name]:
            del self._topics_of[broker_name]
            self._makers.pop(broker_name, None)

    # Changes by administrators.

    def change_write_permission(self, broker_name: str, *, writable: bool) -> int:
        """Take or give the write permission of all topics of a broker; return the number of its topics."""
        count = 0
        for queues in self.topic_queue_table.values():
            if queue := queues.get(broker_name):
                perm = PERM_READ | PERM_WRITE if writable else queue.perm & ~PERM_WRITE
                queues[broker_name] = evolve(queue, perm=perm)
                count += 1
        return count

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, of one cluster or of all."""
        names = self.cluster_addr_table.get(cluster, ()) if cluster else self.topic_queue_table.get(topic, ())
        for name in list(names):
            self._drop_queues(name, [topic])

    # Queries.

    def route(self, topic: str, *, with_last_masters: bool = False) -> TopicRouteData | None:
        """The route of a topic; None when no broker has the topic. `with_last_masters`: a set with
        controllers and without a master shows its last master."""
        queues = self.topic_queue_table.get(topic, {})
        brokers = [
            BrokerData(data.cluster, name, dict(sorted(data.broker_addrs.items())))
            for name in sorted(queues)
            if (data := self.broker_addr_table.get(name)) is not None
        ]
        if not brokers:
            return None
        if with_last_masters:
            for broker in brokers:
                if MASTER_ID not in broker.broker_addrs and broker.broker_name in self._last_masters:
                    last = self._last_masters[broker.broker_name]
                    rest = {key: one for key, one in broker.broker_addrs.items() if one != last}
                    broker.broker_addrs = {MASTER_ID: last, **rest}
        addresses = (address for broker in brokers for address in broker.broker_addrs.values())
        table = self.filter_server_table
        filters = {address: list(table[address]) for address in addresses if address in table}
        return TopicRouteData([queues[name] for name in sorted(queues)], brokers, filters)

    def cluster_info(self) -> ClusterInfo:
        """All brokers and clusters."""
        return ClusterInfo(
            {
                name: BrokerData(data.cluster, name, dict(sorted(data.broker_addrs.items())))
                for name, data in sorted(self.broker_addr_table.items())
            },
            {cluster: sorted(names) for cluster, names in sorted(self.cluster_addr_table.items())},
        )

    def topics(self) -> TopicList:
        """All topics."""
        return TopicList(sorted(self.topic_queue_table))

    def topics_of_cluster(self, cluster: str) -> TopicList:
        """The topics that a broker of the cluster has; none for an unknown cluster."""
        names = self.cluster_addr_table.get(cluster, set())
        return TopicList(
            sorted(topic for topic, queues in self.topic_queue_table.items() if not names.isdisjoint(queues))
        )

    def system_topics(self) -> TopicList:
        """Cluster and broker names, which are topics of their own, and the address of one broker."""
        clusters = sorted(self.cluster_addr_table.items())
        names = [name for cluster, brokers in clusters for name in (cluster, *sorted(brokers))]
        addresses = (data.broker_addrs for data in self.broker_addr_table.values())
        first = next((by_id[min(by_id)] for by_id in addresses if by_id), None)
        return TopicList(list(dict.fromkeys(names)), first)

    def unit_topics(self) -> TopicList:
        """The topics marked as unit topics."""
        return self._topics_by_flag(lambda flag: bool(flag & TOPIC_UNIT))

    def unit_sub_topics(self) -> TopicList:
        """The topics to which units subscribe."""
        return self._topics_by_flag(lambda flag: bool(flag & TOPIC_UNIT_SUB))

    def unit_sub_ununit_topics(self) -> TopicList:
        """The topics to which units subscribe and that are no unit topics themselves."""
        return self._topics_by_flag(lambda flag: bool(flag & TOPIC_UNIT_SUB) and not flag & TOPIC_UNIT)

    def _topics_by_flag(self, accepts: Callable[[int], bool]) -> TopicList:
        return TopicList(
            sorted(
                topic
                for topic, queues in self.topic_queue_table.items()
                if accepts(next(iter(queues.values())).topic_sys_flag)
            )
        )


def _identity(broker: Registration) -> tuple[str, str]:
    return broker.cluster, broker.broker_name


def _check_words(broker: Registration) -> None:
    for kind, name in (("clusterName", broker.cluster), ("brokerName", broker.broker_name)):
        if not _NAME.fullmatch(name):
            rule = "1 to 127 characters, no blanks and none of ; : , \" ' { } \\ /"
            raise SystemFailure(None, f"{kind} {name[:80]!r}: {rule}")
    if (
        not _ADDRESS.fullmatch(broker.broker_addr)
        or not 0 < int(broker.broker_addr.rpartition(":")[2]) < 65536
    ):
        raise SystemFailure(None, f"brokerAddr {broker.broker_addr[:80]!r}: host:port expected")
    if len(broker.ha_server_addr) > 300:
        raise SystemFailure(None, f"haServerAddr {broker.ha_server_addr[:80]!r} is too long")
    if broker.broker_id < 0:
        raise SystemFailure(None, f"brokerId {broker.broker_id}: 0 for the master, more for a slave")


def _check_topics(topics: dict[str, TopicConfig]) -> None:
    for key, topic in topics.items():
        if not _TOPIC.fullmatch(topic.topic_name) or key != topic.topic_name:
            raise SystemFailure(None, f"topic {key[:80]!r} has the name {topic.topic_name[:80]!r}")
        if topic.read_queue_nums < 0 or topic.write_queue_nums < 0 or not 0 <= topic.perm <= 15:
            raise SystemFailure(None, f"topic {key!r}: queue numbers and permission cannot be {topic}")
