"""Checks: questions to a cluster that may take seconds, answered behind a page that is there at once."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final

import anyio
import anyio.abc
from attrs import define, field, frozen

from rmq.dashboard.errors import INTERNAL, Problem, TooMany, problem_of, status_of
from rmq.dashboard.jobs import Progress
from rmq.errors import RmqError

log = logging.getLogger(__name__)

RUNNING_MAX: Final = 64
"""Checks at once, of all viewers."""
OF_ONE_MAX: Final = 4
"""Checks at once of one viewer."""
KEPT: Final = 32
KEPT_SECONDS: Final = 60.0
"""The result of a check is shown again for so long, if its page does not say otherwise."""
FAILED_SECONDS: Final = 3.0
"""The same for the error of a failed check: the page that waits for it shows it."""

Act = Callable[[Progress], Awaitable[Any]]


@frozen
class CheckKey:
    """The viewer, and the subject of the check, that viewer's pages share."""

    viewer: Hashable
    subject: Hashable


@define(eq=False)
class Check:
    """A check. `ended` is set with `result`, or with `problem` and its `status` of HTTP. `ended_at` is ms
    since 1970."""

    key: CheckKey
    progress: Progress = field(factory=Progress)
    ended: anyio.Event = field(factory=anyio.Event, repr=False)
    kept: float = KEPT_SECONDS
    ended_at: int = 0
    fresh_until: float = 0.0
    result: Any = field(default=None, repr=False)
    problem: Problem | None = None
    status: int = 200

    def end(self, at: int, fresh_until: float, result: Any) -> None:
        """Note the result."""
        self.ended_at, self.fresh_until, self.result = at, fresh_until, result
        self.ended.set()

    def fail(self, at: int, fresh_until: float, problem: Problem, status: int) -> None:
        """Note the error."""
        self.problem, self.status = problem, status
        self.end(at, fresh_until, None)


class Checks:
    """The checks that run, and the results of the last ones. Checks run in `tasks`; `now` is monotonic, in
    seconds, `now_ms` is ms since 1970."""

    def __init__(
        self, tasks: anyio.abc.TaskGroup, now: Callable[[], float], now_ms: Callable[[], int]
    ) -> None:
        self._tasks, self._now, self._now_ms = tasks, now, now_ms
        self._checks: OrderedDict[CheckKey, Check] = OrderedDict()

    def start(self, key: CheckKey, act: Act, *, again: bool = False, kept: float = KEPT_SECONDS) -> Check:
        """The check of this key that runs, or whose result is still kept; else a new one, as with `again`
        after an end. Its result is kept for `kept` seconds. Raises TooMany."""
        found = self._checks.get(key)
        if found is not None:
            is_fresh = not found.ended.is_set() or self._now() < found.fresh_until
            if is_fresh and not (again and found.ended.is_set()):
                return found
        running = [one for one in self._checks.values() if not one.ended.is_set()]
        if len(running) >= RUNNING_MAX:
            raise TooMany(f"{RUNNING_MAX} checks run already")
        if sum(one.key.viewer == key.viewer for one in running) >= OF_ONE_MAX:
            raise TooMany(f"{OF_ONE_MAX} checks of yours run already")
        check = Check(key, kept=kept)
        self._checks[key] = check
        self._checks.move_to_end(key)
        self._forget()
        self._tasks.start_soon(self._run, check, act)
        return check

    async def _run(self, check: Check, act: Act) -> None:
        try:
            result = await act(check.progress)
        except (RmqError, OSError) as error:
            self._fail(check, problem_of(error), status_of(error))
        except Exception:
            log.exception("a check failed")
            self._fail(check, INTERNAL, 500)
        else:
            check.end(self._now_ms(), self._now() + check.kept, result)

    def _fail(self, check: Check, problem: Problem, status: int) -> None:
        check.fail(self._now_ms(), self._now() + FAILED_SECONDS, problem, status)

    def _forget(self) -> None:
        """Drop the oldest results."""
        for key, one in list(self._checks.items())[: max(len(self._checks) - KEPT, 0)]:
            if one.ended.is_set():
                del self._checks[key]
