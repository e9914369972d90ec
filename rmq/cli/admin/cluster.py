"""The commands of `rmq admin` about clusters and name servers, and those that export a cluster to files."""

from __future__ import annotations

import json
import pathlib
from typing import TYPE_CHECKING, Any

import click

from rmq.cli.admin.command import COUNT, Commands, Where, row, where_options
from rmq.cli.output import echo
from rmq.client.admin.reports import first_number
from rmq.clock import wall_clock_ms
from rmq.errors import RmqError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmq.client.client import Client
    from rmq.protocol.bodies import ClusterInfo

COMMANDS = Commands()


@COMMANDS.add("clusterList")
@click.option("-m", "--moreStats", "more", is_flag=True, help="Totals of yesterday and today instead.")
@click.option("-i", "--interval", type=COUNT, help="Seconds between two rounds.")
@click.option("--rounds", type=COUNT, help="With -i: number of rounds.  [default: no limit]")
async def cluster_list(client: Client, more: bool, interval: int | None, rounds: int | None) -> None:
    """List all brokers with their rates."""
    import trio

    done = 0
    while True:
        await (_print_totals(client) if more else _print_rates(client))
        done += 1
        if interval is None or done == rounds:
            return
        await trio.sleep(interval)


async def _runtime(client: Client, address: str) -> dict[str, str]:
    """The broker's metrics; none, and a line on the error output, when it does not answer."""
    try:
        return await client.admin.broker_runtime(address)
    except RmqError as error:
        echo(f"rmq: {address}: {error}", err=True)
        return {}


def _brokers(info: ClusterInfo) -> list[tuple[str, str, int, str]]:
    """(cluster, broker name, broker id, address) of all brokers."""
    return [
        (cluster, name, broker_id, address)
        for cluster, names in sorted(info.cluster_addr_table.items())
        for name in sorted(names)
        if name in info.broker_addr_table
        for broker_id, address in sorted(info.broker_addr_table[name].broker_addrs.items())
    ]


async def _print_rates(client: Client) -> None:
    widths = (-16, -22, -4, -22, -16, 19, 19, 10, 5, 6)
    heads = ("#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)", "#OutTPS(LOAD)")
    row(widths, *heads, "#PCWait(ms)", "#Hour", "#SPACE")
    for cluster, name, broker_id, address in _brokers(await client.admin.cluster_info()):
        metrics = await _runtime(client, address)
        earliest = int(metrics.get("earliestMessageTimeStamp") or 0)
        hours = (wall_clock_ms() - earliest) / 3_600_000 if earliest > 0 else 0.0
        row(
            widths,
            cluster,
            name,
            broker_id,
            address,
            metrics.get("brokerVersionDesc", ""),
            _load(metrics, "putTps", "send"),
            _load(metrics, "getTransferedTps", "pull"),
            metrics.get("pageCacheLockTimeMills", ""),
            hours,
            f"{float(metrics.get('commitLogDiskRatio') or 0):.4f}",
        )


def _load(metrics: Mapping[str, str], rate: str, pool: str) -> str:
    """A rate, and in brackets the number of waiting requests and their longest wait."""
    size = metrics.get(f"{pool}ThreadPoolQueueSize", "")
    wait = metrics.get(f"{pool}ThreadPoolQueueHeadWaitTimeMills", "")
    return f"{first_number(metrics.get(rate, '')):9.2f}({size},{wait}ms)"


async def _print_totals(client: Client) -> None:
    widths = (-16, -32, 14, 14, 14, 14)
    heads = ("#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday")
    row(widths, "#Cluster Name", "#Broker Name", *heads)
    for cluster, name, _, address in _brokers(await client.admin.cluster_info()):
        metrics = await _runtime(client, address)

        def grown(kind: str, since: str, until: str, metrics: Mapping[str, str] = metrics) -> int:
            first, last = metrics.get(f"msg{kind}Total{since}"), metrics.get(f"msg{kind}Total{until}")
            return int(last or 0) - int(first or 0)

        yesterday = [grown(kind, "YesterdayMorning", "TodayMorning") for kind in ("Put", "Get")]
        today = [grown(kind, "TodayMorning", "TodayNow") for kind in ("Put", "Get")]
        row(widths, cluster, name, *yesterday, *today)


# --- write permission ---


