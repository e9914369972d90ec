"""Recall: a member that may have forgotten a vote or entries asks the others before it takes part again.

Its folder is empty, or the last frame of its journal was whole once and is damaged. What it has forgotten it
had promised to somebody: to a candidate, or to a leader that counted on an entry. So it votes, answers and
leads no more before all other members have said which term they are in and how far their logs reach. Who
counted on it is one of them, so what it has forgotten is not above the highest term, nor behind the longest
log that they name. It votes for nobody in that term then, and later only for who has that much of the log,
and leads when it has that much itself.

Where all others are as empty as this one they found a cluster. Where one is silent this one waits.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

log = logging.getLogger("rmq.controller")

SOMEBODY: Final = "?"
"""The vote of a term in which this member may have voted, for whom is forgotten."""
COMPLAIN_SECONDS: Final = 60.0

Place = tuple[int, int]
"""The term and the index of an entry: logs are compared by those of their last ones."""


class Recall:
    """What the others say; `others` are asked. With nobody to ask it is done from the start. `token` is in
    each question, and in its answer: an answer to an earlier life may come late, and knows less."""

    def __init__(self, me: str, others: Collection[str], token: float) -> None:
        self._me = me
        self.token = token
        self._silent = set(others)
        self._complain_at: float | None = None
        self.term = 0
        """The highest term that somebody is in."""
        self.place: Place = (0, 0)
        """Of the last entry of the longest log."""

    @property
    def is_done(self) -> bool:
        """Whether all have answered."""
        return not self._silent

    @property
    def silent(self) -> list[str]:
        """The members that have not answered yet."""
        return sorted(self._silent)

    def take(self, member: str, term: int, place: Place) -> None:
        """Take an answer."""
        if member in self._silent:
            self._silent.discard(member)
            self.term, self.place = max(self.term, term), max(self.place, place)

    def complain(self, now: float) -> None:
        """Log who is waited for: not at once, then once a minute."""
        if self._complain_at is None:
            self._complain_at = now + COMPLAIN_SECONDS / 6
        elif now >= self._complain_at and not self.is_done:
            self._complain_at = now + COMPLAIN_SECONDS
            log.error(
                "%s has lost its journal or a part of it, or was none of the controllers yet: it takes no"
                " part before these have said what they know: %s",
                *(self._me, ", ".join(self.silent)),
            )
