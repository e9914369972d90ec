"""Retention: which files of the log are removed, by age and by how full the disk is, and in which steps."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from rmq.errors import StoreError
from rmq.store.config import StoreConfig
from rmq.store.files.commitlog import CommitLog
from rmq.store.files.consumequeue import LEFT_INSIDE
from rmq.store.files.disk import Disk, DiskUsage

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.store.clock_watch import ClockWatch
    from rmq.store.files.index import Index
    from rmq.store.files.queues import Queues
    from rmq.store.reput import Reput
else:
    from rmq.lazy_attrs import frozen

log = logging.getLogger("rmq.store")

MOST_FILES = 10  # of one round, as in Java: the caller comes back soon
LEFT_FOLDER = "removed"  # in the store's folder: Java's brokers do not look into it


@frozen
class DiskState:
    """The usage of the disk, and whether sends may be accepted; if not, `reason` has the cause and the
    remedy."""

    ratio: float
    free_bytes: int
    is_writable: bool = True
    reason: str = ""
    total_bytes: int = 0


@frozen
class CleanReport:
    """Result of a `Store.clean`: the removed files, and the reason: "", "time", "space", "forced",
    "size", "unused" or "asked"."""

    log_files: int = 0
    queue_files: int = 0
    index_files: int = 0
    reason: str = ""


def disk_state(usage: DiskUsage, config: StoreConfig) -> DiskState:
    """Judge the usage against the highest watermark."""
    level = config.disk_space_warning_level_ratio
    full = usage.ratio * 100 > level
    short = usage.free_bytes < config.disk_min_free_bytes
    reason = ""
    if full or short:
        limit = f"over {level} %" if full else f"under {config.disk_min_free_bytes} free bytes"
        reason = (
            f"the disk is {usage.ratio:.0%} full with {usage.free_bytes} bytes free, {limit}: "
            "free some space, or lower fileReservedTime"
        )
    return DiskState(usage.ratio, usage.free_bytes, not reason, reason, usage.total_bytes)


def why_clean(usage: DiskUsage, config: StoreConfig, now_ms: int) -> str:
    """Reason for which files may be removed: "forced" the oldest whatever their age, "space" or "time" the
    expired, "" none. `take` also has files go for the size of the log ("size") and when no queue keeps a
    message in them ("unused")."""
    percent = usage.ratio * 100
    forced = (
        percent > config.disk_space_clean_forcibly_ratio or usage.free_bytes < 2 * config.disk_min_free_bytes
    )
    if forced and config.clean_file_forcibly_enable:
        return "forced"
    if forced or percent > config.disk_max_used_space_ratio:
        return "space"
    hour = time.localtime(now_ms // 1000).tm_hour
    return "time" if hour in {int(part) for part in config.delete_when.split(";")} else ""


def expired_files(
    log: CommitLog, config: StoreConfig, now_ms: int, *, forced: bool, most: int = MOST_FILES
) -> int:
    """Number of the oldest files that may be removed now, at most `most`. The last file always stays.

    A file is as old as its last record; the first record of the next file is the nearest later time that is
    cheap to read.
    """
    oldest = now_ms - config.file_reserved_time * 3_600_000
    count = 0
    # From the second file on: each one's first record says how old the file before it is.
    for base in log.segments.bases[1 : most + 1]:
        stored = log.store_timestamp(base)
        if not forced and (stored < 0 or stored > oldest):
            break
        if base > log.end:
            break  # made ahead: the file before it is the one that is written to
        count += 1
    assert count < max(len(log.segments.bases), 1), "the last file stays"
    return count


class Retention:
    """Removes expired files, singly, and trims queues and index behind them.

    `take` takes a file out of the log, which costs nothing. Removing a file of a GiB from the disk may take
    half a second, so the caller does that, `store.remove_left(retention.path)`, in any thread, and then calls
    `removed`. Queues and index follow when the log's files are off the disk: a crash before leaves records
    with their units, and never an unreadable record without a unit. A deleted topic's folder is moved out of
    the way and removed in the same manner: the topic may be created again at once.
    """

    def __init__(
        self,
        disk: Disk,
        root: str,
        log: CommitLog,
        queues: Queues,
        index: Index,
        reput: Reput,
        clock_watch: ClockWatch,
    ) -> None:
        self._disk = disk
        self._log = log
        self._queues = queues
        self._index = index
        self._reput = reput
        self._clock_watch = clock_watch
        self._held = ""  # why nothing is deleted by age, as it was logged last
        self._root = root
        self._leaving: dict[str, str] = {}  # unused files on the disk -> the reason
        self._numbers = 0  # of folders that were moved out of the way
        self._to_trim = False
        self.reason = ""
        """Why the last file went or would have gone: as `CleanReport.reason`."""
        self.queue_files = 0
        """Number of files of queues that the last trim removed at once."""

    @property
    def path(self) -> str | None:
        """The file or folder to remove from the disk now; None: there is none."""
        return next(iter(self._leaving), None)

    def why(self, path: str) -> str:
        """Why that is to be removed, in a word or three."""
        return self._leaving[path]

    def held(self, now_ms: int) -> str:
        """The reason why files must not be deleted by age now, because the wall clock may be wrong; empty if
        they may. Logged once for each reason."""
        why = self._clock_watch.held(now_ms)
        self._is_held(why)
        return why

    def take(self, config: StoreConfig, now_ms: int, *, asked: bool = False, by_topic: bool = False) -> bool:
        """Take the oldest file out of the log if it is expired, must make room or, with `by_topic`, has no
        message that a queue keeps; return whether a file was taken. `asked`: at any hour, and whatever the
        clock watch says.

        The disk's usage is read each time, so that no more files are removed than necessary: while anything
        waits to be removed from the disk, as a deleted topic's folder, no file is removed before its time.
        Raises StoreError.
        """
        segments = self._log.segments
        self.reason = why_clean(self._disk.usage(segments.folder), config, now_ms) or (
            "asked" if asked else ""
        )
        if self.reason == "forced" and self._leaving:
            self.reason = "space"
        held = self._clock_watch.held(now_ms)
        forced = self.reason == "forced"
        goes = bool(self.reason) and expired_files(self._log, config, now_ms, forced=forced, most=1) > 0
        if goes and asked:
            self._clock_watch.believe(now_ms)
        elif goes and not forced and self._is_held(held):
            goes = False
        if not goes:
            whatever = self._whatever_its_age(config, by_topic=by_topic)
            if not whatever:
                return False
            self.reason = whatever
        assert len(segments.bases) > 1, "the last file says where the log ends"
        self._queues.hold_files(self._log.start)
        self._leaving[segments.take_first()] = self.reason
        self._to_trim = True
        self._reput.skip_to(self._log.start)
        return True

    def _whatever_its_age(self, config: StoreConfig, *, by_topic: bool) -> str:
        """Why the oldest file goes before its time: "size", "unused", or "" when it stays."""
        bases = self._log.segments.bases
        if len(bases) < 2 or bases[1] > self._log.end:
            return ""
        most = config.file_reserved_bytes
        if most and self._log.end - bases[0] > most:
            return "size"
        return "unused" if by_topic and not self._queues.keeps_any(bases[1]) else ""

    def _is_held(self, why: str) -> bool:
        """True if files must not be deleted by age; logs each reason once."""
        if why and why != self._held:
            log.error(
                "expired messages are NOT DELETED for an hour, since the wall clock may be wrong: %s."
                " Check the clock; `rmq admin deleteExpiredCommitLog` deletes them now",
                why,
            )
        elif self._held and not why:
            log.warning("expired messages are deleted again")
        self._held = why
        return bool(why)

    def take_topic(self, topic: str) -> None:
        """Take a topic's queues out of the store. Raises StoreError, with the queues as before."""
        folder = self._queues.topic_folder(topic)
        # Forgotten only when the files are out of the way: a topic that is made again would find them.
        if self._disk.exists(folder):
            self._move_away(folder)
        self._queues.remove_topic(topic)

    def _move_away(self, folder: str) -> None:
        """Move a topic's folder out of the way; if it cannot be moved, remove its content now."""
        for place, name in self._left_places():
            left = os.path.join(place, f"{name}{self._numbers + 1}")
            try:
                self._disk.move(folder, left, sync=False)
            except StoreError as error:
                log.info("%s cannot be moved to %s: %s", folder, left, error)
            else:
                self._numbers += 1
                self._leaving[left] = "topic deleted"
                return
        self._disk.remove(folder)

    def _left_places(self) -> tuple[tuple[str, str], ...]:
        """Folders for files that are out of use, and the prefix of names in them: the store's folder, and a
        folder within the queues' folder, which may be a volume of its own. RocketMQ's broker takes the latter
        for a topic whose queues have no numbers, and ignores it."""
        inside = os.path.join(self._root, "consumequeue", LEFT_INSIDE)
        return (os.path.join(self._root, LEFT_FOLDER), ""), (inside, "topic-")

    def find_left(self) -> None:
        """Register files that an earlier run moved aside and did not remove. Raises StoreError."""
        for place, begin in self._left_places():
            for name in self._disk.list(place):
                self._leaving[os.path.join(place, name)] = "topic deleted"
                number = name.removeprefix(begin)
                if number.isascii() and number.isdecimal():
                    self._numbers = max(self._numbers, int(number))

    def removed(self, path: str) -> None:
        """The file is off the disk; trim queues and index after the last file. With very many queues
        `Store.dispatch` does the rest of the trimming."""
        self._leaving.pop(path, None)
        if self._to_trim and not self._leaving:
            self._to_trim = False
            self._queues.begin_trim()
            self.queue_files = self._queues.trim_some(self._log.start)
            self._leaving = dict.fromkeys(self._index.trim(self._log.start), self.reason or "expired")
