"""Begin and end of a read: by the options, the brokers' offsets, and the files in `stateLocation` and of the
Spark session that tie a query to earlier ones."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

from attrs import frozen

from rmq.errors import ConfigError
from rmq.files import read_file, replace_file
from rmq.message import MessageQueue
from rmq.spark.cluster import BrokersAway, Cluster
from rmq.spark.offsets import EARLIEST, LATEST, Offsets, keep, offsets_of, read_kept
from rmq.spark.options import ReadOptions, ending, starting

if sys.platform != "win32":
    import fcntl

FILE_NAME: Final = "startingOffsets.json"
"""In `stateLocation`: the first offsets of a stream."""
LAST_NAME: Final = "lastOffsets.json"
"""In `stateLocation`: the end of the last planned batch, for versions of Spark that do not report it."""
BROKERS_NAME: Final = "brokers.json"
"""In `stateLocation`: the brokers that the topics of a batch had, in all runs together."""

SESSION_TOPICS: Final = 10_000
"""Topics whose brokers a Spark session remembers; the topic that was noted first makes room."""

Edge = Literal["starting", "ending"]

log = logging.getLogger(__name__)


def batch_bounds(cluster: Cluster, options: ReadOptions) -> tuple[Offsets, Offsets]:
    """The first and the last offsets of a batch, fixed now.

    Raises BrokersAway when a broker with messages of the batch does not come back, and ConfigError when a
    chosen topic or group does not exist.
    """
    first, last = starting(options, streaming=False), ending(options)
    queues = _chosen(cluster, options, (first, last), skips=options.skips, warns=True)
    if options.skips:
        queues = list(cluster.bounds(queues, skips=True))
    start = _resolved(cluster, queues, first, options.starting_times, options)
    end = _resolved(cluster, queues, last, options.ending_times, options, "ending")
    return start, end


def _chosen(
    cluster: Cluster,
    options: ReadOptions,
    offsets: Iterable[str | int | Offsets],
    *,
    skips: bool = False,
    warns: bool = False,
) -> list[MessageQueue]:
    """The queues to read from the beginning on; waits for brokers that options, offsets, the state of an
    earlier batch, or an earlier read of the Spark session name. With `warns` it logs when nothing tells
    whether a broker is away."""
    named = {queue for one in offsets if isinstance(one, dict) for queue in one}
    folder = _folder(options.state_location) if options.state_location else None
    had = _brokers_had(folder / BROKERS_NAME) if folder is not None else frozenset()
    told = cluster.left_behind()
    left = told or frozenset[str]()
    # Name servers of rmq know better than the session: a broker that was drained or forgotten is not away.
    session = SessionBrokers.of(options.name_server) if told is None and not options.queues else None
    read = session.brokers(options) if session is not None else frozenset[str]()
    knows = session is not None and session.knows(options)
    try:
        awaited = had | read if skips else had | read | left
        queues = cluster.queues({*options.queues, *named}, brokers=awaited, skips=skips)
    except BrokersAway as error:
        if had - options.required_brokers and folder is not None:
            raise BrokersAway(f"{error} (of those that {folder / BROKERS_NAME} names)") from None
        if left - options.required_brokers:
            hint = "they left without a drain; onBrokerAway=skip, or `rmq broker forget` where they are gone"
            raise BrokersAway(f"{error} ({hint})") from None
        if read - options.required_brokers:
            hint = "this Spark session has read them; onBrokerAway=skip, or a new session where they are gone"
            raise BrokersAway(f"{error} ({hint})") from None
        raise
    _check_chosen(queues, options)
    now = frozenset(queue.broker_name for queue in queues)
    if skips:
        cluster.skip(left - now)
    elif warns and told is None and not (named or had or knows or options.queues or options.required_brokers):
        _warn_of_unknown(now)
    if session is not None:
        session.note(queues, keeps=skips)
    if folder is not None and not now <= had:
        _keep_brokers(folder / BROKERS_NAME, had | now)
    return queues


@cache
def _warn_of_unknown(brokers: frozenset[str]) -> None:
    """Warn, once in a process, that messages of brokers that are away may be missing."""
    log.warning(
        "the name servers do not tell whether a broker is away (RocketMQ's do not): the batch has the"
        " messages of %s; with requireBrokers or stateLocation it fails without one of them",
        ", ".join(sorted(brokers)) or "no broker",
    )


def _check_chosen(queues: list[MessageQueue], options: ReadOptions) -> None:
    """Raise ConfigError for a missing topic or group of the options."""
    if missing := set(options.queues) - set(queues):
        raise ConfigError("assign", _listed(missing), "queues that their topics have")
    if not queues and options.topic_pattern and options.require_topics:
        expected = "a pattern that matches a topic (or requireTopics=false)"
        raise ConfigError("topicPattern", options.topic_pattern, expected)


def _listed(queues: Iterable[MessageQueue]) -> str:
    return ", ".join(sorted(f"{q.topic}/{q.broker_name}/{q.queue_id}" for q in queues)[:5])


def _brokers_had(path: Path) -> frozenset[str]:
    """The brokers that an earlier batch found. Raises ConfigError when the file cannot be read."""
    try:
        return frozenset(json.loads(read_file(path) or b'{"brokers":[]}')["brokers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError("stateLocation", str(path), f"a file that a batch wrote ({error})") from None


def _keep_brokers(path: Path, brokers: Iterable[str]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps({"v": 1, "brokers": sorted(brokers)}).encode())
    except OSError as error:
        raise ConfigError("stateLocation", str(path.parent), f"a folder to write to ({error})") from None


# --- the brokers that a Spark session has read ---


@frozen
class SessionBrokers:
    """The brokers of the topics that a Spark session has read, in a file that all its planning processes
    share.

    The file is in the folder of the driver's temporary blocks, which Spark makes for each session and removes
    at its end. A file that cannot be read or written is no error: then the session remembers nothing.
    """

    path: Path

    @classmethod
    def of(cls, name_server: str) -> SessionBrokers | None:
        """The file for these name servers; None outside of a planning process of Spark."""
        folder = Path(os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0])
        if not folder.name.startswith("blockmgr-") or not folder.is_dir():
            return None
        return cls(folder / f"rmq-brokers-{sha256(name_server.encode()).hexdigest()[:16]}.json")

    def brokers(self, options: ReadOptions) -> frozenset[str]:
        """The brokers that the topics of a read had."""
        known = self._known()
        if options.topic_pattern:
            matches = re.compile(options.topic_pattern).fullmatch
            topics: Iterable[str] = filter(matches, known)
        else:
            topics = known.keys() & set(options.topics)
        return frozenset(broker for topic in topics for broker in known[topic])

    def knows(self, options: ReadOptions) -> bool:
        """True if all topics of a read were read before; of a pattern that is unknown."""
        return not options.topic_pattern and self._known().keys() >= set(options.topics)

    def note(self, queues: Iterable[MessageQueue], *, keeps: bool) -> None:
        """Note the brokers of these queues as those that their topics have; `keeps` says that brokers noted
        before may be away, and stay."""
        found: dict[str, set[str]] = {}
        for queue in queues:
            found.setdefault(queue.topic, set()).add(queue.broker_name)
        try:
            with self._locked():
                known = self._known()
                new = {
                    topic: sorted(brokers.union(known.get(topic, ()) if keeps else ()))
                    for topic, brokers in found.items()
                }
                if new.items() <= known.items():
                    return
                kept = {topic: brokers for topic, brokers in known.items() if topic not in new} | new
                rows = dict(list(kept.items())[-SESSION_TOPICS:])
                replace_file(self.path, json.dumps(rows).encode())
        except OSError as error:
            log.debug("the brokers of the topics are not remembered: %s", error)

    def _known(self) -> dict[str, list[str]]:
        try:
            return dict(json.loads(read_file(self.path) or b"{}"))
        except (OSError, ValueError, TypeError):
            return {}

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self.path.with_suffix(".lock"), "wb") as lock:
            if sys.platform != "win32":
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def first_offsets(cluster: Cluster, options: ReadOptions) -> Offsets:
    """The first offsets of a stream: the kept ones, else those of the options, which are kept from now on in
    `stateLocation` or by the broker as committed offsets of `groupId`.

    Raises ConfigError when the folder cannot be used, or holds the offsets of another query.
    """
    if options.state_location:
        return _kept_in_file(cluster, options)
    expected = starting(options, streaming=True)
    moves = expected in (LATEST, "timestamp") or (isinstance(expected, dict) and LATEST in expected.values())
    queues = _chosen(cluster, options, (expected,))
    if not moves:
        return _resolved(cluster, queues, expected, None, options)
    recorded = cluster.recorded(queues)
    kept = {queue: offset for queue, offset in recorded.items() if offset is not None}
    if len(kept) < len(queues):
        found = _resolved(cluster, queues, expected, options.starting_times, options)
        fresh = {queue: offset for queue, offset in found.items() if queue not in kept}
        cluster.commit(fresh)
        kept |= fresh
    return kept


def _resolved(
    cluster: Cluster,
    queues: list[MessageQueue],
    expected: str | int | Offsets,
    times: int | Offsets | None,
    options: ReadOptions,
    edge: Edge = "starting",
) -> Offsets:
    """`expected` as offsets; `times`, for "timestamp", are in ms since 1970. Errors name the options of this
    end of the read."""
    if expected == "timestamp":
        assert times is not None
        return _at_times(cluster, queues, times, options, edge)
    if isinstance(expected, dict):
        _check_named(queues, expected, f"{edge}Offsets")
    bounds = cluster.bounds(queues)
    if expected == "group":
        committed = cluster.committed(queues)
        return {queue: bounds[queue][0] if (at := committed[queue]) is None else at for queue in queues}
    marks = expected if isinstance(expected, dict) else dict.fromkeys(queues, int(expected))
    named = {EARLIEST: 0, LATEST: 1}
    return {queue: bounds[queue][named[at]] if at < 0 else at for queue, at in marks.items()}


def _at_times(
    cluster: Cluster, queues: list[MessageQueue], times: int | Offsets, options: ReadOptions, edge: str
) -> Offsets:
    """For each queue the first message stored at its time or later; without one its end, or ConfigError."""
    name = f"{edge}OffsetsByTimestamp" if isinstance(times, dict) else f"{edge}Timestamp"
    if isinstance(times, dict):
        _check_named(queues, times, name)
    else:
        times = dict.fromkeys(queues, times)
    bounds = cluster.bounds(queues)  # waits for masters: a slave may lack the message of a time
    found: Offsets = {}
    for time_ms in sorted(set(times.values())):
        found |= cluster.at_time([queue for queue in queues if times[queue] == time_ms], time_ms)
    late = [queue for queue in queues if found[queue] >= bounds[queue][1]]
    if late and options.timestamp_strategy == "error":
        expected = f"times at which {_listed(late)} had a message to come (or timestampStrategy=latest)"
        raise ConfigError(name, times[late[0]], expected)
    return {queue: found[queue] for queue in queues}


def _check_named(queues: list[MessageQueue], offsets: Offsets, option: str) -> None:
    for what, found in (("lacks", set(queues) - set(offsets)), ("also names", set(offsets) - set(queues))):
        if found:
            raise ConfigError(
                option,
                f"JSON that {what} {len(found)} queues: {_listed(found)}",
                "all queues of the topics, no others",
            )


# --- the file ---


def _kept_in_file(cluster: Cluster, options: ReadOptions) -> Offsets:
    path = _folder(options.state_location) / FILE_NAME
    kept = read_kept(path)
    if kept is None:
        expected = starting(options, streaming=True)
        queues = cluster.queues(options.queues)
        _check_chosen(queues, options)
        found = _resolved(cluster, queues, expected, options.starting_times, options)
        kept = keep(path, found)
        log.info("the first offsets are kept in %s", path)
    chosen = set(options.topics)
    others = sorted({queue.topic for queue in kept} - chosen)
    if others and not options.topic_pattern:
        raise ConfigError(
            "stateLocation",
            options.state_location,
            f"a folder of this query's own: {path} is of the topics {', '.join(others)}",
        )
    return kept


def is_new(options: ReadOptions) -> bool:
    """True if a stream surely has not begun: its folder has no first offsets."""
    return bool(options.state_location) and read_kept(_folder(options.state_location) / FILE_NAME) is None


def read_last(options: ReadOptions) -> dict[str, Any] | None:
    """The end of the last batch that a stream with a `stateLocation` has planned; None if it is unknown, or
    of another stream than the first offsets."""
    if not options.state_location:
        return None
    folder = _folder(options.state_location)
    try:
        tree = json.loads(read_file(folder / LAST_NAME) or b"{}")
        first = read_file(folder / FILE_NAME)
        end = tree.get("end") if first is not None and tree.get("first") == first.decode() else None
        offsets_of(end if end is not None else {})
    except (OSError, ValueError, AttributeError, ConfigError):
        return None
    return end if isinstance(end, dict) else None


def keep_last(options: ReadOptions, end: Mapping[str, Any]) -> None:
    """Keep the end of a planned batch. Raises ConfigError if the folder cannot be written."""
    if not options.state_location:
        return
    folder = _folder(options.state_location)
    try:
        if (first := read_file(folder / FILE_NAME)) is not None:
            text = json.dumps({"first": first.decode(), "end": end})
            replace_file(folder / LAST_NAME, text.encode())
    except OSError as error:
        raise ConfigError("stateLocation", str(folder), f"a folder to write to ({error})") from None


def _folder(location: str) -> Path:
    parts = urlsplit(location)
    if len(parts.scheme) > 1 and parts.scheme != "file":
        raise ConfigError("stateLocation", location, "a folder that the driver sees as a file system's")
    return Path(unquote(parts.path) if parts.scheme == "file" else location)
