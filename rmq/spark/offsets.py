"""Offsets of many queues: their canonical JSON, limits, splitting, losses, and a file of offsets.

An offset is that of the next message to read. Spark compares offsets as JSON text, so a set of offsets has a
single text: `{"v":1,"topics":{"Orders":{"broker-a":{"0":123,"1":98}}}}`, names sorted, queues by number.
Version 2 has `places` beside `topics`, of the same form: the place of the message before each offset.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from attrs import evolve, frozen

from rmq.errors import ConfigError, RmqError
from rmq.files import sync_folder
from rmq.message import MessageQueue

EARLIEST: Final = -2
LATEST: Final = -1

Offsets = dict[MessageQueue, int]
Bounds = Mapping[MessageQueue, tuple[int, int]]
"""Queue -> (offset of the oldest message, offset of the next message)."""

QueueOffset = tuple[int, int]
"""The place of a message: its physical offset in the broker's commit log and its store time in ms. A topic
that was deleted and created again has other messages at the same queue offsets, at other places."""
Places = dict[MessageQueue, QueueOffset]

VERSION: Final = 1
WITH_PLACES: Final = 2
AWAY: Final = "away"
"""Skipped brokers, in the newest offsets that a stream reports; not part of an offset."""
_OFFSET_MAX: Final = (1 << 63) - 1
_SHAPE: Final = 'offsets as {"topic":{"broker-a":{"0":12}}}'


class DataLoss(RmqError):
    """The error for messages of a read that are missing."""

    hint = "keep messages for longer (fileReservedTime), or allow the loss"


@frozen
class QueueRange:
    """Messages [start, stop) of a queue."""

    queue: MessageQueue
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


# --- JSON ---


def offsets_tree(
    offsets: Mapping[MessageQueue, int], places: Mapping[MessageQueue, QueueOffset] | None = None
) -> dict[str, Any]:
    """The value of the canonical JSON text; of version 2 with `places` of the messages before."""
    tree = {"v": VERSION, "topics": _nested(offsets)}
    if places:
        tree |= {"v": WITH_PLACES, "places": _nested({queue: list(at) for queue, at in places.items()})}
    return tree


def _nested(values: Mapping[MessageQueue, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    topics: dict[str, dict[str, dict[str, Any]]] = {}
    for queue in _in_order(values):
        brokers = topics.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = values[queue]
    return topics


def offsets_text(offsets: Mapping[MessageQueue, int]) -> str:
    """The canonical JSON text."""
    return json.dumps(offsets_tree(offsets), separators=(",", ":"), ensure_ascii=False)


def parse_offsets(text: str, source: str, *, specials: bool = False) -> Offsets:
    """Read offsets in the form of `offsets_text`, or without its `v` and `topics`, the form of
    rocketmq-spark. With `specials`, -1 and -2 stand for latest and earliest. Raises ConfigError that names
    `source`."""
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise ConfigError(source, text[:200], f"{_SHAPE} ({error})") from None
    return offsets_of(tree, source, specials=specials)


def offsets_of(tree: Any, source: str = "offsets", *, specials: bool = False) -> Offsets:
    """The offsets in a JSON value; as `parse_offsets`."""
    topics = tree
    if isinstance(tree, dict) and "v" in tree:
        parts = {VERSION: {"v", "topics"}, WITH_PLACES: {"v", "topics", "places"}}
        if type(tree["v"]) is not int or tree.keys() - {AWAY} != parts.get(tree["v"]):
            expected = f"offsets of version {VERSION} or {WITH_PLACES}, with v and topics"
            raise ConfigError(source, _shown(tree), expected)
        topics = tree["topics"]
    offsets = {queue: _offset(value, source, specials) for queue, value in _leaves(topics, source)}
    return {queue: offsets[queue] for queue in _in_order(offsets)}


def away_of(tree: Any) -> tuple[str, ...]:
    """The skipped brokers in a stream's newest offsets."""
    found = tree.get(AWAY) if isinstance(tree, dict) and "v" in tree else None
    return tuple(str(name) for name in found) if isinstance(found, list) else ()


def places_of(tree: Any, source: str = "offsets") -> Places:
    """The places in a JSON value of version 2; none in a value of version 1. Raises ConfigError."""
    if not isinstance(tree, dict) or tree.get("v") != WITH_PLACES:
        return {}
    places: Places = {}
    for queue, value in _leaves(tree.get("places"), source):
        if not isinstance(value, list) or len(value) != 2:
            raise ConfigError(source, _shown(value), "a place: [physical offset, store time in ms]")
        places[queue] = _offset(value[0], source, False), _offset(value[1], source, False)
    return places


