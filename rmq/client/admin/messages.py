"""Messages: find messages by id, key, place or trace, send a message to a consumer, inspect queues."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from rmq.client.admin.groups import Groups
from rmq.client.consume.message_view import FoundMessage, found_messages
from rmq.client.reading.pull_consumer import PullConsumer
from rmq.errors import (
    ConsumerNotOnline,
    CorruptRecord,
    LocalProtocolError,
    QueryNotFound,
    RemoteProtocolError,
    RmqError,
    SystemFailure,
    check_type,
)
from rmq.message import TRACE_TOPIC, MessageQueue, StoredMessage, parse_offset_message_id
from rmq.protocol import headers
from rmq.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    QueryConsumeQueueResponseBody,
)
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ResumeCheckHalfMessageRequestHeader,
    ViewMessageRequestHeader,
)
from rmq.protocol.record import decode_record
from rmq.protocol.trace import TraceContext
from rmq.protocol.trace import decode as decode_trace

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The group under which RocketMQ's tools read; every broker has it."""
FOREVER: Final = (1 << 63) - 1
CONSUME_SECONDS = 15.0
"""Time-out of a request that the broker forwards: the broker itself gives the consumer 10 s."""


@frozen
class Trace:
    """Events of a message in the trace topic, in order of time."""

    message_id: str
    events: list[TraceContext]


@frozen
class MessageTrack:
    """State of a message in a group: `state` is CONSUMED, CONSUMED_BUT_FILTERED, NOT_CONSUME_YET, PULL (the
    group pulls by itself), NOT_ONLINE or UNKNOWN; `detail` is the reason of the last two."""

    group: str
    state: str
    detail: str = ""


@frozen
class Lookup:
    """Result of a search by key: messages, oldest first. `index_timestamp`: the time up to which the index
    reaches."""

    messages: list[StoredMessage]
    index_timestamp: int


