"""Figures of brokers and groups, put together from the answers of all masters, for several pages."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final

import anyio
import msgspec
from attrs import field, frozen

from rmq.client.admin import GroupProgress
from rmq.dashboard.errors import Conflict, UnknownName
from rmq.dashboard.operations.operation import LARGE_HELD_SECONDS, Call
from rmq.dashboard.progress import progress_of
from rmq.errors import ConsumerNotOnline, NoRoute, RmqError
from rmq.message import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS
from rmq.operate.overview import Broker, BrokerSet, Overview, overview
from rmq.operate.several import ask_each
from rmq.operate.topics import is_absent
from rmq.protocol.bodies import ClusterInfo, SubscriptionGroupConfig, TopicConfig
from rmq.protocol.codes import MASTER_ID
from rmq.protocol.fields import Body


@frozen
class BrokerRow:
    """A broker for a page. Rates are messages a second over the last 10 seconds; `disk` is a share of 1;
    `error` says why it did not answer."""

    cluster: str
    name: str
    id: int
    address: str
    is_master: bool
    version: str = ""
    in_rate: float = 0.0
    out_rate: float = 0.0
    in_today: int = 0
    disk: float = 0.0
    lag_bytes: int = 0
    durability: str = ""
    epoch: str = ""
    in_sync: list[int] = field(factory=list)
    replicas: list[int] = field(factory=list)
    refuses: str = ""
    controllers_silent_s: int | None = None
    error: str = ""


async def cluster_info(call: Call) -> ClusterInfo:
    """All brokers, shared for a moment."""
    return await call.held("info", call.admin.cluster_info)


@frozen
class Look:
    """All brokers as they described themselves at `asked_at`, in ms since 1970."""

    overview: Overview
    asked_at: int


async def cluster_overview(call: Call) -> Look:
    """All brokers as they describe themselves, shared for a moment."""
    return await call.held("overview", partial(_look, call))


async def _look(call: Call) -> Look:
    asked_at = call.now_ms()
    return Look(await overview(call.admin), asked_at)


async def broker_rows(call: Call) -> list[BrokerRow]:
    """All brokers with their figures; one that does not answer has an error."""
    seen = (await cluster_overview(call)).overview
    sets = {(one.cluster, one.name): one for one in seen.sets}
    return [_row(one, sets[one.cluster, one.name]) for one in seen.brokers]


def _row(one: Broker, broker_set: BrokerSet) -> BrokerRow:
    epoch = broker_set.epoch
    return BrokerRow(
        one.cluster,
        one.name,
        one.broker_id,
        one.address,
        one.role == "master",
        one.version if one.kind == "java" else one.kind,
        one.in_tps or 0.0,
        one.out_tps or 0.0,
        one.messages_today or 0,
        one.disk_ratio or 0.0,
        one.lag_bytes or 0,
        one.runtime.get("durability", ""),
        "" if epoch is None else str(epoch),
        list(broker_set.in_sync),
        list(broker_set.replicas),
        broker_set.refuses,
        broker_set.controller_silent_s,
        one.error or "",
    )


async def masters(call: Call) -> dict[str, str]:
    """Broker name -> the master's address."""
    info = await cluster_info(call)
    return {
        name: data.broker_addrs[MASTER_ID]
        for name, data in sorted(info.broker_addr_table.items())
        if MASTER_ID in data.broker_addrs
    }


async def check_master(call: Call, name: str) -> None:
    """Raises UnknownName for a name of no master: an address is none, as the dashboard connects to brokers of
    the cluster only."""
    known = await masters(call)
    if name not in known:
        raise UnknownName(f"there is no master {name or '(no name given)'}; masters are {', '.join(known)}")


async def broker_places(call: Call) -> frozenset[str]:
    """The addresses of all brokers as numbers, in the form of offset message ids; shared for a moment."""
    return await call.held("places", partial(_broker_places, call), LARGE_HELD_SECONDS)


async def _broker_places(call: Call) -> frozenset[str]:
    info = await cluster_info(call)
    given = {address for data in info.broker_addr_table.values() for address in data.broker_addrs.values()}
    found = await ask_each(given, _numbers_of)
    return frozenset(place for places in found.values() for place in places)


async def _numbers_of(address: str) -> list[str]:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        numbers = [str(ipaddress.ip_address(host))]
    except ValueError:  # a name
        try:
            numbers = [str(one[4][0]) for one in await anyio.getaddrinfo(host, None)]
        except OSError:
            numbers = []
    return [f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in numbers]


async def all_topic_configs(call: Call) -> dict[str, dict[str, TopicConfig]]:
    """Topic -> broker name -> config, of all masters."""
    return await call.held("topics", partial(_all_topic_configs, call))


async def _all_topic_configs(call: Call) -> dict[str, dict[str, TopicConfig]]:
    found: dict[str, dict[str, TopicConfig]] = {}
    by_broker = await ask_each(await masters(call), lambda name: _of(call.admin.topic_configs, call, name))
    for broker, configs in by_broker.items():
        for name, config in configs.items():
            found.setdefault(name, {})[broker] = config
    return dict(sorted(found.items()))


