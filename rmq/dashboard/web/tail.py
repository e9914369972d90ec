"""The live tail of a topic, by server-sent events: one task for all queues, no group, no offset stored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from typing import Any, Final

import anyio
from attrs import define, field
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from rmq.client.admin.messages import TOOLS_GROUP
from rmq.client.reading.pull_consumer import PullConsumer
from rmq.dashboard.access.roles import Role
from rmq.dashboard.errors import BadRequest, TooMany
from rmq.dashboard.operations.messages import preview_of
from rmq.dashboard.operations.operation import check_role
from rmq.dashboard.web.page import Page, page
from rmq.errors import NETWORK_ERRORS, RmqError
from rmq.message import MessageQueue, StoredMessage
from rmq.printable import printable_lines

SCAN_SECONDS: Final = 0.5
SHOWN_MAX: Final = 50
"""Messages that one look sends to the browser; others are counted as skipped."""
STREAMS_MAX: Final = 20
STREAMS_OF_ONE: Final = 8
PING_LOOKS: Final = 30
LIMIT_DIGITS: Final = 9


@define
class Streams:
    """Number of open tails, by identity."""

    open: Counter[Hashable] = field(factory=Counter)

    def enter(self, identity: Hashable) -> None:
        """Open a tail. Raises TooMany."""
        if self.open.total() >= STREAMS_MAX:
            raise TooMany(f"{STREAMS_MAX} tails are open already")
        if self.open[identity] >= STREAMS_OF_ONE:
            raise TooMany(f"{STREAMS_OF_ONE} tails of yours are open already")
        self.open[identity] += 1

    def leave(self, identity: Hashable) -> None:
        """Close a tail."""
        self.open[identity] -= 1
        self.open += Counter()  # drops the identities without a tail


STREAMS: Final = Streams()


@page("/topics/{topic}/tail")
async def tail(page: Page) -> Response:
    """The page, which opens the stream."""
    return page.show("tail.html", name=page.path("topic"), query=dict(page.query))


@page("/topics/{topic}/events")
async def events(page: Page) -> Response:
    """The stream."""
    check_role(page.caller.identity, Role.READER)
    limit = page.query.get("limit", "0")
    if not limit.isdecimal() or len(limit) > LIMIT_DIGITS:
        raise BadRequest("limit: a number of messages is needed")
    STREAMS.enter(page.caller.identity.key)
    return Tail(page, int(limit))


class Tail(StreamingResponse):
    """The stream as a response, which gives its place back even when its viewer is gone before it begins."""

    def __init__(self, page: Page, limit: int) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(_events(page, limit), media_type="text/event-stream", headers=headers)
        self._identity = page.caller.identity.key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            STREAMS.leave(self._identity)


async def _events(page: Page, limit: int) -> AsyncIterator[str]:
    topic, tags = page.path("topic"), page.query.get("tags", "").strip() or "*"
    pattern = page.query.get("text", "").encode()
    try:
        async with page.call() as call, call.client.pull_consumer(TOOLS_GROUP) as pulls:
            watch = Watch(pulls, topic, tags, pattern)
            await watch.begin()
            yield "retry: 3000\n: open\n\n"
            looks, sent = 0, 0
            while not limit or sent < limit:
                shown = await watch.look()
                for message in shown[-SHOWN_MAX:]:
                    sent += 1
                    yield _event("message", _row(page, message))
                if len(shown) > SHOWN_MAX:
                    yield _event("skipped", len(shown) - SHOWN_MAX)
                looks += 1
                if looks % PING_LOOKS == 0:
                    yield ": still here\n\n"
                await anyio.sleep(SCAN_SECONDS)
    except (RmqError, OSError) as error:
        yield f"event: problem\ndata: {' '.join(str(error).split())}\n\n"


def _event(name: str, value: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(value)}\n\n"


def _row(page: Page, message: StoredMessage) -> dict[str, Any]:
    place = {"topic": message.topic, "broker": message.broker_name}
    href = page.to("messages", "show", **place, queue=message.queue_id, offset=message.queue_offset)
    return {
        "broker": printable_lines(message.broker_name),
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "stored_at": message.store_timestamp,
        "tags": printable_lines(message.tags or ""),
        "keys": printable_lines(" ".join(message.keys)),
        "preview": printable_lines(preview_of(message.body)),
        "href": href,
    }


@define
class Watch:
    """The queues of a topic, and how far each has been looked at."""

    pulls: PullConsumer
    topic: str
    tags: str
    pattern: bytes
    at: dict[MessageQueue, int] = field(factory=dict)

    async def begin(self) -> None:
        """Start at the ends of all queues. Raises NoRoute."""
        self.at = {queue: ends[1] for queue, ends in (await self._ends()).items()}

    async def look(self) -> list[StoredMessage]:
        """The messages that have come since the last look, in the order of their time. A broker that does not
        answer is asked at the next look."""
        found: list[StoredMessage] = []
        try:
            ends = await self._ends()
        except NETWORK_ERRORS:
            return found
        for queue, (low, high) in ends.items():
            at = max(self.at.get(queue, low), low)
            # Of a burst only the end is shown: looking must stay cheap.
            at = max(at, high - 4 * SHOWN_MAX)
            while at < high:
                result = await self.pulls.pull(queue, at, expression=self.tags)
                found += [one for one in result.messages if self.pattern in one.body]
                if result.next_offset <= at:
                    break
                at = result.next_offset
            self.at[queue] = max(at, high)
        return sorted(found, key=lambda one: one.store_timestamp)

    async def _ends(self) -> dict[MessageQueue, tuple[int, int]]:
        queues = await self.pulls.message_queues(self.topic)
        found: dict[MessageQueue, tuple[int, int]] = {}
        for broker in {queue.broker_name: queue for queue in queues}.values():
            found |= await self.pulls.bounds(broker)
        return {queue: found[queue] for queue in queues if queue in found}
