"""Pages of delayed messages and of transactions."""

from __future__ import annotations

from starlette.responses import Response

from rmq.dashboard.web.page import Page, page


@page("/delayed", "GET", "POST")
async def delayed(page: Page) -> Response:
    """Messages that wait for their time; recall."""
    if page.is_post:
        done = await page.perform("recall", handle=page.form.get("handle", ""))
        return page.redirect("delayed", notice=f"Message {done.message_id} is taken back.")
    return page.show(
        "delayed.html", brokers=await page.perform("delayed"), handle=page.query.get("handle", "")
    )


@page("/transactions", "GET", "POST")
async def transactions(page: Page) -> Response:
    """Open and discarded transactions; resume."""
    if page.is_post:
        done = await page.perform("resume_transaction", id=page.form.get("id", ""))
        return page.redirect("transactions", notice=f"The producers of {done.message_id} are asked again.")
    return page.show("transactions.html", found=await page.perform("transactions"))