def _leaves(topics: Any, source: str) -> Iterable[tuple[MessageQueue, Any]]:
    for topic, brokers in _items(topics, source):
        for broker_name, queues in _items(brokers, source):
            for queue_id, value in _items(queues, source):
                yield MessageQueue(topic, broker_name, _number(queue_id, source)), value


def _items(value: Any, source: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ConfigError(source, _shown(value), _SHAPE)
    return value.items()


def _number(text: str, source: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and str(int(text)) == text):
        raise ConfigError(source, text, "a queue's number")
    return int(text)


def _offset(value: Any, source: str, specials: bool) -> int:
    least = EARLIEST if specials else 0
    if type(value) is not int or not least <= value <= _OFFSET_MAX:
        more = ", -1 for latest, -2 for earliest" if specials else ""
        raise ConfigError(source, value, f"an offset{more}")
    return value


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)[:200]


def _in_order(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    return sorted(queues, key=lambda queue: (queue.topic, queue.broker_name, queue.queue_id))


# --- limits ---


def limited(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], most: int) -> Offsets:
    """The end of a batch of exactly `most` messages, or `end` when there are no more.

    Queues share by lag; each queue with messages gets at least one, up to `most`, those with the longest lag
    first.
    """
    lags = {queue: max(offset - start.get(queue, offset), 0) for queue, offset in end.items()}
    total = sum(lags.values())
    if total <= most:
        return dict(end)
    lagging = [queue for queue in _in_order(lags) if lags[queue]]
    if most <= len(lagging):
        chosen = sorted(lagging, key=lambda queue: -lags[queue])[:most]
        shares = dict.fromkeys(chosen, 1)
    else:
        rest = [lags[queue] - 1 for queue in lagging]
        more = _pro_rata(rest, most - len(lagging))
        shares = {queue: 1 + extra for queue, extra in zip(lagging, more, strict=True)}
    return {
        queue: start[queue] + shares.get(queue, 0) if lags[queue] else offset for queue, offset in end.items()
    }


