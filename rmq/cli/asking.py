"""What the commands of `rmq topic`, `group`, `msg`, `cluster` and `broker` share: ask the cluster, ask the
person, name a part of the cluster."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from rmq.cli.output import echo
from rmq.cli.status import EXIT_FAILED
from rmq.cli.target import Target, run

if TYPE_CHECKING:
    from rmq.client.admin import Admin

T = TypeVar("T")

PERM_READ: Final = 4
PERM_WRITE: Final = 2


def ask(target: Target, work: Callable[[Admin], Awaitable[T]]) -> T:
    """What `work` finds out over an administrator's client; errors end the command, see `target.run`."""

    async def asking() -> T:
        async with target.connect() as client:
            return await work(client.admin)

    return run(asking)


def part_options(command: Callable[..., T]) -> Callable[..., T]:
    """Adds -c CLUSTER and -b BROKER: arguments `cluster` and `broker`, empty where not given."""
    cluster = click.option("-c", "--cluster", default="", help="Only this cluster. [default: all]")
    broker = click.option("-b", "--broker", default="", help="Only this broker: its name or address.")
    return cluster(broker(command))


def yes_option(command: Callable[..., T]) -> Callable[..., T]:
    """Adds --yes for commands that ask before they destroy something."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(command)


def agree(yes: bool, question: str) -> None:
    """Asks, unless `yes`; ends the command with 1 when the answer is no, or when nobody can answer."""
    if yes:
        return
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        refuse("nothing was changed: nobody answered; --yes answers for you")
    if not agreed:
        refuse("nothing was changed")


def refuse(text: str) -> NoReturn:
    """Says why it was not done and ends with 1."""
    echo(f"rmq: {text}", err=True)
    sys.exit(EXIT_FAILED)


def as_perm(context: click.Context, parameter: click.Parameter, given: str | None) -> int | None:
    """``rw``, ``r``, ``w``, ``none`` or RocketMQ's number as a permission."""
    words = {"rw": 6, "r": 4, "w": 2, "none": 0, "6": 6, "4": 4, "2": 2, "0": 0}
    if given is None:
        return None
    if given not in words:
        raise click.BadParameter("rw, r, w or none")
    return words[given]


def perm_text(perm: int) -> str:
    """A permission as ``rw``, ``r``, ``w`` or ``none``."""
    return ("r" if perm & PERM_READ else "") + ("w" if perm & PERM_WRITE else "") or "none"


def done(what: str, addresses: Any) -> None:
    """Says what was done, and at which servers."""
    echo(f"{what} at {', '.join(addresses) or 'no broker'}")
