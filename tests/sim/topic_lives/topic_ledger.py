"""Lives of topics in the simulation `topics`: what was acknowledged, and which deletions it may have met.

An operator deletes a topic between two moments, of which the second is when nothing of that deletion goes on
any more. What was sent behind all deletions of its topic must be there; what was acknowledged before one that
was answered must not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from attrs import define, frozen

from rmq.message import StoredMessage
from tests.sim.real_brokers.broker_traffic import Violation


@define(eq=False)
class Deletion:
    """A deletion of a topic, whose effects lie between two times. `is_answered`: a broker said that it is."""

    since: float
    until: float = math.inf
    is_answered: bool = False


@frozen
class Acknowledged:
    """A message that was acknowledged; `place` is its queue and offset, None where a broker chooses later."""

    body: str
    since: float
    until: float
    place: tuple[int, int] | None


class Ledger:
    """The lives of each topic, and their messages."""

    def __init__(self) -> None:
        self._deletions: dict[str, list[Deletion]] = defaultdict(list)
        self._acknowledged: dict[str, list[Acknowledged]] = defaultdict(list)

    @property
    def count(self) -> int:
        """All acknowledged messages."""
        return sum(map(len, self._acknowledged.values()))

    def begin(self, topic: str, now: float) -> Deletion:
        """An operator is about to ask for a deletion."""
        self._deletions[topic].append(Deletion(now))
        return self._deletions[topic][-1]

    def refused(self, topic: str, deletion: Deletion) -> None:
        """A broker said that it does not delete the topic."""
        self._deletions[topic].remove(deletion)

    def acknowledge(
        self, topic: str, body: str, since: float, until: float, place: tuple[int, int] | None
    ) -> None:
        """A message was sent and acknowledged between these times."""
        self._acknowledged[topic].append(Acknowledged(body, since, until, place))

    def present(self, topic: str) -> list[Acknowledged]:
        """The messages of the topic's present life."""
        until = max((one.until for one in self._deletions[topic]), default=-1.0)
        return [one for one in self._acknowledged[topic] if one.since > until]

    def deleted(self, topic: str) -> list[Acknowledged]:
        """The messages of earlier lives of the topic, without those that a broker may have stored later."""
        answered = [one.since for one in self._deletions[topic] if one.is_answered]
        since = max(answered, default=-1.0)
        return [one for one in self._acknowledged[topic] if one.place is not None and one.until < since]

    def check(self, host: str, topic: str, messages: Iterable[StoredMessage]) -> None:
        """Check that a broker has all required messages of a topic, and no other. Raises Violation."""
        there: dict[str, set[tuple[int, int]]] = defaultdict(set)
        for message in messages:
            there[message.body.decode()].add((message.queue_id, message.queue_offset))
        for one in self.present(topic):
            if one.body not in there:
                raise Violation(f"{host}: {one.body} of topic {topic} is acknowledged and lost")
            if one.place is not None and one.place not in there[one.body]:
                where = f"at {one.place}, as was answered, but at {sorted(there[one.body])}"
                raise Violation(f"{host}: {one.body} of topic {topic} is not {where}")
        for one in self.deleted(topic):
            if one.body in there:
                raise Violation(f"{host}: {one.body} of a topic {topic} that was deleted is back")

    def missing(self, topic: str, had: Iterable[str]) -> list[str]:
        """The messages of the topic's present life that are not among these bodies."""
        return sorted({one.body for one in self.present(topic)}.difference(had))


def check_same(tables: Mapping[str, Mapping[object, object]], what: str) -> None:
    """Check that all replicas have the same rows. Raises Violation, which names the first different row."""
    (first_host, first), *others = tables.items()
    for host, table in others:
        for key in sorted(first.keys() | table.keys(), key=str):
            if first.get(key) != table.get(key):
                raise Violation(
                    f"{what} {key}: {first_host} has {first.get(key)}, {host} has {table.get(key)}"
                )
