"""Where every task and every thread of this process is, as text for an administrator (jstack in RocketMQ)."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

import anyio

_NAME_WIDTH: Final = 40
_OWN = ("cr_frame", "cr_await"), ("ag_frame", "ag_await"), ("gi_frame", "gi_yieldfrom")


def stacks() -> str:
    """The stacks of all tasks of the running event loop and of all threads, innermost calls first."""
    parts = [
        _block(f"{task.name}", f"TASK: {task.id}", _frames(task.coro)) for task in anyio.get_running_tasks()
    ]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        calls = [(one, line) for one, line in traceback.walk_stack(frame)]
        parts.append(_block(names.get(ident, "thread"), f"TID: {ident}", calls))
    return "\n".join(parts)


def _block(name: str, what: str, calls: list[tuple[FrameType, int]]) -> str:
    head = f"{name[:_NAME_WIDTH]:<{_NAME_WIDTH}}"
    lines = [what]
    for frame, line in calls:
        code = frame.f_code
        lines.append(f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname} ({code.co_filename}:{line})")
    return "".join(f"{head}{line}\n" for line in lines)


def _frames(coroutine: Any) -> list[tuple[FrameType, int]]:
    """The frames of a suspended coroutine, innermost first."""
    return list(_walk(coroutine))[::-1]


def _walk(awaited: Any) -> Iterator[tuple[FrameType, int]]:
    while awaited is not None:
        for frame_name, next_name in _OWN:
            frame = getattr(awaited, frame_name, None)
            if frame is not None:
                yield frame, frame.f_lineno
                awaited = getattr(awaited, next_name)
                break
        else:
            return
