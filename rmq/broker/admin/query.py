"""Questions about stored messages: by time, by offset, by key, and the ends and units of queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rmq.errors import for_code
from rmq.protocol import json
from rmq.protocol.bodies import ConsumeQueueData, QueryConsumeQueueResponseBody
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import MAX_FRAME
from rmq.protocol.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryConsumeQueueRequestHeader,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    ViewMessageRequestHeader,
)

if TYPE_CHECKING:
    from rmq.broker.filtering.filters import FilterTable
    from rmq.broker.membership.clients import Clients
    from rmq.broker.role import Role
    from rmq.protocol.command import Command
    from rmq.store.store import Store
    from rmq.store.view import Lookup

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
ANSWER_BYTES: Final = MAX_FRAME // 2
"""A query stops gathering messages at that many bytes: one frame must hold its answer."""

NOT_ALL: Final = (
    "not all messages that may have this key were looked at: too many others have keys with the same hash; "
    "ask for a shorter time"
)
UNITS_MAX: Final = 1_000


class Query:
    """Answers from the store; changes nothing."""

    def __init__(
        self, store: Store, clients: Clients, filters: FilterTable | None = None, *, role: Role
    ) -> None:
        self._store = store
        self._clients = clients
        self._filters = filters
        self._role = role

    def handlers(self) -> dict[int, Callable[[Command, Any, int], Command | None]]:
        """Request codes and their handlers."""
        return {
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._on_search_offset,
            RequestCode.GET_MAX_OFFSET: self._on_max_offset,
            RequestCode.GET_MIN_OFFSET: self._on_min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._on_earliest_time,
            RequestCode.VIEW_MESSAGE_BY_ID: self._on_view,
            RequestCode.QUERY_MESSAGE: self._on_query,
            RequestCode.QUERY_CONSUME_QUEUE: self._on_consume_queue,
        }

    def _on_search_offset(self, request: Command, connection: Any, now: int) -> Command:
        header = request.read(SearchOffsetRequestHeader)
        offset = self._store.offset_by_time(header.topic, header.queue_id, header.timestamp)
        if (reach := self._role.high_watermark()) is not None:
            offset = min(offset, self._store.readable_end(header.topic, header.queue_id, reach))
        return request.reply(header=SearchOffsetResponseHeader(offset))

    def _on_max_offset(self, request: Command, connection: Any, now: int) -> Command:
        header = request.read(GetMaxOffsetRequestHeader)
        store, topic, queue_id = self._store, header.topic, header.queue_id
        reach = self._role.high_watermark()
        end = (
            store.max_offset(topic, queue_id) if reach is None else store.readable_end(topic, queue_id, reach)
        )
        return request.reply(header=GetMaxOffsetResponseHeader(end))

    def _on_min_offset(self, request: Command, connection: Any, now: int) -> Command:
        header = request.read(GetMinOffsetRequestHeader)
        return request.reply(
            header=GetMinOffsetResponseHeader(self._store.min_offset(header.topic, header.queue_id))
        )

    def _on_earliest_time(self, request: Command, connection: Any, now: int) -> Command:
        header = request.read(GetEarliestMsgStoretimeRequestHeader)
        time_ms = self._store.earliest_time(header.topic, header.queue_id)
        return request.reply(header=GetEarliestMsgStoretimeResponseHeader(time_ms))

    def _on_view(self, request: Command, connection: Any, now: int) -> Command:
        offset = request.read(ViewMessageRequestHeader).offset
        record = self._store.confirmed(offset)
        if record is None:
            raise for_code(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return request.reply(body=bytes(record))

    def _on_query(self, request: Command, connection: Any, now: int) -> Command:
        header = request.read(QueryMessageRequestHeader)
        most = header.max_num
        if request.ext.get(UNIQUE_KEY_QUERY) == "true":
            most = self._store.config.default_query_max_num
        found = self._store.lookup(
            header.topic, header.key, max(0, most), header.begin_timestamp, header.end_timestamp
        )
        reply = QueryMessageResponseHeader(found.index_timestamp, found.index_offset)
        body, remark = self._records(found), None if found.is_all else NOT_ALL
        if body:
            return request.reply(remark=remark, header=reply, body=body)
        remark = remark or "can not find message, maybe time range not correct"
        return request.reply(ResponseCode.QUERY_NOT_FOUND, remark, reply)

    def _records(self, found: Lookup) -> bytes:
        """The records, as far as consumers may read. The first is given in any size."""
        body = bytearray()
        for physical_offset in found.physical_offsets:
            record = self._store.confirmed(physical_offset)
            if record is None:
                continue
            if body and len(body) + len(record) > ANSWER_BYTES:
                break
            body += record
        return bytes(body)

    def _on_consume_queue(self, request: Command, connection: Any, now: int) -> Command:
        header = request.read(QueryConsumeQueueRequestHeader)
        topic, queue_id = header.topic or "", header.queue_id
        if not self._store.has_queue(topic, queue_id):
            raise for_code(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        body = QueryConsumeQueueResponseBody(
            queue_data=self._units(topic, queue_id, header.index, header.count),
            max_queue_index=self._store.max_offset(topic, queue_id),
            min_queue_index=self._store.min_offset(topic, queue_id),
        )
        if header.consumer_group is not None:
            body.subscription_data = self._clients.subscription(header.consumer_group, topic)
            if body.subscription_data is None:
                body.filter_data = f"{header.consumer_group}@{topic} is not online!"
            else:
                body.filter_data = self._filter_text(topic, header.consumer_group)
        remark = None if body.queue_data else f"Index {header.index} of {queue_id}@{topic} is not exist!"
        return request.reply(remark=remark, body=body.to_json())

    def _filter_text(self, topic: str, group: str) -> str:
        """The group's SQL filter as JSON; "null" when it filters by tags."""
        known = None if self._filters is None else self._filters.row(topic, group)
        return json.dumps(known).decode()

    def _units(self, topic: str, queue_id: int, index: int, count: int) -> list[ConsumeQueueData]:
        units = []
        for offset in range(index, index + min(count, UNITS_MAX)):
            unit = self._store.unit(topic, queue_id, offset)
            if unit is None:
                break
            stored = self._store.message_time(topic, queue_id, offset)
            units.append(ConsumeQueueData(*unit, rmq_store_timestamp=stored if stored >= 0 else None))
        return units
