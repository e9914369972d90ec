"""Controllers: who leads, the broker sets with masters and replicas in sync, elections and hand-overs."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import Annotated

import msgspec
from attrs import frozen

from rmq.dashboard.access.roles import Role
from rmq.dashboard.operations.operation import LARGE_HELD_SECONDS, Call, operation
from rmq.errors import RmqError
from rmq.operate.controllers import (
    NO_CONTROLLER,
    ControlledSet,
    ControllerState,
    is_member,
    leases,
    named_by_sets,
)

HAND_OVER_SECONDS = 20.0


@frozen
class ControllerRow:
    """A controller by its own word; `problem`: the reason for not leading."""

    address: str
    role: str
    is_leading: bool
    is_member: bool
    term: int
    committed: int
    elections: int
    lease_ms: int
    problem: str


@frozen
class ReplicaRow:
    """A replica of a broker set. `reach` is how far its log is on its disk; -1: not known."""

    number: int
    address: str
    is_master: bool
    is_in_sync: bool
    lives: bool | None
    reach: int


@frozen
class SetRow:
    """A broker set under controllers."""

    cluster: str
    name: str
    epoch: int
    master: int
    replicas: list[ReplicaRow]


@frozen
class Controllers:
    """The controllers, and the sets according to the leader. `problem`: the reason for an empty list."""

    controllers: list[ControllerRow]
    sets: list[SetRow]
    leases: dict[str, str]
    problem: str


async def addresses(call: Call) -> list[str]:
    """The addresses of controllers: as brokers name them, else the name servers, which may be controllers."""
    return await named(call) or call.admin.name_servers


async def named(call: Call) -> list[str]:
    """The addresses of controllers, as brokers name them; while no broker answers, the last known ones."""
    return await call.held("controllers", partial(_named, call), LARGE_HELD_SECONDS)


async def _named(call: Call) -> list[str]:
    async with aclosing(named_by_sets(call.admin, (RmqError,))) as named:
        async for found in named:
            call.cache.keep_controllers(found)
            if found:
                break
    return call.cache.controllers


@operation("GET", "/controllers")
async def controllers(call: Call) -> Controllers:
    """The controllers, and the broker sets that they look after."""
    is_named = bool(await named(call))
    if is_named:
        states = await _states(call)
    else:  # a name server of Java 4.9 does not even answer the question, which takes long
        states = await call.held("states of name servers", partial(_states, call))
        states = [one for one in states if not one.error]
    states = [one for one in states if one.error != NO_CONTROLLER]
    if not states:
        return Controllers([], [], {}, "no broker names controllers, and no name server is a controller")
    leading = next((one for one in states if one.is_leading), None)
    different = {str(lease): address for lease, address in leases(states).items()}
    return Controllers(
        [_row(one, leading) for one in states],
        [_set(one) for one in leading.sets] if leading else [],
        different if len(different) > 1 else {},
        "" if leading else "no controller leads: no master can be elected",
    )


async def _states(call: Call) -> list[ControllerState]:
    async with call.controllers(await addresses(call)) as found:
        return await found.states()


def _row(one: ControllerState, leading: ControllerState | None) -> ControllerRow:
    return ControllerRow(
        one.address,
        one.role or "",
        one.is_leading,
        is_member(one, leading),
        one.term or 0,
        one.committed or 0,
        one.elections or 0,
        one.lease_ms or 0,
        one.problem,
    )


def _set(one: ControlledSet) -> SetRow:
    return SetRow(
        one.cluster,
        one.name,
        one.epoch,
        one.master,
        [
            ReplicaRow(
                replica.number,
                replica.address,
                replica.number == one.master,
                replica.number in one.in_sync,
                replica.lives,
                -1 if replica.reach is None else replica.reach,
            )
            for replica in one.replicas
        ],
    )


@frozen
class Outcome:
    """The end of an operation, in words."""

    is_done: bool
    text: str


@operation("POST", "/controllers/{broker}/hand-over", Role.ADMIN, is_long=True)
async def hand_over(
    call: Call,
    *,
    broker: str,
    number: Annotated[
        int, msgspec.Meta(ge=0, description="The replica; 0: the one with the longest log.")
    ] = 0,
) -> Outcome:
    """Make another replica in sync the master of a set, and wait for it."""
    call.progress.report(0, note="the master steps down when all its messages are in sync")
    async with call.controllers(await addresses(call)) as found:
        done = await found.hand_over(broker, number, HAND_OVER_SECONDS)
    return Outcome(done.is_done, done.text)


@operation("POST", "/controllers/{broker}/elect", Role.ADMIN)
async def elect(call: Call, *, broker: str, number: Annotated[int, msgspec.Meta(ge=1)]) -> Outcome:
    """Make a replica in sync the next master, without waiting for it."""
    async with call.controllers(await addresses(call)) as found:
        done = await found.elect(broker, number)
    return Outcome(done.is_done, done.text)
