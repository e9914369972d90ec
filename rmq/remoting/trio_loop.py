"""trio's own form of the event-loop primitives of the hot path: loaded only where trio is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import outcome
import trio

from rmq.remoting.loop import Loop
from rmq.remoting.transports.stream import Stream

Serve = Callable[[list[tuple[int, int]]], bool]
"""Serves readable descriptors; False when tasks must have their turn before it has served all: the next call,
without descriptors, continues."""
_READABLE: Final = 1  # EPOLLIN, which only Linux has


class TrioWaiter:
    """A suspended trio task: half the CPU time of a trio.Event and a field for the value."""

    __slots__ = ("_is_done", "_result", "_task")

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._result: outcome.Outcome[Any] | None = None
        self._is_done = False

    async def wait(self) -> Any:
        if self._result is not None:
            await trio.lowlevel.checkpoint()
            return self._result.unwrap()
        self._task = trio.lowlevel.current_task()
        return await trio.lowlevel.wait_task_rescheduled(self._abort)

    def resolve(self, value: Any) -> None:
        self._finish(outcome.Value(value))

    def fail(self, error: BaseException) -> None:
        self._finish(outcome.Error(error))

    def _finish(self, result: outcome.Outcome[Any]) -> None:
        if self._is_done:
            return
        self._is_done = True
        if self._task is None:
            self._result = result
        else:
            trio.lowlevel.reschedule(self._task, result)

    def _abort(self, raise_cancel: Any) -> trio.lowlevel.Abort:
        self._is_done = True
        return trio.lowlevel.Abort.SUCCEEDED


class InlineReads:
    """trio's waiting for sockets, with sockets of an epoll of ours that are served in the wait itself.

    A task that waits for a socket costs a turn of the loop for each chunk: a look at all deadlines, a system
    call to wait once more, a task that is suspended and resumed. Here the loop waits for `own`, which has
    trio's epoll among its descriptors; `serve` is called with the readable descriptors, outside of any task,
    and trio's turn comes when a task can run, a deadline is over, or a socket of a task is ready. So tasks
    have their turn between two rounds of `serve`, as usual.

    The place where trio waits is not public: `begin_inline_reads` checks that it is as expected.
    """

    def __init__(self, runner: Any, own: Any, serve: Serve) -> None:
        before = self._before = runner.io_manager
        for name in dir(before):  # all other attributes are as before
            if not name.startswith("_") and name != "get_events":
                setattr(self, name, getattr(before, name))
        self._trios = before._epoll.fileno()
        self._runner, self._own, self._serve = runner, own, serve
        self._is_round_over = True
        own.register(self._trios, _READABLE)
        runner.io_manager = self

    def end(self) -> None:
        """Let trio wait as before."""
        self._runner.io_manager = self._before

    @trio.lowlevel.enable_ki_protection  # Ctrl-C is for the main task
    def get_events(self, timeout: float) -> Any:
        """Same as trio's function."""
        if not self._is_round_over:
            self._is_round_over = self._serve([])
            return self._before.get_events(0)
        runner, trios = self._runner, self._trios
        left = timeout
        while True:
            found = self._own.poll(left)
            has_trios = False
            for at, (descriptor, _) in enumerate(found):
                if descriptor == trios:
                    del found[at]
                    has_trios = True
                    break
            if found:
                self._is_round_over = self._serve(found)
            if has_trios:
                return self._before.get_events(0)
            if runner.runq or not self._is_round_over or not (found and timeout):
                return []
            until = runner.clock.deadline_to_sleep_time(runner.deadlines.next_deadline())
            if until <= 0:
                return []
            left = min(timeout, until)


def begin_inline_reads(own: Any, serve: Serve) -> InlineReads | None:
    """Let trio call `serve` with the readable descriptors of the epoll `own` where it waits, until `end` of
    the result. None where this run does so already, where trio is the guest of another loop, and where this
    trio waits in another way than expected."""
    try:
        from trio._core._run import GLOBAL_RUN_CONTEXT

        runner: Any = GLOBAL_RUN_CONTEXT.runner
        if type(runner.io_manager).__name__ != "EpollIOManager" or runner.is_guest:
            return None
        runner.clock.deadline_to_sleep_time(runner.deadlines.next_deadline())
        return InlineReads(runner, own, serve) if runner.runq is not None else None
    except (ImportError, AttributeError, TypeError, OSError):
        return None


LOOP: Final = Loop(
    "trio",
    trio.current_time,
    trio.lowlevel.wait_readable,
    trio.lowlevel.wait_writable,
    trio.lowlevel.notify_closing,
    TrioWaiter,
    trio.CancelScope,
    tasks=trio.open_nursery,
)

is_running = trio.lowlevel.in_trio_run
"""True if the caller runs in trio."""

trio.abc.Stream.register(Stream)  # type: ignore[type-abstract]
