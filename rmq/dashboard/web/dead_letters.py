"""Pages of dead letters: groups, the letters of a group, resending, and exports."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.responses import Response, StreamingResponse

from rmq.client.reading.dead_letters import DeadLetter
from rmq.dashboard.errors import BadRequest
from rmq.dashboard.web.page import Page, page
from rmq.printable import printable_json

COLUMNS: Final = (
    "message_id",
    "topic",
    "times",
    "reason",
    "died_at_ms",
    "tags",
    "keys",
    "properties",
    "body",
)
EXPORT_MAX: Final = 100_000
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""A cell that begins so is run by spreadsheets."""


@page("/dead-letters")
async def dead_letters(page: Page) -> Response:
    """The groups with dead letters, or the letters of a group."""
    group = page.query.get("group", "")
    if not group:
        return page.show("dead_groups.html", groups=await page.perform("dead_letter_groups"))
    given = {name: page.query.get(name, "") for name in ("reason", "cursor")}
    found = await page.perform("dead_letters", group=group, **given)
    return page.show("dead_letters.html", found=found, query={"group": group, **given}, done=None)


@page("/dead-letters/resend", "POST")
async def resend(page: Page) -> Response:
    """Resend the chosen letters."""
    group = page.form.get("group", "")
    chosen = [value for name, value in page.fields if name == "chosen"]
    given: dict[str, Any] = {"ids": chosen}
    if page.form.get("act") == "all":
        given = {"all": True}
    elif not chosen:
        raise BadRequest("no letter was chosen")
    done = await page.perform(
        "resend_dead_letters", group=group, to_topic=page.form.get("to_topic", "").strip(), **given
    )
    found = await page.perform("dead_letters", group=group)
    return page.show("dead_letters.html", found=found, query={"group": group}, done=done)


@page("/dead-letters/export")
async def export(page: Page) -> Response:
    """All letters of a group as JSON lines or CSV, as they are read."""
    group, form = page.query.get("group", ""), page.query.get("form", "jsonl")
    if form not in ("jsonl", "csv"):
        raise BadRequest("form: jsonl or csv")
    await page.perform("dead_letters", group=group, count=1)  # an error is a page, not the end of a file
    kind = "application/x-ndjson" if form == "jsonl" else "text/csv; charset=utf-8"
    name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in group)
    headers = {"content-disposition": f'attachment; filename="dead-letters-{name}.{form}"'}
    return StreamingResponse(_lines(page, group, form), media_type=kind, headers=headers)


async def _lines(page: Page, group: str, form: str) -> AsyncIterator[str]:
    async with page.call() as call:
        found = await call.client.dead_letters(group, limit=EXPORT_MAX)
        if form == "csv":
            yield _csv_row(COLUMNS)
        for letter in found:
            row = letter_values(letter)
            if form == "csv":
                yield _csv_row([_cell(row[name]) for name in COLUMNS])
            else:
                yield printable_json(json.dumps(row, ensure_ascii=False)) + "\n"


def letter_values(letter: DeadLetter) -> dict[str, Any]:
    """A letter as an export has it; a body that is no text is in hex, as `body_hex`."""
    message = letter.message
    row: dict[str, Any] = {
        "message_id": letter.message_id,
        "topic": letter.topic,
        "times": letter.times,
        "reason": letter.reason,
        "died_at_ms": letter.died_at_ms,
        "tags": message.tags or "",
        "keys": list(message.keys),
        "properties": message.properties,
    }
    try:
        return row | {"body": message.body.decode()}
    except UnicodeDecodeError:
        return row | {"body": "", "body_hex": message.body.hex()}


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(FORMULA) else text


def _csv_row(cells: Any) -> str:
    file = io.StringIO()
    csv.writer(file).writerow(cells)
    return file.getvalue()
