"""Pages of delayed messages and of transactions."""

from __future__ import annotations

from starlette.responses import Response

from rmq.dashboard.web.page import Page, page


@page("/delayed", "GET", "POST")
async def delayed(page: Page) -> Response:
    """Messages that wait for their time; recall."""
    if page.is_post:
        done = await page.perform("recall", handle=page.form.get("handle", ""))
        return page.redirect("delayed", notice=f"Message {done.message_id} is recalled.")
    return page.show(
        "delayed.html", brokers=await page.perform("delayed"), handle=page.query.get("handle", "")
    )


@page("/delayed/messages")
async def delayed_messages(page: Page) -> Response:
    """The messages that wait at a level, or for a time of their own."""
    query = {key: page.query[key] for key in ("level", "broker", "count", "cursor") if page.query.get(key)}
    found = await page.perform("delayed_messages", **query)
    return page.show("delayed_messages.html", found=found, query=query)


@page("/transactions/open")
async def open_transactions(page: Page) -> Response:
    """Half messages without a decision."""
    given = {key: page.query[key] for key in ("broker",) if page.query.get(key)}
    return page.show("open_transactions.html", brokers=await page.perform("open_transactions", **given))


@page("/transactions", "GET", "POST")
async def transactions(page: Page) -> Response:
    """Open and discarded transactions; resume."""
    if page.is_post:
        done = await page.perform("resume_transaction", id=page.form.get("id", ""))
        return page.redirect("transactions", notice=f"The producers of {done.message_id} are asked again.")
    return page.show("transactions.html", found=await page.perform("transactions"))
