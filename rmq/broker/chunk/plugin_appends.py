"""Messages of plug-ins and of doors' peers: they come outside of a chunk of requests, or in its middle."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from rmq.errors import StoreError

if TYPE_CHECKING:
    from rmq.broker.chunk.group_commit import Chunk, GroupCommit
    from rmq.broker.produce.append import Append
    from rmq.message import Message
    from rmq.plugin import OnAppended
    from rmq.shares import Holders
    from rmq.store.store import Store


class PluginAppends:
    """Stores messages of plug-ins and doors. `work_clock` measures work in seconds; `commit_soon()` has the
    pending messages committed in this round of the loop."""

    def __init__(
        self,
        store: Store,
        chunk: Chunk,
        append: Append,
        group_commit: GroupCommit,
        *,
        commit_soon: Callable[[], None],
        now_ms: Callable[[], int],
        work_clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._chunk = chunk
        self._append = append
        self._group_commit = group_commit
        self._commit_soon = commit_soon
        self._now_ms, self._work_clock = now_ms, work_clock

    def now(self, message: Message, on_done: OnAppended | None = None) -> None:
        """Store a message as `rmq.plugin.Host.put` does: by the chunk that is handled, or at once."""
        now = self._now_ms()
        self._append.look(now)
        self._append.message(message, now, on_done)
        if self._chunk.connection is None:
            with nullcontext() if on_done is None else suppress(StoreError):
                self._group_commit.commit()
            self._group_commit.commit_pending()

    def soon(
        self, message: Message, on_done: OnAppended, maker: Holders, *, queue_id: int | None, account: str
    ) -> None:
        """Store a message of a door's peer, with others of this round of the loop. Raises as
        `rmq.plugin.Host.put`. A topic that is made for it counts as its makers'.
        """
        if not self._store.has_pending:
            self._chunk.begin(self._chunk.connection, self._work_clock())
        now = self._now_ms()
        self._append.look(now)
        self._append.message(message, now, on_done, maker, queue_id=queue_id, account=account)
        self._commit_soon()