def _pro_rata(weights: Sequence[int], amount: int) -> list[int]:
    """`amount`, at most the sum of the weights, divided by weight into whole numbers, none above its
    weight."""
    total = sum(weights)
    if not total:
        return [0] * len(weights)
    shares = [weight * amount // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda at: -(weights[at] * amount % total))
    for at in by_remainder[: amount - sum(shares)]:
        shares[at] += 1
    return shares


# --- partitions ---


def split(ranges: Sequence[QueueRange], *, min_partitions: int = 0, max_records: int = 0) -> list[QueueRange]:
    """The ranges, cut so that there are at least `min_partitions` (if there are as many messages) and none
    is longer than `max_records` (0: no limit). Empty ranges are left out."""
    full = [one for one in ranges if len(one) > 0]
    missing = max(min_partitions - len(full), 0)
    spare = [len(one) - 1 for one in full]
    extra = _pro_rata(spare, min(missing, sum(spare)))
    parts: list[QueueRange] = []
    for one, more in zip(full, extra, strict=True):
        least = -(-len(one) // max_records) if max_records else 1
        parts += _cut(one, max(1 + more, least))
    return parts


def _cut(one: QueueRange, count: int) -> list[QueueRange]:
    marks = [one.start + len(one) * at // count for at in range(count + 1)]
    return [QueueRange(one.queue, low, high) for low, high in pairwise(marks)]


def join(parts: Sequence[QueueRange], most: int, *, max_records: int = 0) -> list[tuple[QueueRange, ...]]:
    """The parts as tasks: at most `most` tasks, but one for each broker, in order of the queues. A task has
    parts of a single broker, which it reads over a single connection; with `max_records` it has no more
    messages than that, even if this gives more tasks."""
    brokers: dict[str, list[QueueRange]] = {}
    for one in parts:
        brokers.setdefault(one.queue.broker_name, []).append(one)
    spare = [len(some) - 1 for some in brokers.values()]
    extra = _pro_rata(spare, min(max(most - len(brokers), 0), sum(spare)))
    tasks: list[tuple[QueueRange, ...]] = []
    for some, more in zip(brokers.values(), extra, strict=True):
        for task in _joined(some, 1 + more):
            tasks += _bounded(task, max_records) if max_records else [task]
    return tasks


def _joined(parts: list[QueueRange], count: int) -> Iterable[tuple[QueueRange, ...]]:
    """Exactly `count` tasks of about equal size."""
    left = sum(map(len, parts))
    at = 0
    for groups in range(count, 0, -1):
        begin, size = at, 0
        while at < len(parts) and (size < left / groups or groups == 1) and len(parts) - at >= groups:
            size += len(parts[at])
            at += 1
        left -= size
        yield tuple(parts[begin:at])


def _bounded(task: tuple[QueueRange, ...], most: int) -> Iterable[tuple[QueueRange, ...]]:
    some: list[QueueRange] = []
    for one in task:
        if some and sum(map(len, some)) + len(one) > most:
            yield tuple(some)
            some = []
        some.append(one)
    yield tuple(some)


# --- loss ---


@frozen
class Plan:
    """The ranges to read, and a sentence for each loss; `ranges` leave out lost messages."""

    ranges: tuple[QueueRange, ...]
    losses: tuple[str, ...]


def plan(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], bounds: Bounds) -> Plan:
    """The ranges from `start` to `end`, compared with the brokers' offsets.

    A queue that `start` lacks is new and begins at its oldest message. A queue that `end` lacks was first
    seen after `end` was fixed; it is not read, and it must not have lost messages yet.
    """
    ranges: list[QueueRange] = []
    losses: list[str] = []
    for queue in _in_order({**start, **end}):
        found, loss = _range(queue, start.get(queue), end.get(queue), bounds.get(queue))
        if found is not None and len(found) > 0:
            ranges.append(found)
        if loss:
            losses.append(f"{_name(queue)}: {loss}")
    return Plan(tuple(ranges), tuple(losses))


def _range(
    queue: MessageQueue, start: int | None, end: int | None, bounds: tuple[int, int] | None
) -> tuple[QueueRange | None, str]:
    if end is None:
        if bounds is not None and start is not None and start <= bounds[0]:
            return None, ""
        return None, f"it was read up to {start}, and the batch to plan does not know it"
    if start is None:
        least = bounds[0] if bounds is not None else 0
        if least:
            begin = QueueRange(queue, min(least, end), end)
            return begin, f"it is new, and its messages 0 to {least - 1} are gone already"
        start = 0
    if start > end:
        return None, (
            f"the batch begins at {start} but ends at {end}: the queue was cut or made anew, or the first"
            " offsets were not kept"
        )
    if start == end:
        return None, ""
    if bounds is None:
        return None, f"messages {start} to {end - 1} are wanted, but no broker has the queue now"
    return _clipped(QueueRange(queue, start, end), *bounds)


def _clipped(expected: QueueRange, least: int, most: int) -> tuple[QueueRange, str]:
    kept = evolve(expected, start=max(expected.start, least), stop=min(expected.stop, most))
    kept = evolve(kept, stop=max(kept.start, kept.stop))
    if len(kept) == len(expected):
        return kept, ""
    return kept, (
        f"messages {expected.start} to {expected.stop - 1} are wanted, the broker has {least} to {most - 1}"
    )


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic} on {queue.broker_name} queue {queue.queue_id}"


def lost(losses: Sequence[str]) -> DataLoss:
    """The error for these losses, with the remedies."""
    shown = "; ".join(losses[:5]) + (f"; and {len(losses) - 5} more" if len(losses) > 5 else "")
    return DataLoss(
        f"messages are lost to this query: {shown}. Retention may be too short or a topic was deleted. "
        "With failOnDataLoss=false what is lost is skipped and logged"
    )


# --- a file of offsets ---


def read_kept(path: Path) -> Offsets | None:
    """The offsets that `keep` has written; None without a file. Raises ConfigError when the file cannot be
    read."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError("stateLocation", str(path), f"a readable file ({error.strerror})") from None
    return parse_offsets(text, str(path))


def keep(path: Path, offsets: Offsets) -> Offsets:
    """Write offsets, once for ever: whole and on the disk when the function returns, and never over existing
    offsets. Return the kept offsets: these, or the offsets of the first writer. Raises ConfigError when the
    folder cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
            file.write(offsets_text(offsets).encode())
            file.flush()
            os.fsync(file.fileno())
        try:
            with contextlib.suppress(FileExistsError):
                os.link(file.name, path)  # unlike a rename, a link never replaces
        finally:
            os.unlink(file.name)
        sync_folder(path.parent)
    except OSError as error:
        raise ConfigError("stateLocation", str(path.parent), f"a folder to write to ({error})") from None
    kept = read_kept(path)
    assert kept is not None
    return kept
