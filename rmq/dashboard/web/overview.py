"""The start page of a cluster, and the list of changes."""

from __future__ import annotations

import math
from typing import Final

import anyio
from starlette.responses import Response

from rmq.dashboard.checks import CheckKey
from rmq.dashboard.web.page import Page, page

PATIENCE_SECONDS: Final = 0.4
"""After so long the page shows without its figures, and loads again."""


@page("")
async def overview(page: Page) -> Response:
    """The overview. Large clusters need seconds for the first one."""
    async with page.call() as call:
        again = call.again
    key = CheckKey(page.caller.identity.key, (page.cluster, "overview"))
    run = page.desk.checks.start(key, lambda progress: again(progress, "overview", {}), kept=0)
    with anyio.move_on_after(math.inf if page.is_part else PATIENCE_SECONDS):
        await run.ended.wait()
    if run.problem is not None:
        return page.failed(run.problem, run.status)
    return page.show("overview.html" if run.ended.is_set() else "overview_begins.html", overview=run.result)


@page("/changes")
async def changes(page: Page) -> Response:
    """The audit lines of this cluster."""
    return page.show("changes.html", changes=await page.perform("changes", count=200))
