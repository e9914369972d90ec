"""Schedules by hand for faults in the rules of sets that seeds show too seldom: each raises Violation when
its fault is planted, and else nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from rmq.controller.elections import Elections
from tests.sim.controllers import Violation
from tests.unit.controller.tables import heartbeat, three

LONG_S, SHORT_S = 10.0, 3.0


def lease_of_an_earlier_controller() -> None:
    """A controller leads whose leases are shorter than its predecessor's. The master, which had its last
    lease of the predecessor at 100, is heard once and then cut off: it may act until 110. Raises Violation.
    """
    sets, known = three()
    elections = Elections(SHORT_S)
    elections.agreed_s = LONG_S
    elections.begin(100.0)
    elections.hear(heartbeat(1), known, 100.5)
    at = 101.0
    while at < 100.0 + LONG_S:
        for number in (2, 3):
            elections.hear(heartbeat(number), known, at)
        if elected := elections.due(sets.sets, at):
            raise Violation(f"{elected[0].master} is elected at {at}, and the old master may act until 110")
        at += 0.5
    for number in (2, 3):
        elections.hear(heartbeat(number), known, at)
    if not elections.due(sets.sets, at):
        raise Violation("nobody is elected after all leases are over")


SCRIPTS: dict[str, Callable[[], None]] = {
    "a longer lease of an earlier controller is forgotten": lease_of_an_earlier_controller
}
