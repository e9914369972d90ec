"""Jobs: long operations that run behind the pages; their list, start, progress and cancellation."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from attrs import frozen

from rmq.dashboard.access.audit import shown_arguments
from rmq.dashboard.access.roles import Role
from rmq.dashboard.errors import BadRequest, Forbidden, Problem, UnknownName
from rmq.dashboard.jobs import Job, Order, State
from rmq.dashboard.operations.operation import OPERATIONS, Call, arguments_of, check_role, operation
from rmq.dashboard.stream import EXPORTS, Stream, file_name


@frozen
class JobView:
    """A job. `done` counts steps of `total` (0: not known); `note` is about the present step. `problem` is
    the error of a failed job. `is_own`: started by the caller, who alone gets `result` and the file."""

    id: str
    operation: str
    arguments: str
    started_by: str
    state: State
    done: int
    total: int
    note: str
    began_at: int
    ended_at: int
    problem: Problem | None
    is_own: bool
    has_file: bool
    result: Any


@operation("GET", "/jobs")
async def jobs(call: Call) -> list[JobView]:
    """The jobs of the cluster that run or have ended lately, the newest first. An account of the cluster that
    is no administrator sees its own."""
    return [_view(call, one) for one in call.jobs.of(call.cluster) if _is_shown(call, one)]


def _is_shown(call: Call, job: Job) -> bool:
    return job.is_of(call.identity) or not call.identity.is_confined


def _find(call: Call, name: str) -> Job:
    """Raises UnknownName, too, for a job that is not shown to the caller."""
    found = call.jobs.find(name, call.cluster)
    if not _is_shown(call, found):
        raise UnknownName(f"there is no job {name} of {call.identity.name}")
    return found


@operation("GET", "/jobs/{job}")
async def job(call: Call, *, job: str) -> JobView:
    """A job with its progress."""
    return _view(call, _find(call, job))


@operation("GET", "/jobs/{job}/file", media=tuple(EXPORTS.values()))
async def job_file(call: Call, *, job: str) -> Stream:
    """The file that a job of the caller has written."""
    found = _find(call, job)
    if found.file is None or not found.is_of(call.identity):
        raise UnknownName(
            "this job has no file for you: an export keeps it until newer exports take its place"
        )
    return Stream(EXPORTS[found.result.form], found.file, file_name(found.result.group, found.result.form))


@operation("POST", "/jobs", Role.OPERATOR)
async def start_job(
    call: Call,
    *,
    operation: Annotated[str, msgspec.Meta(description="The id of a long operation.")],
    arguments: Annotated[dict[str, Any], msgspec.Meta(description="Its arguments, those of the path too.")],
) -> JobView:
    """Run a long operation in the background: its answer is the job's result."""
    found = OPERATIONS.get(operation)
    if found is None or not found.is_long:
        names = ", ".join(sorted(name for name, one in OPERATIONS.items() if one.is_long))
        raise BadRequest(f"operation: {operation} is not a long operation; long operations are {names}")
    check_role(call.identity, found.role)
    values = arguments_of(found, arguments)
    order = Order(operation, shown_arguments(values), call.cluster, call.identity)
    return _view(call, call.jobs.start(order, lambda progress: call.again(progress, operation, arguments)))


@operation("DELETE", "/jobs/{job}", Role.OPERATOR)
async def cancel_job(call: Call, *, job: str) -> JobView:
    """Cancel a job: one's own, or as admin any. Completed steps stay; an ended job is left as it is."""
    found = _find(call, job)
    if not found.is_of(call.identity) and call.identity.role < Role.ADMIN:
        raise Forbidden(f"the job is of {found.order.identity.name}: only its owner or an admin cancels it")
    call.jobs.cancel(found)
    return _view(call, found)


def _view(call: Call, job: Job) -> JobView:
    is_own = job.is_of(call.identity)
    return JobView(
        job.id,
        job.order.operation,
        job.order.arguments,
        job.order.identity.name,
        job.state,
        job.progress.done,
        job.progress.total,
        job.progress.note,
        job.began_at,
        job.ended_at,
        job.problem if is_own or job.problem is None else Problem(job.problem.name, 0, "", ""),
        is_own,
        is_own and job.file is not None,
        job.result if is_own else None,
    )
