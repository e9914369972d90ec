"""The live tail of a topic, by server-sent events: one task for all queues, no group, no offset stored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from typing import Annotated, Any, Final

import anyio
import msgspec
from attrs import define, field

from rmq.client.admin.messages import TOOLS_GROUP
from rmq.client.reading.pull_consumer import PullConsumer
from rmq.dashboard.errors import LoginNeeded, TooMany
from rmq.dashboard.operations.messages import preview_of
from rmq.dashboard.operations.operation import Call, operation
from rmq.dashboard.paths import link
from rmq.dashboard.stream import EVENTS, Stream
from rmq.errors import NETWORK_ERRORS, RmqError
from rmq.message import MessageQueue, StoredMessage
from rmq.printable import printable_lines

SCAN_SECONDS: Final = 0.5
SHOWN_MAX: Final = 50
"""Messages that one look sends to the browser; others are counted as skipped."""
STREAMS_MAX: Final = 20
STREAMS_OF_ONE: Final = 8
PING_LOOKS: Final = 30


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


@operation("GET", "/topics/{topic}/events", media=(EVENTS,))
async def tail(
    call: Call,
    *,
    topic: str,
    tags: Annotated[str, msgspec.Meta(description="Tags, as in a subscription: a || b.")] = "*",
    text: Annotated[str, msgspec.Meta(description="Only bodies that contain this text.")] = "",
    limit: Annotated[int, msgspec.Meta(ge=0, le=10**9, description="End after so many; 0: no end.")] = 0,
) -> Stream:
    """The messages that come into a topic from now on, as server-sent events; no group is joined.

    Events are `message`, `skipped` with a number of messages that were too many at once, and `problem` with
    the error that has ended the stream.
    """
    identity = call.identity.key
    STREAMS.enter(identity)
    lines = _events(call, topic, tags.strip() or "*", text.encode(), limit)
    return Stream(EVENTS, lines, release=lambda: STREAMS.leave(identity))


async def _events(call: Call, topic: str, tags: str, pattern: bytes, limit: int) -> AsyncIterator[str]:
    try:
        async with call.opened() as own, own.client.pull_consumer(TOOLS_GROUP) as pulls:
            watch = Watch(pulls, topic, tags, pattern)
            await watch.begin()
            yield "retry: 3000\n: open\n\n"
            looks, sent = 0, 0
            while not limit or sent < limit:
                shown = await watch.look()
                for message in shown[-SHOWN_MAX:]:
                    sent += 1
                    yield _event("message", _row(call.cluster, message))
                if len(shown) > SHOWN_MAX:
                    yield _event("skipped", len(shown) - SHOWN_MAX)
                looks += 1
                if looks % PING_LOOKS == 0:
                    if not call.is_current():
                        raise LoginNeeded("the login of this tail has ended")
                    yield ": still here\n\n"
                await anyio.sleep(SCAN_SECONDS)
    except (RmqError, OSError) as error:
        yield f"event: problem\ndata: {' '.join(str(error).split())}\n\n"


def _event(name: str, value: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(value)}\n\n"


def _row(cluster: str, message: StoredMessage) -> dict[str, Any]:
    place = {"topic": message.topic, "broker": message.broker_name}
    place |= {"queue": str(message.queue_id), "offset": str(message.queue_offset)}
    return {
        "broker": printable_lines(message.broker_name),
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "stored_at": message.store_timestamp,
        "tags": printable_lines(message.tags or ""),
        "keys": printable_lines(" ".join(message.keys)),
        "preview": printable_lines(preview_of(message.body)),
        "href": link("c", cluster, "messages", "show", **place),
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
