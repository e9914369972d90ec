"""The start page of a cluster, and the list of changes."""

from __future__ import annotations

from starlette.responses import Response

from rmq.dashboard.web.page import Page, page


@page("")
async def overview(page: Page) -> Response:
    """The overview."""
    return page.show("overview.html", overview=await page.perform("overview"))


@page("/changes")
async def changes(page: Page) -> Response:
    """The audit lines of this cluster."""
    return page.show("changes.html", changes=await page.perform("changes", count=200))
