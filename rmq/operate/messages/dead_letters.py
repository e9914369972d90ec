"""Dead letters: their number in each group, pages and counts by reason, copies as JSON lines or CSV, and
another send."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Literal

from attrs import evolve, frozen

from rmq.client.reading.dead_letters import ALL_LETTERS, DeadLetter, Letters, read_letter
from rmq.errors import NoRoute, TopicNotExist
from rmq.message import DLQ_PREFIX, dlq_topic
from rmq.operate.messages.pages import read_page
from rmq.operate.several import ask_each
from rmq.operate.topics import is_absent

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.client.client import Client

PAGE: Final = 200
LOOKED_AT_MAX: Final = 10_000
"""Newest letters that are counted by reason, at most."""
_VARYING: Final = re.compile(r"\b[0-9a-fA-F]{8,}\b|\d+")
FIELDS: Final = (
    "died_at_ms",
    "group",
    "topic",
    "message_id",
    "times",
    "reason",
    "tags",
    "keys",
    "properties",
    "body",
    "body_base64",
)
"""The columns of a CSV file."""


@frozen
class GroupLetters:
    """A group with dead letters. `last_ms` is the time of death of the newest letter."""

    group: str
    count: int
    last_ms: int


@frozen
class Reason:
    """Dead letters with reasons that differ in numbers only: `text` has ``#`` in their place.

    `sample` is the reason of the newest letter, `topics` are the original topics, `first_ms` and `last_ms`
    the times of death of the oldest and the newest letter.
    """

    text: str
    sample: str
    count: int
    topics: frozenset[str]
    first_ms: int
    last_ms: int


@frozen
class LetterPage:
    """Dead letters of a group, newest first. `total` counts all that are kept; `cursor` is the begin of the
    next page, None after the last one."""

    letters: Sequence[DeadLetter]
    total: int
    cursor: str | None


async def groups_with_letters(admin: Admin) -> list[GroupLetters]:
    """List the groups that have dead letters, most first; one request to each broker of each dead letter
    topic.
    """

    async def look(topic: str) -> GroupLetters:
        try:
            ends = (await admin.topic_stats(topic)).values()
        except (NoRoute, TopicNotExist):  # deleted since
            return GroupLetters(topic.removeprefix(DLQ_PREFIX), 0, 0)
        count = sum(max(0, one.max_offset - one.min_offset) for one in ends)
        last = max((one.last_update_timestamp for one in ends), default=0)
        return GroupLetters(topic.removeprefix(DLQ_PREFIX), count, last)

    found = await ask_each((topic for topic in await admin.topics() if topic.startswith(DLQ_PREFIX)), look)
    return sorted((one for one in found.values() if one.count), key=lambda one: (-one.count, one.group))


async def read_letters(
    client: Client,
    group: str,
    chosen: Letters = ALL_LETTERS,
    *,
    count: int = 50,
    cursor: str | None = None,
    newest_first: bool = True,
) -> LetterPage:
    """Read one page of a group's dead letters, or of the letters that `chosen` selects. Raises as
    `read_page`; a group without dead letters has an empty page."""
    try:
        page = await read_page(
            client,
            dlq_topic(group),
            since_ms=chosen.since_ms,
            until_ms=chosen.until_ms,
            count=count,
            where=lambda message: read_letter(message) in chosen,
            cursor=cursor,
            newest_first=newest_first,
        )
    except (NoRoute, TopicNotExist) as error:
        if not is_absent(error):
            raise
        return LetterPage([], 0, None)
    return LetterPage([read_letter(message) for message in page.messages], page.total, page.cursor)


async def by_reason(client: Client, group: str, *, most: int = LOOKED_AT_MAX) -> list[Reason]:
    """Count the newest `most` dead letters of a group by reason, most first."""
    found: dict[str, Reason] = {}
    looked_at = 0
    async with aclosing(_each(client, group, ALL_LETTERS, newest_first=True)) as letters:
        async for letter in letters:
            if looked_at == most:
                break
            looked_at += 1
            text = _VARYING.sub("#", letter.reason)
            here = frozenset({letter.topic} - {""})
            known = found.get(text)
            found[text] = (
                Reason(text, letter.reason, 1, here, letter.died_at_ms, letter.died_at_ms)
                if known is None
                else evolve(
                    known, count=known.count + 1, topics=known.topics | here, first_ms=letter.died_at_ms
                )
            )
    return sorted(found.values(), key=lambda one: (-one.count, one.text))


async def exported(
    client: Client, group: str, chosen: Letters = ALL_LETTERS, *, form: Literal["jsonl", "csv"] = "jsonl"
) -> AsyncGenerator[str]:
    """Yield dead letters as lines with their ends, oldest first, without keeping more than a page: JSON
    lines, or CSV with a head. A body that is no UTF-8 stands in `body_base64`. Letters that arrive during the
    call may be among them.

    A text of CSV that a spreadsheet would take for a formula has a ``'`` before it.
    """
    if form == "csv":
        yield _csv_line(dict.fromkeys(FIELDS), head=True)
    async with aclosing(_each(client, group, chosen, newest_first=False)) as letters:
        async for letter in letters:
            row = letter_row(group, letter)
            yield _csv_line(row) if form == "csv" else json.dumps(row, ensure_ascii=False) + "\n"


def letter_row(group: str, letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as names and plain values."""
    message = letter.message
    row: dict[str, Any] = {
        "died_at_ms": letter.died_at_ms,
        "group": group,
        "topic": letter.topic,
        "message_id": letter.message_id,
        "times": letter.times,
        "reason": letter.reason,
        "tags": message.tags or "",
        "keys": list(message.keys),
        "properties": dict(message.properties),
    }
    try:
        row["body"] = message.body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(message.body).decode()
    return row


def _csv_line(row: dict[str, Any], *, head: bool = False) -> str:
    text = io.StringIO()
    values = FIELDS if head else [_cell(row.get(name, "")) for name in FIELDS]
    csv.writer(text, lineterminator="\r\n").writerow(values)
    return text.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, list):
        value = " ".join(value)
    elif isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False)
    elif not isinstance(value, str):
        return str(value)
    return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


async def _each(
    client: Client, group: str, chosen: Letters, *, newest_first: bool
) -> AsyncGenerator[DeadLetter]:
    page = await read_letters(client, group, chosen, count=PAGE, newest_first=newest_first)
    while True:
        for letter in page.letters:
            yield letter
        if page.cursor is None:
            return
        page = await read_letters(
            client, group, chosen, count=PAGE, cursor=page.cursor, newest_first=newest_first
        )
