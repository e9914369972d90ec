"""The commands of `rmq admin` about consumer groups and their offsets."""

from __future__ import annotations

import pathlib
import re
from typing import TYPE_CHECKING

import click

from rmq.cli.admin.clients import running_text, stuck_text
from rmq.cli.admin.command import (
    COUNT,
    NUMBER,
    Commands,
    Where,
    as_time_or_now,
    java_text,
    printed_fields,
    row,
    seconds_stamp,
    where_options,
)
from rmq.cli.output import echo
from rmq.client.admin.reports import version_name
from rmq.clock import wall_clock_ms
from rmq.errors import ConsumerNotOnline, NoRoute, RmqError
from rmq.message import RETRY_PREFIX, MessageQueue
from rmq.operate.members import same_subscriptions, stuck_queues
from rmq.protocol.bodies import ConsumerConnection, ConsumerRunningInfo, SubscriptionGroupConfig

if TYPE_CHECKING:
    from rmq.client.admin import GroupProgress, OffsetReset
    from rmq.client.client import Client

COMMANDS = Commands()

ROUND_SECONDS = 60


@COMMANDS.add("updateSubGroup")
@where_options("Make the group on")
@click.option("-g", "--groupName", "group_name", required=True, help="The group.")
@click.option("-s", "--consumeEnable", "consume_enable", type=bool, default=True, help="May consume.")
@click.option(
    "-m",
    "--consumeFromMinEnable",
    "consume_from_min_enable",
    type=bool,
    default=False,
    help="From the start.",
)
@click.option(
    "-d",
    "--consumeBroadcastEnable",
    "consume_broadcast_enable",
    type=bool,
    default=False,
    help="May have broadcasting members.",
)
@click.option("-q", "--retryQueueNums", "retry_queue_nums", type=NUMBER, default=1, help="Retry queues.")
@click.option("-r", "--retryMaxTimes", "retry_max_times", type=NUMBER, default=16, help="Retries at most.")
@click.option("-i", "--brokerId", "broker_id", type=NUMBER, default=0, help="Broker id to read from.")
@click.option(
    "-w",
    "--whichBrokerWhenConsumeSlowly",
    "which_broker_when_consume_slowly",
    type=NUMBER,
    default=1,
    help="Broker id to read from when far behind.",
)
@click.option(
    "-a",
    "--notifyConsumerIdsChanged",
    "notify_consumer_ids_changed_enable",
    type=bool,
    default=True,
    help="Notify members when members join and leave.",
)
async def update_group(client: Client, where: Where, **settings: object) -> None:
    """Create or change a consumer group: options left out get mqadmin's defaults."""
    config = SubscriptionGroupConfig(**settings)  # type: ignore[arg-type]
    for address in await client.admin.put_group(config, **where):
        echo(f"create subscription group to {address} success.")
    echo(java_text(config))


@COMMANDS.add("deleteSubGroup")
@where_options("Delete the group from")
@click.option("-g", "--groupName", "group", required=True, help="The group.")
@click.option("-r", "--removeOffset", "remove", type=bool, default=False, help="Forget its offsets too.")
async def delete_group(client: Client, where: Where, group: str, remove: bool) -> None:
    """Delete a consumer group; from a cluster, with its retry topic and its dead letters."""
    cluster = f" in cluster [{where['cluster']}]" if where["cluster"] else ""
    for address in await client.admin.delete_group(group, remove_offset=remove, **where):
        echo(f"delete subscription group [{group}] from broker [{address}]{cluster} success.")


@COMMANDS.add("getConsumerConfig")
@click.option("-g", "--groupName", "group", required=True, help="The group.")
async def consumer_config(client: Client, group: str) -> None:
    """Show the settings of a consumer group on every broker that has the group."""
    info = await client.admin.cluster_info()
    found = await client.admin.group_config(group)
    if not found:
        raise click.ClickException(f"no broker knows the group {group}")
    for name, data in sorted(info.broker_addr_table.items()):
        config = next((found[one] for one in data.broker_addrs.values() if one in found), None)
        if config is None:
            continue
        line = "=" * 29
        echo(f"{line}{data.cluster}:{name}{line}")
        for field, value in printed_fields(config):
            echo(f"{field:<40}=  {java_text(value)}")


# --- progress ---


@COMMANDS.add("consumerProgress")
@click.option("-g", "--groupName", "group", help="One group, queue by queue.")
@click.option(
    "-s", "--showClientIP", "show_client", type=bool, default=False, help="Show the owner of each queue."
)
async def consumer_progress(client: Client, group: str | None, show_client: bool) -> None:
    """Show the progress of all groups, or of a group in every queue."""
    if group is None:
        await _list_groups(client)
        return
    progress = await client.admin.consume_stats(group)
    owners = await _owners(client, group) if show_client else None
    _print_progress(progress, owners)


