"""TableFiles: the tables that a broker keeps as JSON in config/ of its store.

topics and subscriptionGroup are written at once, by the tables themselves, because a client was told of the
change; the others from time to time, and at the end.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from rmq.broker.slices import Slices, drain
from rmq.errors import StoreError

if TYPE_CHECKING:
    from rmq.store.store import Store

log = logging.getLogger("rmq.broker")


class Table(Protocol):
    """What is in one file."""

    def load(self, data: bytes | None) -> None:
        """Take what was in the file; None when there was none. Raises RemoteProtocolError."""

    def to_json(self) -> bytes:
        """The text of the file."""


class Persisting(Table, Protocol):
    """A table that hands its text over itself."""

    def persist(self) -> None:
        """Save what has changed, if anything has. Raises StoreError."""


class Marked(Table, Protocol):
    """A table that is asked for its text; `to_json` takes the mark away."""

    @property
    def dirty(self) -> bool:
        """Whether it has changed since."""


class Sliced(Table, Protocol):
    """A large table, whose text is made in slices."""

    @property
    def dirty(self) -> bool:
        """Whether it has changed since `text` was called."""

    def text(self) -> Slices[bytes]:
        """The text of the file as the table is now; takes the mark away."""

    def copying(self, data: bytes) -> Slices[bool]:
        """Take the master's text; whether it differs. Raises RemoteProtocolError."""


class TableFiles:
    """Reads the tables in the beginning, and collects what is to be written. Tables are known by the names of
    their files; put them into `persisting`, `marked` or `sliced`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed: dict[str, bytes] = {}
        self.persisting: dict[str, Persisting] = {}
        self.marked: dict[str, Marked] = {}
        self.sliced: dict[str, Sliced] = {}

    def load(self) -> None:
        """Read all tables. Raises StoreError, RemoteProtocolError."""
        for name, table in (*self.persisting.items(), *self.marked.items(), *self.sliced.items()):
            table.load(self._store.config_text(name))

    def save_later(self, name: str, data: bytes) -> None:
        """Have this text among the next `changed`."""
        self._changed[name] = data

    def changed(self) -> Slices[dict[str, bytes]]:
        """The texts of the files to be written, by name; `store.save_configs` writes them, in any thread."""
        for table in self.persisting.values():
            try:
                table.persist()
            except StoreError as error:
                log.error("a table cannot be saved: %s", error)
        for name, sliced in self.sliced.items():
            if sliced.dirty:
                self._changed[name] = yield from sliced.text()
        for name, marked in self.marked.items():
            if marked.dirty:
                self._changed[name] = marked.to_json()
        changed, self._changed = self._changed, {}
        return changed

    def not_saved(self, changed: dict[str, bytes]) -> None:
        """These could not be written: give them again next time, unless there is something newer."""
        self._changed = {**changed, **self._changed}

    def copy(self, name: str, data: bytes) -> bool:
        """Take the master's text of a table; whether it differs. Raises RemoteProtocolError, StoreError."""
        return drain(self.copying(name, data))

    def copying(self, name: str, data: bytes) -> Slices[bool]:
        """As `copy`, in slices."""
        sliced = self.sliced.get(name)
        if sliced is not None:
            return (yield from sliced.copying(data))
        table: Table = self.persisting[name] if name in self.persisting else self.marked[name]
        before = table.to_json()
        table.load(data)
        after = table.to_json()
        if after != before:
            self.save_later(name, after)
        return after != before
