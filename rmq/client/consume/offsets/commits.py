"""Commits of a consumer's offsets, to the brokers or to a file."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import anyio

from rmq.client.consume.offsets.files import LocalOffsets
from rmq.client.consume.process_queue import ProcessQueue
from rmq.client.consume.queue_locks import QueueLocks
from rmq.client.consume.subscription import ConsumerOptions
from rmq.client.session.requests import FAILURES
from rmq.client.session.session import Session
from rmq.errors import ResponseError
from rmq.message import MessageQueue
from rmq.remoting.loop import unwrap_groups

log = logging.getLogger("rmq.client.assignments")


class Commits:
    """Commits the offsets of one consumer's queues, one request at a time to each broker."""

    def __init__(
        self,
        session: Session,
        group: str,
        options: ConsumerOptions,
        local: LocalOffsets | None,
        locks: QueueLocks | None,
    ) -> None:
        """With `local`, offsets go into that file; with `locks`, only locked queues are committed."""
        self._session = session
        self._group = group
        self._options = options
        self._local = local
        self._saving = anyio.Lock()
        self._locks = locks

    def allows(self, queue: MessageQueue) -> bool:
        """True if this member may commit the queue now."""
        return self._locks is None or self._locks.is_ours(queue)

    async def commit(self, windows: Iterable[ProcessQueue], *, last: bool = False) -> None:
        """Commit the progress of the windows, to the brokers or the file. A failure is logged, and the offset
        follows with the next commit. `last`: the queue is given up; without `auto_commit` nothing is
        committed in this case."""
        if last and not self._options.auto_commit:
            return
        if self._local is not None:
            windows = [*windows]
            self._local.update(
                {window.queue: window.commit_offset for window in windows},
                {w.queue: w.topic_created_ms for w in windows if w.topic_created_ms is not None},
            )
            async with self._saving:
                if not self._local.is_saved:
                    await self._session.in_thread(self._local.save)
            return
        by_broker: dict[str, list[ProcessQueue]] = {}
        for window in windows:
            # An offset that the broker has already is not sent again.
            if window.commit_offset != window.committed and self.allows(window.queue):
                by_broker.setdefault(window.queue.broker_name, []).append(window)
        if not by_broker:
            return
        with unwrap_groups():
            async with anyio.create_task_group() as tasks:
                for changed in by_broker.values():
                    tasks.start_soon(self._at_broker, changed, last)

    async def _at_broker(self, windows: list[ProcessQueue], last: bool) -> None:
        refused: ResponseError | None = None
        try:
            for window in windows:
                if window.is_dropped and not last:
                    # Given up while this commit waited for its turn: the present member of the queue may have
                    # committed more, and our commit would set the group back. A queue that is given up has
                    # one last commit, before it is unlocked.
                    continue
                # Read before the request goes out: messages end while it is on its way.
                queue_offset = window.commit_offset
                assert queue_offset <= window.next_offset, (
                    f"{window.queue}: committed beyond the pulled messages"
                )
                try:
                    await self._session.brokers.update_offset(
                        self._group, window.queue, queue_offset, window.topic_created_ms
                    )
                except ResponseError as error:  # of this queue: for example, its topic was deleted
                    refused = error
                else:
                    window.committed = queue_offset
        except FAILURES as error:
            log.warning("cannot commit offsets at broker %s: %s", windows[0].queue.broker_name, error)
        if refused is not None:
            log.warning("cannot commit offsets at broker %s: %s", windows[0].queue.broker_name, refused)
