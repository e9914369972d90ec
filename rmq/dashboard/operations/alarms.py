"""Alarms: what is wrong with a cluster, by the figures that the overview has already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

from attrs import frozen

from rmq.dashboard.operations.figures import BrokerRow

DISK_NOTE: Final = 0.75
DISK_WRONG: Final = 0.85
LAG_WRONG: Final = 10_000
CONTROLLER_SECONDS: Final = 10
LAG_BYTES: Final = 64 << 20
"""The same limits as those of `rmq doctor`."""


@frozen
class Wakeup:
    """Something wrong, or to note: where, what, and what to do. `kind` and `subject` name a page."""

    level: Literal["wrong", "note"]
    where: str
    what: str
    todo: str
    kind: str = ""
    subject: str = ""


def find_alarms(brokers: Iterable[BrokerRow], lags: Mapping[str, int]) -> list[Wakeup]:
    """The alarms of a cluster, wrong ones first."""
    rows = list(brokers)
    found = [alarm for row in rows for alarm in _broker(row)]
    found += _sets(rows)
    for group, lag in sorted(lags.items(), key=lambda row: -row[1]):
        if lag > LAG_WRONG:
            todo = "see which queues stand still, and whether members are connected"
            found.append(Wakeup("wrong", f"group {group}", f"{lag:,} messages wait", todo, "groups", group))
    return sorted(found, key=lambda alarm: alarm.level != "wrong")


def _broker(row: BrokerRow) -> Iterator[Wakeup]:
    where = f"broker {row.name}" + ("" if row.is_master else f" (slave {row.id})")
    if row.error:
        todo = "check that it runs, and that its registered address is reachable from here"
        yield Wakeup("wrong", where, row.error, todo, "brokers", row.name)
        return
    if row.disk >= DISK_NOTE:
        level: Literal["wrong", "note"] = "wrong" if row.disk >= DISK_WRONG else "note"
        todo = "free some space, or lower fileReservedTime"
        yield Wakeup(level, where, f"its disk is {row.disk:.0%} full", todo, "brokers", row.name)
    if row.refuses:
        yield Wakeup(
            "wrong", where, f"it takes no messages: {row.refuses}", "see the controllers", "brokers", row.name
        )
    if row.lag_bytes > LAG_BYTES:
        todo = "see whether it comes nearer; its log says more"
        yield Wakeup(
            "note", where, f"it is {row.lag_bytes >> 20} MiB behind its master", todo, "brokers", row.name
        )
    if row.is_master and row.durability == "memory":
        todo = "set durability=disk or replicated, if a power cut may lose nothing"
        yield Wakeup("note", where, "durability is memory: a power cut loses the last half second", todo)


def _sets(rows: list[BrokerRow]) -> Iterator[Wakeup]:
    for name in sorted({row.name for row in rows}):
        own = [row for row in rows if row.name == name]
        if not any(row.is_master for row in own):
            todo = "start the master again: until then nothing can be sent there"
            yield Wakeup("wrong", f"broker {name}", "it has slaves, but no master", todo, "brokers", name)
        for row in own:
            replicas, in_sync = row.replicas, row.in_sync
            missing = [str(number) for number in replicas if number not in in_sync]
            if row.is_master and (row.controllers_silent_s or 0) > CONTROLLER_SECONDS:
                what = f"no controller that leads has answered it for {row.controllers_silent_s} s"
                yield Wakeup("wrong", f"broker {name}", what, "see the controllers", "controllers", "")
            if row.is_master and missing:
                what = (
                    f"{len(in_sync)} of {len(replicas)} replicas are in sync; missing: {', '.join(missing)}"
                )
                level: Literal["wrong", "note"] = "wrong" if len(in_sync) == 1 else "note"
                yield Wakeup(level, f"broker {name}", what, "start the missing replicas", "brokers", name)
