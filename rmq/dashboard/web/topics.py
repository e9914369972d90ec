"""Pages of topics: the list, a topic, its forms, and the live tail."""

from __future__ import annotations

from starlette.responses import Response

from rmq.dashboard.errors import Conflict
from rmq.dashboard.operations.figures import ABSENT
from rmq.dashboard.operations.topics import TopicPart
from rmq.dashboard.stream import answer_of
from rmq.dashboard.web.page import Page, page

TARGET = ("broker", "hide_unread")
SETTINGS = ("queues", "perm", "order")


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
    form, preview, problem = dict(page.form), None, ""
    if page.is_post:
        given = {key: form[key] for key in TARGET if form.get(key)} | _changed(form)
        if form.get("act") == "save":
            seen = ABSENT if is_new else form.get("seen", "")
            try:
                await page.perform("put_topic", topic=name, seen=seen, **given)
            except Conflict as error:
                problem = str(error)
            else:
                done = "created" if is_new else "changed"
                return page.redirect("topics", name, notice=f"Topic {name} is {done}.")
        preview = await page.perform("put_topic", topic=name, preview=True, **given)
        form |= _hidden(preview.before, preview.seen)
    elif not is_new:
        detail = await page.perform("topic", topic=name)
        hidden = _hidden(detail.parts, detail.seen)
        form = {key: _text(detail.parts[0])[key] for key in SETTINGS if detail.parts} | hidden
    return page.show(
        "topic_form.html",
        name=name,
        is_new=is_new,
        form=form,
        preview=preview,
        problem=problem,
        where=[("", "all masters"), *((one, one) for one in brokers)],
    )


def _changed(form: dict[str, str]) -> dict[str, str]:
    """The settings that the form changes. Others are not sent: brokers keep their own."""
    given = {key: form[key] for key in ("queues", "perm") if form.get(key)}
    given["order"] = "true" if form.get("order") else "false"
    return {key: value for key, value in given.items() if value != form.get(f"was_{key}", "")}


def _hidden(parts: list[TopicPart], seen: str) -> dict[str, str]:
    """Fields that the person does not see: the settings as they were, where all brokers agree."""
    texts = [_text(one) for one in parts]
    same = {key: texts[0][key] for key in SETTINGS if len({one[key] for one in texts}) == 1}
    return {f"was_{key}": value for key, value in same.items()} | {"seen": seen}


def _text(part: TopicPart) -> dict[str, str]:
    return {
        "queues": str(part.read_queues),
        "perm": part.perm,
        "order": "true" if part.order else "false",
    }


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


@page("/topics/{topic}/tail")
async def tail(page: Page) -> Response:
    """The live tail, which opens the stream."""
    return page.show("tail.html", name=page.path("topic"), query=dict(page.query))


@page("/topics/{topic}/events")
async def events(page: Page) -> Response:
    """The stream of the live tail."""
    given = {name: page.query[name] for name in ("tags", "text", "limit") if page.query.get(name)}
    return answer_of(await page.perform("tail", topic=page.path("topic"), **given))
