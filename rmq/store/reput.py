"""Reput: feeds the index with the records that it does not have yet, in batches, after the replies went
out.

Fresh records come from a backlog in memory. After a start (or a failed write) the index may be further
behind: then the records are read from the log until the index has caught up.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from rmq.errors import StoreError
from rmq.protocol.properties import index_keys, is_indexed
from rmq.store.files.commitlog import CommitLog
from rmq.store.files.index import Entry, Index
from rmq.store.files.scan import Scan, Scanned, next_good, why_no_record

if TYPE_CHECKING:
    from rmq.protocol._engine import Rows


log = logging.getLogger("rmq.store")


class Reput:
    """`behind` is the physical offset to read on from, or None when the backlog holds all that is missing.
    `may_get_rows`: entries may be rows, of the compiled engine.
    """

    def __init__(self, commit_log: CommitLog, index: Index, *, may_get_rows: bool = False) -> None:
        self._log = commit_log
        self._index = index
        self._backlog: deque[Entry | Rows] = deque()
        self._may_get_rows = may_get_rows
        self._in_rows = 0  # records of the backlog beside the number of its entries
        self.behind: int | None = None

    def __len__(self) -> int:
        return len(self._backlog) + self._in_rows

    @property
    def is_idle(self) -> bool:
        """True if nothing is left to do."""
        return self.behind is None and not self._backlog

    def start(self, *, again: bool = False) -> None:
        """Find where the index ends in the log. `again`: the last record there may be indexed in part."""
        self._backlog.clear()
        self._in_rows = 0
        end = self._index.end_offset
        last = self._log.record(end) if end >= 0 and not again else None
        self.behind = max(self._log.start, end + len(last) if last is not None else end)
        if self.behind >= self._log.end:
            self.behind = None

    def skip_to(self, log_start: int) -> None:
        """The log begins at `log_start` now."""
        if self.behind is not None:
            self.behind = max(self.behind, log_start)

    def add(self, entries: Sequence[Entry | Rows]) -> None:
        """Take the entries of records that were just committed."""
        if self.behind is not None:
            return
        self._backlog.extend(entries)
        if self._may_get_rows:
            for entry in entries:
                if not isinstance(entry, tuple):
                    self._in_rows += entry.records - 1

    def step(self, limit: int, now_ms: int) -> bool:
        """Index up to `limit` records; True when more are left. A failed write is logged, and tried again
        by a later step.
        """
        try:
            if self.behind is not None:
                self._catch_up(limit, now_ms)
            elif self._backlog:
                self._index.add(self._take(limit), now_ms)
        except StoreError as error:
            log.error("the index cannot be written, queries by key miss records until it can: %s", error)
            self.start(again=True)  # the log has what is missing, so the memory need not
            return False
        return not self.is_idle

    def _take(self, limit: int) -> list[Entry | Rows]:
        """The entries of the oldest records, `limit` at most."""
        backlog = self._backlog
        if limit >= len(self):
            batch = list(backlog)
            backlog.clear()
            self._in_rows = 0
            return batch
        if not self._in_rows:
            return [backlog.popleft() for _ in range(limit)]
        batch = []
        while limit > 0:
            entry = backlog.popleft()
            count = 1
            if not isinstance(entry, tuple):
                if entry.records > limit:
                    entry, rest = entry.split(limit)
                    backlog.appendleft(rest)
                    self._in_rows -= 1  # the rest is an entry of its own
                count = entry.records
                self._in_rows -= count - 1
            limit -= count
            batch.append(entry)
        return batch

    def _catch_up(self, limit: int, now_ms: int) -> None:
        assert self.behind is not None
        scan = Scan(
            self._log.segments, max(self.behind, self._log.start), check_crc=False, stop=self._log.end
        )
        records = list(islice(scan, limit))
        entries = list(entries_of(records))
        # A crash may have come between two keys of a record. A second entry for a key would answer a query
        # with the message twice.
        if entries and entries[0][2] == self._index.end_offset:
            entries[0] = self._rest_of(entries[0])
        self._index.add(entries, now_ms)
        self.behind = scan.position
        if len(records) < limit and self.behind < self._log.end:
            self._skip_damage(self.behind)
        if self.behind >= self._log.end:
            self.behind = None

    def _rest_of(self, entry: Entry) -> Entry:
        """The rest of the last indexed record that the index lacks."""
        topic, keys, position, timestamp = entry
        lacking = [key for key in keys if not self._index.has(topic, key, position)]
        return topic, tuple(lacking), position, timestamp

    def _skip_damage(self, position: int) -> None:
        segments, end = self._log.segments, self._log.end
        following = next_good(segments, position)
        if following is None and not why_no_record(segments, position, end):
            self.behind = end  # a slave has a part of a record: `add` gets its entry when it is whole
            return
        self.behind = end if following is None else min(following.position, end)
        log.error(
            "%s: no good record at %d, the index goes on at %d",
            segments.folder,
            position,
            self.behind,
        )


def entries_of(records: Iterable[Scanned]) -> Iterator[Entry]:
    """The index entries of records read from the log."""
    for record in records:
        if is_indexed(record.sys_flag):
            keys = index_keys(record.properties)
            if keys:
                yield record.topic.decode("utf-8", "replace"), keys, record.position, record.store_timestamp
