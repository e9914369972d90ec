"""Table replication: topics, groups, offsets, locks, subscriptions and plug-in state as notes in the
replication stream. Pure.

A master sends each slave of rmq all rows once it knows the offset at which the slave begins, and from then on
the changes. A change of topics and groups is sent before any byte of the log that was written after the
change: a slave that has a message has its topic, and has dropped the topics that its master deleted. Offsets
follow within `OFFSETS_SECONDS`, in a set with controllers within `CONTROLLED_OFFSETS_SECONDS`.

A note has the name of the table; `rows`, the text of its file with the changed rows only; and `removed`, the
names of deleted rows, with `end`, the end of the master's log at the deletion. A slave that has the log up to
`end` removes the queues of deleted topics, as its master did. In a piece of a whole table the note has
`whole`: whether the piece is the first, and whether it is the last. The last piece of the topics also has
`end`, and `unlisted`, the topics that have queues at the master but no row: a slave that was away while
topics were deleted removes the queues of its topics that the master lacks, unless they are unlisted. Both
forms have `deleted`, the offsets in the log at which topics were deleted (`Deletions`), which the slave
keeps, too. A receiver that does not know such notes ignores them, and copies tables by requests, as
RocketMQ's slaves do.

A topic that was deleted and created again while a slave was away has another creation time: the slave removes
its queues of the earlier topic when its log reaches the offset at which the present topic was created.

In a set with controllers an administrator's change of topics and groups is answered when all replicas in sync
have the change in their files. A master that dies before the answer may have sent a deletion to a replica
other than the next master: this replica reports the deletion to the next master (`contradiction`), which
deletes the topic, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from attrs import define

from rmq.broker.tables.deletions import deletions_of
from rmq.broker.tables.versioned import Slices, run_to_end
from rmq.errors import RemoteProtocolError
from rmq.protocol import json

if TYPE_CHECKING:
    from rmq.broker.replication.plugin_state import PluginState
    from rmq.broker.replication.replica_state import DeliveryProgress
    from rmq.broker.state import Tables
    from rmq.broker.tables.files import TableFiles
    from rmq.broker.tables.versioned import Changes
    from rmq.protocol.bodies import TopicConfig, TopicDeletion
    from rmq.store.store import Store

log = logging.getLogger("rmq.broker")

ROWS: Final = 500
"""At most so many rows are in a note; its making and taking hold the loop for a few ms."""
ROWS_BYTES: Final = 1 << 20
"""Rows that are larger go in several notes: as a string, they must fit a frame of the link."""
OFFSETS_SECONDS: Final = 0.2
"""Between two notes about offsets, which change all the time."""
CONTROLLED_OFFSETS_SECONDS: Final = 0.02
"""The same in a controlled set, where a slave may become master at any time."""
OFFSETS: Final = "consumerOffset"
TOPICS: Final = "topics"
GROUPS: Final = "subscriptionGroup"
LOCKS: Final = "queueLocks"
ANNOUNCED: Final = "announcements"
SHARED: Final = "sharedTexts"
PROGRESS: Final = "delayOffset", "timerProgress"
"""Files of the progress that comes with the log."""
CONFIRMED: Final = OFFSETS, LOCKS
"""Tables of which followers say what they have."""
SAVED: Final = TOPICS, GROUPS
"""Tables of which followers say what is in their files, to a master that hears it."""
_SAVED_BIT: Final = 1 << 60
_REPORTS_SAVED: Final = 1 << 61
"""A follower reports `SAVED`; of one that does not say so what it was told counts."""


class StreamedTable(Protocol):
    """A table whose rows go to slaves; texts have the format of its file."""

    changes: Changes

    def names(self) -> list[str]:
        """The names of all rows."""

    def text_of(self, names: Collection[str]) -> bytes:
        """The text of the existing rows of these names."""

    def missing(self, names: Collection[str]) -> list[str]:
        """The names without a row, of these names."""

    def rows_of(self, text: bytes) -> tuple[dict[str, Any], Any]:
        """The rows of a text, and the version of the table. Raises RemoteProtocolError."""

    def apply_delta(self, rows: dict[str, Any], version: Any, deleted: Collection[str] | None) -> bool:
        """Apply `rows` and delete `deleted` (None: replace the whole table). Return whether the table
        changed."""


@define
class SlaveCursor:
    """State of a table at a slave, as far as it was sent."""

    name: str
    table: StreamedTable
    serial: int = -1
    left: list[str] = []  # noqa: RUF008 - replaced, never changed
    is_whole: bool = False

    @property
    def is_complete(self) -> bool:
        return self.serial == self.table.changes.serial and not self.left

    def note(self) -> dict[str, Any] | None:
        note = self._next()
        if note is not None and not self.left and self.name in CONFIRMED + SAVED:
            note["serial"] = self.serial
        return note

    def _next(self) -> dict[str, Any] | None:
        changes, is_first = self.table.changes, False
        if self.serial < changes.forgotten:
            self.serial, self.left = changes.begin(), self.table.names()
            self.is_whole = is_first = True
        elif not self.left:
            if self.serial == changes.serial:
                return None
            self.left, self.is_whole = changes.since(self.serial), False
            self.serial = changes.serial
        names = self.left[:ROWS]
        while len(text := self.table.text_of(names)) > ROWS_BYTES and len(names) > 1:
            names = names[: len(names) // 2]
        self.left = self.left[len(names) :]
        note: dict[str, Any] = {"table": self.name, "rows": text.decode()}
        if self.is_whole:
            return note | {"whole": [is_first, not self.left]}
        return note | {"gone": self.table.missing(names)}


class TableSender:
    """A master's: notes for a slave of rmq. Times are in seconds, of any clock; `end` gives the end of the
    log, `unlisted` the topics that have queues and no row, `offsets_s` the time between two notes about
    offsets."""

    def __init__(
        self,
        tables: Mapping[str, StreamedTable],
        end: Callable[[], int],
        *,
        unlisted: Callable[[], list[str]] = list,
        deletions: Callable[[], Mapping[str, TopicDeletion]] = dict,
        offsets_s: float = OFFSETS_SECONDS,
        is_awaited: Callable[[str, int], bool] = lambda table, serial: False,
    ) -> None:
        self._end = end
        self._unlisted = unlisted
        self._all_deletions = deletions
        self._is_awaited = is_awaited
        self._reports_saved = False
        self.offsets_s = offsets_s
        self._had: dict[str, int] = {}
        self._urgent = [SlaveCursor(name, table) for name, table in tables.items() if name != OFFSETS]
        self._offsets = [SlaveCursor(name, table) for name, table in tables.items() if name == OFFSETS]
        self._offsets_at = -offsets_s

    @property
    def is_complete(self) -> bool:
        """True if the slave was sent all changes."""
        return all(one.is_complete for one in (*self._urgent, *self._offsets))

    def note(self, now: float) -> dict[str, Any] | None:
        """The next note, None when nothing is due. It goes out before any more of the log."""
        for cursor in self._urgent:
            if note := cursor.note():
                return note | self._deletions(cursor.name, note)
        for cursor in self._offsets:
            if (
                cursor.left or now - self._offsets_at >= self.offsets_s or self._is_offset_change_due(cursor)
            ) and (note := cursor.note()):
                self._offsets_at = now
                return note
        return None

    def _deletions(self, table: str, note: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a note that a slave needs to remove deleted topics."""
        if table == TOPICS and note.get("whole", ())[1:] == [True]:
            more = {"unlisted": self._unlisted(), "deleted": self._deleted()}
        elif removed := note.get("gone"):
            more = {"deleted": self._deleted(removed)} if table == TOPICS else {}
        else:
            return {}
        return {"end": self._end(), **more}

    def _deleted(self, names: Collection[str] | None = None) -> dict[str, Any]:
        """The deletions of these topics, or all, as JSON values."""
        table = self._all_deletions()
        kept = table if names is None else [name for name in names if name in table]
        return {name: table[name].to_value() for name in kept}

    def _is_offset_change_due(self, cursor: SlaveCursor) -> bool:
        """True if a request waits for a change that was not sent, while the slave has every change that was
        sent."""
        return (
            self._is_awaited(cursor.name, cursor.serial) and self._had.get(cursor.name, -1) >= cursor.serial
        )

    def heard(self, number: int) -> None:
        """Take a report of `row_report`. Raises RemoteProtocolError for rows that were never sent."""
        if number == _REPORTS_SAVED:
            self._reports_saved = True
            return
        names = SAVED if number & _SAVED_BIT else CONFIRMED
        serial, at = divmod(number & ~_SAVED_BIT, len(names))
        cursor = self._cursor(names[at])
        if serial > cursor.serial:
            raise RemoteProtocolError(
                f"it confirms change {serial} of {cursor.name}, {cursor.serial} were sent"
            )
        self._had[cursor.name] = max(serial, self._had.get(cursor.name, -1))

    def had(self, table: str) -> int:
        """The last change of a table that the slave has confirmed; -1 before its first report."""
        if table in SAVED and not self._reports_saved:
            cursor = self._cursor(table)
            return -1 if cursor.left else cursor.serial
        return self._had.get(table, -1)

    def _cursor(self, table: str) -> SlaveCursor:
        return next(one for one in (*self._urgent, *self._offsets) if one.name == table)


