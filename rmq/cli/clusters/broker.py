"""`rmq broker status|config|handover|...`: administer running brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rmq.cli.clusters.controller import CONTROLLERS, hand_over
from rmq.cli.clusters.placement import print_progress
from rmq.cli.output import Format, clock_text, echo, output_option, refuse, show
from rmq.cli.target import (
    Target,
    confirm,
    part_options,
    report_done,
    run_admin,
    target_options,
    yes_option,
)
from rmq.cli.values import as_duration, pairs
from rmq.printable import counted

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.protocol.bodies import BrokerStatsData

BROKER = click.argument("broker")
BROKERS = click.argument("brokers", nargs=-1, required=True, metavar="BROKER...")


@click.group("broker")
def operations() -> None:
    """Administer running brokers. BROKER is a name, which stands for its master, or an address."""


@operations.command()
@BROKER
@output_option
@target_options
def status(target: Target, broker: str, output: Format) -> None:
    """Show the metrics of a broker, under RocketMQ's names."""

    async def work(admin: Admin) -> dict[str, str]:
        return await admin.broker_runtime(broker)

    show(run_admin(target, work), output)


@operations.group()
def config() -> None:
    """Show or change the settings of brokers."""


@config.command("get")
@BROKER
@click.argument("keys", nargs=-1)
@output_option
@target_options
def get_config(target: Target, broker: str, keys: tuple[str, ...], output: Format) -> None:
    """Show all settings of a broker, or the named ones."""

    async def work(admin: Admin) -> dict[str, str]:
        return await admin.broker_config(broker)

    found = run_admin(target, work)
    unknown = [key for key in keys if key not in found]
    if unknown:
        refuse(
            f"broker {broker} has no setting {', '.join(unknown)}; `rmq broker config get {broker}` lists all"
        )
    show({key: found[key] for key in keys or sorted(found)}, output)


@config.command("set")
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE...")
@part_options
@target_options
def set_config(target: Target, changes: tuple[str, ...], cluster: str, broker: str) -> None:
    """Change settings of a broker (-b), a cluster's masters (-c), or all masters, until their next start."""
    settings = {key.strip(): value.strip() for key, value in pairs(changes, option="KEY=VALUE").items()}

    async def work(admin: Admin) -> list[str]:
        return await admin.update_broker_config(settings, cluster=cluster, broker=broker)

    report_done(", ".join(changes), run_admin(target, work))


@operations.command()
@click.option("--queues", is_flag=True, help="Files of queues without messages.")
@click.option("--topics", is_flag=True, help="Queues of topics that do not exist any more.")
@click.option("--logs", is_flag=True, help="Log files that are past their time.")
@yes_option
@part_options
@target_options
def clean(
    target: Target, queues: bool, topics: bool, logs: bool, yes: bool, cluster: str, broker: str
) -> None:
    """Remove files that are no longer needed, of a broker (-b), of a cluster (-c), or of all brokers."""
    if not (queues or topics or logs):
        raise click.UsageError("choose what to clean: --queues, --topics, --logs")
    confirm(yes, f"Remove such files from {broker or cluster or 'all brokers'}?")

    async def work(admin: Admin) -> list[str]:
        steps = [
            step
            for settings, step in (
                (queues, admin.clean_expired_queues),
                (topics, admin.clean_unused_topics),
                (logs, admin.delete_expired_logs),
            )
            if settings
        ]
        addresses: list[str] = []
        for step in steps:
            addresses = await step(cluster=cluster, broker=broker)
        return addresses

    report_done("cleaned", run_admin(target, work))


@operations.command()
@click.argument("name")
@yes_option
@target_options
def forget(target: Target, name: str, yes: bool) -> None:
    """Forget a broker that will not come back, so that `rmq doctor` does not miss it. NAME is its brokerName.

    Running brokers of the name stay. A broker that was drained before it was stopped is forgotten already.
    """
    confirm(yes, f"Forget the missing brokers of the name {name}?")
    found = run_admin(target, lambda admin: admin.forget_missing(name))
    if not any(found.values()):
        refuse(f"no name server misses a broker of the name {name}; `rmq doctor` shows missing brokers")
    echo(f"{name}: {counted(max(found.values()), 'missing broker')} forgotten")


@operations.command("wipe-write")
@BROKER
@yes_option
@target_options
def wipe_write(target: Target, broker: str, yes: bool) -> None:
    """Take the write permission from all topics of a broker, so that producers leave it."""
    confirm(yes, f"Take the write permission from all topics of {broker}?")
    _perm(target, broker, run_admin(target, lambda admin: admin.wipe_write_perm(broker)))


