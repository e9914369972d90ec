"""Pages of jobs: the list, a job with its progress, and the file that it has written."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import FileResponse, Response

from rmq.dashboard.errors import BadRequest, NotFound
from rmq.dashboard.web.page import Page, page

KINDS: Final = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}


@page("/jobs", "GET", "POST")
async def jobs(page: Page) -> Response:
    """The list; a form starts a job."""
    if page.is_post:
        form = page.form
        given: dict[str, Any] = {
            name: value for name, value in form.items() if name not in ("csrf", "operation") and value
        }
        return await started(page, form.get("operation", ""), **given)
    return page.show("jobs.html", jobs=await page.perform("jobs"))


async def started(page: Page, operation: str, /, **arguments: Any) -> Response:
    """Start a job, and go to its page."""
    made = await page.perform("start_job", operation=operation, arguments=arguments)
    return page.redirect("jobs", made.id)


@page("/jobs/{job}", "GET", "POST")
async def job(page: Page) -> Response:
    """A job; a form cancels it."""
    name = page.path("job")
    if page.is_post:
        await page.perform("cancel_job", job=name)
        return page.redirect("jobs", name, notice="The job is cancelled. Completed steps stay.")
    return page.show("job.html", job=await page.perform("job", job=name))


@page("/jobs/{job}/file")
async def file(page: Page) -> Response:
    """The file, for the identity that started the job."""
    found = page.desk.jobs.find(page.path("job"), page.cluster)
    path = found.file
    if path is None or not found.is_of(page.caller.identity):
        raise NotFound("this job has no file for you: an export keeps it until newer exports take its place")
    form = str(getattr(found.result, "form", ""))
    if form not in KINDS:
        raise BadRequest("this job has written no export")
    group = str(getattr(found.result, "group", ""))
    name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in group)
    return FileResponse(path, media_type=KINDS[form], filename=f"dead-letters-{name}.{form}")
