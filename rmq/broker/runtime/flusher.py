"""The broker's flush task: it syncs the log, one sync at a time for all sends that wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import anyio
import anyio.abc

from rmq.broker.disk_work import DiskWork
from rmq.errors import CorruptRecord, StoreError
from rmq.metrics import Histogram
from rmq.remoting.loop import Wakeup, thread_safe_call
from rmq.store.store import Store

MEND_SECONDS = (0.5, 30.0)
"""First and longest pause before what a failed sync left is written again."""

SYNC = "a sync of the commit log has been under way"
"""The flusher's current wait, in words for the log."""

log = logging.getLogger("rmq.broker")


class Flusher:
    """Syncs the log; a sync serves all sends that wait when it begins.

    `on_synced(position)` is called with the end of the synced log; `awaited()` is the position that a send
    waits for, -1 for none. `took` gets the seconds of each sync that succeeded.

    `disk_work` knows the start of a sync that is under way. With `threads` a sync runs in a thread of its
    own, which is woken by a lock and calls back into the loop by itself: a trip through the loop's thread
    pool for each sync costs a sender more than the sync.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_synced: Callable[[int], None],
        awaited: Callable[[], int],
        took: Histogram,
        threads: bool,
        disk_work: DiskWork,
    ) -> None:
        self._store = store
        self._on_synced = on_synced
        self._awaited = awaited
        self._took = took
        self._threads = threads
        self._disk_work = disk_work
        self._key = 0
        self._is_busy = False
        self._is_mending = False
        self._error: BaseException | None = None
        self._failed = Wakeup()
        self._start: Callable[[], None] | None = None  # None until it runs
        self._began = 0.0

    def kick(self) -> None:
        """Sync the present end of the log; after a running sync. Does nothing before `run`."""
        assert not (self._is_busy and self._is_mending), "mending begins when a sync has failed"
        # A running sync looks for further waits at its end; while the disk is mended no sync counts.
        if not self._is_busy and not self._is_mending and self._start is not None:
            self._is_busy = True
            self._began = anyio.current_time()
            self._key = self._disk_work.begin(SYNC)
            self._start()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Sync each flushIntervalCommitLog, and when kicked. After a failed sync no message is taken until
        the unsynced part is written again and synced. Raises CorruptRecord when this part cannot be read
        back."""
        async with anyio.create_task_group() as nursery:
            stop = await nursery.start(self._in_thread if self._threads else self._in_loop)
            try:
                task_status.started()
                while True:
                    pause = self._store.config.flush_interval_commit_log / 1000
                    if await self._failed.wait(anyio.current_time() + pause):
                        await self._mend()
                    elif self._store.flushed_offset < self._store.max_physical_offset:
                        self.kick()
            finally:
                stop()

    async def _mend(self) -> None:
        error, pause = self._error, MEND_SECONDS[0]
        if not isinstance(error, StoreError):
            assert error is not None
            raise error
        log.error("%s", error)
        while error is not None:
            await anyio.sleep(pause)
            pause = min(2 * pause, MEND_SECONDS[1])
            position, error = await self._disk_work.do_now(partial(_try, self._store.mend), SYNC)
            if error is not None and (isinstance(error, CorruptRecord) or not isinstance(error, StoreError)):
                raise error
        self._is_mending = False
        log.warning("the commit log is synced again up to offset %d: the broker takes messages", position)
        self._finished(position, None)

    async def _in_thread(self, *, task_status: anyio.abc.TaskStatus[Callable[[], None]]) -> None:
        post = thread_safe_call()
        go = threading.Lock()
        go.acquire()
        self._start = go.release
        stopping = False

        def work() -> None:
            while True:
                go.acquire()
                if stopping:
                    return
                result = _try(self._store.flush)
                with suppress(RuntimeError):  # the loop has ended
                    post(self._finished, *result)

        def stop() -> None:
            nonlocal stopping
            stopping = True
            if go.locked():
                go.release()

        thread = threading.Thread(target=work, name="rmq-flush", daemon=True)
        thread.start()
        task_status.started(stop)

    async def _in_loop(self, *, task_status: anyio.abc.TaskStatus[Callable[[], None]]) -> None:
        alarm = Wakeup()
        self._start = alarm.set
        with anyio.CancelScope() as scope:
            task_status.started(scope.cancel)
            while True:
                await alarm.wait()
                self._finished(*await self._disk_work.run(partial(_try, self._store.flush)))

    def _finished(self, position: int, error: BaseException | None) -> None:
        """Finish a sync in the loop. Must not raise, since the loop has no caller for the error."""
        # Group commit: a sync does not cover sends that came while it ran; the next sync covers all of them.
        # So a sync serves the sends that arrive during one sync, and a send by itself is synced at once.
        self._is_busy = False
        if self._key:  # else what a failed sync left was mended
            self._disk_work.end(self._key)
            self._key = 0
        if error is None:
            self._took.observe(anyio.current_time() - self._began)
            try:
                self._on_synced(position)
            except Exception as bug:
                error = bug
        if error is not None:
            self._error = error
            self._is_mending = True
            self._failed.set()
        elif self._awaited() > position:  # sends came while this sync ran: the next sync serves them together
            self.kick()


def _try(work: Callable[[], int]) -> tuple[int, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:
        return -1, error
