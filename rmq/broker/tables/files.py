"""Files of the tables: read at the start, saved in threads, copied from a master."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

from rmq.broker.tables.versioned import Slices, VersionedTable, run_to_end
from rmq.errors import RemoteProtocolError, StoreError

if TYPE_CHECKING:
    from rmq.store.store import Store

log = logging.getLogger("rmq.broker")


class Table(Protocol):
    """The content of a file."""

    def load(self, data: bytes | None) -> None:
        """Take the content of the file; None without a file. Raises RemoteProtocolError."""

    def to_json(self) -> bytes:
        """The text of the file."""


class ChangingTable(Table, Protocol):
    """A table whose file is written at intervals, after changes; `to_json` unsets `is_changed`."""

    @property
    def is_changed(self) -> bool:
        """True if the table has changed since `to_json` was called."""


class LargeTable(Table, Protocol):
    """A ChangingTable with so many rows that its text is made in slices."""

    @property
    def is_changed(self) -> bool:
        """True if the table has changed since `text` was called."""

    def text(self) -> Slices[bytes]:
        """The text of the file; unsets `is_changed`."""


class CopiedTable(Table, Protocol):
    """A table that a slave copies from its master; a change by copying is saved like any other change."""

    def replace(self, data: bytes) -> Slices[bool]:
        """Replace the table by the master's; return whether they differ. Raises RemoteProtocolError."""


FETCHED: Final = frozenset(("topics", "subscriptionGroup", "consumerOffset", "delayOffset", "timerProgress"))
"""Tables that a master tells its slaves as a whole."""


DAMAGE: Final = (RemoteProtocolError, StoreError, ValueError, TypeError, AttributeError)
"""Errors of a file that is no text of its table."""


class TableFiles:
    """Reads the tables at the start, and collects texts to be written. Tables are known by the names of their
    files. `awaited` are a slave's tables with damaged files, until its master has sent them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed: dict[str, bytes] = {}
        self._lock = store.disk.guard()
        self._stamps = count(1)
        self._written: dict[str, int] = {}  # name -> stamp of the text in the file
        self.versioned: Mapping[str, VersionedTable[Any]] = {}
        self._small: Mapping[str, ChangingTable] = {}
        self._large: Mapping[str, LargeTable] = {}
        self._copied: Mapping[str, CopiedTable] = {}
        self.awaited: set[str] = set()

    def load(
        self,
        *,
        is_slave: bool = False,
        versioned: Mapping[str, VersionedTable[Any]],
        small: Mapping[str, ChangingTable],
        large: Mapping[str, LargeTable],
        copied: Mapping[str, CopiedTable],
    ) -> None:
        """Read all tables. They are given here, and not to the constructor, because they save by this object.
        `copied` also has tables that a slave replaces by a verb of their own. Raises StoreError,
        RemoteProtocolError.

        A slave begins without a table whose file is damaged, if its master sends this table. The damaged file
        stays until the table has come: if this broker becomes master earlier, the file ends its start.
        """
        self.versioned, self._small, self._large, self._copied = versioned, small, large, copied
        for name in (*versioned, *small, *large):
            table = self._table(name)
            try:
                table.load(self._store.config_text(name))
            except DAMAGE as error:
                if not is_slave or name not in FETCHED:
                    raise
                kept = self._store.keep_damaged_config(name)
                log.error(
                    "the table %s of this slave cannot be read, and is fetched from its master; a copy"
                    " of the file is %s: %s",
                    *(name, kept, error),
                )
                table.load(None)
                self.awaited.add(name)

    def _table(self, name: str) -> Table:
        return {**self.versioned, **self._small, **self._large}[name]

    def restored(self, name: str) -> None:
        """Save a table that the master has sent as a whole, if its file was damaged."""
        if name in self.awaited:
            self.awaited.discard(name)
            self.save_later(name, self._table(name).to_json())
            log.warning("restored the table %s from the master", name)

    def save_later(self, name: str, data: bytes) -> None:
        """Write this text with the next `changed`."""
        self._changed[name] = data

    def save(self, name: str, data: bytes) -> None:
        """Replace a file now. Raises StoreError."""
        self._write(name, data, next(self._stamps))

    def saving(self, name: str) -> Slices[Callable[[], None]]:
        """Make the text of a versioned table; return the function that writes it, in a thread, and raises
        StoreError."""
        stamp = next(self._stamps)
        data = yield from self.versioned[name].text()
        return partial(self._write, name, data, stamp)

    def unsaved(self) -> dict[str, bytes]:
        """The texts of the versioned tables that have unsaved rows, by name; they count as saved from now
        on."""
        texts = {}
        for name, table in self.versioned.items():
            if table.unsaved:
                texts[name] = table.to_json()
                table.saved(table.made)
        return texts

    def _write(self, name: str, data: bytes, stamp: int) -> None:
        # Two threads may write the same table: of two texts the one that was begun later stays.
        with self._lock:
            if stamp > self._written.get(name, 0):
                self._store.save_config(name, data)
                self._written[name] = stamp

    def changed(self) -> Slices[dict[str, bytes]]:
        """The texts of all other tables that have changed, by name, for `store.save_configs`, which may run
        in any thread.
        """
        for name, large in self._large.items():
            if large.is_changed:
                self._changed[name] = yield from large.text()
        for name, small in self._small.items():
            if small.is_changed:
                self._changed[name] = small.to_json()
        changed, self._changed = self._changed, {}
        return changed

    def not_saved(self, changed: dict[str, bytes]) -> None:
        """These texts could not be written: return them at the next save, unless newer texts exist."""
        self._changed = {**changed, **self._changed}

    def copy(self, name: str, data: bytes) -> bool:
        """Take the master's text of a table; whether it differs. Raises RemoteProtocolError, StoreError."""
        return run_to_end(self.copying(name, data))

    def copying(self, name: str, data: bytes) -> Slices[bool]:
        """Same as `copy`, in slices."""
        changed = yield from self._copying(name, data)
        self.restored(name)
        return changed

    def _copying(self, name: str, data: bytes) -> Slices[bool]:
        copied = self._copied.get(name)
        if copied is not None:
            return (yield from copied.replace(data))
        versioned = self.versioned.get(name)
        if versioned is not None:
            changed = yield from versioned.replace(data)
            if changed:
                self.save_later(name, versioned.to_json())
            return changed
        table = self._small[name]
        before = table.to_json()
        table.load(data)
        after = table.to_json()
        if after != before:
            self.save_later(name, after)
        return after != before