@COMMANDS.add("wipeWritePerm")
@click.option("-b", "--brokerName", "broker", required=True, help="The broker's name.")
async def wipe_write_perm(client: Client, broker: str) -> None:
    """Take the write permission from all topics of a broker, at every name server."""
    for address, count in (await client.admin.wipe_write_perm(broker)).items():
        echo(f"wipe write perm of broker[{broker}] in name server[{address}] OK, {count}")


@COMMANDS.add("addWritePerm")
@click.option("-b", "--brokerName", "broker", required=True, help="The broker's name.")
async def add_write_perm(client: Client, broker: str) -> None:
    """Give the write permission back to all topics of a broker, at every name server."""
    for address, count in (await client.admin.add_write_perm(broker)).items():
        echo(f"add write perm of broker[{broker}] in name server[{address}] OK, {count}")


# --- name servers ---


@COMMANDS.add("updateKvConfig")
@click.option("-s", "--namespace", required=True, help="The namespace.")
@click.option("-k", "--key", required=True, help="The key.")
@click.option("-v", "--value", required=True, help="The value.")
async def update_kv(client: Client, namespace: str, key: str, value: str) -> None:
    """Keep a value at every name server."""
    await client.admin.put_kv_config(namespace, key, value)
    echo("create or update kv config to namespace success.")


@COMMANDS.add("deleteKvConfig")
@click.option("-s", "--namespace", required=True, help="The namespace.")
@click.option("-k", "--key", required=True, help="The key.")
async def delete_kv(client: Client, namespace: str, key: str) -> None:
    """Remove a value at every name server."""
    await client.admin.delete_kv_config(namespace, key)
    echo("delete kv config from namespace success.")


@COMMANDS.add("getNamesrvConfig")
async def namesrv_config(client: Client) -> None:
    """Show the settings of name servers."""
    for address, config in (await client.admin.namesrv_config()).items():
        echo(f"============{address}============")
        for name, value in config.items():
            echo(f"{name:<50}=  {value}")


@COMMANDS.add("updateNamesrvConfig")
@click.option("-k", "--key", required=True, help="The setting's name.")
@click.option("-v", "--value", required=True, help="Its new value.")
async def update_namesrv(client: Client, key: str, value: str) -> None:
    """Change a setting of running name servers."""
    addresses = await client.admin.update_namesrv_config({key.strip(): value.strip()})
    echo(f"update name server config success![{', '.join(addresses)}]")
    echo(f"{key} : {value}")


# --- exports ---


file_option = click.option(
    "-f", "--filePath", "folder", default="/tmp/rocketmq/export", show_default=True, help="The folder."
)
cluster_option = click.option("-c", "--clusterName", "cluster", required=True, help="The cluster.")


def _write(folder: str, name: str, value: Any) -> None:
    path = pathlib.Path(folder.strip()) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8")
    echo(f"export {path} success")


@COMMANDS.add("exportMetadata")
@where_options("Export")
@file_option
@click.option("-t", "--topic", "topics_only", is_flag=True, help="Only topics, into topic.json.")
@click.option(
    "-g", "--subscriptionGroup", "groups_only", is_flag=True, help="Only groups, into subscriptionGroup.json."
)
@click.option("-s", "--specialTopic", "special", is_flag=True, help="Retry topics and dead letters too.")
async def export_metadata(
    client: Client,
    where: Where,
    folder: str,
    topics_only: bool,
    groups_only: bool,
    special: bool,
) -> None:
    """Write topics and groups into metadata.json."""
    whole = await client.admin.export_metadata(**where, special_topics=special)
    name = "metadata.json"
    if topics_only:
        name = "topic.json"
        del whole["subscriptionGroupTable"]
    elif groups_only:
        name = "subscriptionGroup.json"
        del whole["topicConfigTable"]
    _write(folder, name, whole)


@COMMANDS.add("exportConfigs")
@cluster_option
@file_option
async def export_configs(client: Client, cluster: str, folder: str) -> None:
    """Write main settings of a cluster into configs.json."""
    _write(folder, "configs.json", await client.admin.export_configs(cluster))


@COMMANDS.add("exportMetrics")
@cluster_option
@file_option
async def export_metrics(client: Client, cluster: str, folder: str) -> None:
    """Write rates and sizes of a cluster into metrics.json."""
    _write(folder, "metrics.json", await client.admin.export_metrics(cluster))
