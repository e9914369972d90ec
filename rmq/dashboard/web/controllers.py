"""The page of controllers: the leader, the broker sets, handovers."""

from __future__ import annotations

from starlette.responses import Response

from rmq.dashboard.web.page import Page, page


@page("/controllers", "GET", "POST")
async def controllers(page: Page) -> Response:
    """The state; a hand-over."""
    done = None
    if page.is_post:
        broker, number = page.form.get("broker", ""), page.form.get("number", "0")
        done = await page.perform("hand_over", broker=broker, number=number)
    return page.show("controllers.html", found=await page.perform("controllers"), done=done)
