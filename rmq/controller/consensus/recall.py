"""Recall: a member that may have forgotten a vote or entries asks the other members before it takes part.

The member's folder is empty, or the last frame of its journal was whole once and is damaged. The member may
have promised the forgotten vote to a candidate, or the forgotten entry to a leader that counted on it. Each
of these is one of the other members. So the member neither votes, nor answers, nor leads before every other
member has named its term and the end of its log. No forgotten promise lies above the highest term, or
behind the longest log, of these answers. In the highest term the member then votes for nobody. In later
terms it votes only for a candidate with at least the longest log, and it leads only when its own log is
that long.

If all other members are empty too, the members found a cluster. If one member is silent, this member waits.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

log = logging.getLogger("rmq.controller")

UNKNOWN_VOTE: Final = "?"
"""The vote of a term in which this member may have voted for a candidate that it has forgotten."""
WARNING_SECONDS: Final = 60.0

Place = tuple[int, int]
"""The term and the index of an entry. The place of its last entry orders a log among others."""


class Recall:
    """The answers of the `others`; without others a recall is done from the start. Each question and its
    answer carry `token`: a late answer to an earlier start of the member may have an older state."""

    def __init__(self, me: str, others: Collection[str], token: float) -> None:
        self._me = me
        self.token = token
        self._silent = set(others)
        self._next_warning_at: float | None = None
        self.term = 0
        """The highest term that an answer named."""
        self.place: Place = (0, 0)
        """The place of the last entry of the longest log."""

    @property
    def is_done(self) -> bool:
        """True if all other members have answered."""
        return not self._silent

    @property
    def silent(self) -> list[str]:
        """The members that have not answered yet."""
        return sorted(self._silent)

    def take(self, member: str, term: int, place: Place) -> None:
        """Take an answer of a member."""
        if member in self._silent:
            self._silent.discard(member)
            self.term, self.place = max(self.term, term), max(self.place, place)

    def warn(self, now: float) -> None:
        """Log the names of silent members: not at once, then once a minute."""
        if self._next_warning_at is None:
            self._next_warning_at = now + WARNING_SECONDS / 6
        elif now >= self._next_warning_at and not self.is_done:
            self._next_warning_at = now + WARNING_SECONDS
            log.error(
                "%s has lost its journal or a part of it, or is new: it takes no part before these have "
                "said what they know: %s",
                *(self._me, ", ".join(self.silent)),
            )
