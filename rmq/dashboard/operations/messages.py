"""Messages: page through a topic, find, show and trace a message; give it to a group, or send a copy."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from attrs import frozen

from rmq.dashboard.access.roles import Role
from rmq.dashboard.errors import UnknownName
from rmq.dashboard.operations import figures
from rmq.dashboard.operations.groups import check_member
from rmq.dashboard.operations.operation import Call, operation
from rmq.errors import LocalProtocolError, NoRoute, QueryNotFound, RmqError
from rmq.message import TRACE_TOPIC, MessageQueue, StoredMessage, parse_offset_message_id
from rmq.operate.messages import lookup, pages
from rmq.operate.messages.traces import Timeline, timeline
from rmq.operate.topics import is_absent

PREVIEW: Final = 160
Millis = Annotated[int, msgspec.Meta(ge=0, description="ms since 1970; 0: no limit.")]
WithinSeconds = Annotated[
    float,
    msgspec.Meta(gt=0, le=30, description="The page ends after so long, with the messages that it has."),
]
PAGE_SECONDS: Final = 0.5
"""A page of the dashboard shows in less than a second, also when few of many messages fit."""


@frozen
class MessageRow:
    """A message of a list. `preview` is the beginning of its body as text."""

    topic: str
    broker: str
    queue: int
    offset: int
    message_id: str
    offset_message_id: str
    stored_at: int
    born_at: int
    tags: str
    keys: list[str]
    size: int
    preview: str


@frozen
class MessagePage:
    """A page of a topic's messages. `total` counts the messages of the span before any filter, `looked_at`
    the messages read, `left` the messages that the next pages read. `cursor` requests the next page; it is
    empty after the last page. A page may have few rows, or none, and still a cursor."""

    rows: list[MessageRow]
    total: int
    looked_at: int
    left: int
    cursor: str


def row_of(message: StoredMessage) -> MessageRow:
    """A message as a list shows it."""
    return MessageRow(
        message.topic,
        message.broker_name,
        message.queue_id,
        message.queue_offset,
        message.message_id,
        message.offset_message_id,
        message.store_timestamp,
        message.born_timestamp,
        message.tags or "",
        list(message.keys),
        len(message.body),
        preview_of(message.body),
    )


def preview_of(body: bytes) -> str:
    """The beginning of a body, as text."""
    return body[:PREVIEW].decode("utf-8", "replace")


@operation("GET", "/messages")
async def messages(
    call: Call,
    *,
    topic: str,
    since_ms: Millis = 0,
    until_ms: Millis = 0,
    newest_first: bool = True,
    tags: Annotated[str, msgspec.Meta(description="Tags, as in a subscription: a || b.")] = "*",
    text: Annotated[str, msgspec.Meta(description="Only bodies that contain this text.")] = "",
    count: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50,
    cursor: Annotated[str, msgspec.Meta(description="The cursor of the page before.")] = "",
    within_seconds: WithinSeconds = PAGE_SECONDS,
) -> MessagePage:
    """A page of a topic's messages by time; the queues are read only as far as the page needs it."""
    pattern = text.encode()
    page = await pages.read_page(
        call.client,
        topic,
        since_ms=since_ms or None,
        until_ms=until_ms or None,
        newest_first=newest_first,
        expression=tags.strip() or "*",
        where=(lambda message: pattern in message.body) if pattern else None,
        count=count,
        cursor=cursor or None,
        within_seconds=within_seconds,
    )
    rows = [row_of(one) for one in page.messages]
    return MessagePage(rows, page.total, page.looked_at, page.left, page.cursor or "")


@operation("GET", "/messages/by-key")
async def messages_by_key(
    call: Call, *, topic: str, key: str, since_ms: Millis = 0, until_ms: Millis = 0
) -> list[MessageRow]:
    """The messages of a topic that carry a key, or the producer's id."""
    found = await lookup.find(
        call.admin, topic, key, since_ms=since_ms, until_ms=until_ms or None, now_ms=call.now_ms()
    )
    return [row_of(one) for one in found.messages]


@frozen
class Track:
    """The state of a message in a group."""

    group: str
    state: str
    detail: str


@frozen
class MessageDetail:
    """A message in full. `text` and `json` are empty when the body is neither; `is_cut`: they show only the
    beginning of a long body."""

    row: MessageRow
    born_host: str
    store_host: str
    reconsume_times: int
    flag: int
    properties: dict[str, str]
    text: str
    json: str
    hex: str
    is_cut: bool
    tracks: list[Track]


