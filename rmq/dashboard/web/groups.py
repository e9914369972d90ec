"""Pages of groups: the list, a group, its members, and its forms."""

from __future__ import annotations

from typing import Any, Final

import anyio
from starlette.responses import Response

from rmq.dashboard.checks import KEPT_SECONDS, Check, CheckKey
from rmq.dashboard.errors import Conflict
from rmq.dashboard.operations.figures import ABSENT
from rmq.dashboard.operations.groups import GroupPart
from rmq.dashboard.web.page import Page, page
from rmq.message import retry_topic
from rmq.printable import counted

RESET = ("topic", "to", "at_ms", "broker", "queue", "offset")
PATIENCE_SECONDS: Final = 0.3
"""A check that ends so soon is shown at once, without its progress."""
MEMBER_KEPT_SECONDS: Final = 2.0
"""The answer of a member is shown again for so long: the page that waits for it asks every half a second."""


@page("/groups")
async def groups(page: Page) -> Response:
    """The list, with a search."""
    query = {name: page.query[name] for name in ("search", "sort", "page", "size") if page.query.get(name)}
    return page.show("groups.html", found=await page.perform("groups", **query), query=query)


@page("/groups/{group}")
async def group(page: Page) -> Response:
    """A group."""
    return page.show("group.html", group=await page.perform("group", group=page.path("group")))


@page("/groups/{group}/member")
async def member(page: Page) -> Response:
    """The state that a member reports. While it does not answer, the page says so, and asks for the rest."""
    name, client_id = page.path("group"), page.query.get("client_id", "")
    stack = page.query.get("stack", "") == "true"
    arguments = {"group": name, "client_id": client_id, "stack": stack}
    run = await _start(page, "member", arguments, kept=MEMBER_KEPT_SECONDS)
    if run.problem is not None and not page.is_part:
        return page.failed(run.problem, run.status)
    return page.show("member.html", name=name, client_id=client_id, run=run, member=run.result, stack=stack)


@page("/groups/{group}/times")
async def times(page: Page) -> Response:
    """The lag in time of a group, for each queue of a topic."""
    name, topic = page.path("group"), page.query.get("topic", "")
    rows = await page.perform("consume_times", group=name, topic=topic)
    return page.show("times.html", name=name, topic=topic, rows=rows)


@page("/new-group", "GET", "POST")
async def new_group(page: Page) -> Response:
    """The form for a new group."""
    return await _edit(page, page.form.get("group", "").strip(), is_new=True)


@page("/groups/{group}/edit", "GET", "POST")
async def edit_group(page: Page) -> Response:
    """The form for the settings of a group."""
    return await _edit(page, page.path("group"), is_new=False)


async def _edit(page: Page, name: str, *, is_new: bool) -> Response:
    form, problem = dict(page.form), ""
    if page.is_post:
        given = {key: form[key] for key in ("retries", "retry_queues") if form.get(key)}
        given |= {key: "true" if form.get(key) else "false" for key in ("consume", "broadcast")}
        given = {key: value for key, value in given.items() if value != form.get(f"was_{key}", "")}
        seen = ABSENT if is_new else form.get("seen", "")
        try:
            await page.perform("put_group", group=name, seen=seen, **given)
        except Conflict as error:
            problem = f"{error}. Nothing was changed."
            form |= {key: "true" if form.get(key) else "false" for key in ("consume", "broadcast")}
        else:
            done = "created" if is_new else "changed"
            return page.redirect("groups", name, notice=f"Group {name} is {done}.")
    if not is_new:
        detail = await page.perform("group", group=name)
        form = _present(detail.parts) | {"seen": detail.seen}
    return page.show("group_form.html", name=name, is_new=is_new, form=form, problem=problem)


