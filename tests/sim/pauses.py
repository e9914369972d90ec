"""Machines that stand still in virtual time, as a process does that gets SIGSTOP or a virtual machine that is
moved: their tasks run no further, time goes on, and later they go on where they were.

Which machine a task belongs to is in its context, and so goes to the tasks that it starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import trio
from trio.lowlevel import Task

MACHINE: ContextVar[str] = ContextVar("MACHINE", default="")
_RESCHEDULE: Final[Any] = trio._core._run.Runner.reschedule


class Pauses:
    """Machines that are paused."""

    def __init__(self) -> None:
        self._held: dict[str, list[Task]] = {}
        self._since: dict[str, float] = {}
        self._stood: dict[str, float] = {}

    def own_time(self, machine: str) -> float:
        """The time without that in which the machine stood still."""
        return self._since.get(machine, trio.current_time()) - self._stood.get(machine, 0.0)

    def __contains__(self, machine: str) -> bool:
        return machine in self._held

    def pause(self, machine: str) -> None:
        """Let it stand still from now on."""
        held = self._held.setdefault(machine, [])
        self._since.setdefault(machine, trio.current_time())
        runnable = trio._core._run.GLOBAL_RUN_CONTEXT.runner.runq
        for _ in range(len(runnable)):
            task = runnable.popleft()
            (held if task.context.get(MACHINE) == machine else runnable).append(task)
        self.watch()

    def resume(self, machine: str) -> None:
        """Let it go on, if it stands still."""
        trio._core._run.GLOBAL_RUN_CONTEXT.runner.runq.extend(self._held.pop(machine, ()))
        self.watch()
        if machine in self._since:
            stood = trio.current_time() - self._since.pop(machine)
            self._stood[machine] = self._stood.get(machine, 0.0) + stood

    def watch(self) -> None:
        """Be asked for each task that can go on, only as long as a machine stands still: it costs time."""

        def held(runner: Any, task: Task, *rest: Any) -> None:
            _RESCHEDULE(runner, task, *rest)
            held = self._held.get(task.context.get(MACHINE, ""))
            if held is not None:
                assert runner.runq.pop() is task
                held.append(task)

        trio._core._run.Runner.reschedule = held if self._held else _RESCHEDULE


@contextmanager
def pausable() -> Iterator[Pauses]:
    """Machines can be paused while this lasts."""
    try:
        yield Pauses()
    finally:
        trio._core._run.Runner.reschedule = _RESCHEDULE
