"""Findings about controllers, and about broker sets by the table of the controller that leads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from rmq.operate.controllers import (
    NO_CONTROLLER,
    REFUSES,
    ControlledSet,
    ControllerState,
    Replica,
    is_member,
    leases,
)
from rmq.operate.diagnosis.brokers import SKEW_MS, clock_ahead_ms
from rmq.operate.diagnosis.facts import BrokerFacts, Finding

OTHERS_ACCEPT: Final = "other servers accept it: compare the clocks and the accounts of the servers"
LOST_JOURNAL: Final = "has lost its journal"


def findings_of_controllers(
    states: Sequence[ControllerState],
    brokers: Sequence[BrokerFacts] = (),
    unheard: Sequence[BrokerFacts] = (),
) -> list[Finding]:
    """Judge the states of controllers, and the sets in their table. `brokers` are the brokers at the name
    servers, to compare the table with; empty: no comparison. `unheard` are the replicas that the controllers
    count as dead, and that answered."""
    leading = next((one for one in states if one.is_leading), None)
    found = [finding for one in states for finding in _of_controller(one, leading)]
    if leading is None:
        todo = "start a majority of the controllers; `rmq controller status --all` shows each"
        found.append(Finding("wrong", "controllers", "no controller leads: no master can be elected", todo))
        return found
    found += _of_all(states, leading)
    registered = {broker.address for broker in brokers}
    answered = {
        broker.address: broker for broker in (*brokers, *unheard) if broker.runtime or broker in unheard
    }
    for one in leading.sets:
        found += _of_set(one, registered, answered)
    if brokers:
        found += _compared(leading, brokers)
    return found


def _of_controller(one: ControllerState, leading: ControllerState | None) -> Iterator[Finding]:
    where = f"controller {one.address}"
    if one.error:
        if one.error == NO_CONTROLLER:
            what, todo = (
                "is no controller",
                ("set `controllers` there, or name the controllers with --controllers"),
            )
            yield Finding("wrong" if is_member(one, leading) else "note", where, what, todo)
        elif one.error.startswith(REFUSES):
            yield Finding("wrong", where, one.error, OTHERS_ACCEPT)
        else:
            todo = "start it, or `rmq controller drop` it if it is gone for good"
            yield Finding("wrong", where, f"does not answer: {one.error}", todo)
        return
    if one.stopped:
        yield Finding("wrong", where, one.problem, "install the version of rmq that wrote the entry")
    if leading is None:
        return
    if one.own_address in leading.forgetful:
        todo = "drop it, and add it again with an empty folder: `Replace a controller` in docs/runbooks.md"
        yield Finding("wrong", where, LOST_JOURNAL, todo)
    elif not is_member(one, leading):
        todo = "`rmq controller add` makes it a member; else stop it"
        yield Finding("note", where, "is not a member: the others do not count it", todo)


def _of_all(states: Sequence[ControllerState], leading: ControllerState) -> Iterator[Finding]:
    if len(found := leases(states)) > 1:
        each = ", ".join(f"{lease} at {address}" for lease, address in sorted(found.items()))
        agreed = "?" if leading.agreed_lease_ms is None else leading.agreed_lease_ms
        what = f"controllerLeaseMs differs: {each}; {agreed} is in force"
        yield Finding("wrong", "controllers", what, "set the same value at all, and restart them one by one")
    count = len(leading.members)
    if count > 1 and count % 2 == 0:
        what = f"{count} controllers tolerate no more failures than {count - 1}"
        yield Finding("note", "controllers", what, "add or drop one")


def _of_set(
    one: ControlledSet, registered: Collection[str], answered: Mapping[str, BrokerFacts]
) -> Iterator[Finding]:
    where = f"broker {one.name}"
    living = [replica for replica in one.replicas if replica.lives is not False]
    if not living:
        several = len(one.replicas) > 1
        what = f"none of its {len(one.replicas)} replicas lives" if several else "its only replica is dead"
        yield Finding("wrong", where, what, "start them" if several else "start it")
        return
    if one.master not in {replica.number for replica in living}:
        yield Finding("wrong", where, _no_master(one), _way_to_master(one))
    for replica in one.replicas:
        if replica.lives is False and replica.address in answered and _heir(one, replica) is None:
            yield _of_unheard(one, replica, answered[replica.address])
        elif replica.lives is False or (replica.lives is None and _heir(one, replica)):
            yield _of_dead(one, replica)
        elif replica.lives is None and registered and replica.address not in registered:
            what = f"replica {replica.number} at {replica.address}: no name server knows it, and the leading"
            todo = f"start it; `rmq controller remove {one.name} {replica.number}` if it is gone for good"
            yield Finding("wrong", where, f"{what} controller, which is new, has not heard of it", todo)
        elif replica.number not in one.in_sync:
            what = f"replica {replica.number} at {replica.address} is not in sync"
            yield Finding("note", where, what, "it may still be copying: `rmq cluster list` shows its lag")
    if len(one.replicas) == 1:
        todo = "start a second broker of this name, with brokerRole=SLAVE and the same controllerAddr"
        yield Finding("note", where, "has a single replica: no failover is possible", todo)
    elif living and not set(one.in_sync) & {replica.number for replica in living} - {one.master}:
        what = "no other in-sync replica lives: no failover is possible"
        yield Finding("wrong", where, what, "start the others, or wait until they have copied the log")


def _no_master(one: ControlledSet) -> str:
    if not one.stranded:
        return "has no master that lives"
    missing = ", ".join(map(str, one.in_sync))
    return f"has no master, since no replica in sync ({missing}) lives"


def _way_to_master(one: ControlledSet) -> str:
    if not one.stranded:
        return "wait some seconds for the election, then see `rmq controller status`"
    best = one.stranded[0].number
    return (
        "start an in-sync replica. If their folders are gone for good, "
        f"`rmq controller elect {one.name} {best} --unclean` continues "
        "without the messages that only they had"
    )


def _heir(one: ControlledSet, replica: Replica) -> Replica | None:
    """The replica that has the address of another replica, with a new number; None without one. If the other
    replica may live, only a replica that is known to live counts."""
    states = (True, None) if replica.lives is False else (True,)
    others = (other for other in one.replicas if other is not replica and other.lives in states)
    return next((other for other in others if other.address == replica.address), None)


def _of_unheard(one: ControlledSet, replica: Replica, broker: BrokerFacts) -> Finding:
    """A replica that runs. Mostly its clock is wrong, so that its signatures are refused."""
    ahead = clock_ahead_ms(broker) or 0
    why = f": {broker.error}" if broker.error else ""
    if not why and abs(ahead) > SKEW_MS:
        way = "ahead of" if ahead > 0 else "behind"
        why = f": its clock is {abs(ahead) / 1000:.0f} s {way} this machine's"
    what = f"replica {replica.number} at {replica.address} runs, but the controllers do not hear it{why}"
    todo = "compare the clocks, and see its /ready and its log; do not remove the replica"
    return Finding("wrong", f"broker {one.name}", what, todo)


def _of_dead(one: ControlledSet, replica: Replica) -> Finding:
    heir = _heir(one, replica)
    forget = f"`rmq controller remove {one.name} {replica.number}`"
    if heir is not None:
        what = f"replica {replica.number} is left over: its address {replica.address} is replica"
        todo = f"{forget}, so that the controllers stop counting it"
        return Finding("wrong", f"broker {one.name}", f"{what} {heir.number} now", todo)
    what = f"replica {replica.number} at {replica.address} is dead"
    todo = f"start it, or see its log and its clock if it runs; {forget} if it is gone for good"
    return Finding("wrong", f"broker {one.name}", what, todo)


def _compared(leading: ControllerState, brokers: Sequence[BrokerFacts]) -> Iterator[Finding]:
    """Differences between the controllers' table and that of the name servers."""
    registered = {broker.address for broker in brokers}
    known = {one.name: one for one in leading.sets}
    for one in leading.sets:
        for replica in one.replicas:
            if replica.lives and replica.address not in registered:
                what = f"replica {replica.number} at {replica.address} lives, and no name server knows it"
                todo = "check namesrvAddr there; see its /ready and its log"
                yield Finding("wrong", f"broker {one.name}", what, todo)
    for broker in brokers:
        has_controllers = bool(broker.config.get("controllerAddr") or broker.runtime.get("controllerNumber"))
        if not has_controllers or broker.error:
            continue
        replicas = known[broker.name].replicas if broker.name in known else ()
        if broker.address not in {replica.address for replica in replicas}:
            what = f"the controllers do not know {broker.address} as a replica"
            todo = "see `Lost controllers` in docs/runbooks.md; is its controllerAddr right?"
            yield Finding("wrong", f"broker {broker.name}", what, todo)
