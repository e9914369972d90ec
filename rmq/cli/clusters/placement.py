"""`rmq topic move`, `rmq cluster plan` and `balance`: the placement of topics on brokers, proposals for it,
and moves."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from attrs import asdict

from rmq.cli.completion import complete_topic
from rmq.cli.output import EXIT_FAILED, Format, echo, fail, output_option, progress_bar, refuse, show
from rmq.cli.target import Target, confirm, run_admin, target_options, yes_option
from rmq.cli.values import as_duration
from rmq.errors import RmqError
from rmq.printable import counted

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.operate.balance import PlannedMove


def print_progress(line: str) -> None:
    """Print a line about the progress of a long work, on standard error."""
    echo(line, err=True)


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.option("--from", "source", required=True, metavar="BROKER", help="Where it is.")
@click.option("--to", "goal", required=True, metavar="BROKER", help="The broker that gets the topic.")
@click.option(
    "--timeout", callback=as_duration, default="10m", show_default=True, help="How long to wait at most."
)
@click.option("--no-wait", is_flag=True, help="Let new messages go to the new broker, and return.")
@click.option("--delete", is_flag=True, help="Delete it at the old broker, with all messages there.")
@yes_option
@target_options
def move(
    target: Target, topic: str, source: str, goal: str, timeout: int, no_wait: bool, delete: bool, yes: bool
) -> None:
    """Move a topic from a broker to another, without losing or holding up a message.

    The new broker gets the topic, with its queues and groups, and the old broker takes no more messages of
    the topic: producers follow within 30 s. Then the command waits until every group has consumed the
    messages at the old broker. The messages stay readable until their retention ends, or --delete. Keys of an
    ordered topic go to other queues. Status 1 when messages are left; the same command continues in this
    case.
    """
    if delete and no_wait:
        refuse("--delete needs every group to have consumed its backlog: leave --no-wait out")
    from rmq.operate.placement import moved

    confirm(yes, f"Move topic {topic} from {source} to {goal}?")
    seconds = 0.0 if no_wait else timeout / 1000
    work = partial(
        moved,
        topic=topic,
        source=source,
        goal=goal,
        seconds=seconds,
        delete=delete,
        report=print_progress,
    )
    echo(run_admin(target, work))


@click.command()
@click.argument("cluster", default="")
@output_option
@target_options
def plan(target: Target, cluster: str, output: Format) -> None:
    """Propose moves of topics so that the masters of CLUSTER, or all, get about as many messages each.

    The command counts the stored messages, and changes nothing: `rmq topic move` does. A topic that is on all
    brokers is spread by its producers already.
    """
    from rmq.operate.placement import planned

    counts = run_admin(target, lambda admin: _counts(admin, cluster))
    if not counts:
        refuse(f"no master of cluster {cluster or 'any'}; `rmq cluster list` shows all clusters")
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
        echo(f"{broker}: {counted(totals[broker], 'message')}, {after[broker]} after the moves", err=True)
    if rows or output != "table":
        show(rows, output)
    else:
        echo("nothing to move")


@click.command()
@click.argument("cluster", default="")
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=pathlib.Path),
    default="rmq-balance.json",
    show_default=True,
    help="File of the moves and their progress; a run continues the moves in it.",
)
@click.option(
    "--timeout",
    callback=as_duration,
    default="10m",
    show_default=True,
    help="How long to wait for each topic.",
)
@click.option(
    "--parallel", type=click.IntRange(1, 64), default=4, show_default=True, help="Topics at a time."
)
@click.option("--in-order", is_flag=True, help="Keep the order of every topic, not of ordered topics only.")
@click.option("--delete", is_flag=True, help="Delete each topic at its old broker, with all messages there.")
@click.option("--dry-run", is_flag=True, help="Show the moves that would be done, and change nothing.")
@yes_option
@output_option
@target_options
def balance(
    target: Target,
    cluster: str,
    state: pathlib.Path,
    timeout: int,
    parallel: int,
    in_order: bool,
    delete: bool,
    dry_run: bool,
    yes: bool,
    output: Format,
) -> None:
    """Move topics until the masters of CLUSTER, or all, have about as many messages each.

    The moves are those of `rmq cluster plan`, each done as by `rmq topic move`. Moves and their progress are
    kept in the file --state: after Ctrl-C, a crash or a time-out the same command continues. For an ordered
    topic, messages at the new broker are delivered only after all groups have consumed those at the old
    broker. Status 1 when moves are left.
    """
    from rmq.operate.balance import BalancePlan
    from rmq.operate.balance import balance as work_on
    from rmq.operate.placement import planned

    try:
        plan = BalancePlan.load(state)
        is_new = plan is None
        if plan is None:
            plan = BalancePlan.of(state, planned(run_admin(target, lambda admin: _counts(admin, cluster))))
    except OSError as error:
        refuse(f"{state} cannot be read: {error}")
    except RmqError as error:
        fail(error)
    left = plan.left
    if not plan.moves or not left:
        echo("nothing to move" if is_new else f"all moves of {state} are done; remove the file to plan again")
        return
    if dry_run:
        show([asdict(one) for one in plan.moves], output)
        return
    what = "Move" if is_new else f"Continue {state}: move"
    confirm(yes, f"{what} {counted(len(left), 'topic')}: {_listed(left)}?")

    async def work(admin: Admin) -> None:
        with progress_bar("moving topics", len(left)) as step:
            await work_on(
                *(admin, plan, timeout / 1000),
                delete=delete,
                in_order=in_order,
                parallel=parallel,
                report=print_progress,
                step=step,
            )

    run_admin(target, work)
    show([asdict(one) for one in plan.moves], output)
    if still := plan.left:
        echo(f"{counted(len(still), 'move')} left: the same command continues", err=True)
        sys.exit(EXIT_FAILED)


def _listed(moves: Sequence[PlannedMove]) -> str:
    texts = [f"{one.topic} from {one.source} to {one.goal}" for one in moves[:5]]
    return ", ".join(texts) + (f" and {len(moves) - 5} more" if len(moves) > 5 else "")


async def _counts(admin: Admin, cluster: str) -> dict[str, dict[str, int]]:
    from rmq.operate.placement import message_counts

    with progress_bar("looking at topics", None) as step:
        return await message_counts(admin, cluster, step)