class Messages(Groups):
    """Message methods of `client.admin`. Messages come as stored: bodies unpacked, topics in full."""

    async def view_message(self, message_id: str, topic: str = "") -> StoredMessage:
        """The message with this id: an offset id, which names broker and place, or with `topic` also a
        producer's unique id. Raises QueryNotFound, LocalProtocolError for a text that is neither,
        InvalidType.
        """
        check_type("message_id", message_id, str, "the id of a message as text")
        try:
            address, physical_offset = parse_offset_message_id(message_id)
        except LocalProtocolError:
            if not topic:
                raise
            return await self._by_unique_key(topic, message_id)
        # A unique id may have the length of an offset id: then the message at that place decides.
        try:
            return await self.message_in_log(address, physical_offset)
        except (RmqError, OSError) as error:
            if topic:
                return await self._by_unique_key(topic, message_id)
            if isinstance(error, (SystemFailure, CorruptRecord)):
                text = f"no message has the offset id {message_id}; look for a producer's id in its topic"
                raise QueryNotFound(None, text, address) from error
            raise

    async def message_in_log(self, broker: str, physical_offset: int) -> StoredMessage:
        """The message at a place in a broker's log. Raises SystemFailure when there is none,
        CorruptRecord.
        """
        address = await self._broker_address(broker)
        header = ViewMessageRequestHeader(physical_offset)
        answer = await self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        return decode_record(answer.body, body_max=self._session.config.max_body_size)

    async def _by_unique_key(self, topic: str, message_id: str) -> StoredMessage:
        found = (await self.query_unique_key(topic, message_id)).messages
        if not found:
            raise QueryNotFound(None, f"no message of topic {topic} has the id {message_id}")
        return found[0]

    async def message_at(self, queue: MessageQueue, queue_offset: int) -> StoredMessage:
        """The message at an offset of a queue. Raises NoRoute, QueryNotFound when there is none."""
        async with PullConsumer(self._session, TOOLS_GROUP) as puller:
            result = await puller.pull(queue, queue_offset, max_messages=1)
        for message in result.messages:
            if message.queue_offset == queue_offset:
                return message
        ends = f"it holds {result.min_offset} to {result.max_offset - 1}"
        raise QueryNotFound(None, f"{queue} has no message at offset {queue_offset}: {ends}")

    async def query_message(
        self, topic: str, key: str, *, max_messages: int = 64, begin: int = 0, end: int = FOREVER
    ) -> Lookup:
        """Messages of `topic` that carry `key`, stored from `begin` to `end` (ms), at most `max_messages` of
        each broker. Raises NoRoute.
        """
        header = QueryMessageRequestHeader(topic, key, max_messages, begin, end)
        found = await self._query(header, unique=False)
        hits = [one for one in found.messages if key in one.keys and one.topic == topic]
        return Lookup(hits, found.index_timestamp)

    async def query_unique_key(
        self, topic: str, unique_key: str, *, begin: int = 0, end: int = FOREVER
    ) -> Lookup:
        """Messages with this id of the producer; several when a send was tried again. Raises NoRoute."""
        header = QueryMessageRequestHeader(topic, unique_key, 32, begin, end)
        found = await self._query(header, unique=True)
        hits = [one for one in found.messages if one.message_id == unique_key]
        return Lookup(hits, found.index_timestamp)

    async def _query(self, header: QueryMessageRequestHeader, *, unique: bool) -> Lookup:
        ext = {**headers.encode(header), "_UNIQUE_KEY_QUERY": "true" if unique else "false"}
        messages: list[StoredMessage] = []
        index_timestamp = 0
        for name, address in (await self._brokers_of(header.topic)).items():
            try:
                answer = await self._send(address, Command.request(RequestCode.QUERY_MESSAGE, ext))
            except QueryNotFound:
                continue
            indexed_until = answer.read(QueryMessageResponseHeader).index_last_update_timestamp
            index_timestamp = max(index_timestamp, indexed_until)
            messages += found_messages(answer.body, name, FoundMessage)
        messages.sort(key=lambda message: message.store_timestamp)
        return Lookup(messages, index_timestamp)

    # --- traces and tracks ---

    async def trace(self, message_id: str, *, topic: str = TRACE_TOPIC) -> Trace:
        """The events of a message in the trace topic, by its unique id. Raises NoRoute,
        RemoteProtocolError."""
        found = await self.query_message(topic, message_id)
        events = [
            context
            for message in found.messages
            for context in decode_trace(message.body.decode("utf-8", "replace"))
            if any(bean.message_id == message_id for bean in context.beans)
        ]
        return Trace(message_id, sorted(events, key=lambda context: context.timestamp_ms))

    async def message_tracks(self, message: StoredMessage) -> list[MessageTrack]:
        """The state of a message in each group that reads its topic, by offsets and subscriptions."""
        tracks = []
        for group in await self.groups_of_topic(message.topic):
            try:
                tracks.append(MessageTrack(group, await self._state(group, message)))
            except ConsumerNotOnline as error:
                tracks.append(MessageTrack(group, "NOT_ONLINE", error.remark))
            except RmqError as error:
                tracks.append(MessageTrack(group, "UNKNOWN", str(error)))
        return tracks

    async def _state(self, group: str, message: StoredMessage) -> str:
        members = await self.consumer_connection(group)
        if members.consume_type == "CONSUME_ACTIVELY":
            return "PULL"
        brokers = (await self.cluster_info()).broker_addr_table
        for row in await self.consumer_progress(group, message.topic):
            queue = row.message_queue
            addresses = brokers[queue.broker_name].broker_addrs if queue.broker_name in brokers else {}
            here = message.store_host in addresses.values() or queue.broker_name == message.broker_name
            same = (queue.topic, queue.queue_id) == (message.topic, message.queue_id)
            if same and here and row.consumer_offset > message.queue_offset:
                return "CONSUMED" if _selects(members, message) else "CONSUMED_BUT_FILTERED"
        return "NOT_CONSUME_YET"

    # --- actions on one message ---

    async def consume_directly(
        self, group: str, client_id: str, message_id: str, topic: str = ""
    ) -> ConsumeMessageDirectlyResult:
        """Let a member of a group consume a stored message now, outside its queue's order; offsets stay.

        `message_id` as in `view_message`. The broker of the message forwards it, so the member must be
        connected to that broker. Raises SystemFailure otherwise.
        """
        message = await self.view_message(message_id, topic)
        header = ConsumeMessageDirectlyResultRequestHeader(group, client_id, message.offset_message_id)
        answer = await self._ask(
            message.store_host, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout=CONSUME_SECONDS
        )
        return ConsumeMessageDirectlyResult.from_json(answer.body)

    async def resume_check(self, message_id: str, topic: str = "") -> None:
        """Repeat the check-backs of a half message whose checks ended without a decision. `message_id` as in
        `view_message`. Raises ResponseError when the broker has no such half message."""
        message = await self.view_message(message_id, topic)
        header = ResumeCheckHalfMessageRequestHeader(message.offset_message_id)
        await self._ask(message.store_host, RequestCode.RESUME_CHECK_HALF_MESSAGE, header)

    # --- queues ---

    async def consume_queue(
        self, queue: MessageQueue, index: int, count: int, *, group: str = "", broker: str = ""
    ) -> QueryConsumeQueueResponseBody:
        """Raw units of a consume queue from `index` on; with `group`, also whether its filter accepts them.
        The broker is the queue's, or `broker` (name or address). Raises SystemFailure for an unknown
        queue."""
        address = await self._broker_address(broker or queue.broker_name)
        header = QueryConsumeQueueRequestHeader(queue.topic, queue.queue_id, index, count, group or None)
        answer = await self._ask(address, RequestCode.QUERY_CONSUME_QUEUE, header)
        if not answer.body:
            raise RemoteProtocolError(f"{address}: {answer.remark or 'the response has no queue entries'}")
        return QueryConsumeQueueResponseBody.from_json(answer.body)


def _selects(members: ConsumerConnection, message: StoredMessage) -> bool:
    """True if the group's tags select the message; an SQL expression is not evaluated."""
    data = members.subscription_table.get(message.topic)
    return data is None or not data.tags_set or message.tags in data.tags_set
