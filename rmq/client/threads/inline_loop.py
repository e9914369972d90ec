"""InlineLoop: an asyncio loop in a thread of its own, run by a calling thread while calls follow each other.

A call into the loop of another thread, and back, costs two changes of threads, as much as the rest of a send.
So a thread whose calls follow each other closely, while no other thread calls, runs the loop itself until its
call is done; the loop's own thread rests in this time. The thread gets the loop back as soon as another
thread needs it, or `LOAN_SECONDS` after the last call.

In the main thread a signal's handler runs between any two instructions, and its exception would come out of
the middle of the loop. So Ctrl-C is only recorded while the main thread has the loop; and if the application
handles other signals, or SIGINT, itself, the main thread never has the loop.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal makes enumerations of all: ten times the cost
import asyncio
import sys
import threading
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from signal import SIGINT, default_int_handler
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import sniffio

LOAN_SECONDS: Final = 0.005
"""Longest pause between calls in a row, in seconds; the loop rests for this time after the last of them."""
ROW: Final = 4
"""Calls in a row after which the calling thread gets the loop."""
REST_SECONDS: Final = 1.0
"""Seconds for which the calling thread waits for the loop's thread to become free; after that its call goes
the other way."""
_SIGNALS: Final = [
    number
    for number in map(int, _signal.valid_signals())
    if number not in (SIGINT, *(getattr(_signal, name, 0) for name in ("SIGKILL", "SIGSTOP")))
]


def inline_loop() -> asyncio.AbstractEventLoop:
    """A new loop; it is not lent if the application or the system has loops of another kind."""
    loop = asyncio.new_event_loop()
    if (
        type(loop) is not asyncio.SelectorEventLoop
        or sys.platform == "win32"
        or not hasattr(loop, "_run_once")
    ):
        return loop
    loop.close()
    return InlineLoop()


class InlineLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that a calling thread may borrow; the module says when."""

    if TYPE_CHECKING:
        _thread_id: int | None
        _stopping: bool
        _ready: deque[Any]

        def _asyncgen_firstiter_hook(self, generator: Any) -> None: ...
        def _asyncgen_finalizer_hook(self, generator: Any) -> None: ...

    def __init__(self) -> None:
        super().__init__()
        self._turn = threading.Lock()  # held by the thread that borrows the loop, or takes it back
        self._is_lent = False  # the loop's thread should rest
        self._rests = threading.Event()
        self._called = threading.Event()
        self._is_called = False  # another thread needs the loop while it is lent
        self._loans = 0
        self._is_awaited = False  # the loop's thread waits for the end of the call
        self._borrower = 0
        self._caller = 0
        self._row = 0
        self._ended_at = 0.0
        self._is_interrupted = False
        self._has_handler = False

    # --- the loop's own thread ---

    def _run_once(self) -> None:
        if self._is_lent:
            self._rest()
        super()._run_once()  # type: ignore[misc]

    def _rest(self) -> None:
        """Wait until the loop is free, and needed or unused for a while."""
        self._rests.set()
        seconds: float | None = LOAN_SECONDS
        seen = -1
        while True:
            self._called.wait(seconds)
            self._called.clear()
            # One long call is waited for to its end. Many short calls must not wake this thread with each of
            # them, as it would find the next call begun. `_is_awaited` is set before the lock is tried: a
            # thread that gives the loop back at that moment looks at it afterwards.
            is_long, seen = self._loans == seen, self._loans
            self._is_awaited = is_long
            if not self._turn.acquire(blocking=False):
                seconds = None if is_long else LOAN_SECONDS
                continue
            try:
                self._is_awaited = False
                seconds = LOAN_SECONDS
                if self._is_called or monotonic() - self._ended_at >= LOAN_SECONDS:
                    self._is_called = self._is_lent = False
                    self._rests.clear()
                    return
            finally:
                self._turn.release()

    # --- any thread ---

    def _write_to_self(self) -> None:
        super()._write_to_self()  # type: ignore[misc]
        if self._borrower != threading.get_ident():
            self._row = 0
            if self._is_lent:
                self._is_called = True
                self._called.set()

    # --- a thread that calls ---

    def check_caller(self) -> None:
        """Raises RuntimeError in a callback of the loop, which would wait for itself."""
        if self._borrower == threading.get_ident():
            raise RuntimeError("This method cannot be called from the event loop thread")

    def run(
        self,
        call: Callable[[], Coroutine[Any, Any, None]],
        task: list[asyncio.Task[None]],
        ended: threading.Lock,
    ) -> None:
        """Run the coroutine, in this thread or in the other, until `ended` is released. Its task is in `task`
        as soon as it exists.

        Raises KeyboardInterrupt, with the coroutine still running.
        """
        me = threading.get_ident()
        is_close = me == self._caller and monotonic() - self._ended_at < LOAN_SECONDS
        self._caller = me
        self._row = row = self._row + 1 if is_close else 0
        if row >= ROW and self._may_borrow(me):
            if self._borrow(me):
                try:
                    task.append(self.create_task(call()))
                    self._turn_until(ended)
                finally:
                    self._return_turn()
                ended.acquire()
                return
            self._restore()
        self.call_soon_threadsafe(lambda: task.append(self.create_task(call())))
        self._row = row
        ended.acquire()
        self._ended_at = monotonic()

    def _may_borrow(self, me: int) -> bool:
        """True if nothing in this thread prevents the loan. In the main thread it also takes SIGINT over."""
        if (
            self.get_debug()
            or events._get_running_loop() is not None
            or sniffio.thread_local.name is not None
        ):
            return False
        if me == threading.main_thread().ident:
            handler_of = _signal.getsignal
            for number in _SIGNALS:
                if callable(handler_of(number)):
                    return False
            handler = handler_of(SIGINT)
            if handler is default_int_handler:
                self._is_interrupted = False
                self._has_handler = True
                _signal.signal(SIGINT, self._on_interrupt)
            elif callable(handler):
                return False
        return True

    def _on_interrupt(self, number: int, frame: object) -> None:
        self._is_interrupted = True
        self._write_to_self()

    def _restore(self) -> None:
        """Give SIGINT back. Raises KeyboardInterrupt when it came during the loan."""
        if self._has_handler and threading.get_ident() == threading.main_thread().ident:
            self._has_handler = False
            _signal.signal(SIGINT, default_int_handler)
            if self._is_interrupted:
                self._is_interrupted = False
                raise KeyboardInterrupt

    def _borrow(self, me: int) -> bool:
        if not self._turn.acquire(blocking=False):
            return False
        if not self._rests.is_set():
            self._is_lent = True
            super()._write_to_self()  # type: ignore[misc]
            if not self._rests.wait(REST_SECONDS):
                self._is_lent = False
                self._turn.release()
                return False
        self._loans += 1
        self._borrower = me
        return True

    def _turn_until(self, ended: threading.Lock) -> None:
        ready, once, hooks = self._ready, super()._run_once, sys.get_asyncgen_hooks()  # type: ignore[misc]
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)
        try:
            while ended.locked() and not self._stopping and not self._is_interrupted:
                # Ready callbacks run before the sockets are polled: two system calls less for a send.
                for _ in range(len(ready)):
                    handle = ready.popleft()
                    if not handle._cancelled:
                        handle._run()
                if ended.locked() and not self._stopping and not self._is_interrupted:
                    once()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(None)

    def _return_turn(self) -> None:
        self._borrower = 0
        self._ended_at = monotonic()
        if self._stopping:
            self._is_called = True
        self._turn.release()
        if self._is_called or self._is_awaited:
            self._called.set()
        self._restore()
