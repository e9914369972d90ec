"""The commands of `rmq admin` about topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rmq.cli.admin.command import COUNT, Commands, Where, java_text, row, stamp, where_options
from rmq.cli.output import echo, echo_json
from rmq.cli.target import confirm
from rmq.client.consume.rebalance import averagely
from rmq.client.session.routes import Route
from rmq.errors import NoRoute
from rmq.message import DLQ_PREFIX, RETRY_PREFIX
from rmq.operate.topics import unread_text
from rmq.protocol.bodies import QueueData, TopicConfig, TopicRouteData
from rmq.protocol.codes import PERM_READ, PERM_WRITE, TOPIC_UNIT, TOPIC_UNIT_SUB

if TYPE_CHECKING:
    from rmq.client.client import Client

COMMANDS = Commands()

topic_option = click.option("-t", "--topic", required=True, help="The topic.")
perm = click.IntRange(0, 7)


@COMMANDS.add("updateTopic")
@where_options("Make the topic on")
@topic_option
@click.option("-r", "--readQueueNums", "read_queues", type=COUNT, default=8, help="Queues to read.")
@click.option("-w", "--writeQueueNums", "write_queues", type=COUNT, default=8, help="Queues to write.")
@click.option("-p", "--perm", type=perm, default=PERM_READ | PERM_WRITE, help="2 write, 4 read, 6 both.")
@click.option("-o", "--order", type=bool, default=False, help="An ordered topic: true or false.")
@click.option("-u", "--unit", type=bool, default=False, help="A unit's topic: true or false.")
@click.option("-s", "--hasUnitSub", "unit_sub", type=bool, default=False, help="Has units' subscriptions.")
@click.option("--yes", is_flag=True, help="Do not ask before unread messages are hidden.")
async def update_topic(
    client: Client,
    where: Where,
    topic: str,
    read_queues: int,
    write_queues: int,
    perm: int,
    **flags: bool,
) -> None:
    """Create a topic, or change it."""
    sys_flag = (TOPIC_UNIT if flags["unit"] else 0) | (TOPIC_UNIT_SUB if flags["unit_sub"] else 0)
    config = TopicConfig(
        topic, read_queues, write_queues, perm, topic_sys_flag=sys_flag, order=flags["order"]
    )
    hidden = unread_text(await client.admin.unread_beyond(topic, read_queues))
    if hidden:
        confirm(flags["yes"], f"Hide {hidden}? No consumer is given these queues then.")
    hides = flags["yes"] or bool(hidden)
    for address in await client.admin.put_topic(config, **where, hide_unread=hides):
        echo(f"create topic to {address} success.")
    if config.order:
        echo(f"set orderConf. isOrder=true, orderConf=[{await client.admin.order_conf(topic)}]")
    echo(java_text(config))


@COMMANDS.add("deleteTopic")
@topic_option
@click.option("-c", "--clusterName", "cluster", required=True, help="Delete it from this cluster.")
async def delete_topic(client: Client, topic: str, cluster: str) -> None:
    """Delete a topic, with its messages, from a cluster and from the name servers."""
    await client.admin.delete_topic(topic, cluster=cluster)
    echo(f"delete topic [{topic}] from cluster [{cluster}] success.")
    echo(f"delete topic [{topic}] from NameServer success.")


@COMMANDS.add("updateTopicPerm")
@where_options("Change the topic on")
@topic_option
@click.option("-p", "--perm", type=perm, required=True, help="2 write, 4 read, 6 both.")
async def update_topic_perm(client: Client, where: Where, topic: str, perm: int) -> None:
    """Change the permissions of a topic."""
    for address, before in (await client.admin.set_topic_perm(topic, perm, **where)).items():
        if before.perm == perm:
            echo("new perm equals to the old one!")
        else:
            echo(f"update topic perm from {before.perm} to {perm} in {address} success.")


@COMMANDS.add("topicRoute")
@topic_option
@click.option("-l", "--list", "as_list", is_flag=True, help="Print columns instead of JSON.")
async def topic_route(client: Client, topic: str, as_list: bool) -> None:
    """Show the route of a topic: its brokers and queues."""
    route = await client.admin.topic_route(topic)
    if as_list:
        _list_route(route)
    else:
        echo_json(route.to_value(), indent=1)


def _list_route(route: TopicRouteData) -> None:
    widths = (-45, -32, -50, -10, -11, -5)
    row(widths, "#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm")
    queues = {data.broker_name: data for data in route.queue_datas}
    read = write = 0
    for data in sorted(route.broker_datas, key=lambda data: data.broker_name):
        found = queues.get(data.broker_name, QueueData(data.broker_name))
        read, write = read + found.read_queue_nums, write + found.write_queue_nums
        row(
            widths,
            data.cluster,
            data.broker_name,
            data.broker_addrs,
            found.read_queue_nums,
            found.write_queue_nums,
            found.perm,
        )
    echo("-" * 158)
    row(widths, "Total:", len(queues), "", read, write, "")


@COMMANDS.add("topicStatus")
@topic_option
async def topic_status(client: Client, topic: str) -> None:
    """Show the ends of a topic's queues, and the times of their last messages."""
    widths = (-32, -4, -20, -20, -24)
    row(widths, "#Broker Name", "#QID", "#Min Offset", "#Max Offset", "  #Last Updated")
    for queue, ends in (await client.admin.topic_stats(topic)).items():
        updated = "  " + stamp(ends.last_update_timestamp)
        row(widths, queue.broker_name, queue.queue_id, ends.min_offset, ends.max_offset, updated)


