"""Pages of messages: search by time, key, id or place, and one message with its trace."""

from __future__ import annotations

from typing import Any, Final

from attrs import frozen
from starlette.responses import Response

from rmq.dashboard.operations.messages import Step, TraceView
from rmq.dashboard.web.page import Page, page
from rmq.dashboard.web.search import search_of
from rmq.errors import RmqError

SEARCH: Final = ("topic", "since_ms", "until_ms", "tags", "text", "count", "cursor", "newest_first")
ROWS: Final = 50
"""Messages of a page, unless the query says otherwise."""
PLACE: Final = ("topic", "id", "broker", "queue", "offset")
WIDTH: Final = 900
LANE: Final = 34
LEFT: Final = 260
RIGHT: Final = 70


@page("/messages")
async def messages(page: Page) -> Response:
    """The search: by key when one is given, else by time."""
    query = {name: value for name, value in page.query.items() if value}
    found, rows, search = None, None, None
    if query.get("topic") and query.get("key"):
        rows = await page.perform("messages_by_key", topic=query["topic"], key=query["key"])
    elif query.get("topic"):
        given = {key: query[key] for key in SEARCH if key in query}
        if "rest" in query:
            given["count"] = query["rest"]
        found = await page.perform("messages", **given)
        search = search_of(query, len(found.rows), found.cursor, ROWS)
    return page.show("messages.html", found=found, rows=rows, query=query, search=search)


@page("/messages/show")
async def message(page: Page) -> Response:
    """One message, by id or place."""
    given: dict[str, Any] = {key: page.query[key] for key in PLACE if page.query.get(key)}
    return await _show(page, given)


@page("/messages/give", "POST")
async def give(page: Page) -> Response:
    """Pass the message to a group now."""
    form = page.form
    given = {"topic": form.get("topic", ""), "id": form.get("id", "")}
    done = await page.perform(
        "give_message", **given, group=form.get("group", ""), client_id=form.get("client_id", "")
    )
    return await _show(page, given, given=done)


@page("/messages/copy", "POST")
async def copy(page: Page) -> Response:
    """Send a copy to the topic."""
    form = page.form
    given = {"topic": form.get("topic", ""), "id": form.get("id", "")}
    done = await page.perform("copy_message", **given, to_topic=form.get("to_topic", "").strip())
    return await _show(page, given, copied=done)


async def _show(page: Page, where: dict[str, Any], **values: Any) -> Response:
    found = await page.perform("message", **where)
    trace, untraced = TraceView(found.row.message_id, []), ""
    try:
        trace = await page.perform("trace", id=found.row.message_id)
    except RmqError as error:  # an account may read the message, and not the topic of traces
        untraced = str(error)
    form = page.query.get(
        "as", "json" if found.json else "text" if found.text or not found.row.size else "hex"
    )
    filled = {"given": None, "copied": None, "untraced": untraced, **values}
    return page.show(
        "message.html", message=found, form=form, trace=trace, picture=picture(trace), where=where, **filled
    )


@frozen
class Bar:
    """A step of the picture, in its units."""

    x: float
    width: float
    step: Step


@frozen
class Lane:
    """A line of the picture."""

    y: float
    label: str
    detail: str
    bars: list[Bar]


@frozen
class Picture:
    """The trace as lanes over time."""

    width: int
    height: int
    left: int
    right: int
    lanes: list[Lane]
    begin_ms: int
    took_ms: int


def picture(trace: TraceView) -> Picture | None:
    """The layout of a trace's steps: a lane for each kind, group and client."""
    if not trace.steps:
        return None
    begin = min(step.begin_ms for step in trace.steps)
    took = max(max(step.end_ms for step in trace.steps) - begin, 1)
    scale = (WIDTH - LEFT - RIGHT) / took
    lanes: dict[tuple[str, str, str], list[Step]] = {}
    for step in trace.steps:
        lanes.setdefault((step.kind, step.group, step.client), []).append(step)
    drawn = []
    for number, ((kind, group, client), steps) in enumerate(lanes.items()):
        bars = [
            Bar(LEFT + (step.begin_ms - begin) * scale, max((step.end_ms - step.begin_ms) * scale, 6), step)
            for step in steps
        ]
        drawn.append(Lane(number * LANE + 8, f"{kind} {group}".strip(), client, bars))
    return Picture(WIDTH, len(lanes) * LANE + 34, LEFT, WIDTH - RIGHT, drawn, begin, took)
