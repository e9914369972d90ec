"""The signals that an operator sends to a server, and their meaning."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Final

import trio

from rmq.server.log_limit import LogConfig, reopen_log, write_dump

STOP: Final = (signal.SIGTERM, signal.SIGINT)
RELOAD: Final = tuple(getattr(signal, name) for name in ("SIGHUP",) if hasattr(signal, name))
DUMP: Final = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGQUIT") if hasattr(signal, name))

PARENT: Final = "RMQ_PARENT"
"""In a server's environment: the process id of its supervisor; the server stops when the supervisor ends."""
SCAN_SECONDS: Final = 0.5
"""Seconds between two checks of the supervisor."""

log = logging.getLogger("rmq.signals")


async def obey(
    config: LogConfig,
    stop: trio.Event,
    *,
    reload: Callable[[], None] = lambda: None,
    parts: Callable[[], str] = lambda: "",
) -> None:
    """Set `stop` at SIGTERM or SIGINT; at SIGHUP reopen the log's file and `reload` the settings; at SIGUSR1
    or SIGQUIT write the state of tasks, and `parts`, to the log. Runs until cancelled."""
    with trio.open_signal_receiver(*STOP, *RELOAD, *DUMP) as signals:
        async for number in signals:
            name = signal.Signals(number).name
            if number in RELOAD:
                reopen_log()
                log.info("%s: reopening the log, reading the settings again", name)
                reload()
            elif number in DUMP:
                try:
                    where = write_dump(config, f"{tasks_text()}\n{parts()}\n")
                    log.info("%s: the stacks of all tasks are written to %s", name, where)
                except OSError as error:
                    log.error("%s: cannot write the stacks of all tasks: %s", name, error)
            else:
                log.info("%s: stopping", name)
                stop.set()


async def stop_without_parent(stop: trio.Event) -> None:
    """Set `stop` when the server's supervisor has ended: a new supervisor would start another server on the
    same port."""
    parent = int(os.environ.get(PARENT, "0"))
    while parent and not stop.is_set():
        if os.getppid() != parent:
            log.error("the supervisor, process %d, has ended: stopping", parent)
            stop.set()
        await trio.sleep(SCAN_SECONDS)


def tasks_text() -> str:
    """The tasks of the running trio loop, each below its parent, with the place where each waits; after them
    the stacks of the threads."""
    root = trio.lowlevel.current_root_task()
    lines = [] if root is None else list(_task_lines(root, 0))
    own = threading.get_ident()
    for thread in threading.enumerate():
        frame = sys._current_frames().get(thread.ident or 0)
        if thread.ident != own and frame is not None:
            (where,) = traceback.format_stack(frame, 1)
            lines.append(f"thread {thread.name}  {' '.join(where.split())}")
    return "\n".join(lines)


def _task_lines(task: trio.lowlevel.Task, depth: int) -> Iterator[str]:
    where = ""
    for frame, line in task.iter_await_frames():
        name = frame.f_globals.get("__name__", "")
        if name.startswith("rmq") or not where:
            where = f"{name}.{frame.f_code.co_name}:{line}"
    yield f"{'  ' * depth}{task.name}  {where}"
    for nursery in task.child_nurseries:
        for child in sorted(nursery.child_tasks, key=lambda one: one.name):
            yield from _task_lines(child, depth + 1)
