"""Pages of jobs: the list, a job with its progress, and the file that it has written."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from rmq.dashboard.stream import answer_of
from rmq.dashboard.web.page import Page, page


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
    return answer_of(await page.perform("job_file", job=page.path("job")))
