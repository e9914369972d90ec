"""The commands of `rmq admin` about connected clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rmq.cli.admin.command import Commands, row, say
from rmq.client.admin.reports import version_name

if TYPE_CHECKING:
    from rmq.client.client import Client

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
    """Show the members of a consumer group that are connected, and what they subscribe to."""
    found = await client.admin.consumer_connection(group, broker=broker)
    widths = (-36, -22, -10, -12)
    row(widths, "#ClientId", "#ClientAddr", "#Language", "#Version")
    for one in found.connection_set:
        row(widths, one.client_id, one.client_addr, one.language, version_name(one.version))
    say()
    say("Below is subscription:")
    row((-20, -20), "#Topic", "#SubExpression")
    for data in sorted(found.subscription_table.values(), key=lambda data: data.topic):
        row((-20, -20), data.topic, data.sub_string)
    say()
    say(f"ConsumeType: {found.consume_type}")
    say(f"MessageModel: {found.message_model}")
    say(f"ConsumeFromWhere: {found.consume_from_where}")


@COMMANDS.add("producer")
@click.option("-b", "--broker", required=True, help="The broker.")
async def producers(client: Client, broker: str) -> None:
    """Show all producers that are connected to a broker."""
    for group, members in (await client.admin.producers(broker)).items():
        if not members:
            say(f"producer group ({group}) instances are empty")
        for one in members:
            say(
                f"producer group ({group}) instance : clientId={one.client_id},remoteIP={one.remote_ip}, "
                f"language={one.language}, version={one.version}, "
                f"lastUpdateTimestamp={one.last_update_timestamp}"
            )