@operations.command("add-write")
@BROKER
@target_options
def add_write(target: Target, broker: str) -> None:
    """Give the write permission back to all topics of a broker."""
    _perm(target, broker, run_admin(target, lambda admin: admin.add_write_perm(broker)))


@operations.command("drain")
@BROKERS
@click.option(
    "--timeout", callback=as_duration, default="10m", show_default=True, help="How long to wait at most."
)
@click.option("--no-wait", is_flag=True, help="Take the permission and return.")
@yes_option
@target_options
def drain_command(target: Target, brokers: tuple[str, ...], timeout: int, no_wait: bool, yes: bool) -> None:
    """Stop sends to brokers, and wait until groups have consumed all of their messages.

    All brokers of `rmq broker --processes` with brokerName=b are 'b-*'. The command sets brokerPermission=4,
    which a broker keeps over restarts and sends to name servers with every registration: new topics and
    groups do not change it. Status 1 when messages are left.
    """
    from rmq.operate.placement import drain, matching

    named = run_admin(target, lambda admin: matching(admin, brokers))
    text = " ".join(named)
    confirm(yes, f"Let nothing be sent to {text} any more?")
    left = run_admin(
        target, lambda admin: drain(admin, named, 0 if no_wait else timeout / 1000, print_progress)
    )
    if left:
        refuse(f"{text}: no messages are taken now, but: {left}; `rmq broker undrain {text}` takes this back")
    echo(f"{text} {'is' if len(named) == 1 else 'are'} drained: stop, or `rmq broker undrain {text}`")


@operations.command("undrain")
@BROKERS
@target_options
def undrain_command(target: Target, brokers: tuple[str, ...]) -> None:
    """Allow sends to brokers again: brokerPermission=6."""

    from rmq.operate.placement import undrain

    done = run_admin(target, lambda admin: undrain(admin, brokers))
    report_done(f"{' '.join(brokers)}: messages are taken again", done)


@operations.command()
@BROKER
@click.option("--to", "number", type=click.IntRange(1), help="The replica; else the fullest in sync.")
@click.option(
    "--timeout", callback=as_duration, default="30s", show_default=True, help="How long to wait at most."
)
@CONTROLLERS
@target_options
def handover(target: Target, broker: str, number: int | None, timeout: int, controllers: str) -> None:
    """Move the master of BROKER, a set with controllers, to another in-sync replica, and wait for it.

    The master accepts no more messages, hands over when all of its messages are in sync, and becomes a slave.
    Sends wait for the new master, mostly less than a second, and continue; no message is lost.
    """
    hand_over(target, controllers, broker, number or 0, timeout / 1000)


def _perm(target: Target, broker: str, counts: dict[str, int]) -> None:
    if not any(counts.values()):
        refuse(f"no topic of broker {broker} was changed; `rmq cluster list` shows the names there are")
    for address, count in counts.items():
        echo(f"{counted(count, 'topic')} of {broker} changed at {address}")


@operations.command()
@BROKER
@click.argument("name")
@click.argument("key")
@output_option
@target_options
def stats(target: Target, broker: str, name: str, key: str, output: Format) -> None:
    """Show a counter over the last minute, hour and day.

    NAME is TOPIC_PUT_NUMS, TOPIC_PUT_SIZE (KEY a topic), GROUP_GET_NUMS, GROUP_GET_SIZE, SNDBCK_PUT_NUMS (KEY
    topic@group) or BROKER_PUT_NUMS, BROKER_GET_NUMS (KEY the cluster's name).
    """

    async def work(admin: Admin) -> BrokerStatsData:
        return await admin.broker_stats(broker, name, key)

    found = run_admin(target, work)
    windows = {"minute": found.stats_minute, "hour": found.stats_hour, "day": found.stats_day}
    show([{"last": last, "sum": one.sum, "tps": one.tps} for last, one in windows.items()], output)


@operations.command()
@BROKER
@output_option
@target_options
def connections(target: Target, broker: str, output: Format) -> None:
    """Show the producers and consumers that are connected to a broker."""
    from rmq.operate import members

    rows = [
        {
            "kind": one.kind,
            "group": one.group,
            "client_id": one.client_id,
            "address": one.address,
            "language": one.language,
            "version": one.version,
            "last_heartbeat": clock_text(one.seen_ms),
        }
        for one in run_admin(target, lambda admin: members.connections(admin, broker))
    ]
    show(rows, output)
