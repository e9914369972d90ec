"""Bugs planted in what tells a topic from another one of its name, each of which the simulation of topics
that come and go must catch.
"""

from __future__ import annotations

from rmq.broker.replication.table_replication import TableReceiver
from rmq.broker.tables.deletions import Deletions
from rmq.broker.tables.offsets import Offsets
from tests.sim.planted_bugs.bugs import Bug, planted


def _nothing(*given: object) -> None:
    pass


TOPIC_BUGS: dict[str, Bug] = {
    "a replica keeps the queues of a deleted topic": planted(
        (TableReceiver, "drop_deleted_queues", _nothing)
    ),
    "a deleted topic leaves no trace": planted((Deletions, "note", _nothing)),
    "the offsets of a deleted topic stay": planted((Offsets, "delete_topic", _nothing)),
}
TOPICS_CAUGHT_BY = {
    "a replica keeps the queues of a deleted topic": 1,
    "a deleted topic leaves no trace": 11,
    "the offsets of a deleted topic stay": 1,
}
"""The first seed that shows a bug."""
