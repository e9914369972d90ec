"""Offsets of groups: reset, and copied to another group, each with a preview."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from attrs import frozen

from rmq.dashboard.access.roles import Role
from rmq.dashboard.errors import BadRequest
from rmq.dashboard.operations import figures
from rmq.dashboard.operations.operation import Call, operation
from rmq.errors import ResponseError
from rmq.message import MessageQueue, retry_topic
from rmq.operate import groups as operate_groups
from rmq.operate.groups import EARLIEST, TO_THE_END


@frozen
class ResetRow:
    """A queue of a reset: the group's offset before and after. `again` messages are delivered again,
    `skipped` are never delivered."""

    broker: str
    queue: int
    offset: int
    new_offset: int
    end: int
    again: int
    skipped: int


@frozen
class Reset:
    """Result of a reset; `done` is unset in a preview."""

    group: str
    topic: str
    rows: list[ResetRow]
    again: int
    skipped: int
    members: int
    done: bool


@operation("POST", "/groups/{group}/reset", Role.OPERATOR)
async def reset_group(
    call: Call,
    *,
    group: str,
    topic: str,
    to: Literal["time", "first", "last", "offset"],
    at_ms: Annotated[int, msgspec.Meta(ge=0, description="For `time`: ms since 1970.")] = 0,
    broker: Annotated[str, msgspec.Meta(description="For `offset`: the queue's broker.")] = "",
    queue: Annotated[int, msgspec.Meta(ge=0, description="For `offset`: the queue.")] = 0,
    offset: Annotated[int, msgspec.Meta(ge=0, description="For `offset`: where to go on.")] = 0,
    preview: Annotated[bool, msgspec.Meta(description="Change nothing: only say what would happen.")] = False,
) -> Reset:
    """Let a group go on elsewhere in a topic: at a time, the first or last message, or an offset."""
    stamp = {"first": EARLIEST, "last": TO_THE_END}.get(to, at_ms)
    if to == "time" and not at_ms:
        raise BadRequest("at_ms: a time is needed")
    await figures.check_group(call, group)
    if to == "offset":
        targets = {MessageQueue(topic, broker, queue): offset}
        found = await operate_groups.preview_offset(call.admin, group, targets)
    else:
        found = await operate_groups.preview_reset(call.client, group, topic, stamp)
    if not preview and to == "offset":
        await call.admin.set_offsets(group, targets)
    elif not preview:
        await operate_groups.reset(call.admin, group, topic, stamp)
    rows = [
        ResetRow(
            one.message_queue.broker_name,
            one.message_queue.queue_id,
            one.before,
            one.after,
            one.max_offset,
            one.again,
            one.skipped,
        )
        for one in found.steps
    ]
    return Reset(group, topic, rows, found.again, found.skipped, len(found.members), not preview)


@frozen
class TopicReset:
    """Result of a reset in one topic: the number of queues, or the error."""

    topic: str
    queues: int
    error: str


@frozen
class ResetAll:
    """Result of a reset in all topics of a group."""

    group: str
    topics: list[TopicReset]


@operation("POST", "/groups/{group}/reset-all", Role.OPERATOR, is_long=True)
async def reset_all(
    call: Call,
    *,
    group: str,
    to: Literal["time", "first", "last"],
    at_ms: Annotated[int, msgspec.Meta(ge=0, description="For `time`: ms since 1970.")] = 0,
) -> ResetAll:
    """Let a group go on elsewhere in all its topics, one after the other. A topic that fails is skipped."""
    if to == "time" and not at_ms:
        raise BadRequest("at_ms: a time is needed")
    await figures.check_group(call, group)
    stamp = {"first": EARLIEST, "last": TO_THE_END}.get(to, at_ms)
    rows = (await call.admin.consume_stats(group)).queues
    topics = sorted({row.message_queue.topic for row in rows} - {retry_topic(group)})
    found: list[TopicReset] = []
    for number, topic in enumerate(topics):
        call.progress.report(number, len(topics), topic)
        try:
            done = await operate_groups.reset(call.admin, group, topic, stamp)
        except ResponseError as error:
            found.append(TopicReset(topic, 0, str(error)))
        else:
            found.append(TopicReset(topic, len(done), ""))
    call.progress.report(len(topics), len(topics))
    return ResetAll(group, found)


@frozen
class CopyRow:
    """A queue of a copy: the other group's offset before (-1: none) and after the copy."""

    topic: str
    broker: str
    queue: int
    offset: int
    new_offset: int


@frozen
class OffsetCopy:
    """Offsets that a copy sets, or has set; `done` is unset in a preview. `members` is the number of the
    other group's connected members, which do not follow the copy before a restart."""

    group: str
    to_group: str
    topic: str
    rows: list[CopyRow]
    members: int
    done: bool


@operation("POST", "/groups/{group}/copy", Role.OPERATOR)
async def copy_offsets(
    call: Call,
    *,
    group: str,
    to_group: str,
    topic: Annotated[str, msgspec.Meta(description="Empty: all topics of the group.")] = "",
    preview: Annotated[bool, msgspec.Meta(description="Change nothing: only say what would happen.")] = False,
) -> OffsetCopy:
    """Copy a group's offsets, in a topic or all, to another group, which goes on at the same messages."""
    await figures.check_group(call, group)
    if topic:
        await call.admin.topic_stats(topic)
    found = await operate_groups.preview_clone(call.admin, group, to_group, topic)
    members = await operate_groups.member_ids(call.admin, to_group)
    if not preview:
        await operate_groups.clone(call.admin, group, to_group, topic)
    rows = [
        CopyRow(queue.topic, queue.broker_name, queue.queue_id, -1 if before is None else before, after)
        for queue, before, after in found.queues
    ]
    return OffsetCopy(group, to_group, topic, rows, len(members), not preview)
