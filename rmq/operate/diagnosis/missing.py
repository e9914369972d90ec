"""Findings about brokers that name servers miss, or refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rmq.operate.diagnosis.facts import Facts, Finding, Level, place_of
from rmq.protocol.codes import MASTER_ID

if TYPE_CHECKING:
    from rmq.protocol.bodies import MissingBroker

NAMED: Final = 5
"""Topics that a finding lists."""


def findings_of_missing(facts: Facts) -> Iterator[Finding]:
    """Brokers that left without a drain, and names without any broker. A set in the controllers' table is
    judged by the controllers as long as a name server knows a broker of the set."""
    present = {(one.cluster, one.name) for one in facts.brokers}
    leading = facts.leading
    controlled = set() if leading is None else {one.name for one in leading.sets}
    absent: dict[tuple[str, str], list[MissingBroker]] = {}
    for one in facts.missing:
        if any(broker.address == one.broker_addr for broker in facts.brokers):
            continue
        if (one.cluster, one.broker_name) not in present:
            absent.setdefault((one.cluster, one.broker_name), []).append(one)
        elif one.broker_name not in controlled:
            yield _one_missing(one)
    for (_, name), brokers in sorted(absent.items()):
        yield _all_missing(name, brokers)


def _one_missing(one: MissingBroker) -> Finding:
    level: Level = "note" if one.is_stopped and one.broker_id != MASTER_ID else "wrong"
    todo = f"start it again; `rmq broker forget {one.broker_name}` if it is gone for good"
    return Finding(level, place_of(one.broker_name, one.broker_id), _how(one), todo)


def _all_missing(name: str, brokers: list[MissingBroker]) -> Finding:
    last = min(brokers, key=lambda one: one.left_ms)
    richest = max(brokers, key=lambda one: one.topic_count)
    topics = richest.topics
    what = _how(last)
    if len(brokers) > 1:
        what += f", the last of {len(brokers)}"
    if topics:
        more = richest.topic_count - NAMED
        named = ", ".join(topics[:NAMED]) + (f" and {more} more" if more > 0 else "")
        what += f": producers cannot send there to {named}"
    todo = f"start it again; drain a broker before you retire it, or `rmq broker forget {name}`"
    return Finding("wrong", f"broker {name}", what, todo)


def _how(one: MissingBroker) -> str:
    how = "was stopped without a drain" if one.is_stopped else f"is missing ({one.why})"
    return f"{one.broker_addr} {how}, {_ago(one.left_ms)} ago"


def _ago(ms: int) -> str:
    for size, unit in ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes")):
        if ms >= 2 * size:
            return f"{ms // size} {unit}"
    return f"{ms // 1000} s"


def findings_of_refused(facts: Facts) -> Iterator[Finding]:
    """Brokers that a name server refuses to register, as a second master of a name."""
    for one in facts.refused:
        what = f"name servers refuse {one.broker_addr}: {one.reason}"
        todo = "stop it, or give it another brokerName or brokerId; start a former master as a slave"
        yield Finding("wrong", place_of(one.broker_name, one.broker_id), what, todo)
