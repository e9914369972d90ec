"""Tables that a broker keeps as JSON in config/ of its store: reading, writing and copying.

topics and subscriptionGroup are written at once, by the tables themselves, when a client is told of the
change; rows created on first use, and the other tables, are written at intervals, and at the end. Texts are
made in the loop, in slices if long, and written in threads; an older text never follows a newer text.

A slice is a ms or two of long work: a generator yields after each slice, so that the loop serves others
(`rmq.remoting.loop.run_cooperatively`); its return value is the result.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from rmq.protocol.bodies import DataVersion
from rmq.protocol.fields import Body
from rmq.shares import NOBODY, Holders, Shares, is_account

if TYPE_CHECKING:
    from rmq.errors import ResponseError
    from rmq.protocol.command import Command


log = logging.getLogger("rmq.broker")

T = TypeVar("T")
Slices = Generator[None, None, T]


def run_to_end(work: Slices[T]) -> T:
    """Run all slices at once; returns the result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


class Quota:
    """Number of names that each account or address has created by first use since the start. Names without a
    creator do not count."""

    def __init__(self) -> None:
        self._makers: dict[str, Holders] = {}
        self._shares = Shares(0)

    def made(self, name: str, maker: Holders) -> None:
        """Count a name for its maker."""
        if maker:
            self._makers[name] = maker
            self._shares.add(maker)

    def forget(self, name: str) -> None:
        """Forget a name that was deleted, or set by an administrator: it no longer counts."""
        self._shares.give(maker) if (maker := self._makers.pop(name, NOBODY)) else None

    def over_account(self, maker: Holders, most: int) -> str:
        """Why an account may have no more made than it has; empty for an address."""
        if maker and is_account(maker[0]) and (count := self._shares.held(maker[0])) >= most:
            return f"{maker[0]} has had {count} made"
        return ""

    def over_share(self, maker: Holders, most: int, taken: int) -> str:
        """Why an account or address may have no more made of `most`, of which `taken` are there."""
        self._shares.most = most - taken + self._shares.used
        return self._shares.full(maker) if taken * 2 >= most else ""


CHANGES_KEPT: Final = 100_000


class Changes:
    """Changed, new and deleted rows of a table, in the order of their last change, for copies of the table.
    Nothing is kept before the first copy begins. `serial` numbers the last change."""

    def __init__(self) -> None:
        self.serial = 0
        self.forgotten = 0
        """Changes up to this one are not known any more: who has not seen them copies all."""
        self._at: dict[str, int] = {}
        self.is_followed = False
        """Somebody copies the table, or has."""

    def begin(self) -> int:
        """Start a full copy. Return the change number that it includes."""
        self.is_followed = True
        return self.serial

    def add(self, names: Iterable[str]) -> None:
        """These rows have changed."""
        if not self.is_followed:
            return
        for name in names:
            self.serial += 1
            self._at.pop(name, None)
            self._at[name] = self.serial
        if len(self._at) > CHANGES_KEPT:
            self.forgotten = self.serial
            self._at.clear()

    def since(self, serial: int) -> list[str]:
        """The rows that have changed after the change of this number, which is not forgotten."""
        assert serial >= self.forgotten
        names = []
        for name, at in reversed(self._at.items()):
            if at <= serial:
                break
            names.append(name)
        return names[::-1]


OnReplicated = Callable[["ResponseError | None"], None]
"""Called once: with None when the replicas of a set have a change, or with the reason for which that is not
known."""
WhenReplicated = Callable[[Changes, Any, OnReplicated], bool]
"""From the changes of a table and the connection that made the last one: whether the replicas are waited for.
`on_done` is called then, later; else not at all. Raises ResponseError when too many wait."""


def at_once(changes: Changes, connection: Any, on_done: OnReplicated) -> bool:
    """Wait for no replica."""
    return False


def response_when(
    replicated: WhenReplicated, changes: Changes, request: Command, connection: Any, response: Command
) -> Command | None:
    """The response to a request that has changed a table; None when it is sent once the replicas have the
    change."""
    if replicated is at_once or request.is_oneway:
        return response

    def done(error: ResponseError | None) -> None:
        connection.reply(response if error is None else request.reply(error.code, error.remark))

    return None if replicated(changes, connection, done) else response


SLICE_ROWS: Final = 50