def _present(parts: list[GroupPart]) -> dict[str, str]:
    """The form's fields: the settings of the first broker, and, not seen by the person, the settings that
    all brokers share."""
    texts = [
        {
            "retries": str(one.retries),
            "retry_queues": str(one.retry_queues),
            "consume": "true" if one.consume else "false",
            "broadcast": "true" if one.broadcast else "false",
        }
        for one in parts
    ]
    first = texts[0] if texts else {}
    same = {key: value for key, value in first.items() if len({one[key] for one in texts}) == 1}
    return first | {f"was_{key}": value for key, value in same.items()}


@page("/groups/{group}/delete", "GET", "POST")
async def delete_group(page: Page) -> Response:
    """Delete, with the name typed."""
    name = page.path("group")
    if page.is_post:
        await page.perform("delete_group", group=name, confirm=page.form.get("confirm", ""))
        return page.redirect("groups", notice=f"Group {name} is deleted.")
    return page.show("delete.html", kind="group", name=name, detail=await page.perform("group", group=name))


@page("/groups/{group}/reset", "GET", "POST")
async def reset(page: Page) -> Response:
    """Reset offsets: first a preview with the messages delivered again or skipped."""
    name = page.path("group")
    detail = await page.perform("group", group=name)
    preview = None
    if page.is_post:
        given = {key: page.form[key] for key in RESET if page.form.get(key)}
        if page.form.get("act") == "save":
            done = await page.perform("reset_group", group=name, **given)
            again = counted(done.again, "message", ",")
            text = f"Offsets of {name} in {done.topic} are set: {again} to come again"
            text += f", {done.skipped:,} are skipped."
            return page.redirect("groups", name, notice=text)
        preview = await page.perform("reset_group", group=name, preview=True, **given)
    return page.show(
        "reset.html",
        name=name,
        group=detail,
        own_topics=[topic for topic in detail.topics if topic != retry_topic(name)],
        form=page.form or page.query,
        preview=preview,
    )


@page("/groups/{group}/copy", "GET", "POST")
async def copy(page: Page) -> Response:
    """Copy the offsets to another group: first a preview with the offsets of each queue."""
    name, preview = page.path("group"), None
    if page.is_post:
        target = page.form.get("to_group", "").strip()
        given = {"group": name, "to_group": target, "topic": page.form.get("topic", "")}
        if page.form.get("act") == "save":
            await page.perform("copy_offsets", **given)
            return page.redirect("groups", target, notice=f"{target} goes on where {name} is.")
        preview = await page.perform("copy_offsets", **given, preview=True)
    detail = await page.perform("group", group=name)
    own = [topic for topic in detail.topics if topic != retry_topic(name)]
    return page.show("copy.html", name=name, own_topics=own, form=page.form, preview=preview)


@page("/groups/{group}/check")
async def check(page: Page) -> Response:
    """Stalled queues, and members that disagree. Members that do not answer take time: the page shows the
    progress, and asks for the rest."""
    name = page.path("group")
    again = page.query.get("again", "") == "true"
    run = await _start(page, "check_group", {"group": name}, again=again, kept=KEPT_SECONDS)
    if again:
        return page.redirect("groups", name, "check")
    if run.problem is not None and not page.is_part:
        return page.failed(run.problem, run.status)
    return page.show("check.html", name=name, run=run, check=run.result)


async def _start(
    page: Page, operation: str, arguments: dict[str, Any], *, kept: float, again: bool = False
) -> Check:
    """The viewer's check of this operation, new or as it runs, after a short wait for its end."""
    async with page.call() as call:
        repeat = call.again
    subject = (page.cluster, operation, *arguments.values())
    run = page.desk.checks.start(
        CheckKey(page.caller.identity.key, subject),
        lambda progress: repeat(progress, operation, arguments),
        again=again,
        kept=kept,
    )
    if not again:
        with anyio.move_on_after(PATIENCE_SECONDS):
            await run.ended.wait()
    return run


@page("/streams")
async def streams(page: Page) -> Response:
    """Streams of Spark, and other readers without members."""
    return page.show("streams.html", streams=await page.perform("streams"))
