"""Overview of a cluster: its brokers with role, rates, disk and replication, and its broker sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from attrs import evolve, field, frozen

from rmq.client.admin.reports import first_number
from rmq.errors import NoPermission, RmqError
from rmq.operate.several import ask_each
from rmq.printable import counted
from rmq.protocol.codes import MASTER_ID

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.protocol.bodies import MissingBroker, RefusedBroker

Role = Literal["master", "slave"]


@frozen
class Broker:
    """A broker, by the name servers' tables and its own report.

    `kind` is ``rmq`` with its version, or ``java``; `version` the version of RocketMQ that it speaks. `link`
    is a slave's report on the link to its master, or a master's number of linked slaves; `lag_bytes` the
    bytes of the master's log that a slave lacks. Rates are messages a second of the last 10 s. Figures are
    None when the broker did not answer (`error` is the reason, `is_refused` is true if the account may not
    ask) or does not report them. `runtime` has all metrics under RocketMQ's names.
    """

    cluster: str
    name: str
    broker_id: int
    address: str
    kind: str = ""
    version: str = ""
    link: str = ""
    lag_bytes: int | None = None
    log_end: int | None = None
    certificate_end: str | None = None
    in_tps: float | None = None
    out_tps: float | None = None
    messages_today: int | None = None
    disk_ratio: float | None = None
    started_at_ms: int | None = None
    error: str | None = None
    is_refused: bool = False
    runtime: Mapping[str, str] = field(factory=dict, repr=False)

    @property
    def role(self) -> Role:
        """Master or slave of its set."""
        return "master" if self.broker_id == MASTER_ID else "slave"


@frozen
class BrokerSet:
    """A master with its slaves: the brokers of a name.

    `epoch`, `replicas`, `in_sync` and `refuses` are only known for a set with controllers: the epoch of its
    master, the numbers of its replicas, the numbers of the replicas in sync, and the reason why the master
    takes no messages (empty when it does). `controller_silent_s` is the number of seconds since its master
    had an answer of the leading controller; the lease of the master ends without answers.
    """

    cluster: str
    name: str
    brokers: tuple[Broker, ...]
    epoch: int | None = None
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    refuses: str = ""
    controller_silent_s: int | None = None

    @property
    def master(self) -> Broker | None:
        """The master, if one is registered."""
        return next((one for one in self.brokers if one.role == "master"), None)


@frozen
class Overview:
    """All brokers of one cluster or of all, by cluster, name and id. `missing` are brokers that left without
    a drain, `refused` are brokers whose registration was refused lately; only rmq's name servers report
    them."""

    brokers: tuple[Broker, ...]
    name_servers: tuple[str, ...] = ()
    missing: tuple[MissingBroker, ...] = ()
    refused: tuple[RefusedBroker, ...] = ()

    @property
    def clusters(self) -> tuple[str, ...]:
        """The names of the clusters, sorted."""
        return tuple(sorted({one.cluster for one in self.brokers}))

    @property
    def sets(self) -> tuple[BrokerSet, ...]:
        """The broker sets, by cluster and name."""
        by_name: dict[tuple[str, str], list[Broker]] = {}
        for one in self.brokers:
            by_name.setdefault((one.cluster, one.name), []).append(one)
        return tuple(_set(brokers) for _, brokers in sorted(by_name.items()))

    @property
    def in_tps(self) -> float:
        """Messages a second that all masters take."""
        return sum(one.in_tps or 0.0 for one in self.brokers if one.role == "master")

    @property
    def out_tps(self) -> float:
        """Messages a second that all brokers give to consumers."""
        return sum(one.out_tps or 0.0 for one in self.brokers)


async def overview(admin: Admin, cluster: str = "") -> Overview:
    """Query all brokers, or those of one cluster (none for an unknown name).

    A broker that does not answer has an `error` in its row. Raises Unreachable and the ResponseError of a
    name server.
    """
    info = await admin.cluster_report()
    places = [
        Broker(data.cluster, name, broker_id, address)
        for cluster_name, names in sorted(info.cluster_addr_table.items())
        if cluster_name == cluster or not cluster
        for name in sorted(names)
        if (data := info.broker_addr_table.get(name)) is not None
        for broker_id, address in sorted(data.broker_addrs.items())
    ]

    async def look(place: Broker) -> Broker:
        try:
            metrics = await admin.broker_runtime(place.address)
        except RmqError as error:
            return evolve(place, error=str(error), is_refused=isinstance(error, NoPermission))
        return _described(place, metrics)

    seen = await ask_each(range(len(places)), lambda number: look(places[number]))
    return Overview(
        _with_lags(list(seen.values())),
        tuple(admin.name_servers),
        tuple(one for one in info.missing_brokers if cluster in ("", one.cluster)),
        tuple(one for one in info.refused_brokers if cluster in ("", one.cluster)),
    )


def _described(broker: Broker, metrics: Mapping[str, str]) -> Broker:
    ours = metrics.get("rmqVersion")
    today = _number(metrics, "msgPutTotalTodayNow") or 0
    return evolve(
        broker,
        kind=f"rmq {ours}" if ours else "java",
        version=metrics.get("brokerVersionDesc", ""),
        link=_link(metrics, broker.broker_id),
        log_end=_number(metrics, "commitLogMaxOffset"),
        certificate_end=metrics.get("certificateEnd") or None,
        in_tps=first_number(metrics.get("putTps", "")),
        out_tps=first_number(metrics.get("getTransferedTps", "")),
        messages_today=today - (_number(metrics, "msgPutTotalTodayMorning") or 0),
        disk_ratio=first_number(metrics.get("commitLogDiskRatio", "")),
        started_at_ms=_number(metrics, "bootTimestamp"),
        runtime=dict(metrics),
    )


def _with_lags(brokers: list[Broker]) -> tuple[Broker, ...]:
    """Compute the lag of slaves from the log ends that master and slaves report."""
    ends = {one.name: one.log_end for one in brokers if one.role == "master"}

    def lag(one: Broker) -> int | None:
        end = ends.get(one.name)
        return None if end is None or one.log_end is None else max(0, end - one.log_end)

    return tuple(evolve(one, lag_bytes=lag(one)) if one.role == "slave" else one for one in brokers)


def _link(metrics: Mapping[str, str], broker_id: int) -> str:
    if broker_id != MASTER_ID:
        return metrics.get("replication", "")
    count = metrics.get("slaves", "")
    return counted(int(count), "slave") if count.isdecimal() else ""


def _set(brokers: list[Broker]) -> BrokerSet:
    first = brokers[0]
    runtime = next((one.runtime for one in brokers if "setReplicas" in one.runtime), None)
    if runtime is None:
        return BrokerSet(first.cluster, first.name, tuple(brokers))
    return BrokerSet(
        first.cluster,
        first.name,
        tuple(brokers),
        _number(runtime, "controllerEpoch"),
        _numbers(runtime.get("setReplicas", "")),
        _numbers(runtime.get("inSyncReplicas", "")),
        runtime.get("setRefuses", ""),
        _number(runtime, "controllerSilentSeconds"),
    )


def _number(metrics: Mapping[str, str], name: str) -> int | None:
    text = metrics.get(name, "")
    return int(text) if text.isdecimal() else None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split() if word.isdecimal())