class TableText:
    """The text of a table of frozen rows: `rows` in the map `name` of a body.

    A table is told and saved as a whole whenever one row is new, so each row's text is made once, and the
    whole once for each version.
    """

    def __init__(self, name: str) -> None:
        self._name = f'"{name}":{{'.encode()
        self._rows: dict[str, tuple[Body, bytes]] = {}
        self._whole: tuple[object, bytes] = (None, b"")

    def forget(self) -> None:
        """All rows have been replaced: texts made of the old ones are dropped."""
        self._rows, self._whole = {}, (None, b"")

    def outdate(self) -> None:
        """Something beside the rows has changed, which is in the text of the whole table."""
        self._whole = (None, b"")

    def whole(self, empty: Callable[[], Body], rows: Mapping[str, Body], version: DataVersion) -> bytes:
        """The text of the whole table at `version`; rows do not change without the version."""
        if self._whole[0] is not version:
            self._whole = version, run_to_end(self.slices(empty(), rows))
        return self._whole[1]

    def slices(self, empty: Body, rows: Mapping[str, Body]) -> Slices[bytes]:
        """`empty` as text, with the present `rows`; rows may change during the slices."""
        head, tail = empty.to_json().split(self._name + b"}")
        pieces, made = [], 0
        for key, row in list(rows.items()):
            known = self._rows.get(key)
            if known is None or known[0] is not row:
                text = b"%b:%b" % (encode_basestring(key).encode("utf-8", "replace"), row.to_json())
                known = self._rows[key] = row, text
                made += 1
                if made % SLICE_ROWS == 0:
                    yield
            pieces.append(known[1])
        if len(self._rows) > 2 * len(pieces):
            self._rows = {key: known for key, known in self._rows.items() if key in rows}
        return b"".join((head, self._name, b",".join(pieces), b"}", tail))


Row = TypeVar("Row", bound=Body)


