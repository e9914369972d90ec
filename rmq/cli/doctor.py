"""`rmq doctor`: look at a cluster from here; say what is wrong and what to do."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import click
from attrs import evolve

from rmq.cli.acl import differences
from rmq.cli.findings import BrokerFacts, Facts, GroupFacts, diagnose
from rmq.cli.output import Format, Step, echo, output_option, progress_bar, show
from rmq.cli.status import EXIT_FAILED
from rmq.cli.target import Target, run, target_options
from rmq.clock import wall_clock_ms

if TYPE_CHECKING:
    from rmq.client.admin import Admin

PARTS = 4
VIP_PORT_DISTANCE = 2


@click.command()
@click.option(
    "--lag",
    "limit",
    type=click.IntRange(0),
    default=10_000,
    show_default=True,
    help="Messages left that are wrong.",
)
@output_option
@target_options
def doctor(target: Target, limit: int, output: Format) -> None:
    """Look at a cluster from here; say what is wrong and what to do.

    It looks at name servers, brokers and their addresses, disks, clocks, settings, topics on one broker
    only, and groups. It changes nothing, and ends with 1 when something is wrong; notes are worth a look.
    """
    facts = run(_examine, target, limit)
    found = diagnose(facts)
    if found or output != "table":
        show(found, output)
    if output == "table":
        servers = f"{len(facts.name_servers)} name servers, {len(facts.brokers)} brokers"
        seen = f"{servers}, {len(facts.topics)} topics"
        wrong = sum(finding.level == "wrong" for finding in found)
        rest = len(found) - wrong
        echo(f"{seen}, {len(facts.groups)} groups: {wrong} wrong, {rest} to note", err=True)
    if any(finding.level == "wrong" for finding in found):
        sys.exit(EXIT_FAILED)


async def _examine(target: Target, limit: int) -> Facts:
    """Look at everything; what does not answer is a fact, not an error. Raises NoPermission."""
    facts = Facts(lag_limit=limit)
    with progress_bar("looking", PARTS) as step:
        answers = {address: await _name_server(target, address) for address in target.namesrv.split(";")}
        facts.name_servers = answers
        step(1)
        alive = [address for address, answer in answers.items() if isinstance(answer, list)]
        if alive:
            async with evolve(target, namesrv=";".join(alive)).connect() as client:
                await _cluster(client.admin, facts, step)
    return facts


async def _name_server(target: Target, address: str) -> list[str] | str:
    """The names of the brokers that a name server knows, or why it did not answer. Raises NoPermission."""
    from rmq.errors import NoPermission, RmqError

    try:
        async with evolve(target, namesrv=address).connect() as client:
            return sorted((await client.admin.cluster_info()).broker_addr_table)
    except NoPermission:
        raise  # nothing is wrong there
    except RmqError as error:
        return str(error)


async def _cluster(admin: Admin, facts: Facts, step: Step) -> None:
    table = (await admin.cluster_info()).broker_addr_table
    for name, data in sorted(table.items()):
        for broker_id, address in sorted(data.broker_addrs.items()):
            facts.brokers.append(await _broker(admin, BrokerFacts(data.cluster, name, broker_id, address)))
    step(1)
    masters = [one for one in facts.brokers if one.is_master and not one.error]
    topics: dict[str, list[str]] = {}
    groups: dict[str, GroupFacts] = {}
    for broker in masters:
        for topic in await admin.topic_configs(broker.address, system=False):
            topics.setdefault(topic, []).append(broker.name)
        for group in await admin.group_configs(broker.address, system=False):
            groups.setdefault(group, GroupFacts(group))
    facts.topics = topics
    if any(broker.config.get("aclEnable") == "true" for broker in facts.brokers):
        facts.account_differences = await _account_differences(admin)
    step(1)
    facts.groups = [await _group(admin, group) for group in groups.values()]
    step(1)


async def _broker(admin: Admin, broker: BrokerFacts) -> BrokerFacts:
    from rmq.errors import NoPermission, RmqError

    try:
        broker.asked_at = wall_clock_ms()
        broker.runtime = await admin.broker_runtime(broker.address)
        broker.config = await admin.broker_config(broker.address)
        broker.vip_error = await _vip_error(admin, broker)
    except NoPermission:
        raise  # who is no administrator cannot look, and would be told of faults that are none
    except RmqError as error:
        broker.error = str(error)
    return broker


async def _account_differences(admin: Admin) -> list[str]:
    """Where the servers that answer have other accounts than others."""
    from rmq.errors import RmqError

    found = {}
    for address in await admin.acl_servers():
        with contextlib.suppress(RmqError):  # a server that is away is told of elsewhere
            found[address] = await admin.acl_config(address)
    return differences(found)


async def _vip_error(admin: Admin, broker: BrokerFacts) -> str:
    """What stands between us and the broker's second port, which some Java clients prefer; else empty."""
    from rmq.errors import RmqError

    host, _, port = broker.address.rpartition(":")
    if broker.config.get("vipChannelEnabled") != "true" or broker.config.get("listenPort") != port:
        return ""  # a port that the system chose has none beside it
    try:
        await admin.broker_runtime(f"{host}:{int(port) - VIP_PORT_DISTANCE}")
    except RmqError as error:
        return str(error)
    return ""


async def _group(admin: Admin, group: GroupFacts) -> GroupFacts:
    """A group's lag, dead letters, members and what they subscribe to; `error` says what stopped the look."""
    from rmq.errors import ConsumerNotOnline, RmqError

    try:
        group.dead_letters = await _dead_letters(admin, group.name)
        with contextlib.suppress(ConsumerNotOnline):
            group.lag = sum(row.lag for row in await admin.consumer_progress(group.name))
        found = await admin.consumer_connection(group.name)
        group.members = len(found.connection_set)
        if group.members > 1:
            subscriptions = {
                one.client_id: await _subscriptions_of(admin, group.name, one.client_id)
                for one in found.connection_set
            }
            group.subscriptions = {member: wanted for member, wanted in subscriptions.items() if wanted}
    except ConsumerNotOnline:
        pass
    except RmqError as error:
        group.error = str(error)
    return group


async def _dead_letters(admin: Admin, group: str) -> int:
    from rmq.errors import NoRoute, TopicNotExist
    from rmq.message import dlq_topic

    try:
        stats = await admin.topic_stats(dlq_topic(group))
    except (NoRoute, TopicNotExist):
        return 0
    return sum(ends.max_offset - ends.min_offset for ends in stats.values())


async def _subscriptions_of(admin: Admin, group: str, client_id: str) -> dict[str, str]:
    """What a member says that it subscribes to; nothing when it does not answer."""
    from rmq.errors import RmqError

    try:
        info = await admin.consumer_running_info(group, client_id)
    except RmqError:
        return {}
    return {data.topic: data.sub_string for data in info.subscription_set}
