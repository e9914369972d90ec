"""Pending changes of an administrator to topics and groups, which are answered when they are saved.

A change holds at once. Its table is saved beside the loop, together with later changes: a save takes several
syncs of the disk, and other requests do not wait. A change that cannot be saved is reverted, and the
administrator gets the error. In a set with controllers the response also waits for the replicas in sync.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from rmq.broker.error_responses import error_response
from rmq.broker.tables.versioned import response_when, run_to_end
from rmq.errors import StoreError
from rmq.server.deferred import Deferred
from rmq.shares import NOBODY

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.broker.tables.files import TableFiles
    from rmq.broker.tables.versioned import Changes, OnReplicated
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection
    from rmq.shares import HoldersOf, Holding
else:
    from rmq.lazy_attrs import frozen

log = logging.getLogger("rmq.broker")


CHANGES_MAX: Final = 2_000
"""Changes that may wait to be saved."""

WhenReplicated = Callable[[str, "Changes", "Holding", "OnReplicated"], bool]
"""Same as `versioned.WhenReplicated`, of the table of a name."""


@frozen
class _Change:
    """A change that is not saved: it will be with a text that is begun when `made` of its table has reached
    this value."""

    made: int
    asked: tuple[Command, Connection] | None
    undo: Callable[[], None] | None
    then: Callable[[], None]


class PendingChanges:
    """Changes that wait for their tables to be saved. `respond` sends a response; `on_pending()` is called
    when a change comes, and without `on_pending` the table is saved at once. `when_replicated` waits for the
    replicas of the set; None: there are none. `holders_of` gives the names under which the changes of a
    connection count."""

    def __init__(
        self,
        files: TableFiles,
        respond: Callable[[Command, Command, Connection], None],
        on_pending: Callable[[], None] | None,
        when_replicated: WhenReplicated | None,
        holders_of: HoldersOf,
    ) -> None:
        self._when_replicated = when_replicated
        self._files = files
        self._respond = respond
        self._on_pending = on_pending
        self._holders_of = holders_of
        self._changes: Deferred[str, _Change] = Deferred(CHANGES_MAX, "the changes that wait to be saved")

    def wait_for(self, name: str) -> bool:
        """True if a change of this table waits."""
        return self._changes.count(name) > 0

    def check(self, connection: Connection) -> None:
        """Raises ResponseError (SYSTEM_BUSY) when no further change of this connection may wait. To be called
        before a change is made."""
        if self._on_pending is not None:
            self._changes.check(self._holders_of(connection))

    def answer(
        self,
        name: str,
        request: Command,
        connection: Connection,
        undo: Callable[[], None] | None,
        then: Callable[[], None] = lambda: None,
    ) -> Command | None:
        """The answer to a request whose change of the table `name` holds already, None when it comes later.
        `then` is what else is to be done once it is saved, `undo` takes it back when it cannot be; without
        `undo` it holds all the same, and is saved as soon as that is possible. Raises StoreError.
        """
        if self._add(name, (request, connection), undo, then):
            return None
        return self.agreed(name, request, connection, request.reply())

    def agreed(
        self, name: str, request: Command, connection: Connection, response: Command
    ) -> Command | None:
        """The response to a request whose change of the table `name` is saved; None when the response comes
        once the replicas of the set have the change. Raises ResponseError when too many responses wait for
        replicas."""
        if self._when_replicated is None:
            return response
        wait = partial(self._when_replicated, name)
        return response_when(wait, self._files.versioned[name].changes, request, connection, response)

    def later(self, name: str, undo: Callable[[], None] | None, then: Callable[[], None]) -> None:
        """Same as `answer`, for a change without a request."""
        self._add(name, None, undo, then)

    def _add(
        self,
        name: str,
        asked: tuple[Command, Connection] | None,
        undo: Callable[[], None] | None,
        then: Callable[[], None],
    ) -> bool:
        """Save a table. Return True if that happens later."""
        table = self._files.versioned[name]
        if self._on_pending is not None:
            holders = NOBODY if asked is None else self._holders_of(asked[1])
            self._changes.add(name, _Change(table.made, asked, undo, then), holders=holders)
            self._on_pending()
            return True
        made = table.made
        try:
            run_to_end(self._files.saving(name))()
        except StoreError:
            if undo is not None:
                undo()
            raise
        table.saved(made)
        then()
        return False

    def save_now(self) -> None:
        """Save and answer all pending changes at once, for a caller in the loop that cannot wait."""
        for name in self._changes.waiting_keys():
            table = self._files.versioned[name]
            made = table.made
            try:
                run_to_end(self._files.saving(name))()
            except StoreError as error:
                self.not_saved(name, error)
            else:
                table.saved(made)
                self.saved(name, made)

    def saved(self, name: str, made: int) -> None:
        """All of the table up to this value of its `made` is in its file."""
        for change in self._take(name, made):
            if change.asked is None:
                change.then()
                continue
            request, connection = change.asked
            answer: Command | None
            try:
                change.then()
                answer = self.agreed(name, request, connection, request.reply())
            except Exception as error:
                answer = error_response(request, error)
            if answer is not None:
                self._respond(request, answer, connection)

    def not_saved(self, name: str, error: StoreError) -> None:
        """The table could not be saved."""
        table = self._files.versioned[name]
        for change in reversed(self._take(name, table.made)):
            if change.undo is None:
                log.error("a deletion in the table %s is not saved yet, and tried again: %s", name, error)
                self._changes.add(name, _Change(change.made, None, None, change.then), holders=NOBODY)
            else:
                change.undo()
                log.error("a change of the table %s is taken back: %s", name, error)
            if change.asked is not None:
                request, connection = change.asked
                self._respond(request, error_response(request, error), connection)

    def _take(self, name: str, made: int) -> list[_Change]:
        due = [row for row in self._changes.of(name) if row.value.made <= made]
        return [row.value for row in due if self._changes.take(row)]