@COMMANDS.add("topicClusterList")
@topic_option
async def topic_cluster_list(client: Client, topic: str) -> None:
    """Show the clusters that have a topic."""
    for cluster in await client.admin.topic_clusters(topic):
        echo(cluster)


@COMMANDS.add("topicList")
@click.option("-c", "--clusterModel", "with_clusters", is_flag=True, help="With clusters and groups.")
async def topic_list(client: Client, with_clusters: bool) -> None:
    """List all topics."""
    topics = await client.admin.topics()
    if not with_clusters:
        for topic in topics:
            echo(topic)
        return
    widths = (-20, -64, -64)
    row(widths, "#Cluster Name", "#Topic", "#Consumer Group")
    for topic in topics:
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            continue
        try:
            clusters = await client.admin.topic_clusters(topic)
            groups = await client.admin.groups_of_topic(topic)
        except NoRoute:  # names of brokers and clusters are topics too, and a broker may be away
            clusters, groups = [], []
        for group in groups or [""]:
            row(widths, (clusters or [""])[0], topic, group)


@COMMANDS.add("updateOrderConf")
@topic_option
@click.option(
    "-m", "--method", type=click.Choice(["put", "get", "delete"]), required=True, help="What to do."
)
@click.option("-v", "--orderConf", "conf", help="Queues, as broker:count;broker:count.")
async def update_order_conf(client: Client, topic: str, method: str, conf: str | None) -> None:
    """Read, write or delete the queues of an ordered topic at the name servers."""
    if method == "get":
        found = await client.admin.order_conf(topic)
        if found is None:
            raise click.ClickException(f"no orderConf of topic {topic} is at the name servers")
        echo(f"get orderConf success. topic=[{topic}], orderConf=[{found}]")
    elif method == "put":
        if not conf:
            raise click.UsageError("give -v with a value, such as broker-a:8;broker-b:8")
        await client.admin.put_order_conf(topic, conf)
        echo(f"update orderConf success. topic=[{topic}], orderConf=[{conf}]")
    else:
        await client.admin.delete_order_conf(topic)
        echo(f"delete orderConf success. topic=[{topic}]")


@COMMANDS.add("allocateMQ")
@topic_option
@click.option("-i", "--ipList", "ips", required=True, help="Addresses, separated by commas.")
async def allocate_queues(client: Client, topic: str, ips: str) -> None:
    """Show the division of a topic's queues among members at these addresses."""
    queues = Route.of(topic, await client.admin.topic_route(topic)).subscribe_queues
    members = [ip.strip() for ip in ips.split(",") if ip.strip()]
    result: dict[str, Any] = {}
    for member in members:
        mine = averagely(sorted(queues), members, member)
        result[member] = [
            {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
            for queue in mine
        ]
    echo_json({"result": result}, indent=None, separators=(",", ":"))


@COMMANDS.add("statsAll")
@click.option("-a", "--activeTopic", "active", is_flag=True, help="Only topics with messages today.")
@click.option("-t", "--topic", default="", help="Only this topic.")
async def stats_all(client: Client, active: bool, topic: str) -> None:
    """Show rates and lag of all topics and the groups that read them."""
    widths = (-64, -64, 12, 11, 11, 14, 14)
    heads = ("#Accumulation", "#InTPS", "#OutTPS", "#InMsg24Hour", "#OutMsg24Hour")
    row(widths, "#Topic", "#Consumer Group", *heads)
    for one in await (client.admin.topic_rates(topic) if topic else client.admin.all_rates()):
        if active and not one.in_24h and not one.out_24h:
            continue
        out = (one.out_tps, one.in_24h, one.out_24h) if one.group else ("", one.in_24h, "NO_CONSUMER")
        row(widths, one.topic, one.group, one.lag, one.in_tps, *out)
