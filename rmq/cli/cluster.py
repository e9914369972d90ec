"""`rmq cluster`: what the name servers know, and how fast brokers answer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from rmq.cli.latency import percentile, timed_send
from rmq.cli.output import EXIT_FAILED, Format, output_option, refuse, show
from rmq.cli.placement import plan
from rmq.cli.target import Target, run, run_admin, target_options
from rmq.errors import NoPermission, RmqError
from rmq.protocol.codes import MASTER_ID

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.client.produce.producer import Producer
    from rmq.message import MessageQueue
    from rmq.protocol.bodies import BrokerData

COLUMNS = (
    "cluster",
    "broker",
    "id",
    "role",
    "address",
    "kind",
    "version",
    "link",
    "lag_bytes",
    "in_tps",
    "out_tps",
    "messages_today",
    "disk_ratio",
)


@click.group()
def cluster() -> None:
    """Show the clusters, their brokers, how fast they answer, and how to spread topics over them."""


cluster.add_command(plan)


@cluster.command("list")
@output_option
@target_options
def list_clusters(target: Target, output: Format) -> None:
    """List all brokers: role, address, kind (rmq or java), rates, how full the disk is.

    `link` is a slave's word of its link to its master, and of a master how many slaves are linked to it;
    `lag_bytes` how much of its master's log a slave lacks.
    """
    show(run_admin(target, lambda admin: _brokers(admin, "")), output, columns=COLUMNS)


@cluster.command("show")
@click.argument("name")
@output_option
@target_options
def show_cluster(target: Target, name: str, output: Format) -> None:
    """List the brokers of one cluster."""
    rows = run_admin(target, lambda admin: _brokers(admin, name))
    if not rows:
        refuse(f"no cluster {name}; `rmq cluster list` shows those there are")
    show(rows, output, columns=COLUMNS)


async def _brokers(admin: Admin, wanted: str) -> list[dict[str, Any]]:
    info = await admin.cluster_info()
    rows = [
        await _broker(admin, name, data, broker_id)
        for cluster_name, names in sorted(info.cluster_addr_table.items())
        if cluster_name == wanted or not wanted
        for name in sorted(names)
        if (data := info.broker_addr_table.get(name)) is not None
        for broker_id in sorted(data.broker_addrs)
    ]
    _set_lags(rows)
    return rows


def _set_lags(rows: list[dict[str, Any]]) -> None:
    """What each slave lacks of its master's log, in bytes, as both say where their logs end."""
    ends = {row["broker"]: row["log_end"] for row in rows if row["id"] == MASTER_ID}
    for row in rows:
        end, masters = row.pop("log_end"), ends.get(row["broker"])
        if row["id"] != MASTER_ID:
            row["lag_bytes"] = None if end is None or masters is None else max(0, masters - end)


async def _broker(admin: Admin, name: str, data: BrokerData, broker_id: int) -> dict[str, Any]:
    """A broker with its metrics; one that does not answer, or not this account, has its `error` instead."""
    from rmq.client.admin.reports import first_number

    row: dict[str, Any] = {
        "cluster": data.cluster,
        "broker": name,
        "id": broker_id,
        "role": "master" if broker_id == MASTER_ID else "slave",
        "address": data.broker_addrs[broker_id],
        "log_end": None,
    }
    try:
        metrics = await admin.broker_runtime(data.broker_addrs[broker_id])
    except RmqError as error:
        why = "refuses this account" if isinstance(error, NoPermission) else "does not answer"
        return row | {"version": why, "error": str(error)}
    today = int(metrics.get("msgPutTotalTodayNow", "0")) - int(metrics.get("msgPutTotalTodayMorning", "0"))
    ours = metrics.get("rmqVersion")
    end = metrics.get("commitLogMaxOffset", "")
    return row | {
        "kind": f"rmq {ours}" if ours else "java",
        "version": metrics.get("brokerVersionDesc", ""),
        "link": _link(metrics, broker_id),
        "log_end": int(end) if end.isdecimal() else None,
        "certificate_end": metrics.get("certificateEnd") or None,
        "in_tps": first_number(metrics.get("putTps", "")),
        "out_tps": first_number(metrics.get("getTransferedTps", "")),
        "messages_today": today,
        "disk_ratio": first_number(metrics.get("commitLogDiskRatio", "")),
        "error": None,
    }


def _link(metrics: Mapping[str, str], broker_id: int) -> str:
    """A slave's own word of its link; of a master, how many slaves are linked to it. Empty where RocketMQ's
    brokers do not say."""
    if broker_id != MASTER_ID:
        return metrics.get("replication", "")
    count = metrics.get("slaves", "")
    return f"{count} slaves" if count else ""


@cluster.command()
@click.option(
    "--amount", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Messages each."
)
@click.option(
    "--size", type=click.IntRange(0, 1 << 20), default=128, show_default=True, help="Bytes of a body."
)
@output_option
@target_options
def rt(target: Target, amount: int, size: int, output: Format) -> None:
    """Send probes to every master and show how long each took, in ms.

    They go to the topic with the cluster's name, which every broker has. Ends with 1 when a broker took none.
    """
    rows = run(_rt, target, amount, size)
    show(rows, output)
    if any(not row["sent"] for row in rows):
        sys.exit(EXIT_FAILED)


async def _rt(target: Target, amount: int, size: int) -> list[dict[str, Any]]:
    from rmq.message import MessageQueue

    async with target.connect() as client, client.producer("rmq-cli-rt") as producer:
        info = await client.admin.cluster_info()
        return [
            {"cluster": data.cluster, "broker": name}
            | await _probe(producer, MessageQueue(data.cluster, name, 0), amount, size)
            for name, data in sorted(info.broker_addr_table.items())
            if MASTER_ID in data.broker_addrs
        ]


async def _probe(producer: Producer, queue: MessageQueue, amount: int, size: int) -> dict[str, Any]:
    from rmq.message import Message

    took: list[float] = []
    error: RmqError | None = None
    for _ in range(amount):
        ms, failure = await timed_send(producer, Message(queue.topic, b"\0" * size), queue)
        if failure is None:
            took.append(ms)
        else:
            error = failure
    took.sort()
    points = {f"p{share}": percentile(took, share / 100) for share in (50, 99)}
    return {
        "sent": len(took),
        "failed": amount - len(took),
        **points,
        "max": percentile(took, 1.0),
        "error": str(error) if error else None,
    }