async def _of(ask: Any, call: Call, name: str) -> Any:
    return await ask((await masters(call))[name])


async def topic_configs(call: Call, topic: str) -> dict[str, TopicConfig]:
    """Broker name -> settings of a topic, as they are now."""
    return (await _all_topic_configs(call)).get(topic, {})


ABSENT: Final = "none"
"""The fingerprint of settings that do not exist."""
Seen = Annotated[
    str,
    msgspec.Meta(
        description="Fingerprint of the settings as the caller saw them, or none for a new name:"
        " a change that came between is not overwritten. Empty: no check."
    ),
]


def fingerprint(settings: Mapping[str, Body | str]) -> str:
    """A short text that differs when any of the settings differs; `ABSENT` for none."""
    if not settings:
        return ABSENT
    found = hashlib.sha256()
    for name, one in sorted(settings.items()):
        data = one.encode() if isinstance(one, str) else one.to_json()
        found.update(f"{name} {len(data)} ".encode() + data)
    return found.hexdigest()[:16]


def check_seen(kind: str, name: str, seen: str, settings: Mapping[str, Body | str]) -> None:
    """Raises Conflict when the caller saw other settings than the present ones."""
    if not seen or seen == fingerprint(settings):
        return
    if seen == ABSENT:
        raise Conflict(f"the {kind} {name} exists already")
    raise Conflict(f"another user has changed or deleted the {kind} {name} since this page was loaded")


async def all_group_configs(call: Call) -> dict[str, SubscriptionGroupConfig]:
    """Group -> settings of the first master that has it; groups of users only."""
    return await call.held("groups", partial(_all_group_configs, call))


async def _all_group_configs(call: Call) -> dict[str, SubscriptionGroupConfig]:
    found: dict[str, SubscriptionGroupConfig] = {}
    for address in (await masters(call)).values():
        configs = await call.admin.group_configs(address, system=False)
        found = {**configs, **found}
    return dict(sorted(found.items()))


async def check_group(call: Call, group: str) -> None:
    """Raises UnknownName for a group of which no broker has settings or offsets. An account that may not read
    the groups passes: brokers refuse it by themselves."""
    try:
        if group in await all_group_configs(call) or await call.admin.group_config(group):
            return
        await call.admin.consume_stats(group)
    except (ConsumerNotOnline, NoRoute):
        raise UnknownName(f"no broker has a group {group}") from None
    except RmqError:
        return


async def progress_of_group(call: Call, group: str) -> GroupProgress | None:
    """The progress of a group; None for a group that never consumed."""
    try:
        return await call.admin.consume_stats(group)
    except (ConsumerNotOnline, NoRoute) as error:
        check_never_consumed(error)
        return None


def check_never_consumed(error: ConsumerNotOnline | NoRoute) -> None:
    """Raises the error again, unless it means that a group has no offsets."""
    if not isinstance(error, ConsumerNotOnline) and not is_absent(error):
        raise error


async def all_progress(call: Call) -> dict[str, GroupProgress]:
    """Group -> its progress in all queues of all masters, by one request to each."""
    return await call.held("progress", partial(_all_progress, call), LARGE_HELD_SECONDS)


async def _all_progress(call: Call) -> dict[str, GroupProgress]:
    addresses = (await masters(call)).values()
    parts = await ask_each(addresses, lambda address: progress_of(call.cache, call.admin, address))
    queues: dict[str, dict[Any, Any]] = {}
    rates: dict[str, float] = {}
    for progress in (one for part in parts.values() for one in part):
        own = queues.setdefault(progress.group, {})
        own.update((row.message_queue, row) for row in progress.queues)
        rates[progress.group] = rates.get(progress.group, 0.0) + progress.consume_tps
    return {
        group: GroupProgress(group, [rows[queue] for queue in sorted(rows)], rates[group])
        for group, rows in sorted(queues.items())
    }


def topic_kind(name: str, config: TopicConfig | None = None, system: frozenset[str] = frozenset()) -> str:
    """Kind of a topic: user, ordered, retry, dead letter or system."""
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dead letter"
    if name in SYSTEM_TOPICS or name in system or name.startswith(("rmq_sys_", "RMQ_SYS_")):
        return "system"
    return "ordered" if config is not None and config.order else "user"


async def system_topics(call: Call) -> frozenset[str]:
    """The topics that brokers made for themselves."""
    return await call.held("system", partial(_system_topics, call))


async def _system_topics(call: Call) -> frozenset[str]:
    info = await cluster_info(call)
    found = {*info.cluster_addr_table, *info.broker_addr_table}
    found |= {f"{cluster}_REPLY_TOPIC" for cluster in info.cluster_addr_table}
    for address in list((await masters(call)).values())[:1]:
        found |= set(await call.admin.system_topics(address))
    return frozenset(found)
