"""Findings about the brokers of a name: a master with its slaves, by their own reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rmq.operate.diagnosis.facts import BrokerFacts, Finding, Level, where_is
from rmq.printable import counted

LAG_BYTES: Final = 64 << 20
"""Bytes of its master's log that a slave lacks, from which it gets a note."""
CONTROLLER_SECONDS: Final = 10
"""Seconds of a controllers' silence that are a fault: they answer several times a second, and elect another
leader within a few."""


def findings_of_slaves(brokers: Sequence[BrokerFacts]) -> Iterator[Finding]:
    """Slaves that lack topics or groups of their master. `brokers` are the brokers of a name."""
    master = next((one for one in brokers if one.is_master and one.runtime), None)
    slaves = [one for one in brokers if not one.is_master and one.runtime]
    if master is None:
        return
    linked = master.runtime.get("slaves", "")
    if linked.isdecimal() and int(linked) < len(slaves):
        todo = "check that they use this master's HA port and its secret; see their logs"
        there = counted(len(slaves), "registered slave")
        what = f"has {there}, of which {linked} linked to it: the rest copies nothing"
        yield Finding("wrong", f"broker {master.name}", what, todo)
    elif linked == "0" and master.runtime.get("durability") == "replicated":
        todo = "start its slave, or set durability=disk if there is to be none"
        what = "durability is replicated and no slave is linked: sends are answered SLAVE_NOT_AVAILABLE"
        if "setReplicas" not in master.runtime:
            yield Finding("wrong", f"broker {master.name}", what, todo)
    for slave in slaves:
        where = f"broker {slave.name} (slave {slave.broker_id})"
        lacks = _offset(master, "commitLogMaxOffset") - _offset(slave, "commitLogMaxOffset")
        if lacks > LAG_BYTES:
            todo = "it may still be copying: `rmq cluster list` shows whether its lag shrinks"
            yield Finding("note", where, f"lacks {lacks >> 20} MiB of its master's log", todo)
        above = _offset(slave, "commitLogMinOffset") - _offset(master, "commitLogMinOffset")
        if above > 0:
            todo = (
                "see `Seed a slave` in docs/runbooks.md, or wait until the master's older files have expired"
            )
            what = (
                f"its log begins {above >> 20} MiB after its master's: it lacks messages that the master has"
            )
            yield Finding("wrong", where, what, todo)


def findings_of_set(brokers: Sequence[BrokerFacts], *, is_controlled: bool) -> Iterator[Finding]:
    """Problems of a set with controllers. `brokers` are the brokers of a name; with `is_controlled` the
    controllers' table has the living replicas, and this table counts."""
    for broker in brokers:
        silent = broker.runtime.get("controllerSilentSeconds", "")
        if silent.isdecimal() and int(silent) > CONTROLLER_SECONDS:
            what = f"no controller that leads has answered it for {silent} s: no replica would be elected"
            todo = "`rmq controller status --all` shows which controllers run"
            yield Finding("wrong", where_is(broker), what, todo)
    master = next((one for one in brokers if one.is_master and "setReplicas" in one.runtime), None)
    if master is None:
        return
    if refusal := master.runtime.get("setRefuses", ""):
        todo = "see `rmq controller status`"
        yield Finding("wrong", where_is(master), f"takes no messages: {refusal}", todo)
    if is_controlled:
        return
    replicas, in_sync = (master.runtime.get(key, "").split() for key in ("setReplicas", "inSyncReplicas"))
    if absent := [number for number in replicas if number not in in_sync]:
        level: Level = "wrong" if len(in_sync) == 1 else "note"
        every = counted(len(replicas), "replica")
        what = f"has {len(in_sync)} of {every} in sync; not in sync: {', '.join(absent)}"
        if level == "wrong":
            what += ": no failover is possible"
        todo = (
            "start them, or `rmq controller remove` a replica that is gone for good: `rmq controller status`"
        )
        yield Finding(level, where_is(master), what, todo)


def _offset(broker: BrokerFacts, name: str) -> int:
    text = broker.runtime.get(name, "")
    return int(text) if text.isdecimal() else 0
