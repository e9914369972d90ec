"""Pages of dead letters: groups, the letters of a group, resending, and exports."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rmq.dashboard.errors import BadRequest
from rmq.dashboard.stream import answer_of
from rmq.dashboard.web.jobs import started
from rmq.dashboard.web.page import Page, page
from rmq.dashboard.web.search import search_of

ROWS: Final = 100
"""Letters of a page, unless the query says otherwise."""


@page("/dead-letters")
async def dead_letters(page: Page) -> Response:
    """The groups with dead letters, or the letters of a group."""
    group = page.query.get("group", "")
    if not group:
        return page.show("dead_groups.html", groups=await page.perform("dead_letter_groups"))
    query = {name: page.query[name] for name in ("group", "reason", "cursor", "rest") if page.query.get(name)}
    found = await page.perform(
        "dead_letters",
        group=group,
        reason=query.get("reason", ""),
        cursor=query.get("cursor", ""),
        count=query.get("rest", ROWS),
    )
    search = search_of(query, len(found.rows), found.cursor, ROWS)
    return page.show("dead_letters.html", found=found, query=query, search=search, done=None)


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
    found, query = await page.perform("dead_letters", group=group), {"group": group}
    search = search_of(query, len(found.rows), found.cursor, ROWS)
    return page.show("dead_letters.html", found=found, query=query, search=search, done=done)


@page("/dead-letters/export")
async def export(page: Page) -> Response:
    """All letters of a group as JSON lines or CSV, as they are read."""
    group, form = page.query.get("group", ""), page.query.get("form", "jsonl")
    return answer_of(await page.perform("read_dead_letters", group=group, form=form))
