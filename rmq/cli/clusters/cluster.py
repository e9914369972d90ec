"""`rmq cluster`: the brokers that name servers know, and their response times."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from rmq.cli.clusters.placement import balance, plan
from rmq.cli.latency import percentile, timed_send
from rmq.cli.output import EXIT_FAILED, Format, output_option, refuse, show
from rmq.cli.target import Target, run, run_admin, target_options
from rmq.errors import RmqError
from rmq.protocol.codes import MASTER_ID

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.client.produce.producer import Producer
    from rmq.message import MessageQueue
    from rmq.operate.overview import Broker

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
    """Show the clusters, their brokers, their response times, and a spread of topics over brokers."""


cluster.add_command(plan)
cluster.add_command(balance)


@cluster.command("list")
@output_option
@target_options
def list_clusters(target: Target, output: Format) -> None:
    """List all brokers: role, address, kind (rmq or java), rates, share of the disk in use.

    `link` is a slave's link to its master, or the number of slaves that are linked to a master; `lag_bytes`
    are the bytes of the master's log that a slave lacks.
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
        refuse(f"no cluster {name}; `rmq cluster list` shows all clusters")
    show(rows, output, columns=COLUMNS)


async def _brokers(admin: Admin, name: str) -> list[dict[str, Any]]:
    from rmq.operate.overview import overview  # with the client

    return [_row(broker) for broker in (await overview(admin, name)).brokers]


def _row(broker: Broker) -> dict[str, Any]:
    """A broker with its metrics; a broker that does not answer, or does not answer this account, has its
    `error` instead."""
    row: dict[str, Any] = {
        "cluster": broker.cluster,
        "broker": broker.name,
        "id": broker.broker_id,
        "role": broker.role,
        "address": broker.address,
    }
    if broker.error is not None:
        row |= {
            "version": "refuses this account" if broker.is_refused else "does not answer",
            "error": broker.error,
        }
    else:
        row |= {
            "kind": broker.kind,
            "version": broker.version,
            "link": broker.link,
            "certificate_end": broker.certificate_end,
            "in_tps": broker.in_tps,
            "out_tps": broker.out_tps,
            "messages_today": broker.messages_today,
            "disk_ratio": broker.disk_ratio,
            "error": None,
        }
    return row | ({"lag_bytes": broker.lag_bytes} if broker.role == "slave" else {})


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
    """Send probes to every master and show the time of each, in ms.

    The probes go to the topic with the cluster's name, which every broker has. Ends with 1 when a broker took
    no probe.
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
