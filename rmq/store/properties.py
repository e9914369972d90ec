"""The few properties that queues and index are made of, read straight from a record's property bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rmq.message import SCHEDULE_TOPIC, TIMER_TOPIC, tags_code
from rmq.protocol.text import JAVA

_SCHEDULE = SCHEDULE_TOPIC.encode()
_TIMER = TIMER_TOPIC.encode()
_codes: dict[bytes, int] = {}
_CODES_LIMIT = 4096
_CODED_TAGS = 128  # bytes of the longest text whose code is remembered: senders choose it

MARKERS = (b"TAGS\x01", b"KEYS\x01", b"UNIQ_KEY\x01")
"""The names, with 0x01, of which a unit's code and a record's keys are made."""
PREPARED = 4
TRANSACTION_BITS = 12  # 0 none, 4 prepared, 8 commit, 12 rollback


def value_of(properties: bytes, marker: bytes) -> bytes | None:
    """The value of one property in `name 0x01 value 0x02 …`, or None. `marker` is the name and 0x01.

    Of several of that name the last counts, and one without a value is none: so Java's map comes out.
    """
    at = properties.rfind(marker)
    while at >= 0:
        if at == 0 or properties[at - 1] == 2:
            start = at + len(marker)
            stop = properties.find(b"\x02", start)
            value = properties[start:] if stop < 0 else properties[start:stop]
            if value:
                return value
        at = properties.rfind(marker, 0, at)
    return None


def unit_code(topic: bytes, properties: bytes, store_timestamp: int, delays: Mapping[int, int]) -> int:
    """The tags code of a record's queue unit; for a delayed record, the time at which it is due."""
    if topic == _SCHEDULE:
        due = due_time(value_of(properties, b"DELAY\x01"), store_timestamp, delays)
        if due is not None:
            return due
    elif topic == _TIMER:
        due_ms = value_of(properties, b"TIMER_OUT_MS\x01")
        return int(due_ms) if due_ms is not None and due_ms.isdigit() else 0
    tags = value_of(properties, b"TAGS\x01")
    if not tags:
        return 0
    code = _codes.get(tags)
    if code is None:
        if len(_codes) >= _CODES_LIMIT:
            _codes.clear()
        code = tags_code(tags.decode("utf-8", JAVA))
        if len(tags) <= _CODED_TAGS:
            _codes[tags] = code
    return code


class Marks:
    """Tags code and index keys of many messages that differ in little but their unique keys: what is around
    that key is looked at once.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], tuple[int, bool]] = {}
        self._before = self._after = b""  # what was around the last unique key
        self._length = -1
        self._code = 0

    def of_all(self, texts: Iterable[bytes]) -> tuple[list[int], list[tuple[str, ...]]]:
        """What `of` gives for each. Those of a batch mostly have keys of one length as well."""
        codes: list[int] = []
        keys: list[tuple[str, ...]] = []
        before, after, length, code = self._before, self._after, self._length, self._code
        start, stop = len(before), length - len(after)
        for text in texts:
            key = text[start:stop]
            if len(text) == length and text[:start] == before and text[stop:] == after and 2 not in key:
                codes.append(code)
                keys.append((key.decode("utf-8", JAVA),))
            else:
                mark = self.of(text)
                codes.append(mark[0])
                keys.append(mark[1])
                before, after, length, code = self._before, self._after, self._length, self._code
                start, stop = len(before), length - len(after)
        return codes, keys

    def of(self, properties: bytes) -> tuple[int, tuple[str, ...]]:
        """(tags code, keys as `index_keys` gives them) of a message that is not delayed."""
        start = properties.find(b"UNIQ_KEY\x01") + 9
        if start < 9 or (start > 9 and properties[start - 10] != 2):
            return unit_code(b"", properties, 0, {}), index_keys(properties)
        stop = properties.find(b"\x02", start)
        if stop < 0:
            stop = len(properties)
        if start == stop:
            return unit_code(b"", properties, 0, {}), index_keys(properties)
        around = properties[:start], properties[stop:]
        known = self._known.get(around)
        if known is None:
            known = self._learn(around, properties)
        if known[1]:
            return known[0], index_keys(properties)
        self._code, self._length = known[0], len(properties)
        self._before, self._after = around
        return known[0], (properties[start:stop].decode("utf-8", JAVA),)

    def _learn(self, around: tuple[bytes, bytes], properties: bytes) -> tuple[int, bool]:
        if len(self._known) >= _CODES_LIMIT:
            self._known.clear()
        several = properties.count(b"UNIQ_KEY\x01") > 1 or len(index_keys(properties)) != 1
        known = unit_code(b"", properties, 0, {}), several
        self._known[around] = known
        return known


def due_time(level: bytes | None, store_timestamp: int, delays: Mapping[int, int]) -> int | None:
    """When a record of that delay level is due; None without a level. A level above the table's is its
    highest.
    """
    try:
        number = min(int(level or b"0"), max(delays))
    except ValueError:
        return None
    return store_timestamp + delays[number] if number > 0 else None


def index_keys(properties: bytes) -> tuple[str, ...]:
    """The keys that the index holds of a record: the unique key, then KEYS split at blanks."""
    unique = value_of(properties, b"UNIQ_KEY\x01")
    keys = value_of(properties, b"KEYS\x01")
    if keys is None:
        return () if unique is None else (unique.decode("utf-8", JAVA),)
    names = [key for key in keys.split(b" ") if key]
    if unique is not None:
        names.insert(0, unique)
    return tuple([name.decode("utf-8", JAVA) for name in names])


def has_unit(sys_flag: int) -> bool:
    """Whether a record gets a queue unit: not when it is PREPARED or ROLLBACK."""
    return not sys_flag & PREPARED


def is_indexed(sys_flag: int) -> bool:
    """Whether a record's keys are indexed: not when it is ROLLBACK."""
    return sys_flag & TRANSACTION_BITS != TRANSACTION_BITS
