"""Which connection answers for a client id: the answers of request-reply go there.

A client chooses its id, so anybody may claim one. It belongs to the account whose client brought it first: no
other account gets it while that client is connected, nor within `KEPT_MS` of its last heartbeat, when answers
to what it asked may still be on their way. Without access control all clients are of one account, "".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rmq.remoting.connection import Connection

KEPT_MS: Final = 300_000
LEFT_MAX: Final = 1_000
"""Ids of clients that have left, for each account; of more, the oldest is free again."""


class ClientIds:
    """Client ids of producers, by their owners."""

    def __init__(self) -> None:
        self._live: dict[str, tuple[Connection, str]] = {}
        self._left: dict[str, tuple[str, int]] = {}  # id -> account, until when
        self._left_by: dict[str, dict[str, None]] = {}  # account -> its ids in `_left`, oldest first

    def connection(self, client_id: str) -> Connection | None:
        """The connection of a client that has producers, or None."""
        live = self._live.get(client_id)
        return None if live is None else live[0]

    def owner(self, client_id: str, now_ms: int) -> str | None:
        """The account that an id belongs to; None when it is free."""
        live = self._live.get(client_id)
        if live is not None:
            return live[1]
        account, until = self._left.get(client_id, ("", -1))
        return account if now_ms < until else None

    def claim(self, client_id: str, connection: Connection, account: str, now_ms: int) -> bool:
        """Make an id that of a connection; False when it is another account's, and then nothing changes."""
        if self.owner(client_id, now_ms) not in (None, account):
            return False
        self._forget(client_id)
        self._live[client_id] = (connection, account)
        return True

    def leave(self, client_id: str, connection: Connection, heard_ms: int) -> None:
        """A connection ends, or has no producers any more; `heard_ms` is when its last heartbeat came."""
        live = self._live.get(client_id)
        if live is None or live[0] is not connection:
            return
        del self._live[client_id]
        account = live[1]
        self._left[client_id] = (account, heard_ms + KEPT_MS)
        ids = self._left_by.setdefault(account, {})
        ids[client_id] = None
        if len(ids) > LEFT_MAX:
            self._forget(next(iter(ids)))

    def _forget(self, client_id: str) -> None:
        left = self._left.pop(client_id, None)
        if left is not None:
            ids = self._left_by[left[0]]
            del ids[client_id]
            if not ids:
                del self._left_by[left[0]]