async def stored_message(call: Call, id: str, topic: str = "") -> StoredMessage:
    """The message with an offset id, or with a producer's id in a topic. Raises QueryNotFound,
    LocalProtocolError for a text that is neither, and UnknownName for the address of a server that is no
    broker of the cluster: an offset id may name any address, and the dashboard does not connect there."""
    text = id.strip()
    try:
        address, _ = parse_offset_message_id(text)
    except LocalProtocolError:
        return await call.admin.view_message(text, topic)
    if address in await figures.broker_places(call):
        return await call.admin.view_message(text, topic)
    if not topic:
        raise UnknownName(f"the message id names the address {address}, where no broker of this cluster is")
    found = (await call.admin.query_unique_key(topic, text)).messages
    if not found:
        raise QueryNotFound(None, f"no message of topic {topic} has the id {text}")
    return found[0]


@operation("GET", "/message")
async def message(
    call: Call,
    *,
    topic: str = "",
    id: Annotated[str, msgspec.Meta(description="A producer's id, or an offset id.")] = "",
    broker: Annotated[str, msgspec.Meta(description="Without an id: the queue's broker.")] = "",
    queue: Annotated[int, msgspec.Meta(ge=0)] = 0,
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0,
    tracks: Annotated[bool, msgspec.Meta(description="Ask what each group did with it.")] = True,
) -> MessageDetail:
    """A message, by id or place: body, properties, and its state in each group."""
    if id:
        found = await stored_message(call, id, topic)
    else:
        found = await call.admin.message_at(MessageQueue(topic, broker, queue), offset)
    done: list[Track] = []
    if tracks:
        try:
            done = [Track(one.group, one.state, one.detail) for one in await call.admin.message_tracks(found)]
        except RmqError as error:  # an account that is no administrator sees the message all the same
            done = [Track("", "UNKNOWN", str(error))]
    body = lookup.view_body(found.body)
    return MessageDetail(
        row_of(found),
        found.born_host,
        found.store_host,
        found.reconsume_times,
        found.flag,
        dict(sorted(found.properties.items())),
        body.text or "",
        body.json or "",
        body.hex,
        body.is_cut,
        done,
    )


@frozen
class Step:
    """Something that happened to a message; `success` is None for a delivery that may still run."""

    kind: str
    begin_ms: int
    end_ms: int
    group: str
    client: str
    store: str
    success: bool | None
    retries: int
    state: str


@frozen
class TraceView:
    """The trace of a message, in the order of its steps."""

    message_id: str
    steps: list[Step]


@operation("GET", "/message/trace")
async def trace(call: Call, *, id: str, trace_topic: str = TRACE_TOPIC) -> TraceView:
    """The trace of a message, by its producer's id; without steps if it has no trace."""
    try:
        found: Timeline = await timeline(call.admin, id, topic=trace_topic)
    except NoRoute as error:
        if not is_absent(error):
            raise
        return TraceView(id, [])
    return TraceView(
        id,
        [
            Step(
                one.kind,
                one.begin_ms,
                one.end_ms,
                one.group,
                one.client,
                one.store,
                one.success,
                one.retries,
                one.state,
            )
            for one in found.steps
        ],
    )


@frozen
class Given:
    """A member's result for a message."""

    is_consumed: bool
    result: str
    remark: str
    took_ms: int


@operation("POST", "/message/give", Role.OPERATOR)
async def give_message(call: Call, *, topic: str, id: str, group: str, client_id: str = "") -> Given:
    """Pass a stored message to a member of a group (the first, if none is named) now; offsets stay."""
    if client_id:
        await check_member(call, group, client_id)
    stored = await stored_message(call, id, topic)
    result = await lookup.give_to_member(call.admin, group, stored.offset_message_id, topic, client_id)
    return Given(
        lookup.is_consumed(result),
        str(result.consume_result or ""),
        result.remark or "",
        result.spent_time_mills,
    )


@frozen
class Copied:
    """The copy of a message."""

    message_id: str
    topic: str
    broker: str
    queue: int
    offset: int


@operation("POST", "/message/copy", Role.OPERATOR)
async def copy_message(
    call: Call,
    *,
    topic: str,
    id: str,
    to_topic: Annotated[str, msgspec.Meta(description="Empty: the same topic.")] = "",
) -> Copied:
    """Send a copy of a stored message to its topic or another topic, for all groups; the copy gets a new
    id."""
    stored = await stored_message(call, id, topic)
    result = await lookup.send_again(call.client, stored, to_topic)
    place = result.message_queue
    return Copied(result.message_id, place.topic, place.broker_name, place.queue_id, result.queue_offset)
