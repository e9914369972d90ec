"""`rmq topic move` and `rmq cluster plan`: on which broker a topic is, and which would better be moved."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rmq.cli.completion import complete_topic
from rmq.cli.output import Format, echo, output_option, progress_bar, refuse, show
from rmq.cli.target import Target, confirm, run_admin, target_options, yes_option
from rmq.cli.values import as_duration

if TYPE_CHECKING:
    from rmq.client.admin import Admin


def tell(line: str) -> None:
    """Print a line on the progress of a long work, on standard error."""
    echo(line, err=True)


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.option("--from", "source", required=True, metavar="BROKER", help="Where it is.")
@click.option("--to", "goal", required=True, metavar="BROKER", help="Where it is to be.")
@click.option(
    "--timeout", callback=as_duration, default="10m", show_default=True, help="How long to wait at most."
)
@click.option("--no-wait", is_flag=True, help="Let new messages go to the new broker, and return.")
@click.option("--delete", is_flag=True, help="Delete it at the old broker, with what retention keeps there.")
@yes_option
@target_options
def move(
    target: Target, topic: str, source: str, goal: str, timeout: int, no_wait: bool, delete: bool, yes: bool
) -> None:
    """Move a topic from a broker to another, without losing or holding up a message.

    The new broker gets the topic, with its queues and groups, and the old broker takes no more messages of
    the topic: producers follow within 30 s. Then the command waits until every group has consumed the
    messages at the old broker. The messages stay readable until their retention ends, or --delete. Keys of an
    ordered topic go to other queues. Status 1 when something is left; the same command goes on in this case.
    """
    if delete and no_wait:
        refuse("--delete deletes only what all groups have consumed: leave --no-wait out")
    from rmq.operate.placement import moved

    confirm(yes, f"Move topic {topic} from {source} to {goal}?")
    seconds = 0.0 if no_wait else timeout / 1000
    work = partial(moved, topic=topic, source=source, goal=goal, seconds=seconds, delete=delete, tell=tell)
    echo(run_admin(target, work))


@click.command()
@click.argument("cluster", default="")
@output_option
@target_options
def plan(target: Target, cluster: str, output: Format) -> None:
    """Say which topics to move so that the masters of CLUSTER, or all, get about as many messages each.

    The command counts the stored messages, and changes nothing: `rmq topic move` does. A topic that is on all
    brokers is spread by its producers already.
    """
    from rmq.operate.placement import planned

    counts = run_admin(target, lambda admin: _counts(admin, cluster))
    if not counts:
        refuse(f"no master of cluster {cluster or 'any'}; `rmq cluster list` shows those there are")
    moves = planned(counts)
    totals = {broker: sum(topics.values()) for broker, topics in counts.items()}
    after = dict(totals)
    rows: list[dict[str, Any]] = []
    for one in moves:
        after[one.source] -= one.messages
        after[one.goal] += one.messages
        command = f"rmq topic move {one.topic} --from {one.source} --to {one.goal}"
        rows.append({"topic": one.topic, "messages": one.messages, "command": command})
    for broker in sorted(totals):
        echo(f"{broker}: {totals[broker]} messages, {after[broker]} after the moves", err=True)
    if rows or output != "table":
        show(rows, output)
    else:
        echo("nothing to move")


async def _counts(admin: Admin, cluster: str) -> dict[str, dict[str, int]]:
    from rmq.operate.placement import message_counts

    with progress_bar("looking at topics", None) as step:
        return await message_counts(admin, cluster, step)
