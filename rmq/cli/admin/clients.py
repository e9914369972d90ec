"""The commands of `rmq admin` about connected clients, and mqadmin's output about running consumers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from rmq.cli.admin.command import Commands, cell_text, row
from rmq.cli.output import echo
from rmq.client.admin.reports import version_name

if TYPE_CHECKING:
    from rmq.client.client import Client
    from rmq.operate.members import StuckQueue
    from rmq.protocol.bodies import ConsumerRunningInfo

COMMANDS = Commands()


@COMMANDS.add("producerConnection")
@click.option("-g", "--producerGroup", "group", required=True, help="The group.")
@click.option("-t", "--topic", required=True, help="A topic that it sends to.")
async def producer_connection(client: Client, group: str, topic: str) -> None:
    """Show the members of a producer group that are connected to the brokers of a topic."""
    found = await client.admin.producer_connection(group, topic)
    for number, one in enumerate(found.connection_set, 1):
        version = version_name(one.version)
        row((4, -32, -22, -8, -12), f"{number:04d}", one.client_id, one.client_addr, one.language, version)


@COMMANDS.add("consumerConnection")
@click.option("-g", "--consumerGroup", "group", required=True, help="The group.")
@click.option("-b", "--brokerAddr", "broker", default="", help="Ask only this broker.")
async def consumer_connection(client: Client, group: str, broker: str) -> None:
    """Show the connected members of a consumer group, and their subscriptions."""
    found = await client.admin.consumer_connection(group, broker=broker)
    widths = (-36, -22, -10, -12)
    row(widths, "#ClientId", "#ClientAddr", "#Language", "#Version")
    for one in found.connection_set:
        row(widths, one.client_id, one.client_addr, one.language, version_name(one.version))
    echo()
    echo("Below is subscription:")
    row((-20, -20), "#Topic", "#SubExpression")
    for data in sorted(found.subscription_table.values(), key=lambda data: data.topic):
        row((-20, -20), data.topic, data.sub_string)
    echo()
    echo(f"ConsumeType: {found.consume_type}")
    echo(f"MessageModel: {found.message_model}")
    echo(f"ConsumeFromWhere: {found.consume_from_where}")


@COMMANDS.add("producer")
@click.option("-b", "--broker", required=True, help="The broker.")
async def producers(client: Client, broker: str) -> None:
    """Show all producers that are connected to a broker."""
    for group, members in (await client.admin.producers(broker)).items():
        if not members:
            echo(f"producer group ({group}) instances are empty")
        for one in members:
            echo(
                f"producer group ({group}) instance : clientId={one.client_id},remoteIP={one.remote_ip}, "
                f"language={one.language}, version={one.version}, "
                f"lastUpdateTimestamp={one.last_update_timestamp}"
            )


# --- output about running consumers ---


def running_text(info: ConsumerRunningInfo) -> str:
    """A member's ConsumerRunningInfo as text: settings, subscriptions, offsets, queues, rates, stack."""
    sections = [
        "#Consumer Properties#",
        *(f"{name:<40}: {cell_text(value)}" for name, value in info.properties.items()),
        "",
        "",
        "#Consumer Subscription#",
        *_subscriptions(info),
        "",
        "",
        "#Consumer Offset#",
        _line("#Topic", "#Broker Name", "#QID", "#Consumer Offset"),
        *(
            _line(queue.topic, queue.broker_name, queue.queue_id, one.commit_offset)
            for queue, one in sorted(info.mq_table.items())
        ),
        "",
        "",
        "#Consumer MQ Detail#",
        _line("#Topic", "#Broker Name", "#QID", "#ProcessQueueInfo"),
        *(
            _line(queue.topic, queue.broker_name, queue.queue_id, cell_text(one))
            for queue, one in sorted(info.mq_table.items())
        ),
        "",
        "",
        "#Consumer RT&TPS#",
        *_rates(info),
    ]
    if info.jstack is not None:
        sections += ["", "", "#Consumer jstack#", info.jstack]
    return "\n".join(sections) + "\n"


def _line(topic: str, broker_name: str, queue_id: object, value: object) -> str:
    return f"{topic:<64}  {broker_name:<32}  {queue_id!s:<4}  {value!s:<20}".rstrip()


def _subscriptions(info: ConsumerRunningInfo) -> Iterator[str]:
    for number, data in enumerate(sorted(info.subscription_set, key=lambda data: data.topic), 1):
        yield (
            f"{number:03d} Topic: {data.topic:<40} ClassFilter: {cell_text(data.class_filter_mode):<8} "
            f"SubExpression: {data.sub_string}"
        )


def _rates(info: ConsumerRunningInfo) -> Iterator[str]:
    heads = ("#Pull RT", "#Pull TPS", "#Consume RT", "#ConsumeOK TPS")
    yield (
        f"{'#Topic':<64}  "
        + " ".join(f"{head:>14}" for head in heads)
        + f" {'#ConsumeFailed TPS':>18} {'#ConsumeFailedMsgsInHour':>25}"
    )
    for topic, one in sorted(info.status_table.items()):
        values = (one.pull_rt, one.pull_tps, one.consume_rt, one.consume_ok_tps)
        yield (
            f"{topic:<64}  "
            + " ".join(f"{value:14.2f}" for value in values)
            + f" {one.consume_failed_tps:18.2f} {one.consume_failed_msgs:25d}"
        )


def stuck_text(client_id: str, one: StuckQueue) -> str:
    """A queue without progress at a member, in mqadmin's form."""
    name = f"{client_id} {cell_text(one.message_queue)}"
    if one.reason == "lock":
        return f"{name} can't lock for a while, {one.still_ms}ms"
    if one.reason == "unlock":
        return f"{name} unlock {one.times} times, still failed"
    return f"{name} can't consume for a while, maybe blocked, {one.still_ms}ms"
