"""Rules of an audit of log and queues: the names of faults and their tests, shared by `rmq store check` and
Spark.

`rmq.store.audit.queue` checks a store record by record; `rmq.spark.pipelines.audit` joins the records and
units of a store of any size. Both call these functions, which use only comparisons, `&` and `|`: so each
works for a record, for a numpy array of records and for a column of a Spark frame alike. Further rules are
`has_unit` and `unit_code` (`rmq.protocol.properties`) and `is_unit` (`rmq.store.files.consumequeue`), which
the store itself uses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

DAMAGE: Final = "damage"
TORN: Final = "torn tail"
NO_FILE: Final = "log file missing"
ENDS_EARLY: Final = "log ends early"
STARTS_LATE: Final = "log starts late"
RECORD_TEXT: Final = "record text"
BAD_CRC: Final = "body CRC"
MISSING: Final = "queue unit missing"
EXTRA: Final = "queue unit extra"
WRONG_RECORD: Final = "queue unit of another record"
WRONG_PLACE: Final = "queue unit offset"
WRONG_SIZE: Final = "queue unit size"
WRONG_CODE: Final = "queue unit tags code"
KINDS: Final = (
    MISSING, EXTRA, WRONG_PLACE, WRONG_RECORD, WRONG_SIZE, WRONG_CODE, BAD_CRC, DAMAGE, TORN, NO_FILE
)  # fmt: skip
"""The kinds of findings in log and queues, the most frequent first."""

OPEN_NOTE: Final = (
    "abort exists: a broker runs on this store, or was killed;"
    " faults that its next start repairs are not listed"
)

_LIGHT: Final = "%LMQ%"


def differences(record: tuple[Any, Any, Any], unit: tuple[Any, Any, Any]) -> dict[str, Any]:
    """By kind whether a unit is wrong on its record. Both are (physical offset, size, tags code): as they
    are, and as the unit says.
    """
    kinds = (WRONG_PLACE, WRONG_SIZE, WRONG_CODE)
    return {kind: found != right for kind, found, right in zip(kinds, unit, record, strict=True)}


def is_kept(physical_offset: Any, log_start: Any) -> Any:
    """True if a unit for this place must have a record. Units of records that retention has removed stay for
    a while: they are no fault."""
    return (physical_offset >= log_start) | (physical_offset < 0)


def is_replaced(physical_offset: Any, queue_offset: Any, later: Any, later_queue_offset: Any) -> Any:
    """True if a record belongs to a topic that was deleted and created again: later in the log, its queue has
    a record with no higher queue offset. A missing unit of an older record is no fault in this case."""
    return (physical_offset < later) & (queue_offset >= later_queue_offset)


def is_pending(queue_offset: Any, last: Any, is_open: Any) -> Any:
    """True if a missing unit may only not be written yet: it would come after its queue's last (-1 without
    any), and the store is open or was killed, so that its next start makes the unit.
    """
    return (queue_offset > last) & is_open


def is_compared(topic: str) -> bool:
    """True if the queues of a topic hold records of their own topic. Those of RocketMQ's light queues
    (`%LMQ%…`) do not: their units name records of other topics.
    """
    return not topic.startswith(_LIGHT)


def kept_topics(known: Iterable[str] | None, folders: Iterable[str]) -> frozenset[str] | None:
    """The topics whose records must have units: topics of topics.json and topics with queue folders. Other
    topics were deleted. None, for all topics, when the content of topics.json is unknown (`known` is
    None)."""
    return None if known is None else frozenset((*known, *folders))
