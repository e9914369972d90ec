"""Retention: which files of the log may go, by age and by how full the disk is."""

from __future__ import annotations

import time

from attrs import frozen

from rmq.store.commitlog import CommitLog
from rmq.store.config import StoreConfig
from rmq.store.disk import DiskUsage

MOST_FILES = 10  # of one call, as in Java: the caller comes back soon


@frozen
class DiskState:
    """How full the disk is, and whether sends may be taken; if not, `reason` says why and what to do."""

    ratio: float
    free_bytes: int
    writable: bool = True
    reason: str = ""


@frozen
class CleanReport:
    """What one `Store.clean` removed, in files, and why: "", "time", "space", "forced" or "asked"."""

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
    return DiskState(usage.ratio, usage.free_bytes, not reason, reason)


def why_clean(usage: DiskUsage, config: StoreConfig, now_ms: int) -> str:
    """Which files may go: "forced" the oldest whatever their age, "space" or "time" the expired, "" none."""
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
    """How many of the oldest files may go now, at most `most`. The last file never goes.

    A file is as old as its last record; the first record of the next file is the nearest later time that
    is cheap to read.
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
