"""Topics of a store according to config/topics.json, for recovery and audit.

The records of a deleted topic stay in the log until their files expire, under a name that a later topic may
have. The file names the physical offset from which the records of a name belong to the present topic, and the
offsets at which topics were deleted that do not exist any more. RocketMQ's file has neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import field

from rmq.errors import RmqError
from rmq.protocol import json

if TYPE_CHECKING:
    from attrs import frozen
else:
    from rmq.lazy_attrs import frozen


@frozen
class KnownTopics:
    """`names` are the topics that exist, None when that is not known. `begins` has for topics, also deleted
    ones, the physical offset before which the records of that name belong to an earlier topic.
    """

    names: frozenset[str] | None = None
    begins: Mapping[str, int] = field(factory=dict)

    @property
    def deleted(self) -> list[str]:
        """The names of topics that were deleted, and not made again."""
        return [name for name in self.begins if self.names is None or name not in self.names]


UNKNOWN: Final = KnownTopics()


def read_topics(load: Callable[[], bytes | None]) -> KnownTopics:
    """The topics of the text of config/topics.json, which `load` gives. Nothing is known when there is none,
    or cannot be read.
    """
    try:
        text = json.loads(load() or b"{}")
        table, deleted = text["topicConfigTable"], text.get("deletedTopics") or {}
        made = {str(name): _begin(row.get("creation")) for name, row in table.items()}
        deletions = {str(name): _begin(row) for name, row in deleted.items()}
    except (RmqError, KeyError, TypeError, ValueError, AttributeError):
        return UNKNOWN
    begins = {name: begin for name, begin in {**deletions, **made}.items() if begin > 0}
    return KnownTopics(frozenset(made) or None, begins)


def _begin(row: Any) -> int:
    return int((row or {}).get("logOffset", 0))
