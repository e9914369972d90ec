"""Dead letters of a group: by reason, and sent again."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Final, Literal

import msgspec
from attrs import frozen

from rmq.client.reading.dead_letters import DeadLetter, Letters, Redriven, read_letter
from rmq.dashboard.access.roles import Role
from rmq.dashboard.errors import BadRequest, LoginNeeded
from rmq.dashboard.operations import figures
from rmq.dashboard.operations.messages import PAGE_SECONDS, Millis, WithinSeconds, preview_of
from rmq.dashboard.operations.operation import Call, operation
from rmq.dashboard.stream import EXPORTS, Stream, file_name
from rmq.errors import NoRoute, RmqError, TopicNotExist
from rmq.message import DLQ_PREFIX, dlq_topic, validate_group
from rmq.operate.messages import dead_letters as operate_letters
from rmq.operate.messages import pages
from rmq.operate.several import ask_each
from rmq.operate.topics import is_absent, messages_kept

IDS_MAX: Final = 1000
PART_CHARS: Final = 256 << 10
FILE_CHARS_MAX: Final = 256 << 20
"""Characters of an export that a job keeps as a file."""
SAMPLE: Final = 500
"""Letters whose reasons are counted."""


@frozen
class DeadGroup:
    """A group with dead letters; -1: their number is not known."""

    group: str
    count: int


@operation("GET", "/dead-letters")
async def dead_letter_groups(call: Call) -> list[DeadGroup]:
    """The groups that have given messages up, and how many."""
    configs = await figures.all_topic_configs(call)
    names = [name.removeprefix(DLQ_PREFIX) for name in configs if name.startswith(DLQ_PREFIX)]

    counts = await ask_each(names, lambda group: _kept(call, group))
    return [
        DeadGroup(group, number)
        for group, number in sorted(counts.items(), key=lambda row: -row[1])
        if number
    ]


async def _kept(call: Call, group: str) -> int:
    try:
        return await messages_kept(call.admin, DLQ_PREFIX + group)
    except RmqError:
        return -1


@frozen
class DeadRow:
    """A dead letter. `key`, its place, identifies the letter; `times` is the number of deliveries."""

    key: str
    message_id: str
    offset_message_id: str
    topic: str
    times: int
    reason: str
    died_at: int
    keys: list[str]
    size: int
    preview: str
    dlq_topic: str


@frozen
class ReasonCount:
    """A reason, and how many of the letters that were looked at have it."""

    reason: str
    count: int


@frozen
class DeadList:
    """A page of a group's dead letters, newest first. `reasons` counts the reasons of the newest `SAMPLE`, on
    the first page only. `left` counts the letters that the next pages read. `cursor` requests the next page;
    it is empty after the last page. A page may have few rows, or none, and still a cursor."""

    group: str
    rows: list[DeadRow]
    reasons: list[ReasonCount]
    total: int
    left: int
    cursor: str


@operation("GET", "/dead-letters/{group}")
async def dead_letters(
    call: Call,
    *,
    group: str,
    reason: Annotated[str, msgspec.Meta(description="Only letters with this text in their reason.")] = "",
    since_ms: Millis = 0,
    count: Annotated[int, msgspec.Meta(ge=1, le=200)] = 100,
    cursor: Annotated[str, msgspec.Meta(description="The cursor of the page before.")] = "",
    within_seconds: WithinSeconds = PAGE_SECONDS,
) -> DeadList:
    """A page of the dead letters of a group, newest first, with reasons."""
    topic, since = dlq_topic(validate_group(group)), since_ms or None
    selected = reason.lower()
    reasons: list[ReasonCount] = []
    try:
        if not cursor:
            newest = await pages.read_page(
                call.client, topic, since_ms=since, count=SAMPLE, within_seconds=within_seconds / 2
            )
            counts = Counter(read_letter(one).reason for one in newest.messages)
            reasons = [ReasonCount(text, number) for text, number in counts.most_common(20)]
        page = await pages.read_page(
            call.client,
            topic,
            since_ms=since,
            count=count,
            where=(lambda one: selected in read_letter(one).reason.lower()) if selected else None,
            cursor=cursor or None,
            within_seconds=within_seconds,
        )
    except (NoRoute, TopicNotExist) as error:
        if not is_absent(error):
            raise
        return DeadList(group, [], [], 0, 0, "")
    rows = [dead_row(read_letter(one)) for one in page.messages]
    return DeadList(group, rows, reasons, page.total, page.left, page.cursor or "")


def dead_row(letter: DeadLetter) -> DeadRow:
    """A letter as a list shows it."""
    message = letter.message
    return DeadRow(
        letter.key,
        letter.message_id,
        message.offset_message_id,
        letter.topic,
        letter.times,
        letter.reason,
        letter.died_at_ms,
        list(message.keys),
        len(message.body),
        preview_of(message.body),
        message.topic,
    )


@frozen
class Failure:
    """A letter that was not sent again, and why."""

    message_id: str
    error: str


@frozen
class Resent:
    """Result of sending letters again: `already` had been sent before."""

    group: str
    looked_at: int
    sent: int
    already: int
    failed: list[Failure]


@operation("POST", "/dead-letters/{group}/resend", Role.OPERATOR, is_long=True)
async def resend_dead_letters(
    call: Call,
    *,
    group: str,
    ids: Annotated[
        list[str], msgspec.Meta(max_length=IDS_MAX, description="Ids of letters, or places.")
    ] = [],  # noqa: B006
    all: Annotated[bool, msgspec.Meta(description="All letters of the group.")] = False,
    to_topic: Annotated[str, msgspec.Meta(description="Empty: each to its own topic.")] = "",
    rate: Annotated[float, msgspec.Meta(ge=0, description="Letters a second; 0: no limit.")] = 0,
) -> Resent:
    """Send dead letters to their topics again. A letter that was sent before is not sent twice."""
    if all == bool(ids):
        raise BadRequest("ids or all: exactly one of them is needed")
    selected = frozenset(ids)
    chosen = Letters() if all else Letters(where=lambda letter: not selected.isdisjoint(_names(letter)))
    total = len(selected) or max(await _kept(call, group), 0)

    def report(so_far: Redriven) -> None:
        call.progress.report(so_far.sent + so_far.already + len(so_far.failed), total)

    done = await call.client.redrive(group, chosen, to=to_topic or None, rate=rate or None, progress=report)
    failures = [Failure(message_id, str(error)) for message_id, error in done.failed]
    return Resent(group, done.looked_at, done.sent, done.already, failures)


def _names(letter: DeadLetter) -> tuple[str, ...]:
    return letter.key, letter.message_id, letter.message.offset_message_id


Form = Literal["jsonl", "csv"]
LINES_OF_A_LOOK: Final = 100
"""Lines of an export after which it is checked whether its reader is still logged in."""


@operation("GET", "/dead-letters/{group}/export", media=tuple(EXPORTS.values()))
async def read_dead_letters(call: Call, *, group: str, form: Form = "jsonl") -> Stream:
    """All dead letters of a group as JSON lines or CSV, as they are read."""
    await dead_letters(call, group=group, count=1)  # its error is an answer, not the end of a file
    return Stream(EXPORTS[form], _lines(call, group, form), file_name(group, form))


async def _lines(call: Call, group: str, form: Form) -> AsyncIterator[str]:
    async with (
        call.opened() as own,
        aclosing(operate_letters.exported(own.client, group, form=form)) as lines,
    ):
        number = 0
        async for line in lines:
            number += 1
            if number % LINES_OF_A_LOOK == 0 and not own.is_current():
                raise LoginNeeded("the login of this export has ended")
            yield line


@frozen
class Exported:
    """Dead letters that were written into the file of a job."""

    group: str
    form: Form
    letters: int
    size: int


@operation("POST", "/dead-letters/{group}/export", Role.OPERATOR, is_long=True)
async def export_dead_letters(call: Call, *, group: str, form: Form = "jsonl") -> Exported:
    """Write all dead letters of a group into the file of a job, as JSON lines or CSV; only as a job."""
    file = call.progress.file
    if file is None:
        raise BadRequest("operation: an export needs a job; start it with POST /jobs")
    total, letters, size = max(await _kept(call, validate_group(group)), 0), 0, 0
    parts: list[str] = []
    waiting = 0
    async with aclosing(operate_letters.exported(call.client, group, form=form)) as lines:
        async for line in lines:
            parts.append(line)
            waiting, size, letters = waiting + len(line), size + len(line), letters + 1
            if size > FILE_CHARS_MAX:
                raise BadRequest(f"the export would have more than {FILE_CHARS_MAX >> 20} MiB: use the API")
            if waiting > PART_CHARS:
                await call.run_blocking(_append, file, "".join(parts))
                parts, waiting = [], 0
                call.progress.report(letters, total)
    await call.run_blocking(_append, file, "".join(parts))
    letters -= form == "csv"  # its head
    call.progress.report(letters, total)
    return Exported(group, form, letters, size)


def _append(file: pathlib.Path, text: str) -> None:
    with file.open("a", encoding="utf-8", newline="") as out:
        out.write(text)
