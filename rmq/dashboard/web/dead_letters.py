"""Pages of dead letters: groups, the letters of a group, resending, and exports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Literal

from starlette.responses import Response, StreamingResponse

from rmq.dashboard.errors import BadRequest
from rmq.dashboard.web.jobs import started
from rmq.dashboard.web.page import Page, page
from rmq.operate.messages.dead_letters import exported


@page("/dead-letters")
async def dead_letters(page: Page) -> Response:
    """The groups with dead letters, or the letters of a group."""
    group = page.query.get("group", "")
    if not group:
        return page.show("dead_groups.html", groups=await page.perform("dead_letter_groups"))
    given = {name: page.query.get(name, "") for name in ("reason", "cursor")}
    found = await page.perform("dead_letters", group=group, **given)
    return page.show("dead_letters.html", found=found, query={"group": group, **given}, done=None)


@page("/dead-letters/resend", "POST")
async def resend(page: Page) -> Response:
    """Resend the chosen letters at once, or all in a job."""
    group, to_topic = page.form.get("group", ""), page.form.get("to_topic", "").strip()
    chosen = [value for name, value in page.fields if name == "chosen"]
    if page.form.get("act") == "all":
        return await started(page, "resend_dead_letters", group=group, to_topic=to_topic, all=True)
    if not chosen:
        raise BadRequest("no letter was chosen")
    done = await page.perform("resend_dead_letters", group=group, to_topic=to_topic, ids=chosen)
    found = await page.perform("dead_letters", group=group)
    return page.show("dead_letters.html", found=found, query={"group": group}, done=done)


@page("/dead-letters/export")
async def export(page: Page) -> Response:
    """All letters of a group as JSON lines or CSV, as they are read."""
    group = page.query.get("group", "")
    forms: dict[str, Literal["jsonl", "csv"]] = {"jsonl": "jsonl", "csv": "csv"}
    form = forms.get(page.query.get("form", "jsonl"))
    if form is None:
        raise BadRequest("form: jsonl or csv")
    await page.perform("dead_letters", group=group, count=1)  # an error is a page, not the end of a file
    kind = "application/x-ndjson" if form == "jsonl" else "text/csv; charset=utf-8"
    name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in group)
    headers = {"content-disposition": f'attachment; filename="dead-letters-{name}.{form}"'}
    return StreamingResponse(_lines(page, group, form), media_type=kind, headers=headers)


async def _lines(page: Page, group: str, form: Literal["jsonl", "csv"]) -> AsyncIterator[str]:
    async with page.call() as call, aclosing(exported(call.client, group, form=form)) as lines:
        async for line in lines:
            yield line
