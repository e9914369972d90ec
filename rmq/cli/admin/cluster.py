"""The commands of `rmq admin` about clusters and name servers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from rmq.cli.admin.command import COUNT, Commands, row, say
from rmq.cli.output import echo
from rmq.client.admin.reports import first_number
from rmq.errors import RmqError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmq.client.client import Client
    from rmq.protocol.bodies import ClusterInfo

COMMANDS = Commands()


@COMMANDS.add("clusterList")
@click.option("-m", "--moreStats", "more", is_flag=True, help="Totals of yesterday and today instead.")
@click.option("-i", "--interval", type=COUNT, help="Again every so many seconds.")
@click.option("--rounds", type=COUNT, help="With -i: stop after so many.  [default: never]")
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


async def _figures(client: Client, address: str) -> dict[str, str]:
    """The broker's figures; none, and a line on the error output, when it does not answer."""
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
        figures = await _figures(client, address)
        earliest = int(figures.get("earliestMessageTimeStamp") or 0)
        hours = (time.time() * 1000 - earliest) / 3_600_000 if earliest > 0 else 0.0
        row(
            widths,
            cluster,
            name,
            broker_id,
            address,
            figures.get("brokerVersionDesc", ""),
            _load(figures, "putTps", "send"),
            _load(figures, "getTransferedTps", "pull"),
            figures.get("pageCacheLockTimeMills", ""),
            hours,
            f"{float(figures.get('commitLogDiskRatio') or 0):.4f}",
        )


def _load(figures: Mapping[str, str], rate: str, pool: str) -> str:
    """A rate, and in brackets how many requests wait and for how long."""
    size = figures.get(f"{pool}ThreadPoolQueueSize", "")
    wait = figures.get(f"{pool}ThreadPoolQueueHeadWaitTimeMills", "")
    return f"{first_number(figures.get(rate, '')):9.2f}({size},{wait}ms)"


async def _print_totals(client: Client) -> None:
    widths = (-16, -32, 14, 14, 14, 14)
    heads = ("#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday")
    row(widths, "#Cluster Name", "#Broker Name", *heads)
    for cluster, name, _, address in _brokers(await client.admin.cluster_info()):
        figures = await _figures(client, address)

        def grown(kind: str, since: str, until: str, figures: Mapping[str, str] = figures) -> int:
            first, last = figures.get(f"msg{kind}Total{since}"), figures.get(f"msg{kind}Total{until}")
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
        say(f"wipe write perm of broker[{broker}] in name server[{address}] OK, {count}")


@COMMANDS.add("addWritePerm")
@click.option("-b", "--brokerName", "broker", required=True, help="The broker's name.")
async def add_write_perm(client: Client, broker: str) -> None:
    """Give the write permission back to all topics of a broker, at every name server."""
    for address, count in (await client.admin.add_write_perm(broker)).items():
        say(f"add write perm of broker[{broker}] in name server[{address}] OK, {count}")


# --- name servers ---


@COMMANDS.add("updateKvConfig")
@click.option("-s", "--namespace", required=True, help="The namespace.")
@click.option("-k", "--key", required=True, help="The key.")
@click.option("-v", "--value", required=True, help="The value.")
async def update_kv(client: Client, namespace: str, key: str, value: str) -> None:
    """Keep a value at every name server."""
    await client.admin.put_kv_config(namespace, key, value)
    say("create or update kv config to namespace success.")


@COMMANDS.add("deleteKvConfig")
@click.option("-s", "--namespace", required=True, help="The namespace.")
@click.option("-k", "--key", required=True, help="The key.")
async def delete_kv(client: Client, namespace: str, key: str) -> None:
    """Forget a value at every name server."""
    await client.admin.delete_kv_config(namespace, key)
    say("delete kv config from namespace success.")


@COMMANDS.add("getNamesrvConfig")
async def namesrv_config(client: Client) -> None:
    """Show the settings of name servers."""
    for address, config in (await client.admin.namesrv_config()).items():
        say(f"============{address}============")
        for name, value in config.items():
            say(f"{name:<50}=  {value}")


@COMMANDS.add("updateNamesrvConfig")
@click.option("-k", "--key", required=True, help="The setting's name.")
@click.option("-v", "--value", required=True, help="Its new value.")
async def update_namesrv(client: Client, key: str, value: str) -> None:
    """Change a setting of running name servers."""
    addresses = await client.admin.update_namesrv_config({key.strip(): value.strip()})
    say(f"update name server config success![{', '.join(addresses)}]")
    say(f"{key} : {value}")
