"""Pages of topics: the list, a topic, its forms, and the live tail."""

from __future__ import annotations

from starlette.responses import Response

from rmq.dashboard.web.page import Page, page

FORM = ("queues", "perm", "order", "broker", "hide_unread")


@page("/topics")
async def topics(page: Page) -> Response:
    """The list, with a search."""
    query = {name: page.query[name] for name in ("search", "kind", "page", "size") if page.query.get(name)}
    return page.show("topics.html", found=await page.perform("topics", **query), query=query)


@page("/topics/{topic}")
async def topic(page: Page) -> Response:
    """A topic."""
    return page.show("topic.html", topic=await page.perform("topic", topic=page.path("topic")))


@page("/new-topic", "GET", "POST")
async def new_topic(page: Page) -> Response:
    """The form for a new topic, with a preview first."""
    return await _edit(page, page.form.get("topic", "").strip(), is_new=True)


@page("/topics/{topic}/edit", "GET", "POST")
async def edit_topic(page: Page) -> Response:
    """The form for a change, with a preview first."""
    return await _edit(page, page.path("topic"), is_new=False)


async def _edit(page: Page, name: str, *, is_new: bool) -> Response:
    brokers = sorted({row.name for row in (await page.perform("overview")).brokers if row.is_master})
    form = dict(page.form)
    preview = None
    if page.is_post:
        given = {key: form[key] for key in FORM if form.get(key)}
        if form.get("act") == "save":
            await page.perform("put_topic", topic=name, **given)
            return page.redirect(
                "topics", name, notice=f"Topic {name} is {'created' if is_new else 'changed'}."
            )
        preview = await page.perform("put_topic", topic=name, preview=True, **given)
    elif not is_new:
        form = await _present(page, name)
    return page.show(
        "topic_form.html",
        name=name,
        is_new=is_new,
        form=form,
        preview=preview,
        where=[("", "all masters"), *((one, one) for one in brokers)],
    )


async def _present(page: Page, name: str) -> dict[str, str]:
    parts = (await page.perform("topic", topic=name)).parts
    if not parts:
        return {}
    first = parts[0]
    return {"queues": str(first.read_queues), "perm": first.perm, "order": "true" if first.order else ""}


@page("/topics/{topic}/delete", "GET", "POST")
async def delete_topic(page: Page) -> Response:
    """Delete, with the name typed."""
    name = page.path("topic")
    if page.is_post:
        await page.perform("delete_topic", topic=name, confirm=page.form.get("confirm", ""))
        return page.redirect("topics", notice=f"Topic {name} is deleted.")
    return page.show("delete.html", kind="topic", name=name, detail=await page.perform("topic", topic=name))


@page("/topics/{topic}/send", "GET", "POST")
async def send(page: Page) -> Response:
    """Send a test message."""
    name = page.path("topic")
    sent = None
    if page.is_post:
        form = page.form
        lines = [line.partition("=") for line in form.get("properties", "").splitlines() if line.strip()]
        sent = await page.perform(
            "send_message",
            topic=name,
            body=form.get("body", ""),
            tags=form.get("tags", ""),
            keys=form.get("keys", ""),
            delay_seconds=form.get("delay_seconds") or 0,
            properties={key.strip(): value.strip() for key, _, value in lines},
        )
    return page.show("send.html", name=name, sent=sent, form=page.form)
