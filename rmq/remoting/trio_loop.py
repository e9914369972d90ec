"""trio's own form of the event-loop primitives of the hot path: loaded only where trio is."""

from __future__ import annotations

from typing import Any, Final

import outcome
import trio

from rmq.remoting.loop import Loop
from rmq.remoting.transports.stream import Stream


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
"""Whether the caller runs in trio."""

trio.abc.Stream.register(Stream)  # type: ignore[type-abstract]