def _print_progress(progress: GroupProgress, owners: dict[MessageQueue, str] | None) -> None:
    widths = [-64, -32, -4, -20, -20, -20, -20]
    heads = ["#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", "#Diff", "#LastTime"]
    if owners is not None:
        widths.insert(5, -20)
        heads.insert(5, "#Client IP")
    row(widths, *heads)
    for one in progress.queues:
        queue = one.message_queue
        values: list[object] = [queue.topic, queue.broker_name, queue.queue_id]
        values += [one.broker_offset, one.consumer_offset]
        if owners is not None:
            values.append(owners.get(queue, "N/A"))
        row(widths, *values, one.lag, seconds_stamp(one.last_timestamp, otherwise="N/A"))
    echo()
    echo(f"Consume TPS: {progress.consume_tps:.2f}")
    echo(f"Diff Total: {progress.lag}")


async def _owners(client: Client, group: str) -> dict[MessageQueue, str]:
    """The member of each queue: the address in its client id."""
    owners: dict[MessageQueue, str] = {}
    try:
        members = await client.admin.consumer_connection(group)
    except ConsumerNotOnline:
        return owners
    for member in members.connection_set:
        info = await client.admin.consumer_running_info(group, member.client_id)
        owners.update(dict.fromkeys(info.mq_table, member.client_id.partition("@")[0]))
    return owners


async def _list_groups(client: Client) -> None:
    widths = (-64, -6, -24, -5, -14, -7, -12)
    row(widths, "#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total")
    for group in await _known_groups(client):
        tps, lag = 0.0, 0
        try:
            progress = await client.admin.consume_stats(group)
            tps, lag = progress.consume_tps, progress.lag
        except ConsumerNotOnline:
            pass
        try:
            members: ConsumerConnection | None = await client.admin.consumer_connection(group)
        except ConsumerNotOnline:
            members = None
        row(widths, group, *_described(members), int(tps), lag)


async def _known_groups(client: Client) -> list[str]:
    """The groups that have a retry topic: groups that have consumed before."""
    topics = await client.admin.topics()
    return [topic.removeprefix(RETRY_PREFIX) for topic in topics if topic.startswith(RETRY_PREFIX)]


def _described(members: ConsumerConnection | None) -> tuple[int, str, str, str]:
    """(count, version, type, model) of a group."""
    if members is None or not members.connection_set:
        return 0, "OFFLINE", "", ""
    version = version_name(min(one.version for one in members.connection_set))
    if members.consume_type == "CONSUME_ACTIVELY":
        return len(members.connection_set), version, "PULL", ""
    return len(members.connection_set), version, "PUSH", members.message_model or ""


# --- members ---


@COMMANDS.add("consumerStatus")
@click.option("-g", "--consumerGroup", "group", required=True, help="The group.")
@click.option("-i", "--clientId", "client_id", help="Only this member: print its report.")
@click.option("-b", "--brokerAddr", "broker", default="", help="Ask this broker.")
@click.option("-s", "--jstack", "stack", is_flag=True, help="Include the stacks of its threads or tasks.")
async def consumer_status(
    client: Client, group: str, client_id: str | None, broker: str, stack: bool
) -> None:
    """Show the state of a group's members.

    Without -i, each member's answer goes into a file below a folder of the current folder, and the members
    are compared: equal subscriptions, hanging members.
    """
    if client_id:
        info = await client.admin.consumer_running_info(group, client_id, broker=broker, stack=stack)
        echo(running_text(info), nl=False)
        return
    members = await client.admin.consumer_connection(group, broker=broker)
    infos = await _write_infos(client, group, members, broker, stack)
    echo()
    if not same_subscriptions(infos.values()):
        echo("WARN: Different subscription in the same group of consumer!!!")
        return
    echo("Same subscription in the same group of consumer")
    echo()
    echo("Rebalance OK")
    for name, info in sorted(infos.items()):
        for one in stuck_queues(info, wall_clock_ms()):
            echo(stuck_text(name, one))


async def _write_infos(
    client: Client, group: str, members: ConsumerConnection, broker: str, stack: bool
) -> dict[str, ConsumerRunningInfo]:
    widths = (-10, -40, -20, -40)
    row(widths, "#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile")
    folder = pathlib.Path(str(wall_clock_ms()))
    infos: dict[str, ConsumerRunningInfo] = {}
    for index, member in enumerate(members.connection_set, 1):
        try:
            info = await client.admin.consumer_running_info(
                group, member.client_id, broker=broker, stack=stack
            )
        except RmqError as error:
            echo(f"rmq: {member.client_id}: {error}", err=True)
            continue
        infos[member.client_id] = info
        path = folder / re.sub(r"[^\w.@#-]", "_", member.client_id)  # a client chooses its id
        folder.mkdir(exist_ok=True)
        path.write_text(running_text(info), "utf-8")
        row(widths, index, member.client_id, version_name(member.version), path)
    return infos


