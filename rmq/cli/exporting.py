"""`rmq export`: topics, groups, offsets and accounts of a cluster in one YAML file."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

import click

from rmq.cli.asking import ask, perm_text
from rmq.cli.output import echo
from rmq.cli.target import Target, fail, target_options

if TYPE_CHECKING:
    from rmq.cli.manifest import Manifest, Settings
    from rmq.client.admin import Admin
    from rmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig


@click.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=pathlib.Path))
@click.option("-c", "--cluster", default="", help="Only this cluster. [default: all]")
@click.option("--offsets/--no-offsets", default=True, help="Also how far groups are. [default: yes]")
@target_options
def export(target: Target, file: pathlib.Path, cluster: str, offsets: bool) -> None:
    """Write topics, groups, offsets and accounts to FILE (YAML); - is standard output.

    Messages and secrets are not in it. `rmq import` reads it.
    """
    from rmq.cli.manifest import text_of

    manifest = ask(target, lambda admin: collect(admin, cluster, offsets=offsets))
    text = text_of(manifest)
    if str(file) == "-":
        echo(text, nl=False)
        return
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        fail(error)
    counts = (
        f"{len(manifest.topics)} topics, {len(manifest.groups)} groups, {len(manifest.accounts)} accounts"
    )
    echo(f"{counts} written to {file}")


async def masters(admin: Admin, cluster: str) -> dict[str, str]:
    """Names of the masters -> their addresses. Raises as `client.admin`."""
    table = (await admin.cluster_info()).broker_addr_table
    wanted = set(await admin.broker_addresses(cluster=cluster))
    return {
        name: data.broker_addrs[0]
        for name, data in sorted(table.items())
        if data.broker_addrs.get(0) in wanted
    }


async def collect(admin: Admin, cluster: str, *, offsets: bool) -> Manifest:
    """What a cluster has, of users' making. Raises as `client.admin`."""
    from rmq.cli.manifest import Manifest, spread

    addresses = await masters(admin, cluster)
    topics: dict[str, dict[str, Settings]] = {}
    groups: dict[str, dict[str, Settings]] = {}
    manifest = Manifest()
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


def _add_offsets(manifest: Manifest, broker: str, table: dict[str, dict[int, int]]) -> None:
    for key, queues in sorted(table.items()):
        topic, _, group = key.partition("@")
        manifest.offsets.setdefault(group, {}).setdefault(topic, {})[broker] = dict(sorted(queues.items()))


async def accounts(admin: Admin, address: str) -> dict[str, Settings]:
    """The accounts of a broker without their secrets; none when it has no access control."""
    from rmq.errors import NoPermission, ResponseError

    try:
        found = await admin.acl_config(address)
    except NoPermission:
        raise
    except ResponseError:
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
        }
        for one in found.accounts
    }


def topic_settings(config: TopicConfig) -> dict[str, Any]:
    """A topic's config in the file's words."""
    return {
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "perm": perm_text(config.perm),
        "order": config.order,
        "filter_type": config.topic_filter_type,
        "sys_flag": config.topic_sys_flag,
    }


def group_settings(config: SubscriptionGroupConfig) -> dict[str, Any]:
    """A group's config in the file's words."""
    return {
        "consume": config.consume_enable,
        "consume_from_min": config.consume_from_min_enable,
        "broadcast": config.consume_broadcast_enable,
        "retry_queues": config.retry_queue_nums,
        "retry_max": config.retry_max_times,
        "broker_id": config.broker_id,
        "which_broker_when_consume_slowly": config.which_broker_when_consume_slowly,
        "notify_consumer_ids_changed": config.notify_consumer_ids_changed_enable,
    }
