"""Streams: groups whose offsets are committed without members, as streams of Spark do by their groupId."""

from __future__ import annotations

from attrs import frozen

from rmq.client.admin import GroupProgress
from rmq.dashboard.operations import figures
from rmq.dashboard.operations.operation import Call, operation
from rmq.errors import ConsumerNotOnline
from rmq.message import retry_topic
from rmq.operate.several import ask_each


@frozen
class StreamRow:
    """A group without members: its topics, lag, and the time of the last message that it has read."""

    group: str
    topics: list[str]
    lag: int
    read_up_to: int


@operation("GET", "/streams")
async def streams(call: Call) -> list[StreamRow]:
    """Streams of Spark and other readers that commit offsets as a group without members."""
    progress = await figures.all_progress(call)
    started = {name: one for name, one in progress.items() if any(row.consumer_offset for row in one.queues)}

    async def has_members(group: str) -> bool:
        try:
            await call.admin.consumer_connection(group)
        except ConsumerNotOnline:
            return False
        return True

    online = await ask_each(started, has_members)
    return [_row(name, one) for name, one in started.items() if not online[name]]


def _row(name: str, one: GroupProgress) -> StreamRow:
    rows = [row for row in one.queues if row.message_queue.topic != retry_topic(name)]
    return StreamRow(
        name,
        sorted({row.message_queue.topic for row in rows}),
        sum(row.lag for row in rows),
        max((row.last_timestamp for row in rows), default=0),
    )
