"""Jobs: long operations behind the pages, with progress and cancellation, bounded in number and files."""

from __future__ import annotations

import logging
import pathlib
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import anyio
import anyio.abc
from attrs import define, field, frozen

from rmq.dashboard.access.sessions import Identity
from rmq.dashboard.errors import INTERNAL, Problem, TooMany, UnknownName, problem_of
from rmq.errors import RmqError

log = logging.getLogger(__name__)

State = Literal["running", "done", "failed", "cancelled"]

RUNNING_MAX: Final = 8
"""Jobs at once, of all people."""
OF_ONE_MAX: Final = 3
"""Jobs at once of a person or program."""
KEPT: Final = 50
"""Ended jobs that are still shown; the oldest are forgotten first, with their files."""
FILES_MAX: Final = 8
"""Files of ended jobs."""


@define
class Progress:
    """Progress of an operation: `done` of `total` steps (0: not known), and a line about the present step.

    `file` is the file that a job may write; None outside jobs. `check` raises when the owner of a job may not
    go on; it is called before each step.
    """

    done: int = 0
    total: int = 0
    note: str = ""
    file: pathlib.Path | None = None
    check: Callable[[], None] = field(default=lambda: None, repr=False)

    def guard(self, check: Callable[[], None]) -> None:
        """Call `check` now, and before each further step."""
        self.check = check
        check()

    def report(self, done: int, total: int = 0, note: str = "") -> None:
        """Set all three figures. Raises as `check`."""
        self.done, self.total, self.note = done, total, note
        self.check()


Act = Callable[[Progress], Awaitable[Any]]


@frozen
class Order:
    """Request for a job: the operation with its arguments as text, and the identity that acts."""

    operation: str
    arguments: str
    cluster: str
    identity: Identity


@define(eq=False)
class Job:
    """A job. `began_at` and `ended_at` are ms since 1970; `file` is a file to download."""

    id: str
    order: Order
    began_at: int
    progress: Progress
    state: State = "running"
    ended_at: int = 0
    problem: Problem | None = None
    result: Any = field(default=None, repr=False)
    scope: anyio.CancelScope = field(factory=anyio.CancelScope, repr=False)

    @property
    def file(self) -> pathlib.Path | None:
        """The file that the job has written; None before its end, and without a file."""
        path = self.progress.file
        return path if self.state == "done" and path is not None and path.exists() else None

    def is_of(self, identity: Identity) -> bool:
        """True if this identity has started the job: only it gets the file."""
        return self.order.identity.key == identity.key

    def end(self, state: State, at: int, result: Any = None, problem: Problem | None = None) -> None:
        """Note the end."""
        self.state, self.ended_at, self.result, self.problem = state, at, result, problem

    def remove_file(self) -> None:
        """Remove the file, if there is one."""
        if self.progress.file is not None:
            self.progress.file.unlink(missing_ok=True)


class Jobs:
    """All jobs. They run in `tasks` and write files into `folder`; `now_ms` is ms since 1970."""

    def __init__(
        self, tasks: anyio.abc.TaskGroup, now_ms: Callable[[], int], folder: pathlib.Path | None = None
    ) -> None:
        self._tasks, self._now_ms, self._folder = tasks, now_ms, folder
        self._jobs: OrderedDict[str, Job] = OrderedDict()

    def start(self, order: Order, act: Act) -> Job:
        """Start a job. Raises TooMany."""
        running = [one for one in self._jobs.values() if one.state == "running"]
        if len(running) >= RUNNING_MAX:
            raise TooMany(f"{RUNNING_MAX} jobs run already: wait for an end, or cancel a job")
        if sum(one.is_of(order.identity) for one in running) >= OF_ONE_MAX:
            raise TooMany(f"{OF_ONE_MAX} jobs of {order.identity.name} run already: wait, or cancel a job")
        name = secrets.token_hex(6)
        file = self._folder / name if self._folder is not None else None
        job = Job(name, order, self._now_ms(), Progress(file=file))
        self._jobs[name] = job
        self._forget()
        self._tasks.start_soon(self._run, job, act)
        return job

    async def _run(self, job: Job, act: Act) -> None:
        try:
            with job.scope:
                job.end("done", self._now_ms(), await act(job.progress))
        except (RmqError, OSError) as error:
            job.end("failed", self._now_ms(), problem=problem_of(error))
        except Exception:
            log.exception("job %s failed", job.order.operation)
            job.end("failed", self._now_ms(), problem=INTERNAL)
        finally:
            if job.state == "running":
                job.end("cancelled", self._now_ms())
            if job.state != "done":
                job.remove_file()

    def _forget(self) -> None:
        ended = [one for one in self._jobs.values() if one.state != "running"]
        for job in ended[: max(len(ended) - KEPT, 0)]:
            job.remove_file()
            del self._jobs[job.id]
        with_file = [one for one in ended if one.file is not None]
        for job in with_file[: max(len(with_file) - FILES_MAX + 1, 0)]:
            job.remove_file()

    def find(self, name: str, cluster: str) -> Job:
        """The job of a cluster. Raises UnknownName."""
        job = self._jobs.get(name)
        if job is None or job.order.cluster != cluster:
            raise UnknownName(f"there is no job {name}: jobs are forgotten after a while, and at a restart")
        return job

    def of(self, cluster: str) -> list[Job]:
        """The jobs of a cluster, the newest first."""
        return [one for one in reversed(self._jobs.values()) if one.order.cluster == cluster]

    def cancel(self, job: Job) -> None:
        """Cancel a job; without effect on an ended job. Completed steps stay."""
        job.scope.cancel()