class VersionedTable(ABC, Generic[Row]):
    """Rows by name, and a data version that grows with each change; name servers and slaves compare the
    version.

    `update` and `delete` save, by `save`, before they return. A row created on first use, or by `change`, is
    `unsaved` until the table is saved together with other new rows; `made` counts these rows. `from_start`
    are permanent rows. `noun` is the log's word for a row; `on_change` is called after each change.
    """

    def __init__(
        self,
        noun: str,
        field: str,
        from_start: Mapping[str, Row],
        *,
        save: Callable[[bytes], None],
        now_ms: Callable[[], int],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.table: dict[str, Row] = dict(from_start)
        self.from_start: Final = frozenset(from_start)
        self.data_version = DataVersion(timestamp=now_ms(), counter=0)
        self.made = 0
        self.unsaved: dict[str, int] = {}  # name -> the value of `made` with it
        self.quota = Quota()
        self.changes = Changes()
        self._start_rows = dict(from_start)
        self._noun = noun
        self._text = TableText(field)
        self._save = save
        self._now_ms = now_ms
        self._on_change = on_change
        self._is_full = False  # and the log says so

    @abstractmethod
    def _body(self, rows: dict[str, Row]) -> Body:
        """The table as RocketMQ's JSON body, with these rows."""

    @abstractmethod
    def _parsed(self, data: bytes) -> tuple[dict[str, Row], DataVersion]:
        """Rows and version of such a body. Raises RemoteProtocolError."""

    # ---- the file, and the table of a slave's master ----

    def load(self, data: bytes | None) -> None:
        """Put the rows of the file beside the permanent rows; None without a file. Raises
        RemoteProtocolError."""
        if data is not None:
            self._take(data)

    def replace(self, data: bytes) -> Slices[bool]:
        """A slave's: replace the rows by the master's, including deletions. Return whether the table changed.
        Raises RemoteProtocolError."""
        before = yield from self.text()
        self._take(data)
        after = yield from self.text()
        return after != before

    def _take(self, data: bytes) -> None:
        rows, self.data_version = self._parsed(data)
        self.changes.add(self.table.keys() | rows.keys())
        self.table = self._start_rows | rows
        self._text.forget()

    def names(self) -> list[str]:
        """The names of all rows."""
        return list(self.table)

    def text_of(self, names: Collection[str]) -> bytes:
        """Same as `to_json`, with the existing rows of these names."""
        return self._body({name: self.table[name] for name in names if name in self.table}).to_json()

    def missing(self, names: Collection[str]) -> list[str]:
        """The names among these without a row."""
        return [name for name in names if name not in self.table]

    def rows_of(self, text: bytes) -> tuple[dict[str, Row], DataVersion]:
        """The rows of such a text, and the version. Raises RemoteProtocolError."""
        return self._parsed(text)

    def apply_delta(
        self, rows: Mapping[str, Row], version: DataVersion, deleted: Collection[str] | None
    ) -> bool:
        """A slave's: apply the master's `rows` and delete `deleted` (None: all other rows). Changed rows are
        `unsaved`. Return whether the table changed."""
        self.data_version = version
        if deleted is None:
            rows = self._start_rows | dict(rows)
            deleted = self.table.keys() - rows.keys()
        removed = {name for name in deleted if name in self.table and name not in self.from_start}
        changed = {name for name, row in rows.items() if self._differs(name, row)} | removed
        if not changed:
            return False
        if removed:
            self.table = {name: row for name, row in self.table.items() if name not in removed}
        self.table.update(rows)
        self.made += 1
        self.unsaved |= dict.fromkeys(changed, self.made)
        self.changes.add(changed)
        self._on_change()
        return True

    def _differs(self, name: str, row: Row) -> bool:
        """True if the table has another row of this name, or none."""
        return self.table.get(name) != row

    def _file_body(self) -> Body:
        """The body of the file, without rows."""
        return self._body({})

    def text(self) -> Slices[bytes]:
        """Same as `to_json`, in slices; the table as it is now."""
        return self._text.slices(self._file_body(), self.table)

    def to_json(self) -> bytes:
        """The text of the file, which is also the body that a slave copies."""
        return self._text.whole(self._file_body, self.table, self.data_version)

    def saved(self, made: int) -> None:
        """A text is in the file that was begun when `made` had this value."""
        self.unsaved = {name: at for name, at in self.unsaved.items() if at > made}

    # ---- an administrator's changes ----

    def delete(self, name: str, now: int | None = None) -> bool:
        """Remove a row; return whether it existed. Raises StoreError, with nothing changed."""
        if name not in self.table:
            return False
        self._put({kept: row for kept, row in self.table.items() if kept != name}, now, (name,))
        self.quota.forget(name)
        self._is_full = False
        log.info("%s %s deleted", self._noun, name)
        return True

    def _set(self, name: str, row: Row, now: int | None) -> None:
        """Put or replace a row. Raises as `delete`."""
        self._put({**self.table, name: row}, now, (name,))
        self.quota.forget(name)
        log.info("%s %s set: %s", self._noun, name, row)

    def _put(self, table: dict[str, Row], now: int | None, changed: Collection[str]) -> None:
        before = self.table, self.data_version
        self.table = table
        self.data_version = self.data_version.following(self._now_ms() if now is None else now)
        try:
            self._save(self.to_json())
        except Exception:
            self.table, self.data_version = before
            raise
        self.unsaved = {}
        self.changes.add(changed)
        self._on_change()

    def change(self, name: str, row: Row | None, now: int | None = None) -> Callable[[], None]:
        """Put or replace a row, or with None remove it; the row is saved later, and `unsaved` until that.
        Return the function that reverts this, if the row was not changed again."""
        before = self.table.get(name)
        log.info("%s %s %s", self._noun, name, "deleted" if row is None else f"set: {row}")
        self._place(name, row, now)

        def undo() -> None:
            if self.table.get(name) is row:
                self._place(name, before, None)

        return undo

    def _place(self, name: str, row: Row | None, now: int | None) -> None:
        table = {**self.table, name: row}
        self.table = {name: row for name, row in table.items() if row is not None}
        self.quota.forget(name)
        self._is_full = False
        self._grown((name,), now)

    # ---- rows made on first use ----

    def renew(self) -> None:
        """Raise the version of unchanged rows: a setting has changed their meaning for readers."""
        self.data_version = self.data_version.following(self._now_ms())
        self._on_change()

    def _add(self, name: str, row: Row) -> Row:
        self.table[name] = row
        self._grown({name})
        return row

    def forget(self, names: Collection[str]) -> None:
        """Remove unused rows that were made on first use; they are saved later, like new rows."""
        self.table = {name: row for name, row in self.table.items() if name not in names}
        for name in names:
            self.quota.forget(name)
        self._is_full = False
        self._grown(names)

    def _grown(self, names: Collection[str], now: int | None = None) -> None:
        self.data_version = self.data_version.following(self._now_ms() if now is None else now)
        self.made += 1
        self.unsaved |= dict.fromkeys(names, self.made)
        self.changes.add(names)
        self._on_change()