@COMMANDS.add("startMonitoring")
@click.option("--rounds", type=COUNT, help="Number of rounds.  [default: no limit]")
async def monitor(client: Client, rounds: int | None) -> None:
    """Watch all groups, every minute: the backlog of each, and hanging members."""
    import trio

    done = 0
    while rounds is None or done < rounds:
        if done:
            await trio.sleep(ROUND_SECONDS)
        for group in await _known_groups(client):
            try:
                await _watch(client, group)
            except (ConsumerNotOnline, NoRoute):
                continue
        done += 1


async def _watch(client: Client, group: str) -> None:
    progress = await client.admin.consume_stats(group)
    members = await client.admin.consumer_connection(group)
    for topic in sorted({one.message_queue.topic for one in progress.queues}):
        lags = [one.lag for one in progress.queues if one.message_queue.topic == topic]
        echo(
            f"[MONITOR] [NOTIFY] reportUndoneMsgs: UndoneMsgs [consumerGroup={group}, topic={topic}, "
            f"undoneMsgsTotal={sum(lags)}, undoneMsgsSingleMQ={max(lags)}]"
        )
    infos = {
        member.client_id: await client.admin.consumer_running_info(group, member.client_id)
        for member in members.connection_set
    }
    if not same_subscriptions(infos.values()):
        echo(f"[MONITOR] [NOTIFY] ConsumerGroup: {group}, Subscription different")
    for name, info in infos.items():
        for one in stuck_queues(info, wall_clock_ms()):
            echo(f"[MONITOR] [NOTIFY] ConsumerGroup: {group}, ClientId: {name}, {stuck_text(name, one)}")


# --- offsets ---


@COMMANDS.add("cloneGroupOffset")
@click.option("-s", "--srcGroup", "source", required=True, help="The group to copy from.")
@click.option("-d", "--destGroup", "destination", required=True, help="The group that gets the offsets.")
@click.option("-t", "--topic", required=True, help="The topic.")
@click.option(
    "-o", "--offline", type=bool, default=True, help="Also when the source does not subscribe to it."
)
async def clone_offsets(client: Client, source: str, destination: str, topic: str, offline: bool) -> None:
    """Give a group the offsets that another has in a topic."""
    await client.admin.consume_stats(source)  # reports when there is nothing to copy
    await client.admin.clone_offsets(source, destination, topic, unsubscribed=offline)
    echo(f"clone group offset success. srcGroup[{source}], destGroup=[{destination}], topic[{topic}]")


@COMMANDS.add("resetOffsetByTime")
@click.option("-g", "--group", required=True, help="The group.")
@click.option("-t", "--topic", required=True, help="The topic.")
@click.option(
    "-s",
    "--timestamp",
    callback=as_time_or_now,
    required=True,
    help="now, ms since 1970 or yyyy-MM-dd#HH:mm:ss:SSS.",
)
@click.option("-f", "--force", type=bool, default=True, help="false: only ever back, never forward.")
@click.option("-c", "--cplus", "cpp", is_flag=True, help="For members written in C++.")
async def reset_offset(
    client: Client, group: str, topic: str, timestamp: int, force: bool, cpp: bool
) -> None:
    """Set a group to a time. Connected members continue from the new offsets at once."""
    done = await client.admin.reset_offset(group, topic, timestamp, force=force, cpp=cpp)
    echo(
        f"rollback consumer offset by specified group[{group}], topic[{topic}], force[{java_text(force)}], "
        f"timestamp(string)[{timestamp}], timestamp(long)[{timestamp}]"
    )
    _print_resets(done)


@COMMANDS.add("skipAccumulatedMessage")
@click.option("-g", "--group", required=True, help="The group.")
@click.option("-t", "--topic", required=True, help="The topic.")
@click.option("-f", "--force", type=bool, default=True, help="false: only ever back, never forward.")
async def skip_accumulated(client: Client, group: str, topic: str, force: bool) -> None:
    """Set a group to the end of a topic: it skips its unconsumed messages for good."""
    _print_resets(await client.admin.skip_accumulated(group, topic, force=force))


def _print_resets(done: list[OffsetReset]) -> None:
    widths = (-40, -40, -40)
    row(widths, "#brokerName", "#queueId", "#offset")
    for one in done:
        row(widths, one.message_queue.broker_name, one.message_queue.queue_id, one.new_offset)
