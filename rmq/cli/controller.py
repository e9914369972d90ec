"""`rmq controller status|elect|remove|add|drop`: look after those who elect the masters of broker sets."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import click

from rmq.cli.output import EXIT_FAILED, Format, echo, output_option, refuse, show
from rmq.cli.target import Target, confirm, run, target_options, yes_option
from rmq.errors import NETWORK_ERRORS, RemoteProtocolError, RequestCodeNotSupported, for_code

if TYPE_CHECKING:
    from rmq.controller.controller import Answer, Request
    from rmq.protocol.command import Command
    from rmq.remoting.pool import Pool

SECRET_VARIABLE: Final = "RMQ_CLUSTER_SECRET_FILE"
SECONDS: Final = 5.0
SCAN_SECONDS: Final = 0.1
"""Between two looks at who is master, or a member."""
MEMBER_SECONDS: Final = 30.0
FORGETFUL: Final = "it has lost its journal: drop it, and add it with an empty folder (docs/runbooks.md)"
CONTROLLERS: Final = click.option(
    "--controllers",
    envvar="RMQ_CONTROLLERS",
    metavar="HOST:PORT;...",
    default="",
    help="The controllers, when they are no part of the name servers.",
)
BROKER: Final = click.argument("broker")
ADDRESS: Final = click.argument("address", metavar="ADDRESS")
NUMBER: Final = click.argument("number", type=click.IntRange(1))


@click.group("controller")
def operations() -> None:
    """Look after the controllers. BROKER is the name of a broker set, NUMBER one of its replicas, ADDRESS the
    host:port of a controller.

    Without --controllers the name servers are asked, which may be controllers too. With a clusterSecretFile
    and without accounts they take changes from those only who name that file in RMQ_CLUSTER_SECRET_FILE.
    """


@operations.command()
@CONTROLLERS
@click.option("--all", "shows_all", is_flag=True, help="Each controller, in place of the broker sets.")
@output_option
@target_options
def status(target: Target, controllers: str, shows_all: bool, output: Format) -> None:
    """Show the broker sets: epoch, master, who is in sync and lives. Ends with 1 when nobody leads, or when
    controllers differ in controllerLeaseMs.

    `reach` is how far a replica's log is on its disk, `lives` whether it was heard within a lease.
    """
    states = run(_status, target, controllers)
    leading = next((one for one in states if one.get("leading")), None)
    leases = {one["leaseMs"]: one["address"] for one in states if "leaseMs" in one}
    if shows_all:
        columns = ("address", "member", "role", "leading", "leader", "term", "committed", "error")
        forgetful = () if leading is None else leading.get("forgetful", ())
        rows = [one | {"member": _is_member(one, leading)} for one in states]
        rows = [one | {"error": FORGETFUL} if one.get("self") in forgetful else one for one in rows]
        rows = [one | {"error": stopped} if (stopped := _stopped(one)) else one for one in rows]
        show([{key: one.get(key) for key in columns} for one in rows], output, columns=columns)
    elif leading is not None:
        rows = [_row(one, replica) for one in leading["sets"] for replica in one["replicas"]]
        show(rows, output)
    else:
        for one in states:
            echo(f"{one['address']}: {one.get('error') or _stopped(one) or 'it does not lead'}", err=True)
    if leading is None:
        echo("rmq: no controller leads: nobody elects masters", err=True)
        sys.exit(EXIT_FAILED)
    if len(leases) > 1:
        each = ", ".join(f"{lease} at {address}" for lease, address in sorted(leases.items()))
        text = f"that of who leads counts, {leading.get('leaseMsAgreed', '?')} now; make it the same"
        echo(f"rmq: controllerLeaseMs is {each}: {text}", err=True)
        sys.exit(EXIT_FAILED)


def _stopped(one: dict[str, Any]) -> str:
    """Why a controller applies nothing more; empty when it does."""
    reason = one.get("stopped")
    return f"it has stopped, since it cannot read {reason}: start a later version there" if reason else ""


def _is_member(one: dict[str, Any], leading: dict[str, Any] | None) -> bool:
    """As the one that leads has it; while nobody leads, as it has it itself."""
    members: dict[str, str] = (one if leading is None else leading).get("members", {})
    return one.get("self", one["address"]) in members.values()


def _row(one: dict[str, Any], replica: dict[str, Any]) -> dict[str, Any]:
    number = replica["number"]
    return {
        "cluster": one["cluster"],
        "broker": one["name"],
        "epoch": one["epoch"],
        "number": number,
        "role": "master" if number == one["master"] else "slave",
        "in_sync": number in one["inSync"],
        "lives": replica["lives"],
        "reach": replica["reach"],
        "address": replica["address"],
    }


@operations.command()
@BROKER
@NUMBER
@CONTROLLERS
@target_options
def elect(target: Target, broker: str, number: int, controllers: str) -> None:
    """Have a replica that is in sync be the next master of its set.

    The present master gets no lease any more, and is followed when its last one is over.
    """
    from rmq.controller.controller import ElectRequest

    _operate(target, controllers, ElectRequest(broker, number))
    echo(f"{broker} {number} is to be the next master; `rmq controller status` shows when it is")


@operations.command()
@BROKER
@NUMBER
@CONTROLLERS
@yes_option
@target_options
def remove(target: Target, broker: str, number: int, controllers: str, yes: bool) -> None:
    """Forget a replica that is gone for good. The last one of a set takes the set with it."""
    from rmq.controller.sets import Remove

    confirm(yes, f"Forget replica {number} of {broker}?")
    _operate(target, controllers, Remove(broker, number))
    echo(f"{broker} {number} is removed")


@operations.command()
@ADDRESS
@CONTROLLERS
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(0),
    default=MEMBER_SECONDS,
    show_default=True,
    help="How many seconds to wait until it has what the others have.",
)
@target_options
def add(target: Target, address: str, controllers: str, seconds: float) -> None:
    """Make one more controller a member: one that was started with controllerJoins=true.

    It gets the log first, and counts once it has it. Members change one at a time.
    """
    done, text = run(_add, target, controllers, address, seconds)
    if not done:
        refuse(text)
    echo(text)


@operations.command()
@ADDRESS
@CONTROLLERS
@yes_option
@target_options
def drop(target: Target, address: str, controllers: str, yes: bool) -> None:
    """Have one controller less, whether it lives or not. Stop it then, and remove its folder.

    The one that leads may be dropped too: the others elect another, which takes them a second or two.
    """
    from rmq.controller.controller import RemoveMember

    confirm(yes, f"Drop the controller {address}?")
    answer = run(_asked, target, controllers, RemoveMember(address))
    if answer.refusal:
        refuse(answer.refusal)
    echo(f"{address} is dropped; {_named(answer.controllers)}")


async def _add(target: Target, controllers: str, address: str, seconds: float) -> tuple[bool, str]:
    """Have one more controller, and wait until it is a member. Returns whether it is so, and what was done or
    why not."""
    from rmq.controller.controller import AddMember

    (new,) = await _states(target, [address])
    if new.get("error"):
        return False, f"{address} does not answer: {new['error']}"
    if new.get("self") != address:
        own = new.get("self")
        return False, f"{address} knows itself as {own}: add it by that name, or set its controllerSelf"
    before, why = await _leading(target, controllers)
    if before is None:
        return False, why
    if address not in before["members"] and new.get("committed") and new.get("leader") != before["self"]:
        others = ", ".join(new["members"]) or "none"
        return False, (
            f"{address} has a journal, of the controllers {others}: stop it, remove its folder and start it"
            " with controllerJoins=true"
        )
    if address in before["members"] and new.get("blank"):
        return False, (
            f"{address} is one of the controllers, and has lost its journal: `rmq controller drop {address}`"
            " first, then add it"
        )
    answer = await _asked(target, controllers, AddMember(address))
    if answer.refusal:
        return False, answer.refusal
    end = time.monotonic() + seconds
    while address not in answer.controllers:
        if time.monotonic() > end:
            return False, (
                f"{address} is no member yet after {seconds:g} s; it becomes one once it has the log, unless"
                f" another comes to lead; `rmq controller drop {address}` gives it up"
            )
        await anyio.sleep(SCAN_SECONDS)
        answer = await _asked(target, controllers, AddMember(address))  # again, as another may lead now
    return True, f"{address} is added; {_named(answer.controllers)}"


def _named(members: Sequence[str]) -> str:
    text = f"the controllers are {', '.join(members)}"
    if len(members) % 2 == 0:
        text += f": {len(members)} bear no more failures than {len(members) - 1}, add or drop another"
    return text


async def hand_over(
    target: Target, controllers: str, broker: str, number: int, seconds: float
) -> tuple[bool, str]:
    """Have another replica in sync as master of a set, `number` or, if that is 0, the one with the longest
    log, and wait for it. Returns whether it is so, and what was done or why not."""
    from rmq.controller.controller import ElectRequest

    before, why = await _set(target, controllers, broker)
    if before is None:
        return False, why
    if not number:
        ready = [
            one
            for one in before["replicas"]
            if one["number"] in before["inSync"] and one["number"] != before["master"] and one["lives"]
        ]
        if not ready:
            return False, f"no other replica of {broker} is in sync and lives; see `rmq controller status`"
        number = max(ready, key=lambda one: one["reach"] or 0)["number"]
    if number == before["master"]:
        return True, f"{broker} {number} is the master already, in epoch {before['epoch']}"
    answer = await _asked(target, controllers, ElectRequest(broker, number))
    if answer.refusal:
        return False, answer.refusal
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        now, _ = await _set(target, controllers, broker)
        if now is not None and now["epoch"] > before["epoch"] and now["master"]:
            master, epoch, took = now["master"], now["epoch"], time.monotonic() - began
            return master == number, f"{broker} {master} is the master in epoch {epoch}, after {took:.1f} s"
        await anyio.sleep(SCAN_SECONDS)
    return False, f"{broker} {number} is not the master after {seconds:g} s; see `rmq controller status`"


async def _set(target: Target, controllers: str, broker: str) -> tuple[dict[str, Any] | None, str]:
    """What the controller that leads knows of a set, or why there is nothing."""
    leading, why = await _leading(target, controllers)
    if leading is None:
        return None, why
    known: dict[str, dict[str, Any]] = {one["name"]: one for one in leading["sets"]}
    names = ", ".join(sorted(known)) or "none"
    return known.get(broker), f"the controllers know no broker set {broker}; they know: {names}"


async def _leading(target: Target, controllers: str) -> tuple[dict[str, Any] | None, str]:
    """What the controller that leads says of itself, or why there is none."""
    states = await _status(target, controllers)
    leading = next((one for one in states if one.get("leading")), None)
    each = "; ".join(
        f"{one['address']}: {one.get('error') or _stopped(one) or 'it does not lead'}" for one in states
    )
    return leading, "" if leading is not None else f"no controller leads ({each})"


def _operate(target: Target, controllers: str, question: Request) -> None:
    answer = run(_asked, target, controllers, question)
    if answer.refusal:
        refuse(answer.refusal)


# --- asking ---


@asynccontextmanager
async def _pool(target: Target) -> AsyncIterator[Pool]:
    from rmq.client.client import SigningPool
    from rmq.remoting.endpoint import ClientOnlyEndpoint
    from rmq.remoting.network import TcpNetwork
    from rmq.remoting.pool import Pool

    arguments = TcpNetwork(), ClientOnlyEndpoint()
    pool = (
        SigningPool(target.credentials, *arguments, tls=target.tls)
        if target.credentials
        else Pool(*arguments, tls=target.tls)
    )
    async with pool:
        yield pool


def _addresses(target: Target, controllers: str) -> list[str]:
    from rmq.config import parse_addresses

    return parse_addresses(controllers or target.namesrv, "controllers")


async def _status(target: Target, controllers: str) -> list[dict[str, Any]]:
    """What each controller says, or its error: of those that are named, and of those that these know."""
    given = _addresses(target, controllers)
    states = await _states(target, given)
    asked = {*given, *(_as(given, one["self"]) for one in states if "self" in one)}
    members = {
        other for one in states for other in (*one.get("members", {}).values(), *one.get("joining", ()))
    }
    known = {_as(given, other) for other in members}
    return states + await _states(target, sorted(known - asked))


def _as(given: Sequence[str], address: str) -> str:
    """An address that a controller says, which has no scheme, with that of those that were given."""
    scheme, separator, _ = given[0].partition("://")
    return address if not separator or separator in address else f"{scheme}{separator}{address}"


async def _states(target: Target, addresses: Sequence[str]) -> list[dict[str, Any]]:
    from rmq.protocol.codes import CONTROLLER_STATUS
    from rmq.protocol.command import Command

    found: list[dict[str, Any]] = []
    async with _pool(target) as pool:
        for address in addresses:
            try:
                response = await pool.call(address, Command.request(CONTROLLER_STATUS), SECONDS)
                _check(response, address)
            except RequestCodeNotSupported:
                found.append(
                    {
                        "address": address,
                        "error": "it is no controller (setting controllers): name them with --controllers",
                    }
                )
            except NETWORK_ERRORS as error:
                found.append({"address": address, "error": str(error)})
            else:
                found.append({"address": address, **_object(response.body, address)})
    return found


def _check(response: Command, address: str) -> None:
    if response.code:
        raise for_code(response.code, response.remark, address)


def _object(body: bytes, address: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RemoteProtocolError(f"{address} does not answer as a controller does")
    return found


def _signed(request: Command) -> Command:
    """With the secret of the cluster's servers, where RMQ_CLUSTER_SECRET_FILE names it."""
    from rmq.clock import wall_clock_ms
    from rmq.server.profile import cluster_secret

    secret = cluster_secret(os.environ.get(SECRET_VARIABLE, ""), SECRET_VARIABLE)
    return request if secret is None else secret.sign(request, wall_clock_ms(), os.urandom(16))


async def _asked(target: Target, controllers: str, question: Request) -> Answer:
    """The answer of the controller that leads: each is asked, and the one that they name."""
    from rmq.controller.raft import NotLeader
    from rmq.controller.requests import answer_of, request_of
    from rmq.protocol.codes import CONTROLLER_NOT_LEADER

    failures: dict[str, Exception] = {}
    given = _addresses(target, controllers)
    waiting = list(given)
    async with _pool(target) as pool:
        while waiting:
            address = waiting.pop(0)
            if address in failures:
                continue
            try:
                response = await pool.call(address, _signed(request_of(question)), SECONDS)
                if response.code != CONTROLLER_NOT_LEADER:
                    _check(response, address)
                return answer_of(response)
            except (NotLeader, RequestCodeNotSupported, *NETWORK_ERRORS) as error:
                failures[address] = error
                if isinstance(error, NotLeader) and error.leader:
                    waiting.insert(0, _as(given, error.leader))
    why = "; ".join(f"{address}: {error}" for address, error in failures.items())
    return refuse(f"no controller leads ({why})")
