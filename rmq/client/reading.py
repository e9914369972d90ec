"""Reads whole topics, for tools: what is there now, queue by queue."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from rmq.client.puller import PullConsumer
from rmq.client.session import Session
from rmq.errors import NoPermission, NoRoute
from rmq.message import StoredMessage

READER: Final = "TOOLS_CONSUMER"
"""The group that reads for tools: every broker knows it."""


async def read_topic(
    session: Session, topic: str, since_ms: int | None = None
) -> AsyncGenerator[StoredMessage]:
    """The messages that `topic` has now, or those stored at `since_ms` or later; none when there is no topic.

    To be used in `aclosing`. Raises NoPermission when it may not be read, and as `PullConsumer.pull`.
    Cancelled: nothing has happened."""
    async with PullConsumer(session, READER) as puller:
        try:
            queues = await puller.message_queues(topic)
        except NoRoute as error:
            if not error.refused and await session.names.topics(session.brokers.timeout):
                return  # a name server answers, so there is no such topic
            raise
        if not queues:
            raise NoPermission(remark=f"{topic} may not be read; give the topic the permission 6")
        for queue in queues:
            end = await puller.max_offset(queue)
            at = await (
                puller.min_offset(queue) if since_ms is None else puller.search_offset(queue, since_ms)
            )
            while at < end:
                page = await puller.pull(queue, at)
                for message in page.messages:
                    if message.queue_offset < end:
                        yield message
                at = page.next_offset if page.messages else end
