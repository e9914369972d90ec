"""Merges small files of an archive. See `folder` for why a kill neither loses nor doubles a row."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import frozen

from rmq.spark.options import MIB
from rmq.spark.pipelines.folder import ArchiveFolder
from rmq.spark.pipelines.parquet import names_of, row_count, with_rows, write
from rmq.spark.pipelines.progress import Progress, Watch, unwatched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANY: Final = 32
"""So many small files of about one size are merged while an archive runs."""
TARGET_BYTES: Final = 128 * MIB
_TIER_BITS: Final = 4
_ORDER: Final = ("brokerName", "queueId", "queueOffset")


@frozen
class CompactedPart:
    """What became of a partition's files."""

    date: str
    topic: str
    rows: int
    files_before: int
    files_after: int


@frozen
class Compacted:
    """What was merged; `parts` has the partitions that were changed."""

    path: str
    files_before: int
    files_after: int
    seconds: float
    parts: tuple[CompactedPart, ...]


def compact(
    spark: SparkSession,
    path: str | Path,
    *,
    target_bytes: int = TARGET_BYTES,
    watch: Watch = unwatched,
) -> Compacted:
    """Merge the small files of each partition of an archive into files of about `target_bytes`.

    Not while it is written to: raises ArchiveInUse. Killed: what is merged stays merged, no row is lost or
    doubled."""
    began = time.monotonic()
    parts = []
    with ArchiveFolder(path) as folder:
        places = folder.partitions()
        for number, place in enumerate(places):
            before = _sizes(place)
            compact_partition(spark, folder, place, 2, target_bytes=target_bytes, tiers=False)
            after = _sizes(place)
            if after != before:
                rows = sum(map(row_count, after))
                parts.append(CompactedPart(*names_of(str(place)), rows, len(before), len(after)))
            watch(Progress(number + 1, len(places), "partitions"))
    total_before, total_after = sum(p.files_before for p in parts), sum(p.files_after for p in parts)
    return Compacted(str(folder.path), total_before, total_after, time.monotonic() - began, tuple(parts))


def compact_partition(
    spark: SparkSession,
    folder: ArchiveFolder,
    partition: Path,
    least: int,
    *,
    target_bytes: int = TARGET_BYTES,
    tiers: bool = True,
) -> int:
    """Merge the small files of a partition where there are `least`; returns how many there were."""
    merged = 0
    for old in crowds(_sizes(partition), least, target_bytes, tiers=tiers):
        staged = folder.aside()
        count = -(-sum(path.stat().st_size for path in old) // target_bytes)
        frame = spark.read.parquet(*map(str, old)).coalesce(count).sortWithinPartitions(*_ORDER)
        write(frame, staged)
        found = dict(with_rows(staged))
        rows = sum(map(row_count, old))
        assert sum(found.values()) == rows, f"{partition}: {rows} rows became {sum(found.values())}"
        folder.replace(partition, old, [_named(path, number) for number, path in enumerate(found)])
        merged += len(old)
    return merged


def crowds(sizes: Mapping[Path, int], least: int, target_bytes: int, *, tiers: bool) -> list[list[Path]]:
    """The small files to merge with each other. With `tiers` only files whose sizes are within a factor of
    16 are: so a row is rewritten a few times in its life, not with each merge."""
    found: dict[int, list[Path]] = defaultdict(list)
    for path, size in sizes.items():
        if size < target_bytes // 2:
            found[size.bit_length() // _TIER_BITS if tiers else 0].append(path)
    return [sorted(paths) for _, paths in sorted(found.items()) if len(paths) >= least]


def _sizes(partition: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in sorted(partition.glob("*.parquet"))}


def _named(path: Path, number: int) -> Path:
    """The file under a name that no other file of the archive has."""
    return path.rename(path.with_name(f"merged-{uuid.uuid4().hex[:12]}-{number:04}.parquet"))
