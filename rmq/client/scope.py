"""TaskScope: a task group behind an object's `async with`, which leaves the user's own errors as they
are."""

from __future__ import annotations

import logging
from types import TracebackType

import anyio
import anyio.abc

log = logging.getLogger(__name__)


class TaskScope:
    """Tasks that end with the block: normally, by the user's error, or by being cancelled.

    A task group wraps what its body raises in an ExceptionGroup; callers who do not see the group must not
    see the wrapping either. So: an error of the body comes out bare, and errors that tasks had besides it
    are logged. Without an error of the body, the only error of the tasks comes out bare; several come out
    as a group."""

    def __init__(self) -> None:
        self._group: anyio.abc.TaskGroup | None = None

    @property
    def tasks(self) -> anyio.abc.TaskGroup:
        assert self._group is not None, "the scope has not been entered"
        return self._group

    async def __aenter__(self) -> TaskScope:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel the tasks and wait for them. Cancelled from outside: the same."""
        group = self.tasks
        group.cancel_scope.cancel()
        users = error is not None and not isinstance(error, anyio.get_cancelled_exc_class())
        try:
            await group.__aexit__(kind, error, trace)
        except BaseException as raised:
            found = _others(raised, error if users else None)
            if users:
                for other in found:
                    log.error("a background task failed too", exc_info=other)
            elif len(found) == 1:
                raise found[0] from found[0].__cause__
            else:
                raise


def _others(raised: BaseException, error: BaseException | None) -> list[BaseException]:
    """The errors in `raised`, however nested, but for `error` and cancellations."""
    if isinstance(raised, BaseExceptionGroup):
        return [found for inner in raised.exceptions for found in _others(inner, error)]
    if raised is error or isinstance(raised, anyio.get_cancelled_exc_class()):
        return []
    return [raised]
