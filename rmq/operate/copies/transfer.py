"""Transfer of a cluster's topics, groups, offsets and accounts: read into a manifest, compared with one, and
changed to equal it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import Factory, define

from rmq.client.admin.acl import AclAccount
from rmq.client.admin.cluster import readable
from rmq.errors import (
    ConfigError,
    NoPermission,
    NoRoute,
    RequestCodeNotSupported,
    RequestTimeout,
    ResponseError,
    TopicNotExist,
)
from rmq.message import MessageQueue
from rmq.operate.copies.manifest import (
    EVERYWHERE,
    Manifest,
    Settings,
    group_settings,
    spread,
    topic_settings,
)
from rmq.operate.topics import is_absent, masters, with_retention
from rmq.operate.values import PERMS
from rmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from rmq.protocol.codes import RETENTION_BYTES, RETENTION_MS

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.protocol.bodies import ClusterInfo

Step = Callable[[int], object]
"""Called with the number of changes since the last call."""


async def read_cluster(admin: Admin, cluster: str, *, offsets: bool, of_slaves: bool = True) -> Manifest:
    """The users' topics, groups, offsets and accounts of a cluster. With `of_slaves`, a slave is asked where
    a name has no master: it has copies of them. Raises as `client.admin`."""
    addresses = await masters(admin, cluster=cluster)
    if of_slaves:
        for name, data in (await admin.cluster_info()).broker_addr_table.items():
            if cluster in ("", data.cluster) and name not in addresses and data.broker_addrs:
                addresses[name] = readable(data)
    topics: dict[str, dict[str, Settings]] = {}
    groups: dict[str, dict[str, Settings]] = {}
    manifest = Manifest(brokers=broker_entries(await admin.cluster_info(), cluster))
    for name, address in addresses.items():
        for topic, config in (await admin.topic_configs(address, system=False)).items():
            topics.setdefault(topic, {})[name] = topic_settings(config)
        for group, setting in (await admin.group_configs(address, system=False)).items():
            groups.setdefault(group, {})[name] = group_settings(setting)
        if offsets:
            _add_offsets(manifest, name, await admin.broker_offsets(address))
    manifest.topics = {name: spread(topics[name], addresses) for name in sorted(topics)}
    manifest.groups = {name: spread(groups[name], addresses) for name in sorted(groups)}
    for address in list(addresses.values())[:1]:
        manifest.accounts = await accounts(admin, address)
    return manifest


def broker_entries(info: ClusterInfo, cluster: str = "") -> dict[str, Settings]:
    """The brokers of a cluster, or of all, in the form of the file."""
    return {
        name: {"cluster": data.cluster, "replicas": len(data.broker_addrs)}
        for name, data in sorted(info.broker_addr_table.items())
        if cluster in ("", data.cluster)
    }


def _add_offsets(manifest: Manifest, broker: str, table: dict[str, dict[int, int]]) -> None:
    for key, queues in sorted(table.items()):
        topic, _, group = key.partition("@")
        manifest.offsets.setdefault(group, {}).setdefault(topic, {})[broker] = dict(sorted(queues.items()))


async def accounts(admin: Admin, address: str) -> dict[str, Settings]:
    """The accounts of a broker without their secrets; none when it has no access control. Raises as
    `client.admin`: silence, or another refusal, is not the answer that there are none."""
    try:
        found = await admin.acl_config(address)
    except NoPermission:
        raise
    except RequestCodeNotSupported:
        return {}
    except (ResponseError, RequestTimeout):
        # RocketMQ's brokers without access control fail in odd ways, or do not answer at all.
        if (await admin.broker_config(address)).get("aclEnable") == "true":
            raise
        return {}
    return {
        one.access_key: {
            "admin": one.admin,
            "white_remote_address": one.white_remote_address,
            "default_topic_perm": one.default_topic_perm,
            "default_group_perm": one.default_group_perm,
            "topic_perms": list(one.topic_perms),
            "group_perms": list(one.group_perms),
            "proof": one.proof,
            "quota": one.quota,
        }
        for one in found.accounts
    }


# --- changes ---


@define
class Change:
    """A change on a broker: `was` is None for something new."""

    kind: str
    name: str
    broker: str
    was: Any
    becomes: Any


@define
class Plan:
    """Planned changes, impossible changes, and the addresses of the masters."""

    addresses: dict[str, str]
    cluster: str = ""
    changes: list[Change] = Factory(list)
    notes: list[str] = Factory(list)


async def compare(admin: Admin, manifest: Manifest, cluster: str) -> Plan:
    """The changes that make the cluster equal to the manifest. Raises ConfigError for an unknown broker."""
    there = await read_cluster(admin, cluster, offsets=True, of_slaves=False)
    plan = Plan(await masters(admin, cluster=cluster), cluster)
    for kind, exported, present in (
        ("topic", manifest.topics, there.topics),
        ("group", manifest.groups, there.groups),
    ):
        for name, places in exported.items():
            for broker, settings in _by_broker(places, plan.addresses).items():
                was = _by_broker(present.get(name, {}), plan.addresses).get(broker)
                if was != settings:
                    plan.changes.append(Change(kind, name, broker, was, settings))
    for group, topics in manifest.offsets.items():
        for topic, brokers in topics.items():
            ends = await queue_ends(admin, topic)
            for broker, offsets in brokers.items():
                before = there.offsets.get(group, {}).get(topic, {}).get(broker, {})
                _compare_offsets(plan, (group, topic, broker), before, offsets, ends)
    _compare_accounts(plan, manifest, there)
    return plan


def _by_broker(places: dict[str, Settings], addresses: dict[str, str]) -> dict[str, Settings]:
    if EVERYWHERE in places:
        return dict.fromkeys(addresses, places[EVERYWHERE])
    for broker in places:
        if broker not in addresses:
            raise ConfigError("broker", broker, f"one of the cluster's masters: {', '.join(addresses)}")
    return places


async def queue_ends(admin: Admin, topic: str) -> dict[tuple[str, int], int]:
    """Broker and queue -> the end of that queue; no rows for a topic that does not exist yet."""
    try:
        stats = await admin.topic_stats(topic)
    except (NoRoute, TopicNotExist) as error:
        if not is_absent(error):
            raise
        return {}
    return {(queue.broker_name, queue.queue_id): ends.max_offset for queue, ends in stats.items()}


def _compare_offsets(
    plan: Plan,
    place: tuple[str, str, str],
    was: dict[int, int],
    exported: dict[int, int],
    ends: dict[tuple[str, int], int],
) -> None:
    """Changes of offsets. Offsets beyond the end of a queue, as after a loss of its messages, are left out: a
    group at such an offset would miss messages."""
    group, topic, broker = place
    fits = {queue: offset for queue, offset in exported.items() if offset <= ends.get((broker, queue), 0)}
    beyond = sorted(set(exported) - set(fits))
    if beyond:
        plan.notes.append(
            f"group {group}: its offsets in {topic} at {broker} are left out in queues"
            f" {', '.join(map(str, beyond))}, which end before them"
        )
    changed = {queue: offset for queue, offset in fits.items() if was.get(queue, 0) != offset}
    if changed:
        before = {queue: was.get(queue) for queue in changed}
        plan.changes.append(Change("offsets", f"{group} in {topic}", broker, before, changed))


def _compare_accounts(plan: Plan, manifest: Manifest, there: Manifest) -> None:
    for name, account in manifest.accounts.items():
        if name not in there.accounts:
            plan.notes.append(f"account {name} does not exist; `rmq acl add` creates it, with a secret")
            continue
        was = there.accounts[name]
        # A default permission stays if the file has none; all other missing fields are emptied.
        given = {key: value for key, value in account.items() if value or not key.startswith("default_")}
        changed = [key for key, value in given.items() if value != was[key]]
        if changed:
            new = {key: account[key] for key in {"admin", *changed}}
            plan.changes.append(Change("account", name, "", {key: was[key] for key in new}, new))


def _skip(count: int) -> None:
    return


async def apply(admin: Admin, plan: Plan, step: Step = _skip) -> None:
    """Make the changes in order. The first error ends the run; earlier changes stay, and the next run
    continues."""
    for change in plan.changes:
        if change.kind == "account":
            await _change_account(admin, change, plan)
        else:
            await _make(admin, change, plan.addresses.get(change.broker, change.broker))
        step(1)


async def _make(admin: Admin, change: Change, address: str) -> None:
    new = change.becomes
    if change.kind == "topic":
        config = TopicConfig(
            change.name,
            new["read_queues"],
            new["write_queues"],
            PERMS[new["perm"]],
            new["filter_type"],
            new["sys_flag"],
            new["order"],
        )
        limited = with_retention(config, new["retention_ms"], new["retention_bytes"])
        dropped = {RETENTION_MS, RETENTION_BYTES} - (limited.attributes or {}).keys()
        await admin.put_topic(limited, broker=address, drop_attributes=dropped if change.was else ())
    elif change.kind == "group":
        group = SubscriptionGroupConfig(
            change.name,
            new["consume"],
            new["consume_from_min"],
            new["broadcast"],
            new["retry_queues"],
            new["retry_max"],
            new["broker_id"],
            new["which_broker_when_consume_slowly"],
            new["notify_consumer_ids_changed"],
        )
        await admin.put_group(group, broker=address)
    else:
        name, _, topic = change.name.partition(" in ")
        queues = {MessageQueue(topic, change.broker, queue): offset for queue, offset in new.items()}
        await admin.set_offsets(name, queues)


async def _change_account(admin: Admin, change: Change, plan: Plan) -> None:
    texts: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in change.becomes.items()
    }
    clear = [key for key, value in texts.items() if not value]
    await admin.acl_put_account(AclAccount(change.name, **texts), cluster=plan.cluster, clear=clear)
