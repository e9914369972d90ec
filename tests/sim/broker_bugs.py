"""Bugs planted in brokers of a controlled set, and in the rules that they go by, each of which the simulation
of real brokers must catch. What that would show in hours only is planted for the simulation of rules.
"""

from __future__ import annotations

from rmq.broker import control
from rmq.broker.control import Control
from rmq.controller.epochs import Epochs
from rmq.controller.replica import Replica
from tests.sim.bugs import Bug, planted
from tests.sim.set_bugs import SET_BUGS

BROKERS_CAUGHT_BY = {
    "a master acts without a lease": 0,
    "elected before the lease is over": 1,
    "whoever lives is elected": 1,
    "cut to the shorter log, whatever is in it": 4,
    "acknowledged when the master alone has it": 1,
    "an old master goes on acknowledging": 1,
    "a slave is believed to have all": 1,
    "who has resigned acts on": 1,
}
"""The first seed that shows a bug."""

BROKER_BUGS: dict[str, Bug] = {name: SET_BUGS[name] for name in list(BROKERS_CAUGHT_BY)[:3]}


def _shorter(mine: Epochs, my_end: int, others: Epochs, other_end: int) -> int:
    return min(my_end, other_end)


BROKER_BUGS["cut to the shorter log, whatever is in it"] = planted((control, "common_end", _shorter))


def _acknowledges_all(self: Control) -> int:
    return self.flushed()


BROKER_BUGS["acknowledged when the master alone has it"] = planted(
    (Control, "safe_offset", _acknowledges_all)
)


def _not_refused(self: Control) -> str:
    return ""


BROKER_BUGS["an old master goes on acknowledging"] = planted(
    (Control, "refusal", _not_refused), (Control, "safe_offset", _acknowledges_all)
)


def _all(self: Control, number: int, reach: int) -> None:
    self._replica.report(number, self._replica.epoch, 1 << 60, 1 << 60, self._clock())


BROKER_BUGS["a slave is believed to have all"] = planted((Control, "report", _all))


def _acts_on(self: Replica) -> None:
    self.has_resigned = True


BROKER_BUGS["who has resigned acts on"] = planted((Replica, "resign", _acts_on))
