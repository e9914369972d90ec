"""The commands of `rmq admin` about brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rmq.cli.admin.command import (
    COUNT,
    NUMBER,
    Commands,
    Where,
    java_text,
    row,
    seconds_stamp,
    where_options,
)
from rmq.cli.output import echo, echo_json
from rmq.message import MessageQueue
from rmq.protocol.codes import MASTER_ID

if TYPE_CHECKING:
    from rmq.client.client import Client
    from rmq.protocol.bodies import ConsumeQueueData

COMMANDS = Commands()


@COMMANDS.add("brokerStatus")
@where_options("Show")
async def broker_status(client: Client, where: Where) -> None:
    """Show the metrics of a broker, or of all brokers of a cluster, slaves too."""
    for address in await client.admin.broker_addresses(**where, slaves=True):
        prefix = f"{address:<24} " if where["cluster"] else ""
        for name, value in (await client.admin.broker_runtime(address)).items():
            echo(f"{prefix}{name:<32}: {value}")


@COMMANDS.add("updateBrokerConfig")
@where_options("Change")
@click.option("-k", "--key", required=True, help="The setting's name.")
@click.option("-v", "--value", required=True, help="Its new value.")
async def update_config(client: Client, where: Where, key: str, value: str) -> None:
    """Change a setting of running brokers."""
    for address in await client.admin.update_broker_config({key.strip(): value.strip()}, **where):
        echo(f"update broker config success, {address}")


@COMMANDS.add("getBrokerConfig")
@where_options("Show")
async def get_config(client: Client, where: Where) -> None:
    """Show the settings of a broker, or of all brokers of a cluster, each master with its slaves."""
    if where["broker"]:
        await _print_config(client, where["broker"], where["broker"])
        return
    masters = set(await client.admin.broker_addresses(**where))
    for data in (await client.admin.cluster_info()).broker_addr_table.values():
        master = data.broker_addrs.get(MASTER_ID, "")
        if master not in masters:
            continue
        await _print_config(client, master, f"Master: {master}")
        for broker_id, address in sorted(data.broker_addrs.items()):
            if broker_id != MASTER_ID:
                await _print_config(client, address, f"My Master: {master}=====Slave: {address}")


async def _print_config(client: Client, broker: str, title: str) -> None:
    echo(f"============{title}============")
    for name, value in (await client.admin.broker_config(broker)).items():
        echo(f"{name:<50}=  {value}")
    echo()


@COMMANDS.add("brokerConsumeStats")
@click.option("-b", "--brokerAddr", "broker", required=True, help="The broker.")
@click.option("-t", "--timeoutMillis", "timeout_ms", type=COUNT, default=50_000, help="Wait so long.")
@click.option("-l", "--level", type=NUMBER, default=0, help="Only queues with so much left.")
@click.option("-o", "--order", type=bool, default=False, help="Only ordered topics: true or false.")
async def consume_stats(client: Client, broker: str, timeout_ms: int, level: int, order: bool) -> None:
    """Show the progress of all groups on a broker."""
    found = await client.admin.broker_consume_stats(broker, ordered=order, timeout=timeout_ms / 1000)
    widths = (-64, -64, -32, -4, -20, -20, -20, -20)
    heads = ("#Topic", "#Group", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", "#Diff")
    row(widths, *heads, "#LastTime")
    for group in found:
        for one in group.queues:
            queue = one.message_queue
            if one.lag < level or one.last_timestamp <= 0:
                continue
            offsets = (one.broker_offset, one.consumer_offset, one.lag)
            last = seconds_stamp(one.last_timestamp)
            row(widths, queue.topic, group.group, queue.broker_name, queue.queue_id, *offsets, last)
    echo()
    echo(f"Diff Total: {sum(group.lag for group in found)}")


# --- cleaning ---


@COMMANDS.add("cleanExpiredCQ")
@where_options("Clean", needed=False)
async def clean_queues(client: Client, where: Where) -> None:
    """Remove files of queues whose messages were deleted."""
    await client.admin.clean_expired_queues(**where)
    echo("success")


@COMMANDS.add("deleteExpiredCommitLog")
@where_options("Clean", needed=False)
async def delete_logs(client: Client, where: Where) -> None:
    """Remove log files that are past their time now, at any hour."""
    await client.admin.delete_expired_logs(**where)
    echo("success")


@COMMANDS.add("cleanUnusedTopic")
@where_options("Clean", needed=False)
async def clean_topics(client: Client, where: Where) -> None:
    """Remove the queues of topics that do not exist any more."""
    await client.admin.clean_unused_topics(**where)
    echo("success")


# --- queues ---


@COMMANDS.add("queryCq")
@click.option("-t", "--topic", required=True, help="The topic.")
@click.option("-q", "--queue", "queue_id", type=NUMBER, required=True, help="The queue's number.")
@click.option("-i", "--index", type=NUMBER, required=True, help="The first unit.")
@click.option("-c", "--count", type=COUNT, default=10, help="How many.")
@click.option("-b", "--broker", help="The broker.  [default: the topic's first]")
@click.option("-g", "--consumer", "group", default="", help="Show whether this group's filter selects them.")
async def query_queue(
    client: Client, topic: str, queue_id: int, index: int, count: int, broker: str | None, group: str
) -> None:
    """Show raw units of a consume queue."""
    place = broker or min(data.broker_name for data in (await client.admin.topic_route(topic)).broker_datas)
    queue = MessageQueue(topic, place, queue_id)
    found = await client.admin.consume_queue(queue, index, count, group=group)
    line = "=" * 38
    if found.subscription_data is not None:
        echo("Subscription data: ")
        echo_json(found.subscription_data.to_value(), indent=1)
        echo(line)
    if found.filter_data is not None:
        echo(f"Filter data: \n{found.filter_data}\n{line}")
    echo(f"Queue data: \nmax: {found.max_queue_index}, min: {found.min_queue_index}\n{line}")
    for number, unit in enumerate(found.queue_data, index):
        echo(f"idx: {number}\n{_unit_text(unit)}\n{line}")


def _unit_text(unit: ConsumeQueueData) -> str:
    return (
        f"ConsumeQueueData{{physicOffset={unit.physic_offset}, physicSize={unit.physic_size}, "
        f"tagsCode={unit.tags_code}, extendDataJson='{java_text(unit.extend_data_json)}', "
        f"bitMap='{java_text(unit.bit_map)}', eval={java_text(unit.eval)}, msg='{java_text(unit.msg)}'}}"
    )
