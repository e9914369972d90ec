"""`rmq controller status|elect|remove|add|drop`: administer the controllers, which elect the masters of
broker sets."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rmq.cli.output import EXIT_FAILED, Format, echo, output_option, refuse, show
from rmq.cli.target import Target, confirm, run, target_options, yes_option

if TYPE_CHECKING:
    from rmq.operate.controllers import ControlledSet, Controllers, ControllerState, Outcome, Replica
    from rmq.protocol.command import Command

T = TypeVar("T")

SECRET_VARIABLE: Final = "RMQ_CLUSTER_SECRET_FILE"
MEMBER_SECONDS: Final = 30.0
FORGETFUL: Final = (
    "it has lost its journal: drop it, and add it again with an empty folder (docs/runbooks.md)"
)
CONTROLLERS: Final = click.option(
    "--controllers",
    envvar="RMQ_CONTROLLERS",
    metavar="HOST:PORT;...",
    default="",
    help="The controllers. Default: the name servers, or the brokers' controllerAddr.",
)
BROKER: Final = click.argument("broker")
ADDRESS: Final = click.argument("address", metavar="ADDRESS")
NUMBER: Final = click.argument("number", type=click.IntRange(1))


@click.group("controller")
def operations() -> None:
    """Administer the controllers. BROKER is the name of a broker set, NUMBER a replica of the set, ADDRESS
    the host:port of a controller.

    Without --controllers the command asks the name servers, which may be controllers too, or else the
    controllers in the brokers' settings. Controllers with a clusterSecretFile and without accounts take
    changes only from commands with that file in RMQ_CLUSTER_SECRET_FILE.
    """


@operations.command()
@CONTROLLERS
@click.option("--all", "shows_all", is_flag=True, help="Each controller, in place of the broker sets.")
@output_option
@target_options
def status(target: Target, controllers: str, shows_all: bool, output: Format) -> None:
    """Show the broker sets: epoch, master, replicas in sync and alive. Ends with 1 for a fault: no leader, a
    controller that does not answer, a set without a master, a dead or left-over replica.

    `reach` is the end of a replica's log on its disk, `lives` is true if the replica was heard within a
    lease.
    """
    from rmq.operate.controllers import is_member
    from rmq.operate.diagnosis import findings_of_controllers

    states = run(_with, target, controllers, lambda found: found.states())
    leading = next((one for one in states if one.is_leading), None)
    if shows_all:
        columns = ("address", "member", "role", "leading", "leader", "term", "committed", "error")
        rows = [_controller_row(one, leading) | {"member": is_member(one, leading)} for one in states]
        show([{key: row.get(key) for key in columns} for row in rows], output, columns=columns)
    elif leading is not None:
        show([_row(one, replica) for one in leading.sets for replica in one.replicas], output)
    wrong = [one for one in findings_of_controllers(states) if one.level == "wrong"]
    for one in wrong:
        echo(f"rmq: {one.where}: {one.what}; {one.what_to_do}", err=True)
    if wrong:
        sys.exit(EXIT_FAILED)


def _controller_row(one: ControllerState, leading: ControllerState | None) -> dict[str, Any]:
    error: str | None = one.error or None
    if leading is not None and one.own_address in leading.forgetful:
        error = FORGETFUL
    if one.stopped:
        error = one.problem
    is_silent = bool(one.error)
    return {
        "address": one.address,
        "role": one.role,
        "leading": None if is_silent else one.is_leading,
        "leader": one.leader,
        "term": one.term,
        "committed": one.committed,
        "error": error,
    }


def _row(one: ControlledSet, replica: Replica) -> dict[str, Any]:
    return {
        "cluster": one.cluster,
        "broker": one.name,
        "epoch": one.epoch,
        "number": replica.number,
        "role": "master" if replica.number == one.master else "slave",
        "in_sync": replica.number in one.in_sync,
        "lives": replica.lives,
        "reach": replica.reach,
        "address": replica.address,
    }


@operations.command()
@BROKER
@NUMBER
@CONTROLLERS
@click.option(
    "--unclean",
    "is_unclean",
    is_flag=True,
    help="Elect a replica that is not in sync, if no in-sync replica lives: messages that it lacks are LOST.",
)
@yes_option
@target_options
def elect(target: Target, broker: str, number: int, controllers: str, is_unclean: bool, yes: bool) -> None:
    """Make an in-sync replica the next master of its set.

    The present master gets no further lease; the replica is elected when the last lease has ended.
    """
    if is_unclean:
        confirm(yes, f"Lose the acknowledged messages of {broker} that replica {number} lacks?")
    _operate(target, controllers, lambda found: found.elect(broker, number, is_unclean=is_unclean))


@operations.command()
@BROKER
@NUMBER
@CONTROLLERS
@yes_option
@target_options
def remove(target: Target, broker: str, number: int, controllers: str, yes: bool) -> None:
    """Forget a replica that will not come back. Removing the last replica removes the set."""
    confirm(yes, f"Forget replica {number} of {broker}?")
    _operate(target, controllers, lambda found: found.remove(broker, number))


@operations.command()
@ADDRESS
@CONTROLLERS
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(0),
    default=MEMBER_SECONDS,
    show_default=True,
    help="Seconds to wait until it has the log.",
)
@target_options
def add(target: Target, address: str, controllers: str, seconds: float) -> None:
    """Add a controller that was started with controllerJoins=true.

    The new controller gets the log first, and counts once its log is complete. Members change singly.
    """
    _operate(target, controllers, lambda found: found.add(address, seconds))


@operations.command()
@ADDRESS
@CONTROLLERS
@yes_option
@target_options
def drop(target: Target, address: str, controllers: str, yes: bool) -> None:
    """Remove a controller, alive or not. Afterwards stop it, and remove its folder.

    The leader may be dropped too: the remaining controllers elect another leader within a second or two.
    """
    confirm(yes, f"Drop the controller {address}?")
    _operate(target, controllers, lambda found: found.drop(address))


def hand_over(target: Target, controllers: str, broker: str, number: int, seconds: float) -> None:
    """Make another replica in sync the master of a set, wait, and print the result. Ends the command on
    failure."""
    _operate(target, controllers, lambda found: found.hand_over(broker, number, seconds))


def _operate(target: Target, controllers: str, work: Callable[[Controllers], Awaitable[Outcome]]) -> None:
    outcome = run(_with, target, controllers, work)
    if not outcome.is_done:
        refuse(outcome.text)
    echo(outcome.text)


async def _with(target: Target, controllers: str, work: Callable[[Controllers], Awaitable[T]]) -> T:
    """Call `work` with the given controllers; else with the name servers, and where these are not
    controllers, with the controllers in the brokers' settings. Addresses without a scheme get that of the
    name servers."""
    from rmq.config import parse_addresses
    from rmq.operate.controllers import NO_CONTROLLER, addresses_of, opened
    from rmq.remoting.address import with_scheme

    scheme, mark, _ = target.namesrv.partition("://")
    addresses = parse_addresses(controllers or target.namesrv, "controllers")
    if mark and "://" not in controllers:
        addresses = [with_scheme(one, scheme) for one in addresses]
    options: dict[str, Any] = {"credentials": target.credentials, "tls": target.tls, "sign": _signed}
    async with opened(addresses, **options) as found:
        if controllers or any(one.error != NO_CONTROLLER for one in await found.states()):
            return await work(found)
    async with target.connect() as client:
        named = await addresses_of(client.admin)
    if not named:
        refuse(
            "this cluster has no controllers: neither its name servers are any, nor do its brokers name some"
        )
    async with opened([with_scheme(one, scheme) if mark else one for one in named], **options) as found:
        return await work(found)


def _signed(request: Command) -> Command:
    """Sign with the secret of the cluster's servers, if RMQ_CLUSTER_SECRET_FILE names it."""
    from rmq.clock import wall_clock_ms
    from rmq.server.profile import cluster_secret

    secret = cluster_secret(os.environ.get(SECRET_VARIABLE, ""), SECRET_VARIABLE)
    return request if secret is None else secret.sign(request, wall_clock_ms(), os.urandom(16))