def row_report(table: str, serial: int) -> int:
    """A slave's report that it has the rows of a table up to a change, as a number."""
    names, bit = (SAVED, _SAVED_BIT) if table in SAVED else (CONFIRMED, 0)
    return serial * len(names) + names.index(table) + bit


class TableReceiver:
    """A slave's: takes tables of its master, from the link or as whole texts. `tables` are known by the names
    of their files; locks and subscriptions have no file.

    `is_fed`: the master sends tables on the link, so that no requests are needed. `on_topics` is called when
    a text has changed topics, `save` when the link has changed topics or groups.
    """

    def __init__(
        self,
        files: TableFiles,
        tables: Tables,
        store: Store,
        delivery: DeliveryProgress,
        on_topics: Callable[[], None],
        save: Callable[[], None],
    ) -> None:
        self.shared: PluginState | None = None
        self.tables: Final[dict[str, StreamedTable]] = {
            TOPICS: tables.topics,
            GROUPS: tables.groups,
            LOCKS: tables.locks,
            ANNOUNCED: tables.clients.known_subscriptions,
            OFFSETS: tables.offsets,
        }
        self.is_fed = False
        self._files = files
        self._topics = tables.topics
        self._offsets = tables.offsets
        self._store = store
        self._on_topics = on_topics
        self._save = save
        self._delivery = delivery
        self._collected: dict[str, dict[str, Any]] = {}
        self._to_report: dict[str, int] = {}
        self._hears_saved = self._is_to_greet = False
        self._contradicted: dict[str, int] = {}
        self._held: int | None = None
        # topics -> where the master's log ended when they were deleted, or when the present one was made
        self._deleted: dict[str, int] = {}

    def share(self, shared: PluginState) -> None:
        """Send and receive these tables, too, from the next link on."""
        self.shared = self.tables[SHARED] = shared

    # ---- by the link ----

    def begin(self, *, hears_saved: bool = False) -> None:
        """A new link to a master begins: the master must learn the state of our files, and the topics deleted
        here."""
        self.is_fed = False
        self._hears_saved = self._is_to_greet = hears_saved
        self._contradicted.clear()
        self._to_report.clear()
        self._collected.clear()

    def take(self, note: Mapping[str, Any]) -> None:
        """Take a note if it is about a table. Raises RemoteProtocolError."""
        if self._files.awaited and note.get("progress"):
            for one in PROGRESS:
                self._files.restored(one)
        name = note.get("table")
        table = self.tables.get(name) if isinstance(name, str) else None
        if table is None or not isinstance(name, str):
            return
        text, whole, removed = note.get("rows"), note.get("whole"), note.get("gone", [])
        if not isinstance(text, str) or not isinstance(removed, list):
            raise RemoteProtocolError(f"the master's note about the table {name} cannot be read")
        rows, version = table.rows_of(text.encode())
        self.is_fed = True
        deleted = [str(one) for one in removed]
        missing: Collection[str] | None = deleted
        if isinstance(whole, list) and len(whole) == 2:
            is_first, is_last = whole
            collected = {} if is_first else self._collected.get(name, {})
            collected |= rows
            if not is_last:
                self._collected[name] = collected
                return
            self._collected.pop(name, None)
            rows, missing = collected, None
        is_changed = False
        if name == TOPICS:
            is_changed = self._note_ended(rows, missing, note)
        if table.apply_delta(rows, version, missing) or is_changed:
            self._changed(name)
        if missing is None:
            self._files.restored(name)
        is_to_report = name in CONFIRMED or (name in SAVED and self._hears_saved)
        if is_to_report and isinstance(serial := note.get("serial"), int) and serial >= 0:
            self._to_report[name] = serial

    def _note_ended(
        self, rows: Mapping[str, TopicConfig], removed: Collection[str] | None, note: Mapping[str, Any]
    ) -> bool:
        """Note the topics that these rows remove or replace, before they take effect. Return whether a new
        deletion came. Raises RemoteProtocolError."""
        known, log_end = self._topics.table, self._store.max_physical_offset
        deletions = deletions_of(note.get("deleted", {}))
        deleted_here = self._topics.deleted_among(rows)
        if removed is not None:  # the master has taken a deletion back that it had told
            self._topics.deletions.forget(deleted_here)
        elif self._hears_saved:
            self._contradicted = deleted_here
        if removed is None and isinstance(unlisted := note.get("unlisted"), list):
            kept = rows.keys() | set(unlisted)
            self._deleted = {topic: at for topic, at in self._deleted.items() if topic not in kept}
            # Also those whose row went before a restart, and whose queues stayed.
            removed = {*known, *(topic for topic, _ in self._store.queues())} - kept - self._topics.from_start
        if removed and isinstance(end := note.get("end"), int):
            self._deleted |= dict.fromkeys(removed, end)
        for name, row in rows.items():
            before, creation = known.get(name), row.creation
            if self._topics.is_another(row):  # its offsets come after its row
                self._offsets.delete_topic(name)
            if creation is None:
                self._deleted.pop(name, None)
            elif before is None or before.creation != creation or creation.log_offset > log_end:
                self._deleted[name] = creation.log_offset
        for name, deletion in deletions.items():
            if name not in rows and deletion.log_offset > log_end:  # the log on the way has its messages
                self._deleted.setdefault(name, deletion.log_offset)
        return self._topics.take_deletions(deletions)

    @property
    def has_reports(self) -> bool:
        """True if `reports` or `contradiction` would give any."""
        return self._is_to_greet or bool(self._contradicted) or any(map(self._is_had, self._to_report))

    def _is_had(self, name: str) -> bool:
        return name not in SAVED or not self._files.versioned[name].unsaved

    def reports(self) -> list[int]:
        """The report to the master about received rows (`row_report`)."""
        had = [name for name in self._to_report if self._is_had(name)]
        found = [row_report(name, self._to_report.pop(name)) for name in had]
        if self._is_to_greet:
            self._is_to_greet = False
            found.insert(0, _REPORTS_SAVED)
        return found

    def contradiction(self) -> bytes:
        """The topics that this replica knows as deleted and that the master still has, because the former
        master died before the present master got the deletion. Empty when none."""
        if not self._contradicted:
            return b""
        some = dict(list(self._contradicted.items())[:ROWS])
        self._contradicted = {name: ms for name, ms in self._contradicted.items() if name not in some}
        log.warning("reported topics to the master that are deleted here: %s", ", ".join(some))
        return json.dumps({"deleted": some})

    def _changed(self, name: str) -> None:
        if name == OFFSETS:
            self._delivery.keep()
        if name == TOPICS and self._held is None:
            self._held = self._store.max_physical_offset
        if name in (TOPICS, GROUPS):
            self._save()

    def parts(self, physical_offset: int, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Bytes of the log in parts that end where `drop_deleted_queues` has something to do."""
        end = physical_offset + len(data)
        for at in sorted({at for at in self._deleted.values() if physical_offset < at < end}):
            yield physical_offset, data[: at - physical_offset]
            physical_offset, data = at, data[at - physical_offset :]
        yield physical_offset, data

    def drop_deleted_queues(self) -> None:
        """The log has grown: remove the queues of deleted topics once every earlier record has arrived. The
        queues of a topic that was created again begin with its first message."""
        if self._deleted:
            end = self._store.max_physical_offset
            for topic in [topic for topic, at in self._deleted.items() if at <= end]:
                self._remove_before(topic, self._deleted.pop(topic))

    def _remove_before(self, topic: str, physical_offset: int) -> None:
        """Remove the queues of a topic unless they have messages of the present topic of that name."""
        keys = [key for key in self._store.queues() if key[0] == topic]
        is_deleted = self._topics.get(topic) is None
        if is_deleted:  # as at the master, whose table of offsets may not be here when we are elected
            self._topics.remember_end(topic, max((self._store.max_offset(*key) for key in keys), default=0))
            self._offsets.delete_topic(topic)
        if keys and (is_deleted or self._are_before(keys, physical_offset)):
            self._remove(topic, len(keys))

    def _are_before(self, queues: Collection[tuple[str, int]], physical_offset: int) -> bool:
        """True if all messages of these queues lie before a physical offset. False for a queue whose messages
        have all expired and whose numbers go on, since that is unknown."""
        store = self._store
        ends = [(*queue, store.max_offset(*queue)) for queue in queues if store.max_offset(*queue)]
        lasts = [store.unit(topic, queue_id, end - 1) for topic, queue_id, end in ends]
        return all(last is not None and last[0] < physical_offset for last in lasts)

    def _remove(self, topic: str, count: int) -> None:
        log.warning("topic %s was deleted: removed its %d queues", topic, count)
        self._store.remove_topic(topic)

    def reportable(self, physical_offset: int) -> int:
        """The part of the log up to `end` that may be reported as kept: nothing behind a topic that is not
        saved yet."""
        if not self._topics.unsaved:
            self._held = None
        return physical_offset if self._held is None else min(physical_offset, self._held)

    # ---- by requests ----

    def copy(self, name: str, text: bytes) -> None:
        """Take the text of a table. Raises RemoteProtocolError, StoreError."""
        run_to_end(self.copying(name, text))

    def copying(self, name: str, text: bytes) -> Slices[None]:
        """Same as `copy`, in slices; ends when the master begins to send by the link, which is newer."""
        work = self._files.copying(name, text)
        try:
            while not (self.is_fed and name in self.tables):
                next(work)
                yield
        except StopIteration as done:
            if name == OFFSETS:
                self._delivery.keep()
            if name == TOPICS and done.value:
                self._on_topics()
