"""Bugs planted in what guards against folders that went back, which `old_sets` or `wiped` must catch."""

from __future__ import annotations

from rmq.controller.consensus import journal
from rmq.controller.consensus.recall import Recall
from rmq.controller.elections import Elections
from rmq.controller.evidence import Evidence
from tests.sim.planted_bugs.bugs import Bug, planted

OLD_BUGS: dict[str, Bug] = {
    "an older table is trusted": planted((Evidence, "is_behind", lambda self, broker_set: False)),
    "a longer lease than the table has is forgotten": planted(
        (Elections, "take_lease_length", lambda self, heartbeat: None)
    ),
    "a replica is elected for what it reported before a restart": planted(
        (Elections, "take_start", lambda self, broker_set, replica: None)
    ),
    "the first replica after a restart of all is elected": planted(
        (Evidence, "is_gathered", lambda self, broker_set, ready, now: True)
    ),
}

_right_take = Recall.take


def _forgets_terms(self: Recall, member: str, term: int, place: tuple[int, int]) -> None:
    _right_take(self, member, 0, place)


def _forgets_places(self: Recall, member: str, term: int, place: tuple[int, int]) -> None:
    _right_take(self, member, term, (0, 0))


WIPED_BUGS: dict[str, Bug] = {
    "an empty member takes part at once": planted((Recall, "is_done", property(lambda self: True))),
    "a damaged last frame counts as no frame": planted((journal, "_was_whole", lambda data, at: False)),
    "a member that forgot votes in a term that others know": planted((Recall, "take", _forgets_terms)),
    "a member that forgot votes for a member that lacks entries": planted((Recall, "take", _forgets_places)),
}

OLD_CAUGHT_BY = {
    "an older table is trusted": 288,
    "a longer lease than the table has is forgotten": 631003021,
    "a replica is elected for what it reported before a restart": 636000555,
    "the first replica after a restart of all is elected": 5,
}
WIPED_CAUGHT_BY = {
    "an empty member takes part at once": 3,
    "a damaged last frame counts as no frame": 2,
    "a member that forgot votes in a term that others know": 46,
    "a member that forgot votes for a member that lacks entries": 2,
}
"""The first seed that shows a bug."""
